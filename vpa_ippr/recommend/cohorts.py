"""The ensemble at work on one resource: an hourly decision for every container, and what is remembered from hour to hour.

Whole hours are numbered from the epoch. The decision of hour h uses the steps before its beginning and stands until the next one. Each
container is decided once for each hour, in order, and hours that were missed are made up for. Containers that stand at the same hour are
decided together, as a cohort; that changes no number of any of them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np

from vpa_ippr.api.errors import ValidationError
from vpa_ippr.api.series import Resource, WorkloadRef
from vpa_ippr.forecast.ensemble import EnsembleDecider, EnsembleDecision, EnsembleState, look
from vpa_ippr.forecast.ensemble_state import dump_state, interrupted, joined, load_state, rounded, take
from vpa_ippr.forecast.grid import HOUR_SECONDS, UsageGrid
from vpa_ippr.forecast.quantiles import GridForecaster
from vpa_ippr.forecast.rules import Ensemble
from vpa_ippr.usage.revisions import Segment, rebased
from vpa_ippr.usage.steps import STEPS_PER_DAY, STEPS_PER_HOUR, StepRow

Key = tuple[WorkloadRef, str]
"""A workload and the name of one of its containers."""

# So many rows of two weeks are 32 MB of numbers.
_ROWS_AT_ONCE: Final = 1000


class Decision(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What was decided for one resource of one container, in cores or bytes; see ``EnsembleDecision``.

    ``horizon``: the expert's, None when something else decided. ``told`` and ``coverage``: None while nothing is known of them.
    """

    hour: int
    target: float
    lower: float
    upper: float
    by: str
    quantile: float
    known_hours: float
    horizon: str | None = None
    told: float | None = None
    coverage: float | None = None


class StoredForecast(msgspec.Struct, frozen=True, rename="camel"):
    """One resource of one container as a checkpoint holds it: the last hour decided, the state after it, and what was decided."""

    hour: int
    state: msgspec.Raw
    decision: Decision | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """What is known of one container's use, and of its workload's revisions."""

    cpu: StepRow
    memory: StepRow
    segments: Sequence[Segment] = ()

    def row(self, resource: Resource) -> StepRow:
        """The row of one resource."""
        return self.cpu if resource is Resource.CPU else self.memory


@dataclass(frozen=True, slots=True, eq=False)
class _Cohort:
    keys: tuple[Key, ...]
    state: EnsembleState

    def only(self, keys: Sequence[Key]) -> _Cohort:
        if len(keys) == len(self.keys):
            return self
        place = {key: index for index, key in enumerate(self.keys)}
        return _Cohort(tuple(keys), take(self.state, [place[key] for key in keys]))


