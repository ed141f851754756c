"""The cluster as a node's agent knows it: its own MemoryShrinks, and single pods. Loads nothing but the transport."""

from __future__ import annotations

import logging

from vpa_ippr.api.clock import Clock
from vpa_ippr.api.cluster import EventType, ObjectRef
from vpa_ippr.api.meta import ObjectKey
from vpa_ippr.api.names import LABEL_NODE, node_label
from vpa_ippr.api.pod import Pod
from vpa_ippr.api.shrink import MemoryShrink, ShrinkStatus
from vpa_ippr.cluster import paths
from vpa_ippr.cluster.events import EventRecorder
from vpa_ippr.cluster.rest import Ignored, Rest, unless_gone

logger = logging.getLogger(__name__)


class NodePort:
    """Implements the ports of the actuator's agent."""

    def __init__(self, rest: Rest, clock: Clock) -> None:
        self._rest = rest
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

    def record_event(self, shrink: MemoryShrink, kind: EventType, reason: str, message: str) -> None:
        """Record an event on the shrink's pod."""
        pod = shrink.spec.pod
        self._events.record(ObjectRef("v1", "Pod", shrink.metadata.namespace, pod.name, pod.uid), kind, reason, message)
