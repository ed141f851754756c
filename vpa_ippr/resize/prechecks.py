"""What need not be asked of the API server, because pod, node and versions tell beforehand that it or the kubelet would refuse."""

from __future__ import annotations

from dataclasses import dataclass

from vpa_ippr.api.cluster import Node
from vpa_ippr.api.pod import POD_LEVEL, Container, Pod
from vpa_ippr.api.resources import Resource
from vpa_ippr.recommend.limit_ranges import NamespaceLimits
from vpa_ippr.resize.qos import QosClass
from vpa_ippr.resize.reasons import RefusalReason
from vpa_ippr.resize.rules import VersionRules
from vpa_ippr.resize.state import InfeasibleCause

_OS_LABEL = "kubernetes.io/os"
_WINDOWS = "windows"


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why something cannot be resized in place."""

    reason: RefusalReason
    message: str


def pod_obstacle(pod: Pod, node: Node | None, rules: VersionRules, limits: NamespaceLimits) -> Obstacle | None:
    """Why the pod cannot be resized at all; ``rules`` are those for this pod, ``limits`` those of its namespace.

    Raises:
        QuantityError: a quantity of the pod cannot be read.
    """
    if pod.is_mirror:
        return Obstacle(RefusalReason.STATIC_POD, "a static pod cannot be resized: change its manifest on the node")
    if _is_windows(pod, node):
        return Obstacle(RefusalReason.WINDOWS, "a Windows pod cannot be resized in place")
    if rules.claims_block_resize and pod.status.node_allocatable_resource_claim_statuses:
        text = f"Kubernetes 1.{rules.minor} does not resize pods with node-allocatable resource claims"
        return Obstacle(RefusalReason.RESOURCE_CLAIMS, text)
    if pod.status.qos_class == QosClass.BEST_EFFORT:
        text = "a BestEffort pod cannot be given requests or limits: its QoS class would change"
        return Obstacle(RefusalReason.BEST_EFFORT, text)
    if pod.has_pod_level and not rules.pod_level_resources:
        kubelet = f", the node's kubelet {node.kubelet_version}" if node and node.kubelet_version else ""
        text = f"the pod has pod-level resources, which server and node of 1.36 or newer resize: the server is 1.{rules.minor}{kubelet}"
        return Obstacle(RefusalReason.POD_LEVEL_RESOURCES, text)
    return None if rules.memory_limit_add else _added_limit(pod, rules, limits)


def _is_windows(pod: Pod, node: Node | None) -> bool:
    named = pod.spec.os is not None and pod.spec.os.name == _WINDOWS
    return named or (node is not None and node.labels.get(_OS_LABEL) == _WINDOWS)


def _added_limit(pod: Pod, rules: VersionRules, limits: NamespaceLimits) -> Obstacle | None:
    """The LimitRange admission fills in its default limits at every resize of the pod, of whichever container."""
    if not limits.container.default.memory_bytes:
        return None
    for one in [*pod.spec.containers, *pod.spec.init_containers]:
        if pod.desired(one.name).limits.memory_bytes is None and not one.restarts_on_resize_of(Resource.MEMORY):
            text = f"a LimitRange would add a memory limit to {one.name}, which Kubernetes 1.{rules.minor} forbids: make the pod anew"
            return Obstacle(RefusalReason.VERSION_FORBIDS_LIMIT, text)
    return None


def container_obstacle(pod: Pod, container: str, rules: VersionRules) -> Obstacle | None:
    """Why this container is not resized: server or kubelet are too old for its kind."""
    init = next((one for one in pod.spec.init_containers if one.name == container), None)
    if init is None or (rules.sidecars if init.is_sidecar else rules.init_containers):
        return None
    kind, since = ("sidecars", "1.33") if init.is_sidecar else ("init containers", "1.36")
    text = f"{container}: {kind} are resized only where server and node are of {since} or newer"
    return Obstacle(RefusalReason.VERSION_FORBIDS_CONTAINER, text)


def node_obstacle(pod: Pod, container: str, resource: Resource, cause: InfeasibleCause, rules: VersionRules) -> Obstacle | None:
    """Why the node does not resize this, as an earlier infeasible resize of the pod there has told."""
    match cause:
        case InfeasibleCause.CPU_MANAGER if resource is Resource.CPU or rules.static_managers_block_any:
            text = "the node's static CPU manager resizes no Guaranteed pod"
            return Obstacle(RefusalReason.STATIC_CPU_MANAGER, text)
        case InfeasibleCause.MEMORY_MANAGER if resource is Resource.MEMORY or rules.static_managers_block_any:
            text = "the node's static memory manager resizes no Guaranteed pod"
            return Obstacle(RefusalReason.STATIC_MEMORY_MANAGER, text)
        case InfeasibleCause.SWAP if resource is Resource.MEMORY and not _restarts(pod.container(container)):
            text = f"memory of {container if container != POD_LEVEL else 'the pod'} may be swapped: only a restart resizes it"
            return Obstacle(RefusalReason.SWAP, text)
    return None


def _restarts(container: Container | None) -> bool:
    return container is not None and container.restarts_on_resize_of(Resource.MEMORY)
