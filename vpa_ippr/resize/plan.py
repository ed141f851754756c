"""From "due" to a patch and a list of shrinks: the smallest change that the version, the QoS class and the node allow.

What cannot be done is withheld part by part with its reason, so that a memory limit that may not go down does not keep a CPU request
from going up. The request and the limit of one resource of one container always move together.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from vpa_ippr.api.cluster import Node
from vpa_ippr.api.pod import POD_LEVEL, Pod
from vpa_ippr.api.resources import ContainerResources, Resource
from vpa_ippr.api.vpa import Vpa
from vpa_ippr.recommend.limit_ranges import UNLIMITED, NamespaceLimits
from vpa_ippr.resize.due import Due, Part
from vpa_ippr.resize.ledger import History, Infeasible
from vpa_ippr.resize.patch import Change, changes_to, patch_for, restarts
from vpa_ippr.resize.pod_level import PodLevel
from vpa_ippr.resize.ports import Patch
from vpa_ippr.resize.prechecks import container_obstacle, node_obstacle, pod_obstacle
from vpa_ippr.resize.qos import QosClass, desired_resources, pod_requests, qos_class
from vpa_ippr.resize.reasons import DueReason, RefusalReason
from vpa_ippr.resize.rules import VersionRules, rules_for_pod
from vpa_ippr.resize.settings import Settings
from vpa_ippr.resize.state import InfeasibleCause
from vpa_ippr.resize.targets import Target, pod_level_of, targets_of, with_resource


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
    """How to carry out ``due``; ``rules`` are the API server's. An unknown ``node`` is not checked for capacity.

    ``limits`` are those of the pod's namespace. A pod's own resources go along under the name ``POD_LEVEL``.

    Raises:
        QuantityError: a quantity of the pod or of the VPA cannot be read.
        ValidationError: the VPA's limit policy cannot be read.
    """
    own_rules = rules_for_pod(rules, node)
    unfit = pod_obstacle(pod, node, own_rules, limits)
    if unfit is not None:
        return Refused(unfit.reason, unfit.message)
    targets = {target.container: target for target in targets_of(pod, vpa, history.ledger, limits)}
    targets |= {name: targets[name].keeping_limit(Resource.MEMORY) for name in due.kept_limits & targets.keys()}
    level = pod_level_of(pod, vpa, history.ledger, {name: target.shared for name, target in targets.items()})
    case = _Case(pod, targets, level, node, own_rules)
    parts = [part for part in due.parts if part.container in targets]
    withheld = [w for part in parts if (w := _forbidden(case, part, history, settings))]
    parts = _without(parts, withheld)
    for found in (_beyond_pod_limit, partial(_oversized, infeasible=history.ledger.infeasible)):
        too_much = found(case, parts)
        withheld, parts = withheld + too_much, _without(parts, too_much)
    if withheld and not parts:
        return Refused(withheld[0].reason, withheld[0].message)
    return _assemble(case, due, parts, tuple(withheld))


@dataclass(frozen=True, slots=True)
class _Case:
    """What does not change while a plan is made; ``rules`` are those for this pod on its node."""

    pod: Pod
    targets: dict[str, Target]
    level: PodLevel | None
    node: Node | None
    rules: VersionRules

    def containers(self, parts: list[Part]) -> dict[str, ContainerResources]:
        """Whole resources of each touched container, with only ``parts`` changed."""
        return self.merged({name: target.desired for name, target in self.targets.items()}, parts)

    def merged(self, wanted: dict[str, ContainerResources], parts: list[Part]) -> dict[str, ContainerResources]:
        """Whole resources of each touched container, with only ``parts`` taken from ``wanted``."""
        resources: dict[str, ContainerResources] = {}
        for part in parts:
            if part.container != POD_LEVEL:  # it goes along with the containers, see ``whole``
                base = resources.get(part.container, self.targets[part.container].current)
                resources[part.container] = with_resource(base, wanted[part.container], part.resource)
        return resources

    def whole(self, resources: dict[str, ContainerResources], parts: list[Part]) -> dict[str, ContainerResources]:
        """``resources`` of containers, with the pod's own where it has any."""
        if self.level is None:
            return resources
        return self.level.carried_along(resources, sorted({part.resource for part in parts}))

    def growing(self, parts: list[Part], resource: Resource) -> list[Part]:
        """The parts in which more of ``resource`` is wanted than there is."""
        return [part for part in parts if part.resource is resource and self.targets[part.container].grows(resource)]


