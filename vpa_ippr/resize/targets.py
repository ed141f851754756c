"""What a VPA wants of each container of a pod: the recommendation after policy, with the limits that go with it."""

from __future__ import annotations

from dataclasses import dataclass

from vpa_ippr.api.pod import Container, Pod
from vpa_ippr.api.resources import Amounts, ContainerResources, Resource, parse_amounts
from vpa_ippr.api.vpa import ContainerRecommendation, Vpa
from vpa_ippr.recommend.capping import cap_to_limit, cap_to_policy, controlled_only
from vpa_ippr.recommend.limits import proportional_limits
from vpa_ippr.recommend.policy import PolicyRules, read_policy
from vpa_ippr.recommend.result import Estimate
from vpa_ippr.resize.effect import same_resource
from vpa_ippr.resize.ledger import Ledger, proportions


@dataclass(frozen=True, slots=True)
class Target:
    """One container: what its spec holds, what it should hold, and the bounds between which its requests may stay.

    A resource that is not controlled, not recommended, or equal in effect is the same in ``desired`` as in ``current``.
    """

    container: str
    current: ContainerResources
    desired: ContainerResources
    lower: Amounts
    upper: Amounts

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


def targets_of(pod: Pod, vpa: Vpa, ledger: Ledger) -> tuple[Target, ...]:
    """One target for each container that has a recommendation and is not switched off.

    Raises:
        QuantityError: a quantity of the pod, the recommendation or the policy cannot be read.
    """
    targets = []
    for container in resizable_containers(pod):
        recommendation = vpa.recommendation_for(container.name)
        rules = read_policy(vpa.policy_for(container.name), f"vpa {vpa.key} policy of {container.name}")
        if recommendation is not None and not rules.off:
            estimate = _read_estimate(recommendation, f"vpa {vpa.key} recommendation for {container.name}")
            ratio = proportions(pod, ledger, container.name)
            targets.append(_target(container.name, pod.desired(container.name), estimate, rules, ratio))
    return tuple(targets)


def _read_estimate(recommendation: ContainerRecommendation, where: str) -> Estimate:
    return Estimate(
        target=parse_amounts(recommendation.target, f"{where}.target"),
        lower_bound=parse_amounts(recommendation.lower_bound, f"{where}.lowerBound"),
        upper_bound=parse_amounts(recommendation.upper_bound, f"{where}.upperBound"),
        uncapped_target=parse_amounts(recommendation.uncapped_target, f"{where}.uncappedTarget"),
    )


def _target(container: str, current: ContainerResources, estimate: Estimate, rules: PolicyRules, ratio: ContainerResources) -> Target:
    # The recommender has applied the policy too, but the policy may have changed since, or another recommender may have written this.
    estimate = cap_to_policy(controlled_only(estimate, rules), rules).estimate
    if rules.requests_only:
        estimate = cap_to_limit(estimate, current.limits).estimate
    desired = current
    for resource in Resource:
        request = estimate.target.get(resource)
        # Zero means "not set" to Kubernetes and "no limit" to the kernel: never what a recommendation can mean.
        if request:
            wanted = _with_request(current, request, resource, rules, ratio)
            desired = desired if same_resource(current, wanted, resource) else with_resource(desired, wanted, resource)
    return Target(container, current, desired, lower=estimate.lower_bound, upper=estimate.upper_bound)


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
