"""The cluster as the services know it: typed reads and writes over the transport. Implements the ports of recommend, resize and report."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from vpa_ippr.api.clock import Clock
from vpa_ippr.api.cluster import EventType, Node, ObjectRef, Workload
from vpa_ippr.api.errors import QuantityError
from vpa_ippr.api.hpa import HorizontalPodAutoscaler
from vpa_ippr.api.limit_range import LimitRange
from vpa_ippr.api.meta import Condition, ObjectKey, ObjectMeta
from vpa_ippr.api.node_memory import NodeMemory
from vpa_ippr.api.pdb import PodDisruptionBudget
from vpa_ippr.api.pod import Pod
from vpa_ippr.api.quota import ResourceQuota
from vpa_ippr.api.resources import parse_amounts
from vpa_ippr.api.shrink import Intent, MemoryShrink
from vpa_ippr.api.vpa import Vpa, VpaCheckpoint, VpaStatus
from vpa_ippr.cluster import paths, workloads
from vpa_ippr.cluster.cache import HasMetadata
from vpa_ippr.cluster.events import EventRecorder
from vpa_ippr.cluster.lease import ADMISSION_LEASES, admission_renewed_at
from vpa_ippr.cluster.rest import ApiError, Ignored, Rest, unless_gone

logger = logging.getLogger(__name__)

T = TypeVar("T", bound=HasMetadata)
# The field selector keeps pods that have ended, or have no node yet, from crossing the network at all.
_ON_A_NODE = "status.phase!=Succeeded,status.phase!=Failed,spec.nodeName!="

# Who owns a workload changes hardly ever, and is asked for each pod in each cycle.
_KNOWN_SECONDS = 600.0


class _NodeInfo(msgspec.Struct, frozen=True, rename="camel"):
    kubelet_version: str = ""


class _NodeStatus(msgspec.Struct, frozen=True, rename="camel"):
    allocatable: dict[str, str | int | float] = {}
    node_info: _NodeInfo = _NodeInfo()
    declared_features: list[str] = []


class _Node(msgspec.Struct):
    metadata: ObjectMeta
    status: _NodeStatus = _NodeStatus()


class Kube:
    """Reads and writes of one component; ``component`` is the name that its events carry.

    ``admission_namespaces``: where the lease of an admission controller is looked for.
    """

    def __init__(self, rest: Rest, clock: Clock, component: str, admission_namespaces: Sequence[str] = ("kube-system",)) -> None:
        self._rest = rest
        self._admission_namespaces = admission_namespaces
        self._events = EventRecorder(rest, clock, component)
        self._known = workloads.Remembered(clock, _KNOWN_SECONDS)
        self._left_out: dict[str, tuple[str, ...]] = {}

    @property
    def left_out(self) -> tuple[str, ...]:
        """One line for each object that the last lists could not read."""
        return tuple(itertools.chain.from_iterable(self._left_out.values()))

    def list_vpas(self) -> list[Vpa]:
        """All VPAs."""
        return self._list(paths.VPAS, Vpa)

    def list_pods(self) -> list[Pod]:
        """All pods that are on a node and have not ended."""
        return self._list(paths.PODS, Pod, {"fieldSelector": _ON_A_NODE})

    def list_nodes(self) -> list[Node]:
        """All nodes; one whose allocatable cannot be read is left out and logged."""
        return list(_nodes(self._list(paths.NODES, _Node)))

    def list_limit_ranges(self) -> list[LimitRange]:
        """All LimitRanges."""
        return self._list(paths.LIMIT_RANGES, LimitRange)

    def list_quotas(self) -> list[ResourceQuota]:
        """All ResourceQuotas."""
        return self._list(paths.QUOTAS, ResourceQuota)

    def list_pdbs(self) -> list[PodDisruptionBudget]:
        """All PodDisruptionBudgets."""
        return self._list(paths.PDBS, PodDisruptionBudget)

    def list_hpas(self) -> list[HorizontalPodAutoscaler]:
        """All HorizontalPodAutoscalers."""
        return self._list(paths.HPAS, HorizontalPodAutoscaler)

    def list_checkpoints(self) -> list[VpaCheckpoint]:
        """All checkpoints, of any recommender."""
        return self._list(paths.CHECKPOINTS, VpaCheckpoint)

    def list_shrinks(self) -> list[MemoryShrink]:
        """All MemoryShrinks."""
        return self._list(paths.SHRINKS, MemoryShrink)

    def list_node_memories(self) -> list[NodeMemory]:
        """All NodeMemories; none where their CustomResourceDefinition is not installed."""
        try:
            return self._list(paths.NODE_MEMORIES, NodeMemory)
        except ApiError as error:
            if error.status != 404:
                raise
            return []

    def find_workload(self, namespace: str, api_version: str, kind: str, name: str) -> Workload | None:
        """See ``cluster.workloads.find_workload``; an object once found is not asked for again for ten minutes."""
        wanted = (namespace, api_version, kind, name)
        known = self._known.get(wanted)
        if known is None:
            known = workloads.find_workload(self._rest, *wanted)
            if known is not None:
                self._known.put(wanted, known)
        return known

    def get_pod(self, key: ObjectKey) -> Pod | None:
        """The pod as it is now; None when it is gone."""
        return self._rest.find(paths.pod(key), Pod)

    def get_shrink(self, key: ObjectKey) -> MemoryShrink | None:
        """The MemoryShrink as it is now; None when it is gone."""
        return self._rest.find(paths.shrink(key), MemoryShrink)

    def patch_vpa_status(self, key: ObjectKey, status: VpaStatus) -> None:
        """Replace the status; nothing happens when the VPA is gone. A JSON patch: a merge patch would keep what is no longer there."""
        patch = [{"op": "add", "path": "/status", "value": status}]
        with unless_gone():
            self._wrote(paths.VPAS, self._rest.patch(paths.vpa(key, "status"), patch, Vpa, patch_type="json-patch"))

    def annotate_vpa(self, key: ObjectKey, annotations: Mapping[str, str]) -> None:
        """Set these annotations and leave all others; nothing happens when the VPA is gone."""
        with unless_gone():
            self._wrote(paths.VPAS, self._rest.patch(paths.vpa(key), {"metadata": {"annotations": dict(annotations)}}, Vpa))

    def put_checkpoint(self, checkpoint: VpaCheckpoint) -> None:
        """Create the checkpoint, or replace its annotations, owners, spec and status as a whole."""
        key = ObjectKey(checkpoint.metadata.namespace, checkpoint.metadata.name)
        patch = [
            {"op": "add", "path": "/metadata/annotations", "value": checkpoint.metadata.annotations},
            {"op": "add", "path": "/metadata/ownerReferences", "value": checkpoint.metadata.owner_references},
            {"op": "add", "path": "/spec", "value": checkpoint.spec},
            {"op": "add", "path": "/status", "value": checkpoint.status},
        ]
        try:
            self._rest.patch(paths.checkpoint(key), patch, Ignored, patch_type="json-patch")
        except ApiError as error:
            if error.status != 404:
                raise
            collection = paths.collection(checkpoint.api_version, key.namespace, "verticalpodautoscalercheckpoints")
            self._rest.create(collection, checkpoint, Ignored)

    def resize_pod(self, key: ObjectKey, patch: Mapping[str, object]) -> Pod:
        """Strategic-merge patch of the pod's ``resize`` subresource; 409 when a precondition in it is outdated."""
        pod = self._rest.patch(paths.pod(key, "resize"), patch, Pod, patch_type="strategic-merge-patch")
        self._wrote(paths.PODS, pod)
        return pod

    def dry_run_resize(self, key: ObjectKey, patch: Mapping[str, object]) -> Pod:
        """What ``resize_pod`` would answer; nothing is stored."""
        return self._rest.patch(paths.pod(key, "resize"), patch, Pod, patch_type="strategic-merge-patch", dry_run=True)

    def annotate_pod(self, key: ObjectKey, patch: Mapping[str, object]) -> Pod:
        """Merge patch of the pod's ``metadata``; 409 when a precondition in it is outdated."""
        pod = self._rest.patch(paths.pod(key), patch, Pod)
        self._wrote(paths.PODS, pod)
        return pod

    def evict_pod(self, key: ObjectKey, uid: str) -> None:
        """Evict the pod of that UID; 429 when a PodDisruptionBudget forbids it, 409 when another pod has its name now."""
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"namespace": key.namespace, "name": key.name},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
        self._rest.create(paths.pod(key, "eviction"), body, Ignored)

    def admission_renewed_at(self) -> float | None:
        """When an admission controller has renewed its lease last, in the namespaces where one is looked for; None when there is none."""
        found = [admission_renewed_at(self._rest, self._admission_namespaces, name) for name in ADMISSION_LEASES]
        return max((renewed for renewed in found if renewed is not None), default=None)

    def put_vpa_condition(self, vpa: Vpa, condition: Condition) -> None:
        """Set one condition of the VPA's status, unless the VPA has changed since it was read."""
        others = [known for known in vpa.status.conditions if known.type != condition.type]
        patch = [
            {"op": "test", "path": "/metadata/resourceVersion", "value": vpa.metadata.resource_version},
            {"op": "add", "path": "/status/conditions", "value": sorted([*others, condition], key=lambda one: one.type)},
        ]
        with unless_gone():
            self._rest.patch(paths.vpa(vpa.key, "status"), patch, Ignored, patch_type="json-patch")

    def create_shrink(self, shrink: MemoryShrink) -> None:
        """Create a MemoryShrink; 409 when one of that name exists."""
        path = paths.collection(shrink.api_version, shrink.metadata.namespace, "memoryshrinks")
        self._wrote(paths.SHRINKS, self._rest.create(path, shrink, MemoryShrink))

    def patch_shrink_intent(self, key: ObjectKey, intent: Intent) -> None:
        """Change ``spec.intent``."""
        patch = {"spec": {"intent": intent.value}}
        self._wrote(paths.SHRINKS, self._rest.patch(paths.shrink(key), patch, MemoryShrink))

    def delete_shrink(self, key: ObjectKey) -> None:
        """Delete a MemoryShrink; nothing happens when it is gone."""
        self._rest.delete(paths.shrink(key))

    def record_event(self, about: ObjectRef | Vpa, event_type: EventType, reason: str, message: str) -> None:
        """Record an event; failures are logged, never raised."""
        if isinstance(about, Vpa):
            about = ObjectRef(about.api_version, about.kind, about.metadata.namespace, about.metadata.name, about.metadata.uid)
        self._events.record(about, event_type, reason, message)

    def _list(self, path: str, kind: type[T], query: Mapping[str, str] | None = None) -> list[T]:
        items, unreadable = self._read(path, kind, query)
        self._left_out[path] = unreadable
        for line in unreadable:
            logger.warning("object left out", extra={"error": line})
        return items

    def _read(self, path: str, kind: type[T], query: Mapping[str, str] | None) -> tuple[list[T], tuple[str, ...]]:
        """All objects of a kind, and a line for each that could not be read."""
        listing = self._rest.list(path, kind, query)
        return listing.items, listing.unreadable

    def _wrote(self, path: str, written: HasMetadata) -> None:
        """Take note of an object of the list at ``path`` as a write of ours left it; of use to whoever keeps lists."""


def _nodes(found: Iterable[_Node]) -> Iterable[Node]:
    for node in found:
        try:
            allocatable = parse_amounts(node.status.allocatable, f"node {node.metadata.name} status.allocatable")
        except QuantityError as error:
            logger.warning("object left out", extra={"error": str(error)})
            continue
        features = frozenset(node.status.declared_features)
        yield Node(node.metadata.name, allocatable, node.status.node_info.kubelet_version, node.metadata.labels, features)
