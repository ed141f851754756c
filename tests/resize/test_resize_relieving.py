"""The updater relieves containers at their memory limit: what the cluster holds then, what is remembered, and what comes after."""

import msgspec
import pytest
from resize_support import (
    RULES,
    START,
    Crash,
    FakeApiError,
    FakeClock,
    FakeCluster,
    a_container,
    a_pod,
    a_recommendation,
    a_vpa,
)

from vpa_ippr.api.cluster import Node
from vpa_ippr.api.errors import ClusterError
from vpa_ippr.api.meta import ObjectMeta
from vpa_ippr.api.names import ANNOTATION_LIMIT_POLICY
from vpa_ippr.api.node_memory import NodeMemory, NodeMemoryStatus
from vpa_ippr.api.resources import parse_amounts
from vpa_ippr.api.shrink import Intent, Phase
from vpa_ippr.resize.controller import Updater
from vpa_ippr.resize.ledger import read_ledger
from vpa_ippr.resize.reasons import OutcomeCode as Code
from vpa_ippr.resize.relief_news import ReliefNews
from vpa_ippr.resize.rules import rules_for
from vpa_ippr.resize.settings import Settings

MIB, GIB = 1 << 20, 1 << 30
APP = a_container(cpu="200m", memory="1Gi", memory_limit="2Gi")
GUARANTEED = a_container(cpu="1", memory="2Gi", cpu_limit="1", memory_limit="2Gi")
RESTARTS = a_container(cpu="200m", memory="1Gi", memory_limit="2Gi", restarts=("memory",))
AS_IT_IS = a_recommendation(cpu="200m", memory="1Gi")
LESS = a_recommendation(cpu="200m", memory="512Mi")
replace = msgspec.structs.replace


class Alarm:
    """Goes off so many calls after it was set."""

    def __init__(self):
        self.calls_left = None

    def __call__(self):
        if self.calls_left is None:
            return False
        self.calls_left -= 1
        if self.calls_left >= 0:
            return False
        self.calls_left = None
        return True


class Stage:
    def __init__(self, *recommendations, pods=None, rules=RULES):
        self.clock, self.alarm = FakeClock(), Alarm()
        recommendations = recommendations or (AS_IT_IS,)
        pods = pods or [a_pod(APP)]
        vpas = (a_vpa(*recommendations, mode="InPlace"),)
        self.cluster, self.rules = FakeCluster(*pods, vpas=vpas, rules=rules, clock=self.clock), rules
        self.restart()

    def restart(self):
        self.updater = Updater(self.cluster, self.clock, Settings(canary="off"), self.rules, alarm=self.alarm)

    def relieve(self, seconds=1.0):
        self.clock.moment += seconds
        outcomes = self.updater.relieve().outcomes
        assert self.cluster.violations == []
        return [(one.code, one.reason) for one in outcomes]

    def cycle(self, seconds=60.0):
        self.clock.moment += seconds
        result = self.updater.run_cycle()
        assert self.cluster.violations == []
        return [(one.code, one.reason) for one in result.outcomes]

    @property
    def ledger(self):
        return read_ledger(self.cluster.pod)


RELIEVED = [(Code.RELIEVED, "NearLimit")]


def test_the_limit_is_raised_in_the_round_in_which_the_agent_tells():
    stage = Stage()
    stage.cluster.press()
    assert stage.relieve() == RELIEVED
    assert stage.cluster.memory_limit() == 2458 * MIB
    assert stage.cluster.resizes == [{"containers": [{"name": "app", "resources": {"limits": {"memory": "2458Mi"}}}]}]
    assert stage.cluster.writes == 2
    ((reason, message),) = stage.cluster.events
    assert reason == "MemoryRelieved"
    assert "app memory limit 2Gi -> 2458Mi (NearLimit: " in message


def test_where_nothing_presses_nothing_is_read():
    stage = Stage()
    stage.cluster.failing = {"list_vpas": FakeApiError(500, "not to be asked")}
    assert stage.relieve() == []


def test_how_long_it_took_since_it_was_seen():
    stage = Stage()
    stage.cluster.press(ago=2.0)
    stage.clock.moment += 3.0
    (outcome,) = stage.updater.relieve().outcomes
    assert outcome.seconds == 5.0


