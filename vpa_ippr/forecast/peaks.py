"""Peaks with trend, for memory: the recent peak, carried on by its trend, as far as recent peaks told of the next ones before.

A trend is only believed upwards, and only where a straight line explains most of two days: a daily rhythm is no trend. How much the recent
peak tells differs: a heap stays where it is, a cache that is filled by a nightly job does not. So each series has a line from the peak
before to the peak after, no steeper than one to one, and the quantiles of the distances from that line.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from vpa_ippr.api.series import Floats
from vpa_ippr.forecast.grid import HOURS_PER_DAY, UsageGrid, day_maxima, divided, maxima, means, rolling_maxima, row_quantiles
from vpa_ippr.forecast.quantiles import LEVELS, FittedQuantiles, Horizon, first_known
from vpa_ippr.forecast.seasonal import trailing

PEAKS: Final = "peaks-trend"

_HISTORY_HOURS: Final = 14 * HOURS_PER_DAY
_TREND_HOURS: Final = 2 * HOURS_PER_DAY
_MIN_TREND_HOURS: Final = 12
_MIN_EXPLAINED: Final = 0.6
_MIN_PAIRS: Final = 2 * HOURS_PER_DAY
# The peak that the next hour is compared with is that of the last three: memory moves slowly.
_PEAK_HOURS: Final = {Horizon.HOUR: 3, Horizon.DAY: HOURS_PER_DAY}


@dataclass(frozen=True, slots=True)
class PeaksForecaster:
    """Learns from two weeks; falls back to the trailing quantile for a series younger than about three days."""

    name: str = PEAKS

    def fit(self, grid: UsageGrid) -> FittedQuantiles:
        """Peaks, trends and lines of all hours at once."""
        hours = grid.hourly_maxima(_HISTORY_HOURS)
        slope = rising_slopes(hours, _TREND_HOURS)
        of_hour, of_day = (_from_peaks(hours, slope, horizon) for horizon in Horizon)
        return first_known([(self.name, of_hour, of_day), trailing(grid)])


def _from_peaks(hours: Floats, slope: Floats, horizon: Horizon) -> Floats:
    expected = rolling_maxima(hours, _PEAK_HOURS[horizon]) + slope * horizon.hours
    actual = hours if horizon is Horizon.HOUR else day_maxima(hours)
    before, after = expected[:, : -horizon.hours], actual[:, horizon.hours :]
    both = np.isfinite(before) & np.isfinite(after)
    before, after = np.where(both, before, np.nan), np.where(both, after, np.nan)
    usual_before, usual_after = means(before)[:, None], means(after)[:, None]
    told = _steepness(before - usual_before, after - usual_after)[:, None]
    distances = after - usual_after - told * (before - usual_before)
    result = usual_after + told * (expected[:, -1:] - usual_before) + row_quantiles(distances, LEVELS)
    result[both.sum(axis=1) < _MIN_PAIRS] = np.nan
    return np.maximum(result, 0.0)


def _steepness(before: Floats, after: Floats) -> Floats:
    """Of the line through the origin, between 0 (the peak before tells nothing) and 1; 1 where the peak never changed."""
    steepness = divided(means(before * after), means(before**2))
    return np.clip(np.where(np.isfinite(steepness), steepness, 1.0), 0.0, 1.0)


def rising_slopes(hours: Floats, width: int) -> Floats:
    """For each hour the slope, per hour, of the line through the ``width`` values that end there; 0 where it does not rise for certain."""
    # Sums of squares lose the digits of a small slope on a large level: the level goes first, then the size.
    centred = hours - means(hours)[:, None]
    size = maxima(np.abs(centred))[:, None]
    there = np.isfinite(hours)
    values = np.where(there & (size > 0), divided(centred, np.broadcast_to(size, hours.shape)), 0.0)
    weight = there.astype(np.float64)
    place = np.arange(hours.shape[1]) - hours.shape[1] / 2
    count, x, y, xx, xy, yy = (
        _window_sums(terms, width) for terms in (weight, weight * place, values, weight * place**2, values * place, values**2)
    )
    divisor = np.maximum(count, 1.0)
    covariance, of_x, of_y = xy - x * y / divisor, xx - x * x / divisor, yy - y * y / divisor
    slope = divided(covariance, of_x)
    explained = divided(covariance**2, of_x * np.maximum(of_y, 1e-12))
    believed = (count >= _MIN_TREND_HOURS) & (slope > 0) & (explained >= _MIN_EXPLAINED)
    return np.where(believed, slope * size, 0.0)


def _window_sums(terms: Floats, width: int) -> Floats:
    total = np.cumsum(terms, axis=1)
    total[:, width:] = total[:, width:] - total[:, :-width]
    return total
