"""One shrink that the agent drives: the machine's state beside the handles it is carried out with."""

from __future__ import annotations

import contextlib
import logging
import math
from dataclasses import dataclass, replace
from typing import Protocol

from vpa_ippr.actuator.assess import bearable_limit
from vpa_ippr.actuator.cgroup import Cgroup, Managed, Snapshot
from vpa_ippr.actuator.journal import Entry, Journal
from vpa_ippr.actuator.machine import step
from vpa_ippr.actuator.policy import Policy
from vpa_ippr.actuator.preflight import was_oom_killed
from vpa_ippr.actuator.reasons import Reason
from vpa_ippr.actuator.state import (
    Action,
    DropJournal,
    Ending,
    Observation,
    Original,
    Reclaim,
    ReportStatus,
    RestoreHigh,
    ShrinkState,
    WriteHigh,
    WriteJournal,
)
from vpa_ippr.api.clock import Clock
from vpa_ippr.api.errors import ActuatorError, ClusterError
from vpa_ippr.api.meta import ObjectKey
from vpa_ippr.api.pod import Pod
from vpa_ippr.api.shrink import Intent, MemoryShrink, Phase, ShrinkStatus

_log = logging.getLogger(__name__)

_MAX_MOVES = 4
"""Moves in one tick: a reclaim, its result, and twice a restore with its read-back."""
_GONE_PATIENCE_SECONDS = 60.0
"""How long the kubelet may take to say why a container ended."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What a shrink is about; the same from the API object and from the journal."""

    key: ObjectKey
    shrink_uid: str
    pod_name: str
    pod_uid: str
    container_name: str
    container_id: str
    qos_class: str


def subject_of(shrink: MemoryShrink, qos_class: str) -> Subject:
    """From the API object and the pod's QoS class."""
    spec = shrink.spec
    return Subject(shrink.key, shrink.metadata.uid, spec.pod.name, spec.pod.uid, spec.container.name, spec.container.id, qos_class)


def subject_in(entry: Entry) -> Subject:
    """From the journal."""
    key = ObjectKey(entry.namespace, entry.name)
    return Subject(key, entry.shrink_uid, entry.pod_name, entry.pod_uid, entry.container_name, entry.container_id, entry.qos_class)


class CausePort(Protocol):
    """Where it is known why a container ended."""

    def get_pod(self, key: ObjectKey) -> Pod | None:
        """The pod as it is now, or None."""
        ...


@dataclass(frozen=True, slots=True)
class Permission:
    """What the node's limits leave for a task in one tick."""

    may_observe: bool = True
    may_step: bool = True
    may_reclaim: bool = True
    allowance_bytes: int | None = None
    pace_bytes_per_second: float | None = None
    wait_message: str = ""


