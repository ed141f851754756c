"""What the agent needs of the Kubernetes API. Every method raises ``vpa_ippr.api.errors.ClusterError`` when the API is not there."""

from __future__ import annotations

from typing import Protocol

from vpa_ippr.api.cluster import EventType
from vpa_ippr.api.meta import ObjectKey
from vpa_ippr.api.pod import Pod
from vpa_ippr.api.shrink import MemoryShrink, ShrinkStatus


class ShrinkPort(Protocol):
    """The MemoryShrinks of a node."""

    def list_shrinks(self, node_name: str) -> list[MemoryShrink]:
        """All of the node's, in any order and phase; one that cannot be decoded is left out and logged."""
        ...

    def patch_shrink_status(self, key: ObjectKey, status: ShrinkStatus) -> None:
        """Replace the status subresource; does nothing when the object is gone."""
        ...

    def record_event(self, shrink: MemoryShrink, kind: EventType, reason: str, message: str) -> None:
        """An event on the shrink's pod."""
        ...


class PodPort(Protocol):
    """The pods that shrinks are about."""

    def get_pod(self, key: ObjectKey) -> Pod | None:
        """The pod as it is now, or None."""
        ...
