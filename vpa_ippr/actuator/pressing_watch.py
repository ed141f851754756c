"""Watches the containers of a node for want of memory, and tells the API which press: the guard against OOM kills.

A thread of its own beside the agent's: each second it reads usage and limit of every container that has a limit, and looks closely at
those that are rather full or grow fast; pressure triggers wake it earlier. No limit is ever written here. Without the API it goes on with
the containers that it knows, and tells what presses as soon as the API is back.
"""

from __future__ import annotations

import logging
import select
import threading
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Protocol

from vpa_ippr.actuator.pressing import Course, Glance, Look, Pressing, advance, wants_close_look
from vpa_ippr.actuator.pressing_policy import PressingPolicy
from vpa_ippr.actuator.pressing_report import Subject, Written, is_due, status_of
from vpa_ippr.actuator.triggers import READY, Pressure, PressureTriggers
from vpa_ippr.api.clock import Clock
from vpa_ippr.api.errors import ActuatorError, ClusterError
from vpa_ippr.api.node_memory import NodeMemoryStatus
from vpa_ippr.api.pod import Pod

_log = logging.getLogger(__name__)

DEFAULT_EXCLUDED_NAMESPACES = ("kube-system",)
_JOIN_SECONDS = 5.0
_RECLAIMABLE = ("active_file", "inactive_file", "slab_reclaimable")


class NodeMemoryPort(Protocol):
    """What the watch needs of the API. Both raise ``ClusterError`` when it is not there."""

    def list_pods(self, node_name: str) -> list[Pod]:
        """The pods of a node, as last known."""
        ...

    def put_node_memory(self, node_name: str, status: NodeMemoryStatus) -> None:
        """Replace the status of the node's NodeMemory, and make it when it is not there."""
        ...


class ReadableCgroup(Protocol):
    """A held handle on one container's cgroup."""

    def text(self, name: str) -> str | None:
        """One file; None when the cgroup is gone; raises ActuatorError when it cannot be read."""
        ...

    def open_triggers(self) -> PressureTriggers:
        """Wake-ups by pressure; without any where they cannot be had."""
        ...


class ReadableFinder(Protocol):
    """Where a node keeps its containers' cgroups."""

    def find(self, pod_uid: str, container_id: str, qos_class: str) -> ReadableCgroup | None:
        """The cgroup of a running container, or None; raises ActuatorError with the reason."""
        ...


@dataclass(slots=True)
class _Watched:
    subject: Subject
    cgroup: ReadableCgroup
    glance: Glance | None = None
    course: Course = field(default_factory=Course)
    triggers: PressureTriggers | None = None
    has_pressure: bool = True
    is_in_trouble: bool = False


@dataclass(slots=True)
class _Missing:
    """A container without a cgroup that we can find."""

    again_at: float
    wait_seconds: float


