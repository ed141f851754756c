"""The cluster as ``Kube`` shows it, read from watch caches: a cycle costs the API server nothing, and a standby is warm.

Not for a component that lives in simulated time: news arrive in real time, so what a cycle sees would depend on who was quicker.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from vpa_ippr.api.clock import Clock
from vpa_ippr.api.errors import ClusterError
from vpa_ippr.api.node_memory import NodeMemory
from vpa_ippr.cluster import paths
from vpa_ippr.cluster.cache import HasMetadata, WatchCache
from vpa_ippr.cluster.kube import Kube
from vpa_ippr.cluster.rest import Rest

T = TypeVar("T", bound=HasMetadata)

_SYNC_SECONDS = 30.0
# More than twice the silence after which a watch is begun anew: one lost connection stops nobody.
_MAX_AGE_SECONDS = 180.0


class StaleCacheError(ClusterError):
    """Nothing may be decided by what is known: it was never complete, or the server has not been heard of for too long."""

    reason = "StaleCache"


class CachedKube(Kube):
    """Lists come from caches, each of which begins at the first list of its kind; all else goes to the API server.

    After a write of ours the lists show at least what the API server answered to it.
    """

    def __init__(
        self,
        rest: Rest,
        clock: Clock,
        component: str,
        admission_namespaces: Sequence[str] = ("kube-system",),
        *,
        max_age_seconds: float = _MAX_AGE_SECONDS,
        sync_seconds: float = _SYNC_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
        start: Callable[[WatchCache[Any]], None] = WatchCache.start,
    ) -> None:
        """``sync_seconds``: how long the first list of a kind is waited for. ``start`` sets a new cache going."""
        super().__init__(rest, clock, component, admission_namespaces)
        self._max_age_seconds = max_age_seconds
        self._sync_seconds = sync_seconds
        self._monotonic = monotonic
        self._start = start
        self._lock = threading.Lock()
        self._caches: dict[str, WatchCache[Any]] = {}
        self._node_memories: WatchCache[NodeMemory] | None = None

    def follow_node_memories(self, tell: Callable[[NodeMemory], None]) -> None:
        """Watch the NodeMemories, and ``tell`` of each that is there or changes, in the watch's own thread."""
        cache = self._node_memories = WatchCache(self._rest, paths.NODE_MEMORIES, NodeMemory, tell=tell, monotonic=self._monotonic)
        self._start(cache)

    def list_node_memories(self) -> list[NodeMemory]:
        """As far as they are known, once they are followed.

        Not waited for, nor as fresh as all else has to be: where they are not installed, or may not be read, nothing else must suffer, and
        each tells by its own beat how old it is.
        """
        return self._node_memories.snapshot() if self._node_memories is not None else []

    def oldest_seconds(self) -> float:
        """The age of the cache that has not heard of the server for longest; 0 when there is none yet."""
        return max((cache.age_seconds for cache in self._begun()), default=0.0)

    def require_fresh(self) -> None:
        """Raise StaleCacheError when a cache is too old to act by; to be asked before a cycle, and between its writes."""
        for cache in self._begun():
            self._check(cache)

    def _read(self, path: str, kind: type[T], query: Mapping[str, str] | None) -> tuple[list[T], tuple[str, ...]]:
        cache = self._cache(path, kind, query)
        cache.wait_synced(self._sync_seconds)
        self._check(cache)
        return cache.snapshot(), cache.unreadable

    def _wrote(self, path: str, written: HasMetadata) -> None:
        with self._lock:
            cache = self._caches.get(path)
        if cache is not None:
            cache.remember(written)

    def _cache(self, path: str, kind: type[T], query: Mapping[str, str] | None) -> WatchCache[T]:
        with self._lock:
            cache = self._caches.get(path)
            if cache is None:
                cache = self._caches[path] = WatchCache(self._rest, path, kind, query, monotonic=self._monotonic)
                self._start(cache)
        return cache

    def _begun(self) -> list[WatchCache[Any]]:
        with self._lock:
            return list(self._caches.values())

    def _check(self, cache: WatchCache[Any]) -> None:
        why = f": {cache.trouble}" if cache.trouble else ""
        if not cache.has_synced:
            raise StaleCacheError(f"{cache.path} has not been listed yet{why}")
        if cache.age_seconds > self._max_age_seconds:
            raise StaleCacheError(f"{cache.path} is not known well enough: no news for {cache.age_seconds:.0f} s{why}")
