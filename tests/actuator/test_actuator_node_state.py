"""What the node bears (kernel.md 3.11): counts, calm, the budget of a minute, the kubelet's conditions, jitter."""

import pytest
from actuator_fakes import FakeKernel, Workload, World
from hypothesis import given
from hypothesis import strategies as st

from vpa_ippr.actuator.gate import jitter_seconds
from vpa_ippr.actuator.node_state import NodeLook, ProcNode, ReclaimBudget, why_not_begin, why_not_step
from vpa_ippr.actuator.policy import GIB, MIB, Policy
from vpa_ippr.api.errors import ClusterError
from vpa_ippr.api.shrink import Phase
from vpa_ippr.cluster.rest import ApiError

POLICY = Policy()
QUICK = Policy(
    observe_seconds=5, observe_max_seconds=10, settle_seconds=2, stability_seconds=5, probation_seconds=20, start_jitter_seconds=0
)
CALM = NodeLook(0.2, 3.0)


@pytest.mark.parametrize(
    ("look", "conditions", "reason"),
    [
        (CALM, (), ""),
        (NodeLook(0.99, 9.9), ("Ready", "PIDPressure"), ""),
        (NodeLook(1.0, 0.0), (), "stalls on memory 1.0 %"),
        (NodeLook(0.0, 10.0), (), "waits for I/O 10.0 %"),
        (CALM, ("MemoryPressure",), "the kubelet reports MemoryPressure"),
        (CALM, ("DiskPressure", "MemoryPressure"), "the kubelet reports MemoryPressure and DiskPressure"),
        (None, (), "cannot be read"),
    ],
    ids=["calm", "just-calm", "memory-some", "io-some", "MemoryPressure", "DiskPressure", "blind"],
)
def test_when_a_shrink_may_begin(look, conditions, reason):
    told = why_not_begin(look, frozenset(conditions), POLICY)
    assert reason in told
    assert bool(told) == bool(reason)


@pytest.mark.parametrize(
    ("look", "pauses"), [(NodeLook(50.0, 20.0), False), (NodeLook(0.0, 20.1), True), (None, False)], ids=["at", "above", "blind"]
)
def test_when_steps_pause(look, pauses):
    assert bool(why_not_step(look, POLICY)) is pauses


def test_proc_is_read(tmp_path):
    (tmp_path / "pressure").mkdir()
    (tmp_path / "pressure/memory").write_text("some avg10=1.25 avg60=0.00 avg300=0.00 total=5\nfull avg10=9.00 avg60=0 avg300=0 total=1\n")
    (tmp_path / "pressure/io").write_text("some avg10=33.00 avg60=0.00 avg300=0.00 total=5\n")
    (tmp_path / "meminfo").write_text("MemTotal:       16384 kB\nMemFree:  1 kB\n")
    node = ProcNode(tmp_path)
    assert node.look() == NodeLook(1.25, 33.0)
    assert node.memory_total_bytes() == 16 * MIB
    assert ProcNode(tmp_path / "nowhere").look() is None
    assert ProcNode(tmp_path / "nowhere").memory_total_bytes() is None


def test_a_small_node_gets_one_least_step_a_minute():
    assert ReclaimBudget(64 * MIB, POLICY).left(0) == POLICY.step_min_bytes


@given(st.lists(st.tuples(st.floats(0, 50), st.integers(0, 300 * MIB)), max_size=40))
def test_no_minute_asks_for_more_than_the_share(attempts):
    budget, now, spent = ReclaimBudget(16 * GIB, POLICY), 0.0, []
    for wait, wanted in attempts:
        now += wait
        amount = min(wanted, budget.left(now))
        budget.spend(amount, now)
        spent.append((now, amount))
        assert sum(a for at, a in spent if now - 60 < at <= now) <= 0.01 * 16 * GIB


def test_a_clock_that_was_set_back_does_not_lock_the_budget():
    budget = ReclaimBudget(GIB, POLICY)
    budget.spend(budget.left(1000), 1000)
    assert budget.left(1001) == 0
    assert budget.left(10) == budget.per_minute_bytes


@given(st.text(min_size=1), st.floats(0, 300))
def test_jitter_is_drawn_once_and_within_its_bound(uid, most):
    drawn = jitter_seconds(uid, most)
    assert 0 <= drawn <= most
    assert drawn == jitter_seconds(uid, most)


def test_jitter_spreads():
    drawn = sorted(jitter_seconds(f"uid-{n}", 10) for n in range(200))
    assert drawn[20] < 2.5
    assert drawn[180] > 7.5


class Node:
    """A node whose pressure a test sets."""

    def __init__(self, total=64 * GIB):
        self.now, self.total = CALM, total

    def look(self):
        return self.now

    def memory_total_bytes(self):
        return self.total


def world_on(state_dir, node, **changes):
    world = World(state_dir, QUICK, node=node)
    kernel = world.add(FakeKernel(Workload(anon=lambda _t: 40, cold=400, **changes)))
    return world, kernel, world.ask(256)


def ticks(world, seconds):
    end = world.clock.time + seconds
    while world.clock.time < end:
        world.tick()


def test_nothing_begins_on_a_node_that_suffers_and_it_says_why(state_dir):
    node = Node()
    node.now = NodeLook(2.0, 0.0)
    world, kernel, uid = world_on(state_dir, node)
    ticks(world, 60)
    status = world.status(uid)
    assert (status.phase, status.reason) == (Phase.PENDING, "WaitingForTurn")
    assert "stalls on memory" in status.message
    node.now = CALM
    assert world.run_until(uid).phase is Phase.DONE
    assert kernel.strangled == []


