"""What is known of the use of one container instance, and of all instances of a workload's container together.

CPU: every sample goes into a histogram. Memory: one *peak* for each aggregation interval (24 h) goes in, stamped with the end of the
interval. The peak of the interval that still runs is held beside the histogram and joined to it on reading, so that it never has to be
subtracted again. An OOM kill is a memory sample of the size that would have been needed.

Each instance keeps its own histograms; ``aggregate`` folds instances in the order of their last sample. The oldest instances are thus
a prefix of the fold, and may be folded away for good with no change to any number.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from vpa_ippr.api.series import Floats
from vpa_ippr.usage.histogram import BucketOptions, DecayingHistogram, exponential_buckets

DAY_SECONDS: Final = 86_400.0
CPU_SAMPLE_WEIGHT: Final = 0.1
MEMORY_PEAK_WEIGHT: Final = 1.0
# Upstream: 0.001 of the smallest weight of a sample.
EPSILON: Final = 0.001 * CPU_SAMPLE_WEIGHT
MILLI: Final = 1000.0


def _default_cpu_buckets() -> BucketOptions:
    return exponential_buckets(1000.0, 0.01, 1.05, EPSILON)


def _default_memory_buckets() -> BucketOptions:
    return exponential_buckets(1e12, 1e7, 1.05, EPSILON)


@dataclass(frozen=True, slots=True)
class UsageRules:
    """How samples are kept; the defaults are upstream's. CPU buckets are in cores, memory buckets in bytes."""

    cpu_buckets: BucketOptions = field(default_factory=_default_cpu_buckets)
    memory_buckets: BucketOptions = field(default_factory=_default_memory_buckets)
    cpu_half_life_seconds: float = DAY_SECONDS
    memory_half_life_seconds: float = DAY_SECONDS
    aggregation_interval_seconds: float = DAY_SECONDS
    aggregation_interval_count: int = 8
    oom_bump_up_ratio: float = 1.2
    oom_min_bump_up_bytes: float = 100 * 1024 * 1024

    @property
    def expiry_seconds(self) -> float:
        """Age of the last sample at which all that is known of a container is dropped."""
        return self.aggregation_interval_seconds * self.aggregation_interval_count

    def empty_cpu(self) -> DecayingHistogram:
        """A CPU histogram with no samples."""
        return DecayingHistogram.empty(self.cpu_buckets, self.cpu_half_life_seconds)

    def empty_memory(self) -> DecayingHistogram:
        """A memory histogram with no samples."""
        return DecayingHistogram.empty(self.memory_buckets, self.memory_half_life_seconds)


@dataclass(frozen=True, slots=True)
class SampleSpan:
    """How many samples there were, and when the first and the last began (seconds since the epoch)."""

    count: int = 0
    first: float | None = None
    last: float | None = None

    def extended(self, timestamps: Floats) -> SampleSpan:
        """With more samples, at least one, oldest first."""
        return self.merged(SampleSpan(len(timestamps), float(timestamps[0]), float(timestamps[-1])))

    def merged(self, other: SampleSpan) -> SampleSpan:
        """Both spans together."""
        firsts = [moment for moment in (self.first, other.first) if moment is not None]
        lasts = [moment for moment in (self.last, other.last) if moment is not None]
        return SampleSpan(self.count + other.count, min(firsts, default=None), max(lasts, default=None))


@dataclass(frozen=True, slots=True)
class PeakWindow:
    """The aggregation interval that still runs: its end, the highest usage in it and the highest need after an OOM kill, in bytes."""

    end: float
    memory_peak: float = 0.0
    oom_peak: float = 0.0

    @property
    def peak(self) -> float:
        """The peak that counts for the interval."""
        return max(self.memory_peak, self.oom_peak)


@dataclass(frozen=True, slots=True, eq=False)
class ContainerState:
    """Everything known of one container instance; ``finished_peaks`` holds the memory peaks of the intervals that have ended."""

    rules: UsageRules
    cpu: DecayingHistogram
    finished_peaks: DecayingHistogram
    window: PeakWindow | None = None
    cpu_span: SampleSpan = SampleSpan()
    memory_span: SampleSpan = SampleSpan()
    last_cpu: float = -np.inf
    last_memory: float = -np.inf
    oom_kills: int = 0

    @classmethod
    def empty(cls, rules: UsageRules) -> ContainerState:
        """An instance of which nothing is known yet."""
        return cls(rules, rules.empty_cpu(), rules.empty_memory())

    @property
    def last_sample(self) -> float:
        """When the last sample of any kind was taken; minus infinity if there was none."""
        return max(self.last_cpu, self.last_memory)

    def memory(self, closed_before: float = np.inf) -> DecayingHistogram:
        """All memory peaks; the running interval's only if it ends at or before ``closed_before``."""
        if self.window is None or self.window.end > closed_before:
            return self.finished_peaks
        return self.finished_peaks.add(self.window.end, self.window.peak, MEMORY_PEAK_WEIGHT)


