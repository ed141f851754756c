"""Sharing a workload with a HorizontalPodAutoscaler.

An HPA that aims at a utilization divides usage by requests: whoever changes the requests changes the number of replicas, whose usage then
changes the requests. Such a resource is left alone unless the VPA says otherwise. A target in absolute terms (AverageValue) does not look
at requests, so it is no obstacle.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from vpa_ippr.api.cluster import Workload
from vpa_ippr.api.errors import ValidationError
from vpa_ippr.api.hpa import HorizontalPodAutoscaler, Metric, ResourceMetric
from vpa_ippr.api.names import ANNOTATION_WITH_HPA
from vpa_ippr.api.resources import Resource
from vpa_ippr.api.series import WorkloadRef
from vpa_ippr.api.vpa import Vpa
from vpa_ippr.resize.targets import Target

ALL_CONTAINERS = "*"
HpaIndex = Mapping[WorkloadRef, Sequence[HorizontalPodAutoscaler]]


class HpaPolicy(StrEnum):
    """What to do with a resource that an HPA scales on; the values of the annotation ``vpa-ippr.io/with-hpa``."""

    LEAVE = "leave"
    RAISE_ONLY = "raise-only"
    IGNORE = "ignore"


@dataclass(frozen=True, slots=True)
class Sharing:
    """Which resources HPAs scale on, by container (``*`` for all of them), and what the VPA wants done about it."""

    shared: Mapping[str, frozenset[Resource]] = field(default_factory=dict)
    policy: HpaPolicy = HpaPolicy.LEAVE

    def forbids(self, target: Target, resource: Resource) -> bool:
        """True when this change of ``resource`` would be taken for a change of load."""
        if self.policy is HpaPolicy.IGNORE:
            return False
        if not any(resource in self.shared.get(name, ()) for name in (target.container, ALL_CONTAINERS)):
            return False
        return self.policy is HpaPolicy.LEAVE or _falls(target, resource)


NOT_SHARED = Sharing()


def index_hpas(hpas: Iterable[HorizontalPodAutoscaler]) -> HpaIndex:
    """HPAs by what they scale; several may scale one workload, if only by mistake."""
    index: dict[WorkloadRef, list[HorizontalPodAutoscaler]] = defaultdict(list)
    for hpa in hpas:
        reference = hpa.spec.scale_target_ref
        index[WorkloadRef(hpa.metadata.namespace, reference.kind, reference.name)].append(hpa)
    return dict(index)


def sharing_of(vpa: Vpa, workload: Workload | None, index: HpaIndex) -> Sharing:
    """How the VPA shares its target with HPAs.

    Raises:
        ValidationError: the annotation ``vpa-ippr.io/with-hpa`` holds no known policy; the reason is ``ConfigUnsupported``.
    """
    policy, reference = _policy(vpa), vpa.spec.target_ref
    if reference is None:
        return Sharing(policy=policy)
    found = index.get(WorkloadRef(vpa.metadata.namespace, reference.kind, reference.name), ())
    return Sharing(shared_resources(vpa, workload, found), policy)


def shared_resources(vpa: Vpa, workload: Workload | None, hpas: Iterable[HorizontalPodAutoscaler]) -> Mapping[str, frozenset[Resource]]:
    """What HPAs of the VPA's target scale on relative to requests, by container; ``*`` stands for all containers.

    ``workload`` is the target as it was found, if it was: its API group counts where the targetRef names none.
    """
    shared: dict[str, set[Resource]] = defaultdict(set)
    for hpa in hpas:
        if _same_target(vpa, workload, hpa):
            for metric in hpa.spec.metrics:
                source = _source(metric)
                if source is not None and source.target.type == "Utilization" and source.name in tuple(Resource):
                    shared[source.container or ALL_CONTAINERS].add(Resource(source.name))
    return {container: frozenset(resources) for container, resources in shared.items()}


def _policy(vpa: Vpa) -> HpaPolicy:
    text = vpa.metadata.annotations.get(ANNOTATION_WITH_HPA, HpaPolicy.LEAVE)
    try:
        return HpaPolicy(text)
    except ValueError as error:
        known = ", ".join(HpaPolicy)
        raise ValidationError(f"annotation {ANNOTATION_WITH_HPA}: {text!r} is none of {known}", reason="ConfigUnsupported") from error


def _same_target(vpa: Vpa, workload: Workload | None, hpa: HorizontalPodAutoscaler) -> bool:
    ours, theirs = vpa.spec.target_ref, hpa.spec.scale_target_ref
    if ours is None or vpa.metadata.namespace != hpa.metadata.namespace or (ours.kind, ours.name) != (theirs.kind, theirs.name):
        return False
    api_version = ours.api_version or (workload.api_version if workload else "")
    # Where one side does not say, only the kind can tell, and a needless caution costs less than a needless change.
    return not api_version or not theirs.api_version or _group(api_version) == _group(theirs.api_version)


def _group(api_version: str) -> str:
    return api_version.rpartition("/")[0]


def _source(metric: Metric) -> ResourceMetric | None:
    match metric.type:
        case "Resource":
            return metric.resource
        case "ContainerResource":
            return metric.container_resource
        case _:
            return None


def _falls(target: Target, resource: Resource) -> bool:
    sides = ((target.current.requests, target.desired.requests), (target.current.limits, target.desired.limits))
    return any((after.get(resource) or 0) < (before.get(resource) or 0) for before, after in sides)
