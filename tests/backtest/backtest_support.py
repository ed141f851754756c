"""Small fleets, and policies that say what they are told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import numpy as np

from vpa_ippr.api.series import Resource
from vpa_ippr.backtest.actuator import Actuator, ActuatorRules, Conditions
from vpa_ippr.backtest.contenders import ENSEMBLES, POLICIES
from vpa_ippr.backtest.grid import Fleet
from vpa_ippr.backtest.policy import HistoryView, Targets

START = 1_767_225_600.0  # 2026-01-01T00:00:00Z
HOUR, DAY = 3600.0, 86_400.0
MIB, GIB = 2.0**20, 2.0**30
NAN = float("nan")
PLAIN_POLICIES = tuple(name for name in POLICIES if name not in ENSEMBLES)


def fleet(rows, resource=Resource.CPU, *, step=300.0, sources=None, current=None, starts=None) -> Fleet:
    usage = np.array(rows, np.float64)
    count = len(usage)
    return Fleet(
        resource=resource,
        step_seconds=step,
        names=tuple(f"ns/Deployment/w{row}/app" for row in range(count)),
        sources=tuple(sources or ["one"] * count),
        starts=np.full(count, START) if starts is None else np.array(starts),
        usage=usage,
        current=np.full(count, NAN) if current is None else np.array(current),
    )


def made_up(resource=Resource.CPU, *, series=5, days=4.0, step=300.0, seed=0, sources=None) -> Fleet:
    """A daily rhythm with noise, bursts and gaps; starts at odd moments."""
    random = np.random.default_rng(seed)
    times = np.arange(round(days * DAY / step)) * step
    rhythm = 1 + random.uniform(0, 0.8, (series, 1)) * np.sin(times / DAY * 2 * np.pi + random.uniform(0, 6, (series, 1)))
    noise = random.gamma(8, 1 / 8, (series, len(times))) * np.where(random.random((series, len(times))) < 0.01, 4, 1)
    scale = random.lognormal(-1, 1, (series, 1)) if resource is Resource.CPU else random.lognormal(20.5, 1, (series, 1))
    usage = scale * rhythm * noise
    usage[random.random(usage.shape) < 0.02] = NAN
    gap = len(times) // 3
    usage[0, gap : gap + len(times) // 10] = NAN
    return fleet(usage, resource, step=step, sources=sources, starts=START + random.integers(0, 10_000_000, series))


def assert_same(found, expected) -> None:
    """Two results are equal in all that they hold, where a NaN equals a NaN."""
    np.testing.assert_equal(asdict(found), asdict(expected))


class Scripted:
    """Target, lower and upper bound of every series for each slot, as listed; the last goes on."""

    name = "scripted"

    def __init__(self, script: Sequence[float | tuple[float, float, float]]) -> None:
        self._script = script

    def decide(self, view: HistoryView) -> Targets:
        item = self._script[min(view.now, len(self._script) - 1)]
        target, lower, upper = item if isinstance(item, tuple) else (item, item, item)
        count = len(view.starts)
        return Targets(np.full(count, target), np.full(count, lower), np.full(count, upper))


def drive(rules: ActuatorRules, script, usage, resource=Resource.MEMORY, conditions=Conditions(), step=HOUR):  # noqa: B008
    """What is in force in each slot and where it was resized, for one series; None in the script is a slot without a decision."""
    actuator = Actuator(rules, conditions, resource, 1, step)
    held, moved = [], []
    for wanted, used in zip(script, usage, strict=True):
        item = wanted if isinstance(wanted, tuple) else (wanted,) * 3
        targets = None if wanted is None else Targets(*(np.array([float(value)]) for value in item))
        moved.append(bool(actuator.begin(targets)[0]))
        held.append(float(actuator.in_force[0]))
        actuator.end(np.array([float(used)]))
    return held, moved
