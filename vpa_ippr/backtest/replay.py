"""History, played again: slot by slot, a policy decides on what came before and the actuator carries it out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from vpa_ippr.api.series import Floats
from vpa_ippr.backtest.actuator import Actuator, ActuatorRules, Conditions
from vpa_ippr.backtest.grid import Fleet
from vpa_ippr.backtest.policy import Forecasted, HistoryView, Policy


@dataclass(frozen=True, slots=True)
class Contender:
    """A policy and how its decisions are carried out."""

    policy: Policy
    rules: ActuatorRules


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """What a policy did to a fleet.

    ``allocation``: what was in force, cores or bytes, shape (n, T), NaN before the first decision. ``resized``: where a slot began with a
    resize, shape (n, T). ``refused``: how many resizes of each series were refused, shape (n,). ``forecasts``: what was forecast at the
    beginning of which slot.
    """

    policy: str
    allocation: Floats
    resized: NDArray[np.bool_]
    refused: NDArray[np.int64]
    forecasts: Mapping[int, Forecasted] = field(default_factory=dict)


Progress = Callable[[int, int], None]
"""Told how many slots of how many are done."""


def replay(fleet: Fleet, contender: Contender, conditions: Conditions, progress: Progress | None = None) -> Replay:
    """What would have happened to the fleet; the same arguments always give the same result."""
    shape = fleet.usage.shape
    seen, allocation, resized = np.full(shape, np.nan), np.full(shape, np.nan), np.zeros(shape, np.bool_)
    actuator = Actuator(contender.rules, conditions, fleet.resource, len(fleet), fleet.step_seconds)
    every = max(1, round(contender.rules.interval_seconds / fleet.step_seconds))
    forecasts: dict[int, Forecasted] = {}
    told_every = max(1, shape[1] // 100)
    for now in range(shape[1]):
        targets = None
        if now % every == 0:
            targets = contender.policy.decide(_view(fleet, seen[:, :now], allocation[:, :now], actuator.in_force))
            if targets.forecast is not None:
                forecasts[now] = targets.forecast
        resized[:, now] = actuator.begin(targets)
        allocation[:, now] = actuator.in_force
        seen[:, now] = fleet.usage[:, now]
        actuator.end(seen[:, now])
        if progress is not None and (now + 1) % told_every == 0:
            progress(now + 1, shape[1])
    return Replay(contender.policy.name, allocation, resized, actuator.refused, forecasts)


def _view(fleet: Fleet, seen: Floats, allocation: Floats, in_force: Floats) -> HistoryView:
    usage, allocated, standing, starts = seen.view(), allocation.view(), in_force.copy(), fleet.starts.copy()
    for array in (usage, allocated, standing, starts):
        array.flags.writeable = False
    return HistoryView(fleet.resource, fleet.step_seconds, starts, usage, allocated, standing)
