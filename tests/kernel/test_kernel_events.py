"""What others do to a container in the middle of a shrink: restart it, write its ``memory.high``, take more in the moment of the commit."""

from __future__ import annotations

from typing import Any

import pytest

from kernel.rows import FOREIGN_VALUES, RARER_EVENTS, SHORT
from kernel.scenarios.ramps import raised_bytes
from vpa_ippr.api.node_memory import PressingContainer
from vpa_ippr.api.vpa import ContainerPolicy
from vpa_ippr.resize.relief_size import wanted_bytes
from vpa_ippr.resize.settings import Settings

MIB = 1 << 20
_BURSTS = {"target_mib": 90, "anon": 60, "skip": 0, "size": 50, "runs": 10}
_GROUPS = ((SHORT, ()), (RARER_EVENTS, (pytest.mark.only_long,)), (FOREIGN_VALUES, (pytest.mark.only_long,)))


def _event(name: str, *values: Any) -> Any:
    """With the group in which it is run."""
    parts, marks = next((parts, marks) for parts, marks in _GROUPS if name in parts)
    return pytest.param(name, *values, marks=[pytest.mark.scenario("group:together", parts=parts), *marks], id=name.replace(" ", "-"))


@pytest.mark.scenario_table("name", [_event(f"19 restart in {phase}") for phase in ("Observing", "Shrinking", "Holding", "Committed")])
def test_what_comes_after_a_restart_is_never_touched(measured: dict[str, Any], name: str) -> None:
    found = measured[name]
    assert found["was_restarted"]
    assert found["phase"] == "Gone", f"{found['phase']}/{found['reason']}: {found['message']}"
    assert (found["high_after"], found["max_after_mib"], found["is_alive"], found["oom_kills"]) == ("max", 256, True, 0)
    assert found["journal_left"] == []


@pytest.mark.scenario_table(
    "name end high_after",
    [
        _event("21 max once", "Done/Shrunk", "max"),
        _event("21 max twice", "Reverted/ForeignWriter", "max"),
        _event("21 a value", "Done/Shrunk", str(200 * MIB)),
        _event("21 a value, then another", "Reverted/ForeignWriter", str(180 * MIB)),
    ],
)
def test_foreign_write_is_answered_once_and_what_it_wanted_is_left(measured: dict[str, Any], name: str, end: str, high_after: str) -> None:
    found = measured[name]
    assert found["unwritten"] == []
    assert f"{found['phase']}/{found['reason']}" == end, found["message"]
    assert found["high_after"] == high_after
    assert (found["is_alive"], found["oom_kills"], found["journal_left"]) == (True, 0, [])
    assert found["stall_seconds"] <= (0.2 if found["phase"] == "Done" else 2.0)


def _unkilled_of(found: dict[str, Any]) -> float:
    return sum(run["is_alive"] and run["oom_kills"] == 0 for run in found["runs"]) / len(found["runs"])


@pytest.mark.only_long
@pytest.mark.scenario("shrinks:burst_at_commit", touch=5, **_BURSTS)
def test_burst_of_the_margin_in_the_moment_of_the_commit_kills_nobody(measured: dict[str, Any]) -> None:
    assert _unkilled_of(measured) >= 0.95
    assert all(run["high_after"] == "max" and run["journal_left"] == [] for run in measured["runs"])


@pytest.mark.only_long
@pytest.mark.scenario("shrinks:burst_at_commit", touch=15, **_BURSTS)
def test_larger_burst_in_the_moment_of_the_commit_leaves_nothing_behind(measured: dict[str, Any]) -> None:
    assert all(run["high_after"] == "max" and run["journal_left"] == [] for run in measured["runs"])


@pytest.mark.only_long
@pytest.mark.scenario_table(
    "rate share",
    [
        pytest.param(
            rate, share, marks=pytest.mark.scenario("ramps:ramps", rate=rate, runs=runs, at_once=at_once), id=f"{rate}MiB-a-second"
        )
        for rate, share, runs, at_once in ((1, 0.95, 5, 5), (5, 0.95, 4, 4), (10, 0.95, 4, 2), (25, 0.0, 4, 1), (50, 0.0, 4, 1))
    ],
)
def test_ramps_are_saved_that_nobody_would_have_saved(measured: dict[str, Any], rate: int, share: float) -> None:
    assert measured["alone"]["oom_kills"] > 0
    assert measured["saved"] >= share * measured["runs"], measured["guarded"]


@pytest.mark.parametrize(
    ("limit_mib", "usage_mib", "growth_mib"), [(256, 200, 0.0), (256, 250, 5.0), (2048, 2000, 0.0), (256, 300, 50.0), (100, 90, -1.0)]
)
def test_rule_in_the_guest_is_the_updaters(limit_mib: int, usage_mib: int, growth_mib: float) -> None:
    limit, usage, growth = limit_mib * MIB, usage_mib * MIB, round(growth_mib * MIB)
    entry = PressingContainer("ns", "pod", "uid", "main", "containerd://1", usage, limit, "NearLimit", "", growth, "", "")
    assert raised_bytes(limit, usage, growth) == wanted_bytes(entry, limit, ContainerPolicy(), Settings().relief_ahead_seconds)
