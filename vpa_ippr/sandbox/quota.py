"""ResourceQuota: what pods use of it, what it refuses, and what an admitted pod is charged.

The rules are those of ``pkg/quota/v1/evaluator/core/pods.go`` and of the admission controller: a pod counts with the largest of desired,
allocated and actual resources; a resize asks for the difference only; the charge is made when the request is admitted, while
``quota_usage`` is the recount that the quota controller does later.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from decimal import Decimal

from vpa_ippr.api.quantity import Quantity
from vpa_ippr.sandbox.podamounts import (
    ResourceList,
    add,
    containers,
    effective_limits,
    effective_requests,
    has_pod_level,
    init_containers,
    qos_class,
    quantities,
    resource_list,
    subtract,
)
from vpa_ippr.sandbox.status import Json, forbidden

_ONE = Quantity(Decimal(1))
_ZERO = Quantity(Decimal(0))
_NATIVE = ("cpu", "memory", "ephemeral-storage")
_COUNTED = frozenset({"pods", "count/pods", *_NATIVE, *(f"{kind}.{n}" for kind in ("requests", "limits") for n in _NATIVE)})
# "it was a mistake, but if a quota tracks cpu or memory, the incoming pod is required to have those values set" (pods.go).
_MUST_BE_SET = frozenset({"cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory"})


def quota_usage(pods: Iterable[Json], quota: Json) -> dict[str, str]:
    """``status.used`` of the quota: what the pods of its namespace use of each resource that it limits, 0 where nothing does."""
    matching = [pod for pod in pods if _in_scope(pod, quota)]
    used = add(*(_pod_usage(pod) for pod in matching))
    return {name: str(used.get(name, _ZERO)) for name in (quota["spec"].get("hard") or {}) if _is_tracked(name)}


def check_quotas(pod: Json, quotas: Sequence[Json], *, old: Json | None = None) -> None:
    """Refuse a pod (or, with ``old``, its resize) that a quota does not leave room for.

    Raises:
        StatusError: 403 in the words of the quota admission controller.
    """
    matching = [quota for quota in quotas if _in_scope(pod, quota)]
    for quota in matching:
        missing = _missing_amounts(pod, quota)
        if missing:
            raise forbidden("pods", pod["metadata"]["name"], f"failed quota: {quota['metadata']['name']}: must specify {missing}")
    for quota in matching:
        requested = _requested(pod, quota, old)
        used, hard = _used(quota), _hard(quota)
        after = add(used, requested)
        exceeded = sorted(name for name in requested if after[name].value > hard[name].value)
        if exceeded:
            shown = (_shown(entries, exceeded) for entries in (requested, used, hard))
            detail = "exceeded quota: {}, requested: {}, used: {}, limited: {}".format(quota["metadata"]["name"], *shown)
            raise forbidden("pods", pod["metadata"]["name"], detail)


def charge_quotas(pod: Json, quotas: Sequence[Json], *, old: Json | None = None) -> list[Json]:
    """The quotas whose ``status`` changes because the pod (or its resize from ``old``) was admitted, with the new status."""
    charged = []
    for quota in quotas:
        requested = _requested(pod, quota, old) if _in_scope(pod, quota) else {}
        if requested:
            after = copy.deepcopy(quota)
            used = {name: str(quantity) for name, quantity in add(_used(quota), requested).items()}
            hard = {name: str(quantity) for name, quantity in _hard(quota).items()}
            after["status"] = {"hard": hard, "used": used}
            charged.append(after)
    return charged


def _hard(quota: Json) -> ResourceList:
    """Limits of the status; those of the spec until a quota controller has written one."""
    return quantities((quota.get("status") or {}).get("hard") or quota["spec"].get("hard"))


def _used(quota: Json) -> ResourceList:
    used = quantities((quota.get("status") or {}).get("used"))
    return {**{name: _ZERO for name in _hard(quota) if _is_tracked(name)}, **used}


def _requested(pod: Json, quota: Json, old: Json | None) -> ResourceList:
    """What the request adds to the usage, of the resources that the quota limits.

    What a resize gives back is left out: admission charges growth alone (``SubtractWithNonNegativeResult`` in its controller), the quota
    controller takes off the rest when it recounts.
    """
    usage = _pod_usage(pod)
    delta = usage if old is None else subtract(usage, _pod_usage(old))
    hard = _hard(quota)
    return {name: quantity for name, quantity in delta.items() if name in hard and quantity.value > 0}


def _shown(entries: ResourceList, names: Sequence[str]) -> str:
    return ",".join(f"{name}={entries[name]}" for name in names if name in entries)


def _is_tracked(name: str) -> bool:
    """Quota resources that pods count for: the native ones, and extended or huge-page resources as requests."""
    return name in _COUNTED or name.startswith(("hugepages-", "requests.hugepages-")) or (name.startswith("requests.") and "/" in name)


def _pod_usage(pod: Json) -> ResourceList:
    """What one pod counts for; a finished pod counts as an object only."""
    if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return {"count/pods": _ONE}
    return {"count/pods": _ONE, "pods": _ONE, **_compute_usage(effective_requests(pod), effective_limits(pod))}


def _compute_usage(requests: ResourceList, limits: ResourceList) -> ResourceList:
    usage: ResourceList = {}
    for name, quantity in requests.items():
        usage[f"requests.{name}"] = quantity
        if name in _NATIVE or name.startswith("hugepages-"):
            usage[name] = quantity
    for name in _NATIVE:
        if name in limits:
            usage[f"limits.{name}"] = limits[name]
    return usage


def _missing_amounts(pod: Json, quota: Json) -> str:
    """``limits.cpu for: a,b; ...``: quota resources that a container does not state; pod-level resources stand for all of them."""
    if has_pod_level(pod):
        return ""
    missing: dict[str, set[str]] = {}
    for container in [*containers(pod), *init_containers(pod)]:
        stated = _compute_usage(resource_list(container, "requests"), resource_list(container, "limits"))
        for name in (_MUST_BE_SET & _hard(quota).keys()) - stated.keys():
            missing.setdefault(name, set()).add(container["name"])
    return "; ".join(f"{name} for: {','.join(sorted(missing[name]))}" for name in sorted(missing))


def _in_scope(pod: Json, quota: Json) -> bool:
    """All scopes of the quota hold for the pod."""
    spec = quota["spec"]
    selected = ((spec.get("scopeSelector") or {}).get("matchExpressions")) or []
    rules = [{"scopeName": scope, "operator": "Exists"} for scope in spec.get("scopes") or []]
    return all(_scope_holds(pod, rule) for rule in [*rules, *selected])


def _scope_holds(pod: Json, rule: Json) -> bool:
    priority_class = pod["spec"].get("priorityClassName") or ""
    match rule["scopeName"]:
        case "Terminating":
            return pod["spec"].get("activeDeadlineSeconds") is not None
        case "NotTerminating":
            return pod["spec"].get("activeDeadlineSeconds") is None
        case "BestEffort":
            return qos_class(pod) == "BestEffort"
        case "NotBestEffort":
            return qos_class(pod) != "BestEffort"
        case "PriorityClass":
            return _set_rule_holds(priority_class, rule)
        case _:
            return False


def _set_rule_holds(value: str, rule: Json) -> bool:
    """One expression of a scope selector, as a label selector reads it."""
    values = rule.get("values") or []
    match rule.get("operator"):
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return bool(value)
        case "DoesNotExist":
            return not value
        case _:
            return False
