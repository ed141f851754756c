"""Is a container about to be OOM-killed? Pure judgement over a few seconds of looks at its cgroup.

What decides is the need: ``memory.current`` without the file LRU and reclaimable slab. Page cache fills up to every limit and gives way by
itself, and so does it here: a container that is full of it never presses. A ``memory.high`` below the limit, as a shrink sets it, plays no
part: the kernel kills at ``memory.max``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from vpa_ippr.actuator.policy import mib
from vpa_ippr.actuator.pressing_policy import PressingPolicy
from vpa_ippr.api.node_memory import PressingReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One close look at a cgroup; counters only ever grow."""

    at: float
    usage_bytes: int
    """``memory.current``."""
    limit_bytes: int
    """``memory.max``."""
    need_bytes: int
    """Usage without page cache (``active_file``, ``inactive_file``) and ``slab_reclaimable``."""
    limit_hits: int = 0
    """``max`` of ``memory.events.local``: so often usage was about to pass the limit, and was reclaimed."""
    oom_events: int = 0
    """``oom`` of ``memory.events.local``: so often the kernel was out of memory at this very limit."""
    oom_kills: int = 0
    """``oom_kill`` of ``memory.events``, hierarchical: the kernel counts a kill at the victim's cgroup, which may be a child (crun)."""
    memory_full_us: int | None = None
    """``total=`` of ``full`` in ``memory.pressure``; None where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Glance:
    """The cheap look: usage and limit alone."""

    at: float
    usage_bytes: int
    limit_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressing:
    """A container that presses, with the figures of the last look."""

    reason: PressingReason
    message: str
    since: float
    at: float
    usage_bytes: int
    """The need; after an OOM kill the limit, for that much was not enough."""
    limit_bytes: int
    growth_bytes_per_second: float


@dataclass(frozen=True, slots=True)
class Course:
    """What is known of a container from look to look; begins empty."""

    looks: tuple[Look, ...] = ()
    pressing: Pressing | None = None
    signed_at: float = -math.inf
    """When a sign was last seen."""
    killed_at: float = -math.inf


def advance(course: Course, look: Look, policy: PressingPolicy) -> Course:
    """Take one look further: begin to press, go on, or cease."""
    previous = course.looks[-1] if course.looks else None
    if previous is not None and look.at <= previous.at:  # a clock that was set back: no rate can be told across that
        previous, course = None, Course(pressing=course.pressing, signed_at=look.at)
    # After another limit all is judged anew; what happened at the old one has been answered, or was its doing.
    is_same_limit = previous is None or previous.limit_bytes == look.limit_bytes
    before = course.pressing if is_same_limit else None
    killed_at = course.killed_at if is_same_limit else -math.inf
    if previous is not None and is_same_limit and _was_killed(previous, look):
        killed_at = look.at
    looks = (*_recent(course.looks, look.at, policy), look)
    sign = _sign(looks, killed_at, policy, 1.0 if before is None else policy.release_factor)
    if sign is None:
        is_held = before is not None and look.at - course.signed_at < policy.calm_seconds
        held = _now(before, looks, policy) if before is not None and is_held else None
        return Course(looks, held, course.signed_at, killed_at)
    reason, message = sign
    fresh = Pressing(
        reason=reason,
        message=message,
        since=look.at if before is None else before.since,
        at=look.at,
        usage_bytes=look.need_bytes,
        limit_bytes=look.limit_bytes,
        growth_bytes_per_second=0.0,
    )
    return Course(looks, _now(fresh, looks, policy), look.at, killed_at)


def wants_close_look(course: Course, before: Glance | None, now: Glance, policy: PressingPolicy) -> bool:
    """Whether usage and limit alone no longer tell enough."""
    if not course.looks or course.pressing is not None or now.usage_bytes > policy.close_ratio * now.limit_bytes:
        return True
    last = course.looks[-1]
    if last.limit_bytes != now.limit_bytes or not 0 <= now.at - last.at < policy.idle_seconds:
        return True
    if before is None or now.at <= before.at:
        return False
    if before.usage_bytes > policy.close_ratio * before.limit_bytes:  # what took it down may have been a kill
        return True
    growth = (now.usage_bytes - before.usage_bytes) / (now.at - before.at)
    return now.usage_bytes + growth * policy.lead_seconds * policy.release_factor >= now.limit_bytes


def growth_bytes_per_second(looks: Sequence[Look], policy: PressingPolicy) -> float:
    """How fast the need grows steadily, in the shorter or the longer window; 0 when it does not."""
    return max(_steady(looks, policy.growth_short_seconds), _steady(looks, policy.growth_long_seconds))


def _recent(looks: tuple[Look, ...], now: float, policy: PressingPolicy) -> tuple[Look, ...]:
    """The looks that still decide something; the last one always, for its counters."""
    edge, first = now - policy.window_seconds, 0
    while first < len(looks) - 1 and looks[first].at < edge:
        first += 1
    return looks[first:]


def _now(pressing: Pressing, looks: Sequence[Look], policy: PressingPolicy) -> Pressing:
    last = looks[-1]
    was_killed = pressing.reason is PressingReason.OOM_KILLED
    return replace(
        pressing,
        at=last.at,
        usage_bytes=last.limit_bytes if was_killed else last.need_bytes,
        growth_bytes_per_second=growth_bytes_per_second(looks, policy),
    )


def _was_killed(before: Look, now: Look) -> bool:
    """A kill for want of memory at this limit; one for want of it on the node, or in the pod, would not be helped by a higher one."""
    return now.oom_kills > before.oom_kills and now.oom_events > before.oom_events


def _sign(looks: Sequence[Look], killed_at: float, policy: PressingPolicy, ease: float) -> tuple[PressingReason, str] | None:
    """The most urgent of the signs that can be seen; ``ease`` is how much easier than usual that is."""
    now = looks[-1]
    if now.at - killed_at < policy.killed_seconds:
        return PressingReason.OOM_KILLED, f"the kernel killed for want of memory at the limit of {mib(now.limit_bytes)}"
    reserve = ease * policy.reserve_bytes(now.limit_bytes)
    if now.need_bytes > now.limit_bytes - reserve:
        return PressingReason.NEAR_LIMIT, f"needs {mib(now.need_bytes)} of {mib(now.limit_bytes)}"
    return _growth_sign(looks, policy, ease) or _stall_sign(looks, policy, ease) or _hits_sign(looks, policy, ease)


def _growth_sign(looks: Sequence[Look], policy: PressingPolicy, ease: float) -> tuple[PressingReason, str] | None:
    now, growth = looks[-1], growth_bytes_per_second(looks, policy)
    lead = policy.lead_seconds if now.need_bytes >= policy.far_ratio * now.limit_bytes else policy.far_lead_seconds
    room = now.limit_bytes - now.need_bytes
    if growth * lead * ease < room:
        return None
    what = f"needs {mib(now.need_bytes)} of {mib(now.limit_bytes)} and grows by {mib(growth)}/s: full in {room / growth:.0f} s"
    return PressingReason.WILL_REACH_LIMIT, what


def _stall_sign(looks: Sequence[Look], policy: PressingPolicy, ease: float) -> tuple[PressingReason, str] | None:
    now, before = looks[-1], _since(looks, policy.stall_window_seconds)
    if before is None or before.memory_full_us is None or now.memory_full_us is None:
        return None
    is_full = now.usage_bytes > now.limit_bytes - ease * policy.reserve_bytes(now.limit_bytes)
    if not is_full or now.need_bytes < policy.stall_need_ratio * now.limit_bytes:
        return None
    percent = (now.memory_full_us - before.memory_full_us) / (now.at - before.at) / 1e4
    if percent <= policy.stall_full_percent / ease:
        return None
    return PressingReason.MEMORY_STALL, f"all tasks wait for memory {percent:.1f} % of the time at the limit of {mib(now.limit_bytes)}"


def _hits_sign(looks: Sequence[Look], policy: PressingPolicy, ease: float) -> tuple[PressingReason, str] | None:
    now, before = looks[-1], _since(looks, policy.hits_window_seconds)
    if before is None or now.need_bytes <= now.limit_bytes - ease * policy.hits_room_factor * policy.reserve_bytes(now.limit_bytes):
        return None
    rate = (now.limit_hits - before.limit_hits) / (now.at - before.at)
    if rate < policy.hits_per_second / ease:
        return None
    return PressingReason.LIMIT_HITS, f"needs {mib(now.need_bytes)} of {mib(now.limit_bytes)} and reaches that {rate:.0f} times a second"


def _since(looks: Sequence[Look], seconds: float) -> Look | None:
    """The newest look at this limit that is at least so old."""
    now = looks[-1]
    for look in reversed(looks):
        if look.limit_bytes != now.limit_bytes:
            return None
        if look.at <= now.at - seconds:
            return look
    return None


def _steady(looks: Sequence[Look], seconds: float) -> float:
    """The lesser growth of the two halves of a window, in bytes a second: one jump is no ramp."""
    last, edge = len(looks) - 1, looks[-1].at - seconds
    first = last
    while looks[first].at > edge:
        if first == 0:
            return 0.0
        first -= 1
    if last - first < 2:
        return 0.0
    middle = looks[(first + last + 1) // 2]
    return max(0.0, min(_slope(looks[first], middle), _slope(middle, looks[last])))


def _slope(before: Look, after: Look) -> float:
    return (after.need_bytes - before.need_bytes) / (after.at - before.at)
