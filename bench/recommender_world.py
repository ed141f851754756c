"""A cluster and a source of usage in memory, as the recommender's ports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from bench.objects import DAY_SECONDS, NOW, namespace_of, pod
from bench.usages import Curves, grid
from vpa_ippr.api.cluster import EventType, Node, Workload
from vpa_ippr.api.meta import ObjectKey, ObjectMeta, OwnerReference
from vpa_ippr.api.pod import Pod
from vpa_ippr.api.series import ContainerRef, Usage, Window
from vpa_ippr.api.timestamps import format_time
from vpa_ippr.api.vpa import PodRecommendation, Quantities, RecommenderSelector, TargetRef, Vpa, VpaCheckpoint, VpaSpec, VpaStatus

_RESOURCES = {"requests": {"cpu": "250m", "memory": "256Mi"}, "limits": {"memory": "512Mi"}}


class MemoryWorld:
    """Deployments with a VPA each and ``pods_each`` pods; what is written to a VPA can be read back."""

    def __init__(self, vpas: int, pods_each: int) -> None:
        self.new_targets = 0
        self._vpas = {vpa.key: vpa for vpa in map(_vpa, range(vpas))}
        self._pods = [msgspec.convert(pod(number, number % vpas, _RESOURCES), Pod) for number in range(vpas * pods_each)]
        self._owners: dict[tuple[str, str], Workload] = {}
        for number in range(vpas):
            deployment = OwnerReference("apps/v1", "Deployment", f"app-{number}", controller=True)
            self._owners["ReplicaSet", f"app-{number}-rs"] = Workload("apps/v1", "ReplicaSet", f"app-{number}-rs", deployment)
            self._owners["Deployment", f"app-{number}"] = Workload("apps/v1", "Deployment", f"app-{number}")

    def list_vpas(self) -> list[Vpa]:
        return list(self._vpas.values())

    def list_pods(self) -> list[Pod]:
        return self._pods

    def list_nodes(self) -> list[Node]:
        return []

    def find_workload(self, namespace: str, api_version: str, kind: str, name: str) -> Workload | None:
        assert (namespace, api_version) != ("", "")
        return self._owners.get((kind, name))

    def list_checkpoints(self) -> list[VpaCheckpoint]:
        return []

    def put_checkpoint(self, checkpoint: VpaCheckpoint) -> None:
        assert msgspec.json.encode(checkpoint)  # what the transport would do with it

    def patch_vpa_status(self, key: ObjectKey, status: VpaStatus) -> None:
        before = self._vpas[key].status.recommendation
        if before is None or status.recommendation is None or _targets(before) != _targets(status.recommendation):
            self.new_targets += 1
        self._vpas[key] = msgspec.structs.replace(self._vpas[key], status=status)

    def annotate_vpa(self, key: ObjectKey, annotations: Mapping[str, str]) -> None:
        vpa = self._vpas[key]
        metadata = msgspec.structs.replace(vpa.metadata, annotations={**vpa.metadata.annotations, **annotations})
        self._vpas[key] = msgspec.structs.replace(vpa, metadata=metadata)

    def record_event(self, vpa: Vpa, event_type: EventType, reason: str, message: str) -> None:
        assert vpa.metadata.uid
        assert event_type
        assert reason
        assert message


class MemorySource:
    """Usage of the world's pods, made before it is asked for."""

    def __init__(self, world: MemoryWorld) -> None:
        self._containers = [ContainerRef(pod.metadata.namespace, pod.metadata.name, "app") for pod in world.list_pods()]
        self._usage = Usage(())

    def make_history(self, days: int) -> None:
        """The next answer: ``days`` up to now, a sample a minute."""
        self._make(Curves(grid(NOW, days * DAY_SECONDS, 60.0)))

    def make_minute(self, at: float) -> None:
        """The next answer: one sample of each container."""
        self._make(Curves(np.array([at]), seed=int(at)))

    def fetch(self, window: Window, namespaces: Sequence[str] | None = None) -> Usage:
        assert window.start < window.end
        assert namespaces
        return self._usage

    def _make(self, curves: Curves) -> None:
        self._usage = Usage(tuple(one for number, ref in enumerate(self._containers) for one in curves.series(ref, number)))


def _targets(recommendation: PodRecommendation) -> list[Quantities]:
    return [container.target for container in recommendation.container_recommendations]


def _vpa(number: int) -> Vpa:
    created = format_time(NOW - 90 * DAY_SECONDS)
    return Vpa(
        ObjectMeta(f"app-{number}", namespace_of(number), uid=f"vpa-{number}", generation=1, creation_timestamp=created),
        VpaSpec(TargetRef("Deployment", f"app-{number}", "apps/v1"), recommenders=[RecommenderSelector("vpa-ippr")]),
    )
