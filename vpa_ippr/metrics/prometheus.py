"""Usage from a Prometheus, or anything that speaks its HTTP API (Thanos, Mimir, VictoriaMetrics).

Namespaces are read side by side, a few at a time; within one, query follows query. A namespace that cannot be read becomes a
failure in the result and the others go on. Every query is evaluated at explicit times on a fixed grid, so that the same window
gives the same answer whenever it is asked for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import Generic, Self, TypeVar

from vpa_ippr.api.clock import Clock
from vpa_ippr.api.errors import SourceError
from vpa_ippr.api.resources import ContainerResources
from vpa_ippr.api.series import ContainerRef, Evidence, EvidenceKind, Finding, PodNodes, QueryCosts, Usage, Window
from vpa_ippr.metrics.asker import QUERY, NamespaceAsker
from vpa_ippr.metrics.current import current_resources
from vpa_ippr.metrics.decode import Row, decode_rows, decode_strings
from vpa_ippr.metrics.grid import check_window
from vpa_ippr.metrics.quality import Reason
from vpa_ippr.metrics.queries import EVIDENCE_METRICS, Scope, container_selector, current_amounts
from vpa_ippr.metrics.reader import NamespaceEvidence, NamespaceNodes, NamespaceReader, NamespaceUsage
from vpa_ippr.metrics.settings import PrometheusSettings
from vpa_ippr.metrics.transport import Meter, Transport, system_jitter

_log = logging.getLogger(__name__)

_NAMESPACE_VALUES = "/api/v1/label/namespace/values"
_LISTING_LOOKBACK_SECONDS = 86_400.0


_Found = TypeVar("_Found", NamespaceUsage, NamespaceEvidence, NamespaceNodes)


@dataclass(frozen=True, slots=True)
class _Outcome(Generic[_Found]):
    """What became of one namespace: what was found, or why nothing was."""

    namespace: str
    meter: Meter
    found: _Found | None = None
    failure: Finding | None = None


class PrometheusSource:
    """A ``UsageSource`` over HTTP. Use it as a context manager, or ``close`` it."""

    def __init__(self, settings: PrometheusSettings, clock: Clock, jitter: Callable[[], float] = system_jitter) -> None:
        self._settings = settings
        self._clock = clock
        self._transport = Transport(settings, clock, jitter)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the connections back."""
        self._transport.close()

    def namespaces(self) -> tuple[str, ...]:
        """The namespaces in which containers have used memory within the last day, sorted.

        Raises:
            SourceError: Prometheus cannot be read.
        """
        now = self._clock.now()
        return self._list(now - _LISTING_LOOKBACK_SECONDS, now, Meter(), now + self._settings.deadline_seconds)

    def fetch(self, window: Window, namespaces: Sequence[str] | None = None) -> Usage:
        """Usage, kills and owners in the window, on the multiples of its step (or of the scrape interval, if that is longer).

        Raises:
            UsageError: the window is empty.
            SourceError: the namespaces cannot be listed, or not one of them can be read.
        """
        outcomes, listing = self._read_all(window, namespaces, NamespaceReader.read)
        failures = _failures(outcomes)
        if failures and len(failures) == len(outcomes):
            raise SourceError(_all_failed(failures), reason=failures[0].reason)
        silent = _silent(outcomes, self._settings.matchers, asked_by_name=namespaces is not None)
        return _assembled(outcomes, failures, silent, listing)

    def fetch_evidence(self, window: Window, namespaces: Sequence[str] | None = None) -> Evidence:
        """What tells use from need, on the same grid as ``fetch``. It is optional: metrics that are not there are one finding.

        Raises:
            UsageError: the window is empty.
            SourceError: the namespaces cannot be listed; one that cannot be read is in ``failures``, even if none can.
        """
        outcomes, listing = self._read_all(window, namespaces, NamespaceReader.read_evidence)
        found = [outcome.found for outcome in outcomes if outcome.found is not None]
        series = tuple(chain.from_iterable(one.series for one in found))
        missing = set(EvidenceKind) - {one.kind for one in series} if found else set()
        return Evidence(series, _no_evidence(missing), _failures(outcomes), _costs(outcomes, listing))

    def fetch_pod_nodes(self, window: Window, namespaces: Sequence[str]) -> PodNodes:
        """The node of every pod that kube-state-metrics saw in the window.

        Raises:
            UsageError: the window is empty.
        """
        outcomes, _ = self._read_all(window, namespaces, NamespaceReader.read_pod_nodes)
        nodes = {pod: node for outcome in outcomes if outcome.found is not None for pod, node in outcome.found.nodes.items()}
        return PodNodes(nodes, _failures(outcomes))

    def resources(self, at: float, namespaces: Sequence[str]) -> Mapping[ContainerRef, ContainerResources]:
        """Requests and limits of every container at a moment; empty where kube-state-metrics is not scraped.

        Raises:
            SourceError: a namespace cannot be read.
        """
        deadline = self._clock.now() + self._settings.deadline_seconds
        found: dict[ContainerRef, ContainerResources] = {}
        for namespace in namespaces:
            scope = Scope(namespace, self._settings.matchers)
            requests, limits = (self._instant(current_amounts(scope, kind), at, deadline) for kind in ("requests", "limits"))
            found |= current_resources(namespace, requests, limits)
        return found

    def _instant(self, query: str, at: float, deadline: float) -> tuple[Row, ...]:
        body = self._transport.post(QUERY, {"query": query, "time": f"{at:.3f}"}, meter=Meter(), deadline=deadline)
        return decode_rows(body, self._transport.where(QUERY)).rows

    def _list(self, start: float, end: float, meter: Meter, deadline: float) -> tuple[str, ...]:
        parameters = {"match[]": container_selector(self._settings.matchers), "start": f"{start:.3f}", "end": f"{end:.3f}"}
        body = self._transport.get(_NAMESPACE_VALUES, parameters, meter=meter, deadline=deadline)
        return tuple(sorted(name for name in decode_strings(body, self._transport.where(_NAMESPACE_VALUES)) if name))

    def _read_all(
        self, window: Window, namespaces: Sequence[str] | None, read: Callable[[NamespaceReader], _Found]
    ) -> tuple[list[_Outcome[_Found]], Meter]:
        """Read these namespaces or all, side by side; also what listing them has cost."""
        check_window(window)
        deadline = self._clock.now() + self._settings.deadline_seconds
        listing = Meter()
        names = self._list(window.start, window.end, listing, deadline) if namespaces is None else tuple(sorted(set(namespaces)))
        with ThreadPoolExecutor(self._settings.concurrency, thread_name_prefix="metrics") as pool:
            return list(pool.map(lambda name: self._read(name, window, deadline, read), names)), listing

    def _read(self, namespace: str, window: Window, deadline: float, read: Callable[[NamespaceReader], _Found]) -> _Outcome[_Found]:
        reader = NamespaceReader(NamespaceAsker(self._transport, self._settings, namespace, window, deadline))
        try:
            return _Outcome(namespace, reader.meter, found=read(reader))
        except SourceError as error:
            return _Outcome(namespace, reader.meter, failure=Finding(error.reason, namespace, 1, f"{namespace}: {error}"))
        except Exception as error:  # noqa: BLE001 - the boundary between namespaces: one must not stop the others
            _log.exception("namespace not read", extra={"namespace": namespace})
            message = f"{namespace}: unexpected {type(error).__name__}: {error}"
            return _Outcome(namespace, reader.meter, failure=Finding(SourceError.reason, namespace, 1, message))


