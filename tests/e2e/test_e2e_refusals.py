"""Each reason for which a resize that is due is not made, against a cluster: nothing is asked, and the reason is said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from support.e2e_cluster import Town, amounts, container, deployment, town
from vpa_ippr.api.names import ANNOTATION_MIRROR_POD, ANNOTATION_ROLLOUT_GUARD
from vpa_ippr.resize.rules import rules_for
from vpa_ippr.resize.settings import Settings
from vpa_ippr.sandbox.podfit import NodeSettings

pytestmark = pytest.mark.integration

Json = dict[str, Any]
Act = Callable[[Town], object]
SMALL = container(amounts("200m", "128Mi"), amounts("1", "256Mi"))
LARGE = container(amounts("200m", "512Mi"), amounts("1", "1Gi"))
RESTARTS = container(amounts("200m", "512Mi"), amounts("1", "1Gi"), restart=("memory",))
GUARANTEED = container(amounts("200m", "128Mi"), amounts("200m", "128Mi"))
SIDECAR = {**container(amounts("200m", "128Mi"), amounts("1", "256Mi")), "restartPolicy": "Always"}
GROWTH, DECREASE = ("500m", "128Mi"), ("100m", "128Mi")


@dataclass(frozen=True)
class Row:
    """``town``: how the cluster is; ``before``: what happens once the pods are there; ``cycles``: when the reason is said."""

    reason: str
    containers: tuple[Json, ...] = (SMALL,)
    wanted: tuple[str, str] = GROWTH
    town: Json = field(default_factory=dict)
    pod: Json = field(default_factory=dict)
    vpa: Json = field(default_factory=dict)
    policy: Json = field(default_factory=dict)
    annotations: Json = field(default_factory=dict)
    replicas: int = 1
    settings: Settings = Settings(canary="off")  # noqa: RUF009 - frozen
    before: Act = lambda _found: None
    resizes: int = 0
    name: str = ""
    recommended_for: str = "app"
    code: str = "Refused"
    cycles: int = 1
    between: Act = lambda _found: None


def in_namespace(resource: str, name: str, **parts: Any) -> Act:
    return lambda found: (found.create(resource, {"metadata": {"name": name, "namespace": "shop"}, **parts}), found.run(3))


def status_of_pods(change: Json) -> Act:
    def act(found: Town) -> None:
        for pod in found.pods("web"):
            name = pod["metadata"]["name"]
            found.store.update("pods", "shop", name, lambda one: {**one, "status": {**one["status"], **change}}, subresource="status")

    return act


def node_says(cpu: str) -> Act:
    """The Node object promises more than its kubelet has."""

    def mutate(node: Json) -> Json:
        return {**node, "status": {**node["status"], "allocatable": {**node["status"]["allocatable"], "cpu": cpu}}}

    return lambda found: found.store.update("nodes", None, "node-1", mutate, subresource="status")


def resized_by_somebody(found: Town) -> None:
    def mutate(pod: Json) -> Json:
        pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "300m"
        return pod

    found.store.update("pods", "shop", found.pods("web")[0]["metadata"]["name"], mutate, subresource="resize")
    found.run(30)


def limit_range(kind: str = "Container", **parts: Any) -> Act:
    return in_namespace("limitranges", "limits", spec={"limits": [{"type": kind, **parts}]})


def fill(cpu: str) -> Act:
    filler = {"containers": [container(amounts(cpu, "64Mi"))]}
    return in_namespace("pods", "filler", spec=filler)


PDB = {"spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "web"}}}}
CLAIMS = {"nodeAllocatableResourceClaimStatuses": [{"resourceClaimName": "gpu", "containers": ["app"], "resources": {"cpu": "1"}}]}
POD_LEVEL = {"resources": {"requests": amounts("400m", "256Mi"), "limits": amounts("2", "512Mi")}}

ROWS = (
    Row("BestEffortPod", (container({}),)),
    Row("StaticPod", annotations={ANNOTATION_MIRROR_POD: "x"}, code="Unsupported"),
    Row("WindowsPod", pod={"os": {"name": "windows"}}),
    Row("ResourceClaims", before=status_of_pods(CLAIMS)),
    Row("PodLevelResources", town={"version": "1.34"}, pod=POD_LEVEL),
    Row("QosWouldChange", (GUARANTEED,), vpa={"controlledValues": "RequestsOnly"}, wanted=("100m", "128Mi")),
    Row("VersionForbidsDecrease", (LARGE,), ("200m", "256Mi"), town={"version": "1.33"}),
    Row("VersionForbidsContainer", pod={"initContainers": [{**SIDECAR, "name": "side"}]}, town={"version": "1.32"}, recommended_for="side"),
    Row("ShrinkTooSmall", (SMALL,), ("200m", "120Mi")),
    Row("NodeCapacity", wanted=("20", "128Mi"), name="NodeCapacity-1.36"),
    Row("NodeCapacity", wanted=("20", "128Mi"), town={"version": "1.34"}, name="NodeCapacity-1.34"),
    Row("NodeFull", wanted=("3", "128Mi"), town={"cpu": "4"}, before=fill("2")),
    Row("QuotaWouldExceed", before=in_namespace("resourcequotas", "q", spec={"hard": {"requests.cpu": "400m"}})),
    Row("DisruptionBudget", (RESTARTS,), ("200m", "256Mi"), policy={"minReplicas": 2}, name="DisruptionBudget-minReplicas"),
    Row("DisruptionBudget", (RESTARTS,), ("200m", "256Mi"), replicas=4, before=in_namespace("poddisruptionbudgets.policy", "pdb", **PDB)),
    Row("WaitsForCanary", wanted=DECREASE, replicas=3, settings=Settings(), resizes=1),
    Row("RateLimited", replicas=3, settings=Settings(max_resizes_per_minute=1), resizes=1),
    Row("GuardUnknown", wanted=DECREASE, replicas=2, settings=Settings(), vpa={"annotations": {ANNOTATION_ROLLOUT_GUARD: "up"}}),
    Row("ForeignWriter", resizes=1, cycles=2, between=resized_by_somebody),
    Row("StaticCpuManager", (GUARANTEED,), town={"static_cpu_manager": True}, resizes=2, cycles=3),
    Row("StaticMemoryManager", (GUARANTEED,), ("200m", "256Mi"), town={"static_memory_manager": True}, resizes=2, cycles=3),
    Row("Swap", (SMALL,), ("200m", "192Mi"), town={"swap": True, "version": "1.34"}, resizes=2, cycles=3),
    Row("KnownInfeasible", wanted=("12", "128Mi"), town={"version": "1.34"}, before=node_says("16"), resizes=2, cycles=3),
    Row(
        "VersionForbidsLimit",
        (container(amounts("200m", "128Mi"), amounts("1", "")),),
        town={"version": "1.33"},
        before=limit_range(default={"memory": "256Mi"}),
    ),
)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name or row.reason)
def test_what_is_refused_beforehand(row: Row, tmp_path: Path) -> None:
    with town(tmp_path, **_town(row)) as found:
        _prepare(found, row)
        updater = found.updater(row.settings)
        found.cycle(updater)
        row.between(found)
        found.cycle(updater, row.cycles - 1)
        assert (row.code, row.reason) in found.codes(), found.codes()
        assert found.writes().total() == row.resizes
        # What is said once is not said again, and does not become more by waiting.
        found.cycle(updater, 2)
        assert found.writes().total() == row.resizes or row.reason == "RateLimited"
        assert "Failed" not in {code for code, _ in found.codes()}


def _town(row: Row) -> Json:
    managers = {key: row.town[key] for key in ("static_cpu_manager", "static_memory_manager", "swap") if key in row.town}
    return {**{k: v for k, v in row.town.items() if k not in managers}, **({"node": NodeSettings(**managers)} if managers else {})}


def _prepare(found: Town, row: Row) -> None:
    manifest = deployment("web", row.replicas, *row.containers, nodeName="node-1", **row.pod)
    manifest["spec"]["template"]["metadata"]["annotations"].update(row.annotations)
    vpa = {key: value for key, value in row.vpa.items() if key == "annotations"}
    found.workload(manifest, **vpa, **row.policy)
    if "controlledValues" in row.vpa:
        policy = {"containerPolicies": [{"containerName": "*", "controlledValues": row.vpa["controlledValues"]}]}

        def mutate(one: Json) -> Json:
            return {**one, "spec": {**one["spec"], "resourcePolicy": policy}}

        found.store.update("verticalpodautoscalers.autoscaling.k8s.io", "shop", "web", mutate)
    row.before(found)
    found.recommend("web", *row.wanted, name=row.recommended_for)


# What only the API server knows: it changes between the list of a cycle and its write.


def pods_may_not_be_resized(found: Town) -> None:
    """A role without ``pods/resize``."""
    rbac = {"apiGroups": ["*"], "verbs": ["*"]}
    plurals = ["pods", "nodes", "events", "leases", "limitranges", "resourcequotas", "verticalpodautoscalers", "memoryshrinks"]
    others = ["poddisruptionbudgets", "horizontalpodautoscalers", "deployments", "replicasets", "verticalpodautoscalers/status"]
    role = {"metadata": {"name": "most"}, "rules": [{**rbac, "resources": plurals + others}]}
    found.create("clusterroles.rbac.authorization.k8s.io", role)
    subject = {"kind": "ServiceAccount", "name": "updater", "namespace": "shop"}
    binding = {"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "most"}, "subjects": [subject]}
    found.create("clusterrolebindings.rbac.authorization.k8s.io", {"metadata": {"name": "most"}, **binding})
    token = found.sandbox.api.token_for_service_account("shop", "updater")
    found.use_token(token)


def shrink_the_node(found: Town) -> None:
    node_says("400m")(found)


def quota(found: Town) -> None:
    spec = {"hard": {"requests.cpu": "400m"}}
    status = {"hard": spec["hard"], "used": {"requests.cpu": "200m"}}
    found.create("resourcequotas", {"metadata": {"name": "q", "namespace": "shop"}, "spec": spec, "status": status})


def largest(found: Town) -> None:
    spec = {"limits": [{"type": "Container", "max": {"cpu": "1"}}]}
    found.create("limitranges", {"metadata": {"name": "l", "namespace": "shop"}, "spec": spec})


def pod_is_changed(found: Town) -> None:
    for pod in found.pods("web"):
        name = pod["metadata"]["name"]
        found.store.update("pods", "shop", name, lambda one: {**one, "metadata": {**one["metadata"], "labels": {"app": "web", "x": "y"}}})


def one_budget(found: Town) -> None:
    found.create("poddisruptionbudgets.policy", {"metadata": {"name": "one", "namespace": "shop"}, **PDB})
    found.run(3)


def two_budgets(found: Town) -> None:
    for name in ("one", "two"):
        spec = {"spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "web"}}}}
        found.create("poddisruptionbudgets.policy", {"metadata": {"name": name, "namespace": "shop"}, **spec})
    found.run(3)


@pytest.mark.parametrize(
    ("meanwhile", "reason"), [(one_budget, "DisruptionBudget"), (two_budgets, "SeveralDisruptionBudgets")], ids=["one", "two"]
)
def test_an_eviction_that_the_api_server_refuses(meanwhile: Act, reason: str, tmp_path: Path) -> None:
    with town(tmp_path) as found:
        found.workload(deployment("web", 2, SMALL), "Recreate")
        found.recommend("web", *GROWTH)
        found.renew_admission()
        due = [meanwhile]
        updater = found.updater(guard=lambda: due.pop()(found) if due else None)
        found.cycle(updater)
        assert ("Refused", reason) in found.codes()
        found.cycle(updater, 2)
        assert not found.writes("pods", "eviction", "create")


@pytest.mark.parametrize(
    ("version", "pod", "recommended_for"),
    [("1.34", POD_LEVEL, "app"), ("1.35", POD_LEVEL, "app"), ("1.32", {"initContainers": [{**SIDECAR, "name": "side"}]}, "side")],
    ids=["pod-level-1.34", "pod-level-1.35", "sidecar-1.32"],
)
def test_what_a_server_older_than_we_think_calls_invalid(version: str, pod: Json, recommended_for: str, tmp_path: Path) -> None:
    with town(tmp_path, version=version, node_version="1.36") as found:
        found.workload(deployment("web", 1, SMALL, **pod))
        found.recommend("web", *GROWTH, name=recommended_for)
        updater = found.updater(Settings(canary="off"), rules=rules_for("1.36"))
        found.cycle(updater, 4)
        assert found.codes() == [("Refused", "InvalidResize")]
        assert not found.writes()
        assert len([one for one in found.sandbox.api.audit if one.subresource == "resize" and one.code == 422]) == 1


@pytest.mark.parametrize("dry_run", [False, True], ids=["", "dry-run-first"])
@pytest.mark.parametrize(
    ("meanwhile", "code", "reason"),
    [
        (quota, "Refused", "QuotaExceeded"),
        (largest, "Refused", "LimitRange"),
        (shrink_the_node, "Refused", "NodeCapacity"),
        (pods_may_not_be_resized, "Refused", "PermissionDenied"),
        (pod_is_changed, "Conflict", "Conflict"),
    ],
    ids=["quota", "limit-range", "node-capacity", "rbac", "conflict"],
)
def test_what_the_api_server_refuses(meanwhile: Act, code: str, reason: str, dry_run: bool, tmp_path: Path) -> None:
    with town(tmp_path) as found:
        found.workload(deployment("web", 1, SMALL))
        found.recommend("web", *GROWTH)
        due = [meanwhile]
        if meanwhile is pods_may_not_be_resized:
            due.pop()(found)
        updater = found.updater(Settings(canary="off", dry_run_first=dry_run), guard=lambda: due.pop()(found) if due else None)
        found.cycle(updater)
        assert found.codes() == [(code, reason)]
        assert not found.writes()
        found.cycle(updater, 4)
        if code == "Conflict":
            assert list(found.writes().values()) == [1 + dry_run]
            return
        # It is held off, not asked again each minute.
        assert not found.writes()
        # A missing right is asked for each time: nothing about the pod is to blame.
        refused = [one for one in found.sandbox.api.audit if one.subresource == "resize" and one.code >= 400]
        assert len(refused) == (5 if reason == "PermissionDenied" else 1)
        assert 1 <= len(found.events("ResizeRefused")) <= 2  # the server said it in its words, and then we knew
