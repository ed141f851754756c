"""From an ensemble's decision to whole millicores and bytes: what lifts it, the minimum, and why it is what it is.

Order: decision -> prior and floors -> ceiling -> minimum -> rounding up; bounds follow a target that is lifted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from vpa_ippr.api.series import Finding, Resource
from vpa_ippr.forecast.catalogue import ResourceProfile
from vpa_ippr.recommend.cohorts import Decision
from vpa_ippr.recommend.estimate import Level, to_amount
from vpa_ippr.recommend.result import Choice, Driver, Raise, Weighed
from vpa_ippr.recommend.rounding import round_up
from vpa_ippr.usage.container import MILLI
from vpa_ippr.usage.steps import STEP_SECONDS, ContainerSteps

PRIOR: Final = "prior"
OOM_FLOOR: Final = "oom-floor"
SHRINK_FLOOR: Final = "shrink-floor"
GUARD: Final = "guard"
CPU_CENSORED: Final = "cpu-censored"
MEMORY_TIGHT: Final = "memory-tight"
RECENT_RESIZE: Final = "recent-resize"
# A prior is a guess, and what was resized lately or uses all it may is only not to be lowered: less than that is not too small for certain.
_NO_LOWER_BOUND: Final = frozenset({PRIOR, CPU_CENSORED, RECENT_RESIZE})


@dataclass(frozen=True, slots=True)
class Outlook:
    """What an ensemble profile knows of a container: its decisions, what it must not fall below, and what was noticed.

    ``memory_ceiling``: what memory is not raised above, as kills have shown that more is of no use.
    """

    cpu: Decision | None = None
    memory: Decision | None = None
    floors: Mapping[Resource, tuple[Raise, ...]] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    memory_ceiling: int | None = None

    def decision(self, resource: Resource) -> Decision | None:
        """The one for that resource."""
        return self.cpu if resource is Resource.CPU else self.memory

    def floors_of(self, resource: Resource) -> tuple[Raise, ...]:
        """The ones for that resource."""
        return self.floors.get(resource, ())

    def ceiling_of(self, resource: Resource) -> int | None:
        """The one for that resource; only memory may have one."""
        return self.memory_ceiling if resource is Resource.MEMORY else None


NO_OUTLOOK: Final = Outlook()


def amounts_of(decision: Decision, resource: Resource) -> Level:
    """The decision in millicores or bytes."""
    return Level(*(to_amount(value * _scale(resource)) for value in (decision.lower, decision.target, decision.upper)))


def settle(
    base: Level, raises: Iterable[Raise], part: ResourceProfile, minimum: int, ceiling: int | None = None
) -> tuple[Level, tuple[Raise, ...]]:
    """Bounds and target of one resource, and what of ``raises`` lifted the target."""
    found = tuple(raises)
    target = max([base.target, *(one.amount for one in found)])
    if ceiling is not None:
        target = min(target, ceiling)
    lower = max([base.lower_bound, *(one.amount for one in found if one.by not in _NO_LOWER_BOUND)])

    def finished(amount: int) -> int:
        return round_up(max(minimum, amount), part.round_up_to)

    # The band above stays as wide: what lifts the target may fall with every cycle, as an OOM floor does: not worth a resize each time.
    upper = to_amount(base.upper_bound * target / base.target) if target > base.target > 0 else base.upper_bound
    level = Level(finished(min(lower, target)), finished(target), finished(max(upper, target)))
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
        weighed=weighed(steps, resource),
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


def weighed(steps: ContainerSteps, resource: Resource) -> Weighed | None:
    """What evidence made of the use of a resource; None without any."""
    if resource is Resource.CPU:
        notes = steps.cpu_notes
        return None if notes is None else Weighed(notes.uplifted_share, notes.throttled_share)
    need = None if steps.memory_notes is None else steps.memory_notes.need
    if need is None:
        return None
    return Weighed(page_cache=to_amount(float(need.working_set_bytes[0, 0] - need.need_bytes[0, 0])), why=need.words(0))


def _scale(resource: Resource) -> float:
    return MILLI if resource is Resource.CPU else 1.0
