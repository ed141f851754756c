"""All that an ensemble profile remembers between cycles: its decisions, the memory guard, leaks; and how a checkpoint holds it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

import msgspec
import numpy as np

from vpa_ippr.api.errors import ValidationError
from vpa_ippr.api.names import OWN_GROUP
from vpa_ippr.api.series import Finding, Resource
from vpa_ippr.forecast.catalogue import Profile
from vpa_ippr.forecast.ensemble import needed_forecasters
from vpa_ippr.forecast.ensemble_state import fingerprint
from vpa_ippr.forecast.forecasters import ProfileModel, build_forecasters
from vpa_ippr.forecast.grid import HOUR_SECONDS, UsageGrid
from vpa_ippr.forecast.leak import find_leaks
from vpa_ippr.forecast.rules import Ensemble
from vpa_ippr.recommend.cohorts import Cohorts, Decision, Key, Rows, StoredForecast
from vpa_ippr.recommend.needs import GUARD, OOM_FLOOR, Outlook
from vpa_ippr.recommend.result import Raise
from vpa_ippr.recommend.series import ContainerSeries
from vpa_ippr.usage.judged import Notes
from vpa_ippr.usage.oom import Fuse, OomMemory, floor_bytes, fuse_finding
from vpa_ippr.usage.oom import dump as dump_oom
from vpa_ippr.usage.oom import load as load_oom
from vpa_ippr.usage.revisions import Segment
from vpa_ippr.usage.steps import STEPS_PER_DAY, STEPS_PER_HOUR, ContainerSteps

_NO_LEAK: Final = (-1, None)
ANNOTATION_FORECAST: Final = f"{OWN_GROUP}/forecast-state"


class Guard(msgspec.Struct, frozen=True, array_like=True):
    """Memory that was near its limit in that hour, and what it was raised to; it stands until a later hour has been decided."""

    hour: int
    need_bytes: int


class StoredContainer(msgspec.Struct, frozen=True, rename="camel"):
    """What a checkpoint holds of a container besides its histograms."""

    schema: Literal["vpa-ippr/forecast-state/v1"] = "vpa-ippr/forecast-state/v1"
    cpu: StoredForecast | None = None
    memory: StoredForecast | None = None
    guard: Guard | None = None
    oom: dict[str, object] = {}
    segments: tuple[Segment, ...] = ()

    def forecast(self, resource: Resource) -> StoredForecast | None:
        """The part for one resource."""
        return self.cpu if resource is Resource.CPU else self.memory

    @property
    def oom_memory(self) -> OomMemory:
        """What kills taught; raises ValidationError when it is damaged."""
        return load_oom(self.oom) if self.oom else OomMemory()


def write_stored(stored: StoredContainer) -> dict[str, str]:
    """The annotation that holds it."""
    return {ANNOTATION_FORECAST: msgspec.json.encode(stored).decode()}


def read_stored(annotations: Mapping[str, str], where: str) -> StoredContainer | None:
    """The inverse; None without the annotation.

    Raises:
        ValidationError: it cannot be read (reason ``ForecastStateCorrupt``); the message begins with ``where``.
    """
    text = annotations.get(ANNOTATION_FORECAST)
    if text is None:
        return None
    try:
        stored = msgspec.json.decode(text, type=StoredContainer)
        load_oom(stored.oom) if stored.oom else None
        return stored
    except (msgspec.DecodeError, ValidationError) as error:
        raise ValidationError(f"{where} annotation {ANNOTATION_FORECAST}: {error}", reason="ForecastStateCorrupt") from error


@dataclass(frozen=True, slots=True, eq=False)
class _Told:
    """What was found in the notes on a container's CPU and memory."""

    cpu: Notes | None
    memory: Notes | None
    findings: tuple[Finding, ...]