def _assemble(case: _Case, due: Due, parts: list[Part], withheld: tuple[Withheld, ...]) -> Plan | Refused:
    pod, targets = case.pod, case.targets
    later = [part for part in parts if _needs_shrink(pod, targets[part.container], part.resource)]
    now = _without_parts(parts, later)
    everything = _keep_burstable(pod, case.containers(parts), parts)
    immediate = case.whole(case.merged(everything, now), now)
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
    if resource is not Resource.MEMORY or target.container == POD_LEVEL or not target.lowers_limit(resource):
        return False
    container = pod.container(target.container)
    return container is not None and not container.restarts_on_resize_of(Resource.MEMORY)


def _forbidden(case: _Case, part: Part, history: History, settings: Settings) -> Withheld | None:
    target, infeasible = case.targets[part.container], history.ledger.infeasible
    obstacle = container_obstacle(case.pod, part.container, case.rules)
    if obstacle is None and infeasible is not None:
        obstacle = node_obstacle(case.pod, part.container, part.resource, infeasible.cause, case.rules)
    if obstacle is not None:
        return Withheld(part, obstacle.reason, obstacle.message)
    if part.container == POD_LEVEL:
        return _pod_memory_decrease(target, part)
    return _too_small_or_forbidden(target, part, case.rules, settings) if _needs_shrink(case.pod, target, part.resource) else None


def _pod_memory_decrease(target: Target, part: Part) -> Withheld | None:
    """A limit that falls is left, and its request with it; one whose request rises nevertheless only does that."""
    falls = part.resource is Resource.MEMORY and target.lowers_limit(part.resource)
    if not falls or _amount(target.desired.requests.memory_bytes) > _amount(target.current.requests.memory_bytes):
        return None
    text = "the pod's own memory limit is not lowered: nobody holds the use of all its containers below it"
    return Withheld(part, RefusalReason.POD_LEVEL_MEMORY_DECREASE, text)


def _too_small_or_forbidden(target: Target, part: Part, rules: VersionRules, settings: Settings) -> Withheld | None:
    if not rules.memory_limit_decrease:
        return Withheld(
            part,
            RefusalReason.VERSION_FORBIDS_DECREASE,
            f"Kubernetes 1.{rules.minor} lowers the memory limit of {part.container} only with resizePolicy RestartContainer",
        )
    old, new = _amount(target.current.limits.memory_bytes), _amount(target.desired.limits.memory_bytes)
    least = max(settings.min_shrink_bytes, int(old * settings.min_shrink))
    if old - new < least:
        return Withheld(
            part,
            RefusalReason.SHRINK_TOO_SMALL,
            f"lowering the memory limit of {part.container} gains {old - new} bytes: less than {least} is not worth it",
        )
    return None


def _amount(amount: int | None) -> int:
    return amount or 0


def _beyond_pod_limit(case: _Case, parts: list[Part]) -> list[Withheld]:
    """The growing parts of each resource of which the containers would request more than the pod's own limit, which stays."""
    level, text = case.level, "the containers would request more than the pod's own limit, which the limit policy leaves as it is"
    if level is None:
        return []
    after = case.whole(case.containers(parts), parts)
    growing = [part for resource in Resource if level.exceeds(after, resource) for part in case.growing(parts, resource)]
    return [Withheld(part, RefusalReason.POD_LEVEL_RESOURCES, text) for part in growing]


def _oversized(case: _Case, parts: list[Part], infeasible: Infeasible | None) -> list[Withheld]:
    """The growing parts of each resource of which the pod would need more than its node has, or more than was infeasible before."""
    node = case.node
    total = pod_requests(case.pod, desired_resources(case.pod, case.whole(case.containers(parts), parts)))
    withheld: list[Withheld] = []
    for resource in Resource:
        growing = case.growing(parts, resource)
        needed, available = total.get(resource) or 0, node.allocatable.get(resource) if node else None
        if available is not None and needed > available:
            verdict = "the API server would refuse it" if case.rules.node_capacity_refused else "the kubelet would call it infeasible"
            text = f"the pod would request {needed} of {resource}, node {node.name if node else ''} has {available} allocatable"
            withheld += [Withheld(part, RefusalReason.NODE_CAPACITY, f"{text}: {verdict}") for part in growing]
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


def _keep_burstable(pod: Pod, resources: dict[str, ContainerResources], parts: list[Part]) -> dict[str, ContainerResources]:
    """Keep a Burstable pod from turning Guaranteed by chance: one changing CPU request stays 1m below its limit."""
    if pod.status.qos_class != QosClass.BURSTABLE or qos_class(pod, desired_resources(pod, resources)) is not QosClass.GUARANTEED:
        return resources
    for part in (part for part in parts if part.container != POD_LEVEL):
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
