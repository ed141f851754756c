"""The actuator, case by case: one series, slots of an hour, limits in bytes unless said otherwise."""

import numpy as np
import pytest
from backtest_support import GIB, HOUR, MIB, NAN, drive

from vpa_ippr.api.series import Resource
from vpa_ippr.backtest.actuator import Actuator, ActuatorRules, Conditions, Guard, OomBump, RelativeRule, UpdaterRule
from vpa_ippr.backtest.policy import Targets

PLAIN = ActuatorRules(bump=None)


@pytest.mark.parametrize(
    ("script", "held"),
    [
        ([100, 109, 111], [100, 100, 111]),
        ([100, 91, 89], [100, 100, 89]),
        ([NAN, NAN, 100], [NAN, NAN, 100]),
        ([100, NAN, None, 200], [100, 100, 100, 200]),
    ],
    ids=["raise-over-a-tenth", "lower-over-a-tenth", "nothing-before-the-first", "nan-and-no-decision-keep"],
)
def test_relative_rule(script, held):
    found, moved = drive(PLAIN, script, [1] * len(script))
    np.testing.assert_array_equal(found, held)
    # The first allocation is no resize.
    assert sum(moved) == len({value for value in held if value > 0}) - 1


def test_a_rule_for_each_direction():
    rules = ActuatorRules(due=RelativeRule(raise_above=0.02, lower_below=0.2), bump=None)
    assert drive(rules, [100, 103, 85, 80], [1] * 4)[0] == [100, 103, 103, 80]


def test_cooldown_counts_from_the_last_resize_of_any_kind():
    rules = ActuatorRules(due=RelativeRule(raise_cooldown_seconds=2 * HOUR, lower_cooldown_seconds=3 * HOUR), bump=None)
    script = [100, 200, 300, 400, 100, 100, 100]
    assert drive(rules, script, [1] * 7)[0] == [100, 200, 200, 400, 400, 400, 100]


def test_an_urgent_raise_knows_no_cooldown():
    rules = ActuatorRules(due=RelativeRule(raise_cooldown_seconds=9 * HOUR), bump=OomBump(1.2, 0))
    assert drive(rules, [1000, 1500, None, None], [1, 1600, 1, 1])[0] == [1000, 1500, 1800, 1800]


@pytest.mark.parametrize(
    ("limit", "used", "after"),
    [
        (GIB, 1.1 * GIB, 1.2 * GIB),
        (200 * MIB, 201 * MIB, 300 * MIB),
        (GIB, GIB, GIB),
        (GIB, NAN, GIB),
    ],
    ids=["ratio", "least", "at-the-limit-is-no-kill", "no-sample-is-no-kill"],
)
def test_bump_after_an_oom_kill(limit, used, after):
    assert drive(ActuatorRules(), [limit, None], [used, 1])[0] == [limit, pytest.approx(after)]


def test_cpu_above_its_allocation_is_no_kill():
    rules = ActuatorRules(guard=Guard())
    assert drive(rules, [1.0, None], [5.0, 1.0], Resource.CPU)[0] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("used", "after"),
    [(94, 100), (96, 105.6), (99, 108.9), (150, 165)],
    ids=["far-enough", "near", "nearer", "over-the-limit"],
)
def test_guard(used, after):
    assert drive(ActuatorRules(guard=Guard(), bump=None), [100, None], [used, 1])[0] == [100, pytest.approx(after)]


@pytest.mark.parametrize(
    ("uses", "after"),
    [([80, 88], 100), ([80, 92], 1.1 * 98), ([92, 80], 100), ([80, float("nan"), 92], 1.1 * 98), ([92], 100), ([96], 105.6)],
    ids=["growing slowly", "growing fast", "falling", "over a gap", "nothing before", "near"],
)
def test_guard_that_looks_ahead(uses, after):
    rules = ActuatorRules(guard=Guard(growth=0.5), bump=None)
    assert drive(rules, [100, *[None] * len(uses)], [*uses, 1], step=300.0)[0][-1] == pytest.approx(after)


def test_growth_is_that_of_five_minutes_whatever_the_grid():
    rules = ActuatorRules(guard=Guard(growth=0.5), bump=None)
    assert drive(rules, [100, None, None], [80, 88, 1], step=60.0)[0][-1] == pytest.approx(1.1 * (88 + 0.5 * 5 * 8))
    assert drive(rules, [100, None, None], [80, 92, 1], step=600.0)[0][-1] == 100


