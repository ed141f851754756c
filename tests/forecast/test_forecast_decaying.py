"""Percentiles of many series at once are those of each series alone, and survive storing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vpa_ippr.api.errors import ValidationError
from vpa_ippr.forecast.decaying import DecayingHistogramForecaster, DecayingPercentiles
from vpa_ippr.forecast.forecaster import Forecaster, History
from vpa_ippr.usage.container import DAY_SECONDS, UsageRules
from vpa_ippr.usage.histogram import DecayingHistogram

OPTIONS = UsageRules().cpu_buckets
T = 1_767_225_600.0
FORECASTER: Forecaster = DecayingHistogramForecaster(OPTIONS, DAY_SECONDS, 0.1)

SERIES = st.lists(st.lists(st.floats(0, 2000), max_size=20), max_size=6)


def a_history(series):
    return History.of([(T + 3600.0 * np.arange(len(values)), np.array(values, dtype=float)) for values in series])


@given(SERIES, st.lists(st.floats(0, 1), min_size=1, max_size=4))
def test_all_series_at_once_are_the_same_as_one_by_one(series, quantiles):
    predicted = FORECASTER.fit(a_history(series)).predict(quantiles)
    assert predicted.shape == (len(series), len(quantiles))
    for row, values in zip(predicted.tolist(), series, strict=True):
        alone = DecayingHistogram.empty(OPTIONS, DAY_SECONDS).add(T + 3600.0 * np.arange(len(values)), values, 0.1)
        assert row == [alone.percentile(quantile) for quantile in quantiles]


@given(SERIES)
def test_storing_changes_nothing(series):
    fitted = FORECASTER.fit(a_history(series))
    again = DecayingPercentiles.load(fitted.dump())
    assert again.predict((0.5, 0.9)).tolist() == fitted.predict((0.5, 0.9)).tolist()
    assert again.dump() == fitted.dump()


def test_a_series_without_samples_needs_nothing():
    assert FORECASTER.fit(a_history([[], [1.0]])).predict((0.9,))[:, 0].tolist() == [0.0, pytest.approx(1.0, rel=0.06)]


def test_a_prediction_is_never_below_what_was_seen():
    values = np.random.default_rng(3).uniform(0.0, 900.0, 500)
    predicted = FORECASTER.fit(a_history([values])).predict((1.0,))
    assert predicted[0, 0] >= values.max() * (1 - 1e-9)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x04",
        b'{"schema": "other", "epsilon": 1, "ends": [], "weights": [], "totals": []}',
        b'{"schema": "vpa-ippr/decaying-histogram/v1", "epsilon": 1, "ends": [1, 2], "weights": [[1]], "totals": [1]}',
        b'{"schema": "vpa-ippr/decaying-histogram/v1", "epsilon": 1, "ends": [1], "weights": [[1]], "totals": []}',
    ],
    ids=["empty", "a pickle", "another schema", "too few buckets", "too few totals"],
)
def test_damaged_states_are_refused(data):
    with pytest.raises(ValidationError, match="not a decaying-histogram state") as caught:
        DecayingPercentiles.load(data)
    assert caught.value.reason == "ModelCorrupt"


def test_history_gives_back_its_series():
    history = a_history([[1.0, 2.0], [], [3.0]])
    assert len(history) == 3
    assert [history[index][1].tolist() for index in range(3)] == [[1.0, 2.0], [], [3.0]]
