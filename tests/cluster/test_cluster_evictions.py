"""Evictions and HPAs over a real API server."""

import pytest

from vpa_ippr.api.clock import SystemClock
from vpa_ippr.api.meta import ObjectKey
from vpa_ippr.cluster.kube import Kube
from vpa_ippr.cluster.rest import ApiError
from vpa_ippr.resize.reasons import RefusalReason
from vpa_ippr.resize.refusal import Answer, classify

SELECTOR = {"matchLabels": {"app": "web"}}


@pytest.fixture
def kube(cluster):
    return Kube(cluster.rest, SystemClock(), "vpa-ippr-test")


@pytest.fixture
def pod(cluster, namespace):
    made = cluster.pod(namespace, "web-0")
    labelled = {**made["metadata"], "labels": {"app": "web"}}
    made = cluster.store.update("pods", namespace, "web-0", lambda found: {**found, "metadata": {**found["metadata"], **labelled}})
    return ObjectKey(namespace, "web-0"), made["metadata"]["uid"]


def a_budget(cluster, namespace, name, *, allowed):
    status = {"disruptionsAllowed": allowed, "currentHealthy": allowed, "desiredHealthy": 1, "expectedPods": 1, "observedGeneration": 1}
    cluster.create("poddisruptionbudgets.policy", namespace, name, spec={"selector": SELECTOR}, status=status)


def refusal_of(kube, key, uid):
    with pytest.raises(ApiError) as caught:
        kube.evict_pod(key, uid)
    return classify(caught.value)


def test_a_pod_is_evicted(cluster, kube, namespace, pod):
    a_budget(cluster, namespace, "web", allowed=1)
    kube.evict_pod(*pod)
    found = cluster.store.find("pods", namespace, "web-0")
    assert found is None or found["metadata"]["deletionTimestamp"]


def test_a_budget_forbids_it(cluster, kube, namespace, pod):
    a_budget(cluster, namespace, "web", allowed=0)
    refusal = refusal_of(kube, *pod)
    assert (refusal.answer, refusal.reason) == (Answer.REFUSED, RefusalReason.DISRUPTION_BUDGET)
    assert "deletionTimestamp" not in cluster.store.get("pods", namespace, "web-0")["metadata"]


def test_two_budgets_are_one_too_many(cluster, kube, namespace, pod):
    for name in ("web", "all"):
        a_budget(cluster, namespace, name, allowed=1)
    assert refusal_of(kube, *pod).reason is RefusalReason.SEVERAL_BUDGETS


def test_another_pod_of_the_name_is_not_evicted(cluster, kube, namespace, pod):
    assert refusal_of(kube, pod[0], "uid-of-another").answer is Answer.READ_AGAIN
    assert cluster.store.find("pods", namespace, "web-0")


def test_a_pod_that_is_gone(kube, namespace):
    assert refusal_of(kube, ObjectKey(namespace, "web-9"), "uid").answer is Answer.GONE


def test_hpas_come_as_typed_objects(cluster, kube, namespace):
    target = {"type": "Utilization", "averageUtilization": 80}
    spec = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        "maxReplicas": 5,
        "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": target}}],
    }
    cluster.create("horizontalpodautoscalers.autoscaling", namespace, "web", spec=spec)
    (hpa,) = (one for one in kube.list_hpas() if one.metadata.namespace == namespace)
    assert (hpa.spec.scale_target_ref.name, hpa.spec.metrics[0].resource.target.type) == ("web", "Utilization")
