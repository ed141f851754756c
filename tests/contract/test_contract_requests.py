"""Who may resize, by which request, and what the API server checks (upstream's integration and unit tests)."""

from __future__ import annotations

import copy
import uuid
from dataclasses import dataclass
from typing import Any

import pytest
from contract_cluster import JSON_PATCH, MERGE, NODES, STRATEGIC, Cluster, Namespace, RefusedError
from contract_pods import IMAGE, Container, Res, guaranteed, measured, pod_of, specs

pytestmark = pytest.mark.integration

Json = dict[str, Any]
UNSCHEDULED = {"schedulerName": "contract-nobody"}
BURSTABLE = Res(cpu=20, cpu_limit=30, memory=35, memory_limit=45)
RBAC = "/apis/rbac.authorization.k8s.io/v1"
QOS = "Pod QOS Class may not change as a result of resizing"
MUTABLE = "only cpu and memory resources are mutable"
RAISED = {"containers": [{"name": "c1", "resources": {"requests": {"cpu": "25m"}}}]}


def send_resize(namespace: Namespace, method: str, requests: Json) -> Json:
    """One resize of container ``c1``, by one of the ways to say it."""
    pod = namespace.pod()
    changed = copy.deepcopy(pod["spec"]["containers"])
    changed[0]["resources"]["requests"] |= requests
    if method == "put":
        pod["spec"]["containers"] = changed
        return namespace.cluster.send("PUT", f"{namespace.path}/pods/pod/resize", pod)
    if method == STRATEGIC:
        return namespace.resize({"containers": [{"name": "c1", "resources": {"requests": requests}}]})
    if method == MERGE:
        return namespace.resize({"containers": changed}, kind=MERGE)
    path = "/spec/containers/0/resources/requests/"
    return namespace.resize([{"op": "replace", "path": path + name, "value": value} for name, value in requests.items()], kind=JSON_PATCH)


@pytest.mark.parametrize("method", ["put", STRATEGIC, MERGE, JSON_PATCH], ids=["put", "strategic", "merge", "json-patch"])
class TestEachMethod:
    @pytest.fixture(autouse=True)
    def _pod(self, namespace: Namespace) -> None:
        pod = pod_of(Container("c1", BURSTABLE), Container("c2", BURSTABLE), **UNSCHEDULED)
        pod["spec"]["containers"][0]["resources"]["requests"]["ephemeral-storage"] = "1Gi"
        namespace.create_pod(pod)

    @pytest.mark.parametrize(
        ("requests", "expected"),
        [({"cpu": "25m"}, BURSTABLE.but(cpu=25)), ({"memory": "40Mi"}, BURSTABLE.but(memory=40))],
        ids=["cpu", "memory"],
    )
    def test_cpu_and_memory(self, namespace: Namespace, method: str, requests: Json, expected: Res) -> None:
        assert send_resize(namespace, method, requests)["metadata"]["generation"] == 2
        assert measured(specs(namespace.pod())["c1"]["resources"]) == expected
        assert measured(specs(namespace.pod())["c2"]["resources"]) == BURSTABLE

    def test_nothing_new_is_no_change(self, namespace: Namespace, method: str) -> None:
        assert send_resize(namespace, method, {"cpu": "0.02"})["metadata"]["generation"] == 1

    def test_storage(self, namespace: Namespace, method: str) -> None:
        with pytest.raises(RefusedError, match=MUTABLE) as caught:
            send_resize(namespace, method, {"ephemeral-storage": "2Gi"})
        assert caught.value.code == 422
        assert namespace.pod()["metadata"]["generation"] == 1


@dataclass(frozen=True)
class Grant:
    """A user with a role on one resource: what goes, and what does not."""

    resource: str
    allowed: str
    denied: str


