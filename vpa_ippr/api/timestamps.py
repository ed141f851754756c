"""RFC 3339 times as Kubernetes writes them, to and from seconds since the Unix epoch."""

from __future__ import annotations

from datetime import UTC, datetime

from vpa_ippr.api.errors import ValidationError


def parse_time(text: str) -> float:
    """Seconds since the epoch of ``2026-01-01T00:00:00Z``, with or without a fraction or an offset.

    Raises:
        ValidationError: the text is not an RFC 3339 time with a zone.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValidationError(f"cannot read {text!r} as a time: expected RFC 3339 such as 2026-01-01T00:00:00Z") from error
    if moment.tzinfo is None:
        raise ValidationError(f"time {text!r} has no zone: add Z or an offset")
    return moment.timestamp()


def format_time(seconds: float) -> str:
    """``metav1.Time``: whole seconds, UTC."""
    return datetime.fromtimestamp(int(seconds // 1), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def format_micro_time(seconds: float) -> str:
    """``metav1.MicroTime``: six decimals, UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
