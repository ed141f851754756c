"""HorizontalPodAutoscaler (``autoscaling/v2``): what of it tells which resources it scales on."""

from __future__ import annotations

import msgspec

from vpa_ippr.api.meta import ObjectMeta
from vpa_ippr.api.vpa import TargetRef


class MetricTarget(msgspec.Struct, frozen=True, rename="camel"):
    """``v2.MetricTarget``; ``type`` is ``Utilization`` (a share of the requests), ``AverageValue`` or ``Value``."""

    type: str


class ResourceMetric(msgspec.Struct, frozen=True, rename="camel"):
    """``v2.ResourceMetricSource`` and ``v2.ContainerResourceMetricSource``; ``container`` is empty for all containers."""

    name: str
    target: MetricTarget
    container: str = ""


class Metric(msgspec.Struct, frozen=True, rename="camel"):
    """``v2.MetricSpec``: of its sources only those of the pods' own resources."""

    type: str
    resource: ResourceMetric | None = None
    container_resource: ResourceMetric | None = None


class HpaSpec(msgspec.Struct, frozen=True, rename="camel"):
    """``v2.HorizontalPodAutoscalerSpec``; the API server fills in a metric where none is given."""

    scale_target_ref: TargetRef
    metrics: list[Metric] = []


class HorizontalPodAutoscaler(msgspec.Struct, frozen=True):
    """``v2.HorizontalPodAutoscaler``."""

    metadata: ObjectMeta
    spec: HpaSpec
