"""What becomes of made-up families of usage of which the truth is known: the shapes that recordings lack.

Three kinds of evidence. Replays, as of recordings, for all that the limit does not change. The service itself in a closed loop, for what is
killed or cut off at its limit. The leak detector hour by hour, on leaks and on all that only looks like one. Everything is seeded, with
other seeds than the shipped model was trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from bench.quality.closed_loop import FIRST_REVISION, MINUTES_PER_HOUR, Course, Need, Subject, run
from vpa_ippr.api.series import Floats, Resource
from vpa_ippr.backtest.actuator import Conditions
from vpa_ippr.backtest.contenders import contenders
from vpa_ippr.backtest.grid import Fleet
from vpa_ippr.backtest.replay import Replay, replay
from vpa_ippr.forecast.families import FAMILIES, MadeUp, Parameter
from vpa_ippr.forecast.grid import HOUR_SECONDS, HOURS_PER_DAY, STEP_SECONDS, STEPS_PER_HOUR, UsageGrid
from vpa_ippr.forecast.leak import find_leaks

GIB: Final = 2.0**30
ROWS: Final = 4
DAYS: Final = 13.0
WEEKS_DAYS: Final = 22.0
STEPS_PER_DAY: Final = STEPS_PER_HOUR * HOURS_PER_DAY
BEGIN_HOUR: Final = 120.5
"""When a ramp begins and a step happens: within an hour, so that nobody decides at that moment."""
SEED: Final = 7_000
BASELINE: Final = "vpa-classic"


@dataclass(frozen=True, slots=True)
class Case:
    """Four series of one family with these parameters; ``only_runs``: nothing is measured between the runs, as of a CronJob's pods."""

    family: str
    given: Mapping[str, Parameter]
    only_runs: bool = False


def _each(*values: float) -> Floats:
    return np.array(values)


_BATCH: Final[Mapping[str, Parameter]] = {
    "height": _each(1, 3, 6, 10),
    "start_hour": _each(2.2, 5.7, 13.4, 22.1),
    "length_hours": _each(0.5, 1, 2, 4),
    "noise": 0.03,
}
CASES: Final[Mapping[str, Case]] = {
    "ramp": Case("ramp", {"factor": _each(1.5, 2, 3, 5), "length_hours": _each(6, 24, 48, 96), "begin_hour": BEGIN_HOUR, "noise": 0.03}),
    "step up": Case("step", {"factor": _each(1.5, 2, 3, 4), "at_hour": BEGIN_HOUR, "noise": 0.03}),
    "step down": Case("step", {"factor": _each(0.3, 0.4, 0.5, 0.7), "at_hour": BEGIN_HOUR, "noise": 0.03}),
    "sawtooth": Case("sawtooth", {"height": _each(0.5, 1, 2, 1), "period_hours": _each(0.5, 3, 8, 20), "noise": 0.01}),
    "cron": Case("cron", _BATCH),
    "cron job": Case("cron", _BATCH, only_runs=True),
    "bursty": Case("bursty", {"bursts_per_day": _each(4, 12, 24, 48), "length_hours": 0.5, "tail": 3.0, "noise": 0.1}),
    "idle": Case("idle", {"bursts_per_day": _each(0.2, 0.5, 1, 2), "height": 20.0, "length_hours": 0.25, "noise": 0.1}),
    "flat": Case("flat", {"noise": _each(0.005, 0.01, 0.02, 0.03)}),
    "page cache": Case("page-cache", {"cache": 2.0, "fill_hours": _each(2, 6, 12, 24), "drops_per_day": 1e-9, "noise": 0.01}),
}
WEEKLY: Final = Case("weekly", {**_BATCH, "start_hour": _each(30.2, 62.7, 100.4, 130.1)})


@dataclass(frozen=True, slots=True, eq=False)
class Told:
    """One case under one policy, in units of its level, a column a step: what was used and what was in force, and the resizes."""

    usage: Floats
    held: Floats
    resized: NDArray[np.bool_]
    truth: Mapping[str, Floats]

    def from_hour(self, begin: float, end: float = np.inf) -> Told:
        """That part of it."""
        first, last = round(begin * STEPS_PER_HOUR), min(end * STEPS_PER_HOUR, self.usage.shape[1])
        part = slice(first, round(last))
        return Told(self.usage[:, part], self.held[:, part], self.resized[:, part], self.truth)

    @property
    def over(self) -> NDArray[np.int64]:
        """Steps with more use than allocation: of memory, kills."""
        return np.asarray((self.usage > self.held).sum(axis=1))

    @property
    def shortfall(self) -> Floats:
        """What was used above the allocation, as a share of all use."""
        return np.asarray(np.maximum(self.usage - self.held, 0).sum(axis=1) / self.usage.sum(axis=1))

    @property
    def resizes_per_day(self) -> Floats:
        return np.asarray(self.resized.sum(axis=1) / (self.usage.shape[1] / STEPS_PER_DAY))


