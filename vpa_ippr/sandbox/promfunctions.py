"""PromQL functions of instant vectors and scalars; arguments come evaluated (``timestamp`` and ``absent`` are promql.py's)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

from vpa_ippr.sandbox.promlabels import LABEL_NAME, BadQueryDataError, Labels, QueryFailedError, compile_regex, labels_of
from vpa_ippr.sandbox.promvectors import Floats, Millis, Scalar, Text, Value, Vector, present_anywhere, relabelled, without_name

# ``$1``, ``${1}``, ``$name``, ``${name}`` and ``$$`` of Go's regexp.Expand; any other dollar stands for itself.
_REFERENCE = re.compile(r"\$(?:(\$)|\{(\w+)\}|(\w+))", re.ASCII)

Function = Callable[[Sequence[Value], Millis], Value]


def _vector(value: Value) -> Vector:
    assert isinstance(value, Vector), "the parser checks the types of arguments"
    return value


def _scalar(value: Value) -> Floats:
    assert isinstance(value, Scalar), "the parser checks the types of arguments"
    return value.values


def _text(value: Value) -> str:
    assert isinstance(value, Text), "the parser checks the types of arguments"
    return value.value


def mapped(vector: Vector, values: Floats) -> Vector:
    """The vector with other values and, as every function does to it, without its metric name."""
    return relabelled(Vector(vector.labels, values, vector.present), without_name)


def _elementwise(ufunc: np.ufunc) -> Function:
    def apply(arguments: Sequence[Value], _: Millis) -> Vector:
        vector = _vector(arguments[0])
        return mapped(vector, ufunc(vector.values))

    return apply


def _clamp(ufunc: np.ufunc, infinity: float) -> Function:
    """Go's math.Max and math.Min: as numpy's, but an infinity that wins against every number wins against NaN too."""

    def apply(arguments: Sequence[Value], _: Millis) -> Vector:
        vector, bound = _vector(arguments[0]), _scalar(arguments[1])[None, :]
        decided = (vector.values == infinity) | (bound == infinity)
        return mapped(vector, np.where(decided, infinity, ufunc(vector.values, bound)))

    return apply


def _to_scalar(arguments: Sequence[Value], _: Millis) -> Scalar:
    """The value of the only series; NaN where there is none or more than one."""
    vector = _vector(arguments[0])
    total = np.where(vector.present, vector.values, 0.0).sum(axis=0)
    return Scalar(np.where(vector.present.sum(axis=0) == 1, total, np.nan))


def _to_vector(arguments: Sequence[Value], _: Millis) -> Vector:
    values = _scalar(arguments[0])[None, :]
    return Vector([()], values, np.ones(values.shape, dtype=np.bool_))


def _time(_: Sequence[Value], times_ms: Millis) -> Scalar:
    return Scalar(times_ms / 1000)


def _label_replace(arguments: Sequence[Value], _: Millis) -> Vector:
    vector = _vector(arguments[0])
    target, template, source, expression = (_text(argument) for argument in arguments[1:])
    _check_target(target, "label_replace")
    try:
        pattern = compile_regex(expression)
    except BadQueryDataError as error:
        raise QueryFailedError(f"invalid regular expression in label_replace(): {expression}") from error

    def change(labels: Labels) -> Labels:
        named = dict(labels)
        match = pattern.fullmatch(named.get(source, ""))
        if match is None:
            return labels
        return labels_of(named | {target: _expanded(template, match)})

    return relabelled(vector, change)


def _expanded(template: str, match: re.Match[str]) -> str:
    """Go's Expand: a reference to a group that does not exist is empty."""

    def group(reference: re.Match[str]) -> str:
        if reference[1]:
            return "$"
        name = reference[2] or reference[3]
        try:
            return match[int(name) if name.isdigit() else name] or ""
        except IndexError:
            return ""

    return _REFERENCE.sub(group, template)


def _label_join(arguments: Sequence[Value], _: Millis) -> Vector:
    vector = _vector(arguments[0])
    target, separator, *sources = (_text(argument) for argument in arguments[1:])
    _check_target(target, "label_join")

    def change(labels: Labels) -> Labels:
        named = dict(labels)
        return labels_of(named | {target: separator.join(named.get(source, "") for source in sources)})

    return relabelled(vector, change)


def _check_target(name: str, function: str) -> None:
    if not LABEL_NAME.fullmatch(name):
        raise QueryFailedError(f"invalid destination label name in {function}(): {name}")


def _sort(arguments: Sequence[Value], _: Millis, *, descending: bool) -> Vector:
    """By value, NaN last; it matters to an instant query only."""
    vector = _vector(arguments[0])
    if vector.values.shape[1] != 1:
        return vector
    values = vector.values[:, 0]
    return vector.take(np.lexsort((-values if descending else values, np.isnan(values))))


FUNCTIONS: dict[str, Function] = {
    "abs": _elementwise(np.abs),
    "ceil": _elementwise(np.ceil),
    "floor": _elementwise(np.floor),
    "clamp_min": _clamp(np.maximum, np.inf),
    "clamp_max": _clamp(np.minimum, -np.inf),
    "scalar": _to_scalar,
    "vector": _to_vector,
    "time": _time,
    "label_replace": _label_replace,
    "label_join": _label_join,
    "sort": lambda arguments, times_ms: _sort(arguments, times_ms, descending=False),
    "sort_desc": lambda arguments, times_ms: _sort(arguments, times_ms, descending=True),
}


def absent(vector: Vector, labels: Labels) -> Vector:
    """1 under ``labels`` at the moments when the vector is empty."""
    present = ~present_anywhere(vector)[None, :]
    return Vector([labels], np.ones(present.shape), present).with_present(present)
