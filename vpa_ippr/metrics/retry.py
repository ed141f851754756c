"""When to ask again: exponential back-off with full jitter, unless the server says how long to wait."""

from __future__ import annotations

import math
from email.utils import parsedate_to_datetime

BASE_SECONDS = 0.5
CAP_SECONDS = 30.0


def delay_seconds(attempt: int, jitter: float, retry_after_seconds: float | None = None) -> float:
    """How long to wait after failed attempt number ``attempt`` (from 0); ``jitter`` lies in 0..1.

    Full jitter spreads the clients of an overloaded server over the whole interval. The server's own word is a minimum, on
    top of which the jitter is added.
    """
    backoff = jitter * min(CAP_SECONDS, BASE_SECONDS * 2.0**attempt)
    return backoff if retry_after_seconds is None else retry_after_seconds + backoff


def parse_retry_after(header: str | None, now: float) -> float | None:
    """Seconds to wait by a Retry-After header (RFC 9110 10.2.3: a number of seconds, or a date); None when it says nothing usable."""
    if not header:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(header).timestamp() - now
        except ValueError:
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None
