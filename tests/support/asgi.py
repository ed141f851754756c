"""Requests to an ASGI application without a socket."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import msgspec

Pairs = dict[str, str] | list[tuple[str, str]]


@dataclass(frozen=True)
class Response:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return msgspec.json.decode(self.body)


def get(app: Any, path: str, params: Pairs | None = None) -> Response:
    return request(app, "GET", path, urlencode(params or {}), b"")


def post_form(app: Any, path: str, form: Pairs, params: Pairs | None = None) -> Response:
    return request(app, "POST", path, urlencode(params or {}), urlencode(form).encode(), "application/x-www-form-urlencoded")


def request(app: Any, method: str, path: str, query: str, body: bytes, content_type: str | None = None) -> Response:
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": query.encode(),
        "headers": [(b"content-type", content_type.encode())] if content_type else [],
        "server": ("testserver", 80),
        "client": ("testclient", 50000),
    }
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    start = sent[0]
    headers = {name.decode(): value.decode() for name, value in start["headers"]}
    return Response(start["status"], headers, b"".join(message.get("body", b"") for message in sent[1:]))
