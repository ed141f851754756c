"""The arithmetic of a look: floor, margin, goal, guard, slope, and what the signals say."""

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from vpa_ippr.actuator import signals
from vpa_ippr.actuator.assess import Rates, assess, bearable_limit, rates, slope, take_sample
from vpa_ippr.actuator.cgroup import Snapshot
from vpa_ippr.actuator.policy import GIB, MIB, Policy
from vpa_ippr.actuator.reasons import Reason

POLICY = Policy()


def sample(at=0.0, usage=200, anon=20, file=180, peak=None, **changes):
    snapshot = Snapshot(
        usage_bytes=usage * MIB,
        high_bytes=None,
        max_bytes=512 * MIB,
        stat={"anon": anon * MIB, "inactive_file": file * MIB},
        peak_bytes=None if peak is None else peak * MIB,
    )
    return replace(take_sample(snapshot, at, 4096), **changes)


def calm(floor_mib=20, count=61, **changes):
    return [sample(float(i), usage=floor_mib + 180, anon=floor_mib, **changes) for i in range(count)]


def test_floor_is_what_no_reclaim_can_take():
    stat = {"active_file": 30, "inactive_file": 20, "slab_reclaimable": 5, "anon": 1, "shmem": 40, "unevictable": 2}
    assert take_sample(Snapshot(usage_bytes=100, high_bytes=None, max_bytes=None, stat=stat), 0, 4096).floor_bytes == 45


def test_refaults_are_pages_and_kernel_memory_is_summed():
    stat = {"workingset_refault_file": 3, "workingset_refault_anon": 2, "kernel_stack": 1, "pagetables": 2, "sock": 3}
    seen = take_sample(Snapshot(usage_bytes=0, high_bytes=None, max_bytes=None, stat=stat), 0, 16384)
    assert (seen.refault_bytes, seen.kernel_bytes) == (5 * 16384, 6)


@pytest.mark.parametrize(
    ("target", "margin_mib"),
    [(64 * MIB, 17), (256 * MIB, 17), (1 * GIB, 51.2), (100 * GIB, 1024)],
    ids=["least", "least-still", "five-percent", "most"],
)
def test_margin_goal_and_guard(target, margin_mib):
    plan = assess(calm(), target, POLICY)
    assert plan.margin_bytes == pytest.approx(margin_mib * MIB, abs=4096)
    assert plan.goal_bytes == target - plan.margin_bytes
    assert plan.goal_bytes < plan.guard_bytes < target


def test_burst_between_two_looks_widens_the_margin_and_counts_as_need():
    looks = calm()
    looks[30] = sample(30.0, usage=200, anon=20, peak=240)
    plan = assess(looks, 400 * MIB, POLICY)
    assert plan.floor_bytes == 60 * MIB
    assert plan.margin_bytes == 60 * MIB


def test_peak_from_before_the_first_look_is_not_ours():
    assert assess([sample(0.0, peak=500), *calm()[1:]], 400 * MIB, POLICY).floor_bytes == 20 * MIB


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"memory_some_us": 20_000}, Reason.BUSY),
        ({"memory_full_us": 5_000}, Reason.BUSY),
        ({"io_some_us": 300_000}, Reason.BUSY),
        ({"io_some_us": 100_000}, None),
    ],
    ids=["memory-some", "memory-full", "io-hard", "io-normal"],
)
def test_container_that_suffers_already_is_left_alone(changes, reason):
    looks = [replace(look, **{name: int(value * look.at) for name, value in changes.items()}) for look in calm()]
    verdict = assess(looks, 256 * MIB, POLICY).verdict
    assert (verdict and verdict.reason) == reason


@given(need=st.integers(1, 200 * GIB), burst=st.integers(0, 4 * GIB))
def test_bearable_limit_bears(need, burst):
    limit = bearable_limit(need, POLICY, burst)
    assert limit % 4096 == 0
    margin = min(max(0.05 * limit, 16 * MIB + POLICY.stock_bytes), GIB)
    assert limit - max(margin, 1.5 * burst) >= need


