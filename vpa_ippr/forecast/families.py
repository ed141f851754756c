"""Made-up usage of which the truth is known: shapes that recordings seldom hold, to train on and to test against.

Each family is a function of a random generator, a number of series and a length in days. Its parameters (named in its docstring) are drawn,
each for every series, unless they are given by name (one number for all series, or one each), and are handed back with the usage. So an
expectation can be built on either: ``leak(random, 1, 3, level=300, growth_per_hour=10, begin_hour=0)`` is at 540 after a day, and
``step(random, 50, 4).truth["at_hour"]`` says when each series stepped. The same generator state gives the same series, and giving one
parameter leaves the draws of the others as they are.

Amounts are in the unit of ``level``; drawn levels lie around 1. Hours count from the beginning of the series. ``noise`` is the deviation of
the logarithm of use, 0 for none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from vpa_ippr.api.series import Floats
from vpa_ippr.forecast.grid import DAYS_PER_WEEK, HOURS_PER_DAY, HOURS_PER_WEEK, STEPS_PER_HOUR, UsageGrid

Parameter = float | Floats
# What a model is trained on beside recordings: so many series of each family, so long.
SYNTHETIC_EACH: Final = 20
SYNTHETIC_DAYS: Final = 28.0
_STEPS_PER_DAY: Final = STEPS_PER_HOUR * HOURS_PER_DAY
_STEP_HOURS: Final = 1 / STEPS_PER_HOUR
# Two thirds of the levels lie between a third and three times the middle one, as in a cluster of many kinds of containers.
_LEVEL_SPREAD: Final = 1.1
# Noise that stays for a step, an hour and half a day: real use wanders, and white noise alone would teach that it does not.
_NOISE_STEPS: Final = (1, STEPS_PER_HOUR, 12 * STEPS_PER_HOUR)


@dataclass(frozen=True, slots=True, eq=False)
class MadeUp:
    """``usage`` (series, steps) in five-minute steps, without gaps; ``truth``: every parameter of the family, (series,)."""

    usage: Floats
    truth: Mapping[str, Floats]

    def grid(self, end: float = 0.0) -> UsageGrid:
        """The usage as history that ends then."""
        return UsageGrid(self.usage, end)


class Family(Protocol):
    """A way to make usage up."""

    def __call__(self, random: np.random.Generator, count: int, days: float, **given: Parameter) -> MadeUp:
        """So many series of that length; TypeError for a parameter that the family does not have."""
        ...


def leak(random: np.random.Generator, count: int, days: float, **given: Parameter) -> MadeUp:
    """Grows without end by ``growth_per_hour`` from ``begin_hour`` on."""
    draw = _Draw(random, count, given)
    level = draw.level()
    growth = draw("growth_per_hour", level * draw.log_uniform(2e-4, 0.03))
    begin = draw("begin_hour", draw.uniform(0, days * HOURS_PER_DAY / 2))
    return draw.made(level[:, None] + growth[:, None] * np.maximum(_hours(days) - begin[:, None], 0), (0.002, 0.05))


def ramp(random: np.random.Generator, count: int, days: float, **given: Parameter) -> MadeUp:
    """Moves evenly to ``factor`` times the level within ``length_hours`` from ``begin_hour`` on, and stays there: users move over."""
    draw = _Draw(random, count, given)
    level = draw.level()
    factor = draw("factor", draw.log_uniform(0.3, 6))
    begin = draw("begin_hour", draw.uniform(0, days * HOURS_PER_DAY / 2))
    length = draw("length_hours", draw.uniform(0.1, 0.9) * days * HOURS_PER_DAY)
    done = np.clip((_hours(days) - begin[:, None]) / length[:, None], 0, 1)
    return draw.made(level[:, None] * (1 + (factor[:, None] - 1) * done), (0.005, 0.2))


def step(random: np.random.Generator, count: int, days: float, **given: Parameter) -> MadeUp:
    """Jumps to ``factor`` times the level at ``at_hour``, as after a rollout."""
    draw = _Draw(random, count, given)
    level = draw.level()
    factor = draw("factor", draw.log_uniform(0.25, 6))
    moment = draw("at_hour", draw.uniform(0.2, 0.9) * days * HOURS_PER_DAY)
    return draw.made(level[:, None] * np.where(_hours(days) >= moment[:, None], factor[:, None], 1.0), (0.005, 0.2))


def sawtooth(random: np.random.Generator, count: int, days: float, **given: Parameter) -> MadeUp:
    """A heap: fills from the level to ``1 + height`` times the level within ``period_hours``, is collected, and begins anew.

    ``phase``, 0 to 1, is how full it is at the beginning.
    """
    draw = _Draw(random, count, given)
    level = draw.level()
    height = draw("height", draw.log_uniform(0.1, 3))
    period = draw("period_hours", draw.log_uniform(0.3, 36))
    phase = draw("phase", draw.uniform(0, 1))
    filled = (_hours(days) / period[:, None] + phase[:, None]) % 1
    return draw.made(level[:, None] * (1 + height[:, None] * filled), (0.002, 0.05))


def cron(random: np.random.Generator, count: int, days: float, **given: Parameter) -> MadeUp:
    """A batch each day: from ``start_hour`` on and for ``length_hours``, ``1 + height`` times the level."""
    return _batches(_Draw(random, count, given), days, HOURS_PER_DAY, longest_hours=6)


def weekly(random: np.random.Generator, count: int, days: float, **given: Parameter) -> MadeUp:
    """A batch each week, as ``cron``; ``start_hour`` counts from the week's beginning."""
    return _batches(_Draw(random, count, given), days, HOURS_PER_WEEK, longest_hours=24)


