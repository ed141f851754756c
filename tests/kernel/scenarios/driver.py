"""The one place that knows the actuator's inside: runs one shrink of one container to its end on this machine's kernel.

The workload's commit, which the updater and the kubelet do in a cluster, is a plain write of ``memory.max`` here, once the shrink says that
it is ready for it. Times are scaled down as in the kernel lab, and the margins to the small containers of a small guest.
"""

from __future__ import annotations

import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernel.harness.containers import Container, Watcher, between
from kernel.harness.machine import CGROUPS, MIB
from vpa_ippr.actuator.cgroupfs import CgroupFsFinder
from vpa_ippr.actuator.journal import Journal, read_boot_id
from vpa_ippr.actuator.machine import next_wake
from vpa_ippr.actuator.policy import Policy
from vpa_ippr.actuator.state import begin
from vpa_ippr.actuator.task import Permission, Subject, Task
from vpa_ippr.api.clock import SystemClock
from vpa_ippr.api.meta import ObjectKey
from vpa_ippr.api.pod import Pod
from vpa_ippr.api.shrink import Phase

DEADLINE_SECONDS = 180.0
LAB: dict[str, Any] = {
    # The guest is small.
    "node_cpus": 2,
    "min_shrink_bytes": 16 * MIB,
    "margin_min_bytes": 4 * MIB,
    "reserve_min_bytes": 4 * MIB,
    # Time runs short.
    "observe_seconds": 10.0,
    "observe_max_seconds": 30.0,
    "horizon_seconds": 120.0,
    "tick_seconds": 0.5,
    "settle_seconds": 2.0,
    "stability_seconds": 10.0,
    "probation_seconds": 10.0,
    "probation_tick_seconds": 1.0,
    "backoff_seconds": 2.0,
    "backoff_max_seconds": 8.0,
    "max_soft_windows": 8,
    # Emulation makes the disk slow beside the CPU, so all pressure looks worse than on a real machine.
    "soft_memory_some_percent": 1.0,
    "soft_memory_full_percent": 0.5,
    "hard_memory_some_percent": 20.0,
    "hard_memory_full_percent": 10.0,
    "hard_io_some_percent": 40.0,
}
"""What the policy says otherwise in this lab; ``reference`` prototype values of the kernel experiments."""


Deed = Callable[[Task], None]
"""What a scenario does to the container after each of the controller's ticks."""


@dataclass(frozen=True)
class _NoPods:
    """Nobody knows of any pod: there is no API here."""

    def get_pod(self, key: ObjectKey) -> Pod | None:  # noqa: ARG002 - the port's
        return None


def shrink(
    container: Container, target_mib: float, *, deadline_seconds: float = DEADLINE_SECONDS, deed: Deed | None = None, **overrides: Any
) -> dict[str, Any]:
    """Shrink to the end, commit included, and tell all that came of it. A ``deed`` of a scenario's own has to commit as well."""
    deed = deed or committing(container, target_mib)
    before = container.look()
    directory = Path(tempfile.mkdtemp(prefix="journal-", dir="/run"))
    clock, policy = SystemClock(), Policy(**{**LAB, **overrides})
    finder = CgroupFsFinder(CGROUPS)
    journal = Journal(directory, read_boot_id())
    task = _task(container, finder, int(target_mib * MIB), deadline_seconds, policy, clock)
    phases: list[list[Any]] = []
    ticks: list[float] = []
    with Watcher(container) as watcher:
        while not task.is_over:
            began = time.monotonic()
            task.tick(Permission(), journal, clock)
            ticks.append(time.monotonic() - began)
            if not phases or phases[-1][1] != task.state.phase:
                phases.append([round(time.monotonic() - before.at, 1), str(task.state.phase)])
            deed(task)
            clock.wait_until(next_wake(task.state, policy) if not task.is_over else 0.0)
    after = container.look()
    state = task.state
    left = sorted(path.name for path in directory.iterdir() if path.suffix == ".json")
    journal.close()
    finder.close()
    return {
        **between(before, after),
        "phase": str(state.phase),
        "reason": str(state.reason),
        "message": state.message,
        "floor_mib": round(state.floor_bytes / MIB, 1) if state.floor_bytes is not None else None,
        "steps": state.pace.steps if state.pace is not None else 0,
        "backoffs": state.pace.backoffs if state.pace is not None else 0,
        "phases": phases,
        "longest_tick_seconds": round(max(ticks), 2),
        "high_before": before.high,
        "high_after": after.high,
        "max_after_mib": round(int(after.limit) / MIB, 1),
        "journal_left": left,
        "highs_written": len({look.high for look in watcher.looks} - {before.high}),
        "oom_kills": after.events["oom_kill"] - before.events["oom_kill"],
        "trace": watcher.trace(),
    }


def committing(container: Container, target_mib: float) -> Deed:
    """The updater and the kubelet: the limit, once, as soon as the shrink says that it is ready for it."""
    done: list[bool] = []

    def deed(task: Task) -> None:
        if task.state.phase is Phase.HOLDING and not done:
            done.append(True)
            container.write("memory.max", int(target_mib * MIB))

    return deed


def _task(
    container: Container, finder: CgroupFsFinder, target_bytes: int, deadline_seconds: float, policy: Policy, clock: SystemClock
) -> Task:
    found = finder.find(container.pod_uid, container.container_id, container.qos_class)
    if found is None:
        raise LookupError(f"the actuator does not find {container.path}")
    subject = Subject(
        ObjectKey("default", "lab"), str(uuid.uuid4()), "lab", container.pod_uid, "lab", container.container_id, container.qos_class
    )
    now = clock.now()
    return Task(subject, begin(policy.page_floor(target_bytes), now, deadline_seconds, now), policy, found, _NoPods())
