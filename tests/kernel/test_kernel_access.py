"""The actuator's own access to the kernel's files, on real kernels."""

from __future__ import annotations

from typing import Any

import pytest

MIB = 1 << 20

_PARTS = {name: [f"access:{name}", {}] for name in ("features", "files", "pressure_off", "triggers")}
access = pytest.mark.scenario("group:together", parts=_PARTS)


@access
def test_features_are_found_by_trying(measured: dict[str, Any]) -> None:
    family = measured["family"]
    assert measured["features"] == {
        "release": True,
        "file_only_reclaim": family != "6.1",
        "nonblocking": family == "new",
        "nonblocking_on_tmpfs": None,
        "left": [],
    }


@access
def test_steps_free_what_they_ask_for_and_say_when_they_cannot(measured: dict[str, Any]) -> None:
    found = measured["files"]
    assert (found["identity"], found["pod_is_read"], found["reclaimed"], found["too_much"]) == (True, True, True, False)
    assert 7.5 <= found["freed_mib"] <= (17 if measured["family"] == "6.1" else 9)


@access
def test_limit_below_usage_is_set_by_the_helper_and_rounded_down(measured: dict[str, Any]) -> None:
    found = measured["files"]
    assert (found["high"], found["restored"]) == (48 * MIB, None)
    assert found["seconds"] < 15
    assert found["peak_is_of_the_window"] is (None if measured["family"] == "6.1" else True)


@access
def test_successor_of_a_restarted_container_is_never_touched(measured: dict[str, Any]) -> None:
    assert measured["files"]["after_restart"] == {"read": True, "reclaim": False, "successor_high": "max"}


@access
def test_pressure_switched_off_counts_for_its_own_cgroup_alone(measured: dict[str, Any]) -> None:
    found = measured["pressure_off"]
    assert found["at_pod"] == found["on_again"] == "ok"
    assert found["at_container"].startswith("PressureUnavailable: write 1 to /sys/fs/cgroup/")
    assert found["triggers_while_off"] == 0


@access
def test_triggers_are_quiet_in_calm_and_tell_stalls_and_the_end(measured: dict[str, Any]) -> None:
    found = measured["triggers"]
    assert (found["armed"], found["calm"]) == (3, [])
    assert {"memory some", "memory full"} & set(found["stalled"])
    assert found["seconds"] < 10
    assert (found["gone"], found["left"]) == (["gone"], 0)
