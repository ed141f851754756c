"""A shrink without Kubernetes, on the small kernel of the fakes: every way it ends, and what it leaves behind when it is killed."""

import threading

import pytest
from actuator_fakes import FakeClock, FakeKernel, Workload, noisy

from vpa_ippr.actuator import standalone
from vpa_ippr.actuator.deadman import Restorer
from vpa_ippr.actuator.journal import Journal, read_entries
from vpa_ippr.actuator.policy import MIB, Policy
from vpa_ippr.actuator.standalone import Request
from vpa_ippr.api.errors import ActuatorError
from vpa_ippr.api.shrink import Phase

CACHE = Workload(anon=lambda _t: 40.0, hot=30.0, cold=330.0)


class Killed(BaseException):
    """SIGKILL."""


class Limit:
    """memory.max and the freezer of a fake kernel."""

    def __init__(self, kernel):
        self.kernel = kernel
        self.failing: list[str] = []
        self.kills_at: str | None = None
        self.is_dead = False
        self.frozen = False

    def _call(self, name):
        self.is_dead = self.is_dead or self.kills_at == name
        if self.is_dead:
            raise Killed  # also out of every finally: a killed process runs none
        if name in self.failing:
            raise ActuatorError(f"{name}: Device or resource busy", reason="WriteFailed")

    def usage_bytes(self):
        return self.kernel.usage

    def max_bytes(self):
        return self.kernel.max

    def set_max(self, max_bytes):
        self._call("set")
        self.kernel.max = max_bytes

    def freeze(self):
        self.frozen = True
        self._call("freeze")
        return True

    def thaw(self):
        self._call("thaw")
        self.frozen = False


class Bench(FakeClock):
    """One cgroup and a clock that moves it; ``at`` is called in every state."""

    def __init__(self, directory, workload=CACHE, **kernel):
        super().__init__()
        self.directory = directory
        self.kernel = FakeKernel(workload, **kernel)
        self.limit = Limit(self.kernel)
        self.stop = threading.Event()
        self.seen: list[Phase] = []
        self.at = lambda _state: None
        self.policy = Policy(observe_seconds=10, stability_seconds=10, probation_seconds=60)

    def wait_until(self, moment):
        if self.stop.is_set():
            return False
        self.kernel.advance(max(0.0, moment - self.time))
        return super().wait_until(moment)

    def show(self, state):
        if not self.seen or self.seen[-1] is not state.phase:
            self.seen.append(state.phase)
        self.at(state)

    def request(self, target_mib=256, deadline=900.0):
        return Request(path="db", target_bytes=int(target_mib * MIB), deadline_seconds=deadline, policy=self.policy)

    def run(self, direct=True, **request):
        journal = Journal(self.directory, "b", boottime=self.now)
        try:
            return standalone.run(self.request(**request), self.kernel, self.limit if direct else None, journal, self, self.stop, self.show)
        finally:
            journal.close()

    def recover(self):
        """What ``actuator restore`` does."""
        return Restorer(self.directory, "b", self, lambda: (self.time, self.time)).settle()

    def of_entry(self, entry):
        assert entry.cgroup_path == "db"
        return None if self.kernel.gone else self.kernel

    def thaw(self, _entry):
        self.limit.frozen = False

    def is_clean(self):
        return not read_entries(self.directory) and self.kernel.high is None and not self.limit.frozen


@pytest.fixture
def bench(state_dir):
    return Bench(state_dir)


def test_direct_commit_ends_done_under_the_new_limit(bench):
    result = bench.run()
    assert (result.state.phase, result.limit_is_set, result.is_left_over) == (Phase.DONE, True, False)
    assert bench.seen == [Phase.PENDING, Phase.OBSERVING, Phase.SHRINKING, Phase.HOLDING, Phase.COMMITTED, Phase.DONE][-len(bench.seen) :]
    assert (bench.kernel.max, bench.kernel.oom_kills, bench.kernel.strangled) == (256 * MIB, 0, [])
    assert bench.is_clean()


def test_somebody_else_sets_the_limit(bench):
    def follow(state):
        if state.phase is Phase.HOLDING:
            bench.kernel.max = 256 * MIB

    bench.at = follow
    result = bench.run(direct=False)
    assert (result.state.phase, result.limit_is_set) == (Phase.DONE, False)
    assert bench.is_clean()


def test_nobody_sets_the_limit(bench):
    result = bench.run(direct=False)
    assert (result.state.phase, result.was_held) == (Phase.EXPIRED, True)
    assert bench.kernel.max == 512 * MIB
    assert bench.is_clean()


@pytest.mark.parametrize(
    ("workload", "reason"),
    [(Workload(anon=lambda _t: 300.0), "UnreclaimableAnonymous"), (Workload(anon=lambda t: 100.0 + t, cold=100.0), "Growing")],
    ids=["anonymous", "leak"],
)
def test_refusal_touches_nothing(state_dir, workload, reason):
    bench = Bench(state_dir, workload)
    result = bench.run()
    assert (result.state.phase, result.state.reason) == (Phase.REFUSED, reason)
    assert (bench.kernel.written, bench.kernel.reclaims, bench.kernel.max) == ([], 0, 512 * MIB)


def test_harm_in_probation_raises_the_limit_again(bench):
    def hurt(state):
        if state.phase is Phase.COMMITTED:
            bench.kernel.extra_memory_stall = 0.5

    bench.at = hurt
    result = bench.run()
    assert (result.state.phase, result.state.reason, result.limit_is_set) == (Phase.REVERTED, "PressureAfterCommit", False)
    assert bench.kernel.max == 512 * MIB
    assert bench.is_clean()


