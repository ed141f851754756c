"""A MemoryShrink as the updater sees it: when to open it, when to patch the limit, when to call it off, what to learn at its end.

open -> (agent: Pending, Observing, Shrinking) -> Holding -> limit patched -> (agent: Committed) -> Done
any other end -> limit back up, hold-off
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection
from dataclasses import dataclass

import msgspec

from vpa_ippr.api.errors import ValidationError
from vpa_ippr.api.meta import ObjectMeta, OwnerReference
from vpa_ippr.api.names import ANNOTATION_PREVIOUS_RESOURCES, LABEL_NODE, LABEL_POD_UID, node_label
from vpa_ippr.api.pod import Pod
from vpa_ippr.api.resources import ContainerResources, Resource, ResourceRequirements
from vpa_ippr.api.shrink import ContainerReference, Intent, MemoryShrink, Phase, PodReference, ShrinkSpec
from vpa_ippr.api.timestamps import parse_time
from vpa_ippr.resize.ledger import Ledger, Scope, to_requirements, with_hold_off
from vpa_ippr.resize.plan import ShrinkNeed
from vpa_ippr.resize.reasons import AbortReason, EventReason
from vpa_ippr.resize.settings import Settings
from vpa_ippr.resize.state import Idle, ResizeState

_NAME_LENGTH = 63
_HASH_LENGTH = 10
_TEACHING_PHASES = frozenset({Phase.REFUSED, Phase.REVERTED, Phase.EXPIRED})


@dataclass(frozen=True, slots=True)
class Keep:
    """The agent is at work, or will be."""


@dataclass(frozen=True, slots=True)
class Abort:
    """Call the shrink off."""

    reason: AbortReason


@dataclass(frozen=True, slots=True)
class Commit:
    """The agent holds the container's use below the target: lower the limit now."""

    container: str
    after: ContainerResources


@dataclass(frozen=True, slots=True)
class Discard:
    """No agent took it up in time: remove it."""


ShrinkStep = Keep | Abort | Commit | Discard


def shrink_name(pod: Pod, container: str, target_bytes: int, taken: Collection[str]) -> str:
    """The same for the same question, so that asking twice after a restart makes one object; ``taken`` are those of earlier attempts."""
    stem = pod.metadata.name[: _NAME_LENGTH - _HASH_LENGTH - 1].rstrip("-.")
    for attempt in itertools.count():
        digest = hashlib.sha256(f"{pod.metadata.uid}/{container}/{target_bytes}/{attempt}".encode()).hexdigest()
        name = f"{stem}-{digest[:_HASH_LENGTH]}"
        if name not in taken:
            break
    return name


def new_shrink(pod: Pod, need: ShrinkNeed, taken: Collection[str], settings: Settings) -> MemoryShrink | None:
    """The object to create; None while the container is not running (it has no memory to bring down)."""
    status = pod.container_status(need.container)
    if status is None or not status.container_id or status.state.running is None:
        return None
    owner = OwnerReference(api_version="v1", kind="Pod", name=pod.metadata.name, uid=pod.metadata.uid)
    return MemoryShrink(
        metadata=ObjectMeta(
            name=shrink_name(pod, need.container, need.target_bytes, taken),
            namespace=pod.metadata.namespace,
            labels={LABEL_POD_UID: pod.metadata.uid, LABEL_NODE: node_label(pod.spec.node_name)},
            annotations={ANNOTATION_PREVIOUS_RESOURCES: msgspec.json.encode(to_requirements(need.previous)).decode()},
            owner_references=[owner],
        ),
        spec=ShrinkSpec(
            pod=PodReference(pod.metadata.name, pod.metadata.uid),
            node_name=pod.spec.node_name,
            container=ContainerReference(need.container, status.container_id),
            target_bytes=need.target_bytes,
            deadline_seconds=settings.shrink_deadline_seconds,
        ),
    )


def previous_resources(shrink: MemoryShrink) -> ContainerResources:
    """What the container had before, kept on the shrink.

    Raises:
        ValidationError: the annotation is missing or unreadable; somebody else made or changed this shrink.
    """
    text = shrink.metadata.annotations.get(ANNOTATION_PREVIOUS_RESOURCES, "")
    try:
        requirements = msgspec.json.decode(text, type=ResourceRequirements)
    except msgspec.DecodeError as error:
        raise ValidationError(
            f"memoryshrink {shrink.key}: annotation {ANNOTATION_PREVIOUS_RESOURCES} is not readable ({error}); delete the shrink to go on"
        ) from error
    return requirements.parse(f"memoryshrink {shrink.key} annotation {ANNOTATION_PREVIOUS_RESOURCES}")


