"""What one pod takes of its node and of its namespace's quota, in each of the ways in which Kubernetes counts it.

A request has up to three values at once: desired (spec), allocated and actual (both in the status). The kubelet adds up what is allocated;
scheduler and quota count the largest of the three, the desired one only while it is not Infeasible (``determineContainerReqs``). The sum
over a pod is that of component-helpers' ``PodRequests``: containers and sidecars run together, an init container runs with the sidecars
before it, the pod needs the larger of the two, its own pod-level amounts replace the sum, and overhead comes on top.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from vpa_ippr.api.meta import find_condition
from vpa_ippr.api.names import POD_RESIZE_PENDING
from vpa_ippr.api.pod import POD_LEVEL, Container, Pod
from vpa_ippr.api.resources import Amounts, ContainerResources, Resource, parse_amounts
from vpa_ippr.resize.state import PendingReason


class Wish(NamedTuple):
    """A resize of a pod that may be asked for: what the containers in ``after``, or the pod itself (``POD_LEVEL``), would then have."""

    pod: Pod
    after: Mapping[str, ContainerResources]


@dataclass(frozen=True, slots=True)
class Footprint:
    """Requests of a whole pod, overhead included; None where nothing is requested.

    ``desired``: by its spec. ``allocated``: as the kubelet counts it. ``held``: the larger of allocated and actual, so what a shrink under
    way still occupies. ``counted`` and ``counted_limits``: as scheduler and quota count requests, and quota limits.
    """

    desired: Amounts
    allocated: Amounts
    held: Amounts
    counted: Amounts
    counted_limits: Amounts

    @property
    def grows(self) -> bool:
        """True when more is desired than allocated, which is how the kubelet tells growths from other resizes."""
        return any((self.desired.get(resource) or 0) > (self.allocated.get(resource) or 0) for resource in Resource)


def footprint(pod: Pod) -> Footprint:
    """What the pod takes as it is. Raises QuantityError when an amount in it cannot be read."""
    return _footprint(Wish(pod, {}), is_infeasible(pod))


def footprint_after(wish: Wish) -> Footprint:
    """What the pod takes once the wish is in its spec.

    An Infeasible that the pod's conditions still name was said of the old spec, so the new one counts.

    Raises:
        QuantityError: an amount in the pod cannot be read.
    """
    return _footprint(wish, infeasible=False)


def is_infeasible(pod: Pod) -> bool:
    """True when the kubelet has refused the spec for good: then it takes nothing."""
    pending = find_condition(pod.status.conditions, POD_RESIZE_PENDING)
    reason = pending.reason if pending is not None else pod.status.resize
    return reason == PendingReason.INFEASIBLE


def largest(*amounts: Amounts) -> Amounts:
    """The largest amount of each resource; None where none of them says."""
    return _merge(max, amounts)


def _footprint(wish: Wish, infeasible: bool) -> Footprint:
    pod = wish.pod
    states = {container.name: _of_container(wish, container) for container in [*pod.spec.containers, *pod.spec.init_containers]}
    whole = _of_pod(wish)
    overhead = parse_amounts(pod.spec.overhead, f"pod {pod.key} spec.overhead")

    def together(count: Callable[[_States], Amounts]) -> Amounts:
        summed = _aggregate(pod, {name: count(state) for name, state in states.items()})
        if whole is None:
            return summed
        own = count(whole)
        return Amounts(*(summed.get(resource) if (amount := own.get(resource)) is None else amount for resource in Resource))

    def requested(count: Callable[[_States], Amounts]) -> Amounts:
        summed = together(count)
        return _merge(sum, (summed, overhead)) if pod.spec.overhead else summed

    limits = together(lambda state: state.counted_limits(infeasible))
    return Footprint(
        desired=requested(_States.desired_requests),
        allocated=requested(_States.allocated_requests),
        held=requested(_States.held_requests),
        counted=requested(lambda state: state.counted_requests(infeasible)),
        # Overhead belongs to a limit only where there is one.
        counted_limits=Amounts(*(None if (own := limits.get(r)) is None else own + (overhead.get(r) or 0) for r in Resource)),
    )


@dataclass(frozen=True, slots=True)
class _States:
    """The values of one container, or of the pod level: in the spec, wanted there, allocated, and actual; None is not reported."""

    spec: ContainerResources
    wanted: ContainerResources
    allocated: Amounts | None
    actual: ContainerResources | None

    def desired_requests(self) -> Amounts:
        return self.wanted.requests

    def allocated_requests(self) -> Amounts:
        """Kubelets that do not report it (1.32) begin the actual values with it; before any report it is the spec at admission."""
        if self.allocated is not None:
            return self.allocated
        return self.spec.requests if self.actual is None else self.actual.requests

    def held_requests(self) -> Amounts:
        return largest(self.allocated_requests(), self.actual.requests if self.actual else Amounts())

    def counted_requests(self, infeasible: bool) -> Amounts:
        if self.actual is None:
            return self.wanted.requests
        reported = largest(self.allocated or Amounts(), self.actual.requests)
        return reported if infeasible else largest(self.wanted.requests, reported)

    def counted_limits(self, infeasible: bool) -> Amounts:
        if self.actual is None:
            return self.wanted.limits
        return self.actual.limits if infeasible else largest(self.wanted.limits, self.actual.limits)


def _of_container(wish: Wish, container: Container) -> _States:
    pod, name = wish.pod, container.name
    spec, status = pod.desired(name), pod.container_status(name)
    reported = status.allocated_resources if status else None
    where = f"pod {pod.key} status.containerStatuses[{name}].allocatedResources"
    allocated = parse_amounts(reported, where) if reported is not None else None
    return _States(spec, wish.after.get(name, spec), allocated, pod.actual(name))


def _of_pod(wish: Wish) -> _States | None:
    pod = wish.pod
    if not pod.has_pod_level:  # a status of the pod level may be there all the same, but does not count then
        return None
    spec, reported = pod.desired(POD_LEVEL), pod.status.allocated_resources
    allocated = parse_amounts(reported, f"pod {pod.key} status.allocatedResources") if reported is not None else None
    return _States(spec, wish.after.get(POD_LEVEL, spec), allocated, pod.actual(POD_LEVEL))


def _aggregate(pod: Pod, amounts: Mapping[str, Amounts]) -> Amounts:
    sidecars: list[Amounts] = []
    starting: list[Amounts] = []
    for container in pod.spec.init_containers:
        own = amounts[container.name]
        if container.restart_policy == "Always":
            sidecars.append(own)
            starting.append(_merge(sum, sidecars))
        else:
            starting.append(_merge(sum, [*sidecars, own]))
    running = [amounts[container.name] for container in pod.spec.containers]
    return largest(_merge(sum, [*running, *sidecars]), *starting)


def _merge(join: Callable[[list[int]], int], listed: Sequence[Amounts]) -> Amounts:
    if len(listed) == 1:  # most pods have one container
        return listed[0]
    cpu = [amounts.cpu_millicores for amounts in listed if amounts.cpu_millicores is not None]
    memory = [amounts.memory_bytes for amounts in listed if amounts.memory_bytes is not None]
    return Amounts(join(cpu) if cpu else None, join(memory) if memory else None)
