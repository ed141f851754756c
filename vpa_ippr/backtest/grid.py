"""Recorded usage on a grid that all series share: one row a series, one column a slot of time, NaN where nothing was recorded.

Recordings are seldom of one time, so rows are aligned at their own beginnings: column k of row i is ``starts[i] + k * step``. Several
samples in a slot become one: the mean of CPU, the highest of memory, as a limit is hit by the peak. Nothing is ever interpolated.

A row is one container of a workload. Pods come and go with every rollout while the container's size is decided for all of them, so the
pods of a workload are one series: the use of the busiest of them at each moment.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from vpa_ippr.api.series import Floats, Resource, Usage, UsageSeries, WorkloadRef
from vpa_ippr.recommend.instances import workload_of

STEP_SECONDS: Final = 300.0
DAY_SECONDS: Final = 86_400.0

ContainerKey = tuple[WorkloadRef, str]


@dataclass(frozen=True, slots=True, eq=False)
class Fleet:
    """Series of one resource, n rows and T slots.

    ``usage``: cores or bytes, shape (n, T). ``starts``: seconds since the epoch of each row's first slot. ``current``: what each
    container is set to now, NaN where that is not known. ``sources``: where each row comes from; scores are averaged within a source,
    then over sources.
    """

    resource: Resource
    step_seconds: float
    names: tuple[str, ...]
    sources: tuple[str, ...]
    starts: Floats
    usage: Floats
    current: Floats

    def __len__(self) -> int:
        return len(self.names)

    @property
    def slots(self) -> int:
        """How many slots of time there are."""
        return int(self.usage.shape[1])

    @property
    def observed_days(self) -> Floats:
        """For how long each series was recorded, gaps not counted."""
        days: Floats = np.isfinite(self.usage).sum(axis=1) * (self.step_seconds / DAY_SECONDS)
        return days

    def first_days(self, days: float) -> Self:
        """The first days of every series."""
        return replace(self, usage=self.usage[:, : max(1, round(days * DAY_SECONDS / self.step_seconds))])

    def chosen(self, rows: NDArray[np.bool_]) -> Self:
        """Those rows for which ``rows`` is true."""
        return replace(
            self,
            names=tuple(name for name, keep in zip(self.names, rows, strict=True) if keep),
            sources=tuple(source for source, keep in zip(self.sources, rows, strict=True) if keep),
            starts=self.starts[rows],
            usage=self.usage[rows],
            current=self.current[rows],
        )


def fleet_of(
    usage: Usage,
    resource: Resource,
    *,
    source: str | None = None,
    step_seconds: float = STEP_SECONDS,
    most_days: float = np.inf,
    scale: float = 1.0,
    current: Mapping[ContainerKey, float] | None = None,
) -> Fleet:
    """The series of one resource, in order of workload and container, each cut after ``most_days``.

    ``source`` names all rows' source; by default that is their namespace. ``scale`` turns fractions into cores or bytes. ``current``
    holds what containers are set to now, in cores or bytes.
    """
    by_container: dict[ContainerKey, list[UsageSeries]] = defaultdict(list)
    for series in usage.series:
        if series.resource is resource and len(series.timestamps):
            by_container[workload_of(series.container, usage.owners), series.container.container].append(series)
    keys = sorted(by_container)
    most_slots = np.inf if most_days == np.inf else round(most_days * DAY_SECONDS / step_seconds)
    starts = np.array([min(float(one.timestamps[0]) for one in by_container[key]) for key in keys])
    rows = [_row(by_container[key], start, step_seconds, most_slots) for key, start in zip(keys, starts, strict=True)]
    known = current or {}
    return Fleet(
        resource=resource,
        step_seconds=step_seconds,
        names=tuple(_name(workload, container) for workload, container in keys),
        sources=tuple(source or workload.namespace for workload, _ in keys),
        starts=starts,
        usage=_stacked(rows) * scale,
        current=np.array([known.get(key, np.nan) for key in keys]),
    )


def pooled(fleets: Sequence[Fleet]) -> Fleet:
    """The rows of all fleets (at least one), which must be of one resource and step; shorter ones are empty at their ends."""
    first = fleets[0]
    if any((fleet.resource, fleet.step_seconds) != (first.resource, first.step_seconds) for fleet in fleets):
        raise ValueError("cannot pool fleets of different resources or steps")
    return Fleet(
        resource=first.resource,
        step_seconds=first.step_seconds,
        names=tuple(name for fleet in fleets for name in fleet.names),
        sources=tuple(source for fleet in fleets for source in fleet.sources),
        starts=np.concatenate([fleet.starts for fleet in fleets]),
        usage=_stacked([row for fleet in fleets for row in fleet.usage]),
        current=np.concatenate([fleet.current for fleet in fleets]),
    )


def _name(workload: WorkloadRef, container: str) -> str:
    return f"{workload.namespace}/{workload.kind}/{workload.name}/{container}"


def _row(series: Sequence[UsageSeries], start: float, step_seconds: float, most_slots: float) -> Floats:
    """The series of one container's pods as one row that begins at ``start``."""
    rows = [_slotted(one, start, step_seconds, most_slots) for one in series]
    return rows[0] if len(rows) == 1 else np.fmax.reduce(_stacked(rows), axis=0)


def _slotted(series: UsageSeries, start: float, step_seconds: float, most_slots: float) -> Floats:
    times = series.timestamps
    # Half the usual distance makes late and early samples of a series as coarse as the grid fall into a slot each.
    distance = float(np.median(np.diff(times))) if len(times) > 1 else step_seconds
    slots = ((times - start + min(distance, step_seconds) / 2) // step_seconds).astype(np.int64)
    inside = slots < most_slots
    slots, values = slots[inside], series.values[inside]
    row = np.full(int(slots[-1]) + 1 if len(slots) else 0, np.nan)
    if series.resource is Resource.CPU:
        counts = np.bincount(slots, minlength=len(row))
        sums = np.bincount(slots, weights=values, minlength=len(row))
        np.divide(sums, counts, out=row, where=counts > 0)
    else:
        np.fmax.at(row, slots, values)
    return row


def _stacked(rows: Sequence[Floats]) -> Floats:
    width = max((len(row) for row in rows), default=0)
    stacked = np.full((len(rows), width), np.nan)
    for target, row in zip(stacked, rows, strict=True):
        target[: len(row)] = row
    return stacked
