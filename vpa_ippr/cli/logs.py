"""Structured logs on stderr: a constant message and key=value pairs, or one JSON object a line."""

from __future__ import annotations

import logging
import sys
import time

import msgspec

from vpa_ippr.api.errors import UsageError

_LEVELS = ("debug", "info", "warning", "error")
# What they say of each retry and each cycle, our own errors and summaries say better.
_TALKATIVE = ("urllib3", "apscheduler")
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def configure_logging(level: str, form: str) -> None:
    """Set up the root logger; raises UsageError for an unknown level or format."""
    if level not in _LEVELS:
        raise UsageError(f"--log-level {level!r} is not one of {', '.join(_LEVELS)}")
    if form not in ("text", "json"):
        raise UsageError(f"--log-format {form!r} is not one of text, json")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if form == "json" else _TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel("DEBUG" if level == "debug" else "ERROR")


def _pairs(record: logging.LogRecord) -> dict[str, object]:
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}


def _one_line(value: object) -> str:
    """The value without line breaks and control characters: names come from a cluster that others write to."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in str(value))


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        pairs = "".join(f" {key}={_one_line(value)}" for key, value in _pairs(record).items())
        stamp = time.strftime("%H:%M:%S", time.gmtime(record.created))
        trace = "\n" + self.formatException(record.exc_info) if record.exc_info else ""
        return f"{stamp} {record.levelname.lower()} {record.name.removeprefix('vpa_ippr.')}: {record.getMessage()}{pairs}{trace}"


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry |= {key: value if isinstance(value, str | int | float | bool) else str(value) for key, value in _pairs(record).items()}
        if record.exc_info:
            entry["trace"] = self.formatException(record.exc_info)
        return msgspec.json.encode(entry).decode()
