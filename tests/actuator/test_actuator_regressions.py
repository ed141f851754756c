"""What faults over every reachable state have found, each as one short story."""

from actuator_fakes import FakeKernel, Workload, World
from test_actuator_rules import POLICY, Driven

from vpa_ippr.actuator.policy import MIB, Policy
from vpa_ippr.api.errors import ActuatorError
from vpa_ippr.api.shrink import Phase

QUICK = Policy(
    observe_seconds=5, observe_max_seconds=10, settle_seconds=2, stability_seconds=5, probation_seconds=20, start_jitter_seconds=0
)


def standing():
    """At the goal, within the stability time."""
    driven = Driven()
    while driven.state.pace.stable_since is None:
        driven.tick()
    return driven


def test_a_guard_that_a_foreign_write_has_lifted_comes_down_again_before_holding():
    driven = standing()
    driven.high, driven.usage = None, 290.0
    driven.tick()
    assert driven.high > 256 * MIB
    state = driven.until(Phase.HOLDING)
    assert (state.phase, driven.high) == (Phase.HOLDING, POLICY.page_floor(state.plan.guard_bytes))


def test_a_guard_that_a_foreign_write_has_lifted_while_held_comes_down_again():
    driven = standing()
    driven.until(Phase.HOLDING)
    driven.high, driven.usage = None, driven.state.plan.guard_bytes / MIB + 1
    for _ in range(4):
        driven.tick()
    assert (driven.state.phase, driven.high) == (Phase.HOLDING, POLICY.page_floor(driven.state.plan.guard_bytes))


def test_a_suspended_node_does_not_count_as_calm():
    driven = standing()
    driven.tick(seconds=POLICY.stability_seconds + 40)
    assert driven.state.phase is Phase.SHRINKING
    woke = driven.now
    driven.until(Phase.HOLDING)
    assert driven.now - woke >= POLICY.stability_seconds


def test_a_suspended_node_does_not_count_as_observed(state_dir):
    world = World(state_dir, Policy(start_jitter_seconds=0))
    world.add(FakeKernel(Workload(anon=lambda _t: 60, cold=300)))
    uid = world.ask(256)
    world.run_until(uid, Phase.OBSERVING)
    world.clock.time += 100
    woke = world.clock.time
    world.run_until(uid, Phase.SHRINKING)
    assert world.clock.time - woke >= world.policy.observe_seconds


def test_passing_the_guard_counts_even_where_a_foreign_write_has_taken_it_away():
    driven = standing()
    driven.until(Phase.HOLDING)
    driven.high, driven.usage = None, 300.0
    driven.tick()
    assert (driven.state.phase, driven.state.reason) == (Phase.REVERTED, "GuardPassed")


def low_original(state_dir, mib=200, **workload):
    """The original memory.high guards the target already, and usage is at the goal: no guard is ever written."""
    world = World(state_dir, QUICK)
    kernel = world.add(FakeKernel(Workload(anon=lambda _t: 60, **workload), high_bytes=mib * MIB))
    return world, kernel, world.ask(256)


def test_holding_without_a_single_write_leaves_no_journal_entry_behind(state_dir):
    world, kernel, uid = low_original(state_dir, cold=40)
    world.run_until(uid, Phase.HOLDING, commits=False)
    assert len(world.journal_files()) == 1
    world.abort(uid)
    assert world.run_until(uid, commits=False).phase is Phase.ABORTED
    assert (kernel.written, world.journal_files()) == ([], [])


def test_the_journal_learns_of_an_adopted_original_although_no_guard_is_written(state_dir):
    world, kernel, uid = low_original(state_dir, cold=40)
    world.run_until(uid, Phase.HOLDING, commits=False)
    kernel.high = 210 * MIB
    world.tick()
    (entry,) = world.journal.entries()
    assert entry.original_high_bytes == 210 * MIB


def test_cache_is_not_trimmed_before_the_journal_knows(state_dir):
    world, kernel, uid = low_original(state_dir, mib=245, cold=40)
    seen, reclaim = [], kernel.reclaim
    kernel.reclaim = lambda amount: (seen.append(world.journal_files()), reclaim(amount))[1]
    world.run_until(uid, Phase.SHRINKING)
    assert world.journal_files() == []
    kernel.cold = 183 * MIB  # above the goal of 239 MiB, below the original
    world.tick()
    assert seen
    assert all(seen)


def test_a_journal_entry_that_could_not_be_dropped_is_dropped_later(state_dir, monkeypatch):
    world = World(state_dir, QUICK)
    world.add(FakeKernel(Workload(anon=lambda _t: 60, cold=300)))
    uid = world.ask(256)
    world.run_until(uid, Phase.HOLDING, commits=False)
    drop = world.journal.drop

    def refuse(_uid):
        raise ActuatorError("cannot remove the journal: Input/output error", reason="WriteFailed")

    monkeypatch.setattr(world.journal, "drop", refuse)
    world.abort(uid)
    assert world.run_until(uid, commits=False).phase is Phase.ABORTED
    assert len(world.journal_files()) == 1
    monkeypatch.setattr(world.journal, "drop", drop)
    for _ in range(3):
        world.tick()
    assert world.journal_files() == []


def test_a_probation_is_not_prolonged_by_a_clock_that_is_set_back(state_dir):
    world = World(state_dir, QUICK)
    world.add(FakeKernel(Workload(anon=lambda _t: 60, cold=300)))
    uid = world.ask(256)
    world.run_until(uid, Phase.COMMITTED)
    world.clock.time -= 3600
    began = world.clock.time
    assert world.run_until(uid).phase is Phase.DONE
    assert world.clock.time - began < QUICK.probation_seconds + 30