@pytest.mark.parametrize("grant", [Grant("pods", "", "/resize"), Grant("pods/resize", "/resize", "")], ids=lambda grant: grant.resource)
def test_the_right_to_resize_is_one_of_its_own(namespace: Namespace, grant: Grant) -> None:
    """Neither of ``pods`` and ``pods/resize`` contains the other."""
    namespace.create_pod(pod_of(Container("c1", BURSTABLE), **UNSCHEDULED))
    user = f"contract-{uuid.uuid4().hex[:12]}"
    roles = f"{RBAC}/namespaces/{namespace.name}"
    meta = {"metadata": {"name": "role"}}
    rules = [{"apiGroups": [""], "resources": [grant.resource], "verbs": ["get", "patch", "update"]}]
    namespace.cluster.send("POST", f"{roles}/roles", {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", **meta, "rules": rules})
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        **meta,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "role"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    }
    namespace.cluster.send("POST", f"{roles}/rolebindings", binding)
    patch = {"spec": RAISED} if grant.allowed else {"metadata": {"labels": {"new": "yes"}}}

    def attempt(subresource: str) -> RefusedError | Json:
        try:
            return namespace.cluster.send("PATCH", f"{namespace.path}/pods/pod{subresource}", patch, STRATEGIC, user=user)
        except RefusedError as refusal:
            return refusal

    def granted() -> bool:
        return not isinstance(attempt(grant.allowed), RefusedError)

    # The authorizer learns of the binding a moment later.
    assert granted() or namespace.cluster.wait("the role is known", granted, seconds=30, shown=lambda: rules)
    denied = attempt(grant.denied)
    assert isinstance(denied, RefusedError)
    assert (denied.code, denied.reason) == (403, "Forbidden")
    named = "pods/resize" if grant.denied else "pods"
    assert f'User "{user}" cannot patch resource "{named}" in API group "" in the namespace "{namespace.name}"' in denied.message


def test_discovery_says_what_can_be_done(cluster: Cluster) -> None:
    (resize,) = [entry for entry in cluster.send("GET", "/api/v1")["resources"] if entry["name"] == "pods/resize"]
    assert (resize["kind"], resize["namespaced"], sorted(resize["verbs"])) == ("Pod", True, ["get", "patch", "update"])


@dataclass(frozen=True)
class OnNode:
    """A pod on a node of 2 CPUs and 4Gi; ``says`` is empty when the resize is granted."""

    id: str
    requests: Json
    says: str = ""
    cause: str = ""
    system: str = "linux"


GIB = 1024**3
ON_NODE = (
    OnNode("fits", {"cpu": "2", "memory": "4Gi"}),
    OnNode("cpu", {"cpu": "3"}, "cpu, requested: 3000, allocatable: 2000", "NodeCapacity"),
    OnNode("memory", {"memory": "5Gi"}, f"memory, requested: {5 * GIB}, allocatable: {4 * GIB}", "NodeCapacity"),
    OnNode(
        "both", {"cpu": "3", "memory": "5Gi"},
        f"cpu, requested: 3000, allocatable: 2000; memory, requested: {5 * GIB}, allocatable: {4 * GIB}", "NodeCapacity",
    ),
    OnNode("windows", {"cpu": "1"}, 'node "{}" is "windows"', "UnsupportedPlatform", "windows"),
)  # fmt: skip


@pytest.mark.parametrize("case", ON_NODE, ids=lambda case: case.id)
def test_the_node_is_asked(namespace: Namespace, made_nodes: list[str], case: OnNode) -> None:
    """The node is an object without a kubelet, and cordoned, so that nothing else comes to it."""
    cluster = namespace.cluster
    cluster.since(36, "the API server compares with the node")
    node = f"contract-{uuid.uuid4().hex[:12]}"
    labels = {"kubernetes.io/hostname": node, "kubernetes.io/os": case.system}
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node, "labels": labels}, "spec": {"unschedulable": True}}
    cluster.send("POST", NODES, body)
    made_nodes.append(node)
    amounts = {"cpu": "2", "memory": "4Gi", "pods": "10"}
    cluster.send("PATCH", f"{NODES}/{node}/status", {"status": {"allocatable": amounts, "capacity": amounts}}, STRATEGIC)
    namespace.create_pod(pod_of(Container("c1", Res(cpu=20, memory=35)), nodeName=node))
    patch = {"containers": [{"name": "c1", "resources": {"requests": case.requests}}]}
    if not case.says:
        assert namespace.resize(patch)["metadata"]["generation"] == 2
        return
    refusal = namespace.refused(patch)
    assert (refusal.code, refusal.reason) == (403, "Forbidden")
    assert refusal.message.endswith(case.says.format(node))
    assert [cause["reason"] for cause in refusal.causes] == [case.cause]


