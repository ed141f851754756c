"""From scores of series to one number a source and one for all: every source counts the same, however many series it has.

A ratio to the baseline is averaged over series as ``exp(mean(log))``, everything else as a mean; over sources both are means. Intervals
come from drawing series again, with replacement, within each source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from vpa_ippr.api.series import Floats
from vpa_ippr.backtest.actuator import Mask
from vpa_ippr.backtest.scores import SeriesScores

# A source with fewer series says too little to count as much as the others.
LEAST_SERIES_OF_SOURCE: Final = 4
DRAWS: Final = 1000
_INTERVAL: Final = (0.025, 0.975)

MEANS: Final = ("relative_slack", "violation_time", "violation_volume", "ooms_per_day", "any_oom", "resizes_per_day", "pinball", "coverage")
RATIOS: Final = {"allocation_ratio": "allocated", "slack_ratio": "slack"}
CHANGES: Final = {f"{name}_change": name for name in ("violation_time", "violation_volume", "ooms_per_day")}
METRICS: Final = (*MEANS, *RATIOS, *CHANGES)


@dataclass(frozen=True, slots=True)
class Average:
    """A number and its 95 % bootstrap interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Averages:
    """One policy's numbers by metric: for each source, and balanced over the sources that count (all, if none has enough series)."""

    by_source: Mapping[str, Mapping[str, float]]
    balanced: Mapping[str, Average]


def average(own: SeriesScores, baseline: SeriesScores, sources: Sequence[str], seed: int) -> Averages:
    """Averages of one policy against a baseline over the same scored slots; series without one are left out."""
    table = _table(own, baseline)
    rows = _rows_by_source(sources, own.days > 0)
    by_source = {source: _of_source(table[:, index]) for source, index in rows.items()}
    counted = [source for source, index in rows.items() if len(index) >= LEAST_SERIES_OF_SOURCE] or list(rows)
    balanced = np.mean([by_source[source] for source in counted], axis=0)
    random = np.random.default_rng(seed)
    drawn = np.mean([_of_source(table[:, random.choice(rows[source], (DRAWS, len(rows[source])))]) for source in counted], axis=0)
    low, high = np.quantile(drawn, _INTERVAL, axis=1)
    return Averages(
        by_source={source: dict(zip(METRICS, values.tolist(), strict=True)) for source, values in by_source.items()},
        balanced={
            metric: Average(*numbers) for metric, *numbers in zip(METRICS, balanced.tolist(), low.tolist(), high.tolist(), strict=True)
        },
    )


def _table(own: SeriesScores, baseline: SeriesScores) -> Floats:
    """One row a metric, in the order of ``METRICS``, one column a series; ratios as logarithms."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = [np.log(getattr(own, name) / getattr(baseline, name)) for name in RATIOS.values()]
    # No slack at all has no ratio to anything: such a series is left out of that average.
    ratios = [np.where(np.isfinite(ratio), ratio, np.nan) for ratio in ratios]
    changes = [getattr(own, name) - getattr(baseline, name) for name in CHANGES.values()]
    return np.array([*(getattr(own, name) for name in MEANS), *ratios, *changes])


def _of_source(table: Floats) -> Floats:
    """The averages over the last axis."""
    known = np.isfinite(table)
    counts = known.sum(axis=-1)
    sums = np.where(known, table, 0.0).sum(axis=-1)
    means: Floats = np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)
    first = len(MEANS)
    means[first : first + len(RATIOS)] = np.exp(means[first : first + len(RATIOS)])
    return means


def _rows_by_source(sources: Sequence[str], usable: Mask) -> dict[str, NDArray[np.intp]]:
    rows: dict[str, list[int]] = {}
    for row in np.flatnonzero(usable).tolist():
        rows.setdefault(sources[row], []).append(row)
    return {source: np.array(rows[source]) for source in sorted(rows)}
