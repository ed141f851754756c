"""One pod's turn in a cycle: deal with its shrinks, carry on the resize that is under way, else see whether a resize is due."""

from __future__ import annotations

import msgspec

from vpa_ippr.api.meta import ObjectKey
from vpa_ippr.api.vpa import Vpa
from vpa_ippr.resize.budget import may_restart
from vpa_ippr.resize.due import NotDue, decide
from vpa_ippr.resize.follow import ResumeRevert, Revert, Wait, follow, revert_target
from vpa_ippr.resize.ledger import (
    WHOLE_POD,
    Infeasible,
    Ledger,
    Record,
    Scope,
    contested,
    parse_stored,
    read_ledger,
    spec_is,
    with_hold_off,
)
from vpa_ippr.resize.patch import changes_between, describe
from vpa_ippr.resize.plan import Plan, Refused, plan
from vpa_ippr.resize.ports import UpdaterPort
from vpa_ippr.resize.qos import desired_resources, pod_requests
from vpa_ippr.resize.reasons import DueReason, EventReason, NotDueReason, OutcomeCode, RefusalReason, RevertReason
from vpa_ippr.resize.refusal import classify
from vpa_ippr.resize.result import PodOutcome
from vpa_ippr.resize.rules import VersionRules
from vpa_ippr.resize.settings import Settings
from vpa_ippr.resize.shrink_turn import ShrinkTurn
from vpa_ippr.resize.shrinks import ended_lately
from vpa_ippr.resize.stale_cgroup import nudge
from vpa_ippr.resize.state import Idle, InfeasibleCause, Unsupported, classify_infeasible, is_ready
from vpa_ippr.resize.view import View
from vpa_ippr.resize.writer import ResizeRefusedError, Writer