def test_a_cycle_does_it_too_and_tells_when_it_is_done():
    stage = Stage()
    stage.cluster.press()
    assert stage.cycle() == [*RELIEVED, (Code.IN_PROGRESS, "")]
    stage.cluster.kubelet("done")
    # The agent has not looked since.
    assert stage.cycle() == [(Code.NOT_RELIEVED, "LimitDiffers"), (Code.COMPLETED, "")]
    assert stage.cycle() == [(Code.NOT_RELIEVED, "StaleReport"), (Code.NOT_DUE, "LearnedFloor")]


def test_a_round_that_is_run_again_at_once_does_nothing_more():
    stage = Stage()
    stage.cluster.press()
    stage.relieve()
    assert stage.relieve() == [(Code.NOT_RELIEVED, "ResizeUnderWay")]
    stage.cluster.kubelet("done")
    stage.cluster.press()
    assert stage.relieve() == [(Code.NOT_RELIEVED, "RelievedLately")]
    assert len(stage.cluster.resizes) == 1
    assert stage.cluster.reasons == ["MemoryRelieved"]


def test_a_leak_is_not_fed_for_ever_and_that_is_told_once():
    stage = Stage()
    for _ in range(5):
        stage.cluster.press()
        assert stage.relieve(31.0) == RELIEVED
        stage.restart()  # all that counts is in the ledger
        stage.cluster.kubelet("done")
    limit = stage.cluster.memory_limit()
    for _ in range(3):
        stage.cluster.press()
        assert stage.relieve(31.0) == [(Code.NOT_RELIEVED, "LeakSuspected")]
    assert stage.cluster.memory_limit() == limit
    assert stage.cluster.reasons == ["MemoryRelieved"] * 5 + ["MemoryNotRelieved"]
    stage.cluster.press()
    assert stage.relieve(3600.0) == [(Code.NOT_RELIEVED, "StaleReport")]
    stage.cluster.press()
    assert stage.relieve() == RELIEVED


def test_the_next_cycles_do_not_lower_what_was_just_raised():
    stage = Stage(LESS)  # the limit should be 1Gi
    stage.cluster.press(usage_bytes=1900 * MIB)
    stage.relieve()
    stage.cluster.kubelet("done")
    stage.cycle(1.0)
    assert stage.cycle(1.0)[1:] == [(Code.NOT_DUE, "LearnedFloor")]
    assert not stage.cluster.shrinks
    (hold_off,) = stage.ledger.hold_offs
    assert (hold_off.container, hold_off.reason, hold_off.floor_bytes) == ("app", "MemoryRelieved", 2090 * MIB)
    assert hold_off.until == pytest.approx(START + 901)
    assert stage.cycle(900.0)[-1][0] is Code.SHRINK_OPENED  # it was no more than a burst


def test_more_that_is_requested_does_not_wait_for_the_floor_and_the_limit_stays():
    stage = Stage()
    stage.cluster.press(usage_bytes=2 * GIB, growth_bytes_per_second=20 * MIB)
    stage.relieve()
    stage.cluster.kubelet("done")
    stage.cluster.recommend(a_recommendation(cpu="200m", memory="1100Mi", lower={"memory": "1050Mi"}))
    assert stage.cycle()[-1] == (Code.COMPLETED, "")
    assert stage.cycle()[-1] == (Code.ISSUED, "OutsideBounds")
    after = stage.cluster.pod.desired("app")
    assert (after.requests.memory_bytes, after.limits.memory_bytes) == (1100 * MIB, 3248 * MIB)
    assert not stage.cluster.shrinks
    stage.cluster.kubelet("done")
    assert stage.cycle()[-1] == (Code.COMPLETED, "")
    assert stage.cycle()[-1] == (Code.NOT_DUE, "LearnedFloor")
    assert stage.cycle(90_000.0)[-1] == (Code.SHRINK_OPENED, "SignificantChange")


def shrinking(phase):
    stage = Stage(LESS)
    assert stage.cycle() == [(Code.SHRINK_OPENED, "SignificantChange")]
    stage.cluster.agent(phase)
    return stage


