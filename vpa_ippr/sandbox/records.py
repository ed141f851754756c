"""What the store is made of: records of objects, their changes, and one table of both for each resource."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

Json = dict[str, Any]
Key = tuple[str, str]
"""Namespace (empty for cluster-scoped objects) and name."""
EventType = Literal["ADDED", "MODIFIED", "DELETED"]


@dataclass(frozen=True, slots=True)
class Record:
    """A stored object: the parsed form, which nobody may change, and the encoded form."""

    obj: Json
    raw: bytes
    version: int

    def copy(self) -> Json:
        """A copy that the caller owns."""
        decoded: Json = msgspec.json.decode(self.raw)
        return decoded

    @property
    def item(self) -> bytes:
        """The encoded form without apiVersion and kind, as it stands in the lists of built-in types."""
        typed = len(f'{{"apiVersion":"{self.obj["apiVersion"]}","kind":"{self.obj["kind"]}",')
        return b"{" + self.raw[typed:]

    @property
    def labels(self) -> dict[str, str]:
        """The labels, possibly none."""
        return self.obj["metadata"].get("labels") or {}


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one object; ``old`` is None for an addition. ``new`` of a deletion is the last state."""

    type: EventType
    key: Key
    old: Record | None
    new: Record


@dataclass(frozen=True, slots=True)
class Deletion:
    """What a delete left: ``gone`` is False while a grace period or a finalizer keeps the object."""

    obj: Json
    gone: bool


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """``metav1.DeleteOptions`` as far as it changes the outcome."""

    grace_period_seconds: int | None = None
    uid: str | None = None
    resource_version: str | None = None
    propagation: str = "Background"
    dry_run: bool = False


class Table:
    """The objects of one resource and their latest changes."""

    def __init__(self, floor: int, history: int) -> None:
        self.records: dict[Key, Record] = {}
        self.changes: deque[Change] = deque(maxlen=history)
        self.floor = floor
        self.listeners: set[Callable[[], None]] = set()

    def append(self, change: Change) -> None:
        """Carry out a change and remember it, forgetting the oldest one."""
        if len(self.changes) == self.changes.maxlen:
            self.floor = self.changes[0].new.version
        self.changes.append(change)
        if change.type == "DELETED":
            self.records.pop(change.key, None)
        else:
            self.records[change.key] = change.new

    def since(self, version: int) -> list[Change]:
        """The changes after a revision, oldest first."""
        found: list[Change] = []
        for change in reversed(self.changes):
            if change.new.version <= version:
                break
            found.append(change)
        found.reverse()
        return found

    def at(self, version: int) -> dict[Key, Record]:
        """The records as they were: the changes after ``version`` undone, newest first."""
        records = dict(self.records)
        for change in reversed(self.changes):
            if change.new.version <= version:
                break
            if change.old is None:
                records.pop(change.key, None)
            else:
                records[change.key] = change.old
        return records
