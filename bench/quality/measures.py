"""Balanced numbers that the backtest does not give: ratios of averages to the baseline's, and the same for one source.

As everywhere in the backtest an average is one over series and then over sources; intervals come from drawing series again, with
replacement, within each source, the same for policy and baseline.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Final

import numpy as np
from numpy.typing import NDArray

from vpa_ippr.api.series import Floats
from vpa_ippr.backtest.averages import DRAWS, LEAST_SERIES_OF_SOURCE, Average
from vpa_ippr.backtest.scores import SeriesScores

_INTERVAL: Final = (0.025, 0.975)


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """Scores of a policy and of the baseline over the same slots, and where each series comes from."""

    own: SeriesScores
    baseline: SeriesScores
    sources: tuple[str, ...]
    seed: int

    def chosen(self, rows: NDArray[np.bool_]) -> Pair:
        """Those series for which ``rows`` is true."""
        sources = tuple(source for source, keep in zip(self.sources, rows, strict=True) if keep)
        return Pair(take(self.own, rows), take(self.baseline, rows), sources, self.seed)

    def of_source(self, source: str) -> Pair:
        """The series of one source."""
        return self.chosen(np.array([one == source for one in self.sources]))

    def groups(self) -> list[NDArray[np.intp]]:
        """The scored series of each source that counts: of all, if none has enough series."""
        scored = self.own.days > 0
        names = np.array(self.sources)
        rows = [np.flatnonzero(scored & (names == source)) for source in sorted(set(self.sources))]
        return [row for row in rows if len(row) >= LEAST_SERIES_OF_SOURCE] or [row for row in rows if len(row)]


Measure = Callable[[Pair], Average]


def take(scores: SeriesScores, rows: NDArray[np.bool_]) -> SeriesScores:
    """The scores of some series."""
    return SeriesScores(**{field.name: getattr(scores, field.name)[rows] for field in fields(SeriesScores)})


def mixed(parts: Sequence[tuple[SeriesScores, NDArray[np.bool_]]]) -> SeriesScores:
    """Scores whose rows come from several: each part says for which rows it stands."""
    first = parts[0][0]
    return SeriesScores(
        **{
            field.name: np.select([rows for _, rows in parts], [getattr(scores, field.name) for scores, _ in parts], np.nan)
            for field in fields(first)
        }
    )


def mean(name: str) -> Measure:
    """The policy's own average of a score."""
    return lambda pair: _drawn(pair, lambda draw: draw(getattr(pair.own, name)))


def change(name: str) -> Measure:
    """The policy's average less the baseline's."""
    return lambda pair: _drawn(pair, lambda draw: draw(getattr(pair.own, name)) - draw(getattr(pair.baseline, name)))


def ratio(name: str) -> Measure:
    """The policy's average by the baseline's: 1 where both are nothing, infinite where only the baseline's is."""
    return lambda pair: _drawn(pair, lambda draw: _quotient(draw(getattr(pair.own, name)), draw(getattr(pair.baseline, name))))


def volume_ratio(name: str) -> Measure:
    """The geometric mean over series of an amount by the baseline's; a series without any has no ratio and is left out."""

    def measure(pair: Pair) -> Average:
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.log(getattr(pair.own, name) / getattr(pair.baseline, name))
        return _drawn(pair, lambda draw: draw(np.where(np.isfinite(logs), logs, np.nan), np.exp))

    return measure


def reduction(measure: Measure) -> Measure:
    """By which share a ratio lies below 1."""

    def lower(pair: Pair) -> Average:
        found = measure(pair)
        return Average(1 - found.value, 1 - found.high, 1 - found.low)

    return lower


_Draw = Callable[..., Floats]


def _drawn(pair: Pair, statistic: Callable[[_Draw], Floats]) -> Average:
    """The statistic of the series as they are, and the interval of what it is of series drawn again."""
    groups = pair.groups()
    if not groups:
        return Average(np.nan, np.nan, np.nan)
    random = np.random.default_rng(pair.seed)
    draws = [random.choice(rows, (DRAWS, len(rows))) for rows in groups]
    # Ratios may be infinite, between which nothing can be interpolated: hence the nearest draw.
    value = statistic(lambda values, link=None: _balanced(values, [rows[None, :] for rows in groups], link))
    low, high = np.quantile(statistic(lambda values, link=None: _balanced(values, draws, link)), _INTERVAL, method="nearest")
    return Average(float(value[0]), float(low), float(high))


def _balanced(values: Floats, draws: Sequence[NDArray[np.intp]], link: Callable[[Floats], Floats] | None) -> Floats:
    """The mean over sources of the means over series, unknown ones left out; ``link`` turns a source's mean into its number."""
    found = []
    for rows in draws:
        drawn = values[rows]
        known = np.isfinite(drawn)
        counts = known.sum(axis=1)
        sums = np.where(known, drawn, 0.0).sum(axis=1)
        means = np.divide(sums, counts, out=np.full(len(sums), np.nan), where=counts > 0)
        found.append(means if link is None else link(means))
    return np.asarray(np.mean(found, axis=0))


def _quotient(above: Floats, below: Floats) -> Floats:
    nothing = np.where(above > 0, np.inf, np.where(np.isnan(above), np.nan, 1.0))
    return np.divide(above, below, out=nothing, where=below > 0)
