"""The kubelet of one simulated node: takes on pods that are bound to it, runs their containers, and reports.

All of it happens on the agenda, in one thread. Resizes are ``resizer``'s, what a pod's status looks like is ``podstatus``'s.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from typing import Any

from vpa_ippr.api.errors import ValidationError
from vpa_ippr.sandbox.actuation import ContainerRuntime
from vpa_ippr.sandbox.agenda import Agenda
from vpa_ippr.sandbox.container import Exit, RunningContainer
from vpa_ippr.sandbox.node import NodeSpec
from vpa_ippr.sandbox.podfit import requests_desired
from vpa_ippr.sandbox.podstatus import phase, pod_status
from vpa_ippr.sandbox.podworker import Ended, ManagedContainer, PodWorker, Role, new_worker
from vpa_ippr.sandbox.recorder import EventRecorder
from vpa_ippr.sandbox.resizer import NodeContext, Resizer
from vpa_ippr.sandbox.restarts import KubeletProcess, RestartStep, forget_memory, recall_conditions
from vpa_ippr.sandbox.runtimefaults import NodeFaults
from vpa_ippr.sandbox.status import StatusError
from vpa_ippr.sandbox.store import Store
from vpa_ippr.sandbox.versions import VersionProfile
from vpa_ippr.sandbox.workloads import parse_workloads

logger = logging.getLogger(__name__)

Json = dict[str, Any]
FIRST_INODE = 4000
CONFIG_ERROR = "CreateContainerConfigError"
# A container that ran this many times the largest back-off starts with none (kubelet: MaxContainerBackOff * 2).
BACKOFF_RESET_FACTOR = 2


class Kubelet:
    """Runs the pods of one node. Methods are called on the agenda's thread, except ``find_container``.

    ``pods`` gives the pods that are bound to the node as the API has them now. ``spec`` may be replaced by one with other settings.
    """

    def __init__(self, spec: NodeSpec, store: Store, agenda: Agenda, profile: VersionProfile, pods: Callable[[], list[Json]]) -> None:
        self.spec = spec
        self.faults = NodeFaults()
        self.workers: dict[str, PodWorker] = {}
        self._store = store
        self._agenda = agenda
        self._pods = pods
        self._process = KubeletProcess(agenda, self._on_stop)
        self._profile = profile
        self._inodes = itertools.count(FIRST_INODE)
        self._recorder = EventRecorder(store, agenda, "kubelet", spec.name)
        context = NodeContext(
            spec=lambda: self.spec,
            profile=profile,
            process=self._process,
            runtime=ContainerRuntime(lambda: self.spec.kubelet, self.faults),
            faults=self.faults,
            recorder=self._recorder,
            workers=self.workers,
            publish=self._publish,
            restart=self._restart_for_resize,
            hasten=self._start_at_once,
        )
        self._resizer = Resizer(context)

    def start(self) -> None:
        """Begin what a kubelet does by the clock."""
        self._resizer.start()

    @property
    def is_up(self) -> bool:
        """The kubelet's process runs."""
        return self._process.is_up

    def restart(self, step: RestartStep = RestartStep.NOW) -> None:
        """Kill the kubelet's process at once, or at the next passing of ``step``; it comes back after ``restart_seconds``."""
        if step is RestartStep.NOW or (step is RestartStep.WHILE_DEFERRED and any(_is_deferred(w) for w in self.workers.values())):
            self._process.stop()
        else:
            self._process.arm(step)

    @property
    def is_busy(self) -> bool:
        """A resize is being actuated, or a container stands under ``memory.high``: time should go in small steps."""
        return any(_needs_attention(worker) for worker in self.workers.values())

    def find_container(self, pod_uid: str, container_id: str) -> RunningContainer | None:
        """The running container with that id; from any thread."""
        worker = self.workers.get(pod_uid)
        if worker is None:
            return None
        return next((r for _, r in worker.running() if r.container_id == container_id and r.exit is None), None)

    def handle(self, event_type: str, pod: Json) -> None:
        """Take note of a change of a pod that is bound to this node."""
        self._process.run(lambda: self._handle(event_type, pod))

    def tick(self, *, everything: bool) -> None:
        """Bring the containers forward to now and see which have ended; unless ``everything``, only where steps must be small."""
        self._process.run(lambda: self._tick(everything))

    def _handle(self, event_type: str, pod: Json) -> None:
        worker = self.workers.get(pod["metadata"]["uid"])
        if event_type == "DELETED":
            if worker is not None:
                self._forget(worker)
        elif worker is None:
            self._take_on(pod)
        else:
            before, worker.pod = worker.pod, pod
            if pod["metadata"].get("deletionTimestamp"):
                self._terminate(worker)
            elif (before["spec"], before["metadata"].get("generation")) != (pod["spec"], pod["metadata"].get("generation")):
                self._resizer.consider(worker)
                self._publish(worker)

    def _tick(self, everything: bool) -> None:
        now = self._process.now()
        for worker in [w for w in self.workers.values() if everything or _needs_attention(w)]:
            for container, running in worker.running():
                ended = running.advance(now)
                if ended is not None:
                    self._on_exit(worker, container, running, ended)
            if worker.is_restricted:
                worker.restrict_to_pod_cgroup()
            if now - worker.sampled_at >= self.spec.kubelet.stats_lag_seconds:
                worker.sampled_at, worker.samples = now, worker.usage_bytes(now)

    # Beginning

    def _take_on(self, pod: Json) -> None:
        if pod["metadata"].get("deletionTimestamp"):
            self._delete(pod)
            return
        if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            return
        try:
            worker = new_worker(pod, parse_workloads(pod["metadata"].get("annotations") or {}))
            problem = ""
        except ValidationError as error:
            worker, problem = new_worker(pod, {}), str(error)
        worker.started_at = self._process.now()
        worker.admission_failure = self._admission_failure(worker)
        self.workers[worker.uid] = worker
        if problem:
            for container in worker.containers:
                container.waiting_reason, container.waiting_message = CONFIG_ERROR, problem
            self._recorder.record(pod, "Warning", "Failed", problem)
        elif not worker.admission_failure:
            self._process.after(self.spec.kubelet.start_seconds, lambda: self._start_next(worker))
        self._publish(worker)
        self._resizer.retry_deferred()

    def _admission_failure(self, worker: PodWorker) -> str:
        """Why the kubelet does not run a pod that was bound to it: it does not fit beside what others have."""
        desired, used = requests_desired(worker.pod), self._resizer.allocated_to_others(worker)
        for resource, wanted, taken, capacity in zip(("cpu", "memory"), desired, used, self._resizer.allocatable, strict=True):
            if wanted and wanted + taken > capacity:
                shortage = f"{resource}, requested: {wanted}, used: {taken}, capacity: {capacity}"
                return f"OutOf{resource}: Pod was rejected: Node didn't have enough resource: {shortage}"
        return ""

    def _start_next(self, worker: PodWorker) -> None:
        """Start the containers whose turn it is: init containers one after the other, sidecars as they come, then all others."""
        if worker.deleting or worker.is_terminal:
            return
        for container in worker.containers:
            if container.running is None and not container.done and container.restart is None:
                self._start(worker, container)
            if container.role is Role.INIT and not container.done:
                break
        self._publish(worker)

    def _start(self, worker: PodWorker, container: ManagedContainer) -> None:
        settings = self.spec.kubelet
        worker.start(container, self._process.now(), next(self._inodes), settings.kernel, rounds_cpu_quota=settings.rounds_cpu_quota)
        self._recorder.record(worker.pod, "Normal", "Started", f"Started container {container.name}")

    # Ending

    def _on_exit(self, worker: PodWorker, container: ManagedContainer, running: RunningContainer, ended: Exit) -> None:
        container.last = Ended(running.container_id, running.started_at, ended)
        container.running = None
        if _starts_again(worker, container, ended):
            self._back_off(worker, container, running, ended)
        else:
            container.done = True
            if container.role is Role.INIT and not ended.exit_code:
                self._start_next(worker)
                return
            if worker.is_terminal:
                self._on_terminal(worker)
        self._publish(worker)

    def _back_off(self, worker: PodWorker, container: ManagedContainer, running: RunningContainer, ended: Exit) -> None:
        settings = self.spec.kubelet
        if ended.at - running.started_at > BACKOFF_RESET_FACTOR * settings.max_backoff_seconds:
            container.backoff_seconds = 0.0
        delay = container.backoff_seconds
        container.backoff_seconds = min(settings.max_backoff_seconds, 2 * delay or settings.backoff_seconds)
        if delay:
            namespace, name = worker.key
            place = f"container={container.name} pod={name}_{namespace}({worker.uid})"
            container.waiting_reason = "CrashLoopBackOff"
            container.waiting_message = f"back-off {delay:.0f}s restarting failed {place}"
            self._recorder.record(worker.pod, "Warning", "BackOff", f"Back-off restarting failed {place}")
        self._restart_after(worker, container, max(delay, settings.start_seconds))

    def _restart_after(self, worker: PodWorker, container: ManagedContainer, seconds: float) -> None:
        def restart() -> None:
            container.restart = None
            self._start_next(worker)

        container.restart = self._process.after(seconds, restart)

    def _start_at_once(self, worker: PodWorker, container: ManagedContainer) -> None:
        """New resources are a new back-off (its key contains them)."""
        if container.restart is not None:
            container.restart.cancel()
        container.backoff_seconds = 0.0
        self._restart_after(worker, container, self.spec.kubelet.start_seconds)

    def _restart_for_resize(self, worker: PodWorker, container: ManagedContainer) -> None:
        if container.running is not None:
            self._stop(container, container.running)
            self._restart_after(worker, container, self.spec.kubelet.start_seconds)

    def _stop(self, container: ManagedContainer, running: RunningContainer) -> None:
        container.last = Ended(running.container_id, running.started_at, running.stop(self._process.now()))
        container.running = None

    def _terminate(self, worker: PodWorker) -> None:
        if worker.deleting:
            return
        worker.deleting = True
        grace = worker.pod["metadata"].get("deletionGracePeriodSeconds") or 0
        self._process.after(min(self.spec.kubelet.termination_seconds, grace), lambda: self._delete(worker.pod))
        self._publish(worker)

    def _delete(self, pod: Json) -> None:
        """The containers are down: let the object go."""
        metadata = pod["metadata"]
        worker = self.workers.get(metadata["uid"])
        if worker is not None:
            self._forget(worker)
        try:
            self._store.delete("pods", metadata["namespace"], metadata["name"], grace_period_seconds=0)
        except StatusError as error:
            if error.code != 404:
                raise

    def _forget(self, worker: PodWorker) -> None:
        for _, running in worker.running():
            running.stop(self._process.now())
        for ticket in (worker.retry, worker.finishing, *(container.restart for container in worker.containers)):
            if ticket is not None:
                ticket.cancel()
        worker.deleting = True
        del self.workers[worker.uid]
        self._resizer.retry_deferred()

    def _on_terminal(self, worker: PodWorker) -> None:
        worker.pending = worker.in_progress = None
        for sidecar, running in worker.running():
            self._stop(sidecar, running)
            sidecar.done = True
        logger.debug("pod ended", extra={"pod": "/".join(worker.key), "phase": phase(worker)})
        if self._profile.retry_when_pod_terminates:
            self._resizer.retry_deferred()

    # Restart of the kubelet itself

    def _on_stop(self) -> None:
        self._agenda.after(self.spec.kubelet.restart_seconds, self._begin_again)

    def _begin_again(self) -> None:
        self._process.begin()
        self._process.run(self._recover)

    def _recover(self) -> None:
        """Take the node over from the process before: pods by what was allocated to them, conditions from the API, then what is pending."""
        now, pods = self._process.now(), {pod["metadata"]["uid"]: pod for pod in self._pods()}
        self._resizer.start()
        for worker in list(self.workers.values()):
            forget_memory(worker)
            worker.sampled_at = now
            if worker.uid not in pods:
                self._forget(worker)
        for uid, pod in pods.items():
            known = self.workers.get(uid)
            if known is None:
                self._take_on(pod)
                continue
            known.pod = pod
            if pod["metadata"].get("deletionTimestamp"):
                self._terminate(known)
            else:
                recall_conditions(known, now)
                self._start_waiting(known)
        self._resizer.recover()

    def _start_waiting(self, worker: PodWorker) -> None:
        """Back-offs are forgotten: what waits is started."""
        waiting = [c for c in worker.containers if c.running is None and not c.done]
        if waiting and not any(c.waiting_reason == CONFIG_ERROR for c in waiting):
            self._process.after(self.spec.kubelet.start_seconds, lambda: self._start_next(worker))

    # Reporting

    def _publish(self, worker: PodWorker) -> None:
        """Write the pod's status; a pod that is gone needs none."""

        def mutate(stored: Json) -> Json:
            if stored["metadata"]["uid"] == worker.uid:
                stored["status"] = pod_status(worker, stored.get("status") or {}, self._profile, self._process.now())
            return stored

        try:
            self._store.update("pods", *worker.key, mutate, subresource="status")
        except StatusError as error:
            if error.code != 404:
                raise
        if _is_deferred(worker):
            self._process.passes(RestartStep.WHILE_DEFERRED)


def _is_deferred(worker: PodWorker) -> bool:
    return worker.pending is not None and worker.pending.reason == "Deferred"


def _needs_attention(worker: PodWorker) -> bool:
    return worker.in_progress is not None or any(running.is_guarded for _, running in worker.running())


def _starts_again(worker: PodWorker, container: ManagedContainer, ended: Exit) -> bool:
    if container.role is Role.SIDECAR:
        return True
    if container.role is Role.INIT:
        return bool(ended.exit_code) and worker.restart_policy != "Never"
    return worker.restart_policy == "Always" or (worker.restart_policy == "OnFailure" and bool(ended.exit_code))
