"""What a handler returns: a complete response, or a watch to be streamed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import msgspec

from vpa_ippr.sandbox.resources import Resource
from vpa_ippr.sandbox.status import StatusError
from vpa_ippr.sandbox.watching import Watch

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Response:
    """A complete response; ``warnings`` become ``Warning`` headers, ``retry_after_seconds`` (unless 0) ``Retry-After``."""

    code: int
    body: bytes
    content_type: str = "application/json"
    warnings: tuple[str, ...] = ()
    retry_after_seconds: int = 0


@dataclass(frozen=True, slots=True)
class Stream:
    """A watch that ends after ``timeout_seconds`` of real time."""

    watch: Watch
    resource: Resource
    timeout_seconds: float
    sends_bookmarks: bool


def json_response(code: int, body: Json, warnings: tuple[str, ...] = ()) -> Response:
    """An object as a response."""
    return Response(code, msgspec.json.encode(body), warnings=warnings)


def error_response(error: StatusError) -> Response:
    """A refusal as a response."""
    response = json_response(error.code, error.to_json())
    return replace(response, retry_after_seconds=int((error.details or {}).get("retryAfterSeconds", 0)))


def text_response(code: int, text: str) -> Response:
    """Plain text, as the real server answers outside of its API."""
    return Response(code, text.encode(), "text/plain; charset=utf-8")


def success(details: Json | None = None, code: int = 200) -> Response:
    """A ``Status`` of success."""
    body: Json = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    if details is not None:
        body["details"] = details
    if code != 200:
        body["code"] = code
    return json_response(code, body)
