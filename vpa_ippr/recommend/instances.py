"""Container instances: the workload that each is of, its samples fed into its state, and the order in which the states are folded.

Samples are fed in time order: CPU, then memory with the OOM kills among it. Feeding a history in one piece or in many gives the same
numbers, bit for bit.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter

import numpy as np

from vpa_ippr.api.series import ContainerRef, Finding, Floats, OomKill, Resource, Usage, UsageSeries, WorkloadRef
from vpa_ippr.usage.container import ContainerState, UsageRules, add_cpu, add_memory, add_oom

Instances = dict[ContainerRef, ContainerState]
STALE_OOM = "StaleOomKill"


def workload_of(ref: ContainerRef, owners: Mapping[tuple[str, str], WorkloadRef]) -> WorkloadRef:
    """The topmost owner of the instance's pod; a pod of which none is known is its own workload."""
    return owners.get((ref.namespace, ref.pod)) or WorkloadRef(ref.namespace, "Pod", ref.pod)


def feed(
    instances: Instances,
    usage: Usage,
    rules_of: Callable[[ContainerRef], UsageRules],
    *,
    until: float,
    after: float = -math.inf,
) -> tuple[Instances, tuple[Finding, ...]]:
    """The instances with the samples and OOM kills of ``after < t <= until`` added, and what was noticed on the way."""
    fed = dict(instances)
    ooms: dict[ContainerRef, list[OomKill]] = defaultdict(list)
    for oom in sorted(usage.ooms, key=attrgetter("at")):
        if after < oom.at <= until:
            ooms[oom.container].append(oom)
    memory: dict[ContainerRef, UsageSeries] = {}
    for series in usage.series:
        if series.resource is Resource.MEMORY:
            memory[series.container] = series
            continue
        state = fed.get(series.container) or ContainerState.empty(rules_of(series.container))
        _keep(fed, series.container, add_cpu(state, *_between(series, after, until)))
    stale: Counter[ContainerRef] = Counter()
    for ref in sorted({*memory, *ooms}):
        state = fed.get(ref) or ContainerState.empty(rules_of(ref))
        times, values = _between(memory[ref], after, until) if ref in memory else (np.empty(0), np.empty(0))
        state, stale[ref] = _feed_memory(state, times, values, ooms.get(ref, []))
        _keep(fed, ref, state)
    return fed, tuple(_stale_finding(ref, count) for ref, count in stale.items() if count)


def by_last_sample(instances: Mapping[ContainerRef, ContainerState]) -> list[tuple[ContainerRef, ContainerState]]:
    """The order in which instances are folded: that of their last samples, so that what has ended stays where it is."""
    return sorted(instances.items(), key=lambda item: (item[1].last_sample, item[0]))


def _between(series: UsageSeries, after: float, until: float) -> tuple[Floats, Floats]:
    begin, end = np.searchsorted(series.timestamps, (after, until), side="right")
    return series.timestamps[begin:end], series.values[begin:end]


def _feed_memory(state: ContainerState, times: Floats, values: Floats, ooms: Sequence[OomKill]) -> tuple[ContainerState, int]:
    """Samples up to an OOM kill go before it, so that the kill meets the peak that there was; also how many kills were too old."""
    begin, stale = 0, 0
    for oom in ooms:
        end = int(np.searchsorted(times, oom.at, side="right"))
        state = add_memory(state, times[begin:end], values[begin:end])
        begin = end
        killed = add_oom(state, oom.at, oom.memory_request_bytes)
        state, stale = (state, stale + 1) if killed is None else (killed, stale)
    return add_memory(state, times[begin:], values[begin:]), stale


def _keep(instances: Instances, ref: ContainerRef, state: ContainerState) -> None:
    """Nothing is remembered of an instance that had no usable sample."""
    if state.last_sample > -math.inf:
        instances[ref] = state


def _stale_finding(ref: ContainerRef, count: int) -> Finding:
    subject = f"{ref.namespace}/{ref.pod}/{ref.container}"
    return Finding(STALE_OOM, subject, count, f"{subject}: {count} OOM kills are older than the running memory window and do not count")
