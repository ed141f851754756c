"""What a PromQL expression evaluates to, for all steps of a query at once.

A query over T moments is evaluated once, not T times: a vector is a matrix with a row for each series and a column for each
moment, and ``present`` says at which moments the series is in the vector at all (NaN is an ordinary value in PromQL).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from vpa_ippr.sandbox.promlabels import METRIC_NAME, Labels, QueryFailedError

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Indexes = NDArray[np.intp]
Millis = NDArray[np.int64]

# Prometheus's --query.max-samples: what one intermediate result may hold.
MAX_SAMPLES = 50_000_000

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Scalar:
    """One number a moment: ``values`` of shape (T,)."""

    values: Floats


@dataclass(frozen=True, slots=True)
class Text:
    """A string literal."""

    value: str


@dataclass(frozen=True, slots=True)
class Vector:
    """One row a series: ``values`` and ``present`` of shape (len(labels), T); a value that is not present means nothing."""

    labels: list[Labels]
    values: Floats
    present: Bools

    def take(self, rows: Sequence[int] | Indexes) -> Vector:
        """These rows, in this order."""
        return Vector([self.labels[row] for row in rows], self.values[rows], self.present[rows])

    def with_present(self, present: Bools) -> Vector:
        """The same rows at fewer moments; rows that are nowhere present are gone."""
        kept = Vector(self.labels, self.values, present)
        alive = np.flatnonzero(present.any(axis=1))
        return kept if alive.size == len(self.labels) else kept.take(alive)


Value = Scalar | Text | Vector


def empty_vector(moments: int) -> Vector:
    """A vector without series."""
    return Vector([], np.empty((0, moments)), np.empty((0, moments), dtype=np.bool_))


def present_anywhere(vector: Vector) -> Bools:
    """At which moments the vector holds any series; shape (T,)."""
    return np.asarray(vector.present.any(axis=0), dtype=np.bool_)


def check_size(series: int, moments: int) -> None:
    """Refuse a result that would not fit into memory, in Prometheus's words.

    Raises:
        QueryFailedError: more than ``MAX_SAMPLES`` values.
    """
    if series * moments > MAX_SAMPLES:
        raise QueryFailedError("query processing would load too many samples into memory in query execution")


def without_name(labels: Labels) -> Labels:
    """The labels without the metric name."""
    return tuple(pair for pair in labels if pair[0] != METRIC_NAME)


def relabelled(vector: Vector, change: Callable[[Labels], Labels]) -> Vector:
    """The vector under changed labels.

    Raises:
        QueryFailedError: two series of one moment got the same labels.
    """
    return merged([change(labels) for labels in vector.labels], vector.values, vector.present)


def merged(
    labels: Sequence[Labels],
    values: Floats,
    present: Bools,
    clash: str = "vector cannot contain metrics with the same labelset",
) -> Vector:
    """A vector in which rows with the same labels, present at different moments, have become one row.

    Raises:
        QueryFailedError: with the text ``clash`` when two such rows are present at the same moment.
    """
    alive = np.flatnonzero(present.any(axis=1)).tolist()
    rows_of = grouped([labels[row] for row in alive])
    if len(rows_of) == len(alive):
        return Vector([labels[row] for row in alive], values[alive], present[alive])
    out_values = np.zeros((len(rows_of), values.shape[1]))
    out_present = np.zeros((len(rows_of), values.shape[1]), dtype=np.bool_)
    for out, members in enumerate(rows_of.values()):
        rows = [alive[member] for member in members]
        if (present[rows].sum(axis=0) > 1).any():
            raise QueryFailedError(clash)
        out_present[out] = present[rows].any(axis=0)
        out_values[out] = np.where(present[rows], values[rows], 0.0).sum(axis=0)
    return Vector(list(rows_of), out_values, out_present)


def grouped(keys: Sequence[Key]) -> dict[Key, list[int]]:
    """The positions of each key, in order of first appearance."""
    positions: dict[Key, list[int]] = {}
    for position, key in enumerate(keys):
        positions.setdefault(key, []).append(position)
    return positions


def quantile_of_rows(quantile: Floats, values: Floats, present: Bools) -> Floats:
    """Prometheus's quantile of each row's present values (``promql/quantile.go``); shape (rows,).

    ``quantile`` holds one number a row; NaN values count as the smallest; a row without values gives NaN.
    """
    count = present.sum(axis=1)
    if not values.shape[1]:
        return np.full(len(values), np.nan)
    nan = present & np.isnan(values)
    # NaNs sort first and absent values last; the infinities that stand in for them sort the same as real ones.
    ordered = np.sort(np.where(present, np.where(nan, -np.inf, values), np.inf), axis=1)
    ordered[np.arange(values.shape[1]) < nan.sum(axis=1)[:, None]] = np.nan
    rank = np.clip(np.nan_to_num(quantile), 0.0, 1.0) * (count - 1)
    low = np.clip(np.floor(rank), 0, None).astype(np.intp)
    high = np.clip(np.minimum(low + 1, count - 1), 0, None)
    weight = rank - np.floor(rank)
    row = np.arange(len(values))
    inside = ordered[row, low] * (1 - weight) + ordered[row, high] * weight
    outside = np.where(quantile < 0, -np.inf, np.where(quantile > 1, np.inf, np.nan))
    return np.where((count > 0) & (quantile >= 0) & (quantile <= 1), inside, np.where(count > 0, outside, np.nan))
