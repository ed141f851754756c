"""Percentiles of decaying histograms: the upstream recommender's way to forecast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import msgspec
import numpy as np

from vpa_ippr.api.errors import ValidationError
from vpa_ippr.api.series import Floats
from vpa_ippr.forecast.forecaster import History
from vpa_ippr.usage.histogram import BucketOptions, DecayingHistogram

DUMP_SCHEMA: Final = "vpa-ippr/decaying-histogram/v1"


class _Dump(msgspec.Struct, frozen=True):
    schema: str
    epsilon: float
    ends: list[float]
    weights: list[list[float]]
    totals: list[float]


@dataclass(frozen=True, slots=True, eq=False)
class DecayingPercentiles:
    """Histograms of many series: ``weights`` of shape (series, buckets), ``totals`` (series,), ``ends`` of the buckets (buckets,)."""

    epsilon: float
    ends: Floats
    weights: Floats
    totals: Floats

    @classmethod
    def of(cls, histograms: Sequence[DecayingHistogram], options: BucketOptions) -> DecayingPercentiles:
        """Over histograms that share their buckets."""
        weights = np.array([histogram.weights for histogram in histograms]).reshape(len(histograms), options.count)
        totals = np.array([histogram.total_weight for histogram in histograms])
        return cls(options.epsilon, options.ends(), weights, totals)

    def predict(self, quantiles: Sequence[float]) -> Floats:
        """For each series, what ``DecayingHistogram.percentile`` gives for each quantile; shape (series, quantiles)."""
        count, buckets = self.weights.shape
        held = self.weights >= self.epsilon
        first = held.argmax(axis=1)
        last = buckets - 1 - held[:, ::-1].argmax(axis=1)
        # Dust outside the occupied range is no part of the walk.
        index = np.arange(buckets)
        inside = (index >= first[:, None]) & (index <= last[:, None])
        cumulated = np.cumsum(np.where(inside, self.weights, 0.0), axis=1)
        result = np.zeros((count, len(quantiles)))
        for column, quantile in enumerate(quantiles):
            reached = (cumulated >= (quantile * self.totals)[:, None]) & inside
            bucket = np.where(reached.any(axis=1), reached.argmax(axis=1), last)
            result[:, column] = self.ends[bucket]
        result[~held.any(axis=1)] = 0.0
        return result

    def dump(self) -> bytes:
        """The state as JSON."""
        return msgspec.json.encode(_Dump(DUMP_SCHEMA, self.epsilon, self.ends.tolist(), self.weights.tolist(), self.totals.tolist()))

    @classmethod
    def load(cls, data: bytes) -> Self:
        """The inverse of ``dump``.

        Raises:
            ValidationError: not such a dump, or its arrays do not fit together.
        """
        try:
            dump = msgspec.json.decode(data, type=_Dump)
        except msgspec.DecodeError as error:
            raise ValidationError(f"not a decaying-histogram state: {error}", reason="ModelCorrupt") from error
        fits = len(dump.weights) == len(dump.totals) and all(len(row) == len(dump.ends) for row in dump.weights)
        if dump.schema != DUMP_SCHEMA or not fits:
            raise ValidationError(
                f"not a decaying-histogram state: schema {dump.schema!r} with {len(dump.weights)} rows of {len(dump.ends)} buckets",
                reason="ModelCorrupt",
            )
        weights = np.array(dump.weights, dtype=np.float64).reshape(len(dump.weights), len(dump.ends))
        return cls(dump.epsilon, np.array(dump.ends), weights, np.array(dump.totals))


@dataclass(frozen=True, slots=True)
class DecayingHistogramForecaster:
    """Learns one decaying histogram a series; every sample has the same weight before decay."""

    options: BucketOptions
    half_life_seconds: float
    sample_weight: float
    name: str = "decaying-histogram"

    def fit(self, history: History) -> DecayingPercentiles:
        """One histogram a series."""
        empty = DecayingHistogram.empty(self.options, self.half_life_seconds)
        histograms = [empty.add(*history[index], self.sample_weight) for index in range(len(history))]
        return DecayingPercentiles.of(histograms, self.options)
