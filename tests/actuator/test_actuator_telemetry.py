"""What the agent and the dead-man tell of themselves: metrics, probes, status writes, events and log lines."""

import contextlib
import logging
import re
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import msgspec
import pytest
from actuator_fakes import FakeKernel, Workload, World

from vpa_ippr.actuator import deadman
from vpa_ippr.actuator.journal import count_entries
from vpa_ippr.actuator.policy import MIB, Policy
from vpa_ippr.actuator.reasons import Reason
from vpa_ippr.actuator.restoring import Adopt, Drop, Leave, Restore
from vpa_ippr.api.errors import ClusterError
from vpa_ippr.api.node_memory import NodeMemoryStatus, PressingContainer
from vpa_ippr.api.shrink import Phase
from vpa_ippr.cli.actuator_options import Place
from vpa_ippr.cli.actuator_telemetry import (
    _ON_THE_WAY,
    _ONLY_REFUSED,
    _ONLY_REVERTED,
    ENDS,
    STALE_SECONDS,
    AgentTelemetry,
    CountingPort,
    DeadManTelemetry,
    NodeTelemetry,
)
from vpa_ippr.cluster.telemetry import Exposition, Telemetry

QUICK = Policy(
    observe_seconds=5, observe_max_seconds=10, settle_seconds=2, stability_seconds=5, probation_seconds=20, start_jitter_seconds=0
)
PAGE = Path(__file__).parents[2] / "docs" / "actuator.md"


def samples(telemetry):
    found = {}
    for metric in telemetry.collect():
        for sample in metric.samples:
            found[sample.name.removeprefix("vpa_ippr_"), *sample.labels.values()] = sample.value
    return found


class Observed:
    """A world whose agent is observed."""

    def __init__(self, state_dir, policy=QUICK):
        self.telemetry, self.monotonic = Telemetry(), 0.0
        self.observer = AgentTelemetry(self.telemetry, state_dir, lambda: self.monotonic)
        self.world = World(state_dir, policy, observer=self.observer)

    @property
    def found(self):
        return samples(self.telemetry)

    def ended(self):
        """Outcomes and reasons that were counted."""
        return {key[1:]: value for key, value in self.found.items() if key[0] == "actuator_shrinks_finished_total" and value}


@pytest.fixture
def observed(state_dir):
    return Observed(state_dir)


def cache(**more):
    return FakeKernel(Workload(anon=lambda _t: 40, cold=300, **more))


def test_shrink_that_is_done(observed):
    world = observed.world
    kernel = world.add(cache())
    uid = world.ask()
    world.run_until(uid, Phase.HOLDING, commits=False)
    assert observed.found["actuator_shrinks", "Holding"] == observed.found["actuator_journal_entries",] == 1
    assert observed.found["actuator_freed_bytes_total",] == 0
    world.run_until(uid)
    found = observed.found
    assert observed.ended() == {("Done", "Shrunk"): 1}
    assert found["actuator_freed_bytes_total",] == 256 * MIB
    assert found["actuator_shrink_seconds_count",] == 1
    assert 20 < found["actuator_shrink_seconds_sum",] <= world.clock.time
    assert found["actuator_reclaim_bytes_total",] >= 340 * MIB - kernel.usage
    assert found["actuator_journal_entries",] == found["actuator_shrinks", "Holding"] == 0
    assert found["actuator_stall_seconds_total", "memory-some"] == 0


def test_refusal_touches_nothing_and_takes_no_time(observed):
    world = observed.world
    world.add(FakeKernel(Workload(anon=lambda _t: 300)))
    world.run_until(world.ask())
    assert observed.ended() == {("Refused", "UnreclaimableAnonymous"): 1}
    assert observed.found["actuator_shrink_seconds_count",] == observed.found["actuator_reclaim_bytes_total",] == 0


def test_reason_that_nobody_knows_is_another(observed):
    world = observed.world
    world.add(cache())
    world.lacks = "SomethingNew"
    world.run_until(world.ask())
    assert observed.ended() == {("Refused", "Other"): 1}


