"""The recommender's service on containers that feel what it decides: killed at the limit, cut off at the quota, raised and tried again.

A replay of recordings cannot show that: what a container would have used with more memory was never recorded. Here the need is made up.
Time passes in minutes, each with a sample of what could be seen; what kills or is cut off never is. The recommender looks every quarter
of an hour, and a minute after a kill (in a cluster it looks every minute). Request and limit are one; they are raised at once
when the target is above them, and lowered when they are above the upper bound, in place, for whatever profile.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
import numpy as np

from bench.clock import StandingClock
from bench.objects import NOW
from vpa_ippr.api.cluster import EventType, Node, Workload
from vpa_ippr.api.meta import ObjectKey, ObjectMeta, OwnerReference
from vpa_ippr.api.names import ANNOTATION_RESIZE_LEDGER
from vpa_ippr.api.pod import Container, Pod, PodSpec, PodStatus
from vpa_ippr.api.resources import ResourceRequirements
from vpa_ippr.api.series import ContainerRef, Floats, OomKill, Resource, Usage, UsageSeries, Window
from vpa_ippr.api.timestamps import format_time
from vpa_ippr.api.vpa import Quantities, RecommenderSelector, TargetRef, Vpa, VpaCheckpoint, VpaSpec, VpaStatus
from vpa_ippr.forecast.catalogue import load_catalogue
from vpa_ippr.recommend.cycle import RecommenderSettings
from vpa_ippr.recommend.result import Recommendation
from vpa_ippr.recommend.service import RecommenderService

MINUTE: Final = 60.0
HOUR: Final = 3600.0
MINUTES_PER_HOUR: Final = 60
BEGIN: Final = NOW
_CYCLE_MINUTES: Final = 15
# The kubelet waits 10 s before it starts a killed container again, twice as long each time, and 5 min at most; ten minutes of running
# well make it forget.
_BACK_OFF_MINUTES: Final = (10 / 60, 20 / 60, 40 / 60, 80 / 60, 160 / 60, 5.0)
_FORGIVEN_MINUTES: Final = 10
# A raise by less changes nothing for the container.
_LEAST_RAISE: Final = 0.02
_NAMESPACE: Final = "made-up"
FIRST_REVISION: Final = "first"

Need = Callable[[float, float], float]
"""What a container needs, given the hours since the beginning and since it started."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A Deployment of one pod: its profile, its first limits (bytes, cores) and what it needs of memory and CPU.

    ``cpu_is_limited``: what it uses ends at the limit; otherwise only requests are set. ``rollouts``: by hour, the revision of the pod that
    replaces the present one then; the first is ``FIRST_REVISION``.
    """

    name: str
    profile: str
    memory_limit: float
    memory: Need
    cpu_limit: float = 1.0
    cpu: Need = lambda _hours, _age: 0.1
    cpu_is_limited: bool = False
    rollouts: Mapping[float, str] = field(default_factory=dict)


@dataclass(slots=True)
class Course:
    """What happened to a subject, minute by minute: limits in force, what was used (NaN while it was down), what was needed.

    ``kills`` and ``resizes``: the minutes of memory's; ``findings``: for each reason code the minutes of the cycles that told it.
    """

    limit: dict[Resource, list[float]] = field(default_factory=lambda: {resource: [] for resource in Resource})
    used: dict[Resource, list[float]] = field(default_factory=lambda: {resource: [] for resource in Resource})
    need: dict[Resource, list[float]] = field(default_factory=lambda: {resource: [] for resource in Resource})
    kills: list[int] = field(default_factory=list)
    resizes: dict[Resource, list[int]] = field(default_factory=lambda: {resource: [] for resource in Resource})
    findings: dict[str, list[int]] = field(default_factory=dict)

    def limits(self, resource: Resource) -> Floats:
        return np.array(self.limit[resource])

    def needs(self, resource: Resource) -> Floats:
        return np.array(self.need[resource])


def run(subjects: Sequence[Subject], days: float) -> dict[str, Course]:
    """What becomes of the subjects, by name; the same arguments give the same result."""
    lives = [_Life(subject) for subject in subjects]
    world, clock = _World(lives), StandingClock(BEGIN)
    service = RecommenderService(world, world, clock, load_catalogue(), RecommenderSettings())
    killed = False
    for minute in range(1, round(days * 24 * MINUTES_PER_HOUR) + 1):
        killed_before, killed = killed, False
        for life in lives:
            killed |= life.live(minute)
        if killed_before or minute % _CYCLE_MINUTES == 0:
            clock.moment = BEGIN + minute * MINUTE
            result = service.run_cycle()
            assert not result.failures, result.failures[:3]
            for outcome in result.outcomes:
                for recommendation in outcome.recommendations or ():
                    world.by_name[recommendation.workload.name].obey(minute, recommendation)
    return {life.subject.name: life.course for life in lives}


class _Life:
    """One subject in time."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.course = Course()
        self.limits = {Resource.MEMORY: subject.memory_limit, Resource.CPU: subject.cpu_limit}
        self.samples: dict[ContainerRef, dict[Resource, tuple[list[float], list[float]]]] = {}
        self.ooms: list[OomKill] = []
        self._revision = FIRST_REVISION
        self._pods = 0
        self._created = 0
        self._started = 0.0
        self._down_until = 0.0
        self._quick_kills = 0
        self._rollouts = {round(hour * MINUTES_PER_HOUR): revision for hour, revision in subject.rollouts.items()}
        self._resized_at: dict[str, float] = {}

    @property
    def ref(self) -> ContainerRef:
        return ContainerRef(_NAMESPACE, f"{self.subject.name}-{self._pods}", "app")

    def live(self, minute: int) -> bool:
        """Let a minute pass; True if it was killed in it."""
        if minute in self._rollouts:
            self._revision, self._pods, self._resized_at = self._rollouts[minute], self._pods + 1, {}
            self._created, self._started, self._down_until, self._quick_kills = minute, minute, minute, 0
        hours, age = minute / MINUTES_PER_HOUR, (minute - self._started) / MINUTES_PER_HOUR
        needs = {Resource.MEMORY: self.subject.memory(hours, age), Resource.CPU: self.subject.cpu(hours, age)}
        is_up = minute >= self._down_until
        if is_up and age * MINUTES_PER_HOUR >= _FORGIVEN_MINUTES:
            self._quick_kills = 0
        killed = is_up and needs[Resource.MEMORY] > self.limits[Resource.MEMORY]
        for resource, need in needs.items():
            is_limited = resource is Resource.MEMORY or self.subject.cpu_is_limited
            used = (min(need, self.limits[resource]) if is_limited else need) if is_up and not killed else math.nan
            self._note(minute, resource, need, used)
        if killed:
            self._die(minute)
        return killed

    def obey(self, minute: int, recommendation: Recommendation) -> None:
        """Resize as is recommended."""
        for resource in Resource:
            scale = 0.001 if resource is Resource.CPU else 1.0
            target, upper = recommendation.target.get(resource), recommendation.upper_bound.get(resource)
            if target is None or upper is None:
                continue
            held = self.limits[resource]
            if target * scale > held * (1 + _LEAST_RAISE) or upper * scale < held:
                self.limits[resource] = target * scale
                self.course.resizes[resource].append(minute)
                self._resized_at[f"{resource}At"] = BEGIN + minute * MINUTE
        for finding in recommendation.explanation.findings:
            told = self.course.findings.setdefault(finding.reason, [])
            if not told or told[-1] != minute:
                told.append(minute)

    def pod(self) -> Pod:
        memory, millicores = math.ceil(self.limits[Resource.MEMORY]), math.ceil(self.limits[Resource.CPU] * 1000)
        requests: Quantities = {"cpu": f"{millicores}m", "memory": str(memory)}
        limits: Quantities = requests if self.subject.cpu_is_limited else {"memory": requests["memory"]}
        owner = OwnerReference("apps/v1", "ReplicaSet", f"{self.subject.name}-rs", controller=True)
        # The part of the updater's ledger that tells the recommender of resizes.
        ledger = {ANNOTATION_RESIZE_LEDGER: msgspec.json.encode({"bases": {"app": self._resized_at}}).decode()}
        started = format_time(BEGIN + self._created * MINUTE)
        return Pod(
            ObjectMeta(
                self.ref.pod, _NAMESPACE, owner_references=[owner], labels={"pod-template-hash": self._revision}, annotations=ledger
            ),
            PodSpec([Container("app", resources=ResourceRequirements(requests, limits))]),
            PodStatus("Running", start_time=started),
        )

    def usage(self, window: Window) -> list[UsageSeries]:
        found = []
        for ref, by_resource in self.samples.items():
            for resource, (times, values) in by_resource.items():
                part = slice(bisect_right(times, window.start), bisect_right(times, window.end))
                if times[part]:
                    found.append(UsageSeries(ref, resource, np.array(times[part]), np.array(values[part])))
        return found

    def _note(self, minute: int, resource: Resource, need: float, used: float) -> None:
        self.course.limit[resource].append(self.limits[resource])
        self.course.need[resource].append(need)
        self.course.used[resource].append(used)
        if math.isfinite(used):
            times, values = self.samples.setdefault(self.ref, {}).setdefault(resource, ([], []))
            times.append(BEGIN + minute * MINUTE)
            values.append(used)

    def _die(self, minute: int) -> None:
        limit = math.ceil(self.limits[Resource.MEMORY])
        # Between two scrapes: a moment before the cycle that will learn of it.
        self.ooms.append(OomKill(self.ref, BEGIN + minute * MINUTE - 1.0, limit, limit))
        self.course.kills.append(minute)
        back_off = _BACK_OFF_MINUTES[min(self._quick_kills, len(_BACK_OFF_MINUTES) - 1)]
        self._quick_kills += 1
        self._started = self._down_until = minute + max(1, math.ceil(back_off))


