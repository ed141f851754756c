"""What a forecaster is: it learns from the history of many series at once and answers with quantiles of their need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from vpa_ippr.api.series import Floats


@dataclass(frozen=True, slots=True, eq=False)
class History:
    """Many series in one pair of arrays: series i is ``[offsets[i]:offsets[i + 1]]``, oldest sample first.

    ``timestamps`` in seconds, ``values`` in cores or bytes; ``offsets`` has one entry more than there are series.
    """

    timestamps: Floats
    values: Floats
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, series: Sequence[tuple[Floats, Floats]]) -> History:
        """Join series given as (timestamps, values)."""
        offsets = np.cumsum([0, *(len(timestamps) for timestamps, _ in series)], dtype=np.int64)
        if not series:
            return cls(np.empty(0), np.empty(0), offsets)
        return cls(np.concatenate([t for t, _ in series]), np.concatenate([v for _, v in series]), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> tuple[Floats, Floats]:
        begin, end = self.offsets[index], self.offsets[index + 1]
        return self.timestamps[begin:end], self.values[begin:end]


class Fitted(Protocol):
    """What a forecaster has learned; a value that can be stored."""

    def predict(self, quantiles: Sequence[float]) -> Floats:
        """The need at each quantile, in the unit of the history; shape (series, quantiles), 0 for a series with no samples."""
        ...

    def dump(self) -> bytes:
        """What ``load`` of the same class reads; JSON, safe to read from anywhere."""
        ...

    @classmethod
    def load(cls, data: bytes) -> Self:
        """The inverse of ``dump``; ValidationError when the data are damaged."""
        ...


class Forecaster(Protocol):
    """A way to learn."""

    @property
    def name(self) -> str:
        """The name in a profile's ``forecaster``."""
        ...

    def fit(self, history: History) -> Fitted:
        """Learn from history."""
        ...
