"""What must hold whatever comes: the agent over a kernel that behaves, with faults at every operation, in every order.

Checked at each single write: the journal knows of it first, and no guard is below usage. Checked after each: whatever stands in memory.high
can be recognised and put back by a successor. Checked at each round: Holding means held. Checked at the end: the original is back, or what
somebody else wrote since, within a bounded number of rounds, and the journal is empty.
"""

import contextlib
import operator
import tempfile
from pathlib import Path

from actuator_fakes import FakeKernel, Workload, World, memory_disk
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from vpa_ippr.actuator.node_state import NodeLook
from vpa_ippr.actuator.policy import GIB, MIB, Policy
from vpa_ippr.api.errors import ActuatorError
from vpa_ippr.api.shrink import Phase

POLICY = Policy(
    observe_seconds=5,
    observe_max_seconds=10,
    settle_seconds=2,
    stability_seconds=5,
    probation_seconds=20,
    backoff_seconds=2,
    start_jitter_seconds=0,
    node_memory_some_percent=5,
)
DEADLINE_SECONDS = 120
ROUNDS_TO_END_WHEN_ASKED = 25
ROUNDS_TO_END_ALONE = 250


class Killed(BaseException):
    """SIGKILL: nothing of the agent's runs after it."""


class Node:
    busy = False

    def look(self):
        return NodeLook(0.0, 50.0 if self.busy else 1.0)

    def memory_total_bytes(self):
        return 256 * GIB


class Container(FakeKernel):
    """Each operation may fail, or be the agent's last; each is judged."""

    def __init__(self, workload, machine, **given):
        super().__init__(workload, **given)
        self.machine = machine
        self.is_ours = False
        """Whether a MemoryShrink is about this very container."""
        self.was_unreadable = False
        self.last_seen = self.high
        self.strangers = [self.high]
        """What memory.high was at first, and what others than the agent set it to."""

    def read(self):
        try:
            self.machine.operation()
        except ActuatorError:
            self.was_unreadable = True
            raise
        if self.high in self.strangers and self.high is not None:
            self.last_seen = self.high
        return super().read()

    def write_high(self, high_bytes):
        self.machine.operation()
        self.machine.judge_write(self, high_bytes)
        super().write_high(high_bytes)
        self.machine.judge_kernel(self)

    def reclaim(self, amount_bytes):
        self.machine.operation()
        self.machine.judge_touch(self)
        return super().reclaim(amount_bytes)

    def set_by_stranger(self, high_bytes):
        self.high = high_bytes
        self.strangers.append(high_bytes)

    @property
    def rightful(self):
        """What memory.high may be in the end: the last value that somebody chose; ``max`` may be systemd's doing and not be kept.

        What somebody wrote just before the cgroup could not be read is not known to anybody: what was there before is put back blindly.
        """
        if self.was_unreadable:
            return set(self.strangers)
        return {self.strangers[-1], self.last_seen}


EVENTS = (
    "agent_is_killed",
    "agent_is_stopped",
    "somebody_writes_high",
    "systemd_resets_high",
    "somebody_writes_the_limit",
    "the_updater_commits",
    "the_updater_commits_through_systemd",
    "the_updater_aborts",
    "the_request_is_deleted",
    "the_api_goes_or_comes",
    "the_container_restarts",
    "the_pod_is_deleted",
    "it_is_no_longer_ready",
    "the_need_grows",
    "the_need_passes_the_guard",
    "it_stalls_a_little",
    "it_stalls",
    "the_clock_is_set_back",
    "the_clock_is_set_back_a_little",
    "the_clock_goes_on",
    "the_node_is_suspended",
    "the_node_is_busy_or_calm",
)
events = st.sampled_from(EVENTS).map(operator.methodcaller)
phases = st.sampled_from([Phase.OBSERVING, Phase.SHRINKING, Phase.SHRINKING, Phase.HOLDING, Phase.HOLDING, Phase.COMMITTED])


