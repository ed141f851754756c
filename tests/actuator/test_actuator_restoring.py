"""What becomes of a journal entry without its owner (kernel.md 3.8, RECOVER), and when it is without one."""

import pytest
from test_actuator_journal import entry

from vpa_ippr.actuator.cgroup import Snapshot
from vpa_ippr.actuator.restoring import UNREADABLE, Adopt, Drop, Leave, Restore, decide, owner_holds
from vpa_ippr.api.shrink import Phase

MIB = 1 << 20
GUARD, BEFORE, TARGET, LIMIT = 300 * MIB, 320 * MIB, 256 * MIB, 512 * MIB


def seen(high: int | None, limit: int | None = LIMIT) -> Snapshot:
    return Snapshot(usage_bytes=200 * MIB, high_bytes=high, max_bytes=limit)


def left(**changes):
    return entry(**{"guard_bytes": GUARD, "previous_guard_bytes": BEFORE, "target_bytes": TARGET, "original_max_bytes": LIMIT} | changes)


@pytest.mark.parametrize(
    ("changes", "snapshot", "identity", "expected"),
    [
        pytest.param({"boot_id": "other"}, seen(GUARD), 5, Drop, id="other-boot"),
        pytest.param({}, None, None, Drop, id="cgroup-gone"),
        pytest.param({}, None, 5, Drop, id="cgroup-removed-while-looking"),
        pytest.param({}, seen(GUARD), 6, Drop, id="other-inode-even-with-the-same-value"),
        pytest.param({}, UNREADABLE, 6, Drop, id="other-inode-unreadable"),
        pytest.param({}, UNREADABLE, 5, Restore(None), id="unreadable-is-put-back-blindly"),
        pytest.param({}, seen(GUARD), 5, Restore(None), id="guard-stands"),
        pytest.param({}, seen(BEFORE), 5, Restore(None), id="guard-before-stands"),
        pytest.param({"original_high_bytes": 400 * MIB}, seen(GUARD), 5, Restore(400 * MIB), id="finite-original"),
        pytest.param({}, seen(None), 5, Drop, id="as-it-was"),
        pytest.param({"guard_bytes": None, "previous_guard_bytes": None}, seen(None), 5, Drop, id="killed-before-the-first-guard"),
        pytest.param({"guard_bytes": None}, seen(BEFORE), 5, Restore(None), id="guard-was-about-to-go"),
        pytest.param({}, seen(301 * MIB), 5, Drop, id="foreign-value"),
        pytest.param({"phase": Phase.HOLDING}, seen(GUARD, TARGET), 5, Adopt(True), id="limit-has-followed-unseen"),
        pytest.param({"phase": Phase.COMMITTED}, seen(None, TARGET), 5, Adopt(False), id="in-probation"),
        pytest.param({"phase": Phase.HOLDING}, seen(GUARD, TARGET + 1), 5, Adopt(True), id="limit-not-page-aligned"),
        pytest.param({"phase": Phase.COMMITTED}, seen(GUARD, LIMIT), 5, Restore(None), id="limit-was-raised-again"),
        pytest.param({"phase": Phase.HOLDING}, seen(GUARD, None), 5, Restore(None), id="no-limit-any-more"),
    ],
)
def test_decision(changes, snapshot, identity, expected):
    verdict = decide(left(**changes), "b", snapshot, identity)
    assert isinstance(verdict, Drop) if expected is Drop else verdict == expected


def test_drops_say_why():
    texts = [
        decide(left(boot_id="other"), "b", None, None),
        decide(left(), "b", None, None),
        decide(left(), "b", seen(None), 6),
        decide(left(), "b", seen(None), 5),
        decide(left(), "b", seen(7 * MIB), 5),
    ]
    assert len({verdict.why for verdict in texts}) == len(texts)
    assert str(7 * MIB) in texts[-1].why


NOW = 1000.0


@pytest.mark.parametrize(
    ("locked", "alive", "deadline", "phase", "holds"),
    [
        pytest.param(True, True, NOW + 1, Phase.SHRINKING, True, id="owner-lives"),
        pytest.param(True, True, NOW - 59, Phase.SHRINKING, True, id="just-overdue"),
        pytest.param(True, True, NOW - 61, Phase.SHRINKING, False, id="owner-hangs"),
        pytest.param(True, True, NOW - 61, Phase.COMMITTED, True, id="probation-knows-no-deadline"),
        pytest.param(True, False, NOW + 1, Phase.SHRINKING, False, id="successor-holds-the-lock"),
        pytest.param(True, None, NOW + 1, Phase.SHRINKING, True, id="other-pid-namespace-locked"),
        pytest.param(True, None, NOW - 61, Phase.HOLDING, False, id="other-pid-namespace-hangs"),
        pytest.param(False, None, NOW + 1, Phase.SHRINKING, False, id="other-pid-namespace-free"),
        pytest.param(False, True, NOW + 1, Phase.SHRINKING, False, id="lock-is-free-whatever-the-pid-says"),
    ],
)
def test_owner_holds_its_entry(locked, alive, deadline, phase, holds):
    mine = left(deadline_boottime_seconds=deadline, phase=phase)
    verdict = owner_holds(mine, is_locked=locked, is_alive=alive, boottime_seconds=NOW, wall_seconds=0.0)
    assert isinstance(verdict, Leave) is holds


@pytest.mark.parametrize(("wall", "holds"), [(901.5 + 59, True), (901.5 + 61, False)])
def test_entry_of_an_earlier_version_is_judged_by_the_wall_clock(wall, holds):
    verdict = owner_holds(left(), is_locked=True, is_alive=None, boottime_seconds=1e9, wall_seconds=wall)
    assert (verdict is not None) is holds
