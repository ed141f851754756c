"""What a recommendation is: the values that the updater, the webhook and the reports use. Millicores and bytes, whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from vpa_ippr.api.resources import Amounts
from vpa_ippr.api.series import Finding, Resource, WorkloadRef
from vpa_ippr.api.vpa import ContainerRecommendation


@dataclass(frozen=True, slots=True)
class Estimate:
    """The four values of one container; a resource that is not recommended is None in all of them."""

    target: Amounts
    lower_bound: Amounts
    upper_bound: Amounts
    uncapped_target: Amounts

    def each_capped(self, change: Callable[[Amounts], Amounts]) -> Estimate:
        """With ``change`` applied to target and bounds; the uncapped target says what would have been, so it stays."""
        return replace(self, target=change(self.target), lower_bound=change(self.lower_bound), upper_bound=change(self.upper_bound))

    def each(self, change: Callable[[Amounts], Amounts]) -> Estimate:
        """With ``change`` applied to all four values."""
        return replace(self.each_capped(change), uncapped_target=change(self.uncapped_target))


@dataclass(frozen=True, slots=True)
class Driver:
    """What drove one resource: the quantile asked for, the use found there (millicores or bytes, before the margin), and whose it was."""

    resource: Resource
    quantile: float
    value: int
    pod: str | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a recommendation is what it is; times in seconds since the epoch, ``capped_by`` in upstream's words."""

    profile: str
    forecaster: str
    drivers: tuple[Driver, ...]
    samples: int
    first_sample: float | None
    last_sample: float | None
    oom_kills: int = 0
    capped_by: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class Recommendation:
    """What one container of a workload should have; ``confidence`` is in days of one sample a minute."""

    workload: WorkloadRef
    container: str
    target: Amounts
    lower_bound: Amounts
    upper_bound: Amounts
    uncapped_target: Amounts
    confidence: float
    explanation: Explanation

    @property
    def estimate(self) -> Estimate:
        """The four values alone."""
        return Estimate(self.target, self.lower_bound, self.upper_bound, self.uncapped_target)

    def with_estimate(self, estimate: Estimate, capped_by: tuple[str, ...] = ()) -> Recommendation:
        """With other values, and the notes on what changed them added."""
        return replace(
            self,
            target=estimate.target,
            lower_bound=estimate.lower_bound,
            upper_bound=estimate.upper_bound,
            uncapped_target=estimate.uncapped_target,
            explanation=replace(self.explanation, capped_by=self.explanation.capped_by + capped_by),
        )

    def to_status(self) -> ContainerRecommendation:
        """As the VPA's status holds it."""
        return ContainerRecommendation(
            container_name=self.container,
            target=dict(self.target.to_quantities()),
            lower_bound=dict(self.lower_bound.to_quantities()),
            upper_bound=dict(self.upper_bound.to_quantities()),
            uncapped_target=dict(self.uncapped_target.to_quantities()),
        )
