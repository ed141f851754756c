"""cgroup v2 files: the ``Cgroup`` of a real node."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from vpa_ippr.actuator.cgroup import PodLevel, Snapshot
from vpa_ippr.actuator.cgroup_files import CgroupFiles, Gone
from vpa_ippr.actuator.features import Features, probe
from vpa_ippr.actuator.helper import Helper, HelperProcess, ReclaimKind
from vpa_ippr.actuator.locate import directories, find_bases, has_processes, open_below, open_container, open_root, pod_of
from vpa_ippr.actuator.reasons import Reason
from vpa_ippr.actuator.triggers import PressureTriggers
from vpa_ippr.api.errors import ActuatorError

if TYPE_CHECKING:
    from vpa_ippr.actuator.systemd import GuardWriter, UnitGuard

_log = logging.getLogger(__name__)

_LINKS_WITHOUT_CHILDREN = 2
_FREED_LESS = frozenset({errno.EAGAIN, errno.EINTR, errno.ENOENT, errno.ENODEV})
"""EAGAIN and EINTR: part was freed. The others: the cgroup has gone meanwhile."""


class CgroupFs:
    """A handle on one cgroup directory; owns the descriptor it is given.

    Args:
        directory_fd: the directory, opened with O_PATH.
        path: for messages.
        helper: makes the writes that may block.
        unit: where the cgroup is a systemd unit and systemd is to know of the guard.
        pod: the cgroup of the pod whose container it is.
        proc: the host's /proc.
    """

    def __init__(
        self,
        directory_fd: int,
        path: str,
        helper: Helper | None = None,
        unit: UnitGuard | None = None,
        pod: CgroupFiles | None = None,
        proc: Path = Path("/proc"),
    ) -> None:
        self.path = path
        self.files = CgroupFiles(directory_fd, path)
        self._pod = pod
        self._helper = helper or HelperProcess()
        self._unit = unit
        self._proc = proc
        self._peak_fd = self._open_peak_window()

    def __del__(self) -> None:
        peak_fd = getattr(self, "_peak_fd", None)
        if peak_fd is not None:
            with contextlib.suppress(OSError):
                os.close(peak_fd)

    def identity(self) -> int:
        """The directory's inode, which is the kernel's cgroup id."""
        return self.files.inode

    def read(self) -> Snapshot | None:
        """All files in one go; None when the cgroup is gone.

        ``high_bytes`` is our last guard, whatever the kernel says, while systemd still holds it and would write it again.

        Raises:
            ActuatorError: a file is missing or cannot be understood (reasons ``PressureUnavailable``, ``CgroupUnreadable``).
        """
        files = self.files
        try:
            state = files.flat("cgroup.events")
            memory_some, memory_full = files.pressure("memory.pressure")
            io_some, io_full = files.pressure("io.pressure")
            high = files.limit("memory.high")
            owed = self._unit.owed_bytes if self._unit is not None else None
            swap = self._swap()
            return Snapshot(
                usage_bytes=int(files.line("memory.current")),
                high_bytes=high if owed is None else owed,
                max_bytes=files.limit("memory.max"),
                stat=files.flat("memory.stat"),
                events=files.flat("memory.events"),
                memory_some_us=memory_some,
                memory_full_us=memory_full,
                io_some_us=io_some,
                io_full_us=io_full,
                populated=state.get("populated", 0) == 1,
                frozen=state.get("frozen", 0) == 1,
                peak_bytes=self._take_peak(),
                swap_bytes=swap[0],
                swap_free_bytes=swap[1],
                swap_failures=swap[2],
                protected_bytes=self._protected_bytes(),
                pod=self._pod_level(),
            )
        except Gone:
            return None
        except ValueError as error:
            raise ActuatorError(f"cgroup {self.path}: {error}", reason=Reason.UNREADABLE) from error

    def text(self, name: str) -> str | None:
        """One file as it is; None when the cgroup is gone. For a watcher that looks often and reads little.

        Raises:
            ActuatorError: the file cannot be read.
        """
        try:
            return self.files.text(name)
        except Gone:
            return None

    def write_high(self, high_bytes: int | None) -> None:
        """Set ``memory.high``; None writes ``max``. Nothing happens when the cgroup is gone.

        Raises:
            ActuatorError: the kernel refused (reason ``WriteFailed``), or systemd could not be told of the original value
                (``BusUnavailable``, ``BusRefused``); the kernel has it even then.
        """
        with contextlib.suppress(Gone):
            if self._unit is None:
                self.put_high(high_bytes)
            else:
                self._unit.write(self, high_bytes)

    def put_high(self, high_bytes: int | None) -> None:
        """Set ``memory.high`` by its file, without systemd's knowledge; raises ``Gone``."""
        text = "max" if high_bytes is None else str(high_bytes)
        if high_bytes is not None and self.usage_bytes() >= high_bytes:
            # The write would reclaim all that is above, for as long as it takes: 42 s were measured for 50 MiB.
            self._put_by_helper(text)
        else:
            self.files.put("memory.high", text, nonblocking=True)

    def usage_bytes(self) -> int:
        """``memory.current``; raises ``Gone``."""
        return int(self.files.line("memory.current"))

    def reclaim(self, amount_bytes: int, *, may_swap: bool = False) -> bool:
        """Write ``memory.reclaim`` in the helper process; False when less was freed, the helper had to be killed, or the cgroup is gone.

        Raises:
            ActuatorError: the kernel refused otherwise (reason ``WriteFailed``), or it might swap (``WouldSwap``).
        """
        try:
            fd = self.files.open("memory.reclaim", os.O_WRONLY)
        except Gone:
            return False
        try:
            code = self._helper.reclaim(fd, amount_bytes, self._kind(may_swap))
        finally:
            os.close(fd)
        if code == 0 or code in _FREED_LESS:
            return code == 0
        if code == errno.ENOTSUP:
            message = (
                f"cgroup {self.path}: this kernel cannot reclaim page cache alone (swappiness=, Linux 6.12) and the container may swap"
            )
            raise ActuatorError(message, reason=Reason.WOULD_SWAP)
        raise ActuatorError(f"cgroup {self.path}: memory.reclaim: {os.strerror(code)}", reason=Reason.WRITE_FAILED)

    def open_triggers(self) -> PressureTriggers:
        """Wake-ups by pressure; without any where this kernel or our rights do not allow them."""
        return PressureTriggers.open(self.files.fd)

    def unit_high(self) -> str | None:
        """What systemd holds as memory.high without us, for the journal: ``max`` or bytes; None where it is not told."""
        return self._unit.original_text(self) if self._unit is not None else None

    def take_over(self, unit_high: str | None, guard_bytes: int | None) -> None:
        """Go on where an agent before us has told systemd of a guard; ``unit_high`` is what it found there."""
        if self._unit is not None and unit_high is not None:
            self._unit.take_over(unit_high, guard_bytes)

    def _put_by_helper(self, text: str) -> None:
        fd = self.files.open("memory.high", os.O_WRONLY | os.O_NONBLOCK)
        try:
            code = self._helper.set_limit(fd, text)
        finally:
            os.close(fd)
        # The limit is set before the reclaim begins: cut short is as good as done.
        if code != 0 and code not in _FREED_LESS:
            raise ActuatorError(f"cgroup {self.path}: memory.high: {os.strerror(code)}", reason=Reason.WRITE_FAILED)

    def _kind(self, may_swap: bool) -> ReclaimKind:
        if may_swap:
            return ReclaimKind.ANY
        return ReclaimKind.FILES if self._swap()[1] > 0 else ReclaimKind.FILES_IF_KNOWN

    def _swap(self) -> tuple[int, int, int]:
        """Swapped out, how much more may be, and how often swap was full; zeros where the kernel does not account for swap."""
        limit, used = self.files.optional("memory.swap.max"), int(self.files.optional("memory.swap.current") or 0)
        if limit is None:
            return used, 0, 0
        free = _free_swap_bytes(self._proc)
        left = free if limit == "max" else max(0, min(free, int(limit) - used))
        failures = self.files.flat("memory.swap.events").get("fail", 0) if self.files.optional("memory.swap.events") is not None else 0
        return used, left, failures

    def _protected_bytes(self) -> int:
        """Children are rare: the directory's link count tells at once that there are none."""
        if os.fstat(self.files.fd).st_nlink == _LINKS_WITHOUT_CHILDREN:
            return 0
        total = 0
        for name in directories(self.files.fd):
            child = open_below(self.files.fd, (name,))
            if child is not None:
                files = CgroupFiles(child, f"{self.path}/{name}")
                total += _protection_bytes(files.optional("memory.min"), files.optional("memory.current"))
                files.close()
        return total

    def _pod_level(self) -> PodLevel | None:
        if self._pod is None:
            return None
        try:
            return PodLevel(int(self._pod.line("memory.current")), self._pod.limit("memory.max"))
        except (Gone, ActuatorError):
            return None

    def _open_peak_window(self) -> int | None:
        """A private ``memory.peak`` window; kernels before 6.12 refuse the write with EINVAL or the open with EACCES."""
        try:
            fd = self.files.open("memory.peak", os.O_RDWR)
        except (Gone, ActuatorError):
            return None
        try:
            os.pwrite(fd, b"reset\n", 0)
        except OSError:
            os.close(fd)
            return None
        return fd

    def _take_peak(self) -> int | None:
        if self._peak_fd is None:
            return None
        try:
            peak = int(os.pread(self._peak_fd, 64, 0).split()[0])
            os.pwrite(self._peak_fd, b"reset\n", 0)
        except OSError as error:
            raise self.files.failed("memory.peak", error) from error
        except (ValueError, IndexError):
            return None
        return peak


