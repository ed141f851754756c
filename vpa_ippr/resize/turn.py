"""One pod's turn in a cycle: deal with its shrinks, carry on the resize that is under way, else see whether a resize is due."""

from __future__ import annotations

from dataclasses import replace

from vpa_ippr.api.meta import ObjectKey
from vpa_ippr.api.resources import ContainerResources, Resource
from vpa_ippr.api.timestamps import format_time
from vpa_ippr.resize.arranging import Budgets
from vpa_ippr.resize.boost import Unboost, boost_step
from vpa_ippr.resize.consider import EvictionCandidate, consider, or_evict
from vpa_ippr.resize.due import NotDue
from vpa_ippr.resize.eviction import Keep
from vpa_ippr.resize.follow import ResumeRevert, Revert, Wait, follow, revert_target
from vpa_ippr.resize.issuing import Issuer, with_infeasible
from vpa_ippr.resize.ledger import (
    WHOLE_POD,
    Ledger,
    Record,
    Scope,
    back_held_off,
    hold_off_for,
    parse_stored,
    read_ledger,
    spec_is,
    with_hold_off,
)
from vpa_ippr.resize.patch import changes_between, changes_to, describe, restarts
from vpa_ippr.resize.plan import Refused
from vpa_ippr.resize.ports import UpdaterPort
from vpa_ippr.resize.proposal import Proposal
from vpa_ippr.resize.reasons import AbortReason, DueReason, EventReason, KeepReason, OutcomeCode, RefusalReason, RevertReason
from vpa_ippr.resize.refusal import classify
from vpa_ippr.resize.result import PodOutcome
from vpa_ippr.resize.rollback import rollback_target
from vpa_ippr.resize.rules import VersionRules, rules_for_pod
from vpa_ippr.resize.settings import Settings
from vpa_ippr.resize.shrink_turn import ShrinkTurn
from vpa_ippr.resize.stale_cgroup import nudge
from vpa_ippr.resize.state import Idle, Unsupported, classify_infeasible, is_complete, is_ready
from vpa_ippr.resize.view import View
from vpa_ippr.resize.writer import ResizeRefusedError, Writer

Turn = PodOutcome | Proposal | EvictionCandidate
"""What was done about a pod, or what is to be done once all pods have been looked at."""


