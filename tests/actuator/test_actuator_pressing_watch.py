"""The watch for memory pressure against containers, an API and a clock that tests move."""

import logging
import os
import select
import socket
import threading
from dataclasses import dataclass, field

import pytest
from actuator_fakes import FakeClock, container_id

from vpa_ippr.actuator.cgroupfs import CgroupFs
from vpa_ippr.actuator.pressing_policy import PressingPolicy
from vpa_ippr.actuator.pressing_watch import PressingWatch, start_pressing_watch, wait_for_stall
from vpa_ippr.actuator.triggers import Pressure, PressureTriggers
from vpa_ippr.api.clock import SystemClock
from vpa_ippr.api.errors import ActuatorError, ClusterError
from vpa_ippr.api.meta import ObjectMeta
from vpa_ippr.api.node_memory import MAX_PRESSING
from vpa_ippr.api.pod import (
    Container,
    ContainerState,
    ContainerStateRunning,
    ContainerStateWaiting,
    ContainerStatus,
    Pod,
    PodSpec,
    PodStatus,
)
from vpa_ippr.api.resources import ResourceRequirements
from vpa_ippr.api.timestamps import parse_time
from vpa_ippr.api.validation import validate_node_memory

MIB = 1 << 20
NODE = "node-a"
RUNNING = ContainerState(running=ContainerStateRunning("2026-01-01T00:00:00Z"))
LIMITED = ResourceRequirements(limits={"memory": "512Mi"})


@dataclass
class FakeCgroup:
    """Amounts in MiB."""

    need: float = 100
    cache: float = 0
    limit: float | None = 512
    hits: int = 0
    ooms: int = 0
    kills: int = 0
    stalled_us: int | None = 0
    gone: bool = False
    broken: bool = False
    triggers: PressureTriggers = field(default_factory=lambda: PressureTriggers({}))
    opened_triggers: int = 0
    reads: list[str] = field(default_factory=list)

    def text(self, name):
        self.reads.append(name)
        if self.broken or (name == "memory.pressure" and self.stalled_us is None):
            raise ActuatorError(f"{name}: Operation not supported")
        return None if self.gone else self._text(name)

    def _text(self, name):
        averages = "avg10=0.00 avg60=0.00 avg300=0.00"
        most = f"low 0\nhigh 7\nmax {self.hits}\noom {self.ooms}\n"
        return {
            "memory.current": f"{int((self.need + self.cache) * MIB)}\n",
            "memory.max": "max\n" if self.limit is None else f"{int(self.limit * MIB)}\n",
            "memory.stat": f"anon {int(self.need * MIB)}\nfile 0\ninactive_file {int(self.cache * MIB)}\nactive_file 0\n",
            "memory.events": f"{most}oom_kill {self.kills}\noom_group_kill 0\n",
            "memory.events.local": f"{most}oom_kill 0\noom_group_kill 0\n",
            "memory.pressure": f"some {averages} total=9\nfull {averages} total={self.stalled_us}\n",
        }[name]

    def open_triggers(self):
        self.opened_triggers += 1
        return self.triggers


class Node:
    """Finder, port and clock in one."""

    def __init__(self, policy=None, **options):
        self.clock = FakeClock()
        self.pods = []
        self.cgroups = {}
        self.down = False
        self.lists = True
        self.finds = []
        self.puts = []
        self.attempts = 0
        self.watch = PressingWatch(NODE, self, self, self.clock, policy or PressingPolicy(), **options)

    def list_pods(self, node_name):
        assert node_name == NODE
        if not self.lists:
            raise ClusterError("the API server is not there")
        return self.pods

    def put_node_memory(self, node_name, status):
        assert node_name == NODE
        assert validate_node_memory(status) == ()
        self.attempts += 1
        if self.down:
            raise ClusterError("the API server is not there")
        self.puts.append((self.clock.time, status))

    def find(self, pod_uid, container_id, qos_class):
        assert (pod_uid[:4], qos_class) == ("uid-", "Burstable")
        self.finds.append(container_id)
        found = self.cgroups.get(container_id)
        if isinstance(found, ActuatorError):
            raise found
        return found

    def add(self, cgroup, name="web-0", namespace="shop", state=RUNNING, resources=LIMITED, **meta):
        identifier = container_id(len(self.cgroups) + 1)
        self.cgroups[identifier] = cgroup
        metadata = ObjectMeta(name=name, namespace=namespace, uid=f"uid-{name}", **meta)
        status = ContainerStatus("app", identifier, state=state)
        spec = PodSpec([Container("app", resources=resources)])
        self.pods.append(Pod(metadata, spec, PodStatus("Running", "Burstable", container_statuses=[status])))
        return cgroup

    def run(self, seconds, each=lambda _second: None):
        for second in range(seconds):
            each(second)
            self.clock.wait_until(self.watch.run_once())

    @property
    def told(self):
        """The pods that press by the last write."""
        return [entry.pod_name for entry in self.puts[-1][1].pressing]


