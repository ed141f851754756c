"""What OOM kills teach: loops come to rest, old limits and repeats teach nothing, floors fall, leaks blow the fuse."""

import itertools
import json

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from vpa_ippr.api.errors import ValidationError
from vpa_ippr.usage.oom import (
    DEFAULT_OOM_RULES,
    OOM_FUSE,
    Fuse,
    OomMemory,
    OomRules,
    broken_oom_rules,
    dump,
    floor_bytes,
    fuse_finding,
    load,
    record,
)

MIB = 1024.0 * 1024.0
GIB = 1024.0 * MIB
HOUR, DAY = 3600.0, 86_400.0
T = 1_700_000_000.0
NOTHING = OomMemory()


def after(*kills: tuple[float, float | None], rules: OomRules = DEFAULT_OOM_RULES, memory: OomMemory = NOTHING) -> OomMemory:
    """What is known after kills given as (seconds since T, limit)."""
    for at, limit in kills:
        memory = record(memory, T + at, limit, None, rules)
    return memory


def floor_at(memory: OomMemory, seconds: float, rules: OomRules = DEFAULT_OOM_RULES) -> float | None:
    return floor_bytes(memory, T + seconds, rules)


def loop(need: float, limit: float, pause: float, most: int = 20, rules: OomRules = DEFAULT_OOM_RULES) -> tuple[OomMemory, float]:
    """A container that is killed, ``pause`` after its start, for as long as its limit is below its need; the limit follows the floor."""
    memory, now = NOTHING, T
    while need > limit and memory.kills < most:
        memory = record(memory, now, limit, 0.97 * limit, rules)
        limit = max(limit, floor_bytes(memory, now, rules) or 0.0)
        now += pause
    return memory, limit


class TestOneKill:
    def test_nothing_is_known_before(self) -> None:
        assert floor_at(NOTHING, 0) is None

    @pytest.mark.parametrize(
        ("limit", "used", "request_bytes", "expected"),
        [
            (1000 * MIB, 900 * MIB, 500 * MIB, 1300 * MIB),
            (None, 900 * MIB, 2000 * MIB, 1170 * MIB),
            (1000 * MIB, 1200 * MIB, None, 1560 * MIB),
            (None, None, 500 * MIB, 650 * MIB),
            (0, 0.0, 500 * MIB, 650 * MIB),
            (10 * MIB, None, None, 42 * MIB),
            (None, None, None, None),
            (None, None, 0, None),
        ],
        ids=["limit", "use-without-limit", "use-above-limit", "request-alone", "zeros", "small", "nothing-known", "no-request-either"],
    )
    def test_the_floor_rises_above_what_the_container_had(self, limit, used, request_bytes, expected) -> None:
        memory = record(NOTHING, T, limit, used, request_bytes=request_bytes)

        assert floor_at(memory, 0) == (None if expected is None else pytest.approx(expected))
        assert memory.kills == 1


class TestLoops:
    @given(share=st.floats(1.0, 3.0), limit=st.floats(10 * MIB, 64 * GIB), pause=st.floats(10.0, 2 * DAY))
    @example(share=3.0, limit=1 * GIB, pause=10.0)
    def test_a_need_of_up_to_three_times_the_limit_is_met_by_the_third_kill(self, share, limit, pause) -> None:
        memory, reached = loop(share * limit, limit, pause)

        assert memory.kills <= 3
        assert reached >= share * limit
        assert memory.fuse is None

    def test_each_kill_at_the_raised_limit_raises_by_more(self) -> None:
        floors = [GIB]
        memory = NOTHING
        for kill in range(3):
            memory = record(memory, T + kill * HOUR, floors[-1], None)
            floors.append(floor_bytes(memory, T + kill * HOUR))
        ratios = [after / before for before, after in itertools.pairwise(floors)]

        assert ratios == pytest.approx([1.3, 1.6, 1.9])

    def test_a_job_that_fails_each_week_is_held_through_the_week(self) -> None:
        memory, weeks = NOTHING, 0
        while (limit := max(GIB, floor_at(memory, weeks * 7 * DAY) or 0.0)) < 2 * GIB:
            memory = after((weeks * 7 * DAY, limit), memory=memory)
            weeks += 1

        assert weeks == 3


