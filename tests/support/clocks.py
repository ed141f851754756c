"""Clocks for tests in which nothing may wait."""

from dataclasses import dataclass


@dataclass(frozen=True)
class FixedClock:
    """Always the same moment."""

    moment: float

    def now(self) -> float:
        return self.moment

    def wait_until(self, moment: float) -> bool:
        raise AssertionError(f"nothing should have to wait (until {moment})")

    def stop(self) -> None:
        pass
