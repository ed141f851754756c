"""The rows of the validation list: which workload is run in the guest, and how it may end. Sizes are what a small guest holds.

Rows of a group run at once, of which at most two keep a CPU busy, for the guest has two. Each has its own part of the file of data, because
page cache belongs to who reads it first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernel.harness.machine import MIB


@dataclass(frozen=True)
class Row:
    """What is run, and how it may end: ``phase`` or ``phase/reason``."""

    ends: tuple[str, ...]
    arguments: dict[str, Any]
    function: str = "shrinks:one"

    @property
    def part(self) -> list[Any]:
        """For ``group:together``."""
        return [self.function, self.arguments]


def _row(mode: str, target_mib: float, *ends: str, policy: dict[str, Any] | None = None, **options: Any) -> Row:
    return Row(ends, {"mode": mode, "target_mib": target_mib, "options": options, **(policy or {})})


_LARGER_STEPS = {"step_min_bytes": 8 * MIB}
_LITTLE_MAPPED = {"reserve_mapped_ratio": 0.0}
_SWAP = {"may_swap": True, "swap_out_bytes_per_second": 16 * MIB}

COMMON = {
    "1 idle anonymous above": _row("anon", 100, "Refused/UnreclaimableAnonymous", size=150),
    "2 idle anonymous below": Row(("Done",), {"mode": "anon", "target_mib": 100, "options": {"size": 80}, "layout": "cgroupfs"}),
    "4 cold file": _row("file", 110, "Done", policy=_LARGER_STEPS, size=150, hot=20),
    "6 hot file above": _row("file", 100, "Reverted", policy=_LARGER_STEPS, skip=160, size=200, hot=150),
    "9 shared memory": _row("shm", 100, "Refused/UnreclaimableShmem", size=130),
    "10 leak": _row("leak", 100, "Refused/Growing", size=50, rate=1),
    "12 bursts": _row("burst", 100, "Refused/Bursty", size=40, peak=70, every=6, hold=2),
}
HOT = {
    "5 hot file below": _row("file", 110, "Done", policy=_LARGER_STEPS, size=150, hot=60),
    "8 hot mapped above": _row("mmapf", 100, "Reverted", policy=_LARGER_STEPS | _LITTLE_MAPPED, skip=160, size=200, hot=150),
}
WARM = {
    "7 hot mapped below": _row("mmapf", 110, "Done", "Reverted", policy=_LARGER_STEPS | _LITTLE_MAPPED, size=150, hot=60),
    "13 dirty writer": _row("dirty", 100, "Done", "Reverted", "Expired", "Refused/Busy", size=150),
}
UNMOVABLE = {
    "11 slow leak, short horizon": _row("leak", 100, "Done", size=50, rate=0.05),
    "11 slow leak, long horizon": _row("leak", 100, "Refused/Growing", policy={"horizon_seconds": 1800.0}, size=50, rate=0.05),
    "14 heap of a JVM": _row("anon", 100, "Refused/UnreclaimableAnonymous", size=150, hot=30),
    "15 heap of Go": _row("burst", 100, "Refused/Bursty", size=50, peak=50, every=3, hold=1),
    "16 locked": _row("mlock", 100, "Refused/UnreclaimableMlocked", size=130),
    "17 kernel memory": _row("kernel", 100, "Refused/Growing", "Refused/UnreclaimableKernel", size=50, rate=1),
    "18 protected child": Row(
        ("Refused/UnreclaimableProtected", "Reverted/Stuck"),
        {"target_mib": 100, "min_mib": 140, "skip": 0, "size": 150},
        "shrinks:nested",
    ),
}
SWAPPED = {
    "3 hot anonymous, swap is there but not allowed": Row(
        ("Refused/UnreclaimableAnonymous",), {"mode": "anon", "target_mib": 120, "swap_mib": 512, "options": {"size": 200, "hot": 60}}
    ),
    "3 hot anonymous, swap allowed": Row(
        ("Done",), {"mode": "anon", "target_mib": 120, "swap_mib": 512, "options": {"size": 200, "hot": 60}, **_SWAP, **_LARGER_STEPS}
    ),
}


_TARGET_MIB, _SIZE_MIB, _SKIP_MIB = 72, 90, 360


def _restart(phase: str, number: int) -> list[Any]:
    return ["shrinks:restarted", {"phase": phase, "target_mib": _TARGET_MIB, "skip": _SKIP_MIB + number * _SIZE_MIB, "size": _SIZE_MIB}]


def _overwrite(values: list[Any], number: int) -> list[Any]:
    return ["shrinks:overwritten", {"values": values, "target_mib": _TARGET_MIB, "skip": _SKIP_MIB + number * _SIZE_MIB, "size": _SIZE_MIB}]


EVENTS = {
    "19 restart in Shrinking": _restart("Shrinking", 0),
    "21 max twice": _overwrite(["max", "max"], 1),
}
RARER_EVENTS = {
    "19 restart in Observing": _restart("Observing", 0),
    "19 restart in Holding": _restart("Holding", 1),
    "19 restart in Committed": _restart("Committed", 2),
    "21 max once": _overwrite(["max"], 3),
}
FOREIGN_VALUES = {
    "21 a value": _overwrite([200], 0),
    "21 a value, then another": _overwrite([200, 180], 1),
}
SHORT = {name: row.part for name, row in COMMON.items()} | EVENTS
"""What the short set runs at once: more than these are too much for two emulated CPUs."""