class PodTurn:
    """Takes the turns of all pods; what it remembers between cycles only keeps events from being repeated or lost."""

    def __init__(self, cluster: UpdaterPort, writer: Writer, settings: Settings, rules: VersionRules) -> None:
        self.shrinks = ShrinkTurn(cluster, writer, settings)
        self._issuer = Issuer(writer, settings)
        self._writer = writer
        self._settings = settings
        self._rules = rules
        self._under_way: set[str] = set()
        self._completed: dict[str, float] = {}

    def begin_cycle(self, pod_uids: set[str], vpas: set[ObjectKey]) -> None:
        """Forget pods and VPAs that are gone."""
        self._under_way &= pod_uids
        self._completed = {uid: at for uid, at in self._completed.items() if uid in pod_uids}
        self._writer.forget_all_but(pod_uids, vpas)

    def take(self, view: View, budgets: Budgets) -> Turn | None:
        """Do the one thing that comes next for this pod, or propose it; None when it is none of our business.

        Raises:
            VpaIpprError: an object cannot be read, or the API failed; nothing that was begun is lost.
        """
        try:
            called_off = self.shrinks.call_off(view)
            outcome = (
                self.shrinks.settle(view)
                or self.shrinks.advance(view)
                or self._follow(view, budgets)
                or self._unboost(view, budgets)
                or self._consider(view)
            )
        except ResizeRefusedError as error:
            return self._revert_refused(view, error)
        if called_off is None or isinstance(outcome, Proposal | EvictionCandidate):
            return outcome
        return called_off if outcome is None or outcome.code is OutcomeCode.NOT_DUE else outcome

    def _follow(self, view: View, budgets: Budgets) -> PodOutcome | EvictionCandidate | None:
        match follow(view.pod, view.state, view.ledger, view.now, self._settings):
            case Wait(code, message):
                if code is not OutcomeCode.FOREIGN:
                    self._under_way.add(view.pod.metadata.uid)
                if code is OutcomeCode.DEFERRED:
                    self._writer.say_once(view.pod, EventReason.RESIZE_DEFERRED, str(view.pod.metadata.generation), message)
                return view.outcome(code, message=message)
            case Revert() as revert:
                found = or_evict(view, revert)
                return found if isinstance(found, EvictionCandidate) else self._revert(view, revert.reason, revert.message)
            case ResumeRevert():
                return self._resume_revert(view, budgets)
        return self._nudge(view, budgets) or self._announce_completion(view)

    def _nudge(self, view: View, budgets: Budgets) -> PodOutcome | None:
        """Follow up a raise that may not have reached the pod's cgroup."""
        after = nudge(view.pod, view.state, view.ledger.last) if rules_for_pod(self._rules, view.node).stale_pod_cgroup else None
        if after is None or _unaffordable(view, after, budgets) is not None:
            return None
        changes = describe(self._writer.resize(view.pod, view.ledger, after, view.now, nudge=True))
        self._under_way.add(view.pod.metadata.uid)
        self._writer.say(view.pod, EventReason.RESIZE_ISSUED, f"{changes} ({DueReason.STALE_POD_CGROUP})")
        return view.outcome(OutcomeCode.ISSUED, DueReason.STALE_POD_CGROUP, changes)

    def _revert(self, view: View, reason: RevertReason, message: str) -> PodOutcome:
        record = view.ledger.last
        assert record is not None  # only our own resizes are reverted
        target = revert_target(view.pod, record.before, rules_for_pod(self._rules, view.node))
        if target is None:
            return view.outcome(OutcomeCode.CANNOT_REVERT, reason, message)
        if record.shrink:
            self.shrinks.abort_for(view, record.shrink)
        changes = self._writer.resize(view.pod, self._learned(view, record, reason, message), target, view.now, reverting=True)
        self._writer.say(view.pod, EventReason.RESIZE_REVERTED, f"{reason}: {message}; {describe(changes)}")
        return view.outcome(OutcomeCode.REVERTED, reason, message)

    def _resume_revert(self, view: View, budgets: Budgets) -> PodOutcome:
        record = view.ledger.last
        assert record is not None  # a revert was begun
        target = revert_target(view.pod, record.after, rules_for_pod(self._rules, view.node))
        if target is None:
            return view.outcome(OutcomeCode.CANNOT_REVERT)
        waits = _has_to_wait(view, target, budgets)
        if waits is not None:
            return waits
        changes = self._writer.resize(view.pod, view.ledger, target, view.now, reverting=True)
        self._writer.say(view.pod, EventReason.RESIZE_REVERTED, describe(changes))
        return view.outcome(OutcomeCode.REVERTED, message=describe(changes))

    def _learned(self, view: View, record: Record, reason: RevertReason, message: str) -> Ledger:
        """What a resize that came to nothing teaches."""
        if reason is RevertReason.INFEASIBLE:
            return with_infeasible(view, view.ledger, classify_infeasible(message))
        if record.shrink:
            container = next(iter(record.after))
            return with_hold_off(view.ledger, container, Scope.SHRINK, reason, view.now, self._settings)
        scope = Scope.GROW if reason is RevertReason.DEFERRED_TOO_LONG else Scope.ANY
        return with_hold_off(view.ledger, WHOLE_POD, scope, reason, view.now, self._settings)

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
        seconds = view.now - record.issued_at
        self._writer.say(view.pod, EventReason.RESIZE_COMPLETED, f"{changes} after {seconds:.0f} s")
        return replace(view.outcome(OutcomeCode.COMPLETED), seconds=seconds)

    def _unboost(self, view: View, budgets: Budgets) -> PodOutcome | None:
        """End the startup boost of a pod that has had it: first the resize, then the annotations that told of the boost."""
        if view.vpa is None or view.circumstances.paused or isinstance(view.state, Unsupported):
            return None
        boost = boost_step(view.pod, view.vpa, view.now, view.ledger, view.limits, view.circumstances.sharing)
        if not isinstance(boost, Unboost):
            return None
        if not boost.after:
            self._writer.unannotate(view.pod, boost.annotations)
            return view.outcome(OutcomeCode.COMPLETED, DueReason.BOOST_OVER)
        forbidden = any(hold_off_for(view.ledger, name, Resource.CPU, view.now, grows=True) for name in boost.after)
        if forbidden or _has_to_wait(view, dict(boost.after), budgets) is not None:
            return None  # boosted a little longer
        changes = describe(self._writer.resize(view.pod, view.ledger, dict(boost.after), view.now))
        self._under_way.add(view.pod.metadata.uid)
        self._writer.say(view.pod, EventReason.RESIZE_ISSUED, f"{changes} ({DueReason.BOOST_OVER})")
        return view.outcome(OutcomeCode.ISSUED, DueReason.BOOST_OVER, changes)

    def _consider(self, view: View) -> Turn | None:
        match consider(view, self._rules, self._settings):
            case NotDue() | Refused() | Unsupported() as no:
                return self._declined(view, no)
            case step:
                return step

    def _declined(self, view: View, no: NotDue | Refused | Unsupported) -> PodOutcome:
        if isinstance(no, Unsupported):
            return view.outcome(OutcomeCode.UNSUPPORTED, no.why)
        if isinstance(no, NotDue):
            return view.outcome(OutcomeCode.NOT_DUE, no.reason, no.message)
        if no.reason is not RefusalReason.SHRINK_TOO_SMALL:  # that is as it should be, and no news to anybody
            self._writer.say_once(view.pod, EventReason.RESIZE_REFUSED, no.reason, no.message)
        return view.outcome(OutcomeCode.REFUSED, no.reason, no.message)

    def spare(self, candidate: EvictionCandidate, keep: Keep) -> PodOutcome:
        """What holds for a pod that is not evicted.

        Raises:
            ClusterError: the API failed; nothing that was begun is lost.
        """
        view, otherwise = candidate.view, candidate.otherwise
        if isinstance(otherwise, Revert):
            return self.take_back(view, otherwise)
        if keep.reason is KeepReason.NO_ADMISSION:  # which is about all its pods
            self._writer.say_once_of_vpa(candidate.vpa, EventReason.EVICTION_WAITS, keep.reason, keep.message)
        elif candidate.occasion.hindrance is None:
            self._writer.say_once(view.pod, EventReason.EVICTION_WAITS, keep.reason, keep.message)
        if candidate.occasion.hindrance is None:
            return view.outcome(OutcomeCode.NOT_DUE, keep.reason, keep.message)
        return self._declined(view, otherwise)

    def roll_back(self, view: View, budgets: Budgets, *, noted: bool) -> PodOutcome:
        """Take the pod back to what it had before the rollout that did harm; one that serves and has to restart waits for the budget.

        Where the harm could not be ``noted`` on the VPA the pod's own ledger says that nothing like it is to be tried for a while.

        Raises:
            ClusterError: the API failed; it is tried again next cycle.
        """
        record = view.ledger.last
        assert record is not None  # it takes part in the rollout
        self.shrinks.abort_all(view, AbortReason.DEGRADED)
        target = rollback_target(view.pod, record, rules_for_pod(self._rules, view.node))
        if target is None:
            return view.outcome(OutcomeCode.CANNOT_REVERT, RevertReason.DEGRADED)
        waits = _has_to_wait(view, target, budgets)
        if waits is not None:
            return waits
        ledger, degraded = view.ledger, RevertReason.DEGRADED
        if not noted:
            ledger = with_hold_off(ledger, WHOLE_POD, Scope.ANY, degraded, view.now, self._settings)
        try:
            changes = describe(self._writer.resize(view.pod, ledger, target, view.now, reverting=True, rollout=""))
        except ResizeRefusedError as error:
            return self._revert_refused(view, error)
        self._writer.say(view.pod, EventReason.RESIZE_REVERTED, f"{RevertReason.DEGRADED}: {changes}")
        return view.outcome(OutcomeCode.REVERTED, RevertReason.DEGRADED, changes)

    def take_back(self, view: View, revert: Revert) -> PodOutcome:
        """Take back a resize that has come to nothing.

        Raises:
            ClusterError: the API failed; nothing that was begun is lost.
        """
        try:
            return self._revert(view, revert.reason, revert.message)
        except ResizeRefusedError as error:
            return self._revert_refused(view, error)

    def _revert_refused(self, view: View, error: ResizeRefusedError) -> PodOutcome:
        """It is tried again, after a while that grows."""
        refusal, pod = classify(error.cause), error.pod
        reason = refusal.reason or RefusalReason.INVALID
        self._writer.remember(pod, with_hold_off(read_ledger(pod), WHOLE_POD, Scope.BACK, reason, view.now, self._settings))
        self._writer.say_once(view.pod, EventReason.RESIZE_REFUSED, f"revert {refusal.reason}", refusal.message)
        return view.outcome(OutcomeCode.REFUSED, refusal.reason or "", refusal.message)

    def carry_out(self, proposal: Proposal) -> PodOutcome:
        """Issue what was proposed and may go now.

        Raises:
            ClusterError: the API failed; nothing that was begun is lost.
        """
        outcome = self._issuer.carry_out(proposal)
        if outcome.code is OutcomeCode.ISSUED:
            self._under_way.add(proposal.view.pod.metadata.uid)
        return outcome

    def hold_back(self, proposal: Proposal, reason: RefusalReason, message: str) -> PodOutcome:
        """What was proposed has to wait for others."""
        return proposal.view.outcome(OutcomeCode.REFUSED, reason, message)


def _has_to_wait(view: View, target: dict[str, ContainerResources], budgets: Budgets) -> PodOutcome | None:
    """Why what was done cannot be taken back now; None when it can, and the budget is charged."""
    hold_off = back_held_off(view.ledger, view.now)
    if hold_off is not None:
        return view.outcome(
            OutcomeCode.REFUSED, hold_off.reason, f"refused by the API server: not again before {format_time(hold_off.until)}"
        )
    refusal = _unaffordable(view, target, budgets)
    return view.outcome(OutcomeCode.REFUSED, RefusalReason.DISRUPTION_BUDGET, refusal) if refusal is not None else None


def _unaffordable(view: View, target: dict[str, ContainerResources], budgets: Budgets) -> str | None:
    """Why the pod may not be restarted now, where ``target`` restarts it; None when it may, and the budget is charged."""
    # Who does not serve is taken out of service no further, and may serve again by it: it never waits for the others.
    if view.vpa is None or not restarts(view.pod, changes_to(view.pod, target)) or not is_complete(view.pod):
        return None
    return budgets.charge(view.vpa, view.pod)
