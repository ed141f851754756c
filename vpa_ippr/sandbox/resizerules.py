"""What a resize may not do: ``ValidatePodResize`` of each version, rule by rule, in its order and words (422)."""

from __future__ import annotations

import copy
from collections.abc import Iterator

from vpa_ippr.api.names import ANNOTATION_MIRROR_POD
from vpa_ippr.sandbox.podamounts import (
    COMPUTE,
    ResourceList,
    comparable,
    containers,
    has_pod_level,
    init_containers,
    is_sidecar,
    qos_class,
    resource_list,
    same_spec,
)
from vpa_ippr.sandbox.poddiff import spec_diff
from vpa_ippr.sandbox.podvalidation import bad_value, metadata_causes, refused, resize_policy_causes, spec_causes
from vpa_ippr.sandbox.status import Cause, Json
from vpa_ippr.sandbox.versions import PodLevelResources, VersionProfile

_GATE_OFF = (
    "resize of pods with pod-level resources is forbidden when InPlacePodLevelResourcesVerticalScalingEnabled feature gate is disabled"
)
_NEEDS_RESTART = "unless resizePolicy is RestartContainer"


def resize_causes(old: Json, new: Json, profile: VersionProfile) -> list[Cause]:
    """Every rule that the resize breaks; both pods are decoded and defaulted, and ``new`` differs from ``old`` in resources only."""
    alone = _unresizable_pod(old, new, profile)
    if alone is not None:
        return [alone]
    causes = [*metadata_causes(new), *spec_causes(new)]
    if profile.resize_policy_mutable:
        causes += resize_policy_causes(new, profile)
    causes += _pod_causes(old, new, profile)
    moved = [*_moved(old, new, "containers"), *_moved(old, new, "initContainers")]
    if moved:
        return [*causes, *moved]  # the checks below compare containers by position
    if profile.immutable_fields_shown:
        return [*causes, *_removal_causes(old, new, profile), *_changed_elsewhere(old, new)]
    return [*causes, *_removal_causes(old, new, profile), *_immutable_causes(old, new, profile)]


def _unresizable_pod(old: Json, new: Json, profile: VersionProfile) -> Cause | None:
    """The reasons that are returned alone, all other errors discarded."""
    if profile.pod_level_resources is PodLevelResources.FIXED and (has_pod_level(old) or has_pod_level(new)):
        return refused("", "pods with pod-level resources cannot be resized")
    if ANNOTATION_MIRROR_POD in (old["metadata"].get("annotations") or {}):
        return refused("", "static pods cannot be resized")
    if (old["spec"].get("os") or {}).get("name") == "windows":
        return refused("", "windows pods cannot be resized")
    return None


def _pod_causes(old: Json, new: Json, profile: VersionProfile) -> Iterator[Cause]:
    """Rules about the pod as a whole."""
    if profile.pod_level_resources is PodLevelResources.GATED and (has_pod_level(old) or has_pod_level(new)):
        yield refused("", _GATE_OFF)
    status = old.get("status") or {}
    before = status.get("qosClass") or qos_class(old)
    if qos_class(new) != before:
        yield bad_value("spec", before, "Pod QOS Class may not change as a result of resizing")
    if not _node_reports_resources(status):
        yield refused("spec", "Pod running on node without support for resize")
    if profile.claims_block_resize and status.get("nodeAllocatableResourceClaimStatuses"):
        yield refused("spec", "pods with node allocatable resource claims cannot be resized")


def _node_reports_resources(status: Json) -> bool:
    """The first running container tells whether the kubelet knows resizes; without one the API server assumes that it does."""
    running = (c for c in status.get("containerStatuses") or [] if "running" in (c.get("state") or {}))
    first = next(running, None)
    return first is None or first.get("resources") is not None


def _moved(old: Json, new: Json, field: str) -> Iterator[Cause]:
    before, after = old["spec"].get(field) or [], new["spec"].get(field) or []
    if len(before) != len(after):
        yield refused(f"spec.{field}", f"{field} may not be added or removed on resize")
        return
    for index, (was, now) in enumerate(zip(before, after, strict=True)):
        if was["name"] != now.get("name"):
            yield refused(f"spec.{field}[{index}].name", f"{field} may not be renamed or reordered on resize")


def _removal_causes(old: Json, new: Json, profile: VersionProfile) -> Iterator[Cause]:
    """Requests and limits may be added, never removed; pod level first, then init containers, then containers."""
    yield from _pod_level_causes(old, new, profile)
    for index, (was, now) in enumerate(zip(init_containers(old), init_containers(new), strict=True)):
        if (is_sidecar(was) and profile.sidecars_resizable) or profile.init_containers_resizable:
            yield from _container_causes(was, now, f"spec.initContainers[{index}].resources", profile)
    for index, (was, now) in enumerate(zip(containers(old), containers(new), strict=True)):
        yield from _container_causes(was, now, f"spec.containers[{index}].resources", profile)


