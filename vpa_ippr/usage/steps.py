"""What the containers of a workload used, in steps of five minutes: one row for CPU and one for memory of each container's name.

Step n holds the samples of ``300 n <= t < 300 (n + 1)`` seconds since the epoch. In a step an instance counts with the mean of its CPU
samples and with the largest of its memory samples; of several instances the highest counts, or a quantile over them. A step without a
sample is NaN, never zero. What an instance uses while it starts is no CPU need (memory is): it is kept apart.

Where there is evidence (see ``judged``), a closed step holds what was needed, not what was used.

Rows are values. Feeding a history at once or in parts gives the same numbers bit for bit: only whole steps are closed, and what the open
one holds is added up in the order of time. A container's two rows of 16 days take 37 KB, and a live instance about half a kilobyte.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from vpa_ippr.api.series import ContainerRef, EvidenceSeries, Floats, Resource, UsageSeries
from vpa_ippr.usage.container import DAY_SECONDS
from vpa_ippr.usage.evidence import EvidenceRules
from vpa_ippr.usage.judged import Judged, Notes, evidence_table, joined_notes, judged_cpu, judged_memory

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
class _Open:
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
    instances: Mapping[ContainerRef, _Open] = field(default_factory=dict)
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


def feed(
    steps: ContainerSteps,
    series: Iterable[UsageSeries],
    evidence: Iterable[EvidenceSeries] = (),
    *,
    until: float,
    after: float = -math.inf,
) -> ContainerSteps:
    """With the samples of ``after < t <= until``; all steps that end by ``until`` are closed, judged by the ``evidence`` on them."""
    by_instance: dict[ContainerRef, dict[Resource, tuple[Floats, Floats]]] = {}
    for one in series:
        begin, end = np.searchsorted(one.timestamps, (after, until), side="right")
        if begin < end:
            by_instance.setdefault(one.container, {})[one.resource] = one.timestamps[begin:end], one.values[begin:end]
    block = _Block(steps, until, evidence)
    for ref in sorted({*steps.instances, *by_instance}):
        block.add(ref, steps.instances.get(ref), by_instance.get(ref, {}))
    return block.closed()


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """The closed steps of one instance, and the notes on them if there was evidence."""

    pod: str
    values: Floats
    notes: Floats | None


class _Block:
    """The steps that one feeding closes, and the open one after them."""

    def __init__(self, before: ContainerSteps, until: float, evidence: Iterable[EvidenceSeries]) -> None:
        self._before = before
        self._until = until
        self._begin = before.cpu.end
        self._end = max(math.floor(until / STEP_SECONDS), self._begin)
        self._oldest = self._end - before.rules.steps
        self._rules = before.rules.evidence or EvidenceRules()
        self._rows: dict[Resource, list[_Part]] = {resource: [] for resource in Resource}
        self._evidence: dict[ContainerRef, list[EvidenceSeries]] = defaultdict(list)
        if before.rules.evidence is not None and self._end > self._begin:
            for one in evidence:
                self._evidence[one.container].append(one)
        self._startup: list[DayPeak] = list(before.startup)
        self._instances: dict[ContainerRef, _Open] = {}

    def add(self, ref: ContainerRef, known: _Open | None, samples: Mapping[Resource, tuple[Floats, Floats]]) -> None:
        nothing = np.empty(0), np.empty(0)
        cpu_times, cpu = samples.get(Resource.CPU, nothing)
        memory_times, memory = samples.get(Resource.MEMORY, nothing)
        starts = self._starts(known, cpu_times, memory_times)
        starting = cpu_times - _latest(starts, cpu_times) < self._before.rules.startup_seconds
        if starting.any():
            self._startup += _by_day(cpu_times[starting], cpu[starting], ref.pod)
        kept, state = ~starting, known or _Open(-math.inf, -math.inf)
        table = evidence_table(self._evidence.get(ref, ()), self._begin, self._end, STEP_SECONDS)
        state = self._close_cpu(ref, state, cpu_times[kept], cpu[kept], table)
        state = self._close_memory(ref, state, memory_times, memory, table)
        last = max([known.last if known else -math.inf, *cpu_times[-1:].tolist(), *memory_times[-1:].tolist()])
        if self._until - last < FORGET_SECONDS:
            self._instances[ref] = replace(state, started=float(starts[-1]), last=last)

    def _starts(self, known: _Open | None, *times: Floats) -> Floats:
        """When the instance started, oldest first: at samples after a long silence, unless it ran already when looking began."""
        moments = np.sort(np.concatenate(times))
        if known is not None:
            before, started = known.last, known.started
        else:
            ran = not len(moments) or moments[0] - self._before.observed_from <= STEP_SECONDS
            before, started = (moments[0] if ran and len(moments) else -math.inf), -math.inf
        anew = np.diff(moments, prepend=before) >= FORGET_SECONDS
        return np.append(started, moments[anew])

    def _close_cpu(self, ref: ContainerRef, state: _Open, times: Floats, values: Floats, table: Floats | None) -> _Open:
        # Summed one after the other, the open step first: the result does not depend on the batches.
        index = np.append(0, self._places(times))
        sums = np.bincount(index, np.append(state.cpu_sum, values), self._width)
        counts = np.bincount(index, np.append(state.cpu_count, np.ones(len(values))), self._width)
        means = np.divide(sums, counts, out=np.full(len(sums), np.nan), where=counts > 0)[:-1]
        judged = None if table is None else judged_cpu(means, table, self._rules)
        self._keep(ref, Resource.CPU, means, judged)
        return replace(state, cpu_sum=float(sums[-1]), cpu_count=int(counts[-1]), short=self._short(state, Resource.CPU, judged))

    def _close_memory(self, ref: ContainerRef, state: _Open, times: Floats, values: Floats, table: Floats | None) -> _Open:
        peaks = np.full(self._width, -math.inf)
        peaks[0] = state.memory
        np.maximum.at(peaks, self._places(times), values)
        closed = np.where(np.isfinite(peaks), peaks, np.nan)[:-1]
        judged = None if table is None else judged_memory(closed, table, self._rules, STEP_SECONDS)
        self._keep(ref, Resource.MEMORY, closed, judged)
        spare = state.spare_bytes if not len(closed) else 0.0 if judged is None else judged.spare_bytes
        short = self._short(state, Resource.MEMORY, judged)
        return replace(state, memory=float(peaks[-1]), recent=_recent(state.recent, times, values), spare_bytes=spare, short=short)

    def _short(self, state: _Open, resource: Resource, judged: Judged | None) -> Mapping[Resource, int]:
        if judged is None or not judged.short.any():
            return state.short
        return {**state.short, resource: self._begin + int(np.flatnonzero(judged.short)[-1])}

    @property
    def _width(self) -> int:
        return self._end - self._begin + 1

    def _places(self, times: Floats) -> NDArray[np.int64]:
        """Columns of samples; one that is older than the open step has come too late and counts there."""
        return np.maximum(np.floor(times / STEP_SECONDS).astype(np.int64) - self._begin, 0)

    def _keep(self, ref: ContainerRef, resource: Resource, values: Floats, judged: Judged | None) -> None:
        """The closed steps, as far back as rows go."""
        oldest = max(self._oldest - self._begin, 0)
        kept = (values if judged is None else judged.values)[oldest:]
        if np.isfinite(kept).any():
            self._rows[resource].append(_Part(ref.pod, kept, None if judged is None else judged.notes[:, oldest:]))

    def closed(self) -> ContainerSteps:
        before, oldest_day = self._before, -(-self._oldest // STEPS_PER_DAY)
        startup = _joined_by_day(self._startup, oldest_day)
        width = min(self._end - self._begin, before.rules.steps)
        if not width:
            return replace(before, startup=startup, instances=self._instances)
        cpu, cpu_notes = self._extended(before.cpu, before.cpu_notes, self._rows[Resource.CPU], width, oldest_day)
        memory, memory_notes = self._extended(before.memory, before.memory_notes, self._rows[Resource.MEMORY], width, oldest_day)
        return ContainerSteps(
            before.rules, before.observed_from, cpu, memory, startup, self._instances, cpu_notes, memory_notes
        )  # fmt: skip

    def _extended(
        self, row: StepRow, notes: Notes | None, parts: Sequence[_Part], width: int, oldest_day: int
    ) -> tuple[StepRow, Notes | None]:
        values, pods = _over_pods([part.values for part in parts], width, self._before.rules.pods)
        times = (self._end - width + np.arange(width)) * STEP_SECONDS
        known = np.isfinite(values)
        fresh = [
            peak
            for index, part in enumerate(parts)
            if (own := known & (pods == index)).any()
            for peak in _by_day(times[own], values[own], part.pod)
        ]
        joined = np.concatenate((row.values, values.astype(np.float32)))[-self._before.rules.steps :]
        extended = StepRow(self._end, joined, _joined_by_day([*row.peaks, *fresh], oldest_day))
        return extended, joined_notes(notes, [part.notes for part in parts], pods, self._rules, STEPS_PER_DAY)


def _over_pods(parts: Sequence[Floats], width: int, quantile: float) -> tuple[Floats, NDArray[np.int64]]:
    """For each step the value that counts and the place of its pod: the smallest that ``quantile`` of the values do not exceed."""
    if not parts:
        return np.full(width, np.nan), np.zeros(width, dtype=np.int64)
    values = np.stack(parts)
    if len(parts) == 1:
        return values[0], np.zeros(width, dtype=np.int64)
    there = np.isfinite(values).sum(axis=0)
    # NaN is sorted last; equal values stay in the order of their pods' names.
    order = np.argsort(values, axis=0, kind="stable")
    place = np.clip(np.ceil(quantile * there - 1e-9).astype(np.int64) - 1, 0, len(parts) - 1)
    pods = np.take_along_axis(order, place[None, :], axis=0)
    return np.take_along_axis(values, pods, axis=0)[0], pods[0]


def _recent(before: tuple[tuple[float, float], ...], times: Floats, values: Floats) -> tuple[tuple[float, float], ...]:
    """The samples within a step's length of the newest, and the last one that is older unless it is twice as old."""
    if not len(times):
        return before
    begin = int(np.searchsorted(times, times[-1] - 2 * STEP_SECONDS, side="right"))
    joined = (*before, *zip(times[begin:].tolist(), values[begin:].tolist(), strict=True))
    kept = [sample for sample in joined if sample[0] > times[-1] - 2 * STEP_SECONDS]
    older = sum(1 for at, _ in kept if at <= times[-1] - STEP_SECONDS)
    return tuple(kept[max(older - 1, 0) :])


def _latest(starts: Floats, times: Floats) -> Floats:
    """The start that each sample follows."""
    return starts[np.maximum(np.searchsorted(starts, times, side="right") - 1, 0)]


def _by_day(times: Floats, values: Floats, pod: str) -> list[DayPeak]:
    """The largest value of each day."""
    days = np.floor(times / DAY_SECONDS).astype(np.int64)
    begins = np.flatnonzero(np.diff(days, prepend=days[0] - 1))
    peaks = np.maximum.reduceat(values, begins)
    return [DayPeak(int(day), float(peak), pod) for day, peak in zip(days[begins], peaks, strict=True)]


def _joined_by_day(peaks: Iterable[DayPeak], oldest_day: int) -> tuple[DayPeak, ...]:
    """The largest of each day, of equals the first by pod; days that are no longer held in full are dropped."""
    best: dict[int, DayPeak] = {}
    for peak in peaks:
        known = best.get(peak.day)
        if peak.day >= oldest_day and (known is None or (-peak.value, peak.pod) < (-known.value, known.pod)):
            best[peak.day] = peak
    return tuple(best[day] for day in sorted(best))
