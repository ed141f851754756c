"""What an ensemble profile keeps of a container besides its histograms: its use in steps, and what OOM kills taught.

Evidence is asked for in whole steps: one point tells of one step, and it is there when the step is over.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Self

import msgspec
import numpy as np

from vpa_ippr.api.errors import SourceError
from vpa_ippr.api.series import ContainerRef, Evidence, EvidenceSeries, Finding, Floats, OomKill, Resource, Usage, Window
from vpa_ippr.forecast.catalogue import Profile
from vpa_ippr.usage.container import DAY_SECONDS, UsageRules
from vpa_ippr.usage.feeding import Fresh, feed_all
from vpa_ippr.usage.oom import OomMemory, OomRules, record
from vpa_ippr.usage.steps import STEP_SECONDS, STEPS_PER_HOUR, ContainerSteps, StepRules

NO_EVIDENCE: Final = Evidence(())
_STEPS_PER_DAY: Final = round(DAY_SECONDS / STEP_SECONDS)


@dataclass(frozen=True, slots=True)
class Keeping:
    """How it is kept."""

    steps: StepRules
    oom: OomRules


@dataclass(frozen=True, slots=True, eq=False)
class ContainerSeries:
    """It itself, for one container's name of a workload."""

    steps: ContainerSteps
    oom: OomMemory = field(default_factory=OomMemory)

    @classmethod
    def empty(cls, keeping: Keeping, observed_from: float) -> Self:
        """Before the first sample; looking began at ``observed_from`` (seconds)."""
        return cls(ContainerSteps.empty(keeping.steps, observed_from))


def keeping_of(profile: Profile) -> Keeping | None:
    """None for a profile whose histograms are all it needs.

    The rows reach back so far that the first of the hours that may have to be decided again still has its whole history.
    """
    ensemble = profile.ensemble
    if ensemble is None:
        return None
    steps = ensemble.history_days * _STEPS_PER_DAY + ensemble.replay_hours * STEPS_PER_HOUR
    evidence = ensemble.evidence if ensemble.evidence.enabled else None
    return Keeping(StepRules(steps, ensemble.series.pods, ensemble.series.startup_seconds, evidence), ensemble.oom)


def history_seconds_of(profile: Profile, at_least: float) -> float:
    """How far back usage has to be read for a profile."""
    keeping = keeping_of(profile)
    return at_least if keeping is None else max(at_least, keeping.steps.history_seconds)


def evidence_window(keeping: Keeping | None, start: float, end: float) -> Window | None:
    """What evidence to read beside the usage of ``start < t <= end``; None when none counts, or no step ends in that time."""
    counts = keeping is not None and keeping.steps.evidence is not None
    ends_step = math.floor(end / STEP_SECONDS) > math.floor(start / STEP_SECONDS)
    return Window(start, end, STEP_SECONDS) if counts and ends_step else None


def unread_evidence(error: SourceError) -> Evidence:
    """What stands for evidence that could not be read: it is optional, so its failure is but a finding."""
    return replace(NO_EVIDENCE, findings=(Finding(error.reason, "evidence", 1, f"evidence: {error}: recommendations do without"),))


def with_policy(keeping: Keeping, rules: UsageRules, own: UsageRules) -> Keeping:
    """With what a VPA's policy asks of OOM kills at least: where a container's ``own`` rules differ from the profile's ``rules``."""
    oom = keeping.oom
    if own.oom_bump_up_ratio != rules.oom_bump_up_ratio:
        ratios = tuple(max(ratio, own.oom_bump_up_ratio) for ratio in oom.raise_ratios)
        oom = msgspec.structs.replace(oom, raise_ratios=ratios)
    if own.oom_min_bump_up_bytes != rules.oom_min_bump_up_bytes:
        oom = msgspec.structs.replace(oom, min_raise_bytes=max(oom.min_raise_bytes, own.oom_min_bump_up_bytes))
    return keeping if oom is keeping.oom else replace(keeping, oom=oom)


@dataclass(frozen=True, slots=True, eq=False)
class FreshSeries:
    """What is new of a container: of its ``usage`` what is later than ``after``, and ``evidence`` on the steps that end since then."""

    series: ContainerSeries
    usage: Usage
    keeping: Keeping
    evidence: Iterable[EvidenceSeries] = ()
    after: float = -math.inf


def feed_series(
    series: ContainerSeries, usage: Usage, keeping: Keeping, evidence: Iterable[EvidenceSeries] = (), *, until: float
) -> ContainerSeries:
    """With the samples and kills up to ``until``, and the evidence on the steps that end in that time."""
    return feed_together([FreshSeries(series, usage, keeping, evidence)], until=until)[0]


def feed_together(fresh: Sequence[FreshSeries], *, until: float) -> list[ContainerSeries]:
    """Each container with what is new of it up to ``until``, in that order."""
    steps = feed_all([Fresh(one.series.steps, one.usage.series, one.evidence, one.after) for one in fresh], until=until)
    return [ContainerSeries(own, _killed(one, until)) for one, own in zip(fresh, steps, strict=True)]


def _killed(fresh: FreshSeries, until: float) -> OomMemory:
    """What kills taught, the new ones included."""
    oom, kills = fresh.series.oom, [kill for kill in fresh.usage.ooms if fresh.after < kill.at <= until]
    if not kills:
        return oom
    memory = {one.container: (one.timestamps, one.values) for one in fresh.usage.series if one.resource is Resource.MEMORY}
    for kill in sorted(kills, key=_by_size):
        used = _used_before(kill, memory, fresh.series.steps)
        oom = record(oom, kill.at, kill.memory_limit_bytes, used, fresh.keeping.oom, request_bytes=kill.memory_request_bytes)
    return oom


def _by_size(kill: OomKill) -> tuple[float, int, ContainerRef]:
    """In the order of time; of several at one moment the largest comes first, for it is the one that counts."""
    return kill.at, -(kill.memory_limit_bytes or kill.memory_request_bytes), kill.container


def _used_before(kill: OomKill, memory: Mapping[ContainerRef, tuple[Floats, Floats]], steps: ContainerSteps) -> float | None:
    """The newest sample of the instance when it was killed."""
    times, values = memory.get(kill.container, (np.empty(0), np.empty(0)))
    place = int(np.searchsorted(times, kill.at, side="right"))
    if place:
        return float(values[place - 1])
    known = steps.newest_memory(kill.container)
    return None if known is None else known.used_bytes