class PressingWatch:
    """Watches one node.

    Args:
        node_name: as in ``spec.nodeName`` of pods.
        port: the API.
        cgroups: the node's containers.
        clock: time, and the wait between rounds.
        policy: when a container presses, and how often is looked.
        excluded_namespaces: shell patterns; the pods there are nobody's to resize.
    """

    def __init__(
        self,
        node_name: str,
        port: NodeMemoryPort,
        cgroups: ReadableFinder,
        clock: Clock,
        policy: PressingPolicy,
        excluded_namespaces: Collection[str] = DEFAULT_EXCLUDED_NAMESPACES,
    ) -> None:
        self._node_name = node_name
        self._port = port
        self._cgroups = cgroups
        self._clock = clock
        self._policy = policy
        self._excluded = tuple(excluded_namespaces)
        self._watched: dict[str, _Watched] = {}
        self._missing: dict[str, _Missing] = {}
        self._last_now = clock.now()
        self._pods_at = self._last_now
        self._tell_at = self._last_now
        self._written: Written | None = None
        self._failures = 0
        self._pods_are_known = True

    def run(self, stop: threading.Event) -> None:
        """Work until ``stop`` is set or the clock is stopped. The list that was written last goes stale by itself."""
        while not stop.is_set():
            try:
                due = self.run_once()
            except Exception:  # noqa: BLE001 - the guard must outlive whatever it meets
                _log.exception("watch for memory pressure failed: goes on")
                due = self._clock.now() + self._policy.tick_seconds
            if not self._wait_until(due):
                return

    def run_once(self) -> float:
        """One round; the moment at which the next one is due."""
        now = self._clock.now()
        if now < self._last_now:  # the clock was set back: nothing must wait for as long as that
            self._pods_at = self._tell_at = now
            self._missing.clear()
        self._last_now = now
        if now >= self._pods_at:
            self._pods_at = now + self._policy.pods_seconds
            self._follow_pods(now)
        for container_id, watched in list(self._watched.items()):
            if not self._look_guarded(watched):
                del self._watched[container_id]
        self._tell()
        # By a fresh look at the clock: telling may have taken long.
        return max(now + self._policy.tick_seconds, self._clock.now())

    @property
    def pressing(self) -> list[tuple[Subject, Pressing]]:
        """The containers that press now."""
        return [(w.subject, w.course.pressing) for w in self._watched.values() if w.course.pressing is not None]

    def _wait_until(self, due: float) -> bool:
        """Wait for the next round, or for pressure; False when the clock was stopped."""
        triggers = [watched.triggers for watched in self._watched.values() if watched.triggers is not None and watched.triggers.filenos()]
        if not triggers:
            return self._clock.wait_until(due)
        if not self._clock.wait_until(min(due, self._last_now + self._policy.wake_seconds)):
            return False
        wait_for_stall(triggers, due, self._clock)
        return self._clock.wait_until(self._clock.now())

    # Which containers.

    def _follow_pods(self, now: float) -> None:
        try:
            pods = self._port.list_pods(self._node_name)
        except ClusterError as error:
            if self._pods_are_known:
                _log.warning("cannot list the node's pods: watches those that are known", extra={"error": str(error)})
            self._pods_are_known = False
            return
        self._pods_are_known = True
        wanted = {subject.container_id: subject for pod in pods if self._is_ours(pod) for subject in _subjects(pod)}
        self._watched = {key: watched for key, watched in self._watched.items() if key in wanted}
        self._missing = {key: missing for key, missing in self._missing.items() if key in wanted}
        for container_id, subject in wanted.items():
            missing = self._missing.get(container_id)
            if container_id not in self._watched and (missing is None or now >= missing.again_at):
                self._open(subject, now)

    def _is_ours(self, pod: Pod) -> bool:
        if any(fnmatchcase(pod.metadata.namespace, pattern) for pattern in self._excluded):
            return False
        return pod.metadata.deletion_timestamp is None and not pod.is_mirror

    def _open(self, subject: Subject, now: float) -> None:
        why = "no cgroup was found: VM runtimes and foreign layouts are not supported"
        try:
            cgroup = self._cgroups.find(subject.pod_uid, subject.container_id, subject.qos_class)
        except ActuatorError as error:
            cgroup, why = None, str(error)
        if cgroup is not None:
            self._missing.pop(subject.container_id, None)
            self._watched[subject.container_id] = _Watched(subject, cgroup)
            return
        missing = self._missing.get(subject.container_id)
        if missing is None:
            _log.info("container cannot be watched", extra={"container": subject.key, "why": why})
        wait = self._policy.search_seconds if missing is None else min(2 * missing.wait_seconds, self._policy.search_max_seconds)
        self._missing[subject.container_id] = _Missing(now + wait, wait)

    # Looking.

    def _look_guarded(self, watched: _Watched) -> bool:
        """False when the container is gone. One that cannot be read is claimed to be nothing, and tried again."""
        try:
            is_there = self._look(watched)
        except Exception as error:  # noqa: BLE001 - one container's trouble must not stop the others
            if not watched.is_in_trouble:
                _log.warning("container cannot be read", extra={"container": watched.subject.key, "error": str(error)})
            watched.is_in_trouble, watched.glance, watched.course = True, None, Course()
            return True
        watched.is_in_trouble = False
        return is_there

    def _look(self, watched: _Watched) -> bool:
        cgroup, now = watched.cgroup, self._clock.now()
        usage, limit = cgroup.text("memory.current"), cgroup.text("memory.max")
        if usage is None or limit is None:
            return False
        if limit.startswith("max"):
            watched.glance, watched.course = None, Course()
            return True
        before, watched.glance = watched.glance, Glance(at=now, usage_bytes=int(usage), limit_bytes=int(limit))
        if not wants_close_look(watched.course, before, watched.glance, self._policy):
            return True
        look = self._close_look(watched, watched.glance)
        if look is None:
            return False
        was = watched.course.pressing
        watched.course = advance(watched.course, look, self._policy)
        self._mind_triggers(watched, look)
        _log_change(watched.subject, was, watched.course.pressing)
        return True

    def _close_look(self, watched: _Watched, glance: Glance) -> Look | None:
        cgroup = watched.cgroup
        stat, events, local = cgroup.text("memory.stat"), cgroup.text("memory.events"), cgroup.text("memory.events.local")
        if stat is None or events is None or local is None:
            return None
        need = max(0, glance.usage_bytes - sum(_field(stat, key) for key in _RECLAIMABLE))
        counts_stalls = need >= self._policy.stall_need_ratio * glance.limit_bytes
        return Look(
            at=glance.at,
            usage_bytes=glance.usage_bytes,
            limit_bytes=glance.limit_bytes,
            need_bytes=need,
            limit_hits=_field(local, "max"),
            oom_events=_field(local, "oom"),
            oom_kills=_field(events, "oom_kill"),
            memory_full_us=self._memory_full_us(watched) if counts_stalls else None,
        )

    def _mind_triggers(self, watched: _Watched, look: Look) -> None:
        """Pressure wakes us only where it could mean something: not where most of the memory is page cache."""
        if look.need_bytes < self._policy.stall_need_ratio * look.limit_bytes:
            if watched.triggers is not None:
                watched.triggers.close()
            watched.triggers = None
        elif watched.triggers is None and sum(w.triggers is not None for w in self._watched.values()) < self._policy.max_triggered:
            watched.triggers = watched.cgroup.open_triggers()

    def _memory_full_us(self, watched: _Watched) -> int | None:
        """None for a kernel that keeps no pressure of this cgroup; it is asked once."""
        if not watched.has_pressure:
            return None
        try:
            text = watched.cgroup.text("memory.pressure")
        except ActuatorError as error:
            watched.has_pressure = False
            _log.info("no memory pressure: stalls are not seen", extra={"container": watched.subject.key, "error": str(error)})
            return None
        full = (text or "").partition("full ")[2]
        return int(full.rpartition("total=")[2]) if full else None

    # Telling.

    def _tell(self) -> None:
        now = self._clock.now()
        if now < self._tell_at:
            return
        status = status_of(self.pressing, now)
        if not is_due(status, self._written, now, self._policy):
            return
        try:
            self._port.put_node_memory(self._node_name, status)
        except ClusterError as error:
            if self._failures == 0:
                _log.warning("cannot tell what presses: tries again", extra={"pressing": status.pressing_count, "error": str(error)})
            wait = min(self._policy.retry_seconds * 2.0**self._failures, self._policy.retry_max_seconds)
            self._failures = min(self._failures + 1, 10)
            self._tell_at = self._clock.now() + wait
            return
        if self._failures:
            _log.info("tells what presses again", extra={"pressing": status.pressing_count})
        self._failures, self._written = 0, Written(status, now)


