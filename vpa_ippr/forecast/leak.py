"""Leaks: memory whose *floor* keeps rising, with the time until it meets the limit.

A heap that is collected falls back: its peaks rise, the least it uses between two collections does not. A daily rhythm rises for hours, but
not above where it was yesterday. So a leak is growth of block minima that
- goes one way (Kendall's tau of 12 blocks) and does not fall back by more than a part of what it gained,
- leads above everything the same blocks ever showed before,
- is still going on in the second half of the window (a cache that fills slows down),
- is not for the most part one jump, and
- is larger than the noise around it, and than what use moves by from one step to the next: where collections keep step with the sampling,
  the least that is seen of a heap creeps up by as much.

The same test runs over windows from 3 hours to 12 days, because a leak that fills the limit in ten hours and one that takes two weeks look
alike, but not in one window. Slopes are Theil-Sen medians with their order-statistic confidence interval; nothing assumes normal errors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from vpa_ippr.api.series import Finding, Floats
from vpa_ippr.forecast.grid import HOURS_PER_DAY, STEPS_PER_HOUR, UsageGrid, divided, maxima, minima

_BLOCKS: Final = 12
_HISTORY_HOURS: Final = 14 * HOURS_PER_DAY
_BLOCK_HOURS: Final = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 24.0)
_FINEST_STEPS: Final = 3  # the first of them
# Signs of the 66 pairs add up to at least 46: by chance once in 1,000 windows without a trend (normal approximation, z = 3.1).
_MIN_TAU: Final = 0.7
_MAX_FALL_BACK: Final = 0.25
_MIN_NEW_GROUND: Final = 0.5
_MIN_LATE_SHARE: Final = 0.25
_MAX_JUMP_SHARE: Final = 0.5
_MIN_GROWTH_STEPS: Final = 1.5
_CONFIDENCE_Z: Final = 1.645  # two-sided 90 %


@dataclass(frozen=True, slots=True)
class LeakRules:
    """When growth counts: at least this share of the level, over the whole window; young series need so many hours of history."""

    min_growth_share: float = 0.02
    min_history_hours: float = 3.0


DEFAULT_LEAK_RULES: Final = LeakRules()


@dataclass(frozen=True, slots=True, eq=False)
class Leaks:
    """One entry a series; everything but ``found`` is NaN where no leak was found.

    ``slope``: bytes per hour, with the 90 % interval ``slope_low`` to ``slope_high``. ``confidence``: Kendall's tau of the floor, 0 to 1.
    ``window_hours``: the stretch that showed it. ``hours_to_limit``: until the use meets the limit at ``slope``; ``hours_to_limit_soonest``
    at ``slope_high``; infinite without a limit.
    """

    found: NDArray[np.bool_]
    slope: Floats
    slope_low: Floats
    slope_high: Floats
    confidence: Floats
    window_hours: Floats
    hours_to_limit: Floats
    hours_to_limit_soonest: Floats

    def finding(self, row: int, subject: str) -> Finding:
        """The warning for one series, for a person."""
        left = self.hours_to_limit[row]
        when = (
            f"meets its limit in {left:.0f} h ({self.hours_to_limit_soonest[row]:.0f} h at the soonest)"
            if math.isfinite(left)
            else "has no limit"
        )
        message = f"memory grows by {self.slope[row] / 2**20:.1f} MiB/h for {self.window_hours[row]:.0f} h without falling back and {when}"
        return Finding("MemoryLeak", subject, 1, message)


def find_leaks(grid: UsageGrid, limits: Floats | None = None, rules: LeakRules = DEFAULT_LEAK_RULES) -> Leaks:
    """Look for leaks at the end of the grid; ``limits`` (series,) in the unit of the grid, NaN for none.

    Of the windows that show a leak the longest counts: its slope is the surest.
    """
    count = len(grid)
    unknown = np.full(count, np.nan)
    result = Leaks(np.zeros(count, np.bool_), *(unknown for _ in range(7)))
    known_hours = np.isfinite(grid.values).sum(axis=1) / STEPS_PER_HOUR
    least_growth = _usual_move(grid) * _MIN_GROWTH_STEPS
    finest = minima(grid.blocks(_FINEST_STEPS, _HISTORY_HOURS * STEPS_PER_HOUR // _FINEST_STEPS))
    for block_hours in _BLOCK_HOURS:
        floors = minima(UsageGrid(finest, grid.end).blocks(round(block_hours / _BLOCK_HOURS[0]), round(_HISTORY_HOURS / block_hours)))
        result = _longer(result, _in_window(floors, block_hours, least_growth, rules))
    found = result.found & (known_hours >= rules.min_history_hours)
    return _with_times(replace(result, found=found), grid, unknown if limits is None else limits)


def _longer(short: Leaks, long: Leaks) -> Leaks:
    def chosen(name: str) -> Floats:
        return np.where(long.found, np.asarray(getattr(long, name)), np.asarray(getattr(short, name)))

    values = {name: chosen(name) for name in ("slope", "slope_low", "slope_high", "confidence", "window_hours")}
    return replace(short, found=short.found | long.found, **values)


def _in_window(floors: Floats, block_hours: float, least_growth: Floats, rules: LeakRules) -> Leaks:
    inside, before = floors[:, -_BLOCKS:], maxima(floors[:, :-_BLOCKS])
    tau, slopes = _trend(inside)
    growth = slopes[:, 1] * (_BLOCKS - 1)
    # With nothing before it the window's own beginning is all there is to compare with.
    new_ground = inside[:, -1] - np.fmax(before, inside[:, 0])
    late = (inside[:, -1] - inside[:, _BLOCKS // 2]) / (_BLOCKS - 1 - _BLOCKS // 2)
    rise = inside[:, -1] - minima(inside)
    fall_back = maxima(np.fmax.accumulate(inside, axis=1) - inside)
    with_noise = np.fmax(rules.min_growth_share * np.abs(inside[:, -1]), _noise(inside, slopes[:, 1]) * 4)
    found = (
        (tau >= _MIN_TAU)
        & (slopes[:, 0] > 0)
        & (growth >= np.fmax(with_noise, least_growth))
        & (fall_back <= _MAX_FALL_BACK * growth)
        & (new_ground >= _MIN_NEW_GROUND * growth)
        & (late >= _MIN_LATE_SHARE * slopes[:, 1])
        & (maxima(np.diff(inside, axis=1)) <= _MAX_JUMP_SHARE * rise)
        & np.isfinite(inside[:, -1])
    )
    per_hour = slopes / block_hours
    unknown = np.full(len(floors), np.nan)
    window = np.full(len(floors), block_hours * _BLOCKS)
    return Leaks(found, per_hour[:, 1], per_hour[:, 0], per_hour[:, 2], tau, window, unknown, unknown)


def _trend(values: Floats) -> tuple[Floats, Floats]:
    """Kendall's tau, and the Theil-Sen slope per block as (low, median, high); gaps leave pairs out, and too many make all NaN."""
    late, early = np.triu_indices(values.shape[1], 1)[::-1]
    rises = values[:, late] - values[:, early]
    slopes = np.sort(rises / (late - early), axis=1)
    pairs = np.isfinite(rises).sum(axis=1)
    tau = divided(np.nansum(np.sign(rises), axis=1), pairs)
    points = np.isfinite(values).sum(axis=1)
    half_width = _CONFIDENCE_Z * np.sqrt(points * (points - 1) * (2 * points + 5) / 18) / 2
    middle = (pairs - 1) / 2
    places = np.stack((middle - half_width, middle, middle + half_width), axis=1)
    rounded = np.clip(np.rint(places), 0, np.maximum(pairs - 1, 0)[:, None]).astype(np.int64)
    found = np.take_along_axis(slopes, rounded, axis=1)
    enough = points >= values.shape[1] * 2 // 3
    return np.where(enough, tau, np.nan), np.where(enough[:, None], found, np.nan)


