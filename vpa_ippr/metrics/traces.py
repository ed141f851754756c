"""Usage from trace files: recorded series instead of a live Prometheus.

Samples are handed over as recorded, whatever step the window asks for: the files hold the truth at their own resolution, and a
trace whose interval is the step gives the same memory series as a Prometheus that scraped the same data on the grid.

Who a row belongs to. ``series_id`` is ``<source>/<container>/<resource>``; ``container`` alone is unique only within its source, so
without a ``workload`` column the part before the resource names the workload, made fit for a Kubernetes name. By default that is a
Deployment in the namespace ``default`` with one pod of the same name. With a ``pod`` column and no ``workload``, the pod stands for itself.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from vpa_ippr.api.errors import UsageError
from vpa_ippr.api.series import ContainerRef, Finding, OomKill, QueryCosts, Resource, Usage, UsageSeries, Window, WorkloadRef
from vpa_ippr.metrics.grid import check_window
from vpa_ippr.metrics.quality import Cleaned, Reason, clean, findings_of, merge, subject_of, usual_interval_seconds
from vpa_ippr.metrics.tracefile import OPTIONAL_NAMES, REQUIRED_NAMES, TraceTable, read_namespaces, read_timestamps, read_trace

_log = logging.getLogger(__name__)

DEFAULT_NAMESPACE = "default"
DEFAULT_KIND = "Deployment"
OOM = "oom"

_RESOURCES = (*Resource, OOM)
_MAX_NAME_CHARACTERS = 63

_T = TypeVar("_T")
_SeriesKey = tuple[ContainerRef, str]


@dataclass(frozen=True, slots=True)
class _Identity:
    """What a stretch of rows says of itself."""

    container: ContainerRef
    resource: str
    workload: WorkloadRef


@dataclass(slots=True)
class _Collected:
    """What has been read so far, over all files."""

    parts: dict[_SeriesKey, list[Cleaned]] = field(default_factory=dict)
    owners: dict[tuple[str, str], WorkloadRef] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    rows: int = 0
    size_bytes: int = 0


class TraceSource:
    """A ``UsageSource`` over Parquet and CSV files."""

    def __init__(self, paths: Sequence[Path]) -> None:
        if not paths:
            raise UsageError("no trace file given")
        self._paths = tuple(paths)

    def namespaces(self) -> tuple[str, ...]:
        """The namespaces that the files name, sorted.

        Raises:
            UsageError: not one of the files can be read.
        """
        found, _ = self._each(read_namespaces)
        return tuple(sorted({name or DEFAULT_NAMESPACE for names in found for name in names or ("",)}))

    def span(self) -> tuple[float, float]:
        """The first and the last time in the files, in seconds since the epoch.

        Raises:
            UsageError: not one of the files can be read, or none holds a row.
        """
        found, _ = self._each(read_timestamps)
        times = [finite for times in found for finite in (times[np.isfinite(times)],) if finite.size]
        if not times:
            raise UsageError(f"trace files hold no rows: {', '.join(map(str, self._paths))}", reason="TraceEmpty")
        return float(min(one.min() for one in times)), float(max(one.max() for one in times))

    def fetch(self, window: Window, namespaces: Sequence[str] | None = None) -> Usage:
        """The samples and kills with ``start < t <= end``; a file that cannot be used is in ``failures``.

        Raises:
            UsageError: the window is empty, or not one of the files can be used.
        """
        check_window(window)
        read, failures = self._each(lambda path: _read_file(path, window, namespaces))
        collected = _Collected()
        for one in read:
            for key, parts in one.parts.items():
                collected.parts.setdefault(key, []).extend(parts)
            collected.owners |= one.owners
            collected.findings += one.findings
            collected.rows += one.rows
            collected.size_bytes += one.size_bytes
        return _assembled(collected, failures, window)

    def _each(self, read: Callable[[Path], _T]) -> tuple[list[_T], tuple[Finding, ...]]:
        results: list[_T] = []
        failures: list[Finding] = []
        for path in self._paths:
            try:
                results.append(read(path))
            except UsageError as error:
                _log.warning("trace file not used", extra={"path": str(path), "reason": error.reason, "error": str(error)})
                failures.append(Finding(error.reason, str(path), 1, str(error)))
        if not results:
            more = f" (and {len(failures) - 1} more files)" if len(failures) > 1 else ""
            raise UsageError(f"{failures[0].message}{more}", reason=failures[0].reason)
        return results, tuple(failures)


def kubernetes_name(text: str) -> str:
    """The text as a DNS-1123 label: lower case, dashes for what is not allowed, at most 63 characters, never empty."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if name and len(name) <= _MAX_NAME_CHARACTERS:
        return name
    # Long names that differ only near their end must stay different.
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{name[: _MAX_NAME_CHARACTERS - 9].rstrip('-')}-{digest}".lstrip("-")


