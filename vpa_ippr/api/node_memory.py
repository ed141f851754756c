"""NodeMemory: what a node's agent tells of containers that are about to run out of memory.

Cluster-scoped, one a node and named like it, owned by the Node. Only that node's agent writes it; the updater watches it and raises the
limit of a pressing container in place. See docs/nodememory.md.
"""

from __future__ import annotations

import enum

import msgspec

from vpa_ippr.api.meta import ObjectMeta
from vpa_ippr.api.names import NODE_MEMORY_API_VERSION

MAX_PRESSING = 64
"""So many containers are named in one object: some 30 KiB, and more than a node can relieve at a time."""


class PressingReason(enum.StrEnum):
    """Why a container presses, the most urgent first."""

    OOM_KILLED = "OomKilled"
    NEAR_LIMIT = "NearLimit"
    WILL_REACH_LIMIT = "WillReachLimit"
    MEMORY_STALL = "MemoryStall"
    LIMIT_HITS = "LimitHits"


class PressingContainer(msgspec.Struct, frozen=True, rename="camel"):
    """One container that presses. Times are RFC 3339 with a fraction."""

    namespace: str
    pod_name: str
    pod_uid: str
    container_name: str
    container_id: str
    """As in the pod's status, scheme included: a restarted container is another one."""
    usage_bytes: int
    """What cannot be reclaimed: page cache is left out. After an OOM kill the limit itself, for that much was not enough."""
    limit_bytes: int
    """``memory.max`` as the kernel has it; once it is raised, what is told here of the old one no longer counts."""
    reason: str
    """A ``PressingReason``; text, so that an older updater can read what a newer agent tells."""
    message: str
    growth_bytes_per_second: int
    since: str
    """When it began to press."""
    observed_time: str
    """When these figures were taken."""


class NodeMemoryStatus(msgspec.Struct, frozen=True, rename="camel"):
    """The containers that press now. Written in full: an empty list says that there are none."""

    pressing: list[PressingContainer] = []
    pressing_count: int = 0
    """How many press; more than are listed when they are more than ``MAX_PRESSING``."""
    last_beat_time: str | None = None
    """When the agent last wrote; renewed each minute, so that the list of a dead agent goes stale."""


class NodeMemory(msgspec.Struct, frozen=True, rename="camel"):
    """``vpa-ippr.io/v1alpha1`` NodeMemory."""

    metadata: ObjectMeta
    status: NodeMemoryStatus = NodeMemoryStatus()
    api_version: str = NODE_MEMORY_API_VERSION
    kind: str = "NodeMemory"

    @property
    def node_name(self) -> str:
        """The node it is about."""
        return self.metadata.name
