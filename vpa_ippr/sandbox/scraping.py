"""What a Prometheus of the sandbox's cluster would have scraped: cAdvisor's and kube-state-metrics' series, written into the ``Tsdb``.

Labels are those of a plain kube-prometheus installation: ``id image name namespace pod container`` and the target labels. A pod's own
cgroup has no ``container`` label, the pause container is ``POD``. kube-state-metrics' values follow the API objects and are made anew only
when an object has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from vpa_ippr.api.resources import parse_amounts
from vpa_ippr.api.timestamps import parse_time
from vpa_ippr.sandbox.container import RunningContainer
from vpa_ippr.sandbox.kubelet import Kubelet
from vpa_ippr.sandbox.mirror import Mirror
from vpa_ippr.sandbox.podworker import ManagedContainer, PodWorker
from vpa_ippr.sandbox.tsdb import SeriesRef, Tsdb

Json = dict[str, Any]
Sample = tuple[SeriesRef, float]
Part = tuple[str, bool]
"""A container by its id, or a pod by its UID, and whether it has a CPU quota: decides which series there are."""

PHASES = ("Pending", "Running", "Succeeded", "Failed", "Unknown")
KSM_TARGET = {"job": "kube-state-metrics", "instance": "kube-state-metrics:8080"}
PAUSE_IMAGE = "registry.k8s.io/pause:3.10"
PAUSE_BYTES = 300 * 1024
CFS_PERIOD_US = 100_000

_CONTAINER_METRICS = (
    "container_memory_working_set_bytes",
    "container_memory_usage_bytes",
    "container_memory_rss",
    "container_memory_cache",
    "container_memory_mapped_file",
    "container_memory_total_active_file_bytes",
    "container_memory_workingset_refault_file_total",
    "container_memory_pgsteal_total",
    "container_memory_max_usage_bytes",
    "container_memory_failcnt",
    "container_oom_events_total",
    "container_start_time_seconds",
    "container_spec_memory_limit_bytes",
    "container_pressure_cpu_waiting_seconds_total",
    "container_pressure_memory_waiting_seconds_total",
    "container_pressure_memory_stalled_seconds_total",
    "container_pressure_io_waiting_seconds_total",
    "container_pressure_io_stalled_seconds_total",
)
_QUOTA_METRICS = (
    "container_cpu_cfs_periods_total",
    "container_cpu_cfs_throttled_periods_total",
    "container_cpu_cfs_throttled_seconds_total",
    "container_spec_cpu_quota",
    "container_spec_cpu_period",
)
_POD_METRICS = ("container_memory_working_set_bytes", "container_memory_usage_bytes", "container_memory_rss", "container_memory_cache")


class Scraper:
    """Writes one scrape of everything at a time."""

    def __init__(self, tsdb: Tsdb, kubelets: Mapping[str, Kubelet], pods: Mirror, replica_sets: Mirror, jobs: Mirror) -> None:
        self._tsdb = tsdb
        self._kubelets = kubelets
        self._object_samples: dict[str, list[Sample]] = {}
        self._object_values = np.empty(0)
        self._known: dict[Part, list[SeriesRef]] = {}
        self._present: list[Part] | None = None
        """What the last scrape had; None when API objects have changed since."""
        self._refs = np.empty(0, dtype=np.intp)
        makers: tuple[tuple[Mirror, Callable[[Json], list[Sample]]], ...] = (
            (pods, self._pod_samples),
            (replica_sets, lambda obj: self._owner_sample(obj, "kube_replicaset_owner", "replicaset")),
            (jobs, lambda obj: self._owner_sample(obj, "kube_job_owner", "job_name")),
        )
        for mirror, make in makers:
            mirror.on_change(lambda event, obj, make=make: self._on_object(event, obj, make))  # type: ignore[misc]

    def scrape(self, now: float) -> None:
        """Write every value as it is at ``now``; series that are no longer there become stale."""
        values: list[float] = []
        present: list[Part] = []
        up = [(name, kubelet) for name, kubelet in self._kubelets.items() if kubelet.is_up]  # cAdvisor is a part of the kubelet
        workers = [(name, worker) for name, kubelet in up for worker in kubelet.workers.values() if worker.running()]
        for _, worker in workers:
            _measure_pod(worker, now, values, present)
        if present != self._present:
            self._list_series(workers, now)
            self._present = present
        self._tsdb.append_many(self._refs, now, np.concatenate([np.array(values), self._object_values]))

    def _list_series(self, workers: list[tuple[str, PodWorker]], now: float) -> None:
        """Something has come, gone or changed since the last scrape: find the series anew, in the order of the values."""
        refs: list[SeriesRef] = []
        known, self._known = self._known, {}
        for node, worker in workers:
            for container, process in worker.running():
                part = _part(process)
                self._known[part] = known.get(part) or self._container_series(node, worker, container, part)
                refs += self._known[part]
            pod = (worker.uid, False)
            self._known[pod] = known.get(pod) or self._pod_series(node, worker)
            refs += self._known[pod]
        # An object that replaced another of the same name may have some of its series: the last one counts.
        merged = dict(sample for samples in self._object_samples.values() for sample in samples)
        before = set(self._refs.tolist())
        self._refs = np.array([*refs, *merged], dtype=np.intp)
        self._object_values = np.array(list(merged.values()), dtype=np.float64)
        for ref in before - set(self._refs.tolist()):
            self._tsdb.mark_stale(SeriesRef(ref), now)

    # cAdvisor

    def _container_series(self, node: str, worker: PodWorker, container: ManagedContainer, part: Part) -> list[SeriesRef]:
        container_id, has_quota = part
        identity = container_id.removeprefix("containerd://")
        labels = {
            **_cadvisor_target(node),
            **_pod_labels(worker),
            "container": container.name,
            "image": container.spec.get("image", ""),
            "name": identity,
            "id": f"{_pod_cgroup(worker)}/cri-containerd-{identity}.scope",
        }
        cpu = self._series("container_cpu_usage_seconds_total", labels, cpu="total")
        return [cpu, *(self._series(name, labels) for name in (*_CONTAINER_METRICS, *(_QUOTA_METRICS if has_quota else ())))]

    def _pod_series(self, node: str, worker: PodWorker) -> list[SeriesRef]:
        pod = {**_cadvisor_target(node), **_pod_labels(worker), "id": _pod_cgroup(worker)}
        pause = {**pod, "container": "POD", "image": PAUSE_IMAGE, "name": f"pause-{worker.uid}", "id": f"{pod['id']}/pause.scope"}
        refs: list[SeriesRef] = []
        for labels in (pod, pause):
            refs.append(self._series("container_cpu_usage_seconds_total", labels, cpu="total"))
            refs += [self._series(name, labels) for name in _POD_METRICS]
        return refs

    # kube-state-metrics

    def _on_object(self, event: str, obj: Json, make: Callable[[Json], list[Sample]]) -> None:
        uid = obj["metadata"]["uid"]
        samples = [] if event == "DELETED" else make(obj)
        if samples != self._object_samples.get(uid, []):
            self._object_samples[uid] = samples
            self._present = None
        if not samples:
            self._object_samples.pop(uid, None)

    def _owner_sample(self, obj: Json, metric: str, label: str) -> list[Sample]:
        metadata = obj["metadata"]
        labels = {**KSM_TARGET, "namespace": metadata["namespace"], label: metadata["name"], **_owner_labels(obj)}
        return [(self._series(metric, labels), 1.0)]

    def _pod_samples(self, pod: Json) -> list[Sample]:
        metadata, status = pod["metadata"], pod.get("status") or {}
        labels = {**KSM_TARGET, "namespace": metadata["namespace"], "pod": metadata["name"], "uid": metadata["uid"]}
        owner = _owner_labels(pod)
        info = {"node": pod["spec"].get("nodeName", ""), "created_by_kind": owner["owner_kind"], "created_by_name": owner["owner_name"]}
        samples = [
            (self._series("kube_pod_info", labels, **info), 1.0),
            (self._series("kube_pod_owner", labels, **owner), 1.0),
            (self._series("kube_pod_created", labels), parse_time(metadata["creationTimestamp"])),
        ]
        phase = status.get("phase") or "Pending"
        samples += [(self._series("kube_pod_status_phase", labels, phase=name), float(name == phase)) for name in PHASES]
        if status.get("qosClass"):
            samples.append((self._series("kube_pod_status_qos_class", labels, qos_class=status["qosClass"]), 1.0))
        for container in pod["spec"]["containers"]:
            samples += self._resource_samples(container, labels, info["node"])
        for entry in status.get("containerStatuses") or []:
            samples += self._container_status_samples(entry, labels)
        return samples

    def _resource_samples(self, container: Json, labels: Mapping[str, str], node: str) -> list[Sample]:
        samples: list[Sample] = []
        for kind in ("requests", "limits"):
            amounts = parse_amounts((container.get("resources") or {}).get(kind) or {}, kind)
            more = {"container": container["name"], "node": node}
            metric = f"kube_pod_container_resource_{kind}"
            if amounts.cpu_millicores is not None:
                samples.append((self._series(metric, labels, **more, resource="cpu", unit="core"), amounts.cpu_millicores / 1000))
            if amounts.memory_bytes is not None:
                samples.append((self._series(metric, labels, **more, resource="memory", unit="byte"), float(amounts.memory_bytes)))
        return samples

    def _container_status_samples(self, status: Json, labels: Mapping[str, str]) -> list[Sample]:
        prefix, name = "kube_pod_container_status", status["name"]
        samples = [(self._series(f"{prefix}_restarts_total", labels, container=name), float(status["restartCount"]))]
        last = (status.get("lastState") or {}).get("terminated")
        if last:
            samples += [
                (self._series(f"{prefix}_last_terminated_reason", labels, container=name, reason=last["reason"]), 1.0),
                (self._series(f"{prefix}_last_terminated_exitcode", labels, container=name), float(last["exitCode"])),
                (self._series(f"{prefix}_last_terminated_timestamp", labels, container=name), parse_time(last["finishedAt"])),
            ]
        return samples

    def _series(self, metric: str, labels: Mapping[str, str], **more: str) -> SeriesRef:
        return self._tsdb.series({"__name__": metric, **labels, **more})


def _part(process: RunningContainer) -> Part:
    return process.container_id, process.cpu.limit_millicores is not None


def _measure_pod(worker: PodWorker, now: float, values: list[float], present: list[Part]) -> None:
    """Append the values of a pod's containers, of its own cgroup and of its pause container, and what they belong to."""
    totals = [0.0] * (1 + len(_POD_METRICS))
    for _, process in worker.running():
        with process.lock:
            process.advance(now)
            measured = _measure(process)
        values += measured
        for index in range(len(totals)):
            totals[index] += measured[index]
        present.append(_part(process))
    values += totals
    values += [0.0, *([float(PAUSE_BYTES)] * len(_POD_METRICS))]
    present.append((worker.uid, False))


