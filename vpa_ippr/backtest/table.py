"""A comparison for a terminal: one table a resource, balanced over sources, and one by source when there are several."""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vpa_ippr.api.series import Resource
from vpa_ippr.backtest.averages import LEAST_SERIES_OF_SOURCE, Average
from vpa_ippr.backtest.comparison import Comparison
from vpa_ippr.backtest.grid import DAY_SECONDS

_PIPED_WIDTH: Final = 160
# On a narrower terminal there is no room for the intervals.
_FULL_WIDTH: Final = 156


_BOTH: Final = tuple(Resource)


@dataclass(frozen=True, slots=True)
class _Column:
    """``shown_for`` which resources, and for which of them with its interval: there is room for a few."""

    metric: str
    title: str
    text: Callable[[float], str]
    shown_for: tuple[Resource, ...] = _BOTH
    interval_for: tuple[Resource, ...] = ()


_COLUMNS: Final = (
    _Column("relative_slack", "SLACK", "{:.1%}".format),
    _Column("allocation_ratio", "ALLOCATION", "{:.3f}".format, interval_for=_BOTH),
    _Column("slack_ratio", "SLACK\nVOLUME", "{:.3f}".format, interval_for=_BOTH),
    _Column("violation_time", "VIOLATION\nTIME", "{:.2%}".format, interval_for=(Resource.CPU,)),
    _Column("violation_volume", "VIOLATION\nVOLUME", "{:.2%}".format, interval_for=(Resource.CPU,)),
    _Column("ooms_per_day", "OOMS\n/DAY", "{:.4f}".format, (Resource.MEMORY,), (Resource.MEMORY,)),
    _Column("any_oom", "ANY\nOOM", "{:.1%}".format, (Resource.MEMORY,)),
    _Column("resizes_per_day", "RESIZES\n/DAY", "{:.2f}".format),
    _Column("pinball", "PINBALL", "{:.3f}".format),
    _Column("coverage", "COVERAGE", "{:.1%}".format),
)


def render_table(comparisons: Sequence[Comparison], *, width: int | None = None, colour: bool = False) -> str:
    """The tables and a few lines below them; ``width`` None means no terminal."""
    out = io.StringIO()
    width = width or _PIPED_WIDTH
    console = Console(
        file=out, width=width, force_terminal=colour, no_color=not colour, color_system="standard" if colour else None,
        highlight=False, legacy_windows=False,
    )  # fmt: skip
    with_intervals = width >= _FULL_WIDTH
    for comparison in comparisons:
        console.print(Text(_heading(comparison), style="bold"), soft_wrap=True)
        console.print(_balanced(comparison, with_intervals=with_intervals))
        if len(set(comparison.sources)) > 1:
            console.print(_by_source(comparison))
        console.print()
    console.print(Text(_footer(comparisons[0], with_intervals=with_intervals)), soft_wrap=True)
    return out.getvalue()


def _heading(comparison: Comparison) -> str:
    return f"{comparison.resource.value}: {len(comparison.names)} containers, {comparison.container_days:.0f} container-days scored"


def _columns(comparison: Comparison) -> list[_Column]:
    """Without those of which no policy has a number: few of them forecast."""
    known = [outcome.averages.balanced for outcome in comparison.outcomes]
    return [
        column
        for column in _COLUMNS
        if comparison.resource in column.shown_for and any(math.isfinite(averages[column.metric].value) for averages in known)
    ]


def _balanced(comparison: Comparison, *, with_intervals: bool) -> Table:
    columns = _columns(comparison)
    table = _empty(("POLICY",), columns)
    for outcome in comparison.outcomes:
        averages = outcome.averages.balanced
        cells = [
            _cell(column, averages[column.metric], with_interval=with_intervals and comparison.resource in column.interval_for)
            for column in columns
        ]
        table.add_row(Text(outcome.policy, style="bold" if outcome.policy == comparison.plan.baseline else ""), *map(Text, cells))
    return table


def _by_source(comparison: Comparison) -> Table:
    columns, counts = _columns(comparison), Counter(comparison.sources)
    table = _empty(("SOURCE", "CONTAINERS", "POLICY"), columns)
    for source in sorted({source for outcome in comparison.outcomes for source in outcome.averages.by_source}):
        for number, outcome in enumerate(comparison.outcomes):
            labels = (source, str(counts[source])) if number == 0 else ("", "")
            numbers: Mapping[str, float] = outcome.averages.by_source[source]
            table.add_row(*map(Text, labels), Text(outcome.policy), *(Text(_text(column, numbers[column.metric])) for column in columns))
    return table


def _empty(labels: Sequence[str], columns: Sequence[_Column]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", expand=False)
    for label in labels:
        table.add_column(label, overflow="fold", justify="right" if label == "CONTAINERS" else "left", vertical="bottom")
    for column in columns:
        table.add_column(column.title, justify="right", no_wrap=True, vertical="bottom")
    return table


def _cell(column: _Column, average: Average, *, with_interval: bool) -> str:
    text = _text(column, average.value)
    return f"{text} ({_text(column, average.low)} to {_text(column, average.high)})" if with_interval and text != "-" else text


def _text(column: _Column, value: float) -> str:
    return column.text(value) if math.isfinite(value) else "-"


def _footer(comparison: Comparison, *, with_intervals: bool) -> str:
    plan = comparison.plan
    floors = "each policy's own floors" if plan.own_floors else "the same floor for all"
    return (
        f"allocation and slack volume are relative to {plan.baseline}; {floors}; "
        f"{plan.warmup_seconds / DAY_SECONDS:g} days of warm-up not scored; "
        f"averages over series, then over sources of {LEAST_SERIES_OF_SOURCE} or more"
        f"{'; 95 % bootstrap intervals' if with_intervals else ''}"
    )
