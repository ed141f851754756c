"""Policies that look at a window of the past: what others recommend, and the plain ones that are hard to beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from vpa_ippr.api.series import Floats, Resource
from vpa_ippr.backtest.grid import DAY_SECONDS, Fleet
from vpa_ippr.backtest.histograms import FleetHistograms
from vpa_ippr.backtest.policy import HistoryView, Targets
from vpa_ippr.usage.container import EPSILON
from vpa_ippr.usage.histogram import BucketOptions, exponential_buckets

KRR_LEAST_POINTS: Final = 100
_AUTOPILOT_FACTOR: Final = 1.1


@dataclass(frozen=True, slots=True, eq=False)
class Static:
    """What is set now stays. The one policy that is given a value instead of deciding: it is the same before and after any moment."""

    amounts: Floats
    name: str = "static"

    @classmethod
    def of(cls, fleet: Fleet) -> Static:
        """What the containers are set to; where that is not known, the most that they ever used: the least that a careful owner sets."""
        highest = np.fmax.reduce(fleet.usage, axis=1, initial=0.0)
        return cls(np.where(np.isfinite(fleet.current), fleet.current, highest))

    def decide(self, view: HistoryView) -> Targets:  # noqa: ARG002 - the same whatever is known
        """The amounts."""
        return Targets.only(self.amounts)


@dataclass(frozen=True, slots=True)
class Krr:
    """Robusta KRR: a percentile of CPU or the highest memory of two weeks, times a factor, once there are 100 points."""

    name: str
    percentile: float
    factor: float = 1.0
    window_seconds: float = 14 * DAY_SECONDS

    def decide(self, view: HistoryView) -> Targets:
        """Targets of the series with enough points."""
        recent = view.recent(self.window_seconds)
        enough = np.isfinite(recent).sum(axis=1) >= KRR_LEAST_POINTS
        target = np.full(len(recent), np.nan)
        if enough.any():
            target[enough] = percentile_of_rows(recent[enough], self.percentile) * self.factor
        return Targets.only(target)


@dataclass(frozen=True, slots=True)
class RecentPeak:
    """The highest use of a window and a margin."""

    name: str = "max-guard"
    window_seconds: float = 3 * DAY_SECONDS
    margin_fraction: float = 0.15

    def decide(self, view: HistoryView) -> Targets:
        """Targets of the series with a sample in the window."""
        recent = view.recent(self.window_seconds)
        if not recent.shape[1]:
            return Targets.only(np.full(len(recent), np.nan))
        return Targets.only(np.fmax.reduce(recent, axis=1) * (1 + self.margin_fraction))


class AutopilotWindow:
    """Our reading of Google Autopilot's moving-window recommender (EuroSys'20), on averages of slots instead of one-second histograms.

    The percentile of all samples, weighted by ``2 ** (-age / half_life)``, and a margin. Autopilot then takes the largest recommendation
    of the last hour; decided once an hour, that is the decision itself.
    """

    name: Final = "autopilot-window"

    def __init__(self, resource: Resource, series: int) -> None:
        hours, self._fraction = (12, 0.95) if resource is Resource.CPU else (48, 0.98)
        self._histograms = FleetHistograms.empty(series, _fine_buckets(resource), hours * 3600.0)
        self._read_to = 0

    def decide(self, view: HistoryView) -> Targets:
        """Targets of every series that has a sample."""
        for slot in range(self._read_to, view.now):
            used = view.usage[:, slot]
            rows = np.flatnonzero(np.isfinite(used))
            self._histograms.add(rows, view.starts[rows] + slot * view.step_seconds, used[rows], 1.0)
        self._read_to = view.now
        level = self._histograms.percentiles((self._fraction,))[:, 0]
        return Targets.only(np.where(np.isnan(self._histograms.references), np.nan, level * _AUTOPILOT_FACTOR))


def percentile_of_rows(values: Floats, fraction: float) -> Floats:
    """The percentile of each row, interpolated as ``quantile_over_time`` does; NaN is left out, and no row may hold nothing else."""
    ordered = np.sort(values, axis=1)  # NaN goes last
    position = fraction * (np.isfinite(ordered).sum(axis=1) - 1)
    below = np.floor(position).astype(np.int64)
    rows = np.arange(len(ordered))
    low, high = ordered[rows, below], ordered[rows, np.ceil(position).astype(np.int64)]
    interpolated: Floats = low + (high - low) * (position - below)
    return interpolated


def _fine_buckets(resource: Resource) -> BucketOptions:
    """Narrow ones, so that the end of a bucket is hardly above the percentile itself."""
    first, most = (0.001, 1000.0) if resource is Resource.CPU else (1e6, 1e12)
    return exponential_buckets(most, first, 1.01, EPSILON)
