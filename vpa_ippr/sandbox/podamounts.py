"""Quantities inside a pod object: adding them up, and comparing specs by what they mean. The object has been decoded before.

The aggregation is that of component-helpers ``resource/helpers.go`` (KEP-753 for sidecars): the containers and sidecars run together, an
init container runs with the sidecars before it, the pod needs the larger of the two, its own pod-level requests replace the sum, and
overhead comes on top. Four states of a request are told apart: desired (spec), allocated, actual (both in status), and the largest of
the three, which is what scheduler and quota count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, NamedTuple

from vpa_ippr.api.names import POD_RESIZE_PENDING
from vpa_ippr.api.quantity import Quantity, parse_quantity
from vpa_ippr.sandbox.status import Json

ResourceList = dict[str, Quantity]
COMPUTE = ("cpu", "memory")


class Totals(NamedTuple):
    """CPU and memory of a pod or a node as whole numbers."""

    cpu_millicores: int
    memory_bytes: int


def quantities(raw: Mapping[str, object] | None) -> ResourceList:
    """The parsed quantities of a resource list."""
    return {name: parse_quantity(text) for name, text in (raw or {}).items()}


def containers(pod: Json) -> list[Json]:
    """The regular containers."""
    return pod["spec"].get("containers") or []


def init_containers(pod: Json) -> list[Json]:
    """The init containers, sidecars among them."""
    return pod["spec"].get("initContainers") or []


def is_sidecar(init_container: Json) -> bool:
    """KEP-753: an init container with restartPolicy Always runs beside the others."""
    return bool(init_container.get("restartPolicy") == "Always")


def resource_list(container: Json, kind: str) -> ResourceList:
    """``kind`` (``requests`` or ``limits``) of a container, or of a pod's ``spec`` for its pod-level resources."""
    return quantities((container.get("resources") or {}).get(kind))


def has_pod_level(pod: Json) -> bool:
    """Pod-level requests or limits are set."""
    resources = pod["spec"].get("resources") or {}
    return bool(resources.get("requests") or resources.get("limits"))


def add(*lists: ResourceList) -> ResourceList:
    """The sum of each resource over all lists, in the format of the first amount that is not 0, as ``Quantity.Add`` does."""
    return _merge(lambda a, b: Quantity(a.value + b.value, a.format if a.value else b.format), *lists)


def largest(*lists: ResourceList) -> ResourceList:
    """The largest amount of each resource over all lists."""
    return _merge(lambda a, b: b if b.value > a.value else a, *lists)


def subtract(minuend: ResourceList, subtrahend: ResourceList) -> ResourceList:
    """The difference of each resource of either list."""
    return add(minuend, {name: Quantity(-q.value, q.format) for name, q in subtrahend.items()})


def _merge(join: Callable[[Quantity, Quantity], Quantity], *lists: ResourceList) -> ResourceList:
    result: ResourceList = {}
    for entries in lists:
        for name, quantity in entries.items():
            result[name] = join(result[name], quantity) if name in result else quantity
    return result


def totals(entries: ResourceList) -> Totals:
    """CPU and memory of a list, 0 where absent, rounded up."""
    zero = Quantity(Decimal(0))
    return Totals(entries.get("cpu", zero).to_millicores(), entries.get("memory", zero).to_bytes())


def _sum_containers(pod: Json, amount_of: Callable[[Json], ResourceList]) -> ResourceList:
    together = add(*(amount_of(c) for c in containers(pod)))
    sidecars: ResourceList = {}
    starting: ResourceList = {}
    for container in init_containers(pod):
        amount = amount_of(container)
        if is_sidecar(container):
            together, sidecars = add(together, amount), add(sidecars, amount)
            starting = largest(starting, sidecars)
        else:
            starting = largest(starting, add(amount, sidecars))
    return largest(together, starting)


def container_requests(pod: Json) -> ResourceList:
    """What the containers of the spec request together, without pod-level requests and overhead."""
    return _sum_containers(pod, lambda container: resource_list(container, "requests"))


def container_limits(pod: Json) -> ResourceList:
    """The limits of the containers of the spec together, without pod-level limits and overhead."""
    return _sum_containers(pod, lambda container: resource_list(container, "limits"))


def pod_requests(pod: Json) -> ResourceList:
    """What the pod's spec requests: containers, or pod-level requests where set, and overhead."""
    return _with_pod_level(pod, container_requests(pod), resource_list(pod["spec"], "requests"))


def container_status(pod: Json, name: str) -> Json:
    """The status of a container or init container, empty if there is none."""
    status = pod.get("status") or {}
    statuses = [*(status.get("containerStatuses") or []), *(status.get("initContainerStatuses") or [])]
    return next((entry for entry in statuses if entry.get("name") == name), {})


