"""Who owns a journal entry, and whether that process still lives.

A pid alone is used again by the next process, so its start time belongs to it (field 22 of ``/proc/<pid>/stat``, clock ticks since boot).
Both mean something only in the pid namespace that they were read in: for a reader in another one, such as another container of the same
pod without ``shareProcessNamespace``, the lock on the journal alone tells.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_START_FIELD = 22
_AFTER_NAME = 3
"""The field that follows the name, which is in parentheses and may hold anything."""


@dataclass(frozen=True, slots=True)
class Owner:
    """A process that no other one can be taken for."""

    pid: int
    started_ticks: int
    pid_namespace: int


def this_process(proc: Path = Path("/proc")) -> Owner | None:
    """Ourselves; None where no procfs shows us."""
    pid = os.getpid()
    namespace, started = _namespace(proc), _started_ticks(proc, pid)
    return None if namespace is None or started is None else Owner(pid, started, namespace)


def is_alive(owner: Owner, proc: Path = Path("/proc")) -> bool | None:
    """Whether the process is there; None where this cannot be seen from here."""
    if _namespace(proc) != owner.pid_namespace:
        return None
    return _started_ticks(proc, owner.pid) == owner.started_ticks


def _namespace(proc: Path) -> int | None:
    try:
        return (proc / "self/ns/pid").stat().st_ino
    except OSError:
        return None


def _started_ticks(proc: Path, pid: int) -> int | None:
    """None when there is no such process, or only what its parent has not yet waited for."""
    try:
        fields = (proc / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    state, started = fields[0], fields[_START_FIELD - _AFTER_NAME]
    return None if state in ("Z", "X") else int(started)
