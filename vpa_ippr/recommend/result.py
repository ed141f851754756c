"""What a recommendation is: the values that the updater, the webhook and the reports use. Millicores and bytes, whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from vpa_ippr.api.quantity import humanize_bytes, parse_bytes
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
class Raise:
    """What lifted a target, by name, and to how much; the names are in ``needs``."""

    by: str
    amount: int


@dataclass(frozen=True, slots=True)
class Weighed:
    """What evidence made of the use of the last day; None where nothing is known.

    Of CPU the share of the steps that count more than was used, and the most that was cut off of a step's periods. Of memory the page cache
    that did not count in the newest step, in bytes, and why.
    """

    uplifted_share: float | None = None
    throttled_share: float | None = None
    page_cache: int | None = None
    why: str | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """How an ensemble came to its answer; amounts in millicores or bytes, None where nothing is known.

    ``by``: the expert, or what else decided; ``prior`` while there was no decision. ``horizon``: hour or day. ``told``: the use that is not
    passed in nine of ten such horizons, and ``coverage`` the share in which it was not until now. ``first`` and ``last``: the history that
    was looked at, in seconds since the epoch, and ``known_hours`` those of it that hold samples.
    """

    by: str
    horizon: str | None = None
    told: int | None = None
    coverage: float | None = None
    known_hours: float = 0.0
    first: float | None = None
    last: float | None = None
    startup_peak: int | None = None
    raised_by: tuple[Raise, ...] = ()
    weighed: Weighed | None = None


@dataclass(frozen=True, slots=True)
class Driver:
    """What drove one resource: the quantile asked for, the use found there (millicores or bytes, before the margin), and whose it was.

    With a ``choice`` the value is the ensemble's answer, its margin included.
    """

    resource: Resource
    quantile: float
    value: int
    pod: str | None
    choice: Choice | None = None


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
    is_thin: bool = False
    """There is too little history to be relied on; the bounds are wide."""

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

    def to_status(self, *, humanize_memory: bool = False) -> ContainerRecommendation:
        """As the VPA's status holds it; memory for people where two decimals say the very amount."""

        def written(amounts: Amounts) -> dict[str, str | int | float]:
            quantities: dict[str, str | int | float] = {**amounts.to_quantities()}
            memory = amounts.memory_bytes
            if humanize_memory and memory is not None and parse_bytes(humanize_bytes(memory)) == memory:
                quantities["memory"] = humanize_bytes(memory)
            return quantities

        return ContainerRecommendation(
            container_name=self.container,
            target=written(self.target),
            lower_bound=written(self.lower_bound),
            upper_bound=written(self.upper_bound),
            uncapped_target=written(self.uncapped_target),
        )
