"""The cluster as the services know it: typed reads and writes over the transport. Implements the ports of recommend, resize and report."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec

from vpa_ippr.api.clock import Clock
from vpa_ippr.api.cluster import EventType, Node, ObjectRef, Workload
from vpa_ippr.api.errors import QuantityError
from vpa_ippr.api.limit_range import LimitRange
from vpa_ippr.api.meta import ObjectKey, ObjectMeta
from vpa_ippr.api.pod import Pod
from vpa_ippr.api.resources import parse_amounts
from vpa_ippr.api.shrink import Intent, MemoryShrink
from vpa_ippr.api.vpa import Vpa, VpaCheckpoint, VpaStatus
from vpa_ippr.cluster import paths, workloads
from vpa_ippr.cluster.events import EventRecorder
from vpa_ippr.cluster.rest import ApiError, Ignored, Rest, unless_gone

logger = logging.getLogger(__name__)

T = TypeVar("T")
# The field selector keeps pods that have ended, or have no node yet, from crossing the network at all.
_ON_A_NODE = "status.phase!=Succeeded,status.phase!=Failed,spec.nodeName!="

# Who owns a workload changes hardly ever, and is asked for each pod in each cycle.
_KNOWN_SECONDS = 600.0


class _NodeInfo(msgspec.Struct, frozen=True, rename="camel"):
    kubelet_version: str = ""


class _NodeStatus(msgspec.Struct, frozen=True, rename="camel"):
    allocatable: dict[str, str | int | float] = {}
    node_info: _NodeInfo = _NodeInfo()


class _Node(msgspec.Struct):
    metadata: ObjectMeta
    status: _NodeStatus = _NodeStatus()


class Kube:
    """Reads and writes of one component; ``component`` is the name that its events carry."""

    def __init__(self, rest: Rest, clock: Clock, component: str) -> None:
        self._rest = rest
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

    def list_checkpoints(self) -> list[VpaCheckpoint]:
        """All checkpoints, of any recommender."""
        return self._list(paths.CHECKPOINTS, VpaCheckpoint)

    def list_shrinks(self) -> list[MemoryShrink]:
        """All MemoryShrinks."""
        return self._list(paths.SHRINKS, MemoryShrink)

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
            self._rest.patch(paths.vpa(key, "status"), patch, Ignored, patch_type="json-patch")

    def annotate_vpa(self, key: ObjectKey, annotations: Mapping[str, str]) -> None:
        """Set these annotations and leave all others; nothing happens when the VPA is gone."""
        with unless_gone():
            self._rest.patch(paths.vpa(key), {"metadata": {"annotations": dict(annotations)}}, Ignored)

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
        return self._rest.patch(paths.pod(key, "resize"), patch, Pod, patch_type="strategic-merge-patch")

    def annotate_pod(self, key: ObjectKey, patch: Mapping[str, object]) -> Pod:
        """Merge patch of the pod's ``metadata``; 409 when a precondition in it is outdated."""
        return self._rest.patch(paths.pod(key), patch, Pod)

    def create_shrink(self, shrink: MemoryShrink) -> None:
        """Create a MemoryShrink; 409 when one of that name exists."""
        self._rest.create(paths.collection(shrink.api_version, shrink.metadata.namespace, "memoryshrinks"), shrink, Ignored)

    def patch_shrink_intent(self, key: ObjectKey, intent: Intent) -> None:
        """Change ``spec.intent``."""
        self._rest.patch(paths.shrink(key), {"spec": {"intent": intent.value}}, Ignored)

    def delete_shrink(self, key: ObjectKey) -> None:
        """Delete a MemoryShrink; nothing happens when it is gone."""
        self._rest.delete(paths.shrink(key))

    def record_event(self, about: ObjectRef | Vpa, event_type: EventType, reason: str, message: str) -> None:
        """Record an event; failures are logged, never raised."""
        if isinstance(about, Vpa):
            about = ObjectRef(about.api_version, about.kind, about.metadata.namespace, about.metadata.name, about.metadata.uid)
        self._events.record(about, event_type, reason, message)

    def _list(self, path: str, kind: type[T], query: Mapping[str, str] | None = None) -> list[T]:
        listing = self._rest.list(path, kind, query)
        self._left_out[path] = listing.unreadable
        for line in listing.unreadable:
            logger.warning("object left out", extra={"error": line})
        return listing.items


def _nodes(found: Iterable[_Node]) -> Iterable[Node]:
    for node in found:
        try:
            allocatable = parse_amounts(node.status.allocatable, f"node {node.metadata.name} status.allocatable")
        except QuantityError as error:
            logger.warning("object left out", extra={"error": str(error)})
            continue
        yield Node(node.metadata.name, allocatable, node.status.node_info.kubelet_version, node.metadata.labels)
