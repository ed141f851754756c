"""Which VPA a pod belongs to: the one whose targetRef is the pod's topmost owner; of several, the oldest. As for the recommender."""

from __future__ import annotations

from collections.abc import Iterable

from vpa_ippr.api.pod import Pod
from vpa_ippr.api.series import WorkloadRef
from vpa_ippr.api.vpa import Vpa
from vpa_ippr.recommend.ownership import FindWorkload, oldest_first, pod_workload


def index_vpas(vpas: Iterable[Vpa]) -> dict[WorkloadRef, Vpa]:
    """VPAs by their target; the oldest where several name the same."""
    index: dict[WorkloadRef, Vpa] = {}
    for vpa in oldest_first(vpas):
        reference = vpa.spec.target_ref
        if reference is not None:
            index.setdefault(WorkloadRef(vpa.metadata.namespace, reference.kind, reference.name), vpa)
    return index


def vpa_of(pod: Pod, index: dict[WorkloadRef, Vpa], find: FindWorkload) -> Vpa | None:
    """The VPA that ``pod`` belongs to, if any. Raises ClusterError when an owner cannot be looked up."""
    workload = pod_workload(pod, find)
    return index.get(workload) if workload else None
