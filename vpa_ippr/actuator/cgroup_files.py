"""The files of one cgroup v2 directory: openat from a held descriptor, one read or write each, and what an errno means.

A descriptor of the directory is held with O_PATH and every file is opened relative to it, so a restarted container, which is a new
directory, can never be touched through an old handle: opening fails with ENOENT, reading with ENODEV, and both mean gone. Writes are one
``write(2)`` of a short buffer, so that the errno belongs to it, and never truncate: kernfs has nothing to truncate, and what is not kernfs
must not lose its contents.
"""

from __future__ import annotations

import contextlib
import errno
import os

from vpa_ippr.actuator.reasons import Reason
from vpa_ippr.api.errors import ActuatorError

_GONE = frozenset({errno.ENOENT, errno.ENODEV})
_PRESSURE = ("memory.pressure", "io.pressure")
_GUARDED = os.O_NOFOLLOW | os.O_CLOEXEC
_LARGEST_READ = 64 * 1024


class Gone(Exception):  # noqa: N818 - a result, not an error
    """The cgroup was removed."""


class CgroupFiles:
    """Owns the descriptor it is given. All methods raise ``Gone`` when the cgroup is no more, and ActuatorError on any other refusal."""

    def __init__(self, directory_fd: int, path: str) -> None:
        self.path = path
        self.fd = directory_fd
        self.inode = os.fstat(directory_fd).st_ino
        """The kernel's cgroup id."""

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Let the directory go."""
        fd, self.fd = getattr(self, "fd", -1), -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.close(fd)

    def exists(self) -> bool:
        """Whether the directory is still a cgroup."""
        try:
            os.stat("cgroup.events", dir_fd=self.fd, follow_symlinks=False)
        except OSError:
            return False
        return True

    def open(self, name: str, flags: int) -> int:
        """A descriptor of one file; the caller closes it."""
        try:
            return os.open(name, flags | _GUARDED, dir_fd=self.fd)
        except OSError as error:
            raise self.failed(name, error, is_write=flags & os.O_ACCMODE != os.O_RDONLY) from error

    def text(self, name: str) -> str:
        """The whole file, in one read, so that all its lines are of one moment."""
        fd = self.open(name, os.O_RDONLY)
        try:
            return os.read(fd, _LARGEST_READ).decode("ascii")
        except OSError as error:
            raise self.failed(name, error) from error
        finally:
            os.close(fd)

    def line(self, name: str) -> str:
        """The first line of a file that has one value."""
        return self.text(name).partition("\n")[0].strip()

    def optional(self, name: str) -> str | None:
        """The first line, or None where this kernel or this cgroup has no such file."""
        with contextlib.suppress(Gone, ActuatorError):
            return self.line(name)
        return None

    def limit(self, name: str) -> int | None:
        """A limit in bytes; None is ``max``."""
        text = self.line(name)
        return None if text == "max" else int(text)

    def flat(self, name: str) -> dict[str, int]:
        """A file of ``key value`` lines."""
        pairs = (line.split() for line in self.text(name).splitlines())
        return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}

    def pressure(self, name: str) -> tuple[int, int]:
        """The ``total=`` of some and full, in microseconds: exact at each read, where avg10 lags by up to 2 s."""
        totals = {line.split(" ", 1)[0]: int(line.rpartition("total=")[2]) for line in self.text(name).splitlines() if "total=" in line}
        if "some" not in totals:
            raise ValueError(f"{name} has no line of some")
        return totals["some"], totals.get("full", 0)

    def put(self, name: str, text: str, *, nonblocking: bool = False) -> None:
        """Write one value, in one write.

        ``nonblocking`` opens with O_NONBLOCK, with which newer kernels set a limit without reclaiming; older ones ignore it.
        """
        fd = self.open(name, os.O_WRONLY | (os.O_NONBLOCK if nonblocking else 0))
        data = text.encode("ascii") + b"\n"
        try:
            written = os.write(fd, data)
        except OSError as error:
            raise self.failed(name, error, is_write=True) from error
        finally:
            os.close(fd)
        if written != len(data):
            raise ActuatorError(f"cgroup {self.path}: {name} took {written} of {len(data)} bytes", reason=Reason.WRITE_FAILED)

    def failed(self, name: str, error: OSError, *, is_write: bool = False) -> Exception:
        """What an errno on one of the files means."""
        if error.errno in _GONE and not self.exists():
            return Gone()
        what = f"cgroup {self.path}: {name}: {error.strerror}"
        if name in _PRESSURE and error.errno in (errno.EOPNOTSUPP, *_GONE):
            return ActuatorError(f"{what}; {self._pressure_hint()}", reason=Reason.PRESSURE_UNAVAILABLE)
        return ActuatorError(what, reason=Reason.WRITE_FAILED if is_write else Reason.UNREADABLE)

    def _pressure_hint(self) -> str:
        """``cgroup.pressure`` counts for its own cgroup alone (cgroup-v2.rst: "not hierarchical"): with 0 in it the files are hidden."""
        if self.optional("cgroup.pressure") == "0":
            return f"write 1 to {self.path}/cgroup.pressure"
        return "pressure stall information is off: boot with psi=1"
