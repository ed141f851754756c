"""Percentiles of many series at once are those of each series alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vpa_ippr.forecast.decaying import DecayingPercentiles
from vpa_ippr.usage.container import DAY_SECONDS, UsageRules
from vpa_ippr.usage.histogram import DecayingHistogram

OPTIONS = UsageRules().cpu_buckets
T = 1_767_225_600.0

SERIES = st.lists(st.lists(st.floats(0, 2000), max_size=20), max_size=6)


def histogram_of(values):
    """A sample an hour, all of the same weight before decay."""
    return DecayingHistogram.empty(OPTIONS, DAY_SECONDS).add(T + 3600.0 * np.arange(len(values)), np.array(values, dtype=float), 0.1)


def predict(series, quantiles):
    return DecayingPercentiles.of([histogram_of(values) for values in series], OPTIONS).predict(quantiles)


@given(SERIES, st.lists(st.floats(0, 1), min_size=1, max_size=4))
def test_all_series_at_once_are_the_same_as_one_by_one(series, quantiles):
    predicted = predict(series, quantiles)
    assert predicted.shape == (len(series), len(quantiles))
    for row, values in zip(predicted.tolist(), series, strict=True):
        assert row == [histogram_of(values).percentile(quantile) for quantile in quantiles]


def test_a_series_without_samples_needs_nothing():
    assert predict([[], [1.0]], (0.9,))[:, 0].tolist() == [0.0, pytest.approx(1.0, rel=0.06)]


def test_a_prediction_is_never_below_what_was_seen():
    values = np.random.default_rng(3).uniform(0.0, 900.0, 500)
    assert predict([values], (1.0,))[0, 0] >= values.max() * (1 - 1e-9)
