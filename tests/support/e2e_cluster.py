"""A sandbox in lock-step time behind real HTTP, for the updater from end to end: workloads, their VPAs, agents, and what was written."""

from __future__ import annotations

import contextlib
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vpa_ippr.actuator.agent import Agent
from vpa_ippr.actuator.cgroup import Snapshot
from vpa_ippr.actuator.journal import Journal
from vpa_ippr.actuator.policy import Policy
from vpa_ippr.api.quantity import parse_bytes, parse_millicores
from vpa_ippr.api.timestamps import format_micro_time
from vpa_ippr.cli.server_rules import server_rules
from vpa_ippr.cluster.connection import connect
from vpa_ippr.cluster.kube import Kube
from vpa_ippr.cluster.node_port import NodePort
from vpa_ippr.cluster.rest import Rest
from vpa_ippr.resize.controller import Updater
from vpa_ippr.resize.result import PodOutcome
from vpa_ippr.resize.rules import VersionRules
from vpa_ippr.resize.settings import Settings
from vpa_ippr.sandbox.node import KubeletSettings, NodeSpec
from vpa_ippr.sandbox.sandbox import Sandbox
from vpa_ippr.sandbox.workloads import ANNOTATION_WORKLOAD

Json = dict[str, Any]
START = 1_800_000_000.0
CYCLE_SECONDS = 60.0
VPAS = "verticalpodautoscalers.autoscaling.k8s.io"
SHRINKS = "memoryshrinks.vpa-ippr.io"
NAMESPACE = "shop"
_TEST = "~test"  # sorts last: it sees what all others have done at a moment


def amounts(cpu: str, memory: str) -> Json:
    """Quantities of both resources; an empty one is left out."""
    return {name: value for name, value in (("cpu", cpu), ("memory", memory)) if value}


def steady(anon: str, cpu: str = "50m") -> Json:
    """What a container ``app`` uses, all the time."""
    return {"app": {"cpu": [{"kind": "steady", "level": cpu}], "anon": [{"kind": "steady", "level": anon}]}}


def container(requests: Json, limits: Json | None = None, *, name: str = "app", restart: tuple[str, ...] = (), **more: Any) -> Json:
    """A container; the resources in ``restart`` are changed by a restart only."""
    policies = [{"resourceName": resource, "restartPolicy": "RestartContainer"} for resource in restart]
    resources = {"requests": requests, **({"limits": limits} if limits else {})}
    return {"name": name, "image": f"{name}:1", "resources": resources, **({"resizePolicy": policies} if policies else {}), **more}


def vpa_of(name: str, mode: str | None, *, kind: str = "Deployment", annotations: Json | None = None, **policy: Any) -> Json:
    """A VPA of that workload; ``policy`` are fields of its updatePolicy."""
    mode_part = {} if mode is None else {"updateMode": mode}
    return {
        "apiVersion": "autoscaling.k8s.io/v1",
        "kind": "VerticalPodAutoscaler",
        "metadata": {"name": name, "namespace": NAMESPACE, "annotations": annotations or {}},
        "spec": {
            "targetRef": {"apiVersion": "apps/v1", "kind": kind, "name": name},
            "recommenders": [{"name": "vpa-ippr"}],
            "updatePolicy": {"minReplicas": 1, **mode_part, **policy},
        },
    }


def recommendation(target: Json, *, slack: bool = False, name: str = "app") -> Json:
    """The status of a VPA; without ``slack`` the bounds are the target, so that anything else is outside of them."""
    bounds = {"lowerBound": {"cpu": "1m", "memory": "1Mi"}, "upperBound": {"cpu": "100", "memory": "1Ti"}}
    given = bounds if slack else {"lowerBound": target, "upperBound": target}
    return {"recommendation": {"containerRecommendations": [{"containerName": name, "target": target, **given}]}}


def deployment(name: str, replicas: int, *containers: Json, use: Json | None = None, **spec: Any) -> Json:
    """A Deployment; ``spec`` are fields of its pods."""
    labels = {"app": name}
    annotations = {ANNOTATION_WORKLOAD: json.dumps(use or steady("40Mi"))}
    template = {"metadata": {"labels": labels, "annotations": annotations}, "spec": {"containers": list(containers), **spec}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template},
    }


