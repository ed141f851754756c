"""What happens without the actuator: the target is written at once. No code of the project."""

from __future__ import annotations

import time
from typing import Any

from kernel.harness.containers import Guest
from kernel.harness.machine import MIB
from kernel.scenarios.workloads import options_of, steady

_LONGEST_PENALTY_SECONDS = 2.0
"""Who sleeps for having gone over memory.high sleeps on after it is raised, for up to so long."""


def at_once(guest: Guest, knob: str, mode: str, target_mib: int, seconds: float = 6.0, **options: object) -> dict[str, Any]:
    """``target_mib`` into ``memory.max`` (baseline A) or ``memory.high`` (baseline B) of a running container, in one write."""
    container = guest.container(limit_mib=256)
    workload = container.start(mode, **options_of(mode, **options))
    before = steady(container, workload, 3.0)
    result, write_seconds = container.write(knob, target_mib * MIB)
    during = steady(container, workload, seconds)
    is_alive = workload.is_alive
    container.write(knob, "max")
    time.sleep(_LONGEST_PENALTY_SECONDS + 1)
    after = steady(container, workload, 3.0) if is_alive else {}
    return {
        "write": result,
        "write_seconds": round(write_seconds, 2),
        "is_alive": is_alive,
        "oom_kills": container.table("memory.events")["oom_kill"],
        "before": before,
        "during": during,
        "after": after,
    }