def test_what_presses_is_told_in_full():
    node = Node()
    node.add(FakeCgroup(need=500, cache=5))
    node.run(1)
    ((at, status),) = node.puts
    (entry,) = status.pressing
    assert (entry.namespace, entry.pod_name, entry.pod_uid, entry.container_name) == ("shop", "web-0", "uid-web-0", "app")
    assert entry.container_id == container_id(1)
    assert (entry.usage_bytes, entry.limit_bytes, entry.reason) == (500 * MIB, 512 * MIB, "NearLimit")
    assert parse_time(entry.since) == parse_time(entry.observed_time) == parse_time(status.last_beat_time) == at


def test_at_rest_only_the_beat_is_written():
    node = Node()
    node.add(FakeCgroup())
    node.run(181)
    assert [round(at - node.puts[0][0]) for at, _ in node.puts] == [0, 60, 120, 180]
    assert all(status.pressing == [] for _, status in node.puts)


def test_a_beat_renews_the_figures_of_what_still_presses():
    node = Node()
    node.add(FakeCgroup(need=500))
    node.run(62)
    first, second = (status.pressing[0] for _, status in node.puts)
    assert first.since == second.since
    assert parse_time(second.observed_time) - parse_time(first.observed_time) == 60


@pytest.mark.parametrize("rate", [1, 5, 20, 50])
@pytest.mark.parametrize(("limit", "base"), [(256, 0), (512, 50), (512, 300), (4096, 1000)])
def test_a_ramp_is_told_in_time(rate, limit, base):
    """From afar, where usage alone is looked at; 5 s before the end, or within 4 s where it takes less than 9 s in all."""
    node = Node()
    cgroup = node.add(FakeCgroup(need=base, limit=limit))
    begin, until = 20, (limit - base) / rate

    def grow(second):
        cgroup.need = min(limit, base + rate * max(0, second - begin))

    node.run(begin + int(until) + 1, grow)
    told = next(at for at, status in node.puts if status.pressing) - (node.puts[0][0] + begin)
    assert told <= max(until - 5, 4)


@pytest.mark.parametrize(
    ("cgroup", "each"),
    [
        pytest.param(FakeCgroup(need=60), lambda c, s: setattr(c, "cache", min(452, 40 * s)), id="cold-reads"),
        pytest.param(FakeCgroup(need=150, cache=362), lambda c, s: setattr(c, "hits", 900 * s), id="database-cache"),
        pytest.param(FakeCgroup(need=30, cache=482), lambda c, s: setattr(c, "stalled_us", 200_000 * s), id="log-writer"),
    ],
)
def test_page_cache_is_no_alarm(cgroup, each):
    node = Node()
    node.add(cgroup)
    node.run(59, lambda second: each(cgroup, second))
    assert [status.pressing for _, status in node.puts] == [[]]


def test_a_kill_in_a_group_that_lives_on_is_told_within_two_seconds():
    node = Node()
    cgroup = node.add(FakeCgroup(need=400))
    node.run(10)
    cgroup.kills, cgroup.ooms, cgroup.need = 1, 1, 200
    node.run(5)
    at, status = node.puts[-1]
    assert status.pressing[0].reason == "OomKilled"
    assert at - (node.puts[0][0] + 10) <= 2


def test_a_raised_limit_is_told_at_once_and_ends_it():
    node = Node()
    cgroup = node.add(FakeCgroup(need=500))
    node.run(3)
    cgroup.limit = 800
    node.run(1)
    assert (len(node.puts), node.told) == (2, [])


def test_a_limit_that_was_not_raised_enough_is_told_at_once():
    node = Node()
    cgroup = node.add(FakeCgroup(need=510))
    node.run(3)
    cgroup.limit = 520
    node.run(1)
    assert [status.pressing[0].limit_bytes for _, status in node.puts] == [512 * MIB, 520 * MIB]


def test_figures_are_written_now_and_then_only():
    node = Node()
    cgroup = node.add(FakeCgroup(need=3900, limit=4096))
    node.run(30, lambda second: setattr(cgroup, "need", 3900 + second % 2))
    assert len(node.puts) == 1
    node.run(20, lambda second: setattr(cgroup, "need", 4090 if second % 2 else 3500))
    assert 3 <= len(node.puts) <= 6


