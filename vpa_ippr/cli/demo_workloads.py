"""The workloads of the demo: a dozen characters that a cluster has, as the objects that a user would apply."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

Manifest = dict[str, Any]
Parts = Mapping[str, object]

_WORKLOAD_ANNOTATION = "sandbox.vpa-ippr.io/workload"


@dataclass(frozen=True, slots=True)
class DemoContainer:
    """One container: what it asks for at first, and what it uses (the parts are explained in ``sandbox.workloads``)."""

    name: str
    requests: Mapping[str, str]
    limits: Mapping[str, str]
    use: Parts
    resize_policy: str | None = None


@dataclass(frozen=True, slots=True)
class DemoWorkload:
    """One workload with its VPA. ``character`` is said to the person who watches; ``node`` pins its pods."""

    namespace: str
    name: str
    character: str
    containers: tuple[DemoContainer, ...]
    kind: str = "Deployment"
    replicas: int = 1
    node: str = "node-a"
    vpa: bool = True
    policy: Mapping[str, object] = field(default_factory=dict)
    min_replicas: int = 1


def _app(cpu: tuple[str, str], memory: tuple[str, str], use: Parts, **more: Any) -> DemoContainer:
    """A container named ``app`` with (request, limit) of each resource; an empty limit is none."""
    limits = {name: limit for name, limit in (("cpu", cpu[1]), ("memory", memory[1])) if limit}
    return DemoContainer("app", {"cpu": cpu[0], "memory": memory[0]}, limits, use, **more)


def _steady(level: str, noise: float = 0.03) -> list[Parts]:
    return [{"kind": "steady", "level": level, "noise": noise}]


WORKLOADS: tuple[DemoWorkload, ...] = (
    DemoWorkload(
        "shop",
        "frontend",
        "Steady: three replicas that use a third of what they ask for.",
        (_app(("500m", "1"), ("512Mi", "1Gi"), {"seed": 1, "cpu": _steady("150m", 0.1), "anon": _steady("300Mi")}),),
        replicas=3,
    ),
    DemoWorkload(
        "shop",
        "checkout",
        "Daily rhythm: busy in the afternoon, quiet at night.",
        (
            _app(
                ("200m", ""),
                ("512Mi", "1Gi"),
                {
                    "seed": 2,
                    "cpu": [{"kind": "daily", "low": "40m", "high": "620m", "noise": 0.08}],
                    "anon": [{"kind": "daily", "low": "260Mi", "high": "420Mi"}],
                },
            ),
        ),
        replicas=2,
    ),
    DemoWorkload(
        "shop",
        "catalog",
        "Leaking: 14Mi an hour that never come back, until the limit.",
        (
            _app(
                ("100m", "500m"),
                ("256Mi", "512Mi"),
                {"seed": 3, "cpu": _steady("60m"), "anon": [*_steady("180Mi"), {"kind": "leak", "perHour": "14Mi"}]},
            ),
        ),
    ),
    DemoWorkload(
        "media",
        "thumbnails",
        "Bursty: idle, then six minutes of work and 600Mi every half hour.",
        (
            _app(
                ("250m", "2"),
                ("2Gi", "4Gi"),
                {
                    "seed": 4,
                    "cpu": [*_steady("30m"), {"kind": "burst", "height": "900m", "everySeconds": 1800, "forSeconds": 360}],
                    "anon": [*_steady("150Mi"), {"kind": "burst", "height": "600Mi", "everySeconds": 1800, "forSeconds": 360}],
                },
            ),
        ),
    ),
    DemoWorkload(
        "data",
        "warehouse",
        "Cache-heavy: reads large files once, so that the page cache fills its limit with pages nobody needs again.",
        (
            _app(
                ("500m", "2"),
                ("2Gi", "4Gi"),
                {
                    "seed": 5,
                    "cpu": _steady("300m", 0.1),
                    "anon": _steady("400Mi"),
                    "fileHot": _steady("120Mi", 0.0),
                    "fileCold": _steady("3Gi", 0.0),
                },
            ),
        ),
        kind="StatefulSet",
        node="node-b",
    ),
    DemoWorkload(
        "data",
        "search",
        "Hot cache: its index lives in the page cache, and its owner has capped it below that. The node says no.",
        (
            _app(
                ("500m", "2"),
                ("2Gi", "2Gi"),
                {"seed": 6, "cpu": _steady("400m", 0.1), "anon": _steady("200Mi"), "fileHot": _steady("1100Mi", 0.0)},
            ),
        ),
        kind="StatefulSet",
        node="node-b",
        policy={"maxAllowed": {"memory": "1Gi"}},
    ),
    DemoWorkload(
        "shop",
        "inventory",
        "JVM-like: takes 25 % of its limit as heap in the first hour and never gives it back.",
        (
            _app(
                ("500m", "2"),
                ("1Gi", "3Gi"),
                {
                    "seed": 7,
                    "cpu": [*_steady("180m", 0.15), {"kind": "shift", "height": "900m", "fromSeconds": 0, "untilSeconds": 180}],
                    "anon": [*_steady("160Mi"), {"kind": "ramp", "height": "768Mi", "overSeconds": 3600}],
                },
            ),
        ),
        node="node-b",
    ),
    DemoWorkload(
        "tools",
        "dashboard",
        "Idle: nobody has looked at it for weeks.",
        (_app(("500m", "1"), ("1Gi", "1Gi"), {"seed": 8, "cpu": _steady("1m"), "anon": _steady("30Mi")}),),
    ),
    DemoWorkload(
        "shop",
        "gateway",
        "Over-provisioned: sized for a sale that was last year.",
        (_app(("2", "4"), ("4Gi", "4Gi"), {"seed": 9, "cpu": _steady("220m", 0.1), "anon": _steady("350Mi")}),),
        node="node-c",
    ),
    DemoWorkload(
        "media",
        "importer",
        "OOM-looping: needs 640Mi and was given 384Mi.",
        (
            _app(
                ("200m", "1"),
                ("384Mi", "384Mi"),
                {"seed": 10, "cpu": _steady("120m"), "anon": [*_steady("200Mi"), {"kind": "ramp", "height": "440Mi", "overSeconds": 600}]},
            ),
        ),
    ),
    DemoWorkload(
        "shop",
        "payments",
        "With a sidecar: the proxy beside it is sized by the rule of thumb.",
        (
            _app(("300m", "1"), ("512Mi", "1Gi"), {"seed": 11, "cpu": _steady("200m", 0.1), "anon": _steady("280Mi")}),
            DemoContainer(
                "proxy",
                {"cpu": "500m", "memory": "512Mi"},
                {"cpu": "1", "memory": "1Gi"},
                {"seed": 12, "cpu": _steady("25m"), "anon": _steady("48Mi")},
            ),
        ),
        replicas=2,
        node="node-c",
    ),
    DemoWorkload(
        "data",
        "ledger",
        "Guaranteed: request and limit are equal and must stay so.",
        (_app(("1", "1"), ("2Gi", "2Gi"), {"seed": 13, "cpu": _steady("350m", 0.1), "anon": _steady("700Mi")}),),
        kind="StatefulSet",
        node="node-c",
    ),
    DemoWorkload(
        "data",
        "legacy-cache",
        "RestartContainer: reads its memory limit only at start, so a change of memory restarts it.",
        (
            _app(
                ("200m", "500m"),
                ("2Gi", "2Gi"),
                {"seed": 14, "cpu": _steady("90m"), "anon": _steady("420Mi")},
                resize_policy="RestartContainer",
            ),
        ),
        kind="StatefulSet",
        replicas=2,
        node="node-b",
    ),
    DemoWorkload(
        "ml",
        "trainer",
        "Held back: wants 2.4 CPUs on a node that a batch job fills until it ends.",
        (_app(("500m", ""), ("1Gi", "2Gi"), {"seed": 15, "cpu": _steady("2400m", 0.02), "anon": _steady("820Mi")}),),
        node="node-small",
    ),
    DemoWorkload(
        "ml",
        "simulator",
        "Refused: its owner asks for at least 12 CPUs, which its node does not have.",
        (_app(("500m", ""), ("512Mi", "1Gi"), {"seed": 16, "cpu": _steady("300m"), "anon": _steady("400Mi")}),),
        node="node-small",
        policy={"minAllowed": {"cpu": "12"}},
    ),
)

BATCH_JOB_SECONDS = 38 * 60
NODES: Mapping[str, tuple[str, str]] = {
    "node-a": ("8", "16Gi"),
    "node-b": ("8", "16Gi"),
    "node-c": ("8", "16Gi"),
    "node-small": ("4", "8Gi"),
}


def manifests() -> list[Manifest]:
    """Everything that is applied, in order: namespaces, workloads with their VPAs, and the batch job that fills the small node."""
    namespaces = sorted({workload.namespace for workload in WORKLOADS} | {"ml"})
    objects: list[Manifest] = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in namespaces]
    for workload in WORKLOADS:
        objects.append(_workload(workload))
        if workload.vpa:
            objects.append(_vpa(workload))
    return [*objects, _batch_job()]


def _workload(workload: DemoWorkload) -> Manifest:
    labels = {"app": workload.name}
    spec: Manifest = {
        "replicas": workload.replicas,
        "selector": {"matchLabels": labels},
        "template": _template(labels, workload.containers, workload.node),
    }
    if workload.kind == "StatefulSet":
        spec["serviceName"] = workload.name
    return {
        "apiVersion": "apps/v1",
        "kind": workload.kind,
        "metadata": {"name": workload.name, "namespace": workload.namespace, "labels": labels},
        "spec": spec,
    }


def _template(labels: Mapping[str, str], containers: tuple[DemoContainer, ...], node: str) -> Manifest:
    uses = {container.name: container.use for container in containers}
    return {
        "metadata": {"labels": dict(labels), "annotations": {_WORKLOAD_ANNOTATION: msgspec.json.encode(uses).decode()}},
        "spec": {"nodeName": node, "containers": [_container(container) for container in containers]},
    }


def _container(container: DemoContainer) -> Manifest:
    manifest: Manifest = {
        "name": container.name,
        "image": f"registry.example/{container.name}:1",
        "resources": {"requests": dict(container.requests), "limits": dict(container.limits)},
    }
    if container.resize_policy:
        manifest["resizePolicy"] = [
            {"resourceName": "cpu", "restartPolicy": "NotRequired"},
            {"resourceName": "memory", "restartPolicy": container.resize_policy},
        ]
    return manifest


def _vpa(workload: DemoWorkload) -> Manifest:
    spec: Manifest = {
        "targetRef": {"apiVersion": "apps/v1", "kind": workload.kind, "name": workload.name},
        "recommenders": [{"name": "vpa-ippr"}],
        "updatePolicy": {"updateMode": "InPlace", "minReplicas": workload.min_replicas},
    }
    if workload.policy:
        spec["resourcePolicy"] = {"containerPolicies": [{"containerName": "*", **workload.policy}]}
    return {
        "apiVersion": "autoscaling.k8s.io/v1",
        "kind": "VerticalPodAutoscaler",
        "metadata": {"name": workload.name, "namespace": workload.namespace},
        "spec": spec,
    }


def _batch_job() -> Manifest:
    use = {"seed": 99, "cpu": _steady("2"), "anon": _steady("500Mi"), "finishesAfterSeconds": BATCH_JOB_SECONDS}
    job = DemoContainer("job", {"cpu": "2500m", "memory": "1Gi"}, {"memory": "2Gi"}, use)
    template = _template({"app": "nightly-batch"}, (job,), "node-small")
    template["spec"]["restartPolicy"] = "Never"
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "nightly-batch", "namespace": "ml"},
        "spec": {"template": template, "completions": 1, "parallelism": 1},
    }
