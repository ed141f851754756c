"""The values that the shrink machine works on: its state, what it observes, and what it asks to be done."""

from __future__ import annotations

import math
from dataclasses import dataclass

from vpa_ippr.actuator.assess import Assessment, Sample
from vpa_ippr.actuator.cgroup import Snapshot
from vpa_ippr.api.shrink import Phase


@dataclass(frozen=True, slots=True)
class Ending:
    """How a shrink ends; ``floor_bytes`` is the lowest limit that it has shown to be bearable, if it has shown one."""

    phase: Phase
    reason: str
    message: str
    floor_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The world at one moment, as far as the machine depends on it."""

    snapshot: Snapshot | None
    """None when the cgroup is gone, or cannot be read (``unreadable``)."""
    unreadable: bool = False
    abort: bool = False
    verdict: Ending | None = None
    """What the agent found outside the cgroup that ends the shrink; ``Refused`` becomes ``Reverted`` once something was touched."""
    may_observe: bool = True
    may_step: bool = True
    """Whether the node leaves room for one more in that phase."""
    may_reclaim: bool = True
    """False while the node is too busy for any step."""
    allowance_bytes: int | None = None
    """What the node's budget leaves for a step now; None is no bound."""
    pace_bytes_per_second: float | None = None
    """What that budget comes to in the long run."""
    wait_message: str = ""
    """What stands against the one of these that is denied."""
    reclaim_complete: bool = True
    """False when the reclaim just asked for came back short (EAGAIN)."""
    restored: bool = False
    """True when the RestoreHigh just asked for was written without an error."""


@dataclass(frozen=True, slots=True)
class WriteHigh:
    """Set ``memory.high`` to a guard above usage."""

    high_bytes: int


@dataclass(frozen=True, slots=True)
class RestoreHigh:
    """Set ``memory.high`` to its original value; the machine wants to see the result before it goes on."""

    high_bytes: int | None


@dataclass(frozen=True, slots=True)
class Reclaim:
    """Ask the kernel for so much; the machine wants to see the result before it goes on."""

    amount_bytes: int
    may_swap: bool = False


@dataclass(frozen=True, slots=True)
class WriteJournal:
    """Put the new state on disk before anything that follows."""


@dataclass(frozen=True, slots=True)
class DropJournal:
    """Nothing is left to restore."""


@dataclass(frozen=True, slots=True)
class ReportStatus:
    """Tell the API."""


Action = WriteHigh | RestoreHigh | Reclaim | WriteJournal | DropJournal | ReportStatus


@dataclass(frozen=True, slots=True)
class Original:
    """The limits found before anything was touched; None is ``max``."""

    high_bytes: int | None
    max_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How the steps go: sizes, counters, and the settle window that is open."""

    start_ratio: float
    ratio: float
    slack_ratio: float
    steps: int = 0
    backoffs: int = 0
    soft_windows: int = 0
    refault_windows: int = 0
    stuck_steps: int = 0
    lowest_bytes: int | None = None
    """The lowest usage at which a step has begun."""
    lowest_step: int = 0
    """The step that began there."""
    before: Sample | None = None
    """The look before the last step."""
    asked_bytes: int | None = None
    """Set while a reclaim is out and its result has not been seen."""
    is_trimming: bool = False
    """The reclaim that is out only takes back what cache has grown since the goal was reached."""
    freed_bytes: int = 0
    steal_ratio: float | None = None
    window: Sample | None = None
    window_from: float = 0.0
    stable_since: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShrinkState:
    """One shrink. ``touched`` means that the journal holds an entry and ``memory.high`` may be ours."""

    target_bytes: int
    started_at: float
    deadline_at: float
    phase: Phase = Phase.PENDING
    phase_since: float
    reason: str = ""
    message: str = ""
    updated_at: float
    reported_at: float = -math.inf
    samples: tuple[Sample, ...] = ()
    original: Original | None = None
    plan: Assessment | None = None
    pace: Pace | None = None
    touched: bool = False
    guard_bytes: int | None = None
    """Our memory.high; None while the original stands."""
    previous_guard_bytes: int | None = None
    """The guard before; still in force if the last write failed."""
    foreign_writes: int = 0
    committed: Sample | None = None
    ending: Ending | None = None
    floor_bytes: int | None = None

    @property
    def last(self) -> Sample | None:
        """The newest look."""
        return self.samples[-1] if self.samples else None

    @property
    def expected_high_bytes(self) -> int | None:
        """What memory.high should read."""
        if self.guard_bytes is not None:
            return self.guard_bytes
        return self.original.high_bytes if self.original else None

    def is_ours(self, high_bytes: int | None) -> bool:
        """True when that memory.high was written by this shrink."""
        return high_bytes is not None and high_bytes in (self.guard_bytes, self.previous_guard_bytes)


def begin(target_bytes: int, started_at: float, deadline_seconds: float, now: float) -> ShrinkState:
    """A shrink that has only been asked for; ``target_bytes`` is page-rounded."""
    return ShrinkState(
        target_bytes=target_bytes,
        started_at=started_at,
        deadline_at=started_at + deadline_seconds,
        phase_since=now,
        updated_at=now,
    )
