"""Which VPAs are ours, which workload each one means, and which workload a pod belongs to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from vpa_ippr.api.cluster import Workload
from vpa_ippr.api.errors import ValidationError
from vpa_ippr.api.meta import OwnerReference
from vpa_ippr.api.names import RECOMMENDER_NAME
from vpa_ippr.api.pod import Pod
from vpa_ippr.api.series import WorkloadRef
from vpa_ippr.api.validation import validate_vpa
from vpa_ippr.api.vpa import Vpa

FindWorkload = Callable[[str, str, str, str], Workload | None]
"""Namespace, API version, kind, name."""

# A chain of owners that is longer, or goes in a circle, is followed no further.
_MAX_OWNERS: Final = 10


def profile_name(vpa: Vpa, *, default_profile: str, default_recommender: bool) -> str | None:
    """The profile that the VPA asks of us; None when it names another recommender, or none and we are not the default."""
    if not vpa.spec.recommenders:
        return default_profile if default_recommender else None
    name = vpa.spec.recommenders[0].name
    if name == RECOMMENDER_NAME:
        return default_profile
    prefix = f"{RECOMMENDER_NAME}-"
    return name.removeprefix(prefix) if name.startswith(prefix) else None


def target_workload(vpa: Vpa, find: FindWorkload) -> WorkloadRef:
    """The workload whose pods the VPA means.

    Raises:
        ValidationError: the spec breaks a rule (reason ``InvalidSpec``), the target is not there (``TargetNotFound``), cannot own pods
            (``TargetUnsupported``) or is itself owned by another workload (``TargetNotTopmost``).
        ClusterError: the target could not be looked up.
    """
    broken = validate_vpa(vpa)
    if broken:
        raise ValidationError("; ".join(broken), fields=broken, reason="InvalidSpec")
    target = vpa.spec.target_ref
    assert target is not None  # validate_vpa requires it
    named, namespace = f"targetRef {target.kind}/{target.name}", vpa.metadata.namespace
    if target.kind == "Node":
        raise ValidationError(f"{named}: a node cannot be scaled; name the controller of the pods", reason="TargetUnsupported")
    found = find(namespace, target.api_version, target.kind, target.name)
    if found is None:
        raise ValidationError(f"{named}: there is none in namespace {namespace}, or it is not scalable", reason="TargetNotFound")
    top = _topmost(namespace, found, find)
    if top is not found:
        raise ValidationError(f"{named} is owned by {top.kind}/{top.name}: name that one instead", reason="TargetNotTopmost")
    return WorkloadRef(namespace, found.kind, found.name)


def pod_workload(pod: Pod, find: FindWorkload) -> WorkloadRef | None:
    """The topmost owner of the pod; without one, or owned by its node, the pod itself.

    None when the controller is not there (it may have gone before its pod) or is no workload.
    """
    namespace, controller = pod.metadata.namespace, pod.metadata.controller
    if controller is None or controller.kind == "Node":
        return WorkloadRef(namespace, "Pod", pod.metadata.name)
    found = _lookup(namespace, controller, find)
    if found is None:
        return None
    top = _topmost(namespace, found, find)
    return WorkloadRef(namespace, top.kind, top.name)


def oldest_first(vpas: Iterable[Vpa]) -> list[Vpa]:
    """By creation, then by name: the order in which VPAs have a right to a workload."""
    return sorted(vpas, key=lambda vpa: (vpa.metadata.creation_timestamp or "", vpa.key))


def _topmost(namespace: str, workload: Workload, find: FindWorkload) -> Workload:
    for _ in range(_MAX_OWNERS):
        if workload.controller is None:
            break
        # An owner that is not scalable (an operator's object) is no workload: the chain ends below it.
        above = _lookup(namespace, workload.controller, find)
        if above is None:
            break
        workload = above
    return workload


def _lookup(namespace: str, owner: OwnerReference, find: FindWorkload) -> Workload | None:
    try:
        return find(namespace, owner.api_version, owner.kind, owner.name)
    except ValidationError:
        return None  # a kind that the cluster does not serve as a workload
