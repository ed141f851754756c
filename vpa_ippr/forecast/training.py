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
from numpy.typing import NDArray

from vpa_ippr.api.errors import UsageError
from vpa_ippr.api.series import Floats
from vpa_ippr.forecast.boosting import BoostingModel, answers_of
from vpa_ippr.forecast.features import HISTORY_DAYS, NAMES, build_features, to_log
from vpa_ippr.forecast.grid import HOURS_PER_DAY, STEPS_PER_HOUR, UsageGrid, maxima
from vpa_ippr.forecast.quantiles import LEVELS, Horizon

if TYPE_CHECKING:
    from sklearn.ensemble import HistGradientBoostingRegressor

HISTORY_STEPS: Final = HISTORY_DAYS * HOURS_PER_DAY * STEPS_PER_HOUR
_PROBE_ROWS: Final = 32
# 17 MB of history: enough for numpy to be quick.
_LOOKS_AT_ONCE: Final = 500
_MIN_ROWS: Final = 500
# A row whose history is cut short teaches the model what to say of a young container: from an hour to a week, each length as likely on a
# logarithmic scale.
_YOUNG_LOG_HOURS: Final = (math.log(1), math.log(168))


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """How to train; the defaults train on 1,000 series in less than a minute of one core.

    ``rows``: how many rows to aim for, over all sources. ``young_share``: how many of them are looked at with a shortened
    history. The others are scikit-learn's.
    """

    levels: tuple[float, ...] = LEVELS
    rows: int = 60_000
    young_share: float = 0.2
    iterations: int = 120
    learning_rate: float = 0.1
    leaves: int = 16
    min_leaf_rows: int = 100
    seed: int = 0


DEFAULT_TRAINING: Final = TrainingOptions()


@dataclass(frozen=True, slots=True, eq=False)
class TrainingRows:
    """Features and what came after.

    ``matrix`` (rows, features). ``targets[horizon]`` (rows,) in log ratios, NaN where it was not measured. ``series`` (rows,): which series
    a row looks at, counted through all sources in their order.
    """

    matrix: Floats
    targets: Mapping[Horizon, Floats]
    series: NDArray[np.int64]

    def chosen(self, rows: NDArray[np.bool_]) -> TrainingRows:
        """Those for which ``rows`` is true."""
        return TrainingRows(self.matrix[rows], {horizon: target[rows] for horizon, target in self.targets.items()}, self.series[rows])


def train(grids: Sequence[UsageGrid], options: TrainingOptions = DEFAULT_TRAINING) -> BoostingModel:
    """Train on sources of series.

    Raises:
        UsageError: there is too little data to learn anything from.
    """
    return fit_rows(collect_rows(grids, options), options)