def next_step(
    shrink: MemoryShrink, pod: Pod, state: ResizeState, desired: ContainerResources | None, now: float, settings: Settings
) -> ShrinkStep:
    """What to do about an unfinished shrink; ``desired`` is what the VPA now wants for the container, None when it wants nothing.

    Raises:
        QuantityError, ValidationError: the pod or the shrink cannot be read.
    """
    if shrink.status.phase is Phase.PENDING and is_overdue(shrink, now, settings):
        return Discard()
    if shrink.spec.intent is Intent.ABORT or _replaced(shrink, pod):
        return Keep()
    if desired is None:
        return Abort(AbortReason.NOT_MANAGED)
    container, target = shrink.spec.container.name, shrink.spec.target_bytes
    current, previous = pod.desired(container), previous_resources(shrink)
    if current.limits.memory_bytes == target:
        return Keep()  # patched already; the agent will see it in the cgroup
    if current.limits.memory_bytes != previous.limits.memory_bytes:
        return Abort(AbortReason.LIMIT_CHANGED)
    limit = desired.limits.memory_bytes
    if limit is None or limit > target * (1 + settings.min_change):
        return Abort(AbortReason.NOT_WANTED)
    if shrink.status.phase is not Phase.HOLDING or not isinstance(state, Idle):
        return Keep()
    return Commit(container, _committed(current, desired, target))


def _committed(current: ContainerResources, desired: ContainerResources, target_bytes: int) -> ContainerResources:
    """The limit at the target; the request where it is wanted, at the limit if it was there before (QoS), and never above it."""
    request = desired.requests.memory_bytes
    if current.requests.memory_bytes == current.limits.memory_bytes:
        request = target_bytes
    elif request is None:
        request = current.requests.memory_bytes
    if request is not None:
        request = min(request, target_bytes)
    return _with_memory(current, request, target_bytes)


def _with_memory(resources: ContainerResources, request_bytes: int | None, limit_bytes: int | None) -> ContainerResources:
    return ContainerResources(
        resources.requests.having(Resource.MEMORY, request_bytes), resources.limits.having(Resource.MEMORY, limit_bytes)
    )


def is_overdue(shrink: MemoryShrink, now: float, settings: Settings) -> bool:
    """True when an agent that is alive would have ended it long since."""
    created = shrink.metadata.creation_timestamp
    return created is not None and now > parse_time(created) + shrink.spec.deadline_seconds + settings.agent_grace_seconds


def _replaced(shrink: MemoryShrink, pod: Pod) -> bool:
    """True when the container is another one than was asked about; the agent will say Gone."""
    status = pod.container_status(shrink.spec.container.name)
    return status is not None and bool(status.container_id) and status.container_id != shrink.spec.container.id


def raised_back(shrink: MemoryShrink, pod: Pod) -> dict[str, ContainerResources]:
    """What gives the container its memory back after a shrink that did not end well; empty when nothing was taken from it.

    ``Gone`` counts as bad only when the container died of memory: else it was restarted for another reason and runs with the new limit.
    The request rises only where it equals the limit: a limit alone is granted on a full node too, a request might be deferred.
    """
    name = shrink.spec.container.name
    phase = shrink.status.phase
    if pod.container(name) is None or phase is Phase.DONE or (phase is Phase.GONE and not _killed_for_memory(pod, name)):
        return {}
    current = pod.desired(name)
    if current.limits.memory_bytes != shrink.spec.target_bytes:
        return {}
    limit = previous_resources(shrink).limits.memory_bytes
    request = current.requests.memory_bytes
    return {name: _with_memory(current, limit if request == current.limits.memory_bytes else request, limit)}


def _killed_for_memory(pod: Pod, container: str) -> bool:
    status = pod.container_status(container)
    ended = (status.state.terminated or status.last_state.terminated) if status else None
    return ended is not None and ended.reason == "OOMKilled"


def settled(shrink: MemoryShrink, ledger: Ledger, now: float, settings: Settings, *, undone: bool) -> Ledger:
    """The ledger once the outcome of a finished shrink has been dealt with: with what it taught."""
    status = shrink.status
    if undone or status.phase in _TEACHING_PHASES:
        reason = status.reason or status.phase.value
        container = shrink.spec.container.name
        ledger = with_hold_off(ledger, container, Scope.SHRINK, reason, now, settings, floor_bytes=status.floor_bytes)
    return msgspec.structs.replace(ledger, settled=[*ledger.settled, shrink.metadata.uid])


def event_for(shrink: MemoryShrink) -> EventReason:
    """The event that tells how a shrink ended."""
    match shrink.status.phase:
        case Phase.DONE:
            return EventReason.SHRINK_COMMITTED
        case Phase.REFUSED:
            return EventReason.SHRINK_REFUSED
        case Phase.ABORTED | Phase.GONE:
            return EventReason.SHRINK_ABORTED
        case _:
            return EventReason.SHRINK_REVERTED


def finished_at(shrink: MemoryShrink) -> float | None:
    """When the shrink ended, if it tells."""
    text = shrink.status.completion_time or shrink.status.transition_time or shrink.metadata.creation_timestamp
    return parse_time(text) if text else None
