"""Guards of rollouts, asked of a Prometheus: one instant query each."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Self

from vpa_ippr.api.clock import Clock
from vpa_ippr.metrics.asker import QUERY
from vpa_ippr.metrics.decode import decode_rows
from vpa_ippr.metrics.settings import PrometheusSettings
from vpa_ippr.metrics.transport import Meter, Transport, system_jitter


class PrometheusGuards:
    """Evaluates guards at the present moment. Use it as a context manager, or ``close`` it.

    The text comes from whoever may annotate a VPA: it is sent as it is, and may see what the updater's own access to Prometheus sees.
    """

    def __init__(self, settings: PrometheusSettings, clock: Clock, jitter: Callable[[], float] = system_jitter) -> None:
        self._timeout_seconds = settings.timeout_seconds
        self._clock = clock
        self._transport = Transport(settings, clock, jitter)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the connections back."""
        self._transport.close()

    def evaluate(self, query: str) -> float | None:
        """The largest value of the answer; None when it is empty, or holds nothing but NaN.

        Raises:
            SourceError: Prometheus cannot be read within one query's time, refuses the query, or answers with no vector.
        """
        now = self._clock.now()
        form = {"query": query, "time": f"{now:.3f}"}
        body = self._transport.post(QUERY, form, meter=Meter(), deadline=now + self._timeout_seconds)
        values = [float(row.values[-1]) for row in decode_rows(body, self._transport.where(QUERY)).rows if row.values.size]
        return max((value for value in values if not math.isnan(value)), default=None)
