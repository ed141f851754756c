"""The sandbox's containers as a node agent sees them: handles on memory cgroups.

The shape is that of the agent's port (``identity``, ``read``, ``write_high``, ``reclaim``); the agent's own ``Snapshot`` class is handed
in, because this room does not know the agent's.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Generic, TypeVar

from vpa_ippr.sandbox.container import RunningContainer

SnapshotT = TypeVar("SnapshotT")
MICROSECONDS = 1_000_000
_handles = itertools.count(1)


class SandboxCgroup(Generic[SnapshotT]):
    """A handle on one container's memory cgroup; it never comes to mean another container's."""

    def __init__(
        self, container: RunningContainer, now: Callable[[], float], make_snapshot: Callable[..., SnapshotT], on_exit: Callable[[], None]
    ) -> None:
        self._container = container
        self._now = now
        self._make_snapshot = make_snapshot
        self._on_exit = on_exit
        self._handle = next(_handles)
        container.open_peak_window(self._handle)

    def identity(self) -> int:
        """The cgroup's inode number."""
        return self._container.inode

    def read(self) -> SnapshotT | None:
        """What the kernel says now; None when the container has ended."""
        with self._container.lock:
            if self._is_gone():
                return None
            memory = self._container.memory
            memory_us = int(memory.counters.memory_stall_seconds * MICROSECONDS)
            io_us = int(memory.counters.io_stall_seconds * MICROSECONDS)
            return self._make_snapshot(
                usage_bytes=memory.usage_bytes,
                high_bytes=memory.high_bytes,
                max_bytes=memory.max_bytes,
                stat=memory.stat(),
                events=memory.events(),
                memory_some_us=memory_us,
                memory_full_us=memory_us,
                io_some_us=io_us,
                io_full_us=io_us,
                populated=True,
                frozen=False,
                peak_bytes=self._container.close_peak_window(self._handle),
            )

    def write_high(self, high_bytes: int | None) -> None:
        """Set ``memory.high``; None is ``max``. Nothing happens when the container has ended."""
        with self._container.lock:
            if not self._is_gone():
                self._container.memory.set_high(high_bytes)

    def reclaim(self, amount_bytes: int, *, may_swap: bool = False) -> bool:  # noqa: ARG002 - the sandbox's nodes have no swap
        """Write ``memory.reclaim``; False when less could be freed, or the container has ended."""
        with self._container.lock:
            return not self._is_gone() and self._container.memory.reclaim(amount_bytes)

    def _is_gone(self) -> bool:
        was_running = self._container.exit is None
        ended = self._container.advance(self._now()) is not None
        if ended and was_running:
            self._on_exit()
        return ended


class SandboxCgroups(Generic[SnapshotT]):
    """Finds the cgroups of one node's containers.

    Args:
        containers: gives the running container of a pod UID and a container id (``containerd://...``), or None.
        now: the present time in seconds.
        make_snapshot: called with the fields of the agent's snapshot as keywords.
        on_exit: called when a look finds that a container has just ended, so that the kubelet need not wait for its next tick.
    """

    def __init__(
        self,
        containers: Callable[[str, str], RunningContainer | None],
        now: Callable[[], float],
        make_snapshot: Callable[..., SnapshotT],
        on_exit: Callable[[], None],
    ) -> None:
        self._containers = containers
        self._now = now
        self._make_snapshot = make_snapshot
        self._on_exit = on_exit

    def find(self, pod_uid: str, container_id: str, qos_class: str) -> SandboxCgroup[SnapshotT] | None:  # noqa: ARG002
        """The cgroup of a running container, or None; the QoS class only matters where cgroups are found by path."""
        container = self._containers(pod_uid, container_id)
        return None if container is None else SandboxCgroup(container, self._now, self._make_snapshot, self._on_exit)

    def reopen(self, pod_uid: str, container_id: str, qos_class: str) -> SandboxCgroup[SnapshotT] | None:
        """As ``find``: the sandbox's nodes keep what they can do."""
        return self.find(pod_uid, container_id, qos_class)