@dataclass
class Town:
    """The cluster with its time; the test waits, and everybody else lives meanwhile."""

    sandbox: Sandbox
    kubeconfig: Path
    folder: Path
    history: list[PodOutcome] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock = self.sandbox.simulation.keeper.local_clock(_TEST)
        self.store = self.sandbox.simulation.store
        self.connection = connect(str(self.kubeconfig))

    # What is there

    def create(self, resource: str, obj: Json) -> Json:
        """An object, with its status if it has one."""
        created = self.store.create(resource, {key: part for key, part in obj.items() if key != "status"})
        if "status" not in obj:
            return created
        name = obj["metadata"]["name"]
        namespace = obj["metadata"].get("namespace")
        return self.store.update(resource, namespace, name, lambda found: {**found, "status": obj["status"]}, subresource="status")

    def workload(self, manifest: Json, mode: str | None = "InPlace", *, run: float = 30.0, **vpa: Any) -> None:
        """A Deployment with its VPA, which recommends nothing yet; its pods get ready."""
        name = manifest["metadata"]["name"]
        self.create("deployments.apps", manifest)
        self.create(VPAS, vpa_of(name, mode, **vpa))
        self.run(run)

    def recommend(self, workload: str, cpu: str, memory: str, **how: Any) -> None:
        """From now on this is recommended for the container ``app``, or another ``name``."""
        status = recommendation(amounts(cpu, memory), **how)
        self.store.update(
            VPAS, NAMESPACE, workload, lambda found: {**found, "status": {**found.get("status", {}), **status}}, subresource="status"
        )

    def pods(self, name: str = "") -> list[Json]:
        """Those of a workload, or all."""
        found = self.store.list("pods", NAMESPACE)
        return [pod for pod in found if not name or pod["metadata"]["name"].startswith(f"{name}-") or pod["metadata"]["name"] == name]

    def resources(self, name: str = "", where: str = "spec") -> list[Json]:
        """The resources of the first container of each pod, as asked for or (``status``) as they are."""
        if where == "spec":
            return [pod["spec"]["containers"][0]["resources"] for pod in self.pods(name)]
        return [pod["status"]["containerStatuses"][0].get("resources", {}) for pod in self.pods(name)]

    def requests(self, name: str = "", where: str = "spec") -> list[tuple[str, str]]:
        """CPU and memory that the pods request."""
        return [(found["requests"].get("cpu"), found["requests"].get("memory")) for found in self.resources(name, where)]

    def shrinks(self) -> list[Json]:
        """All MemoryShrinks."""
        return self.store.list(SHRINKS, NAMESPACE)

    def vpa_condition(self, name: str, kind: str) -> Json | None:
        """A condition of a VPA."""
        conditions = self.store.get(VPAS, NAMESPACE, name).get("status", {}).get("conditions") or []
        return next((condition for condition in conditions if condition["type"] == kind), None)

    def events(self, reason: str) -> list[str]:
        """The names of the objects that have an event with this reason."""
        return [event["involvedObject"]["name"] for event in self.store.list("events", NAMESPACE) if event["reason"] == reason]

    def writes(self, resource: str = "pods", subresource: str = "resize", verb: str = "patch") -> Counter[str]:
        """How many such writes of a client went through, by the name of the object."""
        wanted = (verb, resource, subresource)
        audit = list(self.sandbox.api.audit)
        return Counter(one.name for one in audit if (one.verb, one.resource, one.subresource) == wanted and one.code < 300)

    # What happens

    def run(self, seconds: float) -> None:
        """Let time pass."""
        assert self.clock.wait_until(self.clock.now() + seconds)

    def updater(self, settings: Settings | None = None, *, rules: VersionRules | None = None, **rest: Any) -> Updater:
        """One that has just started and knows nothing."""
        transport = Rest(self.connection, **{"sleep": lambda _seconds: None, **rest})
        kube = Kube(transport, self.clock, "vpa-ippr-updater")
        return Updater(kube, self.clock, settings or Settings(), rules or server_rules(transport))

    def use_token(self, token: str) -> None:
        """Updaters that start from now on come with this token."""
        self.sandbox.api.write_kubeconfig(self.folder / "other-kubeconfig", token)
        self.connection = connect(str(self.folder / "other-kubeconfig"))

    def cycle(self, updater: Updater, times: int = 1, every: float = CYCLE_SECONDS) -> list[PodOutcome]:
        """Cycles, each with its time after it; the outcomes of the last one."""
        outcomes: list[PodOutcome] = []
        for _ in range(times):
            outcomes = list(updater.run_cycle().outcomes)
            self.history += outcomes
            self.run(every)
        return outcomes

    def cycle_until(self, updater: Updater, done: Callable[[], bool], *, most: int = 60, every: float = CYCLE_SECONDS) -> int:
        """Cycles until it is so; how many there were."""
        for times in range(1, most + 1):
            self.cycle(updater, every=every)
            if done():
                return times
        raise AssertionError(
            f"not so after {most} cycles; last: {[f'{o.pod}: {o.code} {o.reason} {o.message}' for o in self.history[-5:]]}"
        )

    def codes(self) -> list[tuple[str, str]]:
        """Code and reason of all outcomes so far but those of nothing to do."""
        return [(str(one.code), str(one.reason)) for one in self.history if one.code != "NotDue"]

    def renew_admission(self) -> None:
        """An admission controller says that it is there."""
        spec = {"holderIdentity": "admission", "leaseDurationSeconds": 60, "renewTime": format_micro_time(self.clock.now())}
        place = ("leases.coordination.k8s.io", "kube-system", "vpa-admission-controller")
        if self.store.find(*place) is None:
            self.store.create(place[0], {"metadata": {"name": place[2], "namespace": place[1]}, "spec": spec})
        else:
            self.store.update(*place, lambda found: {**found, "spec": spec})

    @contextmanager
    def agents(self, *without: str, poll_seconds: float = 15.0) -> Iterator[None]:
        """The real agent on each node but those, as the DaemonSet would run it."""
        stop, keeper, threads = threading.Event(), self.sandbox.simulation.keeper, []
        nodes = [name for node in self.store.list("nodes") if (name := node["metadata"]["name"]) not in without]
        for node in nodes:
            name = f"actuator-{node}"
            keeper.register(name)
            clock = keeper.local_clock(name)
            port = NodePort(Rest(self.connection), clock)
            policy = Policy(poll_seconds=poll_seconds, startup_grace_seconds=0.0)
            cgroups = self.sandbox.simulation.cgroups(node, Snapshot)
            agent = Agent(node, port, port, cgroups, Journal(self.folder / "journal" / node, "e2e"), clock, policy)
            threads.append(threading.Thread(target=agent.run, args=(stop,), name=name, daemon=True))
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stop.set()
            for node in nodes:
                keeper.drop(f"actuator-{node}")
            for thread in threads:
                thread.join(10.0)


