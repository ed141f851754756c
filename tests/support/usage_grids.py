"""Made-up usage on a grid, for tests of what forecasts it."""

from __future__ import annotations

import numpy as np

from vpa_ippr.forecast.grid import UsageGrid
from vpa_ippr.forecast.training import TrainingOptions

END = 1_767_225_600.0
PER_HOUR, PER_DAY = 12, 288
# A global model that is trained in a second or two and still better than no model.
SMALL_TRAINING = TrainingOptions(levels=(0.5, 0.8, 0.9, 0.98), rows=2_000, iterations=8, learning_rate=0.3, leaves=8, min_leaf_rows=20)


def daily(count: int, days: float, *, seed: int = 0, noise: float = 0.1) -> UsageGrid:
    """Daily rhythms of different sizes and hours with noise that is never below zero."""
    random = np.random.default_rng(seed)
    steps = np.arange(round(days * PER_DAY))
    size, swing, phase = random.lognormal(-1, 1, count), random.uniform(0.2, 0.9, count), random.uniform(0, 2 * np.pi, count)
    rhythm = 1 + swing[:, None] * np.sin(2 * np.pi * steps / PER_DAY + phase[:, None])
    return UsageGrid(size[:, None] * rhythm * random.gamma(1 / noise**2, noise**2, rhythm.shape), END)


def with_gaps(grid: UsageGrid, *, seed: int = 0) -> UsageGrid:
    """The same with a long gap in every series and one step in fifty missing."""
    random = np.random.default_rng(seed)
    values = np.where(random.random(grid.values.shape) < 0.02, np.nan, grid.values)
    for row in values:
        begin = int(random.integers(grid.steps // 2))
        row[begin : begin + 6 * PER_HOUR] = np.nan
    return UsageGrid(values, grid.end)


def of_rows(*rows: np.ndarray) -> UsageGrid:
    """Series of different lengths that end together."""
    steps = max(len(row) for row in rows)
    return UsageGrid(np.stack([np.concatenate((np.full(steps - len(row), np.nan), row)) for row in rows]), END)
