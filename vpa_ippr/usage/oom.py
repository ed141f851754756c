"""What out-of-memory kills taught of one container of a workload: a floor under its memory that is raised, held and let go.

The peak that kills is never sampled: it lies between two scrapes, and what is left afterwards is the limit that was too small. So a kill
raises the floor above that limit (or above the use, if more was seen). A second kill at the raised limit raises by more, so that a need of
up to three times the first limit is met by the third kill. A kill well below the floor says nothing new: that pod still had an old limit,
as do the other replicas that are killed in the same minute. When no kill has come for a while the floor is halved again and again, and the
forecast, which has seen the container run with enough memory since, takes over. A container that comes back to be killed (a weekly job) is
held for longer than the time it took to come back.

A leak would be fed for ever. The fuse ends that: within one episode (kills that come before the floor has lost half) the floor grows to so
many times the limit of the first kill and no further, and is raised so many times a day; then a finding says so.

Nothing here needs CPU data. ``vpa-classic`` keeps upstream's rule, which is in ``container``.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from vpa_ippr.api.errors import ValidationError
from vpa_ippr.api.series import Finding
from vpa_ippr.usage.container import DAY_SECONDS

OOM_FUSE: Final = "OomFuse"
_MIB: Final = 1024.0 * 1024.0
# A container comes back at intervals that are not quite equal: a weekly job is held for ten and a half days.
_HOLD_OF_GAP: Final = 1.5
# A floor that has been halved so often (1.6 % is left) is none.
_FORGOTTEN_HALF_LIVES: Final = 6.0


class OomRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How kills raise the floor, how long it stands, and where raising ends."""

    raise_ratios: tuple[float, ...] = (1.3, 1.6, 1.9)
    """Of the first kill, the second kill at or near the raised limit, and so on; the last counts for all that follow. Their product,
    3.95, is what three kills reach: a third above the three times that they have to."""

    min_raise_bytes: float = 32 * _MIB
    """A ratio does little for a small container. Upstream's 100 MiB is ten times what the smallest ones use."""

    near_share: float = 0.9
    """A kill with less than this share of the floor was one with an old limit."""

    same_kill_seconds: float = 10.0
    """Kills that follow within this time are one: no new limit can have been in force between them."""

    quiet_seconds: float = 2 * DAY_SECONDS
    """How long the floor stands after the last kill: a daily rhythm has shown its peak by then."""

    max_quiet_seconds: float = 14 * DAY_SECONDS
    """The same at most, for a container that came back to be killed after it had been quiet."""

    half_life_seconds: float = 6 * DAY_SECONDS
    """How long it takes to lose half of the floor after that. A floor of 1.3 times a limit is under that limit again after two days."""

    max_growth: float = 8.0
    """Fuse: the most that the floor may be, as a multiple of what the first kill of the episode had. Twice what three kills reach:
    the first one may have had half of what its owner gave it, because it was quiet in its first hours."""

    max_raises_per_day: int = 6
    """Fuse: how often the floor may be raised within 24 hours."""


DEFAULT_OOM_RULES: Final = OomRules()


class Fuse(enum.StrEnum):
    """Which fuse has blown."""

    GROWTH = "growth"
    RAISES = "raises"


@dataclass(frozen=True, slots=True)
class OomMemory:
    """What the kills of one container taught; the default is that there were none.

    ``floor_bytes`` is the floor as it was at ``last_kill_at`` (seconds), from where it stands for ``hold_seconds``. ``origin_bytes`` is
    what the first kill of the episode had, ``raises`` how many raises follow each other without a quiet time, ``raised_at`` those of the
    last day.
    """

    kills: int = 0
    last_kill_at: float | None = None
    floor_bytes: float = 0.0
    origin_bytes: float = 0.0
    hold_seconds: float = 0.0
    raises: int = 0
    raised_at: tuple[float, ...] = ()
    fuse: Fuse | None = None


def record(
    memory: OomMemory,
    at: float,
    limit_bytes: float | None,
    used_bytes: float | None,
    rules: OomRules = DEFAULT_OOM_RULES,
    *,
    request_bytes: float | None = None,
) -> OomMemory:
    """``memory`` with one more kill.

    Kills come in the order of time, and of several at one instant the largest; one that is not later than the last is left out, so that a
    history may be fed again.

    Args:
        memory: what was known before.
        at: seconds since the epoch.
        limit_bytes: the limit in force at the kill; None or 0 if there was none, or it is not known.
        used_bytes: the most that was seen in use before the kill; None or 0 if nothing was.
        rules: see ``OomRules``.
        request_bytes: counts when there is neither limit nor use.
    """
    if memory.last_kill_at is not None and at < memory.last_kill_at + rules.same_kill_seconds:
        return memory
    had_bytes = max(limit_bytes or 0.0, used_bytes or 0.0) or float(request_bytes or 0.0)
    floor = floor_bytes(memory, at, rules) or 0.0
    counted = replace(memory, kills=memory.kills + 1, last_kill_at=at, floor_bytes=floor)
    if had_bytes <= 0 or had_bytes < rules.near_share * floor:
        return counted
    recent = replace(counted, raised_at=tuple(moment for moment in counted.raised_at if at - moment < DAY_SECONDS))
    if not memory.origin_bytes or _half_lives(memory, at, rules) > 1.0:
        begun = replace(recent, origin_bytes=had_bytes, hold_seconds=rules.quiet_seconds, raises=0, fuse=None)
        return _raised(begun, at, had_bytes, 0.0, rules)
    gap = 0.0 if memory.last_kill_at is None else at - memory.last_kill_at
    return _raised(_continued(recent, gap, rules), at, had_bytes, memory.floor_bytes, rules)


