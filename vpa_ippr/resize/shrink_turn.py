"""The shrinks of one pod in one cycle: what has ended is dealt with, what is held is committed, what is not wanted is called off."""

from __future__ import annotations

from dataclasses import replace

from vpa_ippr.api.meta import ObjectKey
from vpa_ippr.api.shrink import Intent, MemoryShrink
from vpa_ippr.resize.ledger import Scope, read_ledger, with_hold_off
from vpa_ippr.resize.patch import describe
from vpa_ippr.resize.ports import UpdaterPort
from vpa_ippr.resize.reasons import AbortReason, EventReason, OutcomeCode
from vpa_ippr.resize.refusal import classify
from vpa_ippr.resize.result import PodOutcome
from vpa_ippr.resize.rollout_state import read_rollout
from vpa_ippr.resize.settings import Settings
from vpa_ippr.resize.shrinks import Abort, Commit, Discard, ShrinkStep, event_for, finished_at, is_overdue, next_step, raised_back, settled
from vpa_ippr.resize.view import View, look
from vpa_ippr.resize.writer import ResizeRefusedError, Writer


class ShrinkTurn:
    """Deals with the MemoryShrinks of a pod."""

    def __init__(self, cluster: UpdaterPort, writer: Writer, settings: Settings) -> None:
        self._cluster = cluster
        self._writer = writer
        self._settings = settings

    def settle(self, view: View) -> PodOutcome | None:
        """Deal with one finished shrink: give the memory back if it went wrong, and note what was learned; delete old ones."""
        for shrink in view.shrinks:
            if not shrink.status.phase.is_terminal:
                continue
            if shrink.metadata.uid not in view.ledger.settled:
                return self._settle(view, shrink)
            ended = finished_at(shrink)
            if ended is not None and view.now > ended + self._settings.keep_seconds:
                self._cluster.delete_shrink(shrink.key)
        return None

    def _settle(self, view: View, shrink: MemoryShrink) -> PodOutcome | None:
        undo = raised_back(shrink, view.pod, view.ledger)
        ledger = settled(shrink, view.ledger, view.now, self._settings, undone=bool(undo))
        status = shrink.status
        why = f"{status.reason or status.phase} {status.message}".rstrip()
        message = f"memoryshrink {shrink.metadata.name} of {shrink.spec.container.name}: {why}"
        if not undo:
            self._writer.remember(view.pod, ledger)
            # Once: an owner who takes the ledger away brings this back each cycle.
            self._writer.say_once(view.pod, event_for(shrink), shrink.metadata.uid, message)
            return view.outcome(OutcomeCode.SHRINK_ENDED, status.phase, message)
        changes = self._writer.resize(view.pod, ledger, undo, view.now, reverting=True)
        self._writer.say(view.pod, EventReason.SHRINK_REVERTED, f"{message}; {describe(changes)}")
        return view.outcome(OutcomeCode.SHRINK_UNDONE, status.phase, message)

    def call_off(self, view: View) -> PodOutcome | None:
        """Call off the shrinks that are no longer wanted."""
        outcome = None
        for shrink in view.active:
            step = self._next_step(view, shrink)
            if isinstance(step, Abort):
                self._writer.abort_shrink(shrink, step.reason, view.pod)
                outcome = view.outcome(OutcomeCode.SHRINK_ABORTED, step.reason, f"memoryshrink {shrink.metadata.name}")
        return outcome

    def advance(self, view: View) -> PodOutcome | None:
        """Commit the shrink that is held, or discard the one that nobody took up; None when all that can be done is to wait."""
        for shrink in view.active:
            match self._next_step(view, shrink):
                case Discard():
                    return self._discard(view, shrink)
                case Commit():
                    return self._commit(view, shrink)
        return None

    def _next_step(self, view: View, shrink: MemoryShrink) -> ShrinkStep:
        desired = view.desired(shrink.spec.container.name)
        return next_step(shrink, view.pod, view.state, desired, view.now, self._settings, halted=view.halted)

    def _discard(self, view: View, shrink: MemoryShrink) -> PodOutcome:
        container, reason = shrink.spec.container.name, AbortReason.AGENT_SILENT
        self._writer.remember(view.pod, with_hold_off(view.ledger, container, Scope.SHRINK, reason, view.now, self._settings))
        self._cluster.delete_shrink(shrink.key)
        message = f"no agent on node {shrink.spec.node_name} took up or ended memoryshrink {shrink.metadata.name}"
        self._writer.say(view.pod, EventReason.SHRINK_ABORTED, message)
        return view.outcome(OutcomeCode.SHRINK_DISCARDED, reason, message)

    def _commit(self, listed: View, shrink: MemoryShrink) -> PodOutcome:
        """One more look at pod and shrink, then the lower limit."""
        name = shrink.metadata.name
        fresh_pod, fresh_shrink = self._cluster.get_pod(listed.pod.key), self._cluster.get_shrink(shrink.key)
        if fresh_pod is None or fresh_pod.metadata.uid != listed.pod.metadata.uid or fresh_shrink is None:
            return listed.outcome(OutcomeCode.GONE, message=f"pod or memoryshrink {name} is gone")
        shrinks = [fresh_shrink if s.metadata.uid == shrink.metadata.uid else s for s in listed.shrinks]
        fresh = look(fresh_pod, listed.vpa, listed.group, listed.node, shrinks, listed.now, self._settings, listed.namespace_limits)
        view = replace(fresh, known_circumstances=listed.known_circumstances)
        step = self._next_step(view, fresh_shrink)
        if fresh_shrink.status.phase.is_terminal or not isinstance(step, Commit):
            return view.outcome(OutcomeCode.SHRINK_ACTIVE, fresh_shrink.status.phase, f"memoryshrink {name} changed meanwhile")
        try:
            rollout = read_rollout(view.vpa).key if view.vpa else None
            changes = self._writer.resize(
                view.pod, view.ledger, {step.container: step.after}, view.now, shrink=name, rollout=rollout or None
            )
        except ResizeRefusedError as error:
            return self._commit_refused(view, fresh_shrink, error)
        self._writer.say(view.pod, EventReason.RESIZE_ISSUED, f"{describe(changes)} (memoryshrink {name})")
        return view.outcome(OutcomeCode.SHRINK_PATCHED, fresh_shrink.status.phase, describe(changes))

    def _commit_refused(self, view: View, shrink: MemoryShrink, error: ResizeRefusedError) -> PodOutcome:
        refusal = classify(error.cause)
        reason = refusal.reason or AbortReason.RESIZE_FAILED
        self._writer.abort_shrink(shrink, AbortReason.RESIZE_FAILED, view.pod)
        container = shrink.spec.container.name
        ledger = with_hold_off(read_ledger(error.pod), container, Scope.SHRINK, reason, view.now, self._settings)
        self._writer.remember(error.pod, ledger)
        self._writer.say(view.pod, EventReason.RESIZE_REFUSED, refusal.message)
        return view.outcome(OutcomeCode.REFUSED, reason, refusal.message)

    def abort_all(self, view: View, reason: AbortReason) -> None:
        """Call off all shrinks of the pod that are under way."""
        for shrink in view.active:
            if shrink.spec.intent is not Intent.ABORT:
                self._writer.abort_shrink(shrink, reason, view.pod)

    def abort_for(self, view: View, name: str) -> None:
        """Call off the shrink of that name because its resize came to nothing."""
        for shrink in view.active:
            if shrink.metadata.name == name:
                self._writer.abort_shrink(shrink, AbortReason.RESIZE_FAILED, view.pod)

    def sweep(self, orphan: MemoryShrink, now: float) -> PodOutcome | None:
        """A shrink whose pod is gone: call it off; delete it once the agent has let go, or when no agent is left to do so."""
        pod = ObjectKey(orphan.metadata.namespace, orphan.spec.pod.name)
        if self._is_alive(pod, orphan.spec.pod.uid):
            return None  # the list left it out: it came later, or could not be read in it
        if orphan.status.phase.is_terminal or is_overdue(orphan, now, self._settings):
            self._cluster.delete_shrink(orphan.key)
            return PodOutcome(pod, None, OutcomeCode.SHRINK_DISCARDED, AbortReason.POD_GONE, f"memoryshrink {orphan.metadata.name}")
        if orphan.spec.intent is Intent.ABORT:
            return None
        self._writer.abort_shrink(orphan, AbortReason.POD_GONE)
        return PodOutcome(pod, None, OutcomeCode.SHRINK_ABORTED, AbortReason.POD_GONE, f"memoryshrink {orphan.metadata.name}")

    def _is_alive(self, key: ObjectKey, uid: str) -> bool:
        pod = self._cluster.get_pod(key)
        return pod is not None and pod.metadata.uid == uid and pod.status.phase not in ("Succeeded", "Failed")
