"""A node to test the agent on: a small kernel, an API, a clock that moves both, and containers that restart under the agent's hands."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from vpa_ippr.actuator.agent import Agent, Surroundings
from vpa_ippr.actuator.cgroup import Snapshot
from vpa_ippr.actuator.journal import Journal
from vpa_ippr.actuator.node_state import NodeReader, NodeState
from vpa_ippr.actuator.policy import MIB, Policy
from vpa_ippr.actuator.ports import Alarms, Observer, Unobserved
from vpa_ippr.api.errors import ActuatorError, ClusterError
from vpa_ippr.api.meta import ObjectKey, ObjectMeta
from vpa_ippr.api.pod import (
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStatus,
    Pod,
    PodStatus,
)
from vpa_ippr.api.pod_launch import PodLaunch
from vpa_ippr.api.shrink import ContainerReference, Intent, MemoryShrink, Phase, PodReference, ShrinkPolicy, ShrinkSpec, ShrinkStatus
from vpa_ippr.api.timestamps import format_time

PAGE = 4096
START = 1_800_000_000.0
NODE = "node-a"


@dataclass
class Workload:
    """What the processes want; amounts in MiB, functions of seconds since the start."""

    anon: Callable[[float], float] = lambda _t: 20.0
    shmem: float = 0.0
    mlocked: float = 0.0
    kernel: float = 0.0
    hot: float = 0.0
    cold: float = 0.0
    mapped: bool = False
    pinned_cache: float = 0.0
    """Dirty or pinned pages: on the LRU, yet not to be had."""
    refill_mib_per_second: float = 0.0


class FakeKernel:
    """One memory cgroup. What is asked of it and what was written to it can be read back."""

    def __init__(self, workload: Workload, limit_mib: float = 512, inode: int = 100, high_bytes: int | None = None) -> None:
        self.workload = workload
        self.inode = inode
        self.max: int | None = int(limit_mib * MIB)
        self.high = high_bytes
        self.age = 0.0
        self.gone = False
        self.populated = True
        self.frozen = False
        self.anon = int(workload.anon(0.0) * MIB)
        self.hot = int(workload.hot * MIB)
        self.cold = int(workload.cold * MIB)
        self.other = int((workload.shmem + workload.mlocked + workload.kernel) * MIB)
        self.pinned = int(workload.pinned_cache * MIB)
        self.peak = self.usage
        self.reclaims = 0
        self.refault_pages = 0
        self.major_faults = 0
        self.stall_memory_us = 0
        self.stall_io_us = 0
        self.events = {"low": 0, "high": 0, "max": 0, "oom": 0, "oom_kill": 0}
        self.written: list[int | None] = []
        self.strangled: list[str] = []
        self.extra_memory_stall = 0.0
        self.failing_writes = 0

    @property
    def usage(self) -> int:
        return self.anon + self.other + self.hot + self.cold + self.pinned

    @property
    def oom_kills(self) -> int:
        return self.events["oom_kill"]

    def identity(self) -> int:
        return self.inode

    def read(self) -> Snapshot | None:
        if self.gone:
            return None
        work, peak = self.workload, max(self.peak, self.usage)
        self.peak = self.usage
        return Snapshot(
            usage_bytes=self.usage,
            high_bytes=self.high,
            max_bytes=self.max,
            stat={
                "anon": self.anon + int(work.mlocked * MIB),
                "shmem": int(work.shmem * MIB),
                "unevictable": int(work.mlocked * MIB),
                "slab_unreclaimable": int(work.kernel * MIB),
                "file_mapped": self.hot if work.mapped else 0,
                "active_file": self.hot,
                "inactive_file": self.cold + self.pinned,
                "workingset_refault_file": self.refault_pages,
                "pgmajfault": self.major_faults,
            },
            events=dict(self.events),
            memory_some_us=self.stall_memory_us,
            memory_full_us=self.stall_memory_us,
            io_some_us=self.stall_io_us,
            io_full_us=self.stall_io_us,
            populated=self.populated,
            frozen=self.frozen,
            peak_bytes=peak,
        )

    def write_high(self, high_bytes: int | None) -> None:
        if self.gone:
            return
        if self.failing_writes:
            self.failing_writes -= 1
            raise ActuatorError("memory.high: Device or resource busy", reason="WriteFailed")
        self.written.append(high_bytes)
        if high_bytes is not None and high_bytes < self.usage:
            self.strangled.append(f"high {high_bytes} below usage {self.usage}")
        self.high = high_bytes

    def reclaim(self, amount_bytes: int) -> bool:
        if self.gone:
            return False
        self.reclaims += 1
        wanted = -(-amount_bytes // PAGE) * PAGE
        # In the first reclaims all pages are of one generation: half of what goes is hot.
        unsorted = min(self.hot, wanted // 2) if self.reclaims <= 3 else 0
        self.hot -= unsorted
        return unsorted + self._evict(wanted - unsorted) >= amount_bytes

    def advance(self, seconds: float) -> None:
        if self.gone or not self.populated:
            return
        self.age += seconds
        self.stall_memory_us += int(self.extra_memory_stall * seconds * 1e6)
        self._grow_anon(seconds)
        self._touch_hot(seconds)
        self._refill(seconds)
        self.peak = max(self.peak, self.usage)

    def _ceiling(self) -> int:
        return min(self.max or 1 << 60, self.high or 1 << 60)

    def _evict(self, amount: int) -> int:
        cold = min(self.cold, amount)
        hot = min(self.hot, amount - cold)
        self.cold -= cold
        self.hot -= hot
        return cold + hot

    def _grow_anon(self, seconds: float) -> None:
        wanted = int(self.workload.anon(self.age) * MIB) - self.anon
        if wanted <= 0:
            self.anon += wanted
            return
        self._evict(max(0, self.usage + wanted - self._ceiling()))
        if self.high is not None and self.usage + wanted > self.high:
            self.events["high"] += 10
            self.stall_memory_us += int(0.9 * seconds * 1e6)
            wanted = max(0, min(wanted, int(1.03 * self.high) - self.usage))
        if self.max is not None and self.usage + wanted > self.max:
            self.events["max"] += 1
            self.events["oom"] += 1
            self.events["oom_kill"] += 1
            wanted = 0
        self.anon += wanted

    def _touch_hot(self, seconds: float) -> None:
        missing = int(self.workload.hot * MIB) - self.hot
        if missing <= 0:
            return
        room = max(0, self._ceiling() - self.usage + self.cold)
        back = min(missing, room, int(20 * MIB * seconds))
        self._evict_cold(back)
        self.hot += back
        thrashed = min(missing - back, int(20 * MIB * seconds))
        self.refault_pages += (back + thrashed) // PAGE
        share = min(1.0, (back + thrashed) / (40 * MIB * seconds))
        self.stall_io_us += int(0.5 * share * seconds * 1e6)
        if self.workload.mapped:
            self.major_faults += (back + thrashed) // PAGE
        elif thrashed:
            self.stall_memory_us += int(0.4 * share * seconds * 1e6)

    def _refill(self, seconds: float) -> None:
        fresh = int(self.workload.refill_mib_per_second * seconds * MIB)
        self._evict_cold(fresh)
        self.cold += max(0, min(fresh, self._ceiling() - self.usage))

    def _evict_cold(self, coming: int) -> None:
        self.cold -= min(self.cold, max(0, self.usage + coming - self._ceiling()))


class FakeClock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.time = START

    def now(self) -> float:
        return self.time

    def wait_until(self, moment: float) -> bool:
        self.time = max(self.time, moment)
        return True

    def stop(self) -> None:
        pass


@dataclass
class FakeApi:
    """MemoryShrinks and pods; ``down`` makes every call fail."""

    shrinks: dict[str, MemoryShrink] = field(default_factory=dict)
    pods: dict[ObjectKey, Pod] = field(default_factory=dict)
    launches: dict[ObjectKey, PodLaunch] = field(default_factory=dict)
    pressures: frozenset[str] = frozenset()
    node_questions: int = 0
    patches: list[ShrinkStatus] = field(default_factory=list)
    recorded: list[tuple[str, str, str]] = field(default_factory=list)
    down: bool = False

    def list_shrinks(self, node_name: str) -> list[MemoryShrink]:
        self._answer()
        return [shrink for shrink in self.shrinks.values() if shrink.spec.node_name == node_name]

    def patch_shrink_status(self, key: ObjectKey, status: ShrinkStatus) -> None:
        self._answer()
        self.patches.append(status)
        for uid, shrink in self.shrinks.items():
            if shrink.key == key:
                self.shrinks[uid] = msgspec.structs.replace(shrink, status=status)

    def record_event(self, shrink: MemoryShrink, kind: str, reason: str, message: str) -> None:
        self._answer()
        self.recorded.append((shrink.metadata.name, kind, f"{reason}: {message}"))

    def get_pod(self, key: ObjectKey) -> Pod | None:
        self._answer()
        return self.pods.get(key)

    def get_launch(self, key: ObjectKey) -> PodLaunch | None:
        self._answer()
        return self.launches.get(key)

    def node_pressures(self, node_name: str) -> frozenset[str]:
        self._answer()
        assert node_name == NODE
        self.node_questions += 1
        return self.pressures

    def _answer(self) -> None:
        if self.down:
            raise ClusterError("the API server is not there")


@dataclass
class Container:
    """A container as pod and kernel know it."""

    pod: str
    name: str
    container_id: str
    kernel: FakeKernel


def container_id(number: int) -> str:
    return f"containerd://{number:064x}"


class World:
    """The node: kernels, API, clock, and an agent that can be killed and started again."""

    def __init__(
        self,
        state_dir: Path,
        policy: Policy | None = None,
        node: NodeReader | None = None,
        alarms: Alarms | None = None,
        observer: Observer | None = None,
    ) -> None:
        self.policy = policy or Policy()
        self.clock = FakeClock()
        self.api = FakeApi()
        self.containers: dict[tuple[str, str], Container] = {}
        self.state_dir = state_dir
        self.boot_id = "boot-1"
        self._numbers, self._identifiers = itertools.count(), itertools.count(1)
        self.node, self.alarms, self.observer = node, alarms, observer or Unobserved()
        self.lacks: str | None = None
        self.agent = self._start()

    def _start(self) -> Agent:
        self.journal = Journal(self.state_dir, self.boot_id)
        surroundings = Surroundings(NodeState(self.node, self.policy) if self.node else None, self.api, self.alarms, observer=self.observer)
        return Agent(NODE, self.api, self.api, self, self.journal, self.clock, self.policy, surroundings)

    def find(self, pod_uid: str, container_id: str, qos_class: str) -> FakeKernel | None:
        if self.lacks is not None:
            raise ActuatorError("the node lacks a feature", reason=self.lacks)
        return self.reopen(pod_uid, container_id, qos_class)

    def reopen(self, pod_uid: str, container_id: str, qos_class: str) -> FakeKernel | None:
        assert qos_class == "Burstable"
        found = (c for (uid, _), c in self.containers.items() if uid == pod_uid and c.container_id == container_id and not c.kernel.gone)
        return next((c.kernel for c in found), None)

    def add(self, kernel: FakeKernel, pod: str = "web-1", name: str = "app") -> FakeKernel:
        identifier = container_id(next(self._identifiers))
        self.containers[self.pod_uid(pod), name] = Container(pod, name, identifier, kernel)
        self._publish(pod)
        return kernel

    def pod_uid(self, pod: str) -> str:
        return f"0-{pod}"

    def _publish(self, pod: str, ended: dict[str, ContainerStateTerminated] | None = None) -> None:
        running = ContainerState(running=ContainerStateRunning(format_time(START - 3600)))
        statuses = [
            ContainerStatus(
                name=c.name,
                container_id=c.container_id,
                ready=True,
                state=running,
                last_state=ContainerState(terminated=(ended or {}).get(c.name)),
            )
            for c in self.containers.values()
            if c.pod == pod
        ]
        key = ObjectKey("default", pod)
        metadata = ObjectMeta(name=pod, namespace="default", uid=self.pod_uid(pod))
        self.api.pods[key] = Pod(metadata=metadata, status=PodStatus(phase="Running", qos_class="Burstable", container_statuses=statuses))

    def change_container_state(self, pod: str, state: ContainerState) -> None:
        """The kubelet notices that the pod's containers are in another state."""
        key = ObjectKey("default", pod)
        known = self.api.pods[key]
        statuses = [msgspec.structs.replace(status, state=state) for status in known.status.container_statuses]
        self.api.pods[key] = msgspec.structs.replace(known, status=msgspec.structs.replace(known.status, container_statuses=statuses))

    def exclude(self, pattern: str) -> None:
        """Start the agent anew with these namespaces left out."""
        self.agent.close()
        self.policy = dataclasses.replace(self.policy, excluded_namespaces=(pattern,))
        self.start_agent()

    def set_ready(self, pod: str, *, ready: bool) -> None:
        """A readiness probe has another answer."""
        key = ObjectKey("default", pod)
        known = self.api.pods[key]
        statuses = [msgspec.structs.replace(status, ready=ready) for status in known.status.container_statuses]
        self.api.pods[key] = msgspec.structs.replace(known, status=msgspec.structs.replace(known.status, container_statuses=statuses))

    def delete_pod(self, pod: str) -> None:
        """Somebody deletes the pod; its containers have their grace period."""
        key = ObjectKey("default", pod)
        known = self.api.pods[key]
        metadata = msgspec.structs.replace(known.metadata, deletion_timestamp=format_time(self.clock.time))
        self.api.pods[key] = msgspec.structs.replace(known, metadata=metadata)

    def add_pod_again(self, pod: str) -> None:
        """The pod as it was when it was new."""
        self._publish(pod)

    def restart_container(self, pod: str = "web-1", name: str = "app", reason: str = "Error") -> FakeKernel:
        """The old cgroup goes; a new container runs under a new id and inode."""
        old = self.containers[self.pod_uid(pod), name]
        old.kernel.gone = True
        fresh = FakeKernel(old.kernel.workload, inode=old.kernel.inode + 1)
        fresh.max = old.kernel.max
        self.containers[self.pod_uid(pod), name] = Container(pod, name, container_id(1000 + fresh.inode), fresh)
        self._publish(pod, {name: ContainerStateTerminated(exit_code=137, reason=reason)})
        return fresh

    def ask(
        self,
        target_mib: float = 256,
        deadline_seconds: int = 900,
        pod: str = "web-1",
        name: str = "app",
        policy: ShrinkPolicy | None = None,
    ) -> str:
        """Create a MemoryShrink; its UID."""
        container = self.containers[self.pod_uid(pod), name]
        uid = f"5-{next(self._numbers)}"
        spec = ShrinkSpec(
            pod=PodReference(pod, self.pod_uid(pod)),
            node_name=NODE,
            container=ContainerReference(name, container.container_id),
            target_bytes=int(target_mib * MIB),
            deadline_seconds=deadline_seconds,
            policy=policy or ShrinkPolicy(),
        )
        metadata = ObjectMeta(name=f"{pod}-{name}-{uid}", namespace="default", uid=uid, generation=1)
        self.api.shrinks[uid] = MemoryShrink(metadata=metadata, spec=spec)
        return uid

    def status(self, uid: str) -> ShrinkStatus:
        return self.api.shrinks[uid].status

    def abort(self, uid: str) -> None:
        shrink = self.api.shrinks[uid]
        spec = msgspec.structs.replace(shrink.spec, intent=Intent.ABORT)
        self.api.shrinks[uid] = msgspec.structs.replace(shrink, spec=spec)

    def tick(self) -> None:
        """One round of the agent, then the time until it wants the next."""
        due = self.agent.run_once()
        seconds = max(due - self.clock.time, 0.0)
        self.clock.time = due
        for container in self.containers.values():
            container.kernel.advance(seconds)

    def run_until(self, uid: str, *phases: Phase, commits: bool = True, max_ticks: int = 3000) -> ShrinkStatus:
        """Until the shrink reports one of the phases (or any end); the updater commits in Holding unless told not to."""
        for _ in range(max_ticks):
            self.tick()
            status = self.status(uid)
            if status.phase in phases or status.phase.is_terminal:
                return status
            if status.phase is Phase.HOLDING and commits:
                self.commit(uid)
        raise AssertionError(f"still {self.status(uid)} after {max_ticks} rounds")

    def commit(self, uid: str) -> None:
        """The updater's resize, as the kubelet carries it out."""
        spec = self.api.shrinks[uid].spec
        kernel = self.find(spec.pod.uid, spec.container.id, "Burstable")
        if kernel is not None:
            kernel.max = spec.target_bytes

    def kill_agent(self) -> None:
        """SIGKILL: nothing is put back, the kernel drops the lock."""
        self.journal.close()

    def start_agent(self) -> None:
        self.agent = self._start()

    def journal_files(self) -> list[str]:
        return sorted(path.name for path in self.state_dir.iterdir() if path.suffix == ".json")


def memory_disk() -> str | None:
    """Where fsync costs nothing, if there is such a place: what is tested is the order of writes, not the disk."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - only private directories are made in it


def bursts(base: float, height: float, every: float, length: float) -> Callable[[float], float]:
    return lambda t: base + (height if t % every < length else 0.0)


def noisy(base: float, spread: float, seed: int) -> Callable[[float], float]:
    return lambda t: base + random.Random(f"{seed}/{int(t)}").uniform(-spread, spread)  # noqa: S311 - no secret
