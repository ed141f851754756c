"""Where the rollout of one VPA stands, kept in one annotation of that VPA: a restart of the updater loses nothing."""

from __future__ import annotations

import logging
from enum import StrEnum
from typing import Final

import msgspec

from vpa_ippr.api.errors import QuantityError, ValidationError
from vpa_ippr.api.meta import Condition
from vpa_ippr.api.names import ANNOTATION_ROLLOUT, CONDITION_DEGRADED
from vpa_ippr.api.resources import ResourceRequirements
from vpa_ippr.api.timestamps import format_time
from vpa_ippr.api.vpa import Vpa
from vpa_ippr.resize.ledger import parse_stored
from vpa_ippr.resize.moves import Move, id_of
from vpa_ippr.resize.settings import Settings

VERSION: Final = 1
MAX_FAILURES: Final = 8
"""More changes of one workload that did harm are not kept: until the hold-off of one of them is over, nothing new is tried."""

RECOVERED: Final = "Recovered"

logger = logging.getLogger(__name__)


class RolloutPhase(StrEnum):
    """``Canary``: one pod has the change, or is to get it; ``Rolling``: it has stood it, the others get it; ``Degraded``: it did harm."""

    IDLE = "Idle"
    CANARY = "Canary"
    ROLLING = "Rolling"
    DEGRADED = "Degraded"


class Canary(msgspec.Struct, frozen=True):
    """The pod that has a change before all others."""

    uid: str
    name: str


class Failure(msgspec.Struct, frozen=True, rename="camel"):
    """A change that did harm: nothing like it before ``until``; ``attempts`` in a row have now come to harm."""

    id: str
    moves: list[Move]
    until: float
    attempts: int
    reason: str
    message: str


class Rollout(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """All durable memory of one VPA's rollouts; times in seconds since the epoch.

    ``moves``: what the canary is to have or, in ``Rolling``, has proven. ``id`` names them; ``key`` tells this rollout from all others, in
    the ledgers of its pods too. ``began_at``: when the canary was last given a change; ``since``: since when it has had it complete, or
    since when the phase lasts. ``before``: what the canary's containers had. ``harmed``: the last attempt did harm, and none has stood
    since.
    """

    version: int
    phase: RolloutPhase = RolloutPhase.IDLE
    id: str = ""
    key: str = ""
    moves: list[Move] = []
    canary: Canary | None = None
    began_at: float = 0.0
    since: float | None = None
    before: dict[str, ResourceRequirements] = {}
    failures: list[Failure] = []
    harmed: bool = False

    @property
    def last_failure(self) -> Failure | None:
        """The harm that was done last, as far as it is still remembered."""
        return self.failures[-1] if self.failures else None


UNBEGUN: Final = Rollout(VERSION)


def read_rollout(vpa: Vpa) -> Rollout:
    """The VPA's rollout; an unreadable one is reported in the log and begun anew."""
    text = vpa.metadata.annotations.get(ANNOTATION_ROLLOUT)
    if text is None:
        return UNBEGUN
    try:
        rollout = msgspec.json.decode(text, type=Rollout)
        _require_readable(rollout)
        return rollout
    except (msgspec.DecodeError, QuantityError, ValidationError) as error:
        logger.warning("unreadable rollout begun anew", extra={"vpa": str(vpa.key), "error": str(error)})
        return UNBEGUN


def failure_in_force(rollout: Rollout, now: float) -> Failure | None:
    """The harm of which the hold-off lasts longest, while it lasts."""
    return max((one for one in rollout.failures if now < one.until), key=lambda one: one.until, default=None)


def to_annotations(rollout: Rollout) -> dict[str, str]:
    """The annotation that holds ``rollout``."""
    return {ANNOTATION_ROLLOUT: msgspec.json.encode(rollout).decode()}


def pruned(rollout: Rollout, now: float, settings: Settings) -> Rollout:
    """Without the failures that no longer count: they are remembered for a while after their hold-off, so that another one waits longer."""
    kept = [failure for failure in rollout.failures if now < failure.until + settings.degraded_hold_off_max_seconds]
    if len(kept) == len(rollout.failures):
        return rollout
    forgotten = rollout.phase is RolloutPhase.DEGRADED and not kept
    phase = RolloutPhase.IDLE if forgotten else rollout.phase
    return msgspec.structs.replace(rollout, failures=kept, harmed=rollout.harmed and bool(kept), phase=phase)


def degraded(rollout: Rollout, reason: str, message: str, now: float, settings: Settings) -> Rollout:
    """After harm: what was being rolled out is left alone for a while, longer each time in a row."""
    change = id_of(rollout.moves)
    earlier = [failure.attempts for failure in rollout.failures if failure.id == change]
    if rollout.harmed and rollout.last_failure is not None:
        earlier.append(rollout.last_failure.attempts)
    attempts = max(earlier, default=0) + 1
    seconds = min(settings.degraded_hold_off_seconds * 2.0 ** min(attempts - 1, 32), settings.degraded_hold_off_max_seconds)
    failure = Failure(change, rollout.moves, now + seconds, attempts, reason, message)
    failures = [*(one for one in rollout.failures if one.id != change), failure]
    return msgspec.structs.replace(rollout, phase=RolloutPhase.DEGRADED, moves=[], canary=None, since=now, failures=failures, harmed=True)


def condition_of(rollout: Rollout, known: Condition | None, now: float) -> Condition | None:
    """The VPA's condition ``Degraded``, where it is to be written; None when ``known`` says it already, or it never was."""
    failure = rollout.last_failure
    if rollout.harmed and failure is not None:
        message = f"{failure.message}; nothing like it is tried before {format_time(failure.until)}"
        wanted = Condition(CONDITION_DEGRADED, "True", failure.reason, message, format_time(now))
    elif known is not None and known.status == "True":
        wanted = Condition(CONDITION_DEGRADED, "False", RECOVERED, "", format_time(now))
    else:
        return None
    if known is not None and known.status == wanted.status:
        wanted = msgspec.structs.replace(wanted, last_transition_time=known.last_transition_time)
    return None if known == wanted else wanted


def _require_readable(rollout: Rollout) -> None:
    """Raise for what we would never write: the annotation is open to everybody who may change the VPA."""
    if rollout.version != VERSION:
        raise ValidationError(f"version {rollout.version} is not {VERSION}")
    if rollout.phase in (RolloutPhase.CANARY, RolloutPhase.ROLLING) and not rollout.key:
        raise ValidationError(f"a rollout in phase {rollout.phase} has no key")
    parse_stored(rollout.before)
