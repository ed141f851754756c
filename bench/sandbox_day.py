"""A simulated day of the demo's cluster with nobody in it but the cluster itself: kubelets, controllers, scheduler, kernel, scrapes."""

from __future__ import annotations

from bench.figures import Figure, best_of
from bench.objects import DAY_SECONDS, NOW
from vpa_ippr.api.quantity import parse_bytes, parse_millicores
from vpa_ippr.cli.demo_workloads import NODES, manifests
from vpa_ippr.sandbox.node import NodeSpec
from vpa_ippr.sandbox.sandbox import Sandbox

_OBSERVER = "~observer"
_RESOURCES = {
    "Namespace": "namespaces",
    "Deployment": "deployments.apps",
    "StatefulSet": "statefulsets.apps",
    "Job": "jobs.batch",
    "VerticalPodAutoscaler": "verticalpodautoscalers.autoscaling.k8s.io",
}


def measure() -> list[Figure]:
    sandboxes: list[Sandbox] = []

    def prepare() -> Sandbox:
        sandboxes.append(_sandbox())
        return sandboxes[-1]

    run = best_of(1, prepare, _run_day)
    pods = len(sandboxes[-1].simulation.store.list("pods"))
    note = f"{DAY_SECONDS / run.wall_seconds:,.0f} times the wall clock"
    return [Figure(name="sandbox-day", size=f"{len(NODES)} nodes, {pods} pods, 24 h", run=run, units=24, unit="simulated hour", note=note)]


def _sandbox() -> Sandbox:
    nodes = [NodeSpec(name, parse_millicores(cpu), parse_bytes(memory)) for name, (cpu, memory) in NODES.items()]
    sandbox = Sandbox(start_time=NOW, nodes=nodes, rate=None, tls=False)
    for manifest in manifests():
        sandbox.simulation.store.create(_RESOURCES[manifest["kind"]], manifest)
    return sandbox


def _run_day(sandbox: Sandbox) -> None:
    keeper = sandbox.simulation.keeper
    keeper.register(_OBSERVER)
    sandbox.simulation.start()
    assert keeper.local_clock(_OBSERVER).wait_until(NOW + DAY_SECONDS)
    sandbox.stop()
