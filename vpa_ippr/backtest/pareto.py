"""What is reserved against what goes wrong, one point a policy: where everything lies in the picture, whatever it is drawn with.

Left is less slack, down is fewer violations (CPU) or OOM kills (memory). The line joins the policies that no other beats in both. Places
are in pixels from the upper left corner of a panel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from vpa_ippr.api.series import Resource
from vpa_ippr.backtest.averages import Average
from vpa_ippr.backtest.comparison import Comparison
from vpa_ippr.backtest.pareto_labels import Label, Place, place_labels

WIDTH: Final = 760
HEIGHT: Final = 420
"""Of one panel."""
LEFT: Final = 64
RIGHT: Final = 150
TOP: Final = 40
BOTTOM: Final = 52
"""Margins around the points."""
_WIDE_RATIO: Final = 3.0
_LABEL_ROOM: Final = 9.0


@dataclass(frozen=True, slots=True)
class Point:
    """One policy."""

    policy: str
    x: Average
    y: Average
    is_baseline: bool


@dataclass(frozen=True, slots=True)
class Axis:
    """Ticks in ascending order, and the scale on which they are drawn.

    A wide range of ratios is told apart by its logarithms, rates that crowd near zero by their roots.
    """

    ticks: tuple[float, ...]
    scale: Callable[[float], float]

    def share(self, value: float) -> float:
        """Where the value lies between the first tick (0) and the last (1); what is outside is drawn at the edge."""
        first, last = self.scale(self.ticks[0]), self.scale(self.ticks[-1])
        return (self.scale(min(max(value, self.ticks[0]), self.ticks[-1])) - first) / (last - first)


@dataclass(frozen=True, slots=True)
class Frame:
    """Where values lie."""

    across: Axis
    up: Axis

    def x(self, value: float) -> float:
        """From the left."""
        return LEFT + self.across.share(value) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        """From the top."""
        return HEIGHT - BOTTOM - self.up.share(value) * (HEIGHT - TOP - BOTTOM)


@dataclass(frozen=True, slots=True)
class Drawn:
    """A point and its label."""

    point: Point
    label: Label


@dataclass(frozen=True, slots=True)
class Panel:
    """The picture of one resource. ``front``: the corners of the line, from left to right."""

    title: str
    x_title: str
    y_title: str
    frame: Frame
    front: tuple[Place, ...]
    points: tuple[Drawn, ...]


def panel_of(comparison: Comparison) -> Panel | None:
    """The panel of one resource; None when no policy has a finite place in it."""
    is_cpu = comparison.resource is Resource.CPU
    metric, what = ("violation_volume", "violation volume, %") if is_cpu else ("ooms_per_day", "OOM kills a container-day")
    points = _points(comparison, metric, 100.0 if is_cpu else 1.0)
    if not points:
        return None
    frame = Frame(_ratio_axis([point.x.value for point in points]), _rate_axis(max(point.y.value for point in points)))
    return Panel(
        title=f"{'CPU' if is_cpu else 'Memory'}, {len(comparison.names)} containers",
        x_title=f"slack volume, {comparison.plan.baseline} = 1",
        y_title=what,
        frame=frame,
        front=tuple(_front(frame, points)),
        points=tuple(_drawn(frame, points)),
    )


def efficient(points: Sequence[tuple[float, float]]) -> list[int]:
    """The indices of the points than which no other is as low in one and lower in the other, from left to right."""
    order = sorted(range(len(points)), key=lambda index: points[index])
    chosen: list[int] = []
    for index in order:
        if not chosen or points[index][1] < points[chosen[-1]][1]:
            chosen.append(index)
    return chosen


def _points(comparison: Comparison, metric: str, factor: float) -> list[Point]:
    found = []
    for outcome in comparison.outcomes:
        x, y = outcome.averages.balanced["slack_ratio"], outcome.averages.balanced[metric]
        if math.isfinite(x.value) and math.isfinite(y.value):
            scaled = Average(y.value * factor, y.low * factor, y.high * factor)
            found.append(Point(outcome.policy, x, scaled, outcome.policy == comparison.plan.baseline))
    return found


def _ratio_axis(values: Sequence[float]) -> Axis:
    """Round numbers around the values, which are above 0."""
    low, high = min(values), max(values)
    if high / low >= _WIDE_RATIO:
        steps = [factor * 10.0**power for power in range(-4, 5) for factor in (1, 2, 5)]
        below = max(step for step in steps if step < low * 0.98 or step == steps[0])
        above = min(step for step in steps if step > high * 1.02 or step == steps[-1])
        return Axis(tuple(step for step in steps if below <= step <= above), math.log)
    step = _round_step(max(high - low, high * 0.1))
    first, last = math.floor(low / step - 0.25), math.ceil(high / step + 0.25)
    return Axis(tuple(index * step for index in range(max(0, first), last + 1)), float)


def _rate_axis(highest: float) -> Axis:
    """Squares of round numbers from 0 to above the highest value."""
    step = _round_step(math.sqrt(max(highest, 1e-6)))
    return Axis(tuple((index * step) ** 2 for index in range(math.ceil(math.sqrt(highest) / step + 0.1) + 1)), math.sqrt)


def _round_step(span: float) -> float:
    """About a fifth of the span."""
    magnitude: float = 10.0 ** math.floor(math.log10(span / 5))
    return next(factor * magnitude for factor in (1.0, 2.0, 2.5, 5.0, 10.0) if factor * magnitude >= span / 5 * (1 - 1e-9))


def _front(frame: Frame, points: Sequence[Point]) -> list[Place]:
    best = [points[index] for index in efficient([(point.x.value, point.y.value) for point in points])]
    corners = [(frame.x(best[0].x.value), frame.y(best[0].y.value))]
    for before, after in pairwise(best):
        x = frame.x(after.x.value)
        corners += [(x, frame.y(before.y.value)), (x, frame.y(after.y.value))]
    return corners


def _drawn(frame: Frame, points: Sequence[Point]) -> Iterator[Drawn]:
    # The baseline last: where others do the same as it, it is the one to be seen.
    ordered = sorted(points, key=lambda point: point.is_baseline)
    places = [((frame.x(point.x.value), frame.y(point.y.value)), point.policy) for point in ordered]
    labels = place_labels(places, WIDTH, TOP - _LABEL_ROOM, HEIGHT - BOTTOM + _LABEL_ROOM)
    yield from (Drawn(point, label) for point, label in zip(ordered, labels, strict=True))