def test_guard_and_bump_together_give_the_higher():
    rules = ActuatorRules(guard=Guard(), bump=OomBump(1.2, 0))
    assert drive(rules, [100, None], [101, 1])[0] == [100, 120]
    assert drive(rules, [100, None], [200, 1])[0] == [100, pytest.approx(220)]


def test_a_decision_may_only_add_to_an_urgent_raise():
    rules = ActuatorRules(bump=OomBump(1.2, 0))
    assert drive(rules, [100, 50], [101, 1])[0] == [100, 120]
    assert drive(rules, [100, 500], [101, 1])[0] == [100, 500]


def test_nothing_is_set_below_the_floor():
    assert drive(ActuatorRules(floor=50, bump=None), [10, 70, 20], [1] * 3)[0] == [50, 70, 50]


class TestUpdater:
    """Upstream's rule: outside the bounds at once, else by a tenth once the pod is 12 h old, or after a quick OOM kill."""

    RULES = ActuatorRules(due=UpdaterRule(), bump=None)

    def test_outside_the_bounds_at_once(self):
        assert drive(self.RULES, [100, (90, 80, 99), (120, 95, 150), (120, 100, 150)], [1] * 4)[0] == [100, 90, 120, 120]

    @pytest.mark.parametrize(("target", "after"), [(109, 100), (110, 110), (91, 100), (90, 90)])
    def test_inside_the_bounds_by_a_tenth_after_12_hours(self, target, after):
        wanted = (target, 1, 1000)
        held, _ = drive(self.RULES, [100, *[wanted] * 12], [1] * 13)
        assert held == [100] * 12 + [after]

    def test_in_place_leaves_the_pods_age_and_a_new_pod_begins_again(self):
        script = [100, *[(150, 1, 1000)] * 12, *[(200, 1, 1000)] * 13]
        in_place, moved = drive(self.RULES, script, [1] * len(script))
        assert (in_place[12:14], sum(moved)) == ([150, 200], 2)
        recreated, moved = drive(ActuatorRules(due=UpdaterRule(recreates=True), bump=None), script, [1] * len(script))
        assert recreated == [100] * 12 + [150] * 12 + [200] * 2
        assert sum(moved) == 2

    @pytest.mark.parametrize(("runs_slots", "after"), [(1, 105), (2, 100)], ids=["within-10-minutes", "later"])
    def test_quick_oom(self, runs_slots, after):
        used = [1] * runs_slots + [101, 1, 1]
        held, _ = drive(self.RULES, [100, *[(105, 1, 1000)] * (runs_slots + 2)], used, step=300.0)
        assert held[-1] == after


def test_refused_resizes_are_lost_and_counted():
    actuator = Actuator(PLAIN, Conditions(refused=1.0), Resource.MEMORY, 2, HOUR)
    for target in (100.0, 200.0, 300.0):
        assert not actuator.begin(Targets.only(np.full(2, target))).any()
        actuator.end(np.ones(2))
    assert actuator.in_force.tolist() == [100, 100]
    assert actuator.refused.tolist() == [2, 2]


def test_a_deferred_raise_waits_and_a_lowering_does_not():
    conditions = Conditions(deferred=1.0, deferred_seconds=2 * HOUR)
    held, moved = drive(PLAIN, [100, 200, None, None, 50], [1] * 5, conditions=conditions)
    assert held == [100, 100, 100, 200, 50]
    assert moved == [False, False, False, True, True]


def test_a_newer_target_replaces_the_one_that_waits():
    conditions = Conditions(deferred=1.0, deferred_seconds=2 * HOUR)
    assert drive(PLAIN, [100, 200, 300, None, None], [1] * 5, conditions=conditions)[0] == [100, 100, 100, 300, 300]


def test_the_rates_hold_on_average_and_depend_on_the_seed_alone():
    def refused(seed):
        actuator = Actuator(PLAIN, Conditions(refused=0.3, seed=seed), Resource.MEMORY, 50, HOUR)
        for slot in range(100):
            actuator.begin(Targets.only(np.full(50, 100.0 if slot % 2 else 200.0)))
            actuator.end(np.ones(50))
        return actuator.refused

    counts = refused(1)
    assert 0.25 < counts.sum() / (50 * 70) < 0.45
    np.testing.assert_array_equal(counts, refused(1))
    assert (counts != refused(2)).any()
