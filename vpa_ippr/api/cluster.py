"""What the services ask a cluster about besides pods and our own objects: nodes, workloads, and the subjects of events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from vpa_ippr.api.meta import OwnerReference
from vpa_ippr.api.resources import Amounts

EventType = Literal["Normal", "Warning"]


@dataclass(frozen=True, slots=True)
class Node:
    """What of a node decides whether a pod fits: its name, allocatable CPU and memory, and the kubelet's version; and its labels."""

    name: str
    allocatable: Amounts = Amounts()
    kubelet_version: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def shape(self) -> str:
        """Name and size: an infeasible resize is worth another try when this changes."""
        return f"{self.name}/{self.allocatable.cpu_millicores}m/{self.allocatable.memory_bytes}"


@dataclass(frozen=True, slots=True)
class Workload:
    """An object that pods can belong to, and its own controller if it has one."""

    api_version: str
    kind: str
    name: str
    controller: OwnerReference | None = None


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """The object that an event is about."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str