def made(case: Case, days: float) -> MadeUp:
    """The series of a case."""
    found = FAMILIES[case.family](np.random.default_rng([SEED, *case.family.encode()]), ROWS, days, level=1.0, **case.given)
    if not case.only_runs:
        return found
    hours = np.arange(found.usage.shape[1]) / STEPS_PER_HOUR
    begin, length = found.truth["start_hour"][:, None], found.truth["length_hours"][:, None]
    runs = (hours - begin) % HOURS_PER_DAY < length
    return MadeUp(np.where(runs, found.usage, np.nan), found.truth)


def replayed(cases: Mapping[str, Case], days: float, resource: Resource, policies: Sequence[str]) -> dict[str, dict[str, Told]]:
    """What each policy made of each case, by policy and case."""
    usages = {name: made(case, days) for name, case in cases.items()}
    fleet = _fleet(resource, np.concatenate([one.usage for one in usages.values()]))
    results: dict[str, dict[str, Told]] = {}
    for policy, contender in zip(policies, contenders(policies, fleet, own_floors=False), strict=True):
        result = replay(fleet, contender, Conditions())
        results[policy] = {name: _told(usages[name], result, index, _unit(resource)) for index, name in enumerate(cases)}
    return results


def _told(usage: MadeUp, result: Replay, index: int, unit: float) -> Told:
    rows = slice(index * ROWS, (index + 1) * ROWS)
    return Told(usage.usage, result.allocation[rows] / unit, result.resized[rows], usage.truth)


def _fleet(resource: Resource, usage: Floats) -> Fleet:
    count = len(usage)
    names = tuple(f"made-up/Deployment/w{row}/app" for row in range(count))
    unknown = np.full(count, np.nan)
    return Fleet(resource, STEP_SECONDS, names, ("made-up",) * count, np.zeros(count), usage * _unit(resource), unknown)


def _unit(resource: Resource) -> float:
    return 1.0 if resource is Resource.CPU else GIB


# --- The closed loop ---

LOOP_DAYS: Final = 8.0
TIMES_LIMIT: Final = (1.5, 2.5, 3.0)
_LIMIT: Final = GIB
ROLLOUT_HOUR: Final = 72.0
ROLLBACK_HOUR: Final = 120.0
_PEAK_EVERY_HOURS: Final = 2.0
_PEAK_HOURS: Final = 0.05


def peaks(base: float, peak: float) -> Need:
    """For three minutes in every two hours ``peak``, otherwise ``base``, in GiB: the first peak is two hours after a start."""
    return lambda _, age: (peak if age % _PEAK_EVERY_HOURS >= _PEAK_EVERY_HOURS - _PEAK_HOURS else base) * GIB


def startup(need: float) -> Need:
    """All of it within two minutes of a start: a crash loop while the limit is too low. In GiB."""
    return lambda _, age: need * min(1.0, 0.3 + 0.35 * age * MINUTES_PER_HOUR) * GIB


def steady(need: float) -> Need:
    """Always the same."""
    return lambda _hours, _age: need


def in_gib(need: Need) -> Need:
    return lambda hours, age: need(hours, age) * GIB


def between(usual: float, other: float, begin: float, end: float = np.inf) -> Need:
    """``other`` between those hours, otherwise ``usual``."""
    return lambda hours, _: other if begin <= hours < end else usual


def loop_subjects(profile: str) -> list[Subject]:
    """The containers of the closed loop under one profile; their names begin with it."""
    subjects = [
        Subject(f"{profile} {kind} {times:g}", profile, _LIMIT, need(times))
        for times in TIMES_LIMIT
        for kind, need in (("peak", lambda times: peaks(0.9, times)), ("startup", startup), ("quiet", lambda times: peaks(0.5, times)))
    ]
    fat, lean = (between(0.5, size, ROLLOUT_HOUR, ROLLBACK_HOUR) for size in (1.0, 0.25))
    rollouts = {ROLLOUT_HOUR: "other", ROLLBACK_HOUR: FIRST_REVISION}
    return [
        *subjects,
        Subject(f"{profile} leak", profile, _LIMIT, lambda _, age: (0.4 + 20.0 * age) * GIB),
        Subject(f"{profile} throttled", profile, _LIMIT, steady(0.5 * GIB), 1.0, between(0.3, 2.0, ROLLOUT_HOUR), cpu_is_limited=True),
        Subject(f"{profile} fatter", profile, _LIMIT, in_gib(fat), 1.0, fat, rollouts=rollouts),
        Subject(f"{profile} leaner", profile, _LIMIT, in_gib(lean), 1.0, lean, rollouts=rollouts),
    ]


