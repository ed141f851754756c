"""Recordings of real kernels, and the sandbox's model doing the same: the same workload, the same writes at the same moments."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from vpa_ippr.sandbox.kernel import ContainerMemory
from vpa_ippr.sandbox.pagecache import MIB, PAGE_BYTES, Demand, KernelSettings

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures" / "kernel"
LIMIT_BYTES = 256 * MIB
WARM_SECONDS = 90
TICK_SECONDS = 0.5
# What the workloads' program uses besides what it was asked for: 1.3 MiB in the recordings, 0.5 of it text that was read from disk.
PROGRAM_ANON_BYTES = MIB // 8
PROGRAM_KERNEL_BYTES = MIB // 2
PROGRAM_TEXT_BYTES = MIB // 2
PROGRAM_MIB = (PROGRAM_ANON_BYTES + PROGRAM_KERNEL_BYTES + PROGRAM_TEXT_BYTES) / MIB
# The emulated disk: refaults of single pages come to 7 to 10 MiB a second where nearly all of a hot set is missing, and a touch of a page
# in memory costs a tenth of a read (25 000 against 3 000 operations a second).
GUEST_READ_BYTES_PER_SECOND = 10.0 * MIB
GUEST_HIT_COST_SHARE = 0.1
# Nothing to a sixth of a hot set had not been read often enough to be known as such when a recording began.
GUEST_UNSORTED_SHARE = 0.05

Recording = dict[str, Any]


@cache
def recorded(pattern: str) -> tuple[Recording, ...]:
    """The rows of all fixture files of that name."""
    return tuple(row for file in sorted(FIXTURES.glob(pattern)) for row in json.loads(file.read_text()))


def name_of(row: Recording) -> str:
    """A test's id: kernel, workload, and what was written where that is not the controller's own choice."""
    written = row.get("write") or next((step["write"] for step in row.get("steps", []) if isinstance(step, dict) and step["write"]), "")
    words = [row["kernel"].split("-")[0].split("+")[0], row["mode"], row["size"], row.get("hot", 0), written, row.get("repeat", "")]
    return " ".join(str(word) for word in words if word)


def guest(kernel: str) -> KernelSettings:
    """The lab's machine: 6.1 has the classic LRU, the others the multi-generational one."""
    return KernelSettings(
        text_bytes=PROGRAM_TEXT_BYTES,
        read_bytes_per_second=GUEST_READ_BYTES_PER_SECOND,
        hit_cost_share=GUEST_HIT_COST_SHARE,
        activates_refaults=kernel.startswith("6.12."),
        unsorted_share=GUEST_UNSORTED_SHARE,
        multi_gen_lru=not kernel.startswith("6.1."),
    )


def workload(row: Recording) -> Callable[[float], Demand]:
    """What the lab's program wants ``seconds`` after the recording began."""
    size, hot = row["size"] * MIB, row.get("hot", 0) * MIB
    own: dict[str, Any] = {"anon_bytes": PROGRAM_ANON_BYTES, "kernel_bytes": PROGRAM_KERNEL_BYTES}
    match row["mode"]:
        case "anon":
            fixed = Demand(**own | {"anon_bytes": size + PROGRAM_ANON_BYTES})
        case "shm":
            fixed = Demand(**own, shmem_bytes=size)
        case "file" | "mmapf":
            fixed = Demand(**own, file_hot_bytes=hot, file_cold_bytes=size - hot, mapped=row["mode"] == "mmapf")
        case "leak":
            rate = row["rate"] * MIB
            return lambda seconds: Demand(**own | {"anon_bytes": size + max(0.0, seconds) * rate + PROGRAM_ANON_BYTES})
        case other:
            raise AssertionError(f"the model has no workload {other}")
    return lambda _seconds: fixed


@dataclass
class Totals:
    """What a stretch of time came to, recorded or replayed."""

    seconds: float = 0.0
    memory_seconds: float = 0.0
    io_seconds: float = 0.0
    refault_mib: float = 0.0

    @property
    def memory_percent(self) -> float:
        return 100 * self.memory_seconds / self.seconds

    @property
    def io_percent(self) -> float:
        return 100 * self.io_seconds / self.seconds

    @property
    def stalled_percent(self) -> float:
        """Both kinds. Which of them a wait for a page counts as depends on what the LRU has learnt of that page."""
        return self.memory_percent + self.io_percent


class Replay:
    """The model with one recorded workload in it, warm, and its totals from there on."""

    def __init__(self, row: Recording, limit_bytes: int = LIMIT_BYTES) -> None:
        self.memory = ContainerMemory(limit_bytes, guest(row["kernel"]))
        self.demand = workload(row)
        self.at = 0.0
        for _ in range(WARM_SECONDS):
            self.memory.run(self.demand(0.0), 1.0)
        assert not self.memory.oom_killed
        self._begin = self._counters()

    @property
    def usage_mib(self) -> float:
        return self.memory.usage_bytes / MIB

    @property
    def totals(self) -> Totals:
        """Since it was warm."""
        seconds, memory, io, refaults = (now - then for now, then in zip(self._counters(), self._begin, strict=True))
        return Totals(seconds, memory, io, refaults * PAGE_BYTES / MIB)

    def run_until(self, moment: float) -> None:
        """Let the workload run on; moments of the recording."""
        while self.at < moment - 1e-9:
            step = min(TICK_SECONDS, moment - self.at)
            self.at += step
            self.memory.run(self.demand(self.at), step)

    def write(self, file: str, value_bytes: int | None) -> bool:
        """A write to one of the cgroup's files; False for EAGAIN."""
        if file == "memory.reclaim":
            assert value_bytes is not None
            return self.memory.reclaim(value_bytes)
        (self.memory.set_high if file == "memory.high" else self.memory.set_max)(value_bytes)
        return True

    def _counters(self) -> tuple[float, float, float, float]:
        counters = self.memory.counters
        return self.at, counters.memory_stall_seconds, counters.io_stall_seconds, counters.refault_pages
