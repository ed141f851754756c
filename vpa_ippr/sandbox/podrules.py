"""A pod at the main endpoint: what the API server fills in at creation, what it refuses there, and what an update may change.

Objects are plain JSON as stored; every function takes and returns whole pods and leaves its arguments alone.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from vpa_ippr.sandbox.decoding import decode
from vpa_ippr.sandbox.limits import apply_limit_ranges, check_limit_ranges
from vpa_ippr.sandbox.podamounts import (
    COMPUTE,
    ResourceList,
    container_requests,
    containers,
    init_containers,
    pod_requests,
    qos_class,
    resource_list,
    same_spec,
)
from vpa_ippr.sandbox.poddiff import spec_diff
from vpa_ippr.sandbox.podvalidation import bad_value, metadata_causes, refused, resize_policy_causes, spec_causes
from vpa_ippr.sandbox.quota import check_quotas
from vpa_ippr.sandbox.status import Cause, Json, invalid
from vpa_ippr.sandbox.versions import DEFAULT_PROFILE, PodLevelResources, VersionProfile

__all__ = [
    "admit_create",
    "admit_update",
    "decode_pod",
    "default_pod",
    "default_resources",
    "default_spec",
    "default_template",
    "pod_requests",
    "qos_class",
    "set_generation",
    "validate_pod_create",
    "validate_pod_update",
]

_SPEC_DEFAULTS: Json = {
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
    "dnsPolicy": "ClusterFirst",
    "securityContext": {},
    "schedulerName": "default-scheduler",
    "enableServiceLinks": True,
}
_CONTAINER_DEFAULTS: Json = {
    "resources": {},
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
}
_SYSTEM_PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
_EVICTED_AFTER_SECONDS = 300
_UPDATABLE = (
    "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,"
    "`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)
_MAX_SECONDS = 2**31 - 1


def decode_pod(pod: Json) -> Json:
    """The pod as the decoder leaves it: types checked, quantities canonical, no unknown fields, no empty resource lists.

    Raises:
        StatusError: 400 when it cannot be read.
    """
    decoded, _ = decode(pod, "v1", "Pod")
    return {**decoded, **{part: decoded.get(part) or {} for part in ("metadata", "spec", "status")}}


def default_pod(pod: Json, profile: VersionProfile = DEFAULT_PROFILE) -> Json:
    """The pod with the defaults of a new object: spec, generation 1, phase Pending and QoS class; a given status is dropped.

    Raises:
        StatusError: 400 when it cannot be read.
    """
    created = default_spec(decode_pod(pod), profile)
    set_generation(created, profile, 1)
    created["status"] = {"phase": "Pending", "qosClass": qos_class(created)}
    return created


def default_spec(pod: Json, profile: VersionProfile) -> Json:
    """The decoded pod with the defaults of its spec, as they are filled in at every write."""
    defaulted = default_template(pod, profile)
    spec = defaulted["spec"]
    spec.setdefault("preemptionPolicy", "PreemptLowerPriority")
    spec.setdefault("priority", _SYSTEM_PRIORITIES.get(spec.get("priorityClassName", ""), 0))
    spec["tolerations"] = _with_node_tolerations(spec.get("tolerations") or [])
    complete = default_resources(defaulted)
    if profile.resize_policy_defaulted:
        for container in containers(complete):
            _default_resize_policy(container)
    return complete


def default_template(template: Json, profile: VersionProfile) -> Json:
    """A decoded pod template with its defaults: those of a pod without what only a pod itself gets (admission, requests from limits)."""
    defaulted = copy.deepcopy(template)
    spec = defaulted["spec"]
    if profile.pod_level_resources is PodLevelResources.DROPPED:
        spec.pop("resources", None)
    for field, value in _SPEC_DEFAULTS.items():
        spec.setdefault(field, copy.deepcopy(value))
    for container in [*containers(defaulted), *init_containers(defaulted)]:
        _default_container(container)
    return defaulted


def default_resources(pod: Json) -> Json:
    """The pod with each limit that has no request as the request too, in containers and at pod level."""
    defaulted = copy.deepcopy(pod)
    for container in [*containers(defaulted), *init_containers(defaulted)]:
        _default_requests(container, {})
    if defaulted["spec"].get("resources"):
        together = {name: quantity for name, quantity in container_requests(defaulted).items() if name in COMPUTE}
        _default_requests(defaulted["spec"], together)
    return defaulted


def set_generation(pod: Json, profile: VersionProfile, generation: int) -> None:
    """Give the pod its generation, in versions where pods have one."""
    if profile.pod_generation:
        pod["metadata"]["generation"] = generation
    else:
        pod["metadata"].pop("generation", None)


def _default_resize_policy(container: Json) -> None:
    """NotRequired for each resource that the container requests and says nothing about (SetDefaults_Pod up to 1.32)."""
    given = container.get("resizePolicy") or []
    named = {entry.get("resourceName") for entry in given}
    missing = [name for name in COMPUTE if name in resource_list(container, "requests") and name not in named]
    if missing:
        container["resizePolicy"] = [*given, *({"resourceName": name, "restartPolicy": "NotRequired"} for name in missing)]


def _default_requests(holder: Json, together: ResourceList) -> None:
    """``together``: what the containers request; where they do, a missing pod-level request is that sum and not the limit."""
    limits, requests = resource_list(holder, "limits"), resource_list(holder, "requests")
    missing = {name: quantity for name, quantity in {**limits, **together}.items() if name not in requests}
    if missing:
        given = holder["resources"].get("requests") or {}
        holder["resources"]["requests"] = {**given, **{name: str(quantity) for name, quantity in missing.items()}}


def _default_container(container: Json) -> None:
    for field, value in _CONTAINER_DEFAULTS.items():
        container.setdefault(field, copy.deepcopy(value))
    if container.get("image"):
        container.setdefault("imagePullPolicy", _pull_policy(container["image"]))
    for port in container.get("ports") or []:
        port.setdefault("protocol", "TCP")


def _pull_policy(image: str) -> str:
    """``Always`` for the tag latest and for no tag, ``IfNotPresent`` otherwise."""
    last = image.rpartition("/")[2]
    pinned = "@" in last or (":" in last and not last.endswith(":latest"))
    return "IfNotPresent" if pinned else "Always"


def _with_node_tolerations(tolerations: list[Json]) -> list[Json]:
    """Plugin DefaultTolerationSeconds: a pod stays five minutes on a node that is not ready or not reachable."""
    added = [
        {"effect": "NoExecute", "key": key, "operator": "Exists", "tolerationSeconds": _EVICTED_AFTER_SECONDS}
        for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
        if not any(_tolerates_eviction_by(toleration, key) for toleration in tolerations)
    ]
    return [*tolerations, *added]


def _tolerates_eviction_by(toleration: Json, key: str) -> bool:
    return toleration.get("key") in (None, "", key) and toleration.get("effect") in (None, "", "NoExecute")


def validate_pod_create(pod: Json, profile: VersionProfile = DEFAULT_PROFILE) -> None:
    """Refuse a defaulted pod that breaks a rule.

    Raises:
        StatusError: 422 with all rules it breaks.
    """
    _refuse(pod, [*metadata_causes(pod), *spec_causes(pod), *resize_policy_causes(pod, profile)])


def _refuse(pod: Json, causes: Sequence[Cause]) -> None:
    if causes:
        raise invalid("Pod", pod["metadata"].get("name", ""), causes)


def admit_create(
    pod: Json, limit_ranges: Sequence[Json] = (), quotas: Sequence[Json] = (), profile: VersionProfile = DEFAULT_PROFILE
) -> Json:
    """The pod to store for a create request: defaults, LimitRange defaults, validation, LimitRange and quota checks.

    What the pod takes of the quotas is for ``quota.charge_quotas``.

    Raises:
        StatusError: 400, 422 or 403.
    """
    created = apply_limit_ranges(default_pod(pod, profile), limit_ranges)
    created["status"]["qosClass"] = qos_class(created)
    validate_pod_create(created, profile)
    check_limit_ranges(created, limit_ranges)
    check_quotas(created, quotas)
    return created


def admit_update(old: Json, new: Json, profile: VersionProfile = DEFAULT_PROFILE) -> Json:
    """The pod to store for an update or patch at the main endpoint: status kept, generation raised if the spec changed.

    Raises:
        StatusError: 400 or 422.
    """
    decoded = decode_pod(new)
    for field in ("priority", "preemptionPolicy"):  # the Priority plugin copies them from the stored pod
        if field in old["spec"]:
            decoded["spec"].setdefault(field, old["spec"][field])
    updated = default_spec(decoded, profile)
    updated["status"] = copy.deepcopy(old.get("status") or {})
    generation = old["metadata"].get("generation", 1)
    set_generation(updated, profile, generation if same_spec(old, updated) else generation + 1)
    validate_pod_update(old, updated)
    return updated


def validate_pod_update(old: Json, new: Json) -> None:
    """Refuse an update at the main endpoint that changes more than images, deadline and added tolerations.

    Raises:
        StatusError: 422 with the server's message, which ends in a diff of the two specs.
    """
    causes = [*metadata_causes(new), *spec_causes(new)]
    moved = [
        refused(f"spec.{field}", "pod updates may not add or remove containers")
        for field, entries in (("containers", containers), ("initContainers", init_containers))
        if len(entries(old)) != len(entries(new))
    ]
    _refuse(new, [*causes, *moved] if moved else [*causes, *_update_causes(old, new)])


def _update_causes(old: Json, new: Json) -> list[Cause]:
    causes = _deadline_causes(old["spec"].get("activeDeadlineSeconds"), new["spec"].get("activeDeadlineSeconds"))
    kept = _tolerations_without_seconds(new)
    if any(toleration not in kept for toleration in _tolerations_without_seconds(old)):
        causes.append(refused("spec.tolerations", "existing toleration can not be modified except its tolerationSeconds"))
    frozen = _with_old_updatable_fields(old, new)
    if not same_spec(old, frozen):
        diff = spec_diff(old["spec"], frozen["spec"])
        causes.append(refused("spec", f"pod updates may not change fields other than {_UPDATABLE}\n{diff}"))
    return causes


def _tolerations_without_seconds(pod: Json) -> list[Json]:
    return [{key: value for key, value in t.items() if key != "tolerationSeconds"} for t in pod["spec"].get("tolerations") or []]


def _deadline_causes(old: int | None, new: int | None) -> list[Cause]:
    path = "spec.activeDeadlineSeconds"
    if new is None:
        detail = "must not update from a positive integer to nil value"
        return [] if old is None else [Cause("FieldValueInvalid", f"Invalid value: null: {detail}", path)]
    if not 0 <= new <= _MAX_SECONDS:
        return [bad_value(path, new, f"must be between 0 and {_MAX_SECONDS}, inclusive")]
    if old is not None and new > old:
        return [bad_value(path, new, "must be less than or equal to previous value")]
    return []


def _with_old_updatable_fields(old: Json, new: Json) -> Json:
    """The new pod with every field that may change put back, so that any difference left is forbidden."""
    frozen = copy.deepcopy(new)
    for entries in (containers, init_containers):
        for before, after in zip(entries(old), entries(frozen), strict=True):
            after["image"] = before.get("image", "")
    spec: dict[str, Any] = frozen["spec"]
    fields = ["activeDeadlineSeconds", "tolerations", "schedulingGates"]
    if old["spec"].get("terminationGracePeriodSeconds", 0) < 0 and spec.get("terminationGracePeriodSeconds") == 1:
        fields.append("terminationGracePeriodSeconds")
    for field in fields:
        if field in old["spec"]:
            spec[field] = old["spec"][field]
        else:
            spec.pop(field, None)
    return frozen
