"""Options that several commands share, and the objects that they describe."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from vpa_ippr.api.clock import Clock, SystemClock
from vpa_ippr.api.errors import QuantityError, UsageError, ValidationError
from vpa_ippr.api.timestamps import parse_time

if TYPE_CHECKING:
    from vpa_ippr.api.series import Finding
    from vpa_ippr.forecast.catalogue import Profile
    from vpa_ippr.metrics.prometheus import PrometheusSource
    from vpa_ippr.metrics.rollouts import PrometheusSignals
    from vpa_ippr.metrics.settings import PrometheusSettings

Command = TypeVar("Command", bound=Callable[..., Any])

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_FILE = click.Path(path_type=Path)


class Duration(click.ParamType[float]):
    """A time span: ``90``, ``90s``, ``15m``, ``36h``, ``8d`` or ``2w``, in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds, above 0."""
        if isinstance(value, float):
            return value
        number, unit = (value[:-1], value[-1]) if value[-1:] in _UNITS else (value, "s")
        try:
            seconds = float(number) * _UNITS[unit]
        except ValueError:
            seconds = 0.0
        if not 0 < seconds < float("inf"):
            self.fail(f"{value!r} is not a duration above 0 such as 30s, 15m, 36h or 8d", param, ctx)
        return seconds


class Moment(click.ParamType[float]):
    """An RFC 3339 time, or seconds since 1970."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds since the epoch."""
        if isinstance(value, float):
            return value
        try:
            return float(value) if value.replace(".", "", 1).isdigit() else parse_time(value)
        except ValidationError as error:
            self.fail(str(error), param, ctx)


