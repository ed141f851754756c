"""What one MemoryShrink asks to be different of the agent's policy (``spec.policy``), checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from vpa_ippr.actuator.policy import Policy
from vpa_ippr.api.errors import ValidationError
from vpa_ippr.api.shrink import ShrinkPolicy, SwapUse


def merge(policy: Policy, overrides: ShrinkPolicy) -> Policy:
    """The agent's policy with what one MemoryShrink asks to be different.

    Raises:
        ValidationError: an override is out of range; the message names the field in the object.
    """
    merged = policy if overrides.swap is None else replace(policy, may_swap=overrides.swap is SwapUse.ALLOW)
    broken: list[str] = []
    for field, value, apply in (
        ("stepPercent", overrides.step_percent, _with_step),
        ("settleSeconds", overrides.settle_seconds, _with_settle),
        ("stabilitySeconds", overrides.stability_seconds, lambda p, v: replace(p, stability_seconds=v)),
        ("observeSeconds", overrides.observe_seconds, _with_observation),
        ("horizonSeconds", overrides.horizon_seconds, lambda p, v: replace(p, horizon_seconds=v)),
        ("marginPercent", overrides.margin_percent, lambda p, v: replace(p, margin_ratio=v / 100)),
        ("mappedReservePercent", overrides.mapped_reserve_percent, lambda p, v: replace(p, reserve_mapped_ratio=v / 100)),
        ("maxPressurePercent", overrides.max_pressure_percent, lambda p, v: replace(p, soft_memory_some_percent=v)),
        ("maxRefaultPercent", overrides.max_refault_percent, lambda p, v: replace(p, soft_refault_percent=v)),
        ("floorBytes", overrides.floor_bytes, lambda p, v: replace(p, floor_bytes=int(v))),
    ):
        if value is not None:
            merged = _applied(merged, field, value, apply, broken)
    if broken:
        raise ValidationError("; ".join(broken), fields=tuple(broken), reason="InvalidPolicy")
    return merged


def _applied(policy: Policy, field: str, value: float, apply: Callable[[Policy, float], Policy], broken: list[str]) -> Policy:
    try:
        return apply(policy, value)
    except ValidationError as error:
        broken.append(f"spec.policy.{field} is {value:g}: {', '.join(error.fields)}")
        return policy


def _with_step(policy: Policy, percent: float) -> Policy:
    ratio = percent / 100
    return replace(
        policy, step_max_ratio=ratio, step_min_ratio=min(policy.step_min_ratio, ratio), probe_ratio=min(policy.probe_ratio, ratio)
    )


def _with_settle(policy: Policy, seconds: float) -> Policy:
    return replace(policy, settle_seconds=seconds, tick_seconds=min(policy.tick_seconds, seconds))


def _with_observation(policy: Policy, seconds: float) -> Policy:
    return replace(policy, observe_seconds=seconds, observe_max_seconds=max(policy.observe_max_seconds, seconds))
