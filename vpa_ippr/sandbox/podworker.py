"""One pod on its node: its containers' lives, and the four states of their resources.

Desired is what the pod's spec says; ``allocated`` what the kubelet has admitted; ``actuated`` what it last passed to the runtime; actual
what the running container has. No API here: the kubelet decides when things happen and writes the status.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from vpa_ippr.api.resources import ContainerResources, parse_amounts
from vpa_ippr.sandbox.agenda import Ticket
from vpa_ippr.sandbox.container import Exit, RunningContainer
from vpa_ippr.sandbox.pagecache import KernelSettings
from vpa_ippr.sandbox.workloads import IDLE, ContainerWorkload, FormulaWorkload

Json = dict[str, Any]
# What an init container without a workload of its own takes.
INIT_SECONDS = 1.0
QUOTA_STEP_MILLICORES = 10


class Role(enum.Enum):
    """Where a container stands in its pod."""

    MAIN = "Main"
    SIDECAR = "Sidecar"
    INIT = "Init"


@dataclass(frozen=True, slots=True)
class Ended:
    """A container that is no more."""

    container_id: str
    started_at: float
    exit: Exit


@dataclass(frozen=True, slots=True)
class ResizeCondition:
    """``PodResizePending`` or ``PodResizeInProgress`` while it stands. ``since`` changes with the reason only."""

    reason: str
    message: str
    generation: int
    since: float
    probed_at: float


@dataclass(slots=True)
class ManagedContainer:
    """A container of the spec and its present incarnation, if one runs."""

    name: str
    role: Role
    spec: Json
    workload: ContainerWorkload
    allocated: Json
    actuated: Json
    running: RunningContainer | None = None
    last: Ended | None = None
    done: bool = False
    """It has ended and is not started again."""
    restart_count: int = 0
    backoff_seconds: float = 0.0
    waiting_reason: str = "ContainerCreating"
    waiting_message: str = ""
    restart: Ticket | None = None


@dataclass(slots=True)
class PodWorker:
    """A pod that the kubelet has taken on."""

    pod: Json
    containers: list[ManagedContainer]
    allocated_pod: Json
    actuated_pod: Json
    pending: ResizeCondition | None = None
    in_progress: ResizeCondition | None = None
    pod_max_bytes: int | None = None
    """``memory.max`` of the pod's cgroup; None is ``max``."""
    is_restricted: bool = False
    """The pod's cgroup leaves its containers less than their own limits."""
    started_at: float | None = None
    deleting: bool = False
    admission_failure: str = ""
    retry: Ticket | None = None
    finishing: Ticket | None = None
    sampled_at: float = 0.0
    samples: dict[str, int] = field(default_factory=dict)
    """Memory usage by container, as cAdvisor last saw it."""

    @property
    def uid(self) -> str:
        """The pod's UID."""
        uid: str = self.pod["metadata"]["uid"]
        return uid

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        metadata = self.pod["metadata"]
        return metadata["namespace"], metadata["name"]

    @property
    def generation(self) -> int:
        """Of the spec that the kubelet knows."""
        generation: int = self.pod["metadata"].get("generation", 0)
        return generation

    @property
    def mains(self) -> list[ManagedContainer]:
        """The regular containers."""
        return [container for container in self.containers if container.role is Role.MAIN]

    @property
    def is_terminal(self) -> bool:
        """No container will run any more."""
        failed_init = any(c.done and c.last and c.last.exit.exit_code for c in self.containers if c.role is Role.INIT)
        return bool(self.admission_failure) or failed_init or all(c.done for c in self.mains)

    @property
    def restart_policy(self) -> str:
        """``Always``, ``OnFailure`` or ``Never``."""
        policy: str = self.pod["spec"].get("restartPolicy", "Always")
        return policy

    def running(self) -> list[tuple[ManagedContainer, RunningContainer]]:
        """The containers that run, with their incarnations."""
        return [(container, container.running) for container in self.containers if container.running is not None]

    def usage_bytes(self, now: float) -> dict[str, int]:
        """Memory usage of each running container, page cache included."""
        for _, running in self.running():
            running.advance(now)
        return {container.name: running.memory.usage_bytes for container, running in self.running()}

    def desired_of(self, container: ManagedContainer) -> Json:
        """The resources in the spec that the kubelet knows."""
        spec = find_container(self.pod, container.name)
        return (spec.get("resources") or {}) if spec else {}

    def restarts_on(self, container: ManagedContainer, resource: str) -> bool:
        """True when a change of ``resource`` restarts the container; the policy is the present spec's, since 1.32 lets it change."""
        policies = (find_container(self.pod, container.name) or container.spec).get("resizePolicy") or []
        return any(p["resourceName"] == resource and p["restartPolicy"] == "RestartContainer" for p in policies)

    def start(self, container: ManagedContainer, now: float, inode: int, kernel: KernelSettings, *, rounds_cpu_quota: bool = False) -> None:
        """Start an incarnation with the allocated resources."""
        if container.last is not None:
            container.restart_count += 1
        limits = typed(container.allocated).limits
        spec = container.workload
        digest = hashlib.sha256(f"{self.uid}/{container.name}/{container.restart_count}".encode()).hexdigest()
        container.running = RunningContainer(
            f"containerd://{digest}",
            inode,
            FormulaWorkload(spec),
            now,
            cpu_limit_millicores=_quota_millicores(limits.cpu_millicores, rounds=rounds_cpu_quota),
            memory_limit_bytes=limits.memory_bytes,
            kernel=kernel,
        )
        container.actuated = container.allocated
        container.waiting_reason = container.waiting_message = ""
        container.restart = None
        self.restrict_to_pod_cgroup()

    def restrict_to_pod_cgroup(self) -> None:
        """Let each container feel what the pod's own ``memory.max`` leaves it, where that is less than the containers' limits."""
        running = [r for _, r in self.running()]
        limits = [r.memory.max_bytes for r in running]
        pod_max = self.pod_max_bytes
        self.is_restricted = pod_max is not None and (None in limits or sum(limit or 0 for limit in limits) > pod_max)
        used = sum(r.memory.usage_bytes for r in running)
        for r in running:
            left = None if pod_max is None or not self.is_restricted else max(0, pod_max - used + r.memory.usage_bytes)
            r.memory.outer_max_bytes = left

    def wanted_pod_max(self) -> int | None:
        """The pod's ``memory.max`` for what is allocated: the pod-level limit, or the sum if every container has a limit."""
        own = parse_amounts(self.allocated_pod.get("limits") or {}, "spec.resources.limits").memory_bytes
        if own is not None:
            return own
        limits = [typed(c.allocated).limits.memory_bytes for c in self.containers if c.role is not Role.INIT]
        return None if None in limits else sum(limit or 0 for limit in limits)


