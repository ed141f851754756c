"""Which series are kept apart from which: all series of a container, and of its siblings, lie in one fold."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from vpa_ippr.backtest.grid import Fleet
from vpa_ippr.forecast.crossvalidation import deal

# Tasks of one collection are numbered: ``c113812204462-11``. They do the same work, so one tells of the other.
_NUMBER: Final = re.compile(r"-\d+$")


def groups_of(fleet: Fleet) -> list[str]:
    """The source of each series and what is common to the names of its siblings."""
    return [f"{source}/{_NUMBER.sub('', name.rpartition('/')[2])}" for source, name in zip(fleet.sources, fleet.names, strict=True)]


def dealt(fleets: Sequence[Fleet], folds: int, seed: int) -> dict[str, int]:
    """The fold of each group of these fleets, as the training's own cross-validation deals them.

    Raises:
        UsageError: there are fewer groups than folds.
    """
    groups = [groups_of(fleet) for fleet in fleets]
    numbers = deal(groups, folds, np.random.default_rng(seed))
    return {name: number for names, found in zip(groups, numbers, strict=True) for name, number in zip(names, found.tolist(), strict=True)}


def fold_of(fleet: Fleet, fold_of_group: Mapping[str, int]) -> NDArray[np.int64]:
    """The fold of each series."""
    return np.array([fold_of_group[group] for group in groups_of(fleet)], dtype=np.int64)
