"""Questions about one namespace and a window: sends them, counts what they cost, and collects what there is to say about the data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from vpa_ippr.api.series import ContainerRef, Finding, Window
from vpa_ippr.metrics import grid, queries
from vpa_ippr.metrics.decode import Answer, Row, decode_rows
from vpa_ippr.metrics.grid import Grid
from vpa_ippr.metrics.quality import Reason, subject_of
from vpa_ippr.metrics.queries import Scope
from vpa_ippr.metrics.settings import PrometheusSettings
from vpa_ippr.metrics.transport import Meter, Transport

QUERY = "/api/v1/query"
QUERY_RANGE = "/api/v1/query_range"

# The scrape interval is judged by the fullest of a few hours in the window.
_PROBE_SECONDS = 3600.0
_PROBES = 8
_RECENT_SECONDS = 300.0

RowsByContainer = dict[ContainerRef, list[Row]]


@dataclass(frozen=True, slots=True)
class Plan:
    """How the window is asked for: the instants, how many of them at once, and what a rate averages over."""

    points: Grid
    chunk: int
    rate_seconds: float


@dataclass(slots=True)
class NamespaceAsker:
    """Asks about one namespace, query after query, in one thread. The meter counts even when a query fails."""

    transport: Transport
    settings: PrometheusSettings
    namespace: str
    window: Window
    deadline: float
    meter: Meter = field(default_factory=Meter)
    findings: list[Finding] = field(default_factory=list)
    samples: int = 0

    @property
    def scope(self) -> Scope:
        """What queries may see."""
        return Scope(self.namespace, self.settings.matchers)

    def plan(self) -> Plan:
        """Find out how many containers there are and how often they are scraped; raises SourceError as every question does."""
        shown = self._instances()
        scrape_seconds = self._scrape_interval()
        step_seconds = grid.effective_step_seconds(self.window.step_seconds, scrape_seconds)
        return Plan(
            points=grid.aligned(self.window, step_seconds),
            chunk=grid.chunk_points(shown, self.settings.max_points, self.settings.max_samples),
            rate_seconds=queries.rate_window_seconds(step_seconds, scrape_seconds),
        )

    def range(self, query: str, points: Grid, chunk: int) -> Iterator[Row]:
        """The rows of a range query, asked in slices of ``chunk`` points."""
        for part in points.chunks(chunk):
            yield from self._ask_range(query, part).rows

    def instant(self, query: str) -> Answer:
        """The answer at the end of the window."""
        return self._ask(QUERY, {"query": query, "time": _seconds(round(self.window.end * 1000))})

    def by_container(self, rows: Iterable[Row]) -> RowsByContainer:
        """The rows by the container that they name; notes those that name none."""
        found: RowsByContainer = {}
        for row in rows:
            pod, container = row.labels.get("pod"), row.labels.get("container")
            if pod and container:
                found.setdefault(ContainerRef(self.namespace, pod, container), []).append(row)
            else:
                self._note_once(Reason.LABELS_MISSING, "series without the labels pod and container (honor_labels, or old label names?)")
        return found

    def note(self, reason: Reason, subject: str, count: int, message: str) -> None:
        """Keep a finding."""
        self.findings.append(Finding(reason, subject, count, message))

    def _instances(self) -> int:
        """How many containers the window shows; notes those that are shown by several series most of the time."""
        answer = self._ask_range(queries.instances(self.scope), grid.probes(self.window, _PROBE_SECONDS, _PROBES))
        by_container = self.by_container(answer.rows)
        for container, rows in sorted(by_container.items()):
            # A restart shows the dead container's series beside the new one for some minutes: that is no duplicate.
            series = int(np.median(np.concatenate([row.values for row in rows])))
            if series > 1:
                subject = subject_of(container)
                self.note(Reason.DUPLICATE_SERIES, subject, series, f"{subject}: shown by {series} series; the largest was taken")
        return len(by_container)

    def _scrape_interval(self) -> float:
        if self.settings.scrape_interval_seconds is not None:
            return self.settings.scrape_interval_seconds
        over_hours = self._interval_by(grid.probes(self.window, _PROBE_SECONDS, _PROBES), _PROBE_SECONDS)
        if over_hours is None:
            return self.window.step_seconds
        # A store that has only just begun to scrape holds a few samples an hour; its last minutes tell how often it does.
        lately = self._interval_by(grid.probes(self.window, _RECENT_SECONDS, 1), _RECENT_SECONDS)
        return lately if lately is not None and lately * 2 < over_hours else over_hours

    def _interval_by(self, probes: Grid, window_seconds: float) -> float | None:
        answer = self._ask_range(queries.scrape_counts(self.scope, window_seconds), probes)
        most = max((float(row.values.max()) for row in answer.rows if row.values.size), default=0.0)
        # One sample in a window says nothing of an interval.
        return grid.scrape_interval_seconds(most, window_seconds) if most > 1 else None

    def _ask_range(self, query: str, points: Grid) -> Answer:
        form = {
            "query": query,
            "start": _seconds(points.first_ms),
            "end": _seconds(points.last_ms),
            "step": _seconds(points.step_ms),
        }
        return self._ask(QUERY_RANGE, form)

    def _ask(self, path: str, form: Mapping[str, str]) -> Answer:
        body = self.transport.post(path, form, meter=self.meter, deadline=self.deadline)
        answer = decode_rows(body, self.transport.where(path))
        self.samples += answer.samples
        for warning in answer.warnings:
            self._note_once(Reason.SERVER_WARNING, warning)
        return answer

    def _note_once(self, reason: Reason, what: str) -> None:
        """A finding on the namespace that is the same each time: counted up instead of repeated."""
        message = f"{self.namespace}: {what}"
        for index, finding in enumerate(self.findings):
            if finding.reason == reason and finding.message == message:
                self.findings[index] = Finding(reason, self.namespace, finding.count + 1, message)
                return
        self.note(reason, self.namespace, 1, message)


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds / 1000:.3f}"
