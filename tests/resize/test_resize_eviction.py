"""When a pod is evicted, and when it is kept."""

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from resize_support import START, FakeApiError, a_container, a_pod, a_recommendation, a_vpa

from vpa_ippr.api.cluster import Node
from vpa_ippr.api.meta import OwnerReference
from vpa_ippr.api.names import ANNOTATION_MIRROR_POD
from vpa_ippr.api.resources import Resource, parse_amounts
from vpa_ippr.api.vpa import EvictionRequirement
from vpa_ippr.resize.circumstances import ORDINARY, Circumstances
from vpa_ippr.resize.due import Due, Part, decide
from vpa_ippr.resize.eviction import Evict, EvictionRate, Hindrance, Keep, Occasion, Surroundings, judge_eviction, refilled
from vpa_ippr.resize.ledger import History, Ledger, with_resize
from vpa_ippr.resize.reasons import DueReason, KeepReason, RefusalReason, RevertReason
from vpa_ippr.resize.refusal import Answer, classify
from vpa_ippr.resize.settings import Settings
from vpa_ippr.resize.state import UnsupportedWhy

SETTINGS = Settings()
RECOMMENDED = a_recommendation(cpu="2", memory="2Gi")
EVERY_HINDRANCE = [*RevertReason, *RefusalReason, *UnsupportedWhy]


class Budget:
    def __init__(self, why=None):
        self.why = why
        self.asked = []

    def allows(self, pod):
        self.asked.append(pod.metadata.name)
        return self.why


def a_web_pod(*, phase="Running", owner=("StatefulSet", "web"), **more):
    pod = a_pod(*more.pop("containers", [a_container(cpu="1", memory="1Gi")]), **more)
    owners = [OwnerReference("apps/v1", *owner, "uid-web", controller=True)] if owner else []
    return msgspec.structs.replace(
        pod,
        metadata=msgspec.structs.replace(pod.metadata, owner_references=owners),
        status=msgspec.structs.replace(pod.status, phase=phase),
    )


def due(*reasons, by_eviction=False):
    return Due(reasons or (DueReason.SIGNIFICANT_CHANGE,), (Part("app", Resource.CPU),), 1.0, by_eviction)


def judge(pod=None, *, mode="Recreate", why=None, hindrance=None, ledger=None, circumstances=ORDINARY, requirements=(), **around):
    vpa = a_vpa(RECOMMENDED, mode=mode, eviction_requirements=list(requirements), **around.pop("policy", {}))
    if why is None and hindrance is None and mode in ("Recreate", "Auto"):
        why = due(by_eviction=True)
    surroundings = Surroundings(**{"admission_renewed_at": START - 10, "live_pods": 3, "budget": Budget(), **around})
    return judge_eviction(
        pod or a_web_pod(), vpa, Occasion(why, hindrance, ledger or Ledger()), circumstances, surroundings, START, SETTINGS
    )


def kept(decision):
    assert isinstance(decision, Keep), decision
    assert decision.message
    return decision.reason


@pytest.mark.parametrize("mode", ["Recreate", "Auto"])
def test_modes_that_evict(mode):
    pod = a_web_pod()
    assert judge(pod, mode=mode) == Evict(pod, ("SignificantChange",))


@pytest.mark.parametrize("mode", ["Off", "Initial", "InPlace"])
@pytest.mark.parametrize("reason", EVERY_HINDRANCE)
def test_modes_that_never_evict(mode, reason):
    decision = judge(mode=mode, why=due(DueReason.QUICK_OOM), hindrance=Hindrance(reason, since=0.0))
    assert kept(decision) is KeepReason.MODE_FORBIDS


def test_what_can_be_done_in_place_is_not_evicted_for():
    assert kept(judge(mode="InPlaceOrRecreate", why=due(DueReason.QUICK_OOM))) is KeepReason.IN_PLACE


EVICTED_FOR = {
    *RevertReason,
    UnsupportedWhy.KUBELET_WITHOUT_RESIZE,
    RefusalReason.BEST_EFFORT,
    RefusalReason.WINDOWS,
    RefusalReason.RESOURCE_CLAIMS,
    RefusalReason.POD_LEVEL_RESOURCES,
    RefusalReason.POD_LEVEL_MEMORY_DECREASE,
    RefusalReason.QOS_WOULD_CHANGE,
    RefusalReason.VERSION_FORBIDS_DECREASE,
    RefusalReason.VERSION_FORBIDS_LIMIT,
    RefusalReason.VERSION_FORBIDS_CONTAINER,
    RefusalReason.NODE_CAPACITY,
    RefusalReason.KNOWN_INFEASIBLE,
    RefusalReason.STATIC_CPU_MANAGER,
    RefusalReason.STATIC_MEMORY_MANAGER,
    RefusalReason.SWAP,
    RefusalReason.NODE_UNSUPPORTED,
    RefusalReason.INVALID,
}


