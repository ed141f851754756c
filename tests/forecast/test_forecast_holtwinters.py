"""Holt-Winters: our smoothing against statsmodels', gaps, failures of single series, and quantiles that hold."""

import warnings

import numpy as np
import pytest
from statsmodels.tsa.holtwinters import ExponentialSmoothing

from support.usage_grids import PER_HOUR, daily, of_rows
from vpa_ippr.forecast import smoothing
from vpa_ippr.forecast.forecasters import DailyHoltWinters
from vpa_ippr.forecast.grid import UsageGrid
from vpa_ippr.forecast.holtwinters import smooth, with_factors
from vpa_ippr.forecast.quantiles import Horizon

FORECASTER = DailyHoltWinters()


def rhythm(days, seed=0, noise=0.1):
    hours = np.arange(days * 24)
    return 3 + np.sin(hours * 2 * np.pi / 24) + np.random.default_rng(seed).normal(0, noise, hours.size)


def test_smoothing_is_that_of_statsmodels_once_the_start_is_forgotten():
    values, factors = rhythm(20), (0.4, 0.1, 0.3, 0.9)
    model = ExponentialSmoothing(values, trend="add", damped_trend=True, seasonal="add", seasonal_periods=24)
    level, trend, season, damping = factors
    fitted = model.fit(smoothing_level=level, smoothing_trend=trend, smoothing_seasonal=season, damping_trend=damping, optimized=False)
    ours = smooth(values[None], np.array([factors]))
    expected = fitted.forecast(24)
    assert ours.next_hour[0, -1] == pytest.approx(expected[0], rel=1e-3)
    assert ours.next_day[0, -1] == pytest.approx(expected.max(), rel=1e-3)


def test_a_rhythm_is_followed_through_its_hours():
    steps = np.repeat(rhythm(14, noise=0.02), PER_HOUR)
    grid = of_rows(steps)
    for hours_back in (0, 6, 12, 18):
        fitted = FORECASTER.fit(grid.until(grid.steps - hours_back * PER_HOUR))
        expected = 3 + np.sin(-hours_back * 2 * np.pi / 24)
        assert fitted.predict(Horizon.HOUR, (0.5,)).values[0, 0] == pytest.approx(expected, abs=0.1)
        assert fitted.predict(Horizon.DAY, (0.9,)).values[0, 0] == pytest.approx(4.0, abs=0.15)


def test_a_gap_is_neither_zero_nor_a_spike():
    values = rhythm(14)
    grid = of_rows(np.repeat(values, PER_HOUR))
    gap = grid.values.copy()
    gap[0, -200 * PER_HOUR : -194 * PER_HOUR] = np.nan
    gap[0, -6 * PER_HOUR :] = np.nan
    whole, holed = (FORECASTER.fit(UsageGrid(v, grid.end)).predict(Horizon.DAY, (0.5, 0.95)).values for v in (grid.values, gap))
    assert holed == pytest.approx(whole, rel=0.05)


def test_quantiles_cover_what_they_say():
    grids = daily(20, 15, seed=3)
    hits = []
    factors = smoothing.learn_factors(grids.until(10 * 288).hourly_maxima(14 * 24)).factors
    for hour in range(10 * 24, 15 * 24 - 1, 5):
        forecast = with_factors(grids.until(hour * PER_HOUR), factors).predict(Horizon.HOUR, (0.8, 0.9))
        actual = grids.values[:, hour * PER_HOUR : (hour + 1) * PER_HOUR].max(axis=1)
        hits.append(actual[:, None] <= forecast.values)
    assert np.mean(hits, axis=(0, 1)) == pytest.approx([0.8, 0.9], abs=0.04)


@pytest.mark.parametrize(
    ("row", "method"),
    [
        (rhythm(14), "holt-winters"),
        (np.full(14 * 24, 2.0), "holt-winters-default"),
        (rhythm(2), "trailing-quantile"),
    ],
    ids=["learned", "constant", "two days"],
)
def test_what_answered_is_named(row, method):
    assert FORECASTER.fit(of_rows(np.repeat(row, PER_HOUR))).predict(Horizon.HOUR, (0.9,)).methods == (method,)


def test_one_failing_series_costs_the_others_nothing(monkeypatch, caplog):
    real = smoothing._estimate

    def estimate(values):
        if values.size == 8 * 24:
            raise np.linalg.LinAlgError("singular")
        if values.size == 7 * 24:
            warnings.warn("did not converge", RuntimeWarning, stacklevel=1)
            return (np.nan,) * 4
        return real(values)

    rows = [np.repeat(rhythm(days), PER_HOUR) for days in (14, 8, 7)]
    alone = FORECASTER.fit(of_rows(rows[0]))
    monkeypatch.setattr(smoothing, "_estimate", estimate)
    fitted = FORECASTER.fit(of_rows(*rows))
    assert fitted.predict(Horizon.HOUR, (0.9,)).methods == ("holt-winters", "holt-winters-default", "holt-winters-default")
    assert fitted.hour[0].tolist() == alone.hour[0].tolist()
    assert {(finding.reason, finding.message, finding.count) for finding in fitted.findings} == {
        ("HoltWintersFailed", "LinAlgError", 1),
        ("HoltWintersFailed", "factors are not finite", 1),
        ("HoltWintersWarning", "RuntimeWarning", 1),
    }
    assert "factors not learned" in caplog.text


def test_a_trend_is_not_carried_beyond_twice_what_was_seen():
    steps = np.repeat(1 + np.concatenate((np.zeros(10 * 24), np.linspace(0, 100, 12) ** 2)), PER_HOUR)
    forecast = FORECASTER.fit(of_rows(steps)).predict(Horizon.DAY, (0.98,)).values[0, 0]
    assert 0 <= forecast <= 2 * steps.max()


@pytest.mark.integration
def test_more_processes_give_the_same_factors():
    hours = np.stack([rhythm(8, seed) for seed in range(60)])
    assert smoothing.learn_factors(hours, jobs=2).factors.tolist() == smoothing.learn_factors(hours).factors.tolist()
