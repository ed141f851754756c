"""Does each workload do what its name says, and at what speed? No code of the project."""

from __future__ import annotations

import time
from typing import Any

from kernel.harness.containers import DATA, Container, Guest, Workload, between
from kernel.harness.machine import DISK, MIB

_KEYS = ("anon", "file", "shmem", "unevictable", "file_mapped", "file_dirty", "kernel", "slab_reclaimable")


def options_of(mode: str, **options: object) -> dict[str, object]:
    """A workload's options with the file it works on, where it works on one."""
    paths = {"file": DATA, "mmapf": DATA, "dirty": DISK / "scratch", "shm": "/dev/shm/scratch", "dentry": DISK}  # noqa: S108 - the guest's own
    return ({"path": paths[mode]} if mode in paths else {}) | options


def run(guest: Guest, mode: str, seconds: float, **options: object) -> dict[str, Any]:
    """One workload in a container that has room for it."""
    container = guest.container(limit_mib=256)
    workload = container.start(mode, **options_of(mode, **options))
    began = container.look()
    time.sleep(seconds)
    ended = container.look()
    return {
        **between(began, ended),
        "highest_mib": round(int(container.text("memory.peak")) / MIB, 1),
        "ops_per_second": round(workload.rate(began.at, ended.at), 1),
        **workload.latency(began.at, ended.at),
        "is_alive": workload.is_alive,
        **{f"{key}_mib": round(container.table("memory.stat").get(key, 0) / MIB, 1) for key in _KEYS},
    }


def nested(guest: Guest) -> dict[str, Any]:
    """A workload below the container's cgroup counts for the container."""
    container = guest.container(limit_mib=256, layout="cgroupfs")
    inner = container.path / "inner"
    inner.mkdir()
    workload = container.start("anon", into=inner, size=32)
    since = time.monotonic()
    time.sleep(3)
    return {"usage_mib": round(container.usage_mib, 1), "ops_per_second": round(workload.rate(since, time.monotonic()), 1)}


def touched(guest: Guest) -> dict[str, Any]:
    """A workload that takes more memory at the signal."""
    import signal

    container = guest.container(limit_mib=256)
    workload = container.start("anon", size=16, touch=48)
    before = container.usage_mib
    workload.process.send_signal(signal.SIGUSR1)
    until = time.monotonic() + 20
    while container.usage_mib < before + 47.5 and time.monotonic() < until:
        time.sleep(0.05)
    return {"taken_mib": round(container.usage_mib - before, 1)}


def steady(container: Container, workload: Workload, seconds: float) -> dict[str, Any]:
    """Throughput, latency and pressure over a stretch in which nothing is done to the container."""
    began = container.look()
    time.sleep(seconds)
    ended = container.look()
    found = {"ops_per_second": round(workload.rate(began.at, ended.at), 1), **workload.latency(began.at, ended.at)}
    return {**between(began, ended), **found}
