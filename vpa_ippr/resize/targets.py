"""What a VPA wants of each container of a pod: the recommendation after LimitRange and policy, with the limits that go with it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from vpa_ippr.api.pod import Container, Pod
from vpa_ippr.api.resources import Amounts, ContainerResources, Resource, parse_amounts
from vpa_ippr.api.vpa import ContainerRecommendation, Vpa
from vpa_ippr.recommend.capping import Capped, Wanted, cap_for_pod, controlled_only
from vpa_ippr.recommend.limit_ranges import UNLIMITED, NamespaceLimits, beside
from vpa_ippr.recommend.limits import proportional_limits
from vpa_ippr.recommend.policy import PolicyRules, read_policy
from vpa_ippr.recommend.result import Estimate
from vpa_ippr.resize.effect import same_resource
from vpa_ippr.resize.ledger import Ledger, proportions


@dataclass(frozen=True, slots=True)
class Target:
    """One container: what its spec holds, what it should hold, and the bounds between which its requests may stay.

    A resource that is not controlled, not recommended, or equal in effect is the same in ``desired`` as in ``current``. ``capped_by``
    says what moved the recommendation.
    """

    container: str
    current: ContainerResources
    desired: ContainerResources
    lower: Amounts
    upper: Amounts
    capped_by: tuple[str, ...] = ()

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


def resizable_containers(pod: Pod) -> list[Container]:
    """The regular containers and the native sidecars: those whose resources may change while they run, on 1.33 and later."""
    return [*pod.spec.containers, *(c for c in pod.spec.init_containers if c.restart_policy == "Always")]


def targets_of(pod: Pod, vpa: Vpa, ledger: Ledger, limits: NamespaceLimits = UNLIMITED) -> tuple[Target, ...]:
    """One target for each container that has a recommendation and is not switched off; ``limits`` are those of the pod's namespace.

    Raises:
        QuantityError: a quantity of the pod, the recommendation or the policy cannot be read.
    """
    wanted = {one.name: found for one in resizable_containers(pod) if (found := _wanted(one.name, pod, vpa, ledger, limits)) is not None}
    others = [pod.desired(one.name) for one in resizable_containers(pod) if one.name not in wanted]
    # The others are not resized, so they leave less for those that are; upstream, which makes the pod anew, scales them all.
    capped = cap_for_pod(wanted, {}, replace(limits, pod=beside(limits.pod, others)))
    return tuple(_target(name, pod.desired(name), capped[name], one.rules, proportions(pod, ledger, name)) for name, one in wanted.items())


def _wanted(container: str, pod: Pod, vpa: Vpa, ledger: Ledger, limits: NamespaceLimits) -> Wanted | None:
    recommendation = vpa.recommendation_for(container)
    rules = read_policy(vpa.policy_for(container), f"vpa {vpa.key} policy of {container}")
    if recommendation is None or rules.off:
        return None
    # The recommender has applied the policy too, but it may have changed since, or another recommender may have written this.
    estimate = _read_estimate(recommendation, f"vpa {vpa.key} recommendation for {container}")
    current, defaults = pod.desired(container), limits.container.default
    # Where there is no limit, a resize makes the API server fill in the namespace's default.
    missing = Amounts(*(None if current.limits.get(resource) else defaults.get(resource) for resource in Resource))
    if rules.requests_only:
        kept = _lower(_lower(current.limits, (pod.actual(container) or current).limits), missing)
        ratio = ContainerResources(current.limits, current.limits)
    else:
        kept, ratio = missing, proportions(pod, ledger, container)
    return Wanted(controlled_only(estimate, rules), rules, ratio, kept)


def _lower(one: Amounts, other: Amounts) -> Amounts:
    """The lower of each amount; where only one has it, that."""
    return Amounts(*(min((a for a in (one.get(r), other.get(r)) if a is not None), default=None) for r in Resource))


def _read_estimate(recommendation: ContainerRecommendation, where: str) -> Estimate:
    return Estimate(
        target=parse_amounts(recommendation.target, f"{where}.target"),
        lower_bound=parse_amounts(recommendation.lower_bound, f"{where}.lowerBound"),
        upper_bound=parse_amounts(recommendation.upper_bound, f"{where}.upperBound"),
        uncapped_target=parse_amounts(recommendation.uncapped_target, f"{where}.uncappedTarget"),
    )


def _target(container: str, current: ContainerResources, capped: Capped, rules: PolicyRules, ratio: ContainerResources) -> Target:
    estimate = capped.estimate
    desired = current
    for resource in Resource:
        request = estimate.target.get(resource)
        # Zero means "not set" to Kubernetes and "no limit" to the kernel: never what a recommendation can mean.
        if request:
            wanted = _with_request(current, request, resource, rules, ratio)
            desired = desired if same_resource(current, wanted, resource) else with_resource(desired, wanted, resource)
    return Target(container, current, desired, estimate.lower_bound, estimate.upper_bound, capped.notes)


def with_resource(base: ContainerResources, other: ContainerResources, resource: Resource) -> ContainerResources:
    """``base`` with the request and the limit of one resource taken from ``other``."""
    return ContainerResources(
        base.requests.having(resource, other.requests.get(resource)), base.limits.having(resource, other.limits.get(resource))
    )


def _with_request(
    current: ContainerResources, request: int, resource: Resource, rules: PolicyRules, ratio: ContainerResources
) -> ContainerResources:
    requests = current.requests.having(resource, request)
    if rules.requests_only or not current.limits.get(resource):
        return ContainerResources(requests, current.limits)
    # A ratio without a limit, or that makes it 0 (which means none), is not ours: the ledger that holds it is open to others.
    limits = (proportional_limits(base, requests).amounts.get(resource) for base in (ratio, current))
    limit = next((limit for limit in limits if limit), current.limits.get(resource))
    return ContainerResources(requests, current.limits.having(resource, limit))


def _rises(old: int | None, new: int | None) -> bool:
    return new is not None and (old is None or new > old)
