"""What the updater must not forget about a pod, kept in one annotation of that pod: a restart of the updater loses nothing.

The annotation is written before a resize is issued. ``last`` therefore says what was asked and what stood there before, whether or not
the request reached the API server: comparing it with the pod's spec tells which.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from vpa_ippr.api.errors import QuantityError, ValidationError
from vpa_ippr.api.names import ANNOTATION_RESIZE_LEDGER
from vpa_ippr.api.pod import Pod
from vpa_ippr.api.quantity import MAX_INT64
from vpa_ippr.api.resources import Amounts, ContainerResources, Resource, ResourceRequirements
from vpa_ippr.resize.settings import Settings
from vpa_ippr.resize.state import InfeasibleCause, is_ready

WHOLE_POD = "*"
_HARM_HEADROOM = 1.1
_HARM_MEMORY_SECONDS = 24 * 3600.0
_UNSAFE_SECONDS = 7 * 24 * 3600.0
RELIEF_SECONDS = 3600.0
"""So long a relief is remembered."""

logger = logging.getLogger(__name__)


class Scope(StrEnum):
    """Which changes a hold-off forbids: growth of either resource, a decrease of memory, all that is new, or what takes something back."""

    GROW = "Grow"
    SHRINK = "Shrink"
    ANY = "Any"
    BACK = "Back"


class HoldOff(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """No such change before ``until`` (seconds since the epoch); ``floor_bytes`` is the lowest memory limit known to be within reach.

    ``harmed_at`` is when a shrink last hurt the workload.
    """

    container: str
    scope: Scope
    until: float
    attempts: int
    reason: str
    floor_bytes: int | None = None
    harmed_at: float | None = None


class Infeasible(msgspec.Struct, frozen=True, rename="camel"):
    """A spec that the kubelet called infeasible, and the node it was on; CPU and memory are the pod's requests in that spec."""

    node: str
    cause: InfeasibleCause
    cpu_millicores: int
    memory_bytes: int


