"""Which of a cycle's proposals may go now: those of one node, one namespace or one workload are looked at together."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from vpa_ippr.api.errors import QuantityError, VpaIpprError
from vpa_ippr.api.meta import ObjectKey
from vpa_ippr.api.names import ANNOTATION_ROLLOUT
from vpa_ippr.api.pdb import PodDisruptionBudget
from vpa_ippr.api.pod import Pod
from vpa_ippr.api.shrink import MemoryShrink
from vpa_ippr.api.vpa import Vpa
from vpa_ippr.resize.budget import Budget
from vpa_ippr.resize.footprint import Wish
from vpa_ippr.resize.harm import Harm
from vpa_ippr.resize.moves import moves_of, restricted
from vpa_ippr.resize.node_plan import Hold, plan_node
from vpa_ippr.resize.proposal import Proposal
from vpa_ippr.resize.quota_fit import NO_QUOTA, QuotaRoom
from vpa_ippr.resize.rate import Bucket, limit_rate
from vpa_ippr.resize.reasons import RefusalReason
from vpa_ippr.resize.rollout import Group, RolloutStep, step, waits_for_nobody
from vpa_ippr.resize.rollout_state import Rollout, read_rollout
from vpa_ippr.resize.settings import Settings
from vpa_ippr.resize.world import World, pod_id

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HeldBack:
    """A proposal of which something has to wait, and why."""

    proposal: Proposal
    reason: RefusalReason
    message: str


@dataclass(frozen=True, slots=True)
class Watch:
    """What is known of the pods that were resized lately: harm that came to them, and guards that cannot be asked, by VPA."""

    harms: Mapping[ObjectKey, Sequence[Harm]] = field(default_factory=dict)
    guard_problems: Mapping[ObjectKey, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Arrangement:
    """``go``: in the order in which to issue them. ``rollouts``: by VPA, to be written before anything of it goes.

    ``failures``: VPAs whose rollout could not be worked out, of which nothing goes. ``bucket`` is for the next cycle.
    """

    go: tuple[Proposal, ...]
    held: tuple[HeldBack, ...]
    rollouts: Mapping[ObjectKey, RolloutStep]
    failures: Mapping[ObjectKey, Exception]
    bucket: Bucket | None

    def rollout_of(self, vpa: Vpa) -> Rollout:
        """Where the VPA's rollout stands after this cycle's step, or as it is written where there was none."""
        step = self.rollouts.get(vpa.key)
        return step.state if step is not None else read_rollout(vpa)


class Budgets:
    """The disruption budgets of one cycle; what one workload takes from a PodDisruptionBudget all others miss."""

    def __init__(self, world: World, settings: Settings) -> None:
        self._world = world
        self._settings = settings
        self._pdbs: dict[str, tuple[PodDisruptionBudget, ...]] = defaultdict(tuple)
        for pdb in world.pdbs:
            self._pdbs[pdb.metadata.namespace] += (pdb,)
        self._made: dict[ObjectKey, Budget] = {}
        self.taken = 0
        """Pods that are or were about to be disturbed."""

    @property
    def left(self) -> int:
        """How many more pods of the workloads that were asked about may be disturbed."""
        return sum(budget.left for budget in self._made.values())

    def copy(self) -> Budgets:
        """The same, to be charged with what may yet be held back."""
        copied = Budgets(self._world, self._settings)
        copied._made, copied._pdbs = dict(self._made), self._pdbs.copy()
        return copied

    def of(self, vpa: Vpa) -> Budget:
        """What is left for the pods of this VPA."""
        made, pdbs = self._made.get(vpa.key), self._pdbs[vpa.metadata.namespace]
        if made is None:
            workload, pods = self._world.workloads.get(vpa.key), self._world.groups.get(vpa.key, ())
            made = self._made[vpa.key] = Budget.of(pods, workload.replicas if workload else None, pdbs, vpa, self._settings)
        return made if made.pdbs is pdbs else replace(made, pdbs=pdbs)

    def take(self, vpa: Vpa, pod: Pod) -> None:
        """The pod is about to be disturbed."""
        budget = self.of(vpa).taking(pod)
        self._made[vpa.key], self._pdbs[vpa.metadata.namespace] = budget, budget.pdbs
        self.taken += 1

    def charge(self, vpa: Vpa, pod: Pod) -> str | None:
        """Why the pod may not be disturbed now; None when it may, and then it counts as about to be."""
        refusal = self.of(vpa).allows(pod)
        if refusal is None:
            self.take(vpa, pod)
        return refusal


def arrange(
    world: World, proposals: Sequence[Proposal], budgets: Budgets, watch: Watch, bucket: Bucket | None, now: float, settings: Settings
) -> Arrangement:
    """What goes, and what is held back. ``budgets`` are charged with the containers that are going to be restarted."""
    short: list[HeldBack] = []
    fitting = _within_nodes(world, _within_quotas(world, proposals, short), settings, short)
    affordable = _within_budgets(fitting, budgets.copy(), short)
    rollouts, failures = _rollouts(world, affordable, watch, now, settings)
    waiting = [HeldBack(one.proposal, one.reason, one.message) for found in rollouts.values() for one in found.hold]
    cleared = _in_order(affordable, (one for found in rollouts.values() for one in found.go))
    cleared, short = _with_what_is_left(world, cleared, short, settings)
    held = [*short, *waiting]
    rated = limit_rate(cleared, bucket, now, settings)
    held += [HeldBack(one, RefusalReason.RATE, f"not more than {settings.max_resizes_per_minute} resizes a minute") for one in rated.hold]
    # Only now: what is held must not keep others from being disturbed, those that are taken back least of all.
    for proposal in rated.go:
        if proposal.plan.restarts:
            budgets.take(proposal.vpa, proposal.view.pod)
    return Arrangement(rated.go, tuple(held), rollouts, failures, rated.bucket)


def _with_what_is_left(
    world: World, cleared: list[Proposal], short: list[HeldBack], settings: Settings
) -> tuple[list[Proposal], list[HeldBack]]:
    """Besides what is cleared, the growths that would have fitted but for changes that wait after all; and what is short even so.

    A soak, a disruption budget or the hold-off after harm may take long: room is kept for what waits only against what waits likewise.
    """
    going = {proposal.view.pod.key for proposal in cleared}
    again = {one.proposal.view.pod.key: one.proposal for one in short if _may_take_what_waits(one, settings)}
    again = {key: proposal for key, proposal in again.items() if key not in going}
    if not again:
        return cleared, short
    ignored: list[HeldBack] = []
    tried = _within_nodes(world, _within_quotas(world, [*cleared, *again.values()], ignored), settings, ignored)
    fitting = {proposal.view.pod.key: proposal for proposal in tried if again.get(proposal.view.pod.key) is proposal}
    return [*cleared, *fitting.values()], [one for one in short if one.proposal.view.pod.key not in fitting]


def _may_take_what_waits(one: HeldBack, settings: Settings) -> bool:
    if one.reason not in (RefusalReason.QUOTA_WOULD_EXCEED, RefusalReason.NODE_FULL) or one.proposal.plan.restarts:
        return False
    try:
        return waits_for_nobody(one.proposal, settings)
    except VpaIpprError:
        return False


def _within_quotas(world: World, proposals: Iterable[Proposal], held: list[HeldBack]) -> list[Proposal]:
    rooms: dict[str, QuotaRoom | QuantityError] = dict(world.quotas)
    fitting: list[Proposal] = []
    for proposal in proposals:
        namespace, wish = proposal.view.pod.metadata.namespace, _wish(proposal)
        room = rooms.get(namespace, NO_QUOTA)
        if isinstance(room, QuantityError):  # the API server knows it, and has the last word
            fitting.append(proposal)
            continue
        try:
            refusal = room.refusal(wish)
            rooms[namespace] = room if refusal is not None else room.taking(wish)
        except QuantityError as error:
            held.append(HeldBack(proposal, RefusalReason.UNREADABLE, str(error)))
            continue
        if refusal is not None:
            held.append(HeldBack(proposal, RefusalReason.QUOTA_WOULD_EXCEED, refusal))
        else:
            fitting.append(proposal)
    return fitting


def _within_nodes(world: World, proposals: Iterable[Proposal], settings: Settings, held: list[HeldBack]) -> list[Proposal]:
    by_node: dict[str, list[Proposal]] = defaultdict(list)
    for proposal in proposals:
        by_node[proposal.view.pod.spec.node_name].append(proposal)
    pods_of: dict[str, list[Pod]] = defaultdict(list)
    for pod in world.pods:
        if pod.spec.node_name in by_node:
            pods_of[pod.spec.node_name].append(pod)
    fitting: list[Proposal] = []
    for name, found in sorted(by_node.items()):
        mine = {proposal.view.pod.key: proposal for proposal in found}
        for verdict in plan_node(world.nodes.get(name), pods_of[name], [_wish(proposal) for proposal in found], settings).verdicts:
            proposal = mine[verdict.wish.pod.key]
            if not isinstance(verdict, Hold):
                fitting.append(proposal)
                continue
            held.append(HeldBack(proposal, verdict.reason, verdict.message))
            smaller = _without_growth(proposal) if verdict.reason is RefusalReason.NODE_FULL else None
            fitting += [smaller] if smaller is not None else []
    return fitting


def _without_growth(proposal: Proposal) -> Proposal | None:
    """What of a proposal takes no room from anybody: it goes although its node is full, or two that wait for each other would for ever."""
    pod = proposal.view.pod
    free = [move for move in moves_of(proposal) if (move.request or 0) <= (pod.desired(move.container).requests.get(move.resource) or 0)]
    return restricted(proposal, free) if free else None


def _within_budgets(proposals: Iterable[Proposal], budgets: Budgets, held: list[HeldBack]) -> list[Proposal]:
    affordable: list[Proposal] = []
    for proposal in proposals:
        if proposal.plan.restarts:
            refusal = budgets.charge(proposal.vpa, proposal.view.pod)
            if refusal is not None:
                held.append(HeldBack(proposal, RefusalReason.DISRUPTION_BUDGET, refusal))
                continue
        affordable.append(proposal)
    return affordable


def _rollouts(
    world: World, proposals: Iterable[Proposal], watch: Watch, now: float, settings: Settings
) -> tuple[dict[ObjectKey, RolloutStep], dict[ObjectKey, Exception]]:
    by_vpa: dict[ObjectKey, list[Proposal]] = defaultdict(list)
    for proposal in proposals:
        by_vpa[proposal.vpa.key].append(proposal)
    steps: dict[ObjectKey, RolloutStep] = {}
    failures: dict[ObjectKey, Exception] = {}
    for vpa in world.vpas:
        if vpa.key not in by_vpa and ANNOTATION_ROLLOUT not in vpa.metadata.annotations:
            continue
        pods = tuple(world.groups.get(vpa.key, ()))
        shrinking = frozenset(pod.metadata.uid for pod in pods if any(_is_active(one) for one in world.shrinks.get(pod_id(pod), ())))
        group = Group(vpa, pods, shrinking, watch.guard_problems.get(vpa.key, ""))
        try:
            steps[vpa.key] = step(group, by_vpa.get(vpa.key, ()), watch.harms.get(vpa.key, ()), now, settings)
        except VpaIpprError as error:
            failures[vpa.key] = error
        except Exception as error:  # the boundary between VPAs: one must not stop the others
            logger.exception("rollout not worked out", extra={"vpa": str(vpa.key)})
            failures[vpa.key] = error
    return steps, failures


def _is_active(shrink: MemoryShrink) -> bool:
    return not shrink.status.phase.is_terminal


def _in_order(all_of_them: Sequence[Proposal], cleared: Iterable[Proposal]) -> list[Proposal]:
    place = {proposal.view.pod.key: number for number, proposal in enumerate(all_of_them)}
    return sorted(cleared, key=lambda proposal: place[proposal.view.pod.key])


def _wish(proposal: Proposal) -> Wish:
    return Wish(proposal.view.pod, proposal.plan.after)
