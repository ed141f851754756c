"""What only shows when the updater's parts work together: one pod in two roles, one failure that others must not feel."""

import msgspec
import pytest
from resize_support import RULES, START, FakeApiError, FakeCluster, a_container, a_pod, a_recommendation, a_vpa

from vpa_ippr.api.cluster import Node, Workload
from vpa_ippr.api.errors import ValidationError
from vpa_ippr.api.meta import ObjectKey, OwnerReference, find_condition
from vpa_ippr.api.names import ANNOTATION_CPU_BOOST_PREFIX, CONDITION_DEGRADED
from vpa_ippr.api.quota import ResourceQuota, ResourceQuotaSpec, ResourceQuotaStatus
from vpa_ippr.api.resources import ResourceRequirements, parse_amounts
from vpa_ippr.api.shrink import Phase
from vpa_ippr.resize.controller import Updater
from vpa_ippr.resize.evicting import ask_admission
from vpa_ippr.resize.follow import revert_target
from vpa_ippr.resize.moves import Move
from vpa_ippr.resize.reasons import DueReason, KeepReason, OutcomeCode, RefusalReason, RevertReason
from vpa_ippr.resize.rollout_state import Failure, Rollout, RolloutPhase, read_rollout, to_annotations
from vpa_ippr.resize.settings import Settings
from vpa_ippr.resize.trail import trails
from vpa_ippr.resize.world import read_world

APP = a_container(cpu="200m", memory="1Gi", memory_limit="2Gi")
RESTARTS = a_container(cpu="200m", memory="1Gi", memory_limit="2Gi", restarts=("cpu",))
UP = a_recommendation(cpu="400m", memory="1Gi")
FORBIDDEN = FakeApiError(403, 'leases.coordination.k8s.io is forbidden: User cannot get resource "leases"')
NO_MORE_NOW = FakeApiError(429, "Cannot evict pod as it would violate the pod's disruption budget.", "DisruptionBudget")


class Stage:
    """A cluster and an updater that goes through cycles of a minute; an admission controller is there unless said otherwise."""

    def __init__(self, *pods, vpas, nodes=None, has_admission=True, **settings):
        self.cluster = FakeCluster(*pods, vpas=vpas)
        self.cluster.nodes = [Node("n1", parse_amounts(amounts, "node")) for amounts in (nodes or [{"cpu": "64", "memory": "256Gi"}])]
        self.settings = Settings(**settings)
        self.updater = Updater(self.cluster, self.cluster.clock, self.settings, RULES)
        self.has_admission = has_admission

    def cycle(self, seconds=60.0):
        clock = self.cluster.clock
        clock.moment += seconds
        self.cluster.admission_renewed = clock.moment if self.has_admission else None
        outcomes = self.updater.run_cycle().outcomes
        assert self.cluster.violations == []
        names = [outcome.pod.name for outcome in outcomes if outcome.code is not OutcomeCode.BAD_OBJECT]
        assert len(names) == len(set(names)), "a pod has two outcomes"
        return {outcome.pod.name: (outcome.code, outcome.reason) for outcome in outcomes}

    def explained(self):
        clock, admission = self.cluster.clock, ask_admission(self.cluster)
        found = trails(read_world(self.cluster), lambda _: True, RULES, self.settings, clock.moment, admission)
        return {trail.pod.metadata.name: (trail.next_step.code, trail.next_step.reason) for trail in found}

    def done(self, *names):
        for name in names:
            self.cluster.kubelet("done", name=name)

    def restarted(self, name):
        """Its container has been restarted again and again."""
        pod = self.cluster.pods[ObjectKey("shop", name)]
        statuses = [msgspec.structs.replace(status, restart_count=5) for status in pod.status.container_statuses]
        status = msgspec.structs.replace(pod.status, container_statuses=statuses)
        self.cluster._store(msgspec.structs.replace(pod, status=status), write=False)

    def request(self, name="web-0"):
        return self.cluster.pods[ObjectKey("shop", name)].desired("app").requests

    def limit(self, name):
        return self.cluster.pods[ObjectKey("shop", name)].desired("app").limits.memory_bytes


def of_db(pod):
    owner = OwnerReference("apps/v1", "StatefulSet", "db", "uid-db", controller=True)
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, owner_references=[owner]))


def web_pods(container, count):
    return [a_pod(container, name=f"web-{number}") for number in range(count)]


# -- one bad object


