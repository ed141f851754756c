"""Usage in steps of five minutes: what a step holds, which pod counts, what is kept apart, and that parts make the whole."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vpa_ippr.api.series import ContainerRef, Resource, UsageSeries
from vpa_ippr.usage.container import DAY_SECONDS
from vpa_ippr.usage.feeding import feed
from vpa_ippr.usage.steps import FORGET_SECONDS, STEPS_PER_DAY, ContainerSteps, StepRow, StepRules

T = 1_767_225_600.0  # a midnight
BEGIN = int(T // 300)
RULES = StepRules(steps=STEPS_PER_DAY, startup_seconds=0.0)


def series(resource, values, pod="web-1", start=T, step=60.0):
    ref = ContainerRef("shop", pod, "app")
    return UsageSeries(ref, resource, start + step * np.arange(len(values)), np.asarray(values, dtype=np.float64))


def cpu(values, **where):
    return series(Resource.CPU, values, **where)


def memory(values, **where):
    return series(Resource.MEMORY, values, **where)


def fed(*all_series, rules=RULES, until=T + 1800.0, observed_from=T):
    return feed(ContainerSteps.empty(rules, observed_from), all_series, until=until)


def test_cpu_counts_with_its_mean_and_memory_with_its_largest():
    steps = fed(cpu([1, 2, 3, 4, 5, 7]), memory([1e9, 3e9, 2e9, 1e9, 1e9, 5e9]), until=T + 600.0)
    assert steps.cpu.before(BEGIN + 2, 2).tolist() == [3.0, 7.0]
    assert steps.memory.before(BEGIN + 2, 2).tolist() == [3e9, 5e9]


def test_a_step_is_closed_when_its_time_is_over():
    steps = fed(cpu([1.0] * 5), until=T + 299.0)
    assert (steps.cpu.end, len(steps.cpu.values)) == (BEGIN, 0)
    steps = feed(steps, [], until=T + 300.0, after=T + 299.0)
    assert steps.cpu.values.tolist() == [1.0]


def test_six_hours_without_samples_are_unknown():
    first = fed(cpu([1.0] * 30), memory([1e9] * 30), until=T + 1800.0)
    steps = feed(first, [cpu([2.0] * 5, start=T + 7 * 3600.0)], after=T + 1800.0, until=T + 7 * 3600.0 + 300.0)
    row = steps.cpu.before(steps.cpu.end, 85)
    assert row[:6].tolist() == [1.0] * 6
    assert np.isnan(row[6:84]).all()
    assert row[84] == 2.0
    assert np.isnan(steps.memory.before(steps.memory.end, 79)).all()


@pytest.mark.parametrize(
    ("quantile", "expected", "pod"),
    [(1.0, 9.0, "web-09"), (0.9, 8.0, "web-08"), (0.5, 4.0, "web-04"), (0.01, 0.0, "web-00")],
    ids=["the busiest", "one of ten left out", "the middle one", "the idlest"],
)
def test_the_quantile_over_pods(quantile, expected, pod):
    pods = [cpu([float(index)] * 5, pod=f"web-{index:02}") for index in range(10)]
    steps = fed(*pods, rules=StepRules(STEPS_PER_DAY, quantile, 0.0), until=T + 300.0)
    assert steps.cpu.values.tolist() == [expected]
    assert (steps.cpu.peaks[0].value, steps.cpu.peaks[0].pod) == (expected, pod)


def test_of_few_pods_the_busiest_counts_at_any_high_quantile():
    steps = fed(cpu([1.0] * 5), cpu([7.0] * 5, pod="web-2"), rules=StepRules(STEPS_PER_DAY, 0.9, 0.0), until=T + 300.0)
    assert steps.cpu.values.tolist() == [7.0]


def test_the_pod_of_the_largest_value_is_known():
    steps = fed(cpu([1.0] * 10), cpu([9.0] * 5, pod="web-2", start=T + 300.0), until=T + 900.0)
    assert steps.cpu.peak(steps.cpu.end).pod == "web-2"
    assert steps.cpu.peak(steps.cpu.end).value == 9.0


def test_startup_is_no_need_of_cpu_but_of_memory():
    rules = StepRules(STEPS_PER_DAY, startup_seconds=120.0)
    late = T + 3600.0
    steps = fed(cpu([8.0, 9.0, 1.0, 1.0, 1.0], start=late), memory([5e9, 1e9], start=late), rules=rules, until=late + 300.0)
    assert steps.cpu.values[-1] == 1.0
    assert steps.memory.values[-1] == 5e9
    assert (steps.startup_peak.value, steps.startup_peak.pod) == (9.0, "web-1")


def test_what_ran_already_when_looking_began_has_no_startup():
    steps = fed(cpu([8.0, 8.0, 2.0, 2.0, 0.0]), rules=StepRules(STEPS_PER_DAY, startup_seconds=120.0), until=T + 300.0)
    assert steps.cpu.values.tolist() == [4.0]
    assert steps.startup_peak is None


@pytest.mark.parametrize(("silence", "starts"), [(FORGET_SECONDS - 60, False), (FORGET_SECONDS, True)], ids=["paused", "came back"])
def test_after_a_day_of_silence_an_instance_has_started_anew(silence, starts):
    rules = StepRules(3 * STEPS_PER_DAY, startup_seconds=120.0)
    times = np.array([T, T + silence, T + silence + 60])
    one = UsageSeries(ContainerRef("shop", "web-1", "app"), Resource.CPU, times, np.array([1.0, 8.0, 8.0]))
    steps = fed(one, rules=rules, until=T + 2 * DAY_SECONDS)
    assert (steps.startup_peak is not None) == starts


def test_rows_are_no_longer_than_the_rules_say():
    rules = StepRules(steps=10, startup_seconds=0.0)
    whole = fed(cpu(np.arange(100.0), step=300.0), rules=rules, until=T + 100 * 300.0)
    assert whole.cpu.values.tolist() == list(range(90, 100))
    later = feed(whole, [], until=T + 105 * 300.0, after=T + 100 * 300.0)
    assert later.cpu.values[:5].tolist() == list(range(95, 100))
    assert len(later.cpu.values) == 10


def test_what_is_kept_is_bounded():
    many = [cpu([1.0] * 3, pod=f"job-{index}", start=T + 600.0 * index) for index in range(600)]
    steps = fed(*many, rules=StepRules(2 * STEPS_PER_DAY), until=T + 600.0 * 600)
    assert steps.cpu.values.nbytes == 2 * STEPS_PER_DAY * 4
    assert len(steps.instances) == FORGET_SECONDS // 600
    assert len(steps.cpu.peaks) <= 3


@pytest.mark.parametrize(
    ("end", "steps", "expected"),
    [
        (BEGIN + 3, 2, [2.0, 3.0]),
        (BEGIN + 5, 3, [3.0, math.nan, math.nan]),
        (BEGIN + 1, 3, [math.nan, math.nan, 1.0]),
        (BEGIN, 2, [math.nan, math.nan]),
        (BEGIN + 99, 1, [math.nan]),
    ],
    ids=["inside", "beyond the end", "before the beginning", "all before", "all after"],
)
def test_a_part_of_a_row(end, steps, expected):
    row = StepRow(BEGIN + 3, np.array([1.0, 2.0, 3.0], dtype=np.float32))
    np.testing.assert_array_equal(row.before(end, steps), expected)


@pytest.mark.parametrize(
    ("values", "grown"),
    [([1e9, 2e9, 1.5e9], 0.5e9), ([3e9, 2e9], 0.0), ([1e9], 0.0), ([1e9, 2e9, 3e9, 4e9, 5e9, 6e9, 7e9, 8e9], 5e9)],
    ids=["since it began", "falling", "one sample", "within five minutes"],
)
def test_the_newest_memory_of_an_instance(values, grown):
    early = fed(memory([0.0], start=T - 7200), observed_from=T - 7200, until=T - 1)  # hours before: no growth within five minutes
    steps = feed(early, [memory(values), cpu([1.0], pod="web-2")], after=T - 1, until=T + 1800)
    newest = steps.newest_memory(ContainerRef("shop", "web-1", "app"))
    assert (newest.at, newest.used_bytes, newest.grown_bytes) == (T + 60.0 * (len(values) - 1), values[-1], grown)
    assert steps.newest_memory(ContainerRef("shop", "web-2", "app")) is None
    assert steps.newest_memory(ContainerRef("shop", "other", "app")) is None


@st.composite
def histories(draw):
    """A few instances that start and end when they like, with silences; and moments up to which the history is read."""
    found = []
    for pod in range(draw(st.integers(1, 4))):
        gaps = draw(st.lists(st.sampled_from([17.0, 60.0, 61.5, 299.0, 300.0, 4000.0, 90_000.0]), min_size=1, max_size=40))
        times = T + draw(st.integers(0, 5000)) + np.cumsum(gaps)
        for resource in draw(st.sampled_from([list(Resource), [Resource.CPU], [Resource.MEMORY]])):
            values = draw(st.lists(st.floats(0, 1e10, width=32), min_size=len(times), max_size=len(times)))
            ref = ContainerRef("shop", f"web-{pod}", "app")
            found.append(UsageSeries(ref, resource, times, np.array(values, dtype=np.float64)))
    end = max(float(one.timestamps[-1]) for one in found) + draw(st.floats(0, 1000))
    return found, sorted({*(T + end_part for end_part in draw(st.lists(st.floats(0, end - T), max_size=8))), end})


@settings(max_examples=60)
@given(histories(), st.sampled_from([1.0, 0.6]), st.sampled_from([0.0, 150.0]))
def test_parts_make_the_whole(history, quantile, startup):
    found, moments = history
    rules = StepRules(steps=400, pods=quantile, startup_seconds=startup)
    whole = feed(ContainerSteps.empty(rules, T), found, until=moments[-1])
    parts, after = ContainerSteps.empty(rules, T), -math.inf
    for moment in moments:
        parts = feed(parts, found, after=after, until=moment)
        after = moment
    assert whole.cpu.end == parts.cpu.end
    for resource in Resource:
        width = rules.steps
        np.testing.assert_array_equal(whole.row(resource).before(whole.cpu.end, width), parts.row(resource).before(whole.cpu.end, width))
        assert whole.row(resource).peaks == parts.row(resource).peaks
    assert whole.startup == parts.startup
    assert whole.instances == parts.instances


@settings(max_examples=40)
@given(st.integers(0, 3 * STEPS_PER_DAY), st.sampled_from([0.0, 150.0]))
def test_rows_read_again_are_the_same(later, startup):
    """After a restart the history is read back as far as the rules ask; what began before that makes no difference."""
    rules = StepRules(steps=STEPS_PER_DAY, startup_seconds=startup)
    random = np.random.default_rng(1)
    found = [
        one
        for pod, start in enumerate((0, 30_000, 86_400 * 2 - 100, 86_400 * 3))
        for one in (
            cpu(random.gamma(2, 1, 1500), pod=f"web-{pod}", start=T + start, step=120.0),
            memory(random.gamma(2, 1e9, 1500), pod=f"web-{pod}", start=T + start, step=120.0),
        )
    ]
    now = T + 2 * DAY_SECONDS + 300.0 * later + 120.0
    lasting = feed(ContainerSteps.empty(rules, T), found, until=now)
    start = now - rules.history_seconds
    again = feed(ContainerSteps.empty(rules, start), found, after=start, until=now)
    for resource in Resource:
        end = lasting.cpu.end
        np.testing.assert_array_equal(lasting.row(resource).before(end, rules.steps), again.row(resource).before(end, rules.steps))
        assert lasting.row(resource).peaks == again.row(resource).peaks
    assert lasting.startup == again.startup