class Cohorts:
    """The decisions for one resource under one profile; not for use by several threads at once."""

    def __init__(self, resource: Resource, ensemble: Ensemble, forecasters: Mapping[str, GridForecaster], mark: str) -> None:
        """``mark`` is the fingerprint of rules and model: states with another one are refused."""
        self._resource = resource
        self._decider = EnsembleDecider(ensemble.resource(resource), ensemble.young_hours)
        self._forecasters = forecasters
        self._mark = mark
        self._revisions = ensemble.series.revisions(resource)
        self._history_steps = ensemble.history_days * STEPS_PER_DAY
        self._replay_hours = max(ensemble.replay_hours, 1)
        self._by_hour: dict[int, _Cohort] = {}
        self._hours: dict[Key, int] = {}
        self._decisions: dict[Key, Decision] = {}

    @property
    def mark(self) -> str:
        """The fingerprint of rules and model."""
        return self._mark

    def decision(self, key: Key) -> Decision | None:
        """The newest decision; None when there is none yet."""
        return self._decisions.get(key)

    def advance(self, rows: Mapping[Key, Rows]) -> None:
        """Decide every hour that has begun when its row ends and was not decided yet, for exactly these containers.

        A container of which nothing is remembered is decided for the last hours again, from its first sample on at most. Among others it
        begins with what they have learned, once they have got to where it begins.
        """
        ends = {key: one.row(self._resource).end // STEPS_PER_HOUR for key, one in rows.items()}
        self._forget(ends)
        self._skip(ends)
        waiting = self._newcomers(rows, ends)
        while True:
            due = self._movable(ends)
            self._admit(waiting, patient=bool(due))
            due = self._movable(ends)
            if not due:
                return
            hour = min(due)
            self._decide(hour, due[hour], rows)

    def load(self, stored: Mapping[Key, StoredForecast]) -> dict[Key, ValidationError]:
        """Go on from what ``dump`` gave; why it cannot be used, where it cannot, by container."""
        self._forget({key: hour for key, hour in self._hours.items() if key not in stored})
        refused: dict[Key, ValidationError] = {}
        by_hour: dict[int, list[_Cohort]] = defaultdict(list)
        for key, one in stored.items():
            try:
                state = load_state(bytes(one.state), self._decider, self._mark)
            except ValidationError as error:
                refused[key] = error
                continue
            by_hour[one.hour].append(_Cohort((key,), state))
            if one.decision is not None:
                self._decisions[key] = one.decision
        for hour, cohorts in by_hour.items():
            self._join(hour, cohorts)
        return refused

    def dump(self, key: Key) -> StoredForecast | None:
        """What is remembered of a container; None when it is nothing."""
        hour = self._hours.get(key)
        if hour is None:
            return None
        cohort = self._by_hour[hour]
        state = dump_state(cohort.state, cohort.keys.index(key), self._mark)
        return StoredForecast(hour, msgspec.Raw(state), self._decisions.get(key))

    def _forget(self, wanted: Mapping[Key, int]) -> None:
        if self._hours.keys() <= wanted.keys():
            return
        for hour, cohort in list(self._by_hour.items()):
            self._replace(hour, [cohort.only([key for key in cohort.keys if key in wanted])])
        self._hours = {key: hour for key, hour in self._hours.items() if key in wanted}
        self._decisions = {key: decision for key, decision in self._decisions.items() if key in wanted}

    def _skip(self, ends: Mapping[Key, int]) -> None:
        """Of a long time that nobody decided only the last hours are made up for: before them there is less and less history."""
        for hour, cohort in list(self._by_hour.items()):
            late = [key for key in cohort.keys if ends[key] - hour > self._replay_hours]
            if not late:
                continue
            self._replace(hour, [cohort.only([key for key in cohort.keys if ends[key] - hour <= self._replay_hours])])
            for to, keys in _grouped((ends[key] - self._replay_hours, key) for key in late):
                part = cohort.only(keys)
                self._join(to, [_Cohort(part.keys, interrupted(part.state))])

    def _newcomers(self, rows: Mapping[Key, Rows], ends: Mapping[Key, int]) -> dict[Key, int]:
        """Containers of which nothing is remembered, and the hour at which each begins: with its first sample, not too long ago."""
        found = {}
        for key in rows.keys() - self._hours.keys():
            span = rows[key].row(self._resource).span
            if span is not None:
                found[key] = max(span[0] // STEPS_PER_HOUR, ends[key] - self._replay_hours)
        return found

    def _admit(self, waiting: dict[Key, int], *, patient: bool) -> None:
        """Let in who waits; while others move, only those whose beginning the largest cohort has reached."""
        main = max(self._by_hour.items(), key=lambda item: len(item[1].keys), default=None)
        chosen = [key for key, begin in waiting.items() if not patient or main is None or begin <= main[0]]
        for hour, keys in _grouped((waiting.pop(key), key) for key in sorted(chosen)):
            state = self._decider.start(len(keys)) if main is None else take(main[1].state, [-1] * len(keys))
            self._join(hour, [_Cohort(tuple(keys), state)])

    def _movable(self, ends: Mapping[Key, int]) -> dict[int, list[Key]]:
        """By hour, the containers whose next hour has begun."""
        found = {hour: [key for key in cohort.keys if ends[key] > hour] for hour, cohort in self._by_hour.items()}
        return {hour: keys for hour, keys in found.items() if keys}

    def _decide(self, hour: int, keys: Sequence[Key], rows: Mapping[Key, Rows]) -> None:
        cohort, moving = self._by_hour[hour], frozenset(keys)
        decided = []
        for begin in range(0, len(keys), _ROWS_AT_ONCE):
            part = cohort.only(keys[begin : begin + _ROWS_AT_ONCE])
            grid = self._grid(part.keys, hour + 1, rows)
            state, decision = self._decider.step(part.state, grid, look(grid, self._forecasters))
            decided.append((_Cohort(part.keys, rounded(state)), decision))
        self._replace(hour, [cohort.only([key for key in cohort.keys if key not in moving])])
        self._join(hour + 1, [part for part, _ in decided])
        for part, decision in decided:
            self._keep(part.keys, hour + 1, decision)

    def _grid(self, keys: Sequence[Key], hour: int, rows: Mapping[Key, Rows]) -> UsageGrid:
        end = hour * STEPS_PER_HOUR
        values = np.empty((len(keys), self._history_steps))
        for index, key in enumerate(keys):
            row = rows[key].row(self._resource).before(end, self._history_steps)
            values[index] = rebased(row, end, rows[key].segments, self._revisions)
        return UsageGrid(values, hour * HOUR_SECONDS)

    def _keep(self, keys: Sequence[Key], hour: int, decision: EnsembleDecision) -> None:
        experts = self._decider.rules.experts
        columns = (decision.target, decision.lower, decision.upper, decision.quantile, decision.known_hours, decision.told)
        numbers = zip(*(column.tolist() for column in (*columns, decision.coverage)), strict=True)
        for key, by, chosen, row in zip(keys, decision.by, decision.chosen.tolist(), numbers, strict=True):
            target, lower, upper, quantile, known_hours, told, coverage = row
            if not math.isfinite(target):
                self._decisions.pop(key, None)
                continue
            horizon = experts[chosen].horizon.value if chosen >= 0 and experts[chosen].forecaster == by else None
            self._decisions[key] = Decision(
                hour, target, lower, upper, by, quantile, known_hours, horizon, _known(told), _known(coverage)
            )  # fmt: skip

    def _replace(self, hour: int, cohorts: Iterable[_Cohort]) -> None:
        self._by_hour.pop(hour, None)
        self._join(hour, cohorts)

    def _join(self, hour: int, cohorts: Iterable[_Cohort]) -> None:
        parts = [part for part in (self._by_hour.get(hour), *cohorts) if part is not None and part.keys]
        if parts:
            keys = tuple(key for part in parts for key in part.keys)
            self._by_hour[hour] = _Cohort(keys, joined([part.state for part in parts]))
            self._hours.update(dict.fromkeys(keys, hour))


def _grouped(items: Iterable[tuple[int, Key]]) -> Iterator[tuple[int, list[Key]]]:
    found: dict[int, list[Key]] = defaultdict(list)
    for hour, key in items:
        found[hour].append(key)
    yield from sorted(found.items())


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
