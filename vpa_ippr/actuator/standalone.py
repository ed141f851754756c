"""A shrink without Kubernetes: one cgroup, named by its path, driven by the same machine, journal and signals as a container's.

Either somebody else sets the limit while usage is held below it, or this does, where the cgroup is none of Kubernetes'. Then it also raises
the limit again when the probation shows harm, or when it is stopped before the probation is over.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec

from vpa_ippr.actuator.cgroup import Cgroup
from vpa_ippr.actuator.commit import Change, LimitPort, commit, withdraw
from vpa_ippr.actuator.journal import Entry, Journal
from vpa_ippr.actuator.machine import next_wake, step
from vpa_ippr.actuator.policy import Policy
from vpa_ippr.actuator.reasons import Reason
from vpa_ippr.actuator.state import Action, DropJournal, Ending, Observation, ShrinkState, begin
from vpa_ippr.actuator.task import Outcome, Permission, Subject, Task
from vpa_ippr.api.clock import Clock
from vpa_ippr.api.errors import ActuatorError
from vpa_ippr.api.meta import ObjectKey
from vpa_ippr.api.pod import Pod
from vpa_ippr.api.shrink import Phase

_log = logging.getLogger(__name__)

_LAST_ATTEMPTS = 3
_COMMIT_ATTEMPTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked of a cgroup."""

    path: str
    """Below the cgroup root."""
    target_bytes: int
    deadline_seconds: float
    policy: Policy
    is_strict: bool = True
    """Freeze the cgroup for the moment in which its limit is set."""


Show = Callable[[ShrinkState], None]


class _NoPods:
    """There is no kubelet that could say why a container ended."""

    def get_pod(self, key: ObjectKey) -> Pod | None:  # noqa: ARG002 - the port's signature
        return None


class _Task(Task):
    """A task whose entry names the cgroup by path, and which puts the limit back as well."""

    def __init__(self, request: Request, cgroup: Cgroup, limit: LimitPort | None, now: float) -> None:
        state = begin(request.policy.page_floor(request.target_bytes), now, request.deadline_seconds, now)
        subject = Subject(ObjectKey("", request.path), f"cgroup-{cgroup.identity()}", "", "", "", "", "")
        super().__init__(subject, state, request.policy, cgroup, _NoPods())
        self.request = request
        self.limit = limit
        self.has_tried = False
        self._failures = 0
        self._may_be_frozen = False

    def entry(self, journal: Journal) -> Entry:
        return msgspec.structs.replace(super().entry(journal), cgroup_path=self.request.path, may_be_frozen=self._may_be_frozen)

    def commit(self, journal: Journal) -> bool:
        """Set the limit if it may be, and whether it is set; what fails again and again ends the shrink."""
        if self.limit is None or self.state.plan is None:
            return False
        self.has_tried = True
        try:
            why = commit(
                self.limit, self._change(self.state.plan.guard_bytes), lambda frozen: self._announce(journal, may_be_frozen=frozen)
            )
        except ActuatorError as error:
            why, self._failures = str(error), self._failures + 1
            if self._failures >= _COMMIT_ATTEMPTS:
                self.fail(Reason.COMMIT_FAILED, f"{self._failures} times in a row: {why}")
        if why is not None:
            _log.info("limit is not set yet", extra={"cgroup": self.request.path, "why": why})
        return why is None

    def _announce(self, journal: Journal, *, may_be_frozen: bool) -> None:
        self._may_be_frozen = may_be_frozen
        # Without the first one nothing is frozen. The second only spares a successor from thawing what is not frozen.
        with contextlib.nullcontext() if may_be_frozen else contextlib.suppress(ActuatorError):
            journal.write(self.entry(journal))

    def _do(self, action: Action, journal: Journal, outcome: Outcome) -> Outcome:
        if isinstance(action, DropJournal) and self.limit is not None and self.has_tried and self.state.phase is not Phase.GONE:
            # Whatever a failed attempt has left behind goes before the entry that speaks of it.
            if self._may_be_frozen:
                self.limit.thaw()
            if self.state.phase is not Phase.DONE:
                withdraw(self.limit, self._change(0))
        return super()._do(action, journal, outcome)

    def _change(self, guard_bytes: int) -> Change:
        assert self.state.original is not None
        return Change(
            target_bytes=self.state.target_bytes,
            guard_bytes=guard_bytes,
            original_bytes=self.state.original.max_bytes,
            page_bytes=self.policy.page_bytes,
            is_strict=self.request.is_strict,
        )


