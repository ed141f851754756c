"""What forecasting costs for 1,000 containers, on one thread: a cycle of the ensemble, a retrain of its model, a backtest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits

from bench.figures import Figure, Run, best_of
from bench.objects import DAY_SECONDS, NOW
from vpa_ippr.api.series import Floats, Resource
from vpa_ippr.backtest.actuator import Conditions
from vpa_ippr.backtest.contenders import contenders
from vpa_ippr.backtest.grid import Fleet
from vpa_ippr.backtest.replay import Contender, replay
from vpa_ippr.forecast.catalogue import Profile, default_directory, load_catalogue
from vpa_ippr.forecast.ensemble import EnsembleDecider, EnsembleState, look, needed_forecasters
from vpa_ippr.forecast.forecasters import ProfileModel, build_forecasters, load_profile_model
from vpa_ippr.forecast.grid import HOUR_SECONDS, STEP_SECONDS, STEPS_PER_HOUR, UsageGrid
from vpa_ippr.forecast.quantiles import GridForecaster
from vpa_ippr.forecast.training import DEFAULT_TRAINING, train

_CONTAINERS = 1_000
_PROFILE = "balanced"
_BACKTEST_DAYS = 7
_TRAINING_DAYS = 28
_STEPS_PER_DAY = round(DAY_SECONDS / STEP_SECONDS)
# Some outcomes have been learned by then, so that a cycle has all of its work to do.
_HOURS_BEFORE = 3
_GAPS = 0.01


@dataclass(frozen=True)
class _Side:
    """One resource's forecasters, rules and history, with the state that is there when the hour is over."""

    forecasters: Mapping[str, GridForecaster]
    decider: EnsembleDecider
    history: Floats
    state: EnsembleState

    @classmethod
    def ready(cls, profile: Profile, resource: Resource, model: ProfileModel | None) -> _Side:
        assert profile.ensemble is not None
        rules = profile.ensemble.resource(resource)
        steps = profile.ensemble.history_days * _STEPS_PER_DAY
        forecasters = build_forecasters(profile, resource, model, needed_forecasters([rules]))
        decider = EnsembleDecider(rules, profile.ensemble.young_hours)
        usage = _usage(resource, steps + _HOURS_BEFORE * STEPS_PER_HOUR)
        side = cls(forecasters, decider, usage[:, :steps], decider.start(_CONTAINERS))
        for hour in range(_HOURS_BEFORE):
            side = cls(forecasters, decider, usage[:, hour * STEPS_PER_HOUR :][:, :steps], side.look_and_decide(NOW + hour * HOUR_SECONDS))
        return cls(forecasters, decider, usage[:, -steps:].copy(), side.state)

    def look_and_decide(self, now: float) -> EnsembleState:
        grid = UsageGrid(self.history, now)
        state, decision = self.decider.step(self.state, grid, look(grid, self.forecasters))
        assert np.isfinite(decision.target).all()
        return state


def measure() -> list[Figure]:
    profile = load_catalogue()[_PROFILE]
    with threadpool_limits(limits=1):
        return [_model(profile), _cycle(profile), _retrain(), *(_backtest(resource) for resource in Resource)]


def _model(profile: Profile) -> Figure:
    assert profile.ensemble is not None
    assert profile.ensemble.model is not None
    size = (default_directory() / profile.ensemble.model).stat().st_size
    # What was read once is not read again in a process.
    run = best_of(1, lambda: None, lambda _: load_profile_model(None, profile))
    return Figure(name="forecast.model", size=f"read and check, {size / 1e6:.1f} MB", run=run, units=1, unit="model")


def _cycle(profile: Profile) -> Figure:
    model = load_profile_model(None, profile)
    sides = [_Side.ready(profile, resource, model) for resource in Resource]
    now = NOW + _HOURS_BEFORE * HOUR_SECONDS
    run = best_of(5, lambda: None, lambda _: [side.look_and_decide(now) for side in sides])
    assert profile.ensemble is not None
    history = f"{profile.ensemble.history_days} d x 5 min"
    return _figure("cycle", f"CPU and memory, {history}, {_PROFILE}", run, "0.5 s")


def _retrain() -> Figure:
    grid = UsageGrid(_usage(Resource.CPU, _TRAINING_DAYS * _STEPS_PER_DAY), NOW)
    run = best_of(1, lambda: grid, lambda history: train([history]))
    return _figure("retrain", f"{_TRAINING_DAYS} d x 5 min, {DEFAULT_TRAINING.rows:,} rows", run, "60 s")


def _backtest(resource: Resource) -> Figure:
    fleet = Fleet(
        resource=resource,
        step_seconds=STEP_SECONDS,
        names=tuple(f"made/Deployment/c{number}/app" for number in range(_CONTAINERS)),
        sources=("made",) * _CONTAINERS,
        starts=np.full(_CONTAINERS, NOW),
        usage=_usage(resource, _BACKTEST_DAYS * _STEPS_PER_DAY),
        current=np.full(_CONTAINERS, np.nan),
    )

    def ready() -> Contender:
        (contender,) = contenders([_PROFILE], fleet, own_floors=False)
        return contender

    run = best_of(1, ready, lambda contender: replay(fleet, contender, Conditions()))
    return _figure(f"backtest.{resource.value}", f"{_BACKTEST_DAYS} d x 5 min, {_PROFILE}", run)


def _figure(name: str, size: str, run: Run, target: str = "") -> Figure:
    return Figure(
        name=f"forecast.{name}", size=f"{_CONTAINERS:,} containers, {size}", run=run, units=_CONTAINERS, unit="container", target=target
    )


def _usage(resource: Resource, steps: int) -> Floats:
    """Every series of its own: a daily rhythm with noise for CPU, a level that wanders for memory; some steps are missing."""
    chance = np.random.default_rng(5)
    shape = (_CONTAINERS, steps)
    if resource is Resource.CPU:
        rhythm = np.sin(np.arange(steps) * (2 * np.pi / _STEPS_PER_DAY) + chance.uniform(0, 2 * np.pi, (_CONTAINERS, 1)))
        values = chance.lognormal(-2, 1, (_CONTAINERS, 1)) * (1.2 + rhythm) * chance.gamma(4.0, 0.25, shape)
    else:
        level = np.exp(chance.normal(0, 0.003, shape).cumsum(axis=1))
        values = chance.lognormal(20, 1, (_CONTAINERS, 1)) * level * chance.uniform(0.95, 1.05, shape)
    values[chance.random(shape) < _GAPS] = np.nan
    return values
