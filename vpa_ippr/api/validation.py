"""Rules that an object must keep beyond its schema, with upstream's webhook as the model (reference: its ``validation.go``).

Every function returns one line for each broken rule, ``path: what is wrong and what is allowed``; an empty tuple means valid.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from vpa_ippr.api.errors import QuantityError, ValidationError
from vpa_ippr.api.node_memory import MAX_PRESSING, NodeMemoryStatus, PressingContainer
from vpa_ippr.api.quantity import Quantity, parse_quantity
from vpa_ippr.api.shrink import MemoryShrink
from vpa_ippr.api.timestamps import parse_time
from vpa_ippr.api.vpa import ContainerPolicy, Quantities, StartupBoost, UpdatePolicy, Vpa

UPDATE_MODES = ("Off", "Initial", "Recreate", "InPlaceOrRecreate", "InPlace", "Auto")
CONTAINER_MODES = ("Auto", "Off")
CONTROLLED_VALUES = ("RequestsAndLimits", "RequestsOnly")
CHANGE_REQUIREMENTS = ("TargetHigherThanRequests", "TargetLowerThanRequests")
RESOURCES = ("cpu", "memory")
MAX_DEADLINE_SECONDS = 86_400


def validate_vpa(vpa: Vpa) -> tuple[str, ...]:
    """Broken rules of a VerticalPodAutoscaler."""
    return tuple(_vpa(vpa))


def validate_shrink(shrink: MemoryShrink) -> tuple[str, ...]:
    """Broken rules of a MemoryShrink."""
    return tuple(_shrink(shrink))


def validate_node_memory(status: NodeMemoryStatus) -> tuple[str, ...]:
    """Broken rules of a NodeMemory's status."""
    return tuple(_node_memory(status))


def validate_pressing(entry: PressingContainer) -> tuple[str, ...]:
    """Broken rules of one entry of a NodeMemory, so that a wrong one can be left out and the others used."""
    return tuple(_pressing(entry, "pressing"))


def _vpa(vpa: Vpa) -> Iterator[str]:
    spec = vpa.spec
    if spec.target_ref is None:
        yield "spec.targetRef: required"
    else:
        for name in ("kind", "name"):
            if not getattr(spec.target_ref, name):
                yield f"spec.targetRef.{name}: required"
    if len(spec.recommenders) > 1:
        yield f"spec.recommenders: at most one recommender can own the object, not {len(spec.recommenders)}"
    if spec.update_policy is not None:
        yield from _update_policy(spec.update_policy)
    yield from _startup_boost(spec.startup_boost, "spec.startupBoost")
    policies = spec.resource_policy.container_policies if spec.resource_policy else []
    for index, policy in enumerate(policies):
        yield from _container_policy(policy, f"spec.resourcePolicy.containerPolicies[{index}]")
    names = [policy.container_name for policy in policies if policy.container_name]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"spec.resourcePolicy.containerPolicies: container {name!r} has more than one policy"


def _update_policy(policy: UpdatePolicy) -> Iterator[str]:
    path = "spec.updatePolicy"
    if policy.update_mode is None:
        yield f"{path}.updateMode: required when updatePolicy is given"
    else:
        yield from _one_of(policy.update_mode, UPDATE_MODES, f"{path}.updateMode")
    if policy.min_replicas is not None and policy.min_replicas <= 0:
        yield f"{path}.minReplicas: must be greater than 0, not {policy.min_replicas}"
    if policy.evict_after_oom_seconds is not None and policy.evict_after_oom_seconds < 1:
        yield f"{path}.evictAfterOOMSeconds: must be at least 1, not {policy.evict_after_oom_seconds}"
    for index, requirement in enumerate(policy.eviction_requirements):
        yield from _one_of(requirement.change_requirement, CHANGE_REQUIREMENTS, f"{path}.evictionRequirements[{index}].changeRequirement")


def _container_policy(policy: ContainerPolicy, path: str) -> Iterator[str]:
    if not policy.container_name:
        yield f"{path}.containerName: required"
    if policy.mode is not None:
        yield from _one_of(policy.mode, CONTAINER_MODES, f"{path}.mode")
    if policy.controlled_values is not None:
        yield from _one_of(policy.controlled_values, CONTROLLED_VALUES, f"{path}.controlledValues")
        if policy.mode == "Off" and policy.controlled_values == "RequestsAndLimits":
            yield f"{path}.controlledValues: RequestsAndLimits cannot be combined with mode Off"
    for resource in policy.controlled_resources or []:
        yield from _one_of(resource, RESOURCES, f"{path}.controlledResources")
    yield from _bounds(policy.min_allowed, policy.max_allowed, path)
    yield from _at_least(policy.oom_bump_up_ratio, Decimal(1), f"{path}.oomBumpUpRatio")
    yield from _at_least(policy.oom_min_bump_up, Decimal(0), f"{path}.oomMinBumpUp")
    for name, value in (
        ("memoryAggregationIntervalSeconds", policy.memory_aggregation_interval_seconds),
        ("memoryAggregationIntervalCount", policy.memory_aggregation_interval_count),
    ):
        if value is not None and value < 1:
            yield f"{path}.{name}: must be at least 1, not {value}"
    yield from _startup_boost(policy.startup_boost, f"{path}.startupBoost")


