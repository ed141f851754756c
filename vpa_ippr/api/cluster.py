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
    """What of a node decides whether a pod fits: its name, allocatable CPU and memory, and the kubelet's version; and its labels.

    ``declared_features``: what the kubelet declares that it can do (``status.declaredFeatures``, 1.35 and later); empty elsewhere.
    """

    name: str
    allocatable: Amounts = Amounts()
    kubelet_version: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    declared_features: frozenset[str] = frozenset()

    @property
    def shape(self) -> str:
        """Name and size: an infeasible resize is worth another try when this changes."""
        return f"{self.name}/{self.allocatable.cpu_millicores}m/{self.allocatable.memory_bytes}"


@dataclass(frozen=True, slots=True)
class Workload:
    """An object that pods can belong to, its own controller if it has one, and how many replicas it is to have, where it says so."""

    api_version: str
    kind: str
    name: str
    controller: OwnerReference | None = None
    replicas: int | None = None


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """The object that an event is about."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str
