"""A MemoryShrink as the updater sees it: when to open it, when to patch the limit, when to call it off, what to learn at its end.

open -> (agent: Pending, Observing, Shrinking) -> Holding -> limit patched -> (agent: Committed) -> Done
any other end -> limit back up, hold-off
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import msgspec

from vpa_ippr.api.errors import QuantityError
from vpa_ippr.api.meta import ObjectMeta, OwnerReference
from vpa_ippr.api.names import ANNOTATION_PREVIOUS_RESOURCES, LABEL_NODE, LABEL_POD_UID, node_label
from vpa_ippr.api.pod import Pod
from vpa_ippr.api.resources import ContainerResources, Resource, ResourceRequirements
from vpa_ippr.api.shrink import ContainerReference, Intent, MemoryShrink, Phase, PodReference, ShrinkSpec
from vpa_ippr.api.timestamps import parse_time
from vpa_ippr.resize.ledger import Ledger, Scope, parse_stored, to_requirements, with_hold_off
from vpa_ippr.resize.plan import ShrinkNeed
from vpa_ippr.resize.reasons import AbortReason, EventReason
from vpa_ippr.resize.settings import Settings
from vpa_ippr.resize.shrink_terms import ORDINARY, ShrinkTerms
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


def new_shrink(
    pod: Pod, need: ShrinkNeed, taken: Collection[str], settings: Settings, terms: ShrinkTerms = ORDINARY
) -> MemoryShrink | None:
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
            deadline_seconds=terms.deadline_seconds or settings.shrink_deadline_seconds,
            policy=terms.policy,
        ),
    )


def previous_resources(shrink: MemoryShrink) -> ContainerResources | None:
    """What the container had before, kept on the shrink; None when that cannot be read: somebody else made or changed this shrink."""
    text = shrink.metadata.annotations.get(ANNOTATION_PREVIOUS_RESOURCES, "")
    try:
        return msgspec.json.decode(text, type=ResourceRequirements).parse(f"memoryshrink {shrink.key}")
    except (msgspec.DecodeError, QuantityError):
        return None


def next_step(
    shrink: MemoryShrink,
    pod: Pod,
    state: ResizeState,
    desired: ContainerResources | None,
    now: float,
    settings: Settings,
    *,
    halted: AbortReason | None = None,
) -> ShrinkStep:
    """What to do about an unfinished shrink; ``desired`` is what the VPA now wants for the container, None when it wants nothing.

    ``halted``: why no shrink is to be carried on now, if so; one whose limit is patched already is past that.

    Raises:
        QuantityError, ValidationError: the pod or a time of the shrink cannot be read.
    """
    if is_overdue(shrink, now, settings):
        return Discard()
    previous = previous_resources(shrink)
    if previous is None or shrink.spec.intent is Intent.ABORT or _replaced(shrink, pod):
        return Keep()  # one that is not ours is the agent's alone: never committed, and over at its deadline
    if desired is None:
        return Abort(AbortReason.NOT_MANAGED)
    container, target = shrink.spec.container.name, shrink.spec.target_bytes
    current = pod.desired(container)
    if current.limits.memory_bytes == target:
        return Keep()  # patched already; the agent will see it in the cgroup
    reason = halted or _overtaken(current, previous, desired, target * (1 + settings.min_change))
    if reason is not None:
        return Abort(reason)
    if not isinstance(state, Idle) or not _is_held(shrink, pod, now, settings):
        return Keep()
    return Commit(container, _committed(current, desired, target))


def _overtaken(
    current: ContainerResources, previous: ContainerResources, desired: ContainerResources, highest_bytes: float
) -> AbortReason | None:
    if current.limits.memory_bytes != previous.limits.memory_bytes:
        return AbortReason.LIMIT_CHANGED
    limit = desired.limits.memory_bytes
    return AbortReason.NOT_WANTED if limit is None or limit > highest_bytes else None


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


def _is_held(shrink: MemoryShrink, pod: Pod, now: float, settings: Settings) -> bool:
    """True when a live agent says of this very, running container that it is held.

    The phase alone proves nothing: it stays in the API when the agent has died or lost the API, and the guard may be gone by then.
    """
    status, held = pod.container_status(shrink.spec.container.name), shrink.status.held_time
    if shrink.status.phase is not Phase.HOLDING or held is None or now - parse_time(held) > settings.held_seconds:
        return False
    return status is not None and status.container_id == shrink.spec.container.id and status.state.running is not None


def is_overdue(shrink: MemoryShrink, now: float, settings: Settings) -> bool:
    """True when an agent that is alive would have ended it long since."""
    created = shrink.metadata.creation_timestamp
    if created is None or shrink.status.phase.is_terminal:
        return False
    grace = settings.agent_grace_seconds
    if shrink.status.phase is Phase.COMMITTED:
        grace += settings.probation_grace_seconds
    return now > parse_time(created) + shrink.spec.deadline_seconds + grace


def ended_lately(shrinks: Iterable[MemoryShrink], need: ShrinkNeed, now: float, settings: Settings) -> bool:
    """True when an attempt to come as low as that has failed within the hold-off, for whatever reason.

    What was learned is in the ledger, but not every end teaches (a container in a crash loop is Gone each time), and the ledger is an
    annotation that somebody may take away: this keeps such pods from getting a new MemoryShrink each cycle.
    """
    for shrink in shrinks:
        status = shrink.status
        if not status.phase.is_terminal or status.phase is Phase.DONE or shrink.spec.container.name != need.container:
            continue
        ended = finished_at(shrink)
        if ended is not None and now < ended + settings.hold_off_seconds and shrink.spec.target_bytes >= need.target_bytes:
            return True
    return False


def _replaced(shrink: MemoryShrink, pod: Pod) -> bool:
    """True when the container is another one than was asked about; the agent will say Gone."""
    status = pod.container_status(shrink.spec.container.name)
    return status is not None and bool(status.container_id) and status.container_id != shrink.spec.container.id


def raised_back(shrink: MemoryShrink, pod: Pod, ledger: Ledger) -> dict[str, ContainerResources]:
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
    previous = previous_resources(shrink) or _recorded(shrink, ledger)
    limit, request = previous.limits.memory_bytes, current.requests.memory_bytes
    if limit is None or limit <= shrink.spec.target_bytes:
        return {}  # what was there before is not known, or is no more than now: nothing is ever lowered here
    return {name: _with_memory(current, limit if request == current.limits.memory_bytes else request, limit)}


def _recorded(shrink: MemoryShrink, ledger: Ledger) -> ContainerResources:
    """What the ledger says that the container had before the limit was patched for this shrink; nothing when it was not."""
    record = ledger.last
    if record is None or record.shrink != shrink.metadata.name:
        return ContainerResources()
    return parse_stored(record.before).get(shrink.spec.container.name, ContainerResources())


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
        # A floor is what the agent has learned of the workload; what went wrong with agent, node or API has none.
        harmed = undone or (status.phase is Phase.REVERTED and status.floor_bytes is not None)
        ledger = with_hold_off(ledger, container, Scope.SHRINK, reason, now, settings, status.floor_bytes, harmed=harmed)
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
