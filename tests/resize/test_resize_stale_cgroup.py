"""kubernetes#138760: a raise that was accepted while a container was down is followed up while it runs."""

import msgspec
import pytest
from resize_support import RULES, START, a_container, a_pod, requirements

from vpa_ippr.api.pod import ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStatus, Pod
from vpa_ippr.api.timestamps import format_time
from vpa_ippr.resize.ledger import Record
from vpa_ippr.resize.rules import rules_for
from vpa_ippr.resize.stale_cgroup import nudge
from vpa_ippr.resize.state import Idle, InProgress

GUARANTEED = requirements("100m", "512Mi", "100m", "512Mi")
BURSTABLE = requirements("100m", "256Mi", "100m", "512Mi")
SMALL = requirements("100m", "128Mi", "100m", "256Mi")


def status(*, running: bool = True, killed_at: float | None = None) -> ContainerStatus:
    last = (
        ContainerState(terminated=ContainerStateTerminated(137, "OOMKilled", None, format_time(killed_at)))
        if killed_at
        else ContainerState()
    )
    return ContainerStatus(
        name="app", state=ContainerState(running=ContainerStateRunning()) if running else ContainerState(), last_state=last
    )


def pod(resources=BURSTABLE, **how) -> Pod:
    amounts = {"memory": resources.requests["memory"], "memory_limit": resources.limits["memory"]}
    built = a_pod(a_container(cpu="100m", cpu_limit="100m", **amounts))
    replaced = msgspec.structs.replace(built.status, container_statuses=[status(**how)])
    return msgspec.structs.replace(built, status=replaced)


def record(after=BURSTABLE, before=SMALL, **more) -> Record:
    return Record(issued_at=START, before={"app": before}, after={"app": after}, **more)


def test_a_raise_issued_while_the_container_was_down_is_followed_by_one_page() -> None:
    after = nudge(pod(), Idle(), record(stopped=["app"]))
    assert after is not None
    assert after["app"].limits.memory_bytes == 512 * 2**20 + 4096
    assert after["app"].requests.memory_bytes == 256 * 2**20


def test_an_oom_kill_after_the_raise_is_suspicious_too() -> None:
    assert nudge(pod(killed_at=START + 60), Idle(), record()) is not None
    assert nudge(pod(killed_at=START - 60), Idle(), record()) is None


def test_a_guaranteed_pod_keeps_request_and_limit_equal() -> None:
    after = nudge(pod(GUARANTEED), Idle(), record(GUARANTEED, stopped=["app"]))
    assert after is not None
    assert after["app"].requests.memory_bytes == after["app"].limits.memory_bytes == 512 * 2**20 + 4096


@pytest.mark.parametrize(
    ("found", "state", "last"),
    [
        (pod(running=False), Idle(), record(stopped=["app"])),
        (pod(), InProgress(), record(stopped=["app"])),
        (pod(), Idle(), record()),
        (pod(), Idle(), record(stopped=["app"], nudge=True)),
        (pod(), Idle(), record(stopped=["app"], reverting=True)),
        (pod(), Idle(), record(before=requirements("100m", "1Gi", "100m", "1Gi"), stopped=["app"])),
        (pod(SMALL), Idle(), record(stopped=["app"])),
        (pod(), Idle(), None),
    ],
    ids=["still-down", "under-way", "nothing-suspicious", "followed-up-once", "a-revert", "no-raise", "spec-is-another", "no-resize"],
)
def test_nothing_is_done_otherwise(found: Pod, state, last: Record | None) -> None:
    assert nudge(found, state, last) is None


def test_only_versions_with_the_trap_are_followed_up() -> None:
    assert RULES.stale_pod_cgroup
    assert not rules_for("1.37").stale_pod_cgroup