def diurnal(random: np.random.Generator, count: int, days: float, **given: Parameter) -> MadeUp:
    """A day's rhythm between ``1 - swing`` and ``1 + swing`` times the level, highest at ``peak_hour``.

    The last two days of each week are ``weekend_factor`` as high.
    """
    draw = _Draw(random, count, given)
    level = draw.level()
    swing = draw("swing", draw.uniform(0.1, 0.95))
    peak = draw("peak_hour", draw.uniform(0, HOURS_PER_DAY))
    weekend = draw("weekend_factor", draw.uniform(0.4, 1.1))
    hours = _hours(days)
    rhythm = 1 + swing[:, None] * np.cos(2 * np.pi * (hours - peak[:, None]) / HOURS_PER_DAY)
    is_weekend = hours // HOURS_PER_DAY % DAYS_PER_WEEK >= DAYS_PER_WEEK - 2
    return draw.made(level[:, None] * rhythm * np.where(is_weekend, weekend[:, None], 1.0), (0.02, 0.5))


def bursty(random: np.random.Generator, count: int, days: float, **given: Parameter) -> MadeUp:
    """``bursts_per_day`` bursts of ``length_hours``: with chance ``x ** -tail`` one adds more than ``x - 1`` times the level."""
    draw = _Draw(random, count, given)
    tail = draw("tail", draw.uniform(1.5, 4))
    return _bursts(draw, (1, 60), random.pareto(tail[:, None], (count, _steps(days))), noise=(0.02, 0.5))


def idle(random: np.random.Generator, count: int, days: float, **given: Parameter) -> MadeUp:
    """Next to nothing, but for ``bursts_per_day`` rare spikes of ``length_hours`` that add about ``height`` times the level."""
    draw = _Draw(random, count, given)
    height = draw("height", draw.log_uniform(2, 60))
    return _bursts(draw, (0.05, 3), height[:, None] * random.lognormal(0, 0.4, (count, _steps(days))), noise=(0.01, 0.5))


def flat(random: np.random.Generator, count: int, days: float, **given: Parameter) -> MadeUp:
    """The same all the time."""
    draw = _Draw(random, count, given)
    return draw.made(np.repeat(draw.level()[:, None], _steps(days), axis=1), (1e-4, 0.2))


def page_cache(random: np.random.Generator, count: int, days: float, **given: Parameter) -> MadeUp:
    """A cache that fills to ``cache`` times the level, two thirds of it in ``fill_hours``, and is emptied ``drops_per_day`` times."""
    draw = _Draw(random, count, given)
    level = draw.level()
    cache = draw("cache", draw.log_uniform(0.3, 8))
    fill = draw("fill_hours", draw.log_uniform(0.5, 72))
    drops = draw("drops_per_day", draw.log_uniform(0.02, 1))
    dropped = random.random((count, _steps(days))) < drops[:, None] / _STEPS_PER_DAY
    hours = _hours(days)
    age = hours - np.maximum.accumulate(np.where(dropped, hours, 0.0), axis=1)
    return draw.made(level[:, None] * (1 + cache[:, None] * -np.expm1(-age / fill[:, None])), (0.002, 0.05))