def resize_is_infeasible(pod: Json) -> bool:
    """The kubelet has refused the spec for good, so it counts no more."""
    status: Json = pod.get("status") or {}
    conditions: list[Json] = status.get("conditions") or []
    return status.get("resize") == "Infeasible" or any(
        c.get("type") == POD_RESIZE_PENDING and c.get("reason") == "Infeasible" for c in conditions
    )


def allocated_requests(pod: Json) -> ResourceList:
    """What the kubelet has admitted, from ``status``; the spec where the status does not say."""

    def allocated(container: Json) -> ResourceList:
        status = container_status(pod, container["name"])
        return quantities(status["allocatedResources"]) if "allocatedResources" in status else resource_list(container, "requests")

    pod_level = resource_list(pod["spec"], "requests")
    admitted = quantities((pod.get("status") or {}).get("allocatedResources"))
    return _with_pod_level(pod, _sum_containers(pod, allocated), (admitted or pod_level) if pod_level else {})


def effective_requests(pod: Json) -> ResourceList:
    """What scheduler and quota count: per container the largest of desired (unless infeasible), allocated and actual."""
    infeasible = resize_is_infeasible(pod)

    def effective(container: Json) -> ResourceList:
        status = container_status(pod, container["name"])
        reported = largest(quantities(status.get("allocatedResources")), resource_list(status, "requests"))
        return reported if infeasible and status else largest(resource_list(container, "requests"), reported)

    pod_level = resource_list(pod["spec"], "requests")
    status: Json = pod.get("status") or {}
    reported = largest(quantities(status.get("allocatedResources")), resource_list(status, "requests"))
    counted = reported if infeasible and reported else largest(pod_level, reported)
    return _with_pod_level(pod, _sum_containers(pod, effective), counted if pod_level else {})


def effective_limits(pod: Json) -> ResourceList:
    """What quota counts as limits: per container the larger of desired (unless infeasible) and actual."""
    infeasible = resize_is_infeasible(pod)

    def effective(container: Json) -> ResourceList:
        status = container_status(pod, container["name"])
        reported = resource_list(status, "limits")
        return reported if infeasible and status else largest(resource_list(container, "limits"), reported)

    limits = {**_sum_containers(pod, effective), **resource_list(pod["spec"], "limits")}
    overhead = quantities(pod["spec"].get("overhead"))
    return add(limits, {name: amount for name, amount in overhead.items() if name in limits})


def _with_pod_level(pod: Json, summed: ResourceList, pod_level: ResourceList) -> ResourceList:
    """Pod-level requests in place of the sum, where there are any, and overhead on top."""
    return add({**summed, **pod_level}, quantities(pod["spec"].get("overhead")))


def qos_class(pod: Json) -> str:
    """``Guaranteed``, ``Burstable`` or ``BestEffort``, computed from the spec (never read from the status)."""
    holders = [pod["spec"]] if has_pod_level(pod) else [*containers(pod), *init_containers(pod)]
    requests = [_positive_compute(resource_list(holder, "requests")) for holder in holders]
    limits = [_positive_compute(resource_list(holder, "limits")) for holder in holders]
    if not any(requests) and not any(limits):
        return "BestEffort"
    all_limited = all(len(entries) == len(COMPUTE) for entries in limits)
    if all_limited and _amounts(add(*requests)) == _amounts(add(*limits)):
        return "Guaranteed"
    return "Burstable"


def _positive_compute(entries: ResourceList) -> ResourceList:
    return {name: entries[name] for name in COMPUTE if name in entries and entries[name].value > 0}


def _amounts(entries: ResourceList) -> dict[str, Decimal]:
    return {name: quantity.value for name, quantity in entries.items()}


def comparable(spec: Any, *, amounts: bool = False) -> Any:
    """A form in which two specs are equal when Kubernetes' semantic equality holds: quantities by value, absent like empty."""
    if isinstance(spec, dict):
        items = {
            key: comparable(value, amounts=amounts or (isinstance(value, dict) and key in ("requests", "limits", "overhead")))
            for key, value in spec.items()
        }
        return {key: value for key, value in items.items() if value not in (None, {}, [])}
    if isinstance(spec, list):
        return [comparable(item, amounts=amounts) for item in spec]
    return parse_quantity(spec).value if amounts else spec


def same_spec(left: Json, right: Json) -> bool:
    """The two pods' specs mean the same."""
    return bool(comparable(left["spec"]) == comparable(right["spec"]))
