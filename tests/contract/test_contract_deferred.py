"""Resizes that wait for room on the node, and what the scheduler makes of them (upstream e2e ``node/pod_resize.go``).

Sizes are shares of what is free on the node. Pods have requests alone: what is tested is who gets the room, not how limits are written.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from contract_cluster import MERGE, PENDING, Cluster, Namespace, condition, is_observed, is_ready, is_settled
from contract_pods import Amounts, amounts_of, pod_of, statuses
from contract_pods import Container as Plain

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("kubelet")]

Json = dict[str, Any]
Run = Callable[..., Json]
DEFERRED = re.compile(r"Node didn't have enough resource: cpu, requested: \d+, used: \d+, capacity: \d+")
INFEASIBLE = re.compile(r"Node didn't have enough capacity: cpu, requested: \d+, capacity: \d+")
NODE_CAPACITY = re.compile(r"node didn't have enough allocatable resources: cpu, requested: \d+, allocatable: \d+$")


def requests(amounts: Amounts) -> Json:
    return {"cpu": f"{amounts.cpu}m", "memory": str(amounts.memory)}


def patch(amounts: Amounts, *, limits: bool = False) -> Json:
    resources = {"requests": requests(amounts), **({"limits": requests(amounts)} if limits else {})}
    return {"containers": [{"name": "c1", "resources": resources}]}


def share(free: Amounts, cpu: float, memory: float | None = None) -> Amounts:
    """That part of what is free; without ``memory`` hardly any of it."""
    return Amounts(int(free.cpu * cpu), 32 << 20 if memory is None else int(free.memory * memory))


class Pods:
    """Pods on the one node."""

    def __init__(self, namespace: Namespace, selector: dict[str, str]) -> None:
        self.namespace = namespace
        self._selector = selector

    def create(self, name: str, amounts: Amounts, *, limits: bool = False, **spec: Any) -> Json:
        pod = pod_of(Plain(), name=name, nodeSelector=self._selector, **spec)
        pod["spec"]["containers"][0]["resources"] = patch(amounts, limits=limits)["containers"][0]["resources"]
        return self.namespace.create_pod(pod)

    def run(self, name: str, amounts: Amounts, **options: Any) -> None:
        self.create(name, amounts, **options)
        self.wait_ready(name)

    def wait_ready(self, name: str) -> None:
        self.namespace.wait(f"{name} is ready", name, is_ready)

    def wait_unschedulable(self, name: str) -> None:
        self.namespace.wait(f"{name} finds no node", name, lambda pod: condition(pod, "PodScheduled").get("reason") == "Unschedulable")

    def resize(self, name: str, amounts: Amounts, *, limits: bool = False) -> None:
        self.namespace.resize(patch(amounts, limits=limits), name)

    def wait_resized(self, name: str, amounts: Amounts) -> None:
        def has_them(pod: Json) -> bool:
            status = statuses(pod)["c1"]
            found = [amounts_of(status["allocatedResources"]), amounts_of(status["resources"]["requests"])]
            return is_settled(pod) and found == [amounts, amounts]

        self.namespace.wait(f"{name} is resized", name, has_them)

    def defer(self, name: str, amounts: Amounts, **options: Any) -> Json:
        self.resize(name, amounts, **options)
        return self.namespace.wait_pending("Deferred", name)

    def is_deferred(self, name: str) -> bool:
        return condition(self.namespace.pod(name), PENDING).get("reason") == "Deferred"


@pytest.fixture
def pods(namespace: Namespace, pinned: dict[str, str]) -> Pods:
    return Pods(namespace, pinned)


@pytest.fixture
def free(cluster: Cluster, kubelet: str) -> Amounts:
    return cluster.free()


@pytest.fixture
def important(cluster: Cluster) -> Iterator[str]:
    """The name of a PriorityClass of value 1000."""
    name = f"contract-{uuid.uuid4().hex[:12]}"
    path = "/apis/scheduling.k8s.io/v1/priorityclasses"
    body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": 1000}
    cluster.send("POST", path, {**body, "preemptionPolicy": "Never"})
    yield name
    cluster.send("DELETE", f"{path}/{name}")


def test_the_scheduler_counts_resizes(pods: Pods, free: Amounts) -> None:
    half, third_of_it, quarter = share(free, 1 / 2), share(free, 1 / 6), share(free, 1 / 4)
    pods.run("pod1", half)
    pods.create("pod2", share(free, 1))
    pods.wait_unschedulable("pod2")
    pods.resize("pod2", half)
    pods.wait_ready("pod2")
    pods.create("pod3", quarter)
    pods.wait_unschedulable("pod3")
    pods.resize("pod1", third_of_it)
    pods.wait_ready("pod3")
    pods.wait_resized("pod1", third_of_it)
    pending = pods.defer("pod1", half)
    assert DEFERRED.fullmatch(pending["message"])
    assert amounts_of(statuses(pods.namespace.pod("pod1"))["c1"]["allocatedResources"]) == third_of_it
    pods.namespace.delete_pod("pod2")
    pods.namespace.delete_pod("pod3")
    pods.wait_resized("pod1", half)
    assert pods.namespace.pod("pod1")["metadata"]["generation"] == 3
    assert statuses(pods.namespace.pod("pod1"))["c1"]["restartCount"] == 0


def test_more_than_the_node_has_is_infeasible(pods: Pods, free: Amounts, cluster: Cluster) -> None:
    cluster.until(35, "this is told by a condition")
    small = share(free, 1 / 10)
    pods.run("pod1", small)
    pods.resize("pod1", Amounts(2 * cluster.allocatable().cpu, small.memory))
    pending = pods.namespace.wait_pending("Infeasible", "pod1")
    assert INFEASIBLE.fullmatch(pending["message"])
    pods.resize("pod1", small)
    pods.wait_resized("pod1", small)


def test_more_than_the_node_has_is_refused(pods: Pods, free: Amounts, cluster: Cluster) -> None:
    cluster.since(36, "this is told at once")
    small = share(free, 1 / 10)
    pods.run("pod1", small)
    refusal = pods.namespace.refused(patch(Amounts(2 * cluster.allocatable().cpu, small.memory)), "pod1")
    assert (refusal.code, refusal.reason) == (403, "Forbidden")
    assert NODE_CAPACITY.search(refusal.message)
    assert [cause["reason"] for cause in refusal.causes] == ["NodeCapacity"]
    pods.wait_resized("pod1", small)


def test_a_shrink_makes_room_for_a_deferred_resize(pods: Pods, free: Amounts) -> None:
    pods.run("pod1", share(free, 0.5))
    pods.run("pod2", share(free, 0.2))
    pods.run("pod3", share(free, 0.1))
    pods.defer("pod3", share(free, 0.6))
    pods.resize("pod1", share(free, 0.1))
    pods.wait_resized("pod1", share(free, 0.1))
    pods.wait_resized("pod3", share(free, 0.6))


def test_deferred_resizes_go_by_priority_then_quality_of_service(pods: Pods, free: Amounts, cluster: Cluster, important: str) -> None:
    """All three wait for the same room, the last to ask is the first to get it."""
    cluster.kubelet_since(34, "deferred resizes have an order")
    small, large = share(free, 0.05), share(free, 2 / 3)
    pods.run("pod1", large)
    pods.run("pod2", small, priorityClassName=important)
    pods.run("pod3", small, limits=True)
    pods.run("pod4", small)
    for name in ("pod4", "pod3", "pod2"):
        pods.defer(name, large, limits=name == "pod3")
    pods.namespace.delete_pod("pod1")
    pods.wait_resized("pod2", large)
    assert (pods.is_deferred("pod3"), pods.is_deferred("pod4")) == (True, True)
    pods.resize("pod2", small)
    pods.wait_resized("pod3", large)
    assert pods.is_deferred("pod4")
    pods.namespace.delete_pod("pod3")
    pods.wait_resized("pod4", large)


def test_deferred_resizes_free_each_other(pods: Pods, free: Amounts, cluster: Cluster) -> None:
    """A chain: what each gives up of one resource is what the next one waits for."""
    cluster.kubelet_since(34, "deferred resizes have an order")
    pods.run("pod1", share(free, 0.02, 0.5))
    pods.run("pod2", share(free, 0.5, 0.3))
    pods.run("pod3", share(free, 0.2, 0.15))
    pods.run("pod4", share(free, 0.2, 0.02))
    wanted = {"pod2": share(free, 0.1, 0.6), "pod3": share(free, 0.6, 0.02), "pod4": share(free, 0.2, 0.3)}
    for name, amounts in wanted.items():
        pods.defer(name, amounts)
        clock = cluster.clock
        assert clock.wait_until(clock.now() + 2)  # conditions tell their age in seconds
    pods.namespace.delete_pod("pod1")
    for name, amounts in wanted.items():
        pods.wait_resized(name, amounts)


def test_going_back_cancels_a_deferred_resize(pods: Pods, free: Amounts) -> None:
    small = share(free, 0.1)
    pods.run("pod1", share(free, 0.5))
    pods.run("pod2", small)
    pods.defer("pod2", share(free, 0.8))
    pods.resize("pod2", small)
    pods.wait_resized("pod2", small)
    pods.namespace.delete_pod("pod1")
    clock = pods.namespace.cluster.clock
    assert clock.wait_until(clock.now() + 30)
    pods.wait_resized("pod2", small)
    assert pods.namespace.pod("pod2")["metadata"]["generation"] == 3


def test_a_deferred_resize_can_be_lowered_until_it_fits(pods: Pods, free: Amounts) -> None:
    pods.run("pod1", share(free, 0.5))
    pods.run("pod2", share(free, 0.1))
    pods.defer("pod2", share(free, 0.8))
    pods.resize("pod2", share(free, 0.3))
    pods.wait_resized("pod2", share(free, 0.3))


def test_the_condition_says_of_which_spec_it_speaks(pods: Pods, free: Amounts, cluster: Cluster) -> None:
    cluster.kubelet_since(34, "conditions carry observedGeneration")
    pods.run("pod1", share(free, 0.5))
    pods.run("pod2", share(free, 0.1))
    first = pods.defer("pod2", share(free, 0.8))
    assert first["observedGeneration"] == 2
    clock = cluster.clock
    assert clock.wait_until(clock.now() + 5)
    pods.resize("pod2", share(free, 0.9))
    seen = pods.namespace.wait(
        "the next one is judged", "pod2", lambda pod: is_observed(pod) and condition(pod, PENDING).get("observedGeneration") == 3
    )
    assert condition(seen, PENDING)["lastTransitionTime"] == first["lastTransitionTime"]  # it changes with the reason only


def test_a_deferred_resize_is_not_the_pods_until_it_is_allocated(pods: Pods, free: Amounts) -> None:
    """A container that starts anew meanwhile gets what is allocated."""
    small = share(free, 0.1)
    pods.run("pod1", share(free, 0.5))
    pods.run("pod2", small)
    pods.defer("pod2", share(free, 0.8))
    status = statuses(pods.namespace.pod("pod2"))["c1"]
    assert amounts_of(status["allocatedResources"]) == amounts_of(status["resources"]["requests"]) == small


def test_the_scheduler_reserves_what_a_deferred_resize_asks_for(pods: Pods, free: Amounts) -> None:
    pods.run("pod1", share(free, 0.5))
    pods.run("pod2", share(free, 0.1))
    pods.defer("pod2", share(free, 0.6))
    pods.create("pod3", share(free, 0.2))
    pods.wait_unschedulable("pod3")
    pods.resize("pod2", share(free, 0.1))
    pods.wait_ready("pod3")


def test_labels_do_not_wake_what_does_not_fit(pods: Pods, free: Amounts) -> None:
    """A change of the pod that is no resize leaves the pending one as it is."""
    pods.run("pod1", share(free, 0.5))
    pods.run("pod2", share(free, 0.1))
    before = pods.defer("pod2", share(free, 0.8))
    path = f"{pods.namespace.path}/pods/pod2"
    pods.namespace.cluster.send("PATCH", path, {"metadata": {"labels": {"new": "yes"}}}, MERGE)
    assert pods.namespace.wait_pending("Deferred", "pod2")["lastTransitionTime"] == before["lastTransitionTime"]
