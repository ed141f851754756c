"""A sandbox over HTTP(S) for tests of clients, and small objects to put into it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vpa_ippr.cluster.connection import connect
from vpa_ippr.cluster.rest import Rest
from vpa_ippr.sandbox.sandbox import Sandbox
from vpa_ippr.sandbox.store import Store

Json = dict[str, Any]
VPAS = "verticalpodautoscalers.autoscaling.k8s.io"
SHRINKS = "memoryshrinks.vpa-ippr.io"
CHECKPOINTS = "verticalpodautoscalercheckpoints.autoscaling.k8s.io"


@dataclass(frozen=True)
class RunningSandbox:
    sandbox: Sandbox
    kubeconfig: Path
    rest: Rest

    @property
    def store(self) -> Store:
        return self.sandbox.simulation.store

    def create(self, resource: str, namespace: str, name: str, **parts: Any) -> Json:
        """An object of those parts, in a namespace that is made when it is missing; ``metadata`` and ``status`` may be among them."""
        if self.store.find("namespaces", None, namespace) is None:
            self.store.create("namespaces", {"metadata": {"name": namespace}})
        metadata = {"name": name, "namespace": namespace, **parts.pop("metadata", {})}
        status = parts.pop("status", None)
        created = self.store.create(resource, {"metadata": metadata, **parts})
        if status is None:
            return created
        return self.store.update(resource, namespace, name, lambda found: {**found, "status": status}, subresource="status")

    def pod(
        self, namespace: str, name: str, *, node: str = "n1", owner: Json | None = None, phase: str = "Running", **resources: Json
    ) -> Json:
        """A pod with one container ``app``, as its kubelet would have it; ``node`` may be empty."""
        running = {
            "name": "app",
            "image": "app:1",
            "imageID": "app:1",
            "restartCount": 0,
            "ready": True,
            "containerID": "containerd://1",
            "resources": resources,
        }
        began = "2026-01-01T00:00:00Z"
        status = {
            "phase": phase,
            "startTime": began,
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": began}],
            "containerStatuses": [{**running, "state": {"running": {"startedAt": began}}}],
        }
        spec = {"containers": [{"name": "app", "image": "app:1", "resources": resources}], **({"nodeName": node} if node else {})}
        metadata = {"ownerReferences": [owner]} if owner else {}
        return self.create("pods", namespace, name, metadata=metadata, spec=spec, status=status)


@contextmanager
def running_sandbox(folder: Path, **options: Any) -> Iterator[RunningSandbox]:
    """A sandbox at the wall clock's speed; without ``kubelet=False`` it has kubelets and controllers."""
    kubeconfig = folder / "kubeconfig"
    sandbox = Sandbox(rate=1.0, **options)
    sandbox.start(kubeconfig)
    try:
        yield RunningSandbox(sandbox, kubeconfig, Rest(connect(str(kubeconfig))))
    finally:
        sandbox.stop()


def owner_of(owned: Json) -> Json:
    """A controller's owner reference."""
    metadata = owned["metadata"]
    return {"apiVersion": owned["apiVersion"], "kind": owned["kind"], "name": metadata["name"], "uid": metadata["uid"], "controller": True}


def template(app: str) -> Json:
    return {"metadata": {"labels": {"app": app}}, "spec": {"containers": [{"name": "app", "image": "app:1"}]}}


def controller_spec(app: str) -> Json:
    return {"replicas": 1, "selector": {"matchLabels": {"app": app}}, "template": template(app)}


def vpa_spec(kind: str, name: str, api_version: str = "apps/v1", **more: Any) -> Json:
    target = {"apiVersion": api_version, "kind": kind, "name": name}
    return {"targetRef": target, "recommenders": [{"name": "vpa-ippr"}], **more}
