"""What the global model sees of a series: 32 numbers made from the series alone, without its unit.

All amounts are logarithms of their ratio to the series' own scale (the mean of the hourly maxima of the last week), so one model serves
millicores and gibibytes, and a container it never saw. What is not known yet is NaN, which the trees handle as a value of its own.

The clock is left out: recordings come from other time zones and under made-up dates, so nine o'clock in one says nothing of nine o'clock
in another. Rhythm is seen in what the hour to come needed on past days.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from vpa_ippr.api.series import Floats
from vpa_ippr.forecast.grid import (
    DAYS_PER_WEEK,
    HOURS_PER_DAY,
    HOURS_PER_WEEK,
    STEPS_PER_HOUR,
    UsageGrid,
    divided,
    maxima,
    means,
    minima,
    rolling_maxima,
    row_quantiles,
    weighted_quantiles,
)

# A use of nothing is this share of the scale: the logarithm needs an end.
_NOTHING_SHARE: Final = 0.01
HISTORY_DAYS: Final = 14
_HISTORY_HOURS: Final = HISTORY_DAYS * HOURS_PER_DAY
_LAG_HOURS: Final = 6
_WINDOW_HOURS: Final = (3, 6, 12, 24, 72, 168)
_SAME_HOUR_DAYS: Final = (1, 2, 3, 7)
_DECAY_HALF_LIFE_HOURS: Final = 24.0
_DECAY_LEVELS: Final = (0.5, 0.9, 0.95)
_ACF_MIN_PAIRS: Final = 24

NAMES: Final = (
    *("last_sample", "max_15min", "mean_30min"),
    *(f"max_lag_{lag}h" for lag in range(1, _LAG_HOURS + 1)),
    *("mean_1h", "mean_6h", "mean_24h"),
    *(f"max_{hours}h" for hours in _WINDOW_HOURS),
    "min_of_max_24h",
    *(f"same_hour_{days}d" for days in _SAME_HOUR_DAYS),
    *("same_hour_median_7d", "same_hour_max_7d"),
    *(f"decayed_p{level * 100:.0f}" for level in _DECAY_LEVELS),
    *("p90_168h", "acf_24h", "known_hours", "day_over_day"),
)


@dataclass(frozen=True, slots=True, eq=False)
class Features:
    """``matrix`` (series, features) in the order of ``NAMES``; ``scale`` (series,) in the unit of the history, NaN without samples."""

    matrix: Floats
    scale: Floats

    def to_log(self, amounts: Floats) -> Floats:
        """Amounts as the model counts them; ``amounts`` (series,)."""
        return to_log(amounts, self.scale)

    def from_log(self, logs: Floats) -> Floats:
        """The inverse for (series, columns); a series that used nothing for a week is expected to use nothing."""
        scale = self.scale[:, None]
        return np.maximum((np.exp(logs) * (1 + _NOTHING_SHARE) - _NOTHING_SHARE) * scale, 0.0)


def to_log(amounts: Floats, scale: Floats) -> Floats:
    """``log`` of the ratio to the scale, which is 0 for the scale itself; the first axes agree."""
    wide = scale.reshape(scale.shape + (1,) * (amounts.ndim - scale.ndim))
    used = np.isfinite(amounts) & (wide > 0)
    ratio = np.divide(amounts, wide, out=np.full(amounts.shape, np.nan), where=used)
    return np.asarray(np.log((ratio + _NOTHING_SHARE) / (1 + _NOTHING_SHARE)))


def scale_of(grid: UsageGrid) -> Floats:
    """The mean of the hourly maxima of the last week, by which a series' amounts are counted; (series,), NaN without samples."""
    return means(grid.hourly_maxima(HOURS_PER_WEEK))


def build_features(grid: UsageGrid) -> Features:
    """What is known at the end of the grid."""
    recent = grid.last(HISTORY_DAYS)
    hours = grid.hourly_maxima(_HISTORY_HOURS)
    scale = scale_of(grid)
    amounts = np.stack([*_amounts(recent, hours)], axis=1)
    matrix = np.concatenate((to_log(amounts, scale), np.stack([*_others(recent, hours)], axis=1)), axis=1)
    return Features(matrix, scale)


def _amounts(grid: UsageGrid, hours: Floats) -> Iterator[Floats]:
    last_hour = grid.blocks(1, STEPS_PER_HOUR)[:, :, 0]
    yield last_hour[:, -1]
    yield maxima(last_hour[:, -3:])
    yield means(last_hour[:, -6:])
    yield from (hours[:, -lag] for lag in range(1, _LAG_HOURS + 1))
    day = grid.blocks(1, HOURS_PER_DAY * STEPS_PER_HOUR)[:, :, 0]
    yield from (means(day[:, -steps * STEPS_PER_HOUR :]) for steps in (1, 6, HOURS_PER_DAY))
    yield from (maxima(hours[:, -width:]) for width in _WINDOW_HOURS)
    yield minima(hours[:, -HOURS_PER_DAY:])
    yield from _same_hour(hours)
    ages = np.arange(hours.shape[1])[::-1]
    yield from weighted_quantiles(hours, np.exp2(-ages / _DECAY_HALF_LIFE_HOURS), _DECAY_LEVELS).T
    yield row_quantiles(hours[:, -HOURS_PER_WEEK:], (0.9,))[:, 0]


def _same_hour(hours: Floats) -> Iterator[Floats]:
    """The hour to come, on past days."""
    past = [hours[:, -HOURS_PER_DAY * days] for days in range(1, DAYS_PER_WEEK + 1)]
    yield from (past[days - 1] for days in _SAME_HOUR_DAYS)
    yield row_quantiles(np.stack(past, axis=1), (0.5,))[:, 0]
    beside = rolling_maxima(hours, 3)  # the hour with one on either side, when read one later
    yield maxima(np.stack([beside[:, -HOURS_PER_DAY * days + 1] for days in range(1, DAYS_PER_WEEK + 1)], axis=1))


def _others(grid: UsageGrid, hours: Floats) -> Iterator[Floats]:
    """Numbers that are no amounts: they are given as they are."""
    yield _autocorrelation(hours[:, -2 * HOURS_PER_WEEK :], HOURS_PER_DAY)
    yield np.log1p(np.isfinite(hours).sum(axis=1).astype(np.float64))
    today, before = (means(grid.blocks(STEPS_PER_HOUR * HOURS_PER_DAY, 2)[:, day]) for day in (1, 0))
    yield _log_ratio(today, before)


def _log_ratio(above: Floats, below: Floats) -> Floats:
    positive = (above > 0) & (below > 0)
    ratio = np.full(above.shape, np.nan)
    np.divide(above, below, out=ratio, where=positive)
    return np.asarray(np.log(ratio))


def _autocorrelation(values: Floats, lag: int) -> Floats:
    """Correlation with itself so many columns earlier, gaps left out; NaN where it is constant or too short."""
    late, early = values[:, lag:], values[:, :-lag]
    both = np.isfinite(late) & np.isfinite(early)
    late, early = np.where(both, late, np.nan), np.where(both, early, np.nan)
    late, early = late - means(late)[:, None], early - means(early)[:, None]
    spread = np.sqrt(means(late**2) * means(early**2))
    result = divided(means(late * early), spread)
    result[both.sum(axis=1) < _ACF_MIN_PAIRS] = np.nan
    # A constant series has a spread of rounding errors alone.
    return np.where(spread > 1e-12 * means(values) ** 2, np.clip(result, -1, 1), np.nan)
