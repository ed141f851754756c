"""How decisions become resizes: the same model for every policy, so that a comparison is one of decisions.

A slot begins with resizes: what must be done at once (a raise after an OOM kill, a raise by the memory guard), then what the policy
wants, if it is due. The request is the limit, as in ``allocation``. A container that was never given anything gets its first target for
nothing. Luck (a resize refused or deferred) depends on the seed, the slot and the row alone: every policy has the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from vpa_ippr.api.series import Floats, Resource
from vpa_ippr.backtest.grid import DAY_SECONDS
from vpa_ippr.backtest.policy import Targets

Mask = NDArray[np.bool_]

MIB: Final = 1024.0 * 1024.0
# Upstream's updater: pods younger than this move only when outside the bounds, older ones from this difference on (pkg/updater/priority).
VPA_POD_AGE_SECONDS: Final = DAY_SECONDS / 2
VPA_LEAST_CHANGE: Final = 0.1
# A container that an OOM kill ends sooner than this is updated whatever the pod's age (``--evict-after-oom-threshold``).
VPA_QUICK_OOM_SECONDS: Final = 600.0
_GROWTH_SECONDS: Final = 300.0


@dataclass(frozen=True, slots=True)
class RelativeRule:
    """A resize is due when the target is so far above or below; the cool-downs count from the last resize of any kind."""

    raise_above: float = 0.1
    lower_below: float = 0.1
    raise_cooldown_seconds: float = 0.0
    lower_cooldown_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class UpdaterRule:
    """A resize is due when upstream's updater says so; ``recreates`` makes each one a new pod, whose age begins again."""

    recreates: bool = False


@dataclass(frozen=True, slots=True)
class OomBump:
    """After an OOM kill the allocation is raised at once: by the ratio, and by so many bytes at least."""

    ratio: float = 1.2
    least_bytes: float = 100 * MIB


@dataclass(frozen=True, slots=True)
class Guard:
    """Memory that is expected to come this near to the limit makes it ``factor`` times what is expected, in the next slot.

    Expected is the usage plus ``growth`` times what it grows by in five minutes, at the pace of the last slot.
    """

    above: float = 0.95
    factor: float = 1.1
    growth: float = 0.0


@dataclass(frozen=True, slots=True)
class ActuatorRules:
    """How one policy's decisions are carried out; ``floor`` is in cores or bytes."""

    interval_seconds: float = 3600.0
    due: RelativeRule | UpdaterRule = RelativeRule()
    bump: OomBump | None = OomBump()
    guard: Guard | None = None
    floor: float = 0.0


@dataclass(frozen=True, slots=True)
class Conditions:
    """What the cluster does to resizes: shares of them refused, or (raises only, since less always fits) deferred for a time."""

    refused: float = 0.0
    deferred: float = 0.0
    deferred_seconds: float = 3600.0
    seed: int = 0


