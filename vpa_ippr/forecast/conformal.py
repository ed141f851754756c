"""Online calibration of quantiles: what was missed too often is raised, what was missed too seldom is lowered.

After each outcome the offset of a quantile q moves up by ``rate * spread * q`` on a miss and down by ``rate * spread * (1 - q)`` otherwise
(the rule of adaptive conformal inference, applied to the offset itself). In the long run the share of misses is 1 - q whatever the
distribution does, as long as the offset stays inside its bounds. Offsets are logarithmic, so they scale with the series; the spread is
the series' own usual error, so a quiet series is not shaken by steps that suit a wild one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec
import numpy as np

from vpa_ippr.api.errors import ValidationError
from vpa_ippr.api.series import Floats
from vpa_ippr.forecast.grid import divided
from vpa_ippr.forecast.quantiles import Forecast, Horizon

# A use of nothing counts as this share of the usual use: the logarithm needs an end.
_NOTHING_SHARE: Final = 0.01
_FIRST_SPREAD: Final = 0.1
_MIN_OBSERVATIONS_OF_POOL: Final = 24


class CalibrationRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How fast offsets move, and how far they may; ``half_life`` is counted in outcomes."""

    rate: float = 0.1
    half_life: float = 168.0
    # A quantile is lowered to half at most and raised to four times at most: beyond that the forecaster is broken, not miscalibrated.
    min_offset: float = -0.69
    max_offset: float = 1.39


# For outcomes that come every hour. Those of a day overlap: 24 of them tell the same, a day late, and large steps would overshoot.
DEFAULT_CALIBRATION: Final = {Horizon.HOUR: CalibrationRules(rate=0.1), Horizon.DAY: CalibrationRules(rate=0.03)}


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """Offsets of many series for one forecaster and one horizon.

    ``offset``, ``covered``, ``covered_raw`` (series, levels): log offsets, and the faded share of outcomes at or below the calibrated and
    the uncalibrated quantile. ``spread``, ``level``, ``observations`` (series,): usual error in log, usual use, outcomes seen (unfaded).
    """

    rules: CalibrationRules
    horizon: Horizon
    levels: tuple[float, ...]
    offset: Floats
    covered: Floats
    covered_raw: Floats
    spread: Floats
    level: Floats
    observations: Floats

    @classmethod
    def start(cls, count: int, horizon: Horizon, levels: Sequence[float], rules: CalibrationRules | None = None) -> Calibration:
        """Before the first outcome nothing is moved; without rules those for hourly outcomes are taken."""
        rules = DEFAULT_CALIBRATION[horizon] if rules is None else rules
        wide, unknown = (count, len(levels)), np.full((count, len(levels)), np.nan)
        return cls(
            rules, horizon, tuple(levels), np.zeros(wide), unknown, unknown, np.full(count, _FIRST_SPREAD), np.zeros(count), np.zeros(count)
        )

    def __len__(self) -> int:
        return len(self.offset)

    def apply(self, forecast: Forecast) -> Forecast:
        """The forecast with its quantiles moved; in order again, whatever the offsets are.

        Raises:
            ValidationError: it is for another horizon, other quantiles or another number of series.
        """
        self._check(forecast)
        nothing = (_NOTHING_SHARE * self.level)[:, None]
        moved = np.maximum((forecast.values + nothing) * np.exp(self.offset) - nothing, 0.0)
        return replace(forecast, values=np.maximum.accumulate(moved, axis=1))

    def update(self, raw: Forecast, issued: Forecast, observed: Floats) -> Calibration:
        """Learn from outcomes: ``raw`` as forecast, ``issued`` as ``apply`` moved it then, ``observed`` (series,), NaN where not known."""
        self._check(raw)
        self._check(issued)
        known = np.isfinite(observed) & np.isfinite(raw.values).all(axis=1)
        seen = np.where(known, observed, 0.0)
        keep = 0.5 ** (1 / self.rules.half_life)
        # The first outcomes count fully: a plain mean until the faded one is as long.
        fresh = np.maximum(1 - keep, divided(np.ones(len(self)), self.observations + 1))
        share = np.where(known, fresh, 0.0)
        level = self.level + share * (seen - self.level)
        step = self.rules.rate * self.spread[:, None]
        asked = np.asarray(self.levels)
        missed = seen[:, None] > issued.values
        moved = self.offset + np.where(missed, step * asked, -step * (1 - asked))
        offset = np.where(known[:, None], np.clip(moved, self.rules.min_offset, self.rules.max_offset), self.offset)
        return replace(
            self,
            offset=offset,
            covered=_faded(self.covered, ~missed, share),
            covered_raw=_faded(self.covered_raw, seen[:, None] <= raw.values, share),
            spread=self.spread + share * (np.where(known, self._error(raw, seen, level), 0.0) - self.spread),
            level=level,
            observations=self.observations + known,
        )

    def take(self, rows: Sequence[int]) -> Calibration:
        """For other series; one that is new (-1) begins with the median offset of those that have been watched for a while."""
        index = np.asarray(rows, dtype=np.int64).reshape(-1)
        new = index < 0
        start = Calibration.start(1, self.horizon, self.levels, self.rules)
        watched = self.observations >= _MIN_OBSERVATIONS_OF_POOL
        if watched.any():
            pooled = np.median(self.offset[watched], axis=0, keepdims=True)
            start = replace(start, offset=pooled, spread=np.median(self.spread[watched], keepdims=True))

        def moved(name: str) -> Floats:
            values: Floats = np.concatenate((getattr(self, name), getattr(start, name)))
            return values[np.where(new, len(self), index)]

        return Calibration(self.rules, self.horizon, self.levels, **{name: moved(name) for name in _ARRAYS})

    def _check(self, forecast: Forecast) -> None:
        if (forecast.horizon, forecast.quantiles, len(forecast.values)) != (self.horizon, self.levels, len(self)):
            raise ValidationError(
                f"calibration of {len(self)} series for the next {self.horizon} at {self.levels} cannot be used on a forecast of "
                f"{len(forecast.values)} series for the next {forecast.horizon} at {forecast.quantiles}",
                reason="CalibrationMismatch",
            )

    def _error(self, raw: Forecast, seen: Floats, level: Floats) -> Floats:
        """Distance of the outcome from the lowest quantile, in log."""
        nothing = _NOTHING_SHARE * level
        above, below = seen + nothing, raw.values[:, 0] + nothing
        return np.abs(np.log(np.divide(above, below, out=np.ones(len(self)), where=(above > 0) & (below > 0))))


_ARRAYS: Final = ("offset", "covered", "covered_raw", "spread", "level", "observations")


def _faded(mean: Floats, outcome: np.ndarray, share: Floats) -> Floats:
    """The mean moved towards each outcome; the first outcome replaces the unknown mean."""
    before = np.where(np.isfinite(mean), mean, outcome)
    return np.where(share[:, None] > 0, before + share[:, None] * (outcome - before), mean)
