"""The cluster as a node's agent knows it: its own MemoryShrinks, its pods, and its NodeMemory. Loads nothing but the transport."""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from vpa_ippr.api.clock import Clock
from vpa_ippr.api.cluster import EventType, ObjectRef
from vpa_ippr.api.meta import Condition, ObjectKey, ObjectMeta, OwnerReference
from vpa_ippr.api.names import LABEL_NODE, node_label
from vpa_ippr.api.node_memory import NodeMemory, NodeMemoryStatus
from vpa_ippr.api.pod import Pod
from vpa_ippr.api.pod_launch import PodLaunch
from vpa_ippr.api.shrink import MemoryShrink, ShrinkStatus
from vpa_ippr.cluster import paths
from vpa_ippr.cluster.cache import WatchCache
from vpa_ippr.cluster.events import EventRecorder
from vpa_ippr.cluster.rest import ApiError, ApiUnreachableError, Ignored, Rest, unless_gone

logger = logging.getLogger(__name__)

_SYNC_SECONDS = 2.0


class _Owner(msgspec.Struct):
    """An object of which only the identity matters."""

    metadata: ObjectMeta


class _Conditions(msgspec.Struct, frozen=True):
    conditions: list[Condition] = []


class _Conditioned(msgspec.Struct, frozen=True):
    """An object of which only the conditions matter."""

    status: _Conditions = _Conditions()


class NodePort:
    """Implements the ports of the actuator's agent."""

    def __init__(
        self, rest: Rest, clock: Clock, *, start: Callable[[WatchCache[Pod]], None] = WatchCache.start, sync_seconds: float = _SYNC_SECONDS
    ) -> None:
        """``start`` sets the cache of the node's pods going, at the first ``list_pods``, which waits for it so long."""
        self._rest = rest
        self._start = start
        self._sync_seconds = sync_seconds
        self._pods: tuple[str, WatchCache[Pod]] | None = None
        self._events = EventRecorder(rest, clock, "vpa-ippr-actuator")

    def list_shrinks(self, node_name: str) -> list[MemoryShrink]:
        """All of the node's; one that cannot be decoded is left out and logged."""
        listing = self._rest.list(paths.SHRINKS, MemoryShrink, {"labelSelector": f"{LABEL_NODE}={node_label(node_name)}"})
        for line in listing.unreadable:
            logger.warning("object left out", extra={"error": line})
        return [shrink for shrink in listing.items if shrink.spec.node_name == node_name]

    def patch_shrink_status(self, key: ObjectKey, status: ShrinkStatus) -> None:
        """Replace the status subresource; does nothing when the object is gone."""
        patch = [{"op": "add", "path": "/status", "value": status}]
        with unless_gone():
            self._rest.patch(paths.shrink(key, "status"), patch, Ignored, patch_type="json-patch")

    def get_pod(self, key: ObjectKey) -> Pod | None:
        """The pod as it is now, or None."""
        return self._rest.find(paths.pod(key), Pod)

    def get_launch(self, key: ObjectKey) -> PodLaunch | None:
        """How the pod's containers are started, or None."""
        return self._rest.find(paths.pod(key), PodLaunch)

    def node_pressures(self, node_name: str) -> frozenset[str]:
        """The types of the node's conditions that are true; empty for a node that is not there."""
        node = self._rest.find(paths.node(node_name), _Conditioned)
        return frozenset(c.type for c in node.status.conditions if c.status == "True") if node is not None else frozenset()

    def list_pods(self, node_name: str) -> list[Pod]:
        """The node's pods as last known. Followed by a watch, so that asking costs the API server nothing; old news when it is away.

        Raises:
            ApiUnreachableError: they were never listed yet.
        """
        if self._pods is None or self._pods[0] != node_name:
            self.close()
            cache = WatchCache(self._rest, paths.PODS, Pod, {"fieldSelector": f"spec.nodeName={node_name}"})
            self._pods = (node_name, cache)
            self._start(cache)
            cache.wait_synced(self._sync_seconds)
        _, cache = self._pods
        if not cache.has_synced:
            why = f": {cache.trouble}" if cache.trouble else ""
            raise ApiUnreachableError(f"the pods of node {node_name} have not been listed yet{why}")
        return cache.snapshot()

    def close(self) -> None:
        """Let the watch of the pods end."""
        if self._pods is not None:
            self._pods[1].stop()
            self._pods = None

    def put_node_memory(self, node_name: str, status: NodeMemoryStatus) -> None:
        """Replace the status of the node's NodeMemory, which is made when it is not there. No version is compared: we alone write it.

        Raises:
            ApiError: refused; status 404 when the node, or the CustomResourceDefinition, is not there.
        """
        try:
            self._patch_node_memory(node_name, status)
        except ApiError as error:
            if error.status != 404:
                raise
            self._create_node_memory(node_name)
            self._patch_node_memory(node_name, status)

    def _patch_node_memory(self, node_name: str, status: NodeMemoryStatus) -> None:
        patch = [{"op": "add", "path": "/status", "value": status}]
        self._rest.patch(paths.node_memory(node_name, "status"), patch, Ignored, patch_type="json-patch")

    def _create_node_memory(self, node_name: str) -> None:
        """Owned by the Node, so that it goes with it."""
        node = self._rest.get(paths.node(node_name), _Owner).metadata
        owner = OwnerReference("v1", "Node", node_name, node.uid)
        body = NodeMemory(ObjectMeta(name=node_name, owner_references=[owner]))
        try:
            self._rest.create(paths.NODE_MEMORIES, body, Ignored)
        except ApiError as error:
            if error.status != 409:  # a request that we gave up on may have come through
                raise

    def record_event(self, shrink: MemoryShrink, kind: EventType, reason: str, message: str) -> None:
        """Record an event on the shrink's pod."""
        pod = shrink.spec.pod
        self._events.record(ObjectRef("v1", "Pod", shrink.metadata.namespace, pod.name, pod.uid), kind, reason, message)
