"""PromQL functions over a range of samples, for one series and all windows at once.

Each function takes the samples of one series and T windows into them, and gives T values and whether there is one.
The arithmetic follows Prometheus 2.42, ``promql/functions.go``; its windows are closed at both ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from vpa_ippr.sandbox.promvectors import Bools, Floats, Indexes, Millis, quantile_of_rows

# Values gathered at once for quantiles over overlapping windows (32 MB of floats).
_GATHER_LIMIT = 4_000_000


@dataclass(frozen=True, slots=True)
class Windows:
    """Samples of one series, and for each moment the window ``low <= i < high`` into them.

    The window stands for the time from ``starts_ms`` to ``ends_ms``, which is ``range_seconds`` long.
    """

    times_ms: Millis
    values: Floats
    starts_ms: Millis
    ends_ms: Millis
    range_seconds: float
    low: Indexes
    high: Indexes


Result = tuple[Floats, Bools]


def windows_of(times_ms: Millis, values: Floats, ends_ms: Millis, range_ms: int) -> Windows:
    """The windows that end at ``ends_ms`` and reach ``range_ms`` back."""
    starts_ms = ends_ms - range_ms
    low = np.searchsorted(times_ms, starts_ms, side="left")
    high = np.searchsorted(times_ms, ends_ms, side="right")
    return Windows(times_ms, values, starts_ms, ends_ms, range_ms / 1000, low, high)


def _reduced(ufunc: np.ufunc, values: Floats, low: Indexes, high: Indexes) -> Floats:
    """``ufunc`` over ``values[low:high]`` of each window; 0 where a window is empty."""
    out = np.zeros(low.size)
    some = np.flatnonzero(high > low)
    if some.size:
        bounds = np.empty(2 * some.size, dtype=np.intp)
        bounds[0::2], bounds[1::2] = low[some], high[some]
        out[some] = ufunc.reduceat(np.append(values, 0.0), bounds)[0::2]
    return out


def _increase_between(windows: Windows, first: Indexes, last: Indexes, *, counter: bool) -> Floats:
    """Difference of last and first sample; a counter's resets count as a start from zero."""
    values = windows.values
    difference = values[last] - values[first]
    if counter:
        resets = np.flatnonzero(values[1:] < values[:-1])
        begin, end = np.searchsorted(resets, first), np.searchsorted(resets, last)
        # Each window's resets one after the other, in the order in which Prometheus adds (and rounds) them.
        for number in range(int((end - begin).max(initial=0))):
            some = np.flatnonzero(begin + number < end)
            difference[some] += values[resets[begin[some] + number]]
    return difference


def _extrapolated(windows: Windows, *, counter: bool, per_second: bool) -> Result:
    """``extrapolatedRate``: the change between the outer samples, stretched to the window's ends where they are near."""
    out = np.zeros(windows.low.size)
    present = windows.high - windows.low >= 2
    some = np.flatnonzero(present)
    first, last = windows.low[some], windows.high[some] - 1
    change = _increase_between(windows, first, last, counter=counter)
    first_ms, last_ms = windows.times_ms[first], windows.times_ms[last]
    to_start = (first_ms - windows.starts_ms[some]) / 1000
    to_end = (windows.ends_ms[some] - last_ms) / 1000
    sampled = (last_ms - first_ms) / 1000
    spacing = sampled / (last - first)
    if counter:
        # A counter cannot have been below zero: do not stretch past the moment when it would have been.
        first_value = windows.values[first]
        to_zero = sampled * (first_value / change)
        bounded = (change > 0) & (first_value >= 0) & (to_zero < to_start)
        to_start = np.where(bounded, to_zero, to_start)
    threshold = spacing * 1.1
    stretched = sampled + np.where(to_start < threshold, to_start, spacing / 2)
    stretched += np.where(to_end < threshold, to_end, spacing / 2)
    factor = stretched / sampled
    if per_second:
        factor /= windows.range_seconds
    out[some] = change * factor
    return out, present


def _instant_change(windows: Windows, *, rate: bool) -> Result:
    """``irate`` and ``idelta``: from the last two samples alone."""
    out = np.zeros(windows.low.size)
    present = windows.high - windows.low >= 2
    some = np.flatnonzero(present)
    last = windows.high[some] - 1
    change = windows.values[last] - windows.values[last - 1]
    if rate:
        reset = windows.values[last] < windows.values[last - 1]
        change = np.where(reset, windows.values[last], change)
        change = change / ((windows.times_ms[last] - windows.times_ms[last - 1]) / 1000)
    out[some] = change
    return out, present


def _over_time(ufunc: np.ufunc) -> Callable[[Windows], Result]:
    def reduce(windows: Windows) -> Result:
        return _reduced(ufunc, windows.values, windows.low, windows.high), windows.high > windows.low

    return reduce


def _average(windows: Windows) -> Result:
    total, present = _over_time(np.add)(windows)
    return total / np.maximum(windows.high - windows.low, 1), present


def _count(windows: Windows) -> Result:
    return (windows.high - windows.low).astype(np.float64), windows.high > windows.low


def _last(windows: Windows) -> Result:
    out = np.zeros(windows.low.size)
    present = windows.high > windows.low
    out[present] = windows.values[windows.high[present] - 1]
    return out, present


def _present(windows: Windows) -> Result:
    return np.ones(windows.low.size), windows.high > windows.low


def _steps_counted(windows: Windows, marked: Bools) -> Result:
    """How many neighbouring pairs of each window are marked; ``marked[i]`` is about samples i and i + 1."""
    marks = np.concatenate([[0.0], marked.astype(np.float64)])
    return _reduced(np.add, marks, windows.low + 1, windows.high), windows.high > windows.low


def _changes(windows: Windows) -> Result:
    before, after = windows.values[:-1], windows.values[1:]
    return _steps_counted(windows, (before != after) & ~(np.isnan(before) & np.isnan(after)))


def _resets(windows: Windows) -> Result:
    return _steps_counted(windows, windows.values[1:] < windows.values[:-1])


RANGE_FUNCTIONS: dict[str, Callable[[Windows], Result]] = {
    "rate": lambda windows: _extrapolated(windows, counter=True, per_second=True),
    "increase": lambda windows: _extrapolated(windows, counter=True, per_second=False),
    "delta": lambda windows: _extrapolated(windows, counter=False, per_second=False),
    "irate": lambda windows: _instant_change(windows, rate=True),
    "idelta": lambda windows: _instant_change(windows, rate=False),
    "max_over_time": _over_time(np.fmax),
    "min_over_time": _over_time(np.fmin),
    "sum_over_time": _over_time(np.add),
    "avg_over_time": _average,
    "count_over_time": _count,
    "last_over_time": _last,
    "present_over_time": _present,
    "changes": _changes,
    "resets": _resets,
}


def quantile_over_time(windows: Windows, quantile: Floats) -> Result:
    """The quantile (one number a window) of each window's values."""
    length = windows.high - windows.low
    out = np.zeros(length.size)
    for size in np.unique(length[length > 0]).tolist():
        which = np.flatnonzero(length == size)
        for part in np.array_split(which, -(-which.size * size // _GATHER_LIMIT)):
            values = windows.values[windows.low[part][:, None] + np.arange(size)]
            out[part] = quantile_of_rows(quantile[part], values, np.ones(values.shape, dtype=np.bool_))
    return out, length > 0