@dataclass(frozen=True, slots=True, eq=False)
class AggregateState:
    """What is known of all instances of one container of a workload; the memory histogram holds finished and running peaks alike."""

    cpu: DecayingHistogram
    memory: DecayingHistogram
    cpu_span: SampleSpan = SampleSpan()
    memory_span: SampleSpan = SampleSpan()
    oom_kills: int = 0

    @classmethod
    def empty(cls, rules: UsageRules) -> AggregateState:
        """A container of which nothing is known yet."""
        return cls(rules.empty_cpu(), rules.empty_memory())

    @property
    def last_sample(self) -> float:
        """When the last sample of any kind was taken; minus infinity if there was none."""
        return max((span.last for span in (self.cpu_span, self.memory_span) if span.last is not None), default=-np.inf)


def add_cpu(state: ContainerState, timestamps: Floats, values: Floats) -> ContainerState:
    """Add CPU samples in cores, oldest first; those not newer than the last one, or negative, are left out."""
    times, cores = _usable(timestamps, values, int(np.searchsorted(timestamps, state.last_cpu, side="right")))
    if not len(times):
        return state
    whole_millicores = np.floor(cores * MILLI) / MILLI  # upstream counts whole millicores, truncated
    return replace(
        state,
        cpu=state.cpu.add(times, whole_millicores, CPU_SAMPLE_WEIGHT),
        cpu_span=state.cpu_span.extended(times),
        last_cpu=float(times[-1]),
    )


def add_memory(state: ContainerState, timestamps: Floats, values: Floats) -> ContainerState:
    """Add memory samples in bytes, oldest first; those older than the last one, or negative, are left out."""
    times, used_bytes = _usable(timestamps, values, int(np.searchsorted(timestamps, state.last_memory, side="left")))
    if not len(times):
        return state
    window, ended = state.window, []
    begin = 0
    while begin < len(times):
        following = _window_at(state.rules, window, float(times[begin]))
        if window is not None and following is not window:
            ended.append(window)
        end = int(np.searchsorted(times, following.end, side="left"))
        peak = float(int(used_bytes[begin:end].max()))
        window = replace(following, memory_peak=peak) if peak > following.peak else following
        begin = end
    return replace(
        state,
        window=window,
        finished_peaks=_with_ended(state.finished_peaks, ended),
        memory_span=state.memory_span.extended(times),
        last_memory=float(times[-1]),
    )


def _usable(timestamps: Floats, values: Floats, begin: int) -> tuple[Floats, Floats]:
    times, usable = timestamps[begin:], values[begin:]
    if len(usable) and usable.min() < 0:
        return times[usable >= 0], usable[usable >= 0]
    return times, usable


def _window_at(rules: UsageRules, window: PeakWindow | None, at: float) -> PeakWindow:
    """The window that holds ``at``: the running one, or a new one with no peak yet.

    A container's first sample opens its first window. Later ones follow at whole intervals, with none for a silence between.
    """
    interval = rules.aggregation_interval_seconds
    if window is None:
        return PeakWindow(at + interval)
    if at < window.end:
        return window
    return PeakWindow(window.end + ((at - window.end) // interval + 1) * interval)


def _with_ended(finished: DecayingHistogram, ended: list[PeakWindow]) -> DecayingHistogram:
    if not ended:
        return finished
    return finished.add([window.end for window in ended], [window.peak for window in ended], MEMORY_PEAK_WEIGHT)


def add_oom(state: ContainerState, at: float, memory_request_bytes: int) -> ContainerState | None:
    """Add an OOM kill as a memory sample of the size that would have been needed; None when it is too old to count.

    Too old is older than the last memory sample by more than an aggregation interval. The need starts from the request or the usage
    peak, never from an earlier OOM's need, so that a loop of kills at the same request does not ratchet.
    """
    rules = state.rules
    if at < state.last_memory - rules.aggregation_interval_seconds:
        return None
    # The usage peak is that of the window before the kill, even when the kill opens the next one (upstream ``RecordOOM``).
    used = max(float(memory_request_bytes), state.window.memory_peak if state.window else 0.0)
    needed = float(int(max(used + rules.oom_min_bump_up_bytes, used * rules.oom_bump_up_ratio)))
    window = _window_at(rules, state.window, at)
    ended = [state.window] if state.window is not None and window is not state.window else []
    return replace(
        state,
        window=replace(window, oom_peak=needed) if needed > window.peak else window,
        finished_peaks=_with_ended(state.finished_peaks, ended),
        memory_span=state.memory_span.extended(np.array([at])),
        last_memory=max(state.last_memory, at),
        oom_kills=state.oom_kills + 1,
    )


def fold(base: AggregateState, state: ContainerState, closed_before: float = np.inf) -> AggregateState:
    """``base`` with one more instance; see ``ContainerState.memory`` for ``closed_before``."""
    return AggregateState(
        cpu=base.cpu.merge(state.cpu),
        memory=base.memory.merge(state.memory(closed_before)),
        cpu_span=base.cpu_span.merged(state.cpu_span),
        memory_span=base.memory_span.merged(state.memory_span),
        oom_kills=base.oom_kills + state.oom_kills,
    )


def aggregate(base: AggregateState, states: Iterable[ContainerState]) -> AggregateState:
    """``base`` with all instances, folded in the order given (callers sort by last sample)."""
    for state in states:
        base = fold(base, state)
    return base
