"""Usage of many series on one time grid, and the few row-wise operations that every forecaster here is made of.

Nothing in this module loops over series: 1,000 containers with four weeks of history are one array of 8 million numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from vpa_ippr.api.series import Floats
from vpa_ippr.usage.container import DAY_SECONDS
from vpa_ippr.usage.steps import STEP_SECONDS as STEP_SECONDS
from vpa_ippr.usage.steps import STEPS_PER_HOUR as STEPS_PER_HOUR

HOUR_SECONDS: Final = 3600.0
HOURS_PER_DAY: Final = 24
DAYS_PER_WEEK: Final = 7
HOURS_PER_WEEK: Final = HOURS_PER_DAY * DAYS_PER_WEEK
_SHORT_AXIS: Final = 24


@dataclass(frozen=True, slots=True, eq=False)
class UsageGrid:
    """Series in rows, five-minute steps in columns; NaN where nothing was measured.

    ``values``: cores or bytes, shape (series, steps). ``end``: when the last step ended, seconds since the epoch; it is the moment at
    which a forecast is made. Hours and days are counted back from it, so an "hour" is the last 12 steps and not one of the clock.
    """

    values: Floats
    end: float
    # Every forecaster asks for the same hours, and they cost more than what most of them do with them.
    _hours: list[Floats] = field(default_factory=list, init=False, repr=False)

    @classmethod
    def of(cls, series: Sequence[tuple[Floats, Floats]], end: float, days: float) -> UsageGrid:
        """Lay series given as (timestamps, values) on the grid; of several samples in one step the largest stays."""
        steps = round(days * DAY_SECONDS / STEP_SECONDS)
        values = np.full((len(series), steps), np.nan)
        for row, (timestamps, samples) in enumerate(series):
            ages = np.floor((end - np.asarray(timestamps)) / STEP_SECONDS).astype(np.int64)
            inside = (ages >= 0) & (ages < steps)
            np.fmax.at(values[row], steps - 1 - ages[inside], np.asarray(samples, dtype=np.float64)[inside])
        return cls(values, end)

    def __len__(self) -> int:
        return len(self.values)

    @property
    def steps(self) -> int:
        """Number of columns."""
        return int(self.values.shape[1])

    def until(self, steps: int) -> UsageGrid:
        """The first so many columns: what was known then."""
        return UsageGrid(self.values[:, :steps], self.end - (self.steps - steps) * STEP_SECONDS)

    def last(self, days: float) -> UsageGrid:
        """The newest part, at most so long."""
        steps = round(days * DAY_SECONDS / STEP_SECONDS)
        return self if steps >= self.steps else UsageGrid(self.values[:, self.steps - steps :], self.end)

    def blocks(self, steps: int, count: int) -> Floats:
        """The last ``count`` blocks of so many steps, NaN before history begins; shape (series, count, steps)."""
        needed = steps * count
        values = self.values[:, max(self.steps - needed, 0) :]
        if values.shape[1] < needed:
            missing = np.full((len(values), needed - values.shape[1]), np.nan)
            values = np.concatenate((missing, values), axis=1)
        return values.reshape(len(values), count, steps)

    def is_known(self) -> NDArray[np.bool_]:
        """For each whole hour of the grid, and at least one, whether it has a sample; shape (series, hours)."""
        return np.isfinite(self.hourly_maxima(max(self.steps // STEPS_PER_HOUR, 1)))

    def hourly_maxima(self, hours: int) -> Floats:
        """The largest value of each of the last hours, NaN for an hour without samples; shape (series, hours), read-only."""
        if not self._hours or self._hours[0].shape[1] < hours:
            found = maxima(self.blocks(STEPS_PER_HOUR, hours))
            found.flags.writeable = False
            self._hours[:] = [found]
        longest = self._hours[0]
        return longest[:, longest.shape[1] - hours :]


def maxima(values: Floats) -> Floats:
    """Along the last axis, gaps left out; NaN where there is nothing else."""
    return _reduced(np.fmax, values)


def minima(values: Floats) -> Floats:
    """Along the last axis, gaps left out; NaN where there is nothing else."""
    return _reduced(np.fmin, values)


def _reduced(smaller_or_larger: np.ufunc, values: Floats) -> Floats:
    if not 0 < values.shape[-1] <= _SHORT_AXIS:
        return np.asarray(smaller_or_larger.reduce(values, axis=-1, initial=np.nan))
    # numpy reduces a short last axis entry by entry; folding it in half, neighbour onto neighbour, reads memory once and in order.
    while (width := values.shape[-1]) > 3:
        folded = smaller_or_larger(values[..., : width // 2 * 2 : 2], values[..., 1::2])
        if width % 2:
            smaller_or_larger(folded[..., -1], values[..., -1], out=folded[..., -1])
        values = folded
    result = values[..., 0].copy()
    for column in range(1, values.shape[-1]):
        smaller_or_larger(result, values[..., column], out=result)
    return result


def means(values: Floats) -> Floats:
    """Along the last axis, gaps left out; NaN where there is nothing else."""
    there = np.isfinite(values)
    count = there.sum(axis=-1)
    total = np.where(there, values, 0.0).sum(axis=-1)
    return divided(total, count)


def divided(above: Floats, below: Floats | NDArray[np.int64]) -> Floats:
    """Quotients, NaN where there is nothing to divide by."""
    result = np.full(np.shape(above), np.nan)
    np.divide(above, below, out=result, where=np.asarray(below) != 0)
    return result


def rolling_maxima(values: Floats, width: int) -> Floats:
    """The largest of each value and the ``width - 1`` before it, gaps left out; same shape, rows begin with what there is."""
    result, covered = values.copy(), 1
    while covered < width:  # each pass at most doubles the stretch that one entry speaks for
        shift = min(covered, width - covered)
        result[:, shift:] = np.fmax(result[:, shift:], result[:, :-shift])
        covered += shift
    return result


def day_maxima(hours: Floats) -> Floats:
    """For each hour the largest of the 24 that end with it, given hourly maxima; NaN where fewer than half of them are known."""
    known = np.cumsum(np.isfinite(hours), axis=1)
    known[:, HOURS_PER_DAY:] = known[:, HOURS_PER_DAY:] - known[:, :-HOURS_PER_DAY]
    return np.where(known * 2 >= HOURS_PER_DAY, rolling_maxima(hours, HOURS_PER_DAY), np.nan)


def row_quantiles(values: Floats, levels: Sequence[float]) -> Floats:
    """Quantiles of each row's finite values; shape (rows, levels), NaN for a row without any.

    The plotting position is ``q (n + 1)``: of n exchangeable values the next one stays below such a quantile with chance q, as long as
    q <= n / (n + 1); beyond that the largest value is given.
    """
    if not values.shape[1]:
        return np.full((len(values), len(levels)), np.nan)
    ordered = np.sort(values, axis=1)  # NaN goes last
    count = np.isfinite(values).sum(axis=1)[:, None]
    position = np.clip(np.asarray(levels) * (count + 1) - 1, 0, np.maximum(count - 1, 0))
    below = position.astype(np.int64)
    low = np.take_along_axis(ordered, below, axis=1)
    high = np.take_along_axis(ordered, np.minimum(below + 1, np.maximum(count - 1, 0)), axis=1)
    return np.asarray(low + (high - low) * (position - below))


def weighted_quantiles(values: Floats, weights: Floats, levels: Sequence[float]) -> Floats:
    """The smallest value of each row at which the cumulated weight reaches each level; ``weights`` (columns,), NaN values have none."""
    order = np.argsort(values, axis=1)
    ordered = np.take_along_axis(values, order, axis=1)
    cumulated = np.cumsum(np.where(np.isfinite(ordered), weights[order], 0.0), axis=1)
    wanted = cumulated[:, -1:] * np.asarray(levels) * (1 - 1e-12)
    column = np.stack([(cumulated < wanted[:, level, None]).sum(axis=1) for level in range(len(levels))], axis=1)
    return np.take_along_axis(ordered, np.minimum(column, values.shape[1] - 1), axis=1)
