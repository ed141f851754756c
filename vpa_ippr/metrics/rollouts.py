"""What a rollout wants to know of a Prometheus: the users' guards, and what the pods go through; instant queries all."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Self

from vpa_ippr.api.clock import Clock
from vpa_ippr.api.signals import Signals
from vpa_ippr.metrics.asker import QUERY
from vpa_ippr.metrics.decode import Row, decode_rows
from vpa_ippr.metrics.settings import PrometheusSettings
from vpa_ippr.metrics.signals import read_signals
from vpa_ippr.metrics.transport import Meter, Transport, system_jitter


class PrometheusSignals:
    """Evaluates guards at the present moment, and signals at any. Use it as a context manager, or ``close`` it.

    The text comes from whoever may annotate a VPA: it is sent as it is, and may see what the updater's own access to Prometheus sees.
    """

    def __init__(self, settings: PrometheusSettings, clock: Clock, jitter: Callable[[], float] = system_jitter) -> None:
        self._timeout_seconds = settings.timeout_seconds
        self._clock = clock
        self._matchers = tuple(settings.extra_matchers)
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
        values = [float(row.values[-1]) for row in self._ask(query, self._clock.now()) if row.values.size]
        return max((value for value in values if not math.isnan(value)), default=None)

    def signals(self, namespace: str, pods: Sequence[str], at: float, window_seconds: float) -> dict[str, dict[str, Signals]]:
        """What the containers of the pods went through in the ``window_seconds`` before ``at``; what is not measured is not there.

        Raises:
            SourceError: Prometheus cannot be read within one query's time, refuses a query, or answers with no vector.
        """
        return read_signals(self._by_container, namespace, pods, at, window_seconds, self._matchers)

    def _by_container(self, query: str, at: float) -> dict[tuple[str, str], float]:
        rows = [row for row in self._ask(query, at) if row.values.size]
        return {(row.labels.get("pod", ""), row.labels.get("container", "")): float(row.values[-1]) for row in rows}

    def _ask(self, query: str, at: float) -> Sequence[Row]:
        form = {"query": query, "time": f"{at:.3f}"}
        body = self._transport.post(QUERY, form, meter=Meter(), deadline=self._clock.now() + self._timeout_seconds)
        return decode_rows(body, self._transport.where(QUERY)).rows
