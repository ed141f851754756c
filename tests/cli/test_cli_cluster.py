"""The commands that speak to a cluster, in this process: ``report`` and one cycle of ``recommender`` and ``updater``."""

import json

import msgspec
import pytest

from support.cli import MI, FakePrometheus, dead_address, run
from support.http import Answer, scripted_server
from support.sandbox import SHRINKS, VPAS, controller_spec, owner_of, running_sandbox, vpa_spec
from vpa_ippr.sandbox.node import NodeSpec

AMOUNTS = {"cpu": "500m", "memory": "1Gi"}


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch, tmp_path):
    for name in ("PROMETHEUS_URL", "KUBECONFIG", "VPA_IPPR_LOG_LEVEL", "VPA_IPPR_CLOCK_URL", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """StatefulSets ``web`` in ``bank`` and ``shop`` with a pod each and a VPA; ``shop`` has three VPAs more that cannot be served."""
    options = {"kubelet": False, "tls": False, "nodes": [NodeSpec("n1", 4000, 8 << 30)]}
    with running_sandbox(tmp_path_factory.mktemp("cluster"), **options) as running:
        for namespace in ("bank", "shop"):
            owner = running.create("statefulsets.apps", namespace, "web", spec={**controller_spec("web"), "serviceName": "web"})
            running.pod(namespace, "web-0", owner=owner_of(owner), requests=AMOUNTS, limits=AMOUNTS)
            running.create(VPAS, namespace, "web", spec=vpa_spec("StatefulSet", "web", updatePolicy={"updateMode": "InPlace"}))
        running.create(VPAS, "shop", "gone", spec=vpa_spec("Deployment", "nobody"))
        running.create(VPAS, "shop", "odd", spec=vpa_spec("Engine", "x", "test.example/v1"))
        running.create(VPAS, "shop", "other", spec={**vpa_spec("Deployment", "nobody"), "recommenders": [{"name": "another"}]})
        yield running


def status_of(cluster, namespace, name):
    return cluster.store.get(VPAS, namespace, name).get("status") or {}


def conditions_of(cluster, namespace, name):
    return {one["type"]: one["status"] for one in status_of(cluster, namespace, name).get("conditions", [])}


def failure_lines(outcome):
    return [line for line in outcome.error_lines if " warning " in line]


@pytest.fixture(scope="module")
def served(cluster):
    """The outcome of a recommender's cycle over all of them."""
    with scripted_server(FakePrometheus("bank", "shop")) as server:
        source = ("--prometheus-url", server.url, "--query-retries", 0)
        return run("recommender", "--once", "--profile", "vpa-classic", "--kubeconfig", cluster.kubeconfig, *source)


def test_bad_targets_are_told_once_each_and_the_others_are_served(cluster, served):
    assert (served.code, served.out) == (3, "")
    told = failure_lines(served)
    assert [sum(part in line for line in told) for part in ("shop/gone", "shop/odd")] == [1, 1]
    assert len(told) == 2
    assert served.error_lines[-1].endswith("cycle done vpas=4 recommended=2 written=4 failed=2")
    assert "Traceback" not in served.err
    for namespace in ("bank", "shop"):
        (recommended,) = status_of(cluster, namespace, "web")["recommendation"]["containerRecommendations"]
        assert recommended["target"] == {"cpu": "587m", "memory": recommended["target"]["memory"]}
    for name in ("gone", "odd"):
        assert conditions_of(cluster, "shop", name) == {"ConfigUnsupported": "True", "RecommendationProvided": "False"}
    assert status_of(cluster, "shop", "other") == {}


@pytest.mark.usefixtures("served")
def test_the_report_of_a_cluster(cluster):
    outcome = run("report", "--kubeconfig", cluster.kubeconfig, "-f", "json")
    assert (outcome.code, outcome.err) == (0, "")
    assert [
        (item["namespace"], item["requests"]["cpu_millicores"], item["target"]["cpu_millicores"]) for item in outcome.json["items"]
    ] == [
        ("bank", 500, 587),
        ("shop", 500, 587),
    ]
    assert [finding["subject"] for finding in outcome.json["findings"]] == ["vpa shop/gone", "vpa shop/odd", "vpa shop/other"]
    only = run("report", "--kubeconfig", cluster.kubeconfig, "-f", "json", "-n", "bank")
    assert [item["namespace"] for item in only.json["items"]] == ["bank"]


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("form", ["table", "json", "yaml", "csv"])
def test_one_unparsable_quantity_is_one_line_and_the_other_rows_are_printed(cluster, form):
    spoiled = cluster.pod("shop", "odd-0", requests=AMOUNTS)

    def lying(request):
        answer = bytes(cluster.rest.get(request.path, msgspec.Raw))
        if "/pods" not in request.path:
            return Answer(body=answer)
        listing = json.loads(answer)
        for pod in listing["items"]:
            if pod["metadata"]["name"] == spoiled["metadata"]["name"]:
                pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "lots"
        return Answer(body=json.dumps(listing).encode())

    try:
        with scripted_server(lying) as server:
            outcome = run("report", "--kubeconfig", kubeconfig_for(server.url, cluster.kubeconfig.parent), "-f", form)
    finally:
        cluster.store.delete("pods", "shop", "odd-0", grace_period_seconds=0)
    assert outcome.code == 3
    (line,) = outcome.error_lines
    assert line.startswith("vpa-ippr: pod shop/odd-0 spec.containers[app].resources.requests: ")
    assert "'lots'" in line
    assert "bank" in outcome.out
    assert "shop" in outcome.out
    assert ("lots" in outcome.out) is (form in ("json", "yaml"))


def kubeconfig_for(url, folder):
    path = folder / "kubeconfig-for-test"
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": {"server": url}}],
                "users": [{"name": "u", "user": {"token": "t"}}],
            }
        )
    )
    return path


