"""PromQL binary operators between scalars and vectors (``VectorBinop`` and ``resultMetric`` of Prometheus's engine.go)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from vpa_ippr.sandbox.promlabels import METRIC_NAME, Labels, QueryFailedError, UnsupportedQueryError, labels_of
from vpa_ippr.sandbox.promvectors import (
    Bools,
    Floats,
    Indexes,
    Scalar,
    Vector,
    check_size,
    empty_vector,
    grouped,
    merged,
    present_anywhere,
    relabelled,
    without_name,
)


def _power(left: Floats, right: Floats) -> Floats:
    """IEEE pow; numpy takes a square root for the exponent 0.5, which differs at minus infinity."""
    return np.where(np.isneginf(left) & (right == 0.5), np.inf, np.power(left, right))


_ARITHMETIC: dict[str, Callable[[Floats, Floats], Floats]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "%": np.fmod,
    "^": _power,
}
_COMPARISONS: dict[str, Callable[[Floats, Floats], Bools]] = {
    "==": np.equal,
    "!=": np.not_equal,
    ">": np.greater,
    "<": np.less,
    ">=": np.greater_equal,
    "<=": np.less_equal,
}
SET_OPERATORS = frozenset({"and", "or", "unless"})


@dataclass(frozen=True, slots=True)
class Matching:
    """How the two sides find each other: on or ignoring ``names``; ``many`` is the side of a group modifier."""

    on: bool = False
    names: tuple[str, ...] = ()
    many: Literal["left", "right"] | None = None
    include: tuple[str, ...] = ()

    def signature(self, labels: Labels) -> Labels:
        """The labels by which two series match."""
        if self.on:
            return tuple(pair for pair in labels if pair[0] in self.names)
        return tuple(pair for pair in labels if pair[0] not in self.names and pair[0] != METRIC_NAME)


def check_operator(operator: str) -> None:
    """Refuse an operator that we do not have.

    Raises:
        UnsupportedQueryError: it is not one of ours.
    """
    if operator not in _ARITHMETIC and operator not in _COMPARISONS and operator not in SET_OPERATORS:
        raise UnsupportedQueryError(f"operator {operator!r} is not supported by this endpoint")


def _computed(operator: str, left: Floats, right: Floats, *, as_bool: bool) -> tuple[Floats, Bools]:
    """The results, and which of them stay: a comparison without ``bool`` keeps the left value where it holds."""
    if operator in _ARITHMETIC:
        values = _ARITHMETIC[operator](left, right)
        return values, np.ones(values.shape, dtype=np.bool_)
    holds = _COMPARISONS[operator](left, right)
    if as_bool:
        return holds.astype(np.float64), np.ones(holds.shape, dtype=np.bool_)
    return np.broadcast_to(left, holds.shape), holds


def _drops_name(operator: str, *, as_bool: bool) -> bool:
    return operator in _ARITHMETIC or as_bool


def scalar_with_scalar(operator: str, left: Scalar, right: Scalar) -> Scalar:
    """An operator between scalars; a comparison gives 0 or 1."""
    return Scalar(_computed(operator, left.values, right.values, as_bool=True)[0])


def vector_with_scalar(operator: str, vector: Vector, scalar: Scalar, *, swapped: bool, as_bool: bool) -> Vector:
    """An operator between a vector and a scalar (``swapped``: the scalar is on the left). A filter keeps the vector's value."""
    number = scalar.values[None, :]
    left, right = (number, vector.values) if swapped else (vector.values, number)
    values, keep = _computed(operator, left, right, as_bool=as_bool)
    if _drops_name(operator, as_bool=as_bool):
        return relabelled(Vector(vector.labels, values, vector.present), without_name)
    return vector.with_present(vector.present & keep)


def set_operation(operator: str, left: Vector, right: Vector, matching: Matching) -> Vector:
    """``and``, ``unless`` and ``or``: decided moment by moment."""
    if operator == "or":
        kept = right.present & ~_matched(right, left, matching)
        return merged(
            [*left.labels, *right.labels],
            np.concatenate([left.values, right.values]),
            np.concatenate([left.present, kept]),
        )
    found = _matched(left, right, matching)
    return left.with_present(left.present & (found if operator == "and" else ~found))


