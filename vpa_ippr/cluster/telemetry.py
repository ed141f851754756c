"""What a component tells of itself over HTTP: ``/metrics`` for Prometheus, ``/healthz`` and ``/readyz`` for the kubelet.

Each ``Telemetry`` has a registry of its own, so nothing here belongs to the process. All values that a label can have are given when a
metric is made: its series are there from the start with 0, so a rate exists before the first event, and their number is bounded.
"""

from __future__ import annotations

import itertools
import logging
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Generic, Self, TypeVar

import prometheus_client
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.metrics_core import Metric

from vpa_ippr.api.errors import UsageError

logger = logging.getLogger(__name__)

M = TypeVar("M", bound=MetricWrapperBase)

PREFIX = "vpa_ippr_"
# A scrape or a probe that sends its request more slowly than this is given up.
_CLIENT_SECONDS = 10.0

Probe = Callable[[], str | None]
"""None when all is well, else what is wrong, in one line. Quick: it is asked within a request."""

_STATUSES = ("none", "2xx", "3xx", "4xx", "409", "429", "5xx")
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


class _Series(Generic[M]):
    """One metric, with a child for each combination of its labels' values."""

    def __init__(self, metric: M, labels: Mapping[str, Iterable[str]], only: Iterable[Sequence[str]] | None = None) -> None:
        self._name = str(metric)
        self._names = tuple(labels)
        every = itertools.product(*labels.values()) if only is None else only
        combinations = [tuple(map(str, chosen)) for chosen in every]
        self._children: dict[tuple[str, ...], M] = {chosen: metric.labels(*chosen) if chosen else metric for chosen in combinations}

    def _child(self, labels: Mapping[str, str]) -> M:
        child = self._children.get(tuple(str(labels[name]) for name in self._names)) if labels.keys() == set(self._names) else None
        if child is None:
            raise ValueError(f"metric {self._name} was not made for the labels {dict(labels)}")
        return child


class Counter(_Series[prometheus_client.Counter]):
    """A number that only grows."""

    def inc(self, amount: float = 1.0, **labels: str) -> None:
        """Add; ValueError for labels that the metric was not made for."""
        self._child(labels).inc(amount)


class Gauge(_Series[prometheus_client.Gauge]):
    """A number that goes up and down."""

    def set(self, value: float, **labels: str) -> None:
        """Replace; ValueError for labels that the metric was not made for."""
        self._child(labels).set(value)


class Histogram(_Series[prometheus_client.Histogram]):
    """How values are spread."""

    def observe(self, value: float, **labels: str) -> None:
        """Count one value; ValueError for labels that the metric was not made for."""
        self._child(labels).observe(value)


