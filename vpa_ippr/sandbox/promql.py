"""PromQL for the sandbox: expressions over a ``Tsdb``, with the meaning that Prometheus 2.42 gives them.

promql-parser reads and type-checks the text; what is here walks its tree and evaluates each node for all moments of the query
at once (see promvectors). Lookback of five minutes, staleness markers, closed windows and the extrapolation of ``rate`` are
Prometheus's own. What is not implemented is refused with ``UnsupportedQueryError``: there is never a number that Prometheus would
not give.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
import promql_parser as parser

from vpa_ippr.sandbox.promaggregations import aggregate, group_by, group_without
from vpa_ippr.sandbox.promfunctions import FUNCTIONS, absent, mapped
from vpa_ippr.sandbox.promlabels import METRIC_NAME, BadQueryDataError, Labels, Matcher, UnsupportedQueryError, labels_of
from vpa_ippr.sandbox.promoperators import (
    SET_OPERATORS,
    Matching,
    check_operator,
    scalar_with_scalar,
    set_operation,
    vector_with_scalar,
    vector_with_vector,
)
from vpa_ippr.sandbox.promvectors import (
    Floats,
    Millis,
    Scalar,
    Text,
    Value,
    Vector,
    check_size,
    empty_vector,
    merged,
    without_name,
)
from vpa_ippr.sandbox.promwindows import RANGE_FUNCTIONS, Windows, quantile_over_time, windows_of
from vpa_ippr.sandbox.tsdb import Samples, Tsdb, is_stale, to_millis

LOOKBACK_MS = 300_000
# Prometheus takes its global evaluation interval, by default a minute, for a subquery without a step.
SUBQUERY_STEP_MS = 60_000
# Deeper expressions would overflow the parser's stack (it is native code) or ours.
MAX_NESTING = 150

# What may hold brackets and operators that are none: strings, comments and, when those are gone, the matchers of a selector.
_QUOTED = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|`[^`]*`|#[^\n]*')
_MATCHERS = re.compile(r"\{[^{}]*\}")
# promql-parser reads some of these as 0 and panics at others.
_NEGATIVE_AT = re.compile(r"@\s*-")
_NESTING = re.compile(r"[(+\-*/%^<>=!]|\b(?:and|or|unless|atan2)\b", re.IGNORECASE)
_KEEPS_NAME = frozenset({"last_over_time"})


@dataclass(frozen=True, slots=True)
class Matrix:
    """The result of an instant query for a range: raw samples."""

    series: list[Samples]


@dataclass(frozen=True, slots=True)
class _Query:
    """What all nodes of one query share."""

    tsdb: Tsdb
    start_ms: int
    end_ms: int


def query_instant(tsdb: Tsdb, text: str, time: float) -> Value | Matrix:
    """The value of an expression at ``time`` (seconds).

    Raises:
        BadQueryDataError: the text is not PromQL.
        UnsupportedQueryError: it is, but of a kind that we do not answer.
        QueryFailedError: its evaluation met an error.
    """
    moment = to_millis(time)
    query = _Query(tsdb, moment, moment)
    tree = parse(text)
    times_ms = np.array([moment], dtype=np.int64)
    with np.errstate(all="ignore"):
        if isinstance(_unwrapped(tree), parser.MatrixSelector | parser.SubqueryExpr):
            return Matrix(_last_window(_windows(query, _unwrapped(tree), times_ms)))
        return _evaluate(query, tree, times_ms)


def query_range(tsdb: Tsdb, text: str, start: float, end: float, step: float) -> tuple[Millis, Vector]:
    """The moments from ``start`` to ``end``, ``step`` apart (seconds), and the values at them.

    Raises:
        BadQueryDataError: the text is not PromQL, or is not about numbers.
        UnsupportedQueryError: it is, but of a kind that we do not answer.
        QueryFailedError: its evaluation met an error.
    """
    tree = parse(text)
    kind = _unwrapped(tree)
    if isinstance(kind, parser.MatrixSelector | parser.SubqueryExpr | parser.StringLiteral):
        shown = "string" if isinstance(kind, parser.StringLiteral) else "range vector"
        raise BadQueryDataError(f'invalid expression type "{shown}" for range query, must be Scalar or instant Vector')
    times_ms = np.arange(to_millis(start), to_millis(end) + 1, to_millis(step), dtype=np.int64)
    query = _Query(tsdb, int(times_ms[0]), to_millis(end))
    with np.errstate(all="ignore"):
        value = _evaluate(query, tree, times_ms)
    if isinstance(value, Scalar):
        return times_ms, Vector([()], value.values[None, :], np.ones((1, times_ms.size), dtype=np.bool_))
    assert isinstance(value, Vector), "ranges and strings were refused above"
    order = sorted(range(len(value.labels)), key=value.labels.__getitem__)
    return times_ms, value.take(order)


def parse(text: str) -> Any:
    """The checked syntax tree of a query.

    Raises:
        BadQueryDataError: the text is not PromQL.
        UnsupportedQueryError: it nests too deeply, or has a raw string that the parser would misread.
    """
    if any(quoted.startswith("`") and "\\" in quoted for quoted in _QUOTED.findall(text)):
        raise UnsupportedQueryError("a raw string with a backslash is not supported by this endpoint: use double quotes")
    bare = _MATCHERS.sub("", _QUOTED.sub("", text))
    if _NEGATIVE_AT.search(bare):
        raise UnsupportedQueryError("@ with a time before 1970 is not supported by this endpoint")
    if len(_NESTING.findall(bare)) > MAX_NESTING:
        raise UnsupportedQueryError(f"more than {MAX_NESTING} operators and brackets in one query are not supported by this endpoint")
    try:
        return parser.parse(text)
    except ValueError as error:
        raise BadQueryDataError(f"parse error: {error}") from error


def selector_matchers(selector: Any) -> list[Matcher]:
    """The conditions of a vector selector, its metric name among them.

    Raises:
        UnsupportedQueryError: alternatives joined by ``or``.
    """
    if selector.matchers.or_matchers:
        raise UnsupportedQueryError("'or' between label matchers is not supported by this endpoint")
    operators = {"MatchOp.Equal": "=", "MatchOp.NotEqual": "!=", "MatchOp.Re": "=~", "MatchOp.NotRe": "!~"}
    matchers = [Matcher(item.name, operators[str(item.op)], item.value) for item in selector.matchers.matchers]
    return [Matcher(METRIC_NAME, "=", selector.name), *matchers] if selector.name else matchers


def _unwrapped(tree: Any) -> Any:
    while isinstance(tree, parser.ParenExpr):
        tree = tree.expr
    return tree


def _evaluate(query: _Query, tree: Any, times_ms: Millis) -> Value:
    tree = _unwrapped(tree)
    if isinstance(tree, parser.NumberLiteral):
        return Scalar(np.full(times_ms.size, tree.val))
    if isinstance(tree, parser.StringLiteral):
        return Text(tree.val)
    if isinstance(tree, parser.VectorSelector):
        return _select(query, tree, times_ms)[0]
    if isinstance(tree, parser.UnaryExpr):
        value = _evaluate(query, tree.expr, times_ms)
        return Scalar(-value.values) if isinstance(value, Scalar) else mapped(_as_vector(value), -_as_vector(value).values)
    if isinstance(tree, parser.AggregateExpr):
        return _evaluate_aggregation(query, tree, times_ms)
    if isinstance(tree, parser.BinaryExpr):
        return _evaluate_operator(query, tree, times_ms)
    if isinstance(tree, parser.Call):
        return _evaluate_call(query, tree, times_ms)
    raise UnsupportedQueryError(f"{tree} is not supported by this endpoint")


def _as_vector(value: Value) -> Vector:
    assert isinstance(value, Vector), "the parser checks the types of operands"
    return value


def _as_scalar(value: Value) -> Floats:
    assert isinstance(value, Scalar), "the parser checks the types of operands"
    return value.values


def _reference_times(query: _Query, tree: Any, times_ms: Millis) -> Millis:
    """The moments that a selector looks at: moved by its ``@`` and its ``offset``."""
    at, offset_ms = _attribute(tree, "at"), _millis(tree, "offset")
    reference = times_ms if at is None else np.full_like(times_ms, _at_millis(query, at))
    return reference - (offset_ms or 0)


def _at_millis(query: _Query, modifier: Any) -> int:
    if modifier.type == parser.AtModifierType.Start:
        return query.start_ms
    if modifier.type == parser.AtModifierType.End:
        return query.end_ms
    return to_millis(_attribute(modifier, "at").timestamp())


def _attribute(node: Any, name: str) -> Any:
    """A time or duration of the tree: converted when it is read, which fails for one that Python cannot hold."""
    try:
        return getattr(node, name)
    except (ValueError, OverflowError) as error:
        raise BadQueryDataError(f"parse error: {name} is out of range: {error}") from error


def _millis(node: Any, name: str) -> int | None:
    duration: timedelta | None = _attribute(node, name)
    return None if duration is None else round(duration / timedelta(milliseconds=1))


def _read(query: _Query, selector: Any, first_ms: int, last_ms: int) -> list[Samples]:
    return query.tsdb.select(selector_matchers(selector), first_ms / 1000, last_ms / 1000)


def _select(query: _Query, selector: Any, times_ms: Millis) -> tuple[Vector, Millis]:
    """The newest sample of each series within the lookback, unless it is a staleness marker; and the samples' own times."""
    reference = _reference_times(query, selector, times_ms)
    read = _read(query, selector, int(reference.min()) - LOOKBACK_MS, int(reference.max()))
    check_size(len(read), times_ms.size)
    values = np.zeros((len(read), times_ms.size))
    sampled_ms = np.zeros((len(read), times_ms.size), dtype=np.int64)
    for row, samples in enumerate(read):
        newest = np.searchsorted(samples.times_ms, reference, side="right") - 1
        values[row] = samples.values[newest]
        # Index -1 reads the last sample, which is after the moment.
        sampled_ms[row] = samples.times_ms[newest]
    present = (sampled_ms <= reference) & (sampled_ms >= reference - LOOKBACK_MS) & ~is_stale(values)
    alive = np.flatnonzero(present.any(axis=1))
    return Vector([samples.labels for samples in read], values, present).take(alive), sampled_ms[alive]


