"""The pod as we read it: the fields of ``v1.Pod`` that a recommendation, a resize or a shrink depends on."""

from __future__ import annotations

import msgspec

from vpa_ippr.api.meta import Condition, ObjectKey, ObjectMeta
from vpa_ippr.api.names import ANNOTATION_MIRROR_POD
from vpa_ippr.api.resources import ContainerResources, ResourceRequirements

POD_LEVEL = "*"
"""The name under which a pod's own resources (KEP-2837) are looked up like those of a container; no container can have it."""


class ResizePolicy(msgspec.Struct, frozen=True, rename="camel"):
    """``v1.ContainerResizePolicy``; ``restart_policy`` is ``NotRequired`` or ``RestartContainer``."""

    resource_name: str
    restart_policy: str


class Container(msgspec.Struct, frozen=True, rename="camel"):
    """``v1.Container``."""

    name: str
    image: str = ""
    resources: ResourceRequirements = ResourceRequirements()
    resize_policy: list[ResizePolicy] = []
    restart_policy: str | None = None

    def restarts_on_resize_of(self, resource: str) -> bool:
        """True when a change of ``resource`` restarts the container (KEP-1287: absent means NotRequired)."""
        return any(p.resource_name == resource and p.restart_policy == "RestartContainer" for p in self.resize_policy)

    @property
    def is_sidecar(self) -> bool:
        """True of an init container that runs beside the others (KEP-753); only init containers have a restart policy of their own."""
        return self.restart_policy == "Always"


class PodOS(msgspec.Struct, frozen=True):
    """``v1.PodOS``."""

    name: str = ""


class PodSpec(msgspec.Struct, frozen=True, rename="camel"):
    """``v1.PodSpec``."""

    containers: list[Container] = []
    init_containers: list[Container] = []
    node_name: str = ""
    priority: int = 0
    restart_policy: str = "Always"
    resources: ResourceRequirements | None = None
    os: PodOS | None = None
    overhead: dict[str, str | int | float] = {}
    priority_class_name: str = ""
    active_deadline_seconds: int | None = None
    runtime_class_name: str | None = None


class ContainerStateRunning(msgspec.Struct, frozen=True, rename="camel"):
    """``v1.ContainerStateRunning``."""

    started_at: str | None = None


class ContainerStateTerminated(msgspec.Struct, frozen=True, rename="camel"):
    """``v1.ContainerStateTerminated``."""

    exit_code: int = 0
    reason: str = ""
    started_at: str | None = None
    finished_at: str | None = None


class ContainerStateWaiting(msgspec.Struct, frozen=True, rename="camel"):
    """``v1.ContainerStateWaiting``."""

    reason: str = ""


class ContainerState(msgspec.Struct, frozen=True, rename="camel"):
    """``v1.ContainerState``: at most one is set."""

    running: ContainerStateRunning | None = None
    terminated: ContainerStateTerminated | None = None
    waiting: ContainerStateWaiting | None = None


class ContainerStatus(msgspec.Struct, frozen=True, rename="camel"):
    """``v1.ContainerStatus``; ``resources`` is what is in force, ``allocated_resources`` what the kubelet admitted (requests only).

    ``started`` is False until the startup probe has succeeded.
    """

    name: str
    container_id: str = msgspec.field(name="containerID", default="")
    ready: bool = False
    restart_count: int = 0
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()
    resources: ResourceRequirements | None = None
    allocated_resources: dict[str, str | int | float] | None = None
    started: bool | None = None


class PodStatus(msgspec.Struct, frozen=True, rename="camel"):
    """``v1.PodStatus``; ``resize`` is what a 1.32 kubelet reports instead of conditions, ``resources`` what is in force at pod level.

    ``node_allocatable_resource_claim_statuses`` (DRA) is only ever asked whether it is there.
    """

    phase: str = ""
    qos_class: str = ""
    start_time: str | None = None
    observed_generation: int = 0
    conditions: list[Condition] = []
    container_statuses: list[ContainerStatus] = []
    init_container_statuses: list[ContainerStatus] = []
    resize: str = ""
    resources: ResourceRequirements | None = None
    allocated_resources: dict[str, str | int | float] | None = None
    node_allocatable_resource_claim_statuses: list[dict[str, object]] = []


class Pod(msgspec.Struct, frozen=True, rename="camel"):
    """``v1.Pod``."""

    metadata: ObjectMeta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def key(self) -> ObjectKey:
        """Namespace and name."""
        return ObjectKey(self.metadata.namespace, self.metadata.name)

    @property
    def is_mirror(self) -> bool:
        """True for the API server's copy of a static pod, which cannot be resized."""
        return ANNOTATION_MIRROR_POD in self.metadata.annotations

    @property
    def has_pod_level(self) -> bool:
        """True when the pod has requests or limits of its own, besides those of its containers."""
        resources = self.spec.resources
        return resources is not None and bool(resources.requests or resources.limits)

    def container(self, name: str) -> Container | None:
        """The container, sidecar or init container of that name; for ``POD_LEVEL`` the pod's own resources as if a container had them."""
        if name == POD_LEVEL:
            resources = self.spec.resources
            return Container(POD_LEVEL, resources=resources) if resources is not None and self.has_pod_level else None
        return next((c for c in [*self.spec.containers, *self.spec.init_containers] if c.name == name), None)

    def container_status(self, name: str) -> ContainerStatus | None:
        """Status of the container, sidecar or init container of that name."""
        statuses = [*self.status.container_statuses, *self.status.init_container_statuses]
        return next((s for s in statuses if s.name == name), None)

    def desired(self, container: str) -> ContainerResources:
        """What the spec asks for, of a container or at ``POD_LEVEL``; raises QuantityError when it cannot be read."""
        found = self.container(container)
        where = f"pod {self.key} spec.resources" if container == POD_LEVEL else f"pod {self.key} spec.containers[{container}].resources"
        return found.resources.parse(where) if found else ContainerResources()

    def actual(self, container: str) -> ContainerResources | None:
        """What is in force according to the kubelet, of a container or at ``POD_LEVEL``; None when it does not report it."""
        if container == POD_LEVEL:
            return self.status.resources.parse(f"pod {self.key} status.resources") if self.status.resources else None
        status = self.container_status(container)
        if status is None or status.resources is None:
            return None
        return status.resources.parse(f"pod {self.key} status.containerStatuses[{container}].resources")
