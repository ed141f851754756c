"""What is to be done about a pod of which no resize is under way: the whole decision, with nothing written and nothing said."""

from __future__ import annotations

from dataclasses import dataclass

from vpa_ippr.api.vpa import Vpa
from vpa_ippr.resize.due import Due, NotDue, decide
from vpa_ippr.resize.eviction import MODES_THAT_EVICT, Hindrance, Occasion
from vpa_ippr.resize.follow import Revert
from vpa_ippr.resize.plan import Refused, plan
from vpa_ippr.resize.proposal import Proposal
from vpa_ippr.resize.reasons import NotDueReason, RefusalReason
from vpa_ippr.resize.rules import VersionRules
from vpa_ippr.resize.settings import Settings
from vpa_ippr.resize.state import Unsupported
from vpa_ippr.resize.view import View

Otherwise = NotDue | Refused | Unsupported | Revert


@dataclass(frozen=True, slots=True)
class EvictionCandidate:
    """A pod that gets what it needs by eviction alone; ``otherwise`` is what holds while it is not evicted."""

    view: View
    vpa: Vpa
    occasion: Occasion
    otherwise: Otherwise


def consider(view: View, rules: VersionRules, settings: Settings) -> Proposal | EvictionCandidate | NotDue | Refused | Unsupported | None:
    """A proposal, or why there is none; None for a pod that no VPA is about.

    Raises:
        QuantityError, ValidationError: an object cannot be read.
    """
    if view.vpa is None:
        return None
    due = decide(view.pod, view.vpa, view.now, settings, view.history, view.limits, view.circumstances)
    if isinstance(due, NotDue):
        return view.state if isinstance(view.state, Unsupported) else due
    if isinstance(view.state, Unsupported):
        return _or_evict(view, view.vpa, due, Hindrance(view.state.why), view.state)
    if due.by_eviction:
        return EvictionCandidate(view, view.vpa, Occasion(due, None, view.ledger), NotDue(NotDueReason.MODE_NEEDS_EVICTION))
    planned = plan(view.pod, view.vpa, due, rules, view.node, view.history, settings, view.limits)
    if isinstance(planned, Refused):
        return _or_evict(view, view.vpa, due, Hindrance(planned.reason, planned.message), planned)
    return NotDue(NotDueReason.UP_TO_DATE) if planned.is_empty else Proposal(view, view.vpa, planned)


def or_evict(view: View, revert: Revert) -> EvictionCandidate | Revert:
    """A resize that has come to nothing: the modes that evict would rather have the pod made anew than take it back.

    Where it cannot be told whether to evict it is taken back: what is stuck must not stay so for a slip in an annotation.
    """
    if view.vpa is None or view.vpa.update_mode not in MODES_THAT_EVICT or not view.is_readable:
        return revert
    occasion = Occasion(None, Hindrance(revert.reason, revert.message), view.ledger)
    return EvictionCandidate(view, view.vpa, occasion, revert)


def without_room(proposal: Proposal, reason: RefusalReason, message: str, since: float) -> EvictionCandidate | None:
    """A pod whose node has had no room for it since then; None where its mode does not evict."""
    if proposal.vpa.update_mode not in MODES_THAT_EVICT:
        return None
    due = Due(proposal.plan.reasons, (), 0.0)
    hindrance = Hindrance(reason, message, since)
    return EvictionCandidate(proposal.view, proposal.vpa, Occasion(due, hindrance, proposal.view.ledger), Refused(reason, message))


def _or_evict(
    view: View, vpa: Vpa, due: Due, hindrance: Hindrance, otherwise: Refused | Unsupported
) -> EvictionCandidate | Refused | Unsupported:
    if vpa.update_mode not in MODES_THAT_EVICT:
        return otherwise
    return EvictionCandidate(view, vpa, Occasion(due, hindrance, view.ledger), otherwise)
