"""How much memory a container gets that presses against its limit: as much as after an out-of-memory kill, within all bounds.

Upstream raises what it knows of a killed container by a fifth, by 100 MiB at least, or as the container's policy says
(``oomBumpUpRatio``, ``oomMinBumpUp``). The new limit is that much above the old one, and enough for a minute at the pace at which usage
grows.
"""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from vpa_ippr.api.cluster import Node
from vpa_ippr.api.errors import QuantityError
from vpa_ippr.api.meta import ObjectKey
from vpa_ippr.api.node_memory import PressingContainer
from vpa_ippr.api.pod import POD_LEVEL, Pod
from vpa_ippr.api.quantity import MAX_INT64, parse_bytes, parse_quantity
from vpa_ippr.api.resources import Amounts, ContainerResources, Resource
from vpa_ippr.api.vpa import ContainerPolicy, Vpa
from vpa_ippr.recommend.limit_ranges import NO_BOUNDS, UNLIMITED, NamespaceLimits, beside
from vpa_ippr.recommend.limits import proportional_limit
from vpa_ippr.recommend.policy import read_policy
from vpa_ippr.resize.footprint import Footprint, Wish, footprint, footprint_after, largest
from vpa_ippr.resize.ledger import proportions
from vpa_ippr.resize.limit_policy import LimitKind, LimitRule
from vpa_ippr.resize.node_fit import HELD, NodeRoom
from vpa_ippr.resize.quota_fit import NO_QUOTA, QuotaRoom
from vpa_ippr.resize.reasons import RefusalReason, ReliefReason
from vpa_ippr.resize.targets import resizable_containers
from vpa_ippr.resize.view import View
from vpa_ippr.resize.world import World

_MIB = 1 << 20
_BUMP_RATIO = 1.2
_BUMP_LEAST_BYTES = 100 * _MIB
# Where there is less room than this, or than a twentieth of a small limit, a raise would save nobody.
_WORTHWHILE_BYTES = 16 * _MIB
_WORTHWHILE_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Cap:
    """No limit above ``limit_bytes``, and why."""

    limit_bytes: int
    reason: RefusalReason | ReliefReason
    what: str


@dataclass
class Ground:
    """What the pods that are relieved in one round share: the room on nodes, and in quotas.

    ``pods`` by node name; ``quotas`` by namespace, where one that cannot be read is the API server's to judge.
    """

    pods: Mapping[str, Sequence[Pod]] = field(default_factory=dict)
    quotas: Mapping[str, QuotaRoom | QuantityError] = field(default_factory=dict)
    _rooms: dict[str, NodeRoom] = field(default_factory=dict)
    _left: dict[str, QuotaRoom] = field(default_factory=dict)

    @classmethod
    def of(cls, world: World, nodes: Collection[str]) -> Ground:
        """What there is on these nodes, and in all namespaces."""
        pods: dict[str, list[Pod]] = defaultdict(list)
        for pod in world.pods:
            if pod.spec.node_name in nodes:
                pods[pod.spec.node_name].append(pod)
        return cls(pods, world.quotas)

    def quota(self, namespace: str) -> QuotaRoom:
        """What the namespace's quotas leave."""
        known = self._left.get(namespace) or self.quotas.get(namespace, NO_QUOTA)
        return NO_QUOTA if isinstance(known, QuantityError) else known

    def node_room(self, node: Node) -> NodeRoom:
        """The room on the node beside its pods; one that cannot be read counts for nothing."""
        room = self._rooms.get(node.name)
        if room is None:
            taken: dict[ObjectKey, Footprint] = {}
            for pod in self.pods.get(node.name, ()):
                with contextlib.suppress(QuantityError):
                    taken[pod.key] = footprint(pod)
            room = self._rooms[node.name] = NodeRoom.of(node, taken, HELD)
        return room

    def take(self, wish: Wish) -> None:
        """That much has been asked for. Where the node's room was not looked at no request grows."""
        pod = wish.pod
        self._left[pod.metadata.namespace] = self.quota(pod.metadata.namespace).taking(wish)
        room = self._rooms.get(pod.spec.node_name)
        if room is not None:
            held = room.taken.get(pod.key, Amounts())
            self._rooms[pod.spec.node_name] = room.taking(pod.key, largest(held, footprint_after(wish).desired))


