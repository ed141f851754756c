"""What holds for every forecaster, whatever it learns."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.usage_grids import PER_DAY, PER_HOUR, daily, of_rows, with_gaps
from vpa_ippr.api.errors import UsageError
from vpa_ippr.forecast.boosting import BoostingForecaster
from vpa_ippr.forecast.forecasters import DailyHoltWinters
from vpa_ippr.forecast.grid import UsageGrid
from vpa_ippr.forecast.peaks import PeaksForecaster
from vpa_ippr.forecast.quantiles import NO_DATA, Horizon
from vpa_ippr.forecast.seasonal import DecayingForecaster, SeasonalForecaster, TrailingForecaster
from vpa_ippr.usage.container import DAY_SECONDS, UsageRules

QUANTILES = (0.5, 0.8, 0.9, 0.95)
NAMES = ["trailing-quantile", "hour-of-day", "day-of-week", "decaying-histogram", "holt-winters", "peaks-trend", "gradient-boosting"]
# Its buckets have a width of their own, so scaling moves values to other places in them.
SCALED = [name for name in NAMES if name != "decaying-histogram"]


@pytest.fixture(scope="session")
def forecasters(model):
    made = [
        TrailingForecaster(),
        SeasonalForecaster("day"),
        SeasonalForecaster("week"),
        DecayingForecaster(UsageRules().cpu_buckets, DAY_SECONDS),
        DailyHoltWinters(),
        PeaksForecaster(),
        BoostingForecaster(model),
    ]
    return {forecaster.name: forecaster for forecaster in made}


@pytest.fixture(params=NAMES)
def forecaster(request, forecasters):
    return forecasters[request.param]


GRID = with_gaps(daily(5, 9))


@pytest.mark.parametrize("horizon", list(Horizon))
def test_quantiles_are_ordered_and_a_day_needs_at_least_an_hour(forecaster, horizon):
    fitted = forecaster.fit(GRID)
    values = fitted.predict(horizon, QUANTILES).values
    assert values.shape == (5, 4)
    assert (np.diff(values, axis=1) >= 0).all()
    assert (fitted.predict(Horizon.DAY, QUANTILES).values >= fitted.predict(Horizon.HOUR, QUANTILES).values).all()


def test_a_rhythm_with_gaps_is_forecast_near_its_size(forecaster):
    forecast = forecaster.fit(GRID).predict(Horizon.DAY, (0.9,)).values[:, 0]
    peaks = np.nanmax(GRID.values, axis=1)
    assert (forecast > 0.5 * peaks).all()
    assert (forecast < 1.5 * peaks).all()


def test_the_same_history_gives_the_same_numbers(forecaster):
    one, other = forecaster.fit(GRID), forecaster.fit(UsageGrid(GRID.values.copy(), GRID.end))
    for name in ("hour", "day", "method_of"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert one.methods == other.methods


def test_young_silent_and_idle_series_have_their_own_answer_and_leave_the_others_alone(forecaster):
    whole = daily(1, 9).values[0]
    alone = forecaster.fit(of_rows(whole)).predict(Horizon.HOUR, QUANTILES)
    grid = of_rows(whole, np.full(3 * PER_HOUR, 0.25), np.full(PER_DAY, np.nan), np.zeros(9 * PER_DAY), np.array([0.5]))
    forecast = forecaster.fit(grid).predict(Horizon.HOUR, QUANTILES)
    assert forecast.values[0].tolist() == pytest.approx(alone.values[0].tolist(), rel=1e-12)
    assert forecast.values[1] == pytest.approx(0.25, rel=0.6)
    assert np.isnan(forecast.values[2]).all()
    assert forecast.values[3] == pytest.approx(0.0, abs=0.011)  # the histogram's first bucket ends at 0.01
    assert np.isfinite(forecast.values[4]).all()
    assert forecast.methods[0] == forecaster.fit(of_rows(whole)).predict(Horizon.HOUR, QUANTILES).methods[0]
    assert forecast.methods[2] == NO_DATA


@pytest.mark.parametrize("name", SCALED)
def test_scaling_a_series_scales_its_forecast(name, forecasters):
    # By a power of two no digit changes, so the trees take the same branches.
    @settings(max_examples=8, deadline=None)
    @given(st.integers(-20, 30), st.integers(0, 1000))
    def check(power, seed):
        grid = with_gaps(daily(2, 6, seed=seed), seed=seed)
        factor = 2.0**power
        once = forecasters[name].fit(grid)
        scaled = forecasters[name].fit(UsageGrid(grid.values * factor, grid.end))
        assert scaled.hour == pytest.approx(once.hour * factor, rel=1e-6)
        assert scaled.day == pytest.approx(once.day * factor, rel=1e-6)

    check()


@given(st.lists(st.floats(0.5, 0.98), min_size=1, max_size=5))
def test_any_quantile_between_the_learned_ones_is_answered_in_order(quantiles):
    values = TrailingForecaster().fit(GRID).predict(Horizon.HOUR, quantiles).values
    order = np.argsort(quantiles, kind="stable")
    assert (np.diff(values[:, order], axis=1) >= 0).all()


def test_a_quantile_that_was_not_learned_is_refused():
    with pytest.raises(UsageError, match=r"between 0\.5 and 0\.98") as caught:
        TrailingForecaster().fit(GRID).predict(Horizon.HOUR, (0.999,))
    assert caught.value.reason == "QuantileOutOfRange"


def test_the_heavy_libraries_are_imported_by_those_who_learn_with_them_only():
    modules = ("seasonal", "holtwinters", "peaks", "leak", "boosting", "training", "conformal", "selection")
    code = f"import sys\nfor name in {modules}: __import__('vpa_ippr.forecast.' + name)\nprint(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {"vpa_ippr.forecast.boosting", "numpy"} <= set(loaded)
    assert not {"sklearn", "skops", "statsmodels", "scipy", "pandas", "threadpoolctl"} & set(loaded)
