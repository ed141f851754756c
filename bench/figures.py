"""How a figure is taken: the best of a few runs, in wall-clock and CPU seconds, with the memory that the process took for it."""

from __future__ import annotations

import gc
import resource
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

T = TypeVar("T")

MIB = 1 << 20


class Run(msgspec.Struct, frozen=True):
    """What one run, or the best of several, cost. ``peak_mib`` is of the process, generated input and interpreter included."""

    wall_seconds: float
    cpu_seconds: float
    runs: int = 1
    peak_mib: float | None = None
    added_mib: float | None = None


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table; the cost of a unit is the best run's wall-clock time over ``units``."""

    name: str
    size: str
    run: Run
    units: int
    unit: str
    target: str = ""
    note: str = ""

    @property
    def unit_seconds(self) -> float:
        """Wall-clock seconds for one unit."""
        return self.run.wall_seconds / self.units


def best_of(runs: int, prepare: Callable[[], T], act: Callable[[T], object]) -> Run:
    """Run ``act`` on what ``prepare`` makes afresh each time; only ``act`` is measured, with everything that its threads do.

    Wall-clock and CPU are each the lowest seen: on a machine that others use, both only ever err upwards.
    """
    walls, cpus = [], []
    before_bytes = peak_bytes = 0
    for number in range(runs):
        made = prepare()
        gc.collect()
        if number == 0:
            before_bytes = _forget_peak()
        wall, cpu = time.perf_counter(), time.process_time()
        kept = act(made)
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
        if number == 0:  # later runs may find memory that the first one left behind
            peak_bytes = memory_bytes("VmHWM")
        del kept, made
    return Run(min(walls), min(cpus), runs, peak_bytes / MIB, (peak_bytes - before_bytes) / MIB)


def best_of_process(runs: int, command: Sequence[str]) -> tuple[Run, str]:
    """Run a program to its end; also what it printed the last time."""
    walls, cpus, printed = [], [], ""
    for _ in range(runs):
        wall, cpu = time.perf_counter(), _children_cpu_seconds()
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        walls.append(time.perf_counter() - wall)
        cpus.append(_children_cpu_seconds() - cpu)
    return Run(min(walls), min(cpus), runs), printed


def memory_bytes(field: str, pid: str = "self") -> int:
    """``VmRSS`` (resident now) or ``VmHWM`` (most there was) of a process."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def process_cpu_seconds(pid: int) -> float:
    """CPU seconds that another process has used so far (proc(5), ``stat`` fields 14 and 15, in ticks of 1/100 s)."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def _forget_peak() -> int:
    """Let the high-water mark begin anew (proc(5), ``clear_refs``: 5) and say where it begins."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return memory_bytes("VmRSS")


def _children_cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
