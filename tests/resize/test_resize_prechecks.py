"""What is not even asked of the API server, each with its own reason."""

import msgspec
import pytest
from resize_support import RULES, START, a_container, a_pod, a_recommendation, a_vpa, with_own_resources

from vpa_ippr.api.cluster import Node
from vpa_ippr.api.names import ANNOTATION_MIRROR_POD
from vpa_ippr.api.pod import ContainerState, ContainerStateTerminated, PodOS
from vpa_ippr.api.resources import Amounts, Resource
from vpa_ippr.recommend.limit_ranges import LimitBounds, NamespaceLimits
from vpa_ippr.resize.due import Due, Part, decide
from vpa_ippr.resize.ledger import History, Infeasible, Ledger
from vpa_ippr.resize.plan import Plan, Refused, plan
from vpa_ippr.resize.reasons import RefusalReason
from vpa_ippr.resize.rules import rules_for
from vpa_ippr.resize.settings import Settings
from vpa_ippr.resize.state import InfeasibleCause

GIB = 1 << 30
NODE = Node("n1", Amounts(64_000, 256 * GIB), "v1.36.1")
APP = a_container(cpu="200m", memory="1Gi", cpu_limit="400m", memory_limit="2Gi")
CPU_UP = a_vpa(a_recommendation(cpu="300m", memory="1Gi"))
CPU = (Part("app", Resource.CPU),)


def outcome(pod=None, *, version="1.36", node=NODE, vpa=CPU_UP, parts=CPU, history=None, limits=None):
    due = Due((), parts, 1.0)
    extra = [limits] if limits else []
    return plan(pod or a_pod(APP), vpa, due, rules_for(version), node, history or History(), Settings(), *extra)


def reason(*args, **kwargs):
    result = outcome(*args, **kwargs)
    return result.reason if isinstance(result, Refused) else None


def with_spec(pod, **changes):
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, **changes))


def with_status(pod, **changes):
    return msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, **changes))


CLAIMED = with_status(a_pod(APP), node_allocatable_resource_claim_statuses=[{"name": "gpu"}])
POD_LEVEL = with_own_resources(a_pod(APP), cpu="1", memory="4Gi")


def on(os):
    return Node("n1", NODE.allocatable, "v1.36.1", {"kubernetes.io/os": os})


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param({}, None, id="an-ordinary-pod"),
        pytest.param({"pod": a_pod(APP, annotations={ANNOTATION_MIRROR_POD: "x"})}, RefusalReason.STATIC_POD, id="mirror"),
        pytest.param({"pod": with_spec(a_pod(APP), os=PodOS("windows"))}, RefusalReason.WINDOWS, id="windows-by-spec"),
        pytest.param({"pod": with_spec(a_pod(APP), os=PodOS("linux")), "node": on("linux")}, None, id="linux"),
        pytest.param({"node": on("windows")}, RefusalReason.WINDOWS, id="windows-by-node"),
        pytest.param({"pod": CLAIMED}, RefusalReason.RESOURCE_CLAIMS, id="claims-1.36"),
        pytest.param({"pod": CLAIMED, "version": "1.37"}, None, id="claims-1.37"),
        pytest.param({"pod": CLAIMED, "version": "1.35"}, None, id="claims-1.35"),
        pytest.param({"pod": POD_LEVEL}, None, id="pod-level-1.36"),
        pytest.param({"pod": POD_LEVEL, "version": "1.35"}, RefusalReason.POD_LEVEL_RESOURCES, id="pod-level-1.35"),
        pytest.param(
            {"pod": POD_LEVEL, "node": Node("n1", NODE.allocatable, "v1.34.2")},
            RefusalReason.POD_LEVEL_RESOURCES,
            id="pod-level-old-kubelet",
        ),
    ],
)
def test_pods_that_are_not_resized(options, expected):
    assert reason(**options) is expected


def test_the_reason_names_the_versions():
    assert "the server is 1.35, the node's kubelet v1.36.1" in outcome(POD_LEVEL, version="1.35").message


@pytest.mark.parametrize(
    ("container", "version", "expected"),
    [
        pytest.param(a_container(cpu="200m", memory="1Gi"), "1.33", RefusalReason.VERSION_FORBIDS_LIMIT, id="1.33"),
        pytest.param(a_container(cpu="200m", memory="1Gi"), "1.34", None, id="1.34"),
        pytest.param(a_container(cpu="200m", memory="1Gi", restarts=("memory",)), "1.33", None, id="restarts"),
        pytest.param(APP, "1.33", None, id="has-a-limit"),
    ],
)
def test_a_default_memory_limit_would_be_added_by_any_resize(container, version, expected):
    limits = NamespaceLimits(container=LimitBounds(default=Amounts(memory_bytes=4 * GIB)))
    assert reason(a_pod(container), version=version, limits=limits) is expected


