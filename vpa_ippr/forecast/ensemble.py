"""The hourly decision of an ensemble of forecasters, for many containers at once.

At every whole hour each forecaster looks at the history so far; its quantiles are calibrated by how often they were passed before; an
expert turns one of them into an amount. For CPU the expert is followed that was cheapest for the container until then, for memory the
largest answer counts. What was said is kept until it can be compared with what came, so the state after an hour is a function of the state
before it and of the history, and of nothing else: a restart, a replay and a backtest give the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from vpa_ippr.api.series import Floats
from vpa_ippr.forecast.conformal import Calibration
from vpa_ippr.forecast.grid import HOURS_PER_DAY, STEPS_PER_HOUR, UsageGrid, maxima
from vpa_ippr.forecast.quantiles import FittedQuantiles, Forecast, GridForecaster, Horizon
from vpa_ippr.forecast.rules import Expert, ResourceEnsemble, SeasonPeak
from vpa_ippr.forecast.seasonal import TrailingForecaster
from vpa_ippr.forecast.selection import NOBODY, Selection

# The level whose coverage is told with every recommendation, whatever level decided.
TOLD_LEVEL: Final = 0.9
BY_PEAK: Final = "trailing-peak"
BY_SEASON: Final = "season-peak"
BY_RUNS: Final = "runs"
_RUNS: Final = TrailingForecaster()

Group = tuple[str, Horizon]
"""A forecaster and a horizon: what is calibrated together."""


@dataclass(frozen=True, slots=True, eq=False)
class Issue:
    """What was said of a group at one moment, as forecast and as calibrated; (series, levels) each."""

    raw: Floats
    issued: Floats


@dataclass(frozen=True, slots=True, eq=False)
class EnsembleState:
    """What is remembered from hour to hour of n series.

    ``pending`` holds the issues that cannot be judged yet, oldest first; ``named`` (series, experts) what each expert wanted last.
    """

    calibrations: Mapping[Group, Calibration]
    pending: Mapping[Group, tuple[Issue, ...]]
    selection: Selection | None
    named: Floats

    def __len__(self) -> int:
        return len(self.named)


@dataclass(frozen=True, slots=True, eq=False)
class EnsembleDecision:
    """All (series,), in the unit of the history, NaN where nothing is known.

    ``target``; ``lower`` and ``upper``: outside them a container should be resized. ``chosen``: index of the expert in charge, and what
    else decided by name in ``by`` (the expert's forecaster, ``trailing-peak``, ``season-peak`` or ``runs``). ``quantile``: the level that
    was asked for. ``told``: the calibrated quantile of ``TOLD_LEVEL`` over the horizon of the first expert; ``coverage``: how often
    outcomes stayed below it until now. ``known_hours``: hours of history with a sample.
    """

    target: Floats
    lower: Floats
    upper: Floats
    chosen: NDArray[np.int64]
    by: tuple[str, ...]
    quantile: Floats
    told: Floats
    coverage: Floats
    known_hours: Floats


@dataclass(frozen=True, slots=True)
class EnsembleDecider:
    """The rules of one resource, made ready; it holds no state."""

    rules: ResourceEnsemble
    young_hours: int

    @property
    def groups(self) -> dict[Group, tuple[float, ...]]:
        """The levels that are calibrated for each group, lowest first; the first expert's group comes first."""
        found: dict[Group, set[float]] = {_group(self.rules.experts[0]): {TOLD_LEVEL}}
        for expert in self.rules.experts:
            if expert.calibrated:
                found.setdefault(_group(expert), set()).add(expert.quantile)
        return {group: tuple(sorted(levels)) for group, levels in found.items()}

    @property
    def read_levels(self) -> dict[Group, set[float]]:
        """The levels that are read of each group, calibrated or not."""
        found = {group: set(levels) for group, levels in self.groups.items()}
        for expert in self.rules.experts:
            found.setdefault(_group(expert), set()).add(expert.quantile)
        return found

    def start(self, count: int) -> EnsembleState:
        """Before the first hour."""
        experts = len(self.rules.experts)
        selection = None if self.rules.selection is None else Selection.start(count, [0.0] * experts, self.rules.selection)
        return EnsembleState(
            calibrations={group: Calibration.start(count, group[1], levels) for group, levels in self.groups.items()},
            pending=dict.fromkeys(self.groups, ()),
            selection=selection,
            named=np.full((count, experts), np.nan),
        )

    def step(self, state: EnsembleState, grid: UsageGrid, fitted: Mapping[str, FittedQuantiles]) -> tuple[EnsembleState, EnsembleDecision]:
        """Learn what the last hour showed, and decide for the coming one; ``fitted`` is what each forecaster makes of ``grid``."""
        state = _judged(state, grid)
        issued: dict[Group, Forecast] = {}
        pending: dict[Group, tuple[Issue, ...]] = {}
        for group, levels in self.groups.items():
            raw = fitted[group[0]].predict(group[1], levels)
            issued[group] = state.calibrations[group].apply(raw)
            waiting = (*state.pending[group], Issue(raw.values, issued[group].values))
            pending[group] = waiting[-group[1].hours :]
        named = np.stack([_amount(expert, fitted, issued) for expert in self.rules.experts], axis=1)
        ceilings = self._ceilings(grid)[:, None]
        named = np.where(named > ceilings, ceilings, named)
        selection = state.selection
        if selection is None:
            chosen, target = _largest(named)
        else:
            selection, decision = selection.decide(named)
            chosen, target = decision.expert, decision.allocation
        next_state = replace(state, pending=pending, selection=selection, named=named)
        return next_state, self._decision(next_state, grid, fitted, issued, chosen, target)

    def _decision(
        self,
        state: EnsembleState,
        grid: UsageGrid,
        fitted: Mapping[str, FittedQuantiles],
        issued: Mapping[Group, Forecast],
        chosen: NDArray[np.int64],
        target: Floats,
    ) -> EnsembleDecision:
        experts = self.rules.experts
        first = _group(experts[0])
        level = self.groups[first].index(TOLD_LEVEL)
        names = np.array([*(expert.forecaster for expert in experts), "nobody"], dtype=object)[chosen]
        quantile = np.array([*(expert.quantile for expert in experts), np.nan])[chosen]
        target, names, quantile = self._by_runs(grid, target, names, quantile)
        target, names, quantile = self._at_least_peaks(grid, target, names, quantile)
        known_hours = grid.is_known().sum(axis=1).astype(np.float64)
        lower, upper = self._bounds(target, known_hours, fitted[first[0]])
        return EnsembleDecision(
            target=target,
            lower=lower,
            upper=upper,
            chosen=chosen,
            by=tuple(names.tolist()),
            quantile=quantile,
            told=issued[first].values[:, level],
            coverage=state.calibrations[first].covered[:, level],
            known_hours=known_hours,
        )

    def _ceilings(self, grid: UsageGrid) -> Floats:
        """The most that an expert may ask for: in the middle of a rare burst some go on as if it would grow for ever."""
        if self.rules.ceiling is None:
            return np.full(len(grid), np.inf)
        is_young = grid.is_known().sum(axis=1) < self.young_hours
        return np.where(is_young, np.inf, maxima(grid.values) * self.rules.ceiling)

    def _by_runs(
        self, grid: UsageGrid, target: Floats, names: NDArray[np.object_], quantile: Floats
    ) -> tuple[Floats, NDArray[np.object_], Floats]:
        """What runs now and then is sized by its runs: most of its hours say nothing, and one without a run is not a use of nothing."""
        sparse = _density(grid) < self.rules.min_density
        if not sparse.any():
            return target, names, quantile
        runs, rows = self.rules.runs, UsageGrid(grid.values[sparse], grid.end)
        needed = np.full(len(grid), np.nan)
        needed[sparse] = _RUNS.fit(rows).predict(runs.horizon, (runs.quantile,)).values[:, 0] * runs.factor
        changed = np.isfinite(needed)
        return np.where(changed, needed, target), np.where(changed, BY_RUNS, names), np.where(changed, runs.quantile, quantile)

    def _at_least_peaks(
        self, grid: UsageGrid, target: Floats, names: NDArray[np.object_], quantile: Floats
    ) -> tuple[Floats, NDArray[np.object_], Floats]:
        floors = [(BY_PEAK, maxima(grid.hourly_maxima(peak.hours)) * peak.factor) for peak in self.rules.peaks]
        floors += [(BY_SEASON, season_peaks(grid, season) * season.factor) for season in self.rules.seasons]
        for name, floor in floors:
            above = np.isfinite(floor) & ~(target >= floor)
            target, names, quantile = np.where(above, floor, target), np.where(above, name, names), np.where(above, 1.0, quantile)
        return target, names, quantile

    def _bounds(self, target: Floats, known_hours: Floats, fitted: FittedQuantiles) -> tuple[Floats, Floats]:
        """The hysteresis; of a young series widened to what the forecast thinks possible, in proportion to what is missing."""
        band = self.rules.hysteresis
        lower, upper = target / (1 + band.raise_above), target / (1 - band.lower_below)
        if self.young_hours == 0:
            return lower, upper
        young = np.clip(1 - known_hours / self.young_hours, 0.0, 1.0)
        least, most = fitted.hour[:, 0], fitted.day[:, -1]
        lowest = np.fmin(lower, least)
        highest = np.fmax(upper, most)
        return lower + young * (lowest - lower), upper + young * (highest - upper)


def season_peaks(grid: UsageGrid, season: SeasonPeak) -> Floats:
    """The largest use around the coming hours on the named days before; NaN where nothing was measured then."""
    found = np.full(len(grid), np.nan)
    for days in season.days:
        begin = grid.steps - (days * HOURS_PER_DAY + season.before_hours) * STEPS_PER_HOUR
        end = grid.steps - (days * HOURS_PER_DAY - season.ahead_hours) * STEPS_PER_HOUR
        if end > 0:
            found = np.fmax(found, maxima(grid.values[:, max(begin, 0) : end]))
    return found


def _judged(state: EnsembleState, grid: UsageGrid) -> EnsembleState:
    """With the outcomes that have become known: of the last hour, and of the day that began 24 hours ago."""
    calibrations, pending = dict(state.calibrations), dict(state.pending)
    for group, waiting in state.pending.items():
        horizon = group[1]
        if len(waiting) < horizon.hours:
            continue
        calibration, oldest = calibrations[group], waiting[0]
        seen = _outcome(grid, horizon)
        raw = Forecast(horizon, calibration.levels, oldest.raw, ())
        issued = Forecast(horizon, calibration.levels, oldest.issued, ())
        calibrations[group] = calibration.update(raw, issued, seen)
        pending[group] = waiting[1:]
    selection = state.selection
    if selection is not None:
        selection = selection.update(state.named, grid.values[:, -STEPS_PER_HOUR:], 1.0)
    return replace(state, calibrations=calibrations, pending=pending, selection=selection)


def _outcome(grid: UsageGrid, horizon: Horizon) -> Floats:
    """The largest use of the last hour or day; NaN where less than half of what is usually measured in one was.

    What is read every half hour has two steps in each of its hours, and no more can be asked of it.
    """
    usual = np.isfinite(grid.values).sum(axis=1) / np.maximum(grid.is_known().sum(axis=1), 1) * horizon.hours
    after = grid.values[:, -horizon.steps :]
    return np.where(np.isfinite(after).sum(axis=1) * 2 >= np.maximum(usual, 1.0), maxima(after), np.nan)


def _group(expert: Expert) -> Group:
    return expert.forecaster, expert.horizon


def _amount(expert: Expert, fitted: Mapping[str, FittedQuantiles], issued: Mapping[Group, Forecast]) -> Floats:
    if not expert.calibrated:
        return fitted[expert.forecaster].predict(expert.horizon, (expert.quantile,)).values[:, 0] * expert.factor
    forecast = issued[_group(expert)]
    return forecast.values[:, forecast.quantiles.index(expert.quantile)] * expert.factor


def _largest(named: Floats) -> tuple[NDArray[np.int64], Floats]:
    answers = np.where(np.isfinite(named), named, -np.inf)
    chosen = np.where(np.isfinite(named).any(axis=1), answers.argmax(axis=1), NOBODY)
    return chosen, np.where(chosen == NOBODY, np.nan, answers.max(axis=1))


def _density(grid: UsageGrid) -> Floats:
    """Share of the hours since the first sample that have one; 1 within the first day, when nothing can be said of it."""
    there = grid.is_known()
    since_first = np.where(there.any(axis=1), there.shape[1] - there.argmax(axis=1), 0)
    return np.where(since_first >= HOURS_PER_DAY, there.sum(axis=1) / np.maximum(since_first, 1), 1.0)


def needed_forecasters(rules: Sequence[ResourceEnsemble]) -> tuple[str, ...]:
    """Names of the forecasters that the experts ask, each once."""
    return tuple(dict.fromkeys(expert.forecaster for part in rules for expert in part.experts))


def look(grid: UsageGrid, forecasters: Mapping[str, GridForecaster]) -> dict[str, FittedQuantiles]:
    """What each forecaster makes of the history."""
    return {name: forecaster.fit(grid) for name, forecaster in forecasters.items()}
