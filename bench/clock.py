"""A clock that shows what it is told."""

from __future__ import annotations


class StandingClock:
    """Time stands still between measurements."""

    def __init__(self, now: float) -> None:
        self.moment = now

    def now(self) -> float:
        return self.moment

    def wait_until(self, moment: float) -> bool:
        self.moment = max(self.moment, moment)
        return True

    def stop(self) -> None:
        """Nobody waits."""
