"""LimitRange: the defaults it gives to a pod's containers, and what it refuses (plugin LimitRanger).

It works at creation and at resize. At a resize the defaults come before everything else, so a LimitRange that was made after the pod may
add a request or a limit to a container that the caller never touched.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence

from vpa_ippr.api.quantity import Quantity
from vpa_ippr.sandbox.podamounts import (
    ResourceList,
    container_limits,
    container_requests,
    containers,
    init_containers,
    quantities,
    resource_list,
)
from vpa_ippr.sandbox.status import Json, forbidden

ANNOTATION_LIMIT_RANGER = "kubernetes.io/limit-ranger"


def default_limit_range(limit_range: Json) -> Json:
    """The LimitRange with the defaults that the API server fills into its Container items: max -> default -> defaultRequest <- min."""
    filled = copy.deepcopy(limit_range)
    for item in _items(filled):
        if item.get("type") == "Container":
            default = {**(item.get("max") or {}), **(item.get("default") or {})}
            request = {**(item.get("min") or {}), **default, **(item.get("defaultRequest") or {})}
            item.update({key: value for key, value in (("default", default), ("defaultRequest", request)) if value})
    return filled


def _items(limit_range: Json) -> list[Json]:
    return (limit_range.get("spec") or {}).get("limits") or []


def apply_limit_ranges(pod: Json, limit_ranges: Sequence[Json]) -> Json:
    """A copy of the pod in which missing requests and limits have the LimitRanges' defaults, with the annotation that says so."""
    mutated = copy.deepcopy(pod)
    for limit_range in limit_ranges:
        changes = list(_apply_defaults(mutated, default_limit_range(limit_range)))
        if changes:
            annotations = mutated["metadata"].get("annotations") or {}
            mutated["metadata"]["annotations"] = {
                **annotations,
                ANNOTATION_LIMIT_RANGER: f"LimitRanger plugin set: {'; '.join(changes)}",
            }
    return mutated


def _apply_defaults(pod: Json, limit_range: Json) -> Iterator[str]:
    """Fill the pod in place; yields what was set, in the words of the annotation."""
    for item in _items(limit_range):
        if item.get("type") != "Container":
            continue
        for kind_of_container, entries in (("container", containers(pod)), ("init container", init_containers(pod))):
            for container in entries:
                for kind, field in (("request", "defaultRequest"), ("limit", "default")):
                    defaults = {name: str(quantity) for name, quantity in quantities(item.get(field)).items()}
                    missing = _fill(container, f"{kind}s", defaults)
                    if missing:
                        yield f"{', '.join(missing)} {kind} for {kind_of_container} {container.get('name', '')}"


def _fill(container: Json, field: str, defaults: dict[str, str]) -> list[str]:
    resources = container.get("resources") or {}
    present = resources.get(field) or {}
    missing = sorted(set(defaults) - set(present))
    if missing:
        container["resources"] = {**resources, field: {**present, **{name: defaults[name] for name in missing}}}
    return missing


def check_limit_ranges(pod: Json, limit_ranges: Sequence[Json]) -> None:
    """Refuse a pod that is outside a LimitRange.

    Raises:
        StatusError: 403 with all violations of the first LimitRange that has any.
    """
    for limit_range in limit_ranges:
        violations = list(dict.fromkeys(_violations(pod, limit_range)))
        if violations:
            listed = violations[0] if len(violations) == 1 else f"[{', '.join(violations)}]"
            raise forbidden("pods", pod["metadata"]["name"], listed)


def _violations(pod: Json, limit_range: Json) -> Iterator[str]:
    for item in _items(limit_range):
        if item.get("type") == "Container":
            for container in [*containers(pod), *init_containers(pod)]:
                requests, limits = resource_list(container, "requests"), resource_list(container, "limits")
                yield from _bounds(item, "Container", requests, limits)
        elif item.get("type") == "Pod":
            requests = {**container_requests(pod), **resource_list(pod["spec"], "requests")}
            limits = {**container_limits(pod), **resource_list(pod["spec"], "limits")}
            yield from _bounds(item, "Pod", requests, limits)


def _bounds(item: Json, scope: str, requests: ResourceList, limits: ResourceList) -> Iterator[str]:
    for field, broken_rule in (("min", _below), ("max", _above), ("maxLimitRequestRatio", _ratio)):
        for name, bound in sorted(quantities(item.get(field)).items()):
            text = broken_rule(name, scope, bound, requests.get(name), limits.get(name))
            if text:
                yield text


def _below(name: str, scope: str, bound: Quantity, request: Quantity | None, limit: Quantity | None) -> str | None:
    rule = f"minimum {name} usage per {scope} is {bound}"
    if request is None:
        return f"{rule}.  No request is specified"
    if request.value < bound.value:
        return f"{rule}, but request is {request}"
    if limit is not None and limit.value < bound.value:
        return f"{rule}, but limit is {limit}"
    return None


def _above(name: str, scope: str, bound: Quantity, request: Quantity | None, limit: Quantity | None) -> str | None:
    rule = f"maximum {name} usage per {scope} is {bound}"
    if limit is None:
        return f"{rule}.  No limit is specified"
    if limit.value > bound.value:
        return f"{rule}, but limit is {limit}"
    if request is not None and request.value > bound.value:
        return f"{rule}, but request is {request}"
    return None


def _ratio(name: str, scope: str, bound: Quantity, request: Quantity | None, limit: Quantity | None) -> str | None:
    rule = f"{name} max limit to request ratio per {scope} is {bound}"
    if request is None or request.value == 0:
        return f"{rule}, but no request is specified or request is 0"
    if limit is None or limit.value == 0:
        return f"{rule}, but no limit is specified or limit is 0"
    provided = limit.value / request.value
    return f"{rule}, but provided ratio is {provided:.6f}" if provided > bound.value else None
