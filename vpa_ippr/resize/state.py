"""Where a pod's resize stands, read from the pod alone.

Conditions are the contract (KEP-1287): ``PodResizePending`` means desired != allocated, ``PodResizeInProgress`` means allocated !=
actuated, neither means done or never asked. ``status.resources`` differing from the spec proves nothing by itself, except where the
kubelet reports no ``observedGeneration`` (1.33, also behind a newer API server): there it is the only sign that it has not seen the spec.
A 1.32 kubelet has no conditions, but the string ``status.resize``; newer ones do not set it, and report generations or conditions.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from vpa_ippr.api.meta import Condition, find_condition
from vpa_ippr.api.names import POD_RESIZE_IN_PROGRESS, POD_RESIZE_PENDING
from vpa_ippr.api.pod import Pod
from vpa_ippr.api.timestamps import parse_time
from vpa_ippr.resize.effect import same_in_effect


class PendingReason(StrEnum):
    """Why the kubelet has not taken the spec over."""

    DEFERRED = "Deferred"
    INFEASIBLE = "Infeasible"


class FailureCode(StrEnum):
    """What kind of error the kubelet met; it retries all of them, every 10 to 15 s, without end."""

    BELOW_USAGE = "MemoryLimitBelowUsage"
    USAGE_UNKNOWN = "MemoryUsageUnknown"
    RUNTIME = "RuntimeError"


class InfeasibleCause(StrEnum):
    """What kind of obstacle makes a spec infeasible."""

    NODE_CAPACITY = "NodeCapacity"
    CPU_MANAGER = "StaticCpuManager"
    MEMORY_MANAGER = "StaticMemoryManager"
    SWAP = "Swap"
    OTHER = "Other"


class UnsupportedWhy(StrEnum):
    """Why this pod cannot be resized at all."""

    STATIC_POD = "StaticPod"
    KUBELET_WITHOUT_RESIZE = "KubeletWithoutResize"


_INFEASIBLE_TEXTS = (
    ("enough capacity", InfeasibleCause.NODE_CAPACITY),
    ("cpu manager", InfeasibleCause.CPU_MANAGER),
    ("memory manager", InfeasibleCause.MEMORY_MANAGER),
    ("swap", InfeasibleCause.SWAP),
)


@dataclass(frozen=True, slots=True)
class Idle:
    """No resize is under way."""


@dataclass(frozen=True, slots=True)
class Pending:
    """The kubelet has not admitted the spec; ``since`` is when it said so first, if it told."""

    reason: PendingReason
    message: str
    since: float | None = None


@dataclass(frozen=True, slots=True)
class InProgress:
    """Admitted and being carried out, or not yet looked at by the kubelet."""

    since: float | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """Admitted, but carrying it out met an error; the kubelet goes on trying."""

    code: FailureCode
    message: str
    since: float | None = None


@dataclass(frozen=True, slots=True)
class Unsupported:
    """The pod cannot be resized."""

    why: UnsupportedWhy


ResizeState = Idle | Pending | InProgress | Failed | Unsupported

# The API server writes Proposed (KEP-1287, up to 1.32); no string tells why, nor since when.
_RESIZE_STRINGS: dict[str, ResizeState] = {
    "Proposed": InProgress(),
    "InProgress": InProgress(),
    "Deferred": Pending(PendingReason.DEFERRED, "the kubelet has deferred the resize"),
    "Infeasible": Pending(PendingReason.INFEASIBLE, "the kubelet calls the resize infeasible"),
}


def resize_state(pod: Pod) -> ResizeState:
    """The state of the pod's resize. Raises QuantityError only where the kubelet reports no observedGeneration."""
    if pod.is_mirror:
        return Unsupported(UnsupportedWhy.STATIC_POD)
    if _kubelet_lacks_resize(pod):
        return Unsupported(UnsupportedWhy.KUBELET_WITHOUT_RESIZE)
    observed = pod.status.observed_generation
    if 0 < observed < pod.metadata.generation:
        return InProgress()
    pending = find_condition(pod.status.conditions, POD_RESIZE_PENDING)
    if pending is not None:
        return _pending(pending)
    progress = find_condition(pod.status.conditions, POD_RESIZE_IN_PROGRESS)
    if progress is not None:
        return _progress(progress)
    if observed == 0:
        return _RESIZE_STRINGS.get(pod.status.resize) or (Idle() if in_force(pod) else InProgress())
    return Idle()


def is_ready(pod: Pod) -> bool:
    """True when the pod's condition Ready holds."""
    ready = find_condition(pod.status.conditions, "Ready")
    return ready is not None and ready.status == "True"


def is_complete(pod: Pod) -> bool:
    """The last resize is done: the kubelet has caught up, neither condition is present, and the pod is Ready."""
    return isinstance(resize_state(pod), Idle) and is_ready(pod)


def in_force(pod: Pod) -> bool:
    """True when every running container has what its spec asks for, as far as the kernel can tell the difference."""
    for status in [*pod.status.container_statuses, *pod.status.init_container_statuses]:
        actual = pod.actual(status.name) if status.state.running and pod.container(status.name) else None
        if actual is not None and not same_in_effect(pod.desired(status.name), actual):
            return False
    return True


def classify_failure(message: str) -> FailureCode:
    """The kind of a ``PodResizeInProgress`` error.

    ``missing container "c" memory usage`` and its relatives only mean that the kubelet had no fresh sample: they pass by themselves.
    """
    text = message.lower()
    if "below current usage" in text or "less than current memory usage" in text or "current usage is" in text:
        return FailureCode.BELOW_USAGE
    if _usage_unknown(text):
        return FailureCode.USAGE_UNKNOWN
    return FailureCode.RUNTIME


def classify_infeasible(message: str) -> InfeasibleCause:
    """The obstacle that an Infeasible message names."""
    text = message.lower()
    return next((cause for part, cause in _INFEASIBLE_TEXTS if part in text), InfeasibleCause.OTHER)


def _usage_unknown(text: str) -> bool:
    return ("missing" in text and "memory usage" in text) or "unable to read memory usage" in text


def _kubelet_lacks_resize(pod: Pod) -> bool:
    """The API server's own probe: the first running container has no ``resources`` in its status."""
    running = next((status for status in pod.status.container_statuses if status.state.running), None)
    return running is not None and running.resources is None


def _pending(condition: Condition) -> ResizeState:
    since = _since(condition)
    if condition.reason == PendingReason.INFEASIBLE:
        if _usage_unknown(condition.message.lower()):
            return Failed(FailureCode.USAGE_UNKNOWN, condition.message, since)
        return Pending(PendingReason.INFEASIBLE, condition.message, since)
    # The kubelet rewrites every other admit reason to Deferred, so one that we do not know can only be waited for.
    return Pending(PendingReason.DEFERRED, condition.message, since)


def _progress(condition: Condition) -> ResizeState:
    if condition.reason == "Error":
        return Failed(classify_failure(condition.message), condition.message, _since(condition))
    return InProgress(_since(condition))


def _since(condition: Condition) -> float | None:
    return parse_time(condition.last_transition_time) if condition.last_transition_time else None
