"""A small evaluator of the Common Expression Language: the part of CEL that validation rules of custom resources use.

Known: literals, ``self`` and ``oldSelf``, field access, indexing, ``! - * / % + < <= > >= == != in && || ?:``, ``has()``, ``size()``,
``startsWith`` ``endsWith`` ``contains`` ``matches``, and the macros ``all`` ``exists`` ``exists_one`` ``filter`` ``map``. Whatever lies
outside is refused when the rule is compiled, so that a rule is never half understood.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from vpa_ippr.api.errors import VpaIpprError

Scope = Mapping[str, Any]
Term = Callable[[Scope], Any]

_TOKEN = re.compile(
    r"""\s*(?:
    (?P<number>\d+\.\d+(?:[eE][+-]?\d+)?|\d+u?)
  | (?P<string>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')
  | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
  | (?P<sign>&&|\|\||==|!=|<=|>=|[-+*/%<>!?:.,()\[\]])
)""",
    re.VERBOSE,
)


def _same(left: Any, right: Any) -> bool:
    return isinstance(left, bool) is isinstance(right, bool) and bool(left == right)


def _divided(left: Any, right: Any) -> Any:
    return int(left / right) if isinstance(left, int) and isinstance(right, int) else left / right


_BINARY: tuple[dict[str, Callable[[Any, Any], Any]], ...] = (
    {"==": _same, "!=": lambda a, b: not _same(a, b)}
    | {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "in": lambda a, b: a in b},
    {"+": operator.add, "-": operator.sub},
    {"*": operator.mul, "/": _divided, "%": lambda a, b: a - b * int(a / b)},
)
_METHODS: dict[str, Callable[[str, str], bool]] = {
    "startsWith": str.startswith,
    "endsWith": str.endswith,
    "contains": operator.contains,
    "matches": lambda text, pattern: re.search(pattern, text) is not None,
}
_MACROS = ("all", "exists", "exists_one", "filter", "map")
_LITERALS = {"true": True, "false": False, "null": None}


class CelError(VpaIpprError):
    """The rule cannot be compiled, or met a value that it cannot work with."""

    reason = "BadRule"


@dataclass(frozen=True, slots=True)
class Rule:
    """A compiled rule; ``uses_old`` makes it a transition rule, which is checked on updates only."""

    source: str
    term: Term
    uses_old: bool

    def holds(self, value: Any, old: Any = None) -> bool:
        """Evaluate with ``self`` and ``oldSelf``; CelError when a value is missing or of the wrong type."""
        try:
            outcome = self.term({"self": value, "oldSelf": old})
        except (TypeError, KeyError, IndexError, ValueError, ZeroDivisionError, AttributeError, re.error) as error:
            raise CelError(f"rule {self.source!r} cannot be evaluated: {error}") from error
        if not isinstance(outcome, bool):
            raise CelError(f"rule {self.source!r} does not give true or false")
        return outcome


def compile_rule(source: str) -> Rule:
    """Compile one rule; CelError names what is not supported."""
    parser = _Parser(source)
    term = parser.conditional()
    if parser.peek():
        raise parser.unexpected()
    return Rule(source, term, parser.uses_old)


class _Parser:
    def __init__(self, source: str) -> None:
        self.source = source
        self.tokens = self._tokenise(source)
        self.place = 0
        self.uses_old = False
        self.bound: set[str] = {"self", "oldSelf"}

    def _tokenise(self, source: str) -> list[tuple[str, str]]:
        tokens: list[tuple[str, str]] = []
        text, end = source.rstrip(), 0
        while end < len(text):
            match = _TOKEN.match(text, end)
            if match is None or match.lastgroup is None:
                raise CelError(f"rule {source!r}: cannot read {text[end:]!r}")
            tokens.append((match.lastgroup, match[match.lastgroup]))
            end = match.end()
        return tokens

    def peek(self) -> str:
        return self.tokens[self.place][1] if self.place < len(self.tokens) else ""

    def take(self, expected: str = "") -> tuple[str, str]:
        if self.place >= len(self.tokens) or (expected and self.peek() != expected):
            raise self.unexpected()
        self.place += 1
        return self.tokens[self.place - 1]

    def accept(self, sign: str) -> bool:
        found = self.peek() == sign
        self.place += found
        return found

    def unexpected(self) -> CelError:
        return CelError(f"rule {self.source!r}: {self.peek() or 'its end'!r} is not expected or not supported here")

    def conditional(self) -> Term:
        condition = self.disjunction()
        if not self.accept("?"):
            return condition
        yes = self.conditional()
        self.take(":")
        no = self.conditional()
        return lambda scope: yes(scope) if _truth(condition(scope)) else no(scope)

    def disjunction(self) -> Term:
        terms = [self.conjunction()]
        while self.accept("||"):
            terms.append(self.conjunction())
        return terms[0] if len(terms) == 1 else _logical(terms, decisive=True)

    def conjunction(self) -> Term:
        terms = [self.binary(0)]
        while self.accept("&&"):
            terms.append(self.binary(0))
        return terms[0] if len(terms) == 1 else _logical(terms, decisive=False)

    def binary(self, level: int) -> Term:
        if level == len(_BINARY):
            return self.unary()
        left = self.binary(level + 1)
        while self.peek() in _BINARY[level]:
            left = _applied(_BINARY[level][self.take()[1]], left, self.binary(level + 1))
        return left

    def unary(self) -> Term:
        if self.accept("!"):
            negated = self.unary()
            return lambda scope: not _truth(negated(scope))
        if self.accept("-"):
            positive = self.unary()
            return lambda scope: -positive(scope)
        return self.postfix(self.primary())

    def postfix(self, term: Term) -> Term:
        while True:
            if self.accept("."):
                name = self.take()[1]
                term = self.method(term, name) if self.peek() == "(" else _field(term, name)
            elif self.accept("["):
                index = self.conditional()
                self.take("]")
                term = _applied(operator.getitem, term, index)
            else:
                return term

    def method(self, receiver: Term, name: str) -> Term:
        self.take("(")
        if name == "size":
            self.take(")")
            return lambda scope: len(receiver(scope))
        if name in _METHODS:
            argument = self.conditional()
            self.take(")")
            return _applied(_METHODS[name], receiver, argument)
        if name in _MACROS:
            return self.macro(receiver, name)
        raise CelError(f"rule {self.source!r}: the function {name!r} is not supported")

    def macro(self, receiver: Term, name: str) -> Term:
        variable = self.take()[1]
        self.take(",")
        self.bound.add(variable)
        body = self.conditional()
        self.bound.discard(variable)
        self.take(")")

        def outcomes(scope: Scope) -> list[tuple[Any, Any]]:
            return [(item, body({**scope, variable: item})) for item in receiver(scope)]

        combine: dict[str, Callable[[list[tuple[Any, Any]]], Any]] = {
            "all": lambda found: all(_truth(outcome) for _, outcome in found),
            "exists": lambda found: any(_truth(outcome) for _, outcome in found),
            "exists_one": lambda found: sum(_truth(outcome) for _, outcome in found) == 1,
            "filter": lambda found: [item for item, outcome in found if _truth(outcome)],
            "map": lambda found: [outcome for _, outcome in found],
        }
        chosen = combine[name]
        return lambda scope: chosen(outcomes(scope))

    def primary(self) -> Term:
        kind, text = self.take()
        if kind == "number":
            number = float(text) if "." in text else int(text.rstrip("u"))
            return lambda _: number
        if kind == "string":
            literal = re.sub(r"\\(.)", r"\1", text[1:-1])
            return lambda _: literal
        if text == "(":
            inner = self.conditional()
            self.take(")")
            return inner
        if text == "[":
            return self.list_literal()
        if kind == "name":
            return self.named(text)
        self.place -= 1
        raise self.unexpected()

    def named(self, name: str) -> Term:
        if name in _LITERALS:
            literal = _LITERALS[name]
            return lambda _: literal
        if self.peek() == "(":
            return self.function(name)
        if name not in self.bound:
            raise CelError(f"rule {self.source!r}: {name!r} is not defined")
        self.uses_old |= name == "oldSelf"
        return lambda scope: scope[name]

    def function(self, name: str) -> Term:
        self.take("(")
        argument = self.conditional()
        self.take(")")
        if name == "size":
            return lambda scope: len(argument(scope))
        if name == "has":
            return _presence(argument)
        raise CelError(f"rule {self.source!r}: the function {name!r} is not supported")

    def list_literal(self) -> Term:
        items: list[Term] = []
        while not self.accept("]"):
            items.append(self.conditional())
            if self.peek() != "]":
                self.take(",")
        return lambda scope: [item(scope) for item in items]


def _field(term: Term, name: str) -> Term:
    def read(scope: Scope) -> Any:
        value = term(scope)
        if not isinstance(value, dict) or name not in value:
            raise KeyError(f"no such key: {name}")
        return value[name]

    return read


def _presence(argument: Term) -> Term:
    def present(scope: Scope) -> bool:
        try:
            argument(scope)
        except KeyError:
            return False
        return True

    return present


def _applied(function: Callable[[Any, Any], Any], left: Term, right: Term) -> Term:
    return lambda scope: function(left(scope), right(scope))


def _logical(terms: list[Term], *, decisive: bool) -> Term:
    """``&&`` and ``||`` of CEL: one decisive operand settles the outcome even when another one fails."""

    def evaluate(scope: Scope) -> bool:
        failure: Exception | None = None
        for term in terms:
            try:
                if _truth(term(scope)) is decisive:
                    return decisive
            except (TypeError, KeyError, IndexError) as error:
                failure = error
        if failure is not None:
            raise failure
        return not decisive

    return evaluate


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is not a boolean")
    return value
