"""Whatever goes wrong in whatever phase, memory.high ends as it was found, and nobody was strangled on the way."""

import tempfile
from pathlib import Path

import pytest
from actuator_fakes import FakeKernel, Workload, World, memory_disk
from hypothesis import given
from hypothesis import strategies as st

from vpa_ippr.actuator.policy import MIB, Policy
from vpa_ippr.api.errors import ActuatorError
from vpa_ippr.api.pod import ContainerState, ContainerStateTerminated
from vpa_ippr.api.shrink import Phase
from vpa_ippr.api.timestamps import parse_time

QUICK = Policy(
    observe_seconds=5,
    observe_max_seconds=10,
    settle_seconds=2,
    stability_seconds=5,
    probation_seconds=20,
    backoff_seconds=2,
    start_jitter_seconds=0,
)
ACTIVE = [Phase.OBSERVING, Phase.SHRINKING, Phase.HOLDING, Phase.COMMITTED]
TOUCHED = [Phase.SHRINKING, Phase.HOLDING]


def cache_heavy() -> Workload:
    return Workload(anon=lambda _t: 60, cold=300, hot=40)


def world_in(state_dir, phase: Phase, deadline_seconds: int = 900, high_bytes: int | None = None) -> tuple[World, FakeKernel, str]:
    world = World(state_dir, QUICK)
    kernel = world.add(FakeKernel(cache_heavy(), high_bytes=high_bytes))
    uid = world.ask(256, deadline_seconds)
    status = world.run_until(uid, phase, commits=phase is Phase.COMMITTED)
    if phase is Phase.SHRINKING:
        for _ in range(4):
            world.tick()
    assert status.phase is phase
    return world, kernel, uid


def end(world: World, uid: str):
    return world.run_until(uid, commits=False)


def assert_untouched(world: World, kernel: FakeKernel, original: int | None = None) -> None:
    assert kernel.high == original
    assert kernel.strangled == []
    assert not kernel.written or kernel.written[-1] == original
    assert world.journal_files() == []


@pytest.mark.parametrize("original", [None, 500 * MIB], ids=["max", "finite"])
@pytest.mark.parametrize("phase", ACTIVE)
def test_abort(state_dir, phase, original):
    world, kernel, uid = world_in(state_dir, phase, high_bytes=original)
    world.abort(uid)
    status = end(world, uid)
    assert (status.phase, status.reason) == (Phase.ABORTED, "AbortRequested")
    assert_untouched(world, kernel, original)


@pytest.mark.parametrize("phase", ACTIVE)
def test_deleted_request_ends_like_an_abort(state_dir, phase):
    world, kernel, uid = world_in(state_dir, phase)
    del world.api.shrinks[uid]
    for _ in range(10):
        world.tick()
    assert_untouched(world, kernel)


@pytest.mark.parametrize("phase", [Phase.OBSERVING, *TOUCHED])
def test_deadline(state_dir, phase):
    seconds = {Phase.OBSERVING: 3, Phase.SHRINKING: 25, Phase.HOLDING: 800}[phase]
    world, kernel, uid = world_in(state_dir, phase, deadline_seconds=seconds)
    status = end(world, uid)
    assert (status.phase, status.reason) == (Phase.EXPIRED, "DeadlinePassed")
    assert_untouched(world, kernel)


@pytest.mark.parametrize("phase", ACTIVE)
def test_restarted_container_is_gone_and_its_successor_untouched(state_dir, phase):
    world, _, uid = world_in(state_dir, phase)
    fresh = world.restart_container()
    status = end(world, uid)
    assert (status.phase, status.reason) == (Phase.GONE, "ContainerGone")
    assert fresh.written == []
    assert fresh.reclaims == 0
    assert world.journal_files() == []


@pytest.mark.parametrize("phase", TOUCHED)
def test_pressure_reverts_within_the_hard_window(state_dir, phase):
    world, kernel, uid = world_in(state_dir, phase)
    kernel.extra_memory_stall = 0.3
    began = world.clock.time
    status = end(world, uid)
    assert (status.phase, status.reason) == (Phase.REVERTED, "MemoryPressure")
    assert parse_time(status.transition_time) - began <= 2
    assert status.floor_bytes is not None
    assert status.floor_bytes > kernel.usage
    assert_untouched(world, kernel)