def _bounds(lowest: Quantities, highest: Quantities, path: str) -> Iterator[str]:
    parsed: dict[tuple[str, str], Quantity] = {}
    for field, quantities in (("minAllowed", lowest), ("maxAllowed", highest)):
        for resource, text in quantities.items():
            try:
                parsed[field, resource] = parse_quantity(text)
            except QuantityError as error:
                yield f"{path}.{field}.{resource}: {error}"
                continue
            yield from _whole(parsed[field, resource], resource, f"{path}.{field}.{resource}")
    for resource in sorted(lowest.keys() & highest.keys()):
        low, high = parsed.get(("minAllowed", resource)), parsed.get(("maxAllowed", resource))
        if low and high and high.value < low.value:
            yield f"{path}.maxAllowed.{resource}: must not be below minAllowed ({high} < {low})"


def _whole(quantity: Quantity, resource: str, path: str) -> Iterator[str]:
    if resource == "cpu" and quantity.value * 1000 % 1:
        yield f"{path}: must be a whole number of millicores, not {quantity}"
    if resource == "memory" and quantity.value % 1:
        yield f"{path}: must be a whole number of bytes, not {quantity}"


def _startup_boost(boost: StartupBoost | None, path: str) -> Iterator[str]:
    if boost is None or boost.cpu is None:
        return
    cpu, path = boost.cpu, f"{path}.cpu"
    yield from _one_of(cpu.type, ("Factor", "Quantity"), f"{path}.type")
    if (cpu.type == "Factor") != (cpu.factor is not None):
        yield f"{path}.factor: goes with type Factor, and only with it"
    if (cpu.type == "Quantity") != (cpu.quantity is not None):
        yield f"{path}.quantity: goes with type Quantity, and only with it"
    if cpu.factor is not None and cpu.factor < 1:
        yield f"{path}.factor: must be at least 1, not {cpu.factor}"
    if cpu.duration_seconds is not None and cpu.duration_seconds < 0:
        yield f"{path}.durationSeconds: must not be negative"
    if cpu.quantity is not None:
        try:
            yield from _whole(parse_quantity(cpu.quantity), "cpu", f"{path}.quantity")
        except QuantityError as error:
            yield f"{path}.quantity: {error}"


def _shrink(shrink: MemoryShrink) -> Iterator[str]:
    spec = shrink.spec
    for path, value in (
        ("spec.pod.name", spec.pod.name),
        ("spec.pod.uid", spec.pod.uid),
        ("spec.nodeName", spec.node_name),
        ("spec.container.name", spec.container.name),
        ("spec.container.id", spec.container.id),
    ):
        if not value:
            yield f"{path}: required"
    if spec.target_bytes < 1:
        yield f"spec.targetBytes: must be at least 1, not {spec.target_bytes}"
    if not 1 <= spec.deadline_seconds <= MAX_DEADLINE_SECONDS:
        yield f"spec.deadlineSeconds: must lie between 1 and {MAX_DEADLINE_SECONDS}, not {spec.deadline_seconds}"


def _node_memory(status: NodeMemoryStatus) -> Iterator[str]:
    if len(status.pressing) > MAX_PRESSING:
        yield f"status.pressing: at most {MAX_PRESSING} entries, not {len(status.pressing)}"
    if status.pressing_count < len(status.pressing):
        yield f"status.pressingCount: must not be below the {len(status.pressing)} entries of status.pressing"
    if status.last_beat_time is not None:
        yield from _time(status.last_beat_time, "status.lastBeatTime")
    seen: set[tuple[str, str]] = set()
    for index, entry in enumerate(status.pressing):
        yield from _pressing(entry, f"status.pressing[{index}]")
        if (entry.pod_uid, entry.container_name) in seen:
            yield f"status.pressing[{index}]: container {entry.container_name!r} of pod {entry.pod_uid} is named twice"
        seen.add((entry.pod_uid, entry.container_name))


def _pressing(entry: PressingContainer, path: str) -> Iterator[str]:
    for name, value in (
        ("namespace", entry.namespace),
        ("podName", entry.pod_name),
        ("podUid", entry.pod_uid),
        ("containerName", entry.container_name),
        ("containerId", entry.container_id),
        ("reason", entry.reason),
    ):
        if not value:
            yield f"{path}.{name}: required"
    for name, amount, least in (
        ("usageBytes", entry.usage_bytes, 0),
        ("limitBytes", entry.limit_bytes, 1),
        ("growthBytesPerSecond", entry.growth_bytes_per_second, 0),
    ):
        if amount < least:
            yield f"{path}.{name}: must be at least {least}, not {amount}"
    for name, text in (("since", entry.since), ("observedTime", entry.observed_time)):
        yield from _time(text, f"{path}.{name}")


def _time(text: str, path: str) -> Iterator[str]:
    try:
        parse_time(text)
    except ValidationError as error:
        yield f"{path}: {error}"


def _one_of(value: str, allowed: tuple[str, ...], path: str) -> Iterator[str]:
    if value not in allowed:
        yield f"{path}: {value!r} is not one of {', '.join(allowed)}"


def _at_least(text: object, least: Decimal, path: str) -> Iterator[str]:
    if text is None:
        return
    try:
        quantity = parse_quantity(text)
    except QuantityError as error:
        yield f"{path}: {error}"
        return
    if quantity.value < least:
        yield f"{path}: must be at least {least}, not {quantity}"
