"""The small pure parts: version rules, API refusals, matching, budget, ledger, QoS, revert."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from resize_support import (
    RULES,
    START,
    FakeApiError,
    a_container,
    a_pod,
    a_vpa,
    expected_qos,
    requirements,
)

from vpa_ippr.api.errors import ClusterError, UsageError
from vpa_ippr.api.meta import ObjectMeta, OwnerReference
from vpa_ippr.api.names import ANNOTATION_RESIZE_LEDGER
from vpa_ippr.api.pod import Pod
from vpa_ippr.api.resources import Amounts
from vpa_ippr.api.vpa import TargetRef, Vpa
from vpa_ippr.recommend.ports import Workload
from vpa_ippr.resize.follow import revert_target
from vpa_ippr.resize.ledger import (
    Infeasible,
    Ledger,
    Record,
    Scope,
    read_ledger,
    tidied,
    to_annotations,
    with_hold_off,
    with_resize,
)
from vpa_ippr.resize.matching import index_vpas, vpa_of
from vpa_ippr.resize.qos import desired_resources, pod_requests, qos_class
from vpa_ippr.resize.reasons import RefusalReason
from vpa_ippr.resize.refusal import Answer, classify
from vpa_ippr.resize.rules import RULES as TABLE
from vpa_ippr.resize.rules import rules_for
from vpa_ippr.resize.settings import Settings
from vpa_ippr.resize.state import InfeasibleCause

SETTINGS = Settings()
MIB = 1 << 20


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ("1.32.13", "1.32"),
        ("1.33", "1.33"),
        ("v1.34.9", "1.34"),
        ("v1.35.6-eks-1", "1.35"),
        ("1.36+", "1.36"),
        ("1.37", "1.37"),
        ("1.41", "1.37"),
    ],
)
def test_versions_find_their_row(text, row):
    assert rules_for(text) is TABLE[row]


@pytest.mark.parametrize(("text", "reason"), [("1.31", "VersionTooOld"), ("latest", "BadVersion")])
def test_versions_that_cannot_be_served(text, reason):
    with pytest.raises(UsageError) as caught:
        rules_for(text)
    assert caught.value.reason == reason


FORBIDDEN = 'pods "p" is forbidden: '


@pytest.mark.parametrize(
    ("error", "answer", "reason"),
    [
        pytest.param(ClusterError("connection refused"), Answer.TRY_AGAIN, None, id="unreachable"),
        pytest.param(FakeApiError(500, "boom"), Answer.TRY_AGAIN, None, id="500"),
        pytest.param(FakeApiError(429, "slow down"), Answer.TRY_AGAIN, None, id="429"),
        pytest.param(FakeApiError(409, "modified"), Answer.READ_AGAIN, None, id="409"),
        pytest.param(FakeApiError(404, "not found"), Answer.GONE, None, id="404"),
        pytest.param(
            FakeApiError(403, FORBIDDEN + "exceeded quota: q, requested: cpu=300m, used: cpu=600m, limited: cpu=800m"),
            Answer.REFUSED,
            RefusalReason.QUOTA_EXCEEDED,
            id="quota",
        ),
        pytest.param(
            FakeApiError(403, FORBIDDEN + "maximum cpu usage per Container is 500m, but limit is 600m"),
            Answer.REFUSED,
            RefusalReason.LIMIT_RANGE,
            id="limit-range",
        ),
        pytest.param(
            FakeApiError(
                403, FORBIDDEN + "node didn't have enough allocatable resources: cpu, requested: 3000, allocatable: 2000", "NodeCapacity"
            ),
            Answer.REFUSED,
            RefusalReason.NODE_CAPACITY,
            id="node-capacity",
        ),
        pytest.param(
            FakeApiError(403, FORBIDDEN + 'pod update requires features X which are not available on node "n1"'),
            Answer.REFUSED,
            RefusalReason.NODE_UNSUPPORTED,
            id="features",
        ),
        pytest.param(
            FakeApiError(403, FORBIDDEN + 'User "x" cannot patch resource "pods/resize" in API group ""'),
            Answer.REFUSED,
            RefusalReason.PERMISSION_DENIED,
            id="rbac",
        ),
        pytest.param(FakeApiError(403, FORBIDDEN + "a webhook says no"), Answer.REFUSED, RefusalReason.ADMISSION_DENIED, id="webhook"),
        pytest.param(
            FakeApiError(422, 'spec: Invalid value: "Burstable": Pod QOS Class may not change as a result of resizing'),
            Answer.REFUSED,
            RefusalReason.QOS_WOULD_CHANGE,
            id="qos",
        ),
        pytest.param(
            FakeApiError(422, "memory limits cannot be decreased unless resizePolicy is RestartContainer"),
            Answer.REFUSED,
            RefusalReason.VERSION_FORBIDS_DECREASE,
            id="1.33",
        ),
        pytest.param(
            FakeApiError(422, "Forbidden: Pod running on node without support for resize"),
            Answer.REFUSED,
            RefusalReason.NODE_UNSUPPORTED,
            id="old-node",
        ),
        pytest.param(FakeApiError(422, "something else"), Answer.REFUSED, RefusalReason.INVALID, id="422"),
    ],
)
def test_api_answers_are_told_apart(error, answer, reason):
    refusal = classify(error)
    assert (refusal.answer, refusal.reason) == (answer, reason)


WORKLOADS = {
    ("Deployment", "web"): Workload("apps/v1", "Deployment", "web"),
    ("ReplicaSet", "web-5d"): Workload("apps/v1", "ReplicaSet", "web-5d", OwnerReference("apps/v1", "Deployment", "web", controller=True)),
    ("ReplicaSet", "solo"): Workload("apps/v1", "ReplicaSet", "solo"),
}


def find(namespace: str, api_version: str, kind: str, name: str) -> Workload | None:
    return WORKLOADS.get((kind, name))


def owned_by(kind: str, name: str) -> Pod:
    return Pod(ObjectMeta(name="p", namespace="shop", owner_references=[OwnerReference("apps/v1", kind, name, controller=True)]))


def aimed_at(kind: str, workload: str, **options: str) -> Vpa:
    vpa = a_vpa(**options)
    return msgspec.structs.replace(vpa, spec=msgspec.structs.replace(vpa.spec, target_ref=TargetRef(kind, workload, "apps/v1")))


@pytest.mark.parametrize(
    ("target", "owner", "matches"),
    [
        pytest.param(("Deployment", "web"), ("ReplicaSet", "web-5d"), True, id="topmost"),
        pytest.param(("ReplicaSet", "web-5d"), ("ReplicaSet", "web-5d"), False, id="not-topmost"),
        pytest.param(("ReplicaSet", "solo"), ("ReplicaSet", "solo"), True, id="topmost-itself"),
        pytest.param(("Deployment", "web"), ("ReplicaSet", "gone"), False, id="owner-gone"),
    ],
)
def test_a_pod_belongs_to_the_vpa_of_its_topmost_owner(target, owner, matches):
    vpa = aimed_at(*target)
    assert vpa_of(owned_by(*owner), index_vpas([vpa]), find) is (vpa if matches else None)


def test_a_bare_pod_belongs_to_no_vpa_of_a_workload():
    assert vpa_of(Pod(ObjectMeta(name="web", namespace="shop")), index_vpas([aimed_at("Deployment", "web")]), find) is None


def test_the_oldest_of_several_vpas_wins():
    young = aimed_at("Deployment", "web", name="a", created="2026-02-01T00:00:00Z")
    old = aimed_at("Deployment", "web", name="z", created="2026-01-01T00:00:00Z")
    for order in ([young, old], [old, young]):
        assert vpa_of(owned_by("ReplicaSet", "web-5d"), index_vpas(order), find) is old


def test_a_ledger_survives_its_annotation():
    pod = a_pod(a_container(cpu="1", memory="1Gi", memory_limit="2Gi"))
    ledger = with_hold_off(Ledger(), "app", Scope.SHRINK, "Bursty", START, SETTINGS, floor_bytes=5)
    ledger = with_resize(ledger, pod, {"app": pod.desired("app")}, START, shrink="s")
    annotated = msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, annotations=to_annotations(ledger)))
    assert read_ledger(annotated) == ledger


@pytest.mark.parametrize("text", ["", "{", '{"last": 3}', "[]"])
def test_a_spoilt_ledger_is_begun_anew_and_reported(text, caplog):
    pod = a_pod(a_container(cpu="1"), annotations={ANNOTATION_RESIZE_LEDGER: text})
    assert read_ledger(pod) == Ledger()
    assert "unreadable resize ledger" in caplog.text


def test_hold_offs_double_up_to_a_maximum_and_start_anew_after_a_quiet_time():
    ledger, lengths = Ledger(), []
    for _ in range(12):
        ledger = with_hold_off(ledger, "app", Scope.SHRINK, "Why", START, SETTINGS)
        lengths.append(ledger.hold_offs[0].until - START)
    assert lengths[:3] == [900, 1800, 3600]
    assert lengths[-1] == SETTINGS.hold_off_max_seconds
    later = ledger.hold_offs[0].until + SETTINGS.hold_off_max_seconds
    assert tidied(ledger, later - 1, SETTINGS, None, []).hold_offs
    assert not tidied(ledger, later, SETTINGS, None, []).hold_offs


@pytest.mark.parametrize(("shape", "kept"), [("n1/4", True), (None, True), ("n1/8", False), ("n2/4", False)])
def test_what_was_infeasible_is_forgotten_when_the_node_changes(shape, kept):
    ledger = Ledger(infeasible=Infeasible("n1/4", InfeasibleCause.NODE_CAPACITY, 1, 1))
    assert (tidied(ledger, START, SETTINGS, shape, []).infeasible is not None) is kept


quantity = st.sampled_from([None, "100m", "200m"])
size = st.sampled_from([None, "64Mi", "128Mi"])


@given(st.lists(st.tuples(quantity, size, quantity, size), min_size=1, max_size=3))
def test_qos_class_is_the_documented_one(rows):
    containers = [
        a_container(f"c{n}", cpu=cpu, memory=memory, cpu_limit=cpu_limit, memory_limit=limit)
        for n, (cpu, memory, cpu_limit, limit) in enumerate(rows)
    ]
    pod = a_pod(*containers, qos="")
    assert qos_class(pod, desired_resources(pod, {})) == expected_qos(containers)


def test_pod_requests_take_init_containers_and_sidecars_into_account():
    pod = a_pod(
        a_container("a", cpu="100m", memory="100Mi"),
        a_container("b", cpu="200m", memory="100Mi"),
        init=(
            a_container("first", cpu="2", memory="10Mi"),
            a_container("side", cpu="50m", memory="20Mi", restart_policy="Always"),
            a_container("second", cpu="10m", memory="250Mi"),
        ),
    )
    assert pod_requests(pod, desired_resources(pod, {})) == Amounts(2000, 270 * MIB)


BEFORE = requirements(cpu="100m", memory="256Mi", memory_limit="512Mi")
AFTER = requirements(cpu="200m", memory="512Mi", memory_limit="1Gi")


def grown(actual, **container):
    app = a_container(cpu="200m", memory="512Mi", memory_limit="1Gi", **container)
    pod = a_pod(app)
    status = msgspec.structs.replace(pod.status.container_statuses[0], resources=actual)
    return msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, container_statuses=[status]))


@pytest.mark.parametrize(
    ("pod", "version", "limit_mib"),
    [
        pytest.param(grown(BEFORE), "1.36", 512, id="never-in-force"),
        pytest.param(grown(AFTER), "1.36", 1024, id="in-force-is-not-lowered"),
        pytest.param(grown(requirements(memory_limit="700Mi")), "1.36", 700, id="partly-in-force"),
        pytest.param(grown(BEFORE), "1.33", 1024, id="1.33-takes-no-decrease"),
        pytest.param(grown(AFTER, restarts=("memory",)), "1.36", 512, id="a-restart-is-allowed-to-lower"),
    ],
)
def test_reverting_never_lowers_a_memory_limit_in_force(pod, version, limit_mib):
    target = revert_target(pod, Record(START, {"app": BEFORE}, {"app": AFTER}).before, rules_for(version))
    assert target["app"].limits.memory_bytes == limit_mib * MIB
    assert target["app"].requests == Amounts(100, 256 * MIB)


def test_reverting_is_given_up_when_nothing_can_be_taken_back():
    pod = grown(BEFORE)
    assert revert_target(pod, {"app": AFTER}, RULES) is None
