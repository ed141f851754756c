"""The API server over HTTP(S): an ASGI application on uvicorn, in a thread of its own, and the kubeconfig that leads to it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any

import msgspec

from vpa_ippr.api.clock import Clock
from vpa_ippr.sandbox.background import BackgroundServer
from vpa_ippr.sandbox.certificates import make_certificates, server_context
from vpa_ippr.sandbox.faults import ApiFaults
from vpa_ippr.sandbox.garbage import GarbageCollector
from vpa_ippr.sandbox.handlers import Api, AuditEntry, too_large
from vpa_ippr.sandbox.rbac import MASTERS, Tokens
from vpa_ippr.sandbox.requestinfo import Request, User, parse_query, parse_target
from vpa_ippr.sandbox.responses import Response, Stream
from vpa_ippr.sandbox.store import Store
from vpa_ippr.sandbox.watching import Gone

logger = logging.getLogger(__name__)

Json = dict[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Scope]]
Send = Callable[[Scope], Awaitable[None]]

MAX_BODY_BYTES = 3 * 1024 * 1024
"""The real server's limit of a request body."""
BOOKMARK_SECONDS = 60.0
"""How often a quiet watch says how far it has got."""
_ADMIN = User("kubernetes-admin", (MASTERS, "system:authenticated"))
_CLUSTER_ADMIN: Json = {
    "metadata": {"name": "cluster-admin", "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"}},
    "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}, {"nonResourceURLs": ["*"], "verbs": ["*"]}],
}
_CLUSTER_ADMIN_BINDING: Json = {
    "metadata": {"name": "cluster-admin", "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"}},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
    "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": MASTERS}],
}


class ApiServer:
    """A Kubernetes API server over ``store``.

    Args:
        store: the objects; controllers may use it at the same time.
        version: the Kubernetes minor version that it says it is; None for the store's.
        clock: the time for ages in tables; None for the store's.
        listen: host and port; port 0 takes a free one.
        tls: serve HTTPS with a certificate of an authority made for this server.
        tokens: more bearer tokens and their users, beside the administrator's.
    """

    def __init__(
        self,
        store: Store,
        *,
        version: str | None = None,
        clock: Clock | None = None,
        listen: tuple[str, int] = ("127.0.0.1", 0),
        tls: bool = True,
        tokens: Mapping[str, User] | None = None,
    ) -> None:
        self.store = store
        self.clock = clock or store.clock
        self.admin_token = secrets.token_urlsafe(24)
        self._tokens = Tokens({**(tokens or {}), self.admin_token: _ADMIN})
        host, port = listen
        self._certificates = make_certificates(host) if tls else None
        self._api = Api(store, self._tokens, version or store.version, lambda: f"{host}:{self._server.port}")
        self._app = _Application(self._api)
        self._server = BackgroundServer(self._app, host, port, server_context(self._certificates) if self._certificates else None)
        self._garbage = GarbageCollector(store)
        for plural, obj in (("clusterroles", _CLUSTER_ADMIN), ("clusterrolebindings", _CLUSTER_ADMIN_BINDING)):
            if store.find(f"{plural}.rbac.authorization.k8s.io", None, "cluster-admin") is None:
                store.create(f"{plural}.rbac.authorization.k8s.io", obj)

    @property
    def audit(self) -> deque[AuditEntry]:
        """The latest requests to resources, oldest first."""
        return self._api.audit

    @property
    def faults(self) -> ApiFaults:
        """Errors to answer with instead of carrying out a request."""
        return self._api.faults

    @property
    def url(self) -> str:
        """Where the server listens; the port is known once it has started."""
        return self._server.url

    @property
    def ca_certificate(self) -> bytes | None:
        """The PEM text of the authority, None without TLS."""
        return self._certificates.authority if self._certificates else None

    def token_for_service_account(self, namespace: str, name: str) -> str:
        """A new bearer token for a ServiceAccount."""
        return self._tokens.for_service_account(namespace, name)

    def start(self) -> None:
        """Listen, and return once requests are answered; after ``stop`` at the same port as before.

        Raises:
            ClusterError: the address cannot be listened on.
        """
        self._app.allow_streams()
        self._server.start()

    def stop(self) -> None:
        """End all watches and stop listening; harmless when not started."""
        self._app.end_streams()
        self._server.stop()

    def kubeconfig(self, token: str | None = None, namespace: str = "default") -> Json:
        """A kubeconfig for the administrator, or for the holder of ``token``."""
        cluster: Json = {"server": self.url}
        if self._certificates:
            cluster["certificate-authority-data"] = base64.b64encode(self._certificates.authority).decode()
        context = {"cluster": "sandbox", "user": "sandbox", "namespace": namespace}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "sandbox",
            "clusters": [{"name": "sandbox", "cluster": cluster}],
            "users": [{"name": "sandbox", "user": {"token": token or self.admin_token}}],
            "contexts": [{"name": "sandbox", "context": context}],
        }

    def write_kubeconfig(self, path: Path, token: str | None = None) -> None:
        """Write the kubeconfig, readable by its owner alone."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.chmod(0o600)  # one that was there may have been open to others
        path.write_bytes(msgspec.yaml.encode(self.kubeconfig(token)))


class _Application:
    """The ASGI side: reads a request, has it answered, writes the answer or streams the watch."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._loop: asyncio.AbstractEventLoop | None = None
        self._streams: set[asyncio.Event] = set()
        self._ending = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body = await _read_body(receive)
        if body is None:
            await _write(send, too_large(MAX_BODY_BYTES))
            return
        answer = self._api.handle(_request(scope, body))
        if isinstance(answer, Response):
            await _write(send, answer)
        else:
            await self._stream(answer, receive, send)

    def allow_streams(self) -> None:
        """Serve watches (again)."""
        self._ending = False

    def end_streams(self) -> None:
        """Let every watch end; may be called from any thread."""
        self._ending = True
        if self._loop is not None:
            for wake in tuple(self._streams):
                self._loop.call_soon_threadsafe(wake.set)

    async def _stream(self, stream: Stream, receive: Receive, send: Send) -> None:
        self._loop = loop = asyncio.get_running_loop()
        wake = asyncio.Event()

        def wake_up() -> None:
            if not wake.is_set():
                with contextlib.suppress(RuntimeError):  # the loop has been closed
                    loop.call_soon_threadsafe(wake.set)

        unlisten = self._api.store.listen(stream.resource, wake_up)
        self._streams.add(wake)
        disconnected = asyncio.ensure_future(_wait_for_disconnect(receive, wake))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
            await self._send_events(stream, send, wake, disconnected)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            unlisten()
            self._streams.discard(wake)
            disconnected.cancel()

    async def _send_events(self, stream: Stream, send: Send, wake: asyncio.Event, disconnected: asyncio.Future[None]) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + stream.timeout_seconds
        next_bookmark = loop.time() + BOOKMARK_SECONDS
        # The headers go out at once, so that the client knows that its watch has begun.
        await send({"type": "http.response.body", "body": b"", "more_body": True})
        while not (self._ending or disconnected.done()):
            wake.clear()
            if not await _send_new(stream, send):
                return
            now = loop.time()
            if stream.sends_bookmarks and (now >= next_bookmark or now >= deadline):
                await send({"type": "http.response.body", "body": stream.watch.bookmark(), "more_body": True})
                next_bookmark = now + BOOKMARK_SECONDS
            if now >= deadline:
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(wake.wait(), min(deadline, next_bookmark) - now)


