"""What is reserved against what goes wrong, one point a policy, as inline SVG or a page: no script, no asset.

Left is less slack, down is fewer violations (CPU) or OOM kills (memory). The line joins the policies that no other beats in both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from markupsafe import escape

from vpa_ippr.api.series import Resource
from vpa_ippr.backtest.averages import Average
from vpa_ippr.backtest.comparison import Comparison

_WIDTH, _HEIGHT = 760, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 150, 40, 52
_LABEL_HEIGHT: Final = 14.0
_CHARACTER_WIDTH: Final = 8.0
_WIDE_RATIO: Final = 3.0
_STYLE: Final = """
.pareto { --ground:#fff; --ink:#1c2128; --soft:#5b6572; --rule:#d9dee4; --own:#8250df; --base:#1a7f37; font:13px system-ui, sans-serif }
@media (prefers-color-scheme: dark) {
  .pareto { --ground:#14181d; --ink:#e3e8ee; --soft:#98a4b2; --rule:#323b45; --own:#b794f6; --base:#57c274 }
}
.pareto .ground { fill:var(--ground) } .pareto .grid { stroke:var(--rule) } .pareto .axis { fill:var(--soft); font-size:11px }
.pareto .label { fill:var(--ink); paint-order:stroke; stroke:var(--ground); stroke-width:3px }
.pareto .title { fill:var(--ink); font-size:15px; font-weight:600 }
.pareto .front { fill:none; stroke:var(--soft); stroke-dasharray:5 3 } .pareto .spread { stroke:var(--own); opacity:.45 }
.pareto .point { fill:var(--own) } .pareto .baseline .point { fill:var(--base) } .pareto .baseline .spread { stroke:var(--base) }
"""


@dataclass(frozen=True, slots=True)
class _Point:
    policy: str
    x: Average
    y: Average
    is_baseline: bool


@dataclass(frozen=True, slots=True)
class _Axis:
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
class _Frame:
    across: _Axis
    up: _Axis

    def x(self, value: float) -> float:
        return _LEFT + self.across.share(value) * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return _HEIGHT - _BOTTOM - self.up.share(value) * (_HEIGHT - _TOP - _BOTTOM)


def render_svg(comparisons: Sequence[Comparison]) -> str:
    """One picture with a panel for each resource, below each other."""
    height = _HEIGHT * len(comparisons)
    panels = "".join(f'<g transform="translate(0 {index * _HEIGHT})">{_panel(one)}</g>' for index, one in enumerate(comparisons))
    return (
        f'<svg class="pareto" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        f'role="img" aria-label="Slack against violations of {len(comparisons[0].outcomes)} policies"><style>{_STYLE}</style>'
        f'<rect class="ground" width="{_WIDTH}" height="{height}"/>{panels}</svg>\n'
    )


def render_page(comparisons: Sequence[Comparison], table: str) -> str:
    """A self-contained HTML page: the picture, and the table as text."""
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">'
        "<title>vpa-ippr backtest</title><style>:root { color-scheme: light dark } "
        "body { margin:24px auto; max-width:1240px; padding:0 20px; font:15px/1.5 system-ui, sans-serif } "
        "svg { max-width:100%; height:auto } pre { overflow-x:auto; font-size:12px }</style></head><body>"
        f"<h1>Backtest</h1>{render_svg(comparisons)}<pre>{escape(table)}</pre></body></html>\n"
    )


def efficient(points: Sequence[tuple[float, float]]) -> list[int]:
    """The indices of the points than which no other is as low in one and lower in the other, from left to right."""
    order = sorted(range(len(points)), key=lambda index: points[index])
    chosen: list[int] = []
    for index in order:
        if not chosen or points[index][1] < points[chosen[-1]][1]:
            chosen.append(index)
    return chosen


def _panel(comparison: Comparison) -> str:
    is_cpu = comparison.resource is Resource.CPU
    metric, what = ("violation_volume", "violation volume, %") if is_cpu else ("ooms_per_day", "OOM kills a container-day")
    factor = 100.0 if is_cpu else 1.0
    points = _points(comparison, metric, factor)
    if not points:
        return f'<text class="axis" x="{_LEFT}" y="{_TOP}">{comparison.resource.value}: nothing to draw</text>'
    frame = _Frame(_ratio_axis([point.x.value for point in points]), _rate_axis(max(point.y.value for point in points)))
    return "".join(
        (
            f'<text class="title" x="{_LEFT}" y="22">{"CPU" if is_cpu else "Memory"}, {len(comparison.names)} containers</text>',
            *(_x_tick(frame, tick) for tick in frame.across.ticks),
            *(_y_tick(frame, tick) for tick in frame.up.ticks),
            _axis_title(f"translate({(_LEFT + _WIDTH - _RIGHT) / 2} {_HEIGHT - 12})", f"slack volume, {comparison.plan.baseline} = 1"),
            _axis_title(f"translate(16 {(_TOP + _HEIGHT - _BOTTOM) / 2}) rotate(-90)", what),
            _front(frame, points),
            *(_drawn(frame, point, label_y) for point, label_y in _labelled(frame, points)),
        )
    )


def _axis_title(transform: str, text: str) -> str:
    return f'<text class="axis" transform="{transform}" text-anchor="middle">{escape(text)}</text>'


def _points(comparison: Comparison, metric: str, factor: float) -> list[_Point]:
    found = []
    for outcome in comparison.outcomes:
        x, y = outcome.averages.balanced["slack_ratio"], outcome.averages.balanced[metric]
        if math.isfinite(x.value) and math.isfinite(y.value):
            scaled = Average(y.value * factor, y.low * factor, y.high * factor)
            found.append(_Point(outcome.policy, x, scaled, outcome.policy == comparison.plan.baseline))
    return found


def _ratio_axis(values: Sequence[float]) -> _Axis:
    """Round numbers around the values, which are above 0."""
    low, high = min(values), max(values)
    if high / low >= _WIDE_RATIO:
        steps = [factor * 10.0**power for power in range(-4, 5) for factor in (1, 2, 5)]
        below = max(step for step in steps if step < low * 0.98 or step == steps[0])
        above = min(step for step in steps if step > high * 1.02 or step == steps[-1])
        return _Axis(tuple(step for step in steps if below <= step <= above), math.log)
    step = _round_step(max(high - low, high * 0.1))
    first, last = math.floor(low / step - 0.25), math.ceil(high / step + 0.25)
    return _Axis(tuple(index * step for index in range(max(0, first), last + 1)), float)


def _rate_axis(highest: float) -> _Axis:
    """Squares of round numbers from 0 to above the highest value."""
    step = _round_step(math.sqrt(max(highest, 1e-6)))
    return _Axis(tuple((index * step) ** 2 for index in range(math.ceil(math.sqrt(highest) / step + 0.1) + 1)), math.sqrt)


def _round_step(span: float) -> float:
    """About a fifth of the span."""
    magnitude: float = 10.0 ** math.floor(math.log10(span / 5))
    return next(factor * magnitude for factor in (1.0, 2.0, 2.5, 5.0, 10.0) if factor * magnitude >= span / 5 * (1 - 1e-9))


def _x_tick(frame: _Frame, tick: float) -> str:
    x = frame.x(tick)
    return (
        f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>'
        f'<text class="axis" x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">{tick:.4g}</text>'
    )


def _y_tick(frame: _Frame, tick: float) -> str:
    y = frame.y(tick)
    return (
        f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text class="axis" x="{_LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">{tick:.4g}</text>'
    )


def _front(frame: _Frame, points: Sequence[_Point]) -> str:
    best = [points[index] for index in efficient([(point.x.value, point.y.value) for point in points])]
    path = f"M{frame.x(best[0].x.value):.1f} {frame.y(best[0].y.value):.1f}"
    for _, point in pairwise(best):
        path += f" H{frame.x(point.x.value):.1f} V{frame.y(point.y.value):.1f}"
    return f'<path class="front" d="{path}"/>'


def _labelled(frame: _Frame, points: Sequence[_Point]) -> list[tuple[_Point, float]]:
    """The points from the bottom up, each with a height for its label such that none lies on another."""
    placed: list[tuple[_Point, float]] = []
    for point in sorted(points, key=lambda one: (-frame.y(one.y.value), one.policy)):
        height = frame.y(point.y.value) + 4
        while any(_overlap(frame, point, height, other, other_height) for other, other_height in placed):
            height -= _LABEL_HEIGHT / 2
        placed.append((point, height))
    return placed


def _overlap(frame: _Frame, one: _Point, height: float, other: _Point, other_height: float) -> bool:
    left, right = sorted((one, other), key=lambda point: frame.x(point.x.value))
    is_beside = frame.x(left.x.value) + len(left.policy) * _CHARACTER_WIDTH < frame.x(right.x.value)
    return not is_beside and abs(height - other_height) < _LABEL_HEIGHT


def _drawn(frame: _Frame, point: _Point, label_y: float) -> str:
    x, y = frame.x(point.x.value), frame.y(point.y.value)
    title = f"{point.policy}: slack volume {point.x.value:.3f} ({point.x.low:.3f} to {point.x.high:.3f}), {point.y.value:.3g}"
    return (
        f'<g class="{"baseline" if point.is_baseline else "policy"}"><title>{escape(title)}</title>'
        f'<line class="spread" x1="{frame.x(point.x.low):.1f}" x2="{frame.x(point.x.high):.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<line class="spread" x1="{x:.1f}" x2="{x:.1f}" y1="{frame.y(point.y.low):.1f}" y2="{frame.y(point.y.high):.1f}"/>'
        f'<circle class="point" cx="{x:.1f}" cy="{y:.1f}" r="5"/>'
        f'<text class="label" x="{x + 9:.1f}" y="{label_y:.1f}">{escape(point.policy)}</text></g>'
    )
