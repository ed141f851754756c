"""A cluster in memory, as the updater's port: it takes resizes as the API server does, and counts what is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from vpa_ippr.api.cluster import EventType, Node, ObjectRef, Workload
from vpa_ippr.api.hpa import HorizontalPodAutoscaler
from vpa_ippr.api.limit_range import LimitRange
from vpa_ippr.api.meta import Condition, ObjectKey, ObjectMeta
from vpa_ippr.api.node_memory import NodeMemory
from vpa_ippr.api.pdb import PodDisruptionBudget
from vpa_ippr.api.pod import Container, Pod
from vpa_ippr.api.quota import ResourceQuota
from vpa_ippr.api.resources import ResourceRequirements
from vpa_ippr.api.shrink import Intent, MemoryShrink
from vpa_ippr.api.vpa import Vpa
from vpa_ippr.resize.ports import Patch

replace = msgspec.structs.replace


class MemoryCluster:
    """Pods, VPAs, nodes and owners; ``writes`` counts requests by kind."""

    def __init__(self, pods: Iterable[Pod], vpas: Iterable[Vpa], nodes: Iterable[Node], owners: Mapping[tuple[str, str], Workload]) -> None:
        self._pods = {pod.key: pod for pod in pods}
        self._vpas, self._nodes, self._owners = list(vpas), list(nodes), owners
        self.writes: Counter[str] = Counter()

    def list_vpas(self) -> list[Vpa]:
        return self._vpas

    def list_pods(self) -> list[Pod]:
        return list(self._pods.values())

    def list_nodes(self) -> list[Node]:
        return self._nodes

    def list_limit_ranges(self) -> list[LimitRange]:
        return []

    def list_quotas(self) -> list[ResourceQuota]:
        return []

    def list_pdbs(self) -> list[PodDisruptionBudget]:
        return []

    def list_hpas(self) -> list[HorizontalPodAutoscaler]:
        return []

    def list_node_memories(self) -> list[NodeMemory]:
        return []

    def list_shrinks(self) -> list[MemoryShrink]:
        return []

    def find_workload(self, namespace: str, api_version: str, kind: str, name: str) -> Workload | None:
        assert (namespace, api_version) != ("", "")
        return self._owners.get((kind, name))

    def get_pod(self, key: ObjectKey) -> Pod | None:
        return self._pods.get(key)

    def get_shrink(self, key: ObjectKey) -> MemoryShrink | None:
        raise NotImplementedError(f"no shrinks are opened: {key}")

    def create_shrink(self, shrink: MemoryShrink) -> None:
        raise NotImplementedError(f"no shrinks are opened: {shrink.key}")

    def patch_shrink_intent(self, key: ObjectKey, intent: Intent) -> None:
        raise NotImplementedError(f"no shrinks are opened: {key} {intent}")

    def delete_shrink(self, key: ObjectKey) -> None:
        raise NotImplementedError(f"no shrinks are opened: {key}")

    def admission_renewed_at(self) -> float | None:
        return None

    def dry_run_resize(self, key: ObjectKey, patch: Patch) -> Pod:
        raise NotImplementedError(f"nothing is tried first: {key} {patch}")

    def annotate_vpa(self, key: ObjectKey, annotations: Mapping[str, str]) -> None:
        self._vpas = [_annotated(vpa, annotations) if vpa.key == key else vpa for vpa in self._vpas]
        self.writes["rollout"] += 1

    def put_vpa_condition(self, vpa: Vpa, condition: Condition) -> None:
        raise NotImplementedError(f"no harm is done: {vpa.key} {condition}")

    def evict_pod(self, key: ObjectKey, uid: str) -> None:
        raise NotImplementedError(f"no pods are evicted: {key} {uid}")

    def resize_pod(self, key: ObjectKey, patch: Patch) -> Pod:
        spec = msgspec.convert(patch["spec"], _SpecPatch)
        pod = self._checked(key, patch)
        resources = {container.name: container.resources for container in spec.containers}
        containers = [_merged(container, resources.get(container.name)) for container in pod.spec.containers]
        changed = replace(pod, spec=replace(pod.spec, containers=containers))
        return self._store("resize", changed, replace(pod.metadata, generation=pod.metadata.generation + 1))

    def annotate_pod(self, key: ObjectKey, patch: Patch) -> Pod:
        metadata = msgspec.convert(patch["metadata"], ObjectMeta)
        pod = self._checked(key, patch)
        return self._store("ledger", pod, replace(pod.metadata, annotations={**pod.metadata.annotations, **metadata.annotations}))

    def record_event(self, about: ObjectRef | Vpa, event_type: EventType, reason: str, message: str) -> None:
        assert about.metadata.uid if isinstance(about, Vpa) else about.uid
        assert event_type
        assert reason
        assert message
        self.writes["event"] += 1

    def carry_out(self) -> None:
        """The kubelets do what is asked of them."""
        self._pods = {key: _carried_out(pod) for key, pod in self._pods.items()}

    def _checked(self, key: ObjectKey, patch: Patch) -> Pod:
        pod, given = self._pods[key], msgspec.convert(patch["metadata"], ObjectMeta)
        assert (given.resource_version, given.uid) == (pod.metadata.resource_version, pod.metadata.uid), "a write without its precondition"
        return pod

    def _store(self, kind: str, pod: Pod, metadata: ObjectMeta) -> Pod:
        self.writes[kind] += 1
        stored = replace(pod, metadata=replace(metadata, resource_version=str(int(metadata.resource_version) + 1_000_000)))
        self._pods[pod.key] = stored
        return stored


def _annotated(vpa: Vpa, annotations: Mapping[str, str]) -> Vpa:
    return replace(vpa, metadata=replace(vpa.metadata, annotations={**vpa.metadata.annotations, **annotations}))


def _carried_out(pod: Pod) -> Pod:
    if pod.status.observed_generation == pod.metadata.generation:
        return pod
    resources = {container.name: container.resources for container in pod.spec.containers}
    statuses = [replace(status, resources=resources[status.name]) for status in pod.status.container_statuses]
    return replace(pod, status=replace(pod.status, observed_generation=pod.metadata.generation, container_statuses=statuses))


class _SpecPatch(msgspec.Struct):
    containers: list[Container]


def _merged(container: Container, patch: ResourceRequirements | None) -> Container:
    if patch is None:
        return container
    now = container.resources
    return replace(container, resources=ResourceRequirements({**now.requests, **patch.requests}, {**now.limits, **patch.limits}))
