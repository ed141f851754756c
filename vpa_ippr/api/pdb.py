"""PodDisruptionBudget: how many pods of a selection may be missing at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from vpa_ippr.api.meta import ObjectMeta
from vpa_ippr.api.pod import Pod


class LabelRequirement(msgspec.Struct, frozen=True):
    """``metav1.LabelSelectorRequirement``; ``operator`` is ``In``, ``NotIn``, ``Exists`` or ``DoesNotExist``."""

    key: str
    operator: str
    values: list[str] = []

    def matches(self, labels: Mapping[str, str]) -> bool:
        """True when ``labels`` meet it; an operator that is not known is met, so that a budget rather holds for too many pods."""
        match self.operator:
            case "In":
                return labels.get(self.key) in self.values
            case "NotIn":
                return labels.get(self.key) not in self.values
            case "DoesNotExist":
                return self.key not in labels
            case "Exists":
                return self.key in labels
            case _:
                return True


class LabelSelector(msgspec.Struct, frozen=True, rename="camel"):
    """``metav1.LabelSelector``: all of it must match; an empty one matches everything."""

    match_labels: dict[str, str] = {}
    match_expressions: list[LabelRequirement] = []

    def matches(self, labels: Mapping[str, str]) -> bool:
        """True when ``labels`` meet every requirement."""
        named = all(labels.get(key) == value for key, value in self.match_labels.items())
        return named and all(requirement.matches(labels) for requirement in self.match_expressions)


class PdbSpec(msgspec.Struct, frozen=True, rename="camel"):
    """``policy/v1.PodDisruptionBudgetSpec``; without a selector it covers no pod."""

    selector: LabelSelector | None = None
    unhealthy_pod_eviction_policy: str = "IfHealthyBudget"


class PdbStatus(msgspec.Struct, frozen=True, rename="camel"):
    """``policy/v1.PodDisruptionBudgetStatus``."""

    disruptions_allowed: int = 0
    current_healthy: int = 0
    desired_healthy: int = 0
    observed_generation: int = 0


class PodDisruptionBudget(msgspec.Struct, frozen=True):
    """``policy/v1.PodDisruptionBudget``."""

    metadata: ObjectMeta
    spec: PdbSpec = PdbSpec()
    status: PdbStatus = PdbStatus()

    def covers(self, pod: Pod) -> bool:
        """True when the budget counts ``pod``."""
        selector = self.spec.selector
        same_namespace = self.metadata.namespace == pod.metadata.namespace
        return same_namespace and selector is not None and selector.matches(pod.metadata.labels)

    @property
    def is_stale(self) -> bool:
        """True while the disruption controller has not yet counted by the present spec: the API server refuses evictions then."""
        return self.status.observed_generation < self.metadata.generation

    @property
    def lets_unready_go(self) -> bool:
        """True when a pod that is not Ready may be disturbed without using up the budget."""
        status = self.status
        return self.spec.unhealthy_pod_eviction_policy == "AlwaysAllow" or status.current_healthy >= status.desired_healthy > 0


def covering(pdbs: Iterable[PodDisruptionBudget], pod: Pod) -> tuple[PodDisruptionBudget, ...]:
    """The budgets that count ``pod``."""
    return tuple(pdb for pdb in pdbs if pdb.covers(pod))
