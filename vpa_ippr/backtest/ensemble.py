"""The ensemble profiles as policies: the recommender's own hourly decision, asked once an hour of the replay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from vpa_ippr.api.series import Floats
from vpa_ippr.backtest.policy import Forecasted, HistoryView, Targets
from vpa_ippr.forecast.ensemble import TOLD_LEVEL, EnsembleDecider, EnsembleState
from vpa_ippr.forecast.ensemble_state import rounded
from vpa_ippr.forecast.grid import HOUR_SECONDS, STEP_SECONDS, UsageGrid
from vpa_ippr.forecast.quantiles import FittedQuantiles, GridForecaster
from vpa_ippr.usage.container import DAY_SECONDS

DECISION_SECONDS: Final = HOUR_SECONDS


class Outlooks:
    """What forecasters make of one fleet, hour by hour: the same for every policy that asks, as usage does not depend on the policy."""

    def __init__(self) -> None:
        self._known: dict[tuple[GridForecaster, int, int], FittedQuantiles] = {}

    def at(self, now: int, grid: UsageGrid, forecasters: Mapping[str, GridForecaster]) -> dict[str, FittedQuantiles]:
        """The fits of these forecasters at the beginning of slot ``now``, of which ``grid`` is as much history as the policy looks at."""
        return {name: self._of(forecaster, now, grid) for name, forecaster in forecasters.items()}

    def _of(self, forecaster: GridForecaster, now: int, grid: UsageGrid) -> FittedQuantiles:
        # Two profiles may mean other buckets or another model by the same name, or look back for longer.
        key = (forecaster, now, grid.steps)
        if key not in self._known:
            self._known[key] = forecaster.fit(grid)
        return self._known[key]


class EnsemblePolicy:
    """One profile's ensemble over a fleet; it serves one replay."""

    def __init__(
        self,
        name: str,
        decider: EnsembleDecider,
        forecasters: Mapping[str, GridForecaster],
        series: int,
        history_days: float,
        outlooks: Outlooks | None = None,
    ) -> None:
        self._name = name
        self._decider = decider
        self._forecasters = forecasters
        self._history_seconds = history_days * DAY_SECONDS
        self._outlooks = outlooks or Outlooks()
        self._state: EnsembleState = decider.start(series)

    @property
    def name(self) -> str:
        """The name of the profile."""
        return self._name

    def decide(self, view: HistoryView) -> Targets:
        """What the recommender would decide at this moment; nothing before the first hour is over."""
        recent = view.recent(self._history_seconds)
        if view.now * view.step_seconds < HOUR_SECONDS:
            return Targets.only(np.full(len(recent), np.nan))
        grid = UsageGrid(_in_steps(recent, view.step_seconds), view.now * view.step_seconds)
        fitted = self._outlooks.at(view.now, grid, self._forecasters)
        state, decision = self._decider.step(self._state, grid, fitted)
        self._state = rounded(state)
        horizon = self._decider.rules.experts[0].horizon
        told = Forecasted(decision.told, TOLD_LEVEL, horizon.hours * HOUR_SECONDS)
        return Targets(decision.target, decision.lower, decision.upper, told)


def fits_steps(step_seconds: float) -> bool:
    """Whether slots of that length can be made steps of five minutes, and whole hours of them."""
    return HOUR_SECONDS % step_seconds == 0 and (STEP_SECONDS % step_seconds == 0 or step_seconds % STEP_SECONDS == 0)


def _in_steps(values: Floats, step_seconds: float) -> Floats:
    """Slots as steps: of several in a step the largest, of a longer one every step the same; whole hours, the oldest are left out."""
    slots_an_hour = round(HOUR_SECONDS / step_seconds)
    whole = values[:, values.shape[1] % slots_an_hour :]
    if step_seconds > STEP_SECONDS:
        return np.repeat(whole, round(step_seconds / STEP_SECONDS), axis=1)
    return np.asarray(np.fmax.reduce(whole.reshape(len(values), -1, round(STEP_SECONDS / step_seconds)), axis=2))
