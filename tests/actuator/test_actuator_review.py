"""What an API that hangs, a clock that is set back, a wrong mount or a slow leak must not bring about."""

from dataclasses import replace

import pytest
from actuator_fakes import FakeKernel, Workload, World

from vpa_ippr.actuator.policy import MIB, Policy
from vpa_ippr.api.errors import ClusterError
from vpa_ippr.api.shrink import Phase
from vpa_ippr.api.timestamps import parse_time
from vpa_ippr.cluster.rest import ApiError

QUICK = Policy(
    observe_seconds=5,
    observe_max_seconds=10,
    settle_seconds=2,
    stability_seconds=5,
    probation_seconds=20,
    backoff_seconds=2,
    start_jitter_seconds=0,
)
TOUCHED = [Phase.SHRINKING, Phase.HOLDING]


def cache_heavy() -> Workload:
    return Workload(anon=lambda _t: 60, cold=300, hot=40)


def world_in(state_dir, phase: Phase) -> tuple[World, FakeKernel, str]:
    world = World(state_dir, QUICK)
    kernel = world.add(FakeKernel(cache_heavy()))
    uid = world.ask(256)
    assert world.run_until(uid, phase, commits=False).phase is phase
    for _ in range(4):
        world.tick()
    return world, kernel, uid


def test_holding_is_confirmed_again_and_again(state_dir):
    world, _, uid = world_in(state_dir, Phase.HOLDING)
    for _ in range(120):
        world.tick()
        age = world.clock.time - parse_time(world.status(uid).held_time)
        assert age <= QUICK.report_seconds + 2
    assert world.status(uid).phase is Phase.HOLDING


def test_only_holding_is_confirmed(state_dir):
    world, _, uid = world_in(state_dir, Phase.SHRINKING)
    assert world.status(uid).held_time is None
    world.run_until(uid, Phase.HOLDING, commits=False)
    world.abort(uid)
    assert world.run_until(uid, commits=False).held_time is None


def test_a_stopped_agent_restores_every_container_before_it_speaks_to_the_api(state_dir):
    world = World(state_dir, QUICK)
    kernels = [world.add(FakeKernel(cache_heavy(), inode=100 + n), pod=f"web-{n}") for n in range(2)]
    uids = [world.ask(256, pod=f"web-{n}") for n in range(2)]
    for uid in uids:
        world.run_until(uid, Phase.HOLDING, commits=False)
    highs = []

    def hang(_key, _status):
        highs.append([kernel.high for kernel in kernels])
        raise ClusterError("timed out")

    world.api.patch_shrink_status = hang
    world.agent.close()
    assert highs[0] == [None, None]


@pytest.mark.parametrize("phase", TOUCHED)
def test_a_lost_api_is_asked_once_a_poll(state_dir, phase):
    world, _, _ = world_in(state_dir, phase)
    calls = []

    def hang(*_arguments):
        calls.append(world.clock.time)
        raise ClusterError("timed out")

    world.api.list_shrinks = world.api.patch_shrink_status = world.api.record_event = hang
    began = world.clock.time
    while world.clock.time < began + 120:
        world.tick()
    assert len(calls) <= 1 + 120 / QUICK.poll_seconds + 1


def test_a_report_that_the_api_refuses_does_not_hold_up_another(state_dir):
    world = World(state_dir, QUICK)
    for n in range(2):
        world.add(FakeKernel(cache_heavy(), inode=100 + n), pod=f"web-{n}")
    first, second = (world.ask(256, pod=f"web-{n}") for n in range(2))
    accept, refused = world.api.patch_shrink_status, []

    def refuse_first(key, status):
        if key == world.api.shrinks[first].key:
            refused.append(world.clock.time)
            raise ApiError("no", status=422)
        accept(key, status)

    world.api.patch_shrink_status = refuse_first
    began = world.clock.time
    assert world.run_until(second).phase is Phase.DONE
    assert len(refused) <= 2 + (world.clock.time - began) / QUICK.poll_seconds


@pytest.mark.parametrize("phase", TOUCHED)
def test_a_clock_that_is_set_back_puts_everything_back_at_once(state_dir, phase):
    world, kernel, uid = world_in(state_dir, phase)
    world.clock.time -= 3600
    began = world.clock.time
    status = world.run_until(uid, commits=False)
    assert (status.phase, status.reason) == (Phase.REVERTED, "ClockSetBack")
    assert world.clock.time - began < 10
    assert kernel.high is None