TOUCHING = [Phase.OBSERVING, Phase.SHRINKING, Phase.HOLDING, Phase.COMMITTED]


@pytest.mark.parametrize("phase", TOUCHING)
def test_signal_in_each_phase_puts_everything_back(bench, phase):
    bench.at = lambda state: bench.stop.set() if state.phase is phase else None
    result = bench.run()
    assert (result.state.phase, result.is_left_over) == (Phase.ABORTED, False)
    assert bench.kernel.max == 512 * MIB
    assert bench.is_clean()


def test_signal_while_the_kernel_refuses_leaves_the_journal_to_restore(bench):
    def stop(state):
        if state.phase is Phase.HOLDING and state.guard_bytes is not None:
            bench.stop.set()
            bench.kernel.failing_writes = 100

    bench.at = stop
    result = bench.run(direct=False)
    assert result.is_left_over
    bench.kernel.failing_writes = 0
    (outcome,) = bench.recover()
    assert not outcome.error
    assert bench.is_clean()


@pytest.mark.parametrize("phase", TOUCHING)
def test_killed_in_each_phase_it_is_put_back_by_restore(bench, phase):
    def kill(state):
        if state.phase is phase and (phase is not Phase.SHRINKING or state.guard_bytes is not None):
            raise Killed

    bench.at = kill
    with pytest.raises(Killed):
        bench.run()
    assert bool(read_entries(bench.directory)) is (phase is not Phase.OBSERVING)
    bench.recover()
    assert bench.is_clean()
    assert bench.kernel.max == (256 * MIB if phase is Phase.COMMITTED else 512 * MIB)


@pytest.mark.parametrize(("call", "limit"), [("freeze", 512), ("set", 512), ("thaw", 256)])
def test_killed_within_the_commit_nothing_stays_frozen(bench, call, limit):
    bench.limit.kills_at = call
    with pytest.raises(Killed):
        bench.run()
    assert bench.limit.frozen
    bench.recover()
    assert bench.is_clean()
    assert bench.kernel.max == limit * MIB


@pytest.mark.parametrize("call", ["freeze", "set"])
def test_commit_that_fails_again_and_again_is_given_up(bench, call):
    bench.limit.failing = [call]
    result = bench.run()
    assert (result.state.phase, result.state.reason) == (Phase.REVERTED, "CommitFailed")
    assert "3 times in a row" in result.state.message
    assert bench.kernel.max == 512 * MIB
    assert bench.is_clean()


def test_processes_that_could_not_be_thawed_at_once_are_before_the_end(bench):
    bench.limit.failing = ["thaw"]

    def mend(state):
        if state.ending is not None or state.phase is Phase.COMMITTED:
            bench.limit.failing = []

    bench.at = mend
    bench.run()
    assert bench.is_clean()


def test_container_that_goes_leaves_nothing(bench):
    def go(state):
        if state.phase is Phase.HOLDING:
            bench.kernel.gone = True

    bench.at = go
    result = bench.run()
    assert result.state.phase is Phase.GONE
    assert read_entries(bench.directory) == ()


def test_terminal_that_goes_away_leaves_no_guard(bench):
    def vanish(state):
        if state.guard_bytes is not None and state.ending is None:
            raise OSError(5, "Input/output error")

    bench.at = vanish
    with pytest.raises(OSError, match="Input/output"):
        bench.run()
    assert bench.kernel.max == 512 * MIB
    assert bench.is_clean()


class FullDisk:
    """Refuses everything from now on."""

    def write(self, _fd, _data, /):
        raise OSError(28, "No space left on device")

    fsync = rename = write


def test_full_disk_is_a_refusal_before_anything_is_touched(bench):
    journal = Journal(bench.directory, "b", disk=FullDisk(), boottime=bench.now)
    result = standalone.run(bench.request(), bench.kernel, bench.limit, journal, bench, bench.stop, bench.show)
    journal.close()
    assert (result.state.phase, result.state.reason) == (Phase.REFUSED, "JournalUnwritable")
    assert "No space left" in result.state.message
    assert (bench.kernel.written, bench.kernel.reclaims, bench.kernel.max) == ([], 0, 512 * MIB)


def test_disk_that_fills_up_midway_reverts_with_its_reason(bench):
    journal = Journal(bench.directory, "b", boottime=bench.now)

    def fill(state):
        if state.guard_bytes is not None:
            journal._disk = FullDisk()
            bench.kernel.workload = Workload(anon=lambda _t: 40.0, hot=30.0)

    bench.at = fill
    result = standalone.run(bench.request(), bench.kernel, bench.limit, journal, bench, bench.stop, bench.show)
    journal.close()
    assert (result.state.phase, result.state.reason) == (Phase.REVERTED, "JournalUnwritable")
    assert (bench.kernel.high, bench.kernel.max) == (None, 512 * MIB)
    assert read_entries(bench.directory) == () or result.is_left_over


@pytest.mark.parametrize(
    ("workload", "phase"), [(CACHE, Phase.SHRINKING), (Workload(anon=noisy(300, 2, 1)), Phase.REFUSED)], ids=["would", "would-not"]
)
def test_rehearsal_judges_and_writes_nothing(state_dir, workload, phase):
    bench = Bench(state_dir, workload)
    state = standalone.rehearse(bench.request(), bench.kernel, bench, bench.stop, bench.show)
    assert state.phase is phase
    assert (bench.kernel.written, bench.kernel.reclaims, read_entries(state_dir)) == ([], 0, ())


def test_rehearsal_can_be_stopped(bench):
    bench.at = lambda _state: bench.stop.set()
    assert standalone.rehearse(bench.request(), bench.kernel, bench, bench.stop, bench.show).phase is Phase.ABORTED
