"""The cluster as one cycle of the updater sees it."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from vpa_ippr.api.cluster import Node, Workload
from vpa_ippr.api.errors import ClusterError, QuantityError, ValidationError
from vpa_ippr.api.meta import ObjectKey
from vpa_ippr.api.names import ANNOTATION_RESIZE_LEDGER
from vpa_ippr.api.node_split import for_node
from vpa_ippr.api.pdb import PodDisruptionBudget
from vpa_ippr.api.pod import Pod
from vpa_ippr.api.shrink import MemoryShrink
from vpa_ippr.api.vpa import Vpa
from vpa_ippr.recommend.limit_ranges import UNLIMITED, NamespaceLimits, limits_by_namespace
from vpa_ippr.recommend.ownership import FindWorkload
from vpa_ippr.resize.circumstances import ORDINARY, Circumstances, circumstances_of
from vpa_ippr.resize.hpa import HpaIndex, index_hpas
from vpa_ippr.resize.matching import index_vpas, vpa_of
from vpa_ippr.resize.ports import UpdaterPort
from vpa_ippr.resize.quota_fit import QuotaRoom, quota_rooms
from vpa_ippr.resize.reasons import OutcomeCode
from vpa_ippr.resize.result import PodOutcome
from vpa_ippr.resize.settings import Settings
from vpa_ippr.resize.view import View, look

logger = logging.getLogger(__name__)

PodId = tuple[str, str]
"""Namespace and UID: anybody may write any UID into a MemoryShrink of a namespace of their own."""


@dataclass(frozen=True, slots=True)
class World:
    """All objects of one cycle.

    ``vpa_of`` names the VPA of each pod that has one, with what its node's label makes of it; ``groups`` the pods of each VPA. ``limits``
    and ``quotas`` are those of each namespace, or the error with which they were read; ``workloads`` the targets of VPAs that have pods.
    ``problems`` are the outcomes of pods that could not be matched and of VPAs that are damaged; the pods among them in ``unmatched`` are
    left alone.
    """

    pods: Sequence[Pod]
    vpas: Sequence[Vpa]
    nodes: Mapping[str, Node]
    shrinks: Mapping[PodId, Sequence[MemoryShrink]]
    vpa_of: Mapping[ObjectKey, Vpa]
    groups: Mapping[ObjectKey, Sequence[Pod]]
    workloads: Mapping[ObjectKey, Workload]
    limits: Mapping[str, NamespaceLimits | QuantityError]
    quotas: Mapping[str, QuotaRoom | QuantityError]
    pdbs: Sequence[PodDisruptionBudget]
    hpas: HpaIndex
    unmatched: frozenset[ObjectKey]
    problems: tuple[PodOutcome, ...]

    def ours(self) -> Iterator[tuple[Pod, Vpa | None]]:
        """The pods that have a VPA, or have been resized or shrunk by us before."""
        for pod in self.pods:
            vpa = self.vpa_of.get(pod.key)
            known = pod_id(pod) in self.shrinks or ANNOTATION_RESIZE_LEDGER in pod.metadata.annotations
            if pod.key not in self.unmatched and (vpa is not None or known):
                yield pod, vpa

    def orphans(self) -> Iterator[MemoryShrink]:
        """The shrinks of which the pod is not there."""
        alive = {pod_id(pod) for pod in self.pods}
        return (shrink for owner, shrinks in self.shrinks.items() if owner not in alive for shrink in shrinks)

    def view(self, pod: Pod, vpa: Vpa | None, now: float, settings: Settings) -> View:
        """What there is to see of one pod.

        Raises:
            QuantityError, ValidationError: the pod cannot be read.
        """
        group = self.groups.get(vpa.key, ()) if vpa else ()
        limits = self.limits.get(pod.metadata.namespace, UNLIMITED)
        node, shrinks = self.nodes.get(pod.spec.node_name), self.shrinks.get(pod_id(pod), ())
        view = look(pod, vpa, group, node, shrinks, now, settings, limits)
        return replace(view, known_circumstances=self._circumstances(pod, vpa, now, settings))

    def _circumstances(self, pod: Pod, vpa: Vpa | None, now: float, settings: Settings) -> Circumstances | ValidationError:
        if vpa is None:
            return ORDINARY
        try:
            return circumstances_of(pod, vpa, self.workloads.get(vpa.key), self.hpas, now, settings)
        except ValidationError as error:  # what is under way is followed all the same
            return error


def pod_id(pod: Pod) -> PodId:
    """What tells the pod from all others, those of the same name before and after it included."""
    return pod.metadata.namespace, pod.metadata.uid


def read_world(cluster: UpdaterPort, wanted: Callable[[Pod], bool] = lambda _: True) -> World:
    """The cluster as it is now; a VPA is looked for only for the ``wanted`` pods.

    Raises:
        ClusterError: it could not be listed; an owner that could not be looked up is a problem of its pod alone.
    """
    pods, listed = cluster.list_pods(), cluster.list_vpas()
    index = index_vpas(listed)
    nodes = {node.name: node for node in cluster.list_nodes()}
    shrinks: dict[PodId, list[MemoryShrink]] = defaultdict(list)
    for shrink in cluster.list_shrinks():
        shrinks[shrink.metadata.namespace, shrink.spec.pod.uid].append(shrink)
    vpas: dict[ObjectKey, Vpa] = {}
    groups: dict[ObjectKey, list[Pod]] = defaultdict(list)
    unmatched: dict[ObjectKey, PodOutcome] = {}
    damaged: dict[ObjectKey, PodOutcome] = {}
    for pod in filter(wanted, pods):
        try:
            vpa = vpa_of(pod, index, cluster.find_workload)
        except (ClusterError, ValidationError) as error:
            unmatched[pod.key] = PodOutcome(pod.key, None, OutcomeCode.UNAVAILABLE, error.reason, f"owner of the pod: {error}")
            continue
        if vpa is not None:
            try:
                vpas[pod.key] = for_node(vpa, node.labels if (node := nodes.get(pod.spec.node_name)) else None)
            except ValidationError as error:  # what is recommended for all pods is enough for each
                vpas[pod.key] = vpa
                message = f"vpa {vpa.key}: {error}"
                damaged.setdefault(vpa.key, PodOutcome(pod.key, vpa.key, OutcomeCode.BAD_OBJECT, error.reason, message))
            groups[vpa.key].append(pod)
    return World(
        pods=pods,
        vpas=listed,
        nodes=nodes,
        shrinks=shrinks,
        vpa_of=vpas,
        groups=groups,
        workloads=_targets((vpa for vpa in listed if vpa.key in groups), cluster.find_workload),
        limits=limits_by_namespace(cluster.list_limit_ranges()),
        quotas=quota_rooms(cluster.list_quotas()),
        pdbs=cluster.list_pdbs(),
        hpas=index_hpas(cluster.list_hpas()),
        unmatched=frozenset(unmatched),
        problems=(*unmatched.values(), *damaged.values()),
    )


def _targets(vpas: Iterable[Vpa], find: FindWorkload) -> dict[ObjectKey, Workload]:
    """The targets that can be looked up; their pods were found, so one that cannot is no more than a missing detail."""
    found: dict[ObjectKey, Workload] = {}
    for vpa in vpas:
        reference = vpa.spec.target_ref
        if reference is None:
            continue
        try:
            workload = find(vpa.metadata.namespace, reference.api_version, reference.kind, reference.name)
        except (ClusterError, ValidationError) as error:
            logger.warning("target not looked up", extra={"vpa": str(vpa.key), "error": str(error)})
            continue
        if workload is not None:
            found[vpa.key] = workload
    return found
