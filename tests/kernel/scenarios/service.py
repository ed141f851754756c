"""What the agent of a node costs: the real process on real cgroups, with an API server that answers the few calls that it makes."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import msgspec

from kernel.harness.containers import DATA, Container, Guest
from kernel.harness.machine import CGROUPS, MIB
from vpa_ippr.api.meta import ObjectMeta
from vpa_ippr.api.pod import Container as PodContainer
from vpa_ippr.api.pod import ContainerState, ContainerStateRunning, ContainerStatus, Pod, PodSpec, PodStatus
from vpa_ippr.api.resources import ResourceRequirements
from vpa_ippr.api.shrink import ContainerReference, MemoryShrink, PodReference, ShrinkSpec
from vpa_ippr.api.timestamps import format_time

LIMIT_MIB, CACHE_MIB, TARGET_MIB = 64, 44, 40
_NODE = "node-a"
_LISTEN = 9090
_PATIENCE_SECONDS = 120.0
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
# Sizes of a small guest, and what emulation would make of pressure; the pace is the default one.
POLICY = """
min_shrink_bytes = "16Mi"
margin_min_bytes = "4Mi"
reserve_min_bytes = "4Mi"
reclaim_node_share_per_minute = 1.0
node_memory_some_percent = 90.0
node_io_some_percent = 90.0
node_pause_io_some_percent = 95.0
hard_memory_some_percent = 60.0
hard_memory_full_percent = 60.0
hard_io_some_percent = 90.0
"""
AGENT = """
import sys
import vpa_ippr.cluster.rest as rest
rest.in_cluster_connection = lambda: rest.Connection(base_url="http://127.0.0.1:{port}")
from vpa_ippr.cli.main import run
sys.argv[0] = "vpa-ippr"
run()
"""


def cost(guest: Guest, containers: int, shrinks: int, idle_seconds: float, busy_seconds: float, settle_seconds: float) -> dict[str, Any]:
    """Memory and CPU time of the agent while nothing is asked of it, and while it carries out shrinks; ``containers`` in all."""
    _bring_loopback_up()
    made = [_inhabited(guest, CACHE_MIB if number < shrinks else 0, number) for number in range(containers)]
    with serve_api(made) as api, _agent(api.port) as agent:
        agent.wait(lambda: api.counts["memoryshrinks"] > 0)
        started_seconds = time.monotonic() - agent.began
        time.sleep(settle_seconds)
        idle = agent.spent_over(idle_seconds, api)
        api.ask(made[:shrinks])
        agent.wait(lambda: api.under_way() == shrinks)
        busy = agent.spent_over(busy_seconds, api)
        metrics, took_seconds = agent.scrape()
        return {
            "containers": containers,
            "shrinks": shrinks,
            "start_seconds": round(started_seconds, 2),
            "idle": idle,
            "busy": {**busy, "phases": api.phases()},
            "scrape": {
                "seconds": round(took_seconds, 3),
                "bytes": len(metrics),
                "series": sum(line.startswith(b"vpa_ippr") for line in metrics.splitlines()),
            },
            "healthz": agent.get("/healthz").decode(),
            "readyz": agent.get("/readyz").decode(),
            "log": agent.log.read_text()[-1500:],
        }


def agent_words(listen_port: int) -> list[str]:
    """The command that the agent is started by, wherever it is measured."""
    return ["actuator", "--node-name", _NODE, "--listen", f"127.0.0.1:{listen_port}"]


def free_port() -> int:
    """One that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        found: int = probe.getsockname()[1]
        return found


def _bring_loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP))


def _inhabited(guest: Guest, cache_mib: int, number: int) -> Container:
    """A container with one process that does nothing, and page cache that nobody uses."""
    container = guest.container(limit_mib=LIMIT_MIB)
    ready, tell = os.pipe()
    if os.fork() == 0:
        (container.path / "cgroup.procs").write_text("0")
        with DATA.open("rb", buffering=0) as data:
            data.seek(number * cache_mib * MIB)
            for _ in range(cache_mib):
                data.read(MIB)
        os.write(tell, b".")
        while True:
            signal.pause()
    os.close(tell)
    assert os.read(ready, 1), "the process in a container died"
    os.close(ready)
    return container


