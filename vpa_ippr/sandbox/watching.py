"""Watches: which events a client sees, given its selectors and the revision that it starts from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from vpa_ippr.sandbox.resources import Resource
from vpa_ippr.sandbox.status import Cause, StatusError, expired, invalid
from vpa_ippr.sandbox.store import Change, Record, Store

Json = dict[str, Any]
Matches = Callable[[Record], bool]
Present = Callable[[Record], bytes]

_ANNOTATION_INITIAL_END = "k8s.io/initial-events-end"


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """``metav1.ListOptions`` of a watch. ``version``: None for "from now on, with what there is first"."""

    version: int | None
    bookmarks: bool = False
    initial_events: bool = False


class Watch:
    """One client's view of one resource; ``poll`` gives what has happened since the last call, encoded, one line an event."""

    def __init__(self, store: Store, resource: Resource, matches: Matches, present: Present, options: WatchOptions) -> None:
        self._store = store
        self._resource = resource
        self._matches = matches
        self._present = present
        self._options = options
        self._position = options.version or 0
        self._started = options.version is not None and not options.initial_events
        self._expiries = store.expiries

    def poll(self) -> Iterator[bytes]:
        """The new events; the last one is an ``ERROR`` with 410 when the history does not reach back far enough.

        Raises:
            Gone: after that last event; the watch is over.
        """
        if not self._started:
            self._started = True
            yield from self._initial()
        try:
            if self._expiries != self._store.expiries:
                raise expired(f"too old resource version: {self._position} ({self._store.revision})")
            changes = self._store.changes_since(self._resource, self._position)
        except StatusError as error:
            yield _line("ERROR", msgspec.json.encode(error.to_json()))
            raise Gone from error
        for change in changes:
            self._position = change.new.version
            line = self._seen(change)
            if line is not None:
                yield line

    def bookmark(self, annotations: Json | None = None) -> bytes:
        """An event that tells only how far the watch has got."""
        metadata: Json = {"resourceVersion": str(self._position), "creationTimestamp": None}
        if annotations:
            metadata["annotations"] = annotations
        obj = {"kind": self._resource.kind, "apiVersion": self._resource.api_version, "metadata": metadata}
        return _line("BOOKMARK", msgspec.json.encode(obj))

    def _initial(self) -> Iterator[bytes]:
        records, self._position = self._store.snapshot(self._resource)
        for _, record in records:
            if self._matches(record):
                yield _line("ADDED", self._present(record))
        if self._options.initial_events and self._options.bookmarks:
            yield self.bookmark({_ANNOTATION_INITIAL_END: "true"})

    def _seen(self, change: Change) -> bytes | None:
        """The event as this client sees it: an object that no longer matches is deleted, one that begins to match is added."""
        was = change.old is not None and self._matches(change.old)
        is_now = change.type != "DELETED" and self._matches(change.new)
        if was and not is_now:
            assert change.old is not None
            return _line("DELETED", self._present(_at_revision(change.old, change.new)))
        if is_now:
            return _line("MODIFIED" if was else "ADDED", self._present(change.new))
        return None


class Gone(Exception):  # noqa: N818 - an outcome that ends the stream, not a failure
    """The watch has ended with an error event."""


def parse_watch_options(query: dict[str, str]) -> WatchOptions:
    """The options of a watch request; StatusError 500 for a revision that is no number, 422 for options that do not go together."""
    text = query.get("resourceVersion", "")
    if text and not text.isdigit():
        raise StatusError(500, "", f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax')
    initial = query.get("sendInitialEvents", "") == "true"
    match = query.get("resourceVersionMatch", "")
    if initial and match != "NotOlderThan":
        detail = "Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
        raise invalid("ListOptions", "", [Cause("FieldValueForbidden", detail, "resourceVersionMatch")], "meta.k8s.io")
    version = int(text) if text and int(text) > 0 else None
    return WatchOptions(version, query.get("allowWatchBookmarks", "") in ("1", "true"), initial)


def _at_revision(old: Record, new: Record) -> Record:
    """The old state under the revision of the change that made it leave the selection."""
    obj = {**old.obj, "metadata": {**old.obj["metadata"], "resourceVersion": str(new.version)}}
    return Record(obj, msgspec.json.encode(obj), new.version)


def _line(event: str, obj: bytes) -> bytes:
    return b'{"type":"%b","object":%b}\n' % (event.encode(), obj)
