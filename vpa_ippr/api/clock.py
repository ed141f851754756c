"""Time as a parameter: nothing in the rooms reads a clock or sleeps by itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """A source of time that can be waited on."""

    def now(self) -> float:
        """Seconds since the Unix epoch."""
        ...

    def wait_until(self, moment: float) -> bool:
        """Return at ``moment`` (or at once if it has passed); False when stopped first."""
        ...

    def stop(self) -> None:
        """Wake every waiter; all later waits return False."""
        ...


class SystemClock:
    """The machine's own clock."""

    def __init__(self) -> None:
        self._stopped = threading.Event()

    def now(self) -> float:
        """Seconds since the Unix epoch."""
        return time.time()

    def wait_until(self, moment: float) -> bool:
        """Sleep until ``moment``; False when ``stop`` was called first."""
        return not self._stopped.wait(max(0.0, moment - time.time()))

    def stop(self) -> None:
        """Wake every waiter."""
        self._stopped.set()


_LONGEST_WAIT_SECONDS = 60.0


class BootClock:
    """Wall time as it was at the start, carried on by CLOCK_BOOTTIME.

    Counts through a suspend and never jumps when NTP or a person sets the wall clock, so that durations and deadlines hold. It keeps the
    error that the wall clock had at the start: ``resync`` where nothing depends on durations.

    Args:
        wall: seconds since the Unix epoch.
        boottime: seconds since the boot, suspended ones included.
    """

    def __init__(self, wall: Callable[[], float] = time.time, boottime: Callable[[], float] | None = None) -> None:
        self._wall = wall
        self._boottime = boottime or boottime_seconds
        self._stopped = threading.Event()
        self._offset = wall() - self._boottime()

    def now(self) -> float:
        """Seconds since the Unix epoch."""
        return self._boottime() + self._offset

    def resync(self) -> None:
        """Follow the wall clock again: the next ``now`` may lie before the last."""
        self._offset = self._wall() - self._boottime()

    def wait_until(self, moment: float) -> bool:
        """Sleep until ``moment``; False when ``stop`` was called first."""
        while not self._stopped.wait(max(0.0, min(moment - self.now(), _LONGEST_WAIT_SECONDS))):
            # An event waits on CLOCK_MONOTONIC, which stands still in a suspend.
            if self.now() >= moment:
                return True
        return False

    def stop(self) -> None:
        """Wake every waiter."""
        self._stopped.set()


def boottime_seconds() -> float:
    """Seconds since this machine's boot, suspended ones included; where there is no such clock (only Linux has it), without them."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