@pytest.mark.parametrize(
    ("version", "cause", "resource", "expected"),
    [
        pytest.param("1.33", InfeasibleCause.CPU_MANAGER, Resource.MEMORY, RefusalReason.STATIC_CPU_MANAGER, id="1.33-any-resource"),
        pytest.param("1.34", InfeasibleCause.CPU_MANAGER, Resource.MEMORY, None, id="1.34-the-other-resource"),
        pytest.param("1.34", InfeasibleCause.CPU_MANAGER, Resource.CPU, RefusalReason.STATIC_CPU_MANAGER, id="1.34-cpu"),
        pytest.param("1.33", InfeasibleCause.MEMORY_MANAGER, Resource.CPU, RefusalReason.STATIC_MEMORY_MANAGER, id="1.33-memory-manager"),
        pytest.param("1.34", InfeasibleCause.MEMORY_MANAGER, Resource.CPU, None, id="1.34-memory-manager"),
    ],
)
def test_static_managers_go_by_the_kubelet(version, cause, resource, expected):
    pod = a_pod(a_container(cpu="1", memory="1Gi", cpu_limit="1", memory_limit="1Gi"))
    node = Node("n1", NODE.allocatable, f"v{version}.1")
    history = History(Ledger(infeasible=Infeasible(node.shape, cause, 1000, GIB)))
    vpa = a_vpa(a_recommendation(cpu="2", memory="2Gi"))
    assert reason(pod, node=node, vpa=vpa, parts=(Part("app", resource),), history=history) is expected


@pytest.mark.parametrize(
    ("version", "verdict"), [("1.35", "the kubelet would call it infeasible"), ("1.36", "the API server would refuse it")]
)
def test_a_pod_larger_than_its_node_is_not_asked_for(version, verdict):
    result = outcome(version=version, vpa=a_vpa(a_recommendation(cpu="65", memory="1Gi")))
    assert (result.reason, result.message.endswith(verdict)) == (RefusalReason.NODE_CAPACITY, True)


# -- sidecars and init containers

SETUP = a_container("setup", cpu="200m", memory="1Gi", cpu_limit="400m", memory_limit="2Gi")


def starting(container=SETUP, *, finished=False):
    pod = a_pod(APP, init=(container,))
    if finished:
        ended = ContainerState(terminated=ContainerStateTerminated(reason="Completed"))
        pod = with_status(pod, init_container_statuses=[msgspec.structs.replace(pod.status.init_container_statuses[0], state=ended)])
    return pod


def patched_init(pod, *, rules=RULES, **target):
    vpa = a_vpa(a_recommendation("setup", **target), a_recommendation(cpu="200m", memory="1Gi"))
    due = decide(pod, vpa, START, Settings(), History())
    if not isinstance(due, Due):
        return None
    result = plan(pod, vpa, due, rules, NODE, History(), Settings())
    return result.patch["spec"] if isinstance(result, Plan) else result.reason


def test_a_running_init_container_grows():
    patch = patched_init(starting(), cpu="300m", memory="1Gi")
    assert patch == {"initContainers": [{"name": "setup", "resources": {"requests": {"cpu": "300m"}, "limits": {"cpu": "600m"}}}]}


def test_a_running_init_container_is_never_lowered():
    patch = patched_init(starting(), cpu="300m", memory="512Mi")
    assert patch["initContainers"] == [{"name": "setup", "resources": {"requests": {"cpu": "300m"}, "limits": {"cpu": "600m"}}}]
    assert patched_init(starting(), cpu="100m", memory="512Mi") is None


@pytest.mark.parametrize(
    ("pod", "version", "expected"),
    [
        pytest.param(starting(finished=True), "1.36", None, id="finished"),
        pytest.param(
            starting(a_container("setup", cpu="200m", memory="1Gi", restarts=("memory",))), "1.36", None, id="a-restart-would-begin-anew"
        ),
        pytest.param(starting(), "1.35", RefusalReason.VERSION_FORBIDS_CONTAINER, id="1.35"),
    ],
)
def test_init_containers_that_are_left_alone(pod, version, expected):
    assert patched_init(pod, rules=rules_for(version), cpu="300m", memory="1Gi") == expected


@pytest.mark.parametrize(("version", "expected"), [("1.32", RefusalReason.VERSION_FORBIDS_CONTAINER), ("1.33", None)])
def test_sidecars_are_resized_from_1_33_on(version, expected):
    pod = a_pod(APP, init=(a_container("side", cpu="200m", memory="1Gi", restart_policy="Always"),))
    vpa = a_vpa(a_recommendation("side", cpu="300m", memory="1Gi"))
    assert reason(pod, version=version, node=None, vpa=vpa, parts=(Part("side", Resource.CPU),)) is expected