def _pod_level_causes(old: Json, new: Json, profile: VersionProfile) -> Iterator[Cause]:
    if profile.pod_level_resources is not PodLevelResources.RESIZABLE:
        return
    if has_pod_level(old) and not has_pod_level(new):
        yield refused("spec.resources", "pod-level resources cannot be removed")
        return
    for kind in ("requests", "limits"):
        before, after = resource_list(old["spec"], kind), resource_list(new["spec"], kind)
        if before.keys() - after.keys():
            yield refused(f"spec.resources.{kind}", f"pod-level resource {kind} cannot be removed")
    if has_pod_level(old) and _changes_other_resources(old["spec"], new["spec"], profile):
        yield refused("spec", "only cpu and memory resources are mutable at pod-level")


def _container_causes(was: Json, now: Json, path: str, profile: VersionProfile) -> Iterator[Cause]:
    for kind in ("requests", "limits"):
        if resource_list(was, kind).keys() - resource_list(now, kind).keys():
            yield refused(f"{path}.{kind}", f"resource {kind} cannot be removed")
    if profile.memory_limit_change_needs_restart and not _restarts_for_memory(now):
        before, after = resource_list(was, "limits").get("memory"), resource_list(now, "limits").get("memory")
        if after is not None and before is None:
            yield refused(f"{path}.limits[memory]", f"memory limits cannot be added {_NEEDS_RESTART}")
        elif after is not None and before is not None and after.value < before.value:
            yield refused(f"{path}.limits[memory]", f"memory limits cannot be decreased {_NEEDS_RESTART}")


def _restarts_for_memory(container: Json) -> bool:
    policies = container.get("resizePolicy") or []
    return any(p.get("resourceName") == "memory" and p.get("restartPolicy") == "RestartContainer" for p in policies)


def _changed_elsewhere(old: Json, new: Json) -> Iterator[Cause]:
    """1.32: anything but CPU, memory and resizePolicy of the regular containers, told with the difference (ValidatePodResize of 1.32).

    Its one recorded text for such changes ("only cpu and memory resources are mutable" and a diff) is used for init containers and
    sidecars too: nothing is recorded of what 1.32 says to those.
    """
    frozen = copy.deepcopy(new)
    for was, now in zip(containers(old), containers(frozen), strict=True):
        now["resources"] = _with_old_compute(was, now)
        now.pop("resizePolicy", None)
        if "resizePolicy" in was:
            now["resizePolicy"] = was["resizePolicy"]
    if not same_spec(old, frozen):
        yield refused("spec", f"only cpu and memory resources are mutable\n{spec_diff(old['spec'], frozen['spec'])}")


def _with_old_compute(was: Json, now: Json) -> Json:
    resources = dict(now.get("resources") or {})
    for kind in ("requests", "limits"):
        before, after = (was.get("resources") or {}).get(kind) or {}, resources.get(kind) or {}
        others = {name: amount for name, amount in after.items() if name not in COMPUTE}
        resources[kind] = {**{name: before[name] for name in COMPUTE if name in before}, **others}
    return {key: value for key, value in resources.items() if value}


def _immutable_causes(old: Json, new: Json, profile: VersionProfile) -> Iterator[Cause]:
    """Everything but cpu and memory stays as it is: other resources, claims, resizePolicy."""
    for was, now in zip(containers(old), containers(new), strict=True):
        if _changes_other_things(was, now, profile):
            yield refused("spec", "only cpu and memory resources are mutable")
    for index, (was, now) in enumerate(zip(init_containers(old), init_containers(new), strict=True)):
        if profile.init_containers_resizable:
            yield from _init_container_causes(was, now, f"spec.initContainers[{index}]", profile)
        elif not is_sidecar(now) and comparable(was) != comparable(now):
            yield refused("spec", "resources for non-sidecar init containers are immutable")
        elif is_sidecar(now) and _changes_other_things(was, now, profile):
            yield refused("spec", "only cpu and memory resources for sidecar containers are mutable")


def _init_container_causes(was: Json, now: Json, path: str, profile: VersionProfile) -> Iterator[Cause]:
    policies = now.get("resizePolicy") or []
    restarts = any(entry.get("restartPolicy") == "RestartContainer" for entry in policies)
    if not is_sidecar(now) and restarts and comparable(was) != comparable(now):
        yield refused(path, "non-sidecar init containers with a resize policy of RestartContainer cannot be resized")
    elif _changes_other_things(was, now, profile):
        yield refused(path, "only cpu and memory resources for init or sidecar containers are mutable")


def _changes_other_things(was: Json, now: Json, profile: VersionProfile) -> bool:
    # The server masks cpu and memory by building the resources anew, without claims: a container with claims never compares equal.
    has_claims = bool((was.get("resources") or {}).get("claims") or (now.get("resources") or {}).get("claims"))
    policy_changed = comparable(was.get("resizePolicy") or []) != comparable(now.get("resizePolicy") or [])
    return has_claims or policy_changed or _changes_other_resources(was, now, profile)


def _changes_other_resources(was: Json, now: Json, profile: VersionProfile) -> bool:
    for kind in ("requests", "limits"):
        before, after = resource_list(was, kind), resource_list(now, kind)
        if not before and profile.resource_added_to_empty_list:
            continue
        if _others(before) != _others(after):
            return True
    return False


def _others(entries: ResourceList) -> dict[str, object]:
    return {name: quantity.value for name, quantity in entries.items() if name not in COMPUTE}
