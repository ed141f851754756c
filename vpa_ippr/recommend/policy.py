"""A VPA's policy for one container, read from its quantities."""

from __future__ import annotations

from dataclasses import dataclass, replace

from vpa_ippr.api.quantity import parse_quantity
from vpa_ippr.api.resources import Amounts, parse_amounts
from vpa_ippr.api.series import Resource
from vpa_ippr.api.vpa import ContainerPolicy
from vpa_ippr.usage.container import UsageRules


@dataclass(frozen=True, slots=True)
class PolicyRules:
    """What the policy allows; a container that is ``off`` gets no recommendation."""

    off: bool = False
    minimum: Amounts = Amounts()
    maximum: Amounts = Amounts()
    controlled: frozenset[Resource] = frozenset(Resource)
    requests_only: bool = False


def read_policy(policy: ContainerPolicy, where: str) -> PolicyRules:
    """The policy with its quantities read.

    Raises:
        QuantityError: minAllowed or maxAllowed cannot be read; the message begins with ``where``.
    """
    controlled = policy.controlled_resources
    return PolicyRules(
        off=policy.mode == "Off",
        minimum=parse_amounts(policy.min_allowed, f"{where}.minAllowed"),
        maximum=parse_amounts(policy.max_allowed, f"{where}.maxAllowed"),
        controlled=frozenset(Resource if controlled is None else (r for r in Resource if r in controlled)),
        requests_only=policy.controlled_values == "RequestsOnly",
    )


def with_overrides(rules: UsageRules, policy: ContainerPolicy) -> UsageRules:
    """A profile's rules for samples, with what the policy sets for its container.

    Raises:
        QuantityError: oomBumpUpRatio or oomMinBumpUp cannot be read.
    """
    changes: dict[str, float] = {}
    if policy.oom_bump_up_ratio is not None:
        changes["oom_bump_up_ratio"] = float(parse_quantity(policy.oom_bump_up_ratio).value)
    if policy.oom_min_bump_up is not None:
        changes["oom_min_bump_up_bytes"] = float(parse_quantity(policy.oom_min_bump_up).value)
    if policy.memory_aggregation_interval_seconds is not None:
        changes["aggregation_interval_seconds"] = float(policy.memory_aggregation_interval_seconds)
    if policy.memory_aggregation_interval_count is not None:
        changes["aggregation_interval_count"] = policy.memory_aggregation_interval_count
    return replace(rules, **changes) if changes else rules  # type: ignore[arg-type]
