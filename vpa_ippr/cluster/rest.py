"""Thin raw-JSON transport to the Kubernetes API: list, get, create, patch, delete, watch.

Bytes in, typed structs out: decoding 5,000 pods into the fields that we read costs a fortieth of the client's own models. This module
loads neither the kubernetes package nor anything scientific, because the node's agent uses it too.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import urlencode

import msgspec
import urllib3
from urllib3.exceptions import ConnectTimeoutError, HTTPError

from vpa_ippr.api.errors import UsageError
from vpa_ippr.api.meta import ObjectKey
from vpa_ippr.cluster.answers import (
    ApiError,
    ApiUnreachableError,
    Cause,
    Listing,
    UnexpectedAnswerError,
    WatchEvent,
    api_error,
    decode,
    decode_page,
    lines,
    short,
    watch_event,
)
from vpa_ippr.cluster.retry import RetryBudget, may_send_again, seconds_before

__all__ = [
    "ApiError",
    "ApiUnreachableError",
    "Cause",
    "Connection",
    "Ignored",
    "Listing",
    "Rest",
    "UnexpectedAnswerError",
    "WatchEvent",
    "in_cluster_connection",
    "unless_gone",
]

T = TypeVar("T")

PatchType = Literal["strategic-merge-patch", "merge-patch", "json-patch"]
_SERVICE_ACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_DEFAULT_PAGE_SIZE = 500
_MAX_RESTARTED_LISTS = 3
_CONNECT_SECONDS = 10.0
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Connection:
    """Where the API server is and how to prove who we are; ``bearer_token`` is asked for each request, since tokens rotate."""

    base_url: str
    tls: ssl.SSLContext | None = None
    bearer_token: Callable[[], str | None] = field(default=lambda: None, repr=False)
    server_hostname: str | None = None


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


Guard = Callable[[], None]
"""Called right before each attempt at a write; raises to prevent it."""

Observe = Callable[[str, int, float], None]
"""Told of each attempt: its method, the HTTP status (0 when there was no answer), and how many seconds it took."""


class Rest:
    """Requests to one API server. Thread-safe; keep one for the life of a process."""

    def __init__(
        self,
        connection: Connection,
        *,
        timeout_seconds: float = 30.0,
        retries: int = 4,
        guard: Guard = lambda: None,
        observe: Observe = lambda _method, _status, _seconds: None,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] | None = None,
    ) -> None:
        """``timeout_seconds`` is for a whole call with its at most ``retries`` retries; a list is one call for each page."""
        self._connection = connection
        options: dict[str, Any] = {"ssl_context": connection.tls} if connection.tls else {}
        if connection.server_hostname:
            options |= {"server_hostname": connection.server_hostname, "assert_hostname": connection.server_hostname}
        # A watch holds a connection for as long as it lasts.
        self._pool = urllib3.PoolManager(num_pools=4, maxsize=16, **options)
        self._timeout_seconds = timeout_seconds
        self._retries = retries
        self._budget = RetryBudget(monotonic)
        self._guard = guard
        self._observe = observe
        self._monotonic = monotonic
        self._sleep = sleep or time.sleep

    def get(self, path: str, kind: type[T]) -> T:
        """One object. Raises ApiError with status 404 when there is none."""
        return decode(self._request("GET", path), kind, path)

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
        unreadable: dict[ObjectKey, str] = {}
        query["limit"] = str(_DEFAULT_PAGE_SIZE)
        while True:
            page = decode_page(self._request("GET", path, query=query), kind, path)
            items += page.items
            unreadable |= page.unreadable
            if not page.next_token:
                return Listing(items, page.resource_version, tuple(unreadable.values()), tuple(unreadable))
            query["continue"] = page.next_token

    def create(self, path: str, body: object, kind: type[T]) -> T:
        """Create an object; raises ApiError with status 409 when it exists."""
        return decode(self._request("POST", path, body=body), kind, path)

    def patch(self, path: str, body: object, kind: type[T], *, patch_type: PatchType = "merge-patch", dry_run: bool = False) -> T:
        """Patch an object or a subresource of it."""
        query = {"fieldManager": "vpa-ippr"} | ({"dryRun": "All"} if dry_run else {})
        return decode(self._request("PATCH", path, body=body, query=query, content_type=f"application/{patch_type}+json"), kind, path)

    def update(self, path: str, body: object, kind: type[T]) -> T:
        """Replace an object."""
        return decode(self._request("PUT", path, body=body), kind, path)

    def delete(self, path: str) -> bool:
        """Delete an object; False when it was not there."""
        try:
            self._request("DELETE", path)
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return True

    def watch(
        self,
        path: str,
        kind: type[T],
        resource_version: str,
        query: Mapping[str, str] | None = None,
        *,
        timeout_seconds: int = 300,
        silence_seconds: float | None = None,
    ) -> Iterator[WatchEvent[T]]:
        """Follow changes until the server ends the stream. Not retried: whoever watches knows where to go on.

        ``silence_seconds``: a stream that says nothing for so long is taken for broken; default: a little more than ``timeout_seconds``.

        Raises:
            ApiError: status 410 when ``resource_version`` is too old: list again.
            UnexpectedAnswerError: an event could not be read at all, so what it told is missing: list again.
            ApiUnreachableError: the stream broke or went silent.
        """
        options = {"watch": "1", "resourceVersion": resource_version, "allowWatchBookmarks": "true", "timeoutSeconds": str(timeout_seconds)}
        silence = timeout_seconds + 10.0 if silence_seconds is None else silence_seconds
        timeout = urllib3.Timeout(connect=_CONNECT_SECONDS, read=silence)
        response = self._open("GET", self._url(path, {**(query or {}), **options}), None, "", timeout)
        try:
            if response.status >= 300:
                raise api_error("WATCH", path, response, response.read())
            for line in lines(response):
                yield watch_event(line, kind, path)
        except HTTPError as error:
            raise ApiUnreachableError(f"watch {path}: {short(error)}") from error
        finally:
            response.close()

    def _request(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None, body: object = None, content_type: str = "application/json"
    ) -> bytes:
        """The body of the answer, after as many retries as it takes, the budget affords and the time allows."""
        url, encoded = self._url(path, query), msgspec.json.encode(body) if body is not None else None
        deadline = self._monotonic() + self._timeout_seconds
        self._budget.note_request()
        for attempt in itertools.count():
            try:
                return self._attempt(method, path, url, encoded, content_type, deadline)
            except (ApiError, ApiUnreachableError) as error:
                delay = self._retry_delay(method, attempt, error, deadline)
                if delay is None:
                    raise
            self._sleep(delay)
        raise AssertionError("an attempt ends with an answer or an error")

    def _retry_delay(self, method: str, attempt: int, error: ApiError | ApiUnreachableError, deadline: float) -> float | None:
        """Seconds until the next attempt; None when there is to be none."""
        if isinstance(error, ApiError):
            causes = tuple(cause.reason for cause in error.causes)
            helps, wanted = may_send_again(method, error.status, causes, was_sent=True), error.retry_after_seconds
        else:
            helps, wanted = may_send_again(method, None, (), was_sent=error.was_sent), None
        if not helps or attempt >= self._retries:
            return None
        delay = seconds_before(attempt, wanted, random.random())  # noqa: S311 - spreads clients, guards nothing
        if self._monotonic() + delay >= deadline or not self._budget.take():
            return None
        return delay

    def _attempt(self, method: str, path: str, url: str, body: bytes | None, content_type: str, deadline: float) -> bytes:
        left = max(0.001, deadline - self._monotonic())
        if method != "GET":
            self._guard()
        began, status = self._monotonic(), 0
        try:
            response = self._open(method, url, body, content_type, urllib3.Timeout(connect=min(_CONNECT_SECONDS, left), read=left))
            try:
                data = self._read(response, deadline)
            except HTTPError as error:
                raise self._unreachable(error) from error
            finally:
                response.close()
            status = response.status
        finally:
            self._observe(method, status, self._monotonic() - began)
        if response.status >= 300:
            raise api_error(method, path, response, data)
        return data

    def _read(self, response: urllib3.BaseHTTPResponse, deadline: float) -> bytes:
        """The whole body. The socket's time-out is for each piece: a server that sends a byte now and then must not hold us for ever."""
        chunks: list[bytes] = []
        while chunk := response.read1(_CHUNK_BYTES):
            chunks.append(chunk)
            left = deadline - self._monotonic()
            if left <= 0:
                raise urllib3.exceptions.TimeoutError(f"the answer took longer than {self._timeout_seconds:g} s")
            sock = getattr(response.connection, "sock", None)
            if sock is not None:
                sock.settimeout(left)
        return b"".join(chunks)

    def _open(self, method: str, url: str, body: bytes | None, content_type: str, timeout: urllib3.Timeout) -> urllib3.BaseHTTPResponse:
        headers = {"Accept": "application/json", "User-Agent": "vpa-ippr"}
        token = self._connection.bearer_token()
        if token:
            headers["Authorization"] = f"Bearer {token}"
        if body is not None:
            headers["Content-Type"] = content_type
        try:
            return self._pool.request(
                method, url, headers=headers, body=body, timeout=timeout, retries=False, redirect=False, preload_content=False
            )
        except HTTPError as error:
            raise self._unreachable(error) from error

    def _url(self, path: str, query: Mapping[str, str] | None) -> str:
        return self._connection.base_url.rstrip("/") + path + (f"?{urlencode(query)}" if query else "")

    def _unreachable(self, error: HTTPError) -> ApiUnreachableError:
        return ApiUnreachableError(
            f"cannot reach the Kubernetes API at {self._connection.base_url}: {short(error)}; check its address and certificate",
            was_sent=not isinstance(error, ConnectTimeoutError),
        )


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
