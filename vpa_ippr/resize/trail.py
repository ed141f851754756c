"""What the updater has done about the pods of a workload, what it would do next, and why: computed, never carried out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from vpa_ippr.api.errors import VpaIpprError
from vpa_ippr.api.meta import ObjectKey
from vpa_ippr.api.pod import Pod
from vpa_ippr.api.vpa import Vpa
from vpa_ippr.resize.arranging import Budgets, Watch, arrange
from vpa_ippr.resize.consider import EvictionCandidate, consider
from vpa_ippr.resize.due import NotDue
from vpa_ippr.resize.follow import ResumeRevert, Revert, Wait, follow
from vpa_ippr.resize.patch import describe
from vpa_ippr.resize.plan import Refused
from vpa_ippr.resize.proposal import Proposal
from vpa_ippr.resize.reasons import NotDueReason, OutcomeCode
from vpa_ippr.resize.relief import Plea, Relief, relief_of
from vpa_ippr.resize.relief_size import Ground
from vpa_ippr.resize.rules import VersionRules
from vpa_ippr.resize.settings import Settings
from vpa_ippr.resize.state import Unsupported
from vpa_ippr.resize.targets import Target, targets_of
from vpa_ippr.resize.view import View
from vpa_ippr.resize.world import World


@dataclass(frozen=True, slots=True)
class NextStep:
    """What would be done in the coming cycle; ``code`` is the outcome that it would have."""

    code: OutcomeCode
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Pressed:
    """What the node's agent tells of a container at its memory limit, and what would be done about it."""

    plea: Plea
    step: NextStep


@dataclass(frozen=True, slots=True)
class PodTrail:
    """One pod. ``view`` and ``targets`` are missing where the pod, or what is recommended for it, cannot be read."""

    pod: Pod
    vpa: Vpa | None
    view: View | None
    targets: tuple[Target, ...]
    next_step: NextStep
    pressing: tuple[Pressed, ...] = ()


def trails(
    world: World, wanted: Callable[[Pod], bool], rules: VersionRules, settings: Settings, now: float, pleas: Sequence[Plea] = ()
) -> list[PodTrail]:
    """The trails of the wanted pods; all others are looked at too, for they share nodes, quotas and budgets."""
    looked = [_look(world, pod, vpa, rules, settings, now) for pod, vpa in world.ours()]
    found = [trail for trail, _ in looked if wanted(trail.pod)]
    steps = _arranged(world, [proposal for _, proposal in looked if proposal is not None], settings, now)
    by_pod: dict[ObjectKey, list[Plea]] = defaultdict(list)
    for plea in pleas:
        by_pod[plea.pod].append(plea)
    ground = Ground.of(world, {trail.pod.spec.node_name for trail in found if trail.pod.key in by_pod})
    return [
        replace(
            trail,
            next_step=steps.get(trail.pod.key, trail.next_step),
            pressing=tuple(_pressed(plea, trail.view, rules, ground, settings) for plea in by_pod[trail.pod.key] if trail.view),
        )
        for trail in found
    ]


def _pressed(plea: Plea, view: View, rules: VersionRules, ground: Ground, settings: Settings) -> Pressed:
    try:
        verdict = relief_of(plea, view, rules, ground, settings)
    except VpaIpprError as error:
        return Pressed(plea, NextStep(OutcomeCode.BAD_OBJECT, error.reason, str(error)))
    if isinstance(verdict, Relief):
        return Pressed(plea, NextStep(OutcomeCode.RELIEVED, plea.entry.reason, verdict.message))
    return Pressed(plea, NextStep(OutcomeCode.NOT_RELIEVED, verdict.reason, verdict.message))


def _look(world: World, pod: Pod, vpa: Vpa | None, rules: VersionRules, settings: Settings, now: float) -> tuple[PodTrail, Proposal | None]:
    try:
        view = world.view(pod, vpa, now, settings)
        targets = targets_of(pod, vpa, view.ledger, view.limits) if vpa is not None else ()
        step = _next_step(view, rules, settings)
    except VpaIpprError as error:
        return PodTrail(pod, vpa, None, (), NextStep(OutcomeCode.BAD_OBJECT, error.reason, str(error))), None
    proposal = step if isinstance(step, Proposal) else None
    told = NextStep(OutcomeCode.ISSUED) if isinstance(step, Proposal) else step
    return PodTrail(pod, vpa, view, targets, told), proposal


def _next_step(view: View, rules: VersionRules, settings: Settings) -> NextStep | Proposal:
    return _under_way(view, settings) or _considered(view, rules, settings)


def _under_way(view: View, settings: Settings) -> NextStep | None:
    for shrink in view.active:
        status = shrink.status
        message = f"memoryshrink {shrink.metadata.name} is {status.phase}: {status.message}".rstrip(": ")
        return NextStep(OutcomeCode.SHRINK_ACTIVE, status.reason or status.phase, message)
    match follow(view.pod, view.state, view.ledger, view.now, settings):
        case Wait(code, message):
            return NextStep(code, message=message)
        case Revert() as revert:
            return NextStep(OutcomeCode.REVERTED, revert.reason, revert.message)
        case ResumeRevert():
            return NextStep(OutcomeCode.REVERTED)
    return None


def _considered(view: View, rules: VersionRules, settings: Settings) -> NextStep | Proposal:
    match consider(view, rules, settings):
        case Proposal() as proposal:
            return proposal
        case EvictionCandidate() as candidate:
            return _hindered(candidate)
        case NotDue() as no:
            return NextStep(OutcomeCode.NOT_DUE, no.reason, no.message)
        case Refused() as no:
            return NextStep(OutcomeCode.REFUSED, no.reason, no.message)
        case Unsupported(why):
            return NextStep(OutcomeCode.UNSUPPORTED, why)
    return NextStep(OutcomeCode.NOT_DUE, NotDueReason.NO_VPA, "no VerticalPodAutoscaler is about this pod")


def _hindered(candidate: EvictionCandidate) -> NextStep:
    hindrance = candidate.occasion.hindrance
    if hindrance is None:
        return NextStep(OutcomeCode.EVICTED, "", f"mode {candidate.vpa.update_mode} has it evicted as soon as its budget allows")
    message = f"{hindrance.message}; evicted instead where that helps and its budget allows".lstrip("; ")
    return NextStep(OutcomeCode.REFUSED, hindrance.reason, message)


def _arranged(world: World, proposals: Sequence[Proposal], settings: Settings, now: float) -> dict[ObjectKey, NextStep]:
    arrangement = arrange(world, proposals, Budgets(world, settings), Watch(), None, now, settings)
    held = {one.proposal.view.pod.key: NextStep(OutcomeCode.REFUSED, one.reason, one.message) for one in arrangement.held}
    return held | {proposal.view.pod.key: _issued(proposal) for proposal in arrangement.go}


def _issued(proposal: Proposal) -> NextStep:
    plan = proposal.plan
    if plan.changes:
        return NextStep(OutcomeCode.ISSUED, ", ".join(plan.reasons), describe(plan.changes))
    containers = ", ".join(need.container for need in plan.shrinks)
    return NextStep(OutcomeCode.SHRINK_OPENED, ", ".join(plan.reasons), f"memory limit of {containers} is to come down")
