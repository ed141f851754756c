"""Pods with resources of their own: how these go along with the containers'."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from resize_support import RULES, START, a_container, a_pod, a_recommendation, a_vpa, apply, expected_pod_qos, with_own_resources

from vpa_ippr.api.cluster import Node
from vpa_ippr.api.names import ANNOTATION_LIMIT_POLICY
from vpa_ippr.api.pod import POD_LEVEL
from vpa_ippr.api.resources import Amounts, ContainerResources, Resource
from vpa_ippr.api.vpa import ContainerPolicy
from vpa_ippr.resize.due import Due, NotDue, Part, decide
from vpa_ippr.resize.follow import revert_target
from vpa_ippr.resize.ledger import History, Ledger, spec_is, with_resize
from vpa_ippr.resize.patch import describe
from vpa_ippr.resize.plan import Plan, Refused, plan
from vpa_ippr.resize.reasons import RefusalReason
from vpa_ippr.resize.settings import Settings

MIB = 1 << 20
GIB = 1 << 30
NODE = Node("n1", Amounts(64_000, 256 * GIB), "v1.36.1")
SETTINGS = Settings()


def planned(pod, *recommendations, ledger=None, policy=None, node=NODE, **more):
    vpa = a_vpa(*recommendations, **more)
    if policy:
        vpa = msgspec.structs.replace(vpa, metadata=msgspec.structs.replace(vpa.metadata, annotations={ANNOTATION_LIMIT_POLICY: policy}))
    history = History(ledger or Ledger())
    due = decide(pod, vpa, START, SETTINGS, history)
    return due if isinstance(due, NotDue) else plan(pod, vpa, due, RULES, node, history, SETTINGS)


def app(name="app", **more):
    return a_container(name, **{"cpu": "200m", "memory": "1Gi"} | more)


def own(result):
    return result.patch["spec"].get("resources")


def test_the_pods_request_moves_by_what_its_containers_move():
    pod = with_own_resources(a_pod(app(), app("other")), cpu="1", memory="4Gi")
    result = planned(pod, a_recommendation(cpu="300m", memory="2Gi"), a_recommendation("other", cpu="250m", memory="1Gi"))
    assert own(result) == {"requests": {"cpu": "1150m", "memory": "5Gi"}}
    assert list(result.after) == [POD_LEVEL, "app", "other"]
    assert "pod cpu request 1 -> 1150m" in describe(result.changes)


def test_the_pods_limit_keeps_its_ratio():
    pod = with_own_resources(a_pod(app()), cpu="400m", memory="2Gi", cpu_limit="1", memory_limit="4Gi")
    result = planned(pod, a_recommendation(cpu="400m", memory="2Gi"))
    assert own(result) == {"requests": {"cpu": "600m", "memory": "3Gi"}, "limits": {"cpu": "1500m", "memory": "6Gi"}}


@pytest.mark.parametrize(
    ("policy", "limit"),
    [("cpu=none", None), ("cpu=fixed-headroom:10%", "660m"), ("cpu=cap:1200m", "1200m"), ("cpu=cap:100m", "600m")],
)
def test_the_pods_limit_follows_the_limit_policy(policy, limit):
    pod = with_own_resources(a_pod(app()), cpu="400m", memory="2Gi", cpu_limit="1")
    changed = own(planned(pod, a_recommendation(cpu="400m", memory="1Gi"), policy=policy))
    assert changed["requests"] == {"cpu": "600m"}
    assert changed.get("limits") == ({"cpu": limit} if limit else None)


def test_containers_without_requests_make_the_pods_request_by_their_targets():
    pod = with_own_resources(a_pod(a_container("a"), a_container("b")), cpu="1", memory="1Gi", cpu_limit="2", memory_limit="1Gi")
    result = planned(pod, a_recommendation("a", cpu="700m", memory="900Mi"), a_recommendation("b", cpu="900m", memory="300Mi"))
    assert result.patch == {
        "spec": {"resources": {"requests": {"cpu": "1600m", "memory": "1200Mi"}, "limits": {"cpu": "3200m", "memory": "1200Mi"}}}
    }


def test_a_container_that_nobody_knows_keeps_its_share():
    """Of three that live on the pod's request only one has a recommendation: the pod's request is for all of them, and stays."""
    pod = with_own_resources(a_pod(a_container("a"), a_container("b"), app()), cpu="1", memory="4Gi")
    result = planned(pod, a_recommendation("a", cpu="3", memory="4Gi"), a_recommendation("app", cpu="400m", memory="1Gi"))
    assert own(result) == {"requests": {"cpu": "1200m"}}


def test_a_guaranteed_pod_stays_so():
    pod = with_own_resources(a_pod(app()), cpu="500m", memory="2Gi", cpu_limit="500m", memory_limit="2Gi")
    assert pod.status.qos_class == "Guaranteed"
    result = planned(pod, a_recommendation(cpu="400m", memory="2Gi"), policy="fixed-headroom:50%")
    assert own(result) == {"requests": {"cpu": "700m", "memory": "3Gi"}, "limits": {"cpu": "700m", "memory": "3Gi"}}


def test_the_pods_memory_limit_is_not_lowered():
    pod = with_own_resources(a_pod(a_container()), cpu="1", memory="2Gi", memory_limit="4Gi")
    result = planned(pod, a_recommendation(cpu="1", memory="1Gi"))
    assert isinstance(result, Refused)
    assert result.reason is RefusalReason.POD_LEVEL_MEMORY_DECREASE


def test_a_memory_limit_that_may_not_fall_does_not_stop_the_cpu():
    pod = with_own_resources(a_pod(a_container()), cpu="1", memory="2Gi", memory_limit="4Gi")
    result = planned(pod, a_recommendation(cpu="500m", memory="1Gi"))
    assert own(result) == {"requests": {"cpu": "500m"}}
    assert [w.reason for w in result.withheld] == [RefusalReason.POD_LEVEL_MEMORY_DECREASE]


@pytest.mark.parametrize("policy", [None, "none"])
def test_a_memory_request_falls_where_no_limit_does(policy):
    limit = "4Gi" if policy else None
    pod = with_own_resources(a_pod(a_container()), cpu="1", memory="2Gi", memory_limit=limit)
    assert own(planned(pod, a_recommendation(cpu="1", memory="1Gi"), policy=policy)) == {"requests": {"memory": "1Gi"}}


def test_a_containers_memory_limit_still_comes_down_by_a_shrink():
    pod = with_own_resources(a_pod(app(memory_limit="2Gi")), cpu="1", memory="4Gi", memory_limit="4Gi")
    result = planned(pod, a_recommendation(cpu="200m", memory="512Mi"))
    assert (result.patch, [need.container for need in result.shrinks]) == ({}, ["app"])


def test_no_container_limit_is_above_the_pods():
    pod = with_own_resources(a_pod(app(cpu_limit="900m")), cpu="900m", memory="2Gi", cpu_limit="1")
    result = planned(pod, a_recommendation(cpu="400m", memory="1Gi"))
    after = apply(pod, result.patch)
    assert after.desired(POD_LEVEL) == ContainerResources(Amounts(1100, 2 * GIB), Amounts(1222))
    assert after.desired("app").limits.cpu_millicores == 1222


def test_containers_may_not_outgrow_a_limit_that_stays():
    pod = with_own_resources(a_pod(app()), cpu="400m", memory="2Gi", cpu_limit="500m")
    result = planned(pod, a_recommendation(cpu="600m", memory="1Gi"), policy="none")
    assert isinstance(result, Refused)
    assert result.reason is RefusalReason.POD_LEVEL_RESOURCES


def test_requests_only_leaves_the_pods_limit():
    pod = with_own_resources(a_pod(app()), cpu="400m", memory="2Gi", cpu_limit="1")
    policy = ContainerPolicy("*", controlled_values="RequestsOnly")
    assert own(planned(pod, a_recommendation(cpu="400m", memory="1Gi"), policies=(policy,))) == {"requests": {"cpu": "600m"}}


def test_what_the_node_has_is_compared_with_the_pods_own_request():
    pod = with_own_resources(a_pod(app()), cpu="3", memory="2Gi")
    result = planned(pod, a_recommendation(cpu="400m", memory="1Gi"), node=Node("n1", Amounts(3100, 64 * GIB), "v1.36.1"))
    assert result.reason is RefusalReason.NODE_CAPACITY


def test_a_limit_at_pod_level_restarts_the_containers_that_live_on_it():
    pod = with_own_resources(a_pod(a_container(restarts=("cpu",))), cpu="1", memory="1Gi", cpu_limit="2")
    assert planned(pod, a_recommendation(cpu="2", memory="1Gi")).restarts
    unlimited = with_own_resources(a_pod(a_container(restarts=("cpu",))), cpu="1", memory="1Gi")
    assert not planned(unlimited, a_recommendation(cpu="2", memory="1Gi")).restarts


def test_systemd_rounding_causes_no_resize_at_pod_level():
    pod = with_own_resources(a_pod(a_container()), cpu="300m", memory="1Gi", cpu_limit="417m")
    assert isinstance(planned(pod, a_recommendation(cpu="300m", memory="1Gi"), policy="cpu=fixed-headroom:111m"), NotDue)


def test_what_the_author_left_beyond_the_sum_survives_many_resizes():
    pod, ledger = with_own_resources(a_pod(app()), cpu="300m", memory="2Gi", cpu_limit="450m"), Ledger()
    for cpu in ("1", "13m", "700m", "200m"):
        result = planned(pod, a_recommendation(cpu=cpu, memory="1Gi", lower={"cpu": cpu}, upper={"cpu": cpu}), ledger=ledger)
        ledger = with_resize(ledger, pod, result.after, START)
        pod = apply(pod, result.patch)
    assert pod.desired(POD_LEVEL) == ContainerResources(Amounts(300, 2 * GIB), Amounts(450))


def test_somebody_elses_request_at_pod_level_counts_from_then_on():
    pod = with_own_resources(a_pod(app()), cpu="300m", memory="2Gi")
    first = planned(pod, a_recommendation(cpu="400m", memory="1Gi"))
    ledger = with_resize(Ledger(), pod, first.after, START)
    changed = apply(apply(pod, first.patch), {"spec": {"resources": {"requests": {"cpu": "1"}}}})
    assert own(planned(changed, a_recommendation(cpu="600m", memory="1Gi"), ledger=ledger)) == {"requests": {"cpu": "1200m"}}


def test_a_resize_at_pod_level_can_be_taken_back():
    pod = with_own_resources(a_pod(app()), cpu="300m", memory="2Gi", memory_limit="2Gi")
    result = planned(pod, a_recommendation(cpu="400m", memory="2Gi"))
    ledger, after = with_resize(Ledger(), pod, result.after, START), apply(pod, result.patch)
    assert spec_is(after, ledger.last.after)
    undone = revert_target(after, ledger.last.before, RULES)
    # The memory limit in force is left: lowering it is never ours to do without somebody who holds the use below it.
    assert undone[POD_LEVEL] == ContainerResources(Amounts(300, 3 * GIB), Amounts(None, 3 * GIB))
    assert undone["app"] == pod.desired("app")


def test_only_the_due_parts_move():
    pod = with_own_resources(a_pod(app(), app("other")), cpu="1", memory="4Gi")
    vpa = a_vpa(a_recommendation(cpu="300m", memory="2Gi"), a_recommendation("other", cpu="900m", memory="2Gi"))
    result = plan(pod, vpa, Due((), (Part("app", Resource.CPU),), 1.0), RULES, NODE, History(), SETTINGS)
    assert own(result) == {"requests": {"cpu": "1100m"}}
    assert [entry["name"] for entry in result.patch["spec"]["containers"]] == ["app"]


# -- whatever the input

cpu = st.integers(1, 4000)
memory = st.integers(1, 4096)


@st.composite
def resources(draw, least_cpu=0, least_memory=0, *, always=False):
    """What the API server admits, in millicores and MiB: a limit without a request becomes one."""
    found = {}
    for name, source, least, unit in (("cpu", cpu, least_cpu, "m"), ("memory", memory, least_memory, "Mi")):
        kind = draw(st.sampled_from((["none"] if not always else []) + ["request", "equal", "both"]))
        request = max(draw(source), least)
        if kind != "none":
            found[name] = f"{request}{unit}"
        if kind in ("equal", "both"):
            found[f"{name}_limit"] = f"{request + (draw(source) if kind == 'both' else 0)}{unit}"
    return found


@st.composite
def pods(draw):
    containers = [a_container(name, **draw(resources())) for name in ["app", "side"][: draw(st.integers(1, 2))]]
    bare = a_pod(*containers)
    spec = [bare.desired(one.name) for one in containers]
    least = [
        max(sum(one.requests.get(r) or 0 for one in spec), *(one.limits.get(r) or 0 for one in spec), 1)
        for r in (Resource.CPU, Resource.MEMORY)
    ]
    return with_own_resources(bare, **draw(resources(least[0], -(-least[1] // MIB), always=True)))


@st.composite
def wishes(draw):
    names, values = ("app", "side"), draw(st.sampled_from([None, "RequestsOnly"]))
    recommendations = [a_recommendation(name, cpu=f"{draw(cpu)}m", memory=f"{draw(memory)}Mi") for name in names]
    return recommendations, values, draw(st.sampled_from([None, "none", "fixed-headroom:10%", "cpu=cap:500m, memory=cap:1Gi"]))


def check(pod, after):
    assert expected_pod_qos(after) == pod.status.qos_class
    whole, before = after.desired(POD_LEVEL), pod.desired(POD_LEVEL)
    for resource in Resource:
        request, limit = whole.requests.get(resource), whole.limits.get(resource)
        containers = [after.desired(one.name) for one in after.spec.containers]
        assert request is not None
        assert sum(one.requests.get(resource) or 0 for one in containers) <= request
        assert (limit is None) == (before.limits.get(resource) is None)
        assert limit is None or request <= limit
        assert limit is None or all((one.limits.get(resource) or 0) <= limit for one in containers)
        assert all((one.requests.get(resource) or 0) <= (one.limits.get(resource) or 1 << 60) for one in containers)
    assert (whole.limits.memory_bytes or 0) >= (before.limits.memory_bytes or 0)


@given(pod=pods(), wish=wishes())
def test_no_patch_is_one_that_the_api_server_refuses(pod, wish):
    recommendations, values, policy = wish
    result = planned(pod, *recommendations, policy=policy, policies=(ContainerPolicy("*", controlled_values=values),))
    if isinstance(result, Plan):
        after = apply(pod, result.patch)
        check(pod, after)
        for one in pod.spec.containers:
            assert (after.desired(one.name).limits.memory_bytes or 0) >= (pod.desired(one.name).limits.memory_bytes or 0)


@given(pod=pods(), wish=wishes())
def test_plans_come_to_an_end(pod, wish):
    """What is withheld in one plan may leave room at pod level that a limit takes in the next, but then it is over."""
    recommendations, values, policy = wish
    ledger = Ledger()
    for _ in range(3):
        result = planned(pod, *recommendations, ledger=ledger, policy=policy, policies=(ContainerPolicy("*", controlled_values=values),))
        if not isinstance(result, Plan) or not result.changes:
            return
        ledger, pod = with_resize(ledger, pod, result.after, START), apply(pod, result.patch)
    pytest.fail(f"still changing: {describe(result.changes)}")