def test_a_gone_container_presses_no_more():
    node = Node()
    cgroup = node.add(FakeCgroup(need=500))
    node.run(1)
    cgroup.gone = True
    node.pods.clear()
    node.run(1)
    assert (len(node.puts), node.told) == (2, [])


def test_a_restarted_container_is_another_one():
    node = Node()
    old = node.add(FakeCgroup(need=500))
    node.run(1)
    old.gone = True
    node.pods.clear()
    node.add(FakeCgroup(need=505))
    node.run(6)
    assert [entry.container_id for entry in node.puts[-1][1].pressing] == [container_id(2)]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"namespace": "kube-system"}, id="excluded-namespace"),
        pytest.param({"deletion_timestamp": "2026-01-01T00:00:00Z"}, id="pod-that-ends"),
        pytest.param({"annotations": {"kubernetes.io/config.mirror": "x"}}, id="mirror-pod"),
        pytest.param({"state": ContainerState(waiting=ContainerStateWaiting("CrashLoopBackOff"))}, id="not-running"),
        pytest.param({"resources": ResourceRequirements(limits={"cpu": "1"})}, id="no-limit"),
    ],
)
def test_who_is_not_watched(options):
    node = Node()
    node.add(FakeCgroup(need=500), **options)
    node.run(2)
    assert (node.told, node.finds) == ([], [])


def test_excluded_namespaces_are_for_the_operator_to_choose():
    node = Node(excluded_namespaces=["sh*"])
    node.add(FakeCgroup(need=500))
    node.add(FakeCgroup(need=500), "dns-0", "kube-system")
    node.run(1)
    assert node.told == ["dns-0"]


def test_a_limit_that_the_kernel_does_not_have_cannot_be_reached():
    node = Node()
    node.add(FakeCgroup(need=9000, limit=None))
    node.run(3)
    assert node.told == []


def test_one_bad_container_does_not_stop_the_others(caplog):
    node = Node()
    bad = node.add(FakeCgroup(broken=True), "bad-0")
    node.add(FakeCgroup(need=500), "good-0")
    node.run(5)
    assert node.told == ["good-0"]
    assert [record.message for record in caplog.records].count("container cannot be read") == 1
    bad.broken, bad.need = False, 505
    node.run(2)
    assert node.told == ["bad-0", "good-0"]


def test_a_container_that_cannot_be_read_any_more_is_claimed_to_be_nothing():
    node = Node()
    cgroup = node.add(FakeCgroup(need=500))
    node.run(2)
    cgroup.broken = True
    node.run(1)
    assert node.told == []


def test_a_container_without_cgroup_is_looked_for_less_and_less_often():
    node = Node()
    node.add(None, "vm-0")
    node.add(ActuatorError("container id 'x' is not <runtime>://<64 hex digits>"), "odd-0")
    node.run(600)
    assert node.finds.count(container_id(1)) == node.finds.count(container_id(2)) == 6


def test_without_pressure_figures_all_else_is_seen(caplog):
    caplog.set_level(logging.INFO)
    node = Node()
    node.add(FakeCgroup(need=500, stalled_us=None))
    node.run(5)
    assert node.told == ["web-0"]
    assert [record.message for record in caplog.records].count("no memory pressure: stalls are not seen") == 1


def test_a_stall_with_little_cache_left_is_told():
    node = Node()
    cgroup = node.add(FakeCgroup(need=400, cache=112))
    node.run(5, lambda second: setattr(cgroup, "stalled_us", 100_000 * second))
    assert node.puts[-1][1].pressing[0].reason == "MemoryStall"


# Without the API.


def test_with_the_api_away_it_goes_on_with_the_containers_that_it_knows(caplog):
    node = Node()
    cgroup = node.add(FakeCgroup())
    node.run(3)
    node.down, node.lists = True, False
    node.run(20)
    cgroup.need = 500
    node.run(40)
    assert len(node.puts) == 1
    assert 1 <= node.attempts <= 10
    node.down = False
    node.run(11)
    assert (node.told, len(node.puts)) == (["web-0"], 2)
    messages = [record.message for record in caplog.records]
    assert messages.count("cannot tell what presses: tries again") == 1
    assert messages.count("cannot list the node's pods: watches those that are known") == 1


def test_before_the_first_list_nothing_is_watched_and_nothing_fails():
    node = Node()
    node.add(FakeCgroup(need=500))
    node.lists = False
    node.run(10)
    assert node.told == []
    node.lists = True
    node.run(6)
    assert node.told == ["web-0"]


