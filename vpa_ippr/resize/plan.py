"""From "due" to a patch and a list of shrinks: the smallest change that the version, the QoS class and the node allow.

What cannot be done is withheld part by part with its reason, so that a memory limit that may not go down does not keep a CPU request
from going up. The request and the limit of one resource of one container always move together.
"""

from __future__ import annotations

from dataclasses import dataclass

from vpa_ippr.api.cluster import Node
from vpa_ippr.api.pod import Pod
from vpa_ippr.api.resources import ContainerResources, Resource
from vpa_ippr.api.vpa import Vpa
from vpa_ippr.recommend.limit_ranges import UNLIMITED, NamespaceLimits
from vpa_ippr.resize.due import Due, Part
from vpa_ippr.resize.ledger import History, Infeasible
from vpa_ippr.resize.patch import Change, changes_to, patch_for, restarts
from vpa_ippr.resize.ports import Patch
from vpa_ippr.resize.qos import QosClass, desired_resources, pod_requests, qos_class
from vpa_ippr.resize.reasons import DueReason, RefusalReason
from vpa_ippr.resize.rules import VersionRules
from vpa_ippr.resize.settings import Settings
from vpa_ippr.resize.state import InfeasibleCause
from vpa_ippr.resize.targets import Target, targets_of, with_resource


@dataclass(frozen=True, slots=True)
class ShrinkNeed:
    """A memory limit that may go down only once the node holds the container's use below it; request and limit then move together."""

    container: str
    target_bytes: int
    previous: ContainerResources
    request_bytes: int | None


@dataclass(frozen=True, slots=True)
class Withheld:
    """A part that is due but not done."""

    part: Part
    reason: RefusalReason
    message: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now (``patch``), and what to prepare first (``shrinks``); ``patch`` is empty when nothing can go at once.

    ``capped_by`` says for each container what moved its recommendation.
    """

    patch: Patch
    changes: tuple[Change, ...]
    after: dict[str, ContainerResources]
    restarts: bool
    shrinks: tuple[ShrinkNeed, ...]
    withheld: tuple[Withheld, ...]
    reasons: tuple[DueReason, ...]
    capped_by: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """True when the pod already is as it should be."""
        return not self.changes and not self.shrinks


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing of what is due can be done."""

    reason: RefusalReason
    message: str


def plan(
    pod: Pod,
    vpa: Vpa,
    due: Due,
    rules: VersionRules,
    node: Node | None,
    history: History,
    settings: Settings,
    limits: NamespaceLimits = UNLIMITED,
) -> Plan | Refused:
    """How to carry out ``due``. An unknown ``node`` is not checked for capacity; ``limits`` are those of the pod's namespace.

    Raises:
        QuantityError: a quantity of the pod or of the VPA cannot be read.
    """
    unfit = _unfit(pod)
    if unfit is not None:
        return unfit
    targets = {target.container: target for target in targets_of(pod, vpa, history.ledger, limits)}
    parts = [part for part in due.parts if part.container in targets]
    withheld = [w for part in parts if (w := _forbidden(pod, targets[part.container], part, rules, history, settings))]
    parts = _without(parts, withheld)
    oversized = _oversized(pod, targets, parts, node, history.ledger.infeasible)
    withheld, parts = withheld + oversized, _without(parts, oversized)
    if withheld and not parts:
        return Refused(withheld[0].reason, withheld[0].message)
    return _assemble(pod, due, targets, parts, tuple(withheld))


def _unfit(pod: Pod) -> Refused | None:
    if pod.status.qos_class == QosClass.BEST_EFFORT:
        return Refused(RefusalReason.BEST_EFFORT, "a BestEffort pod cannot be given requests or limits: its QoS class would change")
    if pod.spec.resources is not None:
        return Refused(RefusalReason.POD_LEVEL_RESOURCES, "the pod has pod-level resources, which are not resized")
    return None


def _assemble(pod: Pod, due: Due, targets: dict[str, Target], parts: list[Part], withheld: tuple[Withheld, ...]) -> Plan | Refused:
    later = [part for part in parts if _needs_shrink(pod, targets[part.container], part.resource)]
    now = _without_parts(parts, later)
    everything = _keep_burstable(pod, _resources(targets, parts), parts)
    immediate = _merge(pod, everything, now)
    if not _qos_kept(pod, immediate) or not _qos_kept(pod, everything):
        return Refused(RefusalReason.QOS_WOULD_CHANGE, f"the pod would no longer be {pod.status.qos_class or 'of its QoS class'}")
    changes = changes_to(pod, immediate)
    return Plan(
        patch=patch_for(pod, changes),
        changes=changes,
        after={name: immediate[name] for name in dict.fromkeys(change.container for change in changes)},
        restarts=restarts(pod, changes),
        shrinks=tuple(_shrink_need(pod, part.container, everything[part.container]) for part in later),
        withheld=withheld,
        reasons=due.reasons,
        capped_by=tuple(f"{part.container}: {note}" for part in parts for note in _notes(targets[part.container], part.resource)),
    )


def _notes(target: Target, resource: Resource) -> tuple[str, ...]:
    return tuple(note for note in target.capped_by if note.startswith(f"{resource} "))


def _shrink_need(pod: Pod, container: str, wanted: ContainerResources) -> ShrinkNeed:
    limit = wanted.limits.memory_bytes
    assert limit is not None  # only a falling limit needs a shrink
    return ShrinkNeed(container, limit, pod.desired(container), wanted.requests.memory_bytes)