@pytest.mark.parametrize("phase", [Phase.PENDING, Phase.SHRINKING, Phase.HOLDING])
def test_a_shrink_of_the_container_is_called_off(phase):
    stage = shrinking(phase)
    stage.cluster.press()
    assert stage.relieve() == RELIEVED
    assert stage.cluster.shrink.spec.intent is Intent.ABORT
    assert stage.cluster.events[-2] == ("ShrinkAborted", f"memoryshrink {stage.cluster.shrink.metadata.name}: MemoryPressing")
    stage.cluster.kubelet("done")
    stage.cluster.agent(Phase.ABORTED)
    for _ in range(3):
        stage.cycle(1.0)
    assert stage.cluster.memory_limit() == 2458 * MIB


def test_more_memory_does_not_wait_for_the_shrink_to_be_called_off():
    stage = shrinking(Phase.SHRINKING)
    stage.cluster.press()
    stage.cluster.patch_shrink_intent = lambda *_: (_ for _ in ()).throw(ClusterError("busy"))
    assert stage.relieve() == RELIEVED
    del stage.cluster.patch_shrink_intent
    stage.cycle()
    assert stage.cluster.shrink.spec.intent is Intent.ABORT


def test_the_shrink_of_another_container_goes_on():
    stage = Stage(LESS, pods=[a_pod(APP, a_container("other", memory="1Gi", memory_limit="1Gi"))])
    stage.cycle()
    stage.cluster.press(container="other")
    assert stage.relieve() == RELIEVED
    assert stage.cluster.shrink.spec.intent is Intent.PREPARE


# -- others write, too


def conflict():
    return FakeApiError(409, "the object has been modified", api_reason="Conflict")


def test_another_writer_in_between_costs_a_second_attempt():
    stage = Stage()
    stage.cluster.press()
    stage.cluster.resize_errors = [conflict()]
    assert stage.relieve() == RELIEVED
    assert stage.ledger.reliefs == {"app": [START + 1]}
    assert stage.ledger.hold_offs[0].attempts == 1


def test_a_writer_who_is_always_quicker_is_met_again_in_the_next_round():
    stage = Stage()
    stage.cluster.press()
    stage.cluster.resize_errors = [conflict(), conflict()]
    assert stage.relieve() == [(Code.CONFLICT, "Conflict")]
    assert stage.relieve(31.0) == RELIEVED


def test_a_refusal_is_told_and_not_asked_for_again_at_once():
    stage = Stage()
    stage.cluster.press()
    stage.cluster.resize_errors = [FakeApiError(403, "webhook says no", api_reason="Forbidden")]
    assert stage.relieve() == [(Code.NOT_RELIEVED, "AdmissionDenied")]
    stage.cluster.press()
    assert stage.relieve(40.0) == [(Code.NOT_RELIEVED, "AdmissionDenied")]
    assert stage.cluster.resizes == []
    assert stage.cluster.reasons == ["MemoryNotRelieved"]
    stage.clock.moment += 900
    stage.cluster.press()
    assert stage.relieve() == RELIEVED


def test_a_crash_between_the_ledger_and_the_resize_loses_no_more_than_the_pause():
    stage = Stage()
    stage.cluster.press()
    stage.cluster.crash_after_writes = 1
    with pytest.raises(Crash):
        stage.relieve()
    stage.restart()
    assert stage.relieve(5.0) == [(Code.NOT_RELIEVED, "RelievedLately")]
    assert stage.relieve(26.0) == RELIEVED


def test_the_pod_as_it_is_now_is_what_counts():
    stage = Stage()
    stage.cluster.press()
    listed = stage.cluster.list_pods()
    stage.cluster.list_pods = lambda: listed
    pod = stage.cluster.pod
    stage.cluster.pods[pod.key] = replace(pod, metadata=replace(pod.metadata, uid="another"))
    assert stage.relieve() == [(Code.NOT_RELIEVED, "AnotherPod")]
    del stage.cluster.pods[pod.key]
    assert stage.relieve() == [(Code.NOT_RELIEVED, "AnotherPod")]


