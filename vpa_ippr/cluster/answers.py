"""What the API server answers: lists, watch events and errors, decoded from JSON into typed values.

One object that does not fit its type is named and left out; an answer that is no answer at all is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec
import urllib3

from vpa_ippr.api.errors import ClusterError
from vpa_ippr.api.meta import ObjectKey

T = TypeVar("T")

_CHUNK_BYTES = 1 << 16
_CONNECTION = re.compile(r"^(<.*?>|HTTPS?Connection(Pool)?\(.*?\)): ")


@dataclass(frozen=True, slots=True)
class Cause:
    """One entry of a Status' ``details.causes``."""

    reason: str
    message: str
    field: str


class ApiUnreachableError(ClusterError):
    """No answer: connection refused, TLS refused, timed out, or the answer was cut."""

    reason = "ApiUnreachable"

    def __init__(self, message: str, *, was_sent: bool = True) -> None:
        super().__init__(message)
        self.was_sent = was_sent


class UnexpectedAnswerError(ApiUnreachableError):
    """There was an answer, but it is not what the API server would say."""


class ApiError(ClusterError):
    """The API server answered with a failure; ``status`` is the HTTP code, ``api_reason`` the Status' reason."""

    def __init__(
        self, message: str, *, status: int, api_reason: str = "", causes: tuple[Cause, ...] = (), retry_after_seconds: float | None = None
    ) -> None:
        super().__init__(message, reason=api_reason or f"Http{status}")
        self.status = status
        self.api_reason = api_reason
        self.causes = causes
        self.retry_after_seconds = retry_after_seconds


class _Cause(msgspec.Struct):
    reason: str = ""
    message: str = ""
    field: str = ""


class _Details(msgspec.Struct, rename="camel"):
    causes: list[_Cause] = []
    retry_after_seconds: float | None = None


class _Status(msgspec.Struct):
    message: str = ""
    reason: str = ""
    details: _Details | None = None
    code: int = 0


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class _RawList(msgspec.Struct):
    metadata: _ListMeta = msgspec.field(default_factory=_ListMeta)
    items: list[msgspec.Raw] | None = None


class _RawEvent(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Identity(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    resource_version: str = ""


class _Named(msgspec.Struct):
    metadata: _Identity = msgspec.field(default_factory=_Identity)

    @property
    def key(self) -> ObjectKey:
        return ObjectKey(self.metadata.namespace, self.metadata.name)


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """A list as of one resource version; ``unreadable`` names the objects that did not fit the type, with the reason.

    ``unreadable_keys`` are their keys, in the same order.
    """

    items: list[T]
    resource_version: str
    unreadable: tuple[str, ...] = ()
    unreadable_keys: tuple[ObjectKey, ...] = ()


@dataclass(frozen=True, slots=True)
class WatchEvent(Generic[T]):
    """One event; ``object`` is None for bookmarks, which carry only ``resource_version``, and for objects that do not fit the type.

    ``unreadable`` says then what is wrong with the object; ``key`` is its namespace and name.
    """

    type: str
    object: T | None
    resource_version: str
    key: ObjectKey | None = None
    unreadable: str = ""


def decode(data: bytes, kind: type[T], path: str) -> T:
    """The answer as ``kind``; UnexpectedAnswerError when it is something else."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise UnexpectedAnswerError(f"the answer for {path} is not the JSON that was expected: {error}") from error


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a list; ``next_token`` is empty on the last one."""

    items: list[T]
    unreadable: dict[ObjectKey, str]
    resource_version: str
    next_token: str


def decode_page(data: bytes, kind: type[T], path: str) -> Page[T]:
    """The objects of a page that fit the type, and what is wrong with the others."""
    page = decode(data, _RawList, path)
    items: list[T] = []
    unreadable: dict[ObjectKey, str] = {}
    for raw in page.items or []:
        try:
            items.append(msgspec.json.decode(raw, type=kind))
        except msgspec.ValidationError as error:
            key = _key_of(raw)
            unreadable[key] = _unreadable(path, key, error)
    return Page(items, unreadable, page.metadata.resource_version, page.metadata.continue_)


def _key_of(raw: msgspec.Raw) -> ObjectKey:
    try:
        return msgspec.json.decode(raw, type=_Named).key
    except msgspec.DecodeError:
        return ObjectKey("", "(no name)")


def _unreadable(path: str, key: ObjectKey, error: msgspec.ValidationError) -> str:
    return f"{path} {str(key).lstrip('/')}: {error}"


def api_error(method: str, path: str, response: urllib3.BaseHTTPResponse, data: bytes) -> ApiError:
    """The error of an answer; its Retry-After may stand in the header, in the Status, or in both."""
    header = response.headers.get("Retry-After", "")
    return _error_of(method, path, response.status, data, float(header) if header.isdecimal() else None)


def _error_of(method: str, path: str, status: int, data: bytes, retry_after_seconds: float | None = None) -> ApiError:
    try:
        answer = msgspec.json.decode(data, type=_Status)
    except msgspec.DecodeError:
        answer = _Status(message=data[:200].decode("utf-8", "replace").strip())
    details = answer.details or _Details()
    return ApiError(
        answer.message or f"{method} {path} failed with HTTP {status}",
        status=status,
        api_reason=answer.reason,
        causes=tuple(Cause(cause.reason, cause.message, cause.field) for cause in details.causes),
        retry_after_seconds=retry_after_seconds if retry_after_seconds is not None else details.retry_after_seconds,
    )


def lines(response: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    """Split a chunked stream into lines; a chunk may hold any part of a line."""
    rest = b""
    while chunk := response.read1(_CHUNK_BYTES):
        *complete, rest = (rest + chunk).split(b"\n")
        yield from (line for line in complete if line.strip())


def watch_event(line: bytes, kind: type[T], path: str) -> WatchEvent[T]:
    """One line of a watch; raises the ApiError that an ``ERROR`` event tells of."""
    event = decode(line, _RawEvent, path)
    if event.type == "ERROR":
        status = decode(bytes(event.object), _Status, path)
        raise _error_of("WATCH", path, status.code or 500, bytes(event.object))
    named = decode(bytes(event.object), _Named, path)
    version = named.metadata.resource_version
    if event.type == "BOOKMARK":
        return WatchEvent("BOOKMARK", None, version)
    try:
        found = msgspec.json.decode(event.object, type=kind)
    except msgspec.ValidationError as error:
        return WatchEvent(event.type, None, version, named.key, _unreadable(path, named.key, error))
    return WatchEvent(event.type, found, version, named.key)


def short(error: Exception) -> str:
    """The reason of one of urllib3's errors, without the connection object that it begins with."""
    return _CONNECTION.sub("", str(error))
