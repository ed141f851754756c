"""The danger is real: the same workloads with the target written at once, as every other autoscaler does it."""

from __future__ import annotations

from typing import Any

import pytest

_ANON = {"mode": "anon", "target_mib": 100, "size": 200}
_FILE = {"mode": "file", "target_mib": 100, "size": 220, "hot": 150}
_PARTS = {
    "max_anon": ["baselines:at_once", _ANON | {"knob": "memory.max"}],
    "high_anon": ["baselines:at_once", _ANON | {"knob": "memory.high"}],
    "high_file": ["baselines:at_once", _FILE | {"knob": "memory.high"}],
}
baselines = pytest.mark.scenario("group:together", parts=_PARTS)


@baselines
def test_limit_at_once_kills(measured: dict[str, Any]) -> None:
    found = measured["max_anon"]
    assert found["write"] == "ok"
    assert found["oom_kills"] >= 1
    assert not found["is_alive"]


@baselines
def test_high_at_once_stops_an_idle_process(measured: dict[str, Any]) -> None:
    found = measured["high_anon"]
    assert found["is_alive"]
    # At the least one sleep at the cap of two seconds; all the time where the kernel also took the program's text.
    assert found["during"]["memory_some_percent"] > 25
    assert found["during"]["ops_per_second"] < 0.8 * found["before"]["ops_per_second"]
    assert found["after"]["memory_some_percent"] < 1
    assert found["after"]["ops_per_second"] > 0.5 * found["before"]["ops_per_second"]


@baselines
def test_high_at_once_takes_far_too_much_from_a_cache(measured: dict[str, Any]) -> None:
    found = measured["high_file"]
    assert found["during"]["ops_per_second"] < 0.7 * found["before"]["ops_per_second"]
    assert found["during"]["refault_mib"] > 20


@pytest.mark.only_long
@pytest.mark.scenario("baselines:at_once", knob="memory.max", **_FILE)
def test_limit_at_once_costs_a_hot_cache_its_speed(measured: dict[str, Any]) -> None:
    assert measured["is_alive"]
    assert measured["during"]["ops_per_second"] < 0.7 * measured["before"]["ops_per_second"]