class Telemetry:
    """The metrics of one component. ``labels`` are names with all values that each may have: ``reason=RefusalReason``."""

    def __init__(self) -> None:
        self._registry = prometheus_client.CollectorRegistry()
        prometheus_client.ProcessCollector(registry=self._registry)

    def counter(self, name: str, text: str, **labels: Iterable[str]) -> Counter:
        """A new counter; its name ends with ``_total`` and gets the prefix ``vpa_ippr_``."""
        if not name.endswith("_total"):
            raise ValueError(f"counter {name}: the name of a counter ends with _total")
        return Counter(prometheus_client.Counter(PREFIX + name, text, tuple(labels), registry=self._registry), labels)

    def counter_of(self, name: str, text: str, labels: Sequence[str], combinations: Iterable[Sequence[str]]) -> Counter:
        """A new counter of which not every value of a label goes with every value of another."""
        metric = prometheus_client.Counter(PREFIX + name, text, tuple(labels), registry=self._registry)
        return Counter(metric, dict.fromkeys(labels, ()), combinations)

    def gauge(self, name: str, text: str, **labels: Iterable[str]) -> Gauge:
        """A new gauge; its name says the unit and gets the prefix ``vpa_ippr_``."""
        return Gauge(prometheus_client.Gauge(PREFIX + name, text, tuple(labels), registry=self._registry), labels)

    def histogram(self, name: str, text: str, buckets: Sequence[float], **labels: Iterable[str]) -> Histogram:
        """A new histogram with these upper bounds; its name says the unit and gets the prefix ``vpa_ippr_``."""
        metric = prometheus_client.Histogram(PREFIX + name, text, tuple(labels), buckets=buckets, registry=self._registry)
        return Histogram(metric, labels)

    def follow(self, name: str, text: str, read: Callable[[], float]) -> None:
        """A new gauge that is read when it is asked for."""
        prometheus_client.Gauge(PREFIX + name, text, registry=self._registry).set_function(read)

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """Everything in the format that the ``Accept`` header prefers, and its content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self), content_type

    def collect(self) -> Iterator[Metric]:
        """The metrics without the moments of their creation, which would be a second series for each and tell nobody anything."""
        for metric in self._registry.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric


def api_observer(telemetry: Telemetry) -> Callable[[str, int, float], None]:
    """What ``Rest`` tells of its attempts, as two metrics."""
    requests = telemetry.counter("api_requests_total", "Attempts at requests to the API server.", method=_METHODS, status=_STATUSES)
    buckets = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0)
    seconds = telemetry.histogram("api_request_seconds", "Seconds for each attempt.", buckets, method=_METHODS)

    def observe(method: str, status: int, took_seconds: float) -> None:
        exact = str(status) if str(status) in _STATUSES else f"{status // 100}xx"
        requests.inc(method=method, status=exact if status else "none")
        seconds.observe(took_seconds, method=method)

    return observe


class Exposition:
    """Serves a telemetry and probes in daemon threads, within a ``with`` block. ``/healthz`` says that the process answers at all."""

    def __init__(
        self,
        telemetry: Telemetry,
        listen: tuple[str, int],
        *,
        healthy: Mapping[str, Probe] = {},
        ready: Mapping[str, Probe] = {},
    ) -> None:
        """``listen``: host (empty for all addresses) and port (0 for a free one).

        Raises:
            UsageError: the address cannot be listened on.
        """
        pages: dict[str, Callable[[str], tuple[int, bytes, str]]] = {
            "/metrics": lambda accept: (200, *telemetry.render(accept)),
            "/healthz": lambda _accept: _answer(healthy),
            "/readyz": lambda _accept: _answer(ready),
        }
        try:
            self._server = _Server(listen, pages)
        except OSError as error:
            raise UsageError(f"cannot listen on {listen[0]}:{listen[1]}: {error.strerror or error}") from error
        self.port: int = self._server.server_address[1]

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="telemetry", daemon=True).start()
        return self

    def __exit__(self, _type: type[BaseException] | None, _value: BaseException | None, _trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, listen: tuple[str, int], pages: Mapping[str, Callable[[str], tuple[int, bytes, str]]]) -> None:
        host, port = listen
        self._everywhere = not host and socket.has_dualstack_ipv6()
        if ":" in host or self._everywhere:
            self.address_family = socket.AF_INET6
        self.pages = pages
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        if self._everywhere:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002 - the base class calls it so
        logger.debug("request not answered", extra={"client": str(client_address), "error": repr(sys.exception())})


class _Handler(BaseHTTPRequestHandler):
    timeout = _CLIENT_SECONDS
    server_version = "vpa-ippr"
    sys_version = ""
    server: _Server

    def do_GET(self) -> None:
        page = self.server.pages.get(self.path.partition("?")[0])
        status, body, content_type = page(self.headers.get("Accept", "")) if page else (404, b"not found\n", "text/plain")
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: a probe each few seconds is no news."""


def _answer(probes: Mapping[str, Probe]) -> tuple[int, bytes, str]:
    wrong = {name: trouble for name, probe in probes.items() if (trouble := _ask(name, probe)) is not None}
    text = "".join(f"{name}: {trouble}\n" for name, trouble in wrong.items()) or "ok\n"
    return 503 if wrong else 200, text.encode(), "text/plain; charset=utf-8"


def _ask(name: str, probe: Probe) -> str | None:
    try:
        return probe()
    except Exception as error:
        logger.exception("probe failed", extra={"probe": name})
        return f"{type(error).__name__}: {error}"
