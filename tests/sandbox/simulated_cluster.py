"""A simulated cluster for tests: objects go straight to the store, time passes when the test waits."""

from __future__ import annotations

import json
from typing import Any

from vpa_ippr.actuator.cgroup import Snapshot
from vpa_ippr.sandbox.cgroup import SandboxCgroup
from vpa_ippr.sandbox.node import GIB, KubeletSettings, NodeSpec
from vpa_ippr.sandbox.simulation import Simulation
from vpa_ippr.sandbox.workloads import ANNOTATION_WORKLOAD

Json = dict[str, Any]
START = 1_800_000_000.0


class Cluster:
    """Use as a context manager; ``run`` lets time pass."""

    def __init__(self, *, version: str = "1.36", nodes: int = 1, cpu_millicores: int = 4000, memory_gib: int = 8, **kubelet: Any) -> None:
        node_version = kubelet.pop("node_version", None)
        settings = KubeletSettings(**kubelet)
        names = [f"n{index + 1}" for index in range(nodes)]
        specs = [NodeSpec(name, cpu_millicores, memory_gib * GIB, kubelet=settings, kubelet_version=node_version) for name in names]
        self.simulation = Simulation(version=version, start_time=START, nodes=specs)
        self.simulation.keeper.register("test")
        self.clock = self.simulation.keeper.local_clock("test")
        self.store = self.simulation.store

    def __enter__(self) -> Cluster:
        self.simulation.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.simulation.stop()

    def run(self, seconds: float) -> None:
        assert self.clock.wait_until(self.clock.now() + seconds)

    def create_pod(self, name: str, *containers: Json, run: float = 5, node: str = "n1", workload: Json | None = None, **spec: Any) -> Json:
        metadata: Json = {"name": name, "namespace": "default"}
        if workload is not None:
            metadata["annotations"] = {ANNOTATION_WORKLOAD: json.dumps(workload)}
        pod = {"metadata": metadata, "spec": {"containers": list(containers), **({"nodeName": node} if node else {}), **spec}}
        self.store.create("pods", pod)
        self.run(run)
        return self.pod(name)

    def pod(self, name: str) -> Json:
        return self.store.get("pods", "default", name)

    def pods(self) -> list[Json]:
        return self.store.list("pods", "default")

    def status(self, name: str, index: int = 0) -> Json:
        status: Json = self.pod(name)["status"]["containerStatuses"][index]
        return status

    def resize(self, name: str, *, container: str = "app", **resources: Json) -> Json:
        def mutate(pod: Json) -> Json:
            found = next(c for c in [*pod["spec"]["containers"], *pod["spec"].get("initContainers", [])] if c["name"] == container)
            for kind, amounts in resources.items():
                found["resources"][kind] = {**found["resources"].get(kind, {}), **amounts}
            return pod

        return self.store.update("pods", "default", name, mutate, subresource="resize")

    def condition(self, name: str, kind: str) -> Json | None:
        conditions = self.pod(name)["status"]["conditions"]
        return next((condition for condition in conditions if condition["type"] == kind), None)

    def events(self, name: str) -> list[str]:
        return [e["reason"] for e in self.store.list("events", "default") if e["involvedObject"]["name"] == name]

    def message(self, name: str, reason: str) -> str:
        events = self.store.list("events", "default")
        return next(e["message"] for e in events if e["involvedObject"]["name"] == name and e["reason"] == reason)

    def cgroup(self, name: str, index: int = 0) -> SandboxCgroup[Snapshot]:
        pod = self.pod(name)
        finder = self.simulation.cgroups("n1", Snapshot)
        found = finder.find(pod["metadata"]["uid"], pod["status"]["containerStatuses"][index]["containerID"], pod["status"]["qosClass"])
        assert found is not None
        return found


def container(name: str = "app", *, restart: tuple[str, ...] = (), **resources: Json) -> Json:
    policies = [{"resourceName": resource, "restartPolicy": "RestartContainer"} for resource in restart]
    return {"name": name, "image": f"{name}:1", "resources": resources, **({"resizePolicy": policies} if policies else {})}


def amounts(cpu: str, memory: str) -> Json:
    return {"cpu": cpu, "memory": memory}


def steady(anon: str, cpu: str = "50m", **more: Any) -> Json:
    return {"cpu": [{"kind": "steady", "level": cpu}], "anon": [{"kind": "steady", "level": anon}], **more}
