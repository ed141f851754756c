"""Virtual time that all parts of the sandbox share, in lock-step.

Every part that acts on its own (the kubelets' loop, a recommender, an agent) is a *participant*. While any of them works, time stands
still; when all of them wait, it jumps to the earliest moment that one of them waits for, and that one alone goes on. So two days pass as
fast as the parts can compute them, a slow part never misses anything, and a run gives the same result each time: of several that are due
at one moment the first by name goes first, and the next only when it waits again.

With a ``rate`` the jump is held back until the wall clock has got there: 1.0 is the wall's own speed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from vpa_ippr.api.errors import UsageError


class TimeKeeper:
    """Lets time advance when every participant waits. All methods may be called from any thread.

    Args:
        start: the first moment, in seconds since the Unix epoch.
        rate: simulated seconds for each second of the wall clock; None for as fast as possible.
        wall: a clock that only ever goes forward, for ``rate``.
    """

    def __init__(self, start: float, *, rate: float | None = None, wall: Callable[[], float] = time.monotonic) -> None:
        if rate is not None and rate <= 0:
            raise UsageError(f"rate {rate} is not above 0: give simulated seconds for each second, or none for full speed")
        self._start = start
        self._now = start
        self._rate = rate
        self._wall = wall
        self._wall_start = wall()
        self._lock = threading.RLock()
        self._changed: dict[str, threading.Condition] = {}
        self._waiting: dict[str, float] = {}
        self._wakes: dict[str, float] = {}
        self._stopped = False

    def now(self) -> float:
        """Seconds since the epoch; with a ``rate`` it flows while all wait."""
        with self._lock:
            if self._rate is None or not self._all_wait():
                return self._now
            return max(self._now, min(self._pace(), *self._waiting.values()))

    def register(self, name: str) -> None:
        """Add a participant, which counts as working until it waits.

        Raises:
            UsageError: there is one of that name; ``drop`` it first.
        """
        with self._lock:
            if name in self._changed:
                raise UsageError(f"participant {name!r} is registered already: drop it first")
            self._changed[name] = threading.Condition(self._lock)

    def drop(self, name: str) -> None:
        """Forget a participant, whatever it does; a wait of its own ends with False. Unknown names are left alone."""
        with self._lock:
            changed = self._changed.pop(name, None)
            self._waiting.pop(name, None)
            self._wakes.pop(name, None)
            if changed is not None:
                changed.notify_all()
            self._advance()

    def wait_until(self, name: str, moment: float) -> bool:
        """Return when time is ``moment`` and it is this participant's turn; False when it was dropped or all was stopped.

        Raises:
            UsageError: nobody of that name is registered.
        """
        with self._lock:
            if self._stopped:
                return False
            changed = self._changed.get(name)
            if changed is None:
                raise UsageError(f"nobody named {name!r} is registered with the sandbox's time")
            self._waiting[name] = min(moment, self._wakes.pop(name, moment))
            self._advance()
            while name in self._waiting and not self._stopped:
                changed.wait(self._seconds_to_sleep())
                self._advance()
            self._waiting.pop(name, None)
            return not self._stopped and self._changed.get(name) is changed

    def wake(self, name: str, moment: float) -> None:
        """Let ``name`` return no later than ``moment`` from its present wait, or from its next one when it works just now."""
        with self._lock:
            if name in self._waiting:
                self._waiting[name] = min(self._waiting[name], max(self.now(), moment))
                self._advance()
            elif name in self._changed:
                self._wakes[name] = min(self._wakes.get(name, moment), moment)

    def handle_wait(self, name: str, moment: float) -> float:
        """``wait_until`` for a participant in another process: blocks, and answers what time it is; before ``moment`` means stopped."""
        self.wait_until(name, moment)
        return self.now()

    def local_clock(self, name: str) -> LocalClock:
        """The ``Clock`` of a registered participant of this process."""
        return LocalClock(self, name)

    def set_rate(self, rate: float | None) -> None:
        """Go on at another rate from here."""
        with self._lock:
            self._start, self._wall_start, self._rate = self._now, self._wall(), rate
            for changed in self._changed.values():
                changed.notify_all()

    def stop(self) -> None:
        """End all waits, now and later, with False."""
        with self._lock:
            self._stopped = True
            for changed in self._changed.values():
                changed.notify_all()

    def _all_wait(self) -> bool:
        return bool(self._waiting) and len(self._waiting) == len(self._changed)

    def _pace(self) -> float:
        assert self._rate is not None
        return self._start + (self._wall() - self._wall_start) * self._rate

    def _seconds_to_sleep(self) -> float | None:
        """Seconds of the wall clock until the earliest waiter is due; None to sleep until told."""
        if self._rate is None or not self._all_wait():
            return None
        return max(0.0, (min(self._waiting.values()) - self._pace()) / self._rate)

    def _advance(self) -> None:
        """If nobody works, release the one that is due first; with a rate, only once the wall clock is there."""
        if not self._all_wait():
            return
        moment, name = min((moment, name) for name, moment in self._waiting.items())
        if self._rate is None or moment <= max(self._now, self._pace()):
            self._now = max(self._now, moment)
            del self._waiting[name]
        self._changed[name].notify_all()


class LocalClock:
    """One participant's view of the keeper: a ``vpa_ippr.api.clock.Clock``."""

    def __init__(self, keeper: TimeKeeper, name: str) -> None:
        self._keeper = keeper
        self._name = name
        self._stopped = False

    def now(self) -> float:
        """Seconds since the epoch."""
        return self._keeper.now()

    def wait_until(self, moment: float) -> bool:
        """Wait in lock-step with the others; False once stopped."""
        return not self._stopped and self._keeper.wait_until(self._name, moment)

    def stop(self) -> None:
        """Leave the others: time no longer waits for this participant."""
        self._stopped = True
        self._keeper.drop(self._name)
