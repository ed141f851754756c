"""The embedded API server in a process of its own, asked over TLS on one kept connection as our components ask it."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from bench.figures import MIB, Figure, Run, best_of, memory_bytes, process_cpu_seconds
from bench.objects import pod
from vpa_ippr.api.pod import Pod
from vpa_ippr.cluster.connection import connect
from vpa_ippr.cluster.rest import Rest

_PODS = 5_000
_GETS = 1_000
_COLLECTION = "/api/v1/namespaces/default/pods"
_RESOURCES = {"requests": {"cpu": "250m", "memory": "256Mi"}, "limits": {"memory": "512Mi"}}


def measure() -> list[Figure]:
    with _server() as (rest, pid):
        creating, create_cpu = _served(pid, 1, lambda: _create(rest))
        getting, get_cpu = _served(pid, 3, lambda: _get(rest))
        listing, list_cpu = _served(pid, 3, lambda: rest.list("/api/v1/pods", Pod))
        server = f"server {memory_bytes('VmHWM', str(pid)) / MIB:.0f} MiB"
    return [
        Figure(
            name="sandbox-api.create",
            size=f"{_PODS:,} pods",
            run=creating,
            units=_PODS,
            unit="pod",
            note=_note(creating, _PODS, create_cpu),
        ),
        Figure(
            name="sandbox-api.get",
            size=f"{_GETS:,} x GET pod",
            run=getting,
            units=_GETS,
            unit="request",
            note=_note(getting, _GETS, get_cpu),
        ),
        Figure(
            name="sandbox-api.list",
            size=f"{_PODS:,} pods in pages",
            run=listing,
            units=_PODS,
            unit="pod",
            note=f"{_cpu(list_cpu)}; {server}",
        ),
    ]


@contextmanager
def _server() -> Iterator[tuple[Rest, int]]:
    with tempfile.TemporaryDirectory() as directory:
        kubeconfig = str(Path(directory, "kubeconfig"))
        command = [sys.executable, "-m", "vpa_ippr.cli", "sandbox", "--kubeconfig", kubeconfig, "--empty", "--no-kubelet"]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            try:
                assert process.stdout is not None
                assert msgspec.json.decode(process.stdout.readline())["ready"]
                yield Rest(connect(kubeconfig)), process.pid
            finally:
                process.terminate()


def _served(pid: int, runs: int, ask: Callable[[], object]) -> tuple[Run, float]:
    """What asking cost the client, and the server's CPU seconds for a run."""
    before = process_cpu_seconds(pid)
    run = best_of(runs, lambda: None, lambda _: ask())
    return run, (process_cpu_seconds(pid) - before) / runs


def _create(rest: Rest) -> None:
    for number in range(_PODS):
        made = pod(number, number // 3, _RESOURCES)
        metadata = {key: made["metadata"][key] for key in ("labels", "annotations")}
        body = {**made, "metadata": {**metadata, "name": f"p-{number:05}", "namespace": "default"}, "status": {}}
        rest.create(_COLLECTION, body, msgspec.Raw)


def _get(rest: Rest) -> None:
    for number in range(_GETS):
        rest.get(f"{_COLLECTION}/p-{number * 37 % _PODS:05}", Pod)


def _note(run: Run, requests: int, server_cpu_seconds: float) -> str:
    return f"{requests / run.wall_seconds:,.0f} requests/s; {_cpu(server_cpu_seconds)}"


def _cpu(server_cpu_seconds: float) -> str:
    return f"server CPU {server_cpu_seconds:.2f} s"
