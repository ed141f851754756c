"""How much room a node has for the pods on it.

A growth has to pass the kubelet, which adds up what it has **allocated** to all other pods (GeneralPredicates), and ought to leave the
scheduler's sum in order, which counts the largest of desired, allocated and actual. The two differ by shrinks that are not carried out yet
and by growths that still wait. ``NodeRoom`` is what there is by either count, or by that of the node's plan: ``held``, the larger of
allocated and actual, to which the plan adds waiting growths in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter

from vpa_ippr.api.cluster import Node
from vpa_ippr.api.meta import ObjectKey
from vpa_ippr.api.quantity import format_bytes_binary, format_millicores
from vpa_ippr.api.resources import Amounts, Resource
from vpa_ippr.resize.footprint import Footprint

Count = Callable[[Footprint], Amounts]
KUBELET: Count = attrgetter("allocated")
SCHEDULER: Count = attrgetter("counted")
HELD: Count = attrgetter("held")


@dataclass(frozen=True, slots=True)
class Shortage:
    """A resource of which a pod would request more than is free beside the other pods; millicores or bytes."""

    resource: Resource
    requested: int
    free: int

    def __str__(self) -> str:
        """``cpu requested 1500m, free 1200m``."""
        text = format_millicores if self.resource is Resource.CPU else format_bytes_binary
        return f"{self.resource} requested {text(self.requested)}, free {text(max(0, self.free))}"


@dataclass(frozen=True, slots=True)
class NodeRoom:
    """A node and the requests that each pod on it takes; a resource whose allocatable is unknown is never short."""

    node: Node
    taken: Mapping[ObjectKey, Amounts]
    total: Amounts

    @classmethod
    def of(cls, node: Node, footprints: Mapping[ObjectKey, Footprint], count: Count) -> NodeRoom:
        """The node with these pods on it, as ``count`` counts them."""
        room = cls(node, {}, Amounts(0, 0))
        for pod, footprint in footprints.items():
            room = room._with(pod, count(footprint), {**room.taken})
        return room

    @property
    def free(self) -> Amounts:
        """What no pod takes; negative where more is taken than there is, None where the size is unknown."""
        return Amounts(*(self._left(resource, self.total.get(resource) or 0) for resource in Resource))

    def shortages(self, pod: ObjectKey, requests: Amounts) -> tuple[Shortage, ...]:
        """What is missing for ``pod`` to request that much in all, instead of what it takes now.

        As in the kubelet, a resource that it does not request is not looked at, and one that it does must fit even if it grows in another.
        """
        found = []
        for resource in Resource:
            requested, own = requests.get(resource) or 0, self._taken_by(pod).get(resource) or 0
            free = self._left(resource, (self.total.get(resource) or 0) - own)
            if requested and free is not None and requested > free:
                found.append(Shortage(resource, requested, free))
        return tuple(found)

    def taking(self, pod: ObjectKey, requests: Amounts) -> NodeRoom:
        """The node once ``pod`` takes that much in all."""
        return self._with(pod, requests, {**self.taken})

    def _with(self, pod: ObjectKey, requests: Amounts, taken: dict[ObjectKey, Amounts]) -> NodeRoom:
        before = self._taken_by(pod)
        total = Amounts(*((self.total.get(r) or 0) - (before.get(r) or 0) + (requests.get(r) or 0) for r in Resource))
        taken[pod] = requests
        return replace(self, taken=taken, total=total)

    def _taken_by(self, pod: ObjectKey) -> Amounts:
        return self.taken.get(pod, Amounts())

    def _left(self, resource: Resource, taken: int) -> int | None:
        allocatable = self.node.allocatable.get(resource)
        return None if allocatable is None else allocatable - taken
