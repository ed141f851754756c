"""Decaying histograms of many series at once, in the numbers of ``usage.histogram``: the same additions in the same order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from vpa_ippr.api.series import Floats
from vpa_ippr.forecast.decaying import DecayingPercentiles
from vpa_ippr.usage.histogram import MAX_DECAY_EXPONENT, BucketOptions, DecayingHistogram


@dataclass(slots=True, eq=False)
class FleetHistograms:
    """One histogram a series; ``weights`` (n, buckets) and ``totals`` (n,) are scaled to ``references`` (seconds, NaN while empty)."""

    options: BucketOptions
    half_life_seconds: float
    weights: Floats
    totals: Floats
    references: Floats
    _empty: DecayingHistogram = field(repr=False)

    @classmethod
    def empty(cls, series: int, options: BucketOptions, half_life_seconds: float) -> FleetHistograms:
        """Histograms with no samples."""
        empty = DecayingHistogram.empty(options, half_life_seconds)
        return cls(options, half_life_seconds, np.zeros((series, options.count)), np.zeros(series), np.full(series, np.nan), empty)

    def add(self, rows: NDArray[np.intp], times: Floats, values: Floats, weight: float) -> None:
        """One sample to each of ``rows``, which must differ; ``times`` in seconds since the epoch, none before its row's last."""
        if len(rows):
            scaled = self._scaled(rows, times, weight)
            self.weights[rows, self.options.find(values)] += scaled
            self.totals[rows] += scaled

    def joined(self, rows: NDArray[np.intp], times: Floats, values: Floats, weight: float) -> FleetHistograms:
        """A copy with one more sample in each of ``rows``."""
        copy = FleetHistograms(
            self.options, self.half_life_seconds, self.weights.copy(), self.totals.copy(), self.references.copy(), self._empty
        )
        copy.add(rows, times, values, weight)
        return copy

    def percentiles(self, fractions: Sequence[float]) -> Floats:
        """What ``DecayingHistogram.percentile`` gives for each fraction; shape (n, fractions), 0 for a series with no samples."""
        # The last bucket that any series reaches ends the walk for all: most of the range is empty in most fleets.
        held = np.flatnonzero((self.weights > 0).any(axis=0))
        width = int(held[-1]) + 1 if len(held) else 1
        return DecayingPercentiles(self.options.epsilon, self.options.ends()[:width], self.weights[:, :width], self.totals).predict(
            fractions
        )

    def _scaled(self, rows: NDArray[np.intp], times: Floats, weight: float) -> Floats:
        """The weight of a new sample of each row, after its reference was set or moved where that is due."""
        exponents = (times - self.references[rows]) / self.half_life_seconds
        for position in np.flatnonzero(~(exponents <= MAX_DECAY_EXPONENT)):  # true for NaN, too
            row = rows[position]
            reference = self._empty.add(times[position], 0.0).reference
            assert reference is not None  # a histogram with a sample has one
            if np.isfinite(self.references[row]):
                factor = np.ldexp(1.0, int(np.floor((self.references[row] - reference) / self.half_life_seconds + 0.5)))
                self.weights[row] *= factor
                self.totals[row] *= factor
            self.references[row] = reference
            exponents[position] = (times[position] - reference) / self.half_life_seconds
        return weight * np.exp2(exponents)
