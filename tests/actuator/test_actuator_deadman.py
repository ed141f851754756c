"""The dead-man: what it puts back, what it leaves, and that it takes the journal from nobody."""

import fcntl
import logging
import subprocess
import sys

import pytest
from actuator_fakes import FakeClock, FakeKernel, Workload
from test_actuator_journal import entry

from vpa_ippr.actuator.deadman import DeadMan, Restorer
from vpa_ippr.actuator.journal import Journal, read_entries
from vpa_ippr.actuator.policy import MIB
from vpa_ippr.actuator.restoring import Adopt, Drop, Leave, Restore
from vpa_ippr.api.errors import ActuatorError
from vpa_ippr.api.shrink import Phase

GUARD = 300 * MIB
BOOTTIME = 50_000.0


class Node:
    """Cgroups by the uid of the entry that is about them, and processes that are said to live or not."""

    def __init__(self, directory):
        self.directory = directory
        self.kernels: dict[str, FakeKernel] = {}
        self.alive: bool | None = True
        self.boottime = BOOTTIME
        self.thawed: list[str] = []
        self.broken: set[str] = set()
        self.restorer = Restorer(directory, "b", self, lambda: (1.8e9, self.boottime), lambda _owner: self.alive)

    def of_entry(self, entry):
        if entry.shrink_uid in self.broken:
            raise ActuatorError("cannot open cgroup: Permission denied")
        return self.kernels.get(entry.shrink_uid)

    def thaw(self, entry):
        self.thawed.append(entry.shrink_uid)

    def leave(self, uid="s1", high=GUARD, **changes):
        """An owner that has written a guard, and is gone without its lock or still there with it."""
        kernel = FakeKernel(Workload(), limit_mib=512, inode=100 + len(self.kernels), high_bytes=high)
        self.kernels[uid] = kernel
        fields = {"cgroup_identity": kernel.inode, "guard_bytes": GUARD, "deadline_boottime_seconds": BOOTTIME + 600}
        journal = Journal(self.directory, "b")
        journal.write(entry(shrink_uid=uid, **fields | changes))
        self.holder = journal
        return kernel

    def left(self):
        return [left.shrink_uid for left in read_entries(self.directory)]


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


def test_nothing_to_do_takes_no_lock_and_makes_no_directory(tmp_path):
    restorer = Restorer(tmp_path / "journal", "b", Node(tmp_path), lambda: (0.0, 0.0))
    assert restorer.settle() == ()
    assert not (tmp_path / "journal").exists()


def test_dead_owner_is_put_back_and_forgotten(node):
    kernel = node.leave()
    node.holder.close()
    (outcome,) = node.restorer.settle()
    assert outcome.verdict == Restore(None)
    assert kernel.high is None
    assert node.left() == []
    Journal(node.directory, "b").close()  # the lock is free again


def test_live_owner_is_left_alone(node):
    kernel = node.leave()
    (outcome,) = node.restorer.settle()
    assert isinstance(outcome.verdict, Leave)
    assert (kernel.written, node.left()) == ([], ["s1"])
    node.holder.write(entry(shrink_uid="s1"))  # and still has its journal
    node.holder.close()


@pytest.mark.parametrize("alive", [True, None], ids=["seen", "other-pid-namespace"])
def test_owner_that_hangs_is_put_back_but_keeps_lock_and_entry(node, alive):
    kernel = node.leave()
    node.alive, node.boottime = alive, BOOTTIME + 661
    (outcome,) = node.restorer.settle()
    assert outcome.verdict == Restore(None)
    assert (kernel.high, node.left()) == (None, ["s1"])
    with pytest.raises(ActuatorError, match="holds"):
        Journal(node.directory, "b")
    node.holder.close()


def test_entry_of_a_dead_owner_under_a_successors_lock_is_put_back_and_left_to_it(node):
    kernel = node.leave()
    node.alive = False
    node.restorer.settle()
    assert (kernel.high, node.left()) == (None, ["s1"])
    node.holder.close()


def test_everything_includes_what_a_live_owner_holds_and_says_so(node):
    kernel = node.leave()
    (outcome,) = node.restorer.settle(everything=True)
    assert outcome.was_alive
    assert kernel.high is None
    node.holder.close()


