"""Everything that is read of one namespace: which queries, over which grid, and how the answers become series and findings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from vpa_ippr.api.series import ContainerRef, Finding, OomKill, Resource, UsageSeries, Window, WorkloadRef
from vpa_ippr.metrics import grid, queries
from vpa_ippr.metrics.decode import Answer, Row, decode_rows
from vpa_ippr.metrics.grid import Grid
from vpa_ippr.metrics.ooms import OomEvidence, find_kills, pods_of
from vpa_ippr.metrics.owners import resolve_owners
from vpa_ippr.metrics.quality import Reason, clean, findings_of, merge, subject_of
from vpa_ippr.metrics.queries import Scope
from vpa_ippr.metrics.settings import PrometheusSettings
from vpa_ippr.metrics.transport import Meter, Transport

QUERY = "/api/v1/query"
QUERY_RANGE = "/api/v1/query_range"

# The scrape interval is judged by the fullest of a few hours in the window.
_PROBE_SECONDS = 3600.0
_PROBES = 8
_RECENT_SECONDS = 300.0

# Owners and kills are looked for a little beyond a short window, since kube-state-metrics may not have been scraped within it.
_SHORTEST_LOOKBACK_SECONDS = 600.0

# Pods named in one matcher: keeps a query's text to some tens of kilobytes.
_PODS_PER_QUERY = 200

RowsByContainer = dict[ContainerRef, list[Row]]


@dataclass(frozen=True, slots=True)
class NamespaceUsage:
    """What was found in one namespace."""

    series: tuple[UsageSeries, ...]
    ooms: tuple[OomKill, ...]
    owners: Mapping[tuple[str, str], WorkloadRef]
    findings: tuple[Finding, ...]
    samples: int


@dataclass(slots=True)
class NamespaceReader:
    """Reads one namespace, query after query, in one thread. The meter counts even when ``read`` fails."""

    transport: Transport
    settings: PrometheusSettings
    namespace: str
    window: Window
    deadline: float
    meter: Meter = field(default_factory=Meter)
    _findings: list[Finding] = field(default_factory=list)
    _samples: int = 0

    def read(self) -> NamespaceUsage:
        """Ask for everything; raises SourceError when any query fails for good."""
        scope = Scope(self.namespace, self.settings.matchers)
        shown = self._instances(scope)
        scrape_seconds = self._scrape_interval(scope)
        step_seconds = grid.effective_step_seconds(self.window.step_seconds, scrape_seconds)
        points = grid.aligned(self.window, step_seconds)
        chunk = grid.chunk_points(shown, self.settings.max_points, self.settings.max_samples)
        rate_seconds = queries.rate_window_seconds(step_seconds, scrape_seconds)
        series = [
            *self._series(Resource.CPU, self._range(queries.cpu(scope, rate_seconds), points, chunk), points),
            *self._series(Resource.MEMORY, self._range(queries.memory(scope, step_seconds), points, chunk), points),
        ]
        self._note_resets(scope)
        owners = self._owners(scope)
        self._note_unknown_owners(series, owners)
        ooms = self._ooms(scope, points)
        return NamespaceUsage(tuple(series), tuple(ooms), owners, tuple(self._findings), self._samples)

    @property
    def _lookback_seconds(self) -> float:
        return max(self.window.end - self.window.start, _SHORTEST_LOOKBACK_SECONDS)

    def _instances(self, scope: Scope) -> int:
        """How many containers the window shows; notes those that are shown by several series most of the time."""
        answer = self._ask_range(queries.instances(scope), grid.probes(self.window, _PROBE_SECONDS, _PROBES))
        by_container = self._by_container(answer.rows)
        for container, rows in sorted(by_container.items()):
            # A restart shows the dead container's series beside the new one for some minutes: that is no duplicate.
            series = int(np.median(np.concatenate([row.values for row in rows])))
            if series > 1:
                subject = subject_of(container)
                self._note(Reason.DUPLICATE_SERIES, subject, series, f"{subject}: shown by {series} series; the largest was taken")
        return len(by_container)

    def _scrape_interval(self, scope: Scope) -> float:
        if self.settings.scrape_interval_seconds is not None:
            return self.settings.scrape_interval_seconds
        over_hours = self._interval_by(scope, grid.probes(self.window, _PROBE_SECONDS, _PROBES), _PROBE_SECONDS)
        if over_hours is None:
            return self.window.step_seconds
        # A store that has only just begun to scrape holds a few samples an hour; its last minutes tell how often it does.
        lately = self._interval_by(scope, grid.probes(self.window, _RECENT_SECONDS, 1), _RECENT_SECONDS)
        return lately if lately is not None and lately * 2 < over_hours else over_hours

    def _interval_by(self, scope: Scope, probes: Grid, window_seconds: float) -> float | None:
        answer = self._ask_range(queries.scrape_counts(scope, window_seconds), probes)
        most = max((float(row.values.max()) for row in answer.rows if row.values.size), default=0.0)
        # One sample in a window says nothing of an interval.
        return grid.scrape_interval_seconds(most, window_seconds) if most > 1 else None

    def _series(self, resource: Resource, rows: Iterable[Row], points: Grid) -> Iterator[UsageSeries]:
        for container, parts in sorted(self._by_container(rows).items()):
            cleaned = merge([clean(row.timestamps, row.values) for row in parts])
            self._findings += findings_of(
                container, resource, cleaned, interval_seconds=points.step_seconds, expected_samples=points.points
            )
            if cleaned.timestamps.size:
                yield UsageSeries(container, resource, cleaned.timestamps, cleaned.values)

    def _by_container(self, rows: Iterable[Row]) -> RowsByContainer:
        found: RowsByContainer = {}
        for row in rows:
            pod, container = row.labels.get("pod"), row.labels.get("container")
            if pod and container:
                found.setdefault(ContainerRef(self.namespace, pod, container), []).append(row)
            else:
                self._note_once(Reason.LABELS_MISSING, "series without the labels pod and container (honor_labels, or old label names?)")
        return found

    def _note_resets(self, scope: Scope) -> None:
        answer = self._ask_instant(queries.counter_resets(scope, self._lookback_seconds))
        for container, rows in sorted(self._by_container(answer.rows).items()):
            subject, count = subject_of(container), int(rows[0].values[0])
            self._note(
                Reason.COUNTER_RESETS, subject, count, f"{subject}: the CPU counter was reset {count} times, which rate() allows for"
            )

    def _owners(self, scope: Scope) -> dict[tuple[str, str], WorkloadRef]:
        lookback = self._lookback_seconds
        pods = self._ask_instant(queries.pod_owners(scope, lookback))
        replicasets = self._ask_instant(queries.replicaset_owners(scope, lookback))
        jobs = self._ask_instant(queries.job_owners(scope, lookback))
        return resolve_owners(self.namespace, pods.rows, replicasets.rows, jobs.rows)

    def _note_unknown_owners(self, series: Iterable[UsageSeries], owners: Mapping[tuple[str, str], WorkloadRef]) -> None:
        unknown = sorted({one.container.pod for one in series if (self.namespace, one.container.pod) not in owners})
        if unknown:
            message = f"{self.namespace}: kube_pod_owner does not know {len(unknown)} pods with usage, such as {unknown[0]}"
            self._note(Reason.OWNER_UNKNOWN, self.namespace, len(unknown), message)

    def _ooms(self, scope: Scope, points: Grid) -> list[OomKill]:
        pods = pods_of(self._ask_instant(queries.oom_killed(scope, self._lookback_seconds)).rows)
        if not pods or not points.points:
            return []
        moments = points.with_baseline()

        def rows(query: str) -> dict[ContainerRef, Row]:
            answers = self._range(query, moments, self.settings.max_points)
            return {container: _joined(parts) for container, parts in self._by_container(answers).items()}

        kills: list[OomKill] = []
        for first in range(0, len(pods), _PODS_PER_QUERY):
            some = pods[first : first + _PODS_PER_QUERY]
            evidence = OomEvidence(
                reason=rows(queries.oom_reason(scope, some)),
                restarts=rows(queries.restarts(scope, some)),
                terminated=rows(queries.termination_times(scope, some)),
                requests=rows(queries.memory_requests(scope, some)),
                limits=rows(queries.memory_limits(scope, some)),
            )
            kills += find_kills(evidence, moments.first_ms / 1000)
        for kill in kills:
            if kill.memory_request_bytes == 0:
                subject = subject_of(kill.container)
                self._note(Reason.OOM_WITHOUT_REQUEST, subject, 1, f"{subject}: killed for memory, and no memory request is known")
        return kills

    def _range(self, query: str, points: Grid, chunk: int) -> Iterator[Row]:
        for part in points.chunks(chunk):
            yield from self._ask_range(query, part).rows

    def _ask_range(self, query: str, points: Grid) -> Answer:
        form = {
            "query": query,
            "start": _seconds(points.first_ms),
            "end": _seconds(points.last_ms),
            "step": _seconds(points.step_ms),
        }
        return self._ask(QUERY_RANGE, form)

    def _ask_instant(self, query: str) -> Answer:
        return self._ask(QUERY, {"query": query, "time": _seconds(round(self.window.end * 1000))})

    def _ask(self, path: str, form: Mapping[str, str]) -> Answer:
        body = self.transport.post(path, form, meter=self.meter, deadline=self.deadline)
        answer = decode_rows(body, self.transport.where(path))
        self._samples += answer.samples
        for warning in answer.warnings:
            self._note_once(Reason.SERVER_WARNING, warning)
        return answer

    def _note(self, reason: Reason, subject: str, count: int, message: str) -> None:
        self._findings.append(Finding(reason, subject, count, message))

    def _note_once(self, reason: Reason, what: str) -> None:
        """A finding on the namespace that is the same each time: counted up instead of repeated."""
        message = f"{self.namespace}: {what}"
        for index, finding in enumerate(self._findings):
            if finding.reason == reason and finding.message == message:
                self._findings[index] = Finding(reason, self.namespace, finding.count + 1, message)
                return
        self._note(reason, self.namespace, 1, message)


def _joined(parts: list[Row]) -> Row:
    """The slices of one series, which a chunked range query returns in order of time."""
    if len(parts) == 1:
        return parts[0]
    return Row(parts[0].labels, np.concatenate([part.timestamps for part in parts]), np.concatenate([part.values for part in parts]))


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds / 1000:.3f}"