def test_a_clock_set_back_during_a_round_is_not_waited_for(state_dir):
    world, _, _ = world_in(state_dir, Phase.HOLDING)
    patch = world.api.patch_shrink_status

    def set_back(key, status):
        patch(key, status)
        world.clock.time -= 3600

    world.api.patch_shrink_status = set_back
    for _ in range(40):
        before = world.clock.time
        due = world.agent.run_once()
        assert due - world.clock.time <= QUICK.poll_seconds
        if world.clock.time < before:
            return
        world.clock.time = due
    raise AssertionError("nothing was reported")


def test_an_idle_agent_polls_on_after_its_clock_was_set_back(state_dir):
    world = World(state_dir, QUICK)
    world.add(FakeKernel(cache_heavy()))
    world.tick()
    world.clock.time -= 1800
    uid = world.ask(256)
    began = world.clock.time
    world.tick()
    world.tick()
    assert world.status(uid).start_time is not None
    assert world.clock.time - began < 60


def test_a_probation_goes_on_after_the_clock_was_set_back(state_dir):
    world, _, uid = world_in(state_dir, Phase.HOLDING)
    world.commit(uid)
    world.run_until(uid, Phase.COMMITTED)
    world.clock.time -= 30
    assert world.run_until(uid).phase is Phase.DONE


def test_a_limit_that_followed_at_the_deadline_is_no_expiry(state_dir):
    world, _, uid = world_in(state_dir, Phase.HOLDING)
    world.commit(uid)
    world.clock.time += 3600
    assert world.run_until(uid).phase is Phase.DONE


def test_a_shrink_that_cannot_even_be_begun_stops_nobody(state_dir):
    world = World(state_dir, QUICK)
    world.add(FakeKernel(cache_heavy()), pod="web-1")
    world.add(FakeKernel(cache_heavy(), inode=101), pod="web-2")
    bad, good = world.ask(256, pod="web-1"), world.ask(256, pod="web-2")
    find, bad_uid = world.find, world.pod_uid("web-1")

    def fail(pod_uid, container_id, qos_class):
        if pod_uid == bad_uid:
            raise OSError(24, "Too many open files")
        return find(pod_uid, container_id, qos_class)

    world.find = fail
    assert world.run_until(good).phase is Phase.DONE
    assert world.status(bad).phase is Phase.PENDING


def test_a_flood_of_requests_for_one_pod_costs_little_and_stops_nobody(state_dir):
    world = World(state_dir, QUICK)
    world.add(FakeKernel(cache_heavy()), pod="web-1")
    world.add(FakeKernel(cache_heavy(), inode=101), pod="web-2")
    for _ in range(500):
        world.ask(256, pod="web-1")
    good = world.ask(256, pod="web-2")
    get_pod, asked = world.api.get_pod, []

    def count(key):
        asked.append(key)
        return get_pod(key)

    world.api.get_pod = count
    world.tick()
    assert len(asked) < 10
    assert world.run_until(good).phase is Phase.DONE


@pytest.mark.parametrize(
    ("mib_per_hour", "phase", "reason"), [(400, Phase.REVERTED, "GrowingAfterCommit"), (40, Phase.DONE, "Shrunk")], ids=["leak", "slow"]
)
def test_a_need_that_outgrows_the_new_limit_soon_gets_its_memory_back(state_dir, mib_per_hour, phase, reason):
    # Calm while it is observed, and on its way from the commit on.
    policy = replace(QUICK, probation_seconds=600)
    world = World(state_dir, policy)
    grown = Workload(anon=lambda t: 60 + mib_per_hour * max(0.0, t - 150) / 3600, cold=100)
    kernel = world.add(FakeKernel(grown, limit_mib=512))
    status = world.run_until(uid := world.ask(256))
    assert (status.phase, status.reason) == (phase, reason)
    assert kernel.oom_kills == 0
    if phase is Phase.REVERTED:
        assert world.status(uid).floor_bytes > 256 * MIB


def test_a_spec_that_breaks_its_rules_is_refused_with_the_rule(state_dir):
    world = World(state_dir)
    world.add(FakeKernel(cache_heavy()))
    status = world.run_until(world.ask(deadline_seconds=0))
    assert (status.phase, status.reason) == (Phase.REFUSED, "InvalidSpec")
    assert "spec.deadlineSeconds" in status.message
