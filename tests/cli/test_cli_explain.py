"""``vpa-ippr explain`` against a cluster: the same verdict as the updater's, before and after it has acted."""

import json

import pytest

from support.cli import run
from support.sandbox import VPAS, controller_spec, owner_of, running_sandbox, vpa_spec
from vpa_ippr.sandbox.node import NodeSpec

pytestmark = pytest.mark.integration

EXPLANATION = {
    "schema": "vpa-ippr.io/explanation/v1",
    "profile": "balanced",
    "asOf": "2026-11-30T12:00:00Z",
    "containers": {"app": {"cpu": {"by": "decaying-histogram", "quantile": 0.9, "raisedBy": {"guard": 900}}, "cappedBy": ["maxAllowed"]}},
}


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch, tmp_path):
    for name in ("PROMETHEUS_URL", "KUBECONFIG", "VPA_IPPR_LOG_LEVEL", "VPA_IPPR_CLOCK_URL", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def cluster(tmp_path):
    """``web`` needs more CPU, ``huge`` more than its node has, ``quiet`` has no VPA."""
    with running_sandbox(tmp_path, kubelet=False, tls=False, nodes=[NodeSpec("n1", 4_000, 64 << 30)]) as running:
        for name, cpu in (("web", "900m"), ("huge", "12")):
            owner = running.create("statefulsets.apps", "shop", name, spec={**controller_spec(name), "serviceName": name})
            running.pod("shop", f"{name}-0", owner=owner_of(owner), requests={"cpu": "200m", "memory": "1Gi"}, limits={"memory": "2Gi"})
            amounts = {"cpu": cpu, "memory": "1Gi"}
            status = {
                "recommendation": {
                    "containerRecommendations": [{"containerName": "app", "target": amounts, "lowerBound": amounts, "upperBound": amounts}]
                },
                "conditions": [{"type": "LowConfidence", "status": "True", "reason": "ShortHistory", "message": "the history is short"}],
            }
            annotations = {"vpa-ippr.io/explanation": json.dumps(EXPLANATION)}
            spec = vpa_spec("StatefulSet", name, updatePolicy={"updateMode": "InPlace"})
            running.create(VPAS, "shop", name, spec=spec, status=status, metadata={"annotations": annotations})
        running.pod("shop", "quiet", requests={"cpu": "200m"})
        yield running


def explain(cluster, subject, *more):
    outcome = run("explain", subject, "--kubeconfig", cluster.kubeconfig, *more)
    assert outcome.code == 0, outcome.err
    return outcome.out


@pytest.mark.parametrize("subject", ["shop/StatefulSet/web", "shop/statefulset/web", "shop/Pod/web-0", "shop/vpa/web"])
def test_it_says_what_is_recommended_why_and_what_comes_next(cluster, subject):
    text = explain(cluster, subject)
    assert text.startswith(f"{subject}: 1 pod\n")
    assert "vpa shop/web, mode InPlace, by profile balanced as of 2026-11-30T12:00:00Z" in text
    assert "app cpu: 900m (900m to 900m is left alone); by decaying-histogram, quantile 0.9, raisedBy guard to 900" in text
    assert "app capped by maxAllowed" in text
    assert "LowConfidence (ShortHistory): the history is short" in text
    assert "pod web-0 on n1\n  app cpu: request 200m -> 900m, limit -" in text
    assert "next: ResizeIssued (OutsideBounds): app cpu request 200m -> 900m" in text


def test_it_changes_nothing(cluster):
    before = cluster.store.get("pods", "shop", "web-0")
    explain(cluster, "shop/StatefulSet/web")
    assert cluster.store.get("pods", "shop", "web-0") == before


def test_after_the_updater_has_acted_it_says_what_was_done(cluster):
    assert run("updater", "--once", "--kubeconfig", cluster.kubeconfig).code == 0
    text = explain(cluster, "shop/StatefulSet/web")
    assert "last: issued 20" in text
    assert "app cpu request 200m -> 900m; " in text


def test_what_cannot_be_done_is_told_with_its_reason(cluster):
    assert "next: Refused (NodeCapacity): the pod would request 12000 of cpu, node n1 has 4000 allocatable" in explain(
        cluster, "shop/StatefulSet/huge"
    )


def test_as_json(cluster):
    story = json.loads(explain(cluster, "shop/StatefulSet/web", "-f", "json"))
    assert (story["schema"], story["subject"]) == ("vpa-ippr.io/explain/v1", "shop/StatefulSet/web")
    (pod,) = story["pods"]
    assert pod["next"] == {"code": "ResizeIssued", "reason": "OutsideBounds", "message": "app cpu request 200m -> 900m"}
    assert pod["containers"]["app"]["current"]["requests"] == {"cpu": "200m", "memory": "1073741824"}
    assert story["vpas"][0]["explanation"] == EXPLANATION


def test_a_damaged_explanation_is_done_without(cluster):
    cluster.store.update("verticalpodautoscalers.autoscaling.k8s.io", "shop", "web", _with_explanation("{not json"))
    assert "app cpu: 900m" in explain(cluster, "shop/StatefulSet/web")


def _with_explanation(text):
    def change(vpa):
        return {**vpa, "metadata": {**vpa["metadata"], "annotations": {"vpa-ippr.io/explanation": text}}}

    return change


@pytest.mark.parametrize(
    ("subject", "code", "words"),
    [
        ("shop/web", 2, "names no workload: give NAMESPACE/KIND/NAME"),
        ("shop/StatefulSet/nobody", 2, "no pod and no VerticalPodAutoscaler of it was found"),
        ("bank/StatefulSet/web", 2, "no pod and no VerticalPodAutoscaler of it was found"),
    ],
)
def test_a_subject_that_is_not_there_is_one_clear_line(cluster, subject, code, words):
    outcome = run("explain", subject, "--kubeconfig", cluster.kubeconfig)
    assert (outcome.code, outcome.out) == (code, "")
    assert words in outcome.err
    assert outcome.err.count("\n") == 1
