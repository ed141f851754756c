"""Runs the helper process under a watchdog."""

from __future__ import annotations

import enum
import errno
import logging
import os
import subprocess
import sys
from typing import Protocol

from vpa_ippr.actuator import reclaim_helper
from vpa_ippr.actuator.reasons import Reason
from vpa_ippr.api.errors import ActuatorError

_log = logging.getLogger(__name__)

TIMEOUT_SECONDS = 10.0
_KILL_SECONDS = 1.0
"""Reclaim looks at signals in every round; what has not gone by then sits in uninterruptible I/O."""


class ReclaimKind(enum.StrEnum):
    """Which pages to take."""

    FILES = "files"
    """Page cache alone; ENOTSUP where the kernel cannot be told so."""
    FILES_IF_KNOWN = "files-if-known"
    """Page cache alone where the kernel can be told so; without swap it is the same."""
    ANY = "any"
    """What the kernel thinks best, by swapping too."""


class Helper(Protocol):
    """Writes that may block in the kernel. Both give 0 or an errno; a write that had to be cut short counts as EAGAIN."""

    def reclaim(self, fd: int, amount_bytes: int, kind: ReclaimKind) -> int:
        """Write ``memory.reclaim``."""
        ...

    def set_limit(self, fd: int, text: str) -> int:
        """Write a limit that is below usage, or nearly."""
        ...


class HelperProcess:
    """The real thing: a process a write, with nothing of ours but the descriptors that it writes to.

    A helper that cannot even be killed is left behind, and its file is let alone until it has gone: they must not pile up.
    """

    def __init__(self, timeout_seconds: float = TIMEOUT_SECONDS, kill_seconds: float = _KILL_SECONDS) -> None:
        self._timeout_seconds = timeout_seconds
        self._kill_seconds = kill_seconds
        self._stuck: dict[tuple[int, int], subprocess.Popen[bytes]] = {}

    def reclaim(self, fd: int, amount_bytes: int, kind: ReclaimKind) -> int:
        """See ``Helper``."""
        return self._run((fd,), "reclaim", str(fd), str(amount_bytes), kind)

    def set_limit(self, fd: int, text: str) -> int:
        """See ``Helper``."""
        return self._run((fd,), "set", str(fd), text)

    def fill(self, procs_fd: int, fd: int, amount_bytes: int) -> int:
        """Leave page cache in a cgroup: see ``features.honours_nonblocking``."""
        return self._run((procs_fd, fd), "fill", str(procs_fd), str(fd), str(amount_bytes))

    def _run(self, fds: tuple[int, ...], *arguments: str) -> int:
        status = os.fstat(fds[0])
        file = (status.st_dev, status.st_ino)
        before = self._stuck.get(file)
        if before is not None and before.poll() is None:
            return errno.EAGAIN
        self._stuck.pop(file, None)
        helper = self._start(fds, arguments)
        try:
            code = helper.wait(self._timeout_seconds)
        except subprocess.TimeoutExpired:
            self._kill(helper, file)
            return errno.EAGAIN
        # Killed by another hand, say the OOM killer of the agent's own cgroup: part was done.
        return errno.EAGAIN if code < 0 else code

    def _start(self, fds: tuple[int, ...], arguments: tuple[str, ...]) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-I", "-S", reclaim_helper.__file__, *arguments]
        nothing = subprocess.DEVNULL
        try:
            return subprocess.Popen(command, pass_fds=fds, stdin=nothing, stdout=nothing, stderr=nothing, env={}, cwd="/")  # noqa: S603
        except OSError as error:
            raise ActuatorError(f"cannot start the helper process: {error.strerror or error}", reason=Reason.WRITE_FAILED) from error

    def _kill(self, helper: subprocess.Popen[bytes], file: tuple[int, int]) -> None:
        helper.kill()
        try:
            helper.wait(self._kill_seconds)
        except subprocess.TimeoutExpired:
            self._stuck[file] = helper
            _log.error("helper cannot be killed: its cgroup is not reclaimed from until it has gone", extra={"pid": helper.pid})
