"""One request to Prometheus and its retries: the only module of the room that touches the network.

The session, its authentication and TLS are those of prometheus-api-client's ``PrometheusConnect``. The requests are our own: that
package's POST leaves the query in the URL, it asks for gzip (which costs more than it saves within a cluster), and retries under
our feet.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import requests
import urllib3
from prometheus_api_client import PrometheusConnect
from requests.auth import AuthBase

from vpa_ippr.api.clock import Clock
from vpa_ippr.api.errors import SourceError
from vpa_ippr.metrics.decode import http_error
from vpa_ippr.metrics.retry import delay_seconds, parse_retry_after
from vpa_ippr.metrics.settings import PrometheusSettings

_log = logging.getLogger(__name__)

# Uniform in 0..1 and safe to call from several threads.
system_jitter = random.SystemRandom().random

UNREACHABLE = "PrometheusUnreachable"
TIMED_OUT = "PrometheusTimeout"
STOPPED = "Stopped"

_CONNECT_SECONDS = 10.0
_PART_BYTES = 1 << 20


@dataclass(slots=True)
class Meter:
    """What one reader has sent and received; not shared between threads."""

    queries: int = 0
    received_bytes: int = 0
    seconds: float = 0.0


class _PassingError(Exception):
    """A failure that may be gone next time, and how long the server wants us to wait."""

    def __init__(self, error: SourceError, retry_after_seconds: float | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.retry_after_seconds = retry_after_seconds


class _Bearer(AuthBase):
    """A bearer token. As an auth object and not as a header, because requests would overwrite the header from ~/.netrc."""

    def __init__(self, settings: PrometheusSettings) -> None:
        self._settings = settings

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        token, path = self._settings.bearer_token, self._settings.bearer_token_file
        if path is not None:
            try:
                token = path.read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise SourceError(f"Prometheus token file {path} cannot be read: {error}", reason="BadCredentials") from error
        request.headers["Authorization"] = f"Bearer {token}"
        return request


class Transport:
    """Sends requests within time limits; safe to use from several threads."""

    def __init__(self, settings: PrometheusSettings, clock: Clock, jitter: Callable[[], float] = system_jitter) -> None:
        self._settings = settings
        self._clock = clock
        self._jitter = jitter
        self._session = requests.Session()
        self._session.cert = _client_certificate(settings)
        self._connect = PrometheusConnect(
            url=settings.base_url,
            headers={**settings.headers, "Accept-Encoding": "identity"},
            auth=_auth(settings),
            session=self._session,
            retry=urllib3.Retry(0, read=False),
        )
        self._verify: bool | str = settings.verify_tls and (str(settings.ca_file) if settings.ca_file else True)
        if not settings.verify_tls:
            # The user has chosen this; a warning at every request tells nothing new.
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)

    def close(self) -> None:
        """Give the connections back."""
        self._connect.close()

    def get(self, path: str, parameters: Mapping[str, str], *, meter: Meter, deadline: float) -> bytes:
        """The body of a GET; raises SourceError as ``post`` does."""
        return self._with_retries("GET", path, parameters, meter, deadline)

    def post(self, path: str, form: Mapping[str, str], *, meter: Meter, deadline: float) -> bytes:
        """The body of a POST of a form, within the query's time limit and the read's ``deadline``.

        Raises:
            SourceError: the server refused, or was not to be had after all retries.
        """
        return self._with_retries("POST", path, form, meter, deadline)

    def where(self, path: str) -> str:
        """How messages name a request."""
        return f"Prometheus {self._settings.base_url}{path}"

    def _with_retries(self, method: str, path: str, form: Mapping[str, str], meter: Meter, deadline: float) -> bytes:
        attempt = 0
        while True:
            started = self._clock.now()
            meter.queries += 1
            try:
                body = self._attempt(method, path, form, min(started + self._settings.timeout_seconds, deadline))
                meter.received_bytes += len(body)
                return body
            except _PassingError as failure:
                self._wait_for_next(failure, attempt, path, deadline)
                attempt += 1
            finally:
                meter.seconds += self._clock.now() - started

    def _wait_for_next(self, failure: _PassingError, attempt: int, path: str, deadline: float) -> None:
        """Sleep before the next attempt, or raise the failure when there is none."""
        delay = delay_seconds(attempt, self._jitter(), failure.retry_after_seconds)
        resume = self._clock.now() + delay
        if attempt >= self._settings.max_retries:
            raise _given_up(failure.error, f"given up after {attempt + 1} attempts") from failure
        if resume >= deadline:
            raise _given_up(failure.error, f"given up after {attempt + 1} attempts: no time left") from failure
        _log.warning(
            "query failed, trying again", extra={"path": path, "attempt": attempt + 1, "delay_seconds": delay, "error": str(failure.error)}
        )
        if not self._clock.wait_until(resume):
            raise SourceError(f"{self.where(path)}: stopped while waiting to try again", reason=STOPPED) from failure

    def _attempt(self, method: str, path: str, form: Mapping[str, str], until: float) -> bytes:
        where = self.where(path)
        left = until - self._clock.now()
        if left <= 0:
            raise SourceError(f"{where}: no time left for this read", reason=TIMED_OUT)
        form = {**form, "timeout": f"{max(1, round(left))}s"} if method == "POST" else form
        try:
            with self._session.request(
                method,
                f"{self._connect.url}{path}",
                params=form if method == "GET" else None,
                data=form if method == "POST" else None,
                headers=self._connect.headers,
                auth=self._connect.auth,
                verify=self._verify,
                timeout=(min(_CONNECT_SECONDS, left), left),
                # A redirected POST loses its form, and a redirect to a login page would be read as an answer.
                allow_redirects=False,
                stream=True,
            ) as response:
                return self._checked(response, self._read(response, until, where), where)
        except requests.exceptions.SSLError as error:
            failure = SourceError(f"{where}: TLS failed: {_root_cause(error)} (are CA and client certificate right?)", reason=UNREACHABLE)
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                raise failure from error
            raise _PassingError(failure) from error  # a handshake that breaks off may meet a server that restarts
        except (requests.exceptions.Timeout, urllib3.exceptions.TimeoutError) as error:
            raise _PassingError(_timeout(where, left)) from error
        except (requests.exceptions.RequestException, urllib3.exceptions.HTTPError) as error:
            raise _PassingError(SourceError(f"{where}: no connection: {_root_cause(error)}", reason=UNREACHABLE)) from error

    def _read(self, response: requests.Response, until: float, where: str) -> bytes:
        """The whole body. Read as it arrives, so that a server that drips bytes does not outlast the time limit."""
        body = bytearray()
        while part := response.raw.read1(_PART_BYTES, decode_content=True):
            body += part
            if self._clock.now() > until:
                raise _PassingError(_timeout(where, self._settings.timeout_seconds))
        return bytes(body)

    def _checked(self, response: requests.Response, body: bytes, where: str) -> bytes:
        status = response.status_code
        if status == 200:
            return body
        if 300 <= status < 400:
            target = response.headers.get("Location", "nowhere")
            raise SourceError(f"{where}: redirects to {target}: give the URL of Prometheus itself", reason="PrometheusRefused")
        error = http_error(status, body, where)
        if status == 429 or status >= 500:
            raise _PassingError(error, parse_retry_after(response.headers.get("Retry-After"), self._clock.now()))
        raise error


def _auth(settings: PrometheusSettings) -> AuthBase | tuple[str, str] | None:
    if settings.username is not None:
        return (settings.username, settings.password or "")
    if settings.bearer_token is not None or settings.bearer_token_file is not None:
        return _Bearer(settings)
    return None


def _client_certificate(settings: PrometheusSettings) -> str | tuple[str, str] | None:
    if settings.client_cert_file is None:
        return None
    if settings.client_key_file is None:
        return str(settings.client_cert_file)
    return (str(settings.client_cert_file), str(settings.client_key_file))


def _timeout(where: str, seconds: float) -> SourceError:
    return SourceError(f"{where}: no answer within {round(seconds, 1):g} s", reason=TIMED_OUT)


def _given_up(error: SourceError, why: str) -> SourceError:
    return SourceError(f"{error} ({why})", reason=error.reason)


def _root_cause(error: BaseException) -> str:
    """The innermost error that requests and urllib3 have wrapped, without the object addresses they print."""
    while True:
        inner = getattr(error, "reason", None) or next((arg for arg in error.args if isinstance(arg, BaseException)), None)
        if not isinstance(inner, BaseException):
            break
        error = inner
    text = str(error)
    return text.split(": ", 1)[1] if "object at 0x" in text and ": " in text else text