@pytest.mark.parametrize("phase", [Phase.OBSERVING, *TOUCHED])
def test_oom_kill(state_dir, phase):
    world, kernel, uid = world_in(state_dir, phase)
    kernel.events["oom_kill"] += 1
    status = end(world, uid)
    assert status.phase is (Phase.REFUSED if phase is Phase.OBSERVING else Phase.REVERTED)
    assert status.reason == "OutOfMemory"
    assert_untouched(world, kernel)


@pytest.mark.parametrize("phase", [Phase.OBSERVING, *TOUCHED])
@pytest.mark.parametrize(("attribute", "value", "reason"), [("frozen", True, "Frozen"), ("populated", False, "ContainerExited")])
def test_frozen_or_exited_container(state_dir, phase, attribute, value, reason):
    world, kernel, uid = world_in(state_dir, phase)
    if attribute == "populated":
        change = ContainerState(terminated=ContainerStateTerminated(exit_code=0, reason="Completed"))
        world.change_container_state("web-1", change)
    setattr(kernel, attribute, value)
    assert end(world, uid).reason == reason
    assert_untouched(world, kernel)


@pytest.mark.parametrize("phase", [Phase.OBSERVING, *TOUCHED])
def test_foreign_limit(state_dir, phase):
    world, kernel, uid = world_in(state_dir, phase)
    kernel.max = 400 * MIB
    assert end(world, uid).reason == "LimitChanged"
    assert_untouched(world, kernel)


def test_daemon_reload_once_is_answered_and_twice_gives_way(state_dir):
    world, kernel, uid = world_in(state_dir, Phase.HOLDING)
    guard = kernel.high
    kernel.high = None
    world.tick()
    assert kernel.high == guard
    kernel.high = None
    status = end(world, uid)
    assert (status.phase, status.reason) == (Phase.REVERTED, "ForeignWriter")
    assert kernel.high is None
    assert world.journal_files() == []


def test_foreign_finite_high_becomes_the_original(state_dir):
    world, kernel, uid = world_in(state_dir, Phase.HOLDING)
    foreign = 300 * MIB
    kernel.high = foreign
    world.tick()
    assert kernel.high not in (foreign, None)
    world.abort(uid)
    assert end(world, uid).phase is Phase.ABORTED
    assert kernel.high == foreign


def test_systemd_reset_of_high_at_the_commit_is_no_tampering(state_dir):
    world, kernel, uid = world_in(state_dir, Phase.HOLDING)
    kernel.high = None
    world.commit(uid)
    assert end(world, uid).phase is Phase.DONE
    assert kernel.high is None
    assert world.journal_files() == []


def test_guard_stays_until_the_limit_is_read_back(state_dir):
    world, kernel, uid = world_in(state_dir, Phase.HOLDING)
    for _ in range(30):
        world.tick()
    assert kernel.high is not None
    assert kernel.usage < kernel.high < 256 * MIB
    world.commit(uid)
    world.tick()
    assert kernel.high is None
    assert world.status(uid).phase is Phase.COMMITTED


def test_growth_past_the_guard_withdraws_without_a_kill(state_dir):
    world, kernel, uid = world_in(state_dir, Phase.HOLDING)
    kernel.workload = Workload(anon=lambda _t: 380, cold=300, hot=40)
    status = end(world, uid)
    assert status.phase is Phase.REVERTED
    assert kernel.oom_kills == 0
    assert status.floor_bytes is not None
    assert status.floor_bytes > 256 * MIB
    assert_untouched(world, kernel)


def test_burst_past_the_guard_between_two_looks_withdraws(state_dir):
    world, kernel, uid = world_in(state_dir, Phase.HOLDING)
    kernel.peak = 255 * MIB
    status = end(world, uid)
    assert (status.phase, status.reason) == (Phase.REVERTED, "GuardPassed")
    assert status.floor_bytes is not None
    assert status.floor_bytes > 256 * MIB
    assert_untouched(world, kernel)