def test_more_than_can_be_named_are_counted():
    node = Node()
    for number in range(MAX_PRESSING + 6):
        node.add(FakeCgroup(need=500), f"web-{number}")
    node.run(1)
    status = node.puts[-1][1]
    assert (len(status.pressing), status.pressing_count) == (MAX_PRESSING, MAX_PRESSING + 6)


def test_of_too_many_the_latest_are_named():
    node = Node()
    for number in range(MAX_PRESSING):
        node.add(FakeCgroup(need=500), f"web-{number}")
    late = node.add(FakeCgroup(need=100), "zz-late-0")
    node.run(3)
    late.need = 500
    node.run(3)
    assert "zz-late-0" in node.told
    assert node.puts[-1][1].pressing_count == MAX_PRESSING + 1


# Cost and time.


def test_at_rest_little_is_read():
    node = Node()
    cgroups = [node.add(FakeCgroup(), f"web-{number}") for number in range(110)]
    node.run(1)
    for cgroup in cgroups:
        cgroup.reads.clear()
    node.run(50)
    assert sum(len(cgroup.reads) for cgroup in cgroups) / 50 / 110 < 3


def test_a_clock_set_back_stops_nothing():
    node = Node()
    node.add(FakeCgroup(need=500))
    node.run(3)
    node.clock.time -= 3600
    node.pods.clear()
    node.run(2)
    assert node.told == []


def test_a_round_that_fails_is_not_the_last():
    node = Node()
    rounds = []

    def list_pods(_node_name):
        rounds.append(node.clock.time)
        if len(rounds) == 3:
            stop.set()
        raise RuntimeError("a fault of ours")

    stop = threading.Event()
    node.list_pods = list_pods
    node.watch.run(stop)
    assert len(rounds) == 3


def test_the_thread_ends_when_it_is_told_to():
    node = Node()
    node.add(FakeCgroup(need=500))
    clock = SystemClock()
    node.clock.now = clock.now
    running = start_pressing_watch(NODE, node, node, clock)
    clock.stop()
    running.close()
    assert not running.thread.is_alive()


# Triggers.


def test_triggers_are_held_where_little_cache_is_left_and_by_so_many_at_most():
    node = Node(PressingPolicy(max_triggered=2))
    full = [node.add(FakeCgroup(need=400), f"full-{number}") for number in range(3)]
    cached = node.add(FakeCgroup(need=100, cache=400), "cached-0")
    node.run(3)
    assert [one.opened_triggers for one in (*full, cached)] == [1, 1, 0, 0]
    full[0].need = 100
    node.run(10)
    assert full[2].opened_triggers == 1


@pytest.fixture
def urgent():
    """A descriptor with urgent data, which polls as a fired trigger does, and the number it was given."""
    server = socket.create_server(("127.0.0.1", 0))
    sender = socket.create_connection(server.getsockname())
    receiver, _ = server.accept()
    sender.send(b"!", socket.MSG_OOB)
    assert select.select([], [], [receiver], 5)[2]
    yield os.dup(receiver.fileno())
    for one in (server, sender, receiver):
        one.close()


@dataclass
class CountingClock:
    """Moves on by a second with each look at it."""

    looks: int = 0

    def now(self):
        self.looks += 1
        return float(self.looks)

    def wait_until(self, moment):
        raise AssertionError(f"nothing should have to wait (until {moment})")

    def stop(self):
        pass


def test_a_stall_ends_the_wait(urgent):
    clock = CountingClock()
    wait_for_stall([PressureTriggers({urgent: Pressure.MEMORY_FULL})], 1e6, clock)
    assert clock.looks == 1


def test_waiting_for_io_does_not(urgent):
    clock = CountingClock()
    wait_for_stall([PressureTriggers({urgent: Pressure.IO_SOME})], 5, clock)
    assert clock.looks == 5


# The real files.


def test_it_reads_what_kernels_write(tmp_path):
    directory = tmp_path / "scope"
    directory.mkdir()
    fake = FakeCgroup(need=100, cache=400)
    for name in ("memory.current", "memory.max", "memory.stat", "memory.events", "memory.events.local", "memory.pressure"):
        (directory / name).write_text(fake.text(name))
    (directory / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    node = Node()
    node.add(CgroupFs(os.open(directory, os.O_PATH | os.O_DIRECTORY), str(directory)))
    node.run(1)
    assert node.told == []
    fake.need, fake.cache = 500, 10
    for name in ("memory.current", "memory.stat"):
        (directory / name).write_text(fake.text(name))
    node.run(1)
    assert node.told == ["web-0"]
    for path in directory.iterdir():
        path.unlink()
    node.pods.clear()
    node.run(1)
    assert node.told == []