@settings(max_examples=40)
@given(st.integers(0, 1000), st.integers(40, 2000), st.integers(0, 500))
def test_refusal_is_monotone_in_the_need(floor_mib, target_mib, more_mib):
    lighter, heavier = (assess(calm(floor_mib + extra), target_mib * MIB, POLICY) for extra in (0, more_mib))
    assume(lighter.verdict is not None)
    assert heavier.verdict is not None


@given(st.floats(-1e6, 1e6), st.floats(-1e9, 1e9), st.integers(2, 50))
def test_slope_of_a_line(rise, base, count):
    times = [float(t) for t in range(count)]
    assert slope(times, [base + rise * t for t in times]) == pytest.approx(rise, rel=1e-6, abs=1e-3)


def test_rates_never_run_backwards():
    assert rates(sample(1.0, memory_some_us=500), sample(2.0, memory_some_us=100)) == Rates()
    assert rates(sample(1.0), sample(1.0, memory_some_us=100)) == Rates()


@pytest.mark.parametrize(
    ("changes", "refaulted", "steal", "reason"),
    [
        ({}, 0.0, None, None),
        ({"memory_some_us": 30_000}, 0.0, None, Reason.MEMORY_PRESSURE),
        ({"memory_full_us": 6_000}, 0.0, None, Reason.MEMORY_PRESSURE),
        ({"io_some_us": 300_000}, 0.0, None, Reason.IO_PRESSURE),
        ({}, 11.0, None, Reason.REFAULTS),
        ({"major_faults": 300}, 0.0, None, Reason.MAJOR_FAULTS),
        ({}, 0.0, 0.2, Reason.SCANNING_IN_VAIN),
        ({"memory_some_us": 20_000, "io_some_us": 200_000, "major_faults": 200}, 9.0, 0.9, None),
    ],
)
def test_soft_signals(changes, refaulted, steal, reason):
    signal = signals.soft(sample(0.0), sample(5.0, **changes), refaulted, steal, Rates(), POLICY)
    assert (signal and signal.reason) == reason


def test_what_is_normal_is_no_signal():
    normal = Rates(memory_some_percent=0.4, io_some_percent=20, major_faults_per_second=100)
    busy = sample(5.0, memory_some_us=40_000, io_some_us=1_200_000, major_faults=1500)
    assert signals.soft(sample(0.0), busy, 0.0, None, normal, POLICY) is None


@pytest.mark.parametrize(
    ("changes", "guard", "reason"),
    [
        ({}, None, None),
        ({"memory_some_us": 210_000}, None, Reason.MEMORY_PRESSURE),
        ({"memory_full_us": 110_000}, None, Reason.MEMORY_PRESSURE),
        ({"oom_kills": 1}, None, Reason.OUT_OF_MEMORY),
        ({"oom_events": 1}, None, Reason.OUT_OF_MEMORY),
        ({"limit_events": 5}, None, None),
        ({"limit_events": 5}, 210 * MIB, Reason.OUT_OF_MEMORY),
        ({"high_events": 5}, 150 * MIB, Reason.OVER_HIGH),
        ({"high_events": 5}, 199 * MIB, None),
    ],
)
def test_hard_signals(changes, guard, reason):
    before = [sample(float(t), high_bytes=guard) for t in range(2)]
    signal = signals.hard([*before, sample(2.0, high_bytes=guard, **changes)], guard, Rates(), POLICY)
    assert (signal and signal.reason) == reason


def test_hard_io_needs_its_own_longer_window():
    short = [sample(0.0), sample(2.0, io_some_us=2_000_000)]
    long = [sample(0.0), sample(5.0, io_some_us=1_300_000)]
    assert signals.hard(short, None, Rates(), POLICY) is None
    assert signals.hard(long, None, Rates(), POLICY).reason is Reason.IO_PRESSURE
    assert signals.hard(long, None, Rates(io_some_percent=10), POLICY) is None


def test_refaults_count_against_what_was_freed_above_what_is_normal():
    now = sample(5.0, refault_bytes=3 * MIB)
    assert signals.refault_percent(sample(0.0), now, 10 * MIB, Rates()) == pytest.approx(30)
    assert signals.refault_percent(sample(0.0), now, 10 * MIB, Rates(refault_bytes_per_second=0.6 * MIB)) == pytest.approx(0)
    assert signals.refault_percent(sample(0.0), now, 0, Rates()) == 0