def test_a_node_that_is_gone(namespace: Namespace) -> None:
    namespace.cluster.since(36, "the API server looks at the node")
    namespace.create_pod(pod_of(Container("c1", BURSTABLE), nodeName="contract-no-such-node"))
    refusal = namespace.refused(RAISED)
    assert (refusal.code, refusal.message) == (403, 'pods "pod" is forbidden: node "contract-no-such-node" not found')


@dataclass(frozen=True)
class Shape:
    """A whole list of containers in a merge patch, which the server must refuse."""

    id: str
    field: str
    names: tuple[str, ...]
    says: str


SHAPES = (
    Shape("added", "containers", ("c1", "c2", "c3"), "spec.containers: Forbidden: containers may not be added or removed on resize"),
    Shape("removed", "containers", ("c1",), "spec.containers: Forbidden: containers may not be added or removed on resize"),
    Shape("reordered", "containers", ("c2", "c1"), "spec.containers[0].name: Forbidden: containers may not be renamed or reordered"),
    Shape("renamed", "containers", ("c1", "c9"), "spec.containers[1].name: Forbidden: containers may not be renamed or reordered"),
    Shape(
        "init-added", "initContainers", ("i1", "i2", "i3"),
        "spec.initContainers: Forbidden: initContainers may not be added or removed on resize",
    ),
    Shape(
        "init-removed", "initContainers", ("i1",), "spec.initContainers: Forbidden: initContainers may not be added or removed on resize"
    ),
    Shape(
        "init-renamed", "initContainers", ("i9", "i2"),
        "spec.initContainers[0].name: Forbidden: initContainers may not be renamed or reordered",
    ),
)  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.id)
def test_the_containers_stay_who_they_are(namespace: Namespace, shape: Shape) -> None:
    roles = (("c1", "main"), ("c2", "main"), ("i1", "sidecar"), ("i2", "sidecar"))
    namespace.create_pod(pod_of(*(Container(name, BURSTABLE, role=role) for name, role in roles), **UNSCHEDULED))
    role = "main" if shape.field == "containers" else "sidecar"
    refusal = namespace.refused({shape.field: [Container(name, BURSTABLE, role=role).json for name in shape.names]}, kind=MERGE)
    assert (refusal.code, refusal.reason) == (422, "Invalid")
    assert shape.says in refusal.message


@pytest.mark.parametrize("role", ["main", "sidecar"])
def test_the_resize_policy_stays_as_it_was(namespace: Namespace, role: str) -> None:
    namespace.create_pod(pod_of(Container("c1", BURSTABLE), Container("c2", BURSTABLE, role=role), **UNSCHEDULED))
    policy = [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]
    refusal = namespace.refused({"initContainers" if role == "sidecar" else "containers": [{"name": "c2", "resizePolicy": policy}]})
    assert (refusal.code, refusal.reason) == (422, "Invalid")
    which = "init or sidecar containers" if namespace.cluster.minor >= 36 else "sidecar containers"
    said = MUTABLE if role == "main" else f"only cpu and memory resources for {which} are mutable"
    assert said in refusal.message


def test_another_resource_for_a_container_without_any(namespace: Namespace) -> None:
    namespace.cluster.since(35, "this hole is closed (kubernetes#135084)")
    namespace.create_pod(pod_of(Container("c1", BURSTABLE), Container("c2"), **UNSCHEDULED))
    refusal = namespace.refused({"containers": [{"name": "c2", "resources": {"requests": {"ephemeral-storage": "1Gi"}}}]})
    assert (refusal.code, refusal.reason) == (422, "Invalid")
    assert MUTABLE in refusal.message


RUNNING = {"name": "c1", "image": IMAGE, "imageID": "x", "ready": True, "restartCount": 0, "state": {"running": {}}}


