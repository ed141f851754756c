"""Whether a pod fits: the arithmetic of the scheduler and of the kubelet's decision on a resize. Pure; amounts are whole numbers.

The kubelet compares the new desired requests of one pod plus what it has **allocated** to all others with the node's allocatable
(GeneralPredicates); the scheduler counts the largest of desired, allocated and actual. What can never fit is Infeasible, what does not
fit now is Deferred; which of the two "larger than the node" is depends on the version.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from vpa_ippr.api.names import ANNOTATION_MIRROR_POD, POD_RESIZE_PENDING
from vpa_ippr.sandbox.podamounts import (
    ResourceList,
    Totals,
    allocated_requests,
    container_status,
    containers,
    effective_requests,
    init_containers,
    is_sidecar,
    pod_requests,
    qos_class,
    quantities,
    resource_list,
    totals,
)
from vpa_ippr.sandbox.status import Json
from vpa_ippr.sandbox.versions import VersionProfile

_CRITICAL_PRIORITY = 2_000_000_000
"""``scheduling.SystemCriticalPriority``: pods from here on are critical."""
_SWAP_MESSAGE = "In-place resize of containers with swap is not supported."
_STATIC_POD_MESSAGE = "In-place resize of static-pods is not supported"
_CONFIG_SOURCE = "kubernetes.io/config.source"
_NOT_YET_PENDING = "~"
"""Sorts after every time."""


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """How the kubelet of a node is configured, as far as a resize depends on it."""

    static_cpu_manager: bool = False
    static_memory_manager: bool = False
    swap: bool = False
    """Swap behaviour LimitedSwap on cgroup v2."""


@dataclass(frozen=True, slots=True)
class Feasible:
    """The desired resources can be allocated now."""


@dataclass(frozen=True, slots=True)
class Deferred:
    """They cannot be allocated now; ``admit_reason`` is the admit handler's own word (``OutOfcpu``), which 1.36 puts into the event."""

    message: str
    admit_reason: str


@dataclass(frozen=True, slots=True)
class Infeasible:
    """They can never be allocated on this node."""

    message: str


Feasibility = Feasible | Deferred | Infeasible


def requests_for_fit(pod: Json) -> Totals:
    """What the scheduler counts for the pod: the largest of desired (unless infeasible), allocated and actual, and overhead."""
    return totals(effective_requests(pod))


def requests_allocated(pod: Json) -> Totals:
    """What the kubelet has allocated to the pod according to its status; the spec before there is a status."""
    return totals(allocated_requests(pod))


def requests_desired(pod: Json) -> Totals:
    """What the pod's spec requests."""
    return totals(pod_requests(pod))


def is_critical(pod: Json) -> bool:
    """Static pods and pods of system priority: the kubelet evicts others to make room for their resize."""
    return _is_static(pod) or int(pod["spec"].get("priority") or 0) >= _CRITICAL_PRIORITY


def _is_static(pod: Json) -> bool:
    annotations = pod["metadata"].get("annotations") or {}
    return ANNOTATION_MIRROR_POD in annotations or annotations.get(_CONFIG_SOURCE, "api") != "api"


def kubelet_feasibility(
    pod: Json, others_allocated: Totals, allocatable: Totals, profile: VersionProfile, node_settings: NodeSettings
) -> Feasibility:
    """Decide on the resize of ``pod`` from what its status says is allocated to what its spec desires.

    ``others_allocated`` is the sum over all other active pods of the node. The order of the checks is the kubelet's.
    """
    refusal = _unsupported(pod, profile, node_settings)
    if refusal is not None:
        return Infeasible(refusal)
    desired = requests_desired(pod)
    if not profile.node_checked_at_request:
        refusal = _larger_than_node(desired, allocatable)
        if refusal is not None:
            return Infeasible(refusal)
    return _room_beside_others(desired, others_allocated, allocatable)


