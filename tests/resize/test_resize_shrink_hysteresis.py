"""After a revert (kernel.md 3.4): 30 min, doubled to a day; a tenth above what was reached; two in a day and it is unsafe."""

import pytest
from resize_support import START

from vpa_ippr.api.resources import Resource
from vpa_ippr.resize.ledger import Ledger, Scope, hold_off_for, with_hold_off
from vpa_ippr.resize.settings import Settings

SETTINGS, HOUR, DAY, MIB = Settings(), 3600, 24 * 3600, 1 << 20


def after(*failures, reason="Refaults"):
    ledger = Ledger()
    for at, harmed in failures:
        ledger = with_hold_off(ledger, "app", Scope.SHRINK, reason, START + at, SETTINGS, 100 * MIB, harmed=harmed)
    (hold_off,) = ledger.hold_offs
    return hold_off


@pytest.mark.parametrize(
    ("failures", "wait", "floor"),
    [
        ([(0, False)], 900, 100 * MIB),
        ([(0, True)], 1800, 110 * MIB),
        ([(0, False), (HOUR, True)], 3600, 110 * MIB),
        ([(0, True), (25 * HOUR, True)], 3600, 110 * MIB),
        ([(0, True), (23 * HOUR, True)], 7 * DAY, None),
        ([(0, True), (HOUR, False), (2 * HOUR, True)], 7 * DAY, None),
        ([(0, True), (HOUR, False)], 1800, 100 * MIB),
    ],
    ids=[
        "refused",
        "hurt",
        "refused-then-hurt",
        "hurt-a-day-apart",
        "hurt-twice-in-a-day",
        "hurt-twice-with-a-refusal",
        "hurt-then-refused",
    ],
)
def test_how_long_and_how_low(failures, wait, floor):
    hold_off = after(*failures)
    assert hold_off.until == START + failures[-1][0] + wait
    assert hold_off.floor_bytes == (pytest.approx(floor, abs=1) if floor is not None else None)


def test_a_later_failure_never_shortens_the_wait():
    unsafe = after((0, True), (HOUR, True))
    later = after((0, True), (HOUR, True), (2 * HOUR, False))
    assert (later.until, later.floor_bytes) == (unsafe.until, None)


def test_what_is_unsafe_is_not_shrunk_but_may_grow():
    ledger = Ledger(hold_offs=[after((0, True), (HOUR, True))])
    later = START + 6 * DAY
    assert hold_off_for(ledger, "app", Resource.MEMORY, later, grows=False) is not None
    assert hold_off_for(ledger, "app", Resource.MEMORY, later, grows=True) is None
