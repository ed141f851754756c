"""What each VPA of ours asks for: its profile, its workload, and whether it can be served."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from vpa_ippr.api.errors import ClusterError, QuantityError, UsageError, ValidationError, VpaIpprError
from vpa_ippr.api.meta import ObjectKey
from vpa_ippr.api.names import CONDITION_CONFIG_UNSUPPORTED
from vpa_ippr.api.node_split import split_label
from vpa_ippr.api.series import Finding, WorkloadRef
from vpa_ippr.api.vpa import Vpa
from vpa_ippr.forecast.catalogue import Profile, choose
from vpa_ippr.recommend.cycle import RecommenderSettings
from vpa_ippr.recommend.ownership import FindWorkload, oldest_first, profile_name, target_workload
from vpa_ippr.recommend.policy import PolicyRules, read_policy, with_overrides
from vpa_ippr.recommend.status import Problem
from vpa_ippr.usage.container import UsageRules

SHADOWED: Final = "OlderVpaWins"


@dataclass(frozen=True, slots=True)
class Plan:
    """A VPA whose usage is kept. With a ``problem`` it gets no recommendation; with a ``failure`` nothing at all this time.

    ``split``: the node label by whose values its pods are told apart, each of ``split_parts`` those of one value.
    """

    vpa: Vpa
    profile: Profile
    rules: UsageRules
    workload: WorkloadRef
    problem: Problem | None = None
    failure: Finding | None = None
    split: str | None = None
    split_parts: tuple[WorkloadRef, ...] = ()

    @property
    def parts(self) -> tuple[WorkloadRef, ...]:
        """What is reckoned on its own: the workload, or the parts of its pods that are told apart."""
        return (self.workload,) if self.split is None else self.split_parts

    @property
    def is_served(self) -> bool:
        """True when the VPA gets recommendations and owns its workload's history."""
        return self.problem is None and self.failure is None

    def rules_of(self, container: str) -> UsageRules:
        """The rules for a container's samples."""
        return with_overrides(self.rules, self.vpa.policy_for(container))

    def policy_of(self, container: str) -> PolicyRules:
        """The policy for a container."""
        return read_policy(self.vpa.policy_for(container), f"vpa {self.vpa.key} policy of {container}")


@dataclass(frozen=True, slots=True)
class Refused:
    """A VPA of ours from whose spec nothing can be planned."""

    vpa: Vpa
    problem: Problem


def plan_vpas(
    vpas: Iterable[Vpa], catalogue: Mapping[str, Profile], settings: RecommenderSettings, find: FindWorkload
) -> tuple[list[Plan], list[Refused]]:
    """A plan for each VPA of ours, oldest first. Of several on one workload the oldest is served.

    The usage of a workload is kept even while its lookup fails: a lookup that fails for a moment must not cost the history.
    """
    plans: list[Plan] = []
    refused: list[Refused] = []
    winners: dict[WorkloadRef, ObjectKey] = {}
    for vpa in oldest_first(vpas):
        name = profile_name(vpa, default_profile=settings.default_profile, default_recommender=settings.default_recommender)
        if name is None:
            continue
        try:
            plan = _plan(vpa, choose(catalogue, name))
        except (QuantityError, UsageError, ValidationError) as error:
            refused.append(Refused(vpa, _unsupported(error)))
            continue
        plans.append(_settled(plan, winners, find))
    return plans, refused


def _plan(vpa: Vpa, profile: Profile) -> Plan:
    target = vpa.spec.target_ref
    if target is None:
        raise ValidationError("spec.targetRef: required", reason="InvalidSpec")
    workload = WorkloadRef(vpa.metadata.namespace, target.kind, target.name)
    plan = Plan(vpa, profile, profile.usage_rules(), workload, split=split_label(vpa))
    for policy in vpa.spec.resource_policy.container_policies if vpa.spec.resource_policy else []:
        plan.policy_of(policy.container_name)
        plan.rules_of(policy.container_name)
    return plan


def _settled(plan: Plan, winners: dict[WorkloadRef, ObjectKey], find: FindWorkload) -> Plan:
    key = plan.vpa.key
    try:
        target_workload(plan.vpa, find)
    except ValidationError as error:
        return replace(plan, problem=_unsupported(error))
    except ClusterError as error:
        return replace(plan, failure=Finding(error.reason, str(key), 1, f"vpa {key}: {error}"))
    winner = winners.setdefault(plan.workload, key)
    if winner == key:
        return plan
    message = f"{plan.workload.kind}/{plan.workload.name} is already served by the older vpa {winner.name}: delete one of them"
    return replace(plan, problem=Problem(CONDITION_CONFIG_UNSUPPORTED, SHADOWED, message))


def _unsupported(error: VpaIpprError) -> Problem:
    return Problem(CONDITION_CONFIG_UNSUPPORTED, error.reason, str(error))
