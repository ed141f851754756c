"""Has a resize of ours done harm to a pod? Only what the change can explain counts: growth takes nothing from anybody.

A container that got less memory may be killed, restart, or struggle for memory; one that got less CPU may be throttled, wait for a CPU, or
fail its probes; one that grew can only have suffered from a restart that the resize itself asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from vpa_ippr.api.meta import find_condition
from vpa_ippr.api.pod import Pod
from vpa_ippr.api.resources import Resource
from vpa_ippr.api.signals import Signals
from vpa_ippr.api.timestamps import parse_time
from vpa_ippr.resize.due import Part
from vpa_ippr.resize.ledger import Record, parse_stored
from vpa_ippr.resize.patch import changes_between, restarts
from vpa_ippr.resize.reasons import HarmReason
from vpa_ippr.resize.rollback import lowered
from vpa_ippr.resize.settings import Settings

_WORSE = 2.0
"""So many times what it was before a signal has to be, to be the resize's doing."""


@dataclass(frozen=True, slots=True)
class HarmEvidence:
    """What is known of a pod beside the pod itself: signals by container before and since the resize, and the value of the user's guard."""

    before: Mapping[str, Signals] = field(default_factory=dict)
    since: Mapping[str, Signals] = field(default_factory=dict)
    guard: float | None = None


@dataclass(frozen=True, slots=True)
class Harm:
    """Harm done to the pod of that UID."""

    uid: str
    pod: str
    reason: HarmReason
    message: str


def harm_of(pod: Pod, record: Record, evidence: HarmEvidence, now: float, settings: Settings) -> Harm | None:
    """The worst that has befallen ``pod`` since the resize in ``record``, and that the resize explains; None when all is well.

    Raises:
        QuantityError, ValidationError: the pod or its ledger cannot be read.
    """
    parts, restarting = lowered(pod, record), _restarting(pod, record)
    if not parts and not restarting and not record.rollout:
        return None
    found = (
        _killed(pod, record, parts)
        or _restarted(pod, record, parts, restarting)
        or _unready(pod, record, parts, restarting, now, settings)
        or _starved(parts, evidence, settings)
        or _guarded(record, evidence)
    )
    return Harm(pod.metadata.uid, pod.metadata.name, *found) if found else None


_Found = tuple[HarmReason, str] | None


def _since(record: Record) -> float:
    return record.rolled_at if record.rollout else record.issued_at


def _restarting(pod: Pod, record: Record) -> frozenset[str]:
    """The containers that the last resize restarts."""
    changes = changes_between(parse_stored(record.before), parse_stored(record.after))
    return frozenset(change.container for change in changes if restarts(pod, (change,)))


def _killed(pod: Pod, record: Record, parts: frozenset[Part]) -> _Found:
    for name in sorted(part.container for part in parts if part.resource is Resource.MEMORY):
        status = pod.container_status(name)
        for state in (status.state, status.last_state) if status else ():
            ended = state.terminated
            killed = ended is not None and ended.reason == "OOMKilled" and ended.finished_at is not None
            if killed and ended is not None and parse_time(ended.finished_at or "") >= int(_since(record)):
                return HarmReason.OUT_OF_MEMORY, f"{name} was killed for memory after its memory had been lowered"
    return None


def _restarted(pod: Pod, record: Record, parts: frozenset[Part], restarting: frozenset[str]) -> _Found:
    for name in sorted({part.container for part in parts} | restarting):
        status, before = pod.container_status(name), record.restarts.get(name)
        explained = 1 if name in restarting else 0
        if status is not None and before is not None and status.restart_count > before + explained:
            return HarmReason.RESTARTED, f"{name} was restarted {status.restart_count - before - explained} times after it had been resized"
    return None


def _unready(pod: Pod, record: Record, parts: frozenset[Part], restarting: frozenset[str], now: float, settings: Settings) -> _Found:
    ready = find_condition(pod.status.conditions, "Ready")
    if not record.ready or not (parts or restarting) or (ready is not None and ready.status == "True"):
        return None
    since = parse_time(ready.last_transition_time) if ready is not None and ready.last_transition_time else 0.0
    grace = settings.restart_grace_seconds if restarting else settings.unready_grace_seconds
    lasted = now - max(since, _since(record))
    if lasted <= grace:
        return None
    return HarmReason.NOT_READY, f"not Ready for {lasted:.0f} s after it had been resized"


def _starved(parts: frozenset[Part], evidence: HarmEvidence, settings: Settings) -> _Found:
    for part in sorted(parts, key=lambda part: (part.container, part.resource)):
        before, since = evidence.before.get(part.container, Signals()), evidence.since.get(part.container, Signals())
        checks: tuple[tuple[float | None, float | None, float, HarmReason], ...]
        if part.resource is Resource.CPU:
            checks = (
                (before.cpu_throttled, since.cpu_throttled, settings.throttled_bound, HarmReason.CPU_THROTTLED),
                (before.cpu_pressure, since.cpu_pressure, settings.pressure_bound, HarmReason.CPU_PRESSURE),
            )
        else:
            checks = ((before.memory_pressure, since.memory_pressure, settings.pressure_bound, HarmReason.MEMORY_PRESSURE),)
        for old, new, bound, reason in checks:
            if new is not None and new > bound and new >= _WORSE * (old or 0.0):
                return reason, f"{part.container}: {new:.0%} of the time, {old or 0.0:.0%} before its {part.resource} had been lowered"
    return None


def _guarded(record: Record, evidence: HarmEvidence) -> _Found:
    if not record.rollout or evidence.guard is None or not evidence.guard > 0:
        return None
    return HarmReason.GUARD, f"the rollout guard gave {evidence.guard:g}"
