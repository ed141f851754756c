"""Recommendations from recordings that do not end together: each workload is judged at the end of its own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from vpa_ippr.api.series import Usage, UsageSeries, WorkloadRef
from vpa_ippr.forecast.catalogue import Profile
from vpa_ippr.forecast.forecasters import ProfileModel
from vpa_ippr.recommend.instances import workload_of
from vpa_ippr.recommend.pipeline import Moment, recommend_together
from vpa_ippr.recommend.result import Recommendation


def recommend_each_at_its_end(
    usage: Usage, profile: Profile, history_seconds: float, model: ProfileModel | None = None
) -> list[Recommendation]:
    """Recommendations for every workload as of its own last sample or OOM kill, from ``history_seconds`` before it, both ends included."""
    by_end: dict[float, set[WorkloadRef]] = defaultdict(set)
    for workload, end in _ends(usage).items():
        by_end[end].add(workload)
    moments = [Moment(_part(usage, workloads, end - history_seconds, end), end) for end, workloads in by_end.items()]
    found = recommend_together(moments, profile, model)
    return sorted(found, key=lambda recommendation: (recommendation.workload, recommendation.container))


def _ends(usage: Usage) -> Mapping[WorkloadRef, float]:
    ends: dict[WorkloadRef, float] = {}
    moments = [(series.container, float(series.timestamps[-1])) for series in usage.series if len(series.timestamps)]
    for container, moment in moments + [(oom.container, oom.at) for oom in usage.ooms]:
        workload = workload_of(container, usage.owners)
        ends[workload] = max(moment, ends.get(workload, moment))
    return ends


def _part(usage: Usage, workloads: set[WorkloadRef], start: float, end: float) -> Usage:
    return replace(
        usage,
        series=tuple(_cut(s, start, end) for s in usage.series if workload_of(s.container, usage.owners) in workloads),
        ooms=tuple(oom for oom in usage.ooms if workload_of(oom.container, usage.owners) in workloads and start <= oom.at <= end),
    )


def _cut(series: UsageSeries, start: float, end: float) -> UsageSeries:
    first = np.searchsorted(series.timestamps, start, side="left")
    last = np.searchsorted(series.timestamps, end, side="right")
    return replace(series, timestamps=series.timestamps[first:last], values=series.values[first:last])
