"""From quantiles of use to whole millicores and bytes: margin, confidence, minimum. All integer rules are upstream's.

Order: quantile -> margin -> confidence (bounds only) -> minimum -> rounding up. Conversions truncate, and amounts stay within
0 and 1e14.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from vpa_ippr.forecast.catalogue import Confidence, ConfidenceFactor, ResourceProfile
from vpa_ippr.recommend.rounding import round_up
from vpa_ippr.usage.container import SampleSpan

MAX_AMOUNT: Final = 10**14
_SECONDS_PER_MINUTE: Final = 60.0


@dataclass(frozen=True, slots=True)
class Level:
    """Lower bound, target and upper bound of one resource, in millicores or bytes."""

    lower_bound: int
    target: int
    upper_bound: int


def to_amount(value: float) -> int:
    """Truncate to a whole amount and clamp to the range; what is not a number (no use times no history) is 0."""
    if not value > 0:
        return 0
    return MAX_AMOUNT if value >= MAX_AMOUNT else int(value)


def with_margin(amount: int, fraction: float) -> int:
    """The amount and ``fraction`` of it."""
    return amount + to_amount(amount * fraction)


def confidence_of(span: SampleSpan, interval_seconds: float) -> float:
    """How much history there is: the lower of its age and its number of samples at one a minute, in intervals."""
    if span.first is None or span.last is None:
        return 0.0
    age = (span.last - span.first) / interval_seconds
    samples = span.count / (interval_seconds / _SECONDS_PER_MINUTE)
    return min(age, samples)


def with_confidence(amount: int, confidence: float, factor: ConfidenceFactor) -> int:
    """The amount times ``(1 + multiplier / confidence) ** exponent``; without history the limit of that: everything, or nothing."""
    base = 1 + factor.multiplier / confidence if confidence > 0 else math.inf
    try:
        return to_amount(amount * base**factor.exponent)
    except OverflowError:
        return MAX_AMOUNT


def pod_share(pod_minimum: int, containers: int) -> int:
    """Each container's part of the smallest recommendation for a pod."""
    return to_amount(pod_minimum * (1.0 / containers))


def estimate(quantiles: Level, part: ResourceProfile, rules: Confidence, confidence: float, minimum: int) -> Level:
    """Bounds and target of one resource of one container, from the use at the profile's three quantiles."""

    def finished(amount: int) -> int:
        return round_up(max(minimum, min(amount, MAX_AMOUNT)), part.round_up_to)

    lower, target, upper = (
        with_margin(amount, part.margin_fraction) for amount in (quantiles.lower_bound, quantiles.target, quantiles.upper_bound)
    )
    return Level(
        lower_bound=finished(with_confidence(lower, confidence, rules.lower_bound)),
        target=finished(target),
        upper_bound=finished(with_confidence(upper, confidence, rules.upper_bound)),
    )
