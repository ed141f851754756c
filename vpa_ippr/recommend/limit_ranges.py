"""A namespace's LimitRanges, read into bounds, and the fitting of a whole pod into the bounds on pods."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from vpa_ippr.api.errors import QuantityError
from vpa_ippr.api.limit_range import LimitRange, LimitRangeItem
from vpa_ippr.api.resources import Amounts, ContainerResources, parse_amounts
from vpa_ippr.api.series import Resource
from vpa_ippr.recommend.limits import proportional_limit
from vpa_ippr.recommend.result import Estimate


@dataclass(frozen=True, slots=True)
class LimitBounds:
    """Bounds of one type; ``default`` is the limit of containers that set none."""

    minimum: Amounts = Amounts()
    maximum: Amounts = Amounts()
    default: Amounts = Amounts()


NO_BOUNDS: Final = LimitBounds()


@dataclass(frozen=True, slots=True)
class NamespaceLimits:
    """All bounds of a namespace."""

    container: LimitBounds = NO_BOUNDS
    pod: LimitBounds = NO_BOUNDS


UNLIMITED: Final = NamespaceLimits()


def read_limit_ranges(ranges: Iterable[LimitRange]) -> NamespaceLimits:
    """The bounds that hold when all ranges do: the lowest maximum and the highest minimum; of defaults the last.

    Raises:
        QuantityError: a quantity cannot be read; the message names the LimitRange.
    """
    bounds = {"Container": LimitBounds(), "Pod": LimitBounds()}
    for limit_range in ranges:
        for item in limit_range.spec.limits:
            if item.type in bounds:
                bounds[item.type] = _merged(bounds[item.type], item, f"limitrange {limit_range.metadata.name}")
    # Kubernetes allows defaults for containers only, and they shape a pod's limits as well.
    return NamespaceLimits(bounds["Container"], replace(bounds["Pod"], default=bounds["Container"].default))


def limits_by_namespace(ranges: Iterable[LimitRange]) -> dict[str, NamespaceLimits | QuantityError]:
    """The bounds of each namespace that has a LimitRange; where one cannot be read, the error that says so."""
    by_namespace: dict[str, list[LimitRange]] = defaultdict(list)
    for limit_range in ranges:
        by_namespace[limit_range.metadata.namespace].append(limit_range)
    found: dict[str, NamespaceLimits | QuantityError] = {}
    for namespace, members in by_namespace.items():
        try:
            # Of several defaults the last counts: which one that is must not depend on the order of a list.
            found[namespace] = read_limit_ranges(sorted(members, key=lambda member: member.metadata.name))
        except QuantityError as error:
            found[namespace] = error
    return found


def beside(bounds: LimitBounds, others: Iterable[ContainerResources]) -> LimitBounds:
    """What is left of the bounds on a pod for its other containers when these stay as they are."""
    minimum, maximum = bounds.minimum, bounds.maximum
    fixed = tuple(others)
    for resource in Resource:
        requested = sum(one.requests.get(resource) or 0 for one in fixed)
        limited = sum(one.limits.get(resource) or bounds.default.get(resource) or 0 for one in fixed)
        lowest, highest = minimum.get(resource), maximum.get(resource)
        if lowest is not None:
            minimum = minimum.having(resource, max(lowest - requested, 0))
        if highest is not None:
            maximum = maximum.having(resource, max(highest - limited, 1))  # 0 would be no bound at all
    return replace(bounds, minimum=minimum, maximum=maximum)


def fit_pod_range(
    estimates: Mapping[str, Estimate], originals: Mapping[str, ContainerResources], bounds: LimitBounds
) -> dict[str, Estimate]:
    """The estimates with each value scaled so that the sum over the pod's containers is admitted.

    A container of the pod without an estimate takes part with its request; an estimate for a container that the pod does not have
    does not.
    """
    names = [name for name in originals if name in estimates or any(originals[name].requests.get(r) for r in Resource)]
    everyone = {name: estimates.get(name) or _pseudo(originals[name]) for name in names}
    for resource in Resource:
        for view in _VIEWS:
            everyone = _fit(everyone, originals, bounds, resource, view)
    return {name: everyone.get(name, estimate) for name, estimate in estimates.items()}


@dataclass(frozen=True, slots=True)
class _View:
    """One of an estimate's capped values: how to read it and how to write it."""

    read: Callable[[Estimate], Amounts]
    write: Callable[[Estimate, Amounts], Estimate]


_VIEWS = (
    _View(lambda estimate: estimate.upper_bound, lambda estimate, amounts: replace(estimate, upper_bound=amounts)),
    _View(lambda estimate: estimate.target, lambda estimate, amounts: replace(estimate, target=amounts)),
    _View(lambda estimate: estimate.lower_bound, lambda estimate, amounts: replace(estimate, lower_bound=amounts)),
)


def _fit(
    everyone: dict[str, Estimate], originals: Mapping[str, ContainerResources], bounds: LimitBounds, resource: Resource, view: _View
) -> dict[str, Estimate]:
    lowest, highest = bounds.minimum.get(resource) or 0, bounds.maximum.get(resource) or 0
    if not lowest and not highest:
        return everyone
    amounts = {name: view.read(estimate).get(resource) for name, estimate in everyone.items()}
    recommended = sum(amount or 0 for amount in amounts.values())
    limited = sum(proportional_limit(resource, originals[name], amount, bounds.default) or 0 for name, amount in amounts.items())
    if not limited or not recommended:
        return everyone
    if lowest > recommended:
        scaled = {name: None if amount is None else -(-amount * lowest // recommended) for name, amount in amounts.items()}
    elif lowest > limited or (highest and limited > highest):
        total = highest if highest and limited > highest else lowest
        scaled = {name: None if amount is None else amount * total // limited for name, amount in amounts.items()}
    else:
        return everyone
    return {name: view.write(estimate, view.read(estimate).having(resource, scaled[name])) for name, estimate in everyone.items()}


def _pseudo(original: ContainerResources) -> Estimate:
    return Estimate(original.requests, original.requests, original.requests, original.requests)


def _merged(bounds: LimitBounds, item: LimitRangeItem, where: str) -> LimitBounds:
    return LimitBounds(
        minimum=_combined(bounds.minimum, parse_amounts(item.min, f"{where} min"), max),
        maximum=_combined(bounds.maximum, parse_amounts(item.max, f"{where} max"), min),
        default=_combined(bounds.default, parse_amounts(item.default, f"{where} default"), lambda _, last: last),
    )


def _combined(first: Amounts, second: Amounts, choose: Callable[[int, int], int]) -> Amounts:
    for resource in Resource:
        mine, theirs = first.get(resource), second.get(resource)
        if theirs is not None:
            first = first.having(resource, theirs if mine is None else choose(mine, theirs))
    return first
