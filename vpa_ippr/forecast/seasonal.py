"""Quantiles of what the same hour of the day, or of the week, needed before; and of the recent past regardless of the hour.

The hours on either side count too: a rhythm is never exact, and three times as many values make the upper quantiles honest. A day's need is
taken from the maxima of whole days that ended at this time of day, or an hour or two apart from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from vpa_ippr.api.series import Floats
from vpa_ippr.forecast.decaying import DecayingPercentiles
from vpa_ippr.forecast.grid import HOURS_PER_DAY, HOURS_PER_WEEK, STEP_SECONDS, UsageGrid, day_maxima, maxima, row_quantiles
from vpa_ippr.forecast.quantiles import LEVELS, FittedQuantiles, first_known
from vpa_ippr.usage.container import DAY_SECONDS
from vpa_ippr.usage.histogram import BucketOptions

TRAILING: Final = "trailing-quantile"
HOUR_OF_DAY: Final = "hour-of-day"
DAY_OF_WEEK: Final = "day-of-week"

_NEIGHBOUR_HOURS: Final = (-1, 0, 1)
# Shifts of the days whose maxima are compared; a maximum of 24 hours changes little in two.
_DAY_SHIFTS: Final = (-2, -1, 0, 1, 2)
_DAYS: Final = 7
_WEEKS: Final = 4
_MIN_SEASONS: Final = 3  # fewer say nothing of a rhythm
_MAX_DECAY_HALF_LIVES: Final = 10  # older samples weigh less than a thousandth


def trailing(grid: UsageGrid, levels: Sequence[float] = LEVELS) -> tuple[str, Floats, Floats]:
    """Quantiles of the hourly maxima of the last week, and of the maxima of 24 hours within it; a choice for ``first_known``."""
    hours = grid.hourly_maxima(HOURS_PER_WEEK)
    of_hour = row_quantiles(hours, levels)
    of_day = row_quantiles(day_maxima(hours), levels)
    # Before the first half day is over, the largest value seen is all that is known of a day.
    of_day = np.where(np.isfinite(of_day), of_day, maxima(hours)[:, None])
    return TRAILING, of_hour, of_day


@dataclass(frozen=True, slots=True)
class TrailingForecaster:
    """Quantiles of the last week, whatever the hour; every series with one sample has an answer."""

    name: str = TRAILING

    def fit(self, grid: UsageGrid) -> FittedQuantiles:
        """Sort the last week's maxima."""
        return first_known([trailing(grid)])


@dataclass(frozen=True, slots=True)
class SeasonalForecaster:
    """Quantiles over past days at the coming hour (``season`` day), or over past weeks at the coming hour of the same weekday."""

    season: Literal["day", "week"] = "day"

    @property
    def name(self) -> str:
        """As in a profile."""
        return HOUR_OF_DAY if self.season == "day" else DAY_OF_WEEK

    def fit(self, grid: UsageGrid) -> FittedQuantiles:
        """Sort the values of the same hour; falls back from week to day to the trailing quantile while there are too few seasons."""
        choices = [self.choice(grid)]
        if self.season == "week":
            choices.append(SeasonalForecaster("day").choice(grid))
        return first_known([*choices, trailing(grid)])

    def choice(self, grid: UsageGrid) -> tuple[str, Floats, Floats]:
        """Its own answer without fallbacks, NaN for a series with too few seasons; a choice for ``first_known``."""
        period, seasons = (HOURS_PER_DAY, _DAYS) if self.season == "day" else (HOURS_PER_WEEK, _WEEKS)
        hours = grid.hourly_maxima((seasons + 1) * period)
        days = day_maxima(hours)
        last = hours.shape[1] - 1
        before = period * np.arange(1, seasons + 1)
        # The hour to come has index last + 1; a day to come ends at last + 24.
        of_hour = _known_seasons(hours, last + 1 - before, _NEIGHBOUR_HOURS)
        of_day = _known_seasons(days, last + HOURS_PER_DAY - before, _DAY_SHIFTS)
        return self.name, of_hour, of_day


def _known_seasons(values: Floats, columns: NDArray[np.int64], shifts: tuple[int, ...]) -> Floats:
    """Quantiles of the values in those columns and beside them; NaN where too few of the columns themselves are known."""
    beside = np.unique(columns[:, None] + np.array(shifts))
    result = row_quantiles(values[:, beside[beside < values.shape[1]]], LEVELS)
    result[np.isfinite(values[:, columns]).sum(axis=1) < _MIN_SEASONS] = np.nan
    return result


@dataclass(frozen=True, slots=True)
class DecayingForecaster:
    """Percentiles of a decaying histogram of all samples, for the hour and for the day alike: what the upstream recommender knows.

    They are quantiles of *use*, not of the largest use, so they cover less than they say; calibration mends that.
    """

    options: BucketOptions
    half_life_seconds: float
    name: str = "decaying-histogram"

    def fit(self, grid: UsageGrid) -> FittedQuantiles:
        """One histogram a series, all filled at once."""
        recent = grid.last(_MAX_DECAY_HALF_LIVES * self.half_life_seconds / DAY_SECONDS)
        there = np.isfinite(recent.values)
        count = self.options.count
        ages = np.arange(recent.steps)[::-1] * STEP_SECONDS
        # A gap is looked up too, and counts nothing: that is cheaper than leaving it out.
        buckets = self.options.find(recent.values) + np.arange(len(grid))[:, None] * count
        filled = np.bincount(buckets.ravel(), (there * np.exp2(-ages / self.half_life_seconds)).ravel(), len(grid) * count)
        weights = filled.reshape(len(grid), count).astype(np.float64)
        # Scaled so that a single sample counts however old it is.
        weights /= np.where(weights.any(axis=1), weights.sum(axis=1), 1.0)[:, None]
        values = DecayingPercentiles(self.options.epsilon, self.options.ends(), weights, weights.sum(axis=1)).predict(LEVELS)
        values[~there.any(axis=1)] = np.nan
        return first_known([(self.name, values, values)])
