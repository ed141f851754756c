"""From an ensemble's decision to whole millicores and bytes: what lifts it, the minimum, and why it is what it is.

Order: decision -> prior and floors -> minimum -> rounding up; bounds follow a target that is lifted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from vpa_ippr.api.series import Finding, Resource
from vpa_ippr.forecast.catalogue import ResourceProfile
from vpa_ippr.recommend.cohorts import Decision
from vpa_ippr.recommend.estimate import Level, to_amount
from vpa_ippr.recommend.result import Choice, Driver, Raise
from vpa_ippr.recommend.rounding import round_up
from vpa_ippr.usage.container import MILLI
from vpa_ippr.usage.steps import STEP_SECONDS, ContainerSteps

PRIOR: Final = "prior"
OOM_FLOOR: Final = "oom-floor"
SHRINK_FLOOR: Final = "shrink-floor"
GUARD: Final = "guard"


@dataclass(frozen=True, slots=True)
class Outlook:
    """What an ensemble profile knows of a container: its decisions, what its memory must not fall below, and what was noticed."""

    cpu: Decision | None = None
    memory: Decision | None = None
    floors: tuple[Raise, ...] = ()
    findings: tuple[Finding, ...] = ()

    def decision(self, resource: Resource) -> Decision | None:
        """The one for that resource."""
        return self.cpu if resource is Resource.CPU else self.memory

    def floors_of(self, resource: Resource) -> tuple[Raise, ...]:
        """The ones for that resource; only memory has any."""
        return self.floors if resource is Resource.MEMORY else ()


NO_OUTLOOK: Final = Outlook()


def amounts_of(decision: Decision, resource: Resource) -> Level:
    """The decision in millicores or bytes."""
    return Level(*(to_amount(value * _scale(resource)) for value in (decision.lower, decision.target, decision.upper)))


def settle(base: Level, raises: Iterable[Raise], part: ResourceProfile, minimum: int) -> tuple[Level, tuple[Raise, ...]]:
    """Bounds and target of one resource, and what of ``raises`` lifted the target."""
    found = tuple(raises)
    target = max([base.target, *(one.amount for one in found)])
    # A prior is a guess: what has less than that is not too small for certain.
    lower = max([base.lower_bound, *(one.amount for one in found if one.by != PRIOR)])

    def finished(amount: int) -> int:
        return round_up(max(minimum, amount), part.round_up_to)

    level = Level(finished(min(lower, target)), finished(target), finished(max(base.upper_bound, target)))
    return level, tuple(one for one in found if one.amount > base.target)


def driver_of(fallback: Driver, decision: Decision | None, raised_by: tuple[Raise, ...], steps: ContainerSteps) -> Driver:
    """Why a resource is recommended what it is; ``fallback`` is the histograms' reason, which stands while there is no decision."""
    resource = fallback.resource
    row, startup = steps.row(resource), steps.startup_peak
    choice = Choice(
        PRIOR,
        first=None if row.span is None else row.span[0] * STEP_SECONDS,
        last=None if row.span is None else row.span[1] * STEP_SECONDS,
        startup_peak=to_amount(startup.value * MILLI) if startup is not None and resource is Resource.CPU else None,
        raised_by=raised_by,
    )
    if decision is None:
        return replace(fallback, choice=choice)
    scale = _scale(resource)
    told = None if decision.told is None else to_amount(decision.told * scale)
    choice = replace(
        choice, by=decision.by, horizon=decision.horizon, told=told, coverage=decision.coverage, known_hours=decision.known_hours
    )  # fmt: skip
    peak = row.peak(row.end)
    return Driver(resource, decision.quantile, to_amount(decision.target * scale), fallback.pod if peak is None else peak.pod, choice)


def _scale(resource: Resource) -> float:
    return MILLI if resource is Resource.CPU else 1.0