def test_a_vpa_whose_target_has_an_api_that_is_not_served_stops_nobody():
    stage = Stage(of_db(a_pod(APP, name="db-0")), a_pod(APP), vpas=(a_vpa(UP), a_vpa(UP, name="db", target="db")))
    look_up = stage.cluster.find_workload

    def find_workload(namespace, api_version, kind, name):
        if name == "web":
            raise ValidationError("the cluster serves no API extensions/v1beta1")
        return look_up(namespace, api_version, kind, name)

    stage.cluster.find_workload = find_workload
    stage.cluster.workloads["StatefulSet", "db"] = Workload("apps/v1", "StatefulSet", "db")
    assert stage.cycle()["db-0"] == (OutcomeCode.ISSUED, DueReason.SIGNIFICANT_CHANGE)


def test_an_unreadable_pod_counts_as_out_of_service_and_stops_nobody():
    bad = a_pod(a_container(cpu="abc"), name="web-1", qos="Burstable")
    bad = msgspec.structs.replace(bad, status=msgspec.structs.replace(bad.status, observed_generation=0))
    others = (a_pod(RESTARTS), a_pod(RESTARTS, name="web-2"), of_db(a_pod(APP, name="db-0")))
    stage = Stage(*others, bad, vpas=(a_vpa(UP), a_vpa(UP, name="db", target="db")), canary="off")
    stage.cluster.workloads["StatefulSet", "db"] = Workload("apps/v1", "StatefulSet", "db")
    found = stage.cycle()
    assert found["web-1"][0] is OutcomeCode.BAD_OBJECT
    assert found["web-0"] == found["web-2"] == (OutcomeCode.REFUSED, RefusalReason.DISRUPTION_BUDGET)
    assert found["db-0"][0] is OutcomeCode.ISSUED


# -- the budget


@pytest.mark.parametrize(("remembered", "restarted"), [(2, 5), (10, 5), (40, 0)])
def test_replicas_that_are_remembered_from_before_a_scaling_never_widen_the_budget(remembered, restarted):
    stage = Stage(*web_pods(RESTARTS, 10), vpas=(a_vpa(UP),), canary="off")
    stage.cluster.workloads["StatefulSet", "web"] = Workload("apps/v1", "StatefulSet", "web", replicas=remembered)
    stage.cycle()
    assert len(stage.cluster.resizes) == restarted


def test_a_cycle_tells_what_was_charged_to_budgets_and_what_they_have_left():
    stage = Stage(*web_pods(RESTARTS, 10), vpas=(a_vpa(UP),), canary="off", max_resizes_per_minute=3)
    result = stage.updater.run_cycle()
    assert (result.disturbed, result.may_be_disturbed) == (3, 2)


# -- evictions


def deferred(**more):
    stage = Stage(*web_pods(APP, 2), vpas=(a_vpa(UP, mode="InPlaceOrRecreate"),), **more)
    stage.cycle()
    stage.done("web-1")
    stage.cluster.kubelet("Deferred", "no room")
    return stage


@pytest.mark.parametrize("problem", ["lease", "eviction", "none"])
def test_what_is_stuck_is_evicted_or_else_taken_back(problem):
    stage = deferred()
    if problem == "lease":
        stage.cluster.failing["admission_renewed_at"] = FORBIDDEN
    if problem == "eviction":
        stage.cluster.eviction_errors = [NO_MORE_NOW]
    found = stage.cycle(stage.settings.deferred_limit_seconds)
    assert found["web-0"][0] is (OutcomeCode.EVICTED if problem == "none" else OutcomeCode.REVERTED)
    assert problem == "none" or stage.request().cpu_millicores == 200


def test_a_lease_that_cannot_be_read_is_asked_for_once_a_cycle_and_told_once():
    stage = Stage(*web_pods(APP, 5), vpas=(a_vpa(UP, mode="Recreate"),))
    asked = []

    def admission_renewed_at():
        asked.append(1)
        raise FORBIDDEN

    stage.cluster.admission_renewed_at = admission_renewed_at
    for _ in range(3):
        assert set(stage.cycle().values()) == {(OutcomeCode.NOT_DUE, KeepReason.NO_ADMISSION)}
    assert len(asked) == 3
    assert stage.cluster.reasons.count("EvictionWaits") == 1


def test_what_is_being_rolled_back_is_not_evicted_too():
    app = a_container(cpu="400m", memory="1Gi", memory_limit="1Gi")
    vpas = (a_vpa(a_recommendation(cpu="200m", memory="2Gi"), mode="InPlaceOrRecreate"),)
    stage = Stage(*web_pods(app, 3), vpas=vpas)
    for _ in range(3):
        stage.cycle()
        stage.done("web-0", "web-1", "web-2")
    stage.cycle(stage.settings.soak_seconds + 60)
    stage.done("web-2")
    stage.cluster.kubelet("Deferred", "no room", name="web-1")
    stage.cycle()
    stage.restarted("web-2")
    found = stage.cycle(stage.settings.deferred_limit_seconds + 60)
    assert found["web-1"] == (OutcomeCode.REVERTED, RevertReason.DEGRADED)
    assert stage.cluster.evicted == []


