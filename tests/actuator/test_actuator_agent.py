"""The agent's own duties: order, limits, what it tells the API, and what it refuses before it looks at a cgroup."""

import subprocess
import sys
import threading
from dataclasses import replace

import msgspec
import pytest
from actuator_fakes import NODE, START, FakeKernel, Workload, World

from vpa_ippr.actuator.policy import Policy
from vpa_ippr.api.errors import ActuatorError
from vpa_ippr.api.meta import Condition, ObjectKey
from vpa_ippr.api.names import ANNOTATION_MIRROR_POD
from vpa_ippr.api.pod import ContainerState, ContainerStateRunning, ContainerStateWaiting
from vpa_ippr.api.shrink import Phase
from vpa_ippr.api.timestamps import format_time

QUICK = Policy(
    observe_seconds=5, observe_max_seconds=10, settle_seconds=2, stability_seconds=5, probation_seconds=20, start_jitter_seconds=0
)
POD = ObjectKey("default", "web-1")


def cache() -> FakeKernel:
    return FakeKernel(Workload(anon=lambda _t: 40, cold=300))


def change_pod(world: World, **changes) -> None:
    world.api.pods[POD] = msgspec.structs.replace(world.api.pods[POD], **changes)


def change_status(world: World, **changes) -> None:
    pod = world.api.pods[POD]
    (container,) = pod.status.container_statuses
    change_pod(world, status=msgspec.structs.replace(pod.status, container_statuses=[msgspec.structs.replace(container, **changes)]))


def young(world: World) -> None:
    change_status(world, state=ContainerState(running=ContainerStateRunning(format_time(START - 20))))


def waiting(world: World) -> None:
    change_status(world, state=ContainerState(waiting=ContainerStateWaiting("CrashLoopBackOff")))


def deferred(world: World) -> None:
    condition = Condition("PodResizePending", "True", "Deferred")
    change_pod(world, status=msgspec.structs.replace(world.api.pods[POD].status, conditions=[condition]))


def resizing(world: World) -> None:
    condition = Condition("PodResizeInProgress", "True", "Error")
    change_pod(world, status=msgspec.structs.replace(world.api.pods[POD].status, conditions=[condition]))


def not_started(world: World) -> None:
    change_status(world, started=False)


def deleting(world: World) -> None:
    world.delete_pod("web-1")


def in_guest(world: World) -> None:
    change_pod(world, spec=msgspec.structs.replace(world.api.pods[POD].spec, runtime_class_name="Kata-qemu"))


def excluded(world: World) -> None:
    world.exclude("default")


def frozen(world: World) -> None:
    world.containers[world.pod_uid("web-1"), "app"].kernel.frozen = True


def mirror(world: World) -> None:
    change_pod(world, metadata=msgspec.structs.replace(world.api.pods[POD].metadata, annotations={ANNOTATION_MIRROR_POD: "x"}))


def other_pod(world: World) -> None:
    change_pod(world, metadata=msgspec.structs.replace(world.api.pods[POD].metadata, uid="0-other"))


def no_pod(world: World) -> None:
    del world.api.pods[POD]


def other_container(world: World) -> None:
    change_status(world, container_id="containerd://" + "f" * 64)


def no_cgroup(world: World) -> None:
    world.containers.clear()


