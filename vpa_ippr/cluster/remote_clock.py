"""A clock that another process keeps, for components that live in simulated time.

``POST /clock/<name>`` joins in under a name. ``POST /clock/<name>/wait`` with body ``{"until": seconds}`` is answered once that moment
has come, or earlier when time has ended. Both answer ``{"now": seconds}``. Time stands still between a
component's waits, so its work takes no simulated time.
"""

from __future__ import annotations

import threading
from urllib.parse import quote

import msgspec
import urllib3
from urllib3.exceptions import HTTPError

from vpa_ippr.api.errors import ClusterError


class _Now(msgspec.Struct):
    now: float


class RemoteClock:
    """Follows the clock at ``url`` under the name of this component."""

    def __init__(self, url: str, name: str) -> None:
        self._base = f"{url.rstrip('/')}/clock"
        self._name = name
        self._pool = urllib3.PoolManager(num_pools=1, maxsize=2)
        self._stopped = threading.Event()
        self._now = self._ask(f"{self._base}/{quote(name, safe='')}", {})

    def now(self) -> float:
        """The time at the last wait: it does not move in between."""
        return self._now

    def wait_until(self, moment: float) -> bool:
        """Wait for the keeper to reach ``moment``; False when this clock was stopped, or time has ended there.

        Raises:
            ClusterError: the keeper is gone (reason ``ClockLost``).
        """
        if self._stopped.is_set():
            return False
        try:
            self._now = self._ask(f"{self._base}/{quote(self._name, safe='')}/wait", {"until": moment})
        except ClusterError:
            if self._stopped.is_set():
                return False
            raise
        return not self._stopped.is_set() and self._now >= moment

    def stop(self) -> None:
        """Make the next wait return False."""
        self._stopped.set()

    def _ask(self, url: str, body: object) -> float:
        try:
            response = self._pool.request("POST", url, body=msgspec.json.encode(body), retries=False, timeout=None)
            if response.status != 200:
                raise ClusterError(f"clock {url} answered HTTP {response.status}", reason="ClockLost")
            return msgspec.json.decode(response.data, type=_Now).now
        except (HTTPError, msgspec.DecodeError) as error:
            raise ClusterError(f"clock {url} cannot be followed: {error}", reason="ClockLost") from error
