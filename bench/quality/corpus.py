"""Recorded series, read from trace files and brought to cores and bytes."""

from __future__ import annotations

import csv
import glob
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from vpa_ippr.api.errors import UsageError
from vpa_ippr.api.series import Resource, Window
from vpa_ippr.backtest.grid import STEP_SECONDS, Fleet, fleet_of, pooled
from vpa_ippr.metrics.traces import TraceSource

MOST_DAYS: Final = 28.0
LEAST_DAYS: Final = 4.0
HELD_OUT: Final = "holdout_"
_PREFIXES: Final = ("dev_", HELD_OUT)
_INDEX: Final = "index.csv"

Scales = Mapping[tuple[str, Resource], float]
"""What turns a source's values into cores or bytes; 1 for a source that is not there."""


@dataclass(frozen=True, slots=True)
class Recording:
    """One source: all of its series at their full length, by resource; a resource that it has none of is not there."""

    source: str
    fleets: Mapping[Resource, Fleet]


def find_files(directory: Path, held_out: Sequence[str]) -> list[Path]:
    """The trace files below the patterns (relative to the directory), or all of the directory that are not named as held out.

    Raises:
        UsageError: there are none.
    """
    if held_out:
        found = {directory / name for pattern in held_out for name in glob.glob(pattern, root_dir=directory)}  # noqa: PTH207 - may be absolute
    else:
        found = {path for path in directory.glob("*.parquet") if not path.name.startswith(HELD_OUT)}
    if not found:
        raise UsageError(f"no trace file {' or '.join(held_out) or '*.parquet'} in {directory}", reason="NoTraces")
    return sorted(found)


def read_scales(directory: Path) -> dict[tuple[str, Resource], float]:
    """The factors of the directory's index; none without an index.

    Raises:
        UsageError: the index is not as expected.
    """
    path = directory / _INDEX
    if not path.is_file():
        return {}
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return {(row["source"], Resource(row["resource"])): float(row["exp_scale"] or 1) for row in csv.DictReader(file)}
    except (KeyError, ValueError) as error:
        raise UsageError(f"index {path}: needs the columns source, resource (cpu or memory) and exp_scale (a number): {error}") from error


def read_recording(path: Path, scales: Scales) -> Recording:
    """All series of one file; its source is the file's name without ``dev_`` or ``holdout_``."""
    source = path.stem
    for prefix in _PREFIXES:
        source = source.removeprefix(prefix)
    traces = TraceSource([path])
    first, last = traces.span()
    usage = traces.fetch(Window(first - STEP_SECONDS, last, STEP_SECONDS))  # a window is open where it starts
    fleets = {resource: fleet_of(usage, resource, source=source, scale=scales.get((source, resource), 1.0)) for resource in Resource}
    return Recording(source, {resource: fleet for resource, fleet in fleets.items() if len(fleet)})


def judged(recordings: Sequence[Recording], resource: Resource) -> Fleet:
    """The series of one resource that are replayed: the first days of those that are long enough.

    Raises:
        UsageError: there are none.
    """
    parts = [recording.fleets[resource].first_days(MOST_DAYS) for recording in recordings if resource in recording.fleets]
    chosen = [part.chosen(part.observed_days >= LEAST_DAYS) for part in parts]
    kept = [part for part in chosen if len(part)]
    if not kept:
        raise UsageError(f"no {resource} series has {LEAST_DAYS:g} days of samples", reason="TooLittleHistory")
    return pooled(kept)
