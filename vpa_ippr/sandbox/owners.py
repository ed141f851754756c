"""The controllers that own pods: what they share, and the queue that calls them.

Each controller is level-triggered: given one object of its kind it compares what is with what should be and does what is missing. Only the
``ownerReferences`` decide what belongs to whom; deleting what an owner leaves behind is the API server's garbage collection.
"""

from __future__ import annotations

import copy
import hashlib
import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from vpa_ippr.sandbox.agenda import Agenda
from vpa_ippr.sandbox.mirror import Mirror
from vpa_ippr.sandbox.recorder import EventRecorder
from vpa_ippr.sandbox.status import StatusError
from vpa_ippr.sandbox.store import Store

logger = logging.getLogger(__name__)

Json = dict[str, Any]

RESOURCE_OF_KIND: Mapping[str, str] = {
    "Deployment": "deployments.apps",
    "ReplicaSet": "replicasets.apps",
    "StatefulSet": "statefulsets.apps",
    "DaemonSet": "daemonsets.apps",
    "Job": "jobs.batch",
    "CronJob": "cronjobs.batch",
}
# What a controller writes is seen by it again before it is called the next time.
RECONCILE_SECONDS = 0.1
RETRY_SECONDS = 15.0
MAX_RETRY_SECONDS = 300.0
# No vowels, nothing that reads like another letter (apimachinery util/rand).
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"


class Controller(Protocol):
    """Reconciles the objects of one kind."""

    kind: str

    def reconcile(self, owner: Json) -> None:
        """Bring the world closer to what ``owner`` asks for."""
        ...


