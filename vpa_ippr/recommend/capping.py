"""Keeping a recommendation within what a VPA's policy, a namespace's LimitRange and a container's own limit allow.

The recommender applies the policy alone. For one pod, ``cap_for_pod`` applies everything, in upstream's order: pod LimitRange, container
LimitRange, policy, and with RequestsOnly the container's limit. Notes are made for the target only, in upstream's words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from vpa_ippr.api.pod import Pod
from vpa_ippr.api.resources import Amounts, ContainerResources
from vpa_ippr.api.series import Resource
from vpa_ippr.api.vpa import Vpa
from vpa_ippr.recommend.limit_ranges import LimitBounds, NamespaceLimits, fit_pod_range
from vpa_ippr.recommend.limits import boundary_request
from vpa_ippr.recommend.policy import PolicyRules, read_policy
from vpa_ippr.recommend.result import Estimate

Notes = tuple[str, ...]
_Cap = Callable[[Resource, int], tuple[int, Notes]]


@dataclass(frozen=True, slots=True)
class Capped:
    """An estimate after capping, and what capped its target."""

    estimate: Estimate
    notes: Notes = ()


def controlled_only(estimate: Estimate, rules: PolicyRules) -> Estimate:
    """Without the resources that the policy does not control."""
    unwanted = [resource for resource in Resource if resource not in rules.controlled]

    def keep(amounts: Amounts) -> Amounts:
        for resource in unwanted:
            amounts = amounts.having(resource, None)
        return amounts

    return estimate.each(keep)


def cap_to_policy(estimate: Estimate, rules: PolicyRules, max_allowed: Amounts = Amounts()) -> Capped:
    """Raised to the policy's minimum, then lowered to its maximum: the maximum wins over a minimum above it.

    ``max_allowed`` is the operator's maximum for all containers; it counts for a resource on which the policy has none.
    """

    def cap(resource: Resource, amount: int) -> tuple[int, Notes]:
        notes: Notes = ()
        lowest, highest = rules.minimum.get(resource), rules.maximum.get(resource)
        if highest is None:
            highest = max_allowed.get(resource)
        if lowest is not None and amount < lowest:
            amount, notes = lowest, (f"{resource} capped to minAllowed",)
        if highest is not None and amount > highest:
            amount, notes = highest, (f"{resource} capped to maxAllowed",)
        return amount, notes

    return _capped(estimate, cap)


def cap_to_limit(estimate: Estimate, limits: Amounts) -> Capped:
    """Requests no higher than the container's limits, which RequestsOnly leaves as they are."""

    def cap(resource: Resource, amount: int) -> tuple[int, Notes]:
        limit = limits.get(resource)
        if limit is not None and amount > limit:
            return limit, (f"{resource} capped to container limit",)
        return amount, ()

    return _capped(estimate, cap)


def cap_to_container_range(estimate: Estimate, original: ContainerResources, bounds: LimitBounds) -> Capped:
    """Requests that, with the limits in proportion to them, a container LimitRange admits."""

    def cap(resource: Resource, amount: int) -> tuple[int, Notes]:
        highest = boundary_request(resource, original, bounds.maximum.get(resource), bounds.default)
        lowest = boundary_request(resource, original, bounds.minimum.get(resource), bounds.default)
        at_least = max(lowest or 0, bounds.minimum.get(resource) or 0)
        notes: Notes = ()
        if amount < at_least:
            amount, notes = at_least, (f"{resource} capped to fit Min in container LimitRange",)
        if highest and amount > highest:
            amount, notes = highest, (f"{resource} capped to fit Max in container LimitRange",)
        return amount, notes

    return _capped(estimate, cap)


def cap_for_pod(estimates: Mapping[str, Estimate], pod: Pod, vpa: Vpa, namespace: NamespaceLimits) -> dict[str, Capped]:
    """The estimates of a pod's containers after everything that bounds them there.

    Raises:
        QuantityError: a quantity of the pod or of the policy cannot be read.
    """
    originals = {container.name: pod.desired(container.name) for container in pod.spec.containers}
    fitted = fit_pod_range(estimates, originals, namespace.pod)
    return {name: _cap_for_container(name, fitted[name], pod, vpa, namespace.container) for name in estimates}


def _cap_for_container(name: str, estimate: Estimate, pod: Pod, vpa: Vpa, bounds: LimitBounds) -> Capped:
    rules = read_policy(vpa.policy_for(name), f"vpa {vpa.key} policy of {name}")
    in_range = cap_to_container_range(estimate, pod.desired(name), bounds)
    allowed = cap_to_policy(in_range.estimate, rules)
    # Upstream lists what the policy did before what the LimitRange did.
    notes = allowed.notes + in_range.notes
    if not rules.requests_only:
        return Capped(allowed.estimate, notes)
    in_force = pod.actual(name)
    limited = cap_to_limit(allowed.estimate, (in_force or pod.desired(name)).limits)
    return Capped(limited.estimate, notes + limited.notes)


def _capped(estimate: Estimate, cap: _Cap) -> Capped:
    def change(amounts: Amounts) -> Amounts:
        for resource in Resource:
            amount = amounts.get(resource)
            if amount is not None:
                amounts = amounts.having(resource, cap(resource, amount)[0])
        return amounts

    notes = tuple(
        note
        for resource in Resource
        for amount in (estimate.target.get(resource),)
        if amount is not None
        for note in cap(resource, amount)[1]
    )
    return Capped(estimate.each_capped(change), notes)
