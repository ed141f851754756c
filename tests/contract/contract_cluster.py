"""A cluster as the contract tests see it: what its kubeconfig opens, and a clock to wait on.

Nothing here knows whether the cluster is real: the clock is the machine's, or the one of a cluster that lives in simulated time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Protocol, TypeVar
from urllib.parse import urlencode

import pytest
from contract_pods import Amounts, amounts_of
from kubernetes.config import new_client_from_config

Json = dict[str, Any]
T = TypeVar("T")

JSON = "application/json"
JSON_PATCH = "application/json-patch+json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
PENDING, IN_PROGRESS = "PodResizePending", "PodResizeInProgress"
NODES, NAMESPACES = "/api/v1/nodes", "/api/v1/namespaces"
POLL_SECONDS = 1.0
# Longer than the kubelet's own retry of deferred resizes (3 min) and than a pod's sync on 1.33 (60 to 90 s).
PATIENCE_SECONDS = 300.0


class Clock(Protocol):
    def now(self) -> float: ...

    def wait_until(self, moment: float) -> bool: ...


class RefusedError(Exception):
    """An answer of 400 or more."""

    def __init__(self, code: int, answer: Json) -> None:
        self.code = code
        self.reason: str = answer.get("reason", "")
        self.message: str = answer.get("message", "")
        self.causes: list[Json] = (answer.get("details") or {}).get("causes") or []
        super().__init__(f"{code} {self.reason}: {self.message}")


class Cluster:
    """One API server; ``node`` is the one that pods of the tests run on, None when no kubelet is ready to take them."""

    def __init__(self, kubeconfig: str, clock: Clock) -> None:
        self.clock = clock
        self._client = new_client_from_config(config_file=kubeconfig)

    @cached_property
    def minor(self) -> int:
        """Of the API server's version 1.x; vendors append to it (``33+``)."""
        return int(re.match(r"\d+", self.send("GET", "/version")["minor"])[0])

    @cached_property
    def node(self) -> str | None:
        return next((node["metadata"]["name"] for node in self.send("GET", NODES)["items"] if _takes_pods(node)), None)

    def ready_node(self) -> str:
        """The node; skips the test when there is none."""
        if self.node is None:
            pytest.skip("needs a kubelet: no Linux node of the cluster is ready and without taints")
        return self.node

    @cached_property
    def kubelet_minor(self) -> int:
        """Of the node's kubelet, which may be older than the API server."""
        version = self.send("GET", f"{NODES}/{self.ready_node()}")["status"]["nodeInfo"]["kubeletVersion"]
        return int(re.match(r"v1\.(\d+)", version)[1])

    def since(self, minor: int, what: str) -> None:
        """Skip what the API server does only from that version on."""
        if self.minor < minor:
            pytest.skip(f"Kubernetes 1.{self.minor}: {what} from 1.{minor} on")

    def kubelet_since(self, minor: int, what: str) -> None:
        """Skip what the kubelet does only from that version on; the API server is never older than it."""
        if self.kubelet_minor < minor:
            pytest.skip(f"kubelet 1.{self.kubelet_minor}: {what} from 1.{minor} on")

    def until(self, minor: int, what: str) -> None:
        """Skip what the API server does only up to that version."""
        if self.minor > minor:
            pytest.skip(f"Kubernetes 1.{self.minor}: {what} up to 1.{minor}")

    def send(
        self,
        method: str,
        path: str,
        body: object = None,
        content_type: str = JSON,
        *,
        query: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> Json:
        """The object of the answer; ``user`` is impersonated. Raises RefusedError."""
        settings = self._client.configuration
        headers = {"Accept": JSON, "Content-Type": content_type}
        bearer = settings.auth_settings().get("BearerToken")
        if bearer and bearer["value"]:
            headers["authorization"] = bearer["value"]
        if user is not None:
            headers["Impersonate-User"] = user
        url = settings.host + path + (f"?{urlencode(query)}" if query else "")
        payload = None if body is None else json.dumps(body).encode()
        answer = self._client.rest_client.pool_manager.request(method, url, headers=headers, body=payload)
        decoded = json.loads(answer.data)
        if answer.status >= 400:
            raise RefusedError(answer.status, decoded)
        return decoded

    def wait(self, what: str, probe: Callable[[], T | None], *, seconds: float = PATIENCE_SECONDS, shown: Callable[[], object]) -> T:
        """What ``probe`` returns once it is neither None nor False; fails with what is ``shown`` when time is up."""
        deadline = self.clock.now() + seconds
        while self.clock.now() < deadline:
            assert self.clock.wait_until(self.clock.now() + POLL_SECONDS)
            found = probe()
            if found is not None and found is not False:
                return found
        raise AssertionError(f"not within {seconds:.0f} s: {what}; last seen: {json.dumps(shown(), indent=1)}")

    def allocatable(self) -> Amounts:
        return amounts_of(self.send("GET", f"{NODES}/{self.node}")["status"]["allocatable"])

    def free(self) -> Amounts:
        """What pods may still request on the node."""
        pods = self.send("GET", "/api/v1/pods", query={"fieldSelector": f"spec.nodeName={self.node}"})["items"]
        alive = [pod for pod in pods if pod["status"].get("phase") not in ("Succeeded", "Failed")]
        taken = [_requested(pod) for pod in alive]
        total = self.allocatable()
        return Amounts(total.cpu - sum(t.cpu for t in taken), total.memory - sum(t.memory for t in taken))


class Namespace:
    """A namespace of one test, and what is done to the pods in it."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.path = f"{NAMESPACES}/{name}"
        cluster.send("POST", NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})

    def delete(self) -> None:
        self.cluster.send("DELETE", self.path)

    def create(self, plural: str, kind: str, name: str, **parts: Any) -> Json:
        return self.cluster.send("POST", f"{self.path}/{plural}", {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, **parts})

    def create_pod(self, pod: Json) -> Json:
        """A new pod; a real cluster refuses pods until the namespace has its ServiceAccount."""
        try:
            return self.cluster.send("POST", f"{self.path}/pods", pod)
        except RefusedError as refusal:
            if "serviceaccount" not in refusal.message:
                raise
        account = f"{self.path}/serviceaccounts/default"
        self.cluster.wait("the namespace's ServiceAccount", lambda: self._found(account), shown=lambda: self.name)
        return self.cluster.send("POST", f"{self.path}/pods", pod)

    def run_pod(self, pod: Json) -> Json:
        """A new pod, once all its containers that run for good do so."""
        name = pod["metadata"]["name"]
        self.create_pod(pod)
        return self.wait(f"pod {name} is ready", name, is_ready)

    def pod(self, name: str = "pod") -> Json:
        return self.cluster.send("GET", f"{self.path}/pods/{name}")

    def delete_pod(self, name: str) -> None:
        self.cluster.send("DELETE", f"{self.path}/pods/{name}", query={"gracePeriodSeconds": "0"})

    def set_status(self, status: Json, name: str = "pod") -> Json:
        return self.cluster.send("PATCH", f"{self.path}/pods/{name}/status", {"status": status}, STRATEGIC)

    def resize(
        self, spec: object, name: str = "pod", *, kind: str = STRATEGIC, dry_run: bool = False, metadata: Json | None = None
    ) -> Json:
        """Patch ``/resize``; ``spec`` is the patch's spec, or the whole JSON patch."""
        body = spec if kind == JSON_PATCH else {"spec": spec, **({"metadata": metadata} if metadata else {})}
        query = {"dryRun": "All"} if dry_run else None
        return self.cluster.send("PATCH", f"{self.path}/pods/{name}/resize", body, kind, query=query)

    def refused(self, spec: object, name: str = "pod", **options: Any) -> RefusedError:
        """What the server says to a resize that it must refuse; the pod must be as it was."""
        before = self.pod(name)
        with pytest.raises(RefusedError) as caught:
            self.resize(spec, name, **options)
        after = self.pod(name)
        assert (after["spec"], after["metadata"]["generation"]) == (before["spec"], before["metadata"]["generation"])
        return caught.value

    def wait(self, what: str, name: str, holds: Callable[[Json], bool], *, seconds: float = PATIENCE_SECONDS) -> Json:
        """The pod once ``holds``."""

        def probe() -> Json | None:
            pod = self.pod(name)
            return pod if holds(pod) else None

        return self.cluster.wait(what, probe, seconds=seconds, shown=lambda: _outline(self.pod(name)))

    def wait_pending(self, reason: str, name: str = "pod") -> Json:
        """The pod's pending condition, once it stands for the present spec with that reason."""
        pod = self.wait(f"pod {name} is {reason}", name, lambda pod: _is_pending(pod, reason))
        return condition(pod, PENDING)

    def _found(self, path: str) -> Json | None:
        try:
            return self.cluster.send("GET", path)
        except RefusedError as refusal:
            if refusal.code != 404:
                raise
            return None


def condition(pod: Json, kind: str) -> Json:
    """The condition of that type, empty when the pod has none."""
    return next((c for c in pod["status"].get("conditions") or [] if c["type"] == kind), {})


def is_observed(pod: Json) -> bool:
    """The kubelet has seen the present spec, as far as it says so (it does from 1.34 on)."""
    generation: int = pod["metadata"]["generation"]
    return int(pod["status"].get("observedGeneration", generation)) >= generation


def is_settled(pod: Json) -> bool:
    """No resize is pending or in progress, as upstream's own tests decide."""
    return is_observed(pod) and not condition(pod, PENDING) and not condition(pod, IN_PROGRESS)


def is_ready(pod: Json) -> bool:
    return condition(pod, "Ready").get("status") == "True" and not pod["metadata"].get("deletionTimestamp")


def _is_pending(pod: Json, reason: str) -> bool:
    pending = condition(pod, PENDING)
    return is_observed(pod) and pending.get("reason") == reason and pending["status"] == "True"


def _takes_pods(node: Json) -> bool:
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"].get("conditions") or [])
    tainted = any(taint["effect"] in ("NoSchedule", "NoExecute") for taint in node["spec"].get("taints") or [])
    is_linux = node["metadata"].get("labels", {}).get("kubernetes.io/os") == "linux"
    return ready and is_linux and not tainted and not node["spec"].get("unschedulable")


def _requested(pod: Json) -> Amounts:
    """Requests of a pod: of all that run together, or of the largest init container."""
    inits = pod["spec"].get("initContainers") or []
    lasting = [*pod["spec"]["containers"], *(c for c in inits if c.get("restartPolicy") == "Always")]
    together = [amounts_of((c.get("resources") or {}).get("requests") or {}) for c in lasting]
    alone = [amounts_of((c.get("resources") or {}).get("requests") or {}) for c in inits]
    whole = amounts_of((pod["spec"].get("resources") or {}).get("requests") or {})
    return Amounts(
        max([sum(a.cpu for a in together), whole.cpu, *(a.cpu for a in alone)]),
        max([sum(a.memory for a in together), whole.memory, *(a.memory for a in alone)]),
    )


def _outline(pod: Json) -> Json:
    keys = ("resources", "allocatedResources", "conditions", "containerStatuses", "initContainerStatuses", "observedGeneration")
    return {"generation": pod["metadata"]["generation"], **{key: pod["status"].get(key) for key in keys}}
