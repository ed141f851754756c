"""When a request to the API server is sent again: which failures, how long after, and how often altogether.

A server in trouble must not get more requests than one that is well: retries come from a budget that only requests fill, so that they
stay a small share of all of them however many fail.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

_FIRST_SECONDS = 0.3
_LONGEST_SECONDS = 10.0
_RETRIED_READS = frozenset({429, 500, 502, 503, 504})
_LEAST_JITTER = 0.5
_LATE_SHARE = 0.2
# An eviction that a PodDisruptionBudget forbids is a 429 too, and stays one until pods have moved.
_STANDING_CAUSE = "DisruptionBudget"

_SHARE = 0.1
_CAPACITY = 20.0
_FLOOR_PER_SECOND = 0.1


class RetryBudget:
    """A bucket of retries: each request puts a tenth of one in, each ten seconds one more, each retry takes one out. Thread-safe.

    The trickle is for processes that hardly ask anything; the bucket holds 20, and half of that at the start.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._tokens = _CAPACITY / 2
        self._filled_at = monotonic()

    def note_request(self) -> None:
        """A request is made, for the first time."""
        with self._lock:
            self._fill(_SHARE)

    def take(self) -> bool:
        """Pay for one retry; False when it cannot be afforded."""
        with self._lock:
            self._fill(0.0)
            if self._tokens < 1.0:
                return False
            self._tokens -= 1.0
            return True

    def _fill(self, tokens: float) -> None:
        now = self._monotonic()
        self._tokens = min(_CAPACITY, self._tokens + tokens + (now - self._filled_at) * _FLOOR_PER_SECOND)
        self._filled_at = now


def may_send_again(method: str, status: int | None, causes: tuple[str, ...], *, was_sent: bool) -> bool:
    """Whether another attempt can help and can do no harm; ``status`` is None when there was no answer.

    A write is sent again only when it surely was not carried out: never connected, or told to come back later.
    """
    if status is None:
        return method == "GET" or not was_sent
    if status == 429:
        return _STANDING_CAUSE not in causes
    return method == "GET" and status in _RETRIED_READS


def seconds_before(attempt: int, retry_after_seconds: float | None, draw: float) -> float:
    """How long to wait after the failure of attempt 0, 1, ...; ``draw`` is a random number from 0 to 1.

    Never less than the server asked for; what is random is added to that, so that clients told the same do not come back together.
    """
    backoff: float = min(_LONGEST_SECONDS, _FIRST_SECONDS * 2**attempt)
    if retry_after_seconds is not None:
        return retry_after_seconds + draw * min(backoff, _LATE_SHARE * retry_after_seconds)
    return backoff * (_LEAST_JITTER + (1 - _LEAST_JITTER) * draw)
