"""Memory peaks, OOM kills and sample counts of one container; the numbers are upstream's own test cases."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vpa_ippr.usage.container import (
    DAY_SECONDS,
    AggregateState,
    ContainerState,
    UsageRules,
    add_cpu,
    add_memory,
    add_oom,
    aggregate,
)

T = 1_767_225_600.0 + 3600.0
HOUR = 3600.0
MIB = 1024.0 * 1024.0
RULES = UsageRules()


def a_state(rules=RULES):
    return ContainerState.empty(rules)


def memory(state, *samples):
    for at, value in samples:
        state = add_memory(state, np.array([at]), np.array([float(value)]))
    return state


def cpu(state, *samples):
    for at, value in samples:
        state = add_cpu(state, np.array([at]), np.array([float(value)]))
    return state


def peaks_of(*peaks, rules=RULES):
    """The histogram that holds exactly these (window end, bytes)."""
    histogram = rules.empty_memory()
    for end, peak in peaks:
        histogram = histogram.add(end, peak)
    return histogram


def assert_same(histogram, expected):
    assert histogram.weights.tolist() == pytest.approx(expected.weights.tolist(), rel=1e-12)
    assert histogram.total_weight == pytest.approx(expected.total_weight, rel=1e-12)


def test_cpu_samples_weigh_a_tenth_each():
    state = cpu(a_state(), (T, 3.14), (T + 12 * HOUR, 6.28), (T + DAY_SECONDS, 1.57))
    expected = RULES.empty_cpu().add([T, T + 12 * HOUR, T + DAY_SECONDS], [3.14, 6.28, 1.57], 0.1)
    assert_same(state.cpu, expected)
    assert (state.cpu_span.count, state.cpu_span.first, state.cpu_span.last) == (3, T, T + DAY_SECONDS)


@pytest.mark.parametrize("sample", [(T, 1.0), (T - 1, 1.0), (T + 60, -0.5)], ids=["same time", "older", "negative"])
def test_unusable_cpu_samples_change_nothing(sample):
    state = cpu(a_state(), (T, 3.14))
    assert cpu(state, sample) is state


def test_cpu_is_counted_in_whole_millicores():
    # Bucket 2 begins at 20.5 m: what lies between that and 21 m counts as 20 m, which is in bucket 1.
    assert np.flatnonzero(cpu(a_state(), (T, 0.0209)).cpu.weights).tolist() == [1]
    assert np.flatnonzero(cpu(a_state(), (T, 0.0211)).cpu.weights).tolist() == [2]


def test_one_memory_peak_a_day():
    state = memory(a_state(), (T, 5e9), (T + 12 * HOUR, 10e9), (T + DAY_SECONDS, 2e9))
    assert_same(state.memory(), peaks_of((T + DAY_SECONDS, 10e9), (T + 2 * DAY_SECONDS, 2e9)))


def test_a_running_peak_can_be_left_out():
    state = memory(a_state(), (T, 5e9), (T + DAY_SECONDS, 2e9))
    assert_same(state.memory(closed_before=T + DAY_SECONDS), peaks_of((T + DAY_SECONDS, 5e9)))


def test_a_silence_leaves_no_peaks():
    state = memory(a_state(), (T, 5e9), (T + 3.5 * DAY_SECONDS, 6e9))
    assert_same(state.memory(), peaks_of((T + DAY_SECONDS, 5e9), (T + 4 * DAY_SECONDS, 6e9)))


def test_a_first_sample_of_zero_does_not_hide_the_peak_of_the_day():
    assert_same(memory(a_state(), (T, 0), (T + 60, 5e9)).memory(), peaks_of((T + DAY_SECONDS, 5e9)))


@pytest.mark.parametrize("sample", [(T - 1, 9e9), (T + 60, -1.0)], ids=["older", "negative"])
def test_unusable_memory_samples_change_nothing(sample):
    state = memory(a_state(), (T, 5e9))
    assert memory(state, sample) is state


def a_state_with_oom(state, at, request):
    killed = add_oom(state, at, int(request))
    assert killed is not None
    return killed


@pytest.mark.parametrize(
    ("request_mib", "needed_mib"), [(1000, 1200), (1, 101), (400, 500), (600, 720)], ids=["ratio", "floor", "floor wins", "ratio wins"]
)
def test_need_after_an_oom_kill(request_mib, needed_mib):
    state = a_state_with_oom(a_state(), T, request_mib * MIB)
    assert_same(state.memory(), peaks_of((T + DAY_SECONDS, needed_mib * MIB)))


def test_oom_kills_at_the_same_request_do_not_ratchet():
    state = a_state_with_oom(a_state(), T, 1000 * MIB)
    for _ in range(2):
        state = a_state_with_oom(state, T, 999 * MIB)
    assert_same(state.memory(), peaks_of((T + DAY_SECONDS, 1200 * MIB)))
    state = a_state_with_oom(state, T, 2000 * MIB)
    assert_same(state.memory(), peaks_of((T + DAY_SECONDS, 2400 * MIB)))
    assert state.oom_kills == 4


def test_need_starts_from_known_use_above_the_request():
    state = a_state_with_oom(memory(a_state(), (T, 3000 * MIB)), T, 1000 * MIB)
    assert_same(state.memory(), peaks_of((T + DAY_SECONDS, 3600 * MIB)))


def test_an_old_oom_kill_does_not_count():
    assert add_oom(memory(a_state(), (T, 1000 * MIB)), T - 30 * HOUR, int(1000 * MIB)) is None


def test_an_oom_kill_two_windows_later_opens_a_window():
    state = a_state_with_oom(memory(a_state(), (T, 2000 * MIB)), T + 1.5 * DAY_SECONDS, 1000 * MIB)
    assert_same(state.memory(), peaks_of((T + DAY_SECONDS, 2000 * MIB), (T + 2 * DAY_SECONDS, 2400 * MIB)))


def test_an_oom_kill_reported_just_after_the_window_turned_counts():
    state = memory(a_state(), (T, 100 * MIB), (T + DAY_SECONDS, 2000 * MIB))
    state = a_state_with_oom(state, T + DAY_SECONDS - 1, 1000 * MIB)
    assert_same(state.memory(), peaks_of((T + DAY_SECONDS, 100 * MIB), (T + 2 * DAY_SECONDS, 2400 * MIB)))


HOURLY = replace(RULES, aggregation_interval_seconds=HOUR)


@pytest.mark.parametrize(
    ("distance", "peaks"),
    [(2 * HOUR, [(T + HOUR, 1e9), (T + 3 * HOUR, 2e9)]), (HOUR / 2, [(T + HOUR, 2e9)])],
    ids=["two windows", "one window"],
)
def test_windows_of_an_hour(distance, peaks):
    state = memory(a_state(HOURLY), (T, 1e9), (T + distance, 2e9))
    assert_same(state.memory(), peaks_of(*peaks, rules=HOURLY))


def test_oom_kills_with_windows_of_an_hour():
    state = memory(a_state(HOURLY), (T, 1000 * MIB))
    assert add_oom(state, T - 2 * HOUR, int(1000 * MIB)) is None
    state = a_state_with_oom(state, T + 2 * HOUR, 1000 * MIB)
    assert_same(state.memory(), peaks_of((T + HOUR, 1000 * MIB), (T + 3 * HOUR, 1200 * MIB), rules=HOURLY))


@pytest.mark.parametrize("count", [2, 16])
def test_number_of_windows_matters_for_expiry_only(count):
    rules = replace(RULES, aggregation_interval_count=count)
    samples = ((T, 5e9), (T + 12 * HOUR, 10e9), (T + DAY_SECONDS, 2e9))
    assert_same(memory(a_state(rules), *samples).memory(), memory(a_state(), *samples).memory())
    assert rules.expiry_seconds == count * DAY_SECONDS


def test_each_instance_has_its_own_windows():
    first, second = memory(a_state(), (T, 5e9)), memory(a_state(), (T + HOUR, 7e9))
    total = aggregate(AggregateState.empty(RULES), [cpu(first, (T, 1.0)), cpu(second, (T + HOUR, 1.0), (T + 2 * HOUR, 1.0))])
    assert_same(total.memory, peaks_of((T + DAY_SECONDS, 5e9), (T + HOUR + DAY_SECONDS, 7e9)))
    assert (total.cpu_span.count, total.cpu_span.first, total.cpu_span.last) == (3, T, T + 2 * HOUR)
    assert total.last_sample == T + 2 * HOUR


STEPS = st.lists(st.tuples(st.integers(1, 3 * 86_400), st.floats(0, 5e9)), min_size=1, max_size=30)


@settings(max_examples=50)
@given(STEPS, st.integers(0, 30))
def test_feeding_in_parts_is_the_same_as_at_once(steps, cut):
    times = T + np.cumsum([float(step) for step, _ in steps])
    values = np.array([value for _, value in steps])
    whole = add_memory(add_cpu(a_state(), times, values / 1e9), times, values)
    parts = a_state()
    for part in (slice(None, cut), slice(cut, None)):
        parts = add_memory(add_cpu(parts, times[part], values[part] / 1e9), times[part], values[part])
    single = a_state()
    for at, value in zip(times.tolist(), values.tolist(), strict=True):
        single = memory(cpu(single, (at, value / 1e9)), (at, value))
    for other in (parts, single):
        assert other.cpu.weights.tolist() == whole.cpu.weights.tolist()
        assert other.memory().weights.tolist() == whole.memory().weights.tolist()
        assert other.window == whole.window
        assert (other.cpu_span, other.memory_span) == (whole.cpu_span, whole.memory_span)