class _Agent:
    """The agent's process, in a cgroup of its own, which sees what its helpers use too."""

    def __init__(self, port: int) -> None:
        self._cgroup = CGROUPS / "agent"
        self._cgroup.mkdir(exist_ok=True)
        self.log, policy = Path("/run/agent.log"), Path("/run/policy.toml")
        policy.write_text(POLICY)
        words = [sys.executable, "-s", "-c", AGENT.format(port=port), *agent_words(_LISTEN)]
        words += ["--state-dir", "/run/agent", "--policy-file", str(policy)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "LC_ALL": "C.UTF-8"}
        procs = self._cgroup / "cgroup.procs"
        self.began = time.monotonic()
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                words,
                env=environment,
                stdout=log,
                stderr=log,
                preexec_fn=lambda: procs.write_text("0"),  # noqa: PLW1509
            )

    def wait(self, condition: Callable[[], bool]) -> None:
        """Until it is so; AssertionError with what the agent had to say when that takes too long."""
        until = time.monotonic() + _PATIENCE_SECONDS
        while not condition():
            assert time.monotonic() < until, f"status {self.process.poll()}: {self.log.read_text()[-3000:]}"
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            time.sleep(0.05)

    def spent_over(self, seconds: float, api: _Api) -> dict[str, Any]:
        """CPU time by the cgroup, helpers included; memory at the end; and what was asked of the API."""
        loops, requests = self._loops(), Counter(api.counts)
        cpu, own, began = self._cpu_seconds(), self._own_cpu_seconds(), time.monotonic()
        time.sleep(seconds)
        elapsed = time.monotonic() - began
        cpu, own = self._cpu_seconds() - cpu, self._own_cpu_seconds() - own
        return {
            "seconds": round(elapsed, 1),
            "cpu_seconds": round(cpu, 3),
            "cpu_seconds_without_helpers": round(own, 3),
            "loops": round(self._loops() - loops),
            "rss_mib": round(self._status_kib("VmRSS") / 1024, 1),
            "peak_mib": round(self._status_kib("VmHWM") / 1024, 1),
            "cgroup_mib": round(int((self._cgroup / "memory.current").read_text()) / MIB, 1) if self._has_memory else None,
            "requests": dict(Counter(api.counts) - requests),
        }

    def scrape(self) -> tuple[bytes, float]:
        """The metrics, and how long they took."""
        began = time.monotonic()
        return self.get("/metrics"), time.monotonic() - began

    def get(self, path: str) -> bytes:
        """What it serves there, whatever the status."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{_LISTEN}{path}", timeout=60) as answer:
                found: bytes = answer.read()
        except urllib.error.HTTPError as error:
            with error:
                found = error.read()
        return found

    def _loops(self) -> float:
        line = next(line for line in self.get("/metrics").splitlines() if line.startswith(b"vpa_ippr_actuator_loops_total"))
        return float(line.split()[1])

    @property
    def _has_memory(self) -> bool:
        return (self._cgroup / "memory.current").exists()

    def _cpu_seconds(self) -> float:
        lines = (self._cgroup / "cpu.stat").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("usage_usec")).split()[1]) / 1e6

    def _own_cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _status_kib(self, key: str) -> int:
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith(f"{key}:")).split()[1])


@contextlib.contextmanager
def _agent(port: int) -> Iterator[_Agent]:
    agent = _Agent(port)
    try:
        yield agent
    finally:
        agent.process.terminate()
        agent.process.wait(_PATIENCE_SECONDS)


class _Api:
    """Knows the pods of one node and its MemoryShrinks, and counts what it is asked."""

    def __init__(self, containers: list[Container]) -> None:
        self.counts: Counter[str] = Counter()
        self.pods = {f"pod-{number}": _pod(f"pod-{number}", container) for number, container in enumerate(containers)}
        self.shrinks: dict[str, dict[str, Any]] = {}
        self.port = 0

    def ask(self, containers: list[Container]) -> None:
        """A shrink of the pod of each."""
        for number, container in enumerate(containers):
            name = f"pod-{number}"
            spec = ShrinkSpec(
                PodReference(name, container.pod_uid),
                _NODE,
                ContainerReference("app", container.container_id),
                target_bytes=TARGET_MIB * MIB,
            )
            shrink = MemoryShrink(ObjectMeta(name=f"{name}-app", namespace="default", uid=f"5-{number}", generation=1), spec)
            self.shrinks[shrink.metadata.name] = msgspec.to_builtins(shrink)

    def phases(self) -> dict[str, int]:
        """How many shrinks say what."""
        return dict(Counter(shrink.get("status", {}).get("phase", "Pending") for shrink in list(self.shrinks.values())))

    def under_way(self) -> int:
        """How many have been begun."""
        return len(self.shrinks) - self.phases().get("Pending", 0)

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        """Status and document; a name that is not known is not there."""
        parts = path.strip("/").split("/")
        match method, parts:
            case "GET", [*_, "memoryshrinks"]:
                return 200, _listed(list(self.shrinks.values()))
            case "GET", ["api", "v1", "pods"]:
                return 200, _listed([msgspec.to_builtins(pod) for pod in self.pods.values()])
            case "GET", [*_, "pods", name] if name in self.pods:
                return 200, msgspec.to_builtins(self.pods[name])
            case "PATCH", [*_, "memoryshrinks", name, "status"] if name in self.shrinks:
                self.shrinks[name]["status"] = body[0]["value"]
                return 200, self.shrinks[name]
            case ("PATCH", [*_, "nodememories", _, "status"]) | ("POST", [*_, "events"]):
                return 200, {"metadata": {"name": "x"}}
            case "GET", [*_, "nodes", name]:
                return 200, {"metadata": {"name": name}, "status": {"conditions": []}}
            case _:
                return 404, {"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    api: ClassVar[_Api]
    is_over: ClassVar[threading.Event]

    def do_GET(self) -> None:
        """A watch is told of nothing, for nothing happens to the pods."""
        url = urlsplit(self.path)
        if parse_qs(url.query).get("watch"):
            self.api.counts["watches"] += 1
            self.send_response(200)
            self.send_header("Connection", "close")
            self.end_headers()
            self.is_over.wait()
            self.close_connection = True
            return
        self._answer("GET", url.path, None)

    def do_POST(self) -> None:
        """Something new."""
        self._answer("POST", urlsplit(self.path).path, self._body())

    def do_PATCH(self) -> None:
        """Something changed."""
        self._answer("PATCH", urlsplit(self.path).path, self._body())

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""

    def _body(self) -> Any:
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

    def _answer(self, method: str, path: str, body: Any) -> None:
        status, document = self.api.answer(method, path, body)
        plural = next((part for part in path.split("/") if part in ("memoryshrinks", "pods", "nodes", "nodememories", "events")), "other")
        self.api.counts[plural if method == "GET" else f"{plural} {method}"] += 1
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextlib.contextmanager
def serve_api(containers: list[Container]) -> Iterator[_Api]:
    """The API server of one node whose containers are these."""
    api, is_over = _Api(containers), threading.Event()
    handler = type("Handler", (_Handler,), {"api": api, "is_over": is_over})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    api.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield api
    finally:
        is_over.set()
        server.shutdown()


def _listed(items: list[Any]) -> dict[str, Any]:
    return {"metadata": {"resourceVersion": "1"}, "items": items}


def _pod(name: str, container: Container) -> Pod:
    limits = ResourceRequirements(limits={"memory": f"{LIMIT_MIB}Mi"})
    running = ContainerState(running=ContainerStateRunning(format_time(time.time() - 3600)))
    status = ContainerStatus(name="app", container_id=container.container_id, ready=True, started=True, state=running, resources=limits)
    return Pod(
        metadata=ObjectMeta(name=name, namespace="default", uid=container.pod_uid, resource_version="1"),
        spec=PodSpec(containers=[PodContainer("app", resources=limits)], node_name=_NODE),
        status=PodStatus(phase="Running", qos_class=container.qos_class, container_statuses=[status]),
    )
