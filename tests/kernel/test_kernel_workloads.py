"""The workloads are what they claim to be, or nothing that is measured with them means anything."""

from __future__ import annotations

from typing import Any

import pytest

_QUIET = {
    "anon": {"size": 64},
    "mlock": {"size": 48},
    "shm": {"size": 48},
    "leak": {"size": 32, "rate": 4},
    "burst": {"size": 32, "peak": 48, "every": 4, "hold": 2},
    "kernel": {"size": 32, "rate": 2},
    "dentry": {"count": 2000},
}
_BUSY = {
    "hot": {"mode": "anon", "size": 64, "hot": 32},
    "file": {"mode": "file", "size": 128, "hot": 32},
    "mmapf": {"mode": "mmapf", "skip": 192, "size": 128, "hot": 32},
    "dirty": {"mode": "dirty", "size": 64},
}
_QUIET_PARTS = {mode: ["workloads:run", {"mode": mode, "seconds": 7, **options}] for mode, options in _QUIET.items()}
_BUSY_PARTS = {name: ["workloads:run", {"seconds": 5, **options}] for name, options in _BUSY.items()}
_OTHER_PARTS = {"nested": ["workloads:nested", {}], "touched": ["workloads:touched", {}]}
quiet = pytest.mark.scenario("group:together", parts=_QUIET_PARTS | _OTHER_PARTS)
busy = pytest.mark.scenario("group:together", parts=_BUSY_PARTS)


@quiet
@pytest.mark.parametrize(
    ("mode", "key", "least", "most"),
    [
        ("anon", "anon_mib", 64, 66),
        ("mlock", "unevictable_mib", 48, 50),
        ("shm", "shmem_mib", 48, 50),
        ("leak", "anon_mib", 44, 90),
        ("kernel", "kernel_mib", 38, 70),
        ("dentry", "slab_reclaimable_mib", 1, 60),
        ("burst", "highest_mib", 78, 84),
    ],
)
def test_memory_is_of_the_kind_and_size(measured: dict[str, Any], mode: str, key: str, least: float, most: float) -> None:
    assert least <= measured[mode][key] <= most


@quiet
@pytest.mark.parametrize("mode", [*_QUIET, "nested"])
def test_quiet_workload_reports_a_steady_beat(measured: dict[str, Any], mode: str) -> None:
    assert 2 < measured[mode]["ops_per_second"] <= 100  # one in ten milliseconds at best


@busy
@pytest.mark.parametrize(("name", "least"), [("hot", 5000), ("file", 1000), ("mmapf", 5000), ("dirty", 300)])
def test_busy_workload_reports_its_speed(measured: dict[str, Any], name: str, least: float) -> None:
    assert measured[name]["ops_per_second"] > least
    assert measured[name]["p99_ms"] is not None


@busy
@pytest.mark.parametrize(("name", "key", "size"), [("file", "file_mib", 127), ("mmapf", "file_mapped_mib", 127), ("dirty", "file_mib", 4)])
def test_page_cache_is_charged_to_the_container(measured: dict[str, Any], name: str, key: str, size: float) -> None:
    assert measured[name][key] >= size


@busy
@pytest.mark.parametrize("name", _BUSY)
def test_nothing_stalls_where_there_is_room(measured: dict[str, Any], name: str) -> None:
    assert measured[name]["memory_some_percent"] < 0.5
    assert measured[name]["is_alive"]


@quiet
def test_memory_below_the_container_is_the_containers(measured: dict[str, Any]) -> None:
    assert 32 <= measured["nested"]["usage_mib"] < 36


@quiet
def test_more_is_taken_at_the_signal(measured: dict[str, Any]) -> None:
    assert 47 < measured["touched"]["taken_mib"] < 50