def test_only_stalls_above_what_is_normal_count(observed):
    world = observed.world
    kernel = world.add(cache())
    kernel.extra_memory_stall = 0.0008
    uid = world.ask()
    assert world.run_until(uid, Phase.SHRINKING, commits=False).phase is Phase.SHRINKING
    for _ in range(5):
        world.tick()
    assert observed.found["actuator_stall_seconds_total", "memory-some"] == pytest.approx(0, abs=0.002)
    kernel.extra_memory_stall = 0.6
    world.tick()  # shown to the next look
    world.run_until(uid)
    assert observed.ended() == {("Reverted", "MemoryPressure"): 1}
    found = observed.found
    # A second of it, which the next look has answered.
    assert found["actuator_stall_seconds_total", "memory-some"] == pytest.approx(0.6, abs=0.01)
    assert found["actuator_stall_seconds_total", "io-some"] == 0


def test_foreign_writes(observed):
    world = observed.world
    kernel = world.add(cache())
    uid = world.ask()
    world.run_until(uid, Phase.SHRINKING, commits=False)
    for _ in range(3):
        world.tick()
    kernel.high = None
    world.tick()
    assert observed.found["actuator_foreign_writes_total",] == 1
    kernel.high = None
    world.run_until(uid)
    assert observed.ended() == {("Reverted", "ForeignWriter"): 1}
    assert observed.found["actuator_foreign_writes_total",] == 2


@pytest.mark.parametrize(
    ("happens", "verdict"),
    [
        (lambda _world, _kernel: None, "Restored"),
        (lambda world, _kernel: world.restart_container(), "Dropped"),
        (lambda _world, kernel: setattr(kernel, "max", 256 * MIB), "Adopted"),
    ],
    ids=["guard stands", "container was restarted", "limit has followed"],
)
def test_recoveries(observed, happens, verdict):
    world = observed.world
    kernel = world.add(cache())
    world.run_until(world.ask(), Phase.HOLDING, commits=False)
    world.kill_agent()
    happens(world, kernel)
    world.start_agent()
    world.tick()
    found = observed.found
    assert {key[1]: value for key, value in found.items() if key[0] == "actuator_recoveries_total" and value} == {verdict: 1}


def test_lost_api(observed):
    world = observed.world
    world.tick()
    assert (observed.found["actuator_cut_off",], observed.found["actuator_loops_total",]) == (0, 1)
    world.api.down = True
    world.clock.time += 60
    world.tick()
    assert observed.found["actuator_cut_off",] == 1


def test_every_reason_is_counted_by_the_outcomes_that_it_may_have():
    counted = {reason for reasons in ENDS.values() for reason in reasons}
    assert set(ENDS) == {phase for phase in Phase if phase.is_terminal}
    assert {str(reason) for reason in Reason} - counted == set(map(str, _ON_THE_WAY))
    assert not _ONLY_REFUSED & _ONLY_REVERTED
    assert all(len(set(reasons)) == len(reasons) and "Other" in reasons for reasons in ENDS.values())
    assert sum(map(len, ENDS.values())) < 120


def test_health_is_that_the_loop_comes_round_and_readiness_that_the_journal_is_recovered(observed, tmp_path):
    healthy, ready = observed.observer.probes(tmp_path)
    assert (healthy["loop"](), ready["journal"]()) == (None, "not looked at yet")
    assert "cannot be read" in ready["cgroups"]()
    (tmp_path / "cgroup.controllers").write_text("memory\n")
    assert ready["cgroups"]() is None
    observed.world.tick()
    assert ready["journal"]() is None
    observed.monotonic += STALE_SECONDS
    assert healthy["loop"]() is None
    observed.monotonic += 1
    assert healthy["loop"]() == "has not come round for 61 s"
    observed.world.tick()
    assert healthy["loop"]() is None