@pytest.mark.parametrize("reason", EVERY_HINDRANCE, ids=lambda reason: f"{type(reason).__name__}-{reason}")
def test_what_in_place_or_recreate_evicts_for(reason):
    pod = a_web_pod()
    decision = judge(pod, mode="InPlaceOrRecreate", why=due(), hindrance=Hindrance(reason, "because"))
    if any(reason is known for known in EVICTED_FOR):
        assert decision == Evict(pod, ("SignificantChange", reason))
    else:
        assert kept(decision) is KeepReason.NOT_HELPED


def test_a_resize_under_way_that_came_to_nothing_needs_nothing_else_due():
    pod = a_web_pod()
    decision = judge(pod, mode="InPlaceOrRecreate", hindrance=Hindrance(RevertReason.DEFERRED_TOO_LONG))
    assert decision == Evict(pod, ("DeferredTooLong",))


@pytest.mark.parametrize(("waited", "evicts"), [(None, False), (599, False), (600, True)])
def test_a_full_node_is_left_after_the_time_of_a_deferred_resize(waited, evicts):
    since = None if waited is None else START - waited
    decision = judge(mode="InPlaceOrRecreate", why=due(), hindrance=Hindrance(RefusalReason.NODE_FULL, "node n1 is full", since))
    assert isinstance(decision, Evict) is evicts


def test_a_shrink_that_failed_is_no_reason():
    pod = a_web_pod()
    ledger = with_resize(Ledger(), pod, {"app": pod.desired("app")}, START - 900, shrink="web-0-1")
    decision = judge(pod, mode="InPlaceOrRecreate", hindrance=Hindrance(RevertReason.KUBELET_ERROR, "below usage"), ledger=ledger)
    assert kept(decision) is KeepReason.NOT_HELPED


def test_a_young_pods_want_of_cpu_is_no_reason():
    decision = judge(mode="InPlaceOrRecreate", why=due(DueReason.CPU_SHORTAGE), hindrance=Hindrance(RefusalReason.KNOWN_INFEASIBLE))
    assert kept(decision) is KeepReason.ONLY_IN_PLACE


@pytest.mark.parametrize(
    ("pod", "reason"),
    [
        pytest.param(a_web_pod(owner=None), KeepReason.NO_CONTROLLER, id="bare"),
        pytest.param(a_web_pod(owner=("Node", "n1")), KeepReason.STATIC_POD, id="static"),
        pytest.param(a_web_pod(annotations={ANNOTATION_MIRROR_POD: "x"}), KeepReason.STATIC_POD, id="mirror"),
        pytest.param(a_web_pod(deletion_timestamp="2026-01-01T00:00:00Z"), KeepReason.POD_DELETING, id="deleting"),
        pytest.param(a_web_pod(phase="Succeeded"), KeepReason.POD_ENDED, id="ended"),
    ],
)
def test_pods_that_are_never_evicted(pod, reason):
    assert kept(judge(pod)) is reason


@pytest.mark.parametrize("kind", ["ReplicaSet", "StatefulSet", "DaemonSet", "Job", "ReplicationController", "CloneSet"])
def test_whoever_makes_pods_again_is_a_controller(kind):
    assert isinstance(judge(a_web_pod(owner=(kind, "web"))), Evict)


@pytest.mark.parametrize(
    ("renewed_at", "reason"),
    [(None, KeepReason.NO_ADMISSION), (START - 61, KeepReason.NO_ADMISSION), (START - 60, None), (START + 5, None)],
    ids=["never", "stale", "just", "its-clock-is-ahead"],
)
def test_without_an_admission_controller_an_eviction_would_be_a_loop(renewed_at, reason):
    decision = judge(admission_renewed_at=renewed_at)
    assert (kept(decision) if reason else None) is reason
    assert isinstance(decision, Evict) is (reason is None)


def test_paused():
    assert kept(judge(circumstances=Circumstances(paused=True))) is KeepReason.PAUSED


def test_a_closed_window_holds_what_nobody_called_urgent():
    closed = Circumstances(closed_until=START + 60)
    hindrance = Hindrance(RevertReason.DEFERRED_TOO_LONG)
    assert kept(judge(mode="InPlaceOrRecreate", hindrance=hindrance, circumstances=closed)) is KeepReason.OUTSIDE_WINDOW
    urgent = due(DueReason.QUICK_OOM, by_eviction=True)
    assert isinstance(judge(why=urgent, circumstances=closed), Evict)


