"""The part of a profile that says how an ensemble of forecasters decides; every number of it is in ``models/*.yaml``."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from typing import Final, Literal

import msgspec

from vpa_ippr.api.series import Resource
from vpa_ippr.forecast.grid import HOURS_PER_DAY
from vpa_ippr.forecast.quantiles import LEVELS, Horizon
from vpa_ippr.forecast.seasonal import TRAILING
from vpa_ippr.forecast.selection import SelectionRules
from vpa_ippr.usage.evidence import EvidenceRules, broken_evidence_rules
from vpa_ippr.usage.oom import OomRules, broken_oom_rules
from vpa_ippr.usage.revisions import RevisionRules

ForecasterName = Literal[
    "trailing-quantile", "hour-of-day", "day-of-week", "decaying-histogram", "holt-winters", "gradient-boosting", "peaks-trend"
]
# What lasts longer than an hour is no startup.
_MAX_STARTUP_SECONDS: Final = 3600.0
_MODEL_FILE: Final = re.compile(r"[a-z0-9][a-z0-9.-]*\.skops")


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a profile: every key is needed, unless it has a default, and no other is allowed."""


class Expert(_Part, frozen=True):
    """One opinion on what a container needs: a quantile of the largest use within the horizon, times ``factor``.

    ``calibrated``: moved until it is passed as often as it says. Percentiles of use are worth asking as they are: they say what most of the
    time is enough, and calibration would make another maximum of them.
    """

    forecaster: ForecasterName
    quantile: float
    factor: float
    horizon: Horizon = Horizon.HOUR
    calibrated: bool = True


class Peak(_Part, frozen=True):
    """The largest use of the last hours, times ``factor``; nothing is recommended below it."""

    hours: int
    factor: float


class SeasonPeak(_Part, frozen=True):
    """The largest use that the coming hours had on earlier days, times ``factor``; nothing is recommended below it.

    Looked at is the time from ``before_hours`` before to ``ahead_hours`` after this moment, so many ``days`` ago each.
    """

    days: tuple[int, ...]
    ahead_hours: int
    factor: float
    before_hours: int = 1


class GuardRules(_Part, frozen=True):
    """When memory is raised at once, between two decisions.

    Expected is the use plus ``growth`` times what it grew by in the last five minutes. More than ``share`` of the limit makes the need at
    least ``factor`` times what is expected.
    """

    share: float
    factor: float
    growth: float = 0.0


class Hysteresis(_Part, frozen=True):
    """The band around a target inside which a container is left alone: these shares of what it has.

    Nothing is lowered within ``lower_after_hours`` of the last resize.
    """

    raise_above: float
    lower_below: float
    lower_after_hours: float = 0.0


class ResourceEnsemble(_Part, frozen=True):
    """How one resource is decided.

    With ``selection`` the expert that was cheapest for this container is followed; without, the largest of all answers. Series that
    were measured in less than ``min_density`` of the hours since their first sample (jobs) are sized by their runs: ``runs``. No expert is
    believed who asks for more than ``ceiling`` times the largest use of the history, once that is not young.
    """

    experts: tuple[Expert, ...]
    hysteresis: Hysteresis
    runs: Expert
    selection: SelectionRules | None = None
    peaks: tuple[Peak, ...] = ()
    seasons: tuple[SeasonPeak, ...] = ()
    guard: GuardRules | None = None
    min_density: float = 0.5
    ceiling: float | None = None


class SeriesRules(_Part, frozen=True):
    """What the series are that are forecast.

    ``pods``: the quantile over a workload's pods that counts, 1 for the busiest. ``startup_seconds``: the time after its start in which an
    instance's CPU does not count. The revisions' rules say how soon history is scaled to a new revision.
    """

    pods: float = 1.0
    startup_seconds: float = 120.0
    cpu_revisions: RevisionRules = RevisionRules()
    # A fresh process has not filled its caches yet: that it needs less is believed slowly.
    memory_revisions: RevisionRules = RevisionRules(down_hours=48.0)

    def revisions(self, resource: Resource) -> RevisionRules:
        """The part for one resource."""
        return self.cpu_revisions if resource is Resource.CPU else self.memory_revisions


class Ensemble(_Part, frozen=True):
    """An ensemble's model file, history and rules by resource.

    ``replay_hours``: how much of the history is decided again when nothing is known of earlier decisions. ``young_hours``: history
    below which the bounds are widened towards what the forecast thinks possible within a day.
    """

    cpu: ResourceEnsemble
    memory: ResourceEnsemble
    model: str | None = None
    history_days: int = 14
    replay_hours: int = 48
    young_hours: int = 24
    series: SeriesRules = SeriesRules()
    oom: OomRules = OomRules()
    evidence: EvidenceRules = EvidenceRules()

    def resource(self, resource: Resource) -> ResourceEnsemble:
        """The part for one resource."""
        return self.cpu if resource is Resource.CPU else self.memory


def broken_rules(ensemble: Ensemble) -> Iterator[tuple[str, str]]:
    """Each key that breaks a rule, and which."""
    if ensemble.model is not None and not _MODEL_FILE.fullmatch(ensemble.model):
        yield "ensemble.model", f"is {ensemble.model!r}: give the name of a *.skops file of the catalogue"
    for key, lowest in (("history_days", 1), ("replay_hours", 0), ("young_hours", 0)):
        if getattr(ensemble, key) < lowest:
            yield f"ensemble.{key}", f"is {getattr(ensemble, key)}: must be {lowest} or more"
    yield from _broken_series(ensemble.series)
    for key, why in (*_within("oom", broken_oom_rules(ensemble.oom)), *_within("evidence", broken_evidence_rules(ensemble.evidence))):
        yield f"ensemble.{key}", why
    for resource in Resource:
        yield from _broken_in(ensemble, resource)


