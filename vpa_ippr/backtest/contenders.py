"""The policies that can be named, each with the actuator rules that belong to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Final

from vpa_ippr.api.errors import UsageError
from vpa_ippr.api.series import Resource
from vpa_ippr.backtest.actuator import MIB, ActuatorRules, Guard, RelativeRule, UpdaterRule
from vpa_ippr.backtest.ensemble import DECISION_SECONDS, EnsemblePolicy, Outlooks, fits_steps
from vpa_ippr.backtest.grid import DAY_SECONDS, Fleet
from vpa_ippr.backtest.replay import Contender
from vpa_ippr.backtest.vpa import VpaPolicy
from vpa_ippr.backtest.windows import AutopilotWindow, Krr, RecentPeak, Static
from vpa_ippr.forecast.boosting import GRADIENT_BOOSTING
from vpa_ippr.forecast.catalogue import Profile, load_catalogue
from vpa_ippr.forecast.ensemble import EnsembleDecider, needed_forecasters
from vpa_ippr.forecast.forecasters import build_forecasters, load_profile_model
from vpa_ippr.forecast.grid import HOUR_SECONDS
from vpa_ippr.forecast.quantiles import GridForecaster


@dataclass(frozen=True, slots=True)
class Scene:
    """What a contender is made for: one replay of a fleet, with its own floor or the common one; ``outlooks`` are shared by all.

    ``forecasters`` stand in, by name, for those that a profile would be given: no model file is read for one that is here.
    """

    fleet: Fleet
    own_floors: bool
    outlooks: Outlooks = field(default_factory=Outlooks)
    forecasters: Mapping[str, GridForecaster] = field(default_factory=dict)


Maker = Callable[[Scene], Contender]

# Under a common floor only the decisions differ; it is the first bucket of upstream's CPU histogram, and a memory that hardly any
# container is below.
COMMON_FLOOR: Final[Mapping[Resource, float]] = {Resource.CPU: 0.01, Resource.MEMORY: 10 * MIB}
# KRR's defaults: ``--cpu-min 10`` (millicores), ``--mem-min 100`` (MB).
_KRR_FLOOR: Final[Mapping[Resource, float]] = {Resource.CPU: 0.01, Resource.MEMORY: 100e6}
_KRR_MEMORY_FACTOR: Final = 1.15
_SECONDS_PER_MINUTE: Final = 60.0
ENSEMBLES: Final = ("balanced", "cost", "safe")
# Waiting to raise memory saves little and kills; CPU may move both ways by a tenth before it is worth a resize.
_DUE: Final[Mapping[Resource, RelativeRule]] = {Resource.CPU: RelativeRule(), Resource.MEMORY: RelativeRule(raise_above=0.02)}


def check_names(names: Sequence[str]) -> None:
    """UsageError, with the names that there are, unless every one of these is a policy."""
    for name in names:
        if name not in POLICIES:
            raise UsageError(f"no policy is named {name!r}: choose from {', '.join(POLICIES)}", reason="UnknownPolicy")


def contenders(names: Sequence[str], fleet: Fleet, *, own_floors: bool) -> list[Contender]:
    """The named policies, ready for one replay of this fleet; raises UsageError as ``check_names``."""
    check_names(names)
    scene = Scene(fleet, own_floors)
    return [POLICIES[name](scene) for name in names]


@cache
def _profiles() -> Mapping[str, Profile]:
    """The program's own: every contender of every fleet is made from the same ones."""
    return load_catalogue()


def _static(scene: Scene) -> Contender:
    # Whatever is set counts, however little: nothing here was decided. Nobody raises it after a kill either.
    return Contender(Static.of(scene.fleet), ActuatorRules(bump=None))