@pytest.mark.parametrize(
    ("path", "everything", "stays"),
    [(None, False, True), (None, True, False), ("db", False, False)],
    ids=["next-agent-adopts", "uninstall", "standalone-has-no-successor"],
)
def test_committed_shrink_keeps_its_limit(node, path, everything, stays):
    kernel = node.leave(phase=Phase.HOLDING, cgroup_path=path)
    kernel.max = entry().target_bytes
    node.holder.close()
    (outcome,) = node.restorer.settle(everything=everything)
    assert outcome.verdict == Adopt(True)
    assert (kernel.high, kernel.max) == (None, entry().target_bytes)
    assert node.left() == (["s1"] if stays else [])


def test_frozen_processes_go_on_before_anything_else(node):
    node.leave(may_be_frozen=True, cgroup_path="db")
    node.holder.close()
    node.restorer.settle()
    assert node.thawed == ["s1"]


def test_successor_cgroup_is_neither_thawed_nor_written(node):
    kernel = node.leave(may_be_frozen=True, cgroup_identity=1)
    node.holder.close()
    (outcome,) = node.restorer.settle()
    assert isinstance(outcome.verdict, Drop)
    assert (node.thawed, kernel.written, node.left()) == ([], [], [])


def test_one_that_cannot_be_put_back_stops_no_other_and_is_tried_again(node):
    first = node.leave("a1")
    node.holder.close()
    second = node.leave("b1")
    node.holder.close()
    first.failing_writes = 1
    outcomes = node.restorer.settle()
    assert [bool(outcome.error) for outcome in outcomes] == [True, False]
    assert (second.high, node.left()) == (None, ["a1"])
    node.restorer.settle()
    assert (first.high, node.left()) == (None, [])


def test_write_that_does_not_take_is_tried_again(node, monkeypatch):
    kernel = node.leave()
    node.holder.close()
    monkeypatch.setattr(kernel, "write_high", lambda _high: None)
    (outcome,) = node.restorer.settle()
    assert "memory.high reads" in outcome.error
    assert node.left() == ["s1"]


class Rounds(FakeClock):
    """Lets a fixed number of waits pass."""

    def __init__(self, rounds):
        super().__init__()
        self.rounds = rounds

    def wait_until(self, moment):
        self.rounds -= 1
        return super().wait_until(moment) and self.rounds >= 0


def test_dead_man_looks_every_five_seconds_and_says_each_thing_once(node, caplog):
    node.leave()
    node.holder.close()
    node.broken.add("s1")
    clock = Rounds(3)
    with caplog.at_level(logging.INFO):
        DeadMan([node.restorer], clock).run()
    assert clock.time - FakeClock().time == 20.0
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "Permission denied" in caplog.records[0].outcome


def test_journal_that_cannot_be_looked_at_stops_no_other(node, tmp_path, caplog):
    kernel = node.leave()
    node.holder.close()
    (tmp_path / "file").write_text("")
    broken = Restorer(tmp_path / "file", "b", node, lambda: (0.0, 0.0))
    DeadMan([broken, node.restorer], Rounds(0)).run()
    assert "cannot be looked at" in caplog.text
    assert kernel.high is None


HOLDER = """
import sys, time
from pathlib import Path
sys.path[:0] = {path!r}
from vpa_ippr.actuator.journal import Journal
from test_actuator_journal import entry
journal = Journal(Path({directory!r}), "b")
journal.write(entry(shrink_uid="s1", cgroup_identity=100, guard_bytes={guard}, deadline_boottime_seconds={deadline}))
print("holds", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    "prefix", [[], ["unshare", "--pid", "--fork", "--kill-child"]], ids=["same-pid-namespace", "another-pid-namespace"]
)
def test_real_process_is_seen_to_live_and_to_be_gone(tmp_path, prefix):
    """Across pid namespaces, as between two containers of a pod, flock(2) alone tells."""
    from vpa_ippr.actuator.owner import is_alive

    if prefix and subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no right to make a pid namespace")
    node = Node(tmp_path)
    kernel = node.kernels["s1"] = FakeKernel(Workload(), inode=100, high_bytes=GUARD)
    restorer = Restorer(tmp_path, "b", node, lambda: (1.8e9, BOOTTIME), is_alive)
    program = HOLDER.format(path=sys.path, directory=str(tmp_path), guard=GUARD, deadline=BOOTTIME + 600)
    with subprocess.Popen([*prefix, sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"holds\n"
        (outcome,) = restorer.settle()
        assert outcome.verdict == Leave("the journal's lock is held" if prefix else "its owner lives")
        assert kernel.high == GUARD
        holder.kill()
    with (tmp_path / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the kernel lets it go at the end of the last of them
    (outcome,) = restorer.settle()
    assert outcome.verdict == Restore(None)
    assert (kernel.high, node.left()) == (None, [])