def test_a_boosted_pod_is_kept_unless_it_is_killed_for_memory():
    boosted = Circumstances(boosted=frozenset({"app"}))
    assert kept(judge(circumstances=boosted)) is KeepReason.BOOSTED
    assert isinstance(judge(why=due(DueReason.QUICK_OOM, by_eviction=True), circumstances=boosted), Evict)


HIGHER, LOWER = "TargetHigherThanRequests", "TargetLowerThanRequests"


def requires(direction, *resources):
    return EvictionRequirement(list(resources), direction)


@pytest.mark.parametrize(
    ("cpu", "memory", "requirements", "evicts"),
    [
        pytest.param("1", "1Gi", [requires(HIGHER, "cpu")], True, id="higher"),
        pytest.param("1", "1Gi", [requires(LOWER, "cpu")], False, id="not-lower"),
        pytest.param("3", "1Gi", [requires(LOWER, "cpu")], True, id="lower"),
        pytest.param("2", "1Gi", [requires(HIGHER, "cpu")], False, id="the-same-is-not-higher"),
        pytest.param("3", "1Gi", [requires(HIGHER, "cpu", "memory")], True, id="one-resource-is-enough"),
        pytest.param("3", "1Gi", [requires(HIGHER, "cpu"), requires(HIGHER, "memory")], False, id="all-requirements"),
        pytest.param("3", "1Gi", [requires(LOWER, "cpu"), requires(HIGHER, "memory")], True, id="each-in-its-direction"),
        pytest.param("1", "1Gi", [requires("TargetDifferent", "cpu")], False, id="unknown-requirement"),
        pytest.param("1", "1Gi", [requires(HIGHER, "nvidia.com/gpu")], False, id="unknown-resource"),
        pytest.param("1", "1Gi", [requires(HIGHER)], False, id="no-resource"),
        pytest.param(None, "3Gi", [requires(HIGHER, "memory")], True, id="without-a-request-it-passes"),
        pytest.param("3", "1Gi", [], True, id="none"),
    ],
)
@pytest.mark.parametrize("mode", ["Recreate", "InPlaceOrRecreate"])
def test_eviction_requirements(cpu, memory, requirements, evicts, mode):
    pod = a_web_pod(containers=[a_container(cpu=cpu, memory=memory)])
    hindrance = Hindrance(RefusalReason.KNOWN_INFEASIBLE) if mode == "InPlaceOrRecreate" else None
    decision = judge(pod, mode=mode, why=due(by_eviction=mode == "Recreate"), hindrance=hindrance, requirements=requirements)
    assert isinstance(decision, Evict) is evicts
    assert evicts or kept(decision) is KeepReason.REQUIREMENTS


def test_requirements_look_at_what_is_in_force_when_the_spec_is_ahead_of_it():
    ahead = a_web_pod(containers=[a_container(cpu="2", memory="2Gi")])
    (status,) = a_web_pod().status.container_statuses
    pod = msgspec.structs.replace(ahead, status=msgspec.structs.replace(ahead.status, container_statuses=[status]))
    hindrance = Hindrance(RevertReason.DEFERRED_TOO_LONG)
    assert isinstance(judge(pod, mode="InPlaceOrRecreate", hindrance=hindrance, requirements=[requires(HIGHER, "cpu")]), Evict)


@pytest.mark.parametrize(
    ("live", "policy", "evicts"),
    [(1, {}, False), (2, {}, True), (1, {"min_replicas": 1}, True), (3, {"min_replicas": 4}, False)],
)
@pytest.mark.parametrize("phase", ["Running", "Pending"])
def test_min_replicas(live, policy, evicts, phase):
    decision = judge(a_web_pod(phase=phase), live_pods=live, policy=policy)
    assert isinstance(decision, Evict) is evicts
    assert evicts or kept(decision) is KeepReason.TOO_FEW_REPLICAS


@pytest.mark.parametrize(("limit", "memory", "evicts"), [("16Gi", "2Gi", False), ("16Gi", "1Gi", True), ("2Gi", "1Gi", True)])
def test_a_pod_is_not_made_anew_for_its_limits_alone(limit, memory, evicts):
    pod = a_web_pod(containers=[a_container(cpu="2", memory=memory, memory_limit=limit)])
    decision = judge(pod)
    assert isinstance(decision, Evict) if evicts else kept(decision) is KeepReason.NOT_HELPED


