"""QoS class and total requests of a pod, as the API server computes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum

from vpa_ippr.api.pod import Container, Pod
from vpa_ippr.api.resources import Amounts, ContainerResources, Resource

Lookup = Callable[[Container], ContainerResources]


class QosClass(StrEnum):
    """``v1.PodQOSClass``."""

    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BEST_EFFORT = "BestEffort"


def desired_resources(pod: Pod, changed: dict[str, ContainerResources]) -> Lookup:
    """A lookup of each container's resources in the spec, with those in ``changed`` replaced."""

    def lookup(container: Container) -> ContainerResources:
        return changed.get(container.name) or container.resources.parse(f"pod {pod.key} container {container.name}")

    return lookup


def qos_class(pod: Pod, lookup: Lookup) -> QosClass:
    """``GetPodQOS``: over all containers and init containers; zero counts as not set."""
    resources = [lookup(container) for container in [*pod.spec.containers, *pod.spec.init_containers]]
    if not any(_stated(r.requests) or _stated(r.limits) for r in resources):
        return QosClass.BEST_EFFORT
    if all(_guaranteed(r) for r in resources):
        return QosClass.GUARANTEED
    return QosClass.BURSTABLE


def pod_requests(pod: Pod, lookup: Lookup) -> Amounts:
    """``PodRequests`` without overhead: containers and sidecars add up; an init container counts when it alone needs more."""
    requests = [lookup(container).requests for container in pod.spec.containers]
    sidecars: list[Amounts] = []
    peaks: list[Amounts] = []
    for container in pod.spec.init_containers:
        own = lookup(container).requests
        if container.restart_policy == "Always":
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