class TestWhatTeachesNothing:
    def test_replicas_that_still_have_the_old_limit(self) -> None:
        first = after((0, GIB))
        storm = after(*((15.0 * pod, GIB) for pod in range(1, 40)), memory=first)

        assert floor_at(storm, 900) == floor_at(first, 900)
        assert storm.kills == 40
        assert storm.fuse is None

    @pytest.mark.parametrize("later", [0.0, 3.0, -HOUR], ids=["same-instant", "same-restart", "known-already"])
    def test_a_kill_that_was_counted(self, later: float) -> None:
        first = after((0, GIB))

        assert after((later, 5 * GIB), memory=first) == first

    def test_a_kill_of_unknown_size_leaves_the_floor_and_prolongs_it(self) -> None:
        memory = after((0, GIB), (DAY, None))

        assert floor_at(memory, 3 * DAY) == pytest.approx(1.3 * GIB)
        assert memory.kills == 2


class TestDecay:
    def test_the_floor_stands_then_halves_and_is_gone_in_the_end(self) -> None:
        memory = after((0, GIB))

        assert floor_at(memory, 2 * DAY) == pytest.approx(1.3 * GIB)
        assert floor_at(memory, 8 * DAY) == pytest.approx(0.65 * GIB)
        assert floor_at(memory, 14 * DAY) == pytest.approx(0.325 * GIB)
        assert floor_at(memory, 60 * DAY) is None

    def test_a_kill_while_it_falls_brings_it_back_for_longer(self) -> None:
        memory = after((0, GIB), (5 * DAY, GIB))

        assert floor_at(memory, 5 * DAY) == pytest.approx(1.3 * GIB)
        assert floor_at(memory, 12 * DAY) == pytest.approx(1.3 * GIB)
        assert floor_at(memory, 13 * DAY) < 1.3 * GIB

    def test_a_kill_long_after_begins_a_new_episode(self) -> None:
        memory = after((0, GIB), (HOUR, 1.3 * GIB), (40 * DAY, 3 * GIB))

        assert floor_at(memory, 40 * DAY) == pytest.approx(3.9 * GIB)
        assert memory.origin_bytes == 3 * GIB


class TestFuse:
    @given(pause=st.floats(60.0, 4 * DAY), limit=st.floats(64 * MIB, 16 * GIB))
    def test_a_leak_is_fed_to_so_many_times_the_first_limit_and_no_further(self, pause, limit) -> None:
        memory, reached = loop(float("inf"), limit, pause, most=60)
        now = memory.last_kill_at

        assert reached <= DEFAULT_OOM_RULES.max_growth * limit * (1 + 1e-9)
        assert memory.fuse is Fuse.GROWTH
        assert fuse_finding(memory, "shop/web/app", now).reason == OOM_FUSE
        assert fuse_finding(memory, "shop/web/app", now + 60 * DAY) is None

    def test_raises_within_a_day_are_counted(self) -> None:
        rules = msgspec.structs.replace(DEFAULT_OOM_RULES, max_raises_per_day=2)
        memory = after((0, GIB), (HOUR, 1.3 * GIB), (2 * HOUR, 2.1 * GIB), rules=rules)

        assert floor_at(memory, 2 * HOUR, rules) == pytest.approx(1.3 * 1.6 * GIB)
        assert memory.fuse is Fuse.RAISES
        later = after((25 * HOUR, 2.1 * GIB), memory=memory, rules=rules)
        assert floor_at(later, 25 * HOUR, rules) > 3.9 * GIB
        assert later.fuse is None

    def test_the_finding_says_what_happened_and_what_to_do(self) -> None:
        memory, _ = loop(float("inf"), GIB, HOUR, most=7)
        finding = fuse_finding(memory, "shop/web/app", T + DAY)

        assert (finding.subject, finding.count) == ("shop/web/app", 7)
        assert finding.message == (
            "shop/web/app: memory is not raised for OOM kills any more: it was raised from 1024 MiB to 8192 MiB, and 8 times what the first"
            " kill had is the most that kills may make it; look for a leak, or raise the limit by hand"
        )

    def test_no_finding_without_a_blown_fuse(self) -> None:
        assert fuse_finding(after((0, GIB)), "shop/web/app", T) is None


