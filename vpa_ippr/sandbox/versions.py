"""What differs between Kubernetes versions in the life of a resize: one table, 1.32 to 1.37.

Everything else in the sandbox is the same for all versions. A profile is what API server and kubelet of one minor version do with their
default feature gates; ``sandbox`` reads the rules here and nowhere compares version numbers. The one exception is 1.32, where the gate
InPlacePodVerticalScaling is alpha and off by default: its profile is the gate switched on, since there is nothing to see otherwise.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from vpa_ippr.api.errors import UsageError


class PodLevelResources(enum.Enum):
    """What the API server does with ``spec.resources`` of a pod."""

    DROPPED = "Dropped"
    """Gate PodLevelResources off: the field is dropped when the pod is created (1.33)."""
    FIXED = "Fixed"
    """Served, and any resize of such a pod is refused with that one error (1.34)."""
    GATED = "Gated"
    """Served; the gate for resizing them is alpha and off, its error comes beside the others (1.35)."""
    RESIZABLE = "Resizable"
    """Served, and resized where the node declares the feature (1.36 on)."""


@dataclass(frozen=True)
class VersionProfile:
    """The rules of one Kubernetes minor version."""

    version: str

    # API server
    pod_generation: bool
    """Pods have a ``metadata.generation``, raised when their spec changes."""
    resize_policy_defaulted: bool
    """resizePolicy NotRequired is filled in for the resources that a regular container requests."""
    resize_policy_mutable: bool
    """A resize may change ``resizePolicy`` too."""
    sidecars_resizable: bool
    immutable_fields_shown: bool
    """A resize that changes anything but CPU and memory is refused once, with a diff of the specs (as the main endpoint does)."""
    memory_limit_change_needs_restart: bool
    """A memory limit may be lowered or added only under resizePolicy RestartContainer."""
    pod_level_resources: PodLevelResources
    init_containers_resizable: bool
    """Gate InPlacePodVerticalScalingInitContainers: init containers that are not sidecars may be resized."""
    resource_added_to_empty_list: bool
    """Known hole (kubernetes#135084): a new non-cpu/memory resource passes where the whole list was absent before."""
    init_restart_policy_checked: bool
    """resizePolicy RestartContainer is refused, at creation and at resize, for init containers that are not sidecars."""
    claims_block_resize: bool
    """``status.nodeAllocatableResourceClaimStatuses`` (DRA) makes a pod not resizable."""
    node_checked_at_request: bool
    """PodResizeValidator: larger than the node, or not a Linux node, is a 403 and no longer a kubelet condition."""
    declared_features_checked: bool
    """NodeDeclaredFeatureValidator: the node must declare the features that the resize needs."""

    # Both
    status_resize: bool
    """``status.resize`` (Proposed, InProgress, Deferred, Infeasible) tells what becomes of a resize; there are no conditions."""

    # kubelet
    allocated_in_status: bool
    """``allocatedResources`` in the status of containers."""
    swap_checked: bool
    """A memory request of a container that may swap cannot be resized without a restart."""
    condition_generation: bool
    """Conditions and status carry ``observedGeneration``."""
    static_managers_block_any_resize: bool
    """Static CPU or memory manager: any resize of a Guaranteed pod is infeasible, not only one of that resource."""
    static_manager_messages: tuple[str, str]
    """Infeasible messages for the static CPU manager and the static memory manager."""
    static_pods_infeasible: bool
    """The kubelet refuses to resize static pods."""
    deferred_queue: bool
    """Deferred resizes wait in an ordered queue with triggers; before, each was retried at its pod's own sync."""
    retry_when_pod_terminates: bool
    """A pod that reaches Succeeded or Failed triggers a retry of the queue."""
    container_memory_checked: bool
    """A memory decrease is checked for each container and the pod; before, only for the pod and at any memory change."""
    stale_pod_cgroup_of_stopped_container: bool
    """kubernetes#138760: the pod's memory.max stays as it was when a resize is accepted while the container is not running."""
    events: frozenset[str]
    """Reasons of the events that are emitted."""
    event_generation: bool
    """Event messages carry the pod's generation."""
    pending_events_raw: bool
    """ResizeDeferred and ResizeInfeasible are the bare message."""
    deferred_event_names_admit_reason: bool
    """ResizeDeferred says ``Pod resize OutOfcpu: ...`` instead of ``Pod resize Deferred: ...``."""


_ALL_EVENTS = frozenset({"ResizeStarted", "ResizeCompleted", "ResizeError", "ResizeDeferred", "ResizeInfeasible"})

_V1_33 = VersionProfile(
    version="1.33",
    pod_generation=True,
    resize_policy_defaulted=False,
    resize_policy_mutable=False,
    sidecars_resizable=True,
    immutable_fields_shown=False,
    memory_limit_change_needs_restart=True,
    pod_level_resources=PodLevelResources.DROPPED,
    init_containers_resizable=False,
    resource_added_to_empty_list=True,
    init_restart_policy_checked=False,
    claims_block_resize=False,
    node_checked_at_request=False,
    declared_features_checked=False,
    status_resize=False,
    allocated_in_status=True,
    swap_checked=True,
    condition_generation=False,
    static_managers_block_any_resize=True,
    static_manager_messages=(
        "Resize is infeasible for Guaranteed Pods alongside CPU Manager static policy",
        "Resize is infeasible for Guaranteed Pods alongside Memory Manager static policy",
    ),
    static_pods_infeasible=True,
    deferred_queue=False,
    retry_when_pod_terminates=False,
    container_memory_checked=False,
    stale_pod_cgroup_of_stopped_container=True,
    events=frozenset(),
    event_generation=False,
    pending_events_raw=False,
    deferred_event_names_admit_reason=False,
)
_V1_32 = replace(
    _V1_33,
    version="1.32",
    pod_generation=False,
    resize_policy_defaulted=True,
    resize_policy_mutable=True,
    sidecars_resizable=False,
    immutable_fields_shown=True,
    memory_limit_change_needs_restart=False,
    status_resize=True,
    allocated_in_status=False,
    swap_checked=False,
    events=frozenset({"ResizeDeferred", "ResizeInfeasible"}),
    pending_events_raw=True,
)
_V1_34 = replace(
    _V1_33,
    version="1.34",
    memory_limit_change_needs_restart=False,
    pod_level_resources=PodLevelResources.FIXED,
    condition_generation=True,
    static_managers_block_any_resize=False,
    static_manager_messages=(
        'Resize is infeasible for Guaranteed Pods alongside CPU Manager policy "static"',
        'Resize is infeasible for Guaranteed Pods alongside Memory Manager policy "Static"',
    ),
    deferred_queue=True,
    container_memory_checked=True,
    events=frozenset({"ResizeCompleted"}),
)
_V1_35 = replace(
    _V1_34,
    version="1.35",
    pod_level_resources=PodLevelResources.GATED,
    resource_added_to_empty_list=False,
    events=_ALL_EVENTS,
    event_generation=True,
)
_V1_36 = replace(
    _V1_35,
    version="1.36",
    pod_level_resources=PodLevelResources.RESIZABLE,
    init_containers_resizable=True,
    init_restart_policy_checked=True,
    claims_block_resize=True,
    node_checked_at_request=True,
    declared_features_checked=True,
    static_pods_infeasible=False,
    retry_when_pod_terminates=True,
    deferred_event_names_admit_reason=True,
)
_V1_37 = replace(_V1_36, version="1.37", claims_block_resize=False, stale_pod_cgroup_of_stopped_container=False)

PROFILES: dict[str, VersionProfile] = {p.version: p for p in (_V1_32, _V1_33, _V1_34, _V1_35, _V1_36, _V1_37)}
DEFAULT_PROFILE = PROFILES["1.36"]


def profile(version: str) -> VersionProfile:
    """The profile of a minor version such as ``1.36``.

    Raises:
        UsageError: there is no such profile; the message lists those there are.
    """
    try:
        return PROFILES[version]
    except KeyError:
        raise UsageError(f"Kubernetes version {version!r} is not known to the sandbox: choose one of {', '.join(PROFILES)}") from None