@dataclass(frozen=True, slots=True)
class RunningWatch:
    """A watch that was started."""

    thread: threading.Thread
    stopped: threading.Event

    def close(self) -> None:
        """End the watch and wait for its thread; with a clock that goes on it ends after its next round."""
        self.stopped.set()
        self.thread.join(_JOIN_SECONDS)


def start_pressing_watch(
    node_name: str,
    port: NodeMemoryPort,
    cgroups: ReadableFinder,
    clock: Clock,
    policy: PressingPolicy | None = None,
    excluded_namespaces: Collection[str] = DEFAULT_EXCLUDED_NAMESPACES,
) -> RunningWatch:
    """Watch the node in a daemon thread."""
    watch = PressingWatch(node_name, port, cgroups, clock, policy or PressingPolicy(), excluded_namespaces)
    stopped = threading.Event()
    thread = threading.Thread(target=watch.run, args=(stopped,), name="pressing", daemon=True)
    thread.start()
    return RunningWatch(thread, stopped)


def wait_for_stall(triggers: Sequence[PressureTriggers], moment: float, clock: Clock) -> None:
    """Return when tasks of one of the containers have stalled on memory for too long, and at ``moment`` in any case."""
    poll = select.poll()
    for trigger in triggers:
        for fd in trigger.filenos():
            poll.register(fd, READY)
    while (left := moment - clock.now()) > 0:
        events = poll.poll(left * 1000)
        stalls = {pressure for trigger in triggers for pressure in trigger.fired(events)} - {Pressure.IO_SOME}
        if stalls or not events:  # waiting for I/O alone is no want of memory
            return


def _subjects(pod: Pod) -> Iterator[Subject]:
    """The running containers that have a memory limit."""
    for status in (*pod.status.container_statuses, *pod.status.init_container_statuses):
        container = pod.container(status.name)
        if status.state.running is None or not status.container_id or container is None or "memory" not in container.resources.limits:
            continue
        meta = pod.metadata
        yield Subject(meta.namespace, meta.name, meta.uid, pod.status.qos_class, status.name, status.container_id)


def _field(text: str, key: str) -> int:
    """One value of a file of ``key value`` lines, without reading the other sixty; 0 where there is none. Not for the first line."""
    sought = f"\n{key} "
    found = text.find(sought)
    if found < 0:
        return 0
    begin = found + len(sought)
    end = text.find("\n", begin)
    return int(text[begin:] if end < 0 else text[begin:end])


def _log_change(subject: Subject, was: Pressing | None, now: Pressing | None) -> None:
    where = {"namespace": subject.namespace, "pod": subject.pod_name, "container": subject.container_name}
    if now is not None and (was is None or was.since != now.since):
        _log.warning("container presses", extra={**where, "reason": str(now.reason), "detail": now.message})
    elif was is not None and now is None:
        _log.info("container no longer presses", extra={**where, "seconds": round(was.at - was.since)})
