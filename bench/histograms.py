"""Samples into a decaying histogram: a whole history at once, and minute by minute as in the running recommender."""

from __future__ import annotations

import numpy as np

from bench.figures import Figure, best_of
from bench.objects import DAY_SECONDS, NOW
from bench.usages import grid
from vpa_ippr.usage.container import UsageRules
from vpa_ippr.usage.histogram import DecayingHistogram

_DAYS = 8
_HISTORIES = 100
_SINGLES = 20_000


def measure() -> list[Figure]:
    times = grid(NOW, _DAYS * DAY_SECONDS, 60.0)
    values = np.random.default_rng(1).gamma(2.0, 0.2, times.size)
    empty = UsageRules().empty_cpu()
    full = empty.add(times, values)
    batch = best_of(5, lambda: None, lambda _: [empty.add(times, values) for _ in range(_HISTORIES)])
    single = best_of(3, lambda: None, lambda _: _minute_by_minute(full))
    quantile = best_of(3, lambda: None, lambda _: [full.percentile(0.9) for _ in range(_SINGLES)])
    samples = _HISTORIES * times.size
    return [
        Figure(name="histograms.batch", size=f"{_HISTORIES} x {times.size:,} samples", run=batch, units=samples, unit="sample"),
        Figure(name="histograms.single", size=f"{_SINGLES:,} x 1 sample", run=single, units=_SINGLES, unit="sample"),
        Figure(name="histograms.percentile", size=f"{_SINGLES:,} reads", run=quantile, units=_SINGLES, unit="read"),
    ]


def _minute_by_minute(histogram: DecayingHistogram) -> DecayingHistogram:
    for minute in range(1, _SINGLES + 1):
        histogram = histogram.add(NOW + 60.0 * minute, 0.3)
    return histogram