def _measure(process: RunningContainer) -> list[float]:
    """CPU seconds, then the values of ``_CONTAINER_METRICS`` and, with a quota, of ``_QUOTA_METRICS``."""
    memory, cpu, counters = process.memory, process.cpu, process.memory.counters
    values = [
        cpu.usage_seconds,
        memory.working_set_bytes,
        memory.usage_bytes,
        memory.anon_bytes + memory.locked_bytes,
        memory.cache.file_bytes + memory.shmem_bytes,
        memory.cache.mapped_bytes,
        memory.cache.file_bytes - memory.cache.inactive_bytes,
        counters.refault_pages,
        counters.stolen_pages,
        memory.peak_bytes,
        counters.max,
        counters.oom_kill,
        process.started_at,
        memory.max_bytes or 0,
        # One process, and no neighbours that take its CPU: it waits only while it is throttled.
        cpu.throttled_seconds,
        counters.memory_stall_seconds,
        counters.memory_stall_seconds,
        counters.io_stall_seconds,
        counters.io_stall_seconds,
    ]
    if cpu.limit_millicores is not None:
        quota_us = cpu.limit_millicores * CFS_PERIOD_US / 1000
        values += [cpu.periods, cpu.throttled_periods, cpu.throttled_seconds, quota_us, CFS_PERIOD_US]
    return values


def _cadvisor_target(node: str) -> dict[str, str]:
    return {"job": "kubelet", "metrics_path": "/metrics/cadvisor", "instance": f"{node}:10250", "node": node}


def _pod_labels(worker: PodWorker) -> dict[str, str]:
    namespace, name = worker.key
    return {"namespace": namespace, "pod": name}


def _pod_cgroup(worker: PodWorker) -> str:
    """The path of the pod's cgroup with the systemd driver."""
    qos = ((worker.pod.get("status") or {}).get("qosClass") or "Burstable").lower()
    uid = worker.uid.replace("-", "_")
    if qos == "guaranteed":
        return f"/kubepods.slice/kubepods-pod{uid}.slice"
    return f"/kubepods.slice/kubepods-{qos}.slice/kubepods-{qos}-pod{uid}.slice"


def _owner_labels(obj: Json) -> dict[str, str]:
    owners = obj["metadata"].get("ownerReferences") or []
    controller = next((owner for owner in owners if owner.get("controller")), None)
    if controller is None:
        return {"owner_kind": "", "owner_name": "", "owner_is_controller": ""}
    return {"owner_kind": controller["kind"], "owner_name": controller["name"], "owner_is_controller": "true"}