def test_objects_that_cannot_be_read_make_a_report_partial(tmp_path):
    bad = {"metadata": {}, "items": [{"metadata": {"name": "bad", "namespace": "shop"}, "spec": 7}]}
    with scripted_server(lambda _: Answer(body=json.dumps(bad).encode())) as server:
        outcome = run("report", "--kubeconfig", kubeconfig_for(server.url, tmp_path))
    assert outcome.code == 3
    assert all(line.startswith("vpa-ippr: /api") and "shop/bad" in line for line in outcome.error_lines)
    assert len(outcome.error_lines) == 2


COMMANDS = {
    "report": ("report",),
    "recommender": ("recommender", "--once", "--prometheus-url", "http://127.0.0.1:1"),
    "updater": ("updater", "--once"),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("content", "line"),
    [
        (None, "no such file"),
        (b"", "is empty"),
        (b"not: [yaml", "cannot be used"),
        (b"[1, 2]", "it has not the form of a kubeconfig"),
        (b"words", "it has not the form of a kubeconfig"),
        (bytes(range(128, 256)), "cannot be used"),
        (b"{apiVersion: v1, kind: Config, clusters: [], contexts: [], users: []}", "current-context"),
    ],
    ids=["nowhere", "empty", "no-yaml", "list", "text", "binary", "no-context"],
)
def test_a_kubeconfig_that_cannot_be_used(tmp_path, command, content, line):
    path = tmp_path / "config"
    if content is not None:
        path.write_bytes(content)
    outcome = run(*COMMANDS[command], "--kubeconfig", path)
    assert (outcome.code, outcome.out) == (2, "")
    (said,) = outcome.error_lines
    assert said.startswith(f"vpa-ippr: kubeconfig {path}")
    assert line in said


