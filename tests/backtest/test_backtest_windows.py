"""The policies that look at a window of the past."""

import numpy as np
import pytest
from backtest_support import DAY, GIB, NAN, PLAIN_POLICIES, fleet, made_up

from vpa_ippr.api.errors import UsageError
from vpa_ippr.api.series import Resource
from vpa_ippr.backtest.actuator import Conditions, Guard, UpdaterRule
from vpa_ippr.backtest.contenders import COMMON_FLOOR, POLICIES, Scene, contenders
from vpa_ippr.backtest.policy import HistoryView
from vpa_ippr.backtest.replay import replay
from vpa_ippr.backtest.windows import AutopilotWindow, Krr, RecentPeak, Static, percentile_of_rows


def view(made):
    return HistoryView(made.resource, made.step_seconds, made.starts, made.usage, made.usage, np.full(len(made), NAN))


def test_percentile_is_interpolated_and_leaves_gaps_out():
    usage = made_up(series=6, days=1).usage
    for fraction in (0.0, 0.66, 0.95, 1.0):
        np.testing.assert_allclose(percentile_of_rows(usage, fraction), np.nanquantile(usage, fraction, axis=1), rtol=1e-12)


def test_krr_waits_for_100_points_and_looks_at_two_weeks():
    short, long = np.full(20 * 24, NAN), np.arange(20 * 24, dtype=float)
    short[-99:] = 1.0
    made = fleet([short, long], step=3600.0)
    target = Krr("krr", 0.95).decide(view(made)).target
    np.testing.assert_allclose(target, [NAN, np.quantile(long[-14 * 24 :], 0.95)])


def test_krr_memory_is_the_peak_and_a_margin():
    made = fleet([np.arange(1.0, 401.0)], Resource.MEMORY)
    (contender,) = contenders(["krr-simple"], made, own_floors=False)
    np.testing.assert_allclose(contender.policy.decide(view(made)).target, [400 * 1.15])


def test_recent_peak():
    usage = np.ones((2, 5 * 288))
    usage[0, 100], usage[0, -3 * 288] = 9.0, 4.0
    usage[1, -4 * 288 :] = NAN
    np.testing.assert_allclose(RecentPeak().decide(view(fleet(usage))).target, [4 * 1.15, NAN])


def test_before_any_slot_nothing_is_said():
    made = fleet(np.empty((2, 0)))
    for policy in (Krr("krr", 0.95), RecentPeak(), AutopilotWindow(Resource.CPU, 2)):
        assert np.isnan(policy.decide(view(made)).target).all()


def test_autopilot_is_a_percentile_of_samples_weighted_by_age():
    made = made_up(series=5, days=4)
    target = AutopilotWindow(Resource.CPU, 5).decide(view(made)).target
    ages = (made.slots - np.arange(made.slots)) * 300.0
    for row, used in enumerate(made.usage):
        known = np.isfinite(used)
        order = np.argsort(used[known])
        weights = np.cumsum(2.0 ** (-ages[known] / (DAY / 2))[order])
        level = used[known][order][np.searchsorted(weights, 0.95 * weights[-1])]
        # The end of a bucket of 1 %, or of a thousandth of a core.
        assert level * 1.1 <= target[row] <= (level * 1.01 + 0.001) * 1.1


def test_static_is_what_is_set_or_the_most_ever_used():
    made = fleet([[1, 5, NAN], [1, 2, 3], [NAN, NAN, NAN]], current=[NAN, 2.0, NAN])
    assert Static.of(made).amounts.tolist() == [5, 2, 0]
    (contender,) = contenders(["static"], made, own_floors=False)
    np.testing.assert_array_equal(replay(made, contender, Conditions()).allocation, [[5] * 3, [2] * 3, [0] * 3])


@pytest.mark.parametrize("resource", Resource)
def test_every_policy_keeps_to_the_common_floor(resource):
    made = fleet(np.full((2, 150), 1e-6), resource, step=1800.0)
    for contender in contenders([name for name in PLAIN_POLICIES if name != "static"], made, own_floors=False):
        assert (replay(made, contender, Conditions()).allocation[:, -1] >= COMMON_FLOOR[resource]).all()


@pytest.mark.parametrize(("name", "cpu", "memory"), [("vpa-classic", 0.025, 250 * 2**20), ("krr-simple", 0.01, 100e6)])
def test_own_floors(name, cpu, memory):
    for resource, floor in ((Resource.CPU, cpu), (Resource.MEMORY, memory)):
        made = fleet(np.full((1, 150), 1e-6), resource, step=1800.0)
        (contender,) = contenders([name], made, own_floors=True)
        assert replay(made, contender, Conditions()).allocation[0, -1] == pytest.approx(floor)


def test_each_policy_comes_with_its_rules(stand_ins):
    scene = Scene(fleet([[GIB]], Resource.MEMORY), own_floors=False, forecasters=stand_ins)
    made = [make(scene) for make in POLICIES.values()]
    rules = {one.policy.name: one.rules for one in made}
    assert list(rules) == list(POLICIES)
    assert rules["vpa-classic"].due == UpdaterRule()
    assert rules["vpa-recreate"].due == UpdaterRule(recreates=True)
    assert rules["vpa-classic"].bump is rules["static"].bump is None
    assert rules["max-guard"].guard == Guard()
    assert rules["krr-simple"].interval_seconds == DAY


def test_an_unknown_policy_is_named_with_those_that_there_are():
    with pytest.raises(UsageError, match="'vpa': choose from static, vpa-classic"):
        contenders(["vpa"], fleet([[1]]), own_floors=False)
