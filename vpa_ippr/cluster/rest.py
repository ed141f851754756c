"""Thin raw-JSON transport to the Kubernetes API: list, get, create, patch, delete, watch.

Bytes in, typed structs out: decoding 5,000 pods into the fields that we read costs a fortieth of the client's own models. This module
loads neither the kubernetes package nor anything scientific, because the node's agent uses it too.
"""

from __future__ import annotations

import contextlib
import os
import re
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar
from urllib.parse import urlencode

import msgspec
import urllib3
from urllib3.exceptions import HTTPError, MaxRetryError

from vpa_ippr.api.errors import ClusterError, UsageError

T = TypeVar("T")

PatchType = Literal["strategic-merge-patch", "merge-patch", "json-patch"]
_RETRIED_READS = frozenset({429, 500, 502, 503, 504})
_SERVICE_ACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_DEFAULT_PAGE_SIZE = 500
_MAX_RESTARTED_LISTS = 3
_CONNECTION = re.compile(r"^(<.*?>|HTTPS?Connection(Pool)?\(.*?\)): ")


@dataclass(frozen=True, slots=True)
class Connection:
    """Where the API server is and how to prove who we are; ``bearer_token`` is asked for each request, since tokens rotate."""

    base_url: str
    tls: ssl.SSLContext | None = None
    bearer_token: Callable[[], str | None] = field(default=lambda: None, repr=False)
    server_hostname: str | None = None


@dataclass(frozen=True, slots=True)
class Cause:
    """One entry of a Status' ``details.causes``."""

    reason: str
    message: str
    field: str


class ApiUnreachableError(ClusterError):
    """No answer: connection refused, TLS refused, timed out, or the answer was cut."""

    reason = "ApiUnreachable"


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


class Ignored(msgspec.Struct):
    """An answer whose content does not matter."""


@contextlib.contextmanager
def unless_gone() -> Iterator[None]:
    """Swallow the answer that the object is not there: others may delete objects at any time."""
    try:
        yield
    except ApiError as error:
        if error.status != 404:
            raise


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


class _Named(msgspec.Struct):
    metadata: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """A list as of one resource version; ``unreadable`` names the objects that did not fit the type, with the reason."""

    items: list[T]
    resource_version: str
    unreadable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WatchEvent(Generic[T]):
    """One event; ``object`` is None for bookmarks, which carry only ``resource_version``."""

    type: str
    object: T | None
    resource_version: str


class Rest:
    """Requests to one API server. Thread-safe; keep one for the life of a process."""

    def __init__(self, connection: Connection, *, timeout_seconds: float = 30.0, retries: int = 4) -> None:
        self._connection = connection
        options: dict[str, Any] = {"ssl_context": connection.tls} if connection.tls else {}
        if connection.server_hostname:
            options |= {"server_hostname": connection.server_hostname, "assert_hostname": connection.server_hostname}
        self._pool = urllib3.PoolManager(num_pools=4, maxsize=8, **options)
        self._timeout = urllib3.Timeout(connect=min(10.0, timeout_seconds), read=timeout_seconds)
        shared: dict[str, Any] = {
            "total": retries, "connect": retries, "backoff_factor": 0.3, "backoff_jitter": 0.3, "backoff_max": 20, "raise_on_status": False
        }  # fmt: skip
        self._read_retries = urllib3.Retry(read=retries, status_forcelist=_RETRIED_READS, allowed_methods={"GET"}, **shared)
        # A write is sent again only when it surely was not carried out: never connected, or told to come back later.
        self._write_retries = urllib3.Retry(read=0, other=0, status_forcelist={429}, allowed_methods=None, **shared)

    def get(self, path: str, kind: type[T]) -> T:
        """One object. Raises ApiError with status 404 when there is none."""
        return _decode(self._request("GET", path).data, kind, path)

    def find(self, path: str, kind: type[T]) -> T | None:
        """One object, or None when there is none."""
        try:
            return self.get(path, kind)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def list(self, path: str, kind: type[T], query: Mapping[str, str] | None = None) -> Listing[T]:
        """All objects, page by page; an object that cannot be decoded is reported, not fatal."""
        for _ in range(_MAX_RESTARTED_LISTS):
            try:
                return self._list_pages(path, kind, dict(query or {}))
            except ApiError as error:
                if error.status != 410:  # the continue token outlived the server's history: begin again
                    raise
        raise ApiUnreachableError(f"list {path}: the server's history expired {_MAX_RESTARTED_LISTS} times before the last page")

    def _list_pages(self, path: str, kind: type[T], query: dict[str, str]) -> Listing[T]:
        items: list[T] = []
        unreadable: list[str] = []
        query["limit"] = str(_DEFAULT_PAGE_SIZE)
        while True:
            page = _decode(self._request("GET", path, query=query).data, _RawList, path)
            for raw in page.items or []:
                try:
                    items.append(msgspec.json.decode(raw, type=kind))
                except msgspec.ValidationError as error:
                    unreadable.append(f"{path} {_name_of(raw)}: {error}")
            if not page.metadata.continue_:
                return Listing(items, page.metadata.resource_version, tuple(unreadable))
            query["continue"] = page.metadata.continue_

    def create(self, path: str, body: object, kind: type[T]) -> T:
        """Create an object; raises ApiError with status 409 when it exists."""
        return _decode(self._request("POST", path, body=body).data, kind, path)

    def patch(self, path: str, body: object, kind: type[T], *, patch_type: PatchType = "merge-patch", dry_run: bool = False) -> T:
        """Patch an object or a subresource of it."""
        query = {"fieldManager": "vpa-ippr"} | ({"dryRun": "All"} if dry_run else {})
        response = self._request("PATCH", path, body=body, query=query, content_type=f"application/{patch_type}+json")
        return _decode(response.data, kind, path)

    def update(self, path: str, body: object, kind: type[T]) -> T:
        """Replace an object."""
        return _decode(self._request("PUT", path, body=body).data, kind, path)

    def delete(self, path: str) -> bool:
        """Delete an object; False when it was not there."""
        try:
            self._request("DELETE", path)
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return True

    def watch(self, path: str, kind: type[T], resource_version: str, *, timeout_seconds: int = 300) -> Iterator[WatchEvent[T]]:
        """Follow changes until the server ends the stream.

        Raises:
            ApiError: status 410 when ``resource_version`` is too old: list again.
            ApiUnreachableError: the stream broke or went silent.
        """
        query = {"watch": "1", "resourceVersion": resource_version, "allowWatchBookmarks": "true", "timeoutSeconds": str(timeout_seconds)}
        timeout = urllib3.Timeout(connect=10.0, read=timeout_seconds + 10.0)
        response = self._request("GET", path, query=query, timeout=timeout, stream=True)
        try:
            for line in _lines(response):
                yield _watch_event(line, kind, path)
        except HTTPError as error:
            raise ApiUnreachableError(f"watch {path}: {_short(error)}") from error
        finally:
            response.release_conn()

    def _request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = "application/json",
        timeout: urllib3.Timeout | None = None,
        stream: bool = False,
    ) -> urllib3.BaseHTTPResponse:
        headers = {"Accept": "application/json", "User-Agent": "vpa-ippr"}
        token = self._connection.bearer_token()
        if token:
            headers["Authorization"] = f"Bearer {token}"
        if body is not None:
            headers["Content-Type"] = content_type
        url = self._connection.base_url.rstrip("/") + path + (f"?{urlencode(query)}" if query else "")
        try:
            response = self._pool.request(
                method,
                url,
                headers=headers,
                body=msgspec.json.encode(body) if body is not None else None,
                timeout=timeout or self._timeout,
                retries=self._read_retries if method == "GET" else self._write_retries,
                preload_content=not stream,
            )
        except HTTPError as error:
            raise ApiUnreachableError(
                f"cannot reach the Kubernetes API at {self._connection.base_url}: {_short(error)}; check its address and certificate"
            ) from error
        if response.status >= 400:
            data = response.read() if stream else response.data
            raise _api_error(method, path, response.status, data)
        return response


