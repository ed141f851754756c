"""A cache of all objects of one kind, kept up to date by a watch (what client-go calls a reflector).

List once, then follow the changes from the list's resource version; when the server no longer holds that version, or an event could not be
read at all, list again. A cache may lag, but it knows for how long it has not heard of the server, so nobody needs to act on old news; and
it never shows an older state of an object than the one that we have written ourselves.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Generic, Protocol, TypeVar

from vpa_ippr.api.errors import ClusterError
from vpa_ippr.api.meta import ObjectKey, ObjectMeta
from vpa_ippr.cluster.rest import ApiUnreachableError, Listing, Rest, UnexpectedAnswerError, WatchEvent

logger = logging.getLogger(__name__)

# As client-go: spread between once and twice this, so that not all watches of a server end together.
_WATCH_SECONDS = 300
# The API server sends a bookmark each minute; a connection that is silent for longer is dead, though nobody may have told us.
_SILENCE_SECONDS = 75.0
_FIRST_BACKOFF_SECONDS = 0.8
_LONGEST_BACKOFF_SECONDS = 30.0


class HasMetadata(Protocol):
    """Any object of the API."""

    @property
    def metadata(self) -> ObjectMeta:
        """Its metadata."""
        ...


T = TypeVar("T", bound=HasMetadata)


class _Objects(Generic[T]):
    """The objects as of ``position``, the resource version that the watch has got to, and above them what we wrote after it.

    Resource versions of one resource are numbers that grow with each change: the API server promises it since 1.35 (KEP-5504), and etcd
    never did anything else. A version that is no number is taken for old, which at worst shows an object as it was before our write.
    """

    def __init__(self) -> None:
        self.position = 0
        self.unreadable: dict[ObjectKey, str] = {}
        self._seen: dict[ObjectKey, T] = {}
        self._written: dict[ObjectKey, T] = {}

    def replace(self, listing: Listing[T]) -> None:
        """Take over a list."""
        self._seen = {_key(item): item for item in listing.items}
        self.unreadable = dict(zip(listing.unreadable_keys, listing.unreadable, strict=True))
        position = _number(listing.resource_version)
        if position < self.position:  # the cluster was restored from a backup: what we wrote is not there any more
            self._written.clear()
        self._advance(position)

    def apply(self, event: WatchEvent[T]) -> None:
        """Take over a change."""
        if event.key is not None:
            self._seen.pop(event.key, None)
            self.unreadable.pop(event.key, None)
            if event.type != "DELETED":
                if event.object is not None:
                    self._seen[event.key] = event.object
                else:
                    self.unreadable[event.key] = event.unreadable
        self._advance(max(self.position, _number(event.resource_version)))

    def write(self, written: T) -> None:
        """Show this object until the watch has come to its version, or past it."""
        if _number(written.metadata.resource_version) > self.position:
            self._written[_key(written)] = written

    def all(self) -> list[T]:
        """The objects by namespace and name, as the API lists them."""
        shown = {**self._seen, **self._written}
        return [shown[key] for key in sorted(shown)]

    def _advance(self, position: int) -> None:
        self.position = position
        if self._written:
            self._written = {key: item for key, item in self._written.items() if _number(item.metadata.resource_version) > position}


class WatchCache(Generic[T]):
    """The objects of one kind. ``step`` does the work, again and again in a thread of its own; all else may be called from any thread."""

    def __init__(
        self,
        rest: Rest,
        path: str,
        kind: type[T],
        query: Mapping[str, str] | None = None,
        *,
        tell: Callable[[T], None] = lambda _: None,
        monotonic: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """``query`` narrows the list and the watch alike (``fieldSelector``, ``labelSelector``); ``draw`` gives random numbers below 1.

        ``tell`` is told of each object that is listed or has changed, in the thread of ``step``, when ``snapshot`` shows it.
        """
        self.path = path
        self._rest = rest
        self._kind = kind
        self._query = dict(query or {})
        self._tell = tell
        self._monotonic = monotonic
        self._draw = draw
        self._lock = threading.Lock()
        self._objects: _Objects[T] = _Objects()
        self._synced, self._ended = threading.Event(), threading.Event()
        self._heard_at: float | None = None
        self._trouble = ""
        self._version = ""
        self._must_list = True
        self._stream: Iterator[WatchEvent[T]] | None = None
        self._is_fresh_stream = False
        self._failures = 0

    @property
    def has_synced(self) -> bool:
        """True once a list has been taken over."""
        return self._synced.is_set()

    def wait_synced(self, timeout_seconds: float) -> bool:
        """Wait for the first list."""
        return self._synced.wait(timeout_seconds)

    @property
    def age_seconds(self) -> float:
        """For how long the server has not been heard of; infinite before the first list."""
        heard_at = self._heard_at
        return float("inf") if heard_at is None else max(0.0, self._monotonic() - heard_at)

    @property
    def trouble(self) -> str:
        """What went wrong last; empty while all is well."""
        return self._trouble

    @property
    def unreadable(self) -> tuple[str, ...]:
        """One line for each object that is left out because it cannot be decoded."""
        with self._lock:
            return tuple(line for _, line in sorted(self._objects.unreadable.items()))

    def snapshot(self) -> list[T]:
        """All objects as last known, by namespace and name."""
        with self._lock:
            return self._objects.all()

    def remember(self, written: T) -> None:
        """Show an object as the API server returned it from our own write, until the watch tells of it."""
        with self._lock:
            self._objects.write(written)

    def start(self) -> None:
        """Keep up to date in a daemon thread."""
        threading.Thread(target=self._run, name=f"watch {self.path}", daemon=True).start()

    def stop(self) -> None:
        """Let the thread end with the watch that it has; nothing of that is told any more."""
        self._ended.set()

    def step(self) -> float:
        """List, begin a watch, or take one event of it (waiting until there is one); returns how many seconds to wait before the next step.

        A ClusterError becomes ``trouble`` and a wait.
        """
        try:
            if self._must_list:
                self._list()
            elif self._stream is None:
                self._open()
            else:
                return self._follow(self._stream)
        except ClusterError as error:
            return self._fail(error)
        return 0.0

    def close(self) -> None:
        """Hang up; a later step goes on from the same place."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()  # type: ignore[attr-defined]  # a generator, whose finally lets the connection go

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                seconds = self.step()
            except Exception as error:
                logger.exception("watch failed unexpectedly", extra={"path": self.path})
                seconds = self._fail(error)
            if seconds:
                self._ended.wait(seconds)
        self.close()

    def _list(self) -> None:
        listing = self._rest.list(self.path, self._kind, self._query)
        with self._lock:
            self._objects.replace(listing)
        self._version, self._must_list = listing.resource_version, False
        self._hear()
        self._synced.set()
        for item in listing.items:
            self._tell(item)

    def _open(self) -> None:
        self._is_fresh_stream = True
        seconds = int(_WATCH_SECONDS * (1 + self._draw()))
        self._stream = self._rest.watch(
            self.path, self._kind, self._version, self._query, timeout_seconds=seconds, silence_seconds=_SILENCE_SECONDS
        )

    def _follow(self, stream: Iterator[WatchEvent[T]]) -> float:
        event = next(stream, None)
        self._hear()
        if event is None:
            self._stream = None
            # A server that ends each watch before it has said anything must not be asked in a tight loop.
            return self._back_off() if self._is_fresh_stream else 0.0
        self._is_fresh_stream, self._failures = False, 0
        with self._lock:
            self._objects.apply(event)
        self._version = event.resource_version or self._version
        if event.object is not None and event.type != "DELETED":
            self._tell(event.object)
        if event.unreadable and event.type != "DELETED":
            logger.warning("object left out", extra={"error": event.unreadable})
        return 0.0

    def _fail(self, error: Exception) -> float:
        """Go on watching where a stream broke that worked; else list, which tells the truth, or at least why it cannot."""
        self.close()
        broke = isinstance(error, ApiUnreachableError) and not isinstance(error, UnexpectedAnswerError)
        self._must_list = self._must_list or self._is_fresh_stream or not broke
        if str(error) != self._trouble and not self._ended.is_set():
            logger.warning("watch interrupted", extra={"path": self.path, "error": str(error), "lists_again": self._must_list})
        self._trouble = str(error)
        return self._back_off()

    def _back_off(self) -> float:
        seconds = min(_LONGEST_BACKOFF_SECONDS, _FIRST_BACKOFF_SECONDS * 2.0**self._failures)
        self._failures = min(self._failures + 1, 10)
        return seconds * (0.5 + self._draw() / 2)

    def _hear(self) -> None:
        self._heard_at = self._monotonic()
        if self._trouble:
            logger.info("watch goes on", extra={"path": self.path})
        self._trouble = ""


def _key(item: HasMetadata) -> ObjectKey:
    return ObjectKey(item.metadata.namespace, item.metadata.name)


def _number(version: str) -> int:
    return int(version) if version.isdecimal() else 0