def looped(profiles: Sequence[str], days: float = LOOP_DAYS) -> dict[str, Course]:
    """What became of them all, by name."""
    subjects = [subject for profile in profiles for subject in loop_subjects(profile)]
    return run(subjects, days)


# --- Leaks ---

FILL_HOURS: Final = (12.0, 24.0, 72.0, 168.0)
LEAK_NOISE: Final = (0.003, 0.02, 0.05)
LEAK_SERIES: Final = 8
QUIET_DAYS: Final = 10.0
QUIET_SERIES: Final = 40
QUIET_FAMILIES: Final = ("sawtooth", "diurnal", "cron", "weekly", "bursty", "idle", "flat", "step", "ramp", "page-cache")


@dataclass(frozen=True, slots=True, eq=False)
class Watched:
    """Hour by hour whether a leak was told, (series, hours); ``hours``: those at which was looked."""

    hours: Floats
    found: NDArray[np.bool_]
    truth: Mapping[str, Floats]

    def alarms_per_day(self, where: NDArray[np.bool_]) -> float:
        """Warnings that begin in the hours that count, for each day of them."""
        begun = self.found & ~np.pad(self.found, ((0, 0), (1, 0)))[:, :-1]
        return float((begun & where).sum() / max(where.sum() / HOURS_PER_DAY, 1.0))


def watched(usage: MadeUp, every_hours: int = 1, history_days: int = 14) -> Watched:
    """As the recommender looks: each hour, at the last two weeks."""
    values, hours = usage.usage, np.arange(every_hours, usage.usage.shape[1] // STEPS_PER_HOUR + 1, every_hours)
    longest = history_days * STEPS_PER_DAY

    def found_at(hour: int) -> NDArray[np.bool_]:
        now = hour * STEPS_PER_HOUR
        return find_leaks(UsageGrid(values[:, max(0, now - longest) : now], hour * HOUR_SECONDS)).found

    found = [found_at(hour) for hour in hours.tolist()]
    return Watched(hours.astype(np.float64), np.stack(found, axis=1), usage.truth)


def hours_of_warning(fill_hours: float, begin_hour: float, noise: float) -> Floats:
    """For each of some leaks that double the use within ``fill_hours``: from the first warning until they meet that; -inf for none."""
    random = np.random.default_rng([SEED, round(fill_hours), round(begin_hour), round(noise * 1000)])
    given = {"level": 1.0, "growth_per_hour": 1 / fill_hours, "begin_hour": begin_hour, "noise": noise}
    usage = FAMILIES["leak"](random, LEAK_SERIES, (begin_hour + fill_hours) / HOURS_PER_DAY, **given)
    seen = watched(usage)
    full = usage.usage >= 2.0
    met = np.where(full.any(axis=1), full.argmax(axis=1) / STEPS_PER_HOUR, begin_hour + fill_hours)
    told = seen.found & (seen.hours > begin_hour)
    return np.where(told.any(axis=1), met - seen.hours[told.argmax(axis=1)], -np.inf)


def quiet(family: str, count: int = QUIET_SERIES, days: float = QUIET_DAYS) -> Watched:
    """A family that holds no leak, as drawn."""
    return watched(FAMILIES[family](np.random.default_rng([SEED, 1, *family.encode()]), count, days))


def is_settled(seen: Watched, family: str) -> NDArray[np.bool_]:
    """The hours at which there is no telling a shape from a leak any more, as it has shown itself: (series, hours).

    A rhythm after two days, a heap after two collections, a ramp or a cache when it has stopped growing for a while.
    """
    hours, truth = seen.hours[None, :], {name: values[:, None] for name, values in seen.truth.items()}
    settled: dict[str, Callable[[], NDArray[np.bool_]]] = {
        "sawtooth": lambda: hours > 2 * truth["period_hours"] + 1,
        "ramp": lambda: (hours < truth["begin_hour"]) | (hours >= truth["begin_hour"] + 2 * truth["length_hours"]),
        "page-cache": lambda: hours >= 4 * truth["fill_hours"] + 1,
    }
    return np.broadcast_to(settled.get(family, lambda: hours >= 2 * HOURS_PER_DAY)(), seen.found.shape)
