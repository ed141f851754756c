"""What the global model sees: numbers of the series alone, of its past alone, whatever its unit and the time of day."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.usage_grids import END, PER_DAY, PER_HOUR, daily, of_rows, with_gaps
from vpa_ippr.forecast.features import NAMES, build_features
from vpa_ippr.forecast.grid import UsageGrid


def feature(grid, name):
    features = build_features(grid)
    return features.matrix[:, NAMES.index(name)], features.scale


def test_features_are_numbers_of_the_series_alone():
    grid = daily(3, 9)
    assert build_features(grid).matrix.shape == (3, len(NAMES)) == (3, 32)
    assert np.isfinite(build_features(grid).matrix).all()
    one = build_features(UsageGrid(grid.values[1:2], grid.end))
    assert one.matrix[0].tolist() == build_features(grid).matrix[1].tolist()


def test_features_do_not_see_the_future():
    grid = daily(2, 9)
    changed = grid.values.copy()
    changed[:, -PER_DAY:] = 99.0
    before = [build_features(UsageGrid(values, END).until(8 * PER_DAY)).matrix.tolist() for values in (grid.values, changed)]
    assert before[0] == before[1]


@given(st.floats(1e-3, 1e9), st.floats(0, 2e9))
def test_neither_the_unit_nor_the_clock_matters(factor, end):
    grid = with_gaps(daily(3, 9))
    other = build_features(UsageGrid(grid.values * factor, end))
    assert other.matrix == pytest.approx(build_features(grid).matrix, abs=1e-9, nan_ok=True)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("last_sample", 24.0),
        ("max_lag_1h", 24.0),
        ("max_lag_3h", 22.0),
        ("mean_1h", 24.0),
        ("mean_6h", 21.5),
        ("max_24h", 24.0),
        ("min_of_max_24h", 1.0),
        ("same_hour_1d", 1.0),
        ("same_hour_median_7d", 1.0),
        ("same_hour_max_7d", 24.0),
    ],
)
def test_a_feature_is_what_its_name_says(name, expected):
    hours = np.tile(np.arange(1.0, 25.0), 14)
    found, scale = feature(of_rows(np.repeat(hours, PER_HOUR)), name)
    assert scale.tolist() == [12.5]
    assert found[0] == pytest.approx(np.log((expected / 12.5 + 0.01) / 1.01))


def test_rhythm_and_growth_are_seen():
    grid = daily(1, 14, noise=0.02)
    assert feature(grid, "acf_24h")[0][0] > 0.9
    assert feature(grid, "known_hours")[0][0] == pytest.approx(np.log1p(336))
    doubled = of_rows(np.repeat([1.0, 1.0, 2.0], PER_DAY))
    assert feature(doubled, "day_over_day")[0][0] == pytest.approx(np.log(2))


def test_what_is_not_known_yet_is_nan():
    young = of_rows(np.ones(3 * PER_HOUR))
    assert np.isnan(feature(young, "same_hour_1d")[0][0])
    assert np.isfinite(feature(young, "max_3h")[0][0])
    assert feature(young, "known_hours")[0][0] == pytest.approx(np.log1p(3))