def test_two_containers_of_a_pod_in_one_round():
    stage = Stage(pods=[a_pod(APP, a_container("other", memory="1Gi", memory_limit="1Gi"))])
    stage.cluster.press()
    stage.cluster.press(container="other")
    assert stage.relieve() == RELIEVED * 2
    assert (stage.cluster.memory_limit(), stage.cluster.memory_limit("other")) == (2458 * MIB, 1229 * MIB)


# -- no room


def test_a_guaranteed_pod_on_a_full_node_is_told_so_and_gets_what_comes_free():
    stage = Stage(pods=[a_pod(GUARANTEED), a_pod(a_container(cpu="1", memory="2036Mi"), name="other-0")])
    stage.cluster.nodes = [Node("n1", parse_amounts({"cpu": "8", "memory": "4Gi"}, ""))]
    stage.cluster.press()
    assert stage.relieve() == [(Code.NOT_RELIEVED, "NodeFull")]
    assert stage.cluster.events[0][0] == "MemoryNotRelieved"
    assert stage.cluster.events[0][1].startswith("NodeFull: app is at 2Gi, and the room on node n1: memory requested 2458Mi, free 2060Mi")
    stage.cluster.nodes = [Node("n1", parse_amounts({"cpu": "8", "memory": "5Gi"}, ""))]
    assert stage.relieve() == RELIEVED


class TestWaitingGrowth:
    """A growth of ours waits in the kubelet: with it in the spec more memory would wait, too."""

    def waiting(self, verdict, *containers, rules=RULES):
        stage = Stage(a_recommendation(cpu="4", memory="2Gi"), pods=[a_pod(*containers)], rules=rules)
        assert stage.cycle() == [(Code.ISSUED, "SignificantChange")]
        stage.cluster.kubelet(verdict, "Node didn't have enough capacity: cpu")
        stage.cluster.press()
        return stage

    def test_it_is_taken_back_and_the_limit_alone_rises(self):
        stage = self.waiting("Deferred", APP)
        assert stage.cluster.memory_limit() == 4 * GIB
        assert stage.relieve() == RELIEVED
        after = stage.cluster.pod.desired("app")
        assert (after.requests, after.limits.memory_bytes) == (parse_amounts({"cpu": "200m", "memory": "1Gi"}, ""), 2458 * MIB)
        stage.cluster.kubelet("done")
        stage.cycle()
        assert stage.cycle()[-1] == (Code.NOT_DUE, "HoldOff")

    def test_where_a_limit_in_the_spec_may_not_come_down_it_stays(self):
        stage = self.waiting("Deferred", APP, rules=rules_for("1.33"))
        assert stage.relieve() == RELIEVED
        after = stage.cluster.pod.desired("app")
        assert (after.requests.memory_bytes, after.limits.memory_bytes) == (GIB, 4 * GIB)

    def test_what_was_infeasible_is_remembered(self):
        stage = self.waiting("Infeasible", APP)
        assert stage.relieve() == RELIEVED
        assert stage.ledger.infeasible.cpu_millicores == 4000
        stage.cluster.kubelet("done")
        stage.cycle()
        assert stage.cycle()[-1][0] in (Code.NOT_DUE, Code.REFUSED)
        assert len(stage.cluster.resizes) == 2


# -- what restarts


def restarting(pods):
    names = [f"web-{number}" for number in range(pods)]
    return Stage(pods=[a_pod(RESTARTS, name=name) for name in names])


def test_after_a_kill_a_restart_is_bought_from_the_budget():
    stage = restarting(4)  # half of them may be out of service
    for number in range(4):
        stage.cluster.press(f"web-{number}", reason="OomKilled")
    codes = [code for code, _ in stage.relieve()]
    assert (codes.count(Code.RELIEVED), codes.count(Code.NOT_RELIEVED)) == (2, 2)
    assert stage.relieve() == [(Code.NOT_RELIEVED, "ResizeUnderWay")] * 2 + [(Code.NOT_RELIEVED, "DisruptionBudget")] * 2


def test_one_pod_alone_is_not_restarted():
    stage = restarting(1)
    stage.cluster.press(reason="OomKilled")
    assert stage.relieve() == [(Code.NOT_RELIEVED, "DisruptionBudget")]
    assert stage.cluster.resizes == []


# -- in the middle of a cycle


