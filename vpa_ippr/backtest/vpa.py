"""The upstream recommender for many series at once: ``recommend.pipeline`` with the profile ``vpa-classic``, number for number.

One row is one container that is alone in its pod. A slot is one sample to the histograms. Upstream reads usage once a minute and counts
readings to tell how far to trust them, so a slot counts as ``samples_per_slot`` readings there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from vpa_ippr.api.series import Floats, Resource
from vpa_ippr.backtest.actuator import Mask
from vpa_ippr.backtest.histograms import FleetHistograms
from vpa_ippr.backtest.policy import HistoryView, Targets
from vpa_ippr.forecast.catalogue import ConfidenceFactor, Profile
from vpa_ippr.recommend.estimate import MAX_AMOUNT
from vpa_ippr.usage.container import CPU_SAMPLE_WEIGHT, MEMORY_PEAK_WEIGHT, MILLI, UsageRules

_SECONDS_PER_MINUTE: Final = 60.0


class VpaPolicy:
    """Percentiles of decaying histograms, a margin, and bounds that narrow with history.

    OOM kills are learned from the allocations in the view: usage above the allocation is a kill at that request. The pod minimum is the
    actuator's floor, not ours.
    """

    def __init__(self, name: str, profile: Profile, resource: Resource, series: int, samples_per_slot: float = 1.0) -> None:
        self._name = name
        self._profile = profile
        self._part = profile.resource(resource)
        self._samples_per_slot = samples_per_slot
        self._use: _CpuUse | _MemoryUse = (
            _CpuUse(profile.usage_rules(), series) if resource is Resource.CPU else _MemoryUse(profile.usage_rules(), series)
        )
        self._scale = MILLI if resource is Resource.CPU else 1.0
        self._first = np.full(series, np.nan)
        self._last = np.full(series, np.nan)
        self._counts = np.zeros(series)
        self._read_to = 0

    @property
    def name(self) -> str:
        """The name it was given."""
        return self._name

    def decide(self, view: HistoryView) -> Targets:
        """Target and bounds of every series that has a sample."""
        for slot in range(self._read_to, view.now):
            times = view.starts + slot * view.step_seconds
            used, held = view.usage[:, slot], view.allocation[:, slot]
            kills = self._use.add(times, used, held)
            self._count(times, np.isfinite(used), kills)
        self._read_to = view.now
        quantiles = self._part.quantiles
        levels = self._use.percentiles((quantiles.lower_bound, quantiles.target, quantiles.upper_bound))
        amounts = np.minimum(np.floor(levels * self._scale), MAX_AMOUNT)
        amounts += np.minimum(np.floor(amounts * self._part.margin_fraction), MAX_AMOUNT)
        confidence = self._confidence()
        lower = _with_confidence(amounts[:, 0], confidence, self._profile.confidence.lower_bound)
        upper = _with_confidence(amounts[:, 2], confidence, self._profile.confidence.upper_bound)
        known = np.isfinite(self._first)
        target, lower, upper = (np.where(known, amount, np.nan) / self._scale for amount in (amounts[:, 1], lower, upper))
        return Targets(target, lower, upper)

    def _count(self, times: Floats, observed: Mask, kills: Mask) -> None:
        self._counts += observed * self._samples_per_slot + kills
        self._first = np.where(observed & np.isnan(self._first), times, self._first)
        self._last = np.where(observed, times, self._last)

    def _confidence(self) -> Floats:
        """The lower of the history's age and its number of samples at one a minute, in intervals; 0 without history."""
        interval = self._part.confidence_interval_seconds
        age = (self._last - self._first) / interval
        confidence: Floats = np.nan_to_num(np.minimum(age, self._counts / (interval / _SECONDS_PER_MINUTE)))
        return confidence


def _with_confidence(amounts: Floats, confidence: Floats, factor: ConfidenceFactor) -> Floats:
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        widened = amounts * (1 + factor.multiplier / confidence) ** factor.exponent
    # Without history 0 times infinity is no number; upstream makes that 0.
    return np.minimum(np.floor(np.where(np.isnan(widened), 0.0, widened)), MAX_AMOUNT)


class _CpuUse:
    def __init__(self, rules: UsageRules, series: int) -> None:
        self._histograms = FleetHistograms.empty(series, rules.cpu_buckets, rules.cpu_half_life_seconds)
        self.percentiles: Callable[[tuple[float, ...]], Floats] = self._histograms.percentiles

    def add(self, times: Floats, used: Floats, _held: Floats) -> Mask:
        rows = np.flatnonzero(np.isfinite(used))
        self._histograms.add(rows, times[rows], np.floor(used[rows] * MILLI) / MILLI, CPU_SAMPLE_WEIGHT)
        return np.zeros(len(used), np.bool_)


class _MemoryUse:
    """Peaks of windows, as ``usage.container`` keeps them: finished ones in the histograms, the running one beside them."""

    def __init__(self, rules: UsageRules, series: int) -> None:
        self._rules = rules
        self._finished = FleetHistograms.empty(series, rules.memory_buckets, rules.memory_half_life_seconds)
        self._ends = np.full(series, np.nan)
        self._used_peaks = np.zeros(series)
        self._oom_peaks = np.zeros(series)

    def add(self, times: Floats, used: Floats, held: Floats) -> Mask:
        """One slot; True where the use was above the limit and the container was killed."""
        observed = np.isfinite(used)
        self._turn_windows(times, observed)
        whole = np.floor(used)
        # A sample no higher than the need after a kill leaves the window's usage peak as it is, as upstream does.
        higher = observed & (whole > np.maximum(self._used_peaks, self._oom_peaks))
        self._used_peaks = np.where(higher, whole, self._used_peaks)
        killed = used > held
        if killed.any():
            base = np.maximum(np.floor(held), self._used_peaks)
            needed = np.floor(np.maximum(base + self._rules.oom_min_bump_up_bytes, base * self._rules.oom_bump_up_ratio))
            higher = killed & (needed > np.maximum(self._used_peaks, self._oom_peaks))
            self._oom_peaks = np.where(higher, needed, self._oom_peaks)
        return killed

    def percentiles(self, fractions: tuple[float, ...]) -> Floats:
        """Of finished and running peaks together."""
        rows = np.flatnonzero(np.isfinite(self._ends))
        return self._finished.joined(rows, self._ends[rows], self._peaks()[rows], MEMORY_PEAK_WEIGHT).percentiles(fractions)

    def _peaks(self) -> Floats:
        return np.maximum(self._used_peaks, self._oom_peaks)

    def _turn_windows(self, times: Floats, observed: Mask) -> None:
        interval = self._rules.aggregation_interval_seconds
        self._ends = np.where(observed & np.isnan(self._ends), times + interval, self._ends)
        over = observed & (times >= self._ends)
        if over.any():
            rows = np.flatnonzero(over)
            self._finished.add(rows, self._ends[rows], self._peaks()[rows], MEMORY_PEAK_WEIGHT)
            self._ends[rows] += ((times[rows] - self._ends[rows]) // interval + 1) * interval
            self._used_peaks[rows] = self._oom_peaks[rows] = 0.0
