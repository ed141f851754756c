"""The instants at which a range query is evaluated: the multiples of the step, in slices that a server accepts.

Anchoring the grid at the epoch and not at the window makes two reads that overlap agree on every point they share, whatever their
``as of`` times: what is fetched bit by bit is what is fetched at once. A stretch after the last multiple of the step belongs to
the next point and is left to the next read. All arithmetic is in whole milliseconds, the resolution of Prometheus.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from vpa_ippr.api.errors import UsageError
from vpa_ippr.api.series import Window

# Prometheus refuses more than 11,000 points a series ("exceeded maximum resolution").
MAX_POINTS = 10_000


@dataclass(frozen=True, slots=True)
class Grid:
    """Evaluation times ``first, first + step, ..., last``, in milliseconds since the epoch; empty when ``last < first``."""

    first_ms: int
    last_ms: int
    step_ms: int

    @property
    def points(self) -> int:
        """How many instants there are."""
        return max(0, (self.last_ms - self.first_ms) // self.step_ms + 1)

    @property
    def step_seconds(self) -> float:
        """Seconds from one instant to the next."""
        return self.step_ms / 1000

    def chunks(self, points: int) -> Iterator[Grid]:
        """Consecutive slices of at most so many points."""
        for first in range(self.first_ms, self.last_ms + 1, points * self.step_ms):
            yield Grid(first, min(self.last_ms, first + (points - 1) * self.step_ms), self.step_ms)

    def with_baseline(self) -> Grid:
        """The same grid and the one instant before it, against which the first point is compared."""
        return Grid(self.first_ms - self.step_ms, self.last_ms, self.step_ms)


def check_window(window: Window) -> Window:
    """The window itself, if it can be asked for.

    Raises:
        UsageError: it ends before it starts, or its step is under a millisecond.
    """
    if not window.start < window.end:
        raise UsageError(f"history window ends at {window.end:.0f}, before it starts at {window.start:.0f}")
    if not window.step_seconds >= 0.001:
        raise UsageError(f"history step of {window.step_seconds} s is too short: at least 0.001 s")
    return window


def aligned(window: Window, step_seconds: float) -> Grid:
    """The multiples of the step in ``start < t <= end``."""
    step = round(step_seconds * 1000)
    start, end = round(window.start * 1000), round(window.end * 1000)
    return Grid((start // step + 1) * step, end // step * step, step)


def probes(window: Window, spacing_seconds: float, most: int) -> Grid:
    """A few instants spread over the window and ending with it, for questions that need no full series."""
    length = round((window.end - window.start) * 1000)
    spacing = max(round(spacing_seconds * 1000), length // most)
    end = round(window.end * 1000)
    count = min(most, max(1, length // spacing))
    return Grid(end - (count - 1) * spacing, end, spacing)


def effective_step_seconds(step_seconds: float, scrape_interval_seconds: float) -> float:
    """The step, or its smallest multiple that is not below the scrape interval: points between two scrapes only repeat one."""
    # A scrape interval measured from jittered samples may come out a little long.
    times = -(-(scrape_interval_seconds - 0.05 * step_seconds) // step_seconds)
    return step_seconds * max(1.0, times)


def chunk_points(series: int, max_points: int, max_samples: int) -> int:
    """How many points one query may ask of so many series."""
    return max(1, min(max_points, max_samples // max(1, series)))


# Intervals that people configure, in seconds.
_USUAL_INTERVALS = (1, 2, 5, 10, 15, 20, 30, 60, 120, 180, 300, 600, 900, 1200, 1800)


def scrape_interval_seconds(samples: float, window_seconds: float) -> float:
    """The scrape interval behind ``samples`` samples in a window.

    Depending on the server's version a range of n intervals holds n or n + 1 samples, so the true value lies between two bounds:
    a usual interval between them is taken, else the longer, which only widens the rate's window.
    """
    shortest = window_seconds / samples
    longest = window_seconds / max(1.0, samples - 1)
    return next((float(usual) for usual in _USUAL_INTERVALS if shortest <= usual <= longest), longest)