class Amount(click.ParamType[int]):
    """A Kubernetes quantity above 0 of a resource, in millicores or bytes."""

    name = "quantity"

    def __init__(self, resource: str) -> None:
        self._resource = resource

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Whole millicores or bytes."""
        from vpa_ippr.api.quantity import parse_bytes, parse_millicores

        if isinstance(value, int):
            return value
        try:
            amount = parse_millicores(value) if self._resource == "cpu" else parse_bytes(value)
        except QuantityError as error:
            self.fail(str(error), param, ctx)
        if not amount:
            self.fail(f"{value!r} is not above 0", param, ctx)
        return amount


class Address(click.ParamType[tuple[str, int]]):
    """``HOST:PORT`` to listen on; ``:PORT`` for all addresses, ``[::1]:PORT`` for IPv6."""

    name = "host:port"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        """Host (maybe empty) and port."""
        if isinstance(value, tuple):
            return value
        host, separator, port = value.rpartition(":")
        bare = host.removeprefix("[").removesuffix("]")
        if not separator or not port.isdecimal() or not int(port) < 65_536 or (":" in host and host != f"[{bare}]"):
            self.fail(f"{value!r} is not HOST:PORT such as 127.0.0.1:8080, :8080 or [::1]:8080", param, ctx)
        return bare, int(port)


DURATION = Duration()
MOMENT = Moment()
ADDRESS = Address()
CPU = Amount("cpu")
MEMORY = Amount("memory")


@dataclass(frozen=True, slots=True)
class PrometheusOptions:
    """What the command line says of Prometheus; ``url`` is None when it names none."""

    url: str | None
    headers: tuple[str, ...]
    token_file: Path | None
    username: str | None
    password_file: Path | None
    ca_file: Path | None
    client_cert: Path | None
    client_key: Path | None
    insecure: bool
    matchers: tuple[str, ...]
    timeout: float
    retries: int
    scrape_interval: float | None

    def open(self, clock: Clock) -> PrometheusSource:
        """The source; UsageError when a setting is wrong or none was named."""
        from vpa_ippr.metrics.prometheus import PrometheusSource

        if self.url is None:
            raise UsageError("no Prometheus named: give --prometheus-url URL")
        return PrometheusSource(self._settings(self.url), clock)

    @contextlib.contextmanager
    def open_signals(self, clock: Clock) -> Iterator[PrometheusSignals | None]:
        """What watches rollouts, for as long as the block lasts; None when no Prometheus was named."""
        from vpa_ippr.metrics.rollouts import PrometheusSignals

        if self.url is None:
            yield None
            return
        with PrometheusSignals(self._settings(self.url), clock) as signals:
            yield signals

    def _settings(self, url: str) -> PrometheusSettings:
        from vpa_ippr.metrics.settings import PrometheusSettings

        return PrometheusSettings(
            url=url,
            headers=dict(_header(text) for text in self.headers),
            bearer_token_file=self.token_file,
            username=self.username,
            password=_read_secret(self.password_file) if self.password_file else None,
            ca_file=self.ca_file,
            client_cert_file=self.client_cert,
            client_key_file=self.client_key,
            verify_tls=not self.insecure,
            extra_matchers=self.matchers,
            timeout_seconds=self.timeout,
            max_retries=self.retries,
            scrape_interval_seconds=self.scrape_interval,
        )


_PROMETHEUS = (
    click.option("--prometheus-url", "prometheus_url", envvar="PROMETHEUS_URL", help="Base address of Prometheus or what speaks its API."),
    click.option("--prometheus-header", "headers", multiple=True, metavar="NAME:VALUE", help="Sent with every query; may be repeated."),
    click.option("--prometheus-token-file", "token_file", type=_FILE, help="File with a bearer token, read for each query."),
    click.option("--prometheus-username", "username", envvar="PROMETHEUS_USERNAME", help="User for basic authentication."),
    click.option("--prometheus-password-file", "password_file", type=_FILE, help="File with the password for that user."),
    click.option("--prometheus-ca-file", "ca_file", type=_FILE, help="Certificates to trust instead of the system's."),
    click.option("--prometheus-client-cert", "client_cert", type=_FILE, help="Client certificate (PEM) for mTLS."),
    click.option("--prometheus-client-key", "client_key", type=_FILE, help="Key of the client certificate."),
    click.option("--prometheus-insecure", "insecure", is_flag=True, help="Do not verify Prometheus' certificate."),
    click.option("--matcher", "matchers", multiple=True, help="PromQL matcher put on every selector; may be repeated."),
    click.option("--query-timeout", "timeout", type=DURATION, default=60.0, show_default="60s", help="How long one query may take."),
    click.option("--query-retries", "retries", type=click.IntRange(0), default=4, show_default=True, help="For failures that may pass."),
    click.option("--scrape-interval", "scrape_interval", type=DURATION, help="Found from the data when not given."),
)
_HISTORY = (
    click.option("--history", type=DURATION, default=8 * 86_400.0, show_default="8d", help="How far back to look."),
    click.option("--step", type=DURATION, default=60.0, show_default="1m", help="Distance of the samples asked for."),
)
_PROFILE = (
    click.option("--profile", default="balanced", show_default=True, help="Name of a profile in the catalogue."),
    click.option("--models", type=_FILE, help="Directory of profiles; default: those that come with the program."),
)
_CLUSTER = (
    click.option("--kubeconfig", help="kubeconfig file; default: $KUBECONFIG, ~/.kube/config, then the pod's ServiceAccount."),
    click.option("--context", help="Context of the kubeconfig."),
)
_PERIOD = (
    click.option("--interval", type=DURATION, default=60.0, show_default="1m", help="Time between two cycles."),
    click.option("--jitter", type=DURATION, help="Put off each cycle by a random time of up to this; default: none."),
)
_LISTEN = (click.option("--listen", type=ADDRESS, help="Serve /metrics, /healthz and /readyz here; default: nowhere."),)
_CLOCK = (click.option("--clock-url", envvar="VPA_IPPR_CLOCK_URL", help="Follow a simulation's clock instead of the machine's."),)


def _with(options: Sequence[Callable[[Command], Command]]) -> Callable[[Command], Command]:
    return lambda command: functools.reduce(lambda wrapped, option: option(wrapped), reversed(options), command)


history_options = _with(_HISTORY)
profile_options = _with(_PROFILE)
cluster_options = _with(_CLUSTER)
clock_options = _with(_CLOCK)
period_options = _with(_PERIOD)
listen_options = _with(_LISTEN)


@dataclass(frozen=True, slots=True)
class LeaderOptions:
    """What the command line says of leader election; ``namespace`` is None when it names none."""

    wanted: bool
    namespace: str | None
    name: str


def leader_options(component: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Add the options for leader election; the command gets them as one argument, ``election``."""

    def add(command: Callable[..., int]) -> Callable[..., int]:
        @functools.wraps(command)
        def with_one_argument(leader_elect: bool, leader_elect_namespace: str | None, leader_elect_name: str, **arguments: Any) -> int:
            return command(election=LeaderOptions(leader_elect, leader_elect_namespace, leader_elect_name), **arguments)

        added = (
            click.option(
                "--leader-elect/--no-leader-elect", default=False, show_default=True, help="Work only while holding a Lease; others wait."
            ),
            click.option("--leader-elect-namespace", help="Namespace of the Lease; default: that of the pod."),
            click.option("--leader-elect-name", default=f"vpa-ippr-{component}", show_default=True, help="Name of the Lease."),
        )
        return _with(added)(with_one_argument)

    return add


