"""One trace file, Parquet or CSV, as columns: names as codes into a short list, times and values as arrays.

A row is one sample: ``series_id``, ``container``, ``resource`` (``cpu``: cores, ``memory``: bytes, ``oom``: a kill, its value the
memory request in bytes at that moment), ``timestamp`` (seconds since the epoch), ``value``; optional are ``namespace``,
``workload_kind``, ``workload`` and ``pod``. Further columns are ignored. pyarrow is imported when a file is read, not before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vpa_ippr.api.errors import UsageError

if TYPE_CHECKING:
    import pyarrow

REQUIRED_NAMES = ("series_id", "container", "resource")
OPTIONAL_NAMES = ("namespace", "workload_kind", "workload", "pod")
NUMBERS = ("timestamp", "value")
# The year 5138; as milliseconds it would be March 1973.
_LATEST_SECONDS = 1e11
REQUIRED = (*REQUIRED_NAMES, *NUMBERS)

_PARQUET_MAGIC = b"PAR1"


@dataclass(frozen=True, slots=True)
class Names:
    """A column of texts: row ``i`` holds ``texts[codes[i]]``, and the last text, which is empty, stands for null."""

    codes: NDArray[np.integer[Any]]
    texts: Sequence[str]


@dataclass(frozen=True, slots=True)
class TraceTable:
    """The rows of a file. Null numbers are NaN."""

    names: Mapping[str, Names]
    timestamps: NDArray[Any]
    values: NDArray[Any]

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return int(self.timestamps.size)


def read_trace(path: Path) -> TraceTable:
    """All rows of a trace file.

    Raises:
        UsageError: the file cannot be read, lacks a column, or holds something that is not a number where one is due.
    """
    table = _read(path, (*REQUIRED, *OPTIONAL_NAMES))
    names = {name: _names(table[name]) for name in (*REQUIRED_NAMES, *OPTIONAL_NAMES) if name in table.column_names}
    timestamps, values = (_numbers(path, name, table[name]) for name in NUMBERS)
    return TraceTable(names, _seconds(path, timestamps), values)


def read_namespaces(path: Path) -> tuple[str, ...] | None:
    """The distinct texts of the namespace column, or None when the file has none; raises UsageError as ``read_trace``."""
    table = _read(path, ("namespace",))
    if "namespace" not in table.column_names:
        return None
    names = _names(table["namespace"])
    return tuple(names.texts[code] for code in np.unique(names.codes))


def read_timestamps(path: Path) -> NDArray[Any]:
    """The timestamp column; raises UsageError as ``read_trace``."""
    return _seconds(path, _numbers(path, "timestamp", _read(path, ("timestamp",))["timestamp"]))


def _seconds(path: Path, timestamps: NDArray[Any]) -> NDArray[Any]:
    """The timestamps, if they can be seconds; many tools export milliseconds."""
    if timestamps.size and float(timestamps.max()) > _LATEST_SECONDS:
        raise UsageError(f"trace file {path}: timestamps must be seconds since 1970; these look like milliseconds", reason="TraceBadValue")
    return timestamps


def _read(path: Path, wanted: Sequence[str]) -> pyarrow.Table:
    """Those of the wanted columns that the file has; every file must have the required ones."""
    import pyarrow  # here and below: 0.3 s that only a command with trace files should pay

    try:
        with path.open("rb") as file:
            is_parquet = file.read(len(_PARQUET_MAGIC)) == _PARQUET_MAGIC
        return _read_parquet(path, wanted) if is_parquet else _read_csv(path, wanted)
    except OSError as error:
        raise UsageError(f"trace file {path}: {error.strerror or _first_line(error)}", reason="TraceUnreadable") from error
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
        kind = "Parquet" if is_parquet else "CSV"
        raise UsageError(f"trace file {path}: cannot be read as {kind}: {_first_line(error)}", reason="TraceUnreadable") from error


def _read_parquet(path: Path, wanted: Sequence[str]) -> pyarrow.Table:
    from pyarrow import parquet

    columns = _present(path, parquet.read_schema(path).names, wanted)
    dictionaries = [name for name in columns if name not in NUMBERS]
    with parquet.ParquetFile(path, read_dictionary=dictionaries) as file:
        return file.read(columns=columns)


def _read_csv(path: Path, wanted: Sequence[str]) -> pyarrow.Table:
    import pyarrow
    from pyarrow import csv

    with csv.open_csv(path) as file:
        columns = _present(path, file.schema.names, wanted)
    text, number = pyarrow.dictionary(pyarrow.int32(), pyarrow.string()), pyarrow.float64()
    types = {name: number if name in NUMBERS else text for name in columns}
    return csv.read_csv(path, convert_options=csv.ConvertOptions(column_types=types, include_columns=columns))


def _present(path: Path, columns: Sequence[str], wanted: Sequence[str]) -> list[str]:
    missing = [name for name in REQUIRED if name not in columns]
    if missing:
        raise UsageError(
            f"trace file {path}: no column {', '.join(missing)} (it has {', '.join(columns) or 'none'}; needed are {', '.join(REQUIRED)})",
            reason="TraceColumnMissing",
        )
    return [name for name in wanted if name in columns]


def _names(column: pyarrow.ChunkedArray) -> Names:
    import pyarrow

    if not pyarrow.types.is_dictionary(column.type):
        column = column.cast(pyarrow.string()).dictionary_encode()
    whole = column.unify_dictionaries().combine_chunks()
    texts = [text or "" for text in whole.dictionary.cast(pyarrow.string()).to_pylist()]
    return Names(whole.indices.fill_null(len(texts)).to_numpy(), (*texts, ""))


def _numbers(path: Path, name: str, column: pyarrow.ChunkedArray) -> NDArray[Any]:
    import pyarrow

    kind = column.type
    if not (pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind)):
        raise UsageError(f"trace file {path}: column {name} is of type {kind}, not a number", reason="TraceBadValue")
    numbers: NDArray[Any] = column.to_numpy()
    return numbers


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