class ProfileForecasts:
    """Everything for the containers of one profile; not for use by several threads at once."""

    def __init__(self, profile: Profile, model: ProfileModel | None) -> None:
        """Raises UsageError when an expert needs a model and there is none."""
        ensemble = profile.ensemble
        assert ensemble is not None  # the profile's schema requires it of those that are given here
        self._profile = profile
        self._cohorts = {resource: _cohorts(profile, ensemble, resource, model) for resource in Resource}
        self._oom_rules = ensemble.oom
        self._leak_steps = ensemble.history_days * STEPS_PER_DAY
        # By container the hour in which it was looked at, and what was found.
        self._leaks: dict[Key, tuple[int, Finding | None]] = {}
        self._guards: dict[Key, Guard] = {}
        self._limits: Mapping[Key, float] = {}
        self._judged: dict[Key, _Told] = {}

    def use(self, model: ProfileModel) -> None:
        """Decide with another model: what rests on the one before is forgotten, so that the last hours are decided again."""
        assert self._profile.ensemble is not None  # see above
        for resource, cohorts in self._cohorts.items():
            renewed = _cohorts(self._profile, self._profile.ensemble, resource, model)
            if renewed.mark != cohorts.mark:
                self._cohorts[resource] = renewed

    def advance(self, rows: Mapping[Key, Rows], limits: Mapping[Key, float]) -> None:
        """Decide what is due, see ``Cohorts.advance``; ``limits`` are the memory limits in force in bytes, NaN or absent for none."""
        self._limits = limits
        for cohorts in self._cohorts.values():
            cohorts.advance(rows)
        self._look_for_leaks(rows, limits)
        self._judged = {key: told for key, told in self._judged.items() if key in rows}
        self._guards = {key: guard for key, guard in self._guards.items() if key in rows and not self._is_over(key, guard)}

    def decision(self, key: Key, resource: Resource) -> Decision | None:
        """The newest decision; None when there is none yet."""
        return self._cohorts[resource].decision(key)

    def outlook(
        self, key: Key, series: ContainerSeries, now: float, floors: Mapping[Resource, tuple[Raise, ...]] = MappingProxyType({})
    ) -> Outlook:
        """All that is known of a container, with the floors that pods tell of."""
        floor = floor_bytes(series.oom, now, self._oom_rules)
        kills = () if floor is None else (Raise(OOM_FLOOR, math.ceil(floor)),)
        fuse = fuse_finding(series.oom, _subject(key), now, self._oom_rules)
        noticed = (fuse, self._leaks.get(key, _NO_LEAK)[1], *self._judgements(key, series.steps))
        return Outlook(
            self.decision(key, Resource.CPU),
            self.decision(key, Resource.MEMORY),
            {**floors, Resource.MEMORY: (*kills, *floors.get(Resource.MEMORY, ()))},
            tuple(finding for finding in noticed if finding is not None),
            self._ceiling(key, series.oom) if fuse is not None else None,
        )

    def _ceiling(self, key: Key, oom: OomMemory) -> int | None:
        """Where a blown fuse stops the forecast and the guard, too: they follow the use of what is fed. Nothing is taken away for it."""
        limit = self._limits.get(key, math.nan)
        if oom.fuse is not Fuse.GROWTH or math.isnan(limit):
            return None
        return math.ceil(max(oom.floor_bytes, limit))

    def guarded(self, key: Key, now: float, need_bytes: int | None) -> tuple[Raise, ...]:
        """The guard's floor, with what is needed now (None: nothing is near its limit)."""
        before = self._guards.get(key)
        if need_bytes is not None:
            need = need_bytes if before is None else max(need_bytes, before.need_bytes)
            self._guards[key] = before = Guard(int(now // HOUR_SECONDS), need)
        return () if before is None else (Raise(GUARD, before.need_bytes),)

    def load(self, stored: Mapping[Key, StoredContainer]) -> dict[Key, ValidationError]:
        """Go on from what was stored; why it cannot be used, where it cannot, by container."""
        refused: dict[Key, ValidationError] = {}
        for resource, cohorts in self._cohorts.items():
            parts = {key: part for key, one in stored.items() if (part := one.forecast(resource)) is not None}
            refused |= cohorts.load(parts)
        self._guards |= {key: one.guard for key, one in stored.items() if one.guard is not None}
        return refused

    def dump(self, key: Key, oom: OomMemory, segments: tuple[Segment, ...]) -> StoredContainer:
        """What a checkpoint should hold of a container."""
        cpu, memory = (self._cohorts[resource].dump(key) for resource in (Resource.CPU, Resource.MEMORY))
        return StoredContainer(
            cpu=cpu, memory=memory, guard=self._guards.get(key), oom=dump_oom(oom) if oom.kills else {}, segments=segments
        )  # fmt: skip

    def _is_over(self, key: Key, guard: Guard) -> bool:
        decision = self.decision(key, Resource.MEMORY)
        return decision is not None and decision.hour > guard.hour

    def _judgements(self, key: Key, steps: ContainerSteps) -> tuple[Finding, ...]:
        """What the evidence of the last day is worth telling; worked out when there is something new."""
        cpu, memory = steps.cpu_notes, steps.memory_notes
        known = self._judged.get(key)
        if known is None or known.cpu is not cpu or known.memory is not memory:
            subject = _subject(key)
            told = (
                None if cpu is None else cpu.censoring.finding(0, subject),
                None if memory is None else memory.tightness.finding(0, subject),
            )
            known = self._judged[key] = _Told(cpu, memory, tuple(finding for finding in told if finding is not None))
        return known.findings

    def _look_for_leaks(self, rows: Mapping[Key, Rows], limits: Mapping[Key, float]) -> None:
        """Once an hour for each container, on its own history: what an earlier revision used is no part of a leak."""
        self._leaks = {key: found for key, found in self._leaks.items() if key in rows}
        due: dict[int, list[Key]] = defaultdict(list)
        for key, one in rows.items():
            hour = one.memory.end // STEPS_PER_HOUR
            if self._leaks.get(key, _NO_LEAK)[0] != hour:
                due[hour].append(key)
        for hour, keys in due.items():
            values = np.stack([rows[key].memory.before(hour * STEPS_PER_HOUR, self._leak_steps) for key in keys])
            in_force = np.array([limits.get(key, np.nan) for key in keys])
            leaks = find_leaks(UsageGrid(values, hour * HOUR_SECONDS), in_force)
            for index, key in enumerate(keys):
                self._leaks[key] = hour, leaks.finding(index, _subject(key)) if leaks.found[index] else None


def _cohorts(profile: Profile, ensemble: Ensemble, resource: Resource, model: ProfileModel | None) -> Cohorts:
    rules = ensemble.resource(resource)
    forecasters = build_forecasters(profile, resource, model, needed_forecasters([rules]))
    return Cohorts(resource, ensemble, forecasters, fingerprint(rules, model))


def _subject(key: Key) -> str:
    workload, container = key
    return f"{workload.namespace}/{workload.name}/{container}"
