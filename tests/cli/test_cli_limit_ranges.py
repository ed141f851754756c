"""A LimitRange in a cluster that enforces it: what the updater makes of a recommendation above it, and what the report says."""

import pytest

from support.cli import run
from support.sandbox import VPAS, controller_spec, owner_of, running_sandbox, vpa_spec
from vpa_ippr.api.meta import ObjectKey
from vpa_ippr.cluster import paths
from vpa_ippr.cluster.rest import ApiError
from vpa_ippr.sandbox.node import NodeSpec

pytestmark = pytest.mark.integration

REQUESTS, LIMITS = {"cpu": "200m", "memory": "1Gi"}, {"cpu": "400m", "memory": "2Gi"}
RECOMMENDED = {"cpu": "2", "memory": "1Gi"}


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch, tmp_path):
    for name in ("PROMETHEUS_URL", "KUBECONFIG", "VPA_IPPR_LOG_LEVEL", "VPA_IPPR_CLOCK_URL", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def cluster(tmp_path):
    """``web-0``, recommended two cores, in ``bank``, where a container may have 1.2 at most, and in ``shop``, where a pod may have one."""
    options = {"kubelet": False, "tls": False, "nodes": [NodeSpec("n1", 64_000, 64 << 30)]}
    with running_sandbox(tmp_path, **options) as running:
        for namespace, kind, most in (("bank", "Container", "1200m"), ("shop", "Pod", "1")):
            owner = running.create("statefulsets.apps", namespace, "web", spec={**controller_spec("web"), "serviceName": "web"})
            running.pod(namespace, "web-0", owner=owner_of(owner), requests=REQUESTS, limits=LIMITS)
            running.create("limitranges", namespace, "bounds", spec={"limits": [{"type": kind, "max": {"cpu": most}}]})
            bounds = {"target": RECOMMENDED, "lowerBound": {"cpu": "1500m", "memory": "1Gi"}, "upperBound": {"cpu": "4", "memory": "1Gi"}}
            status = {"recommendation": {"containerRecommendations": [{"containerName": "app", **bounds}]}}
            spec = vpa_spec("StatefulSet", "web", updatePolicy={"updateMode": "InPlace"})
            running.create(VPAS, namespace, "web", spec=spec, status=status)
        yield running


def resources_of(cluster, namespace):
    (container,) = cluster.store.get("pods", namespace, "web-0")["spec"]["containers"]
    return container["resources"]["requests"]["cpu"], container["resources"]["limits"]["cpu"]


@pytest.mark.parametrize(("namespace", "most"), [("bank", "1200m"), ("shop", "1")])
def test_this_cluster_refuses_what_is_recommended(cluster, namespace, most):
    patch = {"spec": {"containers": [{"name": "app", "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "4"}}}]}}
    with pytest.raises(ApiError, match=f"maximum cpu usage per .* is {most}") as caught:
        cluster.rest.patch(paths.pod(ObjectKey(namespace, "web-0"), "resize"), patch, dict, patch_type="strategic-merge-patch")
    assert caught.value.status == 403


def test_the_updater_stays_within_the_bounds_and_its_resize_is_accepted(cluster):
    outcome = run("updater", "--once", "--kubeconfig", cluster.kubeconfig)
    assert (outcome.code, outcome.out) == (0, ""), outcome.err
    assert resources_of(cluster, "bank") == ("600m", "1200m")
    assert resources_of(cluster, "shop") == ("500m", "1")
    again = run("updater", "--once", "--kubeconfig", cluster.kubeconfig)
    assert again.code == 0
    assert resources_of(cluster, "bank") == ("600m", "1200m")


def test_a_limit_range_that_cannot_be_read_stops_its_namespace_alone(cluster):
    cluster.create("limitranges", "bank", "odd", spec={"limits": [{"type": "Container", "max": {"cpu": "lots"}}]})
    outcome = run("updater", "--once", "--kubeconfig", cluster.kubeconfig)
    assert outcome.code == 3
    (line,) = [line for line in outcome.error_lines if "not dealt with" in line]
    assert "limitrange odd max: cannot read 'lots'" in line
    assert resources_of(cluster, "bank") == ("200m", "400m")
    assert resources_of(cluster, "shop") == ("500m", "1")


def test_the_report_says_what_becomes_of_the_recommendation(cluster):
    outcome = run("report", "--kubeconfig", cluster.kubeconfig, "-f", "json")
    assert (outcome.code, outcome.err) == (0, "")
    items = {item["namespace"]: item for item in outcome.json["items"]}
    assert items["bank"]["target"]["cpu_millicores"] == 2000
    assert items["bank"]["notes"] == ["cpu capped to fit Max in container LimitRange: 600m"]
    assert items["shop"]["notes"] == ["cpu capped to fit Max in pod LimitRange: 500m"]


def test_a_report_with_a_limit_range_that_cannot_be_read_is_partial(cluster):
    cluster.create("limitranges", "bank", "odd", spec={"limits": [{"type": "Container", "max": {"cpu": "lots"}}]})
    outcome = run("report", "--kubeconfig", cluster.kubeconfig, "-f", "json")
    assert outcome.code == 3
    assert outcome.err.startswith("vpa-ippr: namespace bank: limitrange odd max: cannot read 'lots'")
    items = {item["namespace"]: item["notes"] for item in outcome.json["items"]}
    assert items == {"bank": [], "shop": ["cpu capped to fit Max in pod LimitRange: 500m"]}
