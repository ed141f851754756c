"""Workloads whose pods are told apart by a label of their nodes: each value's pods are reckoned as a workload of their own, a part.

The VPA's status holds the largest recommendation of all parts; see ``api.node_split`` for what each part's pods get.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import msgspec

from vpa_ippr.api.cluster import Node
from vpa_ippr.api.errors import ClusterError
from vpa_ippr.api.names import ANNOTATION_NODE_LABEL_VALUE, CONDITION_CONFIG_UNSUPPORTED, short_hash
from vpa_ippr.api.resources import Amounts, Resource
from vpa_ippr.api.series import Finding, WorkloadRef
from vpa_ippr.api.vpa import VpaCheckpoint
from vpa_ippr.recommend.instances import by_last_sample
from vpa_ippr.recommend.planning import Plan
from vpa_ippr.recommend.result import Driver, Estimate, Recommendation
from vpa_ippr.recommend.status import Problem
from vpa_ippr.usage.checkpoint import StoredState
from vpa_ippr.usage.container import DAY_SECONDS, fold

# All annotations of an object together may hold 256 KiB, and a container's recommendation takes about 200 bytes.
MAX_VALUES: Final = 100
# No history is looked at for longer.
_REMEMBERED_SECONDS: Final = 31 * DAY_SECONDS


class SeenNodes:
    """The labels of all nodes that were seen lately: a pod that has ended may have run on one that is gone."""

    def __init__(self) -> None:
        self._labels: dict[str, Mapping[str, str]] = {}
        self._seen_at: dict[str, float] = {}
        self._present: frozenset[str] = frozenset()

    def see(self, nodes: Iterable[Node], now: float) -> None:
        """These are the nodes that there are now."""
        labels = {node.name: node.labels for node in nodes}
        self._present = frozenset(labels)
        self._seen_at |= dict.fromkeys(labels, now)
        self._labels |= labels
        for name in [name for name, seen_at in self._seen_at.items() if now - seen_at > _REMEMBERED_SECONDS]:
            del self._labels[name], self._seen_at[name]

    def values(self, label: str) -> list[str]:
        """The values that the label has now, the empty one for nodes without it, sorted."""
        return sorted({self._labels[name].get(label, "") for name in self._present})

    def part(self, workload: WorkloadRef, label: str, node: str) -> WorkloadRef | None:
        """The part of the workload to which a pod on that node belongs; None when nothing is known of the node."""
        labels = self._labels.get(node)
        return None if labels is None else part_of(workload, label, labels.get(label, ""))


def part_of(workload: WorkloadRef, label: str, value: str) -> WorkloadRef:
    """The pods of the workload on nodes with this value of the label."""
    return replace(workload, part=f"{label}={value}")


def value_of(part: WorkloadRef) -> str:
    """The value of the label that a part stands for."""
    return part.part.partition("=")[2]


def with_parts(plan: Plan, nodes: SeenNodes, unread: ClusterError | None) -> Plan:
    """The plan with a part for each value that the nodes have; ``unread``: why they could not be listed this time."""
    if plan.split is None:
        return plan
    values = nodes.values(plan.split)
    plan = replace(plan, split_parts=tuple(part_of(plan.workload, plan.split, value) for value in values))
    if unread is not None and plan.failure is None:
        key = plan.vpa.key
        plan = replace(plan, failure=Finding(unread.reason, str(key), 1, f"vpa {key}: nodes: {unread}"))
    if len(values) > MAX_VALUES and plan.problem is None:
        message = f"node label {plan.split} has {len(values)} values: at most {MAX_VALUES} can be told apart"
        plan = replace(plan, problem=Problem(CONDITION_CONFIG_UNSUPPORTED, "TooManyNodeLabelValues", message))
    return plan


def largest_of(workload: WorkloadRef, by_part: Iterable[Sequence[Recommendation]]) -> tuple[Recommendation, ...]:
    """What is enough for every part: the largest value of each container and resource, explained by the part it came from."""
    containers: dict[str, list[Recommendation]] = defaultdict(list)
    for found in by_part:
        for one in found:
            containers[one.container].append(one)
    return tuple(_largest(workload, found) for _, found in sorted(containers.items()))


def marked(checkpoint: VpaCheckpoint, part: WorkloadRef) -> VpaCheckpoint:
    """The checkpoint of one part: under a name of its own, and telling which."""
    metadata = checkpoint.metadata
    mark = {ANNOTATION_NODE_LABEL_VALUE: part.part}
    metadata = msgspec.structs.replace(metadata, name=f"{metadata.name}-{short_hash(part.part)}", annotations=metadata.annotations | mark)
    return msgspec.structs.replace(checkpoint, metadata=metadata)


def mark_of(checkpoint: VpaCheckpoint) -> str:
    """The part that a checkpoint is of; empty when it is of all pods."""
    return checkpoint.metadata.annotations.get(ANNOTATION_NODE_LABEL_VALUE, "")


def as_prior(state: StoredState) -> StoredState:
    """What was known of all pods, as the beginning of a part of which nothing is stored: none of the pods is told apart any more."""
    base = state.base
    for _, instance in by_last_sample(state.instances):
        base = fold(base, instance)
    return replace(state, base=base, instances={})


def _largest(workload: WorkloadRef, found: Sequence[Recommendation]) -> Recommendation:
    leader = max(found, key=lambda one: (one.target.memory_bytes or 0, one.target.cpu_millicores or 0))
    drivers = tuple(driver for resource in Resource for driver in _drivers(found, resource))
    findings = tuple(finding for one in found for finding in one.explanation.findings)
    capped_by = tuple(dict.fromkeys(note for one in found for note in one.explanation.capped_by))
    explanation = replace(leader.explanation, drivers=drivers, findings=findings, capped_by=capped_by)
    estimates = [one.estimate for one in found]
    together = Estimate(
        target=_most(one.target for one in estimates),
        lower_bound=_most(one.lower_bound for one in estimates),
        upper_bound=_most(one.upper_bound for one in estimates),
        uncapped_target=_most(one.uncapped_target for one in estimates),
    )
    whole = replace(leader, workload=workload, explanation=explanation, is_thin=any(one.is_thin for one in found))
    return replace(whole, confidence=min(one.confidence for one in found)).with_estimate(together)


def _drivers(found: Sequence[Recommendation], resource: Resource) -> list[Driver]:
    leader = max(found, key=lambda one: one.target.get(resource) or 0)
    return [driver for driver in leader.explanation.drivers if driver.resource is resource]


def _most(amounts: Iterable[Amounts]) -> Amounts:
    every = list(amounts)
    most = {resource: max((a for one in every if (a := one.get(resource)) is not None), default=None) for resource in Resource}
    return Amounts(most[Resource.CPU], most[Resource.MEMORY])
