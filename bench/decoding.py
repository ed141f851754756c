"""Listing all pods of a cluster: what the updater and the recommender do first in every cycle."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import msgspec

from bench.figures import MIB, Figure, best_of
from bench.objects import pod
from vpa_ippr.api.pod import Pod
from vpa_ippr.cluster.rest import Connection, Rest

_PODS = 5_000
_PAGE = 500
_RESOURCES = {"requests": {"cpu": "250m", "memory": "256Mi"}, "limits": {"cpu": "1", "memory": "512Mi"}}


def measure() -> list[Figure]:
    pages = [_page(first) for first in range(0, _PODS, _PAGE)]
    server = _serve(pages)
    rest = Rest(Connection(f"http://127.0.0.1:{server.server_port}"))
    try:
        run = best_of(5, lambda: None, lambda _: _list(rest))
    finally:
        server.shutdown()
        server.server_close()
    size = f"{_PODS:,} pods, {sum(map(len, pages)) / MIB:.0f} MiB of JSON"
    return [Figure(name="decoding.pods", size=size, run=run, units=_PODS, unit="pod", note="over loopback, in pages of 500")]


def _list(rest: Rest) -> list[Pod]:
    listing = rest.list("/api/v1/pods", Pod)
    assert (len(listing.items), listing.unreadable) == (_PODS, ())
    return listing.items


def _page(first: int) -> bytes:
    metadata = {"resourceVersion": "9999"}
    if first + _PAGE < _PODS:
        metadata["continue"] = str(first // _PAGE + 1)
    items = [pod(number, number // 3, _RESOURCES) for number in range(first, first + _PAGE)]
    return msgspec.json.encode({"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": items})


def _serve(pages: list[bytes]) -> ThreadingHTTPServer:
    """Answers from memory: the work that is measured is the client's, but for copying the bytes."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            page = pages[int(parse_qs(urlsplit(self.path).query).get("continue", ["0"])[0])]
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server
