"""The picture of ``pareto`` as PNG, by matplotlib, which is an optional part of the installation."""

from __future__ import annotations

import io
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from vpa_ippr.api.errors import UsageError
from vpa_ippr.backtest.comparison import Comparison
from vpa_ippr.backtest.pareto import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Drawn, Frame, Panel, panel_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PIXELS_PER_INCH: Final = 100
# Twice the size of the SVG, so that it is sharp on dense screens and in print.
_DOTS_PER_INCH: Final = 200
_POINTS_PER_PIXEL: Final = 72 / _PIXELS_PER_INCH
_GROUND, _INK, _SOFT, _RULE, _OWN, _BASE = "#ffffff", "#1c2128", "#5b6572", "#d9dee4", "#8250df", "#1a7f37"
_FONT: Final = "DejaVu Sans"  # comes with matplotlib, so the picture is the same everywhere


def check_installed() -> None:
    """Find out before the work is done that its picture cannot be drawn.

    Raises:
        UsageError: matplotlib is not installed (reason ``ExtraNotInstalled``).
    """
    if find_spec("matplotlib") is None:
        raise UsageError(
            "a PNG is drawn with matplotlib, which is not installed: pip install 'vpa-ippr[plot]', or name a file that ends in .svg",
            reason="ExtraNotInstalled",
        )


def render_png(comparisons: Sequence[Comparison]) -> bytes:
    """One picture with a panel for each resource, below each other, as ``pareto_svg`` draws it."""
    from matplotlib.figure import Figure

    height = HEIGHT * len(comparisons)
    # No pyplot: it keeps figures and chooses a backend for the whole process; a figure of its own is drawn by Agg.
    figure = Figure((WIDTH / _PIXELS_PER_INCH, height / _PIXELS_PER_INCH), dpi=_DOTS_PER_INCH, facecolor=_GROUND)
    for index, comparison in enumerate(comparisons):
        axes = figure.add_axes((0.0, 1 - (index + 1) / len(comparisons), 1.0, 1 / len(comparisons)))
        axes.set(xlim=(0, WIDTH), ylim=(HEIGHT, 0))
        axes.axis("off")
        _draw(axes, comparison)
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=_DOTS_PER_INCH, facecolor=_GROUND, metadata={"Software": None})
    return out.getvalue()


def _draw(axes: Axes, comparison: Comparison) -> None:
    panel = panel_of(comparison)
    if panel is None:
        _text(axes, LEFT, TOP, f"{comparison.resource.value}: nothing to draw", 11, _SOFT)
        return
    _text(axes, LEFT, 22, panel.title, 15, _INK, weight="bold")
    _ticks(axes, panel.frame)
    _text(axes, (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, panel.x_title, 11, _SOFT, ha="center")
    _text(axes, 16, (TOP + HEIGHT - BOTTOM) / 2, panel.y_title, 11, _SOFT, ha="center", va="center", rotation=90)
    _points(axes, panel)


def _ticks(axes: Axes, frame: Frame) -> None:
    for tick in frame.across.ticks:
        x = frame.x(tick)
        _line(axes, (x, x), (TOP, HEIGHT - BOTTOM), _RULE)
        _text(axes, x, HEIGHT - BOTTOM + 16, f"{tick:.4g}", 11, _SOFT, ha="center")
    for tick in frame.up.ticks:
        y = frame.y(tick)
        _line(axes, (LEFT, WIDTH - RIGHT), (y, y), _RULE)
        _text(axes, LEFT - 6, y + 3.5, f"{tick:.4g}", 11, _SOFT, ha="right")


def _points(axes: Axes, panel: Panel) -> None:
    corners = panel.front
    _line(axes, [x for x, _ in corners], [y for _, y in corners], _SOFT, linestyle=(0, (5, 3)))
    for drawn in panel.points:
        _spread(axes, panel.frame, drawn)
    # All labels last: no line may cross one.
    for drawn in panel.points:
        _label(axes, drawn)


def _spread(axes: Axes, frame: Frame, drawn: Drawn) -> None:
    point, colour = drawn.point, _BASE if drawn.point.is_baseline else _OWN
    x, y = frame.x(point.x.value), frame.y(point.y.value)
    _line(axes, (frame.x(point.x.low), frame.x(point.x.high)), (y, y), colour, alpha=0.45)
    _line(axes, (x, x), (frame.y(point.y.low), frame.y(point.y.high)), colour, alpha=0.45)
    axes.plot([x], [y], marker="o", markersize=10 * _POINTS_PER_PIXEL, color=colour, markeredgewidth=0)


def _label(axes: Axes, drawn: Drawn) -> None:
    from matplotlib.patheffects import withStroke

    label, (x, y) = drawn.label, drawn.label.at
    if label.leader is not None:
        (x1, y1), (x2, y2) = label.leader
        _line(axes, (x1, x2), (y1, y2), _SOFT)
    # A halo, as a label may lie on a line.
    halo = [withStroke(linewidth=3 * _POINTS_PER_PIXEL, foreground=_GROUND)]
    _text(axes, x, y, drawn.point.policy, 13, _INK, ha="right" if label.is_left else "left", path_effects=halo)


def _line(axes: Axes, xs: Sequence[float], ys: Sequence[float], colour: str, **more: Any) -> None:
    axes.plot(list(xs), list(ys), color=colour, linewidth=_POINTS_PER_PIXEL, **more)


def _text(axes: Axes, x: float, y: float, text: str, size: float, colour: str, **more: Any) -> None:
    # A policy's name is no formula.
    axes.text(x, y, text, fontsize=size * _POINTS_PER_PIXEL, fontfamily=_FONT, color=colour, parse_math=False, **{"va": "baseline", **more})
