"""How many resizes a minute may go, over all workloads: a token bucket that holds a minute's worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vpa_ippr.resize.moves import moves_of
from vpa_ippr.resize.proposal import Proposal
from vpa_ippr.resize.reasons import DueReason
from vpa_ippr.resize.settings import Settings


@dataclass(frozen=True, slots=True)
class Bucket:
    """``tokens`` were left at ``at``."""

    tokens: float
    at: float


@dataclass(frozen=True, slots=True)
class Rated:
    """``go`` in the order in which to issue them; ``bucket`` is for the next time."""

    go: tuple[Proposal, ...]
    hold: tuple[Proposal, ...]
    bucket: Bucket | None


def limit_rate(proposals: Sequence[Proposal], bucket: Bucket | None, now: float, settings: Settings) -> Rated:
    """What may go now: growth before decreases. What was killed for memory never waits, but uses up what the others have.

    A ``bucket`` of None is a full one, as at the start of the updater.
    """
    rate = settings.max_resizes_per_minute
    if rate is None:
        return Rated(tuple(proposals), (), None)
    capacity = max(rate, 1.0)
    tokens = capacity if bucket is None else min(bucket.tokens + max(now - bucket.at, 0.0) * rate / 60.0, capacity)
    go: list[Proposal] = []
    hold: list[Proposal] = []
    for proposal in sorted(proposals, key=_haste):
        if tokens >= 1.0 or _is_urgent(proposal):
            tokens = max(tokens - 1.0, 0.0)
            go.append(proposal)
        else:
            hold.append(proposal)
    return Rated(tuple(go), tuple(hold), Bucket(tokens, now))


def _haste(proposal: Proposal) -> int:
    if _is_urgent(proposal):
        return 0
    return 2 if all(move.lowers for move in moves_of(proposal)) else 1


def _is_urgent(proposal: Proposal) -> bool:
    return DueReason.QUICK_OOM in proposal.plan.reasons
