"""Learning the smoothing factors of Holt-Winters, one series at a time, with statsmodels; the only costly part of that forecaster.

statsmodels is imported inside the functions: it takes three seconds and 170 MiB. One bad series costs its own factors and nothing else.
"""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from vpa_ippr.api.series import Finding, Floats
from vpa_ippr.forecast.grid import HOURS_PER_DAY, means

_LOG = logging.getLogger(__name__)

# Level, trend, season, damping of the trend: what a series gets whose own factors could not be learned.
DEFAULT_FACTORS: Final = (0.3, 0.02, 0.15, 0.9)
_MIN_DAYS: Final = 4  # the season has 24 unknowns of its own
# The damped trend is added up over a day: below this damping it is worth at most 20 hours of growth.
_DAMPING_BOUNDS: Final = (0.8, 0.95)
_MAX_ITERATIONS: Final = 25  # of L-BFGS-B: later ones move the factors in the third digit, and cost as much again
_CHUNK: Final = 50


@dataclass(frozen=True, slots=True)
class Learned:
    """Factors of each series, shape (series, 4); a row of NaN where they could not be learned, and why, as findings."""

    factors: Floats
    findings: tuple[Finding, ...]


def learn_factors(hours: Floats, jobs: int = 1) -> Learned:
    """From hourly maxima, shape (series, hours), gaps NaN; ``jobs`` processes share the work, the result is the same for any number."""
    chunks = [hours[begin : begin + _CHUNK] for begin in range(0, len(hours), _CHUNK)]
    parts = _in_processes(chunks, jobs) if jobs > 1 and len(chunks) > 1 else map(_learn_chunk, chunks)
    rows: list[tuple[float, ...]] = []
    notes: Counter[tuple[str, str]] = Counter()
    for factors, noted in parts:
        rows.extend(factors)
        notes.update(noted)
    findings = tuple(Finding(reason, "holt-winters", count, message) for (reason, message), count in sorted(notes.items()))
    return Learned(np.array(rows, dtype=np.float64).reshape(len(hours), 4), findings)


_Chunk = tuple[list[tuple[float, ...]], list[tuple[str, str]]]


def _in_processes(chunks: Sequence[Floats], jobs: int) -> Iterator[_Chunk]:
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    # Fresh processes: a fork would copy the locks of this one's threads.
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield from pool.map(_learn_chunk, chunks)


def _learn_chunk(hours: Floats) -> _Chunk:
    from threadpoolctl import threadpool_limits

    factors, notes = [], []
    with threadpool_limits(limits=1):
        for row in hours:
            found, noted = _learn_one(row)
            factors.append(found)
            notes.extend(noted)
    return factors, notes


_NOTHING: Final = (np.nan,) * 4


def _learn_one(row: Floats) -> tuple[tuple[float, ...], list[tuple[str, str]]]:
    known = row[int(np.isfinite(row).argmax()) :]
    if np.isfinite(known).sum() < _MIN_DAYS * HOURS_PER_DAY:
        return _NOTHING, []  # young, not broken
    scale = float(np.nanmean(known))
    if np.nanmax(known) - np.nanmin(known) <= 1e-9 * scale:
        return _NOTHING, []  # constant: every factor fits
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            factors = _estimate(_filled(known) / scale)
        except Exception as error:  # noqa: BLE001 - whatever the optimiser meets in one series, the others go on
            _LOG.warning("holt-winters factors not learned", extra={"error": repr(error)})
            return _NOTHING, [("HoltWintersFailed", type(error).__name__)]
    notes = [("HoltWintersWarning", warning.category.__name__) for warning in caught]
    if not np.isfinite(factors).all():
        return _NOTHING, [*notes, ("HoltWintersFailed", "factors are not finite")]
    return factors, notes


def _estimate(values: Floats) -> tuple[float, ...]:
    from statsmodels.tsa.holtwinters import ExponentialSmoothing

    model = ExponentialSmoothing(
        values,
        trend="add",
        damped_trend=True,
        seasonal="add",
        seasonal_periods=HOURS_PER_DAY,
        initialization_method="heuristic",
        bounds={"damping_trend": _DAMPING_BOUNDS},
    )
    found = model.fit(method="L-BFGS-B", use_brute=False, minimize_kwargs={"options": {"maxiter": _MAX_ITERATIONS}}).params
    return tuple(float(found[key]) for key in ("smoothing_level", "smoothing_trend", "smoothing_seasonal", "damping_trend"))


def _filled(row: Floats) -> Floats:
    """Gaps closed with the mean of the same hour of other days; statsmodels takes no gaps, and a straight line would hide the season."""
    days = -(-row.size // HOURS_PER_DAY)
    padded = np.concatenate((row, np.full(days * HOURS_PER_DAY - row.size, np.nan))).reshape(days, HOURS_PER_DAY)
    by_hour = means(padded.T)
    by_hour = np.where(np.isfinite(by_hour), by_hour, np.nanmean(row))
    return np.where(np.isfinite(row), row, np.tile(by_hour, days)[: row.size])
