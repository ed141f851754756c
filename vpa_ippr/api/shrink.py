"""MemoryShrink: our request to a node to bring a container's memory below a lower limit before that limit is set.

The seeds' *Prepare / Commit / Abort* with a deadline. The updater creates it (owned by the pod) and may only change ``intent``; the
node's agent writes the status. See docs/architecture.md for the phases.
"""

from __future__ import annotations

import enum

import msgspec

from vpa_ippr.api.meta import ObjectKey, ObjectMeta
from vpa_ippr.api.names import SHRINK_API_VERSION


class Intent(enum.StrEnum):
    """What the updater wants of the agent."""

    PREPARE = "Prepare"
    ABORT = "Abort"


class Phase(enum.StrEnum):
    """Where a shrink is; ``Holding`` is the only phase in which the limit may be patched down."""

    PENDING = "Pending"
    OBSERVING = "Observing"
    SHRINKING = "Shrinking"
    HOLDING = "Holding"
    COMMITTED = "Committed"
    DONE = "Done"
    REFUSED = "Refused"
    REVERTED = "Reverted"
    ABORTED = "Aborted"
    EXPIRED = "Expired"
    GONE = "Gone"

    @property
    def is_terminal(self) -> bool:
        """True when the agent will do nothing more; memory.high is then back at its original value."""
        return self in _TERMINAL


_TERMINAL = frozenset({Phase.DONE, Phase.REFUSED, Phase.REVERTED, Phase.ABORTED, Phase.EXPIRED, Phase.GONE})


class PodReference(msgspec.Struct, frozen=True):
    """The pod, by name and by UID: a new pod of the same name is another one."""

    name: str
    uid: str


class ContainerReference(msgspec.Struct, frozen=True):
    """The container, by name and by runtime id (``containerd://...``): a restarted container is another one."""

    name: str
    id: str


class SwapUse(enum.StrEnum):
    """Whether anonymous memory may be brought down by swapping it out."""

    NEVER = "Never"
    ALLOW = "Allow"


class ShrinkPolicy(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What the updater overrides of the agent's own policy; None leaves the agent's default."""

    step_percent: float | None = None
    settle_seconds: float | None = None
    stability_seconds: float | None = None
    max_pressure_percent: float | None = None
    max_refault_percent: float | None = None
    floor_bytes: int | None = None
    observe_seconds: float | None = None
    horizon_seconds: float | None = None
    margin_percent: float | None = None
    mapped_reserve_percent: float | None = None
    swap: SwapUse | None = None


class ShrinkSpec(msgspec.Struct, frozen=True, rename="camel"):
    """What is asked; immutable but for ``intent``. Written in full: the schema requires the deadline."""

    pod: PodReference
    node_name: str
    container: ContainerReference
    target_bytes: int
    deadline_seconds: int = 900
    policy: ShrinkPolicy = ShrinkPolicy()
    intent: Intent = Intent.PREPARE


class ShrinkStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What the agent has done and seen. Percentages are of wall time, over the last settle window."""

    phase: Phase = Phase.PENDING
    reason: str = ""
    message: str = ""
    current_high_bytes: int | None = None
    usage_bytes: int | None = None
    floor_bytes: int | None = None
    memory_pressure_percent: float = 0.0
    io_pressure_percent: float = 0.0
    steps: int = 0
    backoffs: int = 0
    start_time: str | None = None
    transition_time: str | None = None
    held_time: str | None = None
    """When the agent last saw usage held below the target; in Holding only. A dead or cut-off agent's Holding goes stale by it."""
    completion_time: str | None = None
    observed_generation: int = 0


class MemoryShrink(msgspec.Struct, frozen=True, rename="camel"):
    """``vpa-ippr.io/v1alpha1`` MemoryShrink."""

    metadata: ObjectMeta
    spec: ShrinkSpec
    status: ShrinkStatus = ShrinkStatus()
    api_version: str = SHRINK_API_VERSION
    kind: str = "MemoryShrink"

    @property
    def key(self) -> ObjectKey:
        """Namespace and name."""
        return ObjectKey(self.metadata.namespace, self.metadata.name)
