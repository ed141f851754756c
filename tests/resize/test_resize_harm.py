"""Harm counts only where the change explains it; taking a rollout back gives everything back and never lowers a memory limit."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from resize_support import START, a_container, a_pod, requirements
from rollout_support import MIB, SETTINGS, killed, ready, resized, restarted, unready

from vpa_ippr.api.resources import Amounts, ContainerResources
from vpa_ippr.resize.harm import HarmEvidence, Signals, harm_of
from vpa_ippr.resize.ledger import read_ledger
from vpa_ippr.resize.reasons import HarmReason
from vpa_ippr.resize.rollback import rollback_target, undone
from vpa_ippr.resize.rules import rules_for

RULES = rules_for("1.36")
LATER = START + 300
LOWER_MEMORY = requirements("1", "1Gi", "2", "1Gi").parse("t")
LOWER_CPU = requirements("500m", "2Gi", "1", "2Gi").parse("t")
GROWTH = requirements("2", "4Gi", "4", "4Gi").parse("t")


def changed(after: ContainerResources, *, restarts=(), rollout="r1", before=None):
    pod = a_pod(before or a_container(cpu="1", memory="2Gi", cpu_limit="2", memory_limit="2Gi", restarts=restarts))
    return resized(pod, {"app": after}, START, rollout=rollout)


NOTHING = HarmEvidence()


def judged(pod, evidence=NOTHING, now=LATER):
    harm = harm_of(pod, read_ledger(pod).last, evidence, now, SETTINGS)
    return harm.reason if harm else None


@pytest.mark.parametrize(
    ("after", "befallen", "reason"),
    [
        pytest.param(LOWER_MEMORY, lambda pod: killed(pod, START + 10), HarmReason.OUT_OF_MEMORY, id="oom-after-less-memory"),
        pytest.param(LOWER_MEMORY, lambda pod: killed(pod, START - 10, restarts=0), None, id="oom-before-it"),
        pytest.param(LOWER_MEMORY, lambda pod: killed(pod, START + 10, reason="Error"), HarmReason.RESTARTED, id="crash-after-less-memory"),
        pytest.param(LOWER_MEMORY, restarted, HarmReason.RESTARTED, id="restart-after-less-memory"),
        pytest.param(LOWER_MEMORY, lambda pod: unready(pod, START + 10), HarmReason.NOT_READY, id="unready-after-less-memory"),
        pytest.param(LOWER_CPU, lambda pod: killed(pod, START + 10, restarts=0), None, id="oom-after-less-cpu"),
        pytest.param(LOWER_CPU, restarted, HarmReason.RESTARTED, id="restart-after-less-cpu"),
        pytest.param(LOWER_CPU, lambda pod: unready(pod, None), HarmReason.NOT_READY, id="unready-without-a-time"),
        pytest.param(GROWTH, lambda pod: killed(pod, START + 10), None, id="oom-after-growth"),
        pytest.param(GROWTH, lambda pod: unready(restarted(pod), START + 10), None, id="restart-and-unready-after-growth"),
        pytest.param(LOWER_MEMORY, lambda pod: pod, None, id="nothing"),
    ],
)
def test_what_befalls_a_pod_is_harm_only_where_the_resize_explains_it(after, befallen, reason):
    assert judged(befallen(changed(after))) == reason


@pytest.mark.parametrize(("times", "reason"), [(1, None), (2, HarmReason.RESTARTED)], ids=["its-own", "one-more"])
@pytest.mark.parametrize("after", [LOWER_MEMORY, GROWTH], ids=["less", "more"])
def test_a_resize_that_restarts_explains_one_restart(after, times, reason):
    assert judged(restarted(changed(after, restarts=("memory",)), times)) == reason


@pytest.mark.parametrize(
    ("restarts", "lasted", "reason"),
    [
        pytest.param((), 60, None, id="grace"),
        pytest.param((), 61, HarmReason.NOT_READY, id="over"),
        pytest.param(("memory",), 61, None, id="starting"),
        pytest.param(("memory",), 301, HarmReason.NOT_READY, id="does-not-start"),
    ],
)
def test_a_pod_may_be_unready_for_a_while(restarts, lasted, reason):
    assert judged(unready(changed(LOWER_MEMORY, restarts=restarts), START + 5), now=START + 5 + lasted) == reason


def test_a_growth_that_restarts_has_to_come_up_again():
    assert judged(unready(changed(GROWTH, restarts=("memory",)), START + 5), now=START + 400) == HarmReason.NOT_READY


def test_a_pod_that_was_not_ready_before_cannot_lose_it():
    pod = unready(a_pod(a_container(cpu="1", memory="2Gi", cpu_limit="2", memory_limit="2Gi")), START - 500)
    assert judged(resized(pod, {"app": LOWER_CPU}, START, rollout="r1")) is None


@pytest.mark.parametrize(
    ("after", "before", "since", "reason"),
    [
        pytest.param(LOWER_CPU, Signals(cpu_throttled=0.1), Signals(cpu_throttled=0.3), HarmReason.CPU_THROTTLED, id="throttled"),
        pytest.param(LOWER_CPU, Signals(cpu_throttled=0.2), Signals(cpu_throttled=0.3), None, id="throttled-as-before"),
        pytest.param(LOWER_CPU, Signals(), Signals(cpu_throttled=0.25), None, id="throttled-at-the-bound"),
        pytest.param(LOWER_CPU, Signals(), Signals(cpu_throttled=0.26), HarmReason.CPU_THROTTLED, id="throttled-nothing-known-before"),
        pytest.param(LOWER_CPU, Signals(cpu_pressure=0.1), Signals(cpu_pressure=0.21), HarmReason.CPU_PRESSURE, id="cpu-pressure"),
        pytest.param(LOWER_CPU, Signals(), Signals(memory_pressure=0.9), None, id="memory-pressure-after-less-cpu"),
        pytest.param(LOWER_MEMORY, Signals(), Signals(memory_pressure=0.9), HarmReason.MEMORY_PRESSURE, id="memory-pressure"),
        pytest.param(LOWER_MEMORY, Signals(), Signals(cpu_throttled=0.9, cpu_pressure=0.9), None, id="throttled-after-less-memory"),
        pytest.param(GROWTH, Signals(), Signals(0.9, 0.9, 0.9), None, id="growth"),
    ],
)
def test_signals_have_to_be_bad_and_worse_than_before(after, before, since, reason):
    assert judged(changed(after), HarmEvidence({"app": before}, {"app": since})) == reason


@pytest.mark.parametrize(
    ("rollout", "value", "reason"),
    [
        ("r1", 0.5, HarmReason.GUARD),
        ("r1", float("inf"), HarmReason.GUARD),
        ("r1", 0.0, None),
        ("r1", -1.0, None),
        ("r1", None, None),
        (None, 0.5, None),
    ],
)
def test_a_guard_counts_for_pods_of_a_rollout(rollout, value, reason):
    assert judged(changed(GROWTH, rollout=rollout), HarmEvidence(guard=value)) == reason


def test_what_came_in_several_resizes_is_one_rollout():
    pod = changed(LOWER_CPU)
    both = ContainerResources(LOWER_CPU.requests.having("memory", 1 << 30), LOWER_CPU.limits.having("memory", 1 << 30))
    pod = resized(unready(pod, START + 5), {"app": both}, START + 10, rollout="r1", shrink="s")
    record = read_ledger(pod).last
    assert (record.rollout, record.rolled_at, record.ready) == ("r1", START + 10, True)
    assert undone(pod, record) == {"app": requirements("1", "2Gi", "2", "2Gi").parse("t")}
    assert judged(pod) == HarmReason.NOT_READY


def test_growth_beside_the_rollout_is_not_taken_back_with_it():
    pod = changed(LOWER_CPU)
    grown = requirements("500m", "3Gi", "1", "3Gi").parse("t")
    pod = resized(pod, {"app": grown}, START + 900)
    record = read_ledger(pod).last
    assert (record.rollout, record.rolled_at, record.issued_at) == ("r1", START, START + 900)
    assert undone(pod, record) == {"app": requirements("1", "3Gi", "2", "3Gi").parse("t")}


def test_growth_of_what_had_come_down_still_leaves_the_way_back():
    pod = resized(changed(LOWER_MEMORY), {"app": requirements("1", "1536Mi", "2", "1536Mi").parse("t")}, START + 900)
    assert undone(pod, read_ledger(pod).last) == {"app": requirements("1", "2Gi", "2", "2Gi").parse("t")}


def test_a_revert_ends_the_pods_part_in_the_rollout():
    pod = changed(LOWER_MEMORY)
    target = rollback_target(pod, read_ledger(pod).last, RULES)
    pod = resized(pod, target, START + 900, reverting=True, rollout="")
    record = read_ledger(pod).last
    assert (record.rollout, record.origin, record.reverting) == ("", {}, True)
    assert pod.desired("app") == requirements("1", "2Gi", "2", "2Gi").parse("t")


def test_the_next_rollout_begins_with_what_stands_there():
    pod = resized(changed(LOWER_CPU), {"app": requirements("250m", "2Gi", "500m", "2Gi").parse("t")}, START + 9000, rollout="r2")
    assert undone(pod, read_ledger(pod).last) == {"app": LOWER_CPU}


@pytest.mark.parametrize(
    ("after", "back"),
    [
        pytest.param(requirements("2", "4Gi", "4", "4Gi"), requirements("1", "4Gi", "2", "4Gi"), id="growth-alone-keeps-its-memory-limit"),
        pytest.param(requirements("2", "1Gi", "4", "2Gi"), requirements("2", "2Gi", "4", "2Gi"), id="growth-beside-a-decrease-stays"),
        pytest.param(requirements("1", "1Gi", "2", "3Gi"), requirements("1", "3Gi", "2", "3Gi"), id="limit-grew-with-a-lower-request"),
    ],
)
def test_what_is_taken_back(after, back):
    pod = changed(after.parse("t"))
    assert undone(pod, read_ledger(pod).last) == {"app": back.parse("t")}


amounts = st.builds(
    lambda cpu, memory, cpu_room, memory_room: ContainerResources(
        Amounts(cpu, memory * MIB), Amounts(cpu + cpu_room, (memory + memory_room) * MIB)
    ),
    st.integers(10, 4000),
    st.integers(16, 4096),
    st.sampled_from([0, 500]),
    st.sampled_from([0, 512]),
)


@given(st.lists(st.tuples(amounts, st.sampled_from(["r1", None])), min_size=1, max_size=4), amounts, st.booleans())
def test_taking_back_never_lowers_a_memory_limit_nor_leaves_less_than_before(resizes, first, restarting):
    quantities = msgspec.structs.replace(
        a_container(restarts=("memory",) if restarting else ()),
        resources=requirements(
            *(first.requests.to_quantities()[r] for r in ("cpu", "memory")), *(first.limits.to_quantities()[r] for r in ("cpu", "memory"))
        ),
    )
    pod = ready(a_pod(quantities))
    for number, (after, rollout) in enumerate(resizes):
        pod = resized(pod, {"app": after}, START + number, rollout=rollout)
    record, now = read_ledger(pod).last, pod.desired("app")
    target = rollback_target(pod, record, RULES)
    if target is None:
        return
    assert target["app"].limits.memory_bytes >= now.limits.memory_bytes
    if resizes[0][1] and now.limits.memory_bytes < first.limits.memory_bytes:
        assert target["app"].limits.memory_bytes >= first.limits.memory_bytes