def prometheus_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add the options for Prometheus; the command gets them as one argument, ``prometheus``."""

    @functools.wraps(command)
    def with_one_argument(prometheus_url: str | None, **arguments: Any) -> int:
        names = [name for name in PrometheusOptions.__dataclass_fields__ if name != "url"]
        prometheus = PrometheusOptions(url=prometheus_url, **{name: arguments.pop(name) for name in names})
        return command(prometheus=prometheus, **arguments)

    return _with(_PROMETHEUS)(with_one_argument)


def trace_files(text: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Add ``--traces FILE [FILE...]``, explained by ``text``; the command gets all files as one argument, ``traces``."""

    def add(command: Callable[..., int]) -> Callable[..., int]:
        @functools.wraps(command)
        def with_one_argument(traces: tuple[Path, ...], more: tuple[Path, ...], **arguments: Any) -> int:
            if more and not traces:
                raise UsageError(f"unexpected argument {str(more[0])!r}: trace files are given with --traces")
            return command(traces=(*traces, *more), **arguments)

        added = (
            click.option("--traces", type=_FILE, multiple=True, metavar="FILE...", help=text),
            click.argument("more", type=_FILE, nargs=-1, metavar="[FILE]..."),
        )
        return _with(added)(with_one_argument)

    return add


def trace_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add ``--traces`` in the place of Prometheus, and ``--as-of``."""
    as_of = click.option("--as-of", type=MOMENT, help="RFC 3339 or seconds since 1970; default: now, or the end of the traces.")
    return trace_files("Trace files (Parquet or CSV) instead of Prometheus.")(as_of(command))


def check_one_source(prometheus: PrometheusOptions, traces: Sequence[Path]) -> None:
    """Prometheus or trace files; files win over an address that only the environment names.

    Raises:
        UsageError: neither is given, or both are on the command line.
    """
    if not traces and prometheus.url is None:
        raise UsageError("give a source of usage: --prometheus-url URL or --traces FILE...")
    given = click.get_current_context().get_parameter_source("prometheus_url")
    if traces and given is click.core.ParameterSource.COMMANDLINE:
        raise UsageError("give one source of usage, not both: --prometheus-url URL or --traces FILE...")


def tell(faults: Iterable[Finding]) -> None:
    """Say on stderr what could not be read, one line each: whoever pipes the output away must see it, too."""
    for fault in faults:
        click.echo(f"vpa-ippr: {fault.message}", err=True)


def load_profile(name: str, models: Path | None) -> Profile:
    """The profile of that name; UsageError with the known names when there is none."""
    from vpa_ippr.forecast.catalogue import choose, load_catalogue

    return choose(load_catalogue(models), name)


def make_clock(clock_url: str | None, name: str) -> Clock:
    """The machine's clock, or the simulation's under this component's name."""
    if clock_url is None:
        return SystemClock()
    from vpa_ippr.cluster.remote_clock import RemoteClock

    return RemoteClock(clock_url, name)


def _header(text: str) -> tuple[str, str]:
    name, separator, value = text.partition(":")
    if not separator or not name.strip():
        raise UsageError(f"--prometheus-header {name!r}: expected NAME:VALUE")
    return name.strip(), value.strip()


def _read_secret(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}") from error
