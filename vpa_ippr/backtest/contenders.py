"""The policies that can be named, each with the actuator rules that belong to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from vpa_ippr.api.errors import UsageError
from vpa_ippr.api.series import Resource
from vpa_ippr.backtest.actuator import MIB, ActuatorRules, Guard, RelativeRule, UpdaterRule
from vpa_ippr.backtest.grid import DAY_SECONDS, Fleet
from vpa_ippr.backtest.replay import Contender
from vpa_ippr.backtest.vpa import VpaPolicy
from vpa_ippr.backtest.windows import AutopilotWindow, Krr, RecentPeak, Static
from vpa_ippr.forecast.catalogue import load_catalogue

Maker = Callable[[Fleet, bool], Contender]
"""Makes a contender for one replay of a fleet; the flag says whether it keeps its own floor."""

# Under a common floor only the decisions differ; it is the first bucket of upstream's CPU histogram, and a memory that hardly any
# container is below.
COMMON_FLOOR: Final[Mapping[Resource, float]] = {Resource.CPU: 0.01, Resource.MEMORY: 10 * MIB}
# KRR's defaults: ``--cpu-min 10`` (millicores), ``--mem-min 100`` (MB).
_KRR_FLOOR: Final[Mapping[Resource, float]] = {Resource.CPU: 0.01, Resource.MEMORY: 100e6}
_KRR_MEMORY_FACTOR: Final = 1.15
_SECONDS_PER_MINUTE: Final = 60.0
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
    return [POLICIES[name](fleet, own_floors) for name in names]


def _static(fleet: Fleet, _own_floors: bool) -> Contender:
    # Whatever is set counts, however little: nothing here was decided. Nobody raises it after a kill either.
    return Contender(Static.of(fleet), ActuatorRules(bump=None))


def _vpa(name: str, rule: UpdaterRule) -> Maker:
    def make(fleet: Fleet, own_floors: bool) -> Contender:
        profile = load_catalogue()["vpa-classic"]
        minimum = profile.resource(fleet.resource).pod_minimum * (0.001 if fleet.resource is Resource.CPU else 1.0)
        policy = VpaPolicy(name, profile, fleet.resource, len(fleet), max(1.0, fleet.step_seconds / _SECONDS_PER_MINUTE))
        floor = minimum if own_floors else COMMON_FLOOR[fleet.resource]
        # Recommender and updater run every minute: here, every slot. What an OOM kill adds is the policy's own affair.
        return Contender(policy, ActuatorRules(interval_seconds=fleet.step_seconds, due=rule, bump=None, floor=floor))

    return make


def _krr(name: str, cpu_percentile: float) -> Maker:
    def make(fleet: Fleet, own_floors: bool) -> Contender:
        is_cpu = fleet.resource is Resource.CPU
        policy = Krr(name, cpu_percentile) if is_cpu else Krr(name, 1.0, _KRR_MEMORY_FACTOR)
        floor = (_KRR_FLOOR if own_floors else COMMON_FLOOR)[fleet.resource]
        # A tool that a person or a job runs: once a day.
        return Contender(policy, ActuatorRules(interval_seconds=DAY_SECONDS, floor=floor))

    return make


def _autopilot(fleet: Fleet, _own_floors: bool) -> Contender:
    return Contender(
        AutopilotWindow(fleet.resource, len(fleet)), ActuatorRules(due=_DUE[fleet.resource], floor=COMMON_FLOOR[fleet.resource])
    )


def _max_guard(fleet: Fleet, _own_floors: bool) -> Contender:
    rules = ActuatorRules(due=_DUE[fleet.resource], guard=Guard(), floor=COMMON_FLOOR[fleet.resource])
    return Contender(RecentPeak(), rules)


POLICIES: Final[Mapping[str, Maker]] = {
    "static": _static,
    "vpa-classic": _vpa("vpa-classic", UpdaterRule()),
    "vpa-recreate": _vpa("vpa-recreate", UpdaterRule(recreates=True)),
    "krr-simple": _krr("krr-simple", 0.95),
    "krr-simple-limit": _krr("krr-simple-limit", 0.66),
    "autopilot-window": _autopilot,
    "max-guard": _max_guard,
}