def degraded(**state):
    failure = Failure("x", [Move("app", "cpu", 200, None, True)], START + 80_000, 3, "NotReady", "pod web-9 was hurt")
    rollout = Rollout(1, phase=RolloutPhase.DEGRADED, key="k", since=START, harmed=True, failures=[failure])
    vpa = a_vpa(a_recommendation(cpu="200m", memory="3Gi"), mode="InPlaceOrRecreate")
    vpa = msgspec.structs.replace(vpa, metadata=msgspec.structs.replace(vpa.metadata, annotations=to_annotations(rollout)))
    return Stage(*web_pods(a_container(cpu="400m", memory="1Gi"), 2), vpas=(vpa,), nodes=[{"cpu": "4", "memory": "3500Mi"}])


def test_an_eviction_does_not_bring_the_change_that_did_harm():
    stage = degraded()
    for _ in range(15):
        found = stage.cycle()
    assert stage.cluster.evicted == []
    assert found["web-0"] == (OutcomeCode.REFUSED, RefusalReason.NODE_FULL)


# -- rollouts that cannot be noted


def shrinking():
    """The first of three pods has stood its smaller limit, and those of the others are being brought down."""
    stage = Stage(*web_pods(APP, 3), vpas=(a_vpa(a_recommendation(cpu="200m", memory="512Mi")),))
    stage.cycle()
    stage.cluster.agent(Phase.HOLDING)
    stage.cycle()
    stage.done("web-0")
    stage.cluster.agent(Phase.COMMITTED)
    stage.cycle(30)
    stage.cluster.agent(Phase.DONE)
    for seconds in (30, 30, stage.settings.soak_seconds + 100):
        stage.cycle(seconds)
    return stage


@pytest.mark.parametrize("is_writable", [True, False])
def test_harm_is_taken_back_and_goes_no_further_whether_or_not_it_can_be_noted(is_writable):
    stage = shrinking()
    assert read_rollout(stage.cluster.vpas[0]).phase is RolloutPhase.ROLLING
    stage.restarted("web-0")
    if not is_writable:
        stage.cluster.failing["annotate_vpa"] = FakeApiError(503, "etcd")
    stage.cycle(10)
    for key, shrink in list(stage.cluster.shrinks.items()):
        if not shrink.status.phase.is_terminal:
            stage.cluster.shrinks[key] = msgspec.structs.replace(shrink, status=msgspec.structs.replace(shrink.status, phase=Phase.HOLDING))
    stage.cycle()
    assert [stage.limit(f"web-{number}") for number in range(3)] == [2 << 30] * 3


def test_the_condition_stands_in_the_cycle_of_the_harm():
    stage = Stage(*web_pods(a_container(cpu="400m", memory="1Gi"), 2), vpas=(a_vpa(a_recommendation(cpu="200m", memory="1Gi")),))
    stage.cycle()
    stage.done("web-0")
    stage.restarted("web-0")
    stage.cycle()
    found = find_condition(stage.cluster.vpas[0].status.conditions, CONDITION_DEGRADED)
    assert found is not None
    assert found.status == "True"


def test_a_rollback_that_is_refused_is_tried_again_at_a_growing_distance():
    stage = Stage(*web_pods(a_container(cpu="400m", memory="1Gi"), 2), vpas=(a_vpa(a_recommendation(cpu="200m", memory="1Gi")),))
    stage.cycle()
    stage.done("web-0")
    stage.restarted("web-0")
    refused = 0
    for _ in range(30):
        stage.cluster.resize_errors = [FakeApiError(403, "exceeded quota: q, requested: cpu=200m")]
        stage.cycle()
        refused += not stage.cluster.resize_errors
    assert 2 <= refused <= 6
    stage.cluster.resize_errors = []
    stage.cycle(stage.settings.hold_off_seconds)
    assert stage.request().cpu_millicores == 400


# -- startup boosts


def boosted_stage():
    notes = {ANNOTATION_CPU_BOOST_PREFIX + "app": '{"requests":{"cpu":"200m"}}'}
    pod = a_pod(a_container(cpu="1", memory="1Gi", memory_limit="2Gi"), annotations=notes)
    return Stage(pod, vpas=(a_vpa(a_recommendation(cpu="200m", memory="1Gi"), mode="InPlace"),))


def test_the_end_of_a_boost_that_the_kubelet_cannot_carry_out_is_not_tried_each_minute():
    stage, seen = boosted_stage(), 0
    for _ in range(14):
        stage.cycle()
        if len(stage.cluster.resizes) > seen:
            seen = len(stage.cluster.resizes)
            stage.cluster.kubelet(*(("Error", "runc says no") if stage.request().cpu_millicores == 200 else ("done",)))
    assert len(stage.cluster.resizes) == 2  # once, and back


