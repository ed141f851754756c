"""The kernel as the actuator sees it: one container's memory cgroup, read as a whole and written in two ways.

Two implementations: ``actuator.cgroupfs`` over cgroup v2 files, and the sandbox's memory model. Both keep to these rules:

* A cgroup that is gone is a result, not an error: ``read`` gives None, ``write_high`` does nothing, ``reclaim`` gives False. A restarted
  container is a new cgroup with another ``identity``; a handle never comes to mean another cgroup than the one it was opened on.
* Every other refusal of the kernel raises ``vpa_ippr.api.errors.ActuatorError``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class PodLevel:
    """The cgroup above the container's, which the kubelet gives the sum of the containers' limits."""

    usage_bytes: int
    max_bytes: int | None
    """``memory.max``; None is ``max``."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One look at a memory cgroup.

    ``stat`` is ``memory.stat`` (bytes; ``pg*`` and ``workingset_*`` count pages), ``events`` is ``memory.events``, hierarchical because the
    kernel counts an OOM kill at the cgroup of the victim, which may be a child of the container's. A key that the kernel does not have is
    absent and counts as 0. The four pressure figures are the ever-growing ``total=`` of ``memory.pressure`` and ``io.pressure``.
    """

    usage_bytes: int
    high_bytes: int | None
    """``memory.high``; None is ``max``."""
    max_bytes: int | None
    """``memory.max``; None is ``max``."""
    stat: Mapping[str, int] = field(default_factory=dict)
    events: Mapping[str, int] = field(default_factory=dict)
    memory_some_us: int = 0
    memory_full_us: int = 0
    io_some_us: int = 0
    io_full_us: int = 0
    populated: bool = True
    frozen: bool = False
    peak_bytes: int | None = None
    """Highest usage since the previous ``read`` of the same handle; None where the kernel has no private window (``memory.peak``, 6.12)."""
    swap_bytes: int = 0
    """``memory.swap.current``."""
    swap_free_bytes: int = 0
    """How much more may be swapped out: what ``memory.swap.max`` and the node's swap both leave; 0 where there is no swap."""
    swap_failures: int = 0
    """``fail`` of ``memory.swap.events``: how often swap was full."""
    protected_bytes: int = 0
    """The sum of the children's ``memory.min``, which no reclaim from above takes."""
    pod: PodLevel | None = None
    """None for a cgroup that is not a container's of a pod."""


class Cgroup(Protocol):
    """A handle on one container's memory cgroup."""

    def identity(self) -> int:
        """The cgroup's inode number: another one means another container."""
        ...

    def read(self) -> Snapshot | None:
        """What the kernel says now; None when the cgroup is gone."""
        ...

    def write_high(self, high_bytes: int | None) -> None:
        """Set ``memory.high``, rounded down to a page as the kernel does; None writes ``max``."""
        ...

    def reclaim(self, amount_bytes: int, *, may_swap: bool = False) -> bool:
        """Ask for so much to be freed, from page cache alone unless it ``may_swap``; False when the kernel freed less (EAGAIN)."""
        ...


@runtime_checkable
class Managed(Protocol):
    """A cgroup whose ``memory.high`` a service manager keeps as well, and would write again by itself."""

    def unit_high(self) -> str | None:
        """What the manager held before us, for the journal; None where it is not told of guards."""
        ...

    def take_over(self, unit_high: str | None, guard_bytes: int | None) -> None:
        """Go on from the journal of an agent before us."""
        ...


class CgroupFinder(Protocol):
    """Where a node keeps its containers' cgroups."""

    def find(self, pod_uid: str, container_id: str, qos_class: str) -> Cgroup | None:
        """The cgroup of a running container, or None.

        ``container_id`` is the pod status' ``containerd://<id>``; ``qos_class`` its ``Guaranteed``, ``Burstable`` or ``BestEffort``.
        """
        ...

    def reopen(self, pod_uid: str, container_id: str, qos_class: str) -> Cgroup | None:
        """The same, to put back what was left: also on a node that could shrink nothing any more."""
        ...