@pytest.mark.parametrize(
    ("given", "phase", "reason"),
    [
        (young, Phase.REFUSED, "StartupGrace"),
        (deferred, Phase.REFUSED, "ResizePending"),
        (not_started, Phase.REFUSED, "StartupGrace"),
        (deleting, Phase.REFUSED, "PodDeleting"),
        (in_guest, Phase.REFUSED, "VmRuntime"),
        (excluded, Phase.REFUSED, "ExcludedNamespace"),
        (frozen, Phase.REFUSED, "Frozen"),
        (mirror, Phase.REFUSED, "StaticPod"),
        (no_cgroup, Phase.REFUSED, "CgroupNotFound"),
        (other_pod, Phase.GONE, "PodGone"),
        (no_pod, Phase.GONE, "PodGone"),
        (other_container, Phase.GONE, "ContainerReplaced"),
        (waiting, Phase.GONE, "ContainerExited"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_ends_before_a_look(state_dir, given, phase, reason):
    world = World(state_dir, QUICK)
    kernel = world.add(cache())
    uid = world.ask()
    given(world)
    status = world.run_until(uid)
    assert (status.phase, status.reason) == (phase, reason)
    assert kernel.written == []


@pytest.mark.parametrize("is_called_off", [False, True])
def test_a_pod_that_is_just_being_resized_is_waited_for(state_dir, is_called_off):
    world = World(state_dir, QUICK)
    kernel = world.add(cache())
    pod, uid = world.api.pods[POD], world.ask(deadline_seconds=120)
    resizing(world)
    for _ in range(300):
        world.tick()
    assert world.status(uid).phase is Phase.PENDING
    assert kernel.written == []
    if is_called_off:
        world.abort(uid)
    else:
        world.api.pods[POD] = pod
    assert world.run_until(uid).phase is (Phase.ABORTED if is_called_off else Phase.DONE)


def test_node_that_cannot_shrink_says_why(state_dir, monkeypatch):
    world = World(state_dir, QUICK)
    world.add(cache())
    uid = world.ask()

    def find(*_args):
        raise ActuatorError("the kernel has no memory.reclaim", reason="KernelTooOld")

    monkeypatch.setattr(world, "find", find)
    assert world.run_until(uid).reason == "KernelTooOld"


def test_statuses_tell_the_whole_way_and_are_few(state_dir):
    world = World(state_dir, QUICK)
    world.add(cache())
    uid = world.ask()
    world.run_until(uid)
    phases = list(dict.fromkeys(status.phase for status in world.api.patches))
    assert phases == [Phase.OBSERVING, Phase.SHRINKING, Phase.HOLDING, Phase.COMMITTED, Phase.DONE]
    assert len(world.api.patches) <= len(phases) + world.status(uid).steps // 4 + 2
    assert all(a != b for a, b in zip(world.api.patches, world.api.patches[1:], strict=False))
    done = world.status(uid)
    assert done.start_time == format_time(START)
    assert done.completion_time is not None
    assert done.steps > 3
    assert done.observed_generation == 1
    assert [event for _, _, event in world.api.recorded] == [f"ShrinkDone: Shrunk: {done.message}"]


def test_finished_requests_are_left_alone(state_dir):
    world = World(state_dir, QUICK)
    kernel = world.add(cache())
    uid = world.ask()
    world.abort(uid)
    world.run_until(uid)
    count, writes = len(world.api.patches), len(kernel.written)
    for _ in range(20):
        world.tick()
    assert (len(world.api.patches), len(kernel.written)) == (count, writes)


def test_finished_request_in_a_stale_list_is_not_begun_again(state_dir):
    world = World(state_dir, QUICK)
    kernel = world.add(FakeKernel(Workload(anon=lambda _t: 400)))
    uid = world.ask()
    stale = world.api.shrinks[uid]
    world.run_until(uid)
    world.api.shrinks[uid] = stale
    patches = len(world.api.patches)
    for _ in range(20):
        world.tick()
    assert len(world.api.patches) == patches
    assert kernel.written == []


def test_one_shrink_a_pod_and_few_a_node(state_dir):
    world = World(state_dir, QUICK)
    uids = []
    for pod in ("web-1", "web-2", "web-3", "web-4"):
        for name in ("app", "sidecar"):
            world.add(cache(), pod, name)
            uids.append((pod, world.ask(pod=pod, name=name)))
    most_stepping = 0
    for _ in range(3000):
        world.tick()
        phases = {uid: (pod, world.status(uid).phase) for pod, uid in uids}
        stepping = [pod for pod, phase in phases.values() if phase is Phase.SHRINKING]
        most_stepping = max(most_stepping, len(stepping))
        running = [pod for pod, phase in phases.values() if phase in (Phase.OBSERVING, Phase.SHRINKING, Phase.HOLDING)]
        assert len(running) == len(set(running))
        for uid, (_, phase) in phases.items():
            if phase is Phase.HOLDING:
                world.commit(uid)
        if all(phase.is_terminal for _, phase in phases.values()):
            break
    assert most_stepping == QUICK.max_stepping
    assert {world.status(uid).phase for _, uid in uids} == {Phase.DONE}


def test_broken_container_stops_nobody_else(state_dir, monkeypatch, caplog):
    world = World(state_dir, QUICK)
    bad, good = world.add(cache(), "web-1"), world.add(cache(), "web-2")
    bad_uid, good_uid = world.ask(pod="web-1"), world.ask(pod="web-2")
    monkeypatch.setattr(bad, "reclaim", lambda _amount: 1 // 0)
    assert world.run_until(good_uid).phase is Phase.DONE
    broken = world.status(bad_uid)
    assert (broken.phase, broken.reason) == (Phase.REVERTED, "InternalError")
    assert bad.high is None
    assert good.max == 256 * 2**20
    assert "shrink failed" in caplog.text


def test_unreadable_pressure_refuses(state_dir, monkeypatch):
    world = World(state_dir, QUICK)
    kernel = world.add(cache())
    uid = world.ask()
    world.tick()

    def read():
        raise ActuatorError("memory.pressure: Operation not supported", reason="PressureUnavailable")

    monkeypatch.setattr(kernel, "read", read)
    status = world.run_until(uid)
    assert (status.phase, status.reason) == (Phase.REFUSED, "PressureUnavailable")
    assert kernel.written == []


def test_cgroup_that_becomes_unreadable_is_restored_blindly(state_dir, monkeypatch):
    world = World(state_dir, QUICK)
    kernel = world.add(cache())
    uid = world.ask()
    world.run_until(uid, Phase.HOLDING, commits=False)

    def read():
        raise ActuatorError("memory.pressure: Operation not supported", reason="PressureUnavailable")

    monkeypatch.setattr(kernel, "read", read)
    status = world.run_until(uid)
    assert (status.phase, status.reason) == (Phase.REVERTED, "PressureUnavailable")
    assert kernel.high is None
    assert world.journal_files() == []


def test_idle_agent_wakes_at_the_poll(state_dir):
    world = World(state_dir, QUICK)
    assert world.agent.run_once() == START + QUICK.poll_seconds


def test_shrinks_of_other_nodes_are_not_ours(state_dir):
    world = World(state_dir, QUICK)
    world.add(cache())
    uid = world.ask()
    shrink = world.api.shrinks[uid]
    world.api.shrinks[uid] = msgspec.structs.replace(shrink, spec=msgspec.structs.replace(shrink.spec, node_name=f"{NODE}-other"))
    for _ in range(5):
        world.tick()
    assert world.status(uid).phase is Phase.PENDING
    assert world.api.patches == []


def test_lost_pod_read_is_tried_again(state_dir):
    world = World(state_dir, QUICK)
    world.add(cache())
    uid = world.ask()
    world.api.down = True
    for _ in range(3):
        world.tick()
    world.api.down = False
    assert world.run_until(uid).phase is Phase.DONE


def test_run_stops_and_gives_the_lock_up(state_dir):
    world = World(state_dir, QUICK)
    stop = threading.Event()
    stop.set()
    world.agent.run(stop)
    world.start_agent()
    world.agent.close()


def test_deadline_is_not_prolonged_by_a_restart(state_dir):
    world = World(state_dir, QUICK)
    world.add(cache())
    uid = world.ask(deadline_seconds=100)
    for _ in range(3):
        world.tick()
    world.agent.close()
    world.clock.time += 200
    world.start_agent()
    assert world.run_until(uid).phase is Phase.EXPIRED


def test_agent_stays_light():
    code = "import sys, vpa_ippr.actuator.agent, vpa_ippr.actuator.cgroupfs; print(*{m.split('.')[0] for m in sys.modules})"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"numpy", "scipy", "pandas", "kubernetes", "pyarrow", "requests", "typer"} & set(out)


def test_looks_that_come_a_little_late_are_no_gap_in_short_windows(state_dir):
    world = World(state_dir, replace(QUICK, settle_seconds=1.0, tick_seconds=1.0))
    world.add(cache())
    uid = world.ask()
    for _ in range(300):
        world.tick()
        world.clock.time += 0.3
    assert world.status(uid).phase is Phase.HOLDING
