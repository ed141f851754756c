"""cgroup v2 files: the ``Cgroup`` of a real node.

A handle holds an O_PATH descriptor of the cgroup's directory and opens every file relative to it, so a restarted container, which is a new
directory, can never be touched through an old handle: opening fails with ENOENT, reading with ENODEV, and both mean gone. Writes are one
``write(2)`` of a short buffer, so that the errno belongs to it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from vpa_ippr.actuator import reclaim_helper
from vpa_ippr.actuator.cgroup import Snapshot
from vpa_ippr.actuator.features import Features, probe
from vpa_ippr.actuator.locate import find_bases, open_container, open_root
from vpa_ippr.actuator.reasons import Reason
from vpa_ippr.api.errors import ActuatorError

_GONE = frozenset({errno.ENOENT, errno.ENODEV})
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
_LARGEST_READ = 256 * 1024
RECLAIM_TIMEOUT_SECONDS = 10.0

Reclaimer = Callable[[int, int], int]
"""``(fd, bytes) -> errno``; 0 when all was freed."""


class _Gone(Exception):  # noqa: N818 - a result, not an error
    """The cgroup was removed."""


def reclaim_in_process(fd: int, amount_bytes: int) -> int:
    """Run the helper under a watchdog; a helper that had to be killed counts as EAGAIN, for part was freed."""
    helper = subprocess.Popen(  # noqa: S603 - our own file, numbers as arguments
        [sys.executable, "-I", "-S", reclaim_helper.__file__, str(fd), str(amount_bytes)],
        pass_fds=(fd,),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    try:
        return helper.wait(RECLAIM_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        helper.kill()
        helper.wait()
        return errno.EAGAIN


class CgroupFs:
    """A handle on one cgroup directory; owns the descriptor it is given."""

    def __init__(self, directory_fd: int, path: str, reclaimer: Reclaimer = reclaim_in_process) -> None:
        self.path = path
        self._fd = directory_fd
        self._inode = os.fstat(directory_fd).st_ino
        self._reclaimer = reclaimer
        self._peak_fd = self._open_peak_window()

    def __del__(self) -> None:
        for fd in (getattr(self, "_peak_fd", None), getattr(self, "_fd", None)):
            if fd is not None:
                with contextlib.suppress(OSError):
                    os.close(fd)

    def identity(self) -> int:
        """The directory's inode, which is the kernel's cgroup id."""
        return self._inode

    def read(self) -> Snapshot | None:
        """All files in one go; None when the cgroup is gone.

        Raises:
            ActuatorError: a file is missing or cannot be understood (reasons ``PressureUnavailable``, ``CgroupUnreadable``).
        """
        try:
            state = self._flat("cgroup.events")
            memory_some, memory_full = self._pressure("memory.pressure")
            io_some, io_full = self._pressure("io.pressure")
            return Snapshot(
                usage_bytes=int(self._text("memory.current")),
                high_bytes=self._limit("memory.high"),
                max_bytes=self._limit("memory.max"),
                stat=self._flat("memory.stat"),
                events=self._flat("memory.events"),
                memory_some_us=memory_some,
                memory_full_us=memory_full,
                io_some_us=io_some,
                io_full_us=io_full,
                populated=state.get("populated", 0) == 1,
                frozen=state.get("frozen", 0) == 1,
                peak_bytes=self._take_peak(),
            )
        except _Gone:
            return None
        except ValueError as error:
            raise ActuatorError(f"cgroup {self.path}: {error}", reason=Reason.UNREADABLE) from error

    def write_high(self, high_bytes: int | None) -> None:
        """Set ``memory.high``; None writes ``max``. Nothing happens when the cgroup is gone.

        Raises:
            ActuatorError: the kernel refused (reason ``WriteFailed``).
        """
        text = b"max" if high_bytes is None else b"%d" % high_bytes
        with contextlib.suppress(_Gone):
            fd = self._open("memory.high", _WRITE)
            try:
                written = os.write(fd, text)
            except OSError as error:
                raise self._failed("memory.high", error) from error
            finally:
                os.close(fd)
            if written != len(text):
                raise ActuatorError(f"cgroup {self.path}: memory.high took {written} of {len(text)} bytes", reason=Reason.WRITE_FAILED)

    def reclaim(self, amount_bytes: int) -> bool:
        """Write ``memory.reclaim`` in the helper process; False when less was freed, the helper had to be killed, or the cgroup is gone.

        Raises:
            ActuatorError: the kernel refused otherwise (reason ``WriteFailed``).
        """
        try:
            fd = self._open("memory.reclaim", os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except _Gone:
            return False
        try:
            code = self._reclaimer(fd, amount_bytes)
        finally:
            os.close(fd)
        if code in (0, errno.EAGAIN, errno.EINTR, *_GONE):
            return code == 0
        raise ActuatorError(f"cgroup {self.path}: memory.reclaim: {os.strerror(code)}", reason=Reason.WRITE_FAILED)

    def _open(self, name: str, flags: int) -> int:
        try:
            return os.open(name, flags, dir_fd=self._fd)
        except OSError as error:
            raise self._failed(name, error) from error

    def _text(self, name: str) -> str:
        fd = self._open(name, _READ)
        try:
            return os.read(fd, _LARGEST_READ).decode("ascii")
        except OSError as error:
            raise self._failed(name, error) from error
        finally:
            os.close(fd)

    def _failed(self, name: str, error: OSError) -> Exception:
        """What an errno on one of the files means."""
        if error.errno in _GONE and not self._exists():
            return _Gone()
        what = f"cgroup {self.path}: {name}: {error.strerror}"
        if name.endswith(".pressure") and error.errno in (errno.ENOENT, errno.EOPNOTSUPP):
            hint = "boot with psi=1 or write 1 to cgroup.pressure"
            return ActuatorError(f"{what}; {hint}", reason=Reason.PRESSURE_UNAVAILABLE)
        is_write = name in ("memory.high", "memory.reclaim")
        return ActuatorError(what, reason=Reason.WRITE_FAILED if is_write else Reason.UNREADABLE)

    def _exists(self) -> bool:
        try:
            os.stat("cgroup.events", dir_fd=self._fd, follow_symlinks=False)
        except OSError:
            return False
        return True

    def _limit(self, name: str) -> int | None:
        text = self._text(name).strip()
        return None if text == "max" else int(text)

    def _flat(self, name: str) -> dict[str, int]:
        pairs = (line.split() for line in self._text(name).splitlines())
        return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}

    def _pressure(self, name: str) -> tuple[int, int]:
        """The ``total=`` of some and full, in microseconds: exact at each read, where avg10 lags by up to 2 s."""
        totals = {line.split(" ", 1)[0]: int(line.rpartition("total=")[2]) for line in self._text(name).splitlines() if "total=" in line}
        if "some" not in totals:
            raise ValueError(f"{name} has no line of some")
        return totals["some"], totals.get("full", 0)

    def _open_peak_window(self) -> int | None:
        """A private ``memory.peak`` window; kernels before 6.12 refuse the write with EINVAL or the open with EACCES."""
        try:
            fd = os.open("memory.peak", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._fd)
        except OSError:
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
            raise self._failed("memory.peak", error) from error
        except (ValueError, IndexError):
            return None
        return peak


class CgroupFsFinder:
    """Finds the containers of a node below one cgroup root.

    ``find`` raises ActuatorError with the reason why the node cannot shrink anything at all, so that every request is told.
    """

    def __init__(self, root: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc"), reclaimer: Reclaimer = reclaim_in_process) -> None:
        self._root = root
        self._root_fd = open_root(str(root))
        self._reclaimer = reclaimer
        self._bases = find_bases(self._root_fd)
        self.features: Features = probe(root, proc)

    def find(self, pod_uid: str, container_id: str, qos_class: str) -> CgroupFs | None:
        """The cgroup of a running container, or None.

        Raises:
            ActuatorError: the node lacks a feature, nothing of Kubernetes is below the root, or a name is not what the kubelet would give.
        """
        self.features.require()
        found = open_container(self._root_fd, self._bases, pod_uid, container_id, qos_class)
        if found is None:
            # The first pod of a node, or a kubelet that came later, brings directories that were not there.
            self._bases = find_bases(self._root_fd)
            found = open_container(self._root_fd, self._bases, pod_uid, container_id, qos_class)
        if not self._bases:
            message = f"no kubepods below {self._root}: is it the host's cgroup root, and has the kubelet made its cgroups?"
            raise ActuatorError(message, reason=Reason.CGROUP_NOT_FOUND)
        if found is None:
            return None
        fd, path = found
        return CgroupFs(fd, str(self._root.joinpath(*path)), self._reclaimer)

    def close(self) -> None:
        """Let the root go."""
        os.close(self._root_fd)