def test_not_ready_while_an_entry_cannot_be_put_back(observed, tmp_path, monkeypatch):
    world = observed.world
    world.add(cache())
    world.run_until(world.ask(), Phase.HOLDING, commits=False)
    world.kill_agent()
    world.lacks = "CgroupUnreadable"
    find = world.find
    monkeypatch.setattr(world, "reopen", find)
    world.start_agent()
    world.tick()
    _, ready = observed.observer.probes(tmp_path)
    assert ready["journal"]() == "1 entries of an agent before this one could not be put back yet"


def pressing(reason):
    return PressingContainer("default", "web-1", "u", "app", "containerd://x", 1, 2, reason, "", 0, "", "")


class NodeMemories:
    def __init__(self):
        self.down = False

    def list_pods(self, _node_name):
        return []

    def put_node_memory(self, _node_name, _status):
        if self.down:
            raise ClusterError("the API server is not there")


def test_what_presses_is_counted_also_when_it_cannot_be_told():
    telemetry, api, moments = Telemetry(), NodeMemories(), iter((0.0, 100.0, 150.0, 170.0))
    port = CountingPort(telemetry, api, lambda: next(moments))
    port.put_node_memory("n", NodeMemoryStatus([pressing("NearLimit"), pressing("NearLimit"), pressing("OomKilled")], 3))
    found = samples(telemetry)
    assert found["actuator_pressing_containers", "NearLimit"] == 2
    assert found["actuator_pressing_reports_total",] == 1
    api.down = True
    with pytest.raises(ClusterError):
        port.put_node_memory("n", NodeMemoryStatus())
    found = samples(telemetry)
    assert (found["actuator_pressing_containers", "NearLimit"], found["actuator_pressing_reports_total",]) == (0, 1)
    port.list_pods("n")
    assert port.probes["watch"]() is None
    assert port.probes["watch"]() == "has not come round for 70 s"


class Settled:
    """What the dead-man looks after."""

    directory = Path("/journal")

    def __init__(self, outcomes):
        self.outcomes = outcomes

    def settle(self):
        return self.outcomes


def test_dead_man_counts_each_entry_once(tmp_path, entry_of):
    telemetry = Telemetry()
    observer = DeadManTelemetry(telemetry, [tmp_path, tmp_path / "none"], lambda: 0.0)
    verdicts = {"r": Restore(None), "d": Drop("x"), "a": Adopt(high_is_ours=False), "l": Leave("its owner lives")}
    outcomes = [deadman.Outcome(entry_of(uid), verdict) for uid, verdict in verdicts.items()]
    failed = deadman.Outcome(entry_of("f"), Leave("it failed"), "Permission denied")
    dead_man = deadman.DeadMan([Settled((*outcomes, failed))], World.__new__(World), observer)
    for _ in range(3):
        dead_man.look()
    (tmp_path / "s1.json").write_text("broken")
    (tmp_path / ".s2.json.tmp").write_text("half")
    (tmp_path / "lock").write_text("")
    found = samples(telemetry)
    counted = {key[1]: value for key, value in found.items() if key[0] == "deadman_entries_total"}
    assert counted == {"Restored": 1, "Dropped": 1, "Adopted": 1, "Left": 1, "Failed": 1}
    assert found["deadman_journal_entries",] == count_entries(tmp_path) == 1


@pytest.fixture
def entry_of(state_dir):
    world = World(state_dir, QUICK)
    world.add(cache())
    world.run_until(world.ask(), Phase.HOLDING, commits=False)
    (entry,) = world.journal.entries()
    world.agent.close()
    return lambda uid: msgspec.structs.replace(entry, shrink_uid=uid)


# Over HTTP, and in the pages.


def fetch(port, path):
    with contextlib.ExitStack() as stack:
        try:
            answer = stack.enter_context(urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10))
        except urllib.error.HTTPError as error:
            answer = stack.enter_context(error)
        return answer.status, answer.read().decode()


