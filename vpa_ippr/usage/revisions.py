"""History across rollouts: what an earlier revision used, as the present one would have.

A new revision may need more or less than the one before. Its hours are compared with the other's hours of the same time of day, and the
other's history is scaled by the ratio, as far as the ratio is known: by ``n / (n + k)`` of its logarithm after n hours. More is believed
quickly (an hour of overrun costs more than a day of slack), less slowly. Coming back to a revision finds its own history as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from vpa_ippr.api.series import Floats
from vpa_ippr.usage.steps import STEPS_PER_HOUR

_HOURS_PER_DAY: Final = 24
_MAX_SEGMENTS: Final = 16


class RevisionRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``up_hours`` and ``down_hours``: hours after which half of a rise or a fall is believed; ratios within ``noise`` of 1 are none."""

    up_hours: float = 0.1
    down_hours: float = 6.0
    noise: float = 0.25


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """From step ``begin`` on the pods were of ``revision``, until the next segment begins."""

    begin: int
    revision: str


def followed(segments: Sequence[Segment], revision: str, begin: int) -> tuple[Segment, ...]:
    """The segments once ``revision`` is seen to have begun at that step.

    The first one that is seen is taken for that of all history: its pods may only have been moved. A revision that is the present one
    already changes nothing, nor does one that began before the present one: its pods are still there during a rollout.
    """
    if not segments:
        return (Segment(0, revision),)
    if segments[-1].revision == revision or begin <= segments[-1].begin:
        return tuple(segments)
    return (*segments, Segment(begin, revision))[-_MAX_SEGMENTS:]


def rebased(values: Floats, end: int, segments: Sequence[Segment], rules: RevisionRules) -> Floats:
    """The row ``values`` that ends before step ``end``, with other revisions' parts scaled to the present one.

    What was there before the first segment belongs to an unknown revision. Segments that begin at ``end`` or later are not known yet.
    """
    begun = [segment for segment in segments if segment.begin < end]
    begin = end - len(values)
    if not begun or begun[-1].begin <= begin:
        return values
    owners = _owners(begun, begin, end)
    present = owners == owners[-1]
    scaled = values.copy()
    for other in set(owners.tolist()) - {int(owners[-1])}:
        part = owners == other
        scaled[part] = values[part] * _ratio(values, begin, present, part, rules)
    return scaled


def _owners(segments: Sequence[Segment], begin: int, end: int) -> NDArray[np.int64]:
    """For each step a number that stands for its revision; -1 for the time before the first."""
    names = list(dict.fromkeys(segment.revision for segment in segments))
    owners = np.full(end - begin, -1, dtype=np.int64)
    for segment in segments:
        owners[max(segment.begin - begin, 0) :] = names.index(segment.revision)
    return owners


def _ratio(values: Floats, begin: int, present: NDArray[np.bool_], other: NDArray[np.bool_], rules: RevisionRules) -> float:
    """What the present revision needs of what the other did, as far as it is believed."""
    ours, theirs = _by_hour(values, begin, present), _by_hour(values, begin, other)
    usual = np.nanmedian(theirs) if np.isfinite(theirs).any() else np.nan
    against = _usual_by_hour(theirs)
    against = np.where(np.isfinite(against), against, usual)[None, :]
    known = (ours > 0) & (against > 0)
    if not known.any():
        return 1.0
    logs = np.log(np.divide(ours, against, out=np.ones(ours.shape), where=known))[known]
    change = float(np.median(logs))
    if abs(change) <= np.log1p(rules.noise):
        return 1.0
    half = rules.up_hours if change > 0 else rules.down_hours
    hours = float(np.isfinite(values[present]).sum()) / STEPS_PER_HOUR
    return float(np.exp(change * hours / (hours + half)))


def _by_hour(values: Floats, begin: int, chosen: NDArray[np.bool_]) -> Floats:
    """The largest chosen value of each hour, one row a day and one column an hour of the day, NaN where there is none."""
    kept = np.where(chosen, values, np.nan)
    width = STEPS_PER_HOUR * _HOURS_PER_DAY
    before, after = begin % width, -(begin + len(kept)) % width
    padded = np.concatenate((np.full(before, np.nan), kept, np.full(after, np.nan)))
    return np.asarray(np.fmax.reduce(padded.reshape(-1, _HOURS_PER_DAY, STEPS_PER_HOUR), axis=2))


def _usual_by_hour(days: Floats) -> Floats:
    """The median of each column, NaN where nothing is known."""
    ordered = np.sort(days, axis=0)  # NaN goes last
    count = np.isfinite(days).sum(axis=0)
    low, high = (np.maximum(place, 0) for place in ((count - 1) // 2, count // 2))
    high = np.minimum(high, np.maximum(count - 1, 0))
    columns = np.arange(days.shape[1])
    return np.asarray((ordered[low, columns] + ordered[high, columns]) / 2)
