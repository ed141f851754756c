"""Which of a cycle's proposals may go now: those of one node, one namespace or one workload are looked at together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vpa_ippr.api.meta import ObjectKey
from vpa_ippr.resize.budget import may_restart
from vpa_ippr.resize.proposal import Proposal
from vpa_ippr.resize.reasons import RefusalReason
from vpa_ippr.resize.settings import Settings


@dataclass(frozen=True, slots=True)
class HeldBack:
    """A proposal that has to wait, and why."""

    proposal: Proposal
    reason: RefusalReason
    message: str


@dataclass(frozen=True, slots=True)
class Arrangement:
    """``go``: in the order in which to issue them."""

    go: tuple[Proposal, ...]
    held: tuple[HeldBack, ...]


def arrange(proposals: Sequence[Proposal], settings: Settings) -> Arrangement:
    """What goes, and what is held back."""
    go: list[Proposal] = []
    held: list[HeldBack] = []
    restarted: set[ObjectKey] = set()
    for proposal in proposals:
        view, key = proposal.view, proposal.vpa.key
        if proposal.plan.restarts and (key in restarted or not may_restart(view.pod, view.group, proposal.vpa, settings)):
            message = f"restarting a container now would leave too few pods of {key} serving"
            held.append(HeldBack(proposal, RefusalReason.DISRUPTION_BUDGET, message))
            continue
        if proposal.plan.restarts:
            restarted.add(key)
        go.append(proposal)
    return Arrangement(tuple(go), tuple(held))