class AnyFault(RuleBasedStateMachine):
    """The world of one agent, and everything that can happen to it."""

    def __init__(self):
        super().__init__()
        self.directory = tempfile.TemporaryDirectory(dir=memory_disk())
        self.node = Node()
        self.world = World(Path(self.directory.name), POLICY, node=self.node)
        self.fault, self.countdown = None, 0
        self.violations = []
        self.held_since = None
        self.calm = []
        self.arm()

    def arm(self):
        """The journal is another object after each start of the agent."""
        journal = self.world.journal
        for name in ("write", "drop"):
            setattr(journal, name, self.mortal(getattr(journal, name)))

    def mortal(self, call):
        def wrapped(*arguments):
            self.operation()
            return call(*arguments)

        return wrapped

    def operation(self):
        """One step of the agent's on kernel or journal; the fault that is due happens before it."""
        if self.fault is None:
            return
        self.countdown -= 1
        if self.countdown < 0:
            fault, self.fault = self.fault, None
            raise Killed if fault == "kill" else ActuatorError("Input/output error", reason="WriteFailed")

    # What is judged.

    def entries(self):
        return self.world.journal.entries()

    def judge_touch(self, kernel):
        known = any(entry.cgroup_identity == kernel.inode for entry in self.entries())
        self.require(kernel.is_ours or kernel.gone, "a container that nobody asked about was touched")
        self.require(known or kernel.gone, "touched before the journal knew")

    def judge_write(self, kernel, high):
        self.judge_touch(kernel)
        if kernel.gone:
            return
        known = [e for e in self.entries() if e.cgroup_identity == kernel.inode]
        is_known = any(high in (e.guard_bytes, e.previous_guard_bytes, e.original_high_bytes) for e in known)
        is_guard = high is not None and high not in kernel.strangers
        self.require(is_known, "the journal knows another value")
        self.require(not is_guard or high >= kernel.usage, f"guard {high} below usage {kernel.usage}")

    def judge_kernel(self, kernel):
        """What a successor finds can be put back by what the journal says."""
        if kernel.gone or kernel.high in kernel.strangers:
            return
        known = [e for e in self.entries() if e.cgroup_identity == kernel.inode]
        is_known = any(kernel.high in (e.guard_bytes, e.previous_guard_bytes) for e in known)
        self.require(is_known, "a guard that no journal entry explains")

    def require(self, holds, what):
        """Noted and not raised: what is raised within a round the agent takes for one shrink's trouble."""
        if not holds:
            self.violations.append(what)

    @invariant()
    def nothing_was_violated(self):
        for container in self.world.containers.values():
            self.judge_kernel(container.kernel)
        assert self.violations == []

    def judge_holding(self):
        """Right after a round: the task says Holding only where the container has been held for the stability time."""
        now = self.world.clock.time
        task = next((t for t in self.world.agent._tasks.values() if t.state.plan is not None and not t.cgroup.gone), None)
        if task is None:
            self.calm.clear()
            self.held_since = None
            return
        kernel, plan = task.cgroup, task.state.plan
        if kernel.usage > plan.goal_bytes:
            self.calm.clear()
        else:
            self.calm.append(now)
        is_held = task.state.phase is Phase.HOLDING and task.state.ending is None and task._verdict is None
        if is_held and self.held_since is None:
            assert self.calm, "Holding above the goal"
            assert now - self.calm[0] >= POLICY.stability_seconds, "Holding too early"
        if is_held:
            lowest = min(high for high in (plan.guard_bytes, task.state.original.high_bytes) if high is not None)
            assert kernel.usage <= plan.guard_bytes + plan.margin_bytes // 8, "Holding above the guard"
            assert kernel.high is not None, "Holding without a guard"
            assert kernel.high <= max(lowest, kernel.usage + POLICY.page_bytes), "Holding under no guard that guards"
        self.held_since = (self.held_since or now) if is_held else None

    # What happens.

    @initialize(
        anon=st.integers(5, 215),
        hot=st.integers(0, 120),
        cold=st.integers(0, 300),
        refill=st.sampled_from([0, 0, 1, 4]),
        original=st.sampled_from([None, None, 460 * MIB, 200 * MIB]),
    )
    def begin(self, anon, hot, cold, refill, original):
        workload = Workload(anon=lambda _t: anon, hot=hot, cold=cold, refill_mib_per_second=refill)
        self.world.add(Container(workload, self, limit_mib=640, high_bytes=original))
        self.ask()

    def ask(self):
        self.uid = self.world.ask(256, DEADLINE_SECONDS)
        self.kernel.is_ours = True

    @property
    def kernel(self):
        return self.world.containers[self.world.pod_uid("web-1"), "app"].kernel

    def round(self, commits=False):
        try:
            due = self.world.agent.run_once()
        except Killed:
            self.held_since = None
            self.restart_agent()
            return
        self.judge_holding()
        seconds = max(due - self.world.clock.time, 0.0)
        self.world.clock.time += seconds
        for container in list(self.world.containers.values()):
            container.kernel.advance(seconds)
        shrink = self.world.api.shrinks.get(self.uid)
        if commits and shrink is not None and shrink.status.phase is Phase.HOLDING:
            self.world.commit(self.uid)

    def restart_agent(self):
        # Killed while it is starting: once more.
        self.world.kill_agent()
        self.world.start_agent()
        self.arm()

    def rounds(self, count, commits=False):
        for _ in range(count):
            self.round(commits)

    def go_well_until(self, phase, cold):
        """What stood in the way is over, a new request is made if need be, and it is carried out so far."""
        self.fault, self.node.busy, self.world.api.down = None, False, False
        kernel = self.kernel
        kernel.extra_memory_stall = 0.0
        kernel.workload = Workload(anon=lambda _t: 60, hot=20, cold=200)
        kernel.cold = max(kernel.cold, cold * MIB)
        self.world.add_pod_again("web-1")
        if self.uid not in self.world.api.shrinks or self.is_over:
            kernel.max = 640 * MIB
            self.ask()
        for _ in range(120):
            if any(task.state.phase is phase for task in self.world.agent._tasks.values()):
                return
            self.round(commits=phase is Phase.COMMITTED)

    @rule(count=st.integers(1, 12), commits=st.booleans())
    def time_passes(self, count, commits):
        self.rounds(count, commits)

    @rule(phase=phases, cold=st.sampled_from([50, 200]), event=events, count=st.integers(0, 8))
    def it_happens_in(self, phase, cold, event, count):
        self.go_well_until(phase, cold)
        event(self)
        self.rounds(count)

    @rule(phase=phases, event=events, fault=st.sampled_from(["kill", "fail"]), after=st.integers(0, 8))
    def it_happens_and_operations_go_wrong_in(self, phase, event, fault, after):
        self.go_well_until(phase, 200)
        event(self)
        self.fault, self.countdown = fault, after
        self.rounds(6)

    @rule(event=events)
    def it_happens(self, event):
        event(self)

    # The events.

    def agent_is_killed(self):
        self.held_since = None
        self.restart_agent()

    def agent_is_stopped(self):
        self.held_since = None
        with contextlib.suppress(Killed):
            self.world.agent.close()
            self.world.start_agent()
            self.arm()
            return
        self.restart_agent()

    def somebody_writes_high(self):
        self.kernel.set_by_stranger(300 * MIB + 4096 * len(self.kernel.strangers))

    def systemd_resets_high(self):
        self.kernel.set_by_stranger(None)

    def somebody_writes_the_limit(self):
        self.kernel.max = (700 if self.kernel.max == 300 * MIB else 300) * MIB

    def the_updater_commits(self):
        if self.uid in self.world.api.shrinks:
            self.world.commit(self.uid)

    def the_updater_commits_through_systemd(self):
        self.systemd_resets_high()
        self.the_updater_commits()

    def the_updater_aborts(self):
        if self.uid in self.world.api.shrinks:
            self.world.abort(self.uid)

    def the_request_is_deleted(self):
        self.world.api.shrinks.pop(self.uid, None)

    def the_api_goes_or_comes(self):
        self.world.api.down = not self.world.api.down

    def the_container_restarts(self):
        old = self.kernel
        old.gone = True
        self.world.add(Container(old.workload, self, limit_mib=640, inode=old.inode + 1))
        self.calm.clear()

    def the_pod_is_deleted(self):
        self.world.delete_pod("web-1")

    def it_is_no_longer_ready(self):
        self.world.set_ready("web-1", ready=False)

    def the_need_grows(self):
        work = self.kernel.workload
        self.kernel.workload = Workload(anon=lambda _t: 400, hot=work.hot, cold=work.cold)

    def the_need_passes_the_guard(self):
        self.kernel.anon += 120 * MIB
        self.kernel.workload = Workload(anon=lambda _t: 180)

    def it_stalls_a_little(self):
        self.kernel.extra_memory_stall = 0.02

    def it_stalls(self):
        self.kernel.extra_memory_stall = 0.4

    def the_clock_is_set_back(self):
        self.world.clock.time -= 3600
        self.calm.clear()

    def the_clock_is_set_back_a_little(self):
        self.world.clock.time -= 0.5

    def the_clock_goes_on(self):
        self.world.clock.time += 45
        self.calm.clear()

    def the_node_is_suspended(self):
        self.world.clock.time += 86400
        self.calm.clear()

    def the_node_is_busy_or_calm(self):
        self.node.busy = not self.node.busy

    @property
    def is_over(self):
        shrink = self.world.api.shrinks.get(self.uid)
        return shrink is not None and shrink.status.phase.is_terminal and not self.kernel.gone

    # How it ends.

    def teardown(self):
        if not self.world.containers:
            return
        try:
            self.end()
        finally:
            self.world.agent.close()
            self.directory.cleanup()

    def end(self):
        self.fault = None
        is_alone = self.world.api.down
        if not is_alone and self.uid in self.world.api.shrinks:
            self.world.abort(self.uid)
        for _ in range(ROUNDS_TO_END_ALONE if is_alone else ROUNDS_TO_END_WHEN_ASKED):
            self.round()
        kernel = self.kernel
        assert self.violations == []
        assert kernel.high in kernel.rightful, f"{kernel.high} was left behind, {kernel.rightful} is right"
        assert self.world.journal_files() == []
        assert kernel.is_ours or not kernel.written
        if not is_alone and self.uid in self.world.api.shrinks:
            assert self.world.status(self.uid).phase.is_terminal


AnyFault.TestCase.settings = settings(stateful_step_count=15)
TestAnyFault = AnyFault.TestCase
