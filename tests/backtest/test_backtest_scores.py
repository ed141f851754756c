"""Scores computed by hand."""

from dataclasses import replace

import numpy as np
import pytest
from backtest_support import DAY, GIB, HOUR, NAN, assert_same, fleet

from vpa_ippr.api.series import Resource
from vpa_ippr.backtest.averages import average
from vpa_ippr.backtest.policy import Forecasted
from vpa_ippr.backtest.replay import Replay
from vpa_ippr.backtest.scores import coverage, pinball_loss, score, slots_to_score


def replayed(allocation, resized=None, policy="p"):
    held = np.array(allocation, float)
    moved = np.zeros(held.shape, bool) if resized is None else np.array(resized, bool)
    return Replay(policy, held, moved, np.zeros(len(held), int))


def scored(made, one, warmup=0.0):
    return score(made, one, slots_to_score(made, [one], warmup))


def test_cpu_by_hand():
    made = fleet([[1, 3, 2, 0]], step=HOUR)
    found = scored(made, replayed([[2, 2, 2, 2]], [[0, 1, 0, 1]]))
    assert found.days == 4 / 24
    assert found.allocated == 8
    assert found.slack == 1 + 0 + 0 + 2
    assert found.relative_slack == 3 / 8
    assert found.violation_time == 1 / 4
    assert found.violation_volume == 1 / 6
    assert found.ooms_per_day == found.any_oom == 0
    assert found.resizes_per_day == 2 / (4 / 24)


def test_memory_by_hand():
    made = fleet([[1 * GIB, 3 * GIB, 3 * GIB], [GIB, GIB, GIB]], Resource.MEMORY, step=HOUR)
    found = scored(made, replayed([[2 * GIB, 2 * GIB, 4 * GIB], [GIB, GIB, GIB]]))
    assert found.allocated.tolist() == [8, 3]
    assert found.slack.tolist() == [2, 0]
    assert found.ooms_per_day.tolist() == [8, 0]
    assert found.any_oom.tolist() == [1, 0]


def test_gaps_and_warmup_count_nowhere():
    made = fleet([[9, 1, NAN, 1]], step=HOUR)
    found = scored(made, replayed([[1, 2, 2, 2]], [[1, 1, 1, 1]]), warmup=HOUR)
    assert (found.days, found.allocated, found.slack, found.violation_time) == (2 / 24, 4, 2, 0)
    # A resize in the gap is one that the container would have seen; one in the warm-up is not.
    assert found.resizes_per_day == 3 / (2 / 24)


def test_slots_count_only_if_every_policy_has_decided():
    made = fleet([[1, 1, 1]])
    mask = slots_to_score(made, [replayed([[NAN, 1, 1]]), replayed([[NAN, NAN, 1]])], 0.0)
    np.testing.assert_array_equal(mask, [[False, False, True]])


def test_no_usage_at_all_is_no_violation_and_a_series_without_slots_has_no_score():
    made = fleet([[0, 0], [NAN, NAN]], step=HOUR)
    found = scored(made, replayed([[1, 1], [1, 1]]))
    np.testing.assert_array_equal(found.violation_volume, [0, NAN])
    np.testing.assert_array_equal(found.relative_slack, [1, NAN])
    np.testing.assert_array_equal(found.violation_time, [0, NAN])
    np.testing.assert_array_equal(found.any_oom, [0, NAN])


def test_pinball_and_coverage_by_hand():
    actual, forecast = np.array([[1.0, 3, 5, NAN], [NAN, 1, 1, 1]]), np.array([[2.0, 2, 5, 1], [1, NAN, NAN, NAN]])
    np.testing.assert_allclose(pinball_loss(actual, forecast, 0.9), [(0.1 * 1 + 0.9 * 1 + 0) / 3, NAN])
    np.testing.assert_allclose(coverage(actual, forecast), [2 / 3, NAN])


