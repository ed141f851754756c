"""Whether a namespace's ResourceQuotas leave room for a resize, by the arithmetic of the quota admission controller.

A resize asks for the difference between what the pod counts for after and before it (``footprint``); resources that grow by nothing are not
looked at, so a shrink is admitted even where a quota is exceeded, and what it frees is free only once the status of pod and quota say so.
Not checked here, and left to the API server: that each container states what a quota limits ("must specify"), since a LimitRange may fill
that in on the way, and the scope CrossNamespacePodAffinity.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from vpa_ippr.api.errors import QuantityError
from vpa_ippr.api.pod import Pod
from vpa_ippr.api.quantity import format_bytes_binary, format_millicores
from vpa_ippr.api.quota import ResourceQuota, ScopeRule
from vpa_ippr.api.resources import Amounts, Resource, parse_amounts
from vpa_ippr.resize.footprint import Wish, footprint, footprint_after
from vpa_ippr.resize.qos import QosClass, desired_resources, qos_class

_REQUESTS = {"cpu": Resource.CPU, "requests.cpu": Resource.CPU, "memory": Resource.MEMORY, "requests.memory": Resource.MEMORY}
_LIMITS = {"limits.cpu": Resource.CPU, "limits.memory": Resource.MEMORY}
_TRACKED = {**_REQUESTS, **_LIMITS}

Charges = Mapping[str, int]
"""Millicores or bytes by the name that a quota gives the resource, such as ``requests.cpu``."""


@dataclass(frozen=True, slots=True)
class _Quota:
    name: str
    scopes: tuple[ScopeRule, ...]
    hard: Charges
    used: Charges

    def exceeded(self, requested: Charges) -> str | None:
        """What the API server would say, if it refused."""
        over = [name for name in sorted(requested.keys() & self.hard.keys()) if self.used.get(name, 0) + requested[name] > self.hard[name]]
        if not over:
            return None
        shown = (_shown(over, charges) for charges in (requested, self.used, self.hard))
        return "exceeded quota: {}, requested: {}, used: {}, limited: {}".format(self.name, *shown)

    def charged(self, requested: Charges) -> _Quota:
        return replace(self, used={name: self.used.get(name, 0) + requested.get(name, 0) for name in self.hard})


@dataclass(frozen=True, slots=True)
class QuotaRoom:
    """What the quotas of one namespace leave."""

    quotas: tuple[_Quota, ...] = ()

    @classmethod
    def of(cls, quotas: Iterable[ResourceQuota]) -> QuotaRoom:
        """The room in these quotas, all of one namespace, as their status tells.

        Raises:
            QuantityError: one of them cannot be read.
        """
        return cls(tuple(_read(quota) for quota in sorted(quotas, key=lambda quota: quota.metadata.name)))

    def refusal(self, wish: Wish) -> str | None:
        """Why the API server would refuse, in its words; None when it would not.

        Raises:
            QuantityError: an amount in the pod cannot be read.
        """
        matching = [quota for quota in self.quotas if _in_scope(wish.pod, quota)]
        if not matching:
            return None
        requested = _requested(wish)
        return next((text for quota in matching if (text := quota.exceeded(requested))), None)

    def memory_left(self, pod: Pod, *, requests: bool) -> int | None:
        """By how many bytes the memory limits of a pod may grow, and with ``requests`` its requests as much; None without end."""
        names = {name for name, resource in (_TRACKED if requests else _LIMITS).items() if resource is Resource.MEMORY}
        quotas = [quota for quota in self.quotas if _in_scope(pod, quota)]
        left = [quota.hard[name] - quota.used.get(name, 0) for quota in quotas for name in names & quota.hard.keys()]
        return max(0, min(left)) if left else None

    def taking(self, wish: Wish) -> QuotaRoom:
        """What is left when the resize has been admitted.

        Raises:
            QuantityError: an amount in the pod cannot be read.
        """
        if not self.quotas:
            return self
        requested = _requested(wish)
        return QuotaRoom(tuple(quota.charged(requested) if _in_scope(wish.pod, quota) else quota for quota in self.quotas))


NO_QUOTA = QuotaRoom()


def quota_rooms(quotas: Iterable[ResourceQuota]) -> dict[str, QuotaRoom | QuantityError]:
    """The room in each namespace that has quotas; an error where one of its quotas cannot be read, which stops that namespace alone."""
    by_namespace: dict[str, list[ResourceQuota]] = defaultdict(list)
    for quota in quotas:
        by_namespace[quota.metadata.namespace].append(quota)
    found: dict[str, QuotaRoom | QuantityError] = {}
    for namespace, members in by_namespace.items():
        try:
            found[namespace] = QuotaRoom.of(members)
        except QuantityError as error:
            found[namespace] = error
    return found


def _read(quota: ResourceQuota) -> _Quota:
    where = f"resourcequota {quota.metadata.namespace}/{quota.metadata.name}"
    scopes = [ScopeRule(scope, "Exists") for scope in quota.spec.scopes]
    # What is enforced is the status; until the quota controller has written one, the spec says what will be.
    hard = _charges(quota.status.hard or quota.spec.hard, f"{where} hard")
    return _Quota(
        quota.metadata.name, (*scopes, *quota.spec.scope_selector.match_expressions), hard, _charges(quota.status.used, f"{where} used")
    )


def _charges(quantities: Mapping[str, object], where: str) -> Charges:
    charges: dict[str, int] = {}
    for name, resource in _TRACKED.items():
        if name in quantities:
            charges[name] = parse_amounts({resource.value: quantities[name]}, where).get(resource) or 0
    return charges


def _requested(wish: Wish) -> Charges:
    """What the resize adds to the pod's usage; SubtractWithNonNegativeResult and RemoveZeros of the admission controller."""
    before, after = footprint(wish.pod), footprint_after(wish)
    return {
        **_growth(_REQUESTS, before.counted, after.counted),
        **_growth(_LIMITS, before.counted_limits, after.counted_limits),
    }


