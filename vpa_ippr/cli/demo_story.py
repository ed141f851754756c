"""What happened in the demo, gathered from where a user would look: events, MemoryShrinks, metrics and the pods themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from vpa_ippr.api.errors import ClusterError
from vpa_ippr.api.pod import Pod
from vpa_ippr.api.resources import ContainerResources, Resource, parse_amounts
from vpa_ippr.api.series import Floats
from vpa_ippr.api.shrink import MemoryShrink
from vpa_ippr.api.timestamps import parse_time
from vpa_ippr.cli.demo_run import DemoCluster, Glance, Observed
from vpa_ippr.cli.demo_workloads import WORKLOADS, DemoContainer, DemoWorkload
from vpa_ippr.report.chart import Line
from vpa_ippr.report.page import Happening
from vpa_ippr.sandbox.promlabels import Matcher
from vpa_ippr.sandbox.tsdb import Tsdb, is_stale

_STYLES = {
    "ResizeCompleted": "done",
    "ResizeDeferred": "deferred",
    "ResizeReverted": "reverted",
    "ResizeRefused": "refused",
    "ShrinkCommitted": "shrink",
    "ShrinkRefused": "refused",
    "ShrinkReverted": "reverted",
}
_RESULTS = ("Issued", "Completed", "Deferred", "Reverted", "Refused")
_GAP_SECONDS = 60.0


class _Subject(msgspec.Struct, frozen=True):
    namespace: str = ""
    name: str = ""
    kind: str = ""


class _Source(msgspec.Struct, frozen=True):
    component: str = ""


class _Event(msgspec.Struct, frozen=True, rename="camel"):
    involved_object: _Subject
    reason: str = ""
    message: str = ""
    count: int = 1
    first_timestamp: str | None = None
    source: _Source = _Source()


@dataclass(frozen=True, slots=True)
class Told:
    """An event of ours on a pod."""

    at: float
    namespace: str
    pod: str
    reason: str
    message: str
    count: int


@dataclass(frozen=True, slots=True)
class OomSeen:
    """An OOM kill; ``lowered`` says that the container's memory limit was then below the one it began with."""

    at: float
    pod: str
    container: str
    lowered: bool


@dataclass(frozen=True, slots=True)
class ContainerStory:
    """One container of one workload: what it began with, what it has now, its lines and what happened to its first pod."""

    workload: DemoWorkload
    container: DemoContainer
    pod: str
    pods: int
    before: ContainerResources
    after: ContainerResources
    restarts: int
    cpu: Sequence[Line]
    memory: Sequence[Line]
    happenings: Sequence[Happening]


@dataclass(frozen=True, slots=True)
class Story:
    """The whole run."""

    start: float
    end: float
    containers: Sequence[ContainerStory]
    shrinks: Sequence[MemoryShrink]
    told: Sequence[Told]
    ooms: Sequence[OomSeen]

    def resizes(self) -> Mapping[str, int]:
        """How many resizes met each result. A deferred one may be completed later; one that a newer one overtook is only issued."""
        counts: Counter[str] = Counter()
        for told in self.told:
            if told.reason.startswith("Resize"):
                counts[told.reason] += told.count
        return {name: counts[f"Resize{name}"] for name in _RESULTS if counts[f"Resize{name}"]}


def tell_story(cluster: DemoCluster, observed: Observed, start: float, end: float) -> Story:
    """Gather everything; time stands still."""
    pods = cluster.rest.list("/api/v1/pods", Pod).items
    told = _told(cluster)
    tsdb = cluster.sandbox.simulation.tsdb
    containers: list[ContainerStory] = []
    ooms: list[OomSeen] = []
    for workload in WORKLOADS:
        own = sorted((pod for pod in pods if pod.metadata.labels.get("app") == workload.name), key=lambda pod: pod.metadata.name)
        if not own:
            raise ClusterError(f"no pod of {workload.namespace}/{workload.name} is left", reason="WorkloadGone")
        for container in workload.containers:
            kills = [kill for pod in own for kill in _ooms(tsdb, pod, container, start, end)]
            ooms += kills
            containers.append(_container_story(tsdb, workload, container, own, told, kills, observed.glances, start, end))
    return Story(start, end, containers, sorted(observed.shrinks.values(), key=lambda s: s.status.start_time or ""), told, ooms)


def _told(cluster: DemoCluster) -> list[Told]:
    events = cluster.rest.list("/api/v1/events", _Event).items
    return sorted(
        (
            Told(parse_time(e.first_timestamp), e.involved_object.namespace, e.involved_object.name, e.reason, e.message, e.count)
            for e in events
            if e.source.component == "vpa-ippr-updater" and e.first_timestamp
        ),
        key=lambda told: (told.at, told.pod),
    )


