"""Models for judging: the shipped one for series that it never saw, and for the others one that was trained like it without them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from bench.quality.corpus import Recording
from bench.quality.folds import fold_of
from vpa_ippr.forecast.boosting import GRADIENT_BOOSTING, BoostingForecaster, BoostingModel
from vpa_ippr.forecast.families import SYNTHETIC_DAYS, make_up, pooled
from vpa_ippr.forecast.grid import UsageGrid
from vpa_ippr.forecast.quantiles import FittedQuantiles
from vpa_ippr.forecast.training import TrainingOptions, train

# The sources whose licence lets a model that was trained on them be shipped.
OPEN_SOURCES: Final = frozenset({"azure2017", "crane", "google2019", "nab"})
SHIPPED: Final = -1


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the shipped model was trained (``vpa-ippr train``): the options, and how many made-up series of each family it saw."""

    options: TrainingOptions
    synthetic: int


def training_grids(recordings: Sequence[Recording], fold_of_group: Mapping[str, int], without: int, recipe: Recipe) -> list[UsageGrid]:
    """What a model sees that is to judge the fold ``without``: the open series of all other folds, and the made-up ones."""
    grids = []
    for recording in recordings:
        for fleet in recording.fleets.values() if recording.source in OPEN_SOURCES else ():
            others = fleet.chosen(fold_of(fleet, fold_of_group) != without)
            if len(others):
                grids.append(UsageGrid(others.usage, 0.0))
    made_up = [pooled(make_up(recipe.options.seed, recipe.synthetic, SYNTHETIC_DAYS))] if recipe.synthetic else []
    return grids + made_up


def train_one(grids: Sequence[UsageGrid], recipe: Recipe) -> BoostingModel:
    """Train as the shipped model was trained, on other series."""
    return train(grids, recipe.options)


def judges(sources: Sequence[str], folds: NDArray[np.int64], *, held_out: bool) -> NDArray[np.int64]:
    """Which model judges each series: that of its fold, or ``SHIPPED`` for a source, or data, that the shipped model never saw."""
    seen = np.array([source in OPEN_SOURCES and not held_out for source in sources], dtype=np.bool_)
    return np.where(seen, folds, SHIPPED)


@dataclass(frozen=True, slots=True, eq=False)
class RoutedBoosting:
    """The gradient boosting, each series asked of a model of its own; ``model_of`` (series,) indexes ``models``, -1 for the last."""

    models: tuple[BoostingModel, ...]
    model_of: NDArray[np.int64]
    name: str = GRADIENT_BOOSTING

    def fit(self, grid: UsageGrid) -> FittedQuantiles:
        """Ask each series' model."""
        order = np.concatenate([np.flatnonzero(self.model_of == index) for index in np.unique(self.model_of)])
        parts = [self._asked(grid, index) for index in np.unique(self.model_of)]
        back = np.argsort(order)
        return FittedQuantiles(
            parts[0].levels,
            np.concatenate([part.hour for part in parts])[back],
            np.concatenate([part.day for part in parts])[back],
            parts[0].methods,
            np.concatenate([part.method_of for part in parts])[back],
        )

    def _asked(self, grid: UsageGrid, index: int) -> FittedQuantiles:
        rows = self.model_of == index
        return BoostingForecaster(self.models[index]).fit(UsageGrid(grid.values[rows], grid.end))
