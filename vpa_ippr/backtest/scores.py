"""How good an allocation was: what it wasted, when it was too small, how often it killed, how often it moved.

``a`` is the allocation, ``u`` the usage, sums over the scored slots of a series. Slack is ``sum max(0, a - u) dt``, relative slack its
share of ``sum a dt``; violation time is the share of slots with ``u > a``, violation volume ``sum max(0, u - a) / sum u``. Both are
needed: a static percentile concentrates its misses in whole peak hours, so it looks good on time and bad on volume.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from vpa_ippr.api.series import Floats, Resource
from vpa_ippr.backtest.actuator import Mask
from vpa_ippr.backtest.grid import DAY_SECONDS, Fleet
from vpa_ippr.backtest.replay import Replay

_HOUR_SECONDS: Final = 3600.0
_GIB: Final = 1024.0**3


@dataclass(frozen=True, slots=True, eq=False)
class SeriesScores:
    """Scores of each of n series over its scored slots, shape (n,) each.

    ``allocated`` and ``slack`` are core-hours or GiB-hours. Rates are events per container-day. ``ooms_per_day`` counts slots whose
    memory was above the limit; it is 0 for CPU. ``pinball`` (as a share of the mean use) and ``coverage`` are those of the policy's
    forecasts, NaN for one that makes none. What a series without a scored slot would divide by nothing is NaN.
    """

    days: Floats
    allocated: Floats
    slack: Floats
    relative_slack: Floats
    violation_time: Floats
    violation_volume: Floats
    ooms_per_day: Floats
    any_oom: Floats
    resizes_per_day: Floats
    pinball: Floats
    coverage: Floats


def slots_to_score(fleet: Fleet, replays: Sequence[Replay], warmup_seconds: float) -> Mask:
    """The slots that count, shape (n, T): recorded, after the warm-up, and with an allocation by every policy."""
    scored = np.isfinite(fleet.usage)
    scored[:, : round(warmup_seconds / fleet.step_seconds)] = False
    for one in replays:
        scored &= np.isfinite(one.allocation)
    return scored


def score(fleet: Fleet, replayed: Replay, scored: Mask) -> SeriesScores:
    """The scores of one replay. A resize in a gap between scored slots counts, one before or after them all does not."""
    unit = fleet.step_seconds / _HOUR_SECONDS / (1.0 if fleet.resource is Resource.CPU else _GIB)
    used = np.where(scored, fleet.usage, 0.0)
    held = np.where(scored, replayed.allocation, 0.0)
    slots = scored.sum(axis=1)
    days = slots * (fleet.step_seconds / DAY_SECONDS)
    slack = np.maximum(held - used, 0.0).sum(axis=1)
    over = used > held
    pinball, coverage = _of_forecasts(fleet, replayed, scored)
    kills = over.sum(axis=1) if fleet.resource is Resource.MEMORY else np.zeros(len(fleet))
    return SeriesScores(
        days=days,
        allocated=held.sum(axis=1) * unit,
        slack=slack * unit,
        relative_slack=_shares(slack, held.sum(axis=1)),
        violation_time=_shares(over.sum(axis=1), slots),
        violation_volume=_shares(np.maximum(used - held, 0.0).sum(axis=1), used.sum(axis=1), slots > 0),
        ooms_per_day=_shares(kills, days),
        any_oom=np.where(slots > 0, (kills > 0).astype(np.float64), np.nan),
        resizes_per_day=_shares((replayed.resized & _span(scored)).sum(axis=1), days),
        pinball=pinball,
        coverage=coverage,
    )


def _of_forecasts(fleet: Fleet, replayed: Replay, scored: Mask) -> tuple[Floats, Floats]:
    """Pinball loss and coverage of what was forecast at scored slots, over the horizons of which at least half was recorded."""
    nothing = np.full(len(fleet), np.nan)
    moments = [slot for slot in replayed.forecasts if scored[:, slot].any()]
    if not moments:
        return nothing, nothing
    said = np.stack([np.where(scored[:, slot], replayed.forecasts[slot].values, np.nan) for slot in moments], axis=1)
    first = replayed.forecasts[moments[0]]
    came = _largest_after(fleet.usage, moments, round(first.horizon_seconds / fleet.step_seconds))
    usual = _shares(np.where(scored, fleet.usage, 0.0).sum(axis=1), scored.sum(axis=1))
    return _shares(pinball_loss(came, said, first.quantile), usual), coverage(came, said)


def _largest_after(usage: Floats, moments: Sequence[int], slots: int) -> Floats:
    """The largest use of so many slots from each moment on; NaN where less than half of them was recorded."""
    result = np.full((len(usage), len(moments)), np.nan)
    for column, moment in enumerate(moments):
        after = usage[:, moment : moment + slots]
        known = np.isfinite(after).sum(axis=1) * 2 >= slots
        result[known, column] = np.fmax.reduce(after[known], axis=1)
    return result


def pinball_loss(actual: Floats, forecast: Floats, quantile: float) -> Floats:
    """Mean of ``max(q (y - f), (q - 1) (y - f))`` of each row, over the columns where both are known; NaN for a row with none."""
    error = actual - forecast
    known = np.isfinite(error)
    losses = np.where(known, np.maximum(quantile * error, (quantile - 1) * error), 0.0)
    return _shares(losses.sum(axis=1), known.sum(axis=1))


def coverage(actual: Floats, forecast: Floats) -> Floats:
    """Share of each row's columns in which the actual value is not above the forecast; NaN for a row with none."""
    known = np.isfinite(actual) & np.isfinite(forecast)
    return _shares((known & (actual <= forecast)).sum(axis=1), known.sum(axis=1))


def _shares(part: Floats, whole: Floats, zero_where: Mask | None = None) -> Floats:
    """Part by whole; where the whole is 0 there is no share, or 0 of it where ``zero_where`` says so."""
    missing = np.nan if zero_where is None else np.where(zero_where, 0.0, np.nan)
    result = np.broadcast_to(np.asarray(missing, np.float64), np.shape(part)).copy()
    np.divide(part, whole, out=result, where=np.asarray(whole) > 0)
    return result


def _span(scored: Mask) -> Mask:
    """True from each row's first scored slot to its last."""
    begun = np.logical_or.accumulate(scored, axis=1)
    not_over = np.logical_or.accumulate(scored[:, ::-1], axis=1)[:, ::-1]
    span: Mask = begun & not_over
    return span
