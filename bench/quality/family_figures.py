"""The figures of the made-up families as rows of a table: what a user would ask of each, ours beside the VPA's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from bench.quality.closed_loop import MINUTES_PER_HOUR, Course
from bench.quality.families import (
    BASELINE,
    BEGIN_HOUR,
    CASES,
    DAYS,
    FILL_HOURS,
    GIB,
    LEAK_NOISE,
    LOOP_DAYS,
    QUIET_FAMILIES,
    ROLLOUT_HOUR,
    TIMES_LIMIT,
    WEEKLY,
    WEEKS_DAYS,
    Told,
    hours_of_warning,
    is_settled,
    looped,
    quiet,
    replayed,
)
from vpa_ippr.api.series import Floats, Resource
from vpa_ippr.forecast.grid import HOURS_PER_DAY, STEPS_PER_HOUR

PROFILE: Final = "balanced"
_WARM_HOURS: Final = 72.0
_WEEK_HOURS: Final = 168.0


@dataclass(frozen=True, slots=True)
class FamilyFigure:
    """One row; ``baseline`` is the VPA's, empty where the question does not arise."""

    family: str
    question: str
    measured: str
    baseline: str = ""


def measure_families() -> list[FamilyFigure]:
    """All rows; some minutes of one processor, and always the same."""
    policies = (PROFILE, BASELINE)
    memory, cpu = (replayed(CASES, DAYS, resource, policies) for resource in (Resource.MEMORY, Resource.CPU))
    weeks = replayed({"weekly": WEEKLY}, WEEKS_DAYS, Resource.MEMORY, policies)
    return [
        *_of_leaks(),
        *_of_loops(looped(policies)),
        *_of_replays(memory, cpu),
        *_of_weeks({policy: cases["weekly"] for policy, cases in weeks.items()}),
    ]


def render_families(rows: list[FamilyFigure]) -> str:
    """The rows as a Markdown table."""
    lines = [f"| family | what | {PROFILE} | {BASELINE} |", "| --- | --- | --- | --- |"]
    lines += [f"| {row.family} | {row.question} | {row.measured} | {row.baseline} |" for row in rows]
    return "\n".join(lines) + "\n"


def _of_leaks() -> Iterator[FamilyFigure]:
    for fill in FILL_HOURS:
        hours = [hours_of_warning(fill, begin, noise) for noise in LEAK_NOISE for begin in (0.0, 48.0)]
        least = ", ".join(f"{min(one.min(), other.min()):.1f}" for one, other in zip(hours[::2], hours[1::2], strict=True))
        noises = ", ".join(f"{noise:.1%}" for noise in LEAK_NOISE)
        yield FamilyFigure("leak", f"doubles in {fill:.0f} h: hours of warning, the least of 16, at {noises} noise", least)
    for family in QUIET_FAMILIES:
        seen = quiet(family)
        settled, always = seen.alarms_per_day(is_settled(seen, family)), seen.alarms_per_day(np.ones_like(seen.found))
        yield FamilyFigure(
            family,
            "false warnings of leaks a day for each series: once its shape has shown, and at any time",
            f"{settled:.3f}, {always:.3f}",
        )


def _of_loops(courses: Mapping[str, Course]) -> Iterator[FamilyFigure]:
    kinds = {
        "peak": "peaks that no sample shows",
        "startup": "needed at once after each start",
        "quiet": "peaks after quiet hours in which the limit was lowered to half",
    }
    for kind, words in kinds.items():
        for name, question in (
            ("kills", f"kills until stable, need of {_listed(np.array(TIMES_LIMIT))} times the limit"),
            ("left", f"limit after {LOOP_DAYS:.0f} days, times the need"),
        ):
            found = {
                policy: [_loop(courses[f"{policy} {kind} {times:g}"], name) for times in TIMES_LIMIT] for policy in (PROFILE, BASELINE)
            }
            yield FamilyFigure(f"OOM loop: {words}", question, ", ".join(found[PROFILE]), ", ".join(found[BASELINE]))
    ours, theirs = (courses[f"{policy} leak"].limits(Resource.MEMORY).max() / GIB for policy in (PROFILE, BASELINE))
    yield FamilyFigure("leak that kills", "highest limit, times the first", f"{ours:.0f}", f"{theirs:.0f}")
    question = "hours of use at the limit until it has room, need of six times the use"
    yield FamilyFigure("throttled CPU", question, *(_hours_short(courses[f"{policy} throttled"]) for policy in (PROFILE, BASELINE)))
    question = "hours short of CPU after a rollout that needs twice as much"
    yield FamilyFigure("fatter revision", question, *(_hours_short(courses[f"{policy} fatter"]) for policy in (PROFILE, BASELINE)))


def _loop(course: Course, what: str) -> str:
    if what == "kills":
        return str(len(course.kills))
    return f"{course.limit[Resource.MEMORY][-1] / course.needs(Resource.MEMORY).max():.2f}"


def _hours_short(course: Course) -> str:
    after = slice(round(ROLLOUT_HOUR * MINUTES_PER_HOUR), None)
    short = course.needs(Resource.CPU)[after] > course.limits(Resource.CPU)[after]
    return f"{short.sum() / MINUTES_PER_HOUR:.1f}"


def _of_replays(memory: Mapping[str, Mapping[str, Told]], cpu: Mapping[str, Mapping[str, Told]]) -> Iterator[FamilyFigure]:
    hour = BEGIN_HOUR
    for case in CASES:
        begin = hour if case.startswith(("ramp", "step")) else _WARM_HOURS
        kills, resizes, hours = (
            [_listed(of(told[policy][case].from_hour(begin))) for policy in (PROFILE, BASELINE)]
            for told, of in ((memory, _over), (memory, _resizes), (cpu, _hours_over))
        )
        yield FamilyFigure(case, "memory: kills", *kills)
        yield FamilyFigure(case, "memory: resizes a day", *resizes)
        yield FamilyFigure(case, "CPU: hours with more use than request", *hours)
    held = [
        [
            _listed(_held(told[policy]["step down"].from_hour(hour + 2 * HOURS_PER_DAY, hour + 3 * HOURS_PER_DAY)))
            for policy in (PROFILE, BASELINE)
        ]
        for told in (cpu, memory)
    ]
    yield FamilyFigure("step down", "CPU on the third day after it, times the use", *held[0])
    yield FamilyFigure("step down", "memory on the third day after it, times the use", *held[1])


def _of_weeks(told: Mapping[str, Told]) -> Iterator[FamilyFigure]:
    kills = [
        ", ".join(str(told[policy].from_hour(week * _WEEK_HOURS, (week + 1) * _WEEK_HOURS).over.sum()) for week in range(3))
        for policy in (PROFILE, BASELINE)
    ]
    yield FamilyFigure("weekly", "memory: kills of four series in the first, second and third week", *kills)


def _over(told: Told) -> Floats:
    return told.over.astype(np.float64)


def _hours_over(told: Told) -> Floats:
    return told.over / STEPS_PER_HOUR


def _resizes(told: Told) -> Floats:
    return told.resizes_per_day


def _held(told: Told) -> Floats:
    return np.asarray(told.held.mean(axis=1) / told.usage.mean(axis=1))


def _listed(values: Floats) -> str:
    return ", ".join(f"{value:.1f}".removesuffix(".0") for value in values.tolist())
