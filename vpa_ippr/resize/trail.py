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
from vpa_ippr.resize.boost import Unboost, boost_step
from vpa_ippr.resize.consider import EvictionCandidate, consider, or_evict
from vpa_ippr.resize.due import NotDue
from vpa_ippr.resize.evicting import Admission, judge_candidate
from vpa_ippr.resize.eviction import Keep
from vpa_ippr.resize.follow import ResumeRevert, Revert, Wait, follow
from vpa_ippr.resize.patch import changes_to, describe
from vpa_ippr.resize.plan import Refused
from vpa_ippr.resize.proposal import Proposal
from vpa_ippr.resize.reasons import DueReason, NotDueReason, OutcomeCode, RevertReason
from vpa_ippr.resize.relief import Plea, Relief, relief_of
from vpa_ippr.resize.relief_size import Ground
from vpa_ippr.resize.rollout_state import Rollout
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


_Step = NextStep | Proposal | EvictionCandidate
"""What a look at one pod alone finds: the step itself, or what depends on the others too."""


def trails(
    world: World,
    wanted: Callable[[Pod], bool],
    rules: VersionRules,
    settings: Settings,
    now: float,
    admission: Admission,
    pleas: Sequence[Plea] = (),
) -> list[PodTrail]:
    """The trails of the wanted pods; all others are looked at too, for they share nodes, quotas and budgets."""
    looked = [_look(world, pod, vpa, rules, settings, now) for pod, vpa in world.ours()]
    found = [trail for trail, _ in looked if wanted(trail.pod)]
    steps = _arranged(world, [step for _, step in looked if step is not None], settings, now, admission)
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


def _look(
    world: World, pod: Pod, vpa: Vpa | None, rules: VersionRules, settings: Settings, now: float
) -> tuple[PodTrail, Proposal | EvictionCandidate | None]:
    try:
        view = world.view(pod, vpa, now, settings)
        targets = targets_of(pod, vpa, view.ledger, view.limits) if vpa is not None else ()
        step = _next_step(view, rules, settings)
    except VpaIpprError as error:
        return PodTrail(pod, vpa, None, (), NextStep(OutcomeCode.BAD_OBJECT, error.reason, str(error))), None
    if isinstance(step, NextStep):
        return PodTrail(pod, vpa, view, targets, step), None
    return PodTrail(pod, vpa, view, targets, NextStep(OutcomeCode.ISSUED)), step


def _next_step(view: View, rules: VersionRules, settings: Settings) -> _Step:
    """In the order of the updater's turn: what is under way, the end of a boost, then what is due; growth does not wait for a shrink."""
    step = _under_way(view, settings) or _boost_over(view) or _considered(view, rules, settings)
    return _shrinking(view) or step if isinstance(step, NextStep) and step.code is OutcomeCode.NOT_DUE else step


def _under_way(view: View, settings: Settings) -> NextStep | EvictionCandidate | None:
    match follow(view.pod, view.state, view.ledger, view.now, settings):
        case Wait(code, message):
            return NextStep(code, message=message)
        case Revert() as revert:
            found = or_evict(view, revert)
            return found if isinstance(found, EvictionCandidate) else NextStep(OutcomeCode.REVERTED, revert.reason, revert.message)
        case ResumeRevert():
            return NextStep(OutcomeCode.REVERTED)
    return None


def _boost_over(view: View) -> NextStep | None:
    if view.vpa is None or view.circumstances.paused or isinstance(view.state, Unsupported):
        return None
    boost = boost_step(view.pod, view.vpa, view.now, view.ledger, view.limits, view.circumstances.sharing)
    if not isinstance(boost, Unboost) or not boost.after:
        return None
    return NextStep(OutcomeCode.ISSUED, DueReason.BOOST_OVER, describe(changes_to(view.pod, dict(boost.after))))


def _shrinking(view: View) -> NextStep | None:
    for shrink in view.active:
        status = shrink.status
        message = f"memoryshrink {shrink.metadata.name} is {status.phase}: {status.message}".rstrip(": ")
        return NextStep(OutcomeCode.SHRINK_ACTIVE, status.reason or status.phase, message)
    return None


def _considered(view: View, rules: VersionRules, settings: Settings) -> _Step:
    match consider(view, rules, settings):
        case Proposal() | EvictionCandidate() as step:
            return step
        case NotDue() as no:
            return NextStep(OutcomeCode.NOT_DUE, no.reason, no.message)
        case Refused() as no:
            return NextStep(OutcomeCode.REFUSED, no.reason, no.message)
        case Unsupported(why):
            return NextStep(OutcomeCode.UNSUPPORTED, why)
    return NextStep(OutcomeCode.NOT_DUE, NotDueReason.NO_VPA, "no VerticalPodAutoscaler is about this pod")


def _arranged(
    world: World, steps: Sequence[Proposal | EvictionCandidate], settings: Settings, now: float, admission: Admission
) -> dict[ObjectKey, NextStep]:
    budgets = Budgets(world, settings)
    arrangement = arrange(world, [one for one in steps if isinstance(one, Proposal)], budgets, Watch(), None, now, settings)
    found = {one.proposal.view.pod.key: NextStep(OutcomeCode.REFUSED, one.reason, one.message) for one in reversed(arrangement.held)}
    found |= {proposal.view.pod.key: _issued(proposal) for proposal in arrangement.go}
    for candidate in steps:
        if isinstance(candidate, EvictionCandidate):
            state = arrangement.rollout_of(candidate.vpa)
            found[candidate.view.pod.key] = _settled(candidate, world, budgets, state, admission, settings)
    reverting = [pod for step in arrangement.rollouts.values() for pod in step.revert]
    return found | {pod.key: NextStep(OutcomeCode.REVERTED, RevertReason.DEGRADED) for pod in reverting}


def _settled(
    candidate: EvictionCandidate, world: World, budgets: Budgets, rollout: Rollout, admission: Admission, settings: Settings
) -> NextStep:
    """Evicted, or what holds while it is not."""
    try:
        verdict = judge_candidate(candidate, world, budgets, rollout, admission, None, settings)
    except VpaIpprError as error:
        return NextStep(OutcomeCode.BAD_OBJECT, error.reason, str(error))
    if not isinstance(verdict, Keep):
        return NextStep(OutcomeCode.EVICTED, verdict.reasons[0], ", ".join(verdict.reasons))
    hindrance, otherwise = candidate.occasion.hindrance, candidate.otherwise
    if hindrance is None:
        return NextStep(OutcomeCode.NOT_DUE, verdict.reason, verdict.message)
    if isinstance(otherwise, Revert):
        return NextStep(OutcomeCode.REVERTED, otherwise.reason, otherwise.message)
    message = f"{hindrance.message}; not evicted instead ({verdict.reason}): {verdict.message}".lstrip("; ")
    code = OutcomeCode.UNSUPPORTED if isinstance(otherwise, Unsupported) else OutcomeCode.REFUSED
    return NextStep(code, hindrance.reason, message)


def _issued(proposal: Proposal) -> NextStep:
    plan = proposal.plan
    if plan.changes:
        return NextStep(OutcomeCode.ISSUED, ", ".join(plan.reasons), describe(plan.changes))
    containers = ", ".join(need.container for need in plan.shrinks)
    return NextStep(OutcomeCode.SHRINK_OPENED, ", ".join(plan.reasons), f"memory limit of {containers} is to come down")
