"""Reading a pod's resize state."""

import msgspec
import pytest
from resize_support import READY, a_container, a_pod, requirements

from vpa_ippr.api.meta import Condition
from vpa_ippr.api.pod import ContainerState, ContainerStateWaiting
from vpa_ippr.resize.state import (
    Failed,
    FailureCode,
    Idle,
    InfeasibleCause,
    InProgress,
    Pending,
    PendingReason,
    Unsupported,
    UnsupportedWhy,
    classify_failure,
    classify_infeasible,
    is_complete,
    resize_state,
)

APP = a_container(cpu="100m", memory="128Mi", memory_limit="256Mi")
CAPACITY = "Node didn't have enough capacity: cpu, requested: 4000, capacity: 2000"
SHORT = "Node didn't have enough resource: cpu, requested: 1000, used: 1500, capacity: 2000"
BELOW = 'cannot decrease memory limits: attempting to set container "app" memory limit (1024) below current usage (4096)'


def pending(reason: str, message: str = "") -> Condition:
    return Condition("PodResizePending", "True", reason, message, "2026-01-01T00:00:00Z")


def in_progress(reason: str = "", message: str = "") -> Condition:
    return Condition("PodResizeInProgress", "True", reason, message, "2026-01-01T00:00:00Z")


AT = 1767225600.0


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        pytest.param([READY], Idle(), id="none"),
        pytest.param([pending("Deferred", SHORT)], Pending(PendingReason.DEFERRED, SHORT, AT), id="deferred"),
        pytest.param([pending("Infeasible", CAPACITY)], Pending(PendingReason.INFEASIBLE, CAPACITY, AT), id="infeasible"),
        pytest.param([pending("OutOfcpu", SHORT)], Pending(PendingReason.DEFERRED, SHORT, AT), id="unknown-reason-is-waited-for"),
        pytest.param(
            [pending("Infeasible", 'missing container "app" memory usage')],
            Failed(FailureCode.USAGE_UNKNOWN, 'missing container "app" memory usage', AT),
            id="transient-message-is-never-infeasible",
        ),
        pytest.param([in_progress()], InProgress(AT), id="in-progress"),
        pytest.param([in_progress("Error", BELOW)], Failed(FailureCode.BELOW_USAGE, BELOW, AT), id="error"),
        pytest.param(
            [in_progress("Error", BELOW), pending("Deferred", SHORT)],
            Pending(PendingReason.DEFERRED, SHORT, AT),
            id="newer-pending-over-error",
        ),
    ],
)
def test_conditions_decide(conditions, expected):
    assert resize_state(a_pod(APP, conditions=tuple(conditions))) == expected


def test_an_old_observed_generation_means_that_the_kubelet_has_not_looked():
    pod = a_pod(APP)
    patched = msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, generation=2))
    assert resize_state(patched) == InProgress()


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        pytest.param(requirements(cpu="100m", memory="128Mi", memory_limit="256Mi"), Idle(), id="in-force"),
        pytest.param(requirements(cpu="100m", memory="128Mi", memory_limit="512Mi"), InProgress(), id="limit-not-yet"),
        pytest.param(requirements(cpu="100m", memory="134217729", memory_limit="256Mi"), Idle(), id="same-page"),
    ],
)
def test_without_observed_generation_what_is_in_force_decides(actual, expected):
    pod = a_pod(APP)
    statuses = [msgspec.structs.replace(pod.status.container_statuses[0], resources=actual)]
    status = msgspec.structs.replace(pod.status, observed_generation=0, container_statuses=statuses)
    assert resize_state(msgspec.structs.replace(pod, status=status)) == expected


def test_a_static_pod_is_unsupported():
    pod = a_pod(APP, annotations={"kubernetes.io/config.mirror": "x"})
    assert resize_state(pod) == Unsupported(UnsupportedWhy.STATIC_POD)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        pytest.param(None, Unsupported(UnsupportedWhy.KUBELET_WITHOUT_RESIZE), id="running-without-resources"),
        pytest.param(ContainerState(waiting=ContainerStateWaiting("CrashLoopBackOff")), Idle(), id="no-running-container-passes"),
    ],
)
def test_a_kubelet_without_resize_is_recognised_by_its_status(state, expected):
    pod = a_pod(APP)
    first = msgspec.structs.replace(pod.status.container_statuses[0], resources=None)
    if state is not None:
        first = msgspec.structs.replace(first, state=state)
    status = msgspec.structs.replace(pod.status, container_statuses=[first])
    assert resize_state(msgspec.structs.replace(pod, status=status)) == expected


@pytest.mark.parametrize(
    ("conditions", "complete"),
    [
        pytest.param((READY,), True, id="ready"),
        pytest.param((), False, id="not-ready"),
        pytest.param((READY, in_progress()), False, id="in-progress"),
    ],
)
def test_completion_needs_idle_and_ready(conditions, complete):
    assert is_complete(a_pod(APP, conditions=conditions)) is complete


@pytest.mark.parametrize(
    ("message", "code"),
    [
        pytest.param(BELOW, FailureCode.BELOW_USAGE, id="kubelet"),
        pytest.param(
            "memory validation failed: cannot decrease memory limit to 1 bytes: current usage is 2 bytes",
            FailureCode.BELOW_USAGE,
            id="cri-o",
        ),
        pytest.param(
            "aborting attempt to set pod memory limit less than current memory usage for pod web-0", FailureCode.BELOW_USAGE, id="1.33"
        ),
        pytest.param("cannot decrease memory limits: missing pod memory usage", FailureCode.USAGE_UNKNOWN, id="no-sample"),
        pytest.param('unable to read memory usage for pod "shop_web-0(u)"', FailureCode.USAGE_UNKNOWN, id="stats-failed"),
        pytest.param("rpc error: code = Unknown desc = runc did not terminate", FailureCode.RUNTIME, id="runtime"),
    ],
)
def test_errors_are_told_apart(message, code):
    assert classify_failure(message) is code


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        pytest.param(CAPACITY, InfeasibleCause.NODE_CAPACITY, id="capacity"),
        pytest.param(
            'Resize is infeasible for Guaranteed Pods alongside CPU Manager policy "static"', InfeasibleCause.CPU_MANAGER, id="cpu-manager"
        ),
        pytest.param(
            'Resize is infeasible for Guaranteed Pods alongside Memory Manager policy "Static"',
            InfeasibleCause.MEMORY_MANAGER,
            id="memory-manager",
        ),
        pytest.param("In-place resize of containers with swap is not supported.", InfeasibleCause.SWAP, id="swap"),
        pytest.param("In-place resize of static-pods is not supported", InfeasibleCause.OTHER, id="other"),
    ],
)
def test_infeasible_causes_are_told_apart(message, cause):
    assert classify_infeasible(message) is cause
