"""Pressure triggers: the kernel wakes whoever polls them when a cgroup has stalled too long, between two regular looks.

A trigger is a descriptor of a pressure file into which ``some|full <stall us> <window us>`` was written; it ends with the descriptor.
Windows are multiples of 2 s where possible: other ones need CAP_SYS_RESOURCE.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import os
import select
from collections.abc import Iterable, Mapping
from typing import Self

READY = select.POLLPRI | select.POLLERR
"""The events to register a trigger's descriptor for."""

_SECOND_US = 1_000_000
_WINDOWS_US = (2 * _SECOND_US, 4 * _SECOND_US, _SECOND_US, 10 * _SECOND_US)
"""In the order of trying; stall times are in proportion to the window."""


class Pressure(enum.StrEnum):
    """What a trigger says."""

    MEMORY_SOME = "memory some"
    MEMORY_FULL = "memory full"
    IO_SOME = "io some"
    GONE = "gone"
    """The cgroup was removed."""


_SPECS = (
    (Pressure.MEMORY_SOME, "memory.pressure", "some", 0.1),
    (Pressure.MEMORY_FULL, "memory.pressure", "full", 0.05),
    (Pressure.IO_SOME, "io.pressure", "some", 0.25),
)
"""File, line, and share of the window that must have been stalled: the hard bounds of one window."""


class PressureTriggers:
    """The triggers of one cgroup; owns its descriptors.

    For a caller that holds several: register each of ``filenos()`` with a ``select.poll`` for ``READY`` and hand what it returns to
    ``fired``. An empty one is of use too: it never fires.
    """

    def __init__(self, triggers: Mapping[int, Pressure]) -> None:
        self._triggers = dict(triggers)

    @classmethod
    def open(cls, directory_fd: int) -> Self:
        """The triggers that this kernel and our rights allow, of the cgroup whose directory that is."""
        opened = {fd: pressure for pressure, name, line, share in _SPECS if (fd := _arm(directory_fd, name, line, share)) is not None}
        return cls(opened)

    def __del__(self) -> None:
        self.close()

    def filenos(self) -> tuple[int, ...]:
        """Descriptors to poll; one disappears once it has said that the cgroup is gone."""
        return tuple(self._triggers)

    def fired(self, events: Iterable[tuple[int, int]]) -> set[Pressure]:
        """What the polled events mean; those of other descriptors are passed over.

        A trigger whose cgroup is gone would report so for ever: it is closed.
        """
        found: set[Pressure] = set()
        for fd, event in events:
            pressure = self._triggers.get(fd)
            if pressure is None or not event:
                continue
            if event & (select.POLLERR | select.POLLHUP | select.POLLNVAL):
                found.add(Pressure.GONE)
                self._close(fd)
            else:
                found.add(pressure)
        return found

    def wait(self, timeout_seconds: float) -> set[Pressure]:
        """What fires within so many seconds; empty when nothing does."""
        poll = select.poll()
        for fd in self._triggers:
            poll.register(fd, READY)
        return self.fired(poll.poll(max(0.0, timeout_seconds) * 1000))

    def close(self) -> None:
        """Disarm all."""
        for fd in list(getattr(self, "_triggers", ())):
            self._close(fd)

    def _close(self, fd: int) -> None:
        del self._triggers[fd]
        with contextlib.suppress(OSError):
            os.close(fd)


def _arm(directory_fd: int, name: str, line: str, share: float) -> int | None:
    """A descriptor on which that trigger is set; None where it cannot be."""
    for window in _WINDOWS_US:
        try:
            # One trigger a descriptor: a second write into the same one is EBUSY.
            fd = os.open(name, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory_fd)
        except OSError:
            return None
        try:
            os.write(fd, f"{line} {int(share * window)} {window}\0".encode("ascii"))
        except OSError as error:
            os.close(fd)
            if error.errno in (errno.EINVAL, errno.EPERM):
                continue
            return None
        return fd
    return None
