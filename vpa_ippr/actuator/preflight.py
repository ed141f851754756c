"""May this pod's container be shrunk at all? Pure rules over the pod and the request, before its cgroup is looked at."""

from __future__ import annotations

from vpa_ippr.actuator.policy import Policy
from vpa_ippr.actuator.reasons import Reason
from vpa_ippr.actuator.state import Ending
from vpa_ippr.api.errors import ValidationError
from vpa_ippr.api.meta import find_condition
from vpa_ippr.api.names import POD_RESIZE_PENDING
from vpa_ippr.api.pod import ContainerStatus, Pod
from vpa_ippr.api.shrink import MemoryShrink, Phase
from vpa_ippr.api.timestamps import parse_time


def preflight(shrink: MemoryShrink, pod: Pod | None, policy: Policy, now: float) -> Ending | None:
    """Why the shrink must not begin, or None."""
    if pod is None or pod.metadata.uid != shrink.spec.pod.uid:
        return Ending(Phase.GONE, Reason.POD_GONE, f"pod {shrink.spec.pod.name} is no more, or another one bears its name")
    status = pod.container_status(shrink.spec.container.name)
    if status is None or status.container_id != shrink.spec.container.id:
        return Ending(Phase.GONE, Reason.CONTAINER_REPLACED, f"container {shrink.spec.container.name} is another one by now")
    if status.state.running is None:
        return Ending(Phase.GONE, Reason.CONTAINER_EXITED, f"container {status.name} is not running")
    return _refusal(pod, status, policy, now)


def was_oom_killed(pod: Pod | None, container_name: str, container_id: str) -> bool | None:
    """Whether the kubelet says that the container was OOM-killed; None while it has not noticed that it ended."""
    status = pod.container_status(container_name) if pod is not None else None
    if status is None:
        return False
    if status.container_id == container_id and status.state.running is not None:
        return None
    ended = status.state.terminated or status.last_state.terminated
    return ended is not None and ended.reason == "OOMKilled"


def _refusal(pod: Pod, status: ContainerStatus, policy: Policy, now: float) -> Ending | None:
    if pod.is_mirror:
        return Ending(Phase.REFUSED, Reason.STATIC_POD, "a static pod cannot be resized: its file on the node is the truth")
    pending = find_condition(pod.status.conditions, POD_RESIZE_PENDING)
    if pending is not None and pending.status == "True":
        return Ending(
            Phase.REFUSED, Reason.RESIZE_PENDING, f"a resize of the pod is {pending.reason or 'pending'}: another would queue behind it"
        )
    age = now - _started_at(status)
    if age < policy.startup_grace_seconds:
        grace = policy.startup_grace_seconds
        return Ending(Phase.REFUSED, Reason.STARTUP_GRACE, f"runs for {age:.0f} s only: its need shows after {grace:.0f} s")
    return None


def _started_at(status: ContainerStatus) -> float:
    """When the container started; the beginning of time when the kubelet does not say it readably."""
    text = status.state.running.started_at if status.state.running is not None else None
    try:
        return parse_time(text) if text else 0.0
    except ValidationError:
        return 0.0
