"""Which expert to believe: for CPU the one that would have cost least, for memory none alone.

An expert is a forecaster at one quantile with its margin; it names an allocation for every series at every cycle. What an allocation
``a`` cost for use ``u`` is ``mean(max(0, a - u)) + overrun * mean(max(0, u - a))``, as a share of the usual use, plus ``violation`` times
the share of time with ``u > a``, plus ``resize`` for each hourly resize that following this expert would have taken. Costs fade with a
half-life, so an expert is judged by what it did lately and not by what it did first.

Memory is not chosen by cost. Its violations are rare and deadly, so the expert that has not failed yet always looks cheapest; measured on
real traces that chose up to four times as many out-of-memory kills. There the largest answer counts (``ensemble.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from vpa_ippr.api.series import Floats
from vpa_ippr.forecast.grid import divided, means

NOBODY: Final = -1


class SelectionRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What costs how much, in units of a series' usual use.

    ``switching``: how much cheaper another expert must be before it takes over. ``resize_share``: a change of allocation that counts as a
    resize. ``prior_hours``: how long the costs that are expected beforehand count as much as what was seen.
    """

    overrun: float = 5.0
    violation: float = 8.0
    resize: float = 0.02
    resize_share: float = 0.1
    half_life_hours: float = 168.0
    switching: float = 0.02
    prior_hours: float = 24.0


DEFAULT_SELECTION: Final = SelectionRules()


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """The expert of each series (``NOBODY`` where none has an answer) and its allocation (NaN there); both (series,)."""

    expert: NDArray[np.int64]
    allocation: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """What the experts cost until now, as faded sums.

    Over (series, experts): ``volume`` (slack and weighed overrun, in the series' unit times hours), ``violated`` and ``weight`` (hours),
    ``resized`` (times); ``held`` is the allocation that following the expert would have in place. Over (series,): ``use``, ``hours``,
    ``chosen``. ``prior`` (experts,) is the cost expected of each before anything is seen.
    """

    rules: SelectionRules
    prior: Floats
    volume: Floats
    violated: Floats
    resized: Floats
    weight: Floats
    held: Floats
    use: Floats
    hours: Floats
    chosen: NDArray[np.int64]

    @classmethod
    def start(cls, count: int, prior: Sequence[float], rules: SelectionRules = DEFAULT_SELECTION) -> Selection:
        """Before anything is seen the expert with the smallest ``prior`` is believed."""
        wide = (count, len(prior))
        none, zero = np.zeros(wide), np.zeros(count)
        chosen = np.full(count, NOBODY, dtype=np.int64)
        return cls(rules, np.asarray(prior, np.float64), none, none, none, none, np.full(wide, np.nan), zero, zero, chosen)

    def __len__(self) -> int:
        return len(self.volume)

    @property
    def costs(self) -> Floats:
        """Cost of each expert, (series, experts): what was seen, mixed with the prior while little was."""
        seen = np.maximum(self.weight, 1e-12)
        usual = divided(self.use, self.hours)
        scale = np.where(usual > 0, usual, 1.0)[:, None]  # of a series that uses nothing the volumes alone are compared
        rules = self.rules
        cost = self.volume / seen / scale + rules.violation * self.violated / seen + rules.resize * self.resized / seen
        prior = rules.prior_hours
        return (cost * self.weight + self.prior * prior) / (self.weight + prior) if prior else np.where(self.weight > 0, cost, self.prior)

    def update(self, allocations: Floats, usage: Floats, hours: float) -> Selection:
        """Learn what each expert's allocation cost in a stretch of so many hours.

        ``allocations`` (series, experts) as named when it began, NaN where an expert had no answer; ``usage`` (series, steps) during it,
        NaN for gaps. A series without a sample learns nothing.
        """
        there: NDArray[np.bool_] = np.isfinite(usage)
        measured = np.asarray(there.any(axis=1))
        counted = measured[:, None] & np.isfinite(allocations)
        over = usage[:, None, :] - allocations[:, :, None]
        volume = means(np.maximum(-over, 0.0)) + self.rules.overrun * means(np.maximum(over, 0.0))
        violated = means(np.where(there[:, None, :], (over > 0).astype(np.float64), np.nan))
        away = np.abs(allocations - self.held) > self.rules.resize_share * self.held
        resized = counted & (away | ~np.isfinite(self.held))
        fade = np.where(measured, 0.5 ** (hours / self.rules.half_life_hours), 1.0)
        used = np.where(measured, means(usage), 0.0)
        elapsed = np.where(measured, hours, 0.0)

        def faded(sums: Floats, fresh: Floats) -> Floats:
            return sums * fade[:, None] + np.where(counted, fresh, 0.0)

        return replace(
            self,
            volume=faded(self.volume, volume * hours),
            violated=faded(self.violated, violated * hours),
            resized=faded(self.resized, (resized & np.isfinite(self.held)).astype(np.float64)),
            weight=faded(self.weight, np.full_like(self.weight, hours)),
            held=np.where(resized, allocations, self.held),
            use=self.use * fade + used * hours,
            hours=self.hours * fade + elapsed,
        )

    def decide(self, allocations: Floats) -> tuple[Selection, Decision]:
        """Choose among the experts that have an answer now; the one in charge stays unless another is cheaper by ``switching``."""
        answers = np.isfinite(allocations)
        handicap = np.where(np.arange(answers.shape[1]) == self.chosen[:, None], 0.0, self.rules.switching)
        cost = np.where(answers, self.costs + handicap, np.inf)
        best = np.where(answers.any(axis=1), cost.argmin(axis=1), NOBODY)
        allocation = np.where(best == NOBODY, np.nan, np.take_along_axis(allocations, np.maximum(best, 0)[:, None], axis=1)[:, 0])
        return replace(self, chosen=best), Decision(best, allocation)

    def take(self, rows: Sequence[int]) -> Selection:
        """For other series; -1 stands for one that is new."""
        index = np.asarray(rows, dtype=np.int64).reshape(-1)
        start = Selection.start(1, self.prior.tolist(), self.rules)
        place = np.where(index < 0, len(self), index)
        chosen = np.append(self.chosen, NOBODY)[place]
        moved = {name: np.concatenate((getattr(self, name), getattr(start, name)))[place] for name in _ARRAYS}
        return Selection(self.rules, self.prior, chosen=chosen, **moved)


_ARRAYS: Final = ("volume", "violated", "resized", "weight", "held", "use", "hours")