def _noise(values: Floats, slope: Floats) -> Floats:
    """Median absolute distance from the line."""
    distances = values - slope[:, None] * np.arange(values.shape[1])
    ordered = np.sort(np.abs(distances - _median(distances)[:, None]), axis=1)
    return _median(ordered)


def _usual_move(grid: UsageGrid) -> Floats:
    """By how much use differs from one step to the next, in the middle of the last day's."""
    return _median(np.abs(np.diff(grid.values[:, -HOURS_PER_DAY * STEPS_PER_HOUR :], axis=1)))


def _median(values: Floats) -> Floats:
    ordered = np.sort(values, axis=1)
    middle = np.maximum(np.isfinite(values).sum(axis=1) - 1, 0) // 2
    return np.take_along_axis(ordered, middle[:, None], axis=1)[:, 0]


def _with_times(leaks: Leaks, grid: UsageGrid, limits: Floats) -> Leaks:
    """Hours until the largest use of the last hour, carried on, meets the limit; nothing is kept where no leak was found."""
    room = np.maximum(limits - maxima(grid.blocks(STEPS_PER_HOUR, 1)[:, 0]), 0.0)
    room = np.where(np.isfinite(room), room, np.inf)

    def only_found(values: Floats) -> Floats:
        return np.where(leaks.found, values, np.nan)

    return Leaks(
        leaks.found,
        only_found(leaks.slope),
        only_found(leaks.slope_low),
        only_found(leaks.slope_high),
        only_found(leaks.confidence),
        only_found(leaks.window_hours),
        only_found(np.divide(room, leaks.slope, out=np.full(len(grid), np.nan), where=leaks.found)),
        only_found(np.divide(room, leaks.slope_high, out=np.full(len(grid), np.nan), where=leaks.found)),
    )
