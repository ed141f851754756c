"""What a rollout has done to one pod, by the pod's ledger, and how it is taken back."""

from __future__ import annotations

from vpa_ippr.api.pod import Pod
from vpa_ippr.api.resources import Amounts, ContainerResources, Resource
from vpa_ippr.resize.due import Part
from vpa_ippr.resize.follow import revert_target
from vpa_ippr.resize.ledger import Record, parse_stored, to_requirements
from vpa_ippr.resize.rules import VersionRules
from vpa_ippr.resize.targets import with_resource


def origin_of(pod: Pod, record: Record) -> dict[str, ContainerResources]:
    """What the containers had before the rollout, or before the resize when it belongs to none.

    Raises:
        QuantityError: the ledger cannot be read.
    """
    return {name: found for name, found in parse_stored(record.origin or record.before).items() if pod.container(name)}


def lowered(pod: Pod, record: Record) -> frozenset[Part]:
    """The parts that now have less than at first."""
    origin = origin_of(pod, record)
    return frozenset(Part(name, r) for name, old in origin.items() for r in Resource if _fell(old, pod.desired(name), r))


def undone(pod: Pod, record: Record) -> dict[str, ContainerResources]:
    """The containers as they are to be after the rollout is taken back; only those that change.

    What came down is raised to where it was, and what grew beside it stays. Where nothing came down, what grew is taken back, except that
    no memory limit is lowered: that would be a decrease that nobody prepared. A pod with resources of its own goes back as a whole: they
    have to fit the sum of its containers' at all times.
    """
    parts = lowered(pod, record)
    whole = not parts or pod.has_pod_level
    target: dict[str, ContainerResources] = {}
    for name, old in origin_of(pod, record).items():
        goal = present = pod.desired(name)
        for resource in Resource:
            if Part(name, resource) in parts or (whole and not _would_lower_limit(present, old, resource)):
                goal = with_resource(goal, _kept(old, present, resource), resource)
        if goal != present:
            target[name] = goal
    return target


def rollback_target(pod: Pod, record: Record, rules: VersionRules) -> dict[str, ContainerResources] | None:
    """``undone``, as the API server takes it; None when it does not, or there is nothing to take back."""
    return revert_target(pod, {name: to_requirements(resources) for name, resources in undone(pod, record).items()}, rules)


def _kept(old: ContainerResources, present: ContainerResources, resource: Resource) -> ContainerResources:
    """``old``, but with a memory limit no lower than now; a request that equalled the limit goes along, or the QoS class would change."""
    if resource is not Resource.MEMORY or not _would_lower_limit(present, old, resource):
        return old
    limit = present.limits.memory_bytes
    request = limit if old.requests.memory_bytes == old.limits.memory_bytes else old.requests.memory_bytes
    return ContainerResources(Amounts(old.requests.cpu_millicores, request), Amounts(old.limits.cpu_millicores, limit))


def _would_lower_limit(present: ContainerResources, old: ContainerResources, resource: Resource) -> bool:
    now, then = present.limits.get(resource), old.limits.get(resource)
    return resource is Resource.MEMORY and now is not None and then is not None and then < now


def _fell(old: ContainerResources, present: ContainerResources, resource: Resource) -> bool:
    sides = ((old.requests.get(resource), present.requests.get(resource)), (old.limits.get(resource), present.limits.get(resource)))
    return any(before is not None and now is not None and now < before for before, now in sides)
