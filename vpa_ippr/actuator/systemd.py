"""The guard on nodes with the systemd driver: systemd is told of it, so that it does not write it away.

Whenever systemd applies the memory settings of a unit (a resize, a daemon-reload) it writes ``memory.min, low, high, max, swap.max`` and
``oom.group`` together, from its own store. A guard that only the kernel knows is gone then; one that systemd knows is written again. For
the same reason systemd is only told where its MemoryMax is what the kernel has: else a limit that a runtime wrote by file would be undone.

Systemd up to 257 writes and reclaims within PID 1, so a value below usage is never set that way.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from vpa_ippr.actuator.cgroup_files import CgroupFiles
from vpa_ippr.actuator.dbus import Session, SystemBus
from vpa_ippr.actuator.reasons import Reason
from vpa_ippr.api.errors import ActuatorError

_log = logging.getLogger(__name__)

INFINITY = 2**64 - 1
RETRY_SECONDS = 10.0
"""After a failure the bus is let alone for so long: a session that gets no answer keeps the agent from looking for a second."""

_KINDS = (".scope", ".slice", ".service")
_REWRITTEN = (
    "memory.min",
    "memory.low",
    "memory.swap.max",
    "memory.oom.group",
    "memory.zswap.max",
    "memory.zswap.writeback",
)
"""What systemd writes along with memory.high. Runtimes write some by file alone (oom.group always), so they are put back."""


class HighFile(Protocol):
    """The kernel's side of one cgroup: ``cgroupfs.CgroupFs``."""

    files: CgroupFiles

    def put_high(self, high_bytes: int | None) -> None:
        """Write ``memory.high``; None is ``max``."""
        ...

    def usage_bytes(self) -> int:
        """``memory.current``."""
        ...


class Bus(Protocol):
    """Where sessions come from: ``dbus.SystemBus``."""

    def session(self) -> AbstractContextManager[Session]:
        """A connection that is closed at the end."""
        ...


class GuardWriter:
    """Makes a ``UnitGuard`` of each cgroup that is a systemd unit.

    Args:
        bus: the system bus.
        monotonic: a clock for the pause after a failure.
        page_bytes: the kernel rounds limits down to it.
    """

    def __init__(self, bus: Bus | None = None, monotonic: Callable[[], float] = time.monotonic, page_bytes: int = 0) -> None:
        self.bus: Bus = bus or SystemBus()
        self.page_bytes = page_bytes or os.sysconf("SC_PAGE_SIZE")
        self._monotonic = monotonic
        self._not_before = float("-inf")
        self._said = ""

    def unit_at(self, path: tuple[str, ...]) -> UnitGuard | None:
        """For the cgroup at that path below the root; None when it cannot be a unit."""
        unit = unit_of(path[-1]) if path else None
        return UnitGuard(self, unit, "/" + "/".join(path)) if unit is not None else None

    def is_resting(self) -> bool:
        """True for a while after a failure."""
        return self._monotonic() < self._not_before

    def failed(self, unit: str, error: ActuatorError) -> None:
        """Let the bus alone for a while. The same trouble is a warning once: a node without a bus has it at every guard."""
        self._not_before = self._monotonic() + RETRY_SECONDS
        level = logging.DEBUG if str(error) == self._said else logging.WARNING
        self._said = str(error)
        _log.log(level, "systemd cannot be told of a guard", extra={"unit": unit, "error": str(error), "reason": error.reason})


