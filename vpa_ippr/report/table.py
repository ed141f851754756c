"""The report for a terminal: fits its width, colours only where a person looks at it, plain text when piped."""

from __future__ import annotations

import io
from collections.abc import Collection

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vpa_ippr.api.series import Finding
from vpa_ippr.api.timestamps import format_time
from vpa_ippr.report.model import Report, Row, Severity
from vpa_ippr.report.units import change_text, cpu_text, memory_text

_STYLES = {
    Severity.CRITICAL: "bold red",
    Severity.WARNING: "yellow",
    Severity.OK: "cyan",
    Severity.GOOD: "green",
    Severity.UNKNOWN: "dim",
}
# Whoever reads a pipe wants each row in one line, however long the names are.
_PIPED_WIDTH = 10_000
# On a narrower terminal the names would be squeezed out: what matters least is left out instead.
_FULL_WIDTH = 120
_LEFT_OUT_WHEN_NARROW = ("CPU LIMIT", "MEMORY LIMIT", "CONFIDENCE")
_NAMES = ("NAMESPACE", "WORKLOAD", "CONTAINER")
_COLUMNS = (*_NAMES, "PODS", "CPU REQUEST", "CPU LIMIT", "MEMORY REQUEST", "MEMORY LIMIT", "CONFIDENCE", "SEVERITY")


def render_table(report: Report, *, width: int | None = None, colour: bool = False) -> str:
    """The table and a few lines below it; ``width`` None means no terminal."""
    out = io.StringIO()
    width = width or _PIPED_WIDTH
    console = Console(
        file=out, width=width, force_terminal=colour, no_color=not colour, color_system="standard" if colour else None,
        highlight=False, legacy_windows=False,
    )  # fmt: skip
    console.print(_table(report, () if width >= _FULL_WIDTH else _LEFT_OUT_WHEN_NARROW))
    for line in _footer(report):
        console.print(Text(line), soft_wrap=True)
    return out.getvalue()


def _table(report: Report, left_out: Collection[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", expand=False)
    shown = [column for column in _COLUMNS if column not in left_out]
    for name in shown:
        if name in _NAMES:
            table.add_column(name, overflow="fold")
        else:
            table.add_column(name, no_wrap=True, justify="right" if name in ("PODS", "CONFIDENCE") else "left")
    for row in report.rows:
        cells = dict(zip(_COLUMNS, _cells(row), strict=True))
        table.add_row(*(cells[name] for name in shown))
    return table


def _cells(row: Row) -> list[Text]:
    """One cell for each of ``_COLUMNS``."""
    advice = row.advice
    requests = row.current.resources.requests if row.current else None
    limits = row.current.resources.limits if row.current else None
    cpu, memory = (requests.cpu_millicores, requests.memory_bytes) if requests else (None, None)
    confidence = "-" if advice.confidence is None else f"{min(advice.confidence, 9.99):.2f}"
    return [
        Text(advice.workload.namespace),
        Text(f"{advice.workload.kind}/{advice.workload.name}"),
        Text(advice.container),
        Text(str(row.current.replicas) if row.current else "-"),
        _step(cpu_text(cpu), cpu_text(advice.target.cpu_millicores), change_text(cpu, advice.target.cpu_millicores)),
        Text(cpu_text(limits.cpu_millicores if limits else None)),
        _step(memory_text(memory), memory_text(advice.target.memory_bytes), change_text(memory, advice.target.memory_bytes)),
        Text(memory_text(limits.memory_bytes if limits else None)),
        Text(confidence),
        Text(row.severity.value, style=_STYLES[row.severity]),
    ]


def _step(current: str, target: str, change: str) -> Text:
    if current == target:
        return Text(target)
    text = Text(f"{current} → {target}")
    return text.append(f" {change}", style="dim") if change else text


def _footer(report: Report) -> list[str]:
    totals = report.totals
    count = "1 container" if totals.containers == 1 else f"{totals.containers} containers"
    lines = [
        "",
        f"{count} at {format_time(report.as_of)} from {report.source}, profile {report.profile}",
    ]
    requested, recommended = totals.requested, totals.recommended
    sums = [
        f"{name} {text(now)} → {text(then)} ({change_text(now, then) or 'no change'})"
        for name, text, now, then in (
            ("CPU", cpu_text, requested.cpu_millicores, recommended.cpu_millicores),
            ("memory", memory_text, requested.memory_bytes, recommended.memory_bytes),
        )
        if now is not None and then is not None
    ]
    if sums:
        lines.append(f"requested → recommended, all pods: {', '.join(sums)}")
    lines += [f"note: {_said(finding)}" for finding in report.findings]
    lines += [f"failed: {_said(failure)}" for failure in report.failures]
    return lines


def _said(finding: Finding) -> str:
    """The message, with the subject before it unless it names that itself."""
    subject = "" if finding.subject in finding.message else f"{finding.subject}: "
    return f"{subject}{finding.message} ({finding.reason})"
