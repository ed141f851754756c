"""Who leads: the rules of client-go's leader election, as functions of what is known and what time it is here.

No two clocks are compared. A lease has expired when WE have seen nothing change in it for its duration; the times that stand in it are
for people. The holder counts from the moment before it sent its last renewal, and for a shorter time, so it stops before another begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from vpa_ippr.api.lease import Lease, LeaseSpec
from vpa_ippr.api.timestamps import format_micro_time


@dataclass(frozen=True, slots=True)
class Terms:
    """How long a lease is good for others after a renewal, how long for its holder, and how often either tries (client-go's defaults)."""

    lease_seconds: int = 15
    renew_deadline_seconds: float = 10.0
    retry_seconds: float = 2.0


@dataclass(frozen=True, slots=True)
class Observed:
    """What stood in the lease when it last changed, and when we saw that, on our own clock."""

    spec: LeaseSpec
    since: float


class Action(StrEnum):
    """What to do about the lease."""

    CREATE = "Create"
    RENEW = "Renew"
    TAKE = "Take"
    WAIT = "Wait"


def observe(lease: Lease, before: Observed | None, now: float) -> Observed:
    """What is known after a look at the lease; only a changed spec counts as a sign of life."""
    if before is not None and before.spec == lease.spec:
        return before
    return Observed(lease.spec, now)


def next_action(lease: Lease | None, me: str, observed: Observed | None, now: float, terms: Terms) -> Action:
    """What to do, given the lease as it is and since when it has been so; ``observed`` is None before the first look at it."""
    if lease is None:
        return Action.CREATE
    holder = lease.spec.holder_identity
    if holder == me:
        return Action.RENEW
    if not holder:
        return Action.TAKE
    seconds = lease.spec.lease_duration_seconds or terms.lease_seconds
    if observed is None or now < observed.since + seconds:
        return Action.WAIT
    return Action.TAKE


def spec_after(action: Action, lease: Lease | None, me: str, wall: float, terms: Terms) -> LeaseSpec:
    """What to write for an action; ``wall`` is the time of day."""
    stamp = format_micro_time(wall)
    before = lease.spec if lease is not None else LeaseSpec(lease_transitions=-1)
    transitions = before.lease_transitions or 0
    if action is Action.RENEW:
        return LeaseSpec(me, terms.lease_seconds, before.acquire_time or stamp, stamp, transitions)
    return LeaseSpec(me, terms.lease_seconds, stamp, stamp, transitions + 1)


def spec_given_back(spec: LeaseSpec, wall: float) -> LeaseSpec:
    """What the holder leaves: nobody, and no time to wait for, as client-go does it."""
    stamp = format_micro_time(wall)
    return LeaseSpec("", 1, stamp, stamp, spec.lease_transitions or 0)
