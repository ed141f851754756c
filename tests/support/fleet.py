"""Workloads whose containers use what recordings say, and the trace files of them.

``fleet_series`` and ``fleet_objects`` show the same workloads to Prometheus and to a cluster. A few of them are special, so that one run
meets what clusters do: two jobs that scrape one kubelet, the cgroups around a container, a restart, kills for memory, a rollout, replicas.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from support.traces import Recorded, Samples

CONTAINER = "app"
NODE = "node-1"
NAMESPACES = ("checkout", "data-platform", "internal-tools", "ml", "search")
MI = 1024 * 1024


@dataclass(frozen=True)
class Kill:
    """The container was killed for memory; without ``timed`` kube-state-metrics is too old to say when."""

    at: int
    timed: bool


@dataclass(frozen=True)
class Pod:
    """One pod: what its container used, and when that was started again; it ``ended`` or is still there."""

    name: str
    use: Recorded
    restarts: tuple[int, ...] = ()
    kill: Kill | None = None
    ended: int | None = None


@dataclass(frozen=True)
class Workload:
    """A controller with its pods; amounts of each pod's one container, None where there is no limit."""

    namespace: str
    kind: str
    name: str
    pods: tuple[Pod, ...]
    cpu_request_millicores: int
    cpu_limit_millicores: int | None
    memory_request_bytes: int
    memory_limit_bytes: int
    scraped_by: tuple[str, ...] = ("kubelet",)
    shows_its_cgroups: bool = False

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.namespace, self.kind, self.name, CONTAINER

    @property
    def running(self) -> list[Pod]:
        return [pod for pod in self.pods if pod.ended is None]

    @property
    def replicaset(self) -> str:
        return f"{self.name}-7c9d8"


@dataclass(frozen=True)
class Fleet:
    """All workloads, and those of them that a test has to know."""

    workloads: list[Workload]
    scraped_twice: Workload
    killed: tuple[Workload, Workload]


def build_fleet(recordings: Sequence[Recorded], end: int) -> Fleet:
    """A workload for each recording but the seventh, whose use is that of the sixth's second pod; the first seven have memory."""
    plain = [_workload(number, recording) for number, recording in enumerate(recordings)]
    twice = replace(plain[0], scraped_by=("kubelet", "kubernetes-cadvisor"), shows_its_cgroups=True)
    restarted = _with_pods(plain[1], replace(plain[1].pods[0], restarts=(end - 2 * 86_400,)))
    killed = _killed(plain[2], Kill(end - 6 * 3600 + 137, timed=True)), _killed(plain[3], Kill(end - 12 * 3600, timed=False))
    rolled_out = _rolled_out(plain[4], end - 3 * 86_400)
    replicated = _with_pods(plain[5], plain[5].pods[0], replace(plain[6].pods[0], name=_pod_name(plain[5], 1)))
    special = [twice, restarted, *killed, rolled_out, replicated]
    return Fleet([*special, *plain[7:]], twice, killed)


def _workload(number: int, recording: Recorded) -> Workload:
    cpu, memory = (100, 250, 500, 2000)[number % 4], (256, 512, 1024, 4096)[number // 4 % 4] * MI
    workload = Workload(
        namespace=NAMESPACES[number % len(NAMESPACES)],
        kind="StatefulSet" if number % 8 == 7 else "Deployment",
        name=_name(recording.name),
        pods=(),
        cpu_request_millicores=cpu,
        cpu_limit_millicores=2 * cpu if number % 3 else None,
        memory_request_bytes=memory,
        memory_limit_bytes=2 * memory,
    )
    return _with_pods(workload, Pod(_pod_name(workload, 0), recording))


def _with_pods(workload: Workload, *pods: Pod) -> Workload:
    return replace(workload, pods=pods)


def _killed(workload: Workload, kill: Kill) -> Workload:
    """Killed at a quarter over all that it ever used, so that the kill and not the use is what counts."""
    (pod,) = workload.pods
    request = round(pod.use.memory.values.max() * 1.25 / MI) * MI
    with_kill = _with_pods(workload, replace(pod, kill=kill, restarts=(kill.at,)))
    return replace(with_kill, memory_request_bytes=request, memory_limit_bytes=request)


def _rolled_out(workload: Workload, at: int) -> Workload:
    (pod,) = workload.pods
    old = replace(pod, use=pod.use.between(0, at), ended=at)
    return _with_pods(workload, old, Pod(_pod_name(workload, 1), pod.use.between(at, np.inf)))


def _name(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _pod_name(workload: Workload, number: int) -> str:
    return f"{workload.name}-{number}" if workload.kind == "StatefulSet" else f"{workload.replicaset}-x{number}"


def write_traces(fleet: Fleet, directory: Path) -> list[Path]:
    """One Parquet file for each namespace."""
    directory.mkdir()
    rows: dict[str, list[pa.Table]] = {}
    for workload in fleet.workloads:
        for pod in workload.pods:
            rows.setdefault(workload.namespace, []).extend(_rows(workload, pod))
    paths = []
    for namespace, tables in rows.items():
        paths.append(directory / f"{namespace}.parquet")
        pq.write_table(pa.concat_tables(tables), paths[-1])
    return paths


def _rows(workload: Workload, pod: Pod) -> Iterator[pa.Table]:
    parts = {resource: samples for resource, samples in (("cpu", pod.use.cpu), ("memory", pod.use.memory)) if samples.times.size}
    if pod.kill is not None:
        parts["oom"] = Samples(np.array([pod.kill.at]), np.array([float(workload.memory_request_bytes)]))
    for resource, samples in parts.items():
        texts = {
            "series_id": f"{pod.use.source}/{pod.use.name}/{resource}",
            "container": CONTAINER,
            "resource": resource,
            "namespace": workload.namespace,
            "workload_kind": workload.kind,
            "workload": workload.name,
            "pod": pod.name,
        }
        count = samples.times.size
        yield pa.table({**{name: [text] * count for name, text in texts.items()}, "timestamp": samples.times, "value": samples.values})