def test_a_node_that_comes_to_suffer_while_it_is_observed_is_not_stepped_on(state_dir):
    node = Node()
    world, kernel, uid = world_on(state_dir, node)
    world.run_until(uid, Phase.OBSERVING)
    node.now = NodeLook(0.0, 15.0)
    ticks(world, 60)
    assert world.status(uid).phase is Phase.OBSERVING
    assert kernel.reclaims == 0
    node.now = CALM
    assert world.run_until(uid).phase is Phase.DONE


def test_the_kubelets_conditions_count_and_are_asked_for_only_while_something_begins(state_dir):
    world, _, uid = world_on(state_dir, Node())
    world.api.pressures = frozenset({"Ready", "DiskPressure"})
    ticks(world, 30)
    assert "DiskPressure" in world.status(uid).message
    world.api.pressures = frozenset({"Ready"})
    assert world.run_until(uid).phase is Phase.DONE
    asked = world.api.node_questions
    ticks(world, 300)
    assert world.api.node_questions == asked


@pytest.mark.parametrize("error", [ApiError("forbidden", status=403), ClusterError("timed out")], ids=["no-right", "timed-out"])
def test_an_agent_that_may_not_read_its_node_does_without(state_dir, error):
    world, _, uid = world_on(state_dir, Node())

    def refuse(_name):
        raise error

    world.api.node_pressures = refuse
    assert world.run_until(uid).phase is Phase.DONE


def test_steps_pause_while_the_node_waits_for_io_and_the_guard_stays(state_dir):
    node = Node()
    world, kernel, uid = world_on(state_dir, node)
    world.run_until(uid, Phase.SHRINKING)
    ticks(world, 8)
    node.now = NodeLook(0.0, 30.0)
    ticks(world, 5)
    reclaims, guard = kernel.reclaims, kernel.high
    ticks(world, 60)
    assert (kernel.reclaims, kernel.high) == (reclaims, guard)
    assert guard is not None
    status = world.status(uid)
    assert (status.phase, status.reason) == (Phase.SHRINKING, "WaitingForNode")
    node.now = CALM
    assert world.run_until(uid).phase is Phase.DONE


def test_a_pause_up_to_the_deadline_teaches_no_floor(state_dir):
    node = Node()
    world, kernel, uid = world_on(state_dir, node)
    world.run_until(uid, Phase.SHRINKING)
    node.now = NodeLook(0.0, 30.0)
    status = world.run_until(uid)
    assert (status.phase, status.floor_bytes) == (Phase.EXPIRED, None)
    assert kernel.high is None


def test_the_budget_of_a_minute_is_shared_and_kept(state_dir):
    world = World(state_dir, QUICK, node=Node(6 * GIB))
    kernels = [world.add(FakeKernel(Workload(anon=lambda _t: 40, cold=400), inode=100 + n), pod=f"web-{n}") for n in range(2)]
    uids = [world.ask(256, pod=f"web-{n}") for n in range(2)]
    asked = []
    for kernel in kernels:
        reclaim = kernel.reclaim
        kernel.reclaim = lambda amount, reclaim=reclaim: (asked.append((world.clock.time, amount)), reclaim(amount))[1]
    for uid in uids:
        world.run_until(uid, Phase.HOLDING, commits=False)
    share = 0.01 * 6 * GIB
    assert max(sum(a for at, a in asked if begin < at <= begin + 60) for begin, _ in asked) <= share
    assert sum(amount for _, amount in asked) > 3 * share


def test_a_target_beyond_the_budget_is_refused_with_what_could_be_reached(state_dir):
    world, kernel, uid = world_on(state_dir, Node(GIB))
    status = world.run_until(uid)
    assert (status.phase, status.reason) == (Phase.REFUSED, "NodePace")
    assert 300 * MIB < status.floor_bytes < 400 * MIB
    assert kernel.written == []
    assert world.run_until(world.ask(status.floor_bytes / MIB)).phase is Phase.DONE


def test_one_shrink_of_a_pod_two_stepping_ten_observed(state_dir):
    world = World(state_dir, QUICK)
    uids = {}
    for pod in range(14):
        for name in ("app", "sidecar"):
            world.add(FakeKernel(Workload(anon=lambda _t: 40, cold=300), inode=100 + 2 * pod), f"web-{pod}", name)
            uids[world.ask(pod=f"web-{pod}", name=name)] = pod
    most = {Phase.OBSERVING: 0, Phase.SHRINKING: 0}
    for _ in range(400):
        world.tick()
        phases = {uid: task.state.phase for uid, task in world.agent._tasks.items()}
        for phase in most:
            most[phase] = max(most[phase], sum(p is phase for p in phases.values()))
        running = [uids[uid] for uid, phase in phases.items() if phase in (Phase.OBSERVING, Phase.SHRINKING, Phase.HOLDING)]
        assert len(running) == len(set(running))
    assert most == {Phase.OBSERVING: 10, Phase.SHRINKING: 2}


def test_starts_are_spread(state_dir):
    world = World(state_dir, Policy(start_jitter_seconds=60))
    uids = []
    for pod in range(9):
        world.add(FakeKernel(Workload(anon=lambda _t: 40, cold=300), inode=100 + pod), f"web-{pod}")
        uids.append(world.ask(pod=f"web-{pod}"))
    ticks(world, 70)
    starts = [world.status(uid).start_time for uid in uids]
    assert None not in starts
    assert len(set(starts)) >= 5
