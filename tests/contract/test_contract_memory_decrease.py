"""A memory limit below present use: refused for as long as it is, and cancelled by going back (upstream e2e, memory limit decrease)."""

from __future__ import annotations

import pytest
from contract_cluster import IN_PROGRESS, PENDING, Namespace, condition, is_settled
from contract_pods import Container, Res, guaranteed, has_resources, measured, patch_of, pod_of, restarts, statuses
from contract_steps import BELOW_USAGE, STATS_SECONDS, resize_and_check

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("kubelet")]

TINY = {"cpu": "20m", "memory": "10Ki"}


def shrink_to_almost_nothing(namespace: Namespace) -> None:
    clock = namespace.cluster.clock
    assert clock.wait_until(clock.now() + STATS_SECONDS)
    namespace.resize({"containers": [{"name": "c1", "resources": {"requests": TINY, "limits": TINY}}]})
    pod = namespace.wait("the decrease is refused", "pod", lambda pod: condition(pod, IN_PROGRESS).get("reason") == "Error")
    in_progress = condition(pod, IN_PROGRESS)
    assert BELOW_USAGE.search(in_progress["message"]), in_progress
    assert in_progress["status"] == "True"
    assert in_progress["observedGeneration"] == pod["metadata"]["generation"]
    assert not condition(pod, PENDING)
    assert statuses(pod)["c1"]["allocatedResources"]["memory"] == "10Ki"


def test_a_decrease_below_usage_and_back(namespace: Namespace) -> None:
    namespace.cluster.kubelet_since(34, "memory limits are lowered without a restart")
    before, lower = Container("c1", guaranteed(20, 35)), Container("c1", guaranteed(20, 30))
    namespace.run_pod(pod_of(before))
    resize_and_check(namespace, (before,), (lower,))
    shrink_to_almost_nothing(namespace)
    assert measured(statuses(namespace.pod())["c1"]["resources"]) == guaranteed(20, 30)
    resize_and_check(namespace, (lower,), (before,))


def test_a_refused_decrease_holds_up_the_cpu_of_the_same_request(namespace: Namespace) -> None:
    """Nothing is written before the whole pod has passed the check, and every retry refuses it again."""
    namespace.cluster.kubelet_since(34, "memory limits are lowered without a restart")
    before = Container("c1", Res(cpu=20, cpu_limit=30, memory=0, memory_limit=35))
    namespace.run_pod(pod_of(before))
    resources = {"requests": {"cpu": "25m"}, "limits": {"memory": "10Ki"}}
    namespace.resize({"containers": [{"name": "c1", "resources": resources}]})
    pod = namespace.wait("the decrease is refused", "pod", lambda pod: condition(pod, IN_PROGRESS).get("reason") == "Error")
    since = condition(pod, IN_PROGRESS)["lastTransitionTime"]
    clock = namespace.cluster.clock
    assert clock.wait_until(clock.now() + 2 * STATS_SECONDS)
    pod = namespace.pod()
    assert condition(pod, IN_PROGRESS)["reason"] == "Error"
    assert condition(pod, IN_PROGRESS)["lastTransitionTime"] == since
    assert measured(statuses(pod)["c1"]["resources"]) == before.res
    assert measured({"requests": statuses(pod)["c1"]["allocatedResources"]}).cpu == 25
    resize_and_check(namespace, (before.of(before.res.but(cpu=25)),), (before,))


def test_the_container_restarts_into_a_lower_limit(namespace: Namespace) -> None:
    """With the policy RestartContainer there is no usage to compare with, on any version."""
    before = Container("c1", guaranteed(20, 45), restart=("memory",))
    after = before.of(guaranteed(20, 30))
    namespace.run_pod(pod_of(before))
    resize_and_check(namespace, (before,), (after,))


def test_a_lower_limit_of_a_running_container_on_1_33(namespace: Namespace) -> None:
    namespace.cluster.until(33, "a memory limit cannot be lowered without a restart")
    before = Container("c1", guaranteed(20, 35))
    namespace.run_pod(pod_of(before))
    refusal = namespace.refused(patch_of(before.of(guaranteed(20, 30))))
    assert refusal.code == 422
    assert [cause["field"] for cause in refusal.causes] == ["spec.containers[0].resources.limits[memory]"]
    done = namespace.wait("the pod is left alone", "pod", lambda pod: is_settled(pod) and has_resources(pod, (before,)))
    assert restarts(done) == {"c1": 0}