class PodTurn:
    """Takes the turns of all pods; what it remembers between cycles only keeps events from being repeated or lost."""

    def __init__(self, cluster: UpdaterPort, writer: Writer, settings: Settings, rules: VersionRules) -> None:
        self.shrinks = ShrinkTurn(cluster, writer, settings)
        self._writer = writer
        self._settings = settings
        self._rules = rules
        self._under_way: set[str] = set()
        self._completed: dict[str, float] = {}
        self._restarted: set[ObjectKey] = set()

    def begin_cycle(self, pod_uids: set[str]) -> None:
        """Forget pods that are gone, and which VPAs had a pod restarted."""
        self._under_way &= pod_uids
        self._completed = {uid: at for uid, at in self._completed.items() if uid in pod_uids}
        self._restarted.clear()
        self._writer.forget_pods_but(pod_uids)

    def take(self, view: View) -> PodOutcome | None:
        """Do the one thing that comes next for this pod; None when it is none of our business.

        Raises:
            VpaIpprError: an object cannot be read, or the API failed; nothing that was begun is lost.
        """
        try:
            called_off = self.shrinks.call_off(view)
            outcome = self.shrinks.settle(view) or self.shrinks.advance(view) or self._follow(view) or self._consider(view)
        except ResizeRefusedError as error:  # of a revert: it is tried again next cycle
            refusal = classify(error.cause)
            self._writer.say_once(view.pod, EventReason.RESIZE_REFUSED, f"revert {refusal.reason}", refusal.message)
            return view.outcome(OutcomeCode.REFUSED, refusal.reason or "", refusal.message)
        if called_off is not None and (outcome is None or outcome.code is OutcomeCode.NOT_DUE):
            return called_off
        return outcome

    def _follow(self, view: View) -> PodOutcome | None:
        match follow(view.pod, view.state, view.ledger, view.now, self._settings):
            case Wait(code, message):
                if code is not OutcomeCode.FOREIGN:
                    self._under_way.add(view.pod.metadata.uid)
                if code is OutcomeCode.DEFERRED:
                    self._writer.say_once(view.pod, EventReason.RESIZE_DEFERRED, str(view.pod.metadata.generation), message)
                return view.outcome(code, message=message)
            case Revert(reason, message):
                return self._revert(view, reason, message)
            case ResumeRevert():
                return self._resume_revert(view)
        return self._nudge(view) or self._announce_completion(view)

    def _nudge(self, view: View) -> PodOutcome | None:
        """Follow up a raise that may not have reached the pod's cgroup."""
        after = nudge(view.pod, view.state, view.ledger.last) if self._rules.stale_pod_cgroup else None
        if after is None:
            return None
        changes = describe(self._writer.resize(view.pod, view.ledger, after, view.now, nudge=True))
        self._under_way.add(view.pod.metadata.uid)
        self._writer.say(view.pod, EventReason.RESIZE_ISSUED, f"{changes} ({DueReason.STALE_POD_CGROUP})")
        return view.outcome(OutcomeCode.ISSUED, DueReason.STALE_POD_CGROUP, changes)

    def _revert(self, view: View, reason: RevertReason, message: str) -> PodOutcome:
        record = view.ledger.last
        assert record is not None  # only our own resizes are reverted
        target = revert_target(view.pod, record.before, self._rules)
        if target is None:
            return view.outcome(OutcomeCode.CANNOT_REVERT, reason, message)
        if record.shrink:
            self.shrinks.abort_for(view, record.shrink)
        changes = self._writer.resize(view.pod, self._learned(view, record, reason, message), target, view.now, reverting=True)
        self._writer.say(view.pod, EventReason.RESIZE_REVERTED, f"{reason}: {message}; {describe(changes)}")
        return view.outcome(OutcomeCode.REVERTED, reason, message)

    def _resume_revert(self, view: View) -> PodOutcome:
        record = view.ledger.last
        assert record is not None  # a revert was begun
        target = revert_target(view.pod, record.after, self._rules)
        if target is None:
            return view.outcome(OutcomeCode.CANNOT_REVERT)
        changes = self._writer.resize(view.pod, view.ledger, target, view.now, reverting=True)
        self._writer.say(view.pod, EventReason.RESIZE_REVERTED, describe(changes))
        return view.outcome(OutcomeCode.REVERTED, message=describe(changes))

    def _learned(self, view: View, record: Record, reason: RevertReason, message: str) -> Ledger:
        """What a resize that came to nothing teaches."""
        if reason is RevertReason.INFEASIBLE:
            return self._infeasible(view, view.ledger, classify_infeasible(message))
        if record.shrink:
            container = next(iter(record.after))
            return with_hold_off(view.ledger, container, Scope.SHRINK, reason, view.now, self._settings)
        scope = Scope.GROW if reason is RevertReason.DEFERRED_TOO_LONG else Scope.ANY
        return with_hold_off(view.ledger, WHOLE_POD, scope, reason, view.now, self._settings)

    def _infeasible(self, view: View, ledger: Ledger, cause: InfeasibleCause, planned: Plan | None = None) -> Ledger:
        """The ledger that remembers the pod's spec (with what was planned) as infeasible on its node."""
        total = pod_requests(view.pod, desired_resources(view.pod, planned.after if planned else {}))
        infeasible = Infeasible(view.node_shape, cause, total.cpu_millicores or 0, total.memory_bytes or 0)
        return msgspec.structs.replace(ledger, infeasible=infeasible)

    def _announce_completion(self, view: View) -> PodOutcome | None:
        """Say that our last resize is done: once, also when an earlier life of this process issued it."""
        record, uid = view.ledger.last, view.pod.metadata.uid
        if record is None or record.reverting or not isinstance(view.state, Idle) or not is_ready(view.pod):
            return None
        recent = uid in self._under_way or view.now - record.issued_at <= self._settings.announce_seconds
        if not recent or self._completed.get(uid) == record.issued_at or not spec_is(view.pod, record.after):
            return None
        self._under_way.discard(uid)
        self._completed[uid] = record.issued_at
        changes = describe(changes_between(parse_stored(record.before), parse_stored(record.after)))
        self._writer.say(view.pod, EventReason.RESIZE_COMPLETED, f"{changes} after {view.now - record.issued_at:.0f} s")
        return view.outcome(OutcomeCode.COMPLETED)

    def _consider(self, view: View) -> PodOutcome | None:
        if view.vpa is None:
            return None
        if isinstance(view.state, Unsupported):
            return view.outcome(OutcomeCode.UNSUPPORTED, view.state.why)
        due = decide(view.pod, view.vpa, view.now, self._settings, view.history, view.limits)
        if isinstance(due, NotDue):
            return view.outcome(OutcomeCode.NOT_DUE, due.reason, due.message)
        planned = plan(view.pod, view.vpa, due, self._rules, view.node, view.history, self._settings, view.limits)
        if isinstance(planned, Refused):
            if planned.reason is not RefusalReason.SHRINK_TOO_SMALL:  # that is as it should be, and no news to anybody
                self._writer.say_once(view.pod, EventReason.RESIZE_REFUSED, planned.reason, planned.message)
            return view.outcome(OutcomeCode.REFUSED, planned.reason, planned.message)
        rivalled = self._concede(view, planned)
        if rivalled is not None:
            return rivalled
        if planned.changes:
            return self._issue(view, view.vpa, planned)
        if planned.shrinks:
            return self._open(view, planned)
        return view.outcome(OutcomeCode.NOT_DUE, NotDueReason.UP_TO_DATE)

    def _concede(self, view: View, planned: Plan) -> PodOutcome | None:
        """Leave a container alone for a while that somebody else has resized after us, longer each time: no two writers in a loop.

        Not when it was just killed for memory: then more is needed, whoever wrote last.
        """
        touched = {*planned.after, *(need.container for need in planned.shrinks)}
        rivalled = [name for name in contested(view.pod, view.ledger) if name in touched]
        if not rivalled or DueReason.QUICK_OOM in planned.reasons:
            return None
        ledger, reason = msgspec.structs.replace(view.ledger, last=None), RefusalReason.FOREIGN_WRITER
        for name in rivalled:
            ledger = with_hold_off(ledger, name, Scope.ANY, reason, view.now, self._settings)
        self._writer.remember(view.pod, ledger)
        message = f"{', '.join(rivalled)}: resized by somebody else after us, left alone for a while"
        self._writer.say(view.pod, EventReason.RESIZE_REFUSED, message)
        return view.outcome(OutcomeCode.REFUSED, reason, message)

    def _issue(self, view: View, vpa: Vpa, planned: Plan) -> PodOutcome:
        if planned.restarts:
            if vpa.key in self._restarted or not may_restart(view.pod, view.group, vpa, self._settings):
                message = f"restarting a container now would leave too few pods of {vpa.key} serving"
                return view.outcome(OutcomeCode.REFUSED, RefusalReason.DISRUPTION_BUDGET, message)
            self._restarted.add(vpa.key)
        try:
            changes = self._writer.resize(view.pod, view.ledger, planned.after, view.now)
        except ResizeRefusedError as error:
            return self._refused(view, planned, error)
        self._under_way.add(view.pod.metadata.uid)
        why = ", ".join((*planned.reasons, *planned.capped_by))
        self._writer.say(view.pod, EventReason.RESIZE_ISSUED, f"{describe(changes)} ({why})")
        # A container that is being restarted is another one in a moment: its memory is looked at again then.
        if planned.shrinks and not planned.restarts:
            self._open(view, planned)
        return view.outcome(OutcomeCode.ISSUED, planned.reasons[0], describe(changes))

    def _open(self, view: View, planned: Plan) -> PodOutcome:
        if view.active:
            return view.outcome(OutcomeCode.SHRINK_ACTIVE, message="another container of the pod is being shrunk")
        needs = [need for need in planned.shrinks if not ended_lately(view.shrinks, need, view.now, self._settings)]
        if not needs:
            return view.outcome(OutcomeCode.NOT_DUE, NotDueReason.HOLD_OFF, "a shrink to that size has ended a short while ago")
        shrink = self._writer.open_shrink(view.pod, needs, [shrink.metadata.name for shrink in view.shrinks])
        if shrink is None:
            return view.outcome(OutcomeCode.NOT_DUE, NotDueReason.POD_NOT_RUNNING, "the container to shrink is not running")
        return view.outcome(OutcomeCode.SHRINK_OPENED, planned.reasons[0], f"memoryshrink {shrink.metadata.name}")

    def _refused(self, view: View, planned: Plan, error: ResizeRefusedError) -> PodOutcome:
        refusal, ledger = classify(error.cause), read_ledger(error.pod)
        reason = refusal.reason or RefusalReason.INVALID
        if reason is RefusalReason.NODE_CAPACITY:
            ledger = self._infeasible(view, ledger, InfeasibleCause.NODE_CAPACITY, planned)
        elif reason is not RefusalReason.PERMISSION_DENIED:
            grows = any(change.old is None or change.new > change.old for change in planned.changes)
            scope = Scope.GROW if grows else Scope.ANY
            ledger = with_hold_off(ledger, WHOLE_POD, scope, reason, view.now, self._settings)
        self._writer.remember(error.pod, ledger)
        self._writer.say_once(view.pod, EventReason.RESIZE_REFUSED, refusal.message, refusal.message)
        return view.outcome(OutcomeCode.REFUSED, reason, refusal.message)
