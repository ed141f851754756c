"""PromQL aggregations: sum, min, max, avg, count, group, quantile, topk and bottomk, by and without."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from vpa_ippr.sandbox.promlabels import METRIC_NAME, Labels, QueryFailedError, UnsupportedQueryError
from vpa_ippr.sandbox.promvectors import Bools, Floats, Vector, empty_vector, grouped, quantile_of_rows

Grouping = Callable[[Labels], Labels]


def group_by(names: Sequence[str]) -> Grouping:
    """``by (names)``: only these labels are kept."""
    kept = frozenset(names)
    return lambda labels: tuple(pair for pair in labels if pair[0] in kept)


def group_without(names: Sequence[str]) -> Grouping:
    """``without (names)``: these labels and the metric name are dropped."""
    dropped = frozenset(names) | {METRIC_NAME}
    return lambda labels: tuple(pair for pair in labels if pair[0] not in dropped)


def _folded(ufunc: np.ufunc, neutral: float) -> Callable[[Floats, Bools], Floats]:
    def fold(values: Floats, present: Bools) -> Floats:
        return np.asarray(ufunc.reduce(np.where(present, values, neutral), axis=0), dtype=np.float64)

    return fold


def _average(values: Floats, present: Bools) -> Floats:
    total: Floats = np.where(present, values, 0.0).sum(axis=0)
    count: Floats = np.maximum(present.sum(axis=0), 1)
    return total / count


_FOLDS: dict[str, Callable[[Floats, Bools], Floats]] = {
    "sum": _folded(np.add, 0.0),
    # NaN loses against every number, as in Prometheus, and is also what stands for an absent value.
    "min": _folded(np.fmin, np.nan),
    "max": _folded(np.fmax, np.nan),
    "avg": _average,
    "count": lambda _, present: present.sum(axis=0).astype(np.float64),
    "group": lambda _, present: np.ones(present.shape[1]),
}


def aggregate(operator: str, vector: Vector, grouping: Grouping, parameter: Floats | None = None) -> Vector:
    """The aggregation of ``vector``; ``parameter`` (one number a moment) is the k of topk or the quantile.

    Raises:
        UnsupportedQueryError: an operator that we do not have.
        QueryFailedError: the k of topk is not a number.
    """
    rows_of = grouped([grouping(labels) for labels in vector.labels])
    if operator in ("topk", "bottomk") and parameter is not None:
        return _best(vector, list(rows_of.values()), parameter, largest=operator == "topk")
    if operator == "quantile" and parameter is not None:
        return _each_group(vector, rows_of, lambda values, present: quantile_of_rows(parameter, values.T, present.T))
    if operator not in _FOLDS:
        raise UnsupportedQueryError(f"aggregation {operator!r} is not supported by this endpoint")
    return _each_group(vector, rows_of, _FOLDS[operator])


def _each_group(vector: Vector, rows_of: dict[Labels, list[int]], fold: Callable[[Floats, Bools], Floats]) -> Vector:
    moments = vector.values.shape[1]
    values = np.empty((len(rows_of), moments))
    present = np.empty((len(rows_of), moments), dtype=np.bool_)
    for group, rows in enumerate(rows_of.values()):
        values[group] = fold(vector.values[rows], vector.present[rows])
        present[group] = vector.present[rows].any(axis=0)
    return Vector(list(rows_of), values, present)


def _best(vector: Vector, groups: list[list[int]], k: Floats, *, largest: bool) -> Vector:
    """Topk and bottomk: the same series, present only where they are among the best k of their group.

    Of equal values the earlier series stays, as in Prometheus for k = 1; for greater k Prometheus's choice is arbitrary.
    """
    if np.isnan(k).any():
        raise QueryFailedError("Scalar value NaN overflows int64")
    moments = vector.values.shape[1]
    chosen = np.zeros_like(vector.present)
    order: list[int] = []
    for rows in groups:
        values, present = vector.values[rows], vector.present[rows]
        # Sort keys, the last one first: absent behind present, NaN behind numbers, then by value, then by position (stable).
        key = np.where(np.isnan(values), 0.0, -values if largest else values)
        ranked = np.lexsort((key, np.isnan(values), ~present), axis=0)
        place = np.empty_like(ranked)
        np.put_along_axis(place, ranked, np.broadcast_to(np.arange(len(rows))[:, None], ranked.shape), axis=0)
        chosen[rows] = present & (place < np.trunc(k))
        # An instant query lists the best first.
        order.extend(rows[row] for row in ranked[:, 0]) if moments == 1 else order.extend(rows)
    if not order:
        return empty_vector(moments)
    return vector.with_present(chosen) if moments != 1 else vector.take(order).with_present(chosen[order])
