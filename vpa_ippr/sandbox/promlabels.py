"""Label sets and label matchers, as Prometheus orders and compares them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from vpa_ippr.api.errors import VpaIpprError

# A label set: (name, value) pairs sorted by name, without empty values; hashable, and its order is Prometheus's.
Labels = tuple[tuple[str, str], ...]

METRIC_NAME = "__name__"
LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")

# Go's RE2 and Python's re read these differently (or Python not at all): a POSIX class, a Unicode class, \Q..\E, \x{..}, \C, \z,
# \Z, \< and \b{..} of Rust, a back reference, a repeat without a lower bound (a literal in RE2), a possessive repeat, and groups
# other than plain, named, or with the flags i and s.
_OTHER_DIALECT = re.compile(r"\[:|\\[pPQECzZ<>1-9]|\\[xb]\{|\{,|(?<!\\)[*+?}]\+|\(\?(?!:|i\)|s\)|P<)")


class UnsupportedQueryError(VpaIpprError):
    """The query is good PromQL, but of a kind that this endpoint does not answer; we answer 422 execution."""

    reason = "UnsupportedQuery"


class QueryFailedError(VpaIpprError):
    """The query is right but its evaluation met something that PromQL forbids; Prometheus answers 422 execution."""

    reason = "QueryFailed"


class BadQueryDataError(VpaIpprError):
    """The query or one of its parameters is wrong; Prometheus answers 400 bad_data."""

    reason = "BadQueryData"


def labels_of(pairs: Mapping[str, str] | Iterable[tuple[str, str]]) -> Labels:
    """The label set of ``pairs``: sorted, without empty values."""
    return tuple(sorted((name, value) for name, value in dict(pairs).items() if value))


@dataclass(frozen=True, slots=True)
class Matcher:
    """One condition on one label; an absent label has the value ``""``. ``op`` is ``=``, ``!=``, ``=~`` or ``!~``."""

    name: str
    op: str
    value: str

    def predicate(self) -> Callable[[str], bool]:
        """A function that says whether a label value fulfils the condition.

        Raises:
            BadQueryDataError: the regular expression is not one.
            UnsupportedQueryError: the expression means something else in Go than in Python, or ``op`` is unknown.
        """
        wanted = self.value
        match self.op:
            case "=":
                return wanted.__eq__
            case "!=":
                return wanted.__ne__
            case "=~":
                pattern = compile_regex(wanted)
                return lambda value: pattern.fullmatch(value) is not None
            case "!~":
                pattern = compile_regex(wanted)
                return lambda value: pattern.fullmatch(value) is None
        raise UnsupportedQueryError(f"label matcher operator {self.op!r} is not supported")


def compile_regex(text: str) -> re.Pattern[str]:
    """The expression as Prometheus means it when it is anchored at both ends (use ``fullmatch``).

    Raises:
        BadQueryDataError: the text is not a regular expression.
        UnsupportedQueryError: Go's RE2 and Python's re may disagree about it.
    """
    if _OTHER_DIALECT.search(text):
        raise UnsupportedQueryError(f"regular expression {text!r} uses syntax that is not supported")
    try:
        return re.compile(text, re.ASCII)
    except re.error as error:
        raise BadQueryDataError(f"error parsing regexp {text!r}: {error}") from error
