"""``vpa-ippr updater`` as a process, behind a proxy that sees each of its requests and may end it in the middle of one."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from support.programs import COMMAND
from vpa_ippr.sandbox.requestinfo import parse_target

_STOP_SECONDS = 20.0


@dataclass(frozen=True)
class Seen:
    """One request of the process."""

    method: str
    resource: str
    name: str
    body: bytes

    @property
    def is_write(self) -> bool:
        """It changes something, and is not about who leads."""
        return self.method != "GET" and self.resource != "leases"


Hook = Callable[[Seen], None]


class Proxy:
    """Forwards to one API server; ``before`` and ``after`` hear of each write, around its being carried out."""

    def __init__(self, server_url: str) -> None:
        self.requests: list[Seen] = []
        self.before: Hook = lambda _seen: None
        self.after: Hook = lambda _seen: None
        self._server = urlsplit(server_url)
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    @property
    def writes(self) -> list[Seen]:
        """The writes so far, but those of the Lease."""
        return [seen for seen in list(self.requests) if seen.is_write]

    def _forward(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        target = parse_target(urlsplit(handler.path).path)
        resource = f"{target.plural}/{target.subresource}" if target.subresource else target.plural
        seen = Seen(handler.command, resource, target.name, body)
        self.requests.append(seen)
        upstream = http.client.HTTPConnection(self._server.hostname or "", self._server.port)
        try:
            if seen.is_write:
                self.before(seen)
            upstream.request(handler.command, handler.path, body, {k: v for k, v in handler.headers.items() if k != "Host"})
            answer = upstream.getresponse()
            if "watch=1" in handler.path:
                _stream(answer, handler)
                return
            data = answer.read()
            if seen.is_write:
                self.after(seen)
            _answer(handler, answer, data)
        except (OSError, http.client.HTTPException):
            handler.close_connection = True  # the server is gone, or the process is
        finally:
            upstream.close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        forward = self._forward

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def _handle(self) -> None:
                forward(self)

            do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _handle

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler


def _answer(handler: BaseHTTPRequestHandler, answer: http.client.HTTPResponse, data: bytes) -> None:
    handler.send_response(answer.status)
    for name in ("Content-Type", "Retry-After"):
        if answer.headers.get(name):
            handler.send_header(name, answer.headers[name])
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data)


def _stream(answer: http.client.HTTPResponse, handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(answer.status)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Connection", "close")
    handler.end_headers()
    handler.close_connection = True
    while chunk := answer.read1(1 << 16):
        handler.wfile.write(chunk)
        handler.wfile.flush()


@contextmanager
def proxy_to(server_url: str) -> Iterator[Proxy]:
    """A proxy for as long as the block lasts."""
    proxy = Proxy(server_url)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()


class UpdaterProcess:
    """The command, which may be killed and started again.

    ``kubeconfig``: an administrator's; the process gets a copy of it that leads to the proxy. ``on_end`` is called when a life ends that
    was not killed: who lets simulated time wait for the process would wait for ever.
    """

    def __init__(
        self, folder: Path, name: str, kubeconfig: Path, proxy: Proxy, *arguments: str, on_end: Callable[[], None] = lambda: None
    ) -> None:
        self._folder = folder
        self._name = name
        self._arguments = arguments
        self._on_end = on_end
        self._kubeconfig = folder / f"{name}.kubeconfig"
        config: dict[str, Any] = msgspec.yaml.decode(kubeconfig.read_bytes())
        config["clusters"][0]["cluster"] = {"server": proxy.url}
        self._kubeconfig.write_bytes(msgspec.yaml.encode(config))
        self._process: subprocess.Popen[bytes] | None = None
        self.lives = 0

    def start(self) -> None:
        """Begin another life."""
        command = [COMMAND, "--log-format", "json", "updater", "--kubeconfig", self._kubeconfig, *self._arguments]
        own = ("VPA_IPPR_", "PROMETHEUS_", "KUBE")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(own)}
        with (self._folder / f"{self._name}.log").open("ab") as log:
            self._process = subprocess.Popen(list(map(str, command)), env=environment, stdout=log, stderr=log)
        self.lives += 1
        threading.Thread(target=self._attend, args=(self._process,), daemon=True).start()

    def _attend(self, process: subprocess.Popen[bytes]) -> None:
        if process.wait() != -signal.SIGKILL:
            self._on_end()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        assert self._process is not None
        return self._process.poll()

    def kill(self) -> None:
        """As the kernel does it: nothing more is carried out, nothing is tidied up."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait(_STOP_SECONDS)

    def stop(self) -> int:
        """Ask it to end; its exit code."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.terminate()
        try:
            return self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait(_STOP_SECONDS)

    def log(self) -> list[dict[str, Any]]:
        """The lines of all its lives."""
        text = (self._folder / f"{self._name}.log").read_text()
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]
