"""Looking after the pods that were resized lately: has harm come to them, by what their objects, Prometheus and the user's guard tell?"""

from __future__ import annotations

import logging
from collections import defaultdict
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
_AT_ONCE: Final = 200
"""Pods that one query is about: some 20 KiB of their names."""


class _Patient:
    """Sources that are asked no more in a cycle once they have failed to answer a few times in a row."""

    def __init__(self, guards: GuardSource | None, signals: SignalSource | None) -> None:
        self._guards = guards
        self._signals = signals
        self._failures = 0

    def evaluate(self, query: str) -> float | None:
        assert self._guards is not None  # asked only where there is one
        return self._ask(partial(self._guards.evaluate, query))

    def signals(self, namespace: str, pods: Sequence[str], at: float, window_seconds: float) -> Mapping[str, Mapping[str, Signals]]:
        assert self._signals is not None  # asked only where there is one
        return self._ask(partial(self._signals.signals, namespace, pods, at, window_seconds))

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
        def guarded(pod: Pod, look: Callable[[], T | None]) -> T | None:
            try:
                return look()
            except VpaIpprError as error:
                logger.warning("pod not watched", extra={"pod": str(pod.key), "vpa": str(vpa.key), "error": str(error)})
            except Exception:  # the boundary between pods: one must not stop the others
                logger.exception("pod not watched", extra={"pod": str(pod.key), "vpa": str(vpa.key)})
            return None

        records = [(pod, guarded(pod, partial(watched, pod, rollout, now, self._settings))) for pod in pods]
        known = [(pod, record) for pod, record in records if record is not None]
        signals = self._signals_since(vpa, known, patient, now)
        found: list[Harm] = []
        for pod, record in known:
            is_canary = rollout.canary is not None and rollout.canary.uid == pod.metadata.uid
            evidence = HarmEvidence(*signals.get(pod.metadata.uid, ({}, {})), answer.value if is_canary else None)
            harm = guarded(pod, partial(harm_of, pod, record, evidence, now, self._settings))
            found += [harm] if harm is not None else []
        return found

    def _signals_since(
        self, vpa: Vpa, known: Sequence[tuple[Pod, Record]], patient: _Patient, now: float
    ) -> dict[str, tuple[Mapping[str, Signals], Mapping[str, Signals]]]:
        """By UID of the pods that were resized long enough ago: what their containers went through before, where it matters, and since."""
        if self._signals is None:
            return {}
        by_window: dict[float, list[tuple[Pod, Record]]] = defaultdict(list)
        for pod, record in known:
            if now - record.rolled_at >= self._settings.signal_seconds:
                by_window[self._window(now - record.rolled_at)].append((pod, record))
        found: dict[str, tuple[Mapping[str, Signals], Mapping[str, Signals]]] = {}
        for window, members in by_window.items():
            for start in range(0, len(members), _AT_ONCE):
                try:
                    found |= _asked(vpa.metadata.namespace, members[start : start + _AT_ONCE], patient, now, window)
                except SourceError as error:
                    logger.warning("signals not read", extra={"vpa": str(vpa.key), "error": str(error)})
        return found

    def _window(self, elapsed: float) -> float:
        """How far to look back, in few sizes, so that pods resized at different times can be asked about together."""
        window = self._settings.signal_seconds
        while 2 * window <= elapsed and window < self._settings.soak_seconds:
            window *= 2
        return min(window, self._settings.soak_seconds)


def _asked(
    namespace: str, members: Sequence[tuple[Pod, Record]], patient: _Patient, now: float, window: float
) -> dict[str, tuple[Mapping[str, Signals], Mapping[str, Signals]]]:
    since = patient.signals(namespace, [pod.metadata.name for pod, _ in members], now, window)
    found: dict[str, tuple[Mapping[str, Signals], Mapping[str, Signals]]] = {}
    for pod, record in members:
        name, own = pod.metadata.name, since.get(pod.metadata.name, {})
        is_suspect = any(map(_is_bad, own.values()))
        before = patient.signals(namespace, [name], record.rolled_at, window).get(name, {}) if is_suspect else {}
        found[pod.metadata.uid] = (before, own)
    return found


def _is_bad(signals: Signals) -> bool:
    """Only then it matters what it was before."""
    return any((signals.cpu_throttled, signals.cpu_pressure, signals.memory_pressure))


def _canary(pods: Sequence[Pod], rollout: Rollout) -> Pod | None:
    canary = rollout.canary
    return next((pod for pod in pods if canary is not None and pod.metadata.uid == canary.uid), None)