def _needs_shrink(pod: Pod, target: Target, resource: Resource) -> bool:
    if resource is not Resource.MEMORY or not target.lowers_limit(resource):
        return False
    container = pod.container(target.container)
    return container is not None and not container.restarts_on_resize_of(Resource.MEMORY)


def _forbidden(pod: Pod, target: Target, part: Part, rules: VersionRules, history: History, settings: Settings) -> Withheld | None:
    infeasible = history.ledger.infeasible
    if infeasible is not None and _kind_is_infeasible(infeasible.cause, pod, part):
        return Withheld(part, RefusalReason.KNOWN_INFEASIBLE, f"the node cannot resize {part.resource} in place: {infeasible.cause}")
    if not _needs_shrink(pod, target, part.resource):
        return None
    if not rules.memory_limit_decrease:
        return Withheld(
            part,
            RefusalReason.VERSION_FORBIDS_DECREASE,
            f"Kubernetes 1.{rules.minor} lowers the memory limit of {part.container} only with resizePolicy RestartContainer",
        )
    old, new = target.current.limits.memory_bytes or 0, target.desired.limits.memory_bytes or 0
    least = max(settings.min_shrink_bytes, int(old * settings.min_shrink))
    if old - new < least:
        return Withheld(
            part,
            RefusalReason.SHRINK_TOO_SMALL,
            f"lowering the memory limit of {part.container} gains {old - new} bytes: less than {least} is not worth it",
        )
    return None


def _kind_is_infeasible(cause: InfeasibleCause, pod: Pod, part: Part) -> bool:
    container = pod.container(part.container)
    match cause:
        case InfeasibleCause.CPU_MANAGER:
            return part.resource is Resource.CPU
        case InfeasibleCause.MEMORY_MANAGER:
            return part.resource is Resource.MEMORY
        case InfeasibleCause.SWAP:
            return part.resource is Resource.MEMORY and not (container and container.restarts_on_resize_of(Resource.MEMORY))
        case _:
            return False


def _oversized(pod: Pod, targets: dict[str, Target], parts: list[Part], node: Node | None, infeasible: Infeasible | None) -> list[Withheld]:
    """The growing parts of each resource of which the pod would need more than its node has, or more than was infeasible before."""
    total = pod_requests(pod, desired_resources(pod, _resources(targets, parts)))
    withheld: list[Withheld] = []
    for resource in Resource:
        growing = [part for part in parts if part.resource is resource and targets[part.container].grows(resource)]
        needed, available = total.get(resource) or 0, node.allocatable.get(resource) if node else None
        if available is not None and needed > available:
            text = f"the pod would request {needed} of {resource}, node {node.name if node else ''} has {available} allocatable"
            withheld += [Withheld(part, RefusalReason.NODE_CAPACITY, text) for part in growing]
        elif infeasible is not None and _as_large(infeasible, total.cpu_millicores or 0, total.memory_bytes or 0):
            text = f"a resize of this size was infeasible on the node ({infeasible.cause})"
            withheld += [Withheld(part, RefusalReason.KNOWN_INFEASIBLE, text) for part in growing]
    return withheld


_MATERIALLY_SMALLER = 0.9


def _as_large(infeasible: Infeasible, cpu_millicores: int, memory_bytes: int) -> bool:
    """True unless a resource has become smaller by a tenth: noise in the recommendation must not make a loop of refusals."""
    if infeasible.cause not in (InfeasibleCause.NODE_CAPACITY, InfeasibleCause.OTHER):
        return False
    return cpu_millicores > infeasible.cpu_millicores * _MATERIALLY_SMALLER and memory_bytes > infeasible.memory_bytes * _MATERIALLY_SMALLER


def _resources(targets: dict[str, Target], parts: list[Part]) -> dict[str, ContainerResources]:
    """Whole resources of each touched container, with only ``parts`` changed."""
    resources: dict[str, ContainerResources] = {}
    for part in parts:
        target = targets[part.container]
        resources[part.container] = with_resource(resources.get(part.container, target.current), target.desired, part.resource)
    return resources


def _merge(pod: Pod, resources: dict[str, ContainerResources], parts: list[Part]) -> dict[str, ContainerResources]:
    merged: dict[str, ContainerResources] = {}
    for part in parts:
        base = merged.get(part.container, pod.desired(part.container))
        merged[part.container] = with_resource(base, resources[part.container], part.resource)
    return merged


def _keep_burstable(pod: Pod, resources: dict[str, ContainerResources], parts: list[Part]) -> dict[str, ContainerResources]:
    """Keep a Burstable pod from turning Guaranteed by chance: one changing CPU request stays 1m below its limit."""
    if pod.status.qos_class != QosClass.BURSTABLE or qos_class(pod, desired_resources(pod, resources)) is not QosClass.GUARANTEED:
        return resources
    for part in parts:
        wanted = resources[part.container]
        limit = wanted.limits.cpu_millicores
        if part.resource is Resource.CPU and limit is not None and limit > 1:
            lowered = ContainerResources(wanted.requests.having(Resource.CPU, limit - 1), wanted.limits)
            return {**resources, part.container: lowered}
    return resources


def _qos_kept(pod: Pod, resources: dict[str, ContainerResources]) -> bool:
    before = pod.status.qos_class or qos_class(pod, desired_resources(pod, {}))
    return qos_class(pod, desired_resources(pod, resources)) == before


def _without(parts: list[Part], withheld: list[Withheld]) -> list[Part]:
    return _without_parts(parts, [w.part for w in withheld])


def _without_parts(parts: list[Part], others: list[Part]) -> list[Part]:
    return [part for part in parts if part not in others]