def test_agent_answers_probes(tmp_path, monkeypatch):
    ports = []
    start = Exposition.__enter__
    monkeypatch.setattr(Exposition, "__enter__", lambda self: (ports.append(self.port), start(self))[1])
    (tmp_path / "cgroup.controllers").write_text("memory\n")
    told = NodeTelemetry(Place(tmp_path, tmp_path, tmp_path / "journal"))
    told.counting(NodeMemories())
    with told.serving(("127.0.0.1", 0)):
        assert fetch(ports[0], "/healthz") == (200, "ok\n")
        assert fetch(ports[0], "/readyz") == (503, "journal: not looked at yet\n")
        told.agent.ended_round([], is_cut_off=False, left_over=0)
        assert fetch(ports[0], "/readyz") == (200, "ok\n")
        told.observe_request("GET", 503, 0.1)
        assert 'vpa_ippr_api_requests_total{method="GET",status="5xx"} 1.0' in fetch(ports[0], "/metrics")[1]


def test_page_names_every_metric_and_no_other(tmp_path):
    dead_man, told = Telemetry(), NodeTelemetry(Place(tmp_path, tmp_path, tmp_path))
    DeadManTelemetry(dead_man, [tmp_path])
    told.counting(NodeMemories())
    made = [metric for telemetry in (told._telemetry, dead_man) for metric in telemetry.collect() if metric.name.startswith("vpa_ippr_")]
    names = {metric.name + ("_total" if metric.type == "counter" else "") for metric in made}
    section = PAGE.read_text().partition("## Watching it")[2].partition("\n## ")[0]
    assert set(re.findall(r"`(vpa_ippr_\w+)", section)) == names


# Few writes, one event, one line.


@pytest.mark.parametrize(
    ("kernel", "outcome"),
    [
        (cache, "Done"),
        (lambda: FakeKernel(Workload(anon=lambda _t: 300)), "Refused"),
        (lambda: FakeKernel(Workload(cold=100, hot=300)), "Reverted"),
    ],
    ids=["done", "refused", "reverted"],
)
@pytest.mark.parametrize("policy", [Policy(), QUICK], ids=["default", "quick"])
def test_statuses_are_few_and_each_outcome_is_one_event_and_one_line(state_dir, caplog, kernel, outcome, policy):
    world = World(state_dir, policy)
    world.add(kernel())
    began = world.clock.time
    with caplog.at_level(logging.INFO):
        uid = world.ask(target_mib=250)
        status = world.run_until(uid)
        for _ in range(5):
            world.tick()
    assert status.phase == outcome
    phases = {patch.phase for patch in world.api.patches}
    assert len(world.api.patches) <= len(phases) + (world.clock.time - began) / 30 + 1
    assert [event for _, _, event in world.api.recorded] == [f"Shrink{outcome}: {status.reason}: {status.message}"]
    lines = [record for record in caplog.records if getattr(record, "to", None) == outcome]
    assert [(line.msg, line.args, line.shrink, line.reason, line.detail) for line in lines] == [
        ("shrink moved", (), f"default/web-1-app-{uid}", status.reason, status.message)
    ]


def test_restore_that_fails_again_and_again_writes_no_status_each_time(state_dir):
    world = World(state_dir, QUICK)
    kernel = world.add(cache())
    uid = world.ask()
    world.run_until(uid, Phase.HOLDING, commits=False)
    before = len(world.api.patches)
    kernel.failing_writes = 50
    world.abort(uid)
    world.run_until(uid)
    assert (kernel.failing_writes, kernel.high) == (0, None)
    assert len(world.api.patches) - before <= 2 + 50 / 30 + 1


@pytest.mark.parametrize(
    ("modules", "left_out"),
    [
        ("vpa_ippr.cli.actuator, vpa_ippr.actuator.agent, vpa_ippr.cluster.node_port", {"prometheus_client", "http.server"}),
        ("vpa_ippr.cli.actuator, vpa_ippr.cli.actuator_telemetry", {"numpy", "kubernetes", "requests", "pyarrow", "apscheduler"}),
    ],
    ids=["nobody listens", "somebody listens"],
)
def test_what_is_told_costs_nothing_unless_somebody_listens_and_little_then(modules, left_out):
    code = f"import sys, {modules}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not left_out & set(loaded)
