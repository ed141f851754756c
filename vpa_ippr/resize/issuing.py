"""Carrying out what is planned and may go now: the patch, the MemoryShrink, or what their refusal teaches."""

from __future__ import annotations

import msgspec

from vpa_ippr.resize.ledger import WHOLE_POD, Infeasible, Ledger, Scope, contested, read_ledger, with_hold_off
from vpa_ippr.resize.patch import describe
from vpa_ippr.resize.plan import Plan
from vpa_ippr.resize.proposal import Proposal
from vpa_ippr.resize.qos import desired_resources, pod_requests
from vpa_ippr.resize.reasons import DueReason, EventReason, NotDueReason, OutcomeCode, RefusalReason
from vpa_ippr.resize.refusal import classify
from vpa_ippr.resize.result import PodOutcome
from vpa_ippr.resize.settings import Settings
from vpa_ippr.resize.shrinks import ended_lately
from vpa_ippr.resize.state import InfeasibleCause
from vpa_ippr.resize.view import View
from vpa_ippr.resize.writer import ResizeRefusedError, Writer


class Issuer:
    """Writes what a proposal plans."""

    def __init__(self, writer: Writer, settings: Settings) -> None:
        self._writer = writer
        self._settings = settings

    def carry_out(self, proposal: Proposal) -> PodOutcome:
        """Issue the resize, or open the MemoryShrink.

        Raises:
            ClusterError: the API failed; nothing that was begun is lost.
        """
        view, planned = proposal.view, proposal.plan
        rivalled = self._concede(view, planned)
        if rivalled is not None:
            return rivalled
        return self._issue(view, planned, proposal.rollout) if planned.changes else self._open(view, planned)

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

    def _issue(self, view: View, planned: Plan, rollout: str | None) -> PodOutcome:
        try:
            changes = self._writer.resize(view.pod, view.ledger, planned.after, view.now, rollout=rollout)
        except ResizeRefusedError as error:
            return self._refused(view, planned, error)
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
        taken = [shrink.metadata.name for shrink in view.shrinks]
        shrink = self._writer.open_shrink(view.pod, needs, taken, view.circumstances.shrink_terms)
        if shrink is None:
            return view.outcome(OutcomeCode.NOT_DUE, NotDueReason.POD_NOT_RUNNING, "the container to shrink is not running")
        return view.outcome(OutcomeCode.SHRINK_OPENED, planned.reasons[0], f"memoryshrink {shrink.metadata.name}")

    def _refused(self, view: View, planned: Plan, error: ResizeRefusedError) -> PodOutcome:
        refusal, ledger = classify(error.cause), read_ledger(error.pod)
        reason = refusal.reason or RefusalReason.INVALID
        if reason is RefusalReason.NODE_CAPACITY:
            ledger = with_infeasible(view, ledger, InfeasibleCause.NODE_CAPACITY, planned)
        elif reason is not RefusalReason.PERMISSION_DENIED:
            grows = any(change.old is None or change.new > change.old for change in planned.changes)
            scope = Scope.GROW if grows else Scope.ANY
            ledger = with_hold_off(ledger, WHOLE_POD, scope, reason, view.now, self._settings)
        self._writer.remember(error.pod, ledger)
        # Those two may have many causes; the words of the others differ by amounts that change from minute to minute.
        occasion = refusal.message if reason in (RefusalReason.INVALID, RefusalReason.ADMISSION_DENIED) else reason
        self._writer.say_once(view.pod, EventReason.RESIZE_REFUSED, occasion, refusal.message)
        return view.outcome(OutcomeCode.REFUSED, reason, refusal.message)


def with_infeasible(view: View, ledger: Ledger, cause: InfeasibleCause, planned: Plan | None = None) -> Ledger:
    """The ledger that remembers the pod's spec (with what was planned) as infeasible on its node."""
    total = pod_requests(view.pod, desired_resources(view.pod, planned.after if planned else {}))
    infeasible = Infeasible(view.node_shape, cause, total.cpu_millicores or 0, total.memory_bytes or 0)
    return msgspec.structs.replace(ledger, infeasible=infeasible)
