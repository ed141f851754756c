"""Time as a parameter: nothing in the rooms reads a clock or sleeps by itself."""

from __future__ import annotations

import threading
import time
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