sizes = st.floats(MIB, 64 * GIB)
kills = st.lists(st.tuples(st.floats(0.0, 30 * DAY), st.none() | sizes), max_size=12).map(
    lambda found: sorted(found, key=lambda kill: kill[0])
)


class TestInvariants:
    @given(kills)
    def test_a_history_fed_again_changes_nothing(self, history) -> None:
        once = after(*history)

        assert after(*history, memory=once) == once

    @given(kills, st.floats(0.0, 30 * DAY), sizes)
    def test_a_kill_never_lowers_the_floor(self, history, later, limit) -> None:
        memory = after(*history)
        at = (history[-1][0] if history else 0.0) + later

        assert (floor_at(after((at, limit), memory=memory), at) or 0.0) >= (floor_at(memory, at) or 0.0)

    @given(kills, st.floats(10.0, 30 * DAY), sizes, st.floats(1.0, 10.0))
    def test_a_kill_with_more_memory_leaves_no_lower_floor(self, history, later, limit, more) -> None:
        memory = after(*history)
        at = (history[-1][0] if history else 0.0) + later
        lower, higher = (floor_at(after((at, size), memory=memory), at) or 0.0 for size in (limit, limit * more))

        assert higher >= lower * (1 - 1e-12)

    @given(kills, st.lists(st.floats(0.0, 90 * DAY), min_size=2, max_size=2).map(sorted))
    def test_without_kills_the_floor_only_falls(self, history, moments) -> None:
        memory = after(*history)
        early, late = (floor_at(memory, 30 * DAY + moment) or 0.0 for moment in moments)

        assert late <= early

    @given(kills, st.integers(0, 12))
    def test_a_restart_at_any_point_gives_the_same(self, history, cut) -> None:
        stored = json.loads(json.dumps(dump(after(*history[:cut]))))

        assert after(*history[cut:], memory=load(stored)) == after(*history)


@pytest.mark.parametrize(
    "damage",
    [
        {"floor_bytes": -1.0},
        {"floor_bytes": float("nan")},
        {"kills": "two"},
        {"kills": 0},
        {"raised_at": [float("inf")]},
        {"fuse": "other"},
    ],
    ids=lambda damage: next(iter(damage)),
)
def test_damaged_memory_is_refused(damage) -> None:
    with pytest.raises(ValidationError) as caught:
        load({**dump(after((0, GIB))), **damage})

    assert caught.value.reason == "CheckpointCorrupt"


def test_rules_that_work_are_not_broken() -> None:
    assert list(broken_oom_rules(DEFAULT_OOM_RULES)) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("raise_ratios", ()),
        ("raise_ratios", (1.3, 1.05)),
        ("near_share", 0.0),
        ("min_raise_bytes", -1.0),
        ("quiet_seconds", float("inf")),
        ("max_quiet_seconds", DAY),
        ("half_life_seconds", 0.0),
        ("max_growth", 1.0),
        ("max_raises_per_day", 0),
    ],
)
def test_rules_that_cannot_work_are_named(key, value) -> None:
    assert key in [broken for broken, _ in broken_oom_rules(msgspec.structs.replace(DEFAULT_OOM_RULES, **{key: value}))]