class World:
    """What the controllers see and how they act: mirrors of the objects, and the writes that they have in common."""

    def __init__(self, store: Store, agenda: Agenda, pods: Mirror, nodes: Mirror) -> None:
        self.store = store
        self.agenda = agenda
        self.pods = pods
        self.nodes = nodes
        self.owners = {kind: Mirror(store, agenda, resource) for kind, resource in RESOURCE_OF_KIND.items()}
        self.recorder = EventRecorder(store, agenda, "controller-manager")
        self._names = 0

    def active_pods(self, owner: Json) -> list[Json]:
        """The owner's pods that run or will run."""
        return [pod for pod in self.pods.owned_by(owner["metadata"]["uid"]) if is_active(pod)]

    def create_pod(self, owner: Json, template: Json, name: str = "", **extra: Any) -> bool:
        """Create a pod of the owner; without a name, one is made up. False when the API server refused, which becomes an event.

        ``extra``: ``labels`` and ``node``.
        """
        metadata = copy.deepcopy(template.get("metadata") or {})
        metadata |= {"name": name or self.fresh_name(owner["metadata"]["name"]), "namespace": owner["metadata"]["namespace"]}
        metadata["labels"] = {**(metadata.get("labels") or {}), **extra.get("labels", {})}
        metadata["ownerReferences"] = [owner_reference(owner)]
        spec = copy.deepcopy(template["spec"])
        if "node" in extra:
            spec["nodeName"] = extra["node"]
        try:
            self.store.create("pods", {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        except StatusError as error:
            self.recorder.record(owner, "Warning", "FailedCreate", f"Error creating: {error.message}")
            return False
        self.recorder.record(owner, "Normal", "SuccessfulCreate", f"Created pod: {metadata['name']}")
        return True

    def delete(self, resource: str, obj: Json) -> None:
        """Delete an object unless it is gone already."""
        metadata = obj["metadata"]
        try:
            self.store.delete(resource, metadata["namespace"], metadata["name"])
        except StatusError as error:
            if error.code != 404:
                raise

    def set_status(self, owner: Json, changes: Json) -> None:
        """Merge fields into the owner's status; None removes one."""

        def mutate(stored: Json) -> Json:
            merged = {**(stored.get("status") or {}), **changes}
            stored["status"] = {key: value for key, value in merged.items() if value is not None}
            return stored

        self._update(owner, mutate, "status")

    def set_spec(self, owner: Json, **changes: Any) -> None:
        """Set fields of the owner's spec."""

        def mutate(stored: Json) -> Json:
            stored["spec"] = {**stored["spec"], **changes}
            return stored

        self._update(owner, mutate, None)

    def requeue(self, owner: Json, moment: float) -> None:
        """Have the owner reconciled again at ``moment``, if it still exists then."""
        metadata, mirror = owner["metadata"], self.owners[owner["kind"]]
        self.agenda.at(moment, lambda: mirror.touch(metadata["namespace"], metadata["name"]))

    def fresh_name(self, prefix: str) -> str:
        """A name that was not given before; the same run gives the same names."""
        self._names += 1
        digest = hashlib.sha256(f"{prefix}/{self._names}".encode()).digest()
        return f"{prefix}-{''.join(_ALPHABET[byte % len(_ALPHABET)] for byte in digest[:5])}"

    def _update(self, owner: Json, mutate: Callable[[Json], Json], subresource: str | None) -> None:
        metadata = owner["metadata"]
        try:
            self.store.update(RESOURCE_OF_KIND[owner["kind"]], metadata["namespace"], metadata["name"], mutate, subresource=subresource)
        except StatusError as error:
            if error.code != 404:
                raise


class OwnerQueue:
    """Calls the controllers for the objects that changed, and for the owners of what changed."""

    def __init__(self, world: World, controllers: list[Controller]) -> None:
        self._world = world
        self._controllers = {controller.kind: controller for controller in controllers}
        self._queued: set[tuple[str, str, str]] = set()
        for kind, mirror in world.owners.items():
            mirror.on_change(lambda _event, obj, kind=kind: self._on_owner(kind, obj))  # type: ignore[misc]
        world.pods.on_change(lambda _event, pod: self._enqueue_owner(pod))
        world.nodes.on_change(lambda _event, _node: self._on_node())

    def start(self) -> None:
        """Begin to follow the owners; the mirrors of pods and nodes are started by whoever made them."""
        for mirror in self._world.owners.values():
            mirror.start()

    def enqueue(self, kind: str, namespace: str, name: str, seconds: float = RECONCILE_SECONDS) -> None:
        """Reconcile that object after ``seconds``, unless that is planned already."""
        key = (kind, namespace, name)
        if key not in self._queued:
            self._queued.add(key)
            self._world.agenda.after(seconds, lambda: self._reconcile(key))

    def _on_owner(self, kind: str, obj: Json) -> None:
        self.enqueue(kind, obj["metadata"]["namespace"], obj["metadata"]["name"])
        self._enqueue_owner(obj)

    def _on_node(self) -> None:
        for namespace, name in self._world.owners["DaemonSet"].objects:
            self.enqueue("DaemonSet", namespace, name)

    def _enqueue_owner(self, obj: Json) -> None:
        """Every owner up to the topmost: a Deployment waits for the pods of its ReplicaSets."""
        namespace = obj["metadata"].get("namespace", "")
        for owner in obj["metadata"].get("ownerReferences") or []:
            if owner.get("controller") and owner["kind"] in self._controllers:
                self.enqueue(owner["kind"], namespace, owner["name"])
                found = self._world.owners[owner["kind"]].objects.get((namespace, owner["name"]))
                if found is not None:
                    self._enqueue_owner(found)

    def _reconcile(self, key: tuple[str, str, str]) -> None:
        self._queued.discard(key)
        kind, namespace, name = key
        owner = self._world.owners[kind].objects.get((namespace, name))
        if owner is not None and not owner["metadata"].get("deletionTimestamp"):
            self._controllers[kind].reconcile(owner)


def owner_reference(owner: Json) -> Json:
    """What an object carries that ``owner`` controls."""
    metadata = owner["metadata"]
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def template_hash(template: Json) -> str:
    """Ten characters that stand for a pod template."""
    encoded = msgspec.json.encode(template, order="sorted")
    return "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in hashlib.sha256(encoded).digest()[:10])


def phase_of(pod: Json) -> str:
    """The pod's phase; Pending before there is a status."""
    phase: str = (pod.get("status") or {}).get("phase") or "Pending"
    return phase


def is_active(pod: Json) -> bool:
    """Neither finished nor being deleted."""
    return phase_of(pod) not in ("Succeeded", "Failed") and not pod["metadata"].get("deletionTimestamp")


def is_ready(pod: Json) -> bool:
    """The pod's Ready condition holds."""
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def retry_delay(failures: int) -> float:
    """Seconds before the next attempt after so many failed ones, so that a pod that always fails is not made in a tight loop."""
    return float(min(MAX_RETRY_SECONDS, RETRY_SECONDS * 2 ** min(failures, 10)))
