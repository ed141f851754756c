"""Pods with resources of their own beside their containers' (KEP-5419): resized from 1.36 on, refused before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from contract_cluster import IN_PROGRESS, PENDING, Cluster, Namespace, condition, is_ready, is_settled
from contract_pods import Container, Res, expected_restarts, guaranteed, has_resources, measured, patch_of, pod_of, restarts, statuses
from contract_steps import BELOW_USAGE, STATS_SECONDS

pytestmark = pytest.mark.integration

Json = dict[str, Any]
WHAT = "pod-level resources are resized"
UNSCHEDULED = {"schedulerName": "contract-nobody"}
LEVEL = Res(cpu=40, cpu_limit=60, memory=70, memory_limit=90)
OWN = Res(cpu=20, cpu_limit=30, memory=35, memory_limit=45)
POLICIES = {"none": (), "memory-restart": ("memory",), "cpu-restart": ("cpu",), "both-restart": ("cpu", "memory")}


@dataclass(frozen=True)
class Step:
    """What pod and container have after the resize."""

    id: str
    level: Res = LEVEL
    own: Res = OWN


STEPS = (
    Step("pod-cpu-up", LEVEL.but(cpu=45, cpu_limit=65)),
    Step("pod-memory-up", LEVEL.but(memory=75, memory_limit=95)),
    Step("pod-alone-up", Res(45, 65, 75, 95)),
    Step("pod-alone-down", Res(35, 55, 65, 85)),
    Step("both-up", Res(45, 65, 75, 95), Res(25, 35, 40, 50)),
    Step("both-down", Res(35, 55, 65, 85), Res(15, 25, 30, 40)),
    Step("pod-up-container-down", Res(45, 65, 75, 95), Res(15, 25, 30, 40)),
    Step("pod-down-container-up", Res(35, 55, 65, 85), Res(25, 35, 40, 50)),
)


def has_level(pod: Json, level: Res) -> bool:
    """Desired, allocated and actual resources of the pod itself are those."""
    status = pod["status"]
    found = [measured(pod["spec"].get("resources")), measured(status.get("resources"))]
    return found == [level, level] and measured({"requests": status.get("allocatedResources")}) == Res(level.cpu, None, level.memory, None)


def resize_and_check(namespace: Namespace, level: Res, before: Container, after: Container) -> None:
    old = namespace.pod()
    namespace.resize(patch_of(*([after] if after.res != before.res else []), level=level))
    pod = namespace.wait(
        "the resize is carried out",
        "pod",
        lambda pod: is_settled(pod) and is_ready(pod) and has_level(pod, level) and has_resources(pod, (after,)),
    )
    assert pod["metadata"]["generation"] == old["metadata"]["generation"] + 1
    expected = restarts(old)
    expected[after.name] += expected_restarts(before, after)
    assert restarts(pod) == expected


class TestWithAKubelet:
    @pytest.fixture(autouse=True)
    def _version(self, cluster: Cluster) -> None:
        cluster.kubelet_since(36, WHAT)

    @pytest.mark.parametrize("step", STEPS, ids=lambda step: step.id)
    @pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES.keys())
    def test_up_and_down_and_back(self, namespace: Namespace, policy: tuple[str, ...], step: Step) -> None:
        """The second container has resources by the pod alone."""
        main, bare = Container("c1", OWN, policy), Container("c2")
        namespace.run_pod(pod_of(main, bare, level=LEVEL))
        resize_and_check(namespace, step.level, main, main.of(step.own))
        resize_and_check(namespace, LEVEL, main.of(step.own), main)

    @pytest.mark.parametrize(
        ("before", "after"),
        [
            (Res(cpu=40, memory=70), LEVEL),
            (Res(cpu=40), LEVEL),
            (Res(cpu=40, cpu_limit=60), LEVEL),
        ],
        ids=["limits", "memory-and-limits", "memory"],
    )
    def test_what_was_absent_is_added(self, namespace: Namespace, before: Res, after: Res) -> None:
        bare = Container("c1")
        namespace.run_pod(pod_of(bare, level=before))
        resize_and_check(namespace, after, bare, bare)

    def test_guaranteed_by_the_pod_alone(self, namespace: Namespace) -> None:
        bare = Container("c1")
        assert namespace.run_pod(pod_of(bare, level=guaranteed(20, 35)))["status"]["qosClass"] == "Guaranteed"
        resize_and_check(namespace, guaranteed(25, 40), bare, bare)
        resize_and_check(namespace, guaranteed(20, 35), bare, bare)

    def test_values_that_are_the_same_to_the_kernel(self, namespace: Namespace) -> None:
        bare = Container("c1")
        level = Res(cpu=2, cpu_limit=10, memory=35, memory_limit=45)
        namespace.run_pod(pod_of(bare, level=level))
        resize_and_check(namespace, level.but(cpu=1, cpu_limit=5), bare, bare)
        resize_and_check(namespace, level, bare, bare)

    def test_a_limit_below_usage_and_back(self, namespace: Namespace) -> None:
        bare = Container("c1")
        namespace.run_pod(pod_of(bare, level=guaranteed(20, 35)))
        clock = namespace.cluster.clock
        assert clock.wait_until(clock.now() + STATS_SECONDS)
        tiny = {"cpu": "20m", "memory": "10Ki"}
        namespace.resize({"resources": {"requests": tiny, "limits": tiny}})
        pod = namespace.wait("the decrease is refused", "pod", lambda pod: condition(pod, IN_PROGRESS).get("reason") == "Error")
        assert BELOW_USAGE.search(condition(pod, IN_PROGRESS)["message"])
        assert not condition(pod, PENDING)
        assert measured(pod["status"]["resources"]) == guaranteed(20, 35)
        assert statuses(pod)["c1"]["restartCount"] == 0
        resize_and_check(namespace, guaranteed(20, 35), bare, bare)


@dataclass(frozen=True)
class Refused:
    id: str
    patch: Json
    says: str
    field: str = "spec.resources"
    level: Res = LEVEL
    own: Res = OWN


REFUSED = (
    Refused("removed", {"resources": None}, "pod-level resources cannot be removed"),
    Refused(
        "requests-removed", {"resources": {"requests": {"memory": None}}}, "pod-level resource requests cannot be removed",
        "spec.resources.requests", Res(cpu=40, memory=70), Res(cpu=20),
    ),
    Refused(
        "limits-removed", {"resources": {"limits": {"cpu": None}}}, "pod-level resource limits cannot be removed", "spec.resources.limits"
    ),
    Refused(
        "container-above-the-pod",
        {"containers": [{"name": "c1", "resources": {"limits": {"cpu": "61m"}}}]},
        "must be less than or equal to pod limits of 60m",
        "spec.resources.containers[0][cpu].limits",
    ),
    Refused(
        "to-guaranteed",
        {"resources": {"requests": {"cpu": "60m", "memory": "90Mi"}}},
        "Pod QOS Class may not change as a result of resizing",
        "spec",
    ),
)  # fmt: skip


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.id)
def test_a_patch_that_is_refused(namespace: Namespace, case: Refused) -> None:
    namespace.cluster.since(36, WHAT)
    namespace.create_pod(pod_of(Container("c1", case.own), level=case.level, **UNSCHEDULED))
    refusal = namespace.refused(case.patch)
    assert (refusal.code, refusal.reason) == (422, "Invalid")
    assert case.says in refusal.message
    assert case.field in [cause["field"] for cause in refusal.causes]


GATE_OFF = (
    "resize of pods with pod-level resources is forbidden when InPlacePodLevelResourcesVerticalScalingEnabled feature gate is disabled"
)


@pytest.mark.parametrize(("minor", "says"), [(34, "pods with pod-level resources cannot be resized"), (35, GATE_OFF)], ids=["1.34", "1.35"])
@pytest.mark.parametrize("patch", [patch_of(level=LEVEL.but(cpu=45)), patch_of(Container("c1", OWN.but(cpu=25)))], ids=["pod", "container"])
def test_such_pods_are_not_resized_at_all(namespace: Namespace, minor: int, says: str, patch: Json) -> None:
    namespace.cluster.since(minor, "these words are used")
    namespace.cluster.until(minor, "these words are used")
    namespace.create_pod(pod_of(Container("c1", OWN), level=LEVEL, **UNSCHEDULED))
    refusal = namespace.refused(patch)
    assert (refusal.code, refusal.reason) == (422, "Invalid")
    assert refusal.message == f'Pod "pod" is invalid: []: Forbidden: {says}'


def test_an_older_server_drops_them(namespace: Namespace) -> None:
    namespace.cluster.until(33, "pod-level resources are dropped")
    assert "resources" not in namespace.create_pod(pod_of(Container("c1", OWN), level=LEVEL, **UNSCHEDULED))["spec"]
