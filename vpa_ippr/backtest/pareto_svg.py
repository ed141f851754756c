"""The picture of ``pareto`` as inline SVG or as a page: no script, no asset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from markupsafe import escape

from vpa_ippr.backtest.comparison import Comparison
from vpa_ippr.backtest.pareto import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Drawn, Frame, panel_of
from vpa_ippr.backtest.pareto_labels import Place

_STYLE: Final = """
.pareto { --ground:#fff; --ink:#1c2128; --soft:#5b6572; --rule:#d9dee4; --own:#8250df; --base:#1a7f37; font:13px system-ui, sans-serif }
@media (prefers-color-scheme: dark) {
  .pareto { --ground:#14181d; --ink:#e3e8ee; --soft:#98a4b2; --rule:#323b45; --own:#b794f6; --base:#57c274 }
}
.pareto .ground { fill:var(--ground) } .pareto .grid { stroke:var(--rule) } .pareto .axis { fill:var(--soft); font-size:11px }
.pareto .label { fill:var(--ink); paint-order:stroke; stroke:var(--ground); stroke-width:3px }
.pareto .title { fill:var(--ink); font-size:15px; font-weight:600 }
.pareto .front { fill:none; stroke:var(--soft); stroke-dasharray:5 3 } .pareto .leader { stroke:var(--soft) }
.pareto .spread { stroke:var(--own); opacity:.45 }
.pareto .point { fill:var(--own) } .pareto .baseline .point { fill:var(--base) } .pareto .baseline .spread { stroke:var(--base) }
"""


def render_svg(comparisons: Sequence[Comparison]) -> str:
    """One picture with a panel for each resource, below each other."""
    height = HEIGHT * len(comparisons)
    panels = "".join(f'<g transform="translate(0 {index * HEIGHT})">{_panel(one)}</g>' for index, one in enumerate(comparisons))
    return (
        f'<svg class="pareto" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="Slack against violations of {len(comparisons[0].outcomes)} policies"><style>{_STYLE}</style>'
        f'<rect class="ground" width="{WIDTH}" height="{height}"/>{panels}</svg>\n'
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


def _panel(comparison: Comparison) -> str:
    panel = panel_of(comparison)
    if panel is None:
        return f'<text class="axis" x="{LEFT}" y="{TOP}">{comparison.resource.value}: nothing to draw</text>'
    frame = panel.frame
    return "".join(
        (
            f'<text class="title" x="{LEFT}" y="22">{escape(panel.title)}</text>',
            *(_x_tick(frame, tick) for tick in frame.across.ticks),
            *(_y_tick(frame, tick) for tick in frame.up.ticks),
            _axis_title(f"translate({(LEFT + WIDTH - RIGHT) / 2} {HEIGHT - 12})", panel.x_title),
            _axis_title(f"translate(16 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)", panel.y_title),
            _front(panel.front),
            *(_drawn(frame, drawn) for drawn in panel.points),
            *(_label(drawn) for drawn in panel.points),
        )
    )


def _axis_title(transform: str, text: str) -> str:
    return f'<text class="axis" transform="{transform}" text-anchor="middle">{escape(text)}</text>'


def _x_tick(frame: Frame, tick: float) -> str:
    x = frame.x(tick)
    return (
        f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        f'<text class="axis" x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{tick:.4g}</text>'
    )


def _y_tick(frame: Frame, tick: float) -> str:
    y = frame.y(tick)
    return (
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text class="axis" x="{LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">{tick:.4g}</text>'
    )


def _front(corners: Sequence[Place]) -> str:
    path = " L".join(f"{x:.1f} {y:.1f}" for x, y in corners)
    return f'<path class="front" d="M{path}"/>'


def _drawn(frame: Frame, drawn: Drawn) -> str:
    point = drawn.point
    x, y = frame.x(point.x.value), frame.y(point.y.value)
    title = f"{point.policy}: slack volume {point.x.value:.3f} ({point.x.low:.3f} to {point.x.high:.3f}), {point.y.value:.3g}"
    return (
        f'<g class="{"baseline" if point.is_baseline else "policy"}"><title>{escape(title)}</title>'
        f'<line class="spread" x1="{frame.x(point.x.low):.1f}" x2="{frame.x(point.x.high):.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<line class="spread" x1="{x:.1f}" x2="{x:.1f}" y1="{frame.y(point.y.low):.1f}" y2="{frame.y(point.y.high):.1f}"/>'
        f'<circle class="point" cx="{x:.1f}" cy="{y:.1f}" r="5"/></g>'
    )


def _label(drawn: Drawn) -> str:
    label, (x, y) = drawn.label, drawn.label.at
    anchor = ' text-anchor="end"' if label.is_left else ""
    text = f'<text class="label" x="{x:.1f}" y="{y:.1f}"{anchor}>{escape(drawn.point.policy)}</text>'
    if label.leader is None:
        return text
    (x1, y1), (x2, y2) = label.leader
    return f'<line class="leader" x1="{x1:.1f}" x2="{x2:.1f}" y1="{y1:.1f}" y2="{y2:.1f}"/>{text}'
