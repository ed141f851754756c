"""The ``/resize`` subresource of a pod: from the patched object to the pod that is stored, or to the refusal.

The order is the API server's: decode and defaults, LimitRange defaults, silent reset of all that is not resources, generation, validation
(422), admission (403). Which rules hold in which version is in ``versions``; the words are in ``resizerules``.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

from vpa_ippr.sandbox.limits import apply_limit_ranges, check_limit_ranges
from vpa_ippr.sandbox.podamounts import (
    comparable,
    containers,
    init_containers,
    is_sidecar,
    pod_requests,
    quantities,
    same_spec,
    totals,
)
from vpa_ippr.sandbox.podrules import admit_create, decode_pod, default_spec, set_generation
from vpa_ippr.sandbox.quota import check_quotas, quota_usage
from vpa_ippr.sandbox.resizerules import resize_causes
from vpa_ippr.sandbox.status import Cause, Json, StatusError, forbidden, invalid
from vpa_ippr.sandbox.versions import PodLevelResources, VersionProfile

__all__ = ["ResizeRequest", "admit_create", "admit_resize", "quota_usage"]

_FEATURE_POD_LEVEL = "InPlacePodLevelResourcesVerticalScaling"
_FEATURE_INIT_CONTAINERS = "InPlacePodVerticalScalingInitContainers"
_LABEL_OS = "kubernetes.io/os"


@dataclass(frozen=True)
class ResizeRequest:
    """One request to ``/resize`` and what decides on it.

    ``new`` is the patch applied to ``old``, not decoded yet; ``node`` the pod's node if it is bound and the node exists; ``limit_ranges``
    and ``quotas`` are those of the pod's namespace.
    """

    old: Json
    new: Json
    profile: VersionProfile
    node: Json | None = None
    limit_ranges: list[Json] = field(default_factory=list)
    quotas: list[Json] = field(default_factory=list)


def admit_resize(request: ResizeRequest) -> Json:
    """The pod to store: the old one with the new resources, its generation raised if they mean something else than before.

    What a larger pod takes of the quotas is for ``quota.charge_quotas``.

    Raises:
        StatusError: 400 if the object cannot be read, 422 if a rule is broken, 403 if admission refuses.
    """
    old, profile = request.old, request.profile
    proposed = apply_limit_ranges(default_spec(decode_pod(request.new), profile), request.limit_ranges)
    resized = _reset_all_but_resources(old, proposed, profile)
    changed = not same_spec(old, resized)
    if changed:
        set_generation(resized, profile, old["metadata"].get("generation", 1) + 1)
    causes = resize_causes(old, resized, profile)
    if causes:
        raise invalid("Pod", old["metadata"]["name"], causes)
    if old["metadata"].get("deletionTimestamp") is None:  # LimitRanger leaves a pod alone that is being deleted
        check_limit_ranges(resized, request.limit_ranges)
    if changed and resized["spec"].get("nodeName"):
        _check_node(request, resized)
    check_quotas(resized, request.quotas, old=old)
    return _marked_proposed(old, resized) if profile.status_resize else resized


def _reset_all_but_resources(old: Json, proposed: Json, profile: VersionProfile) -> Json:
    """``dropNonResizeUpdates``: the old pod with the proposed resources and resize policies.

    Containers that were added, removed, renamed or moved are left as proposed: validation refuses them.
    """
    for entries in (containers, init_containers):
        if [c.get("name") for c in entries(old)] != [c.get("name") for c in entries(proposed)]:
            return {**proposed, "status": copy.deepcopy(old.get("status") or {})}
    resized = copy.deepcopy(old)
    for entries in (containers, init_containers):
        for kept, wanted in zip(entries(resized), entries(proposed), strict=True):
            _take(kept, wanted, "resources")
            _take(kept, wanted, "resizePolicy")
    if profile.pod_level_resources is PodLevelResources.RESIZABLE:
        _take(resized["spec"], proposed["spec"], "resources")
    return resized


def _marked_proposed(old: Json, resized: Json) -> Json:
    """``MarkPodProposedForResize``: the API server says that a container is to be resized; all further words are the kubelet's."""
    pairs = zip(containers(old), containers(resized), strict=True)
    if all(comparable(was.get("resources")) == comparable(now.get("resources")) for was, now in pairs):
        return resized
    return {**resized, "status": {**(resized.get("status") or {}), "resize": "Proposed"}}


def _take(kept: Json, wanted: Json, name: str) -> None:
    if name in wanted:
        kept[name] = copy.deepcopy(wanted[name])
    else:
        kept.pop(name, None)


def _check_node(request: ResizeRequest, resized: Json) -> None:
    """PodResizeValidator and NodeDeclaredFeatureValidator, for pods that are bound and whose spec changes."""
    profile, name = request.profile, resized["metadata"]["name"]
    if not (profile.node_checked_at_request or profile.declared_features_checked):
        return
    node_name = resized["spec"]["nodeName"]
    if request.node is None:
        raise forbidden("pods", name, f'node "{node_name}" not found')
    if profile.declared_features_checked:
        _check_declared_features(request.old, resized, request.node)
    if profile.node_checked_at_request:
        _check_platform(resized, request.node)
        _check_capacity(resized, request.node)


def _check_declared_features(old: Json, resized: Json, node: Json) -> None:
    needed = []
    if comparable(old["spec"].get("resources")) != comparable(resized["spec"].get("resources")):
        needed.append(_FEATURE_POD_LEVEL)
    pairs = zip(init_containers(old), init_containers(resized), strict=True)
    if any(not is_sidecar(new) and comparable(before) != comparable(new) for before, new in pairs):
        needed.append(_FEATURE_INIT_CONTAINERS)
    declared = (node.get("status") or {}).get("declaredFeatures") or []
    missing = [feature for feature in needed if feature not in declared]
    if missing:
        where = node["metadata"]["name"]
        detail = f'pod update requires features {", ".join(missing)} which are not available on node "{where}"'
        raise forbidden("pods", resized["metadata"]["name"], detail)


def _check_platform(resized: Json, node: Json) -> None:
    system = (node["metadata"].get("labels") or {}).get(_LABEL_OS, "linux")
    if system != "linux":
        detail = f'pod resize is only supported on linux nodes, node "{node["metadata"]["name"]}" is "{system}"'
        raise _refused_by_node(resized, detail, "UnsupportedPlatform")


def _check_capacity(resized: Json, node: Json) -> None:
    """The pod alone against the node's allocatable, not against what is free."""
    wanted = totals(pod_requests(resized))
    allocatable = totals(quantities((node.get("status") or {}).get("allocatable")))
    shortages = [
        f"{resource}, requested: {requested}, allocatable: {available}"
        for resource, requested, available in zip(("cpu", "memory"), wanted, allocatable, strict=True)
        if requested > available
    ]
    if shortages:
        detail = f"node didn't have enough allocatable resources: {'; '.join(shortages)}"
        raise _refused_by_node(resized, detail, "NodeCapacity")


def _refused_by_node(pod: Json, detail: str, cause: str) -> StatusError:
    return forbidden("pods", pod["metadata"]["name"], detail, causes=[Cause(cause, "")])
