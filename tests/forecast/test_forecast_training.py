"""Which moments are looked at, what is learned from, and that training is reproducible."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from support.usage_grids import END, PER_DAY, PER_HOUR, SMALL_TRAINING, daily, of_rows
from vpa_ippr.api.errors import UsageError
from vpa_ippr.forecast.boosting import MAX_MODEL_BYTES, BoostingForecaster
from vpa_ippr.forecast.features import NAMES
from vpa_ippr.forecast.grid import UsageGrid
from vpa_ippr.forecast.quantiles import Horizon
from vpa_ippr.forecast.training import HISTORY_STEPS, TrainingOptions, collect_rows, looks, outcome, train

# Good for nothing but its bytes.
TINY = replace(SMALL_TRAINING, rows=800, iterations=2, levels=(0.5, 0.9))


@pytest.fixture(scope="module")
def saved(training_grids):
    return train(training_grids, TINY).save()


def random():
    return np.random.default_rng(0)


def test_outcomes_need_half_of_the_horizon():
    values = np.ones((1, 40))
    values[0, 20:27] = np.nan
    grid = UsageGrid(values, END)
    assert np.isnan(outcome(grid, 20, Horizon.HOUR)[0])
    assert outcome(grid, 21, Horizon.HOUR)[0] == 1.0


def looked(grid, count):
    """All looks at once: the row of each, and its values from the moment back to the beginning of history, and on."""
    rows, windows = zip(*looks(grid, count, random()), strict=True)
    assert all(window.steps == HISTORY_STEPS + PER_DAY for window in windows)
    return np.concatenate(rows), np.concatenate([window.values for window in windows])


def test_a_look_shows_a_series_around_a_moment_of_its_own():
    numbered = of_rows(np.arange(20.0 * PER_DAY), 1e6 + np.arange(20.0 * PER_DAY))
    rows, values = looked(numbered, 400)
    assert rows.tolist() == [0] * 400 + [1] * 400
    assert np.diff(values[:, HISTORY_STEPS - PER_HOUR : HISTORY_STEPS + PER_HOUR]).tolist() == np.ones((800, 2 * PER_HOUR - 1)).tolist()
    first, second = values[:400, HISTORY_STEPS], values[400:, HISTORY_STEPS] - 1e6
    assert (np.diff(first) >= 0).all()  # spread over the recording
    assert (first.min(), first.max()) == pytest.approx((0, 20 * PER_DAY), abs=3 * PER_HOUR)
    assert not np.array_equal(first, second)


def test_short_and_late_recordings_are_looked_at_as_often_as_long_ones():
    values = np.full((3, 20 * PER_DAY), np.nan)
    values[0] = 1.0
    values[1, :PER_DAY] = 1.0
    values[2, -PER_DAY:] = 1.0
    rows, seen = looked(UsageGrid(values, END), 20)
    assert np.bincount(rows).tolist() == [20, 20, 20]
    assert np.isfinite(outcome(UsageGrid(seen, END), HISTORY_STEPS, Horizon.HOUR)).all()
    assert np.isfinite(seen[:, HISTORY_STEPS - 1]).all()


def test_no_series_is_looked_at_more_often_than_it_has_moments():
    rows, seen = looked(of_rows(np.arange(30.0), np.arange(1000.0)), 100)
    assert np.bincount(rows).tolist() == [30 - 2 * PER_HOUR + 1, 100]
    assert seen[rows == 0, HISTORY_STEPS].tolist() == list(range(PER_HOUR, 30 - PER_HOUR + 1))[: (rows == 0).sum()]


def test_what_lies_outside_of_a_recording_is_unknown():
    _, seen = looked(of_rows(np.ones(2 * PER_DAY)), 5)
    assert np.isfinite(seen).sum(axis=1).max() <= 2 * PER_DAY


@pytest.mark.parametrize("values", [np.full((2, 30), np.nan), np.ones((2, 5)), np.empty((0, 30))], ids=["gaps", "too short", "none"])
def test_there_is_nothing_to_see_in_too_little(values):
    grids = [UsageGrid(values, END)]
    assert len(collect_rows(grids, TrainingOptions(rows=50)).matrix) == 0


def test_training_draws_from_every_source_and_no_more_than_asked(training_grids):
    rows = collect_rows(training_grids, TrainingOptions(rows=1000))
    assert 800 <= len(rows.matrix) <= 1100
    assert np.isfinite(rows.targets[Horizon.HOUR]).all()
    assert set(rows.series.tolist()) == set(range(sum(map(len, training_grids))))
    young = np.expm1(rows.matrix[:, NAMES.index("known_hours")]) < 24
    assert 0.02 < young.mean() < 0.4


def test_rows_can_be_chosen_by_series(training_grids):
    rows = collect_rows(training_grids, TrainingOptions(rows=500))
    chosen = rows.chosen(rows.series == 3)
    assert set(chosen.series.tolist()) == {3}
    assert len(chosen.matrix) == len(chosen.targets[Horizon.DAY]) == (rows.series == 3).sum() > 10


def test_the_same_data_and_seed_give_the_same_file(training_grids, saved):
    assert train(training_grids, TINY).save() == saved
    assert len(saved) < MAX_MODEL_BYTES


@pytest.mark.slow
def test_the_file_does_not_depend_on_how_many_threads_there_are(saved):
    """The number is in the file, and is right only if the libraries were limited after they were loaded: in a new process."""
    code = (
        "import sys; from test_forecast_training import TINY, train; from support.usage_grids import daily, with_gaps;"
        "sys.stdout.buffer.write(train([daily(12, 9, seed=1), with_gaps(daily(6, 9, seed=2, noise=0.3))], TINY).save())"
    )
    here = Path(__file__).parent
    environment = {"PYTHONPATH": f"{here}:{here.parent}:{here.parents[1]}", "OMP_NUM_THREADS": "2", "PATH": ""}
    assert subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True).stdout == saved


def test_another_seed_gives_another_model(training_grids, saved):
    assert train(training_grids, replace(TINY, seed=9)).save() != saved


def test_too_little_data_is_refused():
    with pytest.raises(UsageError, match="at least 500") as caught:
        train([daily(1, 0.2)], TINY)
    assert caught.value.reason == "TooLittleData"


def test_recordings_too_short_for_a_week_ago_can_be_learned_from():
    model = train([daily(30, 2)], TINY)
    assert np.isfinite(BoostingForecaster(model).fit(daily(2, 9, seed=4)).day).all()


def test_recordings_too_short_for_a_day_are_refused():
    with pytest.raises(UsageError, match="0 rows"):
        train([daily(300, 0.4)], TINY)


def test_nothing_at_all_is_refused():
    with pytest.raises(UsageError, match="0 rows"):
        train([], TINY)