def _broken_in(ensemble: Ensemble, resource: Resource) -> Iterator[tuple[str, str]]:
    part = ensemble.resource(resource)
    for key, why in _broken_resource(part):
        yield f"ensemble.{resource}.{key}", why
    for index, season in enumerate(part.seasons):
        if max(season.days, default=0) > ensemble.history_days:
            yield f"ensemble.{resource}.seasons[{index}].days", f"reach further back than history_days, {ensemble.history_days}"
    uses_model = any(expert.forecaster == "gradient-boosting" for expert in (*part.experts, part.runs))
    if uses_model and ensemble.model is None:
        yield "ensemble.model", f"is needed by the gradient-boosting experts of {resource}"


def _within(part: str, broken: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(f"{part}.{key}", why) for key, why in broken]


def _broken_resource(part: ResourceEnsemble) -> Iterator[tuple[str, str]]:
    if not part.experts:
        yield "experts", "must name one expert or more"
    for index, expert in enumerate(part.experts):
        yield from _broken_expert(expert, f"experts[{index}]")
    yield from _broken_expert(part.runs, "runs")
    if part.runs.forecaster != TRAILING:  # the decision asks no other
        yield "runs.forecaster", f"is {part.runs.forecaster!r}: must be {TRAILING}"
    band = part.hysteresis
    if not (0 <= band.raise_above < math.inf and 0 <= band.lower_below < 1 and 0 <= band.lower_after_hours < math.inf):
        yield "hysteresis", "must hold raise_above >= 0, 0 <= lower_below < 1 and lower_after_hours >= 0"
    yield from _broken_floors(part)
    guard = part.guard
    if guard is not None and not (0 < guard.share <= 1 < guard.factor < math.inf and 0 <= guard.growth < math.inf):
        yield "guard", "must hold 0 < share <= 1 < factor and growth >= 0"
    elif guard is not None and guard.share * guard.factor <= 1:
        yield "guard", "must hold share * factor > 1: else the limit that it sets is near the use again"
    if not 0 <= part.min_density <= 1:
        yield "min_density", f"is {part.min_density}: must be 0 to 1"
    if part.ceiling is not None and not 1 <= part.ceiling < math.inf:
        yield "ceiling", f"is {part.ceiling}: must be 1 or more"
    if part.selection is not None:
        yield from _broken_selection(part.selection)


def _broken_floors(part: ResourceEnsemble) -> Iterator[tuple[str, str]]:
    for index, peak in enumerate(part.peaks):
        if not (peak.hours >= 1 and 0 < peak.factor < math.inf):
            yield f"peaks[{index}]", "must hold hours >= 1 and factor > 0"
    for index, season in enumerate(part.seasons):
        yield from _broken_season(season, f"seasons[{index}]")


def _broken_season(season: SeasonPeak, where: str) -> Iterator[tuple[str, str]]:
    if not season.days or min(season.days) < 1:
        yield f"{where}.days", "must name one day or more, each 1 or more days ago"
    elif season.ahead_hours < 1 or season.before_hours < 0 or max(season.before_hours, season.ahead_hours) > HOURS_PER_DAY:
        yield where, f"must hold 1 <= ahead_hours <= {HOURS_PER_DAY} and 0 <= before_hours <= {HOURS_PER_DAY}"
    if not 0 < season.factor < math.inf:
        yield f"{where}.factor", f"is {season.factor}: must be above 0"


def _broken_series(rules: SeriesRules) -> Iterator[tuple[str, str]]:
    if not 0 < rules.pods <= 1:
        yield "ensemble.series.pods", f"is {rules.pods}: must be above 0 and at most 1"
    if not 0 <= rules.startup_seconds <= _MAX_STARTUP_SECONDS:
        yield "ensemble.series.startup_seconds", f"is {rules.startup_seconds}: must be 0 to {_MAX_STARTUP_SECONDS:.0f}"
    for resource in Resource:
        for key in ("up_hours", "down_hours", "noise"):
            value = getattr(rules.revisions(resource), key)
            if not 0 <= value < math.inf:
                yield f"ensemble.series.{resource}_revisions.{key}", f"is {value}: must be 0 or more"


def _broken_expert(expert: Expert, where: str) -> Iterator[tuple[str, str]]:
    if not LEVELS[0] <= expert.quantile <= LEVELS[-1]:
        yield f"{where}.quantile", f"is {expert.quantile}: must be {LEVELS[0]} to {LEVELS[-1]}"
    if not 0 < expert.factor < math.inf:
        yield f"{where}.factor", f"is {expert.factor}: must be above 0"


def _broken_selection(rules: SelectionRules) -> Iterator[tuple[str, str]]:
    for key in ("overrun", "violation", "resize", "resize_share", "switching", "prior_hours"):
        if not 0 <= getattr(rules, key) < math.inf:
            yield f"selection.{key}", f"is {getattr(rules, key)}: must be 0 or more"
    if not 0 < rules.half_life_hours < math.inf:
        yield "selection.half_life_hours", f"is {rules.half_life_hours}: must be above 0"