@pytest.mark.parametrize("command", COMMANDS)
def test_a_server_that_is_not_there(tmp_path, command):
    address = dead_address()
    outcome = run(*COMMANDS[command], "--kubeconfig", kubeconfig_for(f"http://{address}", tmp_path))
    assert (outcome.code, outcome.out) == (1, "")
    (said,) = outcome.error_lines
    assert said == (
        f"vpa-ippr: cannot reach the Kubernetes API at http://{address}: Failed to establish a new connection: "
        "[Errno 111] Connection refused; check its address and certificate"
    )


def test_an_address_without_scheme_and_no_kubeconfig_at_all(tmp_path):
    outcome = run("report", "--kubeconfig", kubeconfig_for("127.0.0.1:6443", tmp_path))
    assert (outcome.code, len(outcome.error_lines)) == (2, 1)
    assert "'127.0.0.1:6443' is not an http:// or https:// address" in outcome.err
    outcome = run("report")
    assert (outcome.code, len(outcome.error_lines)) == (2, 1)
    assert "give --kubeconfig FILE" in outcome.err


def test_a_server_that_cannot_resize(tmp_path):
    bodies = {"/version": {"major": "1", "minor": "30"}, "/api/v1": {"resources": [{"name": "pods", "verbs": ["patch"]}]}}
    with scripted_server(lambda request: Answer(body=json.dumps(bodies[request.path]).encode())) as server:
        outcome = run("updater", "--once", "--kubeconfig", kubeconfig_for(server.url, tmp_path))
    assert outcome.code == 1
    (line,) = outcome.error_lines
    assert "Kubernetes 1.30" in line
    assert "1.33 or newer" in line


def test_a_prometheus_that_is_not_there_leaves_the_vpas_as_they_are_and_is_told_once(cluster, served):
    before = status_of(cluster, "bank", "web")["recommendation"]
    address = dead_address()
    outcome = run(
        "recommender", "--once", "--kubeconfig", cluster.kubeconfig, "--prometheus-url", f"http://{address}", "--query-retries", 0
    )  # fmt: skip
    assert outcome.code == 1
    (line,) = [line for line in outcome.error_lines if address in line]
    assert "not done subject=usage reason=PrometheusUnreachable" in line
    assert "Connection refused" in line
    assert status_of(cluster, "bank", "web")["recommendation"] == before
    assert conditions_of(cluster, "bank", "web")["NoData"] == "True"


def test_report_from_prometheus_shows_current_requests():
    with scripted_server(FakePrometheus()) as server:
        source = ("--prometheus-url", server.url, "--query-retries", 0, "--history", "2h")
        outcome = run("report", "--profile", "vpa-classic", *source, "-f", "json")
    assert (outcome.code, outcome.err) == (0, "")
    (item,) = outcome.json["items"]
    assert item["requests"] == {"cpu_millicores": 100, "memory_bytes": 256 * MI}
    assert item["target"]["cpu_millicores"] == 587


def test_the_updater_raises_a_request_and_opens_a_shrink_for_a_lower_limit(cluster, served):
    for namespace in ("bank", "shop"):
        bounds = {"lowerBound": {"cpu": "550m", "memory": "200Mi"}, "upperBound": {"cpu": "900m", "memory": "400Mi"}}
        recommended = [{"containerName": "app", "target": {"cpu": "700m", "memory": "256Mi"}, **bounds}]
        cluster.store.update(
            VPAS, namespace, "web",
            lambda found: {**found, "status": {**found["status"], "recommendation": {"containerRecommendations": recommended}}},  # noqa: B023
            subresource="status",
        )  # fmt: skip
    outcome = run("updater", "--once", "--kubeconfig", cluster.kubeconfig)
    assert (outcome.code, outcome.out) == (0, "")
    for namespace in ("bank", "shop"):
        (container,) = cluster.store.get("pods", namespace, "web-0")["spec"]["containers"]
        assert container["resources"]["requests"]["cpu"] == "700m"
        (shrink,) = cluster.store.list(SHRINKS, namespace)
        assert (shrink["spec"]["targetBytes"], shrink["spec"]["deadlineSeconds"]) == (256 * MI, 900)
