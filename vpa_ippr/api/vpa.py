"""VerticalPodAutoscaler and its checkpoint, with every field of the upstream ``autoscaling.k8s.io/v1`` types."""

from __future__ import annotations

import msgspec

from vpa_ippr.api.meta import Condition, ObjectKey, ObjectMeta
from vpa_ippr.api.names import VPA_API_VERSION

Quantities = dict[str, str | int | float]


class TargetRef(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """``autoscaling/v1.CrossVersionObjectReference``: the topmost controller of the pods."""

    kind: str
    name: str
    api_version: str = ""


class EvictionRequirement(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """When an eviction is allowed: the target must lie above or below the requests."""

    resources: list[str]
    change_requirement: str


class UpdatePolicy(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """How recommendations are applied."""

    update_mode: str | None = None
    min_replicas: int | None = None
    eviction_requirements: list[EvictionRequirement] = []
    evict_after_oom_seconds: int | None = msgspec.field(name="evictAfterOOMSeconds", default=None)


class StartupBoostCpu(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Extra CPU while a container starts."""

    type: str
    factor: int | None = None
    quantity: str | int | float | None = None
    duration_seconds: int | None = None


class StartupBoost(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Startup boost of a pod or of one container."""

    cpu: StartupBoostCpu | None = None


class ContainerPolicy(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Rules for one container, or for all others when the name is ``*``."""

    container_name: str = ""
    mode: str | None = None
    min_allowed: Quantities = {}
    max_allowed: Quantities = {}
    controlled_resources: list[str] | None = None
    controlled_values: str | None = None
    oom_bump_up_ratio: str | int | float | None = None
    oom_min_bump_up: str | int | float | None = None
    memory_aggregation_interval_seconds: int | None = None
    memory_aggregation_interval_count: int | None = None
    startup_boost: StartupBoost | None = None


class ResourcePolicy(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The container policies of a VPA."""

    container_policies: list[ContainerPolicy] = []


class RecommenderSelector(msgspec.Struct, frozen=True, rename="camel"):
    """Name of the recommender that owns the VPA."""

    name: str


class VpaSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """``VerticalPodAutoscalerSpec``."""

    target_ref: TargetRef | None = None
    update_policy: UpdatePolicy | None = None
    resource_policy: ResourcePolicy | None = None
    recommenders: list[RecommenderSelector] = []
    startup_boost: StartupBoost | None = None


class ContainerRecommendation(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """``RecommendedContainerResources``: canonical quantities by resource name."""

    container_name: str
    target: Quantities
    lower_bound: Quantities = {}
    upper_bound: Quantities = {}
    uncapped_target: Quantities = {}


class PodRecommendation(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """``RecommendedPodResources``, sorted by container name."""

    container_recommendations: list[ContainerRecommendation] = []


class VpaStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """``VerticalPodAutoscalerStatus``."""

    recommendation: PodRecommendation | None = None
    conditions: list[Condition] = []
    observed_generation: int | None = None


class Vpa(msgspec.Struct, frozen=True, rename="camel"):
    """``VerticalPodAutoscaler``."""

    metadata: ObjectMeta
    spec: VpaSpec = VpaSpec()
    status: VpaStatus = VpaStatus()
    api_version: str = VPA_API_VERSION
    kind: str = "VerticalPodAutoscaler"

    @property
    def key(self) -> ObjectKey:
        """Namespace and name."""
        return ObjectKey(self.metadata.namespace, self.metadata.name)

    @property
    def update_mode(self) -> str:
        """The mode in force; a VPA that names none is ``Recreate``, as upstream."""
        policy = self.spec.update_policy
        return (policy.update_mode if policy else None) or "Recreate"

    def policy_for(self, container: str) -> ContainerPolicy:
        """The policy of that container: its own, else the one named ``*``, else the default."""
        policies = self.spec.resource_policy.container_policies if self.spec.resource_policy else []
        by_name = {policy.container_name: policy for policy in policies}
        return by_name.get(container) or by_name.get("*") or ContainerPolicy(container_name=container)

    def recommendation_for(self, container: str) -> ContainerRecommendation | None:
        """What the status recommends for that container, if anything."""
        found = self.status.recommendation
        return next((r for r in found.container_recommendations if r.container_name == container), None) if found else None


class HistogramCheckpoint(msgspec.Struct, frozen=True, rename="camel"):
    """``HistogramCheckpoint``: bucket index to weight, scaled so that the largest is 10000."""

    reference_timestamp: str | None = None
    bucket_weights: dict[str, int] = {}
    total_weight: float = 0.0


class CheckpointSpec(msgspec.Struct, frozen=True, rename="camel"):
    """Which container of which VPA the checkpoint belongs to."""

    vpa_object_name: str = ""
    container_name: str = ""


class CheckpointStatus(msgspec.Struct, frozen=True, rename="camel"):
    """``VerticalPodAutoscalerCheckpointStatus``, version ``v3``."""

    last_update_time: str | None = None
    version: str = ""
    cpu_histogram: HistogramCheckpoint = HistogramCheckpoint()
    memory_histogram: HistogramCheckpoint = HistogramCheckpoint()
    first_sample_start: str | None = None
    last_sample_start: str | None = None
    total_samples_count: int = 0


class VpaCheckpoint(msgspec.Struct, frozen=True, rename="camel"):
    """``VerticalPodAutoscalerCheckpoint``, named ``<vpa>-<container>``."""

    metadata: ObjectMeta
    spec: CheckpointSpec = CheckpointSpec()
    status: CheckpointStatus = CheckpointStatus()
    api_version: str = VPA_API_VERSION
    kind: str = "VerticalPodAutoscalerCheckpoint"
