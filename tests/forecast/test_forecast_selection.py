"""The cheaper expert is believed, without flapping."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vpa_ippr.forecast.selection import NOBODY, Selection, SelectionRules

RULES = SelectionRules(half_life_hours=48.0, prior_hours=0.0)


def follow(allocations, usage, rules=RULES, prior=(0.0, 0.0)):
    """Decide every hour; ``allocations`` (hours, series, experts), ``usage`` (hours, series, steps); the experts chosen (hours, series)."""
    selection, chosen = Selection.start(usage.shape[1], prior, rules), []
    for named, used in zip(allocations, usage, strict=True):
        selection, decision = selection.decide(named)
        chosen.append(decision.expert)
        selection = selection.update(named, used, 1.0)
    return selection, np.array(chosen)


def usage(hours, series=1, seed=0, noise=0.1):
    return np.random.default_rng(seed).normal(1, noise, (hours, series, 12))


def constant(hours, *levels, series=1):
    return np.tile(np.array(levels), (hours, series, 1))


@pytest.mark.parametrize(
    ("levels", "cheaper"),
    [((1.4, 3.0), 0), ((3.0, 1.4), 1), ((0.5, 1.4), 1), ((1.4, 0.9), 0)],
    ids=["less slack", "less slack, second", "overrun", "violation"],
)
def test_the_cheaper_expert_is_chosen(levels, cheaper):
    _, chosen = follow(constant(30, *levels), usage(30))
    assert chosen[-1].tolist() == [cheaper]


def test_each_series_has_its_own_expert():
    allocations = np.tile([[1.4, 3.0], [3.0, 1.4], [np.nan, 2.0], [np.nan, np.nan]], (30, 1, 1))
    selection, chosen = follow(allocations, usage(30, 4))
    assert chosen[-1].tolist() == [0, 1, 1, NOBODY]
    _, decision = selection.decide(allocations[0])
    assert decision.allocation[:3].tolist() == [1.4, 1.4, 2.0]
    assert np.isnan(decision.allocation[3])


def test_the_one_that_was_better_lately_takes_over():
    allocations = np.concatenate((constant(200, 1.4, 3.0), constant(150, 3.0, 1.4)))
    _, chosen = follow(allocations, usage(350))
    assert chosen[150, 0] == 0
    assert chosen[-1, 0] == 1
    assert (np.diff(chosen[:, 0]) != 0).sum() <= 3


def test_equals_do_not_flap():
    random = np.random.default_rng(1)
    allocations = 1.4 + random.normal(0, 0.02, (500, 20, 2))
    _, chosen = follow(allocations, usage(500, 20))
    assert (np.diff(chosen[24:], axis=0) != 0).sum(axis=0).max() <= 2


def test_without_a_price_for_switching_equals_do_flap():
    random = np.random.default_rng(1)
    allocations = 1.4 + random.normal(0, 0.02, (500, 20, 2))
    _, chosen = follow(allocations, usage(500, 20), SelectionRules(half_life_hours=48, prior_hours=0, switching=0, resize=0))
    assert (np.diff(chosen[24:], axis=0) != 0).sum() > 40


def test_an_expert_that_resizes_all_the_time_pays_for_it():
    restless = np.where(np.arange(200) % 2, 1.3, 1.5)[:, None, None]
    allocations = np.concatenate((restless, np.full((200, 1, 1), 1.43)), axis=2)
    for price, chosen in ((0.05, 1), (0.0, 0)):
        rules = SelectionRules(half_life_hours=48, prior_hours=0, resize=price, switching=0)
        assert follow(allocations, usage(200, noise=0.05), rules)[1][-1, 0] == chosen


def test_the_prior_decides_until_something_was_seen():
    rules = SelectionRules(prior_hours=24)
    selection = Selection.start(1, (0.5, 0.2), rules)
    assert selection.decide(np.array([[1.0, 1.0]]))[1].expert.tolist() == [1]
    _, chosen = follow(constant(100, 1.4, 3.0), usage(100), rules, prior=(0.5, 0.2))
    assert chosen[0, 0] == 1
    assert chosen[-1, 0] == 0


def test_hours_without_samples_teach_nothing():
    selection, _ = follow(constant(20, 1.4, 3.0), usage(20))
    gap = selection.update(np.array([[1.4, 3.0]]), np.full((1, 12), np.nan), 1.0)
    assert gap.costs.tolist() == selection.costs.tolist()


def test_costs_are_what_the_rules_say():
    rules = SelectionRules(overrun=5, violation=8, resize=0, prior_hours=0)
    used = np.array([[1.0, 1.0, 1.0, 3.0]])  # 1.5 on average
    costs = Selection.start(1, (0, 0), rules).update(np.array([[2.0, 4.0]]), used, 1.0).costs
    assert costs[0].tolist() == pytest.approx([(0.75 + 5 * 0.25) / 1.5 + 8 * 0.25, 2.5 / 1.5])


@settings(max_examples=50)
@given(st.integers(0, 10_000), st.integers(-20, 20))
def test_the_unit_of_a_series_does_not_matter(seed, power):
    random = np.random.default_rng(seed)
    allocations, used = random.uniform(0.5, 3, (10, 3, 4)), random.gamma(2, 0.5, (10, 3, 12))
    factor = 2.0**power
    prior = (0.1, 0.2, 0.3, 0.4)
    assert follow(allocations, used, prior=prior)[1].tolist() == follow(allocations * factor, used * factor, prior=prior)[1].tolist()


def test_idle_series_prefer_the_smallest_allocation():
    _, chosen = follow(constant(10, 0.2, 0.01), np.zeros((10, 1, 12)))
    assert chosen[-1].tolist() == [1]


def test_series_can_go_and_come():
    selection, _ = follow(np.tile([[1.4, 3.0], [3.0, 1.4]], (30, 1, 1)), usage(30, 2))
    moved = selection.take([1, -1])
    assert moved.chosen.tolist() == [1, NOBODY]
    assert moved.costs[0].tolist() == selection.costs[1].tolist()
    assert moved.costs[1].tolist() == [0.0, 0.0]
