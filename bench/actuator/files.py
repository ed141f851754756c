"""The agent's CPU time on this processor: the real process on plain files that stand for the cgroups of a node."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.figures import MIB, memory_bytes, process_cpu_seconds

_LIMIT_MIB, _CACHE_MIB, _ANON_MIB = 64, 44, 4
_PATIENCE_SECONDS = 60.0
_BEGINNING_SECONDS = 5.0
_OBSERVED_SECONDS = 45.0
"""Less than shrinks are observed for: then they end, for files give no pages back."""


@dataclass(frozen=True)
class _Container:
    pod_uid: str
    container_id: str
    qos_class: str = "Burstable"

    @property
    def pod_path(self) -> str:
        """Where the systemd driver puts the pod."""
        return f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{self.pod_uid.replace('-', '_')}.slice"

    @property
    def path(self) -> str:
        """And its container."""
        return f"{self.pod_path}/cri-containerd-{self.container_id.removeprefix('containerd://')}.scope"


def measure(containers: int, shrinks: int, idle_seconds: float, busy_seconds: float) -> dict[str, dict[str, float]]:
    """CPU seconds, rounds and resident memory while nothing is asked and while so many are observed."""
    service, trees = importlib.import_module("kernel.scenarios.service"), importlib.import_module("support.cgroup_tree")
    made = [_Container(str(uuid.uuid4()), f"containerd://{uuid.uuid4().hex}{uuid.uuid4().hex}") for _ in range(containers)]
    with tempfile.TemporaryDirectory() as name, service.serve_api(made) as api:
        node, policy = trees.Node(Path(name)), Path(name) / "policy.toml"
        policy.write_text(service.POLICY)
        for container in made:
            _add(node, container, trees.FILES)
        port = service.free_port()
        words = ["--cgroup-root", node.root, "--proc", node.proc, "--state-dir", node.journal, "--policy-file", policy]
        command = [sys.executable, "-c", service.AGENT.format(port=api.port), "--log-level", "error", *service.agent_words(port), *words]
        agent = subprocess.Popen([str(word) for word in command])
        try:
            _wait(lambda: api.counts["memoryshrinks"] > 0)
            time.sleep(_BEGINNING_SECONDS)
            idle = _spent(agent.pid, port, idle_seconds)
            api.ask(made[:shrinks])
            _wait(lambda: api.under_way() == shrinks)
            return {"idle": idle, "busy": _spent(agent.pid, port, min(busy_seconds, _OBSERVED_SECONDS))}
        finally:
            agent.terminate()
            agent.wait()


def _spent(pid: int, port: int, seconds: float) -> dict[str, float]:
    loops, cpu, began = _loops(port), process_cpu_seconds(pid), time.monotonic()
    time.sleep(seconds)
    elapsed, spent = time.monotonic() - began, process_cpu_seconds(pid) - cpu
    return {"seconds": elapsed, "cpu_seconds": spent, "rss_mib": memory_bytes("VmRSS", str(pid)) / MIB, "loops": _loops(port) - loops}


def _loops(port: int) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        found = re.search(r"^vpa_ippr_actuator_loops_total (\S+)", answer.read().decode(), re.MULTILINE)
    assert found is not None
    return float(found[1])


def _add(node: Any, container: _Container, files: dict[str, str]) -> None:
    """As many lines of memory.stat as a kernel has."""
    stat = [f"anon {_ANON_MIB * MIB}", f"inactive_file {_CACHE_MIB * MIB}", "active_file 0", *(f"other{number} 0" for number in range(60))]
    node.add(
        container.path,
        **{
            "memory.current": f"{(_ANON_MIB + _CACHE_MIB) * MIB}\n",
            "memory.max": f"{_LIMIT_MIB * MIB}\n",
            "memory.stat": "\n".join(stat) + "\n",
            "memory.events.local": files["memory.events"],
        },
    )
    for name in ("memory.current", "memory.max", "memory.high", "memory.stat", "cgroup.events"):
        (node.root / container.pod_path / name).write_text(files[name])


def _wait(condition: Any) -> None:
    until = time.monotonic() + _PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > until:
            raise RuntimeError(f"the agent does not take up its work (pid {os.getpid()} waits)")
        time.sleep(0.05)