async def _send_new(stream: Stream, send: Send) -> bool:
    """Send what is new; False when the watch has ended with an error."""
    lines: list[bytes] = []
    alive = True
    try:
        lines.extend(stream.watch.poll())
    except Gone:
        alive = False
    if lines:
        await send({"type": "http.response.body", "body": b"".join(lines), "more_body": True})
    return alive


async def _wait_for_disconnect(receive: Receive, wake: asyncio.Event) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    wake.set()


async def _read_body(receive: Receive) -> bytes | None:
    chunks: list[bytes] = []
    size = 0
    more = True
    while more:
        message = await receive()
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > MAX_BODY_BYTES:
            return None
        chunks.append(chunk)
        more = message.get("more_body", False)
    return b"".join(chunks)


def _request(scope: Scope, body: bytes) -> Request:
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:
        # A header that comes several times, as Impersonate-Group does, is one list (RFC 9110, 5.3).
        known, text = headers.get(name.decode("latin-1")), value.decode("latin-1")
        headers[name.decode("latin-1")] = text if known is None else f"{known},{text}"
    path = scope["path"]
    return Request(scope["method"], path, parse_query(scope["query_string"].decode("latin-1")), headers, body, parse_target(path))


async def _write(send: Send, answer: Response) -> None:
    headers = [(b"content-type", answer.content_type.encode()), (b"content-length", str(len(answer.body)).encode())]
    headers += [(b"warning", f'299 - "{_quoted(text)}"'.encode()) for text in answer.warnings]
    if answer.retry_after_seconds:
        headers.append((b"retry-after", str(answer.retry_after_seconds).encode()))
    await send({"type": "http.response.start", "status": answer.code, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
