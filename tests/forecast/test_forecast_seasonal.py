"""Same hour of the day and of the week, the trailing week, and the grid they stand on."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from support.usage_grids import END, PER_HOUR, of_rows
from vpa_ippr.forecast.grid import UsageGrid, day_maxima, maxima, means, rolling_maxima, row_quantiles, weighted_quantiles
from vpa_ippr.forecast.quantiles import LEVELS, Horizon
from vpa_ippr.forecast.seasonal import DecayingForecaster, SeasonalForecaster, TrailingForecaster
from vpa_ippr.usage.container import DAY_SECONDS, UsageRules
from vpa_ippr.usage.histogram import DecayingHistogram

VALUES = arrays(np.float64, st.tuples(st.integers(1, 4), st.integers(1, 30)), elements=st.floats(0, 1e9) | st.just(np.nan))


@pytest.mark.parametrize(("busy", "expected"), [(0, 10.0), (-6, 1.0), (6, 1.0)], ids=["next", "six hours ago", "in six hours"])
def test_the_hour_of_the_day_decides(busy, expected):
    days = 9
    hours = np.ones(days * 24)
    hours[[hour for hour in range(hours.size) if (hour - hours.size - busy) % 24 == 0]] = 10
    forecast = SeasonalForecaster().fit(of_rows(np.repeat(hours, PER_HOUR))).predict(Horizon.HOUR, (0.9,))
    assert forecast.values.tolist() == [[expected]]
    assert forecast.methods == ("hour-of-day",)


@pytest.mark.parametrize(("weeks", "method", "expected"), [(5, "day-of-week", 10.0), (2, "hour-of-day", 1.0)])
def test_the_hour_of_the_week_needs_three_weeks(weeks, method, expected):
    hours = np.ones(weeks * 168)
    hours[::168] = 10
    forecast = SeasonalForecaster("week").fit(of_rows(np.repeat(hours, PER_HOUR))).predict(Horizon.HOUR, (0.8,))
    assert forecast.methods == (method,)
    assert forecast.values.tolist() == [[expected]]


def test_a_peak_on_one_weekday_is_expected_on_that_day_only():
    hours = np.ones(5 * 168)
    hours[12::168] = 10  # in the day that begins now
    grid = of_rows(np.repeat(hours, PER_HOUR), np.repeat(np.roll(hours, -48), PER_HOUR))
    assert SeasonalForecaster("week").fit(grid).predict(Horizon.DAY, (0.9,)).values.tolist() == [[10.0], [1.0]]


def test_the_trailing_quantile_knows_no_hour():
    hours = np.tile(np.arange(1.0, 25.0), 7)
    fitted = TrailingForecaster().fit(of_rows(np.repeat(hours, PER_HOUR)))
    assert fitted.predict(Horizon.HOUR, (0.5,)).values[0, 0] == pytest.approx(12.5)
    assert fitted.predict(Horizon.DAY, (0.5,)).values.tolist() == [[24.0]]


def test_decaying_percentiles_are_those_of_the_histogram():
    rules = UsageRules()
    random = np.random.default_rng(4)
    series = [(END - 300.0 * np.arange(500)[::-1], random.gamma(2, 0.3, 500)) for _ in range(3)]
    grid = UsageGrid.of(series, END, 2)
    ours = DecayingForecaster(rules.cpu_buckets, DAY_SECONDS).fit(grid).predict(Horizon.HOUR, LEVELS)
    histograms = [DecayingHistogram.empty(rules.cpu_buckets, DAY_SECONDS).add(*one, 0.1) for one in series]
    assert ours.values == pytest.approx(np.array([[histogram.percentile(level) for level in LEVELS] for histogram in histograms]))


def test_series_are_laid_on_the_grid_by_their_time():
    times = np.array([END - 86_400, END - 650, END - 300, END - 10, END, END + 5])
    grid = UsageGrid.of([(times, np.arange(6.0))], END, 0.5)
    assert grid.values.shape == (1, 144)
    assert grid.values[0, -3:].tolist() == [1.0, 2.0, 4.0]
    assert np.isnan(grid.values[0, :-3]).all()
    assert grid.until(143).end == END - 300
    assert grid.last(1).steps == 144
    assert grid.last(0.25).values.tolist()[0][-1] == 4.0


@given(VALUES)
def test_reductions_leave_gaps_out(values):
    for row, largest, mean in zip(values, maxima(values), means(values), strict=True):
        known = row[np.isfinite(row)]
        assert np.isnan(largest) if not known.size else largest == known.max()
        assert np.isnan(mean) if not known.size else mean == pytest.approx(known.mean())


@given(VALUES, st.integers(1, 40))
def test_rolling_maxima_are_those_of_each_window(values, width):
    for row, rolled in zip(values, rolling_maxima(values, width), strict=True):
        for column, largest in enumerate(rolled):
            known = [value for value in row[max(column - width + 1, 0) : column + 1] if not np.isnan(value)]
            assert np.isnan(largest) if not known else largest == max(known)


@given(VALUES)
def test_row_quantiles_rise_and_stay_within_the_values(values):
    found = row_quantiles(values, LEVELS)
    for row, quantiles in zip(values, found, strict=True):
        known = row[np.isfinite(row)]
        if not known.size:
            assert np.isnan(quantiles).all()
        else:
            assert (np.diff(quantiles) >= 0).all()
            assert known.min() <= quantiles[0] <= quantiles[-1] <= known.max()


def test_the_next_of_exchangeable_values_stays_below_as_often_as_asked():
    draws = np.random.default_rng(0).gamma(2, 1, (4000, 22))
    covered = (draws[:, -1:] <= row_quantiles(draws[:, :-1], (0.5, 0.8, 0.9))).mean(axis=0)
    assert covered == pytest.approx([0.5, 0.8, 0.9], abs=0.025)


def test_weights_move_a_quantile():
    values = np.array([[1.0, 2.0, 3.0, np.nan], [np.nan] * 4])
    found = weighted_quantiles(values, np.array([8.0, 1.0, 1.0, 100.0]), (0.5, 0.9, 1.0))
    assert found[0].tolist() == [1.0, 2.0, 3.0]
    assert np.isnan(found[1]).all()


def test_a_day_is_known_when_half_of_it_is():
    hours = np.arange(40.0)[None]
    assert np.isnan(day_maxima(hours)[0, :11]).all()
    assert day_maxima(hours)[0, 11:].tolist() == list(range(11, 40))