def new_worker(pod: Json, workloads: dict[str, ContainerWorkload]) -> PodWorker:
    """A worker for a pod that was just bound, with all that it asks for allocated."""
    spec = pod["spec"]
    entries: Iterable[tuple[Role, Json]] = [
        *((Role.SIDECAR if c.get("restartPolicy") == "Always" else Role.INIT, c) for c in spec.get("initContainers") or []),
        *((Role.MAIN, c) for c in spec["containers"]),
    ]
    containers = [_managed(role, container, workloads.get(container["name"])) for role, container in entries]
    level = spec.get("resources") or {}
    worker = PodWorker(pod, containers, level, level)
    worker.pod_max_bytes = worker.wanted_pod_max()
    return worker


def _managed(role: Role, spec: Json, workload: ContainerWorkload | None) -> ManagedContainer:
    if workload is None:
        workload = ContainerWorkload(finishes_after_seconds=INIT_SECONDS) if role is Role.INIT else IDLE
    resources = spec.get("resources") or {}
    return ManagedContainer(spec["name"], role, spec, workload, resources, resources)


def find_container(pod: Json, name: str) -> Json | None:
    """The container or init container of that name in the spec."""
    spec = pod["spec"]
    return next((c for c in [*spec["containers"], *(spec.get("initContainers") or [])] if c["name"] == name), None)


def typed(resources: Json) -> ContainerResources:
    """CPU and memory of a ``resources`` field that the API server has validated."""
    return ContainerResources(
        requests=parse_amounts(resources.get("requests") or {}, "resources.requests"),
        limits=parse_amounts(resources.get("limits") or {}, "resources.limits"),
    )


def _quota_millicores(limit: int | None, *, rounds: bool) -> int | None:
    """The kernel's smallest quota is 1 ms in 100 ms: limits up to 10m are 10m in effect. systemd rounds up to 10 ms a second (10m)."""
    if limit is None:
        return None
    return max(QUOTA_STEP_MILLICORES, -(-limit // QUOTA_STEP_MILLICORES) * QUOTA_STEP_MILLICORES if rounds else limit)


def apply_limits(running: RunningContainer, resources: ContainerResources, *, systemd_driver: bool, rounds_cpu_quota: bool = False) -> None:
    """Write the limits to a running container, as the runtime's UpdateContainerResources does.

    systemd writes ``memory.high`` from its own store just before ``memory.max`` (cgroup.c), which removes what others wrote there.
    """
    with running.lock:
        if systemd_driver:
            running.memory.set_high(None)
        running.memory.set_max(resources.limits.memory_bytes)
        running.cpu.limit_millicores = _quota_millicores(resources.limits.cpu_millicores, rounds=rounds_cpu_quota)