def _container_story(
    tsdb: Tsdb,
    workload: DemoWorkload,
    container: DemoContainer,
    pods: Sequence[Pod],
    told: Iterable[Told],
    kills: Iterable[OomSeen],
    glances: Sequence[Glance],
    start: float,
    end: float,
) -> ContainerStory:
    pod = pods[0]
    name = pod.metadata.name
    status = [s.restart_count for p in pods if (s := p.container_status(container.name))]
    where = f"{workload.namespace}/{workload.name} {container.name}"
    several = len(workload.containers) > 1
    happenings = [
        Happening(t.at, _STYLES[t.reason], t.message)
        for t in told
        if t.pod == name and t.reason in _STYLES and (not several or container.name in t.message.split())
    ]
    happenings += [Happening(kill.at, "oom", "killed for memory at its limit") for kill in kills if kill.pod == name]
    return ContainerStory(
        workload=workload,
        container=container,
        pod=name,
        pods=len(pods),
        before=ContainerResources(
            parse_amounts(container.requests, f"{where} requests"), parse_amounts(container.limits, f"{where} limits")
        ),
        after=pod.desired(container.name),
        restarts=sum(status),
        cpu=_lines(tsdb, Resource.CPU, workload, container.name, name, glances, start, end),
        memory=_lines(tsdb, Resource.MEMORY, workload, container.name, name, glances, start, end),
        happenings=sorted(happenings, key=lambda happening: happening.at),
    )


def _lines(
    tsdb: Tsdb, resource: Resource, workload: DemoWorkload, container: str, pod: str, glances: Sequence[Glance], start: float, end: float
) -> list[Line]:
    labels = {"namespace": workload.namespace, "pod": pod, "container": container}
    if resource is Resource.MEMORY:
        usage = _select(tsdb, "container_memory_usage_bytes", labels, start, end)
    else:
        usage = _rate(_select_each(tsdb, "container_cpu_usage_seconds_total", labels, start, end))
    lines = [Line("usage", "usage", *usage, stepped=False)]
    for kind in ("request", "limit"):
        times, values = _select(tsdb, f"kube_pod_container_resource_{kind}s", {**labels, "resource": resource.value}, start, end)
        if len(times):
            lines.append(Line(kind, kind, times, values, stepped=True))
    times, values = _targets(resource, workload, container, glances)
    return [*lines, Line("target", "recommendation", times, values, stepped=True)] if len(times) else lines


def _targets(resource: Resource, workload: DemoWorkload, container: str, glances: Sequence[Glance]) -> tuple[Floats, Floats]:
    points: list[tuple[float, float]] = []
    for glance in glances:
        vpa = next(v for v in glance.vpas if (v.metadata.namespace, v.metadata.name) == (workload.namespace, workload.name))
        found = vpa.recommendation_for(container)
        target = parse_amounts(found.target, f"vpa {vpa.key}").get(resource) if found else None
        if target is not None:
            points.append((glance.at, target / 1000 if resource is Resource.CPU else float(target)))
    times, values = np.array(points, dtype=np.float64).reshape(-1, 2).T
    return times, values


def _ooms(tsdb: Tsdb, pod: Pod, container: DemoContainer, start: float, end: float) -> list[OomSeen]:
    """Kills by the time that kube-state-metrics gives for the last termination."""
    labels = {"namespace": pod.metadata.namespace, "pod": pod.metadata.name, "container": container.name}
    _, ends = _select(tsdb, "kube_pod_container_status_last_terminated_timestamp", labels, start, end)
    _, reasons = _select(tsdb, "kube_pod_container_status_last_terminated_reason", {**labels, "reason": "OOMKilled"}, start, end)
    killed = set(ends.tolist()) if len(reasons) and reasons.max() == 1 else set()
    times, limits = _select(tsdb, "kube_pod_container_resource_limits", {**labels, "resource": "memory"}, start, end)
    first = limits[0] if len(limits) else 0.0
    return [
        OomSeen(at, pod.metadata.name, container.name, bool(limits[max(0, int(np.searchsorted(times, at)) - 1)] < first))
        for at in sorted(killed)
    ]


def _select_each(tsdb: Tsdb, metric: str, labels: Mapping[str, Any], start: float, end: float) -> list[tuple[Floats, Floats]]:
    matchers = [Matcher("__name__", "=", metric), *(Matcher(name, "=", value) for name, value in labels.items())]
    found = []
    for samples in tsdb.select(matchers, start, end):
        fresh = ~is_stale(samples.values)
        found.append((samples.times_ms[fresh] / 1000.0, samples.values[fresh]))
    return sorted(found, key=lambda series: series[0][0] if len(series[0]) else 0.0)


def _select(tsdb: Tsdb, metric: str, labels: Mapping[str, Any], start: float, end: float) -> tuple[Floats, Floats]:
    """All series of the metric as one line: a restarted container is another series of the same container."""
    found = _select_each(tsdb, metric, labels, start, end)
    times = np.concatenate([series[0] for series in found]) if found else np.empty(0)
    values = np.concatenate([series[1] for series in found]) if found else np.empty(0)
    order = np.argsort(times, kind="stable")
    return times[order], values[order]


def _rate(series: Iterable[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    """Cores from CPU counters, over two scrapes each; a gap (NaN) where a container was replaced."""
    times: list[Floats] = [np.empty(0)]
    values: list[Floats] = [np.empty(0)]
    for moments, seconds in series:
        if len(moments) > 2:
            times += [moments[2:], moments[-1:] + _GAP_SECONDS]
            values += [(seconds[2:] - seconds[:-2]) / (moments[2:] - moments[:-2]), np.array([np.nan])]
    return np.concatenate(times), np.concatenate(values)