def _growth(names: Mapping[str, Resource], before: Amounts, after: Amounts) -> Charges:
    grown = {name: (after.get(resource) or 0) - (before.get(resource) or 0) for name, resource in names.items()}
    return {name: amount for name, amount in grown.items() if amount > 0}


def _shown(names: Iterable[str], charges: Charges) -> str:
    texts = ((name, charges.get(name, 0)) for name in names)
    return ",".join(f"{name}={_text(_TRACKED[name], amount)}" for name, amount in texts)


def _text(resource: Resource, amount: int) -> str:
    return format_millicores(amount) if resource is Resource.CPU else format_bytes_binary(amount)


def _in_scope(pod: Pod, quota: _Quota) -> bool:
    """All scopes of the quota hold for the pod. A resize moves no pod in or out: its QoS class and priority class stay."""
    return all(_scope_holds(pod, rule) for rule in quota.scopes)


def _scope_holds(pod: Pod, rule: ScopeRule) -> bool:
    match rule.scope_name:
        case "Terminating":
            return pod.spec.active_deadline_seconds is not None
        case "NotTerminating":
            return pod.spec.active_deadline_seconds is None
        case "BestEffort":
            return _is_best_effort(pod)
        case "NotBestEffort":
            return not _is_best_effort(pod)
        case "PriorityClass":
            return _value_holds(pod.spec.priority_class_name, rule)
        case _:
            return False


def _is_best_effort(pod: Pod) -> bool:
    return (pod.status.qos_class or qos_class(pod, desired_resources(pod, {}))) == QosClass.BEST_EFFORT


def _value_holds(value: str, rule: ScopeRule) -> bool:
    """An expression as a label selector reads it; a pod without a priority class has no value."""
    match rule.operator:
        case "In":
            return value in rule.values
        case "NotIn":
            return value not in rule.values
        case "Exists":
            return bool(value)
        case "DoesNotExist":
            return not value
        case _:
            return False
