"""Everything that is read of one namespace: which queries, over which grid, and how the answers become series and findings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from vpa_ippr.api.series import ContainerRef, EvidenceKind, EvidenceSeries, Finding, OomKill, Resource, UsageSeries, WorkloadRef
from vpa_ippr.metrics import queries
from vpa_ippr.metrics.asker import NamespaceAsker
from vpa_ippr.metrics.decode import Row
from vpa_ippr.metrics.grid import Grid
from vpa_ippr.metrics.ooms import OomEvidence, find_kills, pods_of
from vpa_ippr.metrics.owners import resolve_owners
from vpa_ippr.metrics.quality import Reason, clean, findings_of, merge, subject_of
from vpa_ippr.metrics.transport import Meter

# Owners and kills are looked for a little beyond a short window, since kube-state-metrics may not have been scraped within it.
_SHORTEST_LOOKBACK_SECONDS = 600.0

# Pods named in one matcher: keeps a query's text to some tens of kilobytes.
_PODS_PER_QUERY = 200


@dataclass(frozen=True, slots=True)
class NamespaceUsage:
    """What was found in one namespace."""

    series: tuple[UsageSeries, ...]
    ooms: tuple[OomKill, ...]
    owners: Mapping[tuple[str, str], WorkloadRef]
    findings: tuple[Finding, ...]
    samples: int


@dataclass(frozen=True, slots=True)
class NamespaceEvidence:
    """What was found in one namespace besides usage."""

    series: tuple[EvidenceSeries, ...]
    samples: int


@dataclass(frozen=True, slots=True)
class NamespaceNodes:
    """The node of each pod in one namespace."""

    nodes: Mapping[tuple[str, str], str]
    samples: int


@dataclass(frozen=True, slots=True)
class NamespaceReader:
    """Reads one namespace, query after query, in one thread."""

    asker: NamespaceAsker

    @property
    def namespace(self) -> str:
        """The namespace that is read."""
        return self.asker.namespace

    @property
    def meter(self) -> Meter:
        """What reading has cost, even when it fails."""
        return self.asker.meter

    def read(self) -> NamespaceUsage:
        """Ask for all usage; raises SourceError when any query fails for good."""
        asker, scope = self.asker, self.asker.scope
        plan = asker.plan()
        points = plan.points
        series = [
            *self._series(Resource.CPU, asker.range(queries.cpu(scope, plan.rate_seconds), points, plan.chunk), points),
            *self._series(Resource.MEMORY, asker.range(queries.memory(scope, points.step_seconds), points, plan.chunk), points),
        ]
        self._note_resets()
        owners = self._owners()
        self._note_unknown_owners(series, owners)
        ooms = self._ooms(points)
        return NamespaceUsage(tuple(series), tuple(ooms), owners, tuple(asker.findings), asker.samples)

    def read_pod_nodes(self) -> NamespaceNodes:
        """Ask for the node of every pod. Raises SourceError as ``read``."""
        rows = self.asker.instant(queries.pod_nodes(self.asker.scope, self._lookback_seconds)).rows
        # A pod never moves; where a name was used again on another node, one of them is taken, for repeatability.
        found = sorted(((row.labels.get("pod", ""), row.labels.get("node", "")) for row in rows), reverse=True)
        return NamespaceNodes({(self.namespace, pod): node for pod, node in found}, self.asker.samples)

    def read_evidence(self) -> NamespaceEvidence:
        """Ask for all kinds of evidence; what is odd about the series has been said of the usage. Raises SourceError as ``read``."""
        plan = self.asker.plan()
        series: list[EvidenceSeries] = []
        for kind in EvidenceKind:
            query = queries.evidence(self.asker.scope, kind, plan.points.step_seconds, plan.rate_seconds)
            rows = self.asker.by_container(self.asker.range(query, plan.points, plan.chunk))
            for container, parts in sorted(rows.items()):
                cleaned = merge([clean(row.timestamps, row.values) for row in parts])
                if cleaned.timestamps.size:
                    series.append(EvidenceSeries(container, kind, cleaned.timestamps, cleaned.values))
        return NamespaceEvidence(tuple(series), self.asker.samples)

    @property
    def _lookback_seconds(self) -> float:
        window = self.asker.window
        return max(window.end - window.start, _SHORTEST_LOOKBACK_SECONDS)

    def _series(self, resource: Resource, rows: Iterable[Row], points: Grid) -> Iterator[UsageSeries]:
        for container, parts in sorted(self.asker.by_container(rows).items()):
            cleaned = merge([clean(row.timestamps, row.values) for row in parts])
            self.asker.findings += findings_of(
                container, resource, cleaned, interval_seconds=points.step_seconds, expected_samples=points.points
            )
            if cleaned.timestamps.size:
                yield UsageSeries(container, resource, cleaned.timestamps, cleaned.values)

    def _note_resets(self) -> None:
        answer = self.asker.instant(queries.counter_resets(self.asker.scope, self._lookback_seconds))
        for container, rows in sorted(self.asker.by_container(answer.rows).items()):
            subject, count = subject_of(container), int(rows[0].values[0])
            message = f"{subject}: the CPU counter was reset {count} times, which rate() allows for"
            self.asker.note(Reason.COUNTER_RESETS, subject, count, message)

    def _owners(self) -> dict[tuple[str, str], WorkloadRef]:
        scope, lookback = self.asker.scope, self._lookback_seconds
        pods = self.asker.instant(queries.pod_owners(scope, lookback))
        replicasets = self.asker.instant(queries.replicaset_owners(scope, lookback))
        jobs = self.asker.instant(queries.job_owners(scope, lookback))
        return resolve_owners(self.namespace, pods.rows, replicasets.rows, jobs.rows)

    def _note_unknown_owners(self, series: Iterable[UsageSeries], owners: Mapping[tuple[str, str], WorkloadRef]) -> None:
        unknown = sorted({one.container.pod for one in series if (self.namespace, one.container.pod) not in owners})
        if unknown:
            message = f"{self.namespace}: kube_pod_owner does not know {len(unknown)} pods with usage, such as {unknown[0]}"
            self.asker.note(Reason.OWNER_UNKNOWN, self.namespace, len(unknown), message)

    def _ooms(self, points: Grid) -> list[OomKill]:
        asker, scope = self.asker, self.asker.scope
        pods = pods_of(asker.instant(queries.oom_killed(scope, self._lookback_seconds)).rows)
        if not pods or not points.points:
            return []
        moments = points.with_baseline()

        def rows(query: str) -> dict[ContainerRef, Row]:
            answers = asker.range(query, moments, asker.settings.max_points)
            return {container: _joined(parts) for container, parts in asker.by_container(answers).items()}

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
                asker.note(Reason.OOM_WITHOUT_REQUEST, subject, 1, f"{subject}: killed for memory, and no memory request is known")
        return kills


def _joined(parts: list[Row]) -> Row:
    """The slices of one series, which a chunked range query returns in order of time."""
    if len(parts) == 1:
        return parts[0]
    return Row(parts[0].labels, np.concatenate([part.timestamps for part in parts]), np.concatenate([part.values for part in parts]))