def fit_rows(rows: TrainingRows, options: TrainingOptions = DEFAULT_TRAINING) -> BoostingModel:
    """Train on rows that were collected before; UsageError as ``train``."""
    usable = min(int(np.isfinite(target).sum()) for target in rows.targets.values())
    if usable < _MIN_ROWS:
        raise UsageError(f"{usable} rows to train on, at least {_MIN_ROWS} are needed: give longer or more series", reason="TooLittleData")
    ensembles = {horizon: tuple(_fit(rows, horizon, level, options) for level in options.levels) for horizon in Horizon}
    probe = rows.matrix[:: max(len(rows.matrix) // _PROBE_ROWS, 1)][:_PROBE_ROWS].copy()
    untold = BoostingModel(options.levels, ensembles, probe, np.empty((0, 0)))
    return BoostingModel(options.levels, ensembles, probe, answers_of(untold))


def collect_rows(grids: Sequence[UsageGrid], options: TrainingOptions) -> TrainingRows:
    """Look at each series of each source at moments drawn from its whole length."""
    random = np.random.default_rng(options.seed)
    shares = np.sqrt([np.isfinite(grid.values).sum() for grid in grids])
    first_series = np.cumsum([0, *(len(grid) for grid in grids)])
    matrices: list[Floats] = [np.empty((0, len(NAMES)))]
    targets: dict[Horizon, list[Floats]] = {horizon: [np.empty(0)] for horizon in Horizon}
    series: list[NDArray[np.int64]] = [np.empty(0, dtype=np.int64)]
    for grid, first, share in zip(grids, first_series, shares / max(shares.sum(), 1.0), strict=False):
        for rows, window in looks(grid, math.ceil(options.rows * share / max(len(grid), 1)), random):
            features = build_features(_shortened(window.until(HISTORY_STEPS), random, options.young_share))
            found = {horizon: to_log(outcome(window, HISTORY_STEPS, horizon), features.scale) for horizon in Horizon}
            useful = np.isfinite(found[Horizon.HOUR])
            matrices.append(features.matrix[useful])
            series.append(first + rows[useful])
            for horizon in Horizon:
                targets[horizon].append(found[horizon][useful])
    joined = {horizon: np.concatenate(parts) for horizon, parts in targets.items()}
    return TrainingRows(np.concatenate(matrices), joined, np.concatenate(series))


def looks(grid: UsageGrid, count: int, random: np.random.Generator) -> Iterator[tuple[NDArray[np.int64], UsageGrid]]:
    """Each series around ``count`` moments spread over its recording (all its moments if it has fewer), some hundred looks at a time.

    Gives the row of ``grid`` that each look is at, and a grid with ``HISTORY_STEPS`` before each moment and a day after it. The rows of
    that grid agree in nothing but where the moment is: its end is a time of no clock.
    """
    measured = np.isfinite(grid.values)
    first = measured.argmax(axis=1) + STEPS_PER_HOUR
    last = grid.steps - measured[:, ::-1].argmax(axis=1) - Horizon.HOUR.steps
    moments = np.where(measured.any(axis=1), np.maximum(last - first + 1, 0), 0)
    times = np.minimum(moments, count)
    rows = np.repeat(np.arange(len(grid)), times)
    # Each look at a series has its own stretch of the recording, in which the moment is drawn.
    stretch = np.arange(rows.size) - np.repeat(np.cumsum(times) - times, times)
    chosen = first[rows] + np.floor((stretch + random.random(rows.size)) / times[rows] * moments[rows]).astype(np.int64)
    around = np.arange(-HISTORY_STEPS, Horizon.DAY.steps)
    for begin in range(0, rows.size, _LOOKS_AT_ONCE):
        seen = rows[begin : begin + _LOOKS_AT_ONCE]
        columns = chosen[begin : begin + _LOOKS_AT_ONCE, None] + around
        values = grid.values[seen[:, None], np.clip(columns, 0, grid.steps - 1)]
        values[(columns < 0) | (columns >= grid.steps)] = np.nan
        yield seen, UsageGrid(values, grid.end)


def outcome(grid: UsageGrid, moment: int, horizon: Horizon) -> Floats:
    """The largest use of each series in the horizon that begins after so many steps; NaN where less than half of it was measured."""
    after = grid.values[:, moment : moment + horizon.steps]
    return np.where(np.isfinite(after).sum(axis=1) * 2 >= horizon.steps, maxima(after), np.nan)


def _shortened(grid: UsageGrid, random: np.random.Generator, young_share: float) -> UsageGrid:
    hours = np.exp(random.uniform(*_YOUNG_LOG_HOURS, len(grid)))
    hours[random.random(len(grid)) >= young_share] = np.inf
    ages = np.arange(grid.steps)[::-1]
    return UsageGrid(np.where(ages < hours[:, None] * STEPS_PER_HOUR, grid.values, np.nan), grid.end)


def _fit(rows: TrainingRows, horizon: Horizon, level: float, options: TrainingOptions) -> HistGradientBoostingRegressor:
    from sklearn.ensemble import HistGradientBoostingRegressor
    from threadpoolctl import threadpool_limits

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
    matrix = rows.matrix[measured]
    # scikit-learn trips over a feature that is never known, such as last week's in recordings of three days; no tree splits on a constant.
    matrix[:, ~np.isfinite(matrix).any(axis=0)] = 0.0
    # One thread: the number of threads is kept in the file, which must not depend on the machine. The limit binds only libraries that are
    # loaded by then, so it does not go around the import above.
    with threadpool_limits(limits=1):
        return ensemble.fit(matrix, target[measured])
