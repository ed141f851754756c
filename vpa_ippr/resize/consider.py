"""What is to be done about a pod of which no resize is under way: the whole decision, with nothing written and nothing said."""

from __future__ import annotations

from vpa_ippr.resize.due import NotDue, decide
from vpa_ippr.resize.plan import Refused, plan
from vpa_ippr.resize.proposal import Proposal
from vpa_ippr.resize.reasons import NotDueReason
from vpa_ippr.resize.rules import VersionRules
from vpa_ippr.resize.settings import Settings
from vpa_ippr.resize.state import Unsupported
from vpa_ippr.resize.view import View

Considered = Proposal | NotDue | Refused | Unsupported | None


def consider(view: View, rules: VersionRules, settings: Settings) -> Considered:
    """A proposal, or why there is none; None for a pod that no VPA is about.

    Raises:
        QuantityError, ValidationError: an object cannot be read.
    """
    if view.vpa is None:
        return None
    if isinstance(view.state, Unsupported):
        return view.state
    due = decide(view.pod, view.vpa, view.now, settings, view.history, view.limits)
    if isinstance(due, NotDue):
        return due
    planned = plan(view.pod, view.vpa, due, rules, view.node, view.history, settings, view.limits)
    if isinstance(planned, Refused):
        return planned
    return NotDue(NotDueReason.UP_TO_DATE) if planned.is_empty else Proposal(view, view.vpa, planned)
