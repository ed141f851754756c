"""The updater's metrics: what became of pods, why not, how long a resize took, and how many wait."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable

from vpa_ippr.cluster.telemetry import Telemetry
from vpa_ippr.resize.reasons import KeepReason, NotDueReason, OutcomeCode, RefusalReason, RevertReason
from vpa_ippr.resize.result import PodOutcome, UpdateResult

# A resize takes seconds; one that waited Deferred may have taken as long as it is waited for, or longer.
_RESIZE_SECONDS = (1.0, 2.0, 5.0, 15.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
_CYCLE_SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_OTHER = "Other"
# Those that tell of nothing but an eviction; the others may also say that nothing is due.
_KEPT = frozenset(map(str, KeepReason)) - frozenset(map(str, NotDueReason))
_REFUSALS = (*dict.fromkeys([*map(str, RefusalReason), *map(str, KeepReason)]), _OTHER)
# In these a pod stays until something happens, so what counts is how many there are.
_WAITING = (OutcomeCode.DEFERRED, OutcomeCode.IN_PROGRESS, OutcomeCode.FAILING, OutcomeCode.SHRINK_ACTIVE, OutcomeCode.REFUSED)
_HAPPENED = tuple(
    code for code in OutcomeCode if code not in (*_WAITING, OutcomeCode.NOT_DUE, OutcomeCode.UNSUPPORTED, OutcomeCode.FOREIGN)
)
_NEW_RESIZES = (OutcomeCode.ISSUED, OutcomeCode.SHRINK_PATCHED)


class UpdaterTelemetry:
    """Counts what cycles have done."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._attempts = telemetry.counter("resize_attempts_total", "Resizes asked of the API server, reverts not counted.")
        self._outcomes = telemetry.counter("pod_outcomes_total", "What happened to pods.", outcome=_HAPPENED)
        self._reverts = telemetry.counter("resize_reverts_total", "Resizes taken back.", reason=(*RevertReason, _OTHER))
        self._seconds = telemetry.histogram("resize_seconds", "Seconds from a resize's request to its completion.", _RESIZE_SECONDS)
        self._pods = telemetry.gauge("pods", "Pods by what the last cycle found.", outcome=OutcomeCode)
        self._held = telemetry.gauge("pods_held_back", "Pods of which a change is due and not made, by reason.", reason=_REFUSALS)
        self._cycles = telemetry.histogram("updater_cycle_seconds", "Seconds that a cycle took.", _CYCLE_SECONDS)
        self._last = telemetry.gauge("updater_last_cycle_timestamp_seconds", "When the last cycle ended, in seconds since the epoch.")

    def timed(self, cycle: Callable[[], UpdateResult], monotonic: Callable[[], float] = time.monotonic) -> UpdateResult:
        """Run a cycle and count what it did."""
        began = monotonic()
        result = cycle()
        self._cycles.observe(monotonic() - began)
        self._last.set(time.time())
        self.count(result.outcomes)
        return result

    def count(self, outcomes: Iterable[PodOutcome]) -> None:
        """Count the outcomes of one cycle."""
        found = list(outcomes)
        by_code, held = Counter(one.code for one in found), Counter(_refusal(one) for one in found if _is_held_back(one))
        for code in OutcomeCode:
            self._pods.set(by_code[code], outcome=code)
        for reason in _REFUSALS:
            self._held.set(held[reason], reason=reason)
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
            self._seconds.observe(one.seconds)


def _is_held_back(one: PodOutcome) -> bool:
    """A change is due: it was refused, or the pod would have to be evicted for it and is kept."""
    return one.code is OutcomeCode.REFUSED or (one.code is OutcomeCode.NOT_DUE and one.reason in _KEPT)


def _refusal(one: PodOutcome) -> str:
    return one.reason if one.reason in _REFUSALS else _OTHER
