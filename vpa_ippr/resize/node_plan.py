"""All resizes that are wanted on one node, looked at together: which may go now, and in which order.

What does not increase a request goes first and needs no room. Then come the growths in the order of the kubelet's own queue, those that
already wait in it (Deferred, or not looked at yet) among them; each takes what room there is, and one that does not fit does not stop those
behind it. What a shrink frees counts from the cycle on in which the kubelet reports it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vpa_ippr.api.cluster import Node
from vpa_ippr.api.errors import QuantityError
from vpa_ippr.api.meta import ObjectKey, find_condition
from vpa_ippr.api.names import POD_RESIZE_PENDING
from vpa_ippr.api.pod import Pod
from vpa_ippr.api.resources import Resource
from vpa_ippr.resize.footprint import Footprint, Wish, footprint, footprint_after, is_infeasible, largest
from vpa_ippr.resize.node_fit import HELD, NodeRoom, Shortage
from vpa_ippr.resize.qos import QosClass
from vpa_ippr.resize.reasons import RefusalReason
from vpa_ippr.resize.settings import Settings

_CRITICAL_PRIORITY = 2_000_000_000
"""``scheduling.SystemCriticalPriority``: from here on the kubelet evicts other pods to make room for a growth."""
_NOT_YET_PENDING = "~"
"""Sorts after every time."""


@dataclass(frozen=True, slots=True)
class Go:
    """The resize may be issued now."""

    wish: Wish


@dataclass(frozen=True, slots=True)
class Hold:
    """The resize waits for another cycle."""

    wish: Wish
    reason: RefusalReason
    message: str


@dataclass(frozen=True, slots=True)
class NodePlan:
    """One verdict for each wish, in the order in which to issue them; ``unreadable`` names pods of the node that count for nothing."""

    verdicts: tuple[Go | Hold, ...]
    unreadable: tuple[str, ...] = ()


def plan_node(node: Node | None, pods: Sequence[Pod], wishes: Sequence[Wish], settings: Settings) -> NodePlan:
    """What may go now of ``wishes``, at most one for each pod, of which all are on ``node`` as ``pods`` are.

    Nothing is checked on a node that is unknown. A pod that cannot be read holds nobody back but itself.
    """
    known = node or Node("")
    footprints, unreadable = _read({**{pod.key: pod for pod in pods}, **{wish.pod.key: wish.pod for wish in wishes}})
    own = {wish.pod.key: wish for wish in wishes}
    entries = [_Entry(wish.pod, footprint_after(wish), wish) for wish in wishes if wish.pod.key in footprints]
    entries += [
        _Entry(pod, footprints[pod.key], None) for pod in pods if pod.key in footprints.keys() - own.keys() and _stands_in_line(pod)
    ]
    queue = _Queue(NodeRoom.of(known, footprints, HELD), settings)
    verdicts: list[Go | Hold] = [
        Hold(wish, RefusalReason.UNREADABLE, unreadable[key]) for key, wish in sorted(own.items()) if key in unreadable
    ]
    verdicts += [verdict for entry in sorted(entries, key=_rank) if (verdict := queue.next(entry)) is not None]
    return NodePlan(tuple(verdicts), tuple(text for key, text in sorted(unreadable.items()) if key not in own))


def _read(pods: dict[ObjectKey, Pod]) -> tuple[dict[ObjectKey, Footprint], dict[ObjectKey, str]]:
    footprints: dict[ObjectKey, Footprint] = {}
    unreadable: dict[ObjectKey, str] = {}
    for key, pod in pods.items():
        try:
            footprints[key] = footprint(pod)
        except QuantityError as error:
            unreadable[key] = str(error)
    return footprints, unreadable


@dataclass(frozen=True, slots=True)
class _Entry:
    """A pod with what it is to take; ``wish`` is None for a spec that is there already."""

    pod: Pod
    footprint: Footprint
    wish: Wish | None


def _stands_in_line(pod: Pod) -> bool:
    """The kubelet may still carry out the pod's spec; it resizes no pod that is being deleted."""
    return pod.metadata.deletion_timestamp is None and not is_infeasible(pod)


def _rank(entry: _Entry) -> tuple[bool, int, bool, str, bool, ObjectKey]:
    """The kubelet's queue: not increasing, priority, Guaranteed, pending for longest; then what waits there before what we would add."""
    pod = entry.pod
    pending = find_condition(pod.status.conditions, POD_RESIZE_PENDING)
    # RFC 3339 in UTC, as Kubernetes writes it, sorts as text.
    since = (pending.last_transition_time if pending else None) or _NOT_YET_PENDING
    guaranteed = pod.status.qos_class == QosClass.GUARANTEED
    return entry.footprint.grows, -pod.spec.priority, not guaranteed, since, entry.wish is not None, pod.key


class _Queue:
    """The node's room while its queue is gone through: ``_room`` as it is now, ``_promised`` once all that goes has been carried out."""

    def __init__(self, room: NodeRoom, settings: Settings) -> None:
        self._room = room
        self._promised = room
        self._settings = settings

    def next(self, entry: _Entry) -> Go | Hold | None:
        """The verdict on the next in line; None when it is not ours to issue."""
        key, desired = entry.pod.key, entry.footprint.desired
        shortages = self._room.shortages(key, desired) if entry.footprint.grows else ()
        if not shortages:
            self._room = self._room.taking(key, largest(entry.footprint.held, desired))
            self._promised = self._promised.taking(key, desired)
            return Go(entry.wish) if entry.wish else None
        return self._short_of_room(entry.wish, entry.footprint, shortages) if entry.wish else None

    def _short_of_room(self, wish: Wish, wanted: Footprint, shortages: tuple[Shortage, ...]) -> Go | Hold:
        node, detail = self._room.node, "; ".join(map(str, shortages))
        if any((wanted.desired.get(r) or 0) > size for r in Resource if (size := node.allocatable.get(r)) is not None):
            return Hold(wish, RefusalReason.NODE_CAPACITY, f"node {node.name} is too small for the pod even alone: {detail}")
        if self._settings.queue_when_full and wish.pod.spec.priority < _CRITICAL_PRIORITY:
            return Go(wish)
        message = f"node {node.name} has not enough room: {detail}"
        if not self._promised.shortages(wish.pod.key, wanted.desired):
            message += "; it will have once the shrinks under way are carried out"
        return Hold(wish, RefusalReason.NODE_FULL, message)