@dataclass(frozen=True, slots=True)
class Result:
    """How it ended. ``limit_is_set``: memory.max is the target, by our hand."""

    state: ShrinkState
    was_held: bool
    limit_is_set: bool
    is_left_over: bool
    """Something could not be put back; the journal holds what."""


def run(
    request: Request, cgroup: Cgroup, limit: LimitPort | None, journal: Journal, clock: Clock, stop: threading.Event, show: Show
) -> Result:
    """Shrink to the end, or until ``stop`` is set and everything is put back.

    Args:
        request: what is asked.
        cgroup: the one at the request's path.
        limit: to set the limit with; None when somebody else does.
        journal: locked; stays open.
        clock: time.
        stop: set together with ``clock.stop``.
        show: told of every new state.
    """
    task = _Task(request, cgroup, limit, clock.now())
    try:
        was_held = _drive(task, journal, clock, stop, show)
    except Exception:
        # Whatever it is (the terminal may have gone that ``show`` writes to), the guard does not stay.
        _end(task, journal, clock, Ending(Phase.ABORTED, Reason.INTERNAL_ERROR, "the command failed"))
        raise
    is_left_over = any(entry.shrink_uid == task.subject.shrink_uid for entry in journal.entries())
    return Result(task.state, was_held, task.has_tried and task.state.phase is Phase.DONE, is_left_over)


def _drive(task: _Task, journal: Journal, clock: Clock, stop: threading.Event, show: Show) -> bool:
    """To the end; whether usage was held below the target on the way."""
    was_held = False
    while not task.is_over:
        if stop.is_set():
            _end(task, journal, clock, Ending(Phase.ABORTED, Reason.ABORT_REQUESTED, "stopped by a signal"))
            show(task.state)
            break
        _tick(task, journal, clock)
        show(task.state)
        if task.state.phase is Phase.HOLDING and task.state.ending is None:
            was_held = True
            if not stop.is_set() and task.commit(journal):
                continue
        if not task.is_over:
            clock.wait_until(next_wake(task.state, task.policy))
    return was_held


def _end(task: _Task, journal: Journal, clock: Clock, ending: Ending) -> None:
    """Put everything back now; what cannot be stays in the journal."""
    task.conclude(ending)
    for _ in range(_LAST_ATTEMPTS):
        if not task.is_over:
            _tick(task, journal, clock)


def rehearse(request: Request, cgroup: Cgroup, clock: Clock, stop: threading.Event, show: Show) -> ShrinkState:
    """Observe and judge, and write nothing: the state in which the first step would be taken (Shrinking), or the refusal."""
    now = clock.now()
    state = begin(request.policy.page_floor(request.target_bytes), now, request.deadline_seconds, now)
    while state.phase in (Phase.PENDING, Phase.OBSERVING):
        if stop.is_set():
            return replace(state, phase=Phase.ABORTED, reason=Reason.ABORT_REQUESTED, message="stopped by a signal")
        state, _ = step(state, Observation(snapshot=cgroup.read()), request.policy, clock.now())
        show(state)
        if state.phase in (Phase.PENDING, Phase.OBSERVING):
            clock.wait_until(next_wake(state, request.policy))
    return state


def _tick(task: _Task, journal: Journal, clock: Clock) -> None:
    try:
        task.tick(Permission(), journal, clock)
    except Exception as error:  # noqa: BLE001 - whatever it is, what was touched is put back
        _log.exception("shrink failed: it is put back", extra={"cgroup": task.request.path})
        task.fail(Reason.INTERNAL_ERROR, f"{type(error).__name__}: {error}")
