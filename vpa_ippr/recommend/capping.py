"""Keeping a recommendation within what a VPA's policy, a namespace's LimitRange and a container's own limit allow.

The recommender applies the policy alone. For one pod, ``cap_for_pod`` applies everything, in upstream's order: pod LimitRange, container
LimitRange, policy, and the limits that stay as they are. Notes are made for the target only, in upstream's words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from vpa_ippr.api.resources import Amounts, ContainerResources
from vpa_ippr.api.series import Resource
from vpa_ippr.recommend.limit_ranges import LimitBounds, NamespaceLimits, fit_pod_range
from vpa_ippr.recommend.limits import boundary_request
from vpa_ippr.recommend.policy import PolicyRules
from vpa_ippr.recommend.result import Estimate

Notes = tuple[str, ...]
_Cap = Callable[[Resource, int], tuple[int, Notes]]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is recommended for one container of a pod, and what bounds it there.

    ``ratio``: the requests and limits whose proportions new limits keep. ``limits``: above these no request may go, because they stay
    as they are.
    """

    estimate: Estimate
    rules: PolicyRules
    ratio: ContainerResources
    limits: Amounts = Amounts()


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
        if highest is not None and amount > highest:
            amount, notes = highest, (f"{resource} capped to fit Max in container LimitRange",)
        return amount, notes

    return _capped(estimate, cap)


def cap_for_pod(wanted: Mapping[str, Wanted], others: Mapping[str, ContainerResources], namespace: NamespaceLimits) -> dict[str, Capped]:
    """What is wanted for the containers of a pod, after everything that bounds it there.

    ``others``: the pod's containers for which nothing is wanted; they count towards the bounds on pods.
    """
    estimates = {name: one.estimate for name, one in wanted.items()}
    originals = {**{name: one.ratio for name, one in wanted.items()}, **others}
    fitted = fit_pod_range(estimates, originals, namespace.pod)
    return {name: _cap_for_container(one, fitted[name], namespace.container) for name, one in wanted.items()}


def _cap_for_container(wanted: Wanted, fitted: Estimate, bounds: LimitBounds) -> Capped:
    in_range = cap_to_container_range(fitted, wanted.ratio, bounds)
    allowed = cap_to_policy(in_range.estimate, wanted.rules)
    limited = cap_to_limit(allowed.estimate, wanted.limits)
    # Upstream lists what the policy did before what the LimitRange did, and says nothing of the bounds on pods.
    return Capped(limited.estimate, allowed.notes + in_range.notes + _fit_notes(wanted.estimate, fitted) + limited.notes)


def _fit_notes(before: Estimate, after: Estimate) -> Notes:
    notes = []
    for resource in Resource:
        old, new = before.target.get(resource) or 0, after.target.get(resource) or 0
        if old != new:
            notes.append(f"{resource} capped to fit {'Max' if new < old else 'Min'} in pod LimitRange")
    return tuple(notes)


def _capped(estimate: Estimate, cap: _Cap) -> Capped:
    def change(amounts: Amounts) -> Amounts:
        for resource in Resource:
            amount = amounts.get(resource)
            capped = amount if amount is None else cap(resource, amount)[0]
            amounts = amounts if capped == amount else amounts.having(resource, capped)
        return amounts

    notes = tuple(
        note
        for resource in Resource
        for amount in (estimate.target.get(resource),)
        if amount is not None
        for note in cap(resource, amount)[1]
    )
    return Capped(estimate.each_capped(change), notes)
