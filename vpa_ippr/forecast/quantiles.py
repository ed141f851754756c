"""What every forecaster here answers with: quantiles of the largest use in the next hour and in the next day."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from vpa_ippr.api.errors import UsageError
from vpa_ippr.api.series import Finding, Floats
from vpa_ippr.forecast.grid import HOURS_PER_DAY, STEPS_PER_HOUR, UsageGrid

# The levels that are kept; others between them are interpolated.
LEVELS: Final = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98)
NO_DATA: Final = "no-data"


class Horizon(StrEnum):
    """The stretch of time, from now, whose largest use is asked for."""

    HOUR = "hour"
    DAY = "day"

    @property
    def hours(self) -> int:
        """Its length in hours."""
        return 1 if self is Horizon.HOUR else HOURS_PER_DAY

    @property
    def steps(self) -> int:
        """Its length in steps of a grid."""
        return self.hours * STEPS_PER_HOUR


@dataclass(frozen=True, slots=True, eq=False)
class Forecast:
    """Quantiles of the largest use within ``horizon``, one row a series.

    ``values``: in the unit of the history, shape (series, quantiles), never falling along a row; NaN for a series of which nothing is
    known. ``methods``: what answered for each series: the forecaster's own name, or the fallback's where the history is too short.
    """

    horizon: Horizon
    quantiles: tuple[float, ...]
    values: Floats
    methods: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class FittedQuantiles:
    """What was learned of each series, as plain arrays.

    ``levels`` (levels,); ``hour`` and ``day`` (series, levels); ``method_of`` (series,) indexes ``methods``.
    """

    levels: tuple[float, ...]
    hour: Floats
    day: Floats
    methods: tuple[str, ...]
    method_of: NDArray[np.int64]
    findings: tuple[Finding, ...] = ()

    def predict(self, horizon: Horizon, quantiles: Sequence[float]) -> Forecast:
        """Quantiles between the learned levels are interpolated.

        Raises:
            UsageError: a quantile lies outside the learned levels; an extrapolated tail would be invented.
        """
        wanted = np.asarray(quantiles, dtype=np.float64)
        if wanted.size and not self.levels[0] <= wanted.min() <= wanted.max() <= self.levels[-1]:
            raise UsageError(
                f"quantiles must lie between {self.levels[0]} and {self.levels[-1]}: {list(quantiles)}", reason="QuantileOutOfRange"
            )
        known = self.hour if horizon is Horizon.HOUR else self.day
        above = np.clip(np.searchsorted(self.levels, wanted), 1, len(self.levels) - 1)
        low, high = np.asarray(self.levels)[above - 1], np.asarray(self.levels)[above]
        share = (wanted - low) / (high - low)
        values = known[:, above - 1] * (1 - share) + known[:, above] * share
        order = np.argsort(wanted)
        values[:, order] = np.maximum.accumulate(values[:, order], axis=1)  # rounding may not make a higher quantile smaller
        return Forecast(horizon, tuple(quantiles), values, tuple(self.methods[index] for index in self.method_of))


class GridForecaster(Protocol):
    """A way to learn from many series at once; the same history always gives the same numbers."""

    @property
    def name(self) -> str:
        """The name in a profile, and the method a forecast names."""
        ...

    def fit(self, grid: UsageGrid) -> FittedQuantiles:
        """Learn from history; a series that cannot be learned gets a fallback, and the others are not touched by it."""
        ...


def first_known(choices: Sequence[tuple[str, Floats, Floats]], levels: Sequence[float] = LEVELS) -> FittedQuantiles:
    """Each series from the first method that knows both its hour and its day; choices are (name, hour, day)."""
    names = (*(name for name, _, _ in choices), NO_DATA)
    hour, day = (np.full_like(choices[0][column], np.nan) for column in (1, 2))
    method_of = np.full(len(hour), len(choices), dtype=np.int64)
    for index, (_, of_hour, of_day) in enumerate(choices):
        answers = (method_of == len(choices)) & np.isfinite(of_hour).all(axis=1) & np.isfinite(of_day).all(axis=1)
        hour[answers], day[answers], method_of[answers] = of_hour[answers], of_day[answers], index
    return FittedQuantiles(tuple(levels), ordered(hour), ordered(np.fmax(hour, day)), names, method_of)


def ordered(values: Floats) -> Floats:
    """Quantile crossing removed: along each row every value is at least the one before it."""
    return np.maximum.accumulate(values, axis=1)
