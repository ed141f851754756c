"""What keeps a target from falling below what pods have now: shrinks that failed, evidence of shortage, and resizes of late."""

from __future__ import annotations

from typing import Final

from vpa_ippr.api.resources import Resource
from vpa_ippr.forecast.grid import HOUR_SECONDS
from vpa_ippr.forecast.rules import Ensemble
from vpa_ippr.recommend.live import LiveSigns
from vpa_ippr.recommend.needs import CPU_CENSORED, MEMORY_TIGHT, RECENT_RESIZE, SHRINK_FLOOR
from vpa_ippr.recommend.result import Raise
from vpa_ippr.usage.steps import ContainerSteps

_SHORTAGE: Final = {Resource.CPU: CPU_CENSORED, Resource.MEMORY: MEMORY_TIGHT}


def held_by_pods(
    steps: ContainerSteps, container: str, signs: LiveSigns, ensemble: Ensemble, now: float
) -> dict[Resource, tuple[Raise, ...]]:
    """The floors of each resource of a container of a workload whose pods tell these ``signs``.

    Each is the request of those pods that give rise to it: others may be raised or lowered to that.
    """
    held = {}
    for resource in Resource:
        pause_seconds = ensemble.resource(resource).hysteresis.lower_after_hours * HOUR_SECONDS
        resized = signs.resized(container, resource, now - pause_seconds) if pause_seconds else ()
        floors = {
            SHRINK_FLOOR: signs.shrink_floors.get(container) if resource is Resource.MEMORY else None,
            _SHORTAGE[resource]: signs.request(container, resource, steps.short_of(resource)),
            RECENT_RESIZE: signs.request(container, resource, resized),
        }
        held[resource] = tuple(Raise(by, amount) for by, amount in floors.items() if amount is not None)
    return held
