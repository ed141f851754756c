"""``vpa-ippr actuator`` on a real kernel, without a cluster: a cgroup is shrunk and gets its limit; who is killed leaves no guard."""

from __future__ import annotations

from typing import Any

import pytest

from kernel.scenarios.standalone import CACHE_MIB, LIMIT_MIB, TARGET_MIB

PHASES = ("Observing", "Shrinking", "Holding", "Committed")
HEALED_WITHIN_SECONDS = {"restore": 5.0, "guard": 10.0, "nobody": 5.0}
"""Beyond what the command takes to start, which is long under emulation; a guard looks every five seconds."""


def unhurt(found: dict[str, Any]) -> None:
    assert found["is_alive"]
    assert (found["oom_kills"], found["frozen"], found["high"], found["entries"]) == (0, 0, "max", [])


def _killed(phase: str, by: str, healer: str, number: int) -> list[Any]:
    return ["standalone:killed", {"phase": phase, "by": by, "healer": healer, "skip": number * CACHE_MIB}]


def _direct(number: int, *, freeze: bool = True) -> list[Any]:
    return ["standalone:shrink", {"commit": "direct", "freeze": freeze, "skip": number * CACHE_MIB}]


_SHORT = {
    "direct": _direct(0),
    "20 SIGKILL in Shrinking, restore": _killed("Shrinking", "SIGKILL", "restore", 1),
    "full disk": ["standalone:full_disk", {"skip": 2 * CACHE_MIB}],
}
_GROUPS: dict[str, dict[str, list[Any]]] = {
    f"{by}, {healer}": {
        f"20 {by} in {phase}, {healer}": _killed(phase, by, healer, number)
        for number, phase in enumerate(PHASES)
        if f"20 {by} in {phase}, {healer}" not in _SHORT
    }
    for by, healer in (("SIGKILL", "restore"), ("SIGKILL", "guard"), ("SIGTERM", "nobody"))
}
_GROUPS["SIGTERM, nobody"] |= {"direct without freezing": _direct(4, freeze=False)}


def _named(names: tuple[str, ...]) -> list[Any]:
    """Each with the group in which it is run."""
    every = [(_SHORT, ()), *((group, (pytest.mark.only_long,)) for group in _GROUPS.values())]
    return [
        pytest.param(name, marks=[pytest.mark.scenario("group:together", parts=group), *marks], id=name.replace(" ", "-"))
        for group, marks in every
        for name in group
        if name.startswith(names)
    ]


@pytest.mark.scenario_table("name", _named(("direct",)))
def test_file_cache_is_shrunk_and_the_limit_set(measured: dict[str, Any], name: str) -> None:
    found = measured[name]
    unhurt(found)
    assert (found["status"], found["out"].get("outcome")) == (0, "Done"), found
    assert found["out"]["limitIsSet"]
    assert found["max_mib"] == TARGET_MIB
    assert found["usage_mib"] < TARGET_MIB


@pytest.mark.scenario_table("name", _named(("direct",)))
def test_rehearsal_tells_what_would_be_and_touches_nothing(measured: dict[str, Any], name: str) -> None:
    found = measured[name]
    assert found["rehearsal"].get("wouldShrink") is True, found["rehearsal"]
    untouched = ("high", "max_mib", "frozen", "oom_kills", "entries")
    assert {key: found["rehearsed"][key] for key in untouched} == {key: found["before"][key] for key in untouched}
    assert abs(found["rehearsed"]["usage_mib"] - found["before"]["usage_mib"]) < 4


@pytest.mark.scenario("group:together", parts=_SHORT)
def test_full_disk_refuses_before_anything_is_touched(measured: dict[str, Any]) -> None:
    found = measured["full disk"]
    unhurt(found)
    assert (found["status"], found["out"].get("outcome"), found["out"].get("reason")) == (1, "Refused", "JournalUnwritable"), found
    assert found["max_mib"] == LIMIT_MIB
    assert abs(found["freed_mib"]) < 4
    assert [name for name in found["files"] if name.endswith(".json")] == []


@pytest.mark.scenario_table("name", _named(("20 SIGKILL",)))
def test_what_a_killed_one_left_is_put_back(measured: dict[str, Any], name: str) -> None:
    found, phase, healer = measured[name], name.split()[3].rstrip(","), name.rpartition(" ")[2]
    unhurt(found)
    assert found["status"] == -9
    assert bool(found["after_death"]["entries"]) is (phase != "Observing"), found
    if phase in ("Shrinking", "Holding"):
        assert found["high_then"] != "max"
    assert found["healed_seconds"] - found["idle_seconds"] <= HEALED_WITHIN_SECONDS[healer]
    assert found["max_mib"] == (TARGET_MIB if phase == "Committed" else LIMIT_MIB)


@pytest.mark.scenario_table("name", _named(("20 SIGTERM",)))
def test_who_is_asked_to_stop_puts_back_everything_alone(measured: dict[str, Any], name: str) -> None:
    found = measured[name]
    unhurt(found)
    assert (found["status"], found["max_mib"]) == (1, LIMIT_MIB), found


@pytest.mark.only_long
@pytest.mark.scenario_table(
    "jump_seconds",
    [
        pytest.param(seconds, marks=pytest.mark.scenario("standalone:clock_jump", by_seconds=seconds), id=name)
        for name, seconds in (("an-hour-on", 3600.0), ("an-hour-back", -3600.0))
    ],
)
def test_clock_that_is_set_means_nothing_to_it(measured: dict[str, Any], jump_seconds: float) -> None:
    unhurt(measured)
    assert (measured["status"], measured["max_mib"]) == (0, TARGET_MIB), measured


def _untouched(measured: dict[str, Any], words: str) -> None:
    assert measured["status"] != 0
    assert words in measured["err"] + measured["out"], measured
    same = {key: value for key, value in measured["before"].items() if key != "usage_mib"}
    assert {key: measured["after"][key] for key in same} == same
    assert abs(measured["after"]["usage_mib"] - measured["before"]["usage_mib"]) < 4


@pytest.mark.only_long
@pytest.mark.booted_with("psi=0")
@pytest.mark.scenario("standalone:refused")
def test_kernel_without_pressure_is_refused_with_what_to_do(measured: dict[str, Any]) -> None:
    _untouched(measured, "boot with psi=1")


@pytest.mark.only_long
@pytest.mark.scenario("standalone:refused", root="cgroup-v1")
def test_version_1_is_refused_with_what_to_do(measured: dict[str, Any]) -> None:
    _untouched(measured, "systemd.unified_cgroup_hierarchy=1")