def _vpa(name: str, rule: UpdaterRule) -> Maker:
    def make(scene: Scene) -> Contender:
        fleet = scene.fleet
        profile = _profiles()["vpa-classic"]
        minimum = profile.resource(fleet.resource).pod_minimum * (0.001 if fleet.resource is Resource.CPU else 1.0)
        policy = VpaPolicy(name, profile, fleet.resource, len(fleet), max(1.0, fleet.step_seconds / _SECONDS_PER_MINUTE))
        floor = minimum if scene.own_floors else COMMON_FLOOR[fleet.resource]
        # Recommender and updater run every minute: here, every slot. What an OOM kill adds is the policy's own affair.
        return Contender(policy, ActuatorRules(interval_seconds=fleet.step_seconds, due=rule, bump=None, floor=floor))

    return make


def _krr(name: str, cpu_percentile: float) -> Maker:
    def make(scene: Scene) -> Contender:
        is_cpu = scene.fleet.resource is Resource.CPU
        policy = Krr(name, cpu_percentile) if is_cpu else Krr(name, 1.0, _KRR_MEMORY_FACTOR)
        floor = (_KRR_FLOOR if scene.own_floors else COMMON_FLOOR)[scene.fleet.resource]
        # A tool that a person or a job runs: once a day.
        return Contender(policy, ActuatorRules(interval_seconds=DAY_SECONDS, floor=floor))

    return make


def _autopilot(scene: Scene) -> Contender:
    resource = scene.fleet.resource
    return Contender(AutopilotWindow(resource, len(scene.fleet)), ActuatorRules(due=_DUE[resource], floor=COMMON_FLOOR[resource]))


def _max_guard(scene: Scene) -> Contender:
    resource = scene.fleet.resource
    return Contender(RecentPeak(), ActuatorRules(due=_DUE[resource], guard=Guard(), floor=COMMON_FLOOR[resource]))


def _ensemble(name: str) -> Maker:
    def make(scene: Scene) -> Contender:
        fleet = scene.fleet
        if not fits_steps(fleet.step_seconds):
            raise UsageError(f"policy {name} counts in steps of five minutes: give a --grid that divides them, or leave {name} out")
        return ensemble_contender(_profiles()[name], scene)

    return make


def ensemble_contender(profile: Profile, scene: Scene) -> Contender:
    """A profile with an ensemble, as a contender of its name; its hysteresis and guard are the actuator's."""
    ensemble, fleet = profile.ensemble, scene.fleet
    if ensemble is None:
        raise UsageError(f"profile {profile.name} has no ensemble")
    rules = ensemble.resource(fleet.resource)
    forecasters = _forecasters(profile, scene, needed_forecasters([rules]))
    decider = EnsembleDecider(rules, ensemble.young_hours)
    policy = EnsemblePolicy(profile.name, decider, forecasters, len(fleet), ensemble.history_days, scene.outlooks)
    minimum = profile.resource(fleet.resource).pod_minimum * (0.001 if fleet.resource is Resource.CPU else 1.0)
    return Contender(
        policy,
        ActuatorRules(
            interval_seconds=DECISION_SECONDS,
            due=RelativeRule(
                rules.hysteresis.raise_above,
                rules.hysteresis.lower_below,
                lower_cooldown_seconds=rules.hysteresis.lower_after_hours * HOUR_SECONDS,
            ),
            guard=None if rules.guard is None else Guard(rules.guard.share, rules.guard.factor, rules.guard.growth),
            floor=minimum if scene.own_floors else COMMON_FLOOR[fleet.resource],
        ),
    )


def _forecasters(profile: Profile, scene: Scene, names: Sequence[str]) -> dict[str, GridForecaster]:
    given = {name: scene.forecasters[name] for name in names if name in scene.forecasters}
    model = None if GRADIENT_BOOSTING in given else load_profile_model(None, profile)
    return build_forecasters(profile, scene.fleet.resource, model, [name for name in names if name not in given]) | given


POLICIES: Final[Mapping[str, Maker]] = {
    "static": _static,
    "vpa-classic": _vpa("vpa-classic", UpdaterRule()),
    "vpa-recreate": _vpa("vpa-recreate", UpdaterRule(recreates=True)),
    "krr-simple": _krr("krr-simple", 0.95),
    "krr-simple-limit": _krr("krr-simple-limit", 0.66),
    "autopilot-window": _autopilot,
    "max-guard": _max_guard,
    **{name: _ensemble(name) for name in ENSEMBLES},
}