class Task:
    """Drives one machine: observes, moves, carries out, and moves on where the machine wants to see the result at once."""

    def __init__(self, subject: Subject, state: ShrinkState, policy: Policy, cgroup: Cgroup | None, pods: CausePort) -> None:
        self.subject = subject
        self.state = state
        self.policy = policy
        self.cgroup = cgroup
        self.shrink: MemoryShrink | None = None
        """The API object as last listed; None when only the journal knows of it so far."""
        self.was_ready = False
        """Whether the kubelet said at the beginning that the container was ready."""
        self.reclaimed_bytes = 0
        """What the kernel has been asked for, in all."""
        self.reclaim_seconds = 0.0
        """How long it took over that."""
        self.owes_drop = False
        """The shrink is over and its journal entry could not be dropped yet."""
        self.has_vanished = False
        self.wants_report = False
        self.report_from = -math.inf
        """Not before that: the API refused the last report."""
        self.written: ShrinkStatus | None = None
        self._pods = pods
        self._verdict: Ending | None = None
        self._gone_since: float | None = None

    @property
    def is_over(self) -> bool:
        """Nothing more will be done on the node."""
        return self.state.phase.is_terminal

    @property
    def borne_bytes(self) -> int | None:
        """The lowest limit that the container has shown to bear: for what it uses now."""
        last = self.state.last
        return bearable_limit(last.usage_bytes, self.policy) if last is not None else None

    def conclude(self, ending: Ending) -> None:
        """End the shrink like that at the next move; the first ending stays."""
        self._verdict = self._verdict or ending

    def fail(self, reason: str, message: str) -> None:
        """End the shrink at the next move because something broke."""
        self.conclude(Ending(Phase.REFUSED, reason, message))

    def begin_probation_anew(self, now: float) -> None:
        """The clock was set back: by the old times the probation would last as much longer."""
        self.state = replace(self.state, phase_since=now, updated_at=now, reported_at=-math.inf)

    def tick(self, permission: Permission, journal: Journal, clock: Clock) -> None:
        """Move until the machine is content for now."""
        outcome = Outcome()
        for _ in range(_MAX_MOVES):
            snapshot, is_unreadable = self._look()
            if self._must_wait_for_cause(snapshot, is_unreadable, clock.now()):
                return
            observation = Observation(
                snapshot=snapshot,
                unreadable=is_unreadable,
                abort=self.shrink is not None and self.shrink.spec.intent is Intent.ABORT,
                verdict=self._verdict,
                may_observe=permission.may_observe,
                may_step=permission.may_step,
                may_reclaim=permission.may_reclaim,
                allowance_bytes=permission.allowance_bytes,
                pace_bytes_per_second=permission.pace_bytes_per_second,
                wait_message=permission.wait_message,
                reclaim_complete=outcome.reclaim_complete,
                restored=outcome.restored,
            )
            before = self.state
            self.state, actions = step(self.state, observation, self.policy, clock.now())
            self._log_change(before)
            outcome = self._carry_out(actions, journal, clock, before)
            if not outcome.wants_look or self.is_over:
                return

    def tidy(self, journal: Journal) -> None:
        """Drop the entry that could not be dropped when the shrink ended: it speaks of a guard that is no more."""
        if not self.owes_drop:
            return
        try:
            journal.drop(self.subject.shrink_uid)
        except ActuatorError as error:
            _log.error("cannot drop a journal entry: tries again", extra={"shrink": str(self.subject.key), "error": str(error)})
        else:
            self.owes_drop = False

    def _look(self) -> tuple[Snapshot | None, bool]:
        """The cgroup now, and whether it is there but cannot be read, which ends the shrink."""
        if self.cgroup is None:
            return None, False
        try:
            return self.cgroup.read(), False
        except ActuatorError as error:
            self.fail(error.reason, str(error))
            return None, True

    def _must_wait_for_cause(self, snapshot: Snapshot | None, is_unreadable: bool, now: float) -> bool:
        """A container that ended under its new limit may have been OOM-killed; only the kubelet can still tell.

        The kernel's own counter goes with the cgroup. True while the kubelet has not noticed.
        """
        is_at_risk = self.state.phase in (Phase.HOLDING, Phase.COMMITTED) and self._verdict is None
        if not is_at_risk or is_unreadable or (snapshot is not None and snapshot.populated):
            return False
        self._gone_since = now if self._gone_since is None else self._gone_since
        killed = self._was_oom_killed()
        if killed is None and now - self._gone_since < _GONE_PATIENCE_SECONDS:
            self.state = replace(self.state, updated_at=now)
            return True
        if killed:
            is_committed = self.state.phase is Phase.COMMITTED
            reason = Reason.OOM_KILLED_AFTER_COMMIT if is_committed else Reason.OUT_OF_MEMORY
            margin = self.state.plan.margin_bytes if self.state.plan is not None else self.policy.margin_min_bytes
            message = "the container was killed for memory" + (" under the new limit" if is_committed else "")
            self.conclude(Ending(Phase.REVERTED, reason, message, self.state.target_bytes + margin))
        return False

    def _was_oom_killed(self) -> bool | None:
        subject = self.subject
        try:
            pod = self._pods.get_pod(ObjectKey(subject.key.namespace, subject.pod_name))
        except ClusterError as error:
            _log.warning("cannot ask why a container ended", extra={"shrink": str(subject.key), "error": str(error)})
            return None
        if pod is not None and pod.metadata.uid != subject.pod_uid:
            return False
        return was_oom_killed(pod, subject.container_name, subject.container_id)

    def _carry_out(self, actions: tuple[Action, ...], journal: Journal, clock: Clock, before: ShrinkState) -> Outcome:
        """All actions in order; after a failure only the report is still made, and the next move ends the shrink."""
        outcome = Outcome()
        has_failed = False
        for action in actions:
            if isinstance(action, ReportStatus):
                self.wants_report = True
                continue
            if has_failed:
                continue
            began = clock.now()
            try:
                outcome = self._do(action, journal, outcome)
            except ActuatorError as error:
                has_failed = True
                self.fail(error.reason, str(error))
                if isinstance(action, WriteJournal) and not before.touched:
                    self._stay_out(journal)
                # A failed restore is tried again at the next tick, any other failure leads to a restore right now.
                outcome = replace(outcome, wants_look=not isinstance(action, RestoreHigh | DropJournal))
                _log.error("action failed", extra={"shrink": str(self.subject.key), "action": type(action).__name__, "error": str(error)})
            if isinstance(action, Reclaim):
                self.reclaim_seconds += max(0.0, clock.now() - began)
        return outcome

    def _stay_out(self, journal: Journal) -> None:
        """The first entry could not be written, so nothing after it was done: there is nothing to put back."""
        self.state = replace(self.state, touched=False)
        with contextlib.suppress(ActuatorError):
            journal.drop(self.subject.shrink_uid)  # a disk that fails late has kept it

    def _do(self, action: Action, journal: Journal, outcome: Outcome) -> Outcome:
        cgroup = self.cgroup
        match action:
            case WriteJournal():
                journal.write(self.entry(journal))
            case DropJournal():
                self.owes_drop = True
                journal.drop(self.subject.shrink_uid)
                self.owes_drop = False
            case WriteHigh(high_bytes) if cgroup is not None:
                cgroup.write_high(high_bytes)
            case RestoreHigh(high_bytes) if cgroup is not None:
                cgroup.write_high(high_bytes)
                return replace(outcome, wants_look=True, restored=True)
            case Reclaim(amount_bytes, may_swap) if cgroup is not None:
                self.reclaimed_bytes += amount_bytes
                is_complete = cgroup.reclaim(amount_bytes, may_swap=True) if may_swap else cgroup.reclaim(amount_bytes)
                return replace(outcome, wants_look=True, reclaim_complete=is_complete)
            case _:
                pass
        return outcome

    def entry(self, journal: Journal) -> Entry:
        """What a successor has to know of this shrink."""
        state, subject = self.state, self.subject
        assert state.original is not None
        assert self.cgroup is not None
        return Entry(
            boot_id=journal.boot_id,
            shrink_uid=subject.shrink_uid,
            namespace=subject.key.namespace,
            name=subject.key.name,
            pod_name=subject.pod_name,
            pod_uid=subject.pod_uid,
            container_name=subject.container_name,
            container_id=subject.container_id,
            qos_class=subject.qos_class,
            cgroup_identity=self.cgroup.identity(),
            original_high_bytes=state.original.high_bytes,
            original_max_bytes=state.original.max_bytes,
            target_bytes=state.target_bytes,
            guard_bytes=state.guard_bytes,
            previous_guard_bytes=state.previous_guard_bytes,
            phase=state.phase,
            started_at=state.started_at,
            deadline_at=state.deadline_at,
            deadline_boottime_seconds=journal.boottime() + state.deadline_at - state.updated_at,
            unit_high=self.cgroup.unit_high() if isinstance(self.cgroup, Managed) else None,
        )

    def _log_change(self, before: ShrinkState) -> None:
        after = self.state
        if (before.phase, before.ending is None) == (after.phase, after.ending is None):
            return
        level = logging.WARNING if after.phase in (Phase.REVERTED, Phase.EXPIRED) else logging.INFO
        extra = {"shrink": str(self.subject.key), "from": before.phase, "to": after.phase, "reason": after.reason, "detail": after.message}
        _log.log(level, "shrink moved", extra=extra)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the actions of one move have told."""

    wants_look: bool = False
    reclaim_complete: bool = True
    restored: bool = False


def state_in(entry: Entry, now: float) -> ShrinkState:
    """The state to take a dead agent's shrink over with.

    Its phase is Holding, from which the machine finds the commit by itself if it has happened; a probation that was under way begins anew.
    """
    return ShrinkState(
        target_bytes=entry.target_bytes,
        started_at=entry.started_at,
        deadline_at=entry.deadline_at,
        phase=Phase.HOLDING,
        phase_since=now,
        reason=Reason.AGENT_RESTARTED,
        updated_at=now,
        original=Original(entry.original_high_bytes, entry.original_max_bytes),
        touched=True,
        guard_bytes=entry.guard_bytes,
        previous_guard_bytes=entry.previous_guard_bytes,
    )
