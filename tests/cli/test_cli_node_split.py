"""A DaemonSet on two node pools, from the recommender to the updater, against a cluster's API: each pod gets what its pool needs."""

import json

import pytest

from support.cli import MI, FakePrometheus, matrix, points, run
from support.http import scripted_server
from support.sandbox import CHECKPOINTS, VPAS, owner_of, running_sandbox, template, vpa_spec
from vpa_ippr.sandbox.node import NodeSpec

pytestmark = pytest.mark.integration

POOLS = {"agent-a": "small", "agent-b": "large"}
CORES = {"agent-a": "0.1", "agent-b": "1"}
LABEL = "test.io/pool"


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch, tmp_path):
    for name in ("PROMETHEUS_URL", "KUBECONFIG", "VPA_IPPR_LOG_LEVEL", "VPA_IPPR_CLOCK_URL", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def cluster(tmp_path):
    nodes = [NodeSpec(pool, 8000, 16 << 30, labels={LABEL: pool}) for pool in POOLS.values()]
    with running_sandbox(tmp_path, kubelet=False, tls=False, nodes=nodes) as running:
        spec = {"selector": {"matchLabels": {"app": "agent"}}, "template": template("agent")}
        owner = owner_of(running.create("daemonsets.apps", "shop", "agent", spec=spec))
        for pod, node in POOLS.items():
            running.pod("shop", pod, node=node, owner=owner, requests={"cpu": "400m", "memory": "1Gi"})
        asked = {"annotations": {"vpa-ippr.io/split-by-node-label": LABEL}}
        spec = vpa_spec("DaemonSet", "agent", updatePolicy={"updateMode": "InPlace"})
        running.create(VPAS, "shop", "agent", metadata=asked, spec=spec)
        yield running


def prometheus():
    def each(answer):
        return lambda form: matrix(*(({"namespace": "shop", "pod": pod, "container": "app"}, answer(form, pod)) for pod in POOLS))

    owners = [({"pod": pod, "owner_kind": "DaemonSet", "owner_name": "agent"}, [[1, "1"]]) for pod in POOLS]
    answers = {
        "rate(": each(lambda form, pod: points(form, CORES[pod])),
        "max_over_time(container_memory": each(lambda form, _: points(form, str(200 * MI))),
        "kube_pod_owner": lambda _: matrix(*owners),
    }
    return FakePrometheus("shop", **answers)


def test_each_pod_gets_what_its_pool_needs(cluster):
    with scripted_server(prometheus()) as server:
        outcome = run("recommender", "--once", "--kubeconfig", cluster.kubeconfig, "--prometheus-url", server.url, "--query-retries", 0)
    assert outcome.code == 0, outcome.err
    vpa = cluster.store.get(VPAS, "shop", "agent")
    document = json.loads(vpa["metadata"]["annotations"]["vpa-ippr.io/recommendations-by-node-label"])
    cpu = {value: found[0]["target"]["cpu"] for value, found in document["values"].items()}
    assert set(cpu) == {"small", "large"}
    (status,) = vpa["status"]["recommendation"]["containerRecommendations"]
    assert status["target"]["cpu"] == cpu["large"] != cpu["small"]
    assert len(cluster.store.list(CHECKPOINTS, "shop")) == len(POOLS)
    assert run("updater", "--once", "--kubeconfig", cluster.kubeconfig).code == 0
    requested = {
        pool: cluster.store.get("pods", "shop", pod)["spec"]["containers"][0]["resources"]["requests"]["cpu"] for pod, pool in POOLS.items()
    }
    assert requested == cpu
