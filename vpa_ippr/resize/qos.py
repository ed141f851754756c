"""QoS class and total requests of a pod, as the API server computes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum

from vpa_ippr.api.pod import POD_LEVEL, Container, Pod
from vpa_ippr.api.resources import Amounts, ContainerResources, Resource

Lookup = Callable[[Container], ContainerResources]


class QosClass(StrEnum):
    """``v1.PodQOSClass``."""

    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BEST_EFFORT = "BestEffort"


def desired_resources(pod: Pod, changed: Mapping[str, ContainerResources]) -> Lookup:
    """A lookup of the resources in the spec, of each container and at ``POD_LEVEL``, with those in ``changed`` replaced."""

    def lookup(container: Container) -> ContainerResources:
        return changed.get(container.name) or pod.desired(container.name)

    return lookup


def qos_class(pod: Pod, lookup: Lookup) -> QosClass:
    """``ComputePodQOS``: over the pod's own resources where it has any, else all containers and init containers; zero is not set."""
    own = pod.container(POD_LEVEL)
    resources = [lookup(holder) for holder in ([own] if own else [*pod.spec.containers, *pod.spec.init_containers])]
    if not any(_stated(r.requests) or _stated(r.limits) for r in resources):
        return QosClass.BEST_EFFORT
    if all(_guaranteed(r) for r in resources):
        return QosClass.GUARANTEED
    return QosClass.BURSTABLE


def pod_requests(pod: Pod, lookup: Lookup) -> Amounts:
    """``PodRequests`` without overhead: the pod's own requests where it has any, else what its containers request together."""
    together, own = container_requests(pod, lookup), pod.container(POD_LEVEL)
    requests = lookup(own).requests if own else Amounts()
    return Amounts(*(together.get(r) if (amount := requests.get(r)) is None else amount for r in Resource))


def container_requests(pod: Pod, lookup: Lookup) -> Amounts:
    """Containers and sidecars add up; an init container counts when it alone needs more (KEP-753)."""
    requests = [lookup(container).requests for container in pod.spec.containers]
    sidecars: list[Amounts] = []
    peaks: list[Amounts] = []
    for container in pod.spec.init_containers:
        own = lookup(container).requests
        if container.is_sidecar:
            sidecars.append(own)
            peaks.append(_sum(sidecars))
        else:
            peaks.append(_sum([*sidecars, own]))
    running = _sum([*requests, *sidecars])
    everything = [running, *peaks]
    return Amounts(
        cpu_millicores=max(amounts.cpu_millicores or 0 for amounts in everything),
        memory_bytes=max(amounts.memory_bytes or 0 for amounts in everything),
    )


def _sum(amounts: Iterable[Amounts]) -> Amounts:
    listed = list(amounts)
    return Amounts(
        cpu_millicores=sum(a.cpu_millicores or 0 for a in listed),
        memory_bytes=sum(a.memory_bytes or 0 for a in listed),
    )


def _stated(amounts: Amounts) -> bool:
    return bool(amounts.cpu_millicores or amounts.memory_bytes)


def _guaranteed(resources: ContainerResources) -> bool:
    for resource in Resource:
        limit = resources.limits.get(resource)
        request = resources.requests.get(resource)
        if not limit or (request is not None and request != limit):
            return False
    return True