class _World:
    """The recommender's ports: what it reads of the subjects, and where it writes."""

    def __init__(self, lives: Sequence[_Life]) -> None:
        self.by_name = {life.subject.name: life for life in lives}
        self._vpas = {vpa.key: vpa for vpa in map(_vpa, lives)}

    def fetch(self, window: Window, namespaces: Sequence[str] | None = None) -> Usage:
        assert namespaces == (_NAMESPACE,) or list(namespaces or ()) == [_NAMESPACE]
        series = [one for life in self.by_name.values() for one in life.usage(window)]
        ooms = [oom for life in self.by_name.values() for oom in life.ooms if window.start < oom.at <= window.end]
        return Usage(tuple(series), tuple(ooms))

    def list_vpas(self) -> list[Vpa]:
        return list(self._vpas.values())

    def list_pods(self) -> list[Pod]:
        return [life.pod() for life in self.by_name.values()]

    def list_nodes(self) -> list[Node]:
        return []

    def find_workload(self, namespace: str, api_version: str, kind: str, name: str) -> Workload | None:  # noqa: ARG002 - the port's
        if kind == "ReplicaSet":
            deployment = OwnerReference("apps/v1", "Deployment", name.removesuffix("-rs"), controller=True)
            return Workload("apps/v1", kind, name, deployment)
        return Workload("apps/v1", kind, name)

    def list_checkpoints(self) -> list[VpaCheckpoint]:
        return []

    def put_checkpoint(self, checkpoint: VpaCheckpoint) -> None:
        raise AssertionError(f"nobody asked to write {checkpoint.metadata.name}")

    def patch_vpa_status(self, key: ObjectKey, status: VpaStatus) -> None:
        self._vpas[key] = msgspec.structs.replace(self._vpas[key], status=status)

    def annotate_vpa(self, key: ObjectKey, annotations: Mapping[str, str]) -> None:
        vpa = self._vpas[key]
        metadata = msgspec.structs.replace(vpa.metadata, annotations={**vpa.metadata.annotations, **annotations})
        self._vpas[key] = msgspec.structs.replace(vpa, metadata=metadata)

    def record_event(self, vpa: Vpa, event_type: EventType, reason: str, message: str) -> None:
        """Nobody reads them here."""


def _vpa(life: _Life) -> Vpa:
    name, profile = life.subject.name, life.subject.profile
    return Vpa(
        ObjectMeta(name, _NAMESPACE, uid=f"vpa-{name}", generation=1, creation_timestamp=format_time(BEGIN)),
        VpaSpec(TargetRef("Deployment", name, "apps/v1"), recommenders=[RecommenderSelector(f"vpa-ippr-{profile}")]),
    )