def floor_bytes(memory: OomMemory, now: float, rules: OomRules = DEFAULT_OOM_RULES) -> float | None:
    """What the container should have at least, in bytes; None when kills say nothing (any more)."""
    if not memory.floor_bytes:
        return None
    half_lives = _half_lives(memory, now, rules)
    return None if half_lives >= _FORGOTTEN_HALF_LIVES else memory.floor_bytes * math.exp2(-half_lives)


def fuse_finding(memory: OomMemory, subject: str, now: float, rules: OomRules = DEFAULT_OOM_RULES) -> Finding | None:
    """The finding ``OomFuse`` as long as a blown fuse matters: until the episode is over."""
    if memory.fuse is None or _half_lives(memory, now, rules) > 1.0:
        return None
    had, floor = f"{memory.origin_bytes / _MIB:.0f} MiB", f"{memory.floor_bytes / _MIB:.0f} MiB"
    why = (
        f"it was raised from {had} to {floor}, and {rules.max_growth:g} times what the first kill had is the most that kills may make it"
        if memory.fuse is Fuse.GROWTH
        else f"it was raised {rules.max_raises_per_day} times within a day, from {had} to {floor}"
    )
    message = f"{subject}: memory is not raised for OOM kills any more: {why}; look for a leak, or raise the limit by hand"
    return Finding(OOM_FUSE, subject, memory.kills, message)


def dump(memory: OomMemory) -> dict[str, object]:
    """As JSON would have it."""
    found: dict[str, object] = msgspec.to_builtins(memory)
    return found


def load(data: Mapping[str, object]) -> OomMemory:
    """The inverse of ``dump``.

    Raises:
        ValidationError: not what ``dump`` gives (reason ``CheckpointCorrupt``).
    """
    try:
        memory = msgspec.convert(data, OomMemory)
    except msgspec.ValidationError as error:
        raise _corrupt(str(error)) from error
    numbers = (memory.kills, memory.floor_bytes, memory.origin_bytes, memory.hold_seconds, memory.raises, memory.last_kill_at or 0.0)
    if not all(math.isfinite(number) and number >= 0 for number in (*numbers, *memory.raised_at)):
        raise _corrupt("a number is negative or not finite")
    if (memory.last_kill_at is None) != (memory.kills == 0):
        raise _corrupt("kills and last_kill_at contradict each other")
    return memory


def broken_oom_rules(rules: OomRules) -> Iterator[tuple[str, str]]:
    """Each key that breaks a rule, and which."""
    if not 0 < rules.near_share <= 1:
        yield "near_share", f"is {rules.near_share}: must be above 0, and 1 at most"
    elif not rules.raise_ratios or not all(1 / rules.near_share < ratio < math.inf for ratio in rules.raise_ratios):
        # Else a kill near the floor would lower it, and other replicas with the old limit would raise it again and again.
        yield "raise_ratios", f"must hold one ratio or more, each above {1 / rules.near_share:.3g} (1 / near_share)"
    for key in ("min_raise_bytes", "same_kill_seconds", "quiet_seconds"):
        if not 0 <= getattr(rules, key) < math.inf:
            yield key, f"is {getattr(rules, key)}: must be 0 or more"
    if not rules.quiet_seconds <= rules.max_quiet_seconds < math.inf:
        yield "max_quiet_seconds", f"is {rules.max_quiet_seconds}: must not be below quiet_seconds"
    if not 0 < rules.half_life_seconds < math.inf:
        yield "half_life_seconds", f"is {rules.half_life_seconds}: must be above 0"
    if not 1 < rules.max_growth < math.inf:
        yield "max_growth", f"is {rules.max_growth}: must be above 1"
    if rules.max_raises_per_day < 1:
        yield "max_raises_per_day", f"is {rules.max_raises_per_day}: must be 1 or more"


def _half_lives(memory: OomMemory, now: float, rules: OomRules) -> float:
    """How often the floor has been halved; an episode is over at 1."""
    if memory.last_kill_at is None:
        return math.inf
    return max(0.0, now - memory.last_kill_at - max(memory.hold_seconds, rules.quiet_seconds)) / rules.half_life_seconds


def _continued(memory: OomMemory, gap_seconds: float, rules: OomRules) -> OomMemory:
    """Within an episode: raises follow each other unless the container had been quiet, and then the floor has to stand for longer."""
    hold = max(memory.hold_seconds, rules.quiet_seconds)
    if gap_seconds <= hold:
        return replace(memory, hold_seconds=hold)
    return replace(memory, hold_seconds=max(hold, min(rules.max_quiet_seconds, _HOLD_OF_GAP * gap_seconds)), raises=0)


def _raised(memory: OomMemory, at: float, had_bytes: float, earlier_floor: float, rules: OomRules) -> OomMemory:
    """The floor raised above what the kill had, and back to what it was before it had begun to fall, as far as the fuses let it."""
    if len(memory.raised_at) >= rules.max_raises_per_day:
        return replace(memory, fuse=Fuse.RAISES)
    ratio = rules.raise_ratios[min(memory.raises, len(rules.raise_ratios) - 1)]
    wanted = max(had_bytes * ratio, had_bytes + rules.min_raise_bytes, earlier_floor)
    floor = min(wanted, rules.max_growth * max(memory.origin_bytes, rules.min_raise_bytes))
    if floor <= max(memory.floor_bytes, had_bytes):
        return replace(memory, floor_bytes=max(memory.floor_bytes, floor), fuse=Fuse.GROWTH)
    return replace(memory, floor_bytes=floor, raises=memory.raises + 1, raised_at=(*memory.raised_at, at), fuse=None)


def _corrupt(problem: str) -> ValidationError:
    return ValidationError(f"not a memory of OOM kills: {problem}", reason="CheckpointCorrupt")
