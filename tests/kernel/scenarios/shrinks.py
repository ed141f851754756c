"""The actuator's controller against real workloads on this kernel: one function for each kind of thing that happens meanwhile."""

from __future__ import annotations

import signal
import threading
import time
from typing import Any

from kernel.harness.containers import DATA, Container, Guest, Workload
from kernel.harness.machine import MIB
from kernel.scenarios.driver import Deed, committing, shrink
from kernel.scenarios.workloads import options_of, steady
from vpa_ippr.actuator.task import Task
from vpa_ippr.api.shrink import Phase

CALM_SECONDS = 4.0


def one(
    guest: Guest,
    mode: str,
    target_mib: float,
    *,
    limit_mib: int = 256,
    layout: str = "systemd",
    swap_mib: int = 0,
    options: dict[str, Any],
    **policy: Any,
) -> dict[str, Any]:
    """One workload, one shrink: speed before and after, and what the shrink came to."""
    container = guest.container(limit_mib=limit_mib, layout=layout, swap_mib=swap_mib)
    workload = container.start(mode, **options_of(mode, **options))
    return _measured(container, workload, target_mib, **policy)


def nested(guest: Guest, target_mib: float, *, min_mib: int, skip: int, size: int) -> dict[str, Any]:
    """Page cache in a cgroup below the container's, protected there by ``memory.min`` against all that comes from above."""
    container = guest.container(limit_mib=256)
    (container.path / "cgroup.subtree_control").write_text("+memory")
    inner = container.path / "inner"
    inner.mkdir()
    (inner / "memory.min").write_text(str(min_mib * MIB))
    workload = container.start("file", into=inner, path=DATA, skip=skip, size=size, hot=0)
    return _measured(container, workload, target_mib)


def restarted(guest: Guest, phase: str, target_mib: float, *, skip: int, size: int) -> dict[str, Any]:
    """The container is restarted in that phase (in Shrinking and Holding under its guard): what came after it is another one."""
    container = guest.container(limit_mib=256)
    container.start("file", path=DATA, skip=skip, size=size, hot=0)
    commit = committing(container, target_mib)
    done: list[bool] = []

    def deed(task: Task) -> None:
        is_guarded = task.state.guard_bytes is not None or phase not in (Phase.SHRINKING, Phase.HOLDING)
        if task.state.phase == phase and is_guarded and not done:
            done.append(True)
            guest.again(container)
            container.write("memory.max", 256 * MIB)
            container.start("anon", size=8)
        elif not done:
            commit(task)

    result = shrink(container, target_mib, deed=deed)
    is_alive = all(workload.is_alive for workload in container.workloads)
    return {**result, "is_alive": is_alive, "was_restarted": bool(done)}


def overwritten(guest: Guest, values: list[Any], target_mib: float, *, skip: int, size: int) -> dict[str, Any]:
    """Somebody else writes ``memory.high`` (``max`` is what systemd does on a daemon-reload; MiB else) while the guard stands, in turn."""
    container = guest.container(limit_mib=256)
    workload = container.start("file", path=DATA, skip=skip, size=size, hot=0)
    left, commit = list(values), committing(container, target_mib)
    wrote_at = [0.0]

    def deed(task: Task) -> None:
        # The first after some steps; the next once the answer to the one before is there.
        has_stepped = task.state.pace is not None and task.state.pace.steps >= 2
        is_guarded = container.text("memory.high") not in ("max", *(str(value * MIB) for value in values if value != "max"))
        if left and has_stepped and is_guarded and task.state.phase is Phase.SHRINKING and time.monotonic() > wrote_at[0] + 3:
            value = left.pop(0)
            container.write("memory.high", value if value == "max" else value * MIB)
            wrote_at[0] = time.monotonic()
        commit(task)

    return {**shrink(container, target_mib, deed=deed), "is_alive": workload.is_alive, "unwritten": left}


def burst_at_commit(guest: Guest, target_mib: int, *, anon: int, touch: int, skip: int, size: int, runs: int) -> dict[str, Any]:
    """The workload takes ``touch`` MiB in the very moment of the commit; ``runs`` containers, each with another delay between the two.

    The kubelet's own check is played as well: it does not lower a limit below what it sees used.
    """
    results: list[dict[str, Any]] = []

    def run(number: int) -> None:
        container = guest.container(limit_mib=256)
        container.start("file", path=DATA, skip=skip + number * size, size=size, hot=0)
        taker = container.start("anon", size=anon, touch=touch)
        found = shrink(container, target_mib, deed=_bursting(container, taker, target_mib, number * 0.04))
        results.append({**found, "is_alive": all(workload.is_alive for workload in container.workloads)})

    threads = [threading.Thread(target=run, args=(number,)) for number in range(runs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    keys = (
        "phase",
        "reason",
        "is_alive",
        "oom_kills",
        "stall_seconds",
        "high_after",
        "high_before",
        "max_after_mib",
        "journal_left",
        "seconds",
    )
    return {"runs": [{key: result[key] for key in keys} for result in results]}


def _bursting(container: Container, taker: Workload, target_mib: int, delay_seconds: float) -> Deed:
    done: list[bool] = []

    def deed(task: Task) -> None:
        if task.state.phase is Phase.HOLDING and not done:
            done.append(True)
            taker.process.send_signal(signal.SIGUSR1)
            time.sleep(delay_seconds)
            if container.usage_mib < target_mib:
                container.write("memory.max", target_mib * MIB)

    return deed


def _measured(container: Container, workload: Workload, target_mib: float, **policy: Any) -> dict[str, Any]:
    before = steady(container, workload, CALM_SECONDS)
    result = shrink(container, target_mib, **policy)
    is_alive = workload.is_alive
    after = steady(container, workload, CALM_SECONDS) if is_alive else {}
    return {**result, "is_alive": is_alive, "before": before, "after": after}
