"""Leaks are found in time, and what only looks like one is left alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.usage_grids import PER_DAY, PER_HOUR, of_rows
from vpa_ippr.forecast.grid import UsageGrid
from vpa_ippr.forecast.leak import find_leaks

MI = 2.0**20
LIMIT = 1000 * MI


def flat(days, level=300.0, noise=3.0, seed=0):
    return (level + np.random.default_rng(seed).normal(0, noise, round(days * PER_DAY))) * MI


def sawtooth(days, period_hours, low=300.0, high=700.0, seed=0):
    random = np.random.default_rng(seed)
    phase = np.arange(round(days * PER_DAY)) / PER_HOUR / period_hours % 1
    return (low + (high - low) * phase + random.normal(0, 4, phase.size)) * MI


def rhythm(days, swing=150.0, seed=0, noise=10.0):
    steps = np.arange(round(days * PER_DAY))
    return (400 + swing * np.sin(2 * np.pi * steps / PER_DAY) + np.random.default_rng(seed).normal(0, noise, steps.size)) * MI


def found_at(series, steps):
    """Whether there is a warning at each of those moments; each becomes a row of its own, cut off there."""
    return find_leaks(of_rows(*(series[:step] for step in steps))).found


def first_warning(series, limit, every):
    """Hours from the first warning to the moment the limit is met; -inf when there is none."""
    met = int(np.argmax(series >= limit)) if (series >= limit).any() else series.size
    steps = np.arange(3 * PER_HOUR, met, every)
    found = found_at(series, steps)
    return (met - steps[found.argmax()]) / PER_HOUR if found.any() else -np.inf


@pytest.mark.parametrize("fills_in_hours", [10, 14, 24, 72, 240], ids=lambda hours: f"{hours} h")
@pytest.mark.parametrize("before_days", [0, 3], ids=["from the start", "after three days"])
def test_a_leak_is_warned_of_at_least_six_hours_ahead(fills_in_hours, before_days):
    growth = np.linspace(0, 700, fills_in_hours * PER_HOUR + 1) * MI
    series = np.concatenate((flat(before_days), flat(growth.size / PER_DAY, seed=1) + growth))
    assert first_warning(series, LIMIT, every=max(6, fills_in_hours // 2)) >= 6


def test_a_slow_leak_under_a_daily_rhythm_is_found():
    series = rhythm(25) + np.linspace(0, 500, 25 * PER_DAY) * MI
    leaks = find_leaks(of_rows(series), np.array([2000 * MI]))
    assert leaks.found[0]
    assert leaks.slope[0] == pytest.approx(500 / 600 * MI, rel=0.15)


def test_a_heap_whose_floor_rises_is_a_leak():
    series = sawtooth(6, 5) + np.linspace(0, 400, 6 * PER_DAY) * MI
    leaks = find_leaks(of_rows(series), np.array([2000 * MI]))
    assert leaks.found[0]
    assert leaks.slope[0] == pytest.approx(400 / 144 * MI, rel=0.2)


def never(series, history_days):
    """No warning at any hour once there is so much history."""
    steps = np.arange(round(history_days * PER_DAY), series.size, 2 * PER_HOUR)
    assert steps[found_at(series, steps)].tolist() == []


@pytest.mark.parametrize("period_hours", [0.3, 1, 4, 7, 12, 30], ids=lambda hours: f"{hours} h")
def test_a_heap_that_is_collected_is_no_leak(period_hours):
    never(sawtooth(10, period_hours), history_days=max(1, 2.2 * period_hours / 24))


@pytest.mark.parametrize(
    ("series", "history_days"),
    [
        (flat(8), 0.2),
        (flat(8, noise=100), 0.2),
        (rhythm(10), 2),
        (rhythm(10, noise=60), 2),
        (np.concatenate((flat(3), flat(3, level=600))), 0.2),
        (np.full(8 * PER_DAY, 300 * MI), 0.2),
        (np.zeros(4 * PER_DAY), 0.2),
        ((300 + 300 * (1 - np.exp(-np.arange(6 * PER_DAY) / (6 * PER_HOUR)))) * MI, 2),
        (np.linspace(600, 300, 4 * PER_DAY) * MI, 0.2),
        ((300 + 0.2 * np.arange(4 * PER_DAY) / PER_DAY) * MI, 0.2),
    ],
    ids=["flat", "noisy", "daily", "noisy daily", "step", "constant", "nothing", "a cache that has filled", "falling", "hardly growing"],
)
def test_what_is_no_leak_is_left_alone(series, history_days):
    never(series, history_days)


def test_the_time_left_is_told_with_its_uncertainty():
    series = flat(1) + np.linspace(0, 240, PER_DAY) * MI  # 10 MiB an hour, 460 MiB left
    leaks = find_leaks(of_rows(series, series), np.array([LIMIT, np.nan]))
    assert leaks.found.tolist() == [True, True]
    assert leaks.slope[0] == pytest.approx(10 * MI, rel=0.05)
    assert leaks.slope_low[0] < leaks.slope[0] < leaks.slope_high[0]
    assert leaks.hours_to_limit[0] == pytest.approx(46, rel=0.1)
    assert leaks.hours_to_limit_soonest[0] < leaks.hours_to_limit[0]
    assert leaks.hours_to_limit[1] == np.inf
    assert 0.7 <= leaks.confidence[0] <= 1
    finding = leaks.finding(0, "shop/cart/web")
    assert (finding.reason, finding.subject) == ("MemoryLeak", "shop/cart/web")
    assert finding.message.startswith("memory grows by 10.")
    assert "meets its limit in 4" in finding.message
    assert "has no limit" in leaks.finding(1, "x").message


def test_one_series_does_not_touch_another():
    leak = flat(2) + np.linspace(0, 300, 2 * PER_DAY) * MI
    leaks = find_leaks(of_rows(flat(2), leak, np.full(10, np.nan), flat(0.01)), np.full(4, LIMIT))
    assert leaks.found.tolist() == [False, True, False, False]
    assert np.isnan(leaks.slope[[0, 2, 3]]).all()


def test_gaps_are_no_falls_and_hide_no_leak():
    series = flat(2) + np.linspace(0, 300, 2 * PER_DAY) * MI
    series[100:172] = np.nan
    series[::17] = np.nan
    assert find_leaks(of_rows(series)).found[0]


@settings(max_examples=25, deadline=None)
@given(st.floats(0.01, 1e4), st.integers(0, 500))
def test_the_unit_does_not_matter(factor, seed):
    series = flat(2, seed=seed) + np.linspace(0, seed, 2 * PER_DAY) * MI
    once, scaled = find_leaks(of_rows(series)), find_leaks(UsageGrid(series[None] * factor, 0.0))
    assert once.found.tolist() == scaled.found.tolist()
    if once.found[0]:
        assert scaled.slope[0] == pytest.approx(once.slope[0] * factor)