@contextmanager
def town(
    folder: Path,
    *,
    version: str = "1.36",
    nodes: int = 1,
    cpu: str = "8",
    memory: str = "32Gi",
    node_version: str | None = None,
    **kubelet: Any,
) -> Iterator[Town]:
    """A cluster that has begun, with the namespace of the workloads."""
    settings = KubeletSettings(**kubelet)
    size = (parse_millicores(cpu), parse_bytes(memory))
    specs = [NodeSpec(f"node-{index + 1}", *size, kubelet=settings, kubelet_version=node_version) for index in range(nodes)]
    sandbox = Sandbox(version=version, start_time=START, nodes=specs, rate=None, tls=False)
    kubeconfig = folder / "kubeconfig"
    sandbox.serve(kubeconfig)
    try:
        with contextlib.ExitStack() as stack:
            sandbox.simulation.keeper.register(_TEST)
            stack.callback(sandbox.simulation.keeper.drop, _TEST)
            for name in (NAMESPACE, "kube-system"):
                if sandbox.simulation.store.find("namespaces", None, name) is None:
                    sandbox.simulation.store.create("namespaces", {"metadata": {"name": name}})
            sandbox.simulation.start()
            made = Town(sandbox, kubeconfig, folder)
            made.run(5)
            yield made
    finally:
        sandbox.stop()
