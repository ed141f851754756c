"""The updater's metrics: what became of pods, why not, how long a resize took, and how many wait."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable

from vpa_ippr.cluster.telemetry import Telemetry
from vpa_ippr.resize.reasons import KeepReason, NotDueReason, OutcomeCode, RefusalReason, ReliefReason, RevertReason
from vpa_ippr.resize.result import PodOutcome, UpdateResult

# A resize takes seconds; one that waited Deferred may have taken as long as it is waited for, or longer.
_RESIZE_SECONDS = (1.0, 2.0, 5.0, 15.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
_CYCLE_SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
# From what the agent saw to the answer of the API server: of all use while it is shorter than the way to the limit.
_RELIEF_SECONDS = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 180.0)
_OTHER = "Other"
# Those that tell of nothing but an eviction; the others may also say that nothing is due.
_KEPT = frozenset(map(str, KeepReason)) - frozenset(map(str, NotDueReason))
_REFUSALS = (*dict.fromkeys([*map(str, RefusalReason), *map(str, KeepReason)]), _OTHER)
_UNRELIEVED = (*dict.fromkeys([*map(str, ReliefReason), *map(str, RefusalReason), *map(str, NotDueReason)]), _OTHER)
# In these a pod stays until something happens, so what counts is how many there are.
_WAITING = (
    OutcomeCode.DEFERRED,
    OutcomeCode.IN_PROGRESS,
    OutcomeCode.FAILING,
    OutcomeCode.SHRINK_ACTIVE,
    OutcomeCode.REFUSED,
    OutcomeCode.NOT_RELIEVED,
)
_HAPPENED = tuple(
    code for code in OutcomeCode if code not in (*_WAITING, OutcomeCode.NOT_DUE, OutcomeCode.UNSUPPORTED, OutcomeCode.FOREIGN)
)
_NEW_RESIZES = (OutcomeCode.ISSUED, OutcomeCode.SHRINK_PATCHED, OutcomeCode.RELIEVED)


class UpdaterTelemetry:
    """Counts what cycles have done."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._attempts = telemetry.counter("resize_attempts_total", "Resizes asked of the API server, reverts not counted.")
        self._outcomes = telemetry.counter("pod_outcomes_total", "What happened to pods.", outcome=_HAPPENED)
        self._reverts = telemetry.counter("resize_reverts_total", "Resizes taken back.", reason=(*RevertReason, _OTHER))
        self._seconds = telemetry.histogram("resize_seconds", "Seconds from a resize's request to its completion.", _RESIZE_SECONDS)
        self._pods = telemetry.gauge("pods", "Pods by what the last cycle found.", outcome=OutcomeCode)
        self._held = telemetry.gauge("pods_held_back", "Pods of which a change is due and not made, by reason.", reason=_REFUSALS)
        self._disturbed = telemetry.counter("disruptions_total", "Pods restarted or evicted, as charged to disruption budgets.")
        self._budget = telemetry.gauge(
            "disruption_budget", "Pods that the budgets of the workloads that asked would bear besides, as of the last cycle."
        )
        self._reliefs = telemetry.histogram(
            "relief_seconds",
            "Seconds from when a container was seen at its memory limit to the resize that gives it more.",
            _RELIEF_SECONDS,
        )
        self._pressing = telemetry.gauge(
            "containers_not_relieved", "Containers at their memory limit that are not given more, by reason.", reason=_UNRELIEVED
        )
        self._cycles = telemetry.histogram("updater_cycle_seconds", "Seconds that a cycle took.", _CYCLE_SECONDS)
        self._last = telemetry.gauge("updater_last_cycle_timestamp_seconds", "When the last cycle ended, in seconds since the epoch.")

    def timed(self, cycle: Callable[[], UpdateResult], monotonic: Callable[[], float] = time.monotonic) -> UpdateResult:
        """Run a cycle and count what it did."""
        began = monotonic()
        result = cycle()
        self._cycles.observe(monotonic() - began)
        self._last.set(time.time())
        self.count(result.outcomes)
        self._disturbed.inc(result.disturbed)
        self._budget.set(result.may_be_disturbed)
        return result

    def relieved(self, relieve: Callable[[], UpdateResult]) -> UpdateResult:
        """Run a round of reliefs and count what it did."""
        result = relieve()
        self._count_unrelieved(result.outcomes)
        for one in result.outcomes:
            self._count_event(one)
        return result

    def _count_unrelieved(self, outcomes: Iterable[PodOutcome]) -> None:
        found = Counter(_of(one.reason, _UNRELIEVED) for one in outcomes if one.code is OutcomeCode.NOT_RELIEVED)
        for reason in _UNRELIEVED:
            self._pressing.set(found[reason], reason=reason)

    def count(self, outcomes: Iterable[PodOutcome]) -> None:
        """Count the outcomes of one cycle."""
        found = list(outcomes)
        by_code = Counter(one.code for one in found)
        held = Counter(_of(one.reason, _REFUSALS) for one in found if _is_held_back(one))
        for code in OutcomeCode:
            self._pods.set(by_code[code], outcome=code)
        for reason in _REFUSALS:
            self._held.set(held[reason], reason=reason)
        self._count_unrelieved(found)
        for one in found:
            self._count_event(one)

    def _count_event(self, one: PodOutcome) -> None:
        if one.code in _HAPPENED:
            self._outcomes.inc(outcome=one.code)
        if one.code in _NEW_RESIZES:
            self._attempts.inc()
        if one.code is OutcomeCode.REVERTED:
            self._reverts.inc(reason=one.reason if one.reason in tuple(RevertReason) else _OTHER)
        if one.seconds is not None:
            (self._reliefs if one.code is OutcomeCode.RELIEVED else self._seconds).observe(one.seconds)


def _is_held_back(one: PodOutcome) -> bool:
    """A change is due: it was refused, or the pod would have to be evicted for it and is kept."""
    return one.code is OutcomeCode.REFUSED or (one.code is OutcomeCode.NOT_DUE and one.reason in _KEPT)


def _of(reason: str, known: Collection[str]) -> str:
    return reason if reason in known else _OTHER