def test_news_in_the_middle_of_a_cycle_is_dealt_with_there():
    pods = [a_pod(APP, name=f"web-{number}") for number in range(3)]
    stage = Stage(a_recommendation(cpu="400m", memory="1Gi"), pods=pods)
    order = []
    resize = stage.cluster.resize_pod
    stage.cluster.resize_pod = lambda key, patch: (order.append(key.name), resize(key, patch))[1]
    listed = stage.cluster.list_node_memories()
    stage.alarm.calls_left = 1 + 3 + 1  # the round before the cycle, the three visits, the first resize
    assert listed == []
    before = stage.cluster.list_node_memories
    stage.cluster.list_node_memories = lambda: before() if stage.alarm.calls_left is None else []
    stage.cluster.press("web-2")
    outcomes = stage.cycle()
    assert order == ["web-0", "web-2", "web-1"]  # and not once more: what was planned for it is of before
    assert (Code.RELIEVED, "NearLimit") in outcomes
    assert (Code.CONFLICT, "Conflict") in outcomes


def test_nothing_is_restarted_in_the_middle_of_a_cycle():
    stage = restarting(4)
    before = stage.cluster.list_node_memories
    stage.alarm.calls_left = 2
    stage.cluster.list_node_memories = lambda: before() if stage.alarm.calls_left is None else []
    stage.cluster.press(reason="OomKilled")
    assert (Code.NOT_RELIEVED, "DisruptionBudget") in stage.cycle()
    assert stage.cluster.resizes == []
    assert stage.relieve() == [(Code.RELIEVED, "OomKilled")]


# -- what cannot be read


def test_a_cycle_goes_on_where_the_reports_cannot_be_read(caplog):
    stage = Stage(a_recommendation(cpu="400m", memory="1Gi"))
    stage.cluster.failing = {"list_node_memories": FakeApiError(403, "nodememories is forbidden")}
    assert stage.cycle() == [(Code.ISSUED, "SignificantChange")]
    assert "nobody relieved" in caplog.text


def test_one_pod_that_cannot_be_read_stops_no_other():
    other = a_vpa(AS_IT_IS, mode="InPlace", name="api", target="api")
    other = replace(other, metadata=replace(other.metadata, annotations={ANNOTATION_LIMIT_POLICY: "nonsense"}))
    api = a_pod(APP, name="api-0")
    owner = replace(api.metadata.owner_references[0], name="api")
    api = replace(api, metadata=replace(api.metadata, owner_references=[owner]))
    stage = Stage(pods=[api, a_pod(APP)])
    stage.cluster.vpas.append(other)
    stage.cluster.workloads["StatefulSet", "api"] = replace_name(stage.cluster.workloads["StatefulSet", "web"], "api")
    stage.cluster.press("api-0")
    stage.cluster.press("web-0")
    assert stage.relieve() == [(Code.BAD_OBJECT, "LimitPolicyInvalid"), *RELIEVED]


def replace_name(workload, name):
    return type(workload)(workload.api_version, workload.kind, name)


def test_an_owner_who_cannot_be_looked_up():
    stage = Stage()
    stage.cluster.press()
    stage.cluster.failing = {"find_workload": FakeApiError(500, "busy")}
    assert stage.relieve() == [(Code.UNAVAILABLE, "Http500")]


# -- what is news


def a_report(*entries, beat="2027-01-01T00:00:00Z"):
    return NodeMemory(ObjectMeta(name="n1"), NodeMemoryStatus(list(entries), len(entries), beat))


def test_only_new_figures_ring():
    cluster = FakeCluster(a_pod(APP), a_pod(APP, name="web-1"))
    cluster.press("web-0")
    cluster.press("web-1")
    one, other = cluster.node_memories[0].status.pressing
    rung = []
    news = ReliefNews(lambda: rung.append(1))
    told = [
        (a_report(), 0),
        (a_report(one), 1),
        (a_report(one, beat="2027-01-01T00:01:00Z"), 1),
        (a_report(one, other), 2),
        (a_report(other), 2),
        (a_report(replace(other, usage_bytes=1)), 3),
        (a_report(), 3),
        (a_report(one), 4),
    ]
    for report, count in told:
        news.tell(report)
        assert len(rung) == count
