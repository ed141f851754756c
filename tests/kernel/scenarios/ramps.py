"""The guard against OOM kills: heaps that grow towards their limit, with somebody who raises it when the watch tells, and with nobody."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from kernel.harness.containers import Container, Guest
from kernel.harness.machine import CGROUPS, MIB
from vpa_ippr.actuator.cgroupfs import CgroupFsFinder
from vpa_ippr.actuator.pressing_policy import PressingPolicy
from vpa_ippr.actuator.pressing_watch import start_pressing_watch
from vpa_ippr.api.clock import BootClock
from vpa_ippr.api.meta import ObjectMeta
from vpa_ippr.api.node_memory import NodeMemoryStatus
from vpa_ippr.api.pod import Container as PodContainer
from vpa_ippr.api.pod import ContainerState, ContainerStateRunning, ContainerStatus, Pod, PodSpec, PodStatus
from vpa_ippr.api.resources import ResourceRequirements

LIMIT_MIB, START_MIB = 256, 64
PASSED_MIB = LIMIT_MIB + 32
"""A heap that has come so far alive would have been killed at the limit."""
ANSWER_SECONDS = 0.5
"""From the report to the new ``memory.max``: the updater's decision, the resize, the kubelet and the runtime."""
AHEAD_SECONDS = 60.0


def raised_bytes(limit_bytes: int, usage_bytes: int, growth_bytes_per_second: float) -> int:
    """The updater's rule with default policies; a test on the host holds it against the updater's own."""
    wanted = max(limit_bytes * 1.2, limit_bytes + 100 * MIB, usage_bytes + max(growth_bytes_per_second, 0) * AHEAD_SECONDS)
    return math.ceil(wanted / MIB) * MIB


def ramps(guest: Guest, rate: int, runs: int, at_once: int) -> dict[str, Any]:
    """Heaps that grow by ``rate`` MiB a second: ``runs`` with the watch and a raise, and one beside the first of them with nobody."""
    alone: list[dict[str, Any]] = []
    unguarded = threading.Thread(target=lambda: alone.append(_ramp(guest, rate, None)))
    unguarded.start()
    updater = _Updater()
    finder = CgroupFsFinder(CGROUPS)
    watch = start_pressing_watch("lab", updater, finder, BootClock(), PressingPolicy(node_cpus=2, pods_seconds=1.0))
    found: list[dict[str, Any]] = []
    try:
        while len(found) < runs:
            batch = [
                threading.Thread(target=lambda: found.append(_ramp(guest, rate, updater))) for _ in range(min(at_once, runs - len(found)))
            ]
            for number, thread in enumerate(batch):
                if number:
                    time.sleep(0.37)  # so that they meet the watch's ticks at different moments
                thread.start()
            for thread in batch:
                thread.join()
    finally:
        unguarded.join()
        watch.close()
        finder.close()
    return {"alone": alone[0], "guarded": found, "saved": sum(one["is_saved"] for one in found), "runs": len(found)}


@dataclass
class _Updater:
    """The API and the updater in one: knows the pods, hears what presses, and raises a limit a moment later."""

    containers: dict[str, Container] = field(default_factory=dict)
    told_at: dict[str, float] = field(default_factory=dict)

    def list_pods(self, node_name: str) -> list[Pod]:
        return [_pod(container, node_name) for container in list(self.containers.values())]

    def put_node_memory(self, node_name: str, status: NodeMemoryStatus) -> None:  # noqa: ARG002 - the port's
        for entry in status.pressing:
            container = self.containers.get(entry.container_id)
            if container is not None and int(container.text("memory.max")) == entry.limit_bytes:
                self.told_at.setdefault(entry.container_id, time.monotonic())
                limit = raised_bytes(entry.limit_bytes, entry.usage_bytes, entry.growth_bytes_per_second)
                threading.Timer(ANSWER_SECONDS, container.write, ("memory.max", limit)).start()


def _ramp(guest: Guest, rate: int, updater: _Updater | None) -> dict[str, Any]:
    container = guest.container(limit_mib=LIMIT_MIB)
    if updater is not None:
        updater.containers[container.container_id] = container
        time.sleep(2.5)  # the watch finds it
    workload = container.start("leak", size=START_MIB, rate=rate)
    began = time.monotonic()
    patience = began + 3 * (PASSED_MIB - START_MIB) / rate + 60
    told_usage, usage = None, 0.0
    while workload.is_alive and usage < PASSED_MIB and time.monotonic() < patience:
        usage = container.usage_mib
        if updater is not None and told_usage is None and container.container_id in updater.told_at:
            told_usage = container.usage_mib
        time.sleep(0.05)
    seconds = time.monotonic() - began
    kills = container.table("memory.events")["oom_kill"]
    if updater is not None:
        del updater.containers[container.container_id]
    container.write("cgroup.kill", 1)
    return {
        "is_saved": kills == 0 and usage >= PASSED_MIB,
        "oom_kills": kills,
        "seconds": round(seconds, 1),
        "pace_mib": round((usage - START_MIB) / seconds, 1) if kills == 0 else None,
        "told_at_mib": None if told_usage is None else round(told_usage, 1),
    }


def _pod(container: Container, node_name: str) -> Pod:
    limits = ResourceRequirements(limits={"memory": f"{LIMIT_MIB}Mi"})
    status = ContainerStatus("main", container.container_id, state=ContainerState(running=ContainerStateRunning()))
    return Pod(
        ObjectMeta(name=container.pod_uid, namespace="lab", uid=container.pod_uid),
        PodSpec([PodContainer("main", resources=limits)], node_name=node_name),
        PodStatus(phase="Running", qos_class=container.qos_class, container_statuses=[status]),
    )
