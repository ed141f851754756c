"""Percentiles of many decaying histograms at once: the upstream recommender's way to forecast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vpa_ippr.api.series import Floats
from vpa_ippr.usage.histogram import BucketOptions, DecayingHistogram


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