def wanted_bytes(entry: PressingContainer, limit_bytes: int, policy: ContainerPolicy, ahead_seconds: float) -> int:
    """The limit that the container should get instead of ``limit_bytes``, in whole MiB, if nothing stood against it.

    Raises:
        QuantityError: oomBumpUpRatio or oomMinBumpUp cannot be read.
    """
    ratio = _BUMP_RATIO if policy.oom_bump_up_ratio is None else float(parse_quantity(policy.oom_bump_up_ratio).value)
    least = _BUMP_LEAST_BYTES if policy.oom_min_bump_up is None else parse_bytes(policy.oom_min_bump_up)
    grown = entry.usage_bytes + max(entry.growth_bytes_per_second, 0) * ahead_seconds
    wanted = max(limit_bytes * max(ratio, 1.0), limit_bytes + least, grown)
    return min(math.ceil(wanted / _MIB) * _MIB, MAX_INT64)


def worthwhile_bytes(limit_bytes: int) -> int:
    """The least by which a limit is raised."""
    return min(_WORTHWHILE_BYTES, math.ceil(limit_bytes * _WORTHWHILE_SHARE))


def caps_of(view: View, vpa: Vpa, container: str, rule: LimitRule) -> Iterator[Cap]:
    """All bounds of a container's memory limit that do not depend on what others take.

    Raises:
        QuantityError: a quantity of the pod or of the VPA cannot be read.
    """
    yield from _allowed(view, vpa, container, rule)
    yield from _in_namespace(view, container)
    own = view.pod.desired(POD_LEVEL).limits.memory_bytes if view.pod.has_pod_level else None
    if own:
        yield Cap(own, RefusalReason.POD_LEVEL_RESOURCES, "the pod's own limit")
    size = view.node.allocatable.memory_bytes if view.node else None
    if size is not None:
        yield Cap(size, RefusalReason.NODE_CAPACITY, f"what node {view.pod.spec.node_name} can allocate")


def _allowed(view: View, vpa: Vpa, container: str, rule: LimitRule) -> Iterator[Cap]:
    """The limit that would go with a request of maxAllowed, and the limit policy's cap."""
    present = view.pod.desired(container)
    limit, request = present.limits.memory_bytes or 0, present.requests.memory_bytes or 0
    highest = read_policy(vpa.policy_for(container), f"vpa {vpa.key} policy of {container}").maximum.memory_bytes
    if highest:
        original = proportions(view.pod, view.ledger, container)
        proportional = proportional_limit(Resource.MEMORY, original, highest, Amounts()) or highest
        yield Cap(rule.limit_for(highest, proportional, limit), ReliefReason.AT_MAXIMUM, "the limit that goes with maxAllowed")
    if rule.kind is LimitKind.CAP:
        yield Cap(max(rule.amount, request), ReliefReason.AT_MAXIMUM, "the cap of the limit policy")


def _in_namespace(view: View, container: str) -> Iterator[Cap]:
    # One that cannot be read is the API server's to judge: it knows it, and has the last word.
    limits: NamespaceLimits = UNLIMITED if isinstance(view.namespace_limits, QuantityError) else view.namespace_limits
    pod = view.pod
    names = [one.name for one in resizable_containers(pod)]
    # An init container that is no sidecar does not run beside the others.
    together = beside(limits.pod, [pod.desired(name) for name in names if name != container]) if container in names else NO_BOUNDS
    for bounds, what in ((limits.container, "a container"), (together, "a pod")):
        if bounds.maximum.memory_bytes:
            yield Cap(bounds.maximum.memory_bytes, RefusalReason.LIMIT_RANGE, f"a LimitRange's maximum of {what}")


def quota_cap(view: View, room: QuotaRoom, limit_bytes: int, *, requests: bool) -> Iterator[Cap]:
    """The bound that the namespace's quotas set; ``requests``: the request goes along."""
    left = room.memory_left(view.pod, requests=requests)
    if left is not None:
        yield Cap(limit_bytes + left, RefusalReason.QUOTA_WOULD_EXCEED, "what a ResourceQuota leaves")


def node_cap(view: View, room: NodeRoom, after: Mapping[str, ContainerResources], limit_bytes: int) -> Iterator[Cap]:
    """The bound that the room on the node sets where requests grow; ``limit_bytes`` is the limit in ``after``."""
    needed = footprint_after(Wish(view.pod, after)).desired
    for shortage in room.shortages(view.pod.key, needed):
        lacking = shortage.requested - shortage.free if shortage.resource is Resource.MEMORY else limit_bytes
        yield Cap(limit_bytes - lacking, RefusalReason.NODE_FULL, f"the room on node {room.node.name}: {shortage}")


def lowest(caps: Iterable[Cap]) -> Cap | None:
    """The bound that counts."""
    return min(caps, key=lambda cap: cap.limit_bytes, default=None)
