"""The smallest strategic-merge patch of ``/resize`` that takes a pod's spec from what it holds to what it should hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from vpa_ippr.api.pod import POD_LEVEL, Container, Pod
from vpa_ippr.api.quantity import format_bytes, format_bytes_binary, format_millicores
from vpa_ippr.api.resources import Amounts, ContainerResources, Resource
from vpa_ippr.resize.ports import Patch

Kind = Literal["requests", "limits"]
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Change:
    """One quantity, of a container or at ``POD_LEVEL``: in millicores or bytes; ``old`` is None where there was none."""

    container: str
    kind: Kind
    resource: Resource
    old: int | None
    new: int

    def __str__(self) -> str:
        word = "request" if self.kind == "requests" else "limit"
        whose = "pod" if self.container == POD_LEVEL else self.container
        return f"{whose} {self.resource} {word} {format_amount(self.resource, self.old)} -> {format_amount(self.resource, self.new)}"


def changes_to(pod: Pod, desired: Mapping[str, ContainerResources]) -> tuple[Change, ...]:
    """What differs between the spec and ``desired``; an amount that ``desired`` does not state is left alone, never removed."""
    return changes_between({container: pod.desired(container) for container in desired}, desired)


def changes_between(present: Mapping[str, ContainerResources], desired: Mapping[str, ContainerResources]) -> tuple[Change, ...]:
    """What differs from ``present`` to ``desired``, by container."""
    changes: list[Change] = []
    for container, wanted in desired.items():
        current = present.get(container, ContainerResources())
        sides: tuple[tuple[Kind, Amounts, Amounts], ...] = (
            ("requests", current.requests, wanted.requests),
            ("limits", current.limits, wanted.limits),
        )
        for kind, before, after in sides:
            for resource in Resource:
                old, new = before.get(resource), after.get(resource)
                if new is not None and new != old:
                    changes.append(Change(container, kind, resource, old, new))
    return tuple(changes)


def patch_for(pod: Pod, changes: tuple[Change, ...]) -> Patch:
    """The patch body; empty when there are no changes."""
    by_container: dict[str, dict[Kind, dict[str, str]]] = {}
    for change in changes:
        resources = by_container.setdefault(change.container, {})
        resources.setdefault(change.kind, {})[change.resource.value] = format_amount(change.resource, change.new)
    spec: dict[str, object] = {"resources": by_container[POD_LEVEL]} if POD_LEVEL in by_container else {}
    for field, containers in (("containers", pod.spec.containers), ("initContainers", pod.spec.init_containers)):
        entries = [{"name": c.name, "resources": by_container[c.name]} for c in containers if c.name in by_container]
        if entries:
            spec[field] = entries
    return {"spec": spec} if spec else {}


def restarts(pod: Pod, changes: tuple[Change, ...]) -> bool:
    """True when a change restarts a container: a changed request alone does it too (KEP-1287)."""
    return any(container.restarts_on_resize_of(change.resource) for change in changes for container in _affected(pod, change))


def _affected(pod: Pod, change: Change) -> Iterable[Container]:
    """A pod's own limit is the limit of the containers that have none, and their resizePolicy decides what that does to them."""
    if change.container != POD_LEVEL:
        container = pod.container(change.container)
        return [container] if container is not None else []
    if change.kind == "requests":
        return []
    return [one for one in [*pod.spec.containers, *pod.spec.init_containers] if change.resource.value not in one.resources.limits]


def describe(changes: tuple[Change, ...]) -> str:
    """One line for events and logs."""
    return ", ".join(str(change) for change in changes)


def format_amount(resource: Resource, amount: int | None) -> str:
    """An amount as a quantity: memory in whole Mi or more where it is a multiple, since people read it in ``kubectl get``."""
    if amount is None:
        return "unset"
    if resource is Resource.CPU:
        return format_millicores(amount)
    return format_bytes(amount) if amount % _MIB else format_bytes_binary(amount)
