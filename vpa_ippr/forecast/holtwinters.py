"""Holt-Winters over hourly maxima with a daily season, and quantiles of its own past errors around it.

The smoothing factors of each series are learned by statsmodels (``smoothing.py``), once a day (``forecasters.py``). Smoothing itself runs
over all series at once, so that a cycle follows newer history at the price of a few hundred vector operations. A gap is neither zero nor a
spike: during it the state goes on as forecast.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from vpa_ippr.api.series import Floats
from vpa_ippr.forecast.grid import HOURS_PER_DAY, UsageGrid, day_maxima, maxima, means, row_quantiles
from vpa_ippr.forecast.quantiles import LEVELS, FittedQuantiles, first_known
from vpa_ippr.forecast.seasonal import SeasonalForecaster, trailing
from vpa_ippr.forecast.smoothing import DEFAULT_FACTORS

HOLT_WINTERS: Final = "holt-winters"
# The same smoothing with fixed factors: what a series gets that statsmodels could not fit.
HOLT_WINTERS_DEFAULT: Final = "holt-winters-default"

_HISTORY_HOURS: Final = 14 * HOURS_PER_DAY
_START_HOURS: Final = 3 * HOURS_PER_DAY  # the first state is their mean; errors made there are not counted
_MIN_ERRORS: Final = HOURS_PER_DAY
# A trend is not believed beyond this multiple of the largest value ever seen in the history.
_MAX_GROWTH: Final = 2.0


@dataclass(frozen=True, slots=True, eq=False)
class Smoothed:
    """What smoothing made of each series: ``next_hour`` and ``next_day`` (series, hours) as forecast *after* each hour."""

    next_hour: Floats
    next_day: Floats


def with_factors(grid: UsageGrid, factors: Floats) -> FittedQuantiles:
    """Smooth the history with these factors, shape (series, 4); a row with NaN gets the fixed ones."""
    hours = grid.hourly_maxima(_HISTORY_HOURS)
    learned = np.isfinite(factors).all(axis=1, keepdims=True)
    smoothed = smooth(hours, np.where(learned, factors, DEFAULT_FACTORS))
    limit = _MAX_GROWTH * maxima(hours)[:, None]
    of_hour = np.clip(_around(smoothed.next_hour, hours, 1), 0.0, limit)
    of_day = np.clip(_around(smoothed.next_day, day_maxima(hours), HOURS_PER_DAY), 0.0, limit)
    own = (HOLT_WINTERS, np.where(learned, of_hour, np.nan), of_day)
    return first_known([own, (HOLT_WINTERS_DEFAULT, of_hour, of_day), SeasonalForecaster().choice(grid), trailing(grid)])


def _around(forecast: Floats, actual: Floats, lead: int) -> Floats:
    """The last forecast, plus quantiles of the errors that earlier ones turned out to have ``lead`` hours later."""
    errors = actual[:, lead:] - forecast[:, :-lead]
    result = forecast[:, -1:] + row_quantiles(errors, LEVELS)
    result[np.isfinite(errors).sum(axis=1) < _MIN_ERRORS] = np.nan
    return result


def smooth(hours: Floats, factors: Floats) -> Smoothed:
    """Additive Holt-Winters with a damped trend; ``hours`` (series, hours), ``factors`` (series, 4): level, trend, season, damping.

    A series begins with its first known value; three days later its forecasts begin, and are NaN until then.
    """
    alpha, beta, gamma, phi = factors.T
    first = np.isfinite(hours).argmax(axis=1)
    level, season = _start(hours, first)
    trend = np.zeros(len(hours))
    # Sum of the damped trend over the next 1 to 24 hours, for each series.
    growth = np.cumsum(phi[:, None] ** np.arange(1, HOURS_PER_DAY + 1), axis=1)
    next_hour, next_day = np.full_like(hours, np.nan), np.full_like(hours, np.nan)
    for hour in range(hours.shape[1]):
        slot, value = hour % HOURS_PER_DAY, hours[:, hour]
        expected = level + phi * trend
        there = np.isfinite(value)
        seen = np.where(there, value, expected + season[:, slot])
        moved = alpha * (seen - season[:, slot]) + (1 - alpha) * expected
        trend = beta * (moved - level) + (1 - beta) * phi * trend
        season[:, slot] += gamma * (seen - expected - season[:, slot])
        level = moved
        path = level[:, None] + growth * trend[:, None] + np.roll(season, -(slot + 1), axis=1)
        next_hour[:, hour], next_day[:, hour] = path[:, 0], path.max(axis=1)
    starting = np.arange(hours.shape[1]) < first[:, None] + _START_HOURS
    return Smoothed(np.where(starting, np.nan, next_hour), np.where(starting, np.nan, next_day))


def _start(hours: Floats, first: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Level and season of the first days that are known."""
    columns = np.arange(hours.shape[1])
    begun = np.where((columns >= first[:, None]) & (columns < first[:, None] + _START_HOURS), hours, np.nan)
    level = means(begun)
    whole = -(-hours.shape[1] // HOURS_PER_DAY) * HOURS_PER_DAY
    padded = np.concatenate((begun, np.full((len(hours), whole - hours.shape[1]), np.nan)), axis=1)
    by_hour = means(padded.reshape(len(hours), -1, HOURS_PER_DAY).swapaxes(1, 2)) - level[:, None]
    return level, np.where(np.isfinite(by_hour), by_hour, 0.0)
