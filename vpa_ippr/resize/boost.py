"""Startup boost: a container begins with more CPU than it is recommended, and gives it back in place some time after its pod is Ready.

The boost itself is an admission controller's. It notes what the container had been meant to get in an annotation of the pod, one for each
boosted container; while that is there, the CPU of the container is left alone.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from vpa_ippr.api.errors import QuantityError
from vpa_ippr.api.meta import find_condition
from vpa_ippr.api.names import ANNOTATION_CPU_BOOST_PREFIX
from vpa_ippr.api.pod import Container, Pod
from vpa_ippr.api.resources import Amounts, ContainerResources, Resource, ResourceRequirements
from vpa_ippr.api.timestamps import parse_time
from vpa_ippr.api.vpa import Vpa
from vpa_ippr.recommend.limit_ranges import UNLIMITED, NamespaceLimits
from vpa_ippr.resize.hpa import NOT_SHARED, Sharing
from vpa_ippr.resize.ledger import Ledger, to_requirements
from vpa_ippr.resize.qos import QosClass, desired_resources, qos_class
from vpa_ippr.resize.targets import resizable_containers, targets_of, with_resource

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NotBoosted:
    """No container of the pod is boosted."""


@dataclass(frozen=True, slots=True)
class Boosted:
    """The boost is on: until ``until``, or without a known end while the pod is not Ready."""

    until: float | None


@dataclass(frozen=True, slots=True)
class Unboost:
    """The boost of some containers is over: take them to ``after``, then remove these annotations.

    ``after`` is empty once the spec holds what it should, so that a removal that failed is made up for.
    """

    after: Mapping[str, ContainerResources]
    annotations: tuple[str, ...]


BoostStep = NotBoosted | Boosted | Unboost


def boosted_containers(pod: Pod) -> frozenset[str]:
    """The containers whose CPU is boosted, or was and has not been taken back yet."""
    return frozenset(one.name for one in resizable_containers(pod) if ANNOTATION_CPU_BOOST_PREFIX + one.name in pod.metadata.annotations)


def boost_step(
    pod: Pod, vpa: Vpa, now: float, ledger: Ledger, limits: NamespaceLimits = UNLIMITED, sharing: Sharing = NOT_SHARED
) -> BoostStep:
    """Where the pod's startup boost stands. It ends in every mode, also in ``Off`` and ``Initial``.

    Raises:
        QuantityError, ValidationError: the pod or the VPA cannot be read.
    """
    boosted = boosted_containers(pod)
    if not boosted:
        return NotBoosted()
    ready_since = _ready_since(pod)
    if ready_since is None:
        return Boosted(until=None)
    ends = {name: ready_since + _duration_seconds(vpa, name) for name in sorted(boosted)}
    over = [name for name, end in ends.items() if end <= now]
    if not over:
        return Boosted(until=min(ends.values()))
    wanted = _wanted(pod, vpa, over, ledger, limits, sharing)
    if qos_class(pod, desired_resources(pod, wanted)) != qos_class(pod, desired_resources(pod, {})):
        logger.warning("startup boost left as it is: its annotation would change the QoS class", extra={"pod": str(pod.key)})
        wanted = {}
    after = {name: resources for name, resources in wanted.items() if resources != pod.desired(name)}
    return Unboost(after, tuple(ANNOTATION_CPU_BOOST_PREFIX + name for name in over))


def _ready_since(pod: Pod) -> float | None:
    ready = find_condition(pod.status.conditions, "Ready")
    if ready is None or ready.status != "True":
        return None
    # The API server requires no transition time, but every kubelet writes one.
    return parse_time(ready.last_transition_time) if ready.last_transition_time else 0.0


def _duration_seconds(vpa: Vpa, container: str) -> int:
    """How long after Ready the boost is kept: the container's own setting, else the pod's; a VPA that has none boosts no longer."""
    for boost in (vpa.policy_for(container).startup_boost, vpa.spec.startup_boost):
        if boost is not None and boost.cpu is not None and boost.cpu.duration_seconds is not None:
            return boost.cpu.duration_seconds
    return 0


def _wanted(
    pod: Pod, vpa: Vpa, over: list[str], ledger: Ledger, limits: NamespaceLimits, sharing: Sharing
) -> dict[str, ContainerResources]:
    """What is recommended, in proportion to what the containers had been meant to get; that itself where nothing is to be applied."""
    noted = {name: _noted(pod, name) for name in over}
    meant = {name: _meant(pod, name, noted[name]) for name in over}
    calm = _with_resources(pod, meant)
    targets = () if vpa.update_mode == "Off" else targets_of(calm, vpa, ledger, limits)
    recommended = {target.container: target.desired for target in targets if not sharing.forbids(target, Resource.CPU)}
    wanted = {name: with_resource(pod.desired(name), recommended.get(name, meant[name]), Resource.CPU) for name in over}
    wanted = {name: _with_limit_of(pod, name, resources) if _lacks_limit(noted[name]) else resources for name, resources in wanted.items()}
    return _keep_burstable(pod, wanted)


def _meant(pod: Pod, container: str, noted: ContainerResources) -> ContainerResources:
    """The container with the CPU that the annotation holds.

    An amount that is not in there stays, since a resize cannot remove it; for the same reason none is added that is not there.
    """
    current = pod.desired(container)
    return ContainerResources(_with_cpu(current.requests, noted.requests), _with_cpu(current.limits, noted.limits))


def _lacks_limit(noted: ContainerResources) -> bool:
    """A request without its limit is in no proportion to the limit that the container has: less would come of that in every cycle."""
    return noted.requests.cpu_millicores is not None and noted.limits.cpu_millicores is None


def _with_limit_of(pod: Pod, container: str, resources: ContainerResources) -> ContainerResources:
    return ContainerResources(resources.requests, resources.limits.having(Resource.CPU, pod.desired(container).limits.cpu_millicores))


def _noted(pod: Pod, container: str) -> ContainerResources:
    """What the annotation holds; nothing when it cannot be read."""
    name = ANNOTATION_CPU_BOOST_PREFIX + container
    try:
        return msgspec.json.decode(pod.metadata.annotations[name], type=ResourceRequirements).parse(f"annotation {name}")
    except (msgspec.DecodeError, QuantityError) as error:
        logger.warning("unreadable startup boost taken as it is", extra={"pod": str(pod.key), "container": container, "error": str(error)})
        return ContainerResources()


def _with_cpu(amounts: Amounts, original: Amounts) -> Amounts:
    return amounts.having(Resource.CPU, amounts.cpu_millicores and (original.cpu_millicores or amounts.cpu_millicores))


def _with_resources(pod: Pod, resources: Mapping[str, ContainerResources]) -> Pod:
    def changed(containers: list[Container]) -> list[Container]:
        return [
            msgspec.structs.replace(one, resources=to_requirements(resources[one.name])) if one.name in resources else one
            for one in containers
        ]

    spec = msgspec.structs.replace(pod.spec, containers=changed(pod.spec.containers), init_containers=changed(pod.spec.init_containers))
    return msgspec.structs.replace(pod, spec=spec)


def _keep_burstable(pod: Pod, wanted: dict[str, ContainerResources]) -> dict[str, ContainerResources]:
    """A boost below a limit has made the pod Burstable, and a resize must keep it so: one request stays 1m below its limit."""
    if pod.status.qos_class != QosClass.BURSTABLE or qos_class(pod, desired_resources(pod, wanted)) is not QosClass.GUARANTEED:
        return wanted
    name, resources = next(iter(wanted.items()))
    limit = resources.limits.cpu_millicores or 0
    return {**wanted, name: ContainerResources(resources.requests.having(Resource.CPU, limit - 1), resources.limits)}
