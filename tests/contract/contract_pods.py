"""Pods of the contract tests and what becomes of them: CPU in millicores, memory in MiB, as upstream's tables give them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from vpa_ippr.api.quantity import parse_bytes, parse_millicores

Json = dict[str, Any]

IMAGE = "registry.k8s.io/pause:3.10"
EXTENDED = "example.com/contract"
MIB = 1024**2
# Runs until it is stopped, in whatever role; a real container does so by its image.
_ENDLESS: Json = {"anon": [{"kind": "steady", "level": "8Mi"}]}
_WORKLOAD = "sandbox.vpa-ippr.io/workload"


@dataclass(frozen=True)
class Amounts:
    """Millicores and bytes."""

    cpu: int
    memory: int


def amounts_of(listed: Mapping[str, str]) -> Amounts:
    return Amounts(parse_millicores(listed.get("cpu", "0")), parse_bytes(listed.get("memory", "0")))


@dataclass(frozen=True)
class Res:
    """Requests and limits; None is absent."""

    cpu: int | None = None
    cpu_limit: int | None = None
    memory: int | None = None
    memory_limit: int | None = None

    @property
    def requests(self) -> Json:
        return _listed(self.cpu, self.memory)

    @property
    def limits(self) -> Json:
        return _listed(self.cpu_limit, self.memory_limit)

    @property
    def json(self) -> Json:
        return {kind: listed for kind, listed in (("requests", self.requests), ("limits", self.limits)) if listed}

    def but(self, **changes: int | None) -> Res:
        return replace(self, **changes)


def _listed(cpu: int | None, memory: int | None) -> Json:
    listed = {"cpu": None if cpu is None else f"{cpu}m", "memory": None if memory is None else f"{memory}Mi"}
    return {name: text for name, text in listed.items() if text is not None}


def guaranteed(cpu: int, memory: int) -> Res:
    return Res(cpu, cpu, memory, memory)


@dataclass(frozen=True)
class Container:
    """A container; ``restart`` names the resources whose change restarts it, ``role`` is main, sidecar or init."""

    name: str = "c1"
    res: Res = Res()
    restart: tuple[str, ...] = ()
    role: str = "main"
    extended: bool = False

    @property
    def json(self) -> Json:
        resources = self.res.json
        if self.extended:
            resources = {kind: {**listed, EXTENDED: "1"} for kind, listed in resources.items()}
        policies = [{"resourceName": resource, "restartPolicy": "RestartContainer"} for resource in self.restart]
        return {
            "name": self.name,
            "image": IMAGE,
            "resources": resources,
            **({"resizePolicy": policies} if policies else {}),
            **({"restartPolicy": "Always"} if self.role == "sidecar" else {}),
        }

    def of(self, res: Res) -> Container:
        return replace(self, res=res)


def pod_of(*containers: Container, name: str = "pod", level: Res | None = None, **spec: Any) -> Json:
    """The pod; ``level`` are its pod-level resources."""
    inits = [c.json for c in containers if c.role != "main"]
    workloads = {c.name: _ENDLESS for c in containers if c.role == "init"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": {_WORKLOAD: json.dumps(workloads)} if workloads else {}},
        "spec": {
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "containers": [c.json for c in containers if c.role == "main"],
            **({"initContainers": inits} if inits else {}),
            **({"resources": level.json} if level else {}),
            **spec,
        },
    }


def patch_of(*containers: Container, level: Res | None = None) -> Json:
    """The spec of a strategic merge patch that gives those containers their resources."""
    patch: Json = {"resources": level.json} if level else {}
    for field, roles in (("containers", ("main",)), ("initContainers", ("sidecar", "init"))):
        entries = [{"name": c.name, "resources": c.res.json} for c in containers if c.role in roles]
        if entries:
            patch[field] = entries
    return patch


def measured(resources: Json | None) -> Res:
    """CPU and memory of a ``resources`` field; amounts that are no whole MiB are rounded up."""
    found = resources or {}
    values = []
    for kind in ("requests", "limits"):
        listed = found.get(kind) or {}
        values.append(parse_millicores(listed["cpu"]) if "cpu" in listed else None)
        values.append(-(-parse_bytes(listed["memory"]) // MIB) if "memory" in listed else None)
    cpu, memory, cpu_limit, memory_limit = values
    return Res(cpu, cpu_limit, memory, memory_limit)


def specs(pod: Json) -> dict[str, Json]:
    return {entry["name"]: entry for entry in [*(pod["spec"].get("initContainers") or []), *pod["spec"]["containers"]]}


def statuses(pod: Json) -> dict[str, Json]:
    status = pod["status"]
    return {entry["name"]: entry for entry in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]}


def has_resources(pod: Json, containers: Iterable[Container]) -> bool:
    """Desired, allocated and actual resources of each container are those."""
    spec, status = specs(pod), statuses(pod)
    return all(
        measured(spec[c.name].get("resources")) == c.res
        and measured(status[c.name].get("resources")) == c.res
        and measured({"requests": status[c.name].get("allocatedResources")}) == Res(c.res.cpu, None, c.res.memory, None)
        for c in containers
    )


def restarts(pod: Json) -> dict[str, int]:
    return {name: status["restartCount"] for name, status in statuses(pod).items()}


def lowers_memory_limit(before: Container, after: Container) -> bool:
    """A memory limit is lowered without a restart: 1.33 refuses it."""
    was, now = before.res.memory_limit, after.res.memory_limit
    return was is not None and now is not None and now < was and "memory" not in before.restart


def adds_memory_limit(before: Container, after: Container) -> bool:
    """A memory limit is added without a restart: 1.33 refuses it."""
    return before.res.memory_limit is None and after.res.memory_limit is not None and "memory" not in before.restart


def expected_restarts(before: Container, after: Container) -> int:
    """1 when a resource changed whose change restarts the container, requests alone included."""
    was, now = before.res, after.res
    cpu = (was.cpu, was.cpu_limit) != (now.cpu, now.cpu_limit) and "cpu" in before.restart
    memory = (was.memory, was.memory_limit) != (now.memory, now.memory_limit) and "memory" in before.restart
    return int(cpu or memory)
