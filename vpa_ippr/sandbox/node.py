"""A simulated node: its size, the settings of its kubelet, and its Node object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vpa_ippr.api.quantity import format_bytes_binary, format_millicores
from vpa_ippr.api.timestamps import format_time
from vpa_ippr.sandbox.pagecache import KernelSettings
from vpa_ippr.sandbox.podfit import NodeSettings
from vpa_ippr.sandbox.runtimefaults import MemoryCheck
from vpa_ippr.sandbox.versions import VersionProfile

Json = dict[str, Any]
GIB = 1024**3
# Of the features that a resize may need, those that a kubelet with default gates has (1.36 and later declare them).
DECLARED_FEATURES = ("InPlacePodLevelResourcesVerticalScaling", "InPlacePodVerticalScalingInitContainers")


@dataclass(frozen=True, slots=True)
class KubeletSettings:
    """How one simulated kubelet behaves; the defaults are a real one's."""

    start_seconds: float = 1.0
    """From binding, or from a restart, to the container running: images are present."""
    status_seconds: float = 1.0
    """From a finished actuation to its status: the PLEG relists each second."""
    termination_seconds: float = 1.0
    """How long containers take to stop, at most their grace period."""
    stats_lag_seconds: float = 10.0
    """Age that the usage in the check of a memory decrease may have (cAdvisor housekeeping, 10 to 15 s); 0 reads it fresh."""
    retry_seconds: float = 12.0
    """After a refused or failed actuation (real: 10 s times 1 to 1.5)."""
    first_deferred_retry_seconds: float = 30.0
    """After the start, and then each ``deferred_retry_seconds``, deferred resizes are tried again."""
    deferred_retry_seconds: float = 180.0
    backoff_seconds: float = 10.0
    """Wait before the second restart of a crashing container; doubles up to ``max_backoff_seconds``."""
    max_backoff_seconds: float = 300.0
    restart_seconds: float = 5.0
    """From the death of the kubelet's process to the next one that has synchronised with the API server."""
    systemd_driver: bool = True
    """systemd writes ``memory.high`` back to its own value whenever it applies a container's memory limit."""
    rounds_cpu_quota: bool = False
    """The runtime rounds a container's CPU quota up to systemd's 10 ms a second (417m is 420m, in the status too), as recent runc does."""
    raises_pod_cgroup_of_stopped: bool | None = None
    """Whether the pod's memory.max follows a resize that is accepted while no container runs (kubernetes#138760); None: by version."""
    runtime_error: str = ""
    """What every UpdateContainerResources call fails with, if anything."""
    runtime_memory_check: MemoryCheck = MemoryCheck.NONE
    """Whether the runtime itself refuses a memory limit that is not above the usage."""
    node: NodeSettings = field(default_factory=NodeSettings)
    """CPU and memory manager policies, and swap."""
    kernel: KernelSettings = field(default_factory=KernelSettings)


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A node to simulate. What is reserved is not allocatable; ``kubelet_version`` None is the API server's own (it may be older)."""

    name: str
    cpu_millicores: int = 8000
    memory_bytes: int = 32 * GIB
    reserved_cpu_millicores: int = 0
    reserved_memory_bytes: int = 0
    pods: int = 110
    labels: Mapping[str, str] = field(default_factory=dict)
    kubelet: KubeletSettings = field(default_factory=KubeletSettings)
    kubelet_version: str | None = None

    @property
    def allocatable_cpu_millicores(self) -> int:
        """What pods may request."""
        return self.cpu_millicores - self.reserved_cpu_millicores

    @property
    def allocatable_memory_bytes(self) -> int:
        """What pods may request."""
        return self.memory_bytes - self.reserved_memory_bytes


def node_object(spec: NodeSpec, profile: VersionProfile, now: float) -> Json:
    """The v1.Node of a node that is up."""
    moment = format_time(now)
    status: Json = {
        "capacity": _resources(spec.cpu_millicores, spec.memory_bytes, spec.pods),
        "allocatable": _resources(spec.allocatable_cpu_millicores, spec.allocatable_memory_bytes, spec.pods),
        "addresses": [{"type": "Hostname", "address": spec.name}],
        "conditions": [
            _condition("MemoryPressure", "False", "KubeletHasSufficientMemory", moment),
            _condition("DiskPressure", "False", "KubeletHasNoDiskPressure", moment),
            _condition("PIDPressure", "False", "KubeletHasSufficientPID", moment),
            _condition("Ready", "True", "KubeletReady", moment),
        ],
        "nodeInfo": {
            "kubeletVersion": f"v{spec.kubelet_version or profile.version}.0",
            "containerRuntimeVersion": "containerd://2.3.0",
            "kernelVersion": "6.12.0",
            "osImage": "vpa-ippr sandbox",
            "operatingSystem": "linux",
            "architecture": "amd64",
            "machineID": "",
            "systemUUID": "",
            "bootID": "",
            "kubeProxyVersion": "",
        },
    }
    if profile.declared_features_checked:
        status["declaredFeatures"] = list(DECLARED_FEATURES)
    labels = {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", "kubernetes.io/hostname": spec.name, **spec.labels}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": spec.name, "labels": labels}, "spec": {}, "status": status}


def _resources(cpu_millicores: int, memory_bytes: int, pods: int) -> Json:
    return {"cpu": format_millicores(cpu_millicores), "memory": format_bytes_binary(memory_bytes), "pods": str(pods)}


def _condition(kind: str, status: str, reason: str, moment: str) -> Json:
    return {"type": kind, "status": status, "reason": reason, "lastHeartbeatTime": moment, "lastTransitionTime": moment}
