"""How good the global model is on series that it never saw: the figures of a model card.

Series are dealt to folds, and each is judged by a model that was trained on the other folds. Series that share a workload are dealt
together: one of ten replicas says nearly all of the other nine. What is judged is the forecaster that serves, from history to amounts, next
to the quantiles of the last week (``seasonal.TrailingForecaster``), at the same moments.

Errors are counted in the series' own scale, so that large containers do not decide alone, and averaged over moments within a source.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from vpa_ippr.api.errors import UsageError
from vpa_ippr.api.series import Floats
from vpa_ippr.forecast.boosting import BoostingForecaster, BoostingModel
from vpa_ippr.forecast.features import scale_of
from vpa_ippr.forecast.grid import UsageGrid
from vpa_ippr.forecast.quantiles import GridForecaster, Horizon
from vpa_ippr.forecast.seasonal import TrailingForecaster
from vpa_ippr.forecast.training import HISTORY_STEPS, TrainingOptions, collect_rows, fit_rows, looks, outcome

JUDGED: Final = (0.5, 0.8, 0.9, 0.95)
MIN_FOLDS: Final = 2
# At how many moments each source of a card is judged.
MOMENTS: Final = 3_000


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """Series of one origin and resource. ``groups`` (series,): those of one name share a workload."""

    name: str
    kind: str
    grid: UsageGrid
    groups: tuple[str, ...]

    @property
    def days(self) -> float:
        """Recorded days, over all series, gaps not counted."""
        return float(np.isfinite(self.grid.values).sum()) / (Horizon.DAY.steps)


@dataclass(frozen=True, slots=True, eq=False)
class Trials:
    """What was said and what came, each as a share of the scale: ``outcomes`` (moments,); ``forecasts`` (moments, ``JUDGED``)."""

    outcomes: Floats
    model: Floats
    trailing: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Looked:
    """What forecasters said of some series at one moment, and what came.

    ``outcomes`` and ``scale`` (rows,), ``told`` (rows, levels) of each.
    """

    horizon: Horizon
    rows: NDArray[np.int64]
    outcomes: Floats
    scale: Floats
    told: tuple[Floats, ...]


@dataclass(frozen=True, slots=True)
class Score:
    """Means over moments at each level of ``JUDGED``: pinball loss of the model and of the trailing quantile, coverage of the model."""

    moments: int
    pinball: tuple[float, ...]
    trailing: tuple[float, ...]
    coverage: tuple[float, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Quality:
    """How a source was forecast; no score for a horizon that not one series is long enough for."""

    source: Source
    scores: Mapping[Horizon, Score]


def cross_validate(
    sources: Sequence[Source], options: TrainingOptions, folds: int, moments: int, tell: Callable[[int], None]
) -> list[Quality]:
    """Judge every series by a model that saw neither it nor its siblings, at so many moments of each source.

    ``tell`` gets the number of folds that are done.

    Raises:
        UsageError: there are fewer workloads than folds, or too little data to train on.
    """
    random = np.random.default_rng(options.seed)
    fold_of = deal([source.groups for source in sources], folds, random)
    rows = collect_rows([source.grid for source in sources], options)
    trials: list[dict[Horizon, list[Trials]]] = [{horizon: [] for horizon in Horizon} for _ in sources]
    for fold in range(folds):
        model = fit_rows(rows.chosen(np.concatenate(fold_of)[rows.series] != fold), options)
        for source, numbers, found in zip(sources, fold_of, trials, strict=True):
            each = math.ceil(moments / len(source.grid))
            for horizon, tried in _tried(model, source.grid.values[numbers == fold], each, random):
                found[horizon].append(tried)
        tell(fold + 1)
    return [Quality(source, _scores(found)) for source, found in zip(sources, trials, strict=True)]


def judge(model: BoostingModel, source: Source, seed: int, moments: int) -> Quality:
    """Judge a model on a source that it never saw, at so many moments."""
    trials: dict[Horizon, list[Trials]] = {horizon: [] for horizon in Horizon}
    for horizon, tried in _tried(model, source.grid.values, math.ceil(moments / len(source.grid)), np.random.default_rng(seed)):
        trials[horizon].append(tried)
    return Quality(source, _scores(trials))


def deal(groups: Sequence[Sequence[str]], folds: int, random: np.random.Generator) -> list[NDArray[np.int64]]:
    """The fold of each series of each source: a source's workloads are spread evenly, and each stays whole."""
    names = {name for source in groups for name in source}
    if not MIN_FOLDS <= folds <= len(names):
        raise UsageError(
            f"cannot deal {len(names)} workloads to {folds} folds: give {MIN_FOLDS} folds at least and as many workloads",
            reason="TooLittleData",
        )
    fold_of_name: dict[str, int] = {}
    for source in groups:
        fresh = sorted(set(source) - set(fold_of_name))
        # Each source begins where the last one stopped, so that small sources do not all fall into the first folds.
        places = len(fold_of_name) + random.permutation(len(fresh))
        fold_of_name |= {name: int(place) % folds for name, place in zip(fresh, places, strict=True)}
    return [np.array([fold_of_name[name] for name in source], dtype=np.int64) for source in groups]


def look_back(
    forecasters: Sequence[GridForecaster], levels: Sequence[float], grid: UsageGrid, each: int, random: np.random.Generator
) -> Iterator[Looked]:
    """Ask the forecasters at ``each`` moments of every series; what came is known, and rows of which it is not are left out."""
    for rows, window in looks(grid, each, random):
        known = window.until(HISTORY_STEPS)
        scale = scale_of(known)
        fitted = [forecaster.fit(known) for forecaster in forecasters]
        for horizon in Horizon:
            came = outcome(window, HISTORY_STEPS, horizon)
            there = np.isfinite(came) & (scale > 0)
            told = tuple(one.predict(horizon, levels).values[there] for one in fitted)
            yield Looked(horizon, rows[there], came[there], scale[there], told)


def _tried(model: BoostingModel, usage: Floats, each: int, random: np.random.Generator) -> Iterator[tuple[Horizon, Trials]]:
    forecasters = (BoostingForecaster(model), TrailingForecaster())
    for one in look_back(forecasters, JUDGED, UsageGrid(usage, 0.0), each, random):
        yield one.horizon, Trials(one.outcomes / one.scale, *(told / one.scale[:, None] for told in one.told))


def _scores(trials: Mapping[Horizon, Sequence[Trials]]) -> dict[Horizon, Score]:
    found = {}
    for horizon, tried in trials.items():
        outcomes = np.concatenate([np.empty(0), *(one.outcomes for one in tried)])
        if outcomes.size:
            model, trailing = (np.concatenate([getattr(one, name) for one in tried]) for name in ("model", "trailing"))
            covered = (outcomes[:, None] <= model).mean(axis=0)
            found[horizon] = Score(outcomes.size, _pinball(outcomes, model), _pinball(outcomes, trailing), tuple(covered.tolist()))
    return found


def _pinball(outcomes: Floats, forecasts: Floats) -> tuple[float, ...]:
    """``max(q e, (q - 1) e)`` of the error ``e``, in the mean, at each level q."""
    levels = np.array(JUDGED)
    errors = outcomes[:, None] - forecasts
    return tuple(np.maximum(levels * errors, (levels - 1) * errors).mean(axis=0).tolist())
