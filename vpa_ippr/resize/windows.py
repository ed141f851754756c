"""Maintenance windows and pauses: when a change that is not urgent may be made, and when none may.

A window is told by the wall clock of its zone, as people mean it: ``Mon-Fri 22:00-06:00 Europe/Berlin; Sat,Sun 00:00-24:00 UTC``. An hour
that the clock skips is in no window, one that it shows twice is so both times. A window past midnight belongs to the day it begins.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from vpa_ippr.api.errors import ValidationError
from vpa_ippr.api.names import ANNOTATION_MAINTENANCE_WINDOWS, ANNOTATION_PAUSE
from vpa_ippr.api.vpa import Vpa

_DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_HOURS: Final = re.compile(r"(\d\d):(\d\d)-(\d\d):(\d\d)")
_DAY_MINUTES: Final = 24 * 60
_EXAMPLE: Final = "Mon-Fri 22:00-06:00 Europe/Berlin; Sat,Sun 00:00-24:00 UTC"
# A week and a spare one: a window whose whole time the clock skips opens a week later.
_HORIZON_DAYS: Final = 15
# Zones change their offset at whole quarters of an hour.
_QUARTER_SECONDS: Final = 900


@dataclass(frozen=True, slots=True)
class Window:
    """From ``begin_minute`` of each of these days (0 is Monday) until ``end_minute``, of the next day where that is not later."""

    days: frozenset[int]
    begin_minute: int
    end_minute: int
    zone: str


@lru_cache(maxsize=256)
def parse_windows(text: str) -> tuple[Window, ...]:
    """The windows of a text such as ``Mon-Fri 22:00-06:00 Europe/Berlin; Sat,Sun 00:00-24:00 UTC``.

    Raises:
        ValidationError: it cannot be read, or names no window at all; the reason is ``ConfigUnsupported``.
    """
    parts = [part.strip() for part in text.split(";") if part.strip()]
    if not parts:
        raise _error(text, "it names no window")
    return tuple(_window(part) for part in parts)


def windows_of(vpa: Vpa, otherwise: tuple[Window, ...]) -> tuple[Window, ...]:
    """The VPA's own windows (annotation ``vpa-ippr.io/maintenance-windows``), else the updater's. None at all: always open.

    Raises:
        ValidationError: the annotation cannot be read.
    """
    text = vpa.metadata.annotations.get(ANNOTATION_MAINTENANCE_WINDOWS)
    if text is None:
        return otherwise
    try:
        return parse_windows(text)
    except ValidationError as error:
        raise ValidationError(f"annotation {ANNOTATION_MAINTENANCE_WINDOWS}: {error}", reason=error.reason) from error


def is_paused(vpa: Vpa) -> bool:
    """Whether the VPA's annotation ``vpa-ippr.io/pause`` stops all new changes of its pods.

    Raises:
        ValidationError: it is neither ``true`` nor ``false``.
    """
    text = vpa.metadata.annotations.get(ANNOTATION_PAUSE, "false")
    if text not in ("true", "false"):
        raise ValidationError(f'annotation {ANNOTATION_PAUSE}: {text!r} is neither "true" nor "false"', reason="ConfigUnsupported")
    return text == "true"


def open_at(windows: Sequence[Window], now: float) -> bool:
    """Whether one of the windows is open; no windows are always open."""
    return not windows or any(_is_open(window, now) for window in windows)


def opens_next(windows: Sequence[Window], now: float) -> float:
    """When one of the windows is open next: ``now`` while one is."""
    if open_at(windows, now):
        return now
    return min(moment for window in windows for moment in _openings(window, now) if moment > now and _is_open(window, moment))


def _is_open(window: Window, now: float) -> bool:
    local = datetime.fromtimestamp(now, ZoneInfo(window.zone))
    minute, today = local.hour * 60 + local.minute, local.weekday() in window.days
    if window.begin_minute < window.end_minute:
        return today and window.begin_minute <= minute < window.end_minute
    yesterday = (local.weekday() - 1) % 7 in window.days
    return (today and minute >= window.begin_minute) or (yesterday and minute < window.end_minute)


def _openings(window: Window, now: float) -> Iterator[float]:
    """The moments at which the window may open: its beginnings; and where the clock skips or repeats an edge of it, each in between."""
    zone = ZoneInfo(window.zone)
    first = datetime.fromtimestamp(now, zone).date() - timedelta(days=1)
    for day in range(_HORIZON_DAYS + 1):
        midnight = datetime.combine(first + timedelta(days=day), datetime.min.time(), zone)
        for minute in (window.begin_minute, window.end_minute % _DAY_MINUTES):
            edge = midnight.replace(hour=minute // 60, minute=minute % 60)
            low, high = sorted(int(edge.replace(fold=fold).timestamp()) for fold in (0, 1))
            yield from (low, *range(low - low % _QUARTER_SECONDS, high, _QUARTER_SECONDS), high)


def _window(text: str) -> Window:
    fields = text.split()
    if len(fields) != 3:
        raise _error(text, "it must have days, hours and a zone")
    days, hours, zone = fields
    begin, end = _hours(text, hours)
    return Window(frozenset(_days(text, days)), begin, end, _zone(text, zone))


def _days(text: str, days: str) -> Iterator[int]:
    for part in days.lower().split(","):
        first, dash, last = part.partition("-")
        last = last if dash else first
        if first not in _DAYS or last not in _DAYS:
            raise _error(text, f"{part!r} is neither a day (Mon, Tue, Wed, Thu, Fri, Sat, Sun) nor a range of days")
        begin = _DAYS.index(first)
        yield from ((begin + day) % 7 for day in range((_DAYS.index(last) - begin) % 7 + 1))


def _hours(text: str, hours: str) -> tuple[int, int]:
    match = _HOURS.fullmatch(hours)
    if match is None:
        raise _error(text, f"{hours!r} is not a time from 00:00 to 24:00 such as 22:00-06:00")
    begin, end = int(match[1]) * 60 + int(match[2]), int(match[3]) * 60 + int(match[4])
    sound = int(match[2]) < 60 and int(match[4]) < 60 and begin < _DAY_MINUTES and end <= _DAY_MINUTES
    if not sound or begin == end:
        raise _error(text, f"{hours!r} is not a time from 00:00 to 24:00 such as 22:00-06:00; a whole day is 00:00-24:00")
    return begin, end


def _zone(text: str, zone: str) -> str:
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:  # a directory of the database, or a path out of it
        raise _error(text, f"{zone!r} is no time zone, such as Europe/Berlin or UTC") from error
    return zone


def _error(text: str, why: str) -> ValidationError:
    return ValidationError(f"window {text!r}: {why}; write for example {_EXAMPLE!r}", reason="ConfigUnsupported")


def format_moment(moment: float) -> str:
    """A moment for messages: its day and minute, UTC."""
    return datetime.fromtimestamp(moment, UTC).strftime("%a %Y-%m-%d %H:%M UTC")
