"""The plan: the smallest patch, what must be prepared first, and what is withheld."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from resize_support import RULES, START, a_container, a_pod, a_recommendation, a_vpa, apply, expected_qos

from vpa_ippr.api.cluster import Node
from vpa_ippr.api.pod import Pod
from vpa_ippr.api.resources import Amounts, ContainerResources, Resource, ResourceRequirements
from vpa_ippr.api.vpa import ContainerPolicy
from vpa_ippr.resize.due import Due, Part, decide
from vpa_ippr.resize.ledger import History, Infeasible, Ledger, with_resize
from vpa_ippr.resize.plan import Plan, Refused, plan
from vpa_ippr.resize.reasons import RefusalReason
from vpa_ippr.resize.rules import rules_for
from vpa_ippr.resize.settings import Settings
from vpa_ippr.resize.state import InfeasibleCause

SETTINGS = Settings()
MIB = 1 << 20
GIB = 1 << 30
BIG = Node("n1", Amounts(64_000, 256 * GIB))


def planned(pod, vpa, *, rules=RULES, node=BIG, history=None, settings=SETTINGS):
    history = history or History()
    due = decide(pod, vpa, START, settings, history)
    assert isinstance(due, Due), due
    return plan(pod, vpa, due, rules, node, history, settings)


def containers(result: Plan):
    return result.patch.get("spec", {}).get("containers", [])


def burstable(**more):
    return a_container(cpu="200m", memory="1Gi", cpu_limit="400m", memory_limit="2Gi", **more)


def guaranteed(**more):
    return a_container(cpu="1", memory="1Gi", cpu_limit="1", memory_limit="1Gi", **more)


@pytest.mark.parametrize(
    ("container", "target", "policy", "expected"),
    [
        pytest.param(
            burstable(),
            {"cpu": "300m", "memory": "1Gi"},
            None,
            {"requests": {"cpu": "300m"}, "limits": {"cpu": "600m"}},
            id="proportional-limit",
        ),
        pytest.param(
            a_container(cpu="150m", memory="1Gi", cpu_limit="200m"),
            {"cpu": "100m", "memory": "1Gi"},
            None,
            {"requests": {"cpu": "100m"}, "limits": {"cpu": "133m"}},
            id="limit-rounded-down",
        ),
        pytest.param(
            burstable(),
            {"cpu": "300m", "memory": "1Gi"},
            ContainerPolicy("app", controlled_values="RequestsOnly"),
            {"requests": {"cpu": "300m"}},
            id="requests-only",
        ),
        pytest.param(a_container(cpu="200m"), {"cpu": "300m"}, None, {"requests": {"cpu": "300m"}}, id="no-limit-stays-none"),
        pytest.param(
            a_container(cpu="200m"), {"cpu": "200m", "memory": "512Mi"}, None, {"requests": {"memory": "512Mi"}}, id="request-added"
        ),
        pytest.param(
            guaranteed(),
            {"cpu": "2", "memory": "2Gi"},
            None,
            {"requests": {"cpu": "2", "memory": "2Gi"}, "limits": {"cpu": "2", "memory": "2Gi"}},
            id="guaranteed-keeps-request-at-limit",
        ),
        pytest.param(
            burstable(),
            {"cpu": "9", "memory": "1Gi"},
            ContainerPolicy("app", max_allowed={"cpu": "500m"}),
            {"requests": {"cpu": "500m"}, "limits": {"cpu": "1"}},
            id="max-allowed",
        ),
    ],
)
def test_the_patch_holds_only_what_changes(container, target, policy, expected):
    result = planned(a_pod(container), a_vpa(a_recommendation(**target), policies=(policy,) if policy else ()))
    assert containers(result) == [{"name": "app", "resources": expected}]
    assert result.shrinks == ()


def test_only_changed_containers_are_named_and_sidecars_are_patched_as_init_containers():
    side = a_container("side", cpu="100m", memory="64Mi", restart_policy="Always")
    pod = a_pod(burstable(), a_container("other", cpu="1", memory="1Gi"), init=(side,))
    vpa = a_vpa(a_recommendation("other", cpu="1", memory="1Gi"), a_recommendation("side", cpu="200m", memory="64Mi"))
    assert planned(pod, vpa).patch == {"spec": {"initContainers": [{"name": "side", "resources": {"requests": {"cpu": "200m"}}}]}}


def test_a_lower_memory_limit_waits_for_a_shrink_while_cpu_goes_at_once():
    result = planned(a_pod(burstable()), a_vpa(a_recommendation(cpu="300m", memory="512Mi")))
    assert containers(result) == [{"name": "app", "resources": {"requests": {"cpu": "300m"}, "limits": {"cpu": "600m"}}}]
    (need,) = result.shrinks
    assert (need.container, need.target_bytes, need.request_bytes) == ("app", GIB, 512 * MIB)
    assert need.previous.limits.memory_bytes == 2 * GIB


def test_request_and_limit_of_memory_stay_together():
    """Lowering the request now and the limit later would change the ratio that the limit is computed from."""
    result = planned(a_pod(burstable()), a_vpa(a_recommendation(cpu="200m", memory="512Mi")))
    assert result.patch == {}
    assert len(result.shrinks) == 1


def test_a_container_that_restarts_anyway_needs_no_shrink():
    result = planned(a_pod(burstable(restarts=("memory",))), a_vpa(a_recommendation(cpu="200m", memory="512Mi")))
    assert result.shrinks == ()
    assert result.restarts
    assert containers(result)[0]["resources"]["limits"] == {"memory": "1Gi"}


@pytest.mark.parametrize(("policy", "restarts"), [((), False), (("memory",), False), (("cpu",), True)])
def test_restarts_follow_the_policy_of_the_changed_resource(policy, restarts):
    result = planned(a_pod(burstable(restarts=policy)), a_vpa(a_recommendation(cpu="300m", memory="1Gi")))
    assert result.restarts is restarts


def only_memory_down(pod=None, **options):
    return planned(pod or a_pod(burstable()), a_vpa(a_recommendation(cpu="200m", memory="512Mi")), **options)


@pytest.mark.parametrize(
    ("refused", "reason"),
    [
        pytest.param(lambda: only_memory_down(rules=rules_for("1.33")), RefusalReason.VERSION_FORBIDS_DECREASE, id="1.33"),
        pytest.param(
            lambda: planned(a_pod(burstable()), a_vpa(a_recommendation(cpu="200m", memory="1000Mi")), settings=Settings(min_change=0.01)),
            RefusalReason.SHRINK_TOO_SMALL,
            id="too-small",
        ),
        pytest.param(
            lambda: planned(a_pod(burstable()), a_vpa(a_recommendation(cpu="65", memory="1Gi"))), RefusalReason.NODE_CAPACITY, id="node"
        ),
        pytest.param(lambda: planned(a_pod(a_container()), a_vpa(a_recommendation(cpu="1"))), RefusalReason.BEST_EFFORT, id="best-effort"),
        pytest.param(
            lambda: planned(
                a_pod(guaranteed()),
                a_vpa(a_recommendation(cpu="500m", memory="1Gi"), policies=(ContainerPolicy("app", controlled_values="RequestsOnly"),)),
            ),
            RefusalReason.QOS_WOULD_CHANGE,
            id="guaranteed-would-become-burstable",
        ),
    ],
)
def test_refusals(refused, reason):
    result = refused()
    assert isinstance(result, Refused)
    assert result.reason is reason


def test_what_is_withheld_does_not_stop_the_rest():
    result = planned(a_pod(burstable()), a_vpa(a_recommendation(cpu="300m", memory="512Mi")), rules=rules_for("1.33"))
    assert [w.reason for w in result.withheld] == [RefusalReason.VERSION_FORBIDS_DECREASE]
    assert containers(result)[0]["resources"]["requests"] == {"cpu": "300m"}


def test_growth_that_the_node_cannot_hold_does_not_stop_a_decrease():
    result = planned(a_pod(burstable()), a_vpa(a_recommendation(cpu="65", memory="512Mi")))
    assert [w.reason for w in result.withheld] == [RefusalReason.NODE_CAPACITY]
    assert result.patch == {}
    assert len(result.shrinks) == 1


def test_a_burstable_pod_does_not_become_guaranteed_by_chance():
    pod = a_pod(a_container(cpu="100m", memory="1Gi", cpu_limit="500m", memory_limit="1Gi"))
    vpa = a_vpa(a_recommendation(cpu="900m", memory="1Gi"), policies=(ContainerPolicy("app", controlled_values="RequestsOnly"),))
    result = planned(pod, vpa)
    assert containers(result)[0]["resources"] == {"requests": {"cpu": "499m"}}


@pytest.mark.parametrize(
    ("cause", "target", "reason"),
    [
        pytest.param(InfeasibleCause.NODE_CAPACITY, {"cpu": "4", "memory": "4Gi"}, RefusalReason.KNOWN_INFEASIBLE, id="same-size"),
        pytest.param(InfeasibleCause.NODE_CAPACITY, {"cpu": "3900m", "memory": "4Gi"}, RefusalReason.KNOWN_INFEASIBLE, id="noise"),
        pytest.param(InfeasibleCause.NODE_CAPACITY, {"cpu": "2", "memory": "4Gi"}, None, id="materially-smaller"),
        pytest.param(InfeasibleCause.CPU_MANAGER, {"cpu": "300m", "memory": "1Gi"}, RefusalReason.STATIC_CPU_MANAGER, id="static-cpu"),
        pytest.param(InfeasibleCause.CPU_MANAGER, {"cpu": "200m", "memory": "2Gi"}, None, id="static-cpu-memory-change"),
        pytest.param(
            InfeasibleCause.MEMORY_MANAGER, {"cpu": "200m", "memory": "2Gi"}, RefusalReason.STATIC_MEMORY_MANAGER, id="static-memory"
        ),
        pytest.param(InfeasibleCause.SWAP, {"cpu": "200m", "memory": "2Gi"}, RefusalReason.SWAP, id="swap"),
        pytest.param(InfeasibleCause.SWAP, {"cpu": "300m", "memory": "1Gi"}, None, id="swap-cpu-change"),
    ],
)
def test_what_was_infeasible_is_not_asked_again(cause, target, reason):
    history = History(Ledger(infeasible=Infeasible(BIG.shape, cause, 4000, 4 * GIB)))
    result = planned(a_pod(burstable()), a_vpa(a_recommendation(**target)), history=history)
    assert (result.reason if isinstance(result, Refused) else None) is reason


def test_ratio_survives_many_resizes():
    """Rounding down from the present spec would eat the ratio; the first resources are remembered."""
    pod = a_pod(a_container(cpu="100m", memory="1Gi", cpu_limit="150m"))
    ledger = Ledger()
    for cpu in ("11m", "1", "13m", "700m", "11m", "100m"):
        history = History(ledger)
        result = planned(pod, a_vpa(a_recommendation(cpu=cpu, memory="1Gi")), history=history)
        ledger = with_resize(ledger, pod, result.after, START)
        pod = apply(pod, result.patch)
    assert pod.desired("app") == ContainerResources(Amounts(100, GIB), Amounts(150))


def test_a_foreign_change_makes_a_new_ratio():
    pod = a_pod(a_container(cpu="100m", memory="1Gi", cpu_limit="150m"))
    first = planned(pod, a_vpa(a_recommendation(cpu="200m", memory="1Gi")))
    ledger = with_resize(Ledger(), pod, first.after, START)
    changed = apply(pod, {"spec": {"containers": [{"name": "app", "resources": {"limits": {"cpu": "400m"}, "requests": {"cpu": "200m"}}}]}})
    result = planned(changed, a_vpa(a_recommendation(cpu="100m", memory="1Gi")), history=History(ledger))
    assert result.after["app"].limits.cpu_millicores == 200


# -- whatever the input

cpu = st.sampled_from(["1m", "2m", "3m", "5m", "10m", "11m", "100m", "0.15", "250m", "1", "1500m", "4", "80"])
memory = st.sampled_from(["1", "4097", "50Mi", "128Mi", "262144k", "300Mi", "1Gi", "1073741900", "1.5Gi", "4Gi", "300Gi"])


@st.composite
def amounts(draw):
    """Requests and limits as the API server would admit them: request defaulted to, and not above, the limit."""
    found = {}
    for name, source, key in (("cpu", cpu, "cpu_millicores"), ("memory", memory, "memory_bytes")):
        pair = sorted(draw(st.tuples(source, source)), key=lambda q: getattr(parse(name, q), key))
        kind = draw(st.sampled_from(["none", "request", "both", "equal"]))
        if kind in ("request", "both", "equal"):
            found[name] = pair[0]
        if kind in ("both", "equal"):
            found[f"{name}_limit"] = pair[0] if kind == "equal" else pair[1]
    return found


def parse(name, quantity):
    resources = ResourceRequirements(requests={name: quantity}).parse("")
    return resources.requests


@st.composite
def pods(draw) -> Pod:
    names = ["app", "side"][: draw(st.integers(1, 2))]
    policies = st.lists(st.sampled_from(["cpu", "memory"]), unique=True).map(tuple)
    sidecar = draw(st.booleans())
    init = (a_container("native", restart_policy="Always", **draw(amounts())),) if sidecar else ()
    return a_pod(*(a_container(name, restarts=draw(policies), **draw(amounts())) for name in names), init=init)


@st.composite
def vpas(draw):
    recommendations = [
        a_recommendation(name, cpu=draw(cpu), memory=draw(memory), lower={"cpu": "1m"}, upper={"cpu": draw(cpu)})
        for name in ("app", "side", "native")
    ]
    values = draw(st.sampled_from([None, "RequestsOnly", "RequestsAndLimits"]))
    return a_vpa(*recommendations, policies=(ContainerPolicy("*", controlled_values=values, max_allowed={"memory": "200Gi"}),))


@given(pod=pods(), vpa=vpas(), version=st.sampled_from(["1.33", "1.36"]), size=st.sampled_from([2_000, 64_000]))
def test_no_patch_breaks_a_safety_rule(pod, vpa, version, size):
    rules, node = rules_for(version), Node("n1", Amounts(size, 16 * GIB))
    due = decide(pod, vpa, START, SETTINGS, History())
    if not isinstance(due, Due):
        return
    result = plan(pod, vpa, due, rules, node, History(), SETTINGS)
    if isinstance(result, Refused):
        return
    after = apply(pod, result.patch)
    assert expected_qos([*after.spec.containers, *after.spec.init_containers]) == pod.status.qos_class
    for container in [*pod.spec.containers, *pod.spec.init_containers]:
        new = after.container(container.name)
        old_amounts, new_amounts = pod.desired(container.name), after.desired(container.name)
        assert set(container.resources.requests) <= set(new.resources.requests)
        assert set(container.resources.limits) == set(new.resources.limits)
        for resource in Resource:
            limit, request = new_amounts.limits.get(resource), new_amounts.requests.get(resource)
            assert limit is None or request is None or request <= limit
        if old_amounts.limits.memory_bytes is not None and not container.restarts_on_resize_of("memory"):
            assert new_amounts.limits.memory_bytes >= old_amounts.limits.memory_bytes
    for need in result.shrinks:
        assert rules.memory_limit_decrease
        assert 0 < need.target_bytes < pod.desired(need.container).limits.memory_bytes
        assert need.request_bytes is None or need.request_bytes <= need.target_bytes


@given(pod=pods(), vpa=vpas())
def test_plan_of_an_applied_plan_is_empty(pod, vpa):
    due = decide(pod, vpa, START, SETTINGS, History())
    if not isinstance(due, Due):
        return
    first = plan(pod, vpa, due, RULES, BIG, History(), SETTINGS)
    if isinstance(first, Refused):
        return
    after = apply(pod, first.patch)
    ledger = with_resize(Ledger(), pod, first.after, START)
    second = plan(after, vpa, due, RULES, BIG, History(ledger), SETTINGS)
    assert isinstance(second, Refused) or second.changes == ()


def test_an_unknown_container_in_due_is_left_out():
    due = Due((), (Part("gone", Resource.CPU),), 1.0)
    result = plan(a_pod(burstable()), a_vpa(a_recommendation(cpu="1")), due, RULES, BIG, History(), SETTINGS)
    assert result.is_empty