class Actuator:
    """What is in force for n series, slot by slot: ``begin`` each slot, then ``end`` it with what was used."""

    def __init__(self, rules: ActuatorRules, conditions: Conditions, resource: Resource, series: int, step_seconds: float) -> None:
        self.in_force = np.full(series, np.nan)
        self.refused = np.zeros(series, np.int64)
        self._rules = rules
        self._conditions = conditions
        self._limits_memory = resource is Resource.MEMORY
        self._step_seconds = step_seconds
        self._slot = 0
        self._urgent = np.full(series, np.nan)
        self._waiting = np.full(series, np.nan)
        self._waits_until = np.zeros(series)
        self._resized_at = np.full(series, -np.inf)
        self._pod_since = np.zeros(series)
        self._running_since = np.zeros(series)
        self._quick_oom = np.zeros(series, np.bool_)
        self._used_before = np.full(series, np.nan)

    def begin(self, targets: Targets | None) -> Mask:
        """Resize for the slot that begins, by new targets if there are any; True where a series was resized."""
        now = self._slot * self._step_seconds
        wanted = self._urgent
        if targets is not None:
            targets = targets.at_least(self._rules.floor)
            self._start(targets, now)
            # An urgent raise is due in any case; what the policy wants may only add to it.
            wanted = np.where(self._is_due(targets, now), np.fmax(wanted, targets.target), wanted)
        accepted = self._accepted(np.where(wanted == self.in_force, np.nan, wanted), now)
        resized = np.isfinite(accepted)
        self.in_force[resized] = accepted[resized]
        self._note(resized, now)
        self._urgent = np.full(len(wanted), np.nan)
        return resized

    def end(self, usage: Floats) -> None:
        """The slot has passed, with this use in it (NaN where none was recorded)."""
        if self._limits_memory:
            killed, raised = usage > self.in_force, self._urgent
            if self._rules.bump is not None:
                bumped = np.maximum(self.in_force * self._rules.bump.ratio, self.in_force + self._rules.bump.least_bytes)
                raised = np.where(killed, bumped, raised)
            self._urgent = raised if self._rules.guard is None else np.fmax(raised, self._guarded(self._rules.guard, usage))
            self._note_kills(killed)
        self._slot += 1

    def _guarded(self, guard: Guard, usage: Floats) -> Floats:
        """What the guard wants, NaN where it is content."""
        ahead = guard.growth * _GROWTH_SECONDS / self._step_seconds
        expected = usage + ahead * np.fmax(usage - self._used_before, 0.0)
        self._used_before = np.where(np.isfinite(usage), usage, self._used_before)
        return np.where(expected > guard.above * self.in_force, guard.factor * expected, np.nan)

    def _start(self, targets: Targets, now: float) -> None:
        first = np.isnan(self.in_force) & np.isfinite(targets.target)
        if first.any():
            self.in_force[first] = targets.target[first]
            self._pod_since[first] = self._running_since[first] = now

    def _is_due(self, targets: Targets, now: float) -> Mask:
        due, target, held = self._rules.due, targets.target, self.in_force
        if isinstance(due, RelativeRule):
            since = now - self._resized_at
            higher = (target > held * (1 + due.raise_above)) & (since >= due.raise_cooldown_seconds)
            lower = (target < held * (1 - due.lower_below)) & (since >= due.lower_cooldown_seconds)
            moves: Mask = higher | lower
            return moves
        outside = (held < targets.lower) | (held > targets.upper)
        is_old = now - self._pod_since >= VPA_POD_AGE_SECONDS
        differs = np.abs(target - held) >= VPA_LEAST_CHANGE * held
        accepted: Mask = np.isfinite(target) & (outside | (is_old & differs) | self._quick_oom)
        return accepted

    def _accepted(self, wanted: Floats, now: float) -> Floats:
        """What of the wanted amounts (NaN: none) comes into force now."""
        conditions = self._conditions
        asked = np.isfinite(wanted)
        if not (conditions.refused or conditions.deferred) or not (asked.any() or np.isfinite(self._waiting).any()):
            return wanted
        luck = np.random.default_rng((conditions.seed, self._slot)).random((2, len(wanted)))
        # A resize that waits already is replaced by a newer one and waits no longer for that.
        waits = np.isfinite(self._waiting)
        refused = asked & ~waits & (luck[0] < conditions.refused)
        deferred = asked & ~waits & ~refused & (wanted > self.in_force) & (luck[1] < conditions.deferred)
        self.refused += refused
        self._waits_until[deferred] = now + conditions.deferred_seconds
        self._waiting = np.where(deferred | (waits & asked), wanted, self._waiting)
        is_over = np.isfinite(self._waiting) & (self._waits_until <= now)
        accepted = np.where(asked & ~waits & ~refused & ~deferred, wanted, np.where(is_over, self._waiting, np.nan))
        self._waiting[is_over] = np.nan
        return accepted

    def _note(self, resized: Mask, now: float) -> None:
        self._resized_at[resized] = now
        if isinstance(self._rules.due, UpdaterRule) and self._rules.due.recreates:
            self._pod_since[resized] = self._running_since[resized] = now
            self._quick_oom[resized] = False

    def _note_kills(self, killed: Mask) -> None:
        if killed.any():
            now = self._slot * self._step_seconds
            self._quick_oom[killed] = now - self._running_since[killed] < VPA_QUICK_OOM_SECONDS
            self._running_since[killed] = now