def _unsupported(pod: Json, profile: VersionProfile, settings: NodeSettings) -> str | None:
    """Why the node cannot resize this pod at all, whatever the amounts."""
    if profile.static_pods_infeasible and _is_static(pod):
        return _STATIC_POD_MESSAGE
    if profile.swap_checked and settings.swap and _touches_swap(pod):
        return _SWAP_MESSAGE
    if qos_class(pod) != "Guaranteed":
        return None
    desired, allocated = requests_desired(pod), requests_allocated(pod)
    cpu_message, memory_message = profile.static_manager_messages
    any_change = profile.static_managers_block_any_resize
    if settings.static_cpu_manager and (any_change or desired.cpu_millicores != allocated.cpu_millicores):
        return cpu_message
    if settings.static_memory_manager and (any_change or desired.memory_bytes != allocated.memory_bytes):
        return memory_message
    return None


def _touches_swap(pod: Json) -> bool:
    """A container whose memory request changes, without a restart, has swap before or after the change."""
    if qos_class(pod) != "Burstable" or is_critical(pod):
        return False
    return any(_swappable_and_changed(container, container_status(pod, container["name"])) for container in _resizable(pod))


def _resizable(pod: Json) -> list[Json]:
    return [*containers(pod), *(c for c in init_containers(pod) if is_sidecar(c))]


def _swappable_and_changed(container: Json, status: Json) -> bool:
    requests, limits = resource_list(container, "requests"), resource_list(container, "limits")
    before = quantities(status.get("allocatedResources"))
    if "allocatedResources" not in status or _same_memory(requests, before):
        return False
    policies = container.get("resizePolicy") or []
    if any(p["resourceName"] == "memory" and p["restartPolicy"] == "RestartContainer" for p in policies):
        return False
    # LimitedSwap gives no swap to a container whose memory request equals its limit.
    return not _same_memory(requests, limits) or not _same_memory(before, resource_list(status, "limits"))


def _same_memory(left: ResourceList, right: ResourceList) -> bool:
    return totals(left).memory_bytes == totals(right).memory_bytes


def _larger_than_node(desired: Totals, allocatable: Totals) -> str | None:
    if desired.memory_bytes > allocatable.memory_bytes:
        shortage = f"memory, requested: {desired.memory_bytes}, capacity: {allocatable.memory_bytes}"
    elif desired.cpu_millicores > allocatable.cpu_millicores:
        shortage = f"cpu, requested: {desired.cpu_millicores}, capacity: {allocatable.cpu_millicores}"
    else:
        return None
    return f"Node didn't have enough capacity: {shortage}"


def _room_beside_others(desired: Totals, used: Totals, allocatable: Totals) -> Feasible | Deferred:
    """The resource predicate; a resource that the pod does not request is not looked at."""
    for resource, wanted, taken, capacity in zip(("cpu", "memory"), desired, used, allocatable, strict=True):
        if wanted and taken + wanted > capacity:
            message = f"Node didn't have enough resource: {resource}, requested: {wanted}, used: {taken}, capacity: {capacity}"
            return Deferred(message, admit_reason=f"OutOf{resource}")
    return Feasible()


def pending_order(pods: Iterable[Json]) -> list[Json]:
    """The order in which the kubelet retries pending resizes.

    First those that do not increase a request, then by priority, then Guaranteed pods, then by how long the resize has been pending.
    """
    return sorted(pods, key=_pending_rank)


def _pending_rank(pod: Json) -> tuple[bool, int, bool, str]:
    desired, allocated = requests_desired(pod), requests_allocated(pod)
    increases = any(wanted > had for wanted, had in zip(desired, allocated, strict=True))
    return increases, -int(pod["spec"].get("priority") or 0), qos_class(pod) != "Guaranteed", _pending_since(pod)


def _pending_since(pod: Json) -> str:
    """Transition time of the condition; RFC 3339 in UTC sorts as text, and a pod without the condition is the newest."""
    conditions: list[Json] = (pod.get("status") or {}).get("conditions") or []
    times = (c.get("lastTransitionTime") for c in conditions if c.get("type") == POD_RESIZE_PENDING)
    return next((time for time in times if time), _NOT_YET_PENDING)
