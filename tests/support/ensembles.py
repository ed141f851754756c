"""A small ensemble profile without a trained model, for tests of what is made of it."""

from __future__ import annotations

import msgspec

from vpa_ippr.api.series import Resource
from vpa_ippr.forecast.catalogue import Profile, load_catalogue
from vpa_ippr.forecast.ensemble import needed_forecasters
from vpa_ippr.forecast.forecasters import build_forecasters
from vpa_ippr.forecast.quantiles import GridForecaster, Horizon
from vpa_ippr.forecast.rules import Ensemble, Expert, GuardRules, Hysteresis, Peak, ResourceEnsemble
from vpa_ippr.forecast.selection import SelectionRules

CPU_RULES = ResourceEnsemble(
    experts=(
        Expert("trailing-quantile", 0.9, 1.1),
        Expert("hour-of-day", 0.8, 1.1),
        Expert("decaying-histogram", 0.95, 1.15),
        Expert("trailing-quantile", 0.7, 1.05, Horizon.DAY),
    ),
    hysteresis=Hysteresis(0.1, 0.15),
    runs=Expert("trailing-quantile", 0.9, 1.1),
    selection=SelectionRules(),
)
MEMORY_RULES = ResourceEnsemble(
    experts=(Expert("peaks-trend", 0.95, 1.05), Expert("trailing-quantile", 0.95, 1.1, Horizon.DAY)),
    hysteresis=Hysteresis(0.05, 0.15),
    runs=Expert("trailing-quantile", 0.98, 1.1),
    peaks=(Peak(72, 1.05),),
    guard=GuardRules(0.95, 1.1),
)


def an_ensemble_profile(name: str = "test-ensemble", **changes: object) -> Profile:
    """``changes`` are keys of the ensemble."""
    ensemble = msgspec.structs.replace(Ensemble(CPU_RULES, MEMORY_RULES, history_days=4, replay_hours=6, young_hours=24), **changes)
    return msgspec.structs.replace(load_catalogue()["vpa-classic"], name=name, forecaster="ensemble", ensemble=ensemble)


def forecasters_of(resource: Resource) -> dict[str, GridForecaster]:
    """The forecasters of the test profile."""
    profile = an_ensemble_profile()
    assert profile.ensemble is not None
    return build_forecasters(profile, resource, None, needed_forecasters([profile.ensemble.resource(resource)]))
