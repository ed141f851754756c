"""Figures as a table for a person."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bench.figures import Figure

_HEADINGS = ("name", "size", "best of", "wall s", "CPU s", "peak MiB", "added MiB", "unit cost", "target", "note")
_NUMBERS = frozenset({2, 3, 4, 5, 6, 7})
_SCALES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def render(figures: Iterable[Figure]) -> str:
    """The whole table, a line a figure."""
    rows: list[Sequence[str]] = [_HEADINGS, *(_cells(figure) for figure in figures)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    return "\n".join("  ".join(_aligned(row, widths)).rstrip() for row in rows)


def _aligned(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [
        cell.rjust(width) if column in _NUMBERS else cell.ljust(width) for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]


def _cells(figure: Figure) -> tuple[str, ...]:
    run = figure.run
    return (
        figure.name,
        figure.size,
        str(run.runs),
        f"{run.wall_seconds:.3f}",
        f"{run.cpu_seconds:.3f}",
        _mib(run.peak_mib),
        _mib(run.added_mib),
        f"{_duration(figure.unit_seconds)}/{figure.unit}",
        figure.target,
        figure.note,
    )


def _mib(amount: float | None) -> str:
    return "" if amount is None else f"{amount:.0f}"


def _duration(seconds: float) -> str:
    scale, unit = next(((scale, unit) for scale, unit in _SCALES if seconds >= scale), _SCALES[-1])
    return f"{seconds / scale:.3g} {unit}"