@pytest.mark.parametrize(
    ("status", "granted"),
    [
        (RUNNING, False),
        ({**RUNNING, "resources": {}}, True),
        ({**RUNNING, "resources": BURSTABLE.json}, True),
        ({**RUNNING, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}, True),
    ],
    ids=["not-reported", "empty", "reported", "not-running"],
)
def test_the_kubelet_must_know_resizes(namespace: Namespace, status: Json, granted: bool) -> None:
    namespace.create_pod(pod_of(Container("c1", BURSTABLE), **UNSCHEDULED))
    namespace.set_status({"phase": "Running", "containerStatuses": [status]})
    if granted:
        assert namespace.resize(RAISED)["metadata"]["generation"] == 2
        return
    refusal = namespace.refused(RAISED)
    assert (refusal.code, refusal.reason) == (422, "Invalid")
    assert "spec: Forbidden: Pod running on node without support for resize" in refusal.message


def test_claims_on_what_the_node_allocates(namespace: Namespace) -> None:
    namespace.cluster.since(36, "DRA claims stand in the way")
    namespace.cluster.until(36, "DRA claims stand in the way")
    namespace.create_pod(pod_of(Container("c1", BURSTABLE), **UNSCHEDULED))
    field = "nodeAllocatableResourceClaimStatuses"
    if not namespace.set_status({field: [{"resourceClaimName": "claim"}]})["status"].get(field):
        pytest.skip(f"the gate behind status.{field} is off: the server drops the field")
    assert "pods with node allocatable resource claims cannot be resized" in namespace.refused(RAISED).message


@pytest.mark.parametrize("patch", [RAISED, {"containers": [{"name": "c1"}]}], ids=["resize", "no-op"])
@pytest.mark.parametrize("kind", ["windows", "static"])
def test_pods_that_are_never_resized(namespace: Namespace, kind: str, patch: Json) -> None:
    special: Json = {"os": {"name": "windows"}} if kind == "windows" else {"nodeName": "contract-no-such-node"}
    pod = pod_of(Container("c1", BURSTABLE), **UNSCHEDULED, **special)
    if kind == "static":
        pod["metadata"]["annotations"]["kubernetes.io/config.mirror"] = "contract"
    namespace.create_pod(pod)
    refusal = namespace.refused(patch)
    assert (refusal.code, refusal.message) == (422, f'Pod "pod" is invalid: []: Forbidden: {kind} pods cannot be resized')


@dataclass(frozen=True)
class Change:
    id: str
    before: Res
    resources: Json
    says: str = ""


BOTH = {"cpu": "20m", "memory": "35Mi"}
CHANGES = (
    Change("guaranteed-to-burstable", guaranteed(20, 35), {"requests": {"cpu": "15m"}}, QOS),
    Change("burstable-to-guaranteed", BURSTABLE, {"limits": BOTH}, QOS),
    Change("best-effort-to-burstable", Res(), {"requests": BOTH}, QOS),
    Change("best-effort-to-guaranteed", Res(), {"requests": BOTH, "limits": BOTH}, QOS),
    Change("burstable-to-best-effort", Res(cpu=20), {"requests": None}, QOS),
    Change("burstable-with-more-requests", Res(cpu=20), {"requests": {"memory": "35Mi"}}),
    Change("burstable-with-a-limit", Res(cpu=20, memory=35), {"limits": {"cpu": "30m"}}),
)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.id)
def test_the_qos_class_stays(namespace: Namespace, change: Change) -> None:
    namespace.create_pod(pod_of(Container("c1", change.before), **UNSCHEDULED))
    patch = {"containers": [{"name": "c1", "resources": change.resources}]}
    if not change.says:
        assert namespace.resize(patch)["status"]["qosClass"] == "Burstable"
        return
    refusal = namespace.refused(patch)
    assert (refusal.code, refusal.reason) == (422, "Invalid")
    assert change.says in refusal.message


def test_a_pod_that_is_not_there(namespace: Namespace) -> None:
    with pytest.raises(RefusedError) as caught:
        namespace.resize(RAISED, "nobody")
    assert (caught.value.code, caught.value.reason) == (404, "NotFound")


def test_the_main_endpoint_does_not_resize(namespace: Namespace) -> None:
    namespace.create_pod(pod_of(Container("c1", BURSTABLE), **UNSCHEDULED))
    with pytest.raises(RefusedError, match="pod updates may not change fields other than") as caught:
        namespace.cluster.send("PATCH", f"{namespace.path}/pods/pod", {"spec": RAISED}, STRATEGIC)
    assert caught.value.code == 422
