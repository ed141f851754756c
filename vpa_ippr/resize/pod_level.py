"""A pod's own requests and limits (KEP-2837), and how they go along when its containers are resized (KEP-5419).

The pod's request moves by what its containers' requests move, so that what it leaves beyond their sum stays what it was. Containers without
a request of their own live on the pod's: where each of them has a recommendation, the pod's request becomes the sum of all. The limit
follows by the limit policy, is never below the request, and no container's limit is above it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from vpa_ippr.api.pod import POD_LEVEL, Pod
from vpa_ippr.api.resources import Amounts, ContainerResources, Resource
from vpa_ippr.recommend.limits import proportional_limit
from vpa_ippr.resize.ledger import Ledger, proportions, to_requirements
from vpa_ippr.resize.limit_policy import LimitKind, LimitRules
from vpa_ippr.resize.qos import container_requests, desired_resources

Requests = Mapping[str, Amounts]


def lives_on_pod(pod: Pod, container: ContainerResources, resource: Resource) -> bool:
    """True when the container has neither request nor limit of ``resource``, and the pod has a request."""
    stated = container.requests.get(resource) is not None or container.limits.get(resource) is not None
    return not stated and pod.desired(POD_LEVEL).requests.get(resource) is not None


@dataclass(frozen=True, slots=True)
class PodLevel:
    """A pod that has resources of its own.

    ``shared``: what is recommended, by container, of the resources for which it lives on the pod's request.

    Every method raises QuantityError when a quantity of the pod or of its ledger cannot be read.
    """

    pod: Pod
    ledger: Ledger
    rules: LimitRules
    shared: Requests

    def carried_along(self, changed: Mapping[str, ContainerResources], moving: Collection[Resource]) -> dict[str, ContainerResources]:
        """``changed`` (whole resources by container) with what the pod must have then, and the containers' limits within that.

        The pod's memory limit is never lowered here: nobody holds the use of all its containers below it.
        """
        present = own = self.pod.desired(POD_LEVEL)
        for resource in moving:
            own = self._without_memory_decrease(own, self.moved(own, changed, resource))
        held = {name: _within(resources, own) for name, resources in changed.items()}
        return held if own == present else {POD_LEVEL: own, **held}

    def moved(self, own: ContainerResources, changed: Mapping[str, ContainerResources], resource: Resource) -> ContainerResources:
        """``own``, the pod's resources, with the request and the limit of ``resource`` that go with ``changed``."""
        wanted = self.request({name: resources.requests for name, resources in changed.items()}, self.shared, resource)
        if wanted is None:
            return own
        present, rule = own.limits.get(resource), self.rules[resource]
        if not present:
            return ContainerResources(own.requests.having(resource, wanted), own.limits)
        proportional = proportional_limit(resource, proportions(self.pod, self.ledger, POD_LEVEL), wanted, Amounts()) or wanted
        limit, request = rule.limit_for(wanted, proportional, present), wanted
        if rule.kind is LimitKind.NONE:
            request = min(wanted, limit)
        else:
            limit = max(limit, wanted, self._highest_limit(changed, resource))
        if rule.kind is LimitKind.RATIO and proportional == wanted:
            request = limit  # they were equal, and stay so
        return ContainerResources(own.requests.having(resource, request), own.limits.having(resource, limit))

    def request(self, requests: Requests, shared: Requests, resource: Resource) -> int | None:
        """The pod's request beside these requests of containers (the others as in the spec); None where it has none."""
        if self.pod.desired(POD_LEVEL).requests.get(resource) is None:
            return None
        living = [name for name in self._names() if lives_on_pod(self.pod, self.pod.desired(name), resource)]
        if living and all(name in shared and shared[name].get(resource) is not None for name in living):
            return self._together({**requests, **{name: shared[name] for name in living}}, resource)
        return self._together(requests, resource) + self._beyond(resource)

    def exceeds(self, after: Mapping[str, ContainerResources], resource: Resource) -> bool:
        """True when the containers would request more than the pod: its limit, which stays, is in the way."""
        own = after.get(POD_LEVEL, self.pod.desired(POD_LEVEL)).requests.get(resource)
        return own is not None and self._together({name: found.requests for name, found in after.items()}, resource) > own

    def _names(self) -> list[str]:
        """The containers that run beside each other: a pod's request is for them all the time."""
        return [one.name for one in [*self.pod.spec.containers, *(init for init in self.pod.spec.init_containers if init.is_sidecar)]]

    def _together(self, requests: Requests, resource: Resource) -> int:
        lookup = desired_resources(self.pod, {name: ContainerResources(amounts) for name, amounts in requests.items()})
        return container_requests(self.pod, lookup).get(resource) or 0

    def _beyond(self, resource: Resource) -> int:
        """What the pod requests beyond the sum of its containers, as its author set it: before our first resize, or another's since."""
        basis, author = self.ledger.bases.get(POD_LEVEL), proportions(self.pod, self.ledger, POD_LEVEL)
        if basis is not None and to_requirements(author) != basis.original:
            together = self._together({}, resource)
        else:
            names = [one.name for one in [*self.pod.spec.containers, *self.pod.spec.init_containers]]
            together = self._together({name: proportions(self.pod, self.ledger, name).requests for name in names}, resource)
        return max((author.requests.get(resource) or 0) - together, 0)

    def _highest_limit(self, changed: Mapping[str, ContainerResources], resource: Resource) -> int:
        """The highest limit of a container that does not rise above the pod's with this change."""
        highest = 0
        for one in [*self.pod.spec.containers, *self.pod.spec.init_containers]:
            limit = self.pod.desired(one.name).limits.get(resource) or 0
            after = changed[one.name].limits.get(resource) if one.name in changed else None
            highest = max(highest, limit if after is None else min(limit, after))
        return highest

    def _without_memory_decrease(self, own: ContainerResources, wanted: ContainerResources) -> ContainerResources:
        """``wanted`` where it leaves the memory limit; where it lowers it, only a request that rises counts, beneath the old limit."""
        if not lowers_memory(own, wanted):
            return wanted
        request = max(own.requests.memory_bytes or 0, wanted.requests.memory_bytes or 0)
        return ContainerResources(
            wanted.requests.having(Resource.MEMORY, request), wanted.limits.having(Resource.MEMORY, own.limits.memory_bytes)
        )


def lowers_memory(own: ContainerResources, wanted: ContainerResources) -> bool:
    """True when the memory limit is to fall."""
    before, after = own.limits.memory_bytes, wanted.limits.memory_bytes
    return before is not None and after is not None and after < before


def _within(resources: ContainerResources, own: ContainerResources) -> ContainerResources:
    limits = resources.limits
    for resource in Resource:
        limit, highest = limits.get(resource), own.limits.get(resource)
        if limit is not None and highest:
            limits = limits.having(resource, min(limit, highest))
    return ContainerResources(resources.requests, limits)
