"""When two amounts are the same to the kernel: a resize between them would change nothing, so none is ever made.

CPU shares start at 2 (1m and 2m are one), the CFS quota at 1 ms per 100 ms (all limits up to 10m are one): KEP-1287 and the kubelet's
``MilliCPUToShares`` and ``MilliCPUToQuota``. memory.max is kept in pages.
"""

from __future__ import annotations

from vpa_ippr.api.resources import Amounts, ContainerResources, Resource

MIN_CPU_REQUEST_MILLICORES = 2
MIN_CPU_LIMIT_MILLICORES = 10
PAGE_BYTES = 4096


def same_in_effect(one: ContainerResources, other: ContainerResources) -> bool:
    """True when no resource of the container differs in effect."""
    return all(same_resource(one, other, resource) for resource in Resource)


def same_resource(one: ContainerResources, other: ContainerResources, resource: Resource) -> bool:
    """True when neither the request nor the limit of ``resource`` differs in effect."""
    return same_request(one.requests, other.requests, resource) and same_limit(one.limits, other.limits, resource)


def same_request(one: Amounts, other: Amounts, resource: Resource) -> bool:
    """True when the requests cannot be told apart."""
    return _same(one.get(resource), other.get(resource), resource, MIN_CPU_REQUEST_MILLICORES)


def same_limit(one: Amounts, other: Amounts, resource: Resource) -> bool:
    """True when the limits cannot be told apart."""
    return _same(one.get(resource), other.get(resource), resource, MIN_CPU_LIMIT_MILLICORES)


def _same(one: int | None, other: int | None, resource: Resource, cpu_floor: int) -> bool:
    if one is None or other is None:
        return one is other
    if resource is Resource.CPU:
        return max(one, cpu_floor) == max(other, cpu_floor)
    return one // PAGE_BYTES == other // PAGE_BYTES
