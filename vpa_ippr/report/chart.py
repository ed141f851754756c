"""One line chart as inline SVG: usage as an area, request, limit and recommendation as steps, marks for what happened.

No script and no asset: the picture works from disk, prints, and takes its colours from the page's style sheet through classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup, escape

from vpa_ippr.api.series import Floats

_WIDTH, _HEIGHT = 560, 210
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 10, 16, 26
_MAX_POINTS = 560


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart: its style class and label, times (seconds, shape (n,)) and values (NaN where there is none)."""

    style: str
    label: str
    times: Floats
    values: Floats
    stepped: bool


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened at a moment; ``style`` picks colour and shape, ``text`` shows on hover and in print."""

    at: float
    style: str
    text: str


@dataclass(frozen=True, slots=True)
class Scale:
    """How the values of a chart are divided and printed: round numbers are ``factors`` times a power of ``base``."""

    base: int
    factors: tuple[float, ...]
    text: Callable[[float], str]


def draw_chart(title: str, lines: Sequence[Line], marks: Sequence[Mark], *, start: float, end: float, scale: Scale) -> Markup:
    """The chart as an ``<svg>`` element; labels and mark texts are escaped."""
    highest = max((float(np.nanmax(line.values)) for line in lines if np.isfinite(line.values).any()), default=0.0)
    ticks = _ticks(highest, scale)
    frame = _Frame(start, max(end, start + 1.0), ticks[-1])
    parts = [
        f'<svg class="chart" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">',
        *(_grid_line(frame, tick, scale.text(tick)) for tick in ticks),
        *(_hour_label(frame, moment) for moment in _hours(start, end)),
        *(_path(frame, line) for line in lines),
        *(_mark(frame, mark) for mark in marks if start <= mark.at <= end),
        "</svg>",
    ]
    return Markup("".join(parts))  # noqa: S704 - every text in the parts is escaped where it is put in


@dataclass(frozen=True, slots=True)
class _Frame:
    start: float
    end: float
    top: float

    def x(self, moment: float) -> float:
        return _LEFT + (moment - self.start) / (self.end - self.start) * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return _HEIGHT - _BOTTOM - value / self.top * (_HEIGHT - _TOP - _BOTTOM)


def _ticks(highest: float, scale: Scale) -> list[float]:
    """A handful of round numbers from zero to just above the highest value."""
    if highest <= 0:
        return [0.0, 1.0]
    raw = highest * 1.05 / 4
    magnitude = scale.base ** math.floor(math.log(raw, scale.base))
    step = next(factor * magnitude for factor in (*scale.factors, scale.base) if factor * magnitude >= raw * (1 - 1e-9))
    return [index * step for index in range(math.ceil(highest * 1.02 / step) + 1)]


def _hours(start: float, end: float) -> list[float]:
    span_hours = (end - start) / 3600
    step = next((hours for hours in (1, 3, 6, 12, 24, 48, 168) if span_hours / hours <= 8), 720)
    first = math.ceil(start / 3600 / step) * step
    return [hour * 3600.0 for hour in range(first, math.floor(end / 3600) + 1, step)]


def _grid_line(frame: _Frame, tick: float, label: str) -> str:
    y = frame.y(tick)
    return (
        f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text class="axis" x="{_LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">{escape(label)}</text>'
    )


def _hour_label(frame: _Frame, moment: float) -> str:
    day, hour = divmod(int(moment - frame.start) // 3600, 24)
    text = f"day {day + 1}" if hour == 0 else f"{hour:02d}:00"
    x = frame.x(moment)
    anchor = "middle" if x < _WIDTH - 30 else "end"  # the last label must not leave the picture
    return f'<text class="axis" x="{x:.1f}" y="{_HEIGHT - 8}" text-anchor="{anchor}">{text}</text>'


def _path(frame: _Frame, line: Line) -> str:
    times, values = thin(line.times, line.values) if not line.stepped else (line.times, line.values)
    segments = []
    for first, last in _finite_runs(values):
        points = (
            _steps(times[first:last], values[first:last]) if line.stepped else list(zip(times[first:last], values[first:last], strict=True))
        )
        coordinates = " ".join(f"{frame.x(t):.1f},{frame.y(v):.1f}" for t, v in points)
        segments.append(f"M{coordinates.replace(' ', ' L')}")
    return f'<path class="{escape(line.style)}" d="{" ".join(segments)}"><title>{escape(line.label)}</title></path>' if segments else ""


def _steps(times: Floats, values: Floats) -> list[tuple[float, float]]:
    """Corners of a step line: a value holds until the next one; runs of equal values are left out."""
    points = [(float(times[0]), float(values[0]))]
    for moment, value in zip(times[1:], values[1:], strict=True):
        if value != points[-1][1]:
            points += [(float(moment), points[-1][1]), (float(moment), float(value))]
    points.append((float(times[-1]), points[-1][1]))
    return points


def _finite_runs(values: Floats) -> list[tuple[int, int]]:
    """Index ranges [first, last) without NaN; a gap in the data is a gap in the line."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], np.isfinite(values), [False])).astype(np.int8)))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def thin(times: Floats, values: Floats) -> tuple[Floats, Floats]:
    """At most a point a pixel, keeping the highest value of each stretch so that no peak is lost."""
    if len(times) <= _MAX_POINTS:
        return times, values
    size = math.ceil(len(times) / _MAX_POINTS)
    whole = len(times) // size * size
    blocks = np.where(np.isfinite(values[:whole]), values[:whole], -np.inf).reshape(-1, size)
    best = blocks.argmax(axis=1) + np.arange(len(blocks)) * size
    tail = np.arange(whole, len(times))
    chosen = np.concatenate((best, tail))
    return times[chosen], values[chosen]


def _mark(frame: _Frame, mark: Mark) -> str:
    x, style = frame.x(mark.at), escape(mark.style)
    return (
        f'<g class="mark {style}"><line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>'
        f'<circle cx="{x:.1f}" cy="{_TOP - 6}" r="4.5"/><title>{escape(mark.text)}</title></g>'
    )
