"""Peaks with trend: memory that stays, grows, jumps."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.usage_grids import PER_DAY, PER_HOUR, of_rows
from vpa_ippr.forecast.grid import UsageGrid
from vpa_ippr.forecast.peaks import PeaksForecaster, rising_slopes
from vpa_ippr.forecast.quantiles import Horizon

FORECASTER = PeaksForecaster()


def noisy(days, level=100.0, noise=1.0, seed=0):
    return level + np.random.default_rng(seed).normal(0, noise, round(days * PER_DAY))


def test_flat_memory_needs_its_peak():
    series = noisy(8)
    fitted = FORECASTER.fit(of_rows(series))
    assert fitted.predict(Horizon.DAY, (0.5, 0.95)).values[0] == pytest.approx([series.max()] * 2, rel=0.02)
    assert fitted.predict(Horizon.HOUR, (0.9,)).methods == ("peaks-trend",)


def test_growing_memory_needs_more_than_it_ever_used():
    series = noisy(8) + np.linspace(0, 80, 8 * PER_DAY)  # 10 a day
    fitted = FORECASTER.fit(of_rows(series))
    assert fitted.predict(Horizon.DAY, (0.5,)).values[0, 0] == pytest.approx(180 + 10 + 2, abs=3)
    assert fitted.predict(Horizon.HOUR, (0.5,)).values[0, 0] == pytest.approx(180 + 0.4 + 2, abs=3)


@pytest.mark.parametrize(
    "series",
    [noisy(8) + 30 * np.sin(2 * np.pi * np.arange(8 * PER_DAY) / PER_DAY), noisy(8) - np.linspace(0, 40, 8 * PER_DAY), noisy(8, noise=20)],
    ids=["daily rhythm", "falling", "noise"],
)
def test_what_does_not_rise_for_certain_has_no_trend(series):
    assert rising_slopes(of_rows(series).hourly_maxima(8 * 24), 48)[0, 48:].tolist() == [0.0] * (8 * 24 - 48)


def test_the_slope_is_that_of_the_line_through_gaps():
    hours = np.arange(96.0)[None] * 3 + 1e9
    hours[0, 70:76] = np.nan
    assert rising_slopes(hours, 48)[0, -1] == pytest.approx(3, rel=1e-4)


def test_quantiles_of_a_day_cover_what_they_say():
    random = np.random.default_rng(5)
    series = [noisy(16, seed=seed) + np.repeat(random.gamma(2, 8, 16 * 24), PER_HOUR) for seed in range(12)]
    grid, hits = of_rows(*series), []
    for hour in range(10 * 24, 15 * 24, 7):
        forecast = FORECASTER.fit(grid.until(hour * PER_HOUR)).predict(Horizon.DAY, (0.8, 0.9))
        actual = grid.values[:, hour * PER_HOUR : (hour + 24) * PER_HOUR].max(axis=1)
        hits.append(actual[:, None] <= forecast.values)
    assert np.mean(hits, axis=(0, 1)) == pytest.approx([0.8, 0.9], abs=0.1)


def test_young_series_fall_back():
    assert FORECASTER.fit(of_rows(noisy(0.3))).predict(Horizon.DAY, (0.9,)).methods == ("trailing-quantile",)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.floats(0, 1e3))
def test_more_use_at_all_times_needs_as_much_more(seed, more):
    series = noisy(5, seed=seed) + np.linspace(0, seed / 20, 5 * PER_DAY)
    low, high = (FORECASTER.fit(UsageGrid(values[None], 0.0)) for values in (series, series + more))
    assert high.hour == pytest.approx(low.hour + more)
    assert high.day == pytest.approx(low.day + more)


def test_a_nightly_peak_tells_nothing_of_the_next_hour_and_a_heap_stays_where_it_is():
    night = np.where(np.arange(10 * PER_DAY) % PER_DAY < 2 * PER_HOUR, 500.0, 100.0)  # lately, at the end, nothing
    heap = np.repeat([100.0, 300.0, 200.0, 400.0, 150.0], 2 * PER_DAY)
    found = FORECASTER.fit(of_rows(np.roll(night, -PER_HOUR), heap)).predict(Horizon.HOUR, (0.5,)).values[:, 0]
    assert found[0] < 250
    assert found[1] == pytest.approx(150, rel=0.05)
