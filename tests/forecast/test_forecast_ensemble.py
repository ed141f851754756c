"""The hourly decision: what is learned when, who decides, and that no series and no unit changes another's answer."""

from dataclasses import fields, is_dataclass, replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.usage_grids import END, PER_DAY, PER_HOUR, daily
from vpa_ippr.forecast.boosting import BoostingForecaster
from vpa_ippr.forecast.ensemble import BY_PEAK, BY_RUNS, BY_SEASON, EnsembleDecider, needed_forecasters
from vpa_ippr.forecast.grid import HOUR_SECONDS, UsageGrid
from vpa_ippr.forecast.quantiles import LEVELS, FittedQuantiles, Horizon
from vpa_ippr.forecast.rules import Expert, Hysteresis, Peak, ResourceEnsemble, SeasonPeak
from vpa_ippr.forecast.seasonal import SeasonalForecaster, TrailingForecaster
from vpa_ippr.forecast.selection import NOBODY, SelectionRules

TRAILING, HOURLY, BOOSTING = "trailing-quantile", "hour-of-day", "gradient-boosting"
BAND = Hysteresis(raise_above=0.25, lower_below=0.2)
RUNS = Expert(TRAILING, 0.95, 1.1)
# What makes an expert wait before it takes over is tested elsewhere.
QUICK = SelectionRules(half_life_hours=48.0, prior_hours=0.0)
NAN = float("nan")


def rules(*experts, **others):
    return ResourceEnsemble(experts, BAND, RUNS, **others)


def says(hour, day=None):
    """A forecaster's answer: the same at every level, or (series, levels)."""
    hour, day = (np.asarray(one, dtype=float) for one in (hour, hour if day is None else day))
    hour, day = (np.repeat(one[:, None], len(LEVELS), axis=1) if one.ndim == 1 else one for one in (hour, day))
    return FittedQuantiles(LEVELS, hour, day, ("said",), np.zeros(len(hour), dtype=np.int64))


def hourly(values):
    """Grids of the first hour, of the first two, and so on."""
    grid = UsageGrid(np.asarray(values, dtype=float), END)
    return [grid.until(steps) for steps in range(PER_HOUR, grid.steps + 1, PER_HOUR)]


def walk(decider, grids, fit, state=None):
    """Decide at every grid; the last state and all decisions."""
    state, decisions = decider.start(len(grids[0])) if state is None else state, []
    for number, grid in enumerate(grids, start=1):
        state, decision = decider.step(state, grid, fit(number, grid))
        decisions.append(decision)
    return state, decisions


def decide(part, fitted, values, young_hours=0):
    """One decision without a past."""
    return walk(EnsembleDecider(part, young_hours), [UsageGrid(np.asarray(values, dtype=float), END)], lambda *_: fitted)[1][0]


def steady(count, days=2.0, use=1.0):
    return np.full((count, round(days * PER_DAY)), use)


def the_hours(values):
    return values.reshape(len(values), -1, PER_HOUR).max(axis=2)


