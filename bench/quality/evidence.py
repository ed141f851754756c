"""Everything that is measured of one resource: the policies, the forecasts, and the settings of a profile moved."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from bench.figures import MIB, memory_bytes
from bench.quality.models import RoutedBoosting
from bench.quality.variants import SHIPPED, variants
from vpa_ippr.api.series import Resource
from vpa_ippr.backtest.actuator import Conditions
from vpa_ippr.backtest.comparison import Comparison, Plan, compared
from vpa_ippr.backtest.contenders import POLICIES, Scene, ensemble_contender
from vpa_ippr.backtest.ensemble import Outlooks
from vpa_ippr.backtest.grid import DAY_SECONDS, STEP_SECONDS, Fleet
from vpa_ippr.backtest.policy import Forecasted
from vpa_ippr.backtest.replay import Contender, Replay, replay
from vpa_ippr.backtest.scores import SeriesScores, score, slots_to_score
from vpa_ippr.forecast.boosting import GRADIENT_BOOSTING
from vpa_ippr.forecast.catalogue import Profile
from vpa_ippr.forecast.ensemble import TOLD_LEVEL
from vpa_ippr.forecast.grid import HOUR_SECONDS, UsageGrid
from vpa_ippr.forecast.quantiles import GridForecaster, Horizon
from vpa_ippr.forecast.seasonal import TRAILING, TrailingForecaster

BASELINE: Final = "vpa-classic"
RIVALS: Final = (BASELINE, "vpa-recreate", "krr-simple", "autopilot-window", "max-guard")
# The profile whose forecasts are looked at and whose settings are moved.
MAIN_PROFILE: Final = "balanced"
WARMUP_DAYS: Final = 2.0
CALIBRATED: Final = "calibrated"


@dataclass(frozen=True, slots=True)
class Cost:
    """What it took: CPU seconds, and the most memory that the process held."""

    cpu_seconds: float
    peak_mib: float


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """What is to be measured of one resource.

    ``folds``: the fold of each series, whichever model judges it. ``moves_settings``: whether other settings of the main profile are tried.
    """

    fleet: Fleet
    folds: NDArray[np.int64]
    boosting: RoutedBoosting
    profiles: Mapping[str, Profile]
    seed: int
    moves_settings: bool


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """What was measured of one resource.

    ``forecasts``: scores of which pinball loss and coverage count, by what made the forecast (``CALIBRATED`` is what the main profile
    tells), all at the same moments; ``horizon`` is theirs. ``variants``: scores of the main profile with a setting moved. Both are empty
    without the main profile.
    """

    comparison: Comparison
    folds: NDArray[np.int64]
    horizon: Horizon | None
    forecasts: Mapping[str, SeriesScores]
    variants: Mapping[str, SeriesScores]
    cost: Cost

    @property
    def resource(self) -> Resource:
        """Of what."""
        return self.comparison.resource

    @property
    def scores(self) -> dict[str, SeriesScores]:
        """The scores of each policy."""
        return {outcome.policy: outcome.series for outcome in self.comparison.outcomes}


def gather(task: Task) -> Evidence:
    """Replay and score; this takes minutes."""
    began = time.process_time()
    study = _Study(task)
    replays = study.replays()
    plan = Plan(tuple(replays), BASELINE, WARMUP_DAYS * DAY_SECONDS, own_floors=False, conditions=study.conditions)
    comparison = compared(task.fleet, plan, list(replays.values()))
    scored = slots_to_score(task.fleet, list(replays.values()), plan.warmup_seconds)
    main = replays.get(MAIN_PROFILE)
    horizon = None if main is None else _horizon(main)
    forecasts = {} if main is None or horizon is None else study.forecasts(main, horizon)
    of_variants = () if main is None or not task.moves_settings else study.variants(main)
    return Evidence(
        comparison=comparison,
        folds=task.folds,
        horizon=horizon,
        forecasts={name: score(task.fleet, one, scored) for name, one in forecasts.items()},
        variants={name: score(task.fleet, one, scored) for name, one in of_variants},
        cost=Cost(time.process_time() - began, memory_bytes("VmHWM") / MIB),
    )


class _Study:
    """Replays of one fleet that share what forecasters make of it."""

    def __init__(self, task: Task) -> None:
        self.conditions = Conditions(seed=task.seed)
        self._task = task
        self._outlooks = Outlooks()

    def replays(self) -> dict[str, Replay]:
        """The rivals, and the profiles that were asked for."""
        bare = Scene(self._task.fleet, own_floors=False)
        rivals = {name: self._replayed(name, POLICIES[name](bare)) for name in RIVALS}
        return rivals | {name: self._of_profile(name, profile) for name, profile in self._task.profiles.items()}

    def variants(self, shipped: Replay) -> Iterator[tuple[str, Replay]]:
        """The main profile with one setting at a time moved; one replay at a time, as each takes tens of megabytes."""
        for name, profile in variants(self._task.profiles[MAIN_PROFILE], self._task.fleet.resource).items():
            yield name, shipped if name == SHIPPED else self._of_profile(name, profile)

    def forecasts(self, main: Replay, horizon: Horizon) -> dict[str, Replay]:
        """What the main profile told, what the model alone would have said, and the quantile of the last week: at the same moments."""
        profile = self._task.profiles[MAIN_PROFILE]
        assert profile.ensemble is not None
        steps = round(profile.ensemble.history_days * DAY_SECONDS / STEP_SECONDS)
        forecasters: dict[str, GridForecaster] = {GRADIENT_BOOSTING: self._task.boosting, TRAILING: TrailingForecaster()}
        said: dict[str, dict[int, Forecasted]] = {name: {} for name in forecasters}
        for now, told in main.forecasts.items():
            grid = UsageGrid(self._task.fleet.usage[:, max(0, now - steps) : now], now * STEP_SECONDS)
            for name, fitted in self._outlooks.at(now, grid, forecasters).items():
                values = fitted.predict(horizon, (TOLD_LEVEL,)).values[:, 0]
                # Where the profile said nothing, the others are not asked.
                said[name][now] = Forecasted(np.where(np.isfinite(told.values), values, np.nan), TOLD_LEVEL, told.horizon_seconds)
        return {CALIBRATED: main} | {name: _saying(main, name, forecasts) for name, forecasts in said.items()}

    def _of_profile(self, name: str, profile: Profile) -> Replay:
        scene = Scene(self._task.fleet, False, self._outlooks, {GRADIENT_BOOSTING: self._task.boosting})
        return self._replayed(name, ensemble_contender(profile, scene))

    def _replayed(self, name: str, contender: Contender) -> Replay:
        began = time.process_time()
        done = replay(self._task.fleet, contender, self.conditions)
        tell(f"{self._task.fleet.resource}: {name} replayed, {time.process_time() - began:.0f} s")
        return done


def tell(line: str) -> None:
    """Say how far it is to a person who waits."""
    if sys.stderr.isatty():
        print(line, file=sys.stderr, flush=True)


def _horizon(main: Replay) -> Horizon | None:
    """Of the first forecast; a profile that forecasts at all always forecasts the same horizon."""
    first = next(iter(main.forecasts.values()), None)
    return None if first is None else next(one for one in Horizon if one.hours * HOUR_SECONDS == first.horizon_seconds)


def _saying(main: Replay, name: str, forecasts: Mapping[int, Forecasted]) -> Replay:
    return Replay(name, main.allocation, main.resized, main.refused, forecasts)