FAMILIES: Final[Mapping[str, Family]] = {
    "leak": leak,
    "ramp": ramp,
    "step": step,
    "sawtooth": sawtooth,
    "cron": cron,
    "weekly": weekly,
    "diurnal": diurnal,
    "bursty": bursty,
    "idle": idle,
    "flat": flat,
    "page-cache": page_cache,
}


def make_up(seed: int, count: int, days: float) -> dict[str, MadeUp]:
    """So many series of every family; those of one do not depend on what other families there are."""
    return {name: family(np.random.default_rng([seed, *name.encode()]), count, days) for name, family in FAMILIES.items()}


def pooled(families: Mapping[str, MadeUp]) -> UsageGrid:
    """The series of all families as one source, in their order."""
    return UsageGrid(np.concatenate([family.usage for family in families.values()]), 0.0)


class _Draw:
    """Draws the parameters of so many series and remembers them."""

    def __init__(self, random: np.random.Generator, count: int, given: Mapping[str, Parameter]) -> None:
        self.random = random
        self._count = count
        self._given = given
        self._truth: dict[str, Floats] = {}

    def __call__(self, name: str, drawn: Floats) -> Floats:
        """What is given, else what was drawn."""
        chosen = np.asarray(self._given.get(name, drawn), dtype=np.float64)
        self._truth[name] = np.broadcast_to(chosen, (self._count,)).copy()
        return self._truth[name]

    def level(self) -> Floats:
        return self("level", self.random.lognormal(0, _LEVEL_SPREAD, self._count))

    def uniform(self, low: float, high: float) -> Floats:
        return self.random.uniform(low, high, self._count)

    def log_uniform(self, low: float, high: float) -> Floats:
        return np.exp(self.uniform(math.log(low), math.log(high))).astype(np.float64)

    def made(self, shape: Floats, noise: tuple[float, float]) -> MadeUp:
        """The shape with noise whose size is drawn between those bounds."""
        spread = self("noise", self.log_uniform(*noise))
        unknown = sorted(set(self._given) - set(self._truth))
        if unknown:
            raise TypeError(f"no parameter {', '.join(unknown)}: there are {', '.join(self._truth)}")
        return MadeUp(shape * _noise(self.random, spread, shape.shape[1]), self._truth)


def _steps(days: float) -> int:
    return round(days * _STEPS_PER_DAY)


def _hours(days: float) -> Floats:
    """Hours from the beginning to each step, (steps,)."""
    return np.arange(_steps(days), dtype=np.float64) / STEPS_PER_HOUR


def _noise(random: np.random.Generator, spread: Floats, steps: int) -> Floats:
    """Factors around 1 whose logarithm deviates by ``spread``; (series, steps)."""
    logs = np.zeros((len(spread), steps))
    for length in _NOISE_STEPS:
        logs += random.standard_normal((len(spread), -(-steps // length))).repeat(length, axis=1)[:, :steps]
    return np.exp(spread[:, None] * logs / math.sqrt(len(_NOISE_STEPS))).astype(np.float64)


def _batches(draw: _Draw, days: float, period_hours: int, longest_hours: float) -> MadeUp:
    level = draw.level()
    height = draw("height", draw.log_uniform(0.3, 12))
    start = draw("start_hour", draw.uniform(0, period_hours))
    length = draw("length_hours", draw.log_uniform(0.25, longest_hours))
    runs: NDArray[np.bool_] = (_hours(days) - start[:, None]) % period_hours < length[:, None]
    return draw.made(level[:, None] * (1 + height[:, None] * runs), (0.01, 0.3))


def _bursts(draw: _Draw, per_day: tuple[float, float], sizes: Floats, noise: tuple[float, float]) -> MadeUp:
    """The largest of the bursts that run counts; ``sizes`` (series, steps), in levels, of a burst that begins then."""
    level = draw.level()
    rate = draw("bursts_per_day", draw.log_uniform(*per_day))
    length = draw("length_hours", draw.log_uniform(_STEP_HOURS, 3))
    begun = np.where(draw.random.random(sizes.shape) < rate[:, None] / _STEPS_PER_DAY, sizes, 0.0)
    added = begun.copy()
    for age in range(1, math.ceil(length.max() * STEPS_PER_HOUR)):
        lasting = np.where((length * STEPS_PER_HOUR > age)[:, None], begun[:, :-age], 0.0)
        np.maximum(added[:, age:], lasting, out=added[:, age:])
    return draw.made(level[:, None] * (1 + added), noise)
