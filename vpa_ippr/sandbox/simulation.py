"""The simulated cluster without its HTTP server: objects, time, nodes, controllers, scheduler and metrics, put together.

One thread works off the agenda. It is a participant of the lock-step time like every component that runs against the sandbox; with nobody
else registered, time runs as fast as the simulation can.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from vpa_ippr.api.errors import UsageError
from vpa_ippr.api.resources import parse_amounts
from vpa_ippr.sandbox.agenda import Agenda
from vpa_ippr.sandbox.cgroup import SandboxCgroups
from vpa_ippr.sandbox.disruption import Disruptions
from vpa_ippr.sandbox.jobs import CronJobs, Jobs
from vpa_ippr.sandbox.kubelet import Kubelet
from vpa_ippr.sandbox.mirror import Mirror
from vpa_ippr.sandbox.node import NodeSpec, node_object
from vpa_ippr.sandbox.nodesettings import FIXED_SETTINGS, apply_settings, shown_settings
from vpa_ippr.sandbox.owners import OwnerQueue, World
from vpa_ippr.sandbox.podsets import DaemonSets, StatefulSets
from vpa_ippr.sandbox.quotacontroller import DEFAULT_LAG_SECONDS, QuotaController
from vpa_ippr.sandbox.replicas import Deployments, ReplicaSets
from vpa_ippr.sandbox.restarts import RestartStep
from vpa_ippr.sandbox.runtimefaults import RuntimeFault, UsageGap
from vpa_ippr.sandbox.scheduling import Scheduler
from vpa_ippr.sandbox.scraping import Scraper
from vpa_ippr.sandbox.store import Store
from vpa_ippr.sandbox.timekeeper import TimeKeeper
from vpa_ippr.sandbox.tsdb import Tsdb
from vpa_ippr.sandbox.versions import profile
from vpa_ippr.sandbox.workloads import COARSE_STEP_SECONDS

logger = logging.getLogger(__name__)

Json = dict[str, Any]
SnapshotT = TypeVar("SnapshotT")
# Sorts before the names of components, so that the cluster moves first at each moment.
PARTICIPANT = "0-cluster"
FINE_STEP_SECONDS = 1.0
SCRAPE_SECONDS = 30.0


class Simulation:
    """A cluster that lives in simulated time.

    Args:
        version: the Kubernetes minor version that API server and kubelets behave like.
        start_time: the first moment, in seconds since the epoch; None for the wall clock's.
        nodes: nodes to create at the start. Nodes that a client creates get a kubelet of their own.
        kubelet: False leaves out kubelets, controllers and scheduler: objects stay as clients make them.
        rate: simulated seconds for each second of the wall clock; None for as fast as possible.
        quota_lag_seconds: how long the quota controller takes to notice that a quota is used less.
    """

    def __init__(
        self,
        *,
        version: str = "1.36",
        start_time: float | None = None,
        nodes: Sequence[NodeSpec] = (),
        kubelet: bool = True,
        rate: float | None = None,
        quota_lag_seconds: float = DEFAULT_LAG_SECONDS,
    ) -> None:
        self.profile = profile(version)
        self.keeper = TimeKeeper(time.time() if start_time is None else start_time, rate=rate)
        self.keeper.register(PARTICIPANT)
        self.clock = self.keeper.local_clock(PARTICIPANT)
        self.store = Store(self.clock, version=version)
        self.tsdb = Tsdb()
        self.kubelets: dict[str, Kubelet] = {}
        self._specs = tuple(nodes)
        self._agenda = Agenda(self.keeper.now, lambda moment: self.keeper.wake(PARTICIPANT, moment))
        self._pods = Mirror(self.store, self._agenda, "pods")
        self._nodes = Mirror(self.store, self._agenda, "nodes")
        self._world = World(self.store, self._agenda, self._pods, self._nodes)
        self._thread: threading.Thread | None = None
        self._next_full_tick = self.keeper.now()
        self._runs_pods = kubelet
        self.quotas = QuotaController(self.store, self._agenda, self._pods, lag_seconds=quota_lag_seconds)
        if kubelet:
            self._wire()

    @property
    def step_seconds(self) -> float:
        """The present step of the nodes: short while a container is guarded or a resize is under way."""
        return FINE_STEP_SECONDS if any(kubelet.is_busy for kubelet in self.kubelets.values()) else COARSE_STEP_SECONDS

    def start(self) -> None:
        """Create the nodes and let time begin; register other participants with ``keeper`` before."""
        for spec in self._specs:
            self._create_node(spec)
        if self._runs_pods:
            # Nodes before pods: a pod that is bound already finds its kubelet.
            self._nodes.start()
            self._queue.start()
            self._pods.start()
            self.quotas.start()
            self._disruptions.start()
            now = self.keeper.now()
            self._agenda.at(now, self._tick)
            self._agenda.at((now // SCRAPE_SECONDS + 1) * SCRAPE_SECONDS, self._scrape)
        self._thread = threading.Thread(target=self._agenda.run, args=(self.clock,), name="sandbox-cluster", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End time for all participants and wait for the cluster's own thread."""
        self.keeper.stop()
        if self._thread is not None:
            self._thread.join()

    def cgroups(self, node: str, make_snapshot: Callable[..., SnapshotT]) -> SandboxCgroups[SnapshotT]:
        """The cgroups of a node's containers, for an agent on it; ``make_snapshot`` is the agent's class, called with keywords.

        The node may come later than this call.
        """

        def find(pod_uid: str, container_id: str) -> Any:
            kubelet = self.kubelets.get(node)
            return kubelet.find_container(pod_uid, container_id) if kubelet else None

        def on_exit() -> None:
            self._agenda.soon(lambda: self.kubelets[node].tick(everything=True))

        return SandboxCgroups(find, self.keeper.now, make_snapshot, on_exit)

    # Faults and settings of nodes; from any thread, carried out on the cluster's

    def set_node_faults(self, node: str, runtime: Sequence[RuntimeFault] = (), gaps: Sequence[UsageGap] = ()) -> None:
        """Let calls to the node's runtime fail and its statistics have gaps from now on, and no others than these.

        Raises:
            UsageError: there is no such node (reason ``NoSuchNode``).
        """
        kubelet = self._kubelet(node)
        self._agenda.soon(lambda: kubelet.faults.set(runtime, gaps))

    def set_node_settings(self, node: str, settings: Json) -> None:
        """Change settings of the node's kubelet, named as in ``nodesettings``.

        Raises:
            UsageError: there is no such node (reason ``NoSuchNode``), or a setting is unknown or fixed from the start.
        """
        kubelet = self._kubelet(node)
        fixed = sorted(FIXED_SETTINGS & settings.keys())
        if fixed:
            raise UsageError(f"{fixed[0]} of node {node} cannot change while it runs")
        apply_settings(kubelet.spec, settings, f"node {node}")

        def change() -> None:
            kubelet.spec = apply_settings(kubelet.spec, settings, f"node {node}")

        self._agenda.soon(change)

    def restart_kubelet(self, node: str, step: RestartStep = RestartStep.NOW) -> None:
        """Kill the node's kubelet now, or at the next passing of ``step``; it comes back by itself.

        Raises:
            UsageError: there is no such node (reason ``NoSuchNode``).
        """
        kubelet = self._kubelet(node)
        self._agenda.soon(lambda: kubelet.restart(step))

    def node_state(self, node: str) -> Json:
        """A node's settings, the faults that are still to come, and whether its kubelet runs.

        Raises:
            UsageError: there is no such node (reason ``NoSuchNode``).
        """
        kubelet = self._kubelet(node)
        faults = {"runtime": kubelet.faults.runtime, "usageGaps": kubelet.faults.gaps}
        shown: Json = msgspec.to_builtins(faults)
        return {"kubeletIsUp": kubelet.is_up, "faults": shown, "settings": shown_settings(kubelet.spec)}

    def call_later(self, seconds: float, action: Callable[[], None]) -> None:
        """Do ``action`` on the cluster's thread after so much of its time; may be called from any thread."""

        def plan() -> None:
            self._agenda.after(seconds, action)

        self._agenda.soon(plan)

    def _kubelet(self, node: str) -> Kubelet:
        kubelet = self.kubelets.get(node)
        if kubelet is None:
            raise UsageError(f"there is no node {node} with a kubelet: {', '.join(sorted(self.kubelets)) or 'none'}", reason="NoSuchNode")
        return kubelet

    def _wire(self) -> None:
        world = self._world
        self._nodes.on_change(self._on_node)
        self._pods.on_change(self._on_pod)
        self._queue = OwnerQueue(
            world, [Deployments(world), ReplicaSets(world), StatefulSets(world), DaemonSets(world), Jobs(world), CronJobs(world)]
        )
        self._disruptions = Disruptions(self.store, self._agenda, self._pods, world.owners)
        self._scheduler = Scheduler(self.store, self._agenda, self._pods, self._nodes)
        self._scraper = Scraper(self.tsdb, self.kubelets, self._pods, world.owners["ReplicaSet"], world.owners["Job"])

    def _create_node(self, spec: NodeSpec) -> None:
        obj = node_object(spec, self.profile, self.keeper.now())
        self.store.create("nodes", obj)
        self.store.update("nodes", None, spec.name, lambda stored: {**stored, "status": obj["status"]}, subresource="status")

    def _on_node(self, event: str, node: Json) -> None:
        name = node["metadata"]["name"]
        if event == "DELETED":
            self.kubelets.pop(name, None)
        elif name not in self.kubelets:
            spec = next((spec for spec in self._specs if spec.name == name), None) or _spec_of(node)
            if spec is not None:
                rules = profile(spec.kubelet_version) if spec.kubelet_version else self.profile
                self.kubelets[name] = Kubelet(spec, self.store, self._agenda, rules, lambda: self._pods_on(name))
                self.kubelets[name].start()
                for pod in list(self._pods.objects.values()):
                    self._on_pod("ADDED", pod)

    def _pods_on(self, node: str) -> list[Json]:
        return [pod for _, pod in sorted(self._pods.objects.items()) if pod["spec"].get("nodeName") == node]

    def _on_pod(self, event: str, pod: Json) -> None:
        kubelet = self.kubelets.get(pod["spec"].get("nodeName", ""))
        if kubelet is not None:
            kubelet.handle(event, pod)

    def _tick(self) -> None:
        now = self._agenda.now()
        everything = now >= self._next_full_tick
        for kubelet in self.kubelets.values():
            kubelet.tick(everything=everything)
        if everything:
            self._next_full_tick = now + COARSE_STEP_SECONDS
        self._agenda.at(min(now + self.step_seconds, self._next_full_tick), self._tick)

    def _scrape(self) -> None:
        now = self._agenda.now()
        self._scraper.scrape(now)
        self._agenda.at(now + SCRAPE_SECONDS, self._scrape)


def _spec_of(node: Json) -> NodeSpec | None:
    """The size of a node that a client has made, once its status says it."""
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    name = node["metadata"]["name"]
    amounts = parse_amounts(allocatable, f"node {name} status.allocatable")
    if amounts.cpu_millicores is None or amounts.memory_bytes is None:
        return None
    return NodeSpec(name, amounts.cpu_millicores, amounts.memory_bytes)