class TestOutcomes:
    """What is compared with what."""

    @pytest.mark.parametrize(("nearly", "covered"), [(1.0, 1.0), (1 - 1e-9, 0.0)], ids=["exactly", "a hair below"])
    @pytest.mark.parametrize("horizon", Horizon)
    def test_a_forecast_is_judged_by_the_stretch_that_it_was_made_for(self, horizon, nearly, covered):
        """An outcome an hour early or late would be above some exact forecasts, and below some that are a hair too low."""
        values = np.exp(np.random.default_rng(0).normal(0, 0.3, (5, 60 * PER_HOUR)).cumsum(axis=1))

        def oracle(number, _):
            return {TRAILING: says(values[:, number * PER_HOUR :][:, : horizon.steps].max(axis=1, initial=0.0) * nearly)}

        state, _ = walk(EnsembleDecider(rules(Expert(TRAILING, 0.9, 1.0, horizon)), 0), hourly(values), oracle)
        calibration = state.calibrations[TRAILING, horizon]
        assert calibration.observations.tolist() == [60 - horizon.hours] * 5
        assert (calibration.covered_raw == covered).all()

    def test_an_hour_measured_less_than_half_as_much_as_usual_is_no_outcome(self):
        values = np.ones((3, 10 * PER_HOUR))
        steps = np.arange(10 * PER_HOUR) % PER_HOUR
        values[1, steps >= 2] = NAN  # read every half hour
        values[2, (steps >= 3) & (np.arange(10 * PER_HOUR) // PER_HOUR % 2 == 1)] = NAN
        fit = {TRAILING: says([1.0] * 3)}
        state, _ = walk(EnsembleDecider(rules(Expert(TRAILING, 0.9, 1.0)), 0), hourly(values), lambda *_: fit)
        assert state.calibrations[TRAILING, Horizon.HOUR].observations.tolist() == [9, 9, 4]

    @pytest.mark.parametrize("told_too_much", [0.7, 1.0, 1.5])
    def test_coverage_comes_to_what_was_asked_and_is_told(self, told_too_much):
        hours, count = 900, 8
        random = np.random.default_rng(2)
        values = random.lognormal(0, 0.3, (count, hours * PER_HOUR))
        right = np.quantile(the_hours(values), LEVELS)
        fit = {TRAILING: says(np.tile(right * told_too_much, (count, 1)))}
        grid = UsageGrid(values, END)
        grids = [grid.until(hour * PER_HOUR).last(1.0) for hour in range(1, hours + 1)]
        _, decisions = walk(EnsembleDecider(rules(Expert(TRAILING, 0.8, 1.0)), 0), grids, lambda *_: fit)
        half = hours // 2
        came = the_hours(values)[:, half:]
        for which, level in (("told", 0.9), ("target", 0.8)):
            said = np.array([getattr(decision, which) for decision in decisions[half - 1 : -1]]).T
            assert np.mean(came <= said) == pytest.approx(level, abs=0.015)
        assert decisions[-1].coverage == pytest.approx(np.full(count, 0.9), abs=0.06)
        assert np.isnan(decisions[0].coverage).all()

    def test_what_is_not_calibrated_stays_as_it_was_said(self):
        values = np.random.default_rng(3).lognormal(0, 0.3, (2, 200 * PER_HOUR))
        part = rules(Expert(TRAILING, 0.8, 1.0), Expert(HOURLY, 0.8, 1.0, calibrated=False))
        fit = {TRAILING: says([0.5, 0.5]), HOURLY: says([0.5, 0.5])}
        state, _ = walk(EnsembleDecider(part, 0), hourly(values), lambda *_: fit)
        assert list(state.calibrations) == [(TRAILING, Horizon.HOUR)]
        assert state.named[:, 1] == pytest.approx(fit[HOURLY].predict(Horizon.HOUR, (0.8,)).values[:, 0])
        assert (state.named[:, 0] > 1.2 * state.named[:, 1]).all()


class TestWhoDecides:
    """Selection, the largest answer, the peak, and runs."""

    def test_the_cheaper_expert_takes_over(self):
        part = rules(Expert(TRAILING, 0.9, 3.0), Expert(HOURLY, 0.95, 1.2), selection=QUICK)
        random = np.random.default_rng(0)
        values = random.uniform(0.9, 1.0, (2, 96 * PER_HOUR))
        # Of the other the second expert thinks far too little: more than calibration mends.
        fit = {TRAILING: says([1.0, 1.0]), HOURLY: says([1.0, 0.02])}
        _, decisions = walk(EnsembleDecider(part, 0), hourly(values), lambda *_: fit)
        last = decisions[-1]
        assert last.chosen.tolist() == [1, 0]
        assert last.by == (HOURLY, TRAILING)
        assert last.quantile.tolist() == [0.95, 0.9]
        assert decisions[0].chosen.tolist() == [0, 0]

    def test_without_selection_the_largest_answer_counts(self):
        part = rules(Expert(TRAILING, 0.9, 1.0), Expert(HOURLY, 0.95, 1.5))
        fit = {TRAILING: says([4.0, 1.0, 2.0, NAN, NAN]), HOURLY: says([1.0, 4.0, NAN, 2.0, NAN])}
        found = decide(part, fit, steady(5))
        np.testing.assert_array_equal(found.target, [4.0, 6.0, 2.0, 3.0, NAN])
        np.testing.assert_array_equal(found.quantile, [0.9, 0.95, 0.9, 0.95, NAN])
        assert found.chosen.tolist() == [0, 1, 0, 1, NOBODY]
        assert found.by == (TRAILING, HOURLY, TRAILING, HOURLY, "nobody")

    def test_nothing_is_recommended_below_the_trailing_peak(self):
        values = steady(4)
        values[:, -4 * PER_HOUR] = 5.0  # four hours ago
        values[1, :] = 1.0
        part = rules(Expert(TRAILING, 0.9, 1.0), peaks=(Peak(hours=4, factor=1.2),))
        found = decide(part, {TRAILING: says([2.0, 2.0, 9.0, NAN])}, values)
        assert found.target.tolist() == [6.0, 2.0, 9.0, 6.0]
        assert found.by == (BY_PEAK, TRAILING, TRAILING, BY_PEAK)
        assert found.quantile.tolist() == [1.0, 0.9, 0.9, 1.0]

    def test_a_peak_is_forgotten_after_its_hours(self):
        values = steady(1)
        values[:, -4 * PER_HOUR - 1] = 5.0
        part = rules(Expert(TRAILING, 0.9, 1.0), peaks=(Peak(hours=4, factor=1.2),))
        assert decide(part, {TRAILING: says([2.0])}, values).target.tolist() == [2.0]

    def test_of_several_peaks_the_highest_counts(self):
        values = steady(2, days=1)
        values[:, -6 * PER_HOUR] = 4.0
        values[1, -1] = 3.5
        part = rules(Expert(TRAILING, 0.9, 1.0), peaks=(Peak(2, 1.5), Peak(8, 1.1)))
        assert decide(part, {TRAILING: says([1.0, 1.0])}, values).target.tolist() == pytest.approx([4.4, 5.25])

    @pytest.mark.parametrize(
        ("hours_ago", "counts"),
        [(50, False), (49, True), (48, True), (46, True), (45, False), (25, True), (24, True), (22, True), (21, False), (73, False)],
    )
    def test_nothing_is_recommended_below_what_the_coming_hours_needed_on_earlier_days(self, hours_ago, counts):
        values = steady(1, days=4)
        values[0, values.shape[1] - hours_ago * PER_HOUR] = 5.0  # the first five minutes of that hour
        part = rules(Expert(TRAILING, 0.9, 1.0), seasons=(SeasonPeak(days=(1, 2), ahead_hours=3, factor=1.2, before_hours=1),))
        found = decide(part, {TRAILING: says([2.0])}, values)
        assert (found.target[0], found.by[0]) == ((6.0, BY_SEASON) if counts else (2.0, TRAILING))

    def test_days_before_the_history_began_need_nothing(self):
        season = SeasonPeak(days=(1, 5), ahead_hours=24, factor=3.0)
        found = [
            decide(rules(Expert(TRAILING, 0.9, 1.0), seasons=(season,)), {TRAILING: says([2.0])}, steady(1, days)).target[0]
            for days in (0.5, 1.0)
        ]
        assert found == [3.0, 3.0]
        far = SeasonPeak(days=(5,), ahead_hours=24, factor=3.0)
        assert decide(rules(Expert(TRAILING, 0.9, 1.0), seasons=(far,)), {TRAILING: says([2.0])}, steady(1, 1.0)).target[0] == 2.0

    def test_what_runs_now_and_then_is_sized_by_its_runs(self):
        values = np.full((3, 7 * PER_DAY), NAN)
        runs = np.arange(7 * PER_DAY) % (6 * PER_HOUR) < 4
        values[0, runs] = 3.0  # twenty minutes every six hours, the last a while ago
        values[1] = 0.2
        values[2, -PER_DAY + 1 :: 6] = 3.0  # nothing can be said yet of how often it runs
        found = decide(rules(Expert(HOURLY, 0.9, 1.0)), {HOURLY: says([0.01, 0.3, 0.3])}, values)
        assert found.target.tolist() == [pytest.approx(3.3), 0.3, 0.3]
        assert found.by == (BY_RUNS, HOURLY, HOURLY)
        assert found.quantile.tolist() == [RUNS.quantile, 0.9, 0.9]

    def test_the_runs_of_each_are_its_own_whoever_is_beside_it(self):
        random = np.random.default_rng(5)
        values = random.lognormal(0, 1, (5, 7 * PER_DAY))
        for row, every in ((0, 6), (2, 8), (3, 12)):
            values[row, np.arange(7 * PER_DAY) % (every * PER_HOUR) >= 3] = NAN
        part, said = rules(Expert(HOURLY, 0.9, 1.0)), np.full(5, 0.3)
        together = decide(part, {HOURLY: says(said)}, values)
        assert together.by == (BY_RUNS, HOURLY, BY_RUNS, BY_RUNS, HOURLY)
        for row in range(5):
            same(together, decide(part, {HOURLY: says(said[:1])}, values[row : row + 1]), slice(row, row + 1))

    @pytest.mark.parametrize(("min_density", "by"), [(0.0, HOURLY), (0.24, HOURLY), (0.26, BY_RUNS)])
    def test_how_sparse_is_sparse(self, min_density, by):
        values = np.full((1, 4 * PER_DAY), NAN)
        values[:, :: 4 * PER_HOUR] = 1.0
        found = decide(rules(Expert(HOURLY, 0.9, 1.0), min_density=min_density), {HOURLY: says([0.5])}, values)
        assert found.by == (by,)

    def test_runs_are_not_sized_below_the_trailing_peak_either(self):
        values = np.full((1, 7 * PER_DAY), NAN)
        values[:, :: 4 * PER_HOUR] = 1.0
        values[:, -4] = 8.0
        part = rules(Expert(HOURLY, 0.9, 1.0), peaks=(Peak(hours=24, factor=1.05),))
        found = decide(part, {HOURLY: says([0.5])}, values)
        assert found.target.tolist() == [8.4]
        assert found.by == (BY_PEAK,)


class TestCeiling:
    """How far beyond the history an expert may go."""

    @pytest.mark.parametrize(
        ("ceiling", "hours", "wanted"),
        [(1.5, 24, 3.0), (None, 24, 7.0), (1.5, 23, 7.0), (4.0, 24, 7.0)],
        ids=["too far", "none", "too young to tell", "not so far"],
    )
    def test_an_expert_is_not_believed_beyond_it(self, ceiling, hours, wanted):
        values = np.full((1, 3 * PER_DAY), NAN)
        values[:, -hours * PER_HOUR :] = 1.0
        values[:, -7] = 2.0
        part = rules(Expert(TRAILING, 0.9, 1.0), Expert(HOURLY, 0.9, 1.0), ceiling=ceiling)
        found = decide(part, {TRAILING: says([1.0]), HOURLY: says([7.0])}, values, young_hours=24)
        assert found.target.tolist() == [wanted]
        assert found.by == (HOURLY,)

    def test_who_says_nothing_is_not_lifted_to_it(self):
        part = rules(Expert(TRAILING, 0.9, 1.0), Expert(HOURLY, 0.9, 1.0), ceiling=1.5)
        found = decide(part, {TRAILING: says([1.0]), HOURLY: says([NAN])}, steady(1))
        assert (found.target.tolist(), found.by) == ([1.0], (TRAILING,))

    def test_a_peak_is_not_cut_by_it(self):
        part = rules(Expert(TRAILING, 0.9, 1.0), peaks=(Peak(24, 1.8),), ceiling=1.5)
        assert decide(part, {TRAILING: says([1.0])}, steady(1)).target.tolist() == [1.8]


class TestBounds:
    """What lies between them is left alone."""

    @pytest.mark.parametrize(
        ("hours", "lower", "upper"),
        [(24, 0.8, 1.25), (48, 0.8, 1.25), (12, (0.8 + 0.2) / 2, (1.25 + 7.0) / 2), (6, (0.8 + 3 * 0.2) / 4, (1.25 + 3 * 7.0) / 4)],
        ids=["old enough", "old", "half as old", "young"],
    )
    def test_of_a_young_series_they_are_as_wide_as_what_is_thought_possible(self, hours, lower, upper):
        hour, day = np.full((1, len(LEVELS)), 1.0), np.full((1, len(LEVELS)), 1.0)
        hour[0, 0], day[0, -1] = 0.2, 7.0
        values = np.full((1, 3 * PER_DAY), NAN)
        values[:, -hours * PER_HOUR :] = 1.0
        found = decide(rules(Expert(TRAILING, 0.9, 1.0)), {TRAILING: says(hour, day)}, values, young_hours=24)
        assert (found.known_hours[0], found.target[0]) == (hours, 1.0)
        assert (found.lower[0], found.upper[0]) == pytest.approx((lower, upper))

    def test_a_narrower_opinion_narrows_nothing(self):
        values = np.full((1, PER_DAY), NAN)
        values[:, -1] = 1.0
        found = decide(rules(Expert(TRAILING, 0.9, 1.0)), {TRAILING: says([1.0])}, values, young_hours=24)
        assert (found.lower[0], found.upper[0]) == pytest.approx((0.8, 1.25))

    def test_where_nothing_is_known_there_are_none(self):
        found = decide(rules(Expert(TRAILING, 0.9, 1.0)), {TRAILING: says([NAN])}, np.full((1, PER_DAY), NAN), young_hours=24)
        assert np.isnan([found.target, found.lower, found.upper]).all()


def test_each_forecaster_and_horizon_is_calibrated_once():
    part = rules(Expert(HOURLY, 0.95, 1.0), Expert(HOURLY, 0.7, 2.0), Expert(TRAILING, 0.8, 1.0, Horizon.DAY), Expert(HOURLY, 0.7, 1.0))
    groups = EnsembleDecider(part, 0).groups
    assert list(groups.items()) == [((HOURLY, Horizon.HOUR), (0.7, 0.9, 0.95)), ((TRAILING, Horizon.DAY), (0.8,))]
    assert needed_forecasters([part, rules(Expert(BOOSTING, 0.9, 1.0))]) == (HOURLY, TRAILING, BOOSTING)


# With all that there is, for tests of what must hold whatever the rules are.
BY_COST = rules(
    Expert(BOOSTING, 0.8, 1.1), Expert(BOOSTING, 0.95, 1.0), Expert(TRAILING, 0.9, 1.1), Expert(HOURLY, 0.9, 1.0, Horizon.DAY),
    selection=QUICK,
)  # fmt: skip
BY_SIZE = rules(
    Expert(BOOSTING, 0.9, 1.05, Horizon.DAY), Expert(TRAILING, 0.9, 1.0), peaks=(Peak(24, 1.05), Peak(48, 1.0)),
    seasons=(SeasonPeak((1, 2), 3, 1.02),),
)  # fmt: skip
BOTH = pytest.mark.parametrize("part", [BY_COST, BY_SIZE], ids=["by cost", "by size"])
NUMBERS = ("target", "lower", "upper", "chosen", "quantile", "told", "coverage", "known_hours")
DAYS, HOURS = 3, 26


@pytest.fixture(scope="session")
def look(model):
    """What the forecasters make of a grid."""
    forecasters = (BoostingForecaster(model), TrailingForecaster(), SeasonalForecaster())
    return lambda _, grid: {one.name: one.fit(grid) for one in forecasters}


@pytest.fixture(scope="session")
def last_decision(look):
    """What is decided at the end of the history, after deciding hourly for more than a day."""

    @cache
    def run(part, data, count):
        grid = UsageGrid(np.frombuffer(data).reshape(count, -1), END)
        return walk(EnsembleDecider(part, 24), before_the_end(grid), look)[1][-1]

    return lambda part, values: run(part, values.tobytes(), len(values))


def before_the_end(grid):
    return [grid.until(grid.steps - hour * PER_HOUR) for hour in range(HOURS - 1, -1, -1)]


def various():
    """Series of every kind: daily, wild, young, sparse, idle, with a gap, without any sample, and growing."""
    values = np.concatenate([daily(2, DAYS, seed=5).values, daily(6, DAYS, seed=6, noise=0.4).values])
    values[2, : -5 * PER_HOUR] = NAN
    values[3, np.arange(values.shape[1]) % PER_DAY > 3 * PER_HOUR] = NAN
    values[4] = 0.0
    values[5, -20 * PER_HOUR : -14 * PER_HOUR] = NAN
    values[EMPTY] = NAN
    values[7] *= np.exp2(np.arange(values.shape[1]) / PER_DAY)
    return values


EMPTY = 6


def same(found, expected, rows=slice(None)):
    for name in NUMBERS:
        np.testing.assert_array_equal(getattr(found, name)[rows], getattr(expected, name), err_msg=name)
    assert tuple(np.array(found.by)[rows]) == expected.by


@BOTH
@settings(max_examples=3, deadline=None)
@given(rows=st.lists(st.integers(0, 7), min_size=1, max_size=10))
def test_no_series_changes_anothers_decision(last_decision, part, rows):
    values = various()
    same(last_decision(part, values), last_decision(part, values[rows]), rows)


@BOTH
def test_bounds_are_around_the_target_and_all_is_known_but_of_the_empty_series(last_decision, part):
    found = last_decision(part, various())
    known = np.arange(len(found.target)) != EMPTY
    for name in ("target", "lower", "upper", "told"):
        assert np.isfinite(getattr(found, name)).tolist() == known.tolist()
    assert (found.lower <= found.target)[known].all()
    assert (found.target <= found.upper)[known].all()
    assert (found.lower >= 0)[known].all()
    assert (found.chosen == NOBODY).tolist() == (~known).tolist()


@BOTH
@pytest.mark.parametrize("factor", [2.0**33, 1e-3])
def test_the_unit_of_a_series_does_not_matter(last_decision, part, factor):
    values = various()
    found, scaled = last_decision(part, values), last_decision(part, values * factor)
    for name in ("target", "lower", "upper", "told"):
        # A power of two changes no digit; of other factors the last ones differ.
        np.testing.assert_allclose(getattr(scaled, name), getattr(found, name) * factor, rtol=0 if factor > 1 else 1e-9)
    assert scaled.by == found.by


@BOTH
def test_twice_the_use_is_soon_followed(last_decision, part):
    values = daily(4, DAYS, seed=8).values
    doubled = values.copy()
    doubled[:, -20 * PER_HOUR :] *= 2
    before, after = np.split(last_decision(part, np.concatenate((values, doubled))).target, 2)
    assert (after > 1.5 * before).all()
    assert (after < 3 * before).all()


@BOTH
@pytest.mark.parametrize("since", [0, 1, 12], ids="{} h ago".format)
def test_a_gap_of_six_hours_is_neither_nothing_nor_a_spike(last_decision, part, since):
    values = daily(6, DAYS, seed=9).values
    gaps, end = values.copy(), values.shape[1] - since * PER_HOUR
    gaps[:, end - 6 * PER_HOUR : end] = NAN
    whole, found = np.split(last_decision(part, np.concatenate((values, gaps))).target, 2)
    assert (found / whole).tolist() == pytest.approx([1.0] * 6, abs=0.5)


@BOTH
def test_the_same_state_and_history_give_the_same_and_are_left_as_they_were(last_decision, part, look):
    decider, grid = EnsembleDecider(part, 24), UsageGrid(various(), END)
    state, _ = walk(decider, before_the_end(grid)[:-1], look)
    fitted = look(HOURS, grid)
    for array in arrays_of((state, fitted, grid.values)):
        array.flags.writeable = False
    (one_state, one), (other_state, other) = (decider.step(state, grid, fitted) for _ in range(2))
    same(other, one)
    same(one, last_decision(part, various()))
    for first, second in zip(arrays_of(one_state), arrays_of(other_state), strict=True):
        np.testing.assert_array_equal(first, second)


def arrays_of(value):
    """Every array that can be reached from it."""
    if isinstance(value, np.ndarray):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, tuple | list) else ()
    if is_dataclass(value):
        parts = [getattr(value, field.name) for field in fields(value)]
    return [array for part in parts for array in arrays_of(part)]


def test_hours_are_counted_back_from_the_end_of_the_grid():
    """An hour that begins at ten past is an hour like any other."""
    values = np.random.default_rng(4).lognormal(0, 0.5, (2, 3 * PER_DAY))
    part, fit = rules(Expert(TRAILING, 0.9, 1.0), peaks=(Peak(2, 1.0),)), lambda _, grid: {TRAILING: TrailingForecaster().fit(grid)}
    grids = hourly(values)
    late = [replace(grid, end=grid.end + HOUR_SECONDS / 6) for grid in grids]
    same(walk(EnsembleDecider(part, 24), grids, fit)[1][-1], walk(EnsembleDecider(part, 24), late, fit)[1][-1])
