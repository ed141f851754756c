from __future__ import annotations

from typing import Any

import pytest

from vpa_ippr.sandbox.cel import CelError, compile_rule

SELF = {"n": 3, "s": "abc", "l": [1, 2, 3], "b": True, "m": {"k": "v"}, "x": 1.5}


@pytest.mark.parametrize(
    ("rule", "holds"),
    [
        ("self.n == 3", True),
        ("self.n != 3", False),
        ("self.n > 2 && self.n <= 3", True),
        ("self.n < 3 || self.b", True),
        ("!self.b", False),
        ("!(self.n == 4)", True),
        ("has(self.n)", True),
        ("has(self.nope)", False),
        ("!has(self.nope) || self.nope == 1", True),
        ("self.nope == 1 || self.b", True),
        ("size(self.l) == 3", True),
        ("self.s.size() == 3", True),
        ("self.l[0] == 1", True),
        ("self.m['k'] == 'v'", True),
        ("2 in self.l", True),
        ('"k" in self.m', True),
        ("self.n in [1, 3]", True),
        ("self.n + 1 == 4 && self.n * 2 - 1 == 5", True),
        ("7 / 2 == 3 && 7 % 2 == 1 && -self.n == -3", True),
        ("self.b ? self.n == 3 : false", True),
        ("self.s.startsWith('a') && self.s.endsWith('c') && self.s.contains('b')", True),
        ("self.s.matches('^[a-c]+$')", True),
        ("self.l.all(x, x > 0)", True),
        ("self.l.exists(x, x > 2) && self.l.exists_one(x, x == 2)", True),
        ("self.l.filter(x, x > 1).size() == 2", True),
        ("self.l.map(x, x * 2) == [2, 4, 6]", True),
        ("self.x > 1.0", True),
        ("self.b == 1", False),
        ("self.m == {'k': 'v'}", None),
        ("true", True),
        ("self.n == null", False),
    ],
)
def test_rules(rule: str, holds: bool | None) -> None:
    if holds is None:
        with pytest.raises(CelError):
            compile_rule(rule)
    else:
        assert compile_rule(rule).holds(SELF) is holds


@pytest.mark.parametrize(
    "rule",
    [
        "self.n ==", "duration(self.s)", "self.s.lowerAscii() == 'a'", "other.n == 1", "self.n == 1)", "self.n = 1", "quantity('1')",
        "self.n @ 1", "", "self.l.all(x, y > 0)", "has(self.n",
    ],
)  # fmt: skip
def test_what_is_not_supported_is_refused_with_the_rule(rule: str) -> None:
    with pytest.raises(CelError, match="rule"):
        compile_rule(rule)


@pytest.mark.parametrize("rule", ["self.nope == 1", "self.n", "self.s > 1", "self.l[9] == 1", "self.n / 0 == 1", "self.n && true"])
def test_what_cannot_be_evaluated_is_an_error(rule: str) -> None:
    with pytest.raises(CelError):
        compile_rule(rule).holds(SELF)


@pytest.mark.parametrize(("rule", "transition"), [("self == oldSelf", True), ("self.n == 3", False)])
def test_transition_rules_are_known(rule: str, transition: bool) -> None:
    assert compile_rule(rule).uses_old is transition


def test_old_self() -> None:
    rule = compile_rule("self.n >= oldSelf.n")
    old: Any = {"n": 2}
    assert rule.holds({"n": 3}, old)
    assert not rule.holds({"n": 1}, old)
