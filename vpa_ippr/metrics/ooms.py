"""Out-of-memory kills from the traces that kube-state-metrics leaves of them.

``last_terminated_reason="OOMKilled"`` is a sticky gauge: it says that the last termination was a kill for as long as no other
follows, so by itself it cannot tell one kill from two, or a new one from an old. A kill is therefore a grid point where the
gauge is up and the time of the last termination has changed since the point before or, where that series is not exported, where the
restart counter has changed. Kills between two points count once: only the last of them left evidence.

A kill belongs to the read in whose window it became visible, although its own time may lie a little before: reads that follow each
other then see each kill exactly once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from vpa_ippr.api.series import ContainerRef, Floats, OomKill
from vpa_ippr.metrics.decode import Row

# How long before a window a kill may lie that its first point shows: a scrape of kube-state-metrics that failed a few times.
LATE_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class OomEvidence:
    """The series of one namespace by container, on one grid that begins one point before the window."""

    reason: Mapping[ContainerRef, Row]
    restarts: Mapping[ContainerRef, Row]
    terminated: Mapping[ContainerRef, Row]
    requests: Mapping[ContainerRef, Row]
    limits: Mapping[ContainerRef, Row]


def find_kills(evidence: OomEvidence, baseline_seconds: float) -> list[OomKill]:
    """Every kill that became visible after the baseline, by container and time.

    ``memory_request_bytes`` is 0 where the container had no request, or none is known.
    """
    kills: list[OomKill] = []
    for container in sorted(evidence.reason):
        for moment in _moments(evidence, container, baseline_seconds):
            request = _value_at(evidence.requests.get(container), moment)
            limit = _value_at(evidence.limits.get(container), moment)
            kills.append(OomKill(container, moment, int(request or 0), None if limit is None else int(limit)))
    return kills


def pods_of(rows: Iterable[Row]) -> tuple[str, ...]:
    """The pods that the rows speak of, sorted."""
    return tuple(sorted({row.labels["pod"] for row in rows if row.labels.get("pod")}))


def _moments(evidence: OomEvidence, container: ContainerRef, baseline: float) -> list[float]:
    reason = evidence.reason[container]
    up = reason.timestamps[reason.values == 1]
    terminated = evidence.terminated.get(container)
    if terminated is not None:
        shown, before, now = _changes(up, terminated, baseline)
        # A pod whose earlier points are missing may show a kill of long ago as new.
        known = ~np.isnan(before) | (now > baseline - LATE_SECONDS)
        return [float(moment) for moment in np.unique(now[known & (now <= shown)])]
    restarts = evidence.restarts.get(container)
    if restarts is None:
        return []
    shown, _, now = _changes(up, restarts, baseline)
    return [float(moment) for moment in shown[now >= 1]]


def _changes(times: Floats, row: Row, baseline: float) -> tuple[Floats, Floats, Floats]:
    """Those of the times after the baseline where the row differs from its point before: (time, value before or NaN, value)."""
    at = np.searchsorted(row.timestamps, times)
    present = at < row.timestamps.size
    present[present] = row.timestamps[at[present]] == times[present]
    times, at = times[present], at[present]
    before = np.where(at > 0, row.values[at - 1], np.nan)
    changed = (row.values[at] != before) & (times > baseline)
    return times[changed], before[changed], row.values[at[changed]]


def _value_at(row: Row | None, moment: float) -> float | None:
    """The value in force at the moment: that of the last point up to it, or else of the first after it."""
    if row is None or not row.values.size:
        return None
    return float(row.values[max(0, int(np.searchsorted(row.timestamps, moment, side="right")) - 1)])
