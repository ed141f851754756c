"""Judging by models that saw neither a series nor its siblings, with figures that mean what they say."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.usage_grids import END, PER_DAY, SMALL_TRAINING, daily, of_rows
from vpa_ippr.api.errors import UsageError
from vpa_ippr.forecast.crossvalidation import JUDGED, Source, cross_validate, deal, judge
from vpa_ippr.forecast.grid import UsageGrid
from vpa_ippr.forecast.quantiles import Horizon
from vpa_ippr.forecast.training import train

MOMENTS = 300
P90 = JUDGED.index(0.9)
OPTIONS = replace(SMALL_TRAINING, levels=JUDGED)


def source(name, grid, groups=None):
    return Source(name, "cpu", grid, tuple(groups or (f"{name}/{row}" for row in range(len(grid)))))


@given(st.lists(st.lists(st.integers(0, 20), max_size=30), min_size=1, max_size=4), st.integers(2, 5), st.integers(0, 99))
def test_workloads_stay_whole_and_are_spread_evenly(groups, folds, seed):
    names = [[f"g{number}" for number in source] for source in groups]
    known = {name for one in names for name in one}
    if len(known) < folds:
        with pytest.raises(UsageError, match="cannot deal"):
            deal(names, folds, np.random.default_rng(seed))
        return
    dealt = deal(names, folds, np.random.default_rng(seed))
    fold_of = {}
    for one, numbers in zip(names, dealt, strict=True):
        assert len(numbers) == len(one)
        for name, number in zip(one, numbers.tolist(), strict=True):
            assert fold_of.setdefault(name, number) == number
    counts = np.bincount(list(fold_of.values()), minlength=folds)
    assert counts.max() - counts.min() <= 1


def test_every_source_is_judged_out_of_its_fold():
    told = []
    rhythm, short = source("rhythm", daily(9, 9)), source("short", daily(3, 1.2, seed=3))
    found = cross_validate([rhythm, short], OPTIONS, 3, MOMENTS, told.append)
    assert told == [1, 2, 3]
    assert [quality.source.name for quality in found] == ["rhythm", "short"]
    hour = found[0].scores[Horizon.HOUR]
    assert 250 < hour.moments < 350
    assert hour.coverage == pytest.approx(JUDGED, abs=0.12)
    assert hour.pinball[P90] < hour.trailing[P90]


def test_a_model_that_saw_the_siblings_is_not_asked():
    """All series of a workload do the same odd thing: who saw one of them knows the others."""
    odd = np.tile(np.where(np.arange(8 * PER_DAY) % 97 < 7, 30.0, 1.0), (6, 1)) * np.linspace(1, 5, 6)[:, None]
    siblings = source("odd", UsageGrid(odd, END), ["odd"] * 6)
    strangers = source("odd", UsageGrid(odd, END))
    plain = source("plain", daily(6, 8))
    options = replace(OPTIONS, rows=4000)
    apart, mixed = (cross_validate([one, plain], options, 2, MOMENTS, print)[0].scores[Horizon.HOUR] for one in (siblings, strangers))
    assert apart.pinball[P90] > 1.1 * mixed.pinball[P90]


def test_the_same_seed_gives_the_same_figures():
    one, two = (cross_validate([source("a", daily(6, 4))], OPTIONS, 2, MOMENTS, print)[0].scores for _ in range(2))
    assert one == two


@pytest.fixture(scope="module")
def model():
    return train([daily(12, 9, seed=1)], OPTIONS)


def test_losses_are_shares_of_the_scale(model):
    grid = daily(5, 9, seed=8)
    one, scaled = (judge(model, source("a", UsageGrid(grid.values * factor, END)), 0, MOMENTS).scores for factor in (1.0, 1e9))
    for horizon in Horizon:
        assert scaled[horizon].pinball == pytest.approx(one[horizon].pinball)
        assert scaled[horizon].trailing == pytest.approx(one[horizon].trailing)


def test_a_steady_series_is_forecast_without_loss_by_its_past(model):
    score = judge(model, source("steady", of_rows(np.full(5 * PER_DAY, 2.0))), 0, MOMENTS).scores[Horizon.HOUR]
    assert score.trailing == (0.0,) * len(JUDGED)
    assert score.pinball[0] > 0


def test_what_never_lasts_a_day_has_no_figures_for_the_day(model):
    scores = judge(model, source("short", daily(4, 0.3)), 0, MOMENTS).scores
    assert Horizon.HOUR in scores
    assert Horizon.DAY not in scores
    assert judge(model, source("idle", of_rows(np.zeros(PER_DAY))), 0, MOMENTS).scores == {}


def test_days_leave_gaps_out():
    grid = of_rows(np.ones(PER_DAY), np.where(np.arange(PER_DAY) % 2, np.nan, 1.0))
    assert source("a", grid).days == 1.5
