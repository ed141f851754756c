"""An ASGI application on uvicorn in a thread of its own, for as long as somebody wants it."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from typing import Any

import uvicorn

from vpa_ippr.api.errors import ClusterError

_START_SECONDS = 20.0
_LINGER_SECONDS = 0.2


class BackgroundServer:
    """Serves ``app`` at ``host`` and ``port`` (0 takes a free one); with ``tls`` over HTTPS."""

    def __init__(self, app: Any, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        self._app = app
        self._host = host
        self.port = port
        self._tls = tls
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """Where the server listens; the port is known once it has started."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'https' if self._tls else 'http'}://{host}:{self.port}"

    def start(self) -> None:
        """Listen, and return once requests are answered.

        Raises:
            ClusterError: the address cannot be listened on.
        """
        config = uvicorn.Config(
            self._app,
            host=self._host,
            port=self.port,
            # The same whatever else happens to be installed; uvloop waits for TLS clients to say goodbye when it stops.
            loop="asyncio",
            http="httptools",
            proxy_headers=False,
            log_config=None,
            log_level="critical",
            access_log=False,
            lifespan="off",
            server_header=False,
            date_header=False,
            timeout_graceful_shutdown=1,
            timeout_keep_alive=300,
        )
        config.load()
        config.ssl = self._tls
        listener = _listen(self._host, self.port)
        self.port = listener.getsockname()[1]
        self._server = _Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [listener]}, name=f"server-{self.port}", daemon=True)
        self._thread.start()
        if not _is_ready(self._server):
            raise ClusterError(f"the server at {self.url} did not start within {_START_SECONDS:.0f} s")

    def stop(self) -> None:
        """Stop listening and wait for the thread; harmless when not started."""
        if self._server is None or self._thread is None:
            return
        self._server.should_exit = True
        self._thread.join()
        self._server = self._thread = None


class _Server(uvicorn.Server):
    """Closes what clients keep open: a TLS connection would otherwise wait for its client to say goodbye."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let answers in flight end, then cut the connections that are left."""
        asyncio.get_running_loop().call_later(_LINGER_SECONDS, self._cut)
        await super().shutdown(sockets)

    def _cut(self) -> None:
        for connection in tuple(self.server_state.connections):
            transport = getattr(connection, "transport", None)
            if transport is not None:
                transport.abort()


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=512)
    except OSError as error:
        raise ClusterError(f"cannot listen on {host}:{port}: {error.strerror or error}; choose another address with --listen") from error
    # Connections inherit it: without, header and body of an answer wait for each other (Nagle) for 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _is_ready(server: uvicorn.Server) -> bool:
    pause = threading.Event()
    for _ in range(int(_START_SECONDS * 200)):
        if server.started:
            return True
        pause.wait(0.005)
    return False