def test_usage_at_the_guard_is_no_passing(state_dir):
    world, kernel, uid = world_in(state_dir, Phase.HOLDING)
    kernel.peak = kernel.high
    world.tick()
    assert world.status(uid).phase is Phase.HOLDING


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        ("oom", "OomKilledAfterCommit"),
        ("pressure", "PressureAfterCommit"),
        ("hits", "LimitHitsAfterCommit"),
        ("killed", "OomKilledAfterCommit"),
    ],
)
def test_harm_in_probation_asks_for_the_limit_back(state_dir, harm, reason):
    world = World(state_dir, Policy(observe_seconds=5, settle_seconds=2, stability_seconds=5))
    kernel = world.add(FakeKernel(cache_heavy()))
    uid = world.ask(256)
    world.run_until(uid, Phase.COMMITTED)
    if harm == "killed":
        world.restart_container(reason="OOMKilled")
    kernel.events["oom_kill"] += harm == "oom"
    kernel.extra_memory_stall = 0.3 if harm == "pressure" else 0.0
    for _ in range(20):
        kernel.events["max"] += 20 if harm == "hits" else 0
        world.tick()
    status = world.status(uid)
    assert (status.phase, status.reason) == (Phase.REVERTED, reason)
    assert status.floor_bytes is not None
    assert status.floor_bytes > 256 * MIB
    assert world.journal_files() == []


@pytest.mark.parametrize("phase", ACTIVE)
def test_api_loss_ends_by_the_deadline_without_help(state_dir, phase):
    world, kernel, uid = world_in(state_dir, phase, deadline_seconds=300)
    world.api.down = True
    for _ in range(400):
        world.tick()
    assert kernel.high is None
    assert world.journal_files() == []
    world.api.down = False
    status = end(world, uid)
    assert status.phase is (Phase.DONE if phase is Phase.COMMITTED else Phase.EXPIRED)


@pytest.mark.parametrize("phase", TOUCHED)
def test_killed_agent_leaves_nobody_strangled_and_its_successor_restores_first(state_dir, phase):
    world, kernel, uid = world_in(state_dir, phase)
    world.kill_agent()
    assert kernel.high is not None
    assert kernel.high > kernel.usage
    world.api.down = True
    world.start_agent()
    world.agent.run_once()
    assert_untouched(world, kernel)
    world.api.down = False
    status = end(world, uid)
    assert (status.phase, status.reason) == (Phase.REVERTED, "AgentRestarted")


def test_successor_restores_on_a_node_that_can_shrink_no_more(state_dir):
    world, kernel, _ = world_in(state_dir, Phase.HOLDING)
    world.kill_agent()
    world.lacks = "PressureUnavailable"
    world.start_agent()
    world.agent.run_once()
    assert_untouched(world, kernel)


def test_successor_restores_what_it_cannot_read(state_dir, monkeypatch):
    world, kernel, _ = world_in(state_dir, Phase.HOLDING)
    world.kill_agent()

    def read():
        raise ActuatorError("memory.pressure: Operation not supported", reason="PressureUnavailable")

    monkeypatch.setattr(kernel, "read", read)
    world.start_agent()
    world.tick()
    assert_untouched(world, kernel)


def test_cgroup_that_cannot_be_found_yet_is_recovered_later(state_dir, monkeypatch):
    world, kernel, _ = world_in(state_dir, Phase.HOLDING)
    world.kill_agent()
    world.api.down = True
    reopen = world.reopen

    def fail(*_args):
        raise ActuatorError("cannot open the cgroup: Interrupted")

    monkeypatch.setattr(world, "reopen", fail)
    world.start_agent()
    world.tick()
    assert world.journal_files() != []
    monkeypatch.setattr(world, "reopen", reopen)
    world.tick()
    assert_untouched(world, kernel)


