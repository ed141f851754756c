"""The agent of a node: carries out the MemoryShrinks that are about its containers.

Level-triggered: each poll lists the node's MemoryShrinks and the agent makes its tasks match. Without the API it goes on with what it has,
and every shrink ends by itself at its deadline at the latest. The journal is recovered before anything else is done.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from vpa_ippr.actuator.cgroup import Cgroup, CgroupFinder, Managed
from vpa_ippr.actuator.gate import Gate, jitter_seconds
from vpa_ippr.actuator.heaps import declared_heap, refuse_below
from vpa_ippr.actuator.journal import Entry, Journal
from vpa_ippr.actuator.machine import next_wake
from vpa_ippr.actuator.node_state import NodeState
from vpa_ippr.actuator.policy import Policy
from vpa_ippr.actuator.policy_overrides import merge
from vpa_ippr.actuator.ports import Alarms, ConditionPort, Effort, LaunchPort, Observer, ShrinkPort, Unobserved
from vpa_ippr.actuator.preflight import is_being_resized, no_longer, preflight
from vpa_ippr.actuator.reasons import Reason
from vpa_ippr.actuator.restoring import Drop, Restore, decide, look
from vpa_ippr.actuator.state import Ending, begin
from vpa_ippr.actuator.status import status_of
from vpa_ippr.actuator.task import Subject, Task, state_in, subject_in, subject_of
from vpa_ippr.api.clock import Clock
from vpa_ippr.api.cluster import EventType
from vpa_ippr.api.errors import ActuatorError, ClusterError, ValidationError
from vpa_ippr.api.meta import ObjectKey
from vpa_ippr.api.pod import Pod
from vpa_ippr.api.shrink import Intent, MemoryShrink, Phase
from vpa_ippr.api.timestamps import parse_time
from vpa_ippr.api.validation import validate_shrink
from vpa_ippr.cluster.rest import ApiError

_log = logging.getLogger(__name__)

_UNTOUCHED = frozenset({Phase.PENDING, Phase.OBSERVING})
_GUARDED = frozenset({Phase.SHRINKING, Phase.HOLDING})
_STARTING = frozenset({Phase.PENDING, Phase.OBSERVING})
_WARNINGS = frozenset({Phase.REVERTED, Phase.EXPIRED})
_CLOSE_ATTEMPTS = 3
_MAX_TASKS = 32
_MAX_TASKS_OF_POD = 2
"""Taken up at a time, in all and of a pod, probations apart; the others wait in the API. Anybody may create thousands of MemoryShrinks
for a pod of theirs, and each costs requests while nobody watches the containers that stand under a guard."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What makes an agent more careful and quicker.

    ``node``: what the node as a whole bears; without it only the policy's counts limit what is done at a time. ``conditions``: what the
    kubelet says of the node. ``alarms``: cut the wait between two looks short. ``when_idle``: called while no shrink is under way, which is
    the moment to set a clock right. ``observer``: is told what the agent does.
    """

    node: NodeState | None = None
    conditions: ConditionPort | None = None
    alarms: Alarms | None = None
    when_idle: Callable[[], None] = lambda: None
    observer: Observer = field(default_factory=Unobserved)


class Agent:
    """Drives the shrinks of one node.

    Args:
        node_name: as in ``spec.nodeName`` of pods and MemoryShrinks.
        shrinks: the MemoryShrinks of the API.
        pods: the pods of the API, and what they run.
        cgroups: the node's containers.
        journal: opened, which means locked; the agent closes it.
        clock: time, and the wait between rounds.
        policy: the node's own; each MemoryShrink may override a part.
        surroundings: what the agent knows besides; all of it may be left out.
    """

    def __init__(
        self,
        node_name: str,
        shrinks: ShrinkPort,
        pods: LaunchPort,
        cgroups: CgroupFinder,
        journal: Journal,
        clock: Clock,
        policy: Policy,
        surroundings: Surroundings | None = None,
    ) -> None:
        self._node_name = node_name
        self._shrinks = shrinks
        self._pods = pods
        self._cgroups = cgroups
        self._journal = journal
        self._clock = clock
        self._policy = policy
        around = surroundings or Surroundings()
        self._gate = Gate(policy, around.node)
        self._conditions = around.conditions
        self._alarms = around.alarms
        self._when_idle = around.when_idle
        self._observer = around.observer
        self._next_conditions = -math.inf
        self._first_seen: dict[str, float] = {}
        self._tasks: dict[str, Task] = {}
        self._finished: set[str] = set()
        self._next_poll = -math.inf
        self._last_now = -math.inf
        self._left_over = list(journal.entries())
        self._is_cut_off = False
        self._is_closed = False

    def run(self, stop: threading.Event) -> None:
        """Work until ``stop`` is set or the clock is stopped, then put everything back."""
        try:
            while not stop.is_set() and self._wait_until(self.run_once()):
                pass
        finally:
            self.close()

    def _wait_until(self, moment: float) -> bool:
        """Until then, or until pressure shows where a guard stands; False when the clock was stopped.

        A stop comes through at the end of the wait for pressure, which is no longer than a tick.
        """
        guarded = [task.cgroup for task in self._tasks.values() if task.state.touched and task.cgroup is not None]
        seconds = min(moment - self._clock.now(), self._policy.tick_seconds)
        is_alarmed = self._alarms is not None and self._alarms.wait(guarded, seconds)
        return self._clock.wait_until(self._clock.now() if is_alarmed else moment)

    def run_once(self) -> float:
        """One round; the moment at which the next one is due."""
        self._recover()
        now = self._clock.now()
        self._mind_the_clock(now)
        if now >= self._next_poll:
            self._next_poll = now + self._policy.poll_seconds
            self._poll(now)
        self._gate.look()
        for task in self._in_order():
            self._drive(task)
        for task in self._in_order():
            self._report(task)
        self._forget()
        phases = [task.state.phase for task in self._tasks.values()]
        self._observer.ended_round(phases, is_cut_off=self._is_cut_off, left_over=len(self._left_over))
        if not self._tasks:
            self._when_idle()
        due = min([self._next_poll, *(next_wake(task.state, task.policy) for task in self._tasks.values())])
        # By a fresh look at the clock: had it been set back meanwhile, the wait would last as long as that.
        return min(max(due, now + self._policy.tick_seconds), self._clock.now() + self._policy.poll_seconds)

    def _mind_the_clock(self, now: float) -> None:
        """A clock that was set back makes windows that never close and deadlines that do not come: what was touched is put back."""
        if now < self._last_now:
            _log.warning("clock was set back", extra={"seconds": round(self._last_now - now, 3)})
            self._next_poll = self._next_conditions = now
            self._first_seen.clear()
        if now < self._last_now - self._policy.tick_seconds:
            for task in self._tasks.values():
                if task.state.phase is Phase.COMMITTED:
                    task.begin_probation_anew(now)
                else:
                    task.fail(Reason.CLOCK_SET_BACK, f"the node's clock was set back by {self._last_now - now:.0f} s")
        self._last_now = now

    def close(self) -> None:
        """Restore what was touched, say so, and give the journal up; a probation stays in the journal for the successor."""
        if self._is_closed:
            return
        self._is_closed = True
        for task in self._in_order():
            if task.state.touched and task.state.phase is not Phase.COMMITTED:
                task.fail(Reason.AGENT_STOPPED, "the node's agent was stopped")
                for _ in range(_CLOSE_ATTEMPTS):
                    self._drive(task)
        # The API may hang until the agent is killed: all containers first.
        for task in self._in_order():
            self._report(task)
        if self._alarms is not None:
            self._alarms.close()
        self._journal.close()

    # Taking over from an agent before us.

    def _recover(self) -> None:
        for entry in list(self._left_over):
            try:
                self._recover_entry(entry)
                self._left_over.remove(entry)
            except ActuatorError as error:
                _log.error("cannot recover a shrink: tries again", extra={"shrink": entry.name, "error": str(error)})

    def _recover_entry(self, entry: Entry) -> None:
        is_of_this_boot = entry.boot_id == self._journal.boot_id
        cgroup = self._cgroups.reopen(entry.pod_uid, entry.container_id, entry.qos_class) if is_of_this_boot else None
        identity = cgroup.identity() if cgroup is not None else None
        if cgroup is not None and identity == entry.cgroup_identity and isinstance(cgroup, Managed):
            cgroup.take_over(entry.unit_high, entry.guard_bytes)
        verdict = decide(entry, self._journal.boot_id, look(cgroup), identity, self._policy.page_bytes)
        if isinstance(verdict, Drop):
            _log.info("journal entry has nothing to put back", extra={"shrink": entry.name, "why": verdict.why})
            self._journal.drop(entry.shrink_uid)
            self._observer.recovered(verdict)
            return
        task = Task(subject_in(entry), state_in(entry, self._clock.now()), self._policy, cgroup, self._pods)
        if isinstance(verdict, Restore):
            task.conclude(Ending(Phase.REVERTED, Reason.AGENT_RESTARTED, "the node's agent was restarted"))
        self._tasks[entry.shrink_uid] = task
        _log.warning("recovers a shrink", extra={"shrink": entry.name, "phase": entry.phase})
        self._observer.recovered(verdict)
        self._drive(task)

    # What the API wants.

    def _poll(self, now: float) -> None:
        try:
            listed = self._shrinks.list_shrinks(self._node_name)
        except ClusterError as error:
            if not self._is_cut_off:
                _log.warning("API lost: goes on with what is under way", extra={"tasks": len(self._tasks), "error": str(error)})
            self._is_cut_off = True
            return
        self._is_cut_off = False
        by_uid = {shrink.metadata.uid: shrink for shrink in listed}
        self._finished &= by_uid.keys()
        self._first_seen = {uid: self._first_seen.get(uid, now) for uid in by_uid}
        for uid, task in self._tasks.items():
            self._update(task, by_uid.get(uid))
        for uid, shrink in by_uid.items():
            is_new = uid not in self._tasks and uid not in self._finished and not shrink.status.phase.is_terminal
            if is_new and self._is_its_time(shrink, now) and not self._is_cut_off and self._has_room_for(shrink):
                self._begin_guarded(shrink, now)
        self._ask_about_pods()
        self._ask_about_node(now)

    def _ask_about_pods(self) -> None:
        """What the kubelet says of the pods that stand under a guard, which their cgroups do not tell."""
        for task in self._tasks.values():
            if task.state.phase not in _GUARDED or self._is_cut_off:
                continue
            subject = task.subject
            try:
                pod = self._pods.get_pod(ObjectKey(subject.key.namespace, subject.pod_name))
            except ClusterError as error:
                _log.warning("cannot read the pod of a shrink", extra={"shrink": str(subject.key), "error": str(error)})
                self._is_cut_off = not isinstance(error, ApiError)
                continue
            ending = no_longer(pod, subject.pod_uid, subject.container_name, was_ready=task.was_ready)
            if ending is not None:
                task.conclude(replace(ending, floor_bytes=task.borne_bytes) if ending.reason == Reason.NOT_READY else ending)

    def _ask_about_node(self, now: float) -> None:
        """The node's conditions, while there is something that could begin; a right to read nodes is not needed for the rest."""
        node, port = self._gate.node, self._conditions
        is_due = now >= self._next_conditions and any(task.state.phase in _STARTING for task in self._tasks.values())
        if node is None or port is None or self._is_cut_off or not is_due:
            return
        self._next_conditions = now + self._policy.node_conditions_seconds
        try:
            node.conditions = port.node_pressures(self._node_name)
        except ClusterError as error:
            _log.warning("cannot read the conditions of the node", extra={"node": self._node_name, "error": str(error)})
            self._is_cut_off = not isinstance(error, ApiError)

    def _is_its_time(self, shrink: MemoryShrink, now: float) -> bool:
        """New ones wait a little, each for another time; the deadline has not begun by then."""
        delay = jitter_seconds(shrink.metadata.uid, self._policy.start_jitter_seconds)
        return shrink.status.start_time is not None or now >= self._first_seen[shrink.metadata.uid] + delay

    def _has_room_for(self, shrink: MemoryShrink) -> bool:
        uids = [task.subject.pod_uid for task in self._tasks.values() if task.state.phase is not Phase.COMMITTED]
        return len(uids) < _MAX_TASKS and uids.count(shrink.spec.pod.uid) < _MAX_TASKS_OF_POD

    def _begin_guarded(self, shrink: MemoryShrink, now: float) -> None:
        try:
            self._begin(shrink, now)
        except Exception:  # noqa: BLE001 - one shrink's trouble must not stop the others
            _log.exception("shrink cannot be taken up", extra={"shrink": str(shrink.key)})

    def _update(self, task: Task, shrink: MemoryShrink | None) -> None:
        if shrink is None:
            task.has_vanished = True
            task.conclude(Ending(Phase.ABORTED, Reason.SHRINK_DELETED, "the MemoryShrink was deleted"))
            return
        if task.shrink is None:
            task.wants_report = True
        task.shrink = shrink

    def _begin(self, shrink: MemoryShrink, now: float) -> None:
        try:
            pod = self._pods.get_pod(ObjectKey(shrink.metadata.namespace, shrink.spec.pod.name))
        except ClusterError as error:
            _log.warning("cannot read the pod of a shrink: tries again", extra={"shrink": str(shrink.key), "error": str(error)})
            self._is_cut_off = not isinstance(error, ApiError)
            return
        if is_being_resized(pod) and shrink.spec.intent is Intent.PREPARE and shrink.status.phase in _UNTOUCHED:
            return  # its deadline has not begun; a resize that does not end is taken back by the updater, and the shrink called off
        policy, verdict = self._policy_of(shrink)
        if shrink.status.phase not in _UNTOUCHED:
            message = f"the agent was restarted in phase {shrink.status.phase} and nothing was left in its journal"
            verdict = Ending(Phase.REVERTED, Reason.AGENT_RESTARTED, message)
        try:
            verdict = verdict or preflight(shrink, pod, policy, now) or self._heap_verdict(shrink, pod, policy)
        except ClusterError as error:
            _log.warning("cannot read how a container is started: tries again", extra={"shrink": str(shrink.key), "error": str(error)})
            self._is_cut_off = not isinstance(error, ApiError)
            return
        subject = subject_of(shrink, pod.status.qos_class if pod is not None else "")
        cgroup, verdict = (None, verdict) if verdict is not None else self._find(subject)
        state = begin(policy.page_floor(shrink.spec.target_bytes), _started_at(shrink, now), shrink.spec.deadline_seconds, now)
        task = Task(subject, state, policy, cgroup, self._pods)
        task.shrink, task.written = shrink, shrink.status
        status = pod.container_status(subject.container_name) if pod is not None else None
        task.was_ready = status is not None and status.ready
        if verdict is not None:
            task.conclude(verdict)
        self._tasks[subject.shrink_uid] = task

    def _policy_of(self, shrink: MemoryShrink) -> tuple[Policy, Ending | None]:
        broken = validate_shrink(shrink)
        if broken:
            return self._policy, Ending(Phase.REFUSED, Reason.INVALID_SPEC, "; ".join(broken))
        try:
            return merge(self._policy, shrink.spec.policy), None
        except ValidationError as error:
            return self._policy, Ending(Phase.REFUSED, Reason.INVALID_POLICY, str(error))

    def _heap_verdict(self, shrink: MemoryShrink, pod: Pod | None, policy: Policy) -> Ending | None:
        if pod is None or not policy.respect_declared_heap:
            return None
        launch = self._pods.get_launch(pod.key)
        container = launch.container(shrink.spec.container.name) if launch is not None else None
        if container is None:
            return None
        heap = declared_heap(container, pod.desired(container.name).limits.memory_bytes)
        return refuse_below(heap, shrink.spec.target_bytes, policy) if heap is not None else None

    def _find(self, subject: Subject) -> tuple[Cgroup | None, Ending | None]:
        try:
            cgroup = self._cgroups.find(subject.pod_uid, subject.container_id, subject.qos_class)
        except ActuatorError as error:
            return None, Ending(Phase.REFUSED, error.reason, str(error))
        if cgroup is None:
            message = f"no cgroup for {subject.container_id} on node {self._node_name}: VM runtimes and foreign layouts are not supported"
            return None, Ending(Phase.REFUSED, Reason.CGROUP_NOT_FOUND, message)
        return cgroup, None

    # The work.

    def _in_order(self) -> list[Task]:
        return sorted(self._tasks.values(), key=lambda task: (task.state.started_at, task.subject.key))

    def _drive(self, task: Task) -> None:
        if task.is_over:
            task.tidy(self._journal)
            return
        before, asked_before, took_before = task.state, task.reclaimed_bytes, task.reclaim_seconds
        try:
            task.tick(self._gate.permission(task, self._tasks.values(), self._clock.now()), self._journal, self._clock)
        except Exception as error:  # noqa: BLE001 - one shrink's trouble must not stop the others
            _log.exception("shrink failed: it is put back", extra={"shrink": str(task.subject.key)})
            task.fail(Reason.INTERNAL_ERROR, f"{type(error).__name__}: {error}")
        effort = Effort(task.reclaimed_bytes - asked_before, task.reclaim_seconds - took_before)
        self._gate.spent(effort.reclaimed_bytes, self._clock.now())
        self._observer.ticked(task.subject.shrink_uid, before, task.state, effort)

    # What the API is told.

    def _report(self, task: Task) -> None:
        shrink = task.shrink
        if shrink is None or not self._may_report(task):
            return
        status = status_of(task.state, task.policy, shrink.metadata.generation)
        try:
            if status != task.written and not shrink.status.phase.is_terminal:
                self._shrinks.patch_shrink_status(shrink.key, status)
            if task.is_over:
                kind: EventType = "Warning" if status.phase in _WARNINGS else "Normal"
                self._shrinks.record_event(shrink, kind, f"Shrink{status.phase}", f"{status.reason}: {status.message}")
        except ClusterError as error:
            _log.warning("cannot report a shrink: tries again", extra={"shrink": str(shrink.key), "error": str(error)})
            self._is_cut_off = not isinstance(error, ApiError)
            task.report_from = self._clock.now() + self._policy.poll_seconds
            return
        task.written, task.wants_report = status, False

    def _may_report(self, task: Task) -> bool:
        """Not while the API is lost: each call takes until it times out, and nobody watches meanwhile. The next poll tells."""
        is_asked = task.wants_report and not task.has_vanished
        return is_asked and not self._is_cut_off and self._clock.now() >= task.report_from

    def _forget(self) -> None:
        for uid, task in list(self._tasks.items()):
            if task.is_over and not task.owes_drop and (task.has_vanished or (task.shrink is not None and not task.wants_report)):
                self._finished.add(uid)
                del self._tasks[uid]


def _started_at(shrink: MemoryShrink, now: float) -> float:
    """When this shrink's deadline began to run: the first status says it, so that a restart does not prolong it."""
    try:
        return parse_time(shrink.status.start_time) if shrink.status.start_time else now
    except ValidationError:
        return now
