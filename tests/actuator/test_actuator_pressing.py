"""The judge of pressing: tables of looks, and what holds for every ramp and for every page cache."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vpa_ippr.actuator.pressing import Course, Glance, Look, advance, wants_close_look
from vpa_ippr.actuator.pressing_policy import PressingPolicy
from vpa_ippr.api.errors import ValidationError
from vpa_ippr.api.node_memory import PressingReason

MIB = 1 << 20
LIMIT = 1024 * MIB
POLICY = PressingPolicy()
RESERVE = 51  # MiB: 5 % of the limit


def look(at, need, usage=None, limit=1024, **counters):
    """All in MiB."""
    return Look(
        at=at,
        need_bytes=int(need * MIB),
        usage_bytes=int((need if usage is None else usage) * MIB),
        limit_bytes=int(limit * MIB),
        **counters,
    )


def judged(looks, policy=POLICY):
    course = Course()
    for one in looks:
        course = advance(course, one, policy)
    return course


def reason(looks):
    pressing = judged(looks).pressing
    return None if pressing is None else pressing.reason


def steady(need, usage=None, seconds=6, **rates):
    """A look a second; counters grow by their rate."""
    return [look(at, need, usage, **{name: int(rate * at) for name, rate in rates.items()}) for at in range(seconds)]


FULL_10_PERCENT = 100_000  # us a second

TABLE = {
    "idle": (steady(100), None),
    "just-below-the-reserve": (steady(1024 - RESERVE - 1), None),
    "within-the-reserve": (steady(1024 - RESERVE + 1), PressingReason.NEAR_LIMIT),
    "full-of-page-cache": (steady(100, 1024), None),
    "cold-reads-hit-the-limit-all-the-time": (steady(100, 1024, limit_hits=500), None),
    "log-writer-stalls-at-the-limit": (steady(100, 1024, limit_hits=500, memory_full_us=3 * FULL_10_PERCENT), None),
    "database-cache-thrashes": (steady(500, 1024, limit_hits=900, memory_full_us=2 * FULL_10_PERCENT), None),
    "stall-with-little-cache-left": (steady(700, 1024, memory_full_us=FULL_10_PERCENT), PressingReason.MEMORY_STALL),
    "stall-below-the-limit-is-a-guards-doing": (steady(700, 800, memory_full_us=5 * FULL_10_PERCENT), None),
    "calm-at-the-limit": (steady(700, 1024, memory_full_us=FULL_10_PERCENT // 4), None),
    "hits-near-the-limit": (steady(1024 - 2 * RESERVE + 2, 1024, limit_hits=20), PressingReason.LIMIT_HITS),
    "hits-far-from-it": (steady(1024 - 3 * RESERVE, 1024, limit_hits=20), None),
    "no-hits-near-the-limit": (steady(1024 - 2 * RESERVE + 2, 1024), None),
    "killed-and-lives-on": (
        [look(0, 300), look(1, 300, oom_kills=1, oom_events=3)],
        PressingReason.OOM_KILLED,
    ),
    "killed-for-the-nodes-sake": ([look(0, 300), look(1, 300, oom_kills=1)], None),
    "killed-before-we-came": ([look(0, 300, oom_kills=1, oom_events=3), look(1, 300, oom_kills=1, oom_events=3)], None),
    "ramp": ([look(at, 600 + 30 * at) for at in range(4)], PressingReason.WILL_REACH_LIMIT),
    "slow-ramp-far-from-the-limit": ([look(at, 600 + 2 * at) for at in range(4)], None),
    "ramp-in-chunks": ([look(at, 500 + 80 * (at // 2)) for at in range(9)], PressingReason.WILL_REACH_LIMIT),
    "one-jump": ([look(at, 300 if at < 3 else 600) for at in range(6)], None),
    "start-up-to-below-half": ([look(at, min(450, 50 * at)) for at in range(12)], None),
    "ramp-of-page-cache": ([look(at, 100, 100 + 50 * at) for at in range(16)], None),
    "ramp-beneath-a-full-cache": ([look(at, 500 + 30 * at, 1024) for at in range(6)], PressingReason.WILL_REACH_LIMIT),
    "shrinking": ([look(at, 900 - 30 * at) for at in range(6)], None),
    "no-pressure-figures": (steady(700, 1024, limit_hits=3), None),
}


@pytest.mark.parametrize(("looks", "expected"), TABLE.values(), ids=TABLE.keys())
def test_what_presses(looks, expected):
    assert reason(looks) == expected


def test_figures_and_words_are_those_of_the_last_look():
    pressing = judged([look(at, 600 + 30 * at) for at in range(5)]).pressing
    assert (pressing.usage_bytes, pressing.limit_bytes, pressing.at) == (720 * MIB, LIMIT, 4)
    assert pressing.growth_bytes_per_second == 30 * MIB
    assert pressing.since == 2
    assert pressing.message == "needs 720.0 MiB of 1024.0 MiB and grows by 30.0 MiB/s: full in 10 s"


def test_after_a_kill_the_limit_counts_as_used():
    pressing = judged([look(0, 300), look(1, 100, oom_kills=1, oom_events=1)]).pressing
    assert pressing.usage_bytes == LIMIT


@pytest.mark.parametrize(
    ("limit_mib", "cpus", "reserve_mib"),
    [
        pytest.param(4096, 4, 204.8, id="five-percent"),
        pytest.param(256, 4, 17, id="sixteen-mib-and-the-stock"),
        pytest.param(256, 64, 32, id="the-stock-of-many-cpus"),
        pytest.param(32, 4, 4.8, id="no-more-than-a-share-of-a-small-one"),
    ],
)
def test_reserve(limit_mib, cpus, reserve_mib):
    assert PressingPolicy(node_cpus=cpus).reserve_bytes(limit_mib * MIB) == pytest.approx(reserve_mib * MIB)


# Hysteresis.


def test_usage_that_hovers_about_the_threshold_presses_once():
    course, begun = Course(), set()
    for at in range(60):
        course = advance(course, look(at, 1024 - RESERVE + (2 if at % 7 else -8)), POLICY)
        begun.add(course.pressing.since if course.pressing else None)
    assert begun <= {None, 0, 1}
    assert course.pressing is not None


def test_what_presses_must_come_down_by_more_than_it_had_to_come_up():
    course = judged([look(0, 1000), *(look(at, 1024 - 1.3 * RESERVE) for at in range(1, 60))])
    assert course.pressing.reason == PressingReason.NEAR_LIMIT
    assert reason([look(at, 1024 - 1.3 * RESERVE) for at in range(60)]) is None


def test_it_ends_once_calm_has_lasted():
    course = judged([look(0, 1000)])
    ends = next(at for at in range(1, 60) if (course := advance(course, look(at, 500), POLICY)).pressing is None)
    assert ends == POLICY.calm_seconds


def test_figures_go_on_while_calm_is_awaited():
    course = advance(judged([look(0, 1000)]), look(1, 500), POLICY)
    assert (course.pressing.since, course.pressing.usage_bytes, course.pressing.at) == (0, 500 * MIB, 1)


def test_a_raised_limit_ends_it_at_once():
    course = advance(judged(steady(1000)), look(6, 1000, limit=1300), POLICY)
    assert course.pressing is None


def test_a_raised_limit_that_is_not_enough_begins_anew():
    course = advance(judged(steady(1000)), look(6, 1000, limit=1040), POLICY)
    assert (course.pressing.since, course.pressing.limit_bytes) == (6, 1040 * MIB)


def test_a_kill_is_answered_by_another_limit():
    killed = judged([look(0, 300), look(1, 300, oom_kills=1, oom_events=1)])
    after = {"oom_kills": 1, "oom_events": 1}
    assert advance(killed, look(2, 300, limit=1300, **after), POLICY).pressing is None
    assert advance(killed, look(100, 300, **after), POLICY).pressing.reason == PressingReason.OOM_KILLED
    assert advance(killed, look(1 + POLICY.killed_seconds, 300, **after), POLICY).pressing is None


def test_a_clock_that_was_set_back_neither_raises_nor_invents_growth():
    course = judged([look(1000 + at, 100) for at in range(5)])
    course = advance(course, look(10, 400), POLICY)
    course = advance(course, look(11, 400), POLICY)
    assert course.pressing is None
    assert [one.at for one in course.looks] == [10, 11]


def test_a_clock_that_was_set_back_does_not_end_it_either():
    course = advance(judged([look(1000, 1000)]), look(10, 940), POLICY)
    assert course.pressing is not None


def test_history_stays_short():
    assert len(judged([look(at / 5, 100) for at in range(500)]).looks) <= 5 * POLICY.window_seconds + 2


# When to look closely.


def glance(at, usage, limit=1024):
    return Glance(at=at, usage_bytes=int(usage * MIB), limit_bytes=int(limit * MIB))


CALM = judged([look(0, 100)])


@pytest.mark.parametrize(
    ("course", "before", "now", "expected"),
    [
        pytest.param(Course(), None, glance(0, 10), True, id="never-seen"),
        pytest.param(CALM, glance(0, 100), glance(1, 100), False, id="calm"),
        pytest.param(CALM, glance(0, 100), glance(1, 720), True, id="rather-full"),
        pytest.param(CALM, glance(0, 720), glance(1, 100), True, id="was-rather-full"),
        pytest.param(CALM, glance(0, 100), glance(1, 110), False, id="grows"),
        pytest.param(CALM, glance(0, 100), glance(1, 150), True, id="grows-fast"),
        pytest.param(CALM, glance(4, 100), glance(5, 100), True, id="time-for-another"),
        pytest.param(CALM, glance(0, 100), glance(1, 100, limit=2048), True, id="other-limit"),
        pytest.param(CALM, glance(0, 100), glance(-50, 100), True, id="clock-set-back"),
        pytest.param(judged([look(0, 1000)]), glance(0, 1000), glance(1, 100), True, id="presses"),
    ],
)
def test_who_is_looked_at_closely(course, before, now, expected):
    assert wants_close_look(course, before, now, POLICY) is expected


# What always holds.


@given(
    rate=st.floats(1, 50),
    limit=st.floats(256, 8192),
    seconds=st.floats(9, 60),
    phase=st.floats(0, 0.999),
    cache=st.floats(0, 1),
    jitter=st.lists(st.floats(-0.05, 0.05), min_size=80, max_size=80),
)
def test_every_steady_ramp_presses_five_seconds_before_the_limit_is_met(rate, limit, seconds, phase, cache, jitter):
    """``seconds``: for how long it grows until the limit is met; growth cannot be told from a jump in less than three looks."""
    base = max(0.0, limit - rate * seconds)
    met = (limit - base) / rate
    course = Course()
    for tick in range(-4, 80):
        at = tick + jitter[tick] - phase
        need = base + rate * max(0.0, at)
        if at > met - 5:
            break
        course = advance(course, look(100 + at, need, need + cache * (limit - need), limit), POLICY)
    assert met < 9 or course.pressing is not None


@st.composite
def caches(draw, least_limit=64, share=0.45, stalls=True):
    """A container whose need stays where it is while page cache does what it likes."""
    limit = draw(st.floats(least_limit, 8192))
    need = draw(st.floats(0, share)) * limit
    looks, hits, stalled = [], 0, 0
    for tick in range(draw(st.integers(5, 30))):
        now = need + draw(st.floats(-0.01, 0.01)) * limit
        hits += draw(st.integers(0, 10_000))
        stalled += draw(st.integers(0, 1_000_000)) if stalls else 0
        usage = max(now, draw(st.floats(0, 1)) * limit)
        looks.append(look(tick, max(0, now), usage, limit, limit_hits=hits, memory_full_us=stalled))
    return looks


@given(caches() | caches(least_limit=256, share=0.75, stalls=False))
def test_page_cache_never_presses(looks):
    """Where it stalls only if it is most of what is there: a need of more than half with little cache left is in danger."""
    course = Course()
    for one in looks:
        course = advance(course, one, POLICY)
        assert course.pressing is None


@given(caches(), st.floats(0.96, 1.0))
def test_need_at_the_limit_always_presses_whatever_the_cache_did(looks, share):
    course = judged(looks)
    last = looks[-1]
    course = advance(course, replace(last, at=last.at + 1, need_bytes=int(share * last.limit_bytes), usage_bytes=last.limit_bytes), POLICY)
    assert course.pressing is not None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("page_bytes", 1000),
        ("near_ratio", 0.2),
        ("near_max_ratio", 0.6),
        ("lead_seconds", 5),
        ("growth_short_seconds", 0.5),
        ("stall_full_percent", 0),
        ("release_factor", 3),
        ("tick_seconds", 3),
        ("beat_seconds", 200),
        ("close_ratio", 1),
        ("retry_seconds", 60),
        ("wake_seconds", 0),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(field, value):
    with pytest.raises(ValidationError, match=field) as caught:
        PressingPolicy(**{field: value})
    assert caught.value.reason == "InvalidPolicy"
