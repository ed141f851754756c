"""When two amounts are the same to the kernel: a resize between them would change nothing, so none is ever made.

CPU shares go from 2 (1m and 2m are one) to 262144, the CFS quota begins at 1 ms per 100 ms (all limits up to 10m are one): KEP-1287 and
the kubelet's ``MilliCPUToShares`` and ``MilliCPUToQuota``. The systemd driver rounds a pod's quota up to 10 ms of CPU time a second, and
with recent runtimes a container's as well, so CPU limits count in steps of 10m. memory.max is kept in pages.
"""

from __future__ import annotations

from vpa_ippr.api.resources import Amounts, ContainerResources, Resource

MIN_CPU_REQUEST_MILLICORES = 2
MAX_CPU_REQUEST_MILLICORES = 256_000
CPU_LIMIT_STEP_MILLICORES = 10
PAGE_BYTES = 4096


def same_in_effect(one: ContainerResources, other: ContainerResources) -> bool:
    """True when no resource of the container differs in effect."""
    return all(same_resource(one, other, resource) for resource in Resource)


def same_resource(one: ContainerResources, other: ContainerResources, resource: Resource) -> bool:
    """True when neither the request nor the limit of ``resource`` differs in effect."""
    return same_request(one.requests, other.requests, resource) and same_limit(one.limits, other.limits, resource)


def same_request(one: Amounts, other: Amounts, resource: Resource) -> bool:
    """True when the requests cannot be told apart."""
    first, second = one.get(resource), other.get(resource)
    if first is None or second is None:
        return first is second
    if resource is Resource.CPU:
        return _shares_of(first) == _shares_of(second)
    return _pages(first) == _pages(second)


def same_limit(one: Amounts, other: Amounts, resource: Resource) -> bool:
    """True when the limits cannot be told apart."""
    first, second = one.get(resource), other.get(resource)
    if first is None or second is None:
        return first is second
    if resource is Resource.CPU:
        return _quota_steps(first) == _quota_steps(second)
    return _pages(first) == _pages(second)


def _shares_of(millicores: int) -> int:
    """The CPU request that the kernel's shares stand for."""
    return min(max(millicores, MIN_CPU_REQUEST_MILLICORES), MAX_CPU_REQUEST_MILLICORES)


def _quota_steps(millicores: int) -> int:
    return max(-(-millicores // CPU_LIMIT_STEP_MILLICORES), 1)


def _pages(amount_bytes: int) -> int:
    return amount_bytes // PAGE_BYTES
