"""What a test makes the container runtime and the statistics of one node do wrong, and for how long.

Two kinds of error are told apart: one that is asked for (the next so many calls fail with a text), and the runtime's own check of a memory
limit against the usage of the moment, which CRI-O has done since 1.34 and runc does with ``checkBeforeUpdate``.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

ANY_CONTAINER = "*"
RUNTIME_TIMEOUT_SECONDS = 120.0
"""``runtimeRequestTimeout``: when the kubelet gives up on a call."""
TIMEOUT_MESSAGE = "rpc error: code = DeadlineExceeded desc = context deadline exceeded"


class MemoryCheck(enum.Enum):
    """Whether the runtime itself refuses a memory limit that is not above the usage, and in whose words."""

    NONE = "none"
    """containerd: the kernel decides, by killing."""
    CRIO = "crio"
    """CRI-O 1.34 and later."""
    RUNC = "runc"
    """runc 1.2 and later where ``memory.checkBeforeUpdate`` is set."""

    def refusal(self, limit_bytes: int, usage_bytes: int) -> str:
        """The error of the call; empty when it goes through."""
        if usage_bytes < limit_bytes or self is MemoryCheck.NONE:
            return ""
        if self is MemoryCheck.CRIO:
            lower = f"cannot decrease memory limit to {limit_bytes} bytes: current usage is {usage_bytes} bytes"
            return f"memory validation failed: {lower}"
        return f"rejecting memory limit {limit_bytes} <= usage {usage_bytes}"


@dataclass(frozen=True, slots=True)
class RuntimeFault:
    """The next ``count`` calls of UpdateContainerResources for a container fail with ``message``.

    ``container`` is a name, or ``*`` for any; ``count`` None is for ever. In the message ``{limit}`` and ``{usage}`` stand for the memory
    limit that is asked for and for the container's memory usage, in bytes. ``seconds`` is how long the call takes to fail.
    """

    message: str = "update container resources failed"
    container: str = ANY_CONTAINER
    count: int | None = 1
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class UsageGap:
    """The next ``count`` checks of a memory decrease find no usage of a container (``*``: of any)."""

    container: str = ANY_CONTAINER
    count: int | None = 1


@dataclass(frozen=True, slots=True)
class Failure:
    """How one call fails."""

    message: str
    seconds: float = 0.0


class NodeFaults:
    """The faults of one node that are still to come; used on the cluster's thread."""

    def __init__(self) -> None:
        self._runtime: list[RuntimeFault] = []
        self._gaps: list[UsageGap] = []

    def set(self, runtime: Iterable[RuntimeFault] = (), gaps: Iterable[UsageGap] = ()) -> None:
        """Have these faults and no others."""
        self._runtime, self._gaps = list(runtime), list(gaps)

    @property
    def runtime(self) -> tuple[RuntimeFault, ...]:
        """The failures of calls that are still to come."""
        return tuple(self._runtime)

    @property
    def gaps(self) -> tuple[UsageGap, ...]:
        """The gaps in the statistics that are still to come."""
        return tuple(self._gaps)

    def next_failure(self, container: str, limit_bytes: int | None, usage_bytes: int) -> Failure | None:
        """How this call fails, if it does; the fault is used up by one."""
        fault = _take(self._runtime, container)
        if fault is None:
            return None
        limit = "max" if limit_bytes is None else str(limit_bytes)
        return Failure(fault.message.replace("{limit}", limit).replace("{usage}", str(usage_bytes)), fault.seconds)

    def hides_usage(self, container: str) -> bool:
        """True when the statistics lack this container now; the gap is used up by one."""
        return _take(self._gaps, container) is not None


FaultT = TypeVar("FaultT", RuntimeFault, UsageGap)


def _take(faults: list[FaultT], container: str) -> FaultT | None:
    """The first fault that is meant for the container; what is left of it stays in the list."""
    for index, fault in enumerate(faults):
        if fault.container in (container, ANY_CONTAINER):
            if fault.count is not None:
                faults[index : index + 1] = [replace(fault, count=fault.count - 1)] if fault.count > 1 else []
            return fault
    return None