class Record(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One resize of ours: the touched containers before and after.

    ``shrink`` names the MemoryShrink that it completes, ``stopped`` the pod's containers that were not running when it was issued, and
    ``nudge`` marks the follow-up of a resize that may have been lost (``stale_cgroup``). ``generation`` is the pod's when it was issued.

    ``restarts`` is how often each container had been restarted, ``ready`` whether the pod was Ready. ``rollout`` is the key of the VPA's
    rollout that the pod takes part in, ``rolled_at`` when it was last resized for it, and ``origin`` what its containers had before.
    """

    issued_at: float
    before: dict[str, ResourceRequirements]
    after: dict[str, ResourceRequirements]
    reverting: bool = False
    shrink: str = ""
    stopped: list[str] = []
    nudge: bool = False
    generation: int = 0
    restarts: dict[str, int] = {}
    ready: bool = False
    rollout: str = ""
    rolled_at: float = 0.0
    origin: dict[str, ResourceRequirements] = {}


class Basis(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A container before our first resize, and as we last asked for it; when each resource of it was last asked to change, if ever."""

    original: ResourceRequirements
    expected: ResourceRequirements
    cpu_at: float | None = None
    memory_at: float | None = None


class Ledger(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """All durable memory of one pod.

    ``settled`` holds the UIDs of finished MemoryShrinks whose outcome has been dealt with, ``reliefs`` the times within the last hour at
    which a container that pressed against its memory limit was given more.
    """

    last: Record | None = None
    bases: dict[str, Basis] = {}
    hold_offs: list[HoldOff] = []
    infeasible: Infeasible | None = None
    settled: list[str] = []
    reliefs: dict[str, list[float]] = {}


@dataclass(frozen=True, slots=True)
class History:
    """What deciding and planning may know of the past: the ledger, and the targets in bytes of the shrinks under way, by container."""

    ledger: Ledger = field(default_factory=Ledger)
    shrinking: Mapping[str, int] = field(default_factory=dict)


def read_ledger(pod: Pod) -> Ledger:
    """The pod's ledger; an unreadable one is reported in the log and begun anew."""
    text = pod.metadata.annotations.get(ANNOTATION_RESIZE_LEDGER)
    if text is None:
        return Ledger()
    try:
        ledger = msgspec.json.decode(text, type=Ledger)
        _require_readable(ledger)
        return ledger
    except (msgspec.DecodeError, QuantityError, ValidationError) as error:
        logger.warning("unreadable resize ledger begun anew", extra={"pod": str(pod.key), "error": str(error)})
        return Ledger()


def _require_readable(ledger: Ledger) -> None:
    """Raise for what we would never write: the annotation is open to everybody who may change the pod."""
    for basis in ledger.bases.values():
        parse_stored({"original": basis.original, "expected": basis.expected})
    record = ledger.last
    if record is not None:
        parse_stored(record.before)
        parse_stored(record.origin)
        if not parse_stored(record.after) or record.before.keys() != record.after.keys():
            raise ValidationError("the last resize does not say what it changed")


def to_annotations(ledger: Ledger) -> dict[str, str]:
    """The annotation that holds ``ledger``."""
    return {ANNOTATION_RESIZE_LEDGER: msgspec.json.encode(ledger).decode()}


def to_requirements(resources: ContainerResources) -> ResourceRequirements:
    """CPU and memory as canonical quantities."""
    return ResourceRequirements(requests={**resources.requests.to_quantities()}, limits={**resources.limits.to_quantities()})


def parse_stored(stored: Mapping[str, ResourceRequirements]) -> dict[str, ContainerResources]:
    """Amounts by container; raises QuantityError when somebody put other text into the annotation."""
    return {name: requirements.parse(f"annotation {ANNOTATION_RESIZE_LEDGER} {name}") for name, requirements in stored.items()}


def spec_is(pod: Pod, stored: Mapping[str, ResourceRequirements]) -> bool:
    """True when the pod's spec holds exactly these amounts for these containers."""
    return all(pod.desired(name) == resources for name, resources in parse_stored(stored).items())


def proportions(pod: Pod, ledger: Ledger, container: str) -> ContainerResources:
    """The resources whose request-to-limit ratio is to be kept: those before our first resize.

    Taking the ratio from the present spec would lose a little of it by rounding down at each resize. When the spec is no longer what we
    asked for, somebody else has set it and it counts instead.
    """
    current = pod.desired(container)
    basis = ledger.bases.get(container)
    if basis is None:
        return current
    known = parse_stored({"original": basis.original, "expected": basis.expected})
    before = ledger.last.before.get(container) if ledger.last else None
    ours = [*known.values(), *parse_stored({container: before} if before else {}).values()]
    original = known["original"]
    return original if current in ours and _shape(original) == _shape(current) else current


def with_resize(
    ledger: Ledger,
    pod: Pod,
    after: Mapping[str, ContainerResources],
    now: float,
    *,
    reverting: bool = False,
    shrink: str = "",
    nudge: bool = False,
    rollout: str | None = None,
) -> Ledger:
    """The ledger once a resize to ``after`` (whole resources of each touched container) is about to be issued.

    ``rollout`` is the key of the rollout that it belongs to; None when it is beside any, which leaves the pod in the one that it takes part
    in; empty when it takes the pod out.
    """
    bases = dict(ledger.bases)
    for container, resources in after.items():
        original, expected, before = proportions(pod, ledger, container), to_requirements(resources), bases.get(container)
        bases[container] = Basis(
            to_requirements(original),
            expected,
            cpu_at=now if _moves(pod, container, resources, Resource.CPU) else before.cpu_at if before else None,
            memory_at=now if _moves(pod, container, resources, Resource.MEMORY) else before.memory_at if before else None,
        )
    record = Record(
        issued_at=now,
        before={name: to_requirements(pod.desired(name)) for name in after},
        after={name: to_requirements(resources) for name, resources in after.items()},
        reverting=reverting,
        shrink=shrink,
        stopped=[status.name for status in pod.status.container_statuses if status.state.running is None],
        nudge=nudge,
        generation=pod.metadata.generation,
        restarts={status.name: status.restart_count for status in [*pod.status.container_statuses, *pod.status.init_container_statuses]},
        ready=is_ready(pod),
    )
    return msgspec.structs.replace(ledger, last=_in_rollout(record, ledger.last, rollout), bases=bases)


def _in_rollout(record: Record, previous: Record | None, rollout: str | None) -> Record:
    """The record as part of a rollout: a pod may be resized several times in one, and what it had at first is not to be forgotten."""
    goes_on = previous is not None and bool(previous.rollout) and rollout in (None, previous.rollout)
    if previous is None or not goes_on:
        return msgspec.structs.replace(record, rollout=rollout, rolled_at=record.issued_at, origin=record.before) if rollout else record
    origin = {**record.before, **previous.origin}
    if rollout is None:  # what has grown beside the rollout is not taken back with it
        after = parse_stored(record.after)
        origin |= {name: to_requirements(_larger(known, after[name])) for name, known in parse_stored(origin).items() if name in after}
    return msgspec.structs.replace(
        record,
        ready=record.ready or previous.ready,
        rollout=previous.rollout,
        rolled_at=record.issued_at if rollout else previous.rolled_at,
        origin=origin,
    )


def _larger(one: ContainerResources, other: ContainerResources) -> ContainerResources:
    sides = ((one.requests, other.requests), (one.limits, other.limits))
    return ContainerResources(
        *(Amounts(*(max((a for a in (x.get(r), y.get(r)) if a is not None), default=None) for r in Resource)) for x, y in sides)
    )


def _moves(pod: Pod, container: str, after: ContainerResources, resource: Resource) -> bool:
    sides = ((pod.desired(container).requests, after.requests), (pod.desired(container).limits, after.limits))
    return any(before.get(resource) != wanted.get(resource) for before, wanted in sides)


def with_hold_off(
    ledger: Ledger,
    container: str,
    scope: Scope,
    reason: str,
    now: float,
    settings: Settings,
    floor_bytes: int | None = None,
    *,
    harmed: bool = False,
) -> Ledger:
    """The ledger after a failure: each further one for the same container and scope doubles the time.

    One that ``harmed`` the workload counts double, and nothing within a tenth above its floor is tried next. The second such within a day
    marks the container as one not to be shrunk at all for a week; another pod of the workload is not concerned.
    """
    others = [h for h in ledger.hold_offs if (h.container, h.scope) != (container, scope)]
    earlier = next((h for h in ledger.hold_offs if (h.container, h.scope) == (container, scope)), None)
    attempts = earlier.attempts + 1 if earlier else 1
    # What is to be taken back is urgent.
    is_back = scope is Scope.BACK
    first, longest = (
        (settings.back_hold_off_seconds, settings.hold_off_seconds)
        if is_back
        else (settings.hold_off_seconds, settings.hold_off_max_seconds)
    )
    seconds = min(first * 2.0 ** min(attempts - 1 + harmed, 32), longest)
    harmed_before = earlier.harmed_at if earlier else None
    if harmed and floor_bytes is not None:
        floor_bytes = math.ceil(floor_bytes * _HARM_HEADROOM)
    if harmed and harmed_before is not None and now - harmed_before < _HARM_MEMORY_SECONDS:
        seconds, floor_bytes = max(seconds, _UNSAFE_SECONDS), None
    if harmed_before is not None and earlier is not None and earlier.floor_bytes is None and now < earlier.until:
        floor_bytes = None
    until = max(now + seconds, earlier.until if earlier else now)
    hold_off = HoldOff(container, scope, until, attempts, reason, floor_bytes, now if harmed else harmed_before)
    return msgspec.structs.replace(ledger, hold_offs=[*others, hold_off])


def hold_off_for(ledger: Ledger, container: str, resource: Resource, now: float, *, grows: bool) -> HoldOff | None:
    """The hold-off in force that forbids such a change of that container."""
    scopes = {Scope.ANY}
    if grows:
        scopes.add(Scope.GROW)
    elif resource is Resource.MEMORY:
        scopes.add(Scope.SHRINK)
    for hold_off in ledger.hold_offs:
        if hold_off.container in (container, WHOLE_POD) and hold_off.scope in scopes and now < hold_off.until:
            return hold_off
    return None


def with_relief(ledger: Ledger, container: str, floor_bytes: int, reason: str, now: float, settings: Settings) -> Ledger:
    """The ledger once a container is about to be given more memory: nothing below ``floor_bytes`` is tried for the time of a back-off.

    Asked again of the same moment (the first attempt met another writer) it learns nothing more.
    """
    times = ledger.reliefs.get(container, [])
    if now in times:
        return ledger
    for known in ledger.hold_offs:
        if (known.container, known.scope) == (container, Scope.SHRINK) and now < known.until:
            floor_bytes = max(floor_bytes, known.floor_bytes or MAX_INT64)  # no floor: no decrease at all
    held = with_hold_off(ledger, container, Scope.SHRINK, reason, now, settings, floor_bytes if floor_bytes < MAX_INT64 else None)
    return msgspec.structs.replace(held, reliefs={**ledger.reliefs, container: [*times, now]})


def back_held_off(ledger: Ledger, now: float) -> HoldOff | None:
    """The hold-off in force that forbids taking something back: the API server has refused that."""
    return next((hold_off for hold_off in ledger.hold_offs if hold_off.scope is Scope.BACK and now < hold_off.until), None)


def contested(pod: Pod, ledger: Ledger) -> tuple[str, ...]:
    """The containers of our last resize that somebody else has resized since.

    They do not hold what we asked for; nor what stood there before, unless the pod's generation tells that our request had arrived and was
    taken back. Amounts that we did not ask about do not count: a LimitRange may fill those in with our own resize.
    """
    record = ledger.last
    if record is None:
        return ()
    before, after = parse_stored(record.before), parse_stored(record.after)
    taken_back = record.generation > 0 and pod.metadata.generation >= record.generation + 2
    ours = (after,) if taken_back else (after, before)
    return tuple(name for name in after if pod.container(name) and not any(_stands(pod.desired(name), known[name]) for known in ours))


def _stands(spec: ContainerResources, asked: ContainerResources) -> bool:
    sides = ((spec.requests, asked.requests), (spec.limits, asked.limits))
    return all(wanted.get(r) is None or wanted.get(r) == found.get(r) for found, wanted in sides for r in Resource)


def tidied(ledger: Ledger, now: float, settings: Settings, node_shape: str | None, shrink_uids: Collection[str]) -> Ledger:
    """Without what no longer matters: hold-offs long over, what another node could not do, settled shrinks that are deleted."""
    known = ledger.infeasible
    return msgspec.structs.replace(
        ledger,
        hold_offs=[h for h in ledger.hold_offs if now < h.until + settings.hold_off_max_seconds],
        infeasible=None if known and node_shape is not None and known.node != node_shape else known,
        settled=[uid for uid in ledger.settled if uid in shrink_uids],
        reliefs={name: recent for name, times in ledger.reliefs.items() if (recent := [t for t in times if abs(now - t) < RELIEF_SECONDS])},
    )


def _shape(resources: ContainerResources) -> tuple[frozenset[str], frozenset[str]]:
    return frozenset(resources.requests.to_quantities()), frozenset(resources.limits.to_quantities())
