"""What the containers of a workload used, in steps of five minutes: one row for CPU and one for memory of each container's name.

Step n holds the samples of ``300 n <= t < 300 (n + 1)`` seconds since the epoch. In a step an instance counts with the mean of its CPU
samples and with the largest of its memory samples; of several instances the highest counts, or a quantile over them. A step without a
sample is NaN, never zero. What an instance uses while it starts is no CPU need (memory is): it is kept apart.

Where there is evidence (see ``judged``), a closed step holds what was needed, not what was used.

Rows are values; ``feeding`` makes new ones. A container's two rows of 16 days take 37 KB, and a live instance about half a kilobyte.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from vpa_ippr.api.series import ContainerRef, Floats, Resource
from vpa_ippr.usage.container import DAY_SECONDS
from vpa_ippr.usage.evidence import EvidenceRules
from vpa_ippr.usage.judged import Notes

STEP_SECONDS: Final = 300.0
STEPS_PER_HOUR: Final = 12
STEPS_PER_DAY: Final = 288
# An instance that was silent for so long is forgotten; if it comes back, it has started anew.
FORGET_SECONDS: Final = DAY_SECONDS

Singles = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class StepRules:
    """``steps`` that are kept; ``pods``: the quantile over instances that counts, 1 for the highest; ``startup_seconds`` apart.

    Without rules for it no ``evidence`` counts.
    """

    steps: int
    pods: float = 1.0
    startup_seconds: float = 120.0
    evidence: EvidenceRules | None = None

    @property
    def history_seconds(self) -> float:
        """How far back a history must be read to fill the rows: what began before them must be known to have begun."""
        return self.steps * STEP_SECONDS + self.startup_seconds + 2 * STEP_SECONDS


@dataclass(frozen=True, slots=True)
class DayPeak:
    """The largest value of a day (days since the epoch), in cores or bytes, and the pod that it is of."""

    day: int
    value: float
    pod: str


@dataclass(frozen=True, slots=True, eq=False)
class StepRow:
    """Closed steps of one resource: ``values[-1]`` is step ``end - 1``, and every step before ``end`` is closed; ``peaks`` by day."""

    end: int
    values: Singles = field(default_factory=lambda: np.empty(0, dtype=np.float32))
    peaks: tuple[DayPeak, ...] = ()
    # Asked for in every cycle, and changed every five minutes.
    _span: list[tuple[int, int] | None] = field(default_factory=list, init=False, repr=False)

    @property
    def span(self) -> tuple[int, int] | None:
        """The first and the last step with a sample; None when there is none."""
        if not self._span:
            known, begin = np.flatnonzero(np.isfinite(self.values)), self.end - len(self.values)
            self._span.append((begin + int(known[0]), begin + int(known[-1])) if len(known) else None)
        return self._span[0]

    def before(self, end: int, steps: int) -> Floats:
        """The ``steps`` values before step ``end``, NaN where nothing is known."""
        result = np.full(steps, np.nan)
        begin = self.end - len(self.values)
        low, high = max(begin, end - steps), min(self.end, end)
        if low < high:
            result[low - end + steps : high - end + steps] = self.values[low - begin : high - begin]
        return result

    def peak(self, end: int) -> DayPeak | None:
        """The largest of the days that began before step ``end``; of equals the latest."""
        return max((peak for peak in self.peaks if peak.day * STEPS_PER_DAY < end), key=lambda peak: (peak.value, peak.day), default=None)


@dataclass(frozen=True, slots=True)
class OpenStep:
    """One instance: when it started (minus infinity: before we looked), its last sample, and what the open step holds of it."""

    started: float
    last: float
    cpu_sum: float = 0.0
    cpu_count: int = 0
    memory: float = -math.inf
    # The newest memory samples (time, bytes), see ``_recent``.
    recent: tuple[tuple[float, float], ...] = ()
    # Of its memory in the last closed step: page cache that does not count.
    spare_bytes: float = 0.0
    # The last steps in which evidence says that it wanted more CPU or memory than it got.
    short: Mapping[Resource, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Newest:
    """An instance's newest memory sample: its time, its bytes, and what it has grown by within about five minutes (0 if it has not).

    ``spare_bytes`` of the bytes used are page cache that was not missed in the last step that is over.
    """

    at: float
    used_bytes: float
    grown_bytes: float
    spare_bytes: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class ContainerSteps:
    """One container's name of a workload, all instances together; ``observed_from``: the seconds at which looking began."""

    rules: StepRules
    observed_from: float
    cpu: StepRow
    memory: StepRow
    startup: tuple[DayPeak, ...] = ()
    instances: Mapping[ContainerRef, OpenStep] = field(default_factory=dict)
    # Of a day; None until there is evidence.
    cpu_notes: Notes | None = None
    memory_notes: Notes | None = None

    @classmethod
    def empty(cls, rules: StepRules, observed_from: float) -> Self:
        """Before the first sample."""
        row = StepRow(math.floor(observed_from / STEP_SECONDS))
        return cls(rules, observed_from, row, row)

    def row(self, resource: Resource) -> StepRow:
        """The row of one resource."""
        return self.cpu if resource is Resource.CPU else self.memory

    def notes(self, resource: Resource) -> Notes | None:
        """The notes on one resource."""
        return self.cpu_notes if resource is Resource.CPU else self.memory_notes

    @property
    def startup_peak(self) -> DayPeak | None:
        """The most CPU that an instance used while it started."""
        return max(self.startup, key=lambda peak: (peak.value, peak.day), default=None)

    def short_of(self, resource: Resource) -> frozenset[str]:
        """The pods that wanted more of a resource than they got within the last hour: decisions are made by the hour and see the rest."""
        since = self.row(resource).end - STEPS_PER_HOUR
        return frozenset(ref.pod for ref, state in self.instances.items() if state.short.get(resource, since - 1) >= since)

    def newest_memory(self, ref: ContainerRef) -> Newest | None:
        """The newest memory of an instance; None when it has no sample."""
        found = self.instances.get(ref)
        if found is None or not found.recent:
            return None
        (_, before), (at, used_bytes) = found.recent[0], found.recent[-1]
        return Newest(at, used_bytes, max(used_bytes - before, 0.0), found.spare_bytes)
