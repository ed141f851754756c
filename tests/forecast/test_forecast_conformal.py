"""Calibration: coverage comes to what was asked, and is measured."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vpa_ippr.api.errors import ValidationError
from vpa_ippr.forecast.conformal import Calibration, CalibrationRules
from vpa_ippr.forecast.quantiles import Forecast, Horizon

LEVELS = (0.5, 0.8, 0.9, 0.95)


def a_forecast(values, horizon=Horizon.HOUR):
    values = np.asarray(values, dtype=float)
    return Forecast(horizon, LEVELS, values, ("made-up",) * len(values))


def run(outcomes, forecast, rules=None):
    """Calibrate against outcomes (times, series); the share covered in the second half by the calibrated and by the raw quantiles."""
    calibration, hits, raw_hits = Calibration.start(outcomes.shape[1], Horizon.HOUR, LEVELS, rules), [], []
    for observed in outcomes:
        issued = calibration.apply(forecast)
        hits.append(observed[:, None] <= issued.values)
        raw_hits.append(observed[:, None] <= forecast.values)
        calibration = calibration.update(forecast, issued, observed)
    half = len(outcomes) // 2
    return calibration, np.mean(hits[half:], axis=0), np.mean(raw_hits[half:], axis=0)


@pytest.mark.parametrize("shift", [0.6, 1.0, 1.8], ids=["too high", "right", "too low"])
def test_coverage_of_every_series_comes_to_nominal_whatever_the_forecast_said(shift):
    random = np.random.default_rng(0)
    right = np.quantile(random.lognormal(0, 0.3, 100_000), LEVELS)
    outcomes = random.lognormal(0, 0.3, (1200, 10)) * shift
    _, calibrated, raw = run(outcomes, a_forecast(np.tile(right, (10, 1))))
    assert calibrated.mean(axis=0) == pytest.approx(LEVELS, abs=0.01)
    assert calibrated == pytest.approx(np.tile(LEVELS, (10, 1)), abs=0.03)
    if shift != 1.0:
        assert np.abs(raw.mean(axis=0) - LEVELS).max() > 0.2


def test_a_change_of_distribution_is_followed():
    random = np.random.default_rng(1)
    before, after = random.lognormal(0, 0.2, (500, 10)), random.lognormal(0.5, 0.4, (1500, 10))
    forecast = a_forecast(np.tile(np.quantile(before, LEVELS), (10, 1)))
    _, calibrated, raw = run(np.concatenate((before, after)), forecast)
    assert calibrated.mean(axis=0) == pytest.approx(LEVELS, abs=0.015)
    assert raw.mean(axis=0)[2] < 0.6


def test_coverage_is_measured_for_both():
    random = np.random.default_rng(2)
    outcomes = random.lognormal(0.4, 0.3, (1500, 4))
    calibration, _, raw = run(outcomes, a_forecast(np.tile(np.quantile(random.lognormal(0, 0.3, 9999), LEVELS), (4, 1))))
    assert calibration.observations.tolist() == [1500] * 4
    assert calibration.covered == pytest.approx(np.tile(LEVELS, (4, 1)), abs=0.05)
    assert calibration.covered_raw == pytest.approx(raw, abs=0.12)


def test_before_any_outcome_nothing_is_moved_and_nothing_is_claimed():
    calibration = Calibration.start(2, Horizon.HOUR, LEVELS)
    forecast = a_forecast([[1, 2, 3, 4], [0, 0, 0, 0]])
    assert calibration.apply(forecast).values.tolist() == forecast.values.tolist()
    assert np.isnan(calibration.covered).all()


def test_the_first_outcomes_make_a_plain_mean():
    calibration, forecast = Calibration.start(1, Horizon.HOUR, LEVELS), a_forecast([[1, 2, 3, 4]])
    for observed in (1.5, 2.5, 9.0, 0.5):
        calibration = calibration.update(forecast, forecast, np.array([observed]))
    assert calibration.covered_raw[0].tolist() == pytest.approx([0.25, 0.5, 0.75, 0.75])


def test_an_unknown_outcome_teaches_nothing():
    calibration, forecast = Calibration.start(2, Horizon.HOUR, LEVELS), a_forecast([[1, 2, 3, 4]] * 2)
    both = calibration.update(forecast, forecast, np.array([2.0, 2.0]))
    one = both.update(forecast, forecast, np.array([5.0, np.nan]))
    assert one.offset[1].tolist() == both.offset[1].tolist()
    assert one.observations.tolist() == [2, 1]
    unknown = both.update(a_forecast([[1, 2, 3, 4], [np.nan] * 4]), forecast, np.array([5.0, 5.0]))
    assert unknown.offset[1].tolist() == both.offset[1].tolist()


def test_offsets_stay_inside_their_bounds():
    rules = CalibrationRules(min_offset=-0.1, max_offset=0.2)
    calibration, _, _ = run(np.full((300, 1), 100.0), a_forecast([[1, 2, 3, 4]]), rules)
    assert (calibration.offset == 0.2).all()
    calibration, _, _ = run(np.full((300, 1), 0.5), a_forecast([[1, 2, 3, 4]]), rules)
    assert (calibration.offset >= -0.1).all()


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), min_size=1, max_size=40), st.integers(-10, 10))
def test_quantiles_stay_ordered_and_scale_with_the_series(outcomes, power):
    factor = 2.0**power
    forecast, scaled = (a_forecast([[1 * k, 5 * k, 5 * k, 80 * k], [0, 0, 1 * k, 9 * k]]) for k in (1.0, factor))
    one, other = (Calibration.start(2, Horizon.HOUR, LEVELS) for _ in range(2))
    for observed in np.array(outcomes, dtype=float):
        one = one.update(forecast, one.apply(forecast), observed)
        other = other.update(scaled, other.apply(scaled), observed * factor)
        issued = one.apply(forecast).values
        assert (np.diff(issued, axis=1) >= 0).all()
        assert (issued >= 0).all()
        assert other.apply(scaled).values == pytest.approx(issued * factor, rel=1e-9, abs=1e-9 * factor)


def test_a_new_series_begins_where_the_others_are():
    random = np.random.default_rng(3)
    calibration, _, _ = run(random.lognormal(0.5, 0.2, (400, 5)), a_forecast(np.tile([1.0, 1.2, 1.3, 1.4], (5, 1))))
    moved = calibration.take([3, -1])
    assert moved.offset[0].tolist() == calibration.offset[3].tolist()
    assert moved.offset[1].tolist() == np.median(calibration.offset, axis=0).tolist()
    assert moved.observations.tolist() == [400, 0]
    assert np.isnan(moved.covered[1]).all()
    assert Calibration.start(1, Horizon.HOUR, LEVELS).take([-1]).offset.tolist() == [[0.0] * 4]


@pytest.mark.parametrize(
    "other",
    [a_forecast([[1, 2, 3, 4]], Horizon.DAY), a_forecast([[1, 2, 3, 4]] * 3), Forecast(Horizon.HOUR, (0.5,), np.ones((1, 1)), ("x",))],
    ids=["horizon", "series", "quantiles"],
)
def test_another_forecast_is_refused(other):
    with pytest.raises(ValidationError, match="cannot be used") as caught:
        Calibration.start(1, Horizon.HOUR, LEVELS).apply(other)
    assert caught.value.reason == "CalibrationMismatch"
