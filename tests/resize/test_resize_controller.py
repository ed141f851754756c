"""The updater over an in-memory cluster: what the cluster ends up holding, and what was said about it."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from resize_support import (
    RULES,
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
from vpa_ippr.api.meta import ObjectKey, OwnerReference
from vpa_ippr.api.names import LABEL_NODE, LABEL_POD_UID
from vpa_ippr.api.resources import Amounts
from vpa_ippr.api.shrink import Intent, Phase
from vpa_ippr.resize.controller import Updater
from vpa_ippr.resize.reasons import OutcomeCode as Code
from vpa_ippr.resize.rules import rules_for
from vpa_ippr.resize.settings import Settings

MIB = 1 << 20
GIB = 1 << 30
DAY = 86_400.0
SETTINGS = Settings()
NO_CANARY = Settings(canary="off")
APP = a_container(cpu="200m", memory="1Gi", memory_limit="2Gi")
CPU_UP = a_recommendation(cpu="400m", memory="1Gi")
MEMORY_DOWN = a_recommendation(cpu="200m", memory="512Mi")
SHORT = "Node didn't have enough resource: cpu, requested: 1000, used: 1500, capacity: 2000"


class Stage:
    """A cluster, a clock, and an updater that can be restarted."""

    def __init__(self, *recommendations, pods=None, rules=RULES, settings=SETTINGS, **vpa) -> None:
        self.clock = FakeClock()
        self.settings = settings
        self.cluster = FakeCluster(*(pods or [a_pod(APP)]), vpas=(a_vpa(*recommendations, **vpa),), rules=rules, clock=self.clock)
        self.rules = rules
        self.restart()

    def restart(self) -> None:
        self.updater = Updater(self.cluster, self.clock, self.settings, self.rules)

    def cycle(self, seconds: float = 60.0):
        self.clock.moment += seconds
        result = self.updater.run_cycle()
        assert self.cluster.violations == []
        return result

    def codes(self, seconds: float = 60.0):
        return [outcome.code for outcome in self.cycle(seconds).outcomes]

    def only(self, seconds: float = 60.0):
        (outcome,) = self.cycle(seconds).outcomes
        return outcome


def test_a_resize_is_issued_followed_and_completed():
    stage = Stage(CPU_UP)
    assert stage.codes() == [Code.ISSUED]
    assert stage.codes() == [Code.IN_PROGRESS]  # the kubelet has not looked yet
    stage.cluster.kubelet("busy")
    assert stage.codes() == [Code.IN_PROGRESS]
    stage.cluster.kubelet("done")
    assert stage.codes() == [Code.COMPLETED]
    assert stage.codes() == [Code.NOT_DUE]
    assert stage.cluster.pod.desired("app").requests == Amounts(400, GIB)
    assert len(stage.cluster.resizes) == 1
    assert stage.cluster.reasons == ["ResizeIssued", "ResizeCompleted"]


def test_a_resize_costs_two_writes():
    stage = Stage(CPU_UP)
    stage.cycle()
    stage.cluster.kubelet("done")
    stage.cycle()
    assert stage.cluster.writes == 2


def test_deferred_then_done():
    stage = Stage(CPU_UP)
    stage.cycle()
    stage.cluster.kubelet("Deferred", SHORT)
    assert stage.codes() == [Code.DEFERRED]
    assert stage.codes() == [Code.DEFERRED]
    stage.cluster.kubelet("done")
    assert stage.codes() == [Code.COMPLETED]
    assert stage.cluster.reasons == ["ResizeIssued", "ResizeDeferred", "ResizeCompleted"]
    assert len(stage.cluster.resizes) == 1


def test_deferred_too_long_is_reverted_and_held_off():
    stage = Stage(CPU_UP)
    stage.cycle()
    stage.cluster.kubelet("Deferred", SHORT)
    assert stage.codes() == [Code.DEFERRED]
    assert stage.codes(SETTINGS.deferred_limit_seconds) == [Code.REVERTED]
    assert stage.cluster.pod.desired("app").requests == Amounts(200, GIB)
    stage.cluster.kubelet("done")
    outcome = stage.only()
    assert (outcome.code, outcome.reason) == (Code.NOT_DUE, "HoldOff")
    assert stage.codes(SETTINGS.hold_off_seconds) == [Code.ISSUED]  # worth another try
    assert "ResizeReverted" in stage.cluster.reasons


def test_growth_held_off_does_not_stop_a_shrink():
    stage = Stage(CPU_UP)
    stage.cycle()
    stage.cluster.kubelet("Deferred", SHORT)
    stage.cycle(SETTINGS.deferred_limit_seconds)
    stage.cluster.kubelet("done")
    stage.cluster.recommend(a_recommendation(cpu="400m", memory="512Mi"))
    assert stage.codes() == [Code.SHRINK_OPENED]


def test_infeasible_is_reverted_and_remembered():
    stage = Stage(CPU_UP)
    stage.cycle()
    stage.cluster.kubelet("Infeasible", "Node didn't have enough capacity: cpu, requested: 400, capacity: 300")
    outcome = stage.only()
    assert (outcome.code, outcome.reason) == (Code.REVERTED, "Infeasible")
    stage.cluster.kubelet("done")
    for _ in range(3):
        outcome = stage.only(DAY)
        assert (outcome.code, outcome.reason) == (Code.REFUSED, "KnownInfeasible")
    assert len(stage.cluster.resizes) == 2
    assert stage.cluster.reasons.count("ResizeRefused") == 1
    stage.cluster.nodes = [Node("n1", Amounts(128_000, 256 * GIB))]
    assert stage.codes(DAY) == [Code.ISSUED]


def test_infeasible_is_tried_again_for_a_smaller_recommendation():
    stage = Stage(CPU_UP)
    stage.cycle()
    stage.cluster.kubelet("Infeasible", "Node didn't have enough capacity: cpu, requested: 400, capacity: 300")
    stage.cycle()
    stage.cluster.kubelet("done")
    stage.cluster.recommend(a_recommendation(cpu="290m", memory="1Gi"))
    assert stage.codes() == [Code.ISSUED]


def test_a_transient_message_is_not_taken_for_infeasible():
    stage = Stage(CPU_UP)
    stage.cycle()
    stage.cluster.kubelet("Error", 'cannot decrease memory limits: missing container "app" memory usage')
    assert stage.codes() == [Code.FAILING]
    stage.cluster.kubelet("done")
    assert stage.codes() == [Code.COMPLETED]


def test_an_error_is_reverted_after_the_kubelets_retries():
    stage = Stage(CPU_UP)
    stage.cycle()
    stage.cluster.kubelet("Error", "runc says no")
    assert stage.codes() == [Code.FAILING]
    assert stage.codes(SETTINGS.error_limit_seconds) == [Code.REVERTED]
    assert stage.cluster.pod.desired("app").requests == Amounts(200, GIB)


def test_someone_elses_resize_is_left_alone():
    stage = Stage(CPU_UP)
    foreign = a_container(cpu="300m", memory="1Gi", memory_limit="2Gi")
    pod = stage.cluster.pod
    stage.cluster.pods[pod.key] = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, containers=[foreign]))
    stage.cluster.kubelet("Deferred", SHORT)
    assert stage.codes(10 * SETTINGS.deferred_limit_seconds) == [Code.FOREIGN]
    assert stage.cluster.resizes == []


@pytest.mark.parametrize(
    ("error", "reason", "held"),
    [
        pytest.param(FakeApiError(403, "exceeded quota: q, requested: cpu=200m"), "QuotaExceeded", True, id="quota"),
        pytest.param(FakeApiError(422, "only cpu and memory resources are mutable"), "InvalidResize", True, id="422"),
        pytest.param(FakeApiError(403, 'cannot patch resource "pods/resize"'), "PermissionDenied", False, id="rbac"),
    ],
)
def test_a_refusal_is_held_off_unless_the_operator_can_mend_it(error, reason, held):
    stage = Stage(CPU_UP)
    stage.cluster.resize_errors = [error]
    outcome = stage.only()
    assert (outcome.code, outcome.reason) == (Code.REFUSED, reason)
    stage.restart()
    assert stage.codes() == [Code.NOT_DUE if held else Code.ISSUED]
    assert "ResizeRefused" in stage.cluster.reasons


def test_node_capacity_refusal_is_remembered_until_the_node_changes():
    stage = Stage(CPU_UP)
    stage.cluster.resize_errors = [FakeApiError(403, "node didn't have enough allocatable resources", "NodeCapacity")]
    assert stage.only().reason == "NodeCapacity"
    assert stage.only(DAY).reason == "KnownInfeasible"
    stage.cluster.nodes = [Node("n1", Amounts(128_000, 256 * GIB))]
    assert stage.codes() == [Code.ISSUED]


def test_a_conflict_is_read_again():
    stage = Stage(CPU_UP)
    stage.cluster.before_resize = stage.cluster.touch
    assert stage.codes() == [Code.CONFLICT]
    assert stage.cluster.resizes == []
    stage.cluster.before_resize = lambda: None
    assert stage.codes() == [Code.ISSUED]


def test_an_unavailable_api_is_a_failure_of_that_pod_only():
    stage = Stage(CPU_UP, pods=[a_pod(APP, name="web-0"), a_pod(APP, name="web-1")])
    stage.cluster.resize_errors = [FakeApiError(503, "etcd is gone")]
    result = stage.cycle()
    assert [outcome.code for outcome in result.outcomes] == [Code.UNAVAILABLE, Code.ISSUED]
    assert [outcome.pod.name for outcome in result.failures] == ["web-0"]


def test_one_unreadable_pod_does_not_stop_the_others():
    bad = a_pod(a_container(cpu="abc"), name="web-0", qos="Burstable")
    stage = Stage(CPU_UP, pods=[bad, a_pod(APP, name="web-1")])
    assert stage.codes() == [Code.BAD_OBJECT, Code.ISSUED]


def test_a_cluster_that_cannot_be_read_ends_the_cycle():
    stage = Stage(CPU_UP)
    stage.cluster.failing["list_vpas"] = ClusterError("no route to host")
    with pytest.raises(ClusterError):
        stage.cycle()


def test_a_failed_owner_lookup_calls_nothing_off():
    stage = Stage(MEMORY_DOWN)
    stage.cycle()
    pod = stage.cluster.pod
    owner = [OwnerReference("apps/v1", "ReplicaSet", "web-5d", controller=True)]
    stage.cluster.pods[pod.key] = msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, owner_references=owner))
    stage.cluster.failing["find_workload"] = ClusterError("timed out")
    assert stage.codes() == [Code.UNAVAILABLE]
    assert stage.cluster.shrink.spec.intent is Intent.PREPARE


# -- shrinks


def opened() -> Stage:
    stage = Stage(MEMORY_DOWN)
    assert stage.codes() == [Code.SHRINK_OPENED]
    return stage


def committed() -> Stage:
    stage = opened()
    stage.cluster.agent(Phase.HOLDING)
    assert stage.codes() == [Code.SHRINK_PATCHED]
    return stage


def test_a_shrink_says_what_it_is_for():
    shrink = opened().cluster.shrink
    assert shrink.metadata.labels == {LABEL_POD_UID: "uid-web-0", LABEL_NODE: "n1"}
    assert [(o.kind, o.uid) for o in shrink.metadata.owner_references] == [("Pod", "uid-web-0")]
    assert (shrink.spec.container.id, shrink.spec.target_bytes, shrink.spec.node_name) == ("containerd://app-1", GIB, "n1")


def test_the_limit_goes_down_only_in_holding():
    stage = opened()
    for phase in (Phase.PENDING, Phase.OBSERVING, Phase.SHRINKING):
        stage.cluster.agent(phase)
        outcome = stage.only()
        assert (outcome.code, outcome.reason) == (Code.NOT_DUE, "ShrinkActive")
        assert stage.cluster.memory_limit() == 2 * GIB
    stage.cluster.agent(Phase.HOLDING)
    assert stage.codes() == [Code.SHRINK_PATCHED]
    assert stage.cluster.memory_limit() == GIB
    stage.cluster.kubelet("done")
    stage.cluster.agent(Phase.COMMITTED)
    assert stage.codes() == [Code.COMPLETED]
    stage.cluster.agent(Phase.DONE, reason="Shrunk")
    assert stage.codes() == [Code.SHRINK_ENDED]
    assert stage.codes() == [Code.NOT_DUE]
    assert stage.cluster.pod.desired("app").requests.memory_bytes == 512 * MIB
    assert stage.cluster.reasons == ["RolloutBegun", "ShrinkOpened", "ResizeIssued", "ResizeCompleted", "ShrinkCommitted"]


def test_cpu_goes_at_once_while_memory_is_prepared():
    stage = Stage(a_recommendation(cpu="400m", memory="512Mi"))
    assert stage.codes() == [Code.ISSUED]
    assert stage.cluster.pod.desired("app").requests == Amounts(400, GIB)
    assert stage.cluster.shrink.spec.target_bytes == GIB


@pytest.mark.parametrize("phase", [Phase.REVERTED, Phase.REFUSED, Phase.EXPIRED])
def test_a_shrink_that_did_not_work_teaches(phase):
    stage = opened()
    stage.cluster.agent(phase, reason="UnreclaimableAnonymous", floor_bytes=1200 * MIB)
    assert stage.codes() == [Code.SHRINK_ENDED]
    stage.restart()
    outcome = stage.only()
    assert (outcome.code, outcome.reason) == (Code.NOT_DUE, "LearnedFloor")
    stage.cluster.recommend(a_recommendation(cpu="200m", memory="700Mi"))  # limit 1400 Mi: a tenth above the floor
    assert stage.codes() == [Code.SHRINK_OPENED]
    assert len(stage.cluster.shrinks) == 2


def test_the_same_target_is_tried_again_after_the_hold_off():
    stage = opened()
    stage.cluster.agent(Phase.REVERTED, reason="MemoryPressure")
    stage.cycle()
    assert stage.only().reason == "HoldOff"
    assert stage.codes(SETTINGS.hold_off_seconds) == [Code.SHRINK_OPENED]
    assert len({shrink.metadata.name for shrink in stage.cluster.shrinks.values()}) == 2


def test_a_shrink_reverted_after_the_commit_gives_the_memory_back_at_once():
    stage = committed()
    stage.cluster.kubelet("done")
    stage.cluster.agent(Phase.COMMITTED)
    stage.cycle()
    stage.cluster.agent(Phase.REVERTED, reason="PressureAfterCommit", floor_bytes=1300 * MIB)
    assert stage.codes() == [Code.SHRINK_UNDONE]
    assert stage.cluster.memory_limit() == 2 * GIB
    stage.cluster.kubelet("done")
    assert stage.only().reason == "LearnedFloor"
    assert stage.cluster.reasons[-1] == "ShrinkReverted"


def test_memory_is_given_back_when_the_container_died_of_the_new_limit():
    stage = committed()
    stage.cluster.kubelet("done")
    stage.cluster.agent(Phase.GONE, reason="ContainerReplaced")
    pod = stage.cluster.pod
    killed = a_pod(APP, ooms={"app": 5}).status.container_statuses[0].last_state
    status = msgspec.structs.replace(pod.status.container_statuses[0], last_state=killed, container_id="containerd://app-2")
    stage.cluster.pods[pod.key] = msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, container_statuses=[status]))
    assert stage.codes() == [Code.SHRINK_UNDONE]
    assert stage.cluster.memory_limit() == 2 * GIB


def test_a_restart_for_another_reason_leaves_the_new_limit():
    stage = committed()
    stage.cluster.kubelet("done")
    stage.cluster.agent(Phase.GONE, reason="ContainerReplaced")
    assert stage.codes() == [Code.SHRINK_ENDED]
    assert stage.cluster.memory_limit() == GIB


def test_an_error_after_the_commit_reverts_the_spec_and_aborts():
    stage = committed()
    stage.cluster.kubelet("Error", 'container "app" memory limit (1073741824) below current usage (1100000000)')
    assert stage.codes() == [Code.FAILING]
    assert stage.codes(SETTINGS.error_limit_seconds) == [Code.REVERTED]
    assert stage.cluster.memory_limit() == 2 * GIB
    assert stage.cluster.shrink.spec.intent is Intent.ABORT
    stage.cluster.kubelet("done")
    stage.cluster.agent(Phase.ABORTED, reason="AbortRequested")
    assert stage.codes() == [Code.SHRINK_ENDED]
    assert stage.only().reason == "HoldOff"


def test_a_container_that_was_replaced_is_not_patched():
    stage = opened()
    stage.cluster.agent(Phase.HOLDING)
    pod = stage.cluster.pod
    status = msgspec.structs.replace(pod.status.container_statuses[0], container_id="containerd://app-2")
    stage.cluster.pods[pod.key] = msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, container_statuses=[status]))
    assert stage.only().reason == "ShrinkActive"
    assert stage.cluster.memory_limit() == 2 * GIB


@pytest.mark.parametrize("error", [FakeApiError(403, "a webhook says no"), FakeApiError(422, "no")], ids=["403", "422"])
def test_a_refusal_after_holding_aborts(error):
    stage = opened()
    stage.cluster.agent(Phase.HOLDING)
    stage.cluster.resize_errors = [error]
    assert stage.codes() == [Code.REFUSED]
    assert stage.cluster.shrink.spec.intent is Intent.ABORT
    assert stage.cluster.memory_limit() == 2 * GIB
    stage.cluster.agent(Phase.ABORTED)
    assert stage.codes() == [Code.SHRINK_ENDED]
    assert stage.only().reason == "HoldOff"


def test_a_conflict_after_holding_is_tried_again():
    stage = opened()
    stage.cluster.agent(Phase.HOLDING)
    stage.cluster.before_resize = stage.cluster.touch
    assert stage.codes() == [Code.CONFLICT]
    stage.cluster.before_resize = lambda: None
    assert stage.codes() == [Code.SHRINK_PATCHED]


def test_one_more_look_finds_that_the_agent_let_go():
    stage = opened()
    stage.cluster.agent(Phase.HOLDING)
    listed = stage.cluster.list_shrinks()
    stage.cluster.agent(Phase.REVERTED, reason="GuardPassed")
    stage.cluster.list_shrinks = lambda: listed
    assert stage.codes() == [Code.SHRINK_ACTIVE]
    assert stage.cluster.memory_limit() == 2 * GIB


def test_a_deferred_resize_keeps_a_held_shrink_waiting():
    stage = Stage(a_recommendation(cpu="400m", memory="512Mi"))
    stage.cycle()
    stage.cluster.kubelet("Deferred", SHORT)
    stage.cluster.agent(Phase.HOLDING)
    assert stage.codes() == [Code.DEFERRED]
    assert stage.cluster.memory_limit() == 2 * GIB


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param(lambda c: c.recommend(a_recommendation(cpu="200m", memory="900Mi")), "NoLongerWanted", id="recommendation-rose"),
        pytest.param(lambda c: c.vpas.clear(), "NotManaged", id="vpa-deleted"),
        pytest.param(lambda c: c.vpas.__setitem__(0, a_vpa(MEMORY_DOWN, mode="Off")), "NotManaged", id="mode-off"),
    ],
)
def test_a_shrink_that_is_no_longer_wanted_is_called_off(change, reason):
    stage = opened()
    change(stage.cluster)
    outcome = stage.only()
    assert (outcome.code, outcome.reason) == (Code.SHRINK_ABORTED, reason)
    assert stage.cluster.shrink.spec.intent is Intent.ABORT
    stage.cycle()
    assert stage.cluster.reasons.count("ShrinkAborted") == 1


def test_growth_does_not_wait_for_the_shrink_it_calls_off():
    stage = opened()
    stage.cluster.recommend(a_recommendation(cpu="200m", memory="2Gi"))
    assert stage.codes() == [Code.ISSUED]
    assert stage.cluster.memory_limit() == 4 * GIB
    assert stage.cluster.shrink.spec.intent is Intent.ABORT


def test_a_limit_changed_by_somebody_else_calls_the_shrink_off():
    stage = opened()
    pod = stage.cluster.pod
    other = a_container(cpu="200m", memory="1Gi", memory_limit="3Gi")
    stage.cluster.pods[pod.key] = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, containers=[other]))
    stage.cluster.kubelet("done")
    assert stage.only().reason == "LimitChanged"


def test_a_shrink_that_no_agent_takes_up_is_discarded():
    stage = opened()
    outcome = stage.only(SETTINGS.shrink_deadline_seconds + SETTINGS.agent_grace_seconds + 1)
    assert (outcome.code, outcome.reason) == (Code.SHRINK_DISCARDED, "AgentSilent")
    assert stage.cluster.shrinks == {}
    assert stage.only().reason == "HoldOff"


def test_the_shrinks_of_a_pod_that_is_gone_are_cleaned_up():
    stage = opened()
    stage.cluster.pods.clear()
    assert stage.codes() == [Code.SHRINK_ABORTED]
    assert stage.codes() == []
    stage.cluster.agent(Phase.GONE)
    assert stage.codes() == [Code.SHRINK_DISCARDED]
    assert stage.cluster.shrinks == {}


def test_a_new_pod_of_the_same_name_is_another_pod():
    stage = opened()
    new = a_pod(APP)
    stage.cluster.pods[new.key] = msgspec.structs.replace(new, metadata=msgspec.structs.replace(new.metadata, uid="uid-2"))
    assert sorted(stage.codes()) == [Code.SHRINK_ABORTED, Code.SHRINK_OPENED]
    assert len(stage.cluster.shrinks) == 2


def test_finished_shrinks_are_kept_for_a_while():
    stage = committed()
    stage.cluster.kubelet("done")
    stage.cluster.agent(Phase.DONE)
    stage.cycle()
    stage.cycle(SETTINGS.keep_seconds - 120)
    assert len(stage.cluster.shrinks) == 1
    stage.cycle(121)
    assert stage.cluster.shrinks == {}
    assert stage.cluster.memory_limit() == GIB


def test_one_shrink_a_pod_the_largest_first():
    small = a_container("small", cpu="200m", memory="512Mi", memory_limit="512Mi")
    stage = Stage(MEMORY_DOWN, a_recommendation("small", cpu="200m", memory="256Mi"), pods=[a_pod(APP, small)])
    stage.cycle()
    assert stage.cluster.shrink.spec.container.name == "app"
    assert stage.codes() == [Code.SHRINK_ACTIVE]
    stage.cluster.agent(Phase.REFUSED, reason="Bursty")
    stage.cycle()
    assert stage.codes() == [Code.SHRINK_OPENED]
    assert {s.spec.container.name for s in stage.cluster.shrinks.values()} == {"app", "small"}


def test_on_1_33_no_shrink_is_opened():
    stage = Stage(MEMORY_DOWN, rules=rules_for("1.33"))
    assert stage.only().reason == "VersionForbidsDecrease"
    assert stage.cluster.shrinks == {}


def test_restarting_resizes_go_one_pod_at_a_time():
    app = a_container(cpu="200m", memory="1Gi", memory_limit="2Gi", restarts=("cpu",))
    stage = Stage(CPU_UP, pods=[a_pod(app, name="web-0"), a_pod(app, name="web-1")], settings=NO_CANARY)
    assert stage.codes() == [Code.ISSUED, Code.REFUSED]
    assert stage.codes() == [Code.IN_PROGRESS, Code.REFUSED]
    stage.cluster.kubelet("done", name="web-0")
    assert stage.codes() == [Code.COMPLETED, Code.ISSUED]


def test_a_container_about_to_restart_is_not_shrunk_in_the_same_cycle():
    app = a_container(cpu="200m", memory="1Gi", memory_limit="2Gi", restarts=("cpu",))
    stage = Stage(a_recommendation(cpu="400m", memory="512Mi"), pods=[a_pod(app)], settings=NO_CANARY, min_replicas=1)
    assert stage.codes() == [Code.ISSUED]
    assert stage.cluster.shrinks == {}
    stage.cluster.kubelet("done")
    assert stage.codes() == [Code.COMPLETED]
    assert stage.codes() == [Code.SHRINK_OPENED]


def test_a_shrink_that_is_there_already_is_not_an_error():
    stage = opened()
    stage.cluster.list_shrinks = list  # a cache that has not seen it yet
    assert stage.codes() == [Code.SHRINK_OPENED]
    assert len(stage.cluster.shrinks) == 1
    assert stage.cluster.reasons == ["RolloutBegun", "ShrinkOpened"]


def test_a_revert_is_never_reverted():
    stage = Stage(CPU_UP)
    stage.cycle()
    stage.cluster.kubelet("Deferred", SHORT)
    assert stage.codes(SETTINGS.deferred_limit_seconds) == [Code.REVERTED]
    stage.cluster.kubelet("Deferred", SHORT)
    assert stage.codes(10 * SETTINGS.deferred_limit_seconds) == [Code.DEFERRED]
    assert len(stage.cluster.resizes) == 2


def test_a_guaranteed_pod_is_shrunk_with_request_and_limit_together():
    app = a_container(cpu="1", memory="2Gi", cpu_limit="1", memory_limit="2Gi")
    stage = Stage(a_recommendation(cpu="1", memory="1Gi"), pods=[a_pod(app)])
    stage.cycle()
    stage.cluster.agent(Phase.HOLDING)
    assert stage.codes() == [Code.SHRINK_PATCHED]
    assert stage.cluster.pod.desired("app").requests == Amounts(1000, GIB)
    stage.cluster.kubelet("done")
    stage.cluster.agent(Phase.REVERTED, reason="OomKilledAfterCommit")
    assert stage.codes() == [Code.SHRINK_UNDONE]
    assert stage.cluster.pod.desired("app").requests == Amounts(1000, 2 * GIB)


def test_a_revert_that_was_not_sent_is_sent_by_the_next_process():
    stage = Stage(CPU_UP)
    stage.cycle()
    stage.cluster.kubelet("Deferred", SHORT)
    stage.cluster.resize_errors = [FakeApiError(503, "etcd is gone")]
    assert stage.codes(SETTINGS.deferred_limit_seconds) == [Code.UNAVAILABLE]
    stage.restart()
    assert stage.codes() == [Code.REVERTED]
    assert stage.cluster.pod.desired("app").requests == Amounts(200, GIB)


def test_a_refused_revert_is_said_once_and_tried_again():
    stage = Stage(CPU_UP)
    stage.cycle()
    stage.cluster.kubelet("Deferred", SHORT)
    stage.cluster.resize_errors = [FakeApiError(403, "a webhook says no")] * 2
    writes = stage.cluster.writes
    assert stage.codes(SETTINGS.deferred_limit_seconds) == [Code.REFUSED]
    assert stage.codes(SETTINGS.back_hold_off_seconds) == [Code.REFUSED]
    asked = stage.cluster.writes
    assert asked > writes
    assert stage.codes(SETTINGS.back_hold_off_seconds) == [Code.REFUSED]  # not asked again: it is held off for twice as long now
    assert stage.cluster.writes == asked
    assert stage.codes(SETTINGS.back_hold_off_seconds) == [Code.REVERTED]
    assert stage.cluster.reasons.count("ResizeRefused") == 1


# -- a process that dies anywhere


def live_through(stage: Stage) -> None:
    """A whole shrink with a CPU change before it; a crash costs the rest of that cycle, no more."""

    def cycle() -> None:
        for _ in range(2):
            try:
                stage.cycle(30)
            except Crash:
                stage.restart()

    cycle()
    stage.cluster.kubelet("done")
    cycle()
    for phase in (Phase.OBSERVING, Phase.SHRINKING, Phase.HOLDING):
        stage.cluster.agent(phase)
        cycle()
    stage.cluster.kubelet("done")
    stage.cluster.agent(Phase.COMMITTED)
    cycle()
    stage.cluster.agent(Phase.DONE)
    cycle()
    stage.cycle()


def shrinking_stage() -> Stage:
    return Stage(a_recommendation(cpu="400m", memory="512Mi"))


def ends_well(stage: Stage) -> None:
    assert stage.cluster.violations == []
    assert stage.cluster.pod.desired("app").requests == Amounts(400, 512 * MIB)
    assert stage.cluster.memory_limit() == GIB
    assert len(stage.cluster.resizes) == 2  # the CPU, then the lower limit: nothing twice
    assert stage.cluster.shrink.status.phase is Phase.DONE


def test_without_a_crash_it_ends_well():
    stage = shrinking_stage()
    live_through(stage)
    ends_well(stage)
    assert stage.cluster.writes == 8  # two a resize, the shrink, the note that it ended, and the rollout twice


@pytest.mark.parametrize("write", range(1, 9))
def test_a_crash_after_any_write_loses_nothing_and_does_nothing_twice(write):
    stage = shrinking_stage()
    stage.cluster.crash_after_writes = write
    live_through(stage)
    assert stage.cluster.crash_after_writes is None
    ends_well(stage)


def test_a_new_process_every_cycle_makes_no_difference():
    stage = shrinking_stage()
    ordinary = stage.cycle

    def cycle(seconds: float = 60.0):
        stage.restart()
        return ordinary(seconds)

    stage.cycle = cycle
    live_through(stage)
    ends_well(stage)


@pytest.mark.parametrize("write", [1, 2])
def test_a_crash_while_giving_memory_back_still_gives_it_back(write):
    stage = committed()
    stage.cluster.kubelet("done")
    stage.cluster.agent(Phase.REVERTED, reason="PressureAfterCommit")
    stage.cluster.writes, stage.cluster.crash_after_writes = 0, write
    for _ in range(3):
        try:
            stage.cycle(30)
        except Crash:
            stage.restart()
    assert stage.cluster.memory_limit() == 2 * GIB
    assert len(stage.cluster.resizes) == 2


# -- whatever happens

events = st.one_of(
    st.builds(
        lambda c, m: ("recommend", c, m), st.sampled_from(["100m", "200m", "900m"]), st.sampled_from(["256Mi", "512Mi", "1Gi", "3Gi"])
    ),
    st.sampled_from([("kubelet", verdict) for verdict in ("done", "Deferred", "Infeasible", "Error", "busy")]),
    st.sampled_from([("agent", phase) for phase in Phase]),
    st.sampled_from([("refuse", status) for status in (403, 409, 422, 429, 500)]),
    st.just(("crash",)),
    st.just(("restart",)),
    st.sampled_from([("wait", seconds) for seconds in (0.0, 700.0, 4000.0)]),
)
containers = st.sampled_from(
    [
        APP,
        a_container(cpu="1", memory="2Gi", cpu_limit="1", memory_limit="2Gi"),
        a_container(cpu="200m", memory="1Gi"),
        a_container(cpu="200m", memory="1Gi", memory_limit="2Gi", restarts=("memory",)),
    ]
)


def act(stage: Stage, event: tuple) -> None:
    cluster = stage.cluster
    match event:
        case ("recommend", cpu, memory):
            cluster.recommend(a_recommendation(cpu=cpu, memory=memory))
        case ("kubelet", verdict):
            cluster.kubelet(verdict, "Node didn't have enough capacity: cpu")
        case ("agent", phase):
            if any(not s.status.phase.is_terminal for s in cluster.shrinks.values()):
                cluster.agent(phase, reason="Scripted")
        case ("refuse", status):
            cluster.resize_errors = [FakeApiError(status, "scripted")]
        case ("crash",):
            cluster.writes, cluster.crash_after_writes = 0, 1
        case ("restart",):
            stage.restart()
        case ("wait", seconds):
            stage.clock.moment += seconds


@settings(max_examples=80)
@given(app=containers, script=st.lists(events, max_size=25), version=st.sampled_from(["1.33", "1.36"]))
def test_no_sequence_of_events_breaks_a_safety_rule(app, script, version):
    stage = Stage(CPU_UP, pods=[a_pod(app)], rules=rules_for(version), min_replicas=1)
    before = stage.cluster.pod.spec.containers[0].resources
    for event in script:
        act(stage, event)
        try:
            result = stage.cycle(30)
        except Crash:
            stage.restart()
            continue
        assert not [outcome for outcome in result.outcomes if outcome.code is Code.FAILED]
        after = stage.cluster.pod.spec.containers[0].resources
        assert set(before.requests) <= set(after.requests)
        assert set(before.limits) <= set(after.limits)
    assert stage.cluster.pods.keys() == {ObjectKey("shop", "web-0")}
