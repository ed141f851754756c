"""What becomes of a journal entry whose owner is no more: pure rules, the same for a new agent, the dead-man and ``actuator restore``.

Raising memory.high never blocks and never hurts, so where there is doubt, it is put back.
"""

from __future__ import annotations

from dataclasses import dataclass

from vpa_ippr.actuator.cgroup import Cgroup, Snapshot
from vpa_ippr.actuator.journal import Entry
from vpa_ippr.api.errors import ActuatorError
from vpa_ippr.api.shrink import Phase

OVERDUE_SECONDS = 60.0
"""A live owner ends a shrink at its deadline by itself; one that has not a minute later hangs."""


@dataclass(frozen=True, slots=True)
class Restore:
    """memory.high is, or may be, the guard: write the original."""

    high_bytes: int | None


@dataclass(frozen=True, slots=True)
class Drop:
    """There is nothing to put back, and the entry means nothing any more."""

    why: str


@dataclass(frozen=True, slots=True)
class Leave:
    """Not ours to decide yet."""

    why: str


@dataclass(frozen=True, slots=True)
class Adopt:
    """The limit has followed: the shrink is committed. Only memory.high may still have to be put back, where ``high_is_ours``."""

    high_is_ours: bool


Verdict = Restore | Drop | Leave | Adopt


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The very cgroup is there, but the kernel does not say how it is."""


UNREADABLE = Unreadable()


def look(cgroup: Cgroup | None) -> Snapshot | Unreadable | None:
    """What ``decide`` wants to know of a cgroup, if there is one."""
    if cgroup is None:
        return None
    try:
        return cgroup.read()
    except ActuatorError:
        return UNREADABLE


def decide(
    entry: Entry, boot_id: str, snapshot: Snapshot | Unreadable | None, identity: int | None, page_bytes: int = 4096
) -> Restore | Drop | Adopt:
    """What to do with an entry whose owner is gone.

    Args:
        entry: from the journal.
        boot_id: of this boot.
        snapshot: of the cgroup that bears the entry's name now; None when there is none.
        identity: of that cgroup; None when there is none.
        page_bytes: the kernel rounds limits down to it.
    """
    if entry.boot_id != boot_id:
        return Drop("the machine was booted since: every cgroup is new")
    if snapshot is None or identity is None:
        return Drop("its cgroup is no more")
    if identity != entry.cgroup_identity:
        return Drop("another cgroup bears its name by now")
    if isinstance(snapshot, Unreadable):
        return Restore(entry.original_high_bytes)
    is_ours = snapshot.high_bytes is not None and snapshot.high_bytes in (entry.guard_bytes, entry.previous_guard_bytes)
    limit = snapshot.max_bytes
    if limit is not None and limit // page_bytes * page_bytes == entry.target_bytes:
        return Adopt(is_ours)
    if is_ours:
        return Restore(entry.original_high_bytes)
    if snapshot.high_bytes == entry.original_high_bytes:
        return Drop("memory.high is as it was")
    return Drop(f"memory.high is {_text(snapshot.high_bytes)}, which another hand has written")


def owner_holds(entry: Entry, *, is_locked: bool, is_alive: bool | None, boottime_seconds: float, wall_seconds: float) -> Leave | None:
    """Why an entry is its owner's business still, or None.

    Args:
        entry: from the journal.
        is_locked: somebody holds the journal's lock, which a process keeps for as long as it lives.
        is_alive: whether the entry's owner is there by its pid; None where another pid namespace hides it, and the lock alone tells.
        boottime_seconds: now, by the clock of the entry's deadline.
        wall_seconds: now, for an entry that states its deadline by the wall clock only.
    """
    if not is_locked or is_alive is False:
        return None
    if _seconds_left(entry, boottime_seconds, wall_seconds) < -OVERDUE_SECONDS and entry.phase is not Phase.COMMITTED:
        return None
    return Leave("its owner lives" if is_alive else "the journal's lock is held")


def _seconds_left(entry: Entry, boottime_seconds: float, wall_seconds: float) -> float:
    if entry.deadline_boottime_seconds is not None:
        return entry.deadline_boottime_seconds - boottime_seconds
    return entry.deadline_at - wall_seconds


def _text(limit_bytes: int | None) -> str:
    return "max" if limit_bytes is None else str(limit_bytes)
