"""The series that Prometheus would have scraped from cAdvisor and kube-state-metrics while a fleet ran."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from support.fleet import CONTAINER, MI, NODE, Fleet, Pod, Workload
from support.prometheus import TestSeries
from support.traces import STEP_SECONDS, Samples

SCRAPE_SECONDS = 60

# What the counter of a container that was there before the history begins may stand at.
_COUNTED_BEFORE = 5000.0
# How long kube-state-metrics has been scraped for what does not change.
_STATE_SECONDS = 1800


def usage_series(fleet: Fleet) -> Iterator[TestSeries]:
    """What cAdvisor showed."""
    for workload in fleet.workloads:
        for pod in workload.pods:
            for job in workload.scraped_by:
                yield from _container_series(workload, pod, job)
            if workload.shows_its_cgroups:
                yield from _cgroup_series(workload, pod)


def _container_series(workload: Workload, pod: Pod, job: str) -> Iterator[TestSeries]:
    bounds = (0, *pod.restarts, np.inf)
    for life, (begin, end) in enumerate(itertools.pairwise(bounds)):
        use = pod.use.between(begin, end)
        name = {"namespace": workload.namespace, "pod": pod.name, "container": CONTAINER}
        labels = {**name, "id": f"/kubepods/{life}", "job": job}
        times, counted = _counter(use.cpu, 0.0 if life else _COUNTED_BEFORE)
        if end != np.inf:  # cAdvisor shows a dead container's last numbers for a little longer
            times, counted = np.append(times, times[-1] + SCRAPE_SECONDS * np.arange(1, 3)), np.append(counted, [counted[-1]] * 2)
        yield _series("container_cpu_usage_seconds_total", labels, times, counted)
        if use.memory.times.size:
            yield _series("container_memory_working_set_bytes", labels, use.memory.times, use.memory.values)


def _counter(cores: Samples, begin: float) -> tuple[np.ndarray, np.ndarray]:
    """The counter at every scrape of the steps that have a sample, for cores that do not change within a step."""
    scrapes = STEP_SECONDS // SCRAPE_SECONDS
    times = (cores.times[:, None] + np.arange(1 - scrapes, 1) * SCRAPE_SECONDS).ravel()
    return times, begin + np.cumsum(np.repeat(cores.values * SCRAPE_SECONDS, scrapes))


def _cgroup_series(workload: Workload, pod: Pod) -> Iterator[TestSeries]:
    """The pod's own cgroup and the pause container, with numbers that nobody could miss if they counted."""
    times = pod.use.cpu.times
    for name in ("", "POD"):
        labels = {
            "namespace": workload.namespace,
            "pod": pod.name,
            "container": name,
            "id": f"/kubepods/{pod.name}/{name}",
            "job": "kubelet",
        }
        yield _series("container_cpu_usage_seconds_total", labels, times, (times - times[0]) * 64.0)
        yield _series("container_memory_working_set_bytes", labels, times, np.full(times.size, 512.0 * 1024 * MI))


def state_series(fleet: Fleet, end: int) -> Iterator[TestSeries]:
    """What kube-state-metrics showed, scraped by two jobs."""
    for job in ("kube-state-metrics-a", "kube-state-metrics-b"):
        for workload in fleet.workloads:
            for pod in workload.pods:
                yield from _owner_series(workload, pod, job, pod.ended or end)
                yield from _resource_series(workload, pod, job, pod.ended or end)
                yield from _kill_series(workload, pod, job, end)


def _owner_series(workload: Workload, pod: Pod, job: str, end: int) -> Iterator[TestSeries]:
    times = _scrapes(end - _STATE_SECONDS, end)
    whose = {"owner_kind": workload.kind, "owner_name": workload.name, "owner_is_controller": "true"}
    shared = {"namespace": workload.namespace, "job": job}
    if workload.kind == "Deployment":
        if pod is workload.pods[0]:
            yield _series("kube_replicaset_owner", {**shared, "replicaset": workload.replicaset, **whose}, times, np.ones(times.size))
        whose |= {"owner_kind": "ReplicaSet", "owner_name": workload.replicaset}
    yield _series("kube_pod_owner", {**shared, "pod": pod.name, **whose}, times, np.ones(times.size))


def _resource_series(workload: Workload, pod: Pod, job: str, end: int) -> Iterator[TestSeries]:
    times = _scrapes(int(pod.use.cpu.times[0]) if pod.kill else end - _STATE_SECONDS, end)
    me = {"namespace": workload.namespace, "pod": pod.name, "container": CONTAINER, "node": NODE, "job": job}
    memory, cpu = {**me, "resource": "memory", "unit": "byte"}, {**me, "resource": "cpu", "unit": "core"}
    yield _series("kube_pod_container_resource_requests", cpu, times, np.full(times.size, workload.cpu_request_millicores / 1000))
    yield _series("kube_pod_container_resource_requests", memory, times, np.full(times.size, float(workload.memory_request_bytes)))
    if workload.cpu_limit_millicores is not None:
        yield _series("kube_pod_container_resource_limits", cpu, times, np.full(times.size, workload.cpu_limit_millicores / 1000))
    yield _series("kube_pod_container_resource_limits", memory, times, np.full(times.size, float(workload.memory_limit_bytes)))


def _kill_series(workload: Workload, pod: Pod, job: str, end: int) -> Iterator[TestSeries]:
    if pod.kill is None:
        return
    me = {"namespace": workload.namespace, "pod": pod.name, "container": CONTAINER, "job": job}
    whole = _scrapes(int(pod.use.cpu.times[0]), end)
    after = whole[whole >= pod.kill.at]
    yield _series("kube_pod_container_status_restarts_total", me, whole, (whole >= pod.kill.at).astype(float))
    yield _series("kube_pod_container_status_last_terminated_reason", {**me, "reason": "OOMKilled"}, after, np.ones(after.size))
    if pod.kill.timed:
        yield _series("kube_pod_container_status_last_terminated_timestamp", me, after, np.full(after.size, float(pod.kill.at)))


def _scrapes(start: int, end: int) -> np.ndarray:
    return np.arange(-(-start // SCRAPE_SECONDS) * SCRAPE_SECONDS, end + 1, SCRAPE_SECONDS)


def _series(name: str, labels: dict[str, str], times: np.ndarray, values: np.ndarray) -> TestSeries:
    return TestSeries({"__name__": name, **labels}, times * 1000, values)
