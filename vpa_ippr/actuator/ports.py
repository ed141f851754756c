"""What the agent needs of the Kubernetes API. Every method raises ``vpa_ippr.api.errors.ClusterError`` when the API is not there."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from vpa_ippr.actuator.cgroup import Cgroup
from vpa_ippr.actuator.restoring import Verdict
from vpa_ippr.actuator.state import ShrinkState
from vpa_ippr.api.cluster import EventType
from vpa_ippr.api.meta import ObjectKey
from vpa_ippr.api.pod import Pod
from vpa_ippr.api.pod_launch import PodLaunch
from vpa_ippr.api.shrink import MemoryShrink, Phase, ShrinkStatus


class ShrinkPort(Protocol):
    """The MemoryShrinks of a node."""

    def list_shrinks(self, node_name: str) -> list[MemoryShrink]:
        """All of the node's, in any order and phase; one that cannot be decoded is left out and logged."""
        ...

    def patch_shrink_status(self, key: ObjectKey, status: ShrinkStatus) -> None:
        """Replace the status subresource; does nothing when the object is gone."""
        ...

    def record_event(self, shrink: MemoryShrink, kind: EventType, reason: str, message: str) -> None:
        """An event on the shrink's pod."""
        ...


class PodPort(Protocol):
    """The pods that shrinks are about."""

    def get_pod(self, key: ObjectKey) -> Pod | None:
        """The pod as it is now, or None."""
        ...


class LaunchPort(PodPort, Protocol):
    """The pods, and what they run."""

    def get_launch(self, key: ObjectKey) -> PodLaunch | None:
        """How the pod's containers are started, or None."""
        ...


class ConditionPort(Protocol):
    """What the kubelet says of its node."""

    def node_pressures(self, node_name: str) -> frozenset[str]:
        """The types of the node's conditions that are true (``MemoryPressure``, ``DiskPressure``); empty for a node that is not there."""
        ...


class Alarms(Protocol):
    """Wakes the agent between two looks when a container that stands under a guard comes under pressure."""

    def wait(self, cgroups: Sequence[Cgroup], seconds: float) -> bool:
        """Return when one of these is under pressure, or after ``seconds``; whether one was. Keeps watching what is named each time."""
        ...

    def close(self) -> None:
        """Watch nothing any more."""
        ...


@dataclass(frozen=True, slots=True)
class Effort:
    """What the kernel was asked for in one tick of a shrink, and how long it took over that."""

    reclaimed_bytes: int = 0
    reclaim_seconds: float = 0.0


class Observer(Protocol):
    """Is told what the agent does, in its own thread; must be quick and must not raise."""

    def ticked(self, shrink_uid: str, before: ShrinkState, after: ShrinkState, effort: Effort) -> None:
        """A shrink has moved, or stayed as it was."""
        ...

    def recovered(self, verdict: Verdict) -> None:
        """A journal entry of an agent before us was settled, or taken over."""
        ...

    def ended_round(self, phases: Collection[Phase], *, is_cut_off: bool, left_over: int) -> None:
        """All shrinks were looked at: where they are, whether the API is lost, and how many entries are still to be recovered."""
        ...


class Unobserved:
    """Tells nobody."""

    def ticked(self, shrink_uid: str, before: ShrinkState, after: ShrinkState, effort: Effort) -> None:
        """See ``Observer``."""

    def recovered(self, verdict: Verdict) -> None:
        """See ``Observer``."""

    def ended_round(self, phases: Collection[Phase], *, is_cut_off: bool, left_over: int) -> None:
        """See ``Observer``."""
