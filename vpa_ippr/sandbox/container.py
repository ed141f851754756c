"""One running container: its processes, its memory and its CPU, brought forward in time when somebody looks."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from vpa_ippr.sandbox.kernel import ContainerCpu, ContainerMemory
from vpa_ippr.sandbox.pagecache import KernelSettings
from vpa_ippr.sandbox.workloads import ProcessState, Workload

# While memory.high is set the penalty depends on each second's growth.
FINE_STEP_SECONDS = 1.0
# 128 + SIGKILL.
KILLED_EXIT_CODE = 137


@dataclass(frozen=True, slots=True)
class Exit:
    """How the container's main process ended."""

    at: float
    exit_code: int
    reason: str


class RunningContainer:
    """A container from its start to its end; a restarted one is another object. Methods may be called from any thread.

    Args:
        container_id: ``containerd://<64 hex digits>``.
        inode: of its cgroup.
        workload: what it uses.
        started_at: seconds since the epoch.
    """

    def __init__(
        self,
        container_id: str,
        inode: int,
        workload: Workload,
        started_at: float,
        *,
        cpu_limit_millicores: int | None = None,
        memory_limit_bytes: int | None = None,
        kernel: KernelSettings | None = None,
    ) -> None:
        self.container_id = container_id
        self.inode = inode
        self.workload = workload
        self.started_at = started_at
        self.memory = ContainerMemory(memory_limit_bytes, kernel)
        self.cpu = ContainerCpu(cpu_limit_millicores)
        self.lock = threading.RLock()
        self.exit: Exit | None = None
        self._state = ProcessState(started_at, memory_limit_bytes)
        self._at = started_at
        self._peak_windows: dict[int, int] = {}

    @property
    def is_guarded(self) -> bool:
        """True while somebody has set ``memory.high``."""
        return self.memory.high_bytes is not None

    def advance(self, now: float) -> Exit | None:
        """Let the processes run until ``now``; how they ended, if they did."""
        with self.lock:
            while self._at < now and self.exit is None:
                step = min(self.workload.step_seconds, FINE_STEP_SECONDS) if self.is_guarded else self.workload.step_seconds
                self._run_to(min(now, self._at + step))
            return self.exit

    def stop(self, now: float) -> Exit:
        """Kill the processes, if they have not ended by themselves; the cgroup is gone afterwards."""
        with self.lock:
            self.exit = self.advance(now) or Exit(now, KILLED_EXIT_CODE, "Error")
            return self.exit

    def open_peak_window(self, key: int) -> None:
        """Begin a private window of ``memory.peak`` (kernel 6.12 and later)."""
        with self.lock:
            self._peak_windows[key] = self.memory.usage_bytes

    def close_peak_window(self, key: int) -> int:
        """The highest usage in the window, which begins anew."""
        with self.lock:
            highest = max(self._peak_windows[key], self.memory.usage_bytes)
            self._peak_windows[key] = self.memory.usage_bytes
            return highest

    def _run_to(self, moment: float) -> None:
        seconds = moment - self._at
        demand = self.workload.usage(moment, self._state)
        progress = self.memory.run(demand, seconds)
        self.cpu.run(demand.cpu_millicores * progress, seconds)
        self._at = moment
        usage = self.memory.usage_bytes
        for key, highest in self._peak_windows.items():
            if usage > highest:
                self._peak_windows[key] = usage
        finishes_after = self.workload.finishes_after_seconds
        if self.memory.oom_killed:
            self.exit = Exit(moment, KILLED_EXIT_CODE, "OOMKilled")
        elif finishes_after is not None and moment - self.started_at >= finishes_after:
            code = self.workload.exit_code
            self.exit = Exit(moment, code, "Error" if code else "Completed")
