"""Reading a Parquet trace file of a month."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow
from pyarrow import parquet

from bench.figures import MIB, Figure, best_of
from bench.objects import DAY_SECONDS, NOW
from bench.usages import Curves, grid
from vpa_ippr.api.series import ContainerRef, Usage, UsageSeries, Window
from vpa_ippr.metrics.traces import TraceSource

_SERIES = 500
_DAYS = 30
_STEP_SECONDS = 300.0


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "month.parquet")
        rows = _write(path)
        window = Window(NOW - _DAYS * DAY_SECONDS, NOW, _STEP_SECONDS)
        run = best_of(3, lambda: TraceSource([path]), lambda source: _fetch(source, window))
        size = f"{_SERIES} series x {_DAYS} d x 5 min, {path.stat().st_size / MIB:.0f} MiB"
    return [Figure(name="traces.parquet", size=size, run=run, units=rows, unit="row", note=f"{rows / 1e6:.2f} M rows")]


def _fetch(source: TraceSource, window: Window) -> Usage:
    usage = source.fetch(window)
    assert len(usage.series) == _SERIES
    return usage


def _write(path: Path) -> int:
    times = grid(NOW, _DAYS * DAY_SECONDS, _STEP_SECONDS)
    curves = Curves(times)
    pairs = [curves.series(ContainerRef("default", f"c{number}", f"c{number}"), number) for number in range(_SERIES // 2)]
    series = [one for pair in pairs for one in pair]
    columns = {
        "series_id": _names([f"made/{one.container.container}/{one.resource}" for one in series], times.size),
        "container": _names([one.container.container for one in series], times.size),
        "resource": _names([str(one.resource) for one in series], times.size),
        "timestamp": pyarrow.array(np.concatenate([one.timestamps for one in series]).astype(np.int64)),
        "value": pyarrow.array(np.concatenate([one.values for one in series])),
    }
    parquet.write_table(pyarrow.table(columns), path)
    return _rows(series)


def _names(texts: list[str], repeats: int) -> pyarrow.Array:
    distinct = {text: code for code, text in enumerate(dict.fromkeys(texts))}
    codes = np.repeat(np.array([distinct[text] for text in texts], np.int32), repeats)
    return pyarrow.DictionaryArray.from_arrays(pyarrow.array(codes), pyarrow.array(list(distinct)))


def _rows(series: list[UsageSeries]) -> int:
    return sum(one.values.size for one in series)
