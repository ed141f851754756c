"""The usage of the workloads that have a VPA, kept from cycle to cycle, and where reading has got to for each.

A workload that is new is read from the start of the history. Where its checkpoint goes further back than the history does, the checkpoint
is taken and only what came after it is added. A workload whose namespace could not be read stays where it was and is read from there
the next time: nothing is lost, nothing counts twice.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from vpa_ippr.api.series import ContainerRef, Evidence, EvidenceSeries, Finding, OomKill, Usage, UsageSeries, Window, WorkloadRef
from vpa_ippr.recommend.cohorts import Key
from vpa_ippr.recommend.forecasts import StoredContainer
from vpa_ippr.recommend.instances import Instances, by_last_sample, feed
from vpa_ippr.recommend.pipeline import ContainerUse, current_uses
from vpa_ippr.recommend.series import NO_EVIDENCE, ContainerSeries, FreshSeries, Keeping, evidence_window, feed_together, with_policy
from vpa_ippr.usage.checkpoint import StoredState
from vpa_ippr.usage.container import AggregateState, UsageRules, fold
from vpa_ippr.usage.revisions import Segment, followed
from vpa_ippr.usage.steps import ContainerSteps

RulesOf = Callable[[str], UsageRules]
"""The rules for samples of a container, by its name."""

# Days of a whole cluster at once would be gigabytes (5,000 containers, 8 days, a sample a minute: 1.8 GB).
_NAMESPACES_AT_ONCE = 8
_LONG_SECONDS = 6 * 3600.0
_NO_USAGE = Usage(())

# Times are whole milliseconds to Prometheus.
_OPEN_END_SECONDS = 0.001


def history_start(now: float, history_seconds: float) -> float:
    """Where a window must start to hold the history with both its ends.

    A window is open where it starts; the range query with which upstream reads the history is closed at both ends.
    """
    return now - history_seconds - _OPEN_END_SECONDS


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """One question to the source: these namespaces from ``start``, for these workloads."""

    start: float
    workloads: tuple[WorkloadRef, ...]

    @property
    def namespaces(self) -> tuple[str, ...]:
        """The namespaces to read, each once."""
        return tuple(sorted({workload.namespace for workload in self.workloads}))


def _parts(workloads: Sequence[WorkloadRef], most: int) -> Iterator[tuple[WorkloadRef, ...]]:
    """The workloads, sorted, in parts of at most so many namespaces."""
    namespaces = sorted({workload.namespace for workload in workloads})
    for begin in range(0, len(namespaces), most):
        part = frozenset(namespaces[begin : begin + most])
        yield tuple(workload for workload in workloads if workload.namespace in part)


@dataclass(frozen=True, slots=True)
class Tracking:
    """How a workload's samples are kept: its profile's rules, from those the rules of each container, and what an ensemble needs."""

    rules: UsageRules
    rules_of: RulesOf
    keeping: Keeping | None = None


@dataclass(slots=True, eq=False)
class _Track:
    how: Tracking
    read_through: float | None = None
    observed_from: float = -math.inf
    series: dict[str, ContainerSeries] = field(default_factory=dict)
    segments: tuple[Segment, ...] = ()
    bases: dict[str, AggregateState] = field(default_factory=dict)
    instances: dict[str, Instances] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)


class UsageHistory:
    """All that is known of the tracked workloads; not for use by several threads at once."""

    def __init__(self) -> None:
        self._tracks: dict[WorkloadRef, _Track] = {}

    def track(self, wanted: Mapping[WorkloadRef, Tracking]) -> None:
        """Track exactly these workloads; one whose profile keeps samples in another way starts anew, from the history."""
        for workload in self._tracks.keys() - wanted.keys():
            del self._tracks[workload]
        for workload, how in wanted.items():
            known = self._tracks.get(workload)
            if known is None or (known.how.rules, known.how.keeping) != (how.rules, how.keeping):
                self._tracks[workload] = _Track(how)
            else:
                known.how = how

    def new_among(self, workloads: Collection[WorkloadRef]) -> frozenset[WorkloadRef]:
        """Those of which nothing has been read yet."""
        return frozenset(workload for workload in workloads if self._tracks[workload].read_through is None)

    def requests(self, workloads: Collection[WorkloadRef], now: float, history_seconds: float) -> list[ReadRequest]:
        """What to read to know everything of these workloads up to ``now``, oldest start first.

        A workload that is new is read for ``history_seconds``, or longer where its profile looks at more.
        """
        by_start: dict[float, list[WorkloadRef]] = defaultdict(list)
        for workload in workloads:
            read_through = self._tracks[workload].read_through
            oldest = history_start(now, self._needed_seconds(workload, history_seconds))
            start = oldest if read_through is None else max(oldest, read_through)
            if start < now:
                by_start[start].append(workload)
        return [
            ReadRequest(start, part)
            for start, found in sorted(by_start.items())
            for part in _parts(sorted(found), most=_NAMESPACES_AT_ONCE if now - start > _LONG_SECONDS else len(found))
        ]

    def evidence_request(self, request: ReadRequest, until: float) -> tuple[Window, tuple[str, ...]] | None:
        """The window and the namespaces of the evidence that goes with a request; None when no workload wants any."""
        found: dict[str, Window] = {}
        for workload in request.workloads:
            window = evidence_window(self._tracks[workload].how.keeping, request.start, until)
            if window is not None:
                found[workload.namespace] = window
        return (next(iter(found.values())), tuple(sorted(found))) if found else None

    def absorb(
        self,
        request: ReadRequest,
        usage: Usage,
        until: float,
        owners: Mapping[tuple[str, str], WorkloadRef],
        stored: Mapping[Key, StoredState],
        unread: Collection[str] = (),
        learned: Mapping[Key, StoredContainer] | None = None,
        evidence: Evidence = NO_EVIDENCE,
    ) -> tuple[Finding, ...]:
        """Add what was read for a request. ``owners`` goes before the source's own; namespaces in ``unread`` could not be read.

        ``stored`` and ``learned`` are of checkpoints; they count for workloads of which nothing has been read yet.
        """
        parts = self._split(request, usage, owners)
        judging: dict[ContainerRef, list[EvidenceSeries]] = defaultdict(list)
        for one in evidence.series:
            judging[one.container].append(one)
        read = {
            workload: _by_container(parts.get(workload, _NO_USAGE)) for workload in request.workloads if workload.namespace not in unread
        }  # fmt: skip
        self._follow(read, judging, request.start, until, learned or {})
        return tuple(finding for workload, usage in read.items() for finding in self._advance(workload, usage, until, stored))

    def uses(self, workload: WorkloadRef, as_of: float, only: Collection[str] | None = None) -> dict[str, ContainerUse]:
        """The workload's containers that still count, or of these ``only`` the named ones."""
        track = self._tracks[workload]
        found = current_uses(track.instances, track.bases, track.how.rules_of, as_of, track.series)
        return {name: use for name, use in found.items() if only is None or name in only}

    def changed(self, workload: WorkloadRef) -> dict[str, StoredState]:
        """The state of each container that has got samples since ``saved`` was told of it."""
        track = self._tracks[workload]
        if track.read_through is None:
            return {}
        return {
            name: StoredState(self._base(track, name), track.instances.get(name, {}), track.read_through) for name in sorted(track.changed)
        }

    def segments(self, workload: WorkloadRef) -> tuple[Segment, ...]:
        """The revisions that the workload has gone through, as far as they were seen."""
        return self._tracks[workload].segments

    def see_revision(self, workload: WorkloadRef, revision: str, begin: int) -> None:
        """The workload's newest pods are of a revision that began at that step."""
        track = self._tracks[workload]
        track.segments = followed(track.segments, revision, begin)

    def series(self, workload: WorkloadRef) -> Mapping[str, ContainerSeries]:
        """What an ensemble looks at, by container; nothing under another profile, or before the first reading."""
        return self._tracks[workload].series

    def steps(self) -> dict[Key, ContainerSteps]:
        """What every container that an ensemble looks at used."""
        return {(workload, name): one.steps for workload, track in self._tracks.items() for name, one in track.series.items()}

    def save_all(self) -> None:
        """Count every container as changed: what is stored of it besides its usage is out of date."""
        for track in self._tracks.values():
            track.changed |= {*track.bases, *track.instances}

    def saved(self, workload: WorkloadRef, container: str) -> None:
        """A container's state has been written."""
        self._tracks[workload].changed.discard(container)

    def _split(self, request: ReadRequest, usage: Usage, owners: Mapping[tuple[str, str], WorkloadRef]) -> dict[WorkloadRef, Usage]:
        known = {
            (ref.namespace, ref.pod): workload
            for workload in request.workloads
            for instances in self._tracks[workload].instances.values()
            for ref in instances
        }
        wanted = frozenset(request.workloads)

        def workload_of(ref: ContainerRef) -> WorkloadRef | None:
            pod = (ref.namespace, ref.pod)
            found = owners.get(pod) or usage.owners.get(pod) or known.get(pod)
            return found if found in wanted else None

        series: dict[WorkloadRef, list[UsageSeries]] = defaultdict(list)
        ooms: dict[WorkloadRef, list[OomKill]] = defaultdict(list)
        for one in usage.series:
            if (workload := workload_of(one.container)) is not None:
                series[workload].append(one)
        for oom in usage.ooms:
            if (workload := workload_of(oom.container)) is not None:
                ooms[workload].append(oom)
        return {workload: Usage(tuple(series[workload]), tuple(ooms[workload])) for workload in {*series, *ooms}}

    def _needed_seconds(self, workload: WorkloadRef, at_least: float) -> float:
        keeping = self._tracks[workload].how.keeping
        return at_least if keeping is None else max(at_least, keeping.steps.history_seconds)

    def _follow(
        self,
        read: Mapping[WorkloadRef, Mapping[str, Usage]],
        judging: Mapping[ContainerRef, Sequence[EvidenceSeries]],
        start: float,
        until: float,
        learned: Mapping[Key, StoredContainer],
    ) -> None:
        """Feed what an ensemble looks at, of all workloads together; to be done before ``read_through`` moves."""
        fresh = {
            (workload, name): one
            for workload, usage in read.items()
            for name, one in self._fresh(workload, usage, judging, start, learned).items()
        }
        for (workload, name), series in zip(fresh, feed_together([*fresh.values()], until=until), strict=True):
            self._tracks[workload].series[name] = series

    def _fresh(
        self,
        workload: WorkloadRef,
        usage: Mapping[str, Usage],
        judging: Mapping[ContainerRef, Sequence[EvidenceSeries]],
        start: float,
        learned: Mapping[Key, StoredContainer],
    ) -> dict[str, FreshSeries]:
        """What is new of each container of a workload under an ensemble."""
        track = self._tracks[workload]
        keeping, after = track.how.keeping, track.read_through
        if keeping is None:
            return {}
        own: dict[str, StoredContainer] = {}
        if after is None:
            own = {name: one for (owner, name), one in learned.items() if owner == workload}
            track.observed_from, after = start, -math.inf
            track.segments = max((one.segments for one in own.values()), key=len, default=())
        fresh = {}
        for name in sorted({*track.series, *usage, *own}):
            series = track.series.get(name)
            if series is None:
                series = ContainerSeries.empty(keeping, track.observed_from)
                series = replace(series, oom=own[name].oom_memory) if name in own else series
            own_keeping = with_policy(keeping, track.how.rules, track.how.rules_of(name))
            part = usage.get(name, _NO_USAGE)
            # An instance may have evidence on the step that is over, and no sample since.
            refs = {*series.steps.instances, *(one.container for one in part.series)}
            evidence = [one for ref in refs for one in judging.get(ref, ())]
            fresh[name] = FreshSeries(series, part, own_keeping, evidence, after)
        return fresh

    def _advance(
        self, workload: WorkloadRef, usage: Mapping[str, Usage], until: float, stored: Mapping[Key, StoredState]
    ) -> tuple[Finding, ...]:
        track = self._tracks[workload]
        findings: list[Finding] = []
        saved = {name: state for (owner, name), state in stored.items() if owner == workload} if track.read_through is None else {}
        for name in sorted({*usage, *saved}):
            part, after = usage.get(name, _NO_USAGE), track.read_through if track.read_through is not None else -math.inf
            if name in saved and (saved[name].goes_first or _reaches_further_back(saved[name], part)):
                track.bases[name], track.instances[name] = saved[name].base, dict(saved[name].instances)
                after = saved[name].read_through
            findings += self._feed(track, name, part, after, until)
        track.read_through = until
        for name in list(track.instances):
            self._retire(track, name, until)
        return tuple(findings)

    @staticmethod
    def _feed(track: _Track, name: str, usage: Usage, after: float, until: float) -> tuple[Finding, ...]:
        rules, before = track.how.rules_of(name), track.instances.get(name, {})
        current = {ref: state if state.rules == rules else replace(state, rules=rules) for ref, state in before.items()}
        fed, findings = feed(current, usage, lambda _: rules, after=after, until=until)
        if any(fed[ref] is not current.get(ref) for ref in fed):
            track.changed.add(name)
        track.instances[name] = fed
        return findings

    def _retire(self, track: _Track, name: str, until: float) -> None:
        """Fold instances that ended an aggregation interval ago into the base, and forget a container that has expired.

        They are first in the order of folding anyway, so no number changes.
        """
        rules = track.how.rules_of(name)
        base, instances = self._base(track, name), track.instances[name]
        for ref, state in by_last_sample(instances):
            if until - state.last_sample < rules.aggregation_interval_seconds:
                break
            base = track.bases[name] = fold(base, state)
            del instances[ref]
        if not instances and until - base.last_sample >= rules.expiry_seconds:
            track.bases.pop(name, None)
            track.instances.pop(name)
            track.series.pop(name, None)
            track.changed.discard(name)

    @staticmethod
    def _base(track: _Track, name: str) -> AggregateState:
        return track.bases.get(name) or AggregateState.empty(track.how.rules_of(name))


def _by_container(usage: Usage) -> dict[str, Usage]:
    series: dict[str, list[UsageSeries]] = defaultdict(list)
    ooms: dict[str, list[OomKill]] = defaultdict(list)
    for one in usage.series:
        series[one.container.container].append(one)
    for oom in usage.ooms:
        ooms[oom.container.container].append(oom)
    return {name: Usage(tuple(series[name]), tuple(ooms[name])) for name in {*series, *ooms}}


def _reaches_further_back(stored: StoredState, usage: Usage) -> bool:
    """True when the checkpoint knows of samples from before the first one that was read."""
    spans = (stored.base.cpu_span, stored.base.memory_span)
    first_stored = min((span.first for span in spans if span.first is not None), default=math.inf)
    # Upstream's checkpoints hold whole seconds, so less than one says nothing.
    return first_stored < _first_sample(usage.series) - 1.0


def _first_sample(series: Iterable[UsageSeries]) -> float:
    return min((float(one.timestamps[0]) for one in series if len(one.timestamps)), default=math.inf)
