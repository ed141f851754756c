"""A proposal taken apart into what may go or wait by itself: one resource of one container, request and limit together."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Final

import msgspec

from vpa_ippr.api.pod import Pod
from vpa_ippr.api.resources import ContainerResources, Resource
from vpa_ippr.resize.due import Part
from vpa_ippr.resize.patch import changes_to, patch_for, restarts
from vpa_ippr.resize.plan import Plan
from vpa_ippr.resize.proposal import Proposal
from vpa_ippr.resize.qos import desired_resources, qos_class
from vpa_ippr.resize.targets import with_resource

NEAR: Final = 0.10
_ID_LENGTH: Final = 10


class Move(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where one part is to go, in millicores or bytes.

    ``lowers``: its request or its limit comes down, or it gets a limit that it had not.
    """

    container: str
    resource: Resource
    request: int | None = None
    limit: int | None = None
    lowers: bool = False
    restarts: bool = False

    @property
    def part(self) -> Part:
        """What is moved."""
        return Part(self.container, self.resource)


def moves_of(proposal: Proposal) -> tuple[Move, ...]:
    """All moves of a proposal, those that a MemoryShrink prepares included.

    Raises:
        QuantityError: the pod cannot be read.
    """
    pod = proposal.view.pod
    moves: list[Move] = []
    for name, wanted in proposal.wanted.items():
        container, present = pod.container(name), pod.desired(name)
        for resource in Resource:
            was, goal = _amounts(present, resource), _amounts(wanted, resource)
            # What a proposal does not state is left alone, never removed.
            request, limit = (new if new is not None else old for old, new in zip(was, goal, strict=True))
            if (request, limit) != was:
                restarting = container is not None and container.restarts_on_resize_of(resource)
                moves.append(Move(name, resource, request, limit, _lowers(was, (request, limit)), restarting))
    return tuple(moves)


def restricted(proposal: Proposal, moves: Collection[Move]) -> Proposal | None:
    """The proposal with these of its moves alone; None when nothing is left, or the rest would change the pod's QoS class.

    Nor is the proposal of a pod with resources of its own taken apart: those have to fit the sum of its containers' at all times.
    """
    parts = {move.part for move in moves}
    if parts.issuperset(move.part for move in moves_of(proposal)):
        return proposal
    pod, plan = proposal.view.pod, proposal.plan
    if pod.has_pod_level:
        return None
    after = {name: _only(pod, name, resources, parts) for name, resources in plan.after.items()}
    changes = changes_to(pod, after)
    shrinks = tuple(need for need in plan.shrinks if Part(need.container, Resource.MEMORY) in parts)
    if not (changes or shrinks) or qos_class(pod, desired_resources(pod, after)) != qos_class(pod, desired_resources(pod, {})):
        return None
    kept = {change.container: after[change.container] for change in changes}
    smaller: Plan = replace(
        plan, patch=patch_for(pod, changes), changes=changes, after=kept, restarts=restarts(pod, changes), shrinks=shrinks
    )
    return replace(proposal, plan=smaller)


def is_near(one: Move, other: Move) -> bool:
    """True when both bring the same part to the same size, give or take a tenth."""
    return one.part == other.part and _close(one.request, other.request) and _close(one.limit, other.limit)


def is_as_deep(move: Move, failed: Move) -> bool:
    """True when ``move`` brings the part as low as ``failed`` did, give or take a tenth, or lower."""
    pairs = ((move.request, failed.request), (move.limit, failed.limit))
    return move.part == failed.part and any(new is not None and old is not None and new <= old * (1 + NEAR) for new, old in pairs)


def stands(pod: Pod, move: Move) -> bool:
    """True when the pod's spec has the part where ``move`` brings it, give or take a tenth."""
    present = _amounts(pod.desired(move.container), move.resource)
    return _close(present[0], move.request) and _close(present[1], move.limit)


def at_present(pod: Pod, move: Move) -> Move:
    """The move that brings the part to where the pod's spec has it."""
    request, limit = _amounts(pod.desired(move.container), move.resource)
    return msgspec.structs.replace(move, request=request, limit=limit)


def judged_from(first: ContainerResources, move: Move) -> Move:
    """The move as a decrease where it ends below ``first`` too."""
    lowers = move.lowers or _lowers(_amounts(first, move.resource), (move.request, move.limit))
    return msgspec.structs.replace(move, lowers=lowers)


def id_of(moves: Iterable[Move]) -> str:
    """A short name of a change, the same for amounts within the same tenth."""
    lines = sorted(f"{m.container}/{m.resource}/{_tenth(m.request)}/{_tenth(m.limit)}" for m in moves)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:_ID_LENGTH]


def _only(pod: Pod, container: str, wanted: ContainerResources, parts: Collection[Part]) -> ContainerResources:
    kept = pod.desired(container)
    for resource in Resource:
        kept = with_resource(kept, wanted, resource) if Part(container, resource) in parts else kept
    return kept


def _amounts(resources: ContainerResources, resource: Resource) -> tuple[int | None, int | None]:
    return resources.requests.get(resource), resources.limits.get(resource)


def _lowers(was: tuple[int | None, int | None], goal: tuple[int | None, int | None]) -> bool:
    (old_request, old_limit), (request, limit) = was, goal
    fewer = old_request is not None and request is not None and request < old_request
    return fewer or (limit is not None and (old_limit is None or limit < old_limit))


def _close(one: int | None, other: int | None) -> bool:
    if one is None or other is None:
        return one is other
    return abs(one - other) <= NEAR * max(one, other)


def _tenth(amount: int | None) -> int | None:
    return None if amount is None else round(math.log(max(amount, 1)) / math.log1p(NEAR))
