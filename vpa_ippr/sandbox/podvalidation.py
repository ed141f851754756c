"""What is wrong with a pod, as the API server says it at creation, at update and at resize alike.

The checks, their order and their words are those of ``pkg/apis/core/validation``; fields that the sandbox gives no meaning to are not
looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from vpa_ippr.api.quantity import Quantity
from vpa_ippr.sandbox.podamounts import (
    COMPUTE,
    ResourceList,
    container_requests,
    containers,
    has_pod_level,
    init_containers,
    is_sidecar,
    resource_list,
)
from vpa_ippr.sandbox.status import Cause, Json
from vpa_ippr.sandbox.versions import VersionProfile

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_BAD_SUBDOMAIN = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an "
    "alphanumeric character (e.g. 'example.com', regex used for validation is "
    r"'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_BAD_LABEL = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an "
    "alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
_RESTART_POLICIES = ("Always", "OnFailure", "Never")


def required(field: str) -> Cause:
    """The field must be there."""
    return Cause("FieldValueRequired", "Required value", field)


def bad_value(field: str, value: object, detail: str) -> Cause:
    """The field holds something that it must not hold."""
    shown = f'"{value}"' if isinstance(value, str) else str(value)
    return Cause("FieldValueInvalid", f"Invalid value: {shown}: {detail}", field)


def refused(field: str, detail: str) -> Cause:
    """The field must not be set or changed; an empty path prints as ``[]``."""
    return Cause("FieldValueForbidden", f"Forbidden: {detail}", field or "[]")


def unsupported(field: str, value: object, supported: tuple[str, ...]) -> Cause:
    """The field holds none of the values it may hold."""
    names = ", ".join(f'"{name}"' for name in supported)
    return Cause("FieldValueNotSupported", f'Unsupported value: "{value}": supported values: {names}', field)


def metadata_causes(pod: Json) -> list[Cause]:
    """The pod's name."""
    name = pod["metadata"].get("name")
    if not name:
        return [Cause("FieldValueRequired", "Required value: name or generateName is required", "metadata.name")]
    return [] if _SUBDOMAIN.fullmatch(name) and len(name) <= 253 else [bad_value("metadata.name", name, _BAD_SUBDOMAIN)]


def spec_causes(pod: Json) -> list[Cause]:
    """Every rule that the pod's spec breaks by itself, whatever it was before."""
    causes: list[Cause] = []
    if has_pod_level(pod):
        causes += _pod_level_causes(pod)
    if not containers(pod):
        causes.append(required("spec.containers"))
    seen: set[str] = set()
    for field, entries in (("containers", containers(pod)), ("initContainers", init_containers(pod))):
        for index, container in enumerate(entries):
            causes += _container_causes(container, f"spec.{field}[{index}]", seen)
    policy = pod["spec"].get("restartPolicy", "Always")
    if policy not in _RESTART_POLICIES:
        causes.append(unsupported("spec.restartPolicy", policy, _RESTART_POLICIES))
    return causes


def resize_policy_causes(pod: Json, profile: VersionProfile) -> list[Cause]:
    """The rules for ``resizePolicy`` at creation; it is immutable afterwards."""
    causes: list[Cause] = []
    never = pod["spec"].get("restartPolicy") == "Never"
    for field, entries in (("containers", containers(pod)), ("initContainers", init_containers(pod))):
        for index, container in enumerate(entries):
            path = f"spec.{field}[{index}].resizePolicy"
            fixed = profile.init_restart_policy_checked and field == "initContainers" and not is_sidecar(container)
            causes += _policy_list_causes(container, path, pod_never_restarts=never and not is_sidecar(container), fixed=fixed)
    return causes