def _read_file(path: Path, window: Window, namespaces: Sequence[str] | None) -> _Collected:
    table = read_trace(path)
    collected = _Collected(rows=table.rows, size_bytes=path.stat().st_size)
    unsorted_series = unsorted_places = 0
    for identity, rows in _groups(path, table):
        if namespaces is not None and identity.container.namespace not in namespaces:
            continue
        times = np.asarray(table.timestamps[rows], np.float64)
        values = np.asarray(table.values[rows], np.float64)
        outside = (times <= window.start) | (times > window.end)  # a NaN is neither, and is left to be counted
        if outside.any():
            times, values = times[~outside], values[~outside]
        if not times.size:
            continue
        cleaned = clean(times, values)
        unsorted_series += cleaned.unsorted > 0
        unsorted_places += cleaned.unsorted
        # Whether times are in order is a fault of the file: it is said once, not for each container.
        collected.parts.setdefault((identity.container, identity.resource), []).append(replace(cleaned, unsorted=0))
        collected.owners[identity.container.namespace, identity.container.pod] = identity.workload
    if unsorted_series:
        message = f"trace file {path}: times run backwards in {unsorted_series} series ({unsorted_places} places); the rows were sorted"
        collected.findings.append(Finding(Reason.UNSORTED_TIMESTAMPS, str(path), unsorted_places, message))
    return collected


def _groups(path: Path, table: TraceTable) -> Iterator[tuple[_Identity, slice | NDArray[np.intp]]]:
    """The rows of each series, as a slice where they stand together in the file and as indices where they do not."""
    if not table.rows:
        return
    names = table.names
    new = np.zeros(table.rows, np.bool_)
    new[0] = True
    for column in names.values():
        new[1:] |= column.codes[1:] != column.codes[:-1]
    firsts = np.flatnonzero(new)
    ends = np.append(firsts[1:], table.rows)
    keys: dict[tuple[str, ...], int] = {}
    runs = zip(*(_texts(names[name].texts, names[name].codes[firsts]) for name in names), strict=True)
    run_groups = np.array([keys.setdefault(key, len(keys)) for key in runs])
    identities = [_identity(path, dict(zip(names, key, strict=True))) for key in keys]
    if len(keys) == firsts.size:
        yield from ((identities[group], slice(first, end)) for group, first, end in zip(run_groups, firsts, ends, strict=True))
        return
    # uint16 where it suffices: numpy sorts that by radix, in linear time.
    row_groups = np.repeat(run_groups.astype(np.uint16 if len(keys) < 1 << 16 else np.uint32), ends - firsts)
    order = np.argsort(row_groups, kind="stable")
    bounds = np.cumsum(np.bincount(row_groups, minlength=len(keys)))[:-1]
    yield from zip(identities, np.split(order, bounds), strict=True)


def _texts(texts: Sequence[str], codes: NDArray[np.integer]) -> list[str]:
    return [texts[code] for code in codes.tolist()]


def _identity(path: Path, row: dict[str, str]) -> _Identity:
    for name in REQUIRED_NAMES:
        if not row[name]:
            raise UsageError(f"trace file {path}: a row has no {name}", reason="TraceBadValue")
    resource = row["resource"]
    if resource not in _RESOURCES:
        raise UsageError(
            f"trace file {path}: series {row['series_id']} has resource {resource!r}: expected {', '.join(_RESOURCES)}",
            reason="TraceBadValue",
        )
    namespace, kind, workload, pod = (row.get(name, "") for name in OPTIONAL_NAMES)
    namespace = namespace or DEFAULT_NAMESPACE
    if workload:
        kind = kind or DEFAULT_KIND
    elif pod:
        workload, kind = pod, kind or "Pod"
    else:
        workload, kind = kubernetes_name(_prefix(row)), kind or DEFAULT_KIND
    container = ContainerRef(namespace, pod or workload, row["container"])
    return _Identity(container, resource, WorkloadRef(namespace, kind, workload))


def _prefix(row: dict[str, str]) -> str:
    """What a series has in common with the other resources of its container."""
    prefix, _, last = row["series_id"].rpartition("/")
    return prefix if prefix and last in _RESOURCES else row["container"]


def _assembled(collected: _Collected, failures: tuple[Finding, ...], window: Window) -> Usage:
    series: list[UsageSeries] = []
    ooms: list[OomKill] = []
    findings = list(collected.findings)
    for (container, resource), parts in sorted(collected.parts.items(), key=lambda item: item[0]):
        merged = merge(parts)
        findings += _overlap(container, resource, parts, merged)
        if resource == OOM:
            ooms += [OomKill(container, float(at), int(request)) for at, request in zip(merged.timestamps, merged.values, strict=True)]
            continue
        interval = usual_interval_seconds(merged.timestamps)
        expected = (window.end - window.start) / (interval or window.step_seconds)
        findings += findings_of(container, Resource(resource), merged, interval_seconds=interval, expected_samples=expected)
        if merged.timestamps.size:
            series.append(UsageSeries(container, Resource(resource), merged.timestamps, merged.values))
    if not series and not ooms:
        message = "trace files: no samples in the window: does it end (--as-of) after they begin?"
        findings.append(Finding(Reason.NO_DATA, "trace files", 1, message))
    costs = QueryCosts(samples=collected.rows, received_bytes=collected.size_bytes)
    return Usage(tuple(series), tuple(ooms), collected.owners, tuple(findings), failures, costs)


def _overlap(container: ContainerRef, resource: str, parts: Sequence[Cleaned], merged: Cleaned) -> Iterator[Finding]:
    """Several series of one container are no fault as long as they take turns, one file a week for instance."""
    twice = sum(part.timestamps.size for part in parts) - merged.timestamps.size
    if twice:
        subject = subject_of(container)
        message = f"{subject}: {len(parts)} series of {resource} overlap in {twice} samples; the largest value was kept"
        yield Finding(Reason.DUPLICATE_SERIES, subject, twice, message)
