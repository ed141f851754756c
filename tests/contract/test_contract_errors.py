"""Patches that are refused (upstream e2e ``common/node/pod_resize.go``, patch errors); the pod is as it was afterwards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from contract_cluster import Namespace
from contract_pods import IMAGE, Container, Res, guaranteed, pod_of

pytestmark = pytest.mark.integration

Json = dict[str, Any]
# Nobody schedules these pods: what the API server says to them does not depend on a node.
UNSCHEDULED = {"schedulerName": "contract-nobody"}
QOS = "Pod QOS Class may not change as a result of resizing"
LIMITS = "resource limits cannot be removed"
REQUESTS = "resource requests cannot be removed"
MOVED = "Forbidden: containers may not be renamed or reordered on resize"
BURSTABLE = Res(cpu=20, cpu_limit=30, memory=35, memory_limit=45)
ONE = (Container("c1", BURSTABLE),)
TWO = (Container("c1", BURSTABLE), Container("c2", BURSTABLE))


def resources(name: str = "c1", **kinds: Json | None) -> Json:
    return {"containers": [{"name": name, "resources": kinds}]}


@dataclass(frozen=True)
class Case:
    id: str
    containers: tuple[Container, ...]
    patch: Json
    says: tuple[str, ...]
    until: int | None = None


CASES = (
    Case("best-effort-memory-request", (Container(),), resources(requests={"memory": "35Mi"}), (QOS,)),
    Case("best-effort-cpu-request", (Container(),), resources(requests={"cpu": "20m"}), (QOS,)),
    Case("guaranteed-without-limits", (Container("c1", guaranteed(20, 35)),), resources(limits=None), (LIMITS,)),
    Case(
        "burstable-without-limits-and-more-requests",
        ONE,
        resources(limits={"cpu": None, "memory": None}, requests={"cpu": "25m", "memory": "40Mi"}),
        (LIMITS,),
    ),
    Case("burstable-without-memory-request", (Container("c1", Res(cpu=20, memory=35)),), resources(requests={"memory": None}), (REQUESTS,)),
    Case("burstable-without-cpu-request", (Container("c1", Res(cpu=20, memory=35)),), resources(requests={"cpu": None}), (REQUESTS,)),
    Case(
        "reordered",
        TWO,
        {"$setElementOrder/containers": [{"name": "c2"}, {"name": "c1"}], "containers": [{"name": "c1"}, {"name": "c2"}]},
        tuple(f"spec.containers[{index}].name: {MOVED}" for index in range(2)),
    ),
    Case(
        "renamed",
        (Container("c1-old", BURSTABLE), Container("c2-old", BURSTABLE)),
        {
            "containers": [
                {"name": "c1", "image": IMAGE, "resources": BURSTABLE.json},
                {"name": "c2", "image": IMAGE, "resources": BURSTABLE.json},
                {"name": "c1-old", "$patch": "delete"},
                {"name": "c2-old", "$patch": "delete"},
            ]
        },
        tuple(f"spec.containers[{index}].name: {MOVED}" for index in range(2)),
    ),
    Case("burstable-with-requests-as-limits", ONE, resources(requests={"cpu": "30m", "memory": "45Mi"}), (QOS,)),
    Case(
        "non-restartable-init-container",
        (Container("init", BURSTABLE, role="init"), *ONE),
        {"initContainers": [{"name": "init", "resources": {"requests": {"cpu": "25m"}}}]},
        ("resources for non-sidecar init containers are immutable",),
        until=35,
    ),
    Case("request-above-limit", ONE, resources(requests={"cpu": "31m"}), ("must be less than or equal to cpu limit of 30m",)),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_patch_that_is_refused(namespace: Namespace, case: Case) -> None:
    if case.until is not None:
        namespace.cluster.until(case.until, "this is refused")
    namespace.create_pod(pod_of(*case.containers, **UNSCHEDULED))
    refusal = namespace.refused(case.patch)
    assert (refusal.code, refusal.reason) == (422, "Invalid")
    for text in case.says:
        assert text in refusal.message


def test_ephemeral_storage(namespace: Namespace) -> None:
    pod = pod_of(*ONE, **UNSCHEDULED)
    pod["spec"]["containers"][0]["resources"]["requests"]["ephemeral-storage"] = "1Gi"
    namespace.create_pod(pod)
    refusal = namespace.refused(resources(requests={"ephemeral-storage": "3Gi"}))
    assert (refusal.code, refusal.reason) == (422, "Invalid")
    assert "only cpu and memory resources are mutable" in refusal.message


def test_two_errors_are_listed_with_their_fields(namespace: Namespace) -> None:
    namespace.create_pod(pod_of(Container("c1", guaranteed(20, 35)), **UNSCHEDULED))
    refusal = namespace.refused(resources(limits=None))
    assert [(cause["reason"], cause["field"]) for cause in refusal.causes] == [
        ("FieldValueInvalid", "spec"),
        ("FieldValueForbidden", "spec.containers[0].resources.limits"),
    ]
    assert refusal.message == (
        f'Pod "pod" is invalid: [spec: Invalid value: "Guaranteed": {QOS}, spec.containers[0].resources.limits: Forbidden: {LIMITS}]'
    )
