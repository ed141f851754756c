"""What the live pods of a workload tell: their limits and revision, and the memory below which a shrink is known to fail."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from vpa_ippr.api.errors import QuantityError, ValidationError
from vpa_ippr.api.names import ANNOTATION_RESIZE_LEDGER
from vpa_ippr.api.pod import Container, Pod
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
class LiveSigns:
    """What the pods tell.

    ``limits``: memory limits in force, by container and pod, in bytes. ``shrink_floors``: by container, the request below which a decrease
    of memory is known to fail.
    """

    limits: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    shrink_floors: Mapping[str, int] = field(default_factory=dict)
    revision: Revision | None = None
    findings: tuple[Finding, ...] = ()

    def limit(self, container: str) -> float:
        """The lowest limit in force; NaN for none."""
        return min(self.limits.get(container, {}).values(), default=math.nan)


class _HoldOff(msgspec.Struct, frozen=True, rename="camel"):
    container: str
    scope: str
    until: float
    floor_bytes: int | None = None


class _Ledger(msgspec.Struct, frozen=True, rename="camel"):
    """The part of the updater's ledger that tells what was learned of shrinks."""

    hold_offs: list[_HoldOff] = []


def scalable(pod: Pod) -> list[Container]:
    """Regular containers and native sidecars; other init containers end before the pod starts."""
    return [*pod.spec.containers, *(one for one in pod.spec.init_containers if one.restart_policy == "Always")]


def read_live(pods: Sequence[Pod], now: float) -> LiveSigns:
    """What can be read of the pods; what cannot is told in the findings and spoils nothing else."""
    limits: dict[str, dict[str, int]] = {}
    floors: dict[str, int] = {}
    findings: list[Finding] = []
    for pod in pods:
        for container in scalable(pod):
            try:
                limit = (pod.actual(container.name) or pod.desired(container.name)).limits.memory_bytes
            except QuantityError as error:
                findings.append(Finding(error.reason, str(pod.key), 1, f"pod {pod.key}: {error}"))
                continue
            if limit:
                limits.setdefault(container.name, {})[pod.metadata.name] = limit
        try:
            for name, floor in _shrink_floors(pod, now).items():
                floors[name] = max(floor, floors.get(name, 0))
        except (msgspec.DecodeError, QuantityError) as error:
            findings.append(Finding("LedgerUnreadable", str(pod.key), 1, f"pod {pod.key} annotation {ANNOTATION_RESIZE_LEDGER}: {error}"))
    return LiveSigns(limits, floors, _newest_revision(pods), tuple(findings))


def guard_need(steps: ContainerSteps, namespace: str, container: str, signs: LiveSigns, rules: GuardRules, now: float) -> int | None:
    """The memory that is needed at once: some pod is so near its limit, or will be at the rate it grows; None when none is."""
    needed = []
    for pod, limit in signs.limits.get(container, {}).items():
        newest = steps.newest_memory(ContainerRef(namespace, pod, container))
        if newest is None or now - newest.at > _FRESH_SECONDS:
            continue
        expected = newest.used_bytes + rules.growth * newest.grown_bytes
        if expected > rules.share * limit:
            needed.append(expected * rules.factor)
    return math.ceil(max(needed)) if needed else None


def _shrink_floors(pod: Pod, now: float) -> dict[str, int]:
    """By container the request that goes with the lowest limit that a reverted shrink has shown to be within reach."""
    text = pod.metadata.annotations.get(ANNOTATION_RESIZE_LEDGER)
    if text is None:
        return {}
    found: dict[str, int] = {}
    for hold_off in msgspec.json.decode(text, type=_Ledger).hold_offs:
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