class UnitGuard:
    """The guard of one cgroup that is a systemd unit.

    ``owed_bytes`` is our last guard while systemd holds one that could not be taken back, None otherwise: it would come back at the next
    daemon-reload or resize. Writing the original again tries again.
    """

    def __init__(self, writer: GuardWriter, unit: str, control_group: str) -> None:
        self.owed_bytes: int | None = None
        self._writer = writer
        self._unit = unit
        self._control_group = control_group
        self._original: int | None = None
        """MemoryHigh before us, as systemd says it; None until it was read."""
        self._is_set = False
        """Systemd may hold a value of ours."""
        self._is_left_over = False
        """An agent before us has set it: all that is left to do is to put it back."""
        self._first: tuple[int | None] | None = None
        """memory.high before us."""
        self._last_guard: int | None = None
        self._is_excluded = False

    def write(self, cgroup: HighFile, high_bytes: int | None) -> None:
        """Set memory.high, by systemd where that is right, else by file.

        Raises:
            ActuatorError: the kernel refused, or systemd still holds a guard (the kernel has the original even then).
            Gone: the cgroup is no more.
        """
        if self._first is None:
            self._first = (cgroup.files.limit("memory.high"),)
        if self._is_left_over or high_bytes == self._first[0]:
            self._restore(cgroup, high_bytes)
            return
        self._last_guard = high_bytes
        if not self._is_told(cgroup, high_bytes):
            cgroup.put_high(high_bytes)

    def original_text(self, cgroup: HighFile) -> str | None:
        """MemoryHigh before us: ``max`` or bytes; None when systemd is not to be told of guards here."""
        if self._original is None and not self._is_excluded and not self._writer.is_resting():
            try:
                with self._writer.bus.session() as session:
                    self._examine(session, cgroup)
            except ActuatorError as error:
                self._writer.failed(self._unit, error)
        if self._original is None:
            return None
        return "max" if self._original == INFINITY else str(self._original)

    def take_over(self, original_text: str, guard_bytes: int | None) -> None:
        """An agent before us wrote guards, the last one that, and found the original before its first one."""
        self._original = INFINITY if original_text == "max" else int(original_text)
        self._is_set = self._is_left_over = True
        # Even where the kernel has its original again: systemd may not.
        self._last_guard = self.owed_bytes = guard_bytes

    def _is_told(self, cgroup: HighFile, high_bytes: int | None) -> bool:
        """Whether systemd took the guard over; it must be above usage."""
        if self._is_excluded or self._writer.is_resting():
            return False
        if high_bytes is not None and cgroup.usage_bytes() >= high_bytes:
            return False
        try:
            with self._writer.bus.session() as session:
                if not self._examine(session, cgroup):
                    return False
                self._apply(session, cgroup, {"MemoryHigh": INFINITY if high_bytes is None else high_bytes})
        except ActuatorError as error:
            self._writer.failed(self._unit, error)
            # Asked and not answered, it may have come through.
            self._is_set = self._is_set or (self._original is not None and error.reason == Reason.BUS_UNAVAILABLE)
            self._is_excluded = error.reason == Reason.BUS_REFUSED
            return False
        self._is_set = True
        return cgroup.files.limit("memory.high") == self._floor(high_bytes)

    def _examine(self, session: Session, cgroup: HighFile) -> bool:
        """Whether this is the unit's cgroup and systemd's limit is the kernel's; learns the original on the way."""
        if session.unit_property(self._unit, "ControlGroup") != self._control_group:
            # Of another systemd, say one inside a container, or a name that only looks like a unit's.
            self._is_excluded = True
            return False
        maximum, limit = session.unit_property(self._unit, "MemoryMax"), cgroup.files.limit("memory.max")
        if self._floor(None if maximum == INFINITY else maximum) != limit:
            _log.info("guard by file: systemd's limit is not the kernel's", extra={"unit": self._unit, "systemd": maximum, "kernel": limit})
            return False
        if self._original is None:
            self._original = session.unit_property(self._unit, "MemoryHigh")
        return True

    def _restore(self, cgroup: HighFile, high_bytes: int | None) -> None:
        # The kernel first: raising never blocks, and it is what sets the workload free.
        cgroup.put_high(high_bytes)
        if not self._is_set:
            return
        assert self._original is not None
        if self._writer.is_resting():
            raise self._still_owed(cgroup, ActuatorError("the bus failed a moment ago", reason=Reason.BUS_UNAVAILABLE))
        try:
            with self._writer.bus.session() as session:
                self._take_back(session, cgroup, self._original)
        except ActuatorError as error:
            self._writer.failed(self._unit, error)
            raise self._still_owed(cgroup, error) from error
        self._is_set, self.owed_bytes = False, None
        if cgroup.files.limit("memory.high") != high_bytes:
            cgroup.put_high(high_bytes)

    def _take_back(self, session: Session, cgroup: HighFile, original: int) -> None:
        if session.unit_property(self._unit, "ControlGroup") != self._control_group:
            return  # the unit is no more, and its store with it
        if original != INFINITY and cgroup.usage_bytes() >= original:
            raise ActuatorError("usage is above the original: systemd would reclaim within PID 1", reason=Reason.BUS_UNAVAILABLE)
        values = {"MemoryHigh": original}
        maximum, limit = session.unit_property(self._unit, "MemoryMax"), cgroup.files.limit("memory.max")
        if self._floor(None if maximum == INFINITY else maximum) != limit:
            # Somebody has set the limit by file since: systemd must not undo it, least of all below usage.
            values["MemoryMax"] = INFINITY if limit is None else limit
        self._apply(session, cgroup, values)

    def _still_owed(self, cgroup: HighFile, error: ActuatorError) -> ActuatorError:
        self.owed_bytes = self._last_guard
        message = f"cgroup {cgroup.files.path}: memory.high is restored, but systemd still holds the guard of {self._unit}: {error}"
        return ActuatorError(message, reason=error.reason)

    def _apply(self, session: Session, cgroup: HighFile, values: dict[str, int]) -> None:
        files = cgroup.files
        before = {name: files.optional(name) for name in _REWRITTEN}
        session.set_unit_properties(self._unit, values)
        for name, text in before.items():
            if text is not None and files.optional(name) != text:
                files.put(name, text)

    def _floor(self, limit_bytes: int | None) -> int | None:
        page = self._writer.page_bytes
        return None if limit_bytes is None else limit_bytes // page * page


def unit_of(component: str) -> str | None:
    """The unit whose cgroup has that name. Systemd puts ``_`` before names that the kernel could mistake for a file of its own."""
    name = component.removeprefix("_")
    return name if name.endswith(_KINDS) and not name.startswith(".") else None