def in_cluster_connection(directory: Path = _SERVICE_ACCOUNT_DIR, environ: Mapping[str, str] = os.environ) -> Connection:
    """The connection of a pod: its ServiceAccount's token (read again for each request, since it rotates) and CA.

    Raises:
        UsageError: this is not a pod with a mounted ServiceAccount.
    """
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT", "443")
    token_file, ca_file = directory / "token", directory / "ca.crt"
    if not host or not token_file.is_file() or not ca_file.is_file():
        raise UsageError(f"not in a pod with a ServiceAccount ({directory} is incomplete): give --kubeconfig FILE")
    address = f"[{host}]" if ":" in host else host
    return Connection(
        base_url=f"https://{address}:{port}",
        tls=ssl.create_default_context(cafile=str(ca_file)),
        bearer_token=lambda: token_file.read_text(encoding="utf-8").strip(),
    )


def _decode(data: bytes, kind: type[T], path: str) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise ApiUnreachableError(f"the answer for {path} is not the JSON that was expected: {error}") from error


def _name_of(raw: msgspec.Raw) -> str:
    try:
        metadata = msgspec.json.decode(raw, type=_Named).metadata
    except msgspec.DecodeError:
        return "(no name)"
    return f"{metadata.get('namespace', '')}/{metadata.get('name', '')}".lstrip("/")


def _api_error(method: str, path: str, status: int, data: bytes) -> ApiError:
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
        retry_after_seconds=details.retry_after_seconds,
    )


def _lines(response: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    """Split a chunked stream into lines; a chunk may hold any part of a line."""
    rest = b""
    for chunk in response.stream(amt=None):
        *complete, rest = (rest + chunk).split(b"\n")
        yield from (line for line in complete if line.strip())


def _watch_event(line: bytes, kind: type[T], path: str) -> WatchEvent[T]:
    event = _decode(line, _RawEvent, path)
    if event.type == "ERROR":
        status = _decode(bytes(event.object), _Status, path)
        raise _api_error("WATCH", path, status.code or 500, bytes(event.object))
    version = str(_decode(bytes(event.object), _Named, path).metadata.get("resourceVersion", ""))
    if event.type == "BOOKMARK":
        return WatchEvent("BOOKMARK", None, version)
    return WatchEvent(event.type, _decode(bytes(event.object), kind, path), version)


def _short(error: Exception) -> str:
    """The innermost reason of urllib3's nested errors, without the connection object that they begin with."""
    cause: object = error.reason if isinstance(error, MaxRetryError) and error.reason else error
    return _CONNECTION.sub("", str(cause))
