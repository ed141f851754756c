"""How a kubelet resizes pods in place: allocation, the queue of deferred resizes, actuation (KEP-1287, kubelet 1.32 to 1.37).

A spec that differs from what is allocated is either allocated as a whole, or pending: Deferred (tried again when room may have come) or
Infeasible (never for this spec). What is allocated but not yet actuated is in progress; a memory decrease below present usage is refused
and tried again for ever. Going back to the allocated spec is the only way to cancel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from vpa_ippr.sandbox.actuation import ContainerRuntime, changes, raises, with_resource
from vpa_ippr.sandbox.node import NodeSpec
from vpa_ippr.sandbox.podamounts import COMPUTE, Totals
from vpa_ippr.sandbox.podfit import Deferred, Feasible, Infeasible, kubelet_feasibility, pending_order, requests_allocated
from vpa_ippr.sandbox.podstatus import allocation_view
from vpa_ippr.sandbox.podworker import ManagedContainer, PodWorker, ResizeCondition, Role, typed
from vpa_ippr.sandbox.recorder import EventRecorder
from vpa_ippr.sandbox.restarts import KubeletProcess, RestartStep
from vpa_ippr.sandbox.runtimefaults import Failure, NodeFaults
from vpa_ippr.sandbox.versions import VersionProfile

Json = dict[str, Any]
# Without a queue (1.33) a deferred resize is tried at each sync of its pod: 60 s times 1 to 1.5.
SYNC_SECONDS = 75.0


@dataclass(frozen=True, slots=True)
class NodeContext:
    """What the resizer shares with the kubelet that it belongs to."""

    spec: Callable[[], NodeSpec]
    """The node and the settings of its kubelet, which a test may change as it goes."""
    profile: VersionProfile
    process: KubeletProcess
    runtime: ContainerRuntime
    faults: NodeFaults
    recorder: EventRecorder
    workers: dict[str, PodWorker]
    publish: Callable[[PodWorker], None]
    """Write the pod's status."""
    restart: Callable[[PodWorker, ManagedContainer], None]
    """Kill a running container and start it again with what is allocated."""
    hasten: Callable[[PodWorker, ManagedContainer], None]
    """Start a container that waits in its back-off."""


