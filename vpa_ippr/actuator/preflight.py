"""May this pod's container be shrunk at all, and is it still to be? Pure rules over the pod and the request.

Guaranteed pods under a static CPU or memory manager are the updater's to leave alone (``resize.prechecks``): only the kubelet knows its
managers, and says so by calling a resize infeasible.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

from vpa_ippr.actuator.policy import Policy
from vpa_ippr.actuator.reasons import Reason
from vpa_ippr.actuator.state import Ending
from vpa_ippr.api.errors import ValidationError
from vpa_ippr.api.meta import Condition, find_condition
from vpa_ippr.api.names import POD_RESIZE_IN_PROGRESS, POD_RESIZE_PENDING
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
    return next(_refusals(shrink, pod, status, policy, now), None)


def is_being_resized(pod: Pod | None) -> bool:
    """True while the kubelet carries a resize out: mostly the very one whose other half the shrink is, so it is waited for."""
    return pod is not None and _true_condition(pod, POD_RESIZE_IN_PROGRESS) is not None


def no_longer(pod: Pod | None, pod_uid: str, container_name: str, *, was_ready: bool) -> Ending | None:
    """Why a shrink under way must end, by what the kubelet says of its pod; None when it may go on.

    A container that was restarted is seen in its cgroup, at once and more surely.
    """
    if pod is None or pod.metadata.uid != pod_uid:
        return Ending(Phase.GONE, Reason.POD_GONE, "the pod is no more")
    if pod.metadata.deletion_timestamp is not None:
        return Ending(Phase.ABORTED, Reason.POD_DELETING, "the pod is being deleted: it may need its memory to stop")
    status = pod.container_status(container_name)
    if was_ready and status is not None and status.state.running is not None and not status.ready:
        return Ending(Phase.REVERTED, Reason.NOT_READY, f"container {container_name} was ready and is no longer")
    return None


def was_oom_killed(pod: Pod | None, container_name: str, container_id: str) -> bool | None:
    """Whether the kubelet says that the container was OOM-killed; None while it has not noticed that it ended."""
    status = pod.container_status(container_name) if pod is not None else None
    if status is None:
        return False
    if status.container_id == container_id and status.state.running is not None:
        return None
    ended = status.state.terminated or status.last_state.terminated
    return ended is not None and ended.reason == "OOMKilled"


def _refusals(shrink: MemoryShrink, pod: Pod, status: ContainerStatus, policy: Policy, now: float) -> Iterator[Ending]:
    namespace, runtime = shrink.metadata.namespace, pod.spec.runtime_class_name or ""
    pending = _true_condition(pod, POD_RESIZE_PENDING)
    if pod.is_mirror:
        yield _refused(Reason.STATIC_POD, "a static pod cannot be resized: its file on the node is the truth")
    if any(fnmatchcase(namespace, pattern) for pattern in policy.excluded_namespaces):
        yield _refused(Reason.EXCLUDED_NAMESPACE, f"nothing in namespace {namespace} is shrunk on this node")
    if any(fnmatchcase(runtime.lower(), pattern.lower()) for pattern in policy.vm_runtime_classes):
        yield _refused(Reason.VM_RUNTIME, f"RuntimeClass {runtime} keeps the container's memory in a guest: the node cannot bring it down")
    if pod.metadata.deletion_timestamp is not None:
        yield _refused(Reason.POD_DELETING, "the pod is being deleted")
    if pending is not None:
        yield _refused(Reason.RESIZE_PENDING, f"a resize of the pod is {pending.reason or 'pending'}: another would queue behind it")
    if status.started is False:
        yield _refused(Reason.STARTUP_GRACE, f"the startup probe of {status.name} has not succeeded yet")
    age = now - _started_at(status)
    if age < policy.startup_grace_seconds:
        yield _refused(Reason.STARTUP_GRACE, f"runs for {age:.0f} s only: its need shows after {policy.startup_grace_seconds:.0f} s")


def _refused(reason: Reason, message: str) -> Ending:
    return Ending(Phase.REFUSED, reason, message)


def _true_condition(pod: Pod, kind: str) -> Condition | None:
    found = find_condition(pod.status.conditions, kind)
    return found if found is not None and found.status == "True" else None


def _started_at(status: ContainerStatus) -> float:
    """When the container started; the beginning of time when the kubelet does not say it readably."""
    text = status.state.running.started_at if status.state.running is not None else None
    try:
        return parse_time(text) if text else 0.0
    except ValidationError:
        return 0.0
