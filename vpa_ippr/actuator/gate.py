"""Who may go on: the order of the shrinks on one node, and what the node as a whole bears."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable

from vpa_ippr.actuator.node_state import NodeState
from vpa_ippr.actuator.policy import Policy
from vpa_ippr.actuator.task import Permission, Task
from vpa_ippr.api.shrink import Phase

_RUNNING = frozenset({Phase.OBSERVING, Phase.SHRINKING, Phase.HOLDING})


class Gate:
    """Gives each task its permission for one tick; without ``node`` only the order among the tasks counts."""

    def __init__(self, policy: Policy, node: NodeState | None) -> None:
        self._policy = policy
        self.node = node

    def look(self) -> None:
        """Look at the node once for a round."""
        if self.node is not None:
            self.node.look()

    def permission(self, task: Task, tasks: Iterable[Task], now: float) -> Permission:
        """What ``task`` may do now."""
        others = [other for other in tasks if other is not task]
        denied_begin, denied_step = self._why_not_begin(task, others), self._why_not_step(others)
        node, budget = self.node, self.node.budget if self.node is not None else None
        paused = node.not_step if node is not None else ""
        return Permission(
            may_observe=not denied_begin,
            may_step=not denied_step,
            may_reclaim=not paused,
            allowance_bytes=budget.left(now) if budget is not None else None,
            pace_bytes_per_second=budget.per_minute_bytes / 60 if budget is not None else None,
            wait_message=paused or (denied_begin if task.state.phase is Phase.PENDING else denied_step),
        )

    def spent(self, amount_bytes: int, now: float) -> None:
        """Note what a task has asked the kernel for."""
        if self.node is not None and self.node.budget is not None:
            self.node.budget.spend(amount_bytes, now)

    def _why_not_begin(self, task: Task, others: Collection[Task]) -> str:
        if any(_is_rival(task, other) for other in others):
            return "another shrink of this pod comes first"
        if _count(others, Phase.OBSERVING) >= self._policy.max_observing:
            return f"{self._policy.max_observing} others are observed on this node"
        return self.node.not_begin if self.node is not None else ""

    def _why_not_step(self, others: Collection[Task]) -> str:
        if _count(others, Phase.SHRINKING) >= self._policy.max_stepping:
            return f"{self._policy.max_stepping} others are brought down on this node"
        return self.node.not_begin if self.node is not None else ""


def jitter_seconds(shrink_uid: str, most_seconds: float) -> float:
    """A delay below ``most_seconds``, the same for the same shrink, so that a restart draws none anew."""
    drawn = int.from_bytes(hashlib.sha256(shrink_uid.encode()).digest()[:4], "big")
    return math.ldexp(drawn, -32) * most_seconds


def _count(tasks: Iterable[Task], phase: Phase) -> int:
    return sum(task.state.phase is phase for task in tasks)


def _is_rival(task: Task, other: Task) -> bool:
    """One shrink a pod at a time; a probation only stands against the same container."""
    if other.subject.pod_uid != task.subject.pod_uid:
        return False
    is_same_container = other.subject.container_id == task.subject.container_id
    return other.state.phase in _RUNNING or (is_same_container and other.state.phase is Phase.COMMITTED)
