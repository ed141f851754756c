"""Setting ``memory.max`` itself: for cgroups that nobody else sets limits on. A container of Kubernetes gets its limit through ``/resize``.

The kernel kills when the new limit is below usage (memory.max is set first, then reclaimed for, then enforced by the OOM killer), so usage
is looked at right before the write, in strict mode while the cgroup is frozen, which takes some 10 ms. A limit that is not read back as
written is raised again.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from vpa_ippr.actuator.cgroup_files import CgroupFiles, Gone
from vpa_ippr.actuator.reasons import Reason
from vpa_ippr.api.errors import ActuatorError

FREEZE_TIMEOUT_SECONDS = 0.2
"""Frozen took 9 to 11 ms on three kernels; a task in uninterruptible I/O holds it up, and the workload must not stand still for that."""
_THAW_ATTEMPTS = 3
_ABOVE = "usage is above the guard"


class LimitPort(Protocol):
    """What a commit needs of the cgroup. Every method raises ActuatorError when the kernel refuses or the cgroup is gone."""

    def usage_bytes(self) -> int:
        """``memory.current``."""
        ...

    def max_bytes(self) -> int | None:
        """``memory.max``; None is ``max``."""
        ...

    def set_max(self, max_bytes: int | None) -> None:
        """Write ``memory.max``."""
        ...

    def freeze(self) -> bool:
        """Stop all processes; False when that took too long. ``thaw`` has to follow either way."""
        ...

    def thaw(self) -> None:
        """Let them go on."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The limit that is to be set. ``guard_bytes`` is the usage up to which it may be."""

    target_bytes: int
    guard_bytes: int
    original_bytes: int | None
    page_bytes: int
    is_strict: bool = True


def commit(port: LimitPort, change: Change, announce_freeze: Callable[[bool], None]) -> str | None:
    """Set the limit if usage allows it.

    Args:
        port: the cgroup.
        change: the limit.
        announce_freeze: called with True before the cgroup is frozen, so that a successor thaws it, and with False once it is thawed.

    Returns:
        None when the limit is set and read back, else why it is not now.

    Raises:
        ActuatorError: the limit did not come to be what was written, and was put back (reason ``CommitFailed``), or the kernel refused.
    """
    if not _fits(port, change):
        return _ABOVE
    if not change.is_strict:
        _set(port, change)
    else:
        why = _set_while_frozen(port, change, announce_freeze)
        if why is not None:
            return why
    seen = port.max_bytes()
    if seen is None or seen // change.page_bytes * change.page_bytes != change.target_bytes:
        port.set_max(change.original_bytes)
        message = f"memory.max reads {'max' if seen is None else seen} after {change.target_bytes} was written: it was put back"
        raise ActuatorError(message, reason=Reason.COMMIT_FAILED)
    return None


def withdraw(port: LimitPort, change: Change) -> None:
    """Put the limit back, unless another hand has set it since.

    Raises:
        ActuatorError: the kernel refused.
    """
    seen = port.max_bytes()
    if seen is not None and seen // change.page_bytes * change.page_bytes == change.target_bytes:
        port.set_max(change.original_bytes)


def _fits(port: LimitPort, change: Change) -> bool:
    return port.usage_bytes() <= min(change.guard_bytes, change.target_bytes)


def _set_while_frozen(port: LimitPort, change: Change, announce: Callable[[bool], None]) -> str | None:
    announce(True)
    try:
        if not port.freeze():
            return f"the processes could not be frozen within {FREEZE_TIMEOUT_SECONDS} s"
        if not _fits(port, change):
            return _ABOVE
        _set(port, change)
        return None
    finally:
        _thaw(port)
        announce(False)


def _set(port: LimitPort, change: Change) -> None:
    try:
        port.set_max(change.target_bytes)
    except ActuatorError:
        with contextlib.suppress(ActuatorError):
            withdraw(port, change)
        raise


def _thaw(port: LimitPort) -> None:
    for _ in range(_THAW_ATTEMPTS - 1):
        try:
            port.thaw()
        except ActuatorError:
            continue
        return
    port.thaw()


class LimitFiles:
    """The ``LimitPort`` of a real cgroup.

    Args:
        files: of the cgroup.
        nonblocking: the kernel is known to honour O_NONBLOCK on memory.max. Without, the write is safe as well, because usage is below.
    """

    def __init__(self, files: CgroupFiles, *, nonblocking: bool) -> None:
        self._files = files
        self._nonblocking = nonblocking

    def usage_bytes(self) -> int:
        """See ``LimitPort``."""
        with _told(self._files):
            return int(self._files.line("memory.current"))

    def max_bytes(self) -> int | None:
        """See ``LimitPort``."""
        with _told(self._files):
            return self._files.limit("memory.max")

    def set_max(self, max_bytes: int | None) -> None:
        """See ``LimitPort``."""
        with _told(self._files):
            self._files.put("memory.max", "max" if max_bytes is None else str(max_bytes), nonblocking=self._nonblocking)

    def freeze(self) -> bool:
        """See ``LimitPort``."""
        with _told(self._files):
            events = self._files.open("cgroup.events", os.O_RDONLY)
            try:
                self._files.put("cgroup.freeze", "1")
                return _wait_frozen(events, FREEZE_TIMEOUT_SECONDS)
            finally:
                os.close(events)

    def thaw(self) -> None:
        """See ``LimitPort``; a cgroup that is gone holds nobody."""
        with contextlib.suppress(Gone):
            self._files.put("cgroup.freeze", "0")


def _wait_frozen(events_fd: int, timeout_seconds: float) -> bool:
    """The kernel notifies of a change of ``cgroup.events`` with POLLPRI, at the first read since the last change too."""
    poller = select.poll()
    poller.register(events_fd, select.POLLPRI)
    until = time.monotonic() + timeout_seconds
    while b"frozen 1" not in os.pread(events_fd, 4096, 0):
        left = until - time.monotonic()
        if left <= 0:
            return False
        poller.poll(1000 * min(left, 0.01))
    return True


@contextlib.contextmanager
def _told(files: CgroupFiles) -> Iterator[None]:
    try:
        yield
    except Gone as error:
        raise ActuatorError(f"cgroup {files.path} is gone", reason=Reason.CONTAINER_GONE) from error
    except (OSError, ValueError) as error:
        raise ActuatorError(f"cgroup {files.path}: {error}", reason=Reason.UNREADABLE) from error