def test_commit_while_the_agent_was_dead_goes_into_probation(state_dir):
    world, kernel, uid = world_in(state_dir, Phase.HOLDING)
    world.kill_agent()
    world.commit(uid)
    world.start_agent()
    assert world.run_until(uid, Phase.COMMITTED).phase is Phase.COMMITTED
    assert kernel.high is None
    assert end(world, uid).phase is Phase.DONE
    assert_untouched(world, kernel)


def test_probation_survives_an_orderly_restart(state_dir):
    world, kernel, uid = world_in(state_dir, Phase.COMMITTED)
    world.agent.close()
    world.start_agent()
    kernel.events["oom_kill"] += 0
    world.tick()
    kernel.events["oom_kill"] += 1
    assert end(world, uid).reason == "OomKilledAfterCommit"


@pytest.mark.parametrize("change", ["boot", "inode", "gone"])
def test_journal_of_another_cgroup_is_dropped_without_a_write(state_dir, change):
    world, kernel, _ = world_in(state_dir, Phase.HOLDING)
    world.kill_agent()
    writes = len(kernel.written)
    if change == "boot":
        world.boot_id = "boot-2"
    elif change == "inode":
        kernel.inode += 1
    else:
        kernel.gone = True
    world.start_agent()
    world.tick()
    assert len(kernel.written) == writes
    assert world.journal_files() == []


def test_stopped_agent_restores_at_once(state_dir):
    world, kernel, uid = world_in(state_dir, Phase.SHRINKING)
    world.agent.close()
    assert_untouched(world, kernel)
    assert world.status(uid).reason == "AgentStopped"


@pytest.mark.parametrize("phase", TOUCHED)
def test_failing_restore_is_repeated_until_it_holds(state_dir, phase):
    world, kernel, uid = world_in(state_dir, phase)
    world.abort(uid)
    kernel.failing_writes = 5
    status = end(world, uid)
    assert status.phase.is_terminal
    assert_untouched(world, kernel)


def test_failing_guard_write_reverts(state_dir):
    world = World(state_dir, QUICK)
    kernel = world.add(FakeKernel(cache_heavy()))
    uid = world.ask(256)
    kernel.failing_writes = 1
    status = end(world, uid)
    assert (status.phase, status.reason) == (Phase.REVERTED, "WriteFailed")
    assert_untouched(world, kernel)


def test_disk_full_for_the_journal_touches_nothing(state_dir, monkeypatch):
    world = World(state_dir, QUICK)
    kernel = world.add(FakeKernel(cache_heavy()))
    uid = world.ask(256)

    def full(_entry):
        raise ActuatorError("cannot write the journal: No space left on device", reason="WriteFailed")

    monkeypatch.setattr(world.journal, "write", full)
    status = end(world, uid)
    assert status.reason == "WriteFailed"
    assert kernel.written == []
    assert kernel.reclaims == 0


FAULTS = [
    "abort",
    "delete",
    "restart",
    "oom",
    "pressure",
    "foreign-high",
    "foreign-max",
    "api-down",
    "kill-agent",
    "stop-agent",
    "grow",
    "fail-write",
]
workloads = st.builds(
    lambda anon, hot, cold, mapped, refill: Workload(anon=lambda _t: anon, hot=hot, cold=cold, mapped=mapped, refill_mib_per_second=refill),
    anon=st.integers(5, 200),
    hot=st.integers(0, 150),
    cold=st.integers(0, 250),
    mapped=st.booleans(),
    refill=st.sampled_from([0, 0, 0.5, 3]),
)


