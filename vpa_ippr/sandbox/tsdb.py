"""The sandbox's time series database: labelled series of samples, in memory, written by scrapes and read by queries.

Samples live in rows of a pool that all series share. A scrape appends to hundreds of series at one moment, so ``append_many``
touches the whole pool with a handful of numpy operations and no loop over series. A series that goes away leaves its rows
behind until the retention has passed; then they are used again.

Times are seconds at the boundary and whole milliseconds inside, as in Prometheus.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NewType, TypeVar

import numpy as np
from numpy.typing import NDArray

from vpa_ippr.api.errors import ValidationError
from vpa_ippr.sandbox.promlabels import LABEL_NAME, METRIC_NAME, Labels, Matcher, labels_of

SeriesRef = NewType("SeriesRef", int)
Item = TypeVar("Item", bound=np.integer[Any])

# The NaN that Prometheus writes when a series was missing from a scrape (model/value/value.go, StaleNaN).
STALE_BITS = 0x7FF0000000000002
STALE = float(np.array([STALE_BITS], dtype=np.uint64).view(np.float64)[0])

# Samples in a row: 32 minutes of a 15 s scrape; at most one row of 2 KiB is partly empty for each series.
ROW_SAMPLES = 128
FIRST_ROWS = 64
# As Prometheus keeps by default.
DEFAULT_RETENTION_SECONDS = 15 * 86_400.0

_NEVER = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True)
class Samples:
    """One series as read: times in milliseconds, strictly increasing; values may hold NaN, infinities and staleness markers."""

    labels: Labels
    times_ms: NDArray[np.int64]
    values: NDArray[np.float64]


def to_millis(seconds: float) -> int:
    """Whole milliseconds, rounded to nearest."""
    return round(seconds * 1000)


def is_stale(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which values are staleness markers (an ordinary NaN is not one)."""
    bits = np.ascontiguousarray(values).view(np.uint64)
    return np.equal(bits, np.uint64(STALE_BITS))