def test_the_budget_has_its_say_except_for_pods_that_have_not_started():
    budget = Budget("2 of 3 pods must stay")
    decision = judge(budget=budget)
    assert (kept(decision), decision.message) == (KeepReason.DISRUPTION_BUDGET, "2 of 3 pods must stay")
    assert isinstance(judge(a_web_pod(phase="Pending"), budget=budget), Evict)


def a_node(name, cpu, memory):
    return Node(name, parse_amounts({"cpu": cpu, "memory": memory}, name))


@pytest.mark.parametrize(
    ("owner", "nodes", "evicts"),
    [
        pytest.param("ReplicaSet", [a_node("n1", "1500m", "64Gi"), a_node("n2", "2", "2Gi")], True, id="another-node"),
        pytest.param("ReplicaSet", [a_node("n1", "1500m", "64Gi"), a_node("n2", "64", "1Gi")], False, id="none-has-both"),
        pytest.param("DaemonSet", [a_node("n1", "1500m", "64Gi"), a_node("n2", "64", "64Gi")], False, id="daemonset-stays"),
        pytest.param("DaemonSet", [a_node("n1", "2", "2Gi")], True, id="daemonset-fits"),
        pytest.param("ReplicaSet", [Node("n1")], True, id="unknown-size"),
        pytest.param("ReplicaSet", [], True, id="unknown-nodes"),
    ],
)
def test_no_pod_is_evicted_into_nowhere(owner, nodes, evicts):
    decision = judge(a_web_pod(owner=(owner, "web")), nodes=nodes)
    assert isinstance(decision, Evict) is evicts
    assert evicts or kept(decision) is KeepReason.NO_NODE


def test_what_decide_calls_due_by_eviction_is_evicted():
    pod, vpa = a_web_pod(), a_vpa(RECOMMENDED, mode="Auto")
    decision = decide(pod, vpa, START, SETTINGS, History())
    assert judge(pod, mode="Auto", why=decision) == Evict(pod, decision.reasons)


# -- rate


def test_an_empty_bucket_holds_back():
    assert kept(judge(rate=EvictionRate(0.9, START))) is KeepReason.RATE
    assert isinstance(judge(rate=EvictionRate(1.0, START)), Evict)


def test_no_rate_is_no_limit():
    assert refilled(None, START, Settings()) is None
    assert refilled(EvictionRate(0, START), START, Settings()) is None


@given(st.floats(0.01, 5), st.integers(1, 5), st.lists(st.tuples(st.floats(0, 100), st.booleans()), max_size=40))
def test_never_more_evictions_than_rate_and_burst_allow(per_second, burst, moments):
    settings = Settings(eviction_rate_per_second=per_second, eviction_burst=burst)
    rate, now, evictions = None, START, []
    for gap, wants in moments:
        now += gap
        rate = refilled(rate, now, settings)
        if wants and not rate.is_empty:
            rate = rate.taking()
            evictions.append(now)
    for first, last in itertools.combinations(range(len(evictions)), 2):
        assert last - first + 1 <= burst + per_second * (evictions[last] - evictions[first]) + 1e-3
    assert rate is None or 0 <= rate.tokens <= burst


# -- answers of the API server


@pytest.mark.parametrize(
    ("error", "answer", "reason"),
    [
        pytest.param(
            FakeApiError(429, "Cannot evict pod as it would violate the pod's disruption budget.", "DisruptionBudget"),
            Answer.REFUSED,
            RefusalReason.DISRUPTION_BUDGET,
            id="pdb",
        ),
        pytest.param(FakeApiError(429, "too many requests, please try again later"), Answer.TRY_AGAIN, None, id="busy"),
        pytest.param(
            FakeApiError(500, "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."),
            Answer.REFUSED,
            RefusalReason.SEVERAL_BUDGETS,
            id="two-pdbs",
        ),
        pytest.param(FakeApiError(500, "etcdserver: request timed out"), Answer.TRY_AGAIN, None, id="failed"),
        pytest.param(FakeApiError(404, 'pods "web-0" not found'), Answer.GONE, None, id="gone"),
        pytest.param(FakeApiError(409, "Precondition failed: UID in precondition"), Answer.READ_AGAIN, None, id="another-pod"),
        pytest.param(
            FakeApiError(403, 'pods "web-0" is forbidden: User "vpa" cannot create resource "pods/eviction" in API group ""'),
            Answer.REFUSED,
            RefusalReason.PERMISSION_DENIED,
            id="not-allowed",
        ),
    ],
)
def test_answers_to_an_eviction(error, answer, reason):
    refusal = classify(error)
    assert (refusal.answer, refusal.reason) == (answer, reason)
