"""The demo's cluster and the real components in it: put together, watched over, and taken down again."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vpa_ippr.actuator.agent import Agent
from vpa_ippr.actuator.cgroup import Snapshot
from vpa_ippr.actuator.journal import Journal
from vpa_ippr.actuator.policy import Policy
from vpa_ippr.api.errors import ClusterError
from vpa_ippr.api.quantity import parse_bytes, parse_millicores
from vpa_ippr.api.shrink import MemoryShrink
from vpa_ippr.api.vpa import Vpa
from vpa_ippr.cli.demo_workloads import NODES, manifests
from vpa_ippr.cluster.connection import connect
from vpa_ippr.cluster.kube import Kube
from vpa_ippr.cluster.node_port import NodePort
from vpa_ippr.cluster.paths import NAMESPACES, collection
from vpa_ippr.cluster.rest import Ignored, Rest
from vpa_ippr.sandbox.node import NodeSpec
from vpa_ippr.sandbox.sandbox import Sandbox

# Monday, midnight UTC: the same two days in every run.
START_TIME = 1_767_571_200.0
LOOK_SECONDS = 600.0
_OBSERVER = "~observer"  # sorts last: it sees what all others have done at a moment
# Cycles come less often than in a cluster, where a cycle costs a second's share of nothing: two days must pass in minutes.
_COMPONENTS = {
    "recommender": ("--interval", "30m"),
    "updater": ("--interval", "5m", "--min-pod-age", "30m"),
}
_AGENT_POLL_SECONDS = 150.0
_PLURALS = {"Deployment": "deployments", "StatefulSet": "statefulsets", "Job": "jobs", "VerticalPodAutoscaler": "verticalpodautoscalers"}


@dataclass(frozen=True, slots=True)
class Glance:
    """What the observer saw at one moment."""

    at: float
    vpas: Sequence[Vpa]


@dataclass(slots=True)
class Observed:
    """What the observer has gathered: recommendations over time, and every MemoryShrink at its last sight."""

    glances: list[Glance] = field(default_factory=list)
    shrinks: dict[str, MemoryShrink] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DemoCluster:
    """The sandbox while the demo runs, and the way into it."""

    sandbox: Sandbox
    kubeconfig: Path
    rest: Rest


@contextlib.contextmanager
def demo_cluster(directory: Path, version: str) -> Iterator[DemoCluster]:
    """The cluster with the demo's workloads applied; time stands still."""
    nodes = [NodeSpec(name, parse_millicores(cpu), parse_bytes(memory)) for name, (cpu, memory) in NODES.items()]
    sandbox = Sandbox(version=version, start_time=START_TIME, nodes=nodes, rate=None)
    kubeconfig = directory / "kubeconfig"
    sandbox.serve(kubeconfig)
    try:
        rest = Rest(connect(str(kubeconfig)))
        for manifest in manifests():
            _apply(rest, manifest)
        yield DemoCluster(sandbox, kubeconfig, rest)
    finally:
        sandbox.stop()


class Run:
    """The components while they run."""

    def __init__(self, cluster: DemoCluster, directory: Path, processes: Mapping[str, subprocess.Popen[bytes]]) -> None:
        self._directory = directory
        self._processes = processes
        self._simulation = cluster.sandbox.simulation
        self._clock = self._simulation.keeper.local_clock(_OBSERVER)
        self._kube = Kube(cluster.rest, self._clock, "vpa-ippr-demo")

    def until(self, end: float, tell: Callable[[float], None]) -> Observed:
        """Let time run until ``end``, where it stands still; ``tell`` hears the simulated time now and then.

        Raises:
            ClusterError: a component has ended.
        """
        observed = Observed()
        self._simulation.start()
        while self._clock.now() < end and self._clock.wait_until(min(end, self._clock.now() + LOOK_SECONDS)):
            self._look(observed)
            for name, process in self._processes.items():
                self._check_alive(name, process)
            tell(self._clock.now())
        return observed

    def at_wall_speed(self) -> None:
        """Let time go on without the observer, as fast as the wall clock."""
        self._simulation.keeper.set_rate(1.0)
        self._clock.stop()

    def _look(self, observed: Observed) -> None:
        observed.glances.append(Glance(self._clock.now(), self._kube.list_vpas()))
        for shrink in self._kube.list_shrinks():
            observed.shrinks[shrink.metadata.uid] = shrink

    def _check_alive(self, name: str, process: subprocess.Popen[bytes]) -> None:
        code = process.poll()
        if code is not None:
            raise ClusterError(f"the {name} ended with exit code {code}: see {self._directory / f'{name}.log'}", reason="ComponentEnded")


@contextlib.contextmanager
def running_components(cluster: DemoCluster, directory: Path) -> Iterator[Run]:
    """The components of the addon, started as they would be in a cluster; time begins with ``Run.until``."""
    cluster.sandbox.simulation.keeper.register(_OBSERVER)
    with _agents(cluster, directory), _components(cluster, directory) as processes:
        yield Run(cluster, directory, processes)


def _apply(rest: Rest, manifest: dict[str, Any]) -> None:
    api_version, kind, metadata = manifest["apiVersion"], manifest["kind"], manifest["metadata"]
    path = NAMESPACES if kind == "Namespace" else collection(api_version, metadata["namespace"], _PLURALS[kind])
    rest.create(path, manifest, Ignored)


@contextlib.contextmanager
def _agents(cluster: DemoCluster, directory: Path) -> Iterator[None]:
    """An agent for each node, as the DaemonSet would run it: its cgroups are the node's, all else goes through the API."""
    stop = threading.Event()
    threads = []
    keeper = cluster.sandbox.simulation.keeper
    for node in NODES:
        name = f"actuator-{node}"
        keeper.register(name)
        clock = keeper.local_clock(name)
        port = NodePort(cluster.rest, clock)
        cgroups = cluster.sandbox.simulation.cgroups(node, Snapshot)
        agent = Agent(
            node, port, port, cgroups, Journal(directory / "journal" / node, "demo"), clock, Policy(poll_seconds=_AGENT_POLL_SECONDS)
        )
        threads.append(threading.Thread(target=agent.run, args=(stop,), name=name, daemon=True))
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for node in NODES:
            keeper.drop(f"actuator-{node}")
        for thread in threads:
            thread.join(10.0)


@contextlib.contextmanager
def _components(cluster: DemoCluster, directory: Path) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Recommender and updater as processes of their own, started as a container would start them."""
    processes: dict[str, subprocess.Popen[bytes]] = {}
    with contextlib.ExitStack() as logs:
        for name, arguments in _COMPONENTS.items():
            cluster.sandbox.clocks.register(name)
            command = [
                sys.executable,
                "-m",
                "vpa_ippr.cli",
                "--log-format",
                "json",
                name,
                "--kubeconfig",
                str(cluster.kubeconfig),
                *arguments,
            ]
            command += ["--clock-url", cluster.sandbox.clock_url]
            if name == "recommender":
                command += ["--prometheus-url", cluster.sandbox.prometheus_url, "--scrape-interval", "30s"]
            log = logs.enter_context((directory / f"{name}.log").open("wb"))
            processes[name] = subprocess.Popen(command, stdout=log, stderr=log)  # noqa: S603 - our own interpreter and arguments
        try:
            yield processes
        finally:
            for name, process in processes.items():
                process.terminate()
                cluster.sandbox.clocks.drop(name)
            for process in processes.values():
                process.wait(10.0)
