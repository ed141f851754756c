"""Looking after the pods that were resized lately: has harm come to them, by what their objects, Prometheus and the user's guard tell?"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from vpa_ippr.api.errors import SourceError, VpaIpprError
from vpa_ippr.api.meta import ObjectKey
from vpa_ippr.api.names import ANNOTATION_ROLLOUT, ANNOTATION_ROLLOUT_GUARD
from vpa_ippr.api.pod import Pod
from vpa_ippr.api.signals import Signals
from vpa_ippr.api.vpa import Vpa
from vpa_ippr.resize.arranging import Watch
from vpa_ippr.resize.guard import GuardAnswer, ask_guard
from vpa_ippr.resize.harm import Harm, HarmEvidence, harm_of
from vpa_ippr.resize.ledger import Record
from vpa_ippr.resize.ports import GuardSource, SignalSource
from vpa_ippr.resize.rollout import watched
from vpa_ippr.resize.rollout_state import Rollout, read_rollout
from vpa_ippr.resize.settings import Settings
from vpa_ippr.resize.world import World

logger = logging.getLogger(__name__)

T = TypeVar("T")


_PATIENCE: Final = 3
"""So many times in one cycle Prometheus may fail to answer; each time may cost a query's whole time, and there may be thousands to ask."""


class _Patient:
    """Sources that are asked no more in a cycle once they have failed to answer a few times in a row."""

    def __init__(self, guards: GuardSource | None, signals: SignalSource | None) -> None:
        self._guards = guards
        self._signals = signals
        self._failures = 0

    def evaluate(self, query: str) -> float | None:
        assert self._guards is not None  # asked only where there is one
        return self._ask(partial(self._guards.evaluate, query))

    def signals(self, pod: ObjectKey, at: float, window_seconds: float) -> Mapping[str, Signals]:
        assert self._signals is not None  # asked only where there is one
        return self._ask(partial(self._signals.signals, pod, at, window_seconds))

    def _ask(self, ask: Callable[[], T]) -> T:
        if self._failures >= _PATIENCE:
            raise SourceError(f"not asked: {self._failures} queries in a row have failed in this cycle", reason="NotAsked")
        try:
            answer = ask()
        except SourceError:
            self._failures += 1
            raise
        self._failures = 0
        return answer


class Watcher:
    """Asks what there is to ask. Without sources the pods' own objects have to do, and a rollout with a guard waits."""

    def __init__(self, guards: GuardSource | None, signals: SignalSource | None, settings: Settings) -> None:
        self._guards = guards
        self._signals = signals
        self._settings = settings

    def watch(self, world: World, now: float) -> Watch:
        """Harm, and guards that cannot be asked, by VPA; one that cannot be read stops no other."""
        patient = _Patient(self._guards, self._signals)
        harms: dict[ObjectKey, list[Harm]] = {}
        problems: dict[ObjectKey, str] = {}
        for vpa in world.vpas:
            if not {ANNOTATION_ROLLOUT, ANNOTATION_ROLLOUT_GUARD} & vpa.metadata.annotations.keys():
                continue
            pods, rollout = world.groups.get(vpa.key, ()), read_rollout(vpa)
            answer = ask_guard(patient if self._guards else None, vpa, _canary(pods, rollout))
            if answer.problem:
                problems[vpa.key] = answer.problem
            harms[vpa.key] = self._harms(vpa, pods, rollout, answer, patient, now)
        return Watch(harms, problems)

    def _harms(self, vpa: Vpa, pods: Sequence[Pod], rollout: Rollout, answer: GuardAnswer, patient: _Patient, now: float) -> list[Harm]:
        found: list[Harm] = []
        for pod in pods:
            try:
                record = watched(pod, rollout, now, self._settings)
                if record is not None:
                    harm = harm_of(pod, record, self._evidence(pod, record, rollout, answer, patient, now), now, self._settings)
                    found += [harm] if harm is not None else []
            except VpaIpprError as error:
                logger.warning("pod not watched", extra={"pod": str(pod.key), "vpa": str(vpa.key), "error": str(error)})
            except Exception:  # the boundary between pods: one must not stop the others
                logger.exception("pod not watched", extra={"pod": str(pod.key), "vpa": str(vpa.key)})
        return found

    def _evidence(self, pod: Pod, record: Record, rollout: Rollout, answer: GuardAnswer, patient: _Patient, now: float) -> HarmEvidence:
        is_canary = rollout.canary is not None and rollout.canary.uid == pod.metadata.uid
        guard = answer.value if is_canary else None
        elapsed = now - record.rolled_at
        if self._signals is None or elapsed < self._settings.signal_seconds:
            return HarmEvidence(guard=guard)
        window = min(elapsed, self._settings.soak_seconds)
        try:
            since = patient.signals(pod.key, now, window)
            before = patient.signals(pod.key, record.rolled_at, window) if any(map(_is_bad, since.values())) else {}
        except SourceError as error:
            logger.warning("signals not read", extra={"pod": str(pod.key), "error": str(error)})
            return HarmEvidence(guard=guard)
        return HarmEvidence(before, since, guard)


def _is_bad(signals: Signals) -> bool:
    """Only then it matters what it was before."""
    return any((signals.cpu_throttled, signals.cpu_pressure, signals.memory_pressure))


def _canary(pods: Sequence[Pod], rollout: Rollout) -> Pod | None:
    canary = rollout.canary
    return next((pod for pod in pods if canary is not None and pod.metadata.uid == canary.uid), None)
