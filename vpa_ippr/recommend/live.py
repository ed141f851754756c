"""What the live pods of a workload tell: their requests, limits and revision, their last resizes, and where a shrink is known to fail."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from vpa_ippr.api.errors import QuantityError, ValidationError
from vpa_ippr.api.names import ANNOTATION_RESIZE_LEDGER
from vpa_ippr.api.pod import Container, Pod
from vpa_ippr.api.resources import Amounts, Resource
from vpa_ippr.api.series import ContainerRef, Finding
from vpa_ippr.api.timestamps import parse_time
from vpa_ippr.forecast.rules import GuardRules
from vpa_ippr.usage.steps import STEP_SECONDS, ContainerSteps

# The labels by which the controllers tell the revisions of a pod template apart.
_REVISION_LABELS: Final = ("pod-template-hash", "controller-revision-hash")
# The scope of a hold-off that forbids a decrease of memory.
_SHRINK_SCOPE: Final = "Shrink"
# Older samples say nothing of the present: two steps.
_FRESH_SECONDS: Final = 2 * STEP_SECONDS


@dataclass(frozen=True, slots=True)
class Revision:
    """The revision of the pod that started last, and the step in which the first of its live pods did."""

    name: str
    begin: int


@dataclass(frozen=True, slots=True)
class Present:
    """A container of one pod: what its spec requests, and when each resource of it was last resized in place, if ever."""

    requests: Amounts
    resized_at: Mapping[Resource, float]


@dataclass(frozen=True, slots=True)
class LiveSigns:
    """What the pods tell.

    ``limits``: memory limits in force, by container and pod, in bytes. ``shrink_floors``: by container, the request below which a decrease
    of memory is known to fail. ``present``: by container and pod.
    """

    limits: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    shrink_floors: Mapping[str, int] = field(default_factory=dict)
    revision: Revision | None = None
    findings: tuple[Finding, ...] = ()
    present: Mapping[str, Mapping[str, Present]] = field(default_factory=dict)

    def limit(self, container: str) -> float:
        """The lowest limit in force; NaN for none."""
        return min(self.limits.get(container, {}).values(), default=math.nan)

    def request(self, container: str, resource: Resource, pods: Collection[str]) -> int | None:
        """The highest request of these pods; None when there is none."""
        found = (one.requests.get(resource) for pod, one in self.present.get(container, {}).items() if pod in pods)
        return max((amount for amount in found if amount is not None), default=None)

    def resized(self, container: str, resource: Resource, after: float) -> frozenset[str]:
        """The pods in which a resource of the container was resized after a moment."""
        return frozenset(
            pod for pod, one in self.present.get(container, {}).items() if one.resized_at.get(resource, -math.inf) > after
        )  # fmt: skip


class _HoldOff(msgspec.Struct, frozen=True, rename="camel"):
    container: str
    scope: str
    until: float
    floor_bytes: int | None = None


class _Basis(msgspec.Struct, frozen=True, rename="camel"):
    cpu_at: float | None = None
    memory_at: float | None = None


class _Ledger(msgspec.Struct, frozen=True, rename="camel"):
    """The part of the updater's ledger that tells what was learned of shrinks, and when each container was resized."""

    hold_offs: list[_HoldOff] = []
    bases: dict[str, _Basis] = {}

    def resized_at(self, container: str) -> dict[Resource, float]:
        basis = self.bases.get(container, _Basis())
        moments = {Resource.CPU: basis.cpu_at, Resource.MEMORY: basis.memory_at}
        return {resource: moment for resource, moment in moments.items() if moment is not None}


def scalable(pod: Pod) -> list[Container]:
    """Regular containers and native sidecars; other init containers end before the pod starts."""
    return [*pod.spec.containers, *(one for one in pod.spec.init_containers if one.restart_policy == "Always")]


def read_live(pods: Sequence[Pod], now: float) -> LiveSigns:
    """What can be read of the pods; what cannot is told in the findings and spoils nothing else."""
    limits: dict[str, dict[str, int]] = {}
    floors: dict[str, int] = {}
    present: dict[str, dict[str, Present]] = defaultdict(dict)
    findings: list[Finding] = []
    for pod in pods:
        ledger = _Ledger()
        try:
            ledger = _read_ledger(pod)
            for name, floor in _shrink_floors(pod, ledger, now).items():
                floors[name] = max(floor, floors.get(name, 0))
        except (msgspec.DecodeError, QuantityError) as error:
            findings.append(Finding("LedgerUnreadable", str(pod.key), 1, f"pod {pod.key} annotation {ANNOTATION_RESIZE_LEDGER}: {error}"))
        for container in scalable(pod):
            try:
                desired = pod.desired(container.name)
                limit = (pod.actual(container.name) or desired).limits.memory_bytes
            except QuantityError as error:
                findings.append(Finding(error.reason, str(pod.key), 1, f"pod {pod.key}: {error}"))
                continue
            present[container.name][pod.metadata.name] = Present(desired.requests, ledger.resized_at(container.name))
            if limit:
                limits.setdefault(container.name, {})[pod.metadata.name] = limit
    return LiveSigns(limits, floors, _newest_revision(pods), tuple(findings), present)


def guard_need(steps: ContainerSteps, namespace: str, container: str, signs: LiveSigns, rules: GuardRules, now: float) -> int | None:
    """The memory that is needed at once: some pod is so near its limit, or will be at the rate it grows; None when none is."""
    needed = []
    for pod, limit in signs.limits.get(container, {}).items():
        newest = steps.newest_memory(ContainerRef(namespace, pod, container))
        if newest is None or now - newest.at > _FRESH_SECONDS:
            continue
        expected = newest.used_bytes - newest.spare_bytes + rules.growth * newest.grown_bytes
        if expected > rules.share * limit:
            needed.append(expected * rules.factor)
    return math.ceil(max(needed)) if needed else None


def _read_ledger(pod: Pod) -> _Ledger:
    text = pod.metadata.annotations.get(ANNOTATION_RESIZE_LEDGER)
    return _Ledger() if text is None else msgspec.json.decode(text, type=_Ledger)


def _shrink_floors(pod: Pod, ledger: _Ledger, now: float) -> dict[str, int]:
    """By container the request that goes with the lowest limit that a reverted shrink has shown to be within reach."""
    found: dict[str, int] = {}
    for hold_off in ledger.hold_offs:
        if hold_off.scope != _SHRINK_SCOPE or hold_off.floor_bytes is None or now >= hold_off.until:
            continue
        resources = pod.desired(hold_off.container)
        limit, request = resources.limits.memory_bytes, resources.requests.memory_bytes
        if limit:
            # The request whose proportional limit is not below the floor.
            floor = -(-hold_off.floor_bytes * (request or limit) // limit)
            found[hold_off.container] = max(floor, found.get(hold_off.container, 0))
    return found


def _newest_revision(pods: Iterable[Pod]) -> Revision | None:
    started = [(moment, name) for pod in pods if (name := _revision(pod)) and (moment := _started(pod)) is not None]
    if not started:
        return None
    name = max(started)[1]
    return Revision(name, math.floor(min(moment for moment, other in started if other == name) / STEP_SECONDS))


def _revision(pod: Pod) -> str | None:
    labels = pod.metadata.labels
    return next((labels[label] for label in _REVISION_LABELS if labels.get(label)), None)


def _started(pod: Pod) -> float | None:
    text = pod.status.start_time or pod.metadata.creation_timestamp
    try:
        return None if text is None else parse_time(text)
    except ValidationError:
        return None  # the API server writes this time; what it cannot be read from is no pod of a revision