class CgroupFsFinder:
    """Finds the containers of a node below one cgroup root.

    ``find`` raises ActuatorError with the reason why the node cannot shrink anything at all, so that every request is told.

    Args:
        root: where cgroup v2 is mounted.
        proc: the host's /proc.
        helper: makes the writes that may block.
        guards: tells systemd of guards; without it they are written by file alone.
    """

    def __init__(
        self,
        root: Path = Path("/sys/fs/cgroup"),
        proc: Path = Path("/proc"),
        helper: Helper | None = None,
        guards: GuardWriter | None = None,
    ) -> None:
        self._root = root
        self._proc = proc
        self._root_fd = open_root(str(root))
        self._helper = helper or HelperProcess()
        self._guards = guards
        self._bases = find_bases(self._root_fd)
        self.features: Features = probe(root, proc)
        _log.info("what this node's kernel can do", extra=self.features.as_fields())

    def find(self, pod_uid: str, container_id: str, qos_class: str) -> CgroupFs | None:
        """The cgroup of a running container, or None: also where its processes are elsewhere, as with VM runtimes.

        Raises:
            ActuatorError: the node lacks a feature, nothing of Kubernetes is below the root, or a name is not what the kubelet would give.
        """
        self.features.require()
        found = self.reopen(pod_uid, container_id, qos_class)
        if found is None and not self._bases:
            message = f"no kubepods below {self._root}: is it the host's cgroup root, and has the kubelet made its cgroups?"
            raise ActuatorError(message, reason=Reason.CGROUP_NOT_FOUND)
        return found

    def reopen(self, pod_uid: str, container_id: str, qos_class: str) -> CgroupFs | None:
        """As ``find``, to put back what was left: whatever the node's kernel can do and whether or not pods are there."""
        found = open_container(self._root_fd, self._bases, pod_uid, container_id, qos_class)
        if found is None:
            # The first pod of a node, or a kubelet that came later, brings directories that were not there.
            self._bases = find_bases(self._root_fd)
            found = open_container(self._root_fd, self._bases, pod_uid, container_id, qos_class)
        if found is None:
            return None
        fd, path = found
        if not has_processes(fd):
            os.close(fd)
            return None
        unit = self._guards.unit_at(path) if self._guards is not None else None
        pod_path = pod_of(path)
        pod_fd = open_below(self._root_fd, pod_path)
        pod = CgroupFiles(pod_fd, str(self._root.joinpath(*pod_path))) if pod_fd is not None else None
        return CgroupFs(fd, str(self._root.joinpath(*path)), self._helper, unit, pod, self._proc)

    def close(self) -> None:
        """Let the root go."""
        os.close(self._root_fd)


def _free_swap_bytes(proc: Path) -> int:
    """Of the whole node, from /proc/swaps; where that cannot be read there may be any amount."""
    try:
        devices = (proc / "swaps").read_text().splitlines()[1:]
    except OSError:
        return sys.maxsize
    return sum((int(size) - int(used)) * 1024 for size, used in (line.split()[2:4] for line in devices))


def _protection_bytes(minimum: str | None, usage: str | None) -> int:
    """What of a child's ``memory.min`` is in use: no more than that is protected."""
    used = int(usage or 0)
    return used if minimum == "max" else min(int(minimum or 0), used)