def test_the_end_of_a_boost_that_is_refused_is_tried_again_at_a_growing_distance():
    stage, refused = boosted_stage(), 0
    for _ in range(30):
        stage.cluster.resize_errors = [FakeApiError(403, "minimum cpu usage per Container is 500m")]
        stage.cycle()
        refused += not stage.cluster.resize_errors
    assert 2 <= refused <= 6


# -- room


def test_two_pods_that_wait_for_each_others_room_do_not_wait_for_ever():
    pods = (a_pod(a_container(cpu="2", memory="2Gi")), a_pod(a_container("side", cpu="2", memory="2Gi"), name="web-1"))
    wanted = (a_recommendation(cpu="3", memory="1Gi"), a_recommendation("side", cpu="1", memory="3Gi"))
    stage = Stage(*pods, vpas=(a_vpa(*wanted, mode="InPlace"),), nodes=[{"cpu": "4", "memory": "4Gi"}], canary="off")
    for _ in range(6):
        stage.cycle(300)
        stage.done("web-0", "web-1")
    assert stage.request() == parse_amounts({"cpu": "3", "memory": "1Gi"}, "")


@pytest.mark.parametrize("replicas", [2, 4])
def test_what_has_to_wait_for_others_takes_no_quota_from_what_has_not(replicas):
    """The pods of web restart, so one goes first; what the others would take stays free for db until it is their turn."""
    pods = (*web_pods(RESTARTS, replicas), of_db(a_pod(APP, name="db-0")))
    stage = Stage(*pods, vpas=(a_vpa(UP), a_vpa(UP, name="db", target="db")))
    stage.cluster.workloads["StatefulSet", "db"] = Workload("apps/v1", "StatefulSet", "db")
    used, hard = 200 * (replicas + 1), {"requests.cpu": f"{200 * (replicas + 1) + 400}m"}
    status = ResourceQuotaStatus(hard, {"requests.cpu": f"{used}m"})
    quota = ResourceQuota(metadata=stage.cluster.vpas[0].metadata, spec=ResourceQuotaSpec(hard), status=status)
    stage.cluster.quotas = [quota]
    found = stage.cycle()
    assert found["db-0"][0] is OutcomeCode.ISSUED
    assert [code for code, _ in found.values()].count(OutcomeCode.ISSUED) == 2


# -- explain


@pytest.mark.parametrize("case", ["boost over", "no admission", "admission", "hindered", "stuck", "shrinking"])
def test_explain_says_what_the_updater_then_does(case):
    if case == "boost over":
        stage = boosted_stage()
    elif case in ("no admission", "admission"):
        stage = Stage(*web_pods(APP, 2), vpas=(a_vpa(UP, mode="Recreate"),), has_admission=case == "admission")
        stage.cluster.admission_renewed = stage.cluster.clock.moment if stage.has_admission else None
    elif case == "hindered":
        stage = Stage(*web_pods(a_container(), 2), vpas=(a_vpa(UP, mode="InPlaceOrRecreate"),), has_admission=False)
    elif case == "stuck":
        stage = deferred(has_admission=False)
        stage.cluster.clock.moment += stage.settings.deferred_limit_seconds
    else:
        stage = Stage(a_pod(APP), vpas=(a_vpa(a_recommendation(cpu="200m", memory="512Mi")),))
        stage.cycle()
        stage.cluster.agent(Phase.SHRINKING)
        stage.cluster.recommend(a_recommendation(cpu="400m", memory="512Mi"))
    said = stage.explained()["web-0"]
    assert stage.cycle(0)["web-0"] == said


def test_a_resize_that_added_a_limit_is_not_taken_back_into_another_qos_class():
    """Before it was Burstable for want of the limit, which cannot be removed: with the request of before the pod would be Guaranteed."""
    pod = a_pod(a_container(cpu="99m", cpu_limit="100m", memory="1Gi", memory_limit="1Gi"))
    before = {"app": ResourceRequirements({"cpu": "100m", "memory": "1Gi"}, {"memory": "1Gi"})}
    assert revert_target(pod, before, RULES) is None


def test_a_quota_whose_use_goes_up_and_down_is_told_once():
    stage = Stage(a_pod(APP), vpas=(a_vpa(UP),))
    for used in (900, 950, 920):
        stage.cluster.resize_errors = [FakeApiError(403, f"exceeded quota: q, requested: requests.cpu=200m, used: requests.cpu={used}m")]
        stage.cycle(stage.settings.hold_off_max_seconds)
        assert not stage.cluster.resize_errors
    assert stage.cluster.reasons.count("ResizeRefused") == 1