def _windows(query: _Query, tree: Any, times_ms: Millis) -> list[tuple[Labels, Windows]]:
    """The windows of a range selector or a subquery that end at each moment, for each series."""
    if isinstance(tree, parser.SubqueryExpr):
        return _subquery_windows(query, tree, times_ms)
    selector, range_ms = tree.vector_selector, _millis(tree, "range") or 0
    ends_ms = _reference_times(query, selector, times_ms)
    out = []
    for samples in _read(query, selector, int(ends_ms.min()) - range_ms, int(ends_ms.max())):
        fresh = ~is_stale(samples.values)
        out.append((samples.labels, windows_of(samples.times_ms[fresh], samples.values[fresh], ends_ms, range_ms)))
    return out


def _subquery_windows(query: _Query, tree: Any, times_ms: Millis) -> list[tuple[Labels, Windows]]:
    """The inner expression at multiples of the step, over everything that the windows reach."""
    ends_ms, range_ms = _reference_times(query, tree, times_ms), _millis(tree, "range") or 0
    step_ms = _millis(tree, "step") or SUBQUERY_STEP_MS
    first = -(-(int(ends_ms.min()) - range_ms) // step_ms) * step_ms
    moments = (int(ends_ms.max()) - first) // step_ms + 1
    if moments <= 0:
        return []
    check_size(1, moments)
    inner_ms = first + step_ms * np.arange(moments, dtype=np.int64)
    inner = _as_vector(_evaluate(query, tree.expr, inner_ms))
    return [
        (labels, windows_of(inner_ms[present], values[present], ends_ms, range_ms))
        for labels, values, present in zip(inner.labels, inner.values, inner.present, strict=True)
    ]


def _last_window(windows: list[tuple[Labels, Windows]]) -> list[Samples]:
    cut = [(labels, item, slice(int(item.low[-1]), int(item.high[-1]))) for labels, item in windows]
    series = [Samples(labels, item.times_ms[part], item.values[part]) for labels, item, part in cut if part.stop > part.start]
    return sorted(series, key=lambda samples: samples.labels)


def _evaluate_call(query: _Query, tree: Any, times_ms: Millis) -> Value:
    name, arguments = tree.func.name, tree.args
    if name in RANGE_FUNCTIONS or name == "quantile_over_time":
        return _evaluate_over_range(query, name, arguments, times_ms)
    if name == "timestamp":
        return _timestamp(query, arguments[0], times_ms)
    if name == "absent":
        return absent(_as_vector(_evaluate(query, arguments[0], times_ms)), _equal_labels(arguments[0]))
    if name not in FUNCTIONS:
        raise UnsupportedQueryError(f"function {name!r} is not supported by this endpoint")
    return FUNCTIONS[name]([_evaluate(query, argument, times_ms) for argument in arguments], times_ms)


def _evaluate_over_range(query: _Query, name: str, arguments: list[Any], times_ms: Millis) -> Vector:
    # First, as in Prometheus: an error in it shows even where there is no series.
    quantile = _as_scalar(_evaluate(query, arguments[0], times_ms)) if name == "quantile_over_time" else None
    windows = _windows(query, _unwrapped(arguments[-1]), times_ms)
    check_size(len(windows), times_ms.size)
    if not windows:
        return empty_vector(times_ms.size)
    function = RANGE_FUNCTIONS[name] if quantile is None else partial(quantile_over_time, quantile=quantile)
    results = [function(item) for _, item in windows]
    labels = [labels if name in _KEEPS_NAME else without_name(labels) for labels, _ in windows]
    return merged(labels, np.array([values for values, _ in results]), np.array([present for _, present in results]))


def _timestamp(query: _Query, argument: Any, times_ms: Millis) -> Vector:
    """A selector's samples have times of their own; the values of other expressions are of the moment of evaluation."""
    argument = _unwrapped(argument)
    if isinstance(argument, parser.VectorSelector):
        vector, sampled_ms = _select(query, argument, times_ms)
        return mapped(vector, sampled_ms / 1000)
    vector = _as_vector(_evaluate(query, argument, times_ms))
    return mapped(vector, np.broadcast_to(times_ms / 1000, vector.values.shape))


def _equal_labels(argument: Any) -> Labels:
    """The labels that ``absent`` can tell: those that the selector asks for by equality, once."""
    argument = _unwrapped(argument)
    if not isinstance(argument, parser.VectorSelector):
        return ()
    matchers = [matcher for matcher in selector_matchers(argument) if matcher.name != METRIC_NAME]
    names = [matcher.name for matcher in matchers]
    return labels_of((item.name, item.value) for item in matchers if item.op == "=" and names.count(item.name) == 1)


def _evaluate_aggregation(query: _Query, tree: Any, times_ms: Millis) -> Vector:
    modifier = tree.modifier
    by = modifier is None or modifier.type == parser.AggModifierType.By
    names = modifier.labels if modifier is not None else []
    vector = _as_vector(_evaluate(query, tree.expr, times_ms))
    parameter = None
    if tree.param is not None:
        value = _evaluate(query, tree.param, times_ms)
        parameter = value.values if isinstance(value, Scalar) else None
    return aggregate(str(tree.op), vector, group_by(names) if by else group_without(names), parameter)


def _evaluate_operator(query: _Query, tree: Any, times_ms: Millis) -> Value:
    operator, modifier = str(tree.op), tree.modifier
    check_operator(operator)
    as_bool = modifier is not None and modifier.return_bool
    left, right = _evaluate(query, tree.lhs, times_ms), _evaluate(query, tree.rhs, times_ms)
    if isinstance(left, Scalar) and isinstance(right, Scalar):
        return scalar_with_scalar(operator, left, right)
    if isinstance(left, Scalar):
        return vector_with_scalar(operator, _as_vector(right), left, swapped=True, as_bool=as_bool)
    if isinstance(right, Scalar):
        return vector_with_scalar(operator, _as_vector(left), right, swapped=False, as_bool=as_bool)
    matching = _matching(modifier)
    if operator in SET_OPERATORS:
        return set_operation(operator, _as_vector(left), _as_vector(right), matching)
    return vector_with_vector(operator, _as_vector(left), _as_vector(right), matching, as_bool=as_bool)


def _matching(modifier: Any) -> Matching:
    if modifier is None:
        return Matching()
    fill = modifier.fill_values
    if fill is not None and (fill.lhs is not None or fill.rhs is not None):
        raise UnsupportedQueryError("fill() is not supported by this endpoint")
    names = tuple(modifier.matching.labels) if modifier.matching is not None else ()
    on = modifier.matching is not None and modifier.matching.type == parser.LabelModifierType.Include
    include = tuple(modifier.group_labels or ())
    if modifier.card == parser.VectorMatchCardinality.ManyToOne:
        return Matching(on, names, "left", include)
    if modifier.card == parser.VectorMatchCardinality.OneToMany:
        return Matching(on, names, "right", include)
    return Matching(on, names)