def _failures(outcomes: Sequence[_Outcome[_Found]]) -> tuple[Finding, ...]:
    return tuple(outcome.failure for outcome in outcomes if outcome.failure is not None)


def _no_evidence(missing: Set[EvidenceKind]) -> tuple[Finding, ...]:
    if not missing:
        return ()
    metrics = sorted({metric for kind in missing for metric in EVIDENCE_METRICS[kind]})
    message = f"Prometheus: nothing from {', '.join(metrics)}: recommendations do without"
    return (Finding(Reason.NO_EVIDENCE, "Prometheus", len(missing), message),)


def _all_failed(failures: tuple[Finding, ...]) -> str:
    if len(failures) == 1:
        return failures[0].message
    return f"not one of {len(failures)} namespaces could be read; the first: {failures[0].message}"


def _silent(outcomes: Sequence[_Outcome[NamespaceUsage]], matchers: tuple[str, ...], *, asked_by_name: bool) -> list[Finding]:
    """Findings on what was read and held nothing."""
    if asked_by_name:
        empty = [outcome.namespace for outcome in outcomes if outcome.found is not None and not outcome.found.series]
        return [Finding(Reason.NO_DATA, name, 1, f"{name}: no container usage in the window") for name in empty]
    # Listing goes by the index, which may name a namespace that ended before the window: that one is no news, an empty store is.
    if any(outcome.failure is not None or (outcome.found is not None and outcome.found.series) for outcome in outcomes):
        return []
    message = f"Prometheus: nothing matches {container_selector(matchers)} in the window: check its labels and the matchers"
    return [Finding(Reason.NO_DATA, "Prometheus", 1, message)]


def _assembled(outcomes: Sequence[_Outcome[NamespaceUsage]], failures: tuple[Finding, ...], silent: list[Finding], listing: Meter) -> Usage:
    usages = [outcome.found for outcome in outcomes if outcome.found is not None]
    return Usage(
        series=tuple(chain.from_iterable(usage.series for usage in usages)),
        ooms=tuple(chain.from_iterable(usage.ooms for usage in usages)),
        owners={pod: workload for usage in usages for pod, workload in usage.owners.items()},
        findings=(*chain.from_iterable(usage.findings for usage in usages), *silent),
        failures=failures,
        costs=_costs(outcomes, listing),
    )


def _costs(outcomes: Sequence[_Outcome[_Found]], listing: Meter) -> QueryCosts:
    meters = [listing, *(outcome.meter for outcome in outcomes)]
    return QueryCosts(
        queries=sum(meter.queries for meter in meters),
        samples=sum(outcome.found.samples for outcome in outcomes if outcome.found is not None),
        received_bytes=sum(meter.received_bytes for meter in meters),
        seconds=sum(meter.seconds for meter in meters),
    )
