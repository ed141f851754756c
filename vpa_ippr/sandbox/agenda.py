"""What the simulated machines have to do, and when: one queue that one thread works off.

Kubelets, controllers and scrapes put actions on it for later; changes of API objects, which come from the API server's threads, put
theirs on it for now. Since one thread carries them all out, the simulation needs no locks of its own and runs in the same order each time.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable

from vpa_ippr.api.clock import Clock

logger = logging.getLogger(__name__)

Action = Callable[[], None]
# How long the loop sleeps when nothing at all is planned; an action put on the agenda wakes it.
IDLE_SECONDS = 3600.0


class Ticket:
    """A planned action, which can still be cancelled."""

    __slots__ = ("action",)

    def __init__(self, action: Action) -> None:
        self.action: Action | None = action

    def cancel(self) -> None:
        """Not to be done any more; harmless when it was done already."""
        self.action = None


class Agenda:
    """A queue of actions by time. ``soon`` may be called from any thread, the others from the thread that runs it.

    Args:
        now: the present time in seconds.
        wake: called when something was planned from outside, with the moment at which the loop must look again.
    """

    def __init__(self, now: Callable[[], float], wake: Callable[[float], None] | None = None) -> None:
        self.now = now
        self._wake = wake
        self._lock = threading.Lock()
        self._heap: list[tuple[float, int, Ticket]] = []
        self._soon: deque[Action] = deque()
        self._order = itertools.count()

    def at(self, moment: float, action: Action) -> Ticket:
        """Do ``action`` at ``moment``, after what was planned earlier for the same moment."""
        ticket = Ticket(action)
        with self._lock:
            heapq.heappush(self._heap, (moment, next(self._order), ticket))
        return ticket

    def after(self, seconds: float, action: Action) -> Ticket:
        """Do ``action`` that much later than now."""
        return self.at(self.now() + seconds, action)

    def soon(self, action: Action) -> None:
        """Do ``action`` at this moment, before anything that is planned, and wake the loop for it."""
        with self._lock:
            self._soon.append(action)
        if self._wake is not None:
            self._wake(self.now())

    def run_until(self, moment: float) -> float:
        """Do all that is due by ``moment``, in order; the moment of the next action, or infinity."""
        while (action := self._next(moment)) is not None:
            try:
                action()
            except Exception:  # one object's failure must not end the others' simulation
                logger.exception("sandbox action failed")
        with self._lock:
            return self._heap[0][0] if self._heap else float("inf")

    def run(self, clock: Clock) -> None:
        """Work off the agenda until the clock is stopped."""
        while True:
            upcoming = self.run_until(clock.now())
            if not clock.wait_until(min(upcoming, clock.now() + IDLE_SECONDS)):
                return

    def _next(self, moment: float) -> Action | None:
        with self._lock:
            if self._soon:
                return self._soon.popleft()
            while self._heap and self._heap[0][0] <= moment:
                action = heapq.heappop(self._heap)[2].action
                if action is not None:
                    return action
        return None
