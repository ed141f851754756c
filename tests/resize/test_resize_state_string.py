"""A 1.32 kubelet tells where a resize stands in one string."""

import msgspec
import pytest
from resize_support import READY, a_container, a_pod

from vpa_ippr.api.meta import Condition
from vpa_ippr.resize.state import Idle, InProgress, Pending, PendingReason, resize_state

DEFERRED = Condition("PodResizePending", "True", "Deferred", "no room")


def reporting(resize, *, observed=0, conditions=(READY,)):
    pod = a_pod(a_container(cpu="200m", memory="1Gi"))
    status = msgspec.structs.replace(pod.status, resize=resize, observed_generation=observed, conditions=list(conditions))
    return msgspec.structs.replace(pod, status=status)


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        pytest.param(reporting("Proposed"), InProgress, id="proposed"),
        pytest.param(reporting("InProgress"), InProgress, id="in-progress"),
        pytest.param(reporting("Deferred"), Pending, id="deferred"),
        pytest.param(reporting("Infeasible"), Pending, id="infeasible"),
        pytest.param(reporting(""), Idle, id="done"),
        pytest.param(reporting("Infeasible", observed=1), Idle, id="left-over-from-before-an-upgrade"),
        pytest.param(reporting("InProgress", conditions=(READY, DEFERRED)), Pending, id="conditions-come-first"),
    ],
)
def test_the_string_is_read_where_it_is_all_there_is(pod, expected):
    assert isinstance(resize_state(pod), expected)


@pytest.mark.parametrize("reason", PendingReason)
def test_the_reason_of_a_pending_resize_is_the_string(reason):
    assert resize_state(reporting(reason.value)).reason is reason