def _policy_list_causes(container: Json, path: str, *, pod_never_restarts: bool, fixed: bool) -> Iterator[Cause]:
    seen: set[str] = set()
    for index, entry in enumerate(container.get("resizePolicy") or []):
        name, policy = entry.get("resourceName", ""), entry.get("restartPolicy", "")
        if name in seen:
            yield Cause("FieldValueDuplicate", f'Duplicate value: "{name}"', f"{path}[{index}]")
        seen.add(name)
        if name not in COMPUTE:
            yield unsupported(path, name, COMPUTE)
        if policy not in ("NotRequired", "RestartContainer"):
            yield unsupported(path, policy, ("NotRequired", "RestartContainer"))
        elif policy == "RestartContainer" and pod_never_restarts:
            yield bad_value(path, policy, "must be 'NotRequired' when pod `restartPolicy` is 'Never'")
        elif policy == "RestartContainer" and fixed:
            yield bad_value(path, policy, "must not be set to 'RestartContainer' for non-sidecar initContainers")


def _container_causes(container: Json, path: str, seen: set[str]) -> Iterator[Cause]:
    name = container.get("name", "")
    if not name:
        yield required(f"{path}.name")
    elif not _LABEL.fullmatch(name) or len(name) > 63:
        yield bad_value(f"{path}.name", name, _BAD_LABEL)
    elif name in seen:
        yield Cause("FieldValueDuplicate", f'Duplicate value: "{name}"', f"{path}.name")
    seen.add(name)
    if not container.get("image"):
        yield required(f"{path}.image")
    yield from _requirement_causes(container, f"{path}.resources")


def _requirement_causes(holder: Json, path: str) -> Iterator[Cause]:
    limits, requests = resource_list(holder, "limits"), resource_list(holder, "requests")
    for name, quantity in limits.items():
        yield from _amount_causes(name, quantity, f"{path}.limits[{name}]")
    for name, quantity in requests.items():
        yield from _amount_causes(name, quantity, f"{path}.requests[{name}]")
        yield from _request_against_limit(name, quantity, limits, path)


def _amount_causes(name: str, quantity: Quantity, path: str) -> Iterator[Cause]:
    if not _is_native(name) and "/" not in name:
        yield bad_value(path, name, "must be a standard resource type or fully qualified")
        yield bad_value(path, name, "must be a standard resource for containers")
    if quantity.value < 0:
        yield bad_value(path, str(quantity), "must be greater than or equal to 0")
    elif not _is_native(name) and quantity.value != quantity.value.to_integral_value():
        yield bad_value(path, str(quantity), "must be an integer")


def _request_against_limit(name: str, request: Quantity, limits: ResourceList, path: str) -> Iterator[Cause]:
    limit = limits.get(name)
    overcommit = _is_native(name) and not name.startswith("hugepages-")
    if limit is None:
        if not overcommit:
            yield Cause("FieldValueRequired", "Required value: Limit must be set for non overcommitable resources", f"{path}.limits")
    elif request.value != limit.value and not overcommit:
        yield bad_value(f"{path}.requests", str(request), f"must be equal to {name} limit of {limit}")
    elif request.value > limit.value:
        yield bad_value(f"{path}.requests", str(request), f"must be less than or equal to {name} limit of {limit}")


def _is_native(name: str) -> bool:
    return name in (*COMPUTE, "ephemeral-storage") or name.startswith("hugepages-")


def _pod_level_causes(pod: Json) -> Iterator[Cause]:
    """Pod-level resources by themselves, and against the containers' (KEP-2837)."""
    limits, requests = resource_list(pod["spec"], "limits"), resource_list(pod["spec"], "requests")
    for kind, amounts in (("limits", limits), ("requests", requests)):
        for name in amounts:
            if name not in COMPUTE and not name.startswith("hugepages-"):
                yield unsupported(f"spec.resources.{kind}[{name}]", name, ("cpu", "hugepages-", "memory"))
    yield from _requirement_causes(pod["spec"], "spec.resources")
    together = container_requests(pod)
    for name, request in requests.items():
        if name in together and together[name].value > request.value:
            detail = f"must be greater than or equal to aggregate container requests of {together[name]}"
            yield bad_value(f"spec.resources.requests[{name}]", str(request), detail)
    for field, entries in (("containers", containers(pod)), ("initContainers", init_containers(pod))):
        for index, container in enumerate(entries):
            for name, limit in resource_list(container, "limits").items():
                if name in limits and limit.value > limits[name].value:
                    path = f"spec.resources.{field}[{index}][{name}].limits"
                    yield bad_value(path, str(limit), f"must be less than or equal to pod limits of {limits[name]}")
