"""Training of the global model: from usage grids to ensembles, the same bytes for the same data and seed.

Every grid is one source of data. A source gives rows in proportion to the square root of its samples: equal parts would let eleven series
rule over five hundred, and all rows would make the model that of the largest source. Rows are drawn rather than weighted, because
scikit-learn's quantile loss is seven times slower with weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from vpa_ippr.api.errors import UsageError
from vpa_ippr.api.series import Floats
from vpa_ippr.forecast.boosting import BoostingModel, answers_of
from vpa_ippr.forecast.features import NAMES, build_features, to_log
from vpa_ippr.forecast.grid import STEPS_PER_HOUR, UsageGrid, maxima
from vpa_ippr.forecast.quantiles import LEVELS, Horizon

if TYPE_CHECKING:
    from sklearn.ensemble import HistGradientBoostingRegressor

_PROBE_ROWS: Final = 32
_MIN_ROWS: Final = 500
# A row whose history is cut short teaches the model what to say of a young container: from an hour to a week, each length as likely on a
# logarithmic scale.
_YOUNG_LOG_HOURS: Final = (math.log(1), math.log(168))


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """How to train; the defaults train on 1,000 series in less than a minute of one core.

    ``rows``: how many rows to aim for, over all sources. ``young_share``: how many of the moments are looked at with a shortened
    history. The others are scikit-learn's.
    """

    levels: tuple[float, ...] = LEVELS
    rows: int = 40_000
    young_share: float = 0.2
    iterations: int = 80
    learning_rate: float = 0.1
    leaves: int = 24
    min_leaf_rows: int = 60
    seed: int = 0


DEFAULT_TRAINING: Final = TrainingOptions()


@dataclass(frozen=True, slots=True, eq=False)
class TrainingRows:
    """Features and what came after; ``targets[horizon]`` (rows,) in log ratios, NaN where it was not measured."""

    matrix: Floats
    targets: Mapping[Horizon, Floats]


def train(grids: Sequence[UsageGrid], options: TrainingOptions = DEFAULT_TRAINING) -> BoostingModel:
    """Train on sources of series.

    Raises:
        UsageError: there is too little data to learn anything from.
    """
    from threadpoolctl import threadpool_limits

    rows = collect_rows(grids, options)
    if len(rows.matrix) < _MIN_ROWS:
        raise UsageError(
            f"{len(rows.matrix)} rows to train on, at least {_MIN_ROWS} are needed: give longer or more series", reason="TooLittleData"
        )
    with threadpool_limits(limits=1):
        ensembles = {horizon: tuple(_fit(rows, horizon, level, options) for level in options.levels) for horizon in Horizon}
    probe = rows.matrix[:: max(len(rows.matrix) // _PROBE_ROWS, 1)][:_PROBE_ROWS].copy()
    untold = BoostingModel(options.levels, ensembles, probe, np.empty((0, 0)))
    return BoostingModel(options.levels, ensembles, probe, answers_of(untold))


def collect_rows(grids: Sequence[UsageGrid], options: TrainingOptions) -> TrainingRows:
    """Look at each source at moments drawn from its whole length."""
    random = np.random.default_rng(options.seed)
    shares = np.sqrt([np.isfinite(grid.values).sum() for grid in grids])
    matrices: list[Floats] = [np.empty((0, len(NAMES)))]
    targets: dict[Horizon, list[Floats]] = {horizon: [np.empty(0)] for horizon in Horizon}
    for grid, share in zip(grids, shares / max(shares.sum(), 1.0), strict=True):
        for moment in _moments(grid, math.ceil(options.rows * share / max(len(grid), 1)), random):
            matrix, found = _at(grid, moment, random, options.young_share)
            matrices.append(matrix)
            for horizon in Horizon:
                targets[horizon].append(found[horizon])
    return TrainingRows(np.concatenate(matrices), {horizon: np.concatenate(parts) for horizon, parts in targets.items()})


def outcome(grid: UsageGrid, moment: int, horizon: Horizon) -> Floats:
    """The largest use of each series in the horizon that begins after so many steps; NaN where less than half of it was measured."""
    after = grid.values[:, moment : moment + horizon.steps]
    return np.where(np.isfinite(after).sum(axis=1) * 2 >= horizon.steps, maxima(after), np.nan)


def _moments(grid: UsageGrid, count: int, random: np.random.Generator) -> Iterator[int]:
    possible = np.arange(STEPS_PER_HOUR, grid.steps - Horizon.HOUR.steps + 1)
    yield from (int(moment) for moment in np.sort(random.choice(possible, min(count, possible.size), replace=False)))


def _at(grid: UsageGrid, moment: int, random: np.random.Generator, young_share: float) -> tuple[Floats, dict[Horizon, Floats]]:
    known = grid.until(moment)
    if random.random() < young_share:
        known = _shortened(known, random)
    features = build_features(known)
    found = {horizon: to_log(outcome(grid, moment, horizon), features.scale) for horizon in Horizon}
    useful = np.isfinite(found[Horizon.HOUR])
    return features.matrix[useful], {horizon: target[useful] for horizon, target in found.items()}


def _shortened(grid: UsageGrid, random: np.random.Generator) -> UsageGrid:
    hours = np.exp(random.uniform(*_YOUNG_LOG_HOURS, len(grid)))
    ages = np.arange(grid.steps)[::-1]
    return UsageGrid(np.where(ages < hours[:, None] * STEPS_PER_HOUR, grid.values, np.nan), grid.end)


def _fit(rows: TrainingRows, horizon: Horizon, level: float, options: TrainingOptions) -> HistGradientBoostingRegressor:
    from sklearn.ensemble import HistGradientBoostingRegressor

    target = rows.targets[horizon]
    measured = np.isfinite(target)
    ensemble = HistGradientBoostingRegressor(
        loss="quantile",
        quantile=level,
        max_iter=options.iterations,
        learning_rate=options.learning_rate,
        max_leaf_nodes=options.leaves,
        min_samples_leaf=options.min_leaf_rows,
        early_stopping=False,
        random_state=options.seed,
    )
    return ensemble.fit(rows.matrix[measured], target[measured])
