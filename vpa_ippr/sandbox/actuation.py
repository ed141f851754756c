"""The container runtime of a node, as its kubelet calls it: one UpdateContainerResources call for one resource of one container.

When both CPU and memory change there are two calls, memory first, and each carries the other resource as it was last told (kubelet,
``updatePodContainerResources``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vpa_ippr.sandbox.node import KubeletSettings
from vpa_ippr.sandbox.podamounts import COMPUTE
from vpa_ippr.sandbox.podworker import ManagedContainer, apply_limits, typed
from vpa_ippr.sandbox.runtimefaults import Failure, NodeFaults

Json = dict[str, Any]


class ContainerRuntime:
    """Carries out the calls, or fails them as the node's settings and faults say."""

    def __init__(self, settings: Callable[[], KubeletSettings], faults: NodeFaults) -> None:
        self._settings = settings
        self._faults = faults

    def update(self, container: ManagedContainer, resource: str, now: float) -> Failure | None:
        """Give a running container the allocated amounts of ``resource``; None when the runtime answers that it has."""
        running, settings = container.running, self._settings()
        if running is None:
            return None
        running.advance(now)
        wanted = typed(with_resource(container.actuated, container.allocated, resource))
        limit, usage = wanted.limits.memory_bytes, running.memory.usage_bytes
        failure = self._faults.next_failure(container.name, limit, usage)
        if failure is not None:
            return failure
        message = settings.runtime_error
        if not message and limit is not None and _lowers_memory(container, limit):
            message = settings.runtime_memory_check.refusal(limit, usage)
        if message:
            return Failure(message)
        apply_limits(running, wanted, systemd_driver=settings.systemd_driver, rounds_cpu_quota=settings.rounds_cpu_quota)
        return None


def with_resource(told: Json, wanted: Json, resource: str) -> Json:
    """What the runtime was told last, with one of CPU and memory as it is wanted now."""
    merged: Json = {}
    for kind in ("requests", "limits"):
        entries = {name: amount for name, amount in (wanted.get(kind) or {}).items() if name not in COMPUTE}
        for name in COMPUTE:
            source = (wanted if name == resource else told).get(kind) or {}
            if name in source:
                entries[name] = source[name]
        if entries:
            merged[kind] = entries
    return merged


def changes(container: ManagedContainer, resource: str) -> bool:
    """Request or limit of the resource is allocated otherwise than the runtime was told."""
    return _amounts(container.allocated, resource) != _amounts(container.actuated, resource)


def raises(container: ManagedContainer, resource: str) -> bool:
    """The limit of the resource does not go down: such updates come after those that lower it."""
    return (_amounts(container.allocated, resource)[1] or 0) >= (_amounts(container.actuated, resource)[1] or 0)


def _amounts(resources: Json, resource: str) -> tuple[int | None, int | None]:
    known = typed(resources)
    if resource == "cpu":
        return known.requests.cpu_millicores, known.limits.cpu_millicores
    return known.requests.memory_bytes, known.limits.memory_bytes


def _lowers_memory(container: ManagedContainer, limit_bytes: int) -> bool:
    before = typed(container.actuated).limits.memory_bytes
    return before is None or limit_bytes < before
