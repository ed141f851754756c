"""What the profiles are held to, and whether they keep it: numbers in, verdicts out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from bench.quality.measures import Measure, Pair, change, mean, ratio, reduction, volume_ratio
from vpa_ippr.api.series import Resource
from vpa_ippr.backtest.averages import LEAST_SERIES_OF_SOURCE, Average

# What lies nearer to its bound than this share of it may be luck: on other data it would be missed as often as met.
HEAD_ROOM: Final = 0.1
# A hundredth of a per cent of the bound is rounding.
_ENOUGH: Final = HEAD_ROOM - 1e-4
COVERAGE_BOUNDS: Final = (0.88, 0.92)


class Sense(StrEnum):
    """On which side of its bound a number should lie."""

    AT_LEAST = "at least"
    AT_MOST = "at most"


class Verdict(StrEnum):
    """``NARROW`` is met with less than ``HEAD_ROOM``."""

    MET = "met"
    NARROW = "met, narrowly"
    MISSED = "not met"
    UNKNOWN = "not measured"


@dataclass(frozen=True, slots=True)
class Target:
    """One promise of one profile. ``is_share``: shown in per cent. ``is_goal``: what is to be gained, as against what must not be paid."""

    item: int
    profile: str
    resource: Resource
    text: str
    sense: Sense
    bound: float
    measure: Measure
    is_share: bool = True
    is_goal: bool = False


@dataclass(frozen=True, slots=True)
class Judged:
    """A target, what was measured and what that means; ``head_room`` is the distance to the bound as a share of it, below 0 if missed."""

    target: Target
    measured: Average
    head_room: float
    verdict: Verdict


_CPU, _MEMORY = Resource.CPU, Resource.MEMORY
_SLACK: Final = volume_ratio("slack")

TARGETS: Final = (
    Target(1, "balanced", _CPU, "slack volume lower by", Sense.AT_LEAST, 0.27, reduction(_SLACK), is_goal=True),
    Target(1, "balanced", _CPU, "allocation lower by", Sense.AT_LEAST, 0.09, reduction(volume_ratio("allocated")), is_goal=True),
    Target(1, "balanced", _CPU, "violation time, VPA = 1", Sense.AT_MOST, 1.0, ratio("violation_time"), is_share=False),
    Target(1, "balanced", _CPU, "violation volume, VPA = 1", Sense.AT_MOST, 1.0, ratio("violation_volume"), is_share=False),
    Target(1, "balanced", _CPU, "resizes per container-day", Sense.AT_MOST, 6.0, mean("resizes_per_day"), is_share=False),
    Target(1, "safe", _CPU, "violation volume lower by", Sense.AT_LEAST, 0.40, reduction(ratio("violation_volume"))),
    Target(1, "safe", _CPU, "slack volume, VPA = 1", Sense.AT_MOST, 1.0, _SLACK, is_share=False, is_goal=True),
    Target(2, "balanced", _MEMORY, "slack volume lower by", Sense.AT_LEAST, 0.15, reduction(_SLACK), is_goal=True),
    Target(2, "balanced", _MEMORY, "allocation lower by", Sense.AT_LEAST, 0.04, reduction(volume_ratio("allocated")), is_goal=True),
    Target(2, "balanced", _MEMORY, "OOM kills per container-day lower by", Sense.AT_LEAST, 0.20, reduction(ratio("ooms_per_day"))),
    Target(2, "balanced", _MEMORY, "resizes per container-day", Sense.AT_MOST, 2.2, mean("resizes_per_day"), is_share=False),
    Target(2, "safe", _MEMORY, "OOM kills per container-day lower by", Sense.AT_LEAST, 0.50, reduction(ratio("ooms_per_day"))),
    Target(2, "safe", _MEMORY, "slack volume, VPA = 1", Sense.AT_MOST, 1.0, _SLACK, is_share=False, is_goal=True),
)


@dataclass(frozen=True, slots=True)
class SourceRule:
    """What no source may pass, whatever the average: ``more`` says how much worse it is than under the VPA, ``bound`` how much may be."""

    resource: Resource
    text: str
    bound: float
    more: Measure


SOURCE_RULES: Final[Mapping[Resource, SourceRule]] = {
    _CPU: SourceRule(_CPU, "violation time, points above the VPA's", 0.02, change("violation_time")),
    _MEMORY: SourceRule(_MEMORY, "OOM kills per container-day, VPA = 1", 1.10, ratio("ooms_per_day")),
}


def judge(target: Target, measured: Average) -> Judged:
    """Whether the number keeps the target, and with how much room."""
    room = head_room(target.sense, target.bound, measured.value)
    return Judged(target, measured, room, _verdict(room))


def head_room(sense: Sense, bound: float, value: float) -> float:
    """Distance from the bound to the good side, as a share of the bound (which is above 0); below 0 on the bad side."""
    return value / bound - 1 if sense is Sense.AT_LEAST else 1 - value / bound


def judge_targets(resource: Resource, pairs: Mapping[str, Pair]) -> list[Judged]:
    """The targets of those profiles of which there are scores, in their order."""
    wanted = [target for target in TARGETS if target.resource is resource and target.profile in pairs]
    return [judge(target, target.measure(pairs[target.profile])) for target in wanted]


def judge_source(rule: SourceRule, profile: str, measured: Average, series: int) -> Verdict:
    """Whether a source stays below what may be worse; one with few series says too little, and a profile without targets is free."""
    if series < LEAST_SERIES_OF_SOURCE or math.isnan(measured.value) or all(target.profile != profile for target in TARGETS):
        return Verdict.UNKNOWN
    return Verdict.MET if measured.value <= rule.bound else Verdict.MISSED


def judge_coverage(measured: Average, series: int) -> Verdict:
    """Whether a source's 90 % quantile covers about 90 %; one with few series says too little."""
    if series < LEAST_SERIES_OF_SOURCE or math.isnan(measured.value):
        return Verdict.UNKNOWN
    low, high = COVERAGE_BOUNDS
    return Verdict.MET if low <= measured.value <= high else Verdict.MISSED


def best(candidates: Iterable[str], pair_of: Callable[[str], Pair], targets: Sequence[Target]) -> str:
    """The candidate that keeps what must not be paid with all the room there should be, and of those the one that gains most.

    Where none has so much room, the one with most room is taken. Of equals the first stays.
    """

    def rank(name: str) -> tuple[float, float]:
        judged = [judge(target, target.measure(pair_of(name))) for target in targets]
        rooms = [one.head_room for one in judged if not one.target.is_goal]
        gains = [one.head_room for one in judged if one.target.is_goal]
        return min(*rooms, _ENOUGH), min(gains)

    return max(candidates, key=rank)


def _verdict(room: float) -> Verdict:
    if math.isnan(room):
        return Verdict.UNKNOWN
    if room < 0:
        return Verdict.MISSED
    return Verdict.MET if room >= _ENOUGH else Verdict.NARROW
