"""New samples and evidence into the steps of containers.

Feeding a history at once or in parts gives the same numbers bit for bit: only whole steps are closed, and what the open one holds is added
up in the order of time. Containers whose open step is the same one are fed together, one row an instance, which changes no number either:
in a cycle each of thousands of instances has a sample or two, and numpy costs as much for one as for a hundred.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from vpa_ippr.api.series import ContainerRef, EvidenceSeries, Floats, Resource, UsageSeries
from vpa_ippr.usage.container import DAY_SECONDS
from vpa_ippr.usage.evidence import EvidenceRules
from vpa_ippr.usage.judged import Judged, Notes, evidence_table, joined_notes, judged_cpu, judged_memory
from vpa_ippr.usage.steps import FORGET_SECONDS, STEP_SECONDS, STEPS_PER_DAY, ContainerSteps, DayPeak, OpenStep, StepRow, StepRules

# Instances times steps; what is fed together takes some 400 bytes of each meanwhile.
_CELLS_AT_ONCE: Final = 2**16

_RESOURCES: Final = (Resource.CPU, Resource.MEMORY)
_Samples = tuple[Floats, Floats]
_NOTHING: Final[_Samples] = np.empty(0), np.empty(0)
_Row = tuple[StepRow, Notes | None]


@dataclass(frozen=True, slots=True, eq=False)
class Fresh:
    """What is new of a container: of the ``series`` the samples later than ``after``, and ``evidence`` on the steps that are closed."""

    steps: ContainerSteps
    series: Iterable[UsageSeries]
    evidence: Iterable[EvidenceSeries] = ()
    after: float = -math.inf


def feed(
    steps: ContainerSteps,
    series: Iterable[UsageSeries],
    evidence: Iterable[EvidenceSeries] = (),
    *,
    until: float,
    after: float = -math.inf,
) -> ContainerSteps:
    """With the samples of ``after < t <= until``; all steps that end by ``until`` are closed, judged by the ``evidence`` on them."""
    return feed_all([Fresh(steps, series, evidence, after)], until=until)[0]


def feed_all(fresh: Sequence[Fresh], *, until: float) -> list[ContainerSteps]:
    """Each container fed with what is new of it up to ``until``, as ``feed`` does one, in that order."""
    alike: dict[tuple[int, StepRules], list[int]] = defaultdict(list)
    for index, one in enumerate(fresh):
        alike[one.steps.cpu.end, one.steps.rules].append(index)
    fed: dict[int, ContainerSteps] = {}
    for (begin, rules), found in alike.items():
        stretch = _Stretch(rules, begin, until)
        for indices in stretch.batches(found, fresh):
            fed.update(zip(indices, stretch.fed([fresh[index] for index in indices]), strict=True))
    return [fed[index] for index in range(len(fresh))]


@dataclass(frozen=True, slots=True, eq=False)
class _New:
    """What is new of one instance: when it started and had its last sample, CPU ``startup`` apart, and samples as (times, values)."""

    ref: ContainerRef
    before: OpenStep
    started: float
    last: float
    startup: Sequence[DayPeak]
    cpu: _Samples
    memory: _Samples
    evidence: Sequence[EvidenceSeries]


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """The closed steps of one instance, and the notes on them if there was evidence."""

    pod: str
    values: Floats
    notes: Floats | None


@dataclass(frozen=True, slots=True, eq=False)
class _Closed:
    """What became of one instance: its open step, and by resource its closed ones if they hold anything."""

    state: OpenStep
    parts: Mapping[Resource, _Part | None]


class _Stretch:
    """The steps that feeding containers closes whose open step is ``begin``, and the open one after them."""

    def __init__(self, rules: StepRules, begin: int, until: float) -> None:
        self._rules = rules
        self._until = until
        self._evidence_rules = rules.evidence or EvidenceRules()
        self._begin = begin
        self._end = max(math.floor(until / STEP_SECONDS), begin)
        # As far back as rows go.
        self._width = min(self._end - begin, rules.steps)
        self._oldest_day = -(-(self._end - rules.steps) // STEPS_PER_DAY)

    def batches(self, indices: Sequence[int], fresh: Sequence[Fresh]) -> Iterator[list[int]]:
        """These places in parts that do not hold too many instances, known ones and new ones."""
        batch: list[int] = []
        instances = 0
        for index in indices:
            batch.append(index)
            instances += max(len(fresh[index].steps.instances), 1)
            if instances * self._columns >= _CELLS_AT_ONCE:
                yield batch
                batch, instances = [], 0
        if batch:
            yield batch

    def fed(self, batch: Sequence[Fresh]) -> list[ContainerSteps]:
        """The containers after what is new of them."""
        new = [self._new(one) for one in batch]
        every = [instance for instances in new for instance in instances]
        at_once = max(_CELLS_AT_ONCE // self._columns, 1)
        found = iter([one for begin in range(0, len(every), at_once) for one in self._closed(every[begin : begin + at_once])])
        together = [[next(found) for _ in instances] for instances in new]
        extended = {resource: self._extended(batch, together, resource) for resource in Resource} if self._width else {}
        return [
            self._container(one.steps, instances, closed, {resource: rows[index] for resource, rows in extended.items()})
            for index, (one, instances, closed) in enumerate(zip(batch, new, together, strict=True))
        ]

    @property
    def _columns(self) -> int:
        return self._end - self._begin + 1

    def _new(self, fresh: Fresh) -> list[_New]:
        """By instance, sorted by pod."""
        samples: dict[ContainerRef, dict[Resource, _Samples]] = {}
        for one in fresh.series:
            begin, end = one.timestamps.searchsorted((fresh.after, self._until), side="right")
            if begin < end:
                samples.setdefault(one.container, {})[one.resource] = one.timestamps[begin:end], one.values[begin:end]
        evidence: dict[ContainerRef, list[EvidenceSeries]] = defaultdict(list)
        if self._rules.evidence is not None and self._width:
            for point in fresh.evidence:
                evidence[point.container].append(point)
        known = fresh.steps.instances
        return [
            self._instance(ref, known.get(ref), fresh.steps.observed_from, samples.get(ref, {}), evidence.get(ref, ()))
            for ref in sorted({*known, *samples})
        ]

    def _instance(
        self,
        ref: ContainerRef,
        known: OpenStep | None,
        observed_from: float,
        samples: Mapping[Resource, _Samples],
        evidence: Sequence[EvidenceSeries],
    ) -> _New:
        (cpu_times, cpu), memory = samples.get(Resource.CPU, _NOTHING), samples.get(Resource.MEMORY, _NOTHING)
        starts = self._starts(known, observed_from, cpu_times, memory[0])
        startup: Sequence[DayPeak] = ()
        if len(cpu_times) and cpu_times[0] - starts[-1] < self._rules.startup_seconds:
            starting = cpu_times - _latest(starts, cpu_times) < self._rules.startup_seconds
            if starting.any():
                startup = _by_day(cpu_times[starting], cpu[starting], ref.pod)
            cpu_times, cpu = cpu_times[~starting], cpu[~starting]
        last = max([known.last if known else -math.inf, *(float(times[-1]) for times, _ in samples.values())])
        return _New(ref, known or OpenStep(-math.inf, -math.inf), float(starts[-1]), last, startup, (cpu_times, cpu), memory, evidence)

    def _starts(self, known: OpenStep | None, observed_from: float, *times: Floats) -> Floats:
        """When the instance started, oldest first: at samples after a long silence, unless it ran already when looking began."""
        if known is not None and self._until - known.last < FORGET_SECONDS:
            return np.array([known.started])
        moments = np.sort(np.concatenate(times))
        if known is not None:
            before, started = known.last, known.started
        else:
            ran = not len(moments) or moments[0] - observed_from <= STEP_SECONDS
            before, started = (moments[0] if ran and len(moments) else -math.inf), -math.inf
        anew = np.diff(moments, prepend=before) >= FORGET_SECONDS
        return np.append(started, moments[anew])

    def _closed(self, new: Sequence[_New]) -> list[_Closed]:
        """A row for each of these instances."""
        means, cpu_open = self._cpu(new)
        peaks, memory_open = self._memory(new)
        table = evidence_table([one.evidence for one in new], self._begin, self._end, STEP_SECONDS)
        cpu = None if table is None else judged_cpu(means, table, self._evidence_rules)
        memory = None if table is None else judged_memory(peaks, table, self._evidence_rules, STEP_SECONDS)
        spare = [one.before.spare_bytes if not self._width else 0.0 for one in new] if memory is None else memory.spare_bytes
        short = zip(self._last_short(new, cpu), self._last_short(new, memory), strict=True)
        states = [
            OpenStep(
                one.started, one.last, *sum_and_count, highest, _recent(one.before.recent, *one.memory), spare_bytes, _short(one, *steps)
            )
            for one, sum_and_count, highest, spare_bytes, steps in zip(new, cpu_open, memory_open, spare, short, strict=True)
        ]
        parts = zip(self._parts(new, means, cpu), self._parts(new, peaks, memory), strict=True)
        return [_Closed(state, dict(zip(_RESOURCES, own, strict=True))) for state, own in zip(states, parts, strict=True)]

    def _cpu(self, new: Sequence[_New]) -> tuple[Floats, Iterable[tuple[float, int]]]:
        """The means of the closed steps, and sum and count of the open one."""
        places, values = self._placed([one.cpu for one in new])
        size = len(new) * self._columns
        places = np.concatenate((np.arange(0, size, self._columns), places))
        # Summed one after the other, the open step first: the result does not depend on the batches.
        sums = np.bincount(places, np.concatenate(([one.before.cpu_sum for one in new], values)), size)
        counts = np.bincount(places, np.concatenate(([one.before.cpu_count for one in new], np.ones(len(values)))), size)
        means = np.divide(sums, counts, out=np.full(size, np.nan), where=counts > 0).reshape(len(new), -1)[:, :-1]
        last = slice(self._columns - 1, None, self._columns)
        return means, zip(sums[last].tolist(), counts[last].astype(np.int64).tolist(), strict=True)

    def _memory(self, new: Sequence[_New]) -> tuple[Floats, list[float]]:
        """The largest samples of the closed steps, and that of the open one."""
        places, values = self._placed([one.memory for one in new])
        peaks = np.full((len(new), self._columns), -math.inf)
        peaks[:, 0] = [one.before.memory for one in new]
        np.maximum.at(peaks.reshape(-1), places, values)
        closed = peaks[:, :-1]
        return np.where(np.isfinite(closed), closed, np.nan), peaks[:, -1].tolist()

    def _placed(self, samples: Sequence[_Samples]) -> tuple[NDArray[np.int64], Floats]:
        """Places and values of all samples; one that is older than the open step has come too late and counts there."""
        times, values = (np.concatenate(column) for column in zip(*samples, strict=True))
        rows = np.repeat(np.arange(len(samples)), [len(one) for one, _ in samples])
        return rows * self._columns + np.maximum(np.floor(times / STEP_SECONDS).astype(np.int64) - self._begin, 0), values

    def _last_short(self, new: Sequence[_New], judged: Judged | None) -> list[int | None]:
        """The last step in which each instance was short of a resource."""
        if judged is None:
            return [None] * len(new)
        last = self._end - 1 - judged.short[:, ::-1].argmax(axis=1)
        was_short = np.asarray(judged.short.any(axis=1))
        return [step if was else None for step, was in zip(last.tolist(), was_short.tolist(), strict=True)]

    def _parts(self, new: Sequence[_New], values: Floats, judged: Judged | None) -> list[_Part | None]:
        """The closed steps, as far back as rows go; None where nothing is known."""
        kept = slice(values.shape[1] - self._width, None)
        values = (values if judged is None else judged.values)[:, kept]
        notes = [judged.notes[:, row, kept] if judged is not None and judged.known[row] else None for row in range(len(new))]
        there = np.asarray(np.isfinite(values).any(axis=1))
        return [
            _Part(one.ref.pod, own, noted) if is_there else None
            for one, own, noted, is_there in zip(new, values, notes, there.tolist(), strict=True)
        ]  # fmt: skip

    def _extended(self, batch: Sequence[Fresh], together: Sequence[Sequence[_Closed]], resource: Resource) -> list[_Row]:
        """The row of a resource of each container with what is new of its instances."""
        parts = [[part for one in closed if (part := one.parts[resource]) is not None] for closed in together]
        chosen = [_over_pods([part.values for part in own], self._width, self._rules.pods) for own in parts]
        values, pods = np.stack([own for own, _ in chosen]), np.stack([own for _, own in chosen])
        peaks = self._peaks(values, pods, parts)
        rows = []
        for fresh, singles, own_pods, own_parts, own_peaks in zip(batch, values.astype(np.float32), pods, parts, peaks, strict=True):
            before, notes = fresh.steps.row(resource), fresh.steps.notes(resource)
            joined = np.concatenate((before.values, singles))[-self._rules.steps :]
            row = StepRow(self._end, joined, _joined_by_day([*before.peaks, *own_peaks], self._oldest_day))
            noted = [part.notes for part in own_parts]
            rows.append((row, joined_notes(notes, noted, own_pods, self._evidence_rules, STEPS_PER_DAY)))
        return rows

    def _peaks(self, values: Floats, pods: NDArray[np.int64], parts: Sequence[Sequence[_Part]]) -> list[list[DayPeak]]:
        """By container the largest of each day; of equals the pod that comes first counts."""
        days = (self._end - self._width + np.arange(self._width)) // STEPS_PER_DAY
        begins = np.flatnonzero(np.diff(days, prepend=days[0] - 1))
        largest = np.fmax.reduceat(values, begins, axis=1)
        is_largest = values == np.repeat(largest, np.diff(begins, append=self._width), axis=1)
        by = np.minimum.reduceat(np.where(is_largest, pods, np.iinfo(pods.dtype).max), begins, axis=1)
        return [
            [
                DayPeak(day, value, own[pod].pod)
                for day, value, pod in zip(days[begins].tolist(), of_days, of_pods, strict=True)
                if math.isfinite(value)
            ]
            for own, of_days, of_pods in zip(parts, largest.tolist(), by.tolist(), strict=True)
        ]

    def _container(
        self, before: ContainerSteps, new: Sequence[_New], closed: Sequence[_Closed], rows: Mapping[Resource, _Row]
    ) -> ContainerSteps:
        startup = _joined_by_day([*before.startup, *(peak for one in new for peak in one.startup)], self._oldest_day)
        instances = {
            one.ref: own.state for one, own in zip(new, closed, strict=True) if self._until - own.state.last < FORGET_SECONDS
        }  # fmt: skip
        cpu, cpu_notes = rows.get(Resource.CPU, (before.cpu, before.cpu_notes))
        memory, memory_notes = rows.get(Resource.MEMORY, (before.memory, before.memory_notes))
        return ContainerSteps(
            before.rules, before.observed_from, cpu, memory, startup, instances, cpu_notes, memory_notes
        )  # fmt: skip


def _short(new: _New, cpu: int | None, memory: int | None) -> Mapping[Resource, int]:
    """The last steps in which the instance was short, given those among the closed ones."""
    found = {resource: step for resource, step in zip(_RESOURCES, (cpu, memory), strict=True) if step is not None}
    return {**new.before.short, **found} if found else new.before.short


def _over_pods(parts: Sequence[Floats], width: int, quantile: float) -> tuple[Floats, NDArray[np.int64]]:
    """For each step the value that counts and the place of its pod: the smallest that ``quantile`` of the values do not exceed."""
    if not parts:
        return np.full(width, np.nan), np.zeros(width, dtype=np.int64)
    if len(parts) == 1:
        return parts[0], np.zeros(width, dtype=np.int64)
    values = np.stack(parts)
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