class TestForecasts:
    """What a policy told is held against what came."""

    @staticmethod
    def scored(usage, told, horizon, warmup=0.0, quantile=0.9):
        made = fleet(usage, step=HOUR)
        forecasts = {slot: Forecasted(np.array(values, float), quantile, horizon * HOUR) for slot, values in told.items()}
        return scored(made, replace(replayed(np.full(made.usage.shape, 9.0)), forecasts=forecasts), warmup)

    def test_by_hand(self):
        found = self.scored([[1, 3, 5, 7], [2, 2, 2, 2]], {0: [4, 1], 2: [6, 2]}, horizon=2)
        # Of 3 and 7, and of 2 and 2, as a share of a usual use of 4 and of 2.
        assert found.pinball == pytest.approx([(0.1 * 1 + 0.9 * 1) / 2 / 4, 0.9 * 1 / 2 / 2])
        assert found.coverage.tolist() == [0.5, 0.5]

    def test_a_policy_that_tells_nothing_has_no_such_score(self):
        for told in ({}, {0: [NAN]}):
            found = self.scored([[1, 3, 5, 7]], told, horizon=1)
            assert np.isnan([found.pinball, found.coverage]).all()

    def test_warmup_gaps_and_the_end_count_nowhere(self):
        usage = [[5, 5, 5, 1, NAN, NAN, 1, 1], [1] * 8]
        # Of the first container, whose forecasts of 0 would all be missed, only hours 2 and 6 count: 0 and 1 are warm-up, 5 lies in a gap
        # though half of what follows is known, and of the three hours after 3 and after 7 less than half is.
        found = self.scored(usage, {slot: [9 if slot == 2 else 0, 9] for slot in range(8)}, horizon=3, warmup=2 * HOUR)
        assert found.coverage.tolist() == [1 / 2, 1]

    def test_the_quantile_is_the_policys_own(self):
        assert self.scored([[4.0]], {0: [2]}, horizon=1, quantile=0.5).pinball == pytest.approx([0.5 * 2 / 4])


class TestAverages:
    """Series to sources to one number."""

    @staticmethod
    def averages(usage, own, base, sources, seed=0):
        made = fleet(usage, step=DAY, sources=sources)
        pair = [replayed(own), replayed(base)]
        mask = slots_to_score(made, pair, 0.0)
        return average(score(made, pair[0], mask), score(made, pair[1], mask), sources, seed)

    def test_ratios_are_geometric_within_a_source_and_means_over_sources(self):
        found = self.averages([[1.0]] * 8, [[2], [8], [4], [4], [3], [3], [3], [3]], [[4]] * 8, ["a"] * 4 + ["b"] * 4)
        assert found.by_source["a"]["allocation_ratio"] == pytest.approx(1.0)
        assert found.by_source["b"]["allocation_ratio"] == pytest.approx(0.75)
        assert found.balanced["allocation_ratio"].value == pytest.approx(0.875)
        # Slack of 1, 7, 3, 3 against 3 each; of 2 against 3.
        assert found.balanced["slack_ratio"].value == pytest.approx(((1 * 7 * 3 * 3 / 81) ** 0.25 + 2 / 3) / 2)

    def test_every_source_counts_the_same_but_small_ones_not_at_all(self):
        usage = [[2.0]] * 4 + [[0.5]] * 10 + [[2.0]] * 3
        sources = ["few"] * 4 + ["many"] * 10 + ["three"] * 3
        found = self.averages(usage, [[1]] * 17, [[1]] * 17, sources)
        assert {source: numbers["violation_time"] for source, numbers in found.by_source.items()} == {"few": 1, "many": 0, "three": 1}
        assert found.balanced["violation_time"].value == 0.5

    def test_if_all_sources_are_small_all_count(self):
        assert self.averages([[2.0], [0.5]], [[1], [1]], [[1], [1]], ["a", "b"]).balanced["violation_time"].value == 0.5

    def test_no_slack_has_no_ratio(self):
        found = self.averages([[2.0], [1.0], [1.0], [1.0]], [[1], [2], [2], [2]], [[1], [3], [3], [3]], ["a"] * 4)
        assert found.balanced["slack_ratio"].value == pytest.approx(0.5)

    def test_changes_are_differences_to_the_baseline(self):
        found = self.averages([[2.0]] * 4, [[3], [1], [3], [1]], [[1]] * 4, ["a"] * 4)
        assert found.balanced["violation_time_change"].value == -0.5

    def test_intervals_hold_the_value_and_are_the_same_for_a_seed(self):
        random = np.random.default_rng(3)
        usage, held = random.lognormal(0, 1, (40, 1)), random.lognormal(0.5, 1, (40, 1))
        sources = ["a"] * 15 + ["b"] * 25
        one, same, other = (self.averages(usage, held, np.full((40, 1), 2.0), sources, seed) for seed in (1, 1, 2))
        assert_same(one, same)
        assert one.balanced["allocation_ratio"] != other.balanced["allocation_ratio"]
        for metric in ("allocation_ratio", "violation_time", "violation_volume"):
            number = one.balanced[metric]
            assert number.low < number.value < number.high

    def test_equal_series_leave_no_doubt(self):
        number = self.averages([[1.0]] * 5, [[2]] * 5, [[4]] * 5, ["a"] * 5).balanced["allocation_ratio"]
        assert (number.value, number.low, number.high) == pytest.approx((0.5, 0.5, 0.5))