def _matched(vector: Vector, other: Vector, matching: Matching) -> Bools:
    """For each row and moment of ``vector``: does ``other`` hold a series of the same signature then."""
    found = np.zeros(vector.present.shape, dtype=np.bool_)
    partners = grouped([matching.signature(labels) for labels in other.labels])
    for row, labels in enumerate(vector.labels):
        rows = partners.get(matching.signature(labels))
        if rows is not None:
            found[row] = other.present[rows].any(axis=0)
    return found


def vector_with_vector(operator: str, left: Vector, right: Vector, matching: Matching, *, as_bool: bool) -> Vector:
    """Arithmetic or comparison between the series of two vectors that match.

    Raises:
        QueryFailedError: the matching is not unique at some moment, in Prometheus's words.
    """
    many, one = (right, left) if matching.many == "right" else (left, right)
    active = present_anywhere(many)
    many_rows, one_rows, signatures = _pairs(many, one, matching, active)
    if not many_rows.size:
        return empty_vector(left.values.shape[1])
    check_size(many_rows.size, left.values.shape[1])
    sides = (
        (one.values[one_rows], many.values[many_rows])
        if matching.many == "right"
        else (
            many.values[many_rows],
            one.values[one_rows],
        )
    )
    values, keep = _computed(operator, *sides, as_bool=as_bool)
    present = many.present[many_rows] & one.present[one_rows] & keep
    if matching.many is None:
        _refuse_many_to_one(signatures, present)
    drop_name = _drops_name(operator, as_bool=as_bool)
    labels = [
        _result_labels(many.labels[m], one.labels[o], matching, drop_name=drop_name)
        for m, o in zip(many_rows.tolist(), one_rows.tolist(), strict=True)
    ]
    return merged(labels, values, present, "multiple matches for labels: grouping labels must ensure unique matches")


def _pairs(many: Vector, one: Vector, matching: Matching, active: Bools) -> tuple[Indexes, Indexes, list[Labels]]:
    """Every pair of rows with the same signature that meet at some moment, with the signature."""
    partners = grouped([matching.signature(labels) for labels in one.labels])
    side = "left" if matching.many == "right" else "right"
    for signature, rows in partners.items():
        _refuse_duplicates(one, rows, signature, side, active)
    many_rows: list[int] = []
    one_rows: list[int] = []
    signatures: list[Labels] = []
    for row, labels in enumerate(many.labels):
        signature = matching.signature(labels)
        for partner in partners.get(signature, ()):
            if (many.present[row] & one.present[partner]).any():
                many_rows.append(row)
                one_rows.append(partner)
                signatures.append(signature)
    return np.array(many_rows, dtype=np.intp), np.array(one_rows, dtype=np.intp), signatures


def _refuse_duplicates(one: Vector, rows: list[int], signature: Labels, side: str, active: Bools) -> None:
    if len(rows) < 2:
        return
    twice = np.flatnonzero((one.present[rows].sum(axis=0) > 1) & active)
    if twice.size:
        first, second = [row for row in rows if one.present[row, twice[0]]][:2]
        raise QueryFailedError(
            f"found duplicate series for the match group {_shown(signature)} on the {side} hand-side of the operation: "
            f"[{_shown(one.labels[second])}, {_shown(one.labels[first])}]"
            ";many-to-many matching not allowed: matching labels must be unique on one side"
        )


def _refuse_many_to_one(signatures: list[Labels], present: Bools) -> None:
    for rows in grouped(signatures).values():
        if len(rows) > 1 and (present[rows].sum(axis=0) > 1).any():
            raise QueryFailedError("multiple matches for labels: many-to-one matching must be explicit (group_left/group_right)")


def _result_labels(many: Labels, one: Labels, matching: Matching, *, drop_name: bool) -> Labels:
    labels = dict(many)
    if drop_name:
        labels.pop(METRIC_NAME, None)
    if matching.many is None:
        labels = {name: value for name, value in labels.items() if (name in matching.names) == matching.on}
    source = dict(one)
    for name in matching.include:
        labels[name] = source.get(name, "")
    return labels_of(labels)


def _shown(labels: Labels) -> str:
    return "{" + ", ".join(f"{name}={_quoted(value)}" for name, value in labels) + "}"


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
