"""Label and field selectors: the grammar of ``labels.Parse`` and ``fields.ParseSelector``, compiled to predicates."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from vpa_ippr.sandbox.status import bad_request

Json = dict[str, Any]
LabelPredicate = Callable[[Mapping[str, str]], bool]
ObjectPredicate = Callable[[Json], bool]

_TOKEN = re.compile(r"\s*(==|!=|=|!|\(|\)|,|[^\s=!(),]+)")
_SPECIAL = {"==", "!=", "=", "!", "(", ")", ","}


def everything(_: object) -> bool:
    """The selector that selects all."""
    return True


def parse_label_selector(text: str | None) -> LabelPredicate:
    """Compile ``a=b,c!=d,e,!f,g in (x,y),h notin (z)``; StatusError 400 with the real parser's message when it cannot be read."""
    if not text or not text.strip():
        return everything
    tokens = _tokenise(text)
    requirements = [_parse_requirement(tokens)]
    while tokens:
        separator = tokens.pop(0)
        if separator != ",":
            raise _unparsable(f"found '{separator}', expected: ',' or 'end of string'", bare=True)
        requirements.append(_parse_requirement(tokens))
    return lambda labels: all(requirement(labels) for requirement in requirements)


def label_selector_of(selector: Json | None) -> LabelPredicate:
    """Compile a ``metav1.LabelSelector`` (``matchLabels``, ``matchExpressions``); None selects nothing, ``{}`` everything."""
    if selector is None:
        return lambda _: False
    requirements: list[LabelPredicate] = [_in(key, frozenset({value})) for key, value in (selector.get("matchLabels") or {}).items()]
    requirements += [_expression(expression) for expression in selector.get("matchExpressions") or []]
    return lambda labels: all(requirement(labels) for requirement in requirements)


def parse_field_selector(text: str | None, supported: Mapping[str, Callable[[Json], str]]) -> ObjectPredicate:
    """Compile ``a.b=c,d!=e``; ``supported`` reads the value of each field that the resource can be selected by."""
    if not text:
        return everything
    terms = [_parse_field_term(term, supported) for term in text.split(",") if term]
    return lambda obj: all(term(obj) for term in terms)


def _parse_field_term(term: str, supported: Mapping[str, Callable[[Json], str]]) -> ObjectPredicate:
    for operator in ("!=", "==", "="):
        name, found, value = term.partition(operator)
        if found:
            break
    else:
        raise bad_request(f"invalid selector: '{term}'; can't understand '{term}'")
    reader = supported.get(name)
    if reader is None:
        raise bad_request(f"field label not supported: {name}")
    if operator == "!=":
        return lambda obj: reader(obj) != value
    return lambda obj: reader(obj) == value


def _expression(expression: Json) -> LabelPredicate:
    key, operator, values = expression["key"], expression["operator"], frozenset(expression.get("values") or [])
    if operator == "In":
        return _in(key, values)
    if operator == "NotIn":
        return _not_in(key, values)
    if operator == "Exists":
        return lambda labels: key in labels
    if operator == "DoesNotExist":
        return lambda labels: key not in labels
    raise bad_request(f'"{operator}" is not a valid label selector operator')


def _tokenise(text: str) -> list[str]:
    return [match.group(1) for match in _TOKEN.finditer(text)]


def _parse_requirement(tokens: list[str]) -> LabelPredicate:
    if tokens and tokens[0] == "!":
        tokens.pop(0)
        absent = _identifier(tokens)
        return lambda labels: absent not in labels
    key = _identifier(tokens)
    if not tokens or tokens[0] == ",":
        return lambda labels: key in labels
    operator = tokens.pop(0)
    if operator in ("=", "=="):
        return _in(key, frozenset({_value(tokens)}))
    if operator == "!=":
        return _not_in(key, frozenset({_value(tokens)}))
    if operator == "in":
        return _in(key, _values(tokens))
    if operator == "notin":
        return _not_in(key, _values(tokens))
    raise _unparsable(f"found '{operator}', expected: in, notin, =, ==, !=, gt, lt")


def _in(key: str, values: frozenset[str]) -> LabelPredicate:
    return lambda labels: labels.get(key) in values


def _not_in(key: str, values: frozenset[str]) -> LabelPredicate:
    return lambda labels: labels.get(key) not in values


def _identifier(tokens: list[str]) -> str:
    found = tokens.pop(0) if tokens else ""
    if not found or found in _SPECIAL:
        raise _unparsable(f"found '{found}', expected: identifier")
    return found


def _value(tokens: list[str]) -> str:
    if not tokens or tokens[0] == ",":
        return ""
    return _identifier(tokens)


def _values(tokens: list[str]) -> frozenset[str]:
    if not tokens or tokens.pop(0) != "(":
        raise _unparsable("expected: '('")
    values: set[str] = set()
    while tokens:
        part = tokens.pop(0)
        if part == ")":
            return frozenset(values)
        if part != ",":
            values.add(part)
    raise _unparsable("found '', expected: ',', or ')'")


def _unparsable(detail: str, *, bare: bool = False) -> Exception:
    return bad_request(detail if bare else f"unable to parse requirement: {detail}")