class Resizer:
    """The resize logic of one kubelet."""

    def __init__(self, node: NodeContext) -> None:
        self._node = node

    @property
    def allocatable(self) -> Totals:
        """What pods may have together."""
        spec = self._node.spec()
        return Totals(spec.allocatable_cpu_millicores, spec.allocatable_memory_bytes)

    def start(self) -> None:
        """Begin the periodic retry of deferred resizes."""
        self._node.process.after(self._node.spec().kubelet.first_deferred_retry_seconds, self._retry_periodically)

    def allocated_to_others(self, worker: PodWorker) -> Totals:
        """The sum of what all other active pods of the node have."""
        others = [w for w in self._node.workers.values() if w is not worker and not w.is_terminal]
        amounts = [requests_allocated(allocation_view(other)) for other in others]
        return Totals(sum(a.cpu_millicores for a in amounts), sum(a.memory_bytes for a in amounts))

    def consider(self, worker: PodWorker) -> None:
        """Allocate what the spec now asks for, or say why not. The caller publishes the status."""
        if worker.is_terminal:
            worker.pending = worker.in_progress = None
            return
        if not _differs(worker):
            worker.pending = None
            return
        node = self._node
        view = allocation_view(worker)
        match kubelet_feasibility(view, self.allocated_to_others(worker), self.allocatable, node.profile, node.spec().kubelet.node):
            case Feasible():
                self._allocate(worker, requests_allocated(view))
            case Deferred(message, admit_reason):
                word = admit_reason if node.profile.deferred_event_names_admit_reason else "Deferred"
                self._set_pending(worker, "Deferred", message, word)
            case Infeasible(message):
                self._set_pending(worker, "Infeasible", message, "Infeasible")

    def retry_deferred(self) -> None:
        """Try the queue of deferred resizes in the kubelet's order; one that still does not fit holds up none behind it."""
        if self._node.profile.deferred_queue:
            self._retry()

    def recover(self) -> None:
        """Go on after a restart: first decide on the specs that are not what is allocated, in the queue's order, then actuate the rest."""
        alive = {w.uid: w for w in self._node.workers.values() if not w.deleting and not w.is_terminal}
        undecided = [w for w in alive.values() if w.pending is not None or _differs(w)]
        for view in pending_order(allocation_view(worker) for worker in undecided):
            self.consider(alive[view["metadata"]["uid"]])
        for worker in alive.values():
            if worker.retry is None and worker.finishing is None:
                self._resume(worker)
            self._node.publish(worker)

    def actuate(self, worker: PodWorker) -> None:
        """Bring the running containers to what is allocated, or set the error condition and come back later."""
        worker.retry = None
        if worker.is_terminal or worker.deleting:
            return
        changed = _changed(worker)
        restarting = [c for c in changed if _restarts(worker, c)]
        for container in restarting:
            self._node.recorder.record(worker.pod, "Normal", "Killing", f"Container {container.name} resize requires restart")
            self._node.restart(worker, container)
        staying = [c for c in changed if c not in restarting]
        refusal = self._refusal(worker, staying, bool(restarting))
        failure = Failure(refusal) if refusal else self._apply(worker, staying, bool(restarting))
        if failure is None:
            self._finish_later(worker, is_restarting=bool(restarting))
        elif failure.seconds:
            worker.retry = self._node.process.after(failure.seconds, lambda: self._fail(worker, failure.message))
        else:
            self._fail(worker, failure.message)

    def _resume(self, worker: PodWorker) -> None:
        now = self._node.process.now()
        if _changed(worker) or typed(worker.actuated_pod) != typed(worker.allocated_pod):
            worker.in_progress = worker.in_progress or ResizeCondition("", "", worker.generation, now, now)
            self.actuate(worker)
        elif worker.in_progress is not None:
            self._finish_later(worker, is_restarting=any(c.running is None and not c.done for c in worker.containers))

    def _finish_later(self, worker: PodWorker, *, is_restarting: bool) -> None:
        settings = self._node.spec().kubelet
        delay = settings.status_seconds + (settings.start_seconds if is_restarting else 0.0)
        if worker.finishing is not None:
            worker.finishing.cancel()
        worker.finishing = self._node.process.after(delay, lambda: self._finish(worker))

    def _allocate(self, worker: PodWorker, before: Totals) -> None:
        now = self._node.process.now()
        self._node.process.passes(RestartStep.BEFORE_ALLOCATION)
        for container in worker.containers:
            container.allocated = worker.desired_of(container)
        worker.allocated_pod = worker.pod["spec"].get("resources") or {}
        self._node.process.passes(RestartStep.AFTER_ALLOCATION)
        worker.pending = None
        worker.in_progress = ResizeCondition("", "", worker.generation, now, now)
        self._event(worker, "Normal", "ResizeStarted", "started")
        if worker.retry is not None:
            worker.retry.cancel()
        for container in worker.containers:
            if container.restart is not None:
                self._node.hasten(worker, container)
        self.actuate(worker)
        after = requests_allocated(allocation_view(worker))
        if any(amount < had for amount, had in zip(after, before, strict=True)):
            self._node.process.after(self._node.spec().kubelet.status_seconds, self.retry_deferred)

    def _set_pending(self, worker: PodWorker, reason: str, message: str, event_word: str) -> None:
        now, known = self._node.process.now(), worker.pending
        is_news = known is None or (known.reason, known.generation) != (reason, worker.generation)
        since = known.since if known is not None and known.reason == reason else now
        if is_news or (known is not None and known.message != message):
            worker.pending = ResizeCondition(reason, message, worker.generation, since, now)
        if is_news or self._node.profile.pending_events_raw:
            self._event(worker, "Warning", f"Resize{reason}", event_word, error=message)

    def _retry_periodically(self) -> None:
        self._retry()
        settings = self._node.spec().kubelet
        wait = settings.deferred_retry_seconds if self._node.profile.deferred_queue else SYNC_SECONDS
        self._node.process.after(wait, self._retry_periodically)

    def _retry(self) -> None:
        waiting = {w.uid: w for w in self._node.workers.values() if w.pending and w.pending.reason == "Deferred" and not w.deleting}
        for view in pending_order(allocation_view(worker) for worker in waiting.values()):
            worker = waiting[view["metadata"]["uid"]]
            self.consider(worker)
            self._node.publish(worker)

    def _refusal(self, worker: PodWorker, staying: list[ManagedContainer], is_restarting: bool) -> str:
        """Why nothing of this resize may be written now; empty when it may."""
        memory = [c for c in staying if changes(c, "memory")]
        if not memory and not is_restarting and not _changes_pod_memory(worker):
            return ""
        check = self._memory_refusal if self._node.profile.container_memory_checked else self._pod_memory_refusal
        return check(worker, memory)

    def _memory_refusal(self, worker: PodWorker, memory: list[ManagedContainer]) -> str:
        """1.34 on: pod and containers, each against the usage that the kubelet's statistics hold, page cache included."""
        usage = self._sampled_usage(worker)
        pod_usage, problems = sum(usage.values()), []
        pod_limit = worker.wanted_pod_max()
        is_lower = pod_limit is not None and (worker.pod_max_bytes is None or pod_limit < worker.pod_max_bytes)
        if is_lower and not usage and worker.running():
            problems.append("missing pod memory usage")
        elif is_lower and pod_limit is not None and pod_usage >= pod_limit:
            problems.append(f"attempting to set pod memory limit ({pod_limit}) below current usage ({pod_usage})")
        for container in memory:
            limit, actuated = typed(container.allocated).limits.memory_bytes, typed(container.actuated).limits.memory_bytes
            if limit is None or (actuated is not None and limit >= actuated):
                continue
            if container.name not in usage or self._node.faults.hides_usage(container.name):
                problems.append(f'missing container "{container.name}" memory usage')
            elif usage[container.name] >= limit:
                # The kubelet prints the pod's usage here, not the container's.
                problems.append(f'attempting to set container "{container.name}" memory limit ({limit}) below current usage ({pod_usage})')
        if not problems:
            return ""
        listed = problems[0] if len(problems) == 1 else f"[{', '.join(problems)}]"
        return f"cannot decrease memory limits: {listed}"

    def _pod_memory_refusal(self, worker: PodWorker, _memory: list[ManagedContainer]) -> str:
        """1.33: the pod's limit alone, against ``memory.current``, at any change of memory."""
        limit = worker.wanted_pod_max()
        if limit is None or sum(worker.usage_bytes(self._node.process.now()).values()) <= limit:
            return ""
        return f"aborting attempt to set pod memory limit less than current memory usage for pod {worker.key[1]}"

    def _sampled_usage(self, worker: PodWorker) -> dict[str, int]:
        if self._node.spec().kubelet.stats_lag_seconds <= 0:
            return worker.usage_bytes(self._node.process.now())
        running = {container.name for container, _ in worker.running()}
        return {name: usage for name, usage in worker.samples.items() if name in running}

    def _apply(self, worker: PodWorker, staying: list[ManagedContainer], is_restarting: bool) -> Failure | None:
        """Write what passed the checks: memory, then CPU; a pod's limit before its containers' when it rises, after them when it falls.

        The first call that fails ends it. What was written before stays written.
        """
        node = self._node
        raises_of_stopped = node.spec().kubelet.raises_pod_cgroup_of_stopped
        if raises_of_stopped is None:
            raises_of_stopped = not node.profile.stale_pod_cgroup_of_stopped_container
        writes_pod = is_restarting or raises_of_stopped or _changes_pod_memory(worker) or any(changes(c, "memory") for c in staying)
        wanted = worker.wanted_pod_max() if writes_pod else None
        if wanted is not None and worker.pod_max_bytes is not None and wanted > worker.pod_max_bytes:
            worker.pod_max_bytes = wanted
        failure = self._update_all(worker, staying, "memory")
        if failure is None and wanted is not None:
            worker.pod_max_bytes = wanted
        failure = failure or self._update_all(worker, staying, "cpu")
        worker.restrict_to_pod_cgroup()
        if failure is None:
            worker.actuated_pod = worker.allocated_pod
        if failure is None and staying:
            node.process.passes(RestartStep.AFTER_ACTUATION)
        return failure

    def _update_all(self, worker: PodWorker, staying: list[ManagedContainer], resource: str) -> Failure | None:
        """Decreases first, then increases."""
        node = self._node
        for container in sorted((c for c in staying if changes(c, resource)), key=lambda c: raises(c, resource)):
            node.process.passes(RestartStep.BEFORE_CALL)
            failure = node.runtime.update(container, resource, node.process.now())
            if failure is not None:
                return failure
            worker.restrict_to_pod_cgroup()
            node.process.passes(RestartStep.AFTER_CALL)
            container.actuated = with_resource(container.actuated, container.allocated, resource)
        return None

    def _fail(self, worker: PodWorker, error: str) -> None:
        node, now = self._node, self._node.process.now()
        known = worker.in_progress or ResizeCondition("", "", worker.generation, now, now)
        if (known.reason, known.message) != ("Error", error):
            since = known.since if known.reason == "Error" else now
            worker.in_progress = replace(known, reason="Error", message=error, since=since, probed_at=now)
            self._event(worker, "Warning", "ResizeError", "error", error=error)
            node.publish(worker)
        worker.retry = node.process.after(node.spec().kubelet.retry_seconds, lambda: self.actuate(worker))

    def _finish(self, worker: PodWorker) -> None:
        worker.finishing = None
        if worker.in_progress is None or _changed(worker):
            return
        self._node.process.passes(RestartStep.BEFORE_STATUS)
        worker.in_progress = None
        self._event(worker, "Normal", "ResizeCompleted", "completed")
        self._node.publish(worker)

    def _event(self, worker: PodWorker, kind: str, reason: str, word: str, *, error: str = "") -> None:
        profile = self._node.profile
        if reason not in profile.events:
            return
        body: Json = {}
        for field, roles in (("initContainers", (Role.INIT, Role.SIDECAR)), ("containers", (Role.MAIN,))):
            entries = [{"name": c.name, "resources": worker.desired_of(c)} for c in worker.containers if c.role in roles]
            if entries:
                body[field] = entries
        if profile.event_generation:
            body["generation"] = worker.generation
        if error:
            body["error"] = error
        is_raw = profile.pending_events_raw and error
        message = error if is_raw else f"Pod resize {word}: {msgspec.json.encode(body).decode()}"
        self._node.recorder.record(worker.pod, kind, reason, message)


def _differs(worker: PodWorker) -> bool:
    """The spec asks for other CPU or memory than is allocated."""
    if typed(worker.pod["spec"].get("resources") or {}) != typed(worker.allocated_pod):
        return True
    return any(typed(worker.desired_of(c)) != typed(c.allocated) for c in worker.containers)


def _changes_pod_memory(worker: PodWorker) -> bool:
    """The pod's own memory limit is allocated otherwise than its cgroup was told."""
    return typed(worker.allocated_pod).limits.memory_bytes != typed(worker.actuated_pod).limits.memory_bytes


def _changed(worker: PodWorker) -> list[ManagedContainer]:
    """The running containers that have not what is allocated to them."""
    return [container for container, _ in worker.running() if typed(container.allocated) != typed(container.actuated)]


def _restarts(worker: PodWorker, container: ManagedContainer) -> bool:
    return any(changes(container, resource) and worker.restarts_on(container, resource) for resource in COMPUTE)
