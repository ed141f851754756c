"""How to reach a Prometheus, and how hard it may be pressed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from vpa_ippr.api.errors import UsageError
from vpa_ippr.metrics.grid import MAX_POINTS
from vpa_ippr.metrics.queries import check_matcher, quote


@dataclass(frozen=True, slots=True, kw_only=True)
class PrometheusSettings:
    """Settings of one Prometheus-compatible server; secrets never show in ``repr``.

    Raises:
        UsageError: a setting is wrong, or two contradict each other.
    """

    url: str
    """Base address, the part before ``/api/v1``; a path prefix is kept."""

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Sent with every request, a tenant's ``X-Scope-OrgID`` for one."""

    bearer_token: str | None = field(default=None, repr=False)
    bearer_token_file: Path | None = None
    """Read anew for every request, because projected service-account tokens are replaced every hour."""

    username: str | None = None
    password: str | None = field(default=None, repr=False)

    ca_file: Path | None = None
    """Certificates to trust in place of the system's."""

    client_cert_file: Path | None = None
    client_key_file: Path | None = None
    """None: the key is in the certificate's file."""

    verify_tls: bool = True

    extra_matchers: tuple[str, ...] = ()
    """Put on every selector, those of kube-state-metrics too, such as ``prometheus_replica="a"``."""

    cluster_label: str = "cluster"
    cluster: str | None = None
    """Value of the cluster label, where one store holds several clusters; None: the label is not asked for."""

    timeout_seconds: float = 60.0
    """For one query, told to the server as well; its own default is 120."""

    deadline_seconds: float = 900.0
    """For one read with all its queries and retries."""

    max_retries: int = 4
    """After the first attempt, for failures that may pass: no connection, a broken one, 429 and 5xx."""

    scrape_interval_seconds: float | None = None
    """None: found from the data, at the price of one small query a namespace."""

    max_points: int = MAX_POINTS
    """Of one series in one query."""

    max_samples: int = 2_000_000
    """Of all series in one query: about 55 MB of JSON."""

    concurrency: int = 4
    """Namespaces read at the same time; more has taken small servers down (reports of other tools)."""

    def __post_init__(self) -> None:
        """Refuse what cannot work, before the first request."""
        _check_url(self.url)
        if sum(given is not None for given in (self.bearer_token, self.bearer_token_file, self.username)) > 1:
            raise UsageError("Prometheus credentials: give one of bearer token, token file and user name")
        if (self.username is None) != (self.password is None):
            raise UsageError("Prometheus credentials: user name and password go together")
        if self.client_key_file is not None and self.client_cert_file is None:
            raise UsageError("Prometheus TLS: a client key needs its certificate")
        for what, path in (("CA", self.ca_file), ("client certificate", self.client_cert_file), ("client key", self.client_key_file)):
            if path is not None and not path.is_file():
                raise UsageError(f"Prometheus TLS: {what} file {path} does not exist")
        for matcher in self.matchers:
            check_matcher(matcher)
        self._check_amounts()

    def _check_amounts(self) -> None:
        for name in ("timeout_seconds", "deadline_seconds", "max_points", "max_samples", "concurrency"):
            if not getattr(self, name) > 0:
                raise UsageError(f"Prometheus {name} must be above 0, not {getattr(self, name)}")
        if self.max_points > MAX_POINTS:
            raise UsageError(f"Prometheus max_points may be {MAX_POINTS} at most, not {self.max_points}: servers refuse more than 11,000")
        if self.max_retries < 0:
            raise UsageError(f"Prometheus max_retries must be 0 or more, not {self.max_retries}")
        if self.scrape_interval_seconds is not None and not self.scrape_interval_seconds > 0:
            raise UsageError(f"Prometheus scrape_interval_seconds must be above 0, not {self.scrape_interval_seconds}")

    @property
    def matchers(self) -> tuple[str, ...]:
        """Every matcher that goes on every selector."""
        cluster = () if self.cluster is None else (f"{self.cluster_label}={quote(self.cluster)}",)
        return (*cluster, *self.extra_matchers)

    @property
    def base_url(self) -> str:
        """The address without a trailing slash, which would double the one of ``/api``."""
        return self.url.rstrip("/")


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise UsageError(f"Prometheus URL {url!r}: expected http:// or https:// and a host, such as http://prometheus:9090")
    if "@" in parts.netloc:
        raise UsageError("Prometheus URL: give user name and password as settings, not in the URL where logs would show them")
    if parts.query or parts.fragment:
        raise UsageError(f"Prometheus URL {url!r}: no query or fragment; label filters are given as matchers")
