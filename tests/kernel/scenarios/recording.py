"""A shrink as a recording that can be played again: the driver's run, every write to the container beside what the kernel made of it."""

from __future__ import annotations

import threading
import time
from typing import Any

from kernel.harness.containers import Container, Guest, Watcher
from kernel.scenarios import driver
from kernel.scenarios.workloads import options_of
from vpa_ippr.actuator.cgroupfs import CgroupFs
from vpa_ippr.actuator.helper import TIMEOUT_SECONDS

_CALM_SECONDS = 3.0
_wrapping = threading.Lock()


def one(guest: Guest, mode: str, target_mib: float, *, options: dict[str, Any], limit_mib: int = 256, **policy: Any) -> dict[str, Any]:
    """One workload, one shrink: ``trace`` as ``Watcher`` gives it, and ``writes`` as ``[seconds, file, bytes or None, result]``.

    A reclaim is ``ok``, ``short`` (EAGAIN) or ``late``: the helper that was to write it was killed, and nobody knows how much was freed.
    """
    container = guest.container(limit_mib=limit_mib)
    container.start(mode, **options_of(mode, **options))
    time.sleep(_CALM_SECONDS)
    writes = _Writes(container)
    with Watcher(container) as watcher:
        result = driver.shrink(container, target_mib, **policy)
    first = watcher.looks[0].at
    return {
        "trace": watcher.trace(),
        "writes": [[round(at - first, 2), *rest] for at, *rest in writes.seen],
        **{key: result[key] for key in ("phase", "reason", "message", "oom_kills", "stall_seconds", "seconds")},
    }


class _Writes:
    """Notes what is written to one container, whoever of this process does it."""

    def __init__(self, container: Container) -> None:
        self.seen: list[tuple[Any, ...]] = []
        self._inode = container.path.stat().st_ino
        # Recordings may run beside one another: each wraps what the one before has wrapped, and notes its own container only.
        with _wrapping:
            self._wrap()

    def _wrap(self) -> None:
        write_high, reclaim, write = CgroupFs.write_high, CgroupFs.reclaim, Container.write

        def noted_high(cgroup: CgroupFs, high_bytes: int | None) -> None:
            self._note(time.monotonic(), cgroup.identity(), "memory.high", high_bytes, "ok")
            write_high(cgroup, high_bytes)

        def noted_reclaim(cgroup: CgroupFs, amount_bytes: int, **how: Any) -> bool:
            began = time.monotonic()
            is_complete = reclaim(cgroup, amount_bytes, **how)
            ended = time.monotonic()
            result = "ok" if is_complete else "late" if ended - began >= TIMEOUT_SECONDS else "short"
            # Most of that time the helper starts: the kernel has its turn at the end.
            self._note(ended, cgroup.identity(), "memory.reclaim", amount_bytes, result)
            return is_complete

        def noted_write(written: Container, name: str, value: object, flags: int = 0) -> tuple[str, float]:
            self._note(time.monotonic(), written.path.stat().st_ino, name, value, "ok")
            return write(written, name, value, flags)

        CgroupFs.write_high, CgroupFs.reclaim = noted_high, noted_reclaim  # type: ignore[method-assign]
        Container.write = noted_write  # type: ignore[method-assign]

    def _note(self, at: float, inode: int, file: str, value: object, result: str) -> None:
        if inode == self._inode:
            self.seen.append((at, file, value, result))