def inflict(world: World, kernel: FakeKernel, uid: str, fault: str) -> None:
    """Whatever is not named here changes an attribute."""
    grown = Workload(anon=lambda _t: 320, hot=kernel.workload.hot, cold=kernel.workload.cold)
    changes = {
        "pressure": (kernel, "extra_memory_stall", 0.5),
        "foreign-high": (kernel, "high", None),
        "foreign-max": (kernel, "max", 700 * MIB),
        "grow": (kernel, "workload", grown),
        "fail-write": (kernel, "failing_writes", 2),
        "api-down": (world.api, "down", not world.api.down),
    }
    if fault == "abort" and uid in world.api.shrinks:
        world.abort(uid)
    elif fault == "delete":
        world.api.shrinks.pop(uid, None)
    elif fault == "restart":
        world.restart_container()
    elif fault == "oom":
        kernel.events["oom_kill"] += 1
    elif fault in ("kill-agent", "stop-agent"):
        (world.kill_agent if fault == "kill-agent" else world.agent.close)()
        world.start_agent()
    elif fault in changes:
        setattr(*changes[fault])


@given(
    workload=workloads,
    faults=st.lists(st.tuples(st.integers(0, 120), st.sampled_from(FAULTS)), max_size=4),
    deadline=st.sampled_from([20, 60, 200]),
    commits=st.booleans(),
)
def test_every_fault_at_every_moment_ends_with_the_original_high(workload, faults, deadline, commits):
    with tempfile.TemporaryDirectory(dir=memory_disk()) as state_dir:
        world = World(Path(state_dir), QUICK)
        kernel = world.add(FakeKernel(workload, limit_mib=640))
        uid = world.ask(256, deadline)
        due = sorted(faults, reverse=True)
        for round_number in range(350):
            while due and due[-1][0] <= round_number:
                inflict(world, kernel, uid, due.pop()[1])
            world.tick()
            shrink = world.api.shrinks.get(uid)
            if commits and shrink is not None and shrink.status.phase is Phase.HOLDING:
                world.commit(uid)
            if not due and (shrink is None or shrink.status.phase.is_terminal):
                break
        world.api.down = False
        if uid in world.api.shrinks:
            end(world, uid)
        # A deleted request is missed at the next poll, which may be that many looks away.
        for _ in range(int(QUICK.poll_seconds / QUICK.tick_seconds) + 1):
            world.tick()
        shrink = world.api.shrinks.get(uid)
        assert shrink is None or shrink.status.phase.is_terminal, shrink
        assert kernel.gone or kernel.high is None
        is_foreign = any(fault == "foreign-high" for _, fault in faults)
        assert kernel.gone or is_foreign or not kernel.written or kernel.written[-1] is None
        assert kernel.strangled == []
        assert world.journal_files() == []
        world.agent.close()


class Killed(BaseException):
    """SIGKILL: nothing of the agent's runs after it."""


def kill_at(world: World, kernel: FakeKernel, operation: int) -> None:
    """Kill the agent right before that operation on the kernel, the journal or the API, counted from now."""
    left = [operation]

    def mortal(call):
        def wrapped(*args):
            left[0] -= 1
            if left[0] == -1:
                raise Killed
            return call(*args)

        return wrapped

    world.journal.write, world.journal.drop = mortal(world.journal.write), mortal(world.journal.drop)
    kernel.write_high, kernel.reclaim = mortal(kernel.write_high), mortal(kernel.reclaim)
    world.api.patch_shrink_status = mortal(world.api.patch_shrink_status)


@pytest.mark.parametrize("is_aborted", [False, True], ids=["to-the-end", "aborted"])
def test_agent_killed_before_any_single_operation_is_cleaned_up_after(state_dir, is_aborted):
    operation, was_killed = 0, True
    while was_killed:
        world = World(state_dir / str(operation), QUICK)
        kernel = world.add(FakeKernel(Workload(anon=lambda _t: 60, cold=200)))
        uid = world.ask(256)
        kill_at(world, kernel, operation)
        was_killed = False
        for _ in range(100):
            try:
                world.tick()
            except Killed:
                was_killed = True
                assert kernel.high is None or kernel.high > kernel.usage
                world.kill_agent()
                world.start_agent()
            if world.status(uid).phase is Phase.HOLDING:
                world.abort(uid) if is_aborted else world.commit(uid)
        assert world.status(uid).phase.is_terminal, (operation, world.status(uid))
        assert kernel.high is None, operation
        assert world.journal_files() == [], operation
        world.agent.close()
        operation += 1
    assert operation > 8
