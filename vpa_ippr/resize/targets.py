"""What a VPA wants of each container of a pod: the recommendation after LimitRange and policy, with the limits that go with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from vpa_ippr.api.pod import POD_LEVEL, Container, Pod
from vpa_ippr.api.resources import Amounts, ContainerResources, Resource, parse_amounts
from vpa_ippr.api.vpa import ContainerRecommendation, Vpa
from vpa_ippr.recommend.capping import Capped, Wanted, cap_for_pod, controlled_only
from vpa_ippr.recommend.limit_ranges import NO_BOUNDS, UNLIMITED, LimitBounds, NamespaceLimits, beside
from vpa_ippr.recommend.limits import proportional_limits
from vpa_ippr.recommend.policy import read_policy
from vpa_ippr.recommend.result import Estimate
from vpa_ippr.resize.effect import same_resource
from vpa_ippr.resize.ledger import Ledger, proportions
from vpa_ippr.resize.limit_policy import LimitKind, LimitPolicy, LimitRules, limit_policy_of
from vpa_ippr.resize.pod_level import PodLevel, lives_on_pod
from vpa_ippr.resize.qos import QosClass, desired_resources, qos_class


@dataclass(frozen=True, slots=True)
class Target:
    """One container: what its spec holds, what it should hold, and the bounds between which its requests may stay.

    A resource that is not controlled, not recommended, or equal in effect is the same in ``desired`` as in ``current``. ``capped_by``
    says what moved the recommendation. ``shared`` is what is recommended where the container lives on the pod's own request; that one has
    a target itself, of the name ``POD_LEVEL``.
    """

    container: str
    current: ContainerResources
    desired: ContainerResources
    lower: Amounts
    upper: Amounts
    capped_by: tuple[str, ...] = ()
    shared: Amounts = Amounts()

    def changes(self, resource: Resource) -> bool:
        """True when the request or the limit of ``resource`` is to change."""
        return self.current.requests.get(resource) != self.desired.requests.get(resource) or self.current.limits.get(
            resource
        ) != self.desired.limits.get(resource)

    def grows(self, resource: Resource) -> bool:
        """True when the request or the limit is to rise."""
        return _rises(self.current.requests.get(resource), self.desired.requests.get(resource)) or _rises(
            self.current.limits.get(resource), self.desired.limits.get(resource)
        )

    def lowers_limit(self, resource: Resource) -> bool:
        """True when the limit is to fall."""
        return _rises(self.desired.limits.get(resource), self.current.limits.get(resource))

    def keeping_limit(self, resource: Resource) -> Target:
        """The same, with the limit of ``resource`` as it is."""
        limits = self.desired.limits.having(resource, self.current.limits.get(resource))
        return replace(self, desired=ContainerResources(self.desired.requests, limits))


@dataclass(frozen=True, slots=True)
class _Wish:
    """What is wanted of one container, and how its limits follow."""

    wanted: Wanted
    limits: LimitRules
    proportions: ContainerResources


def resizable_containers(pod: Pod) -> list[Container]:
    """The regular containers and the native sidecars: those whose resources may change as long as the pod runs, on 1.33 and later."""
    return [*pod.spec.containers, *(c for c in pod.spec.init_containers if c.is_sidecar)]


def starting_containers(pod: Pod) -> list[Container]:
    """The init containers that are running and may be resized meanwhile, on 1.36 and later: not those that a resize would restart."""
    return [one for one in pod.spec.init_containers if not one.is_sidecar and _runs(pod, one.name) and not _restarts(one)]


def targets_of(pod: Pod, vpa: Vpa, ledger: Ledger, limits: NamespaceLimits = UNLIMITED) -> tuple[Target, ...]:
    """One target for each container that has a recommendation and is not switched off; ``limits`` are those of the pod's namespace.

    A running init container is never lowered: it has no time to be watched.

    Raises:
        QuantityError: a quantity of the pod, the recommendation or the policy cannot be read.
        ValidationError: the VPA's limit policy cannot be read.
    """
    policy = limit_policy_of(vpa)
    lasting = _wishes(resizable_containers(pod), pod, vpa, policy, ledger, limits)
    starting = _wishes(starting_containers(pod), pod, vpa, policy, ledger, limits)
    others = [pod.desired(one.name) for one in resizable_containers(pod) if one.name not in lasting]
    # The others are not resized, so they leave less for those that are; upstream, which makes the pod anew, scales them all.
    left = replace(limits, pod=beside(limits.pod, others))
    capped = _capped(lasting, left) | _capped(starting, replace(limits, pod=NO_BOUNDS))
    wanted = {name: _wanted_resources(pod.desired(name), capped[name], wish, limits.container) for name, wish in lasting.items()}
    wanted = _within_pod(wanted, lasting, left.pod)
    for name, wish in starting.items():
        wanted[name] = _only_more(pod.desired(name), _wanted_resources(pod.desired(name), capped[name], wish, limits.container))
    return _targets(pod, wanted, capped, pod_level_of(pod, vpa, ledger, _shared(pod, capped)))


def pod_level_of(pod: Pod, vpa: Vpa, ledger: Ledger, shared: Mapping[str, Amounts]) -> PodLevel | None:
    """The pod's own resources and the rules for their limits; None for a pod that has none. ``shared`` as in ``PodLevel``.

    Raises:
        QuantityError: a quantity of the pod or of the VPA's policy cannot be read.
        ValidationError: the VPA's limit policy cannot be read.
    """
    if not pod.has_pod_level:
        return None
    names = [one.name for one in resizable_containers(pod) if vpa.recommendation_for(one.name) is not None]
    requests_only = all(read_policy(vpa.policy_for(name), f"vpa {vpa.key} policy of {name}").requests_only for name in names)
    rules = limit_policy_of(vpa).rules(guaranteed=_is_guaranteed(pod), requests_only=requests_only)
    return PodLevel(pod, ledger, rules, shared)


def _wishes(
    containers: list[Container], pod: Pod, vpa: Vpa, policy: LimitPolicy, ledger: Ledger, limits: NamespaceLimits
) -> dict[str, _Wish]:
    found = {one.name: _wish(one.name, pod, vpa, policy, ledger, limits) for one in containers}
    return {name: wish for name, wish in found.items() if wish is not None}


def _wish(container: str, pod: Pod, vpa: Vpa, policy: LimitPolicy, ledger: Ledger, limits: NamespaceLimits) -> _Wish | None:
    recommendation = vpa.recommendation_for(container)
    rules = read_policy(vpa.policy_for(container), f"vpa {vpa.key} policy of {container}")
    if recommendation is None or rules.off:
        return None
    # The recommender has applied the policy too, but it may have changed since, or another recommender may have written this.
    estimate = _read_estimate(recommendation, f"vpa {vpa.key} recommendation for {container}")
    follows = policy.rules(guaranteed=_is_guaranteed(pod), requests_only=rules.requests_only)
    current, defaults, original = pod.desired(container), limits.container.default, proportions(pod, ledger, container)
    in_force = (pod.actual(container) or current).limits
    kept, ratio = Amounts(), ContainerResources(original.requests, original.limits)
    for resource, rule in follows.items():
        limit = current.limits.get(resource)
        if not limit:  # where there is no limit, a resize makes the API server fill in the namespace's default
            kept = kept.having(resource, defaults.get(resource))
        elif rule.kind is LimitKind.NONE:
            kept = kept.having(resource, min(limit, in_force.get(resource) or limit))
        if rule.kind is not LimitKind.RATIO:  # only the request is to fit the LimitRange: the limit may come as near to it as need be
            ratio = ContainerResources(ratio.requests.having(resource, limit), ratio.limits.having(resource, limit))
    return _Wish(Wanted(controlled_only(estimate, rules), rules, ratio, kept), follows, original)


def _read_estimate(recommendation: ContainerRecommendation, where: str) -> Estimate:
    return Estimate(
        target=parse_amounts(recommendation.target, f"{where}.target"),
        lower_bound=parse_amounts(recommendation.lower_bound, f"{where}.lowerBound"),
        upper_bound=parse_amounts(recommendation.upper_bound, f"{where}.upperBound"),
        uncapped_target=parse_amounts(recommendation.uncapped_target, f"{where}.uncappedTarget"),
    )


def _capped(wishes: Mapping[str, _Wish], limits: NamespaceLimits) -> dict[str, Capped]:
    return cap_for_pod({name: wish.wanted for name, wish in wishes.items()}, {}, limits)


def _wanted_resources(current: ContainerResources, capped: Capped, wish: _Wish, bounds: LimitBounds) -> ContainerResources:
    wanted = current
    for resource in Resource:
        request = capped.estimate.target.get(resource)
        # Zero means "not set" to Kubernetes and "no limit" to the kernel: never what a recommendation can mean.
        if request:
            limit = _limit(current, current.requests.having(resource, request), resource, wish, bounds)
            wanted = ContainerResources(wanted.requests.having(resource, request), wanted.limits.having(resource, limit))
    return wanted


def _limit(current: ContainerResources, requests: Amounts, resource: Resource, wish: _Wish, bounds: LimitBounds) -> int | None:
    present, request, rule = current.limits.get(resource), requests.get(resource), wish.limits[resource]
    if not present or not request or rule.kind is LimitKind.NONE:
        return present
    # A ratio without a limit, or that makes it 0 (which means none), is not ours: the ledger that holds it is open to others.
    limits = (proportional_limits(base, requests).amounts.get(resource) for base in (wish.proportions, current))
    limit = rule.limit_for(request, next((limit for limit in limits if limit), present), present)
    highest = bounds.maximum.get(resource)
    return max(min(limit, highest), request) if rule.has_slack and highest is not None else limit


def _within_pod(wanted: dict[str, ContainerResources], wishes: Mapping[str, _Wish], bounds: LimitBounds) -> dict[str, ContainerResources]:
    """With headroom given up, each its share, where the limits together would be above a LimitRange's maximum of the pod."""
    for resource in Resource:
        highest = bounds.maximum.get(resource)
        excess = sum(found.limits.get(resource) or 0 for found in wanted.values()) - (highest or 0)
        headroom = {name: _headroom(found, resource) for name, found in wanted.items() if wishes[name].limits[resource].has_slack}
        whole = sum(headroom.values())
        if highest is None or excess <= 0 or not whole:
            continue
        for name, own in headroom.items():
            found = wanted[name]
            limit = (found.limits.get(resource) or 0) - -(-own * min(excess, whole) // whole)
            wanted = {**wanted, name: ContainerResources(found.requests, found.limits.having(resource, limit or None))}
    return wanted


def _headroom(resources: ContainerResources, resource: Resource) -> int:
    return max((resources.limits.get(resource) or 0) - (resources.requests.get(resource) or 0), 0)


def _only_more(current: ContainerResources, wanted: ContainerResources) -> ContainerResources:
    """``wanted``, with nothing in it lower than it is."""
    sides = ((current.requests, wanted.requests), (current.limits, wanted.limits))
    return ContainerResources(*(Amounts(*(_higher(a.get(r), b.get(r)) for r in Resource)) for a, b in sides))


def _shared(pod: Pod, capped: Mapping[str, Capped]) -> dict[str, Amounts]:
    """What is recommended, by container, of the resources for which it lives on the pod's own request."""
    return {name: _living(pod, name, one.estimate.target) for name, one in capped.items()}


def _living(pod: Pod, container: str, amounts: Amounts) -> Amounts:
    current = pod.desired(container)
    return Amounts(*(amounts.get(r) or None if lives_on_pod(pod, current, r) else None for r in Resource))


def _targets(
    pod: Pod, wanted: Mapping[str, ContainerResources], capped: Mapping[str, Capped], level: PodLevel | None
) -> tuple[Target, ...]:
    shared = level.shared if level else {}
    desired = {name: _own(pod.desired(name), found, shared.get(name, Amounts())) for name, found in wanted.items()}
    if level is not None:
        desired = {name: found for name, found in level.carried_along(desired, list(Resource)).items() if name != POD_LEVEL}
    targets = tuple(_target(pod, name, found, capped[name], shared.get(name, Amounts())) for name, found in desired.items())
    return (*targets, _pod_target(pod, desired, capped, level)) if level is not None and targets else targets


def _own(current: ContainerResources, wanted: ContainerResources, shared: Amounts) -> ContainerResources:
    """``wanted`` without what the container takes from the pod."""
    for resource in Resource:
        wanted = wanted if shared.get(resource) is None else with_resource(wanted, current, resource)
    return wanted


def _target(pod: Pod, container: str, wanted: ContainerResources, capped: Capped, shared: Amounts) -> Target:
    current, estimate = pod.desired(container), capped.estimate
    return Target(container, current, _in_effect(current, wanted), estimate.lower_bound, estimate.upper_bound, capped.notes, shared)


def _pod_target(pod: Pod, desired: Mapping[str, ContainerResources], capped: Mapping[str, Capped], level: PodLevel) -> Target:
    current = own = pod.desired(POD_LEVEL)
    for resource in Resource:
        own = level.moved(own, desired, resource)
    lower = {name: one.estimate.lower_bound for name, one in capped.items()}
    upper = {name: one.estimate.upper_bound for name, one in capped.items()}
    return Target(POD_LEVEL, current, _in_effect(current, own), _pod_bound(pod, lower, level), _pod_bound(pod, upper, level))


def _pod_bound(pod: Pod, bounds: Mapping[str, Amounts], level: PodLevel) -> Amounts:
    """The pod's request if each container had its bound; None where one has none."""
    living = {name: _living(pod, name, amounts) for name, amounts in bounds.items()}
    amounts = Amounts()
    for resource in Resource:
        if all(bound.get(resource) for bound in bounds.values()):
            amounts = amounts.having(resource, level.request(bounds, living, resource))
    return amounts


def _in_effect(current: ContainerResources, wanted: ContainerResources) -> ContainerResources:
    """``wanted`` where it differs in effect."""
    for resource in Resource:
        wanted = with_resource(wanted, current, resource) if same_resource(current, wanted, resource) else wanted
    return wanted


def with_resource(base: ContainerResources, other: ContainerResources, resource: Resource) -> ContainerResources:
    """``base`` with the request and the limit of one resource taken from ``other``."""
    return ContainerResources(
        base.requests.having(resource, other.requests.get(resource)), base.limits.having(resource, other.limits.get(resource))
    )


def _is_guaranteed(pod: Pod) -> bool:
    known = pod.status.qos_class or qos_class(pod, desired_resources(pod, {}))
    return known == QosClass.GUARANTEED


def _runs(pod: Pod, container: str) -> bool:
    status = pod.container_status(container)
    return status is not None and status.state.running is not None


def _restarts(container: Container) -> bool:
    return any(container.restarts_on_resize_of(resource) for resource in Resource)


def _higher(one: int | None, other: int | None) -> int | None:
    return max((amount for amount in (one, other) if amount is not None), default=None)


def _rises(old: int | None, new: int | None) -> bool:
    return new is not None and (old is None or new > old)
