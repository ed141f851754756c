"""What the node as a whole bears: is it calm enough to begin and to go on, and how much may be reclaimed on it in a minute.

Shrinks of many containers add up on one disk. The node's own pressure is read from ``/proc/pressure``, the kubelet's view from the node
object's conditions, and all steps together share one budget.
"""

from __future__ import annotations

import collections
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from vpa_ippr.actuator.policy import Policy

_MINUTE_SECONDS = 60.0
_BLOCKING_CONDITIONS = ("MemoryPressure", "DiskPressure")
_AVG10 = re.compile(r"^some avg10=([0-9.]+)", re.MULTILINE)
_MEM_TOTAL = re.compile(r"^MemTotal:\s+(\d+) kB", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class NodeLook:
    """The node's pressure over the last ten seconds, in percent of wall time."""

    memory_some_percent: float
    io_some_percent: float


class NodeReader(Protocol):
    """Where the node's figures come from."""

    def look(self) -> NodeLook | None:
        """The pressure now; None when it cannot be read."""
        ...

    def memory_total_bytes(self) -> int | None:
        """The node's memory; None when it cannot be read."""
        ...


class ProcNode:
    """The files of the host's ``/proc``."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc

    def look(self) -> NodeLook | None:
        """``some avg10`` of memory and I/O."""
        memory, io = (self._find(f"pressure/{name}", _AVG10) for name in ("memory", "io"))
        return None if memory is None or io is None else NodeLook(float(memory), float(io))

    def memory_total_bytes(self) -> int | None:
        """``MemTotal``."""
        total = self._find("meminfo", _MEM_TOTAL)
        return None if total is None else 1024 * int(total)

    def _find(self, name: str, pattern: re.Pattern[str]) -> str | None:
        try:
            match = pattern.search((self._proc / name).read_text())
        except OSError:
            return None
        return match[1] if match is not None else None


def why_not_begin(look: NodeLook | None, conditions: frozenset[str], policy: Policy) -> str:
    """Why no shrink should begin on this node now; empty when it is calm."""
    reported = [name for name in _BLOCKING_CONDITIONS if name in conditions]
    if reported:
        return f"the kubelet reports {' and '.join(reported)}"
    if look is None:
        return "the node's pressure cannot be read"
    if look.memory_some_percent >= policy.node_memory_some_percent:
        return f"the node stalls on memory {look.memory_some_percent:.1f} % of the time"
    if look.io_some_percent >= policy.node_io_some_percent:
        return f"the node waits for I/O {look.io_some_percent:.1f} % of the time"
    return ""


def why_not_step(look: NodeLook | None, policy: Policy) -> str:
    """Why the steps that are under way should pause; empty when they may go on."""
    if look is not None and look.io_some_percent > policy.node_pause_io_some_percent:
        return f"steps pause while the node waits for I/O {look.io_some_percent:.1f} % of the time"
    return ""


class ReclaimBudget:
    """What all steps on the node may ask for in any minute; a node too small for one least step a minute gets that one."""

    def __init__(self, memory_total_bytes: int, policy: Policy) -> None:
        self.per_minute_bytes = max(policy.step_min_bytes, int(policy.reclaim_node_share_per_minute * memory_total_bytes))
        self._spent: collections.deque[tuple[float, int]] = collections.deque()

    def left(self, now: float) -> int:
        """What may be asked for now."""
        while self._spent and not now - _MINUTE_SECONDS < self._spent[0][0] <= now:
            self._spent.popleft()
        return max(0, self.per_minute_bytes - sum(amount for _, amount in self._spent))

    def spend(self, amount_bytes: int, now: float) -> None:
        """Note what was asked for."""
        if amount_bytes:
            self._spent.append((now, amount_bytes))


class NodeState:
    """The limits of one node at each round of its agent."""

    def __init__(self, reader: NodeReader, policy: Policy) -> None:
        self._reader = reader
        self._policy = policy
        total = reader.memory_total_bytes()
        is_bounded = total is not None and policy.reclaim_node_share_per_minute < 1
        self.budget = ReclaimBudget(total, policy) if total is not None and is_bounded else None
        self.conditions: frozenset[str] = frozenset()
        """The true conditions of the node object, as last heard."""
        self.not_begin = self.not_step = ""
        """Why nothing should begin, and why steps should pause."""

    def look(self) -> None:
        """Look at the node once for a round."""
        seen = self._reader.look()
        self.not_begin = why_not_begin(seen, self.conditions, self._policy)
        self.not_step = why_not_step(seen, self._policy)