class Tsdb:
    """Series and their samples. Every method may be called from any thread."""

    def __init__(self, retention_seconds: float = DEFAULT_RETENTION_SECONDS) -> None:
        self._lock = threading.RLock()
        self._retention_ms = to_millis(retention_seconds)
        self._refs: dict[Labels, SeriesRef] = {}
        self._labels: list[Labels] = []
        self._by_name: dict[str, list[SeriesRef]] = {}
        self._series_rows: list[list[int]] = []
        # Of each series: the row that is being filled (-1: none), how many samples are in it, and the time of the newest one.
        self._row = np.full(FIRST_ROWS, -1, dtype=np.intp)
        self._fill = np.full(FIRST_ROWS, ROW_SAMPLES, dtype=np.intp)
        self._newest = np.full(FIRST_ROWS, _NEVER, dtype=np.int64)
        self._times = np.zeros((FIRST_ROWS, ROW_SAMPLES), dtype=np.int64)
        self._values = np.zeros((FIRST_ROWS, ROW_SAMPLES), dtype=np.float64)
        self._free_rows = list(range(FIRST_ROWS - 1, -1, -1))

    def series(self, labels: Mapping[str, str]) -> SeriesRef:
        """The handle of the series with exactly these labels (``__name__`` among them); makes it when it is new.

        A label with an empty value counts as absent. A handle stays good for the life of the database.

        Raises:
            ValidationError: no ``__name__``, or a label name that Prometheus does not allow.
        """
        key = labels_of(labels)
        with self._lock:
            known = self._refs.get(key)
            return self._new_series(key) if known is None else known

    def append(self, labels: Mapping[str, str], timestamp: float, value: float) -> None:
        """Add one sample at ``timestamp`` (seconds).

        Raises:
            ValidationError: not newer than the newest sample of the series.
        """
        self.append_many([self.series(labels)], timestamp, np.array([value]))

    def append_many(self, refs: Sequence[SeriesRef] | NDArray[np.intp], timestamp: float, values: NDArray[np.float64]) -> None:
        """Add one sample to each of ``refs`` at the same ``timestamp`` (seconds): one scrape.

        All or nothing. Keep ``refs`` as an array of intp between scrapes to save its conversion.

        Raises:
            ValidationError: lengths differ, a series is there twice, or the scrape is not newer than the newest sample of one
                of its series.
        """
        index = np.asarray(refs, dtype=np.intp)
        if index.shape != np.shape(values):
            raise ValidationError(f"{index.size} series but {np.size(values)} values in one scrape", reason="BadScrape")
        ordered = np.sort(index)
        if (ordered[1:] == ordered[:-1]).any():
            raise ValidationError(f"one of the {index.size} series is twice in the same scrape", reason="BadScrape")
        moment = to_millis(timestamp)
        with self._lock:
            self._refuse_old(index, moment)
            full = index[self._fill[index] == ROW_SAMPLES]
            if full.size:
                self._give_rows(full, moment)
            rows, slots = self._row[index], self._fill[index]
            self._times[rows, slots] = moment
            self._values[rows, slots] = values
            self._fill[index] = slots + 1
            self._newest[index] = moment

    def mark_stale(self, ref: SeriesRef, timestamp: float) -> None:
        """Say that the series was not in the scrape at ``timestamp`` (seconds): queries no longer see its last value.

        A series that never had a sample, or is stale already, is left as it is.

        Raises:
            ValidationError: not newer than the newest sample of the series.
        """
        with self._lock:
            row, fill = self._row[ref], self._fill[ref]
            if row < 0 or is_stale(self._values[row, fill - 1 : fill])[0]:
                return
            self.append_many([ref], timestamp, np.array([STALE]))

    def select(self, matchers: Sequence[Matcher], start: float, end: float) -> list[Samples]:
        """Copies of the matching series' samples with ``start <= t <= end`` (seconds), sorted by labels; empty ones left out."""
        first, last = to_millis(start), to_millis(end)
        with self._lock:
            read = [self._read(ref, first, last) for ref in self._matching(matchers)]
        return sorted((samples for samples in read if samples.times_ms.size), key=lambda samples: samples.labels)

    def select_labels(self, matchers: Sequence[Matcher], start: float, end: float) -> list[Labels]:
        """The matching series' labels, sorted, of those that lived at any time within ``start <= t <= end`` (seconds)."""
        first, last = to_millis(start), to_millis(end)
        with self._lock:
            found = [self._labels[ref] for ref in self._matching(matchers) if self._lived(ref, first, last)]
        return sorted(found)

    def _new_series(self, key: Labels) -> SeriesRef:
        names = dict(key)
        if METRIC_NAME not in names:
            raise ValidationError(f"series {names} has no {METRIC_NAME} label", reason="BadSeries")
        for name in names:
            if not LABEL_NAME.fullmatch(name):
                raise ValidationError(f"label name {name!r} of series {names} is not allowed", reason="BadSeries")
        ref = SeriesRef(len(self._labels))
        if ref == self._row.size:
            self._row = _doubled(self._row, -1)
            self._fill = _doubled(self._fill, ROW_SAMPLES)
            self._newest = _doubled(self._newest, _NEVER)
        self._refs[key] = ref
        self._labels.append(key)
        self._by_name.setdefault(names[METRIC_NAME], []).append(ref)
        self._series_rows.append([])
        return ref

    def _refuse_old(self, index: NDArray[np.intp], moment: int) -> None:
        old = np.flatnonzero(self._newest[index] >= moment)
        if old.size:
            ref = index[old[0]]
            raise ValidationError(
                f"sample at {moment} ms for {dict(self._labels[ref])} is not newer than {self._newest[ref]} ms: "
                "samples of a series must come in time order",
                reason="OutOfOrderSample",
            )

    def _give_rows(self, index: NDArray[np.intp], moment: int) -> None:
        """Start a new row for each series of ``index``."""
        if len(self._free_rows) < index.size:
            self._drop_expired(moment - self._retention_ms)
        while len(self._free_rows) < index.size:
            size = len(self._times)
            self._times = np.concatenate([self._times, np.zeros_like(self._times)])
            self._values = np.concatenate([self._values, np.zeros_like(self._values)])
            self._free_rows.extend(range(2 * size - 1, size - 1, -1))
        for ref in index.tolist():
            row = self._free_rows.pop()
            self._series_rows[ref].append(row)
            self._row[ref] = row
        self._fill[index] = 0

    def _drop_expired(self, oldest_ms: int) -> None:
        """Free every row whose newest sample is older than ``oldest_ms``."""
        for ref, rows in enumerate(self._series_rows):
            if self._newest[ref] < oldest_ms:
                self._free_rows.extend(rows)
                rows.clear()
                self._row[ref], self._fill[ref] = -1, ROW_SAMPLES
            while len(rows) > 1 and self._times[rows[0], -1] < oldest_ms:
                self._free_rows.append(rows.pop(0))

    def _matching(self, matchers: Sequence[Matcher]) -> list[SeriesRef]:
        for matcher in matchers:
            if matcher.name == METRIC_NAME and matcher.op == "=" and matcher.value:
                candidates = self._by_name.get(matcher.value, [])
                break
        else:
            candidates = list(self._refs.values())
        predicates = [(matcher.name, matcher.predicate()) for matcher in matchers]
        found = []
        for ref in candidates:
            labels = dict(self._labels[ref])
            if all(accepts(labels.get(name, "")) for name, accepts in predicates):
                found.append(ref)
        return found

    def _lived(self, ref: SeriesRef, first: int, last: int) -> bool:
        rows = self._series_rows[ref]
        return bool(rows) and bool(self._newest[ref] >= first and self._times[rows[0], 0] <= last)

    def _read(self, ref: SeriesRef, first: int, last: int) -> Samples:
        if not self._lived(ref, first, last):
            return Samples(self._labels[ref], np.empty(0, dtype=np.int64), np.empty(0))
        rows = self._series_rows[ref]
        begins = self._times[rows, 0]
        low = max(int(np.searchsorted(begins, first, side="right")) - 1, 0)
        high = int(np.searchsorted(begins, last, side="right"))
        wanted = rows[low:high]
        count = len(wanted) * ROW_SAMPLES
        if high == len(rows):
            count -= ROW_SAMPLES - int(self._fill[ref])
        times = self._times[wanted].ravel()[:count]
        values = self._values[wanted].ravel()[:count]
        part = slice(int(np.searchsorted(times, first, side="left")), int(np.searchsorted(times, last, side="right")))
        return Samples(self._labels[ref], times[part], values[part])


def _doubled(array: NDArray[Item], filler: int) -> NDArray[Item]:
    return np.concatenate([array, np.full_like(array, filler)])
