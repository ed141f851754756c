"""Rolling a change out over the pods of one VPA: one pod first, watched for a while, then the others; taken back from all on harm.

Growth takes nothing from anybody and never waits here (unless ``canary`` says ``all``). What is gated is taken move by move: one that the
canary has stood goes, one that did harm is held until its hold-off is over, and a new one goes to the canary alone. Everything follows from
the VPA's annotation and the ledgers of its pods, so a cycle may end anywhere: what was decided and not done is decided again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Final

import msgspec

from vpa_ippr.api.cluster import EventType
from vpa_ippr.api.meta import Condition, find_condition
from vpa_ippr.api.names import CONDITION_DEGRADED
from vpa_ippr.api.pod import Pod
from vpa_ippr.api.timestamps import format_time, parse_time
from vpa_ippr.api.vpa import Vpa
from vpa_ippr.resize.harm import Harm
from vpa_ippr.resize.ledger import Record, read_ledger, spec_is, to_requirements
from vpa_ippr.resize.moves import Move, at_present, id_of, is_as_deep, is_near, judged_from, moves_of, restricted, stands
from vpa_ippr.resize.proposal import Proposal
from vpa_ippr.resize.reasons import DueReason, EventReason, RefusalReason
from vpa_ippr.resize.rollback import lowered, origin_of, undone
from vpa_ippr.resize.rollout_state import (
    MAX_FAILURES,
    Canary,
    Rollout,
    RolloutPhase,
    condition_of,
    degraded,
    pruned,
    read_rollout,
)
from vpa_ippr.resize.settings import Settings
from vpa_ippr.resize.state import is_complete, is_ready

_WATCHED_SOAKS: Final = 2
"""So many soak times after its resize harm to a pod that is no longer the canary still counts."""


@dataclass(frozen=True, slots=True)
class Group:
    """The pods of one VPA.

    ``vpa``: as it is in the cluster, with its own annotations. ``shrinking``: the UIDs of the pods of which a MemoryShrink is under way.
    ``guard_problem``: why the user's guard cannot be asked; empty when it can, or there is none.
    """

    vpa: Vpa
    pods: tuple[Pod, ...]
    shrinking: frozenset[str] = frozenset()
    guard_problem: str = ""


@dataclass(frozen=True, slots=True)
class Held:
    """What has to wait, and why; another part of the same pod's proposal may go."""

    proposal: Proposal
    reason: RefusalReason
    message: str


@dataclass(frozen=True, slots=True)
class VpaEvent:
    """An event to record on the VPA."""

    type: EventType
    reason: EventReason
    message: str


@dataclass(frozen=True, slots=True)
class RolloutStep:
    """What to do now. ``state`` is to be written before anything else is done: nothing of ``go`` may go when that fails.

    ``go``: whole proposals, or the parts of them that may go; ``hold``: the proposals of which something has to wait. ``revert``: pods to
    take back (``rollback_target``, with ``rollout=""``); ``call_off``: pods whose MemoryShrink is not to go on. ``condition``: to be
    written when there is one.
    """

    state: Rollout
    go: tuple[Proposal, ...] = ()
    hold: tuple[Held, ...] = ()
    revert: tuple[Pod, ...] = ()
    call_off: tuple[Pod, ...] = ()
    condition: Condition | None = None
    events: tuple[VpaEvent, ...] = ()


def watched(pod: Pod, rollout: Rollout, now: float, settings: Settings) -> Record | None:
    """The record by which ``harm_of`` is to judge the pod now; None when its resize is not, or no longer, watched."""
    record = _record_in(pod, rollout)
    if record is None or rollout.phase not in (RolloutPhase.CANARY, RolloutPhase.ROLLING):
        return None
    if rollout.phase is RolloutPhase.ROLLING and now >= record.rolled_at + _WATCHED_SOAKS * settings.soak_seconds:
        return None
    return record


def step(group: Group, proposals: Sequence[Proposal], harms: Sequence[Harm], now: float, settings: Settings) -> RolloutStep:
    """The next step of the rollout in ``group``, given what is proposed for its pods and what harm has come to those that are watched.

    Raises:
        QuantityError, ValidationError: a pod that takes part cannot be read.
    """
    scene = _Scene(group, {p.view.pod.metadata.uid: (p, moves_of(p)) for p in proposals}, now, settings)
    progress = _Progress(pruned(read_rollout(group.vpa), now, settings))
    harm = next((harm for harm in harms if _counts(harm, scene, progress.state)), None)
    progress = _watch_canary(progress, scene) if harm is None else _harmed(progress, harm, scene)
    reverts, call_off = _to_revert(progress.state, scene), _to_call_off(progress.state, scene)
    progress = _begin(progress, scene, waiting=bool(reverts or call_off))
    go, hold = _sorted_out(progress.state, scene, {pod.metadata.uid for pod in reverts})
    known = find_condition(group.vpa.status.conditions, CONDITION_DEGRADED)
    return RolloutStep(
        state=progress.state,
        go=go,
        hold=hold,
        revert=reverts,
        call_off=call_off,
        condition=condition_of(progress.state, known, now),
        events=progress.events,
    )


class _Lane(Enum):
    """``FREE`` needs no canary, ``PROVEN`` has had it, ``FAILED`` did harm, ``NEW`` needs one."""

    FREE = auto()
    PROVEN = auto()
    FAILED = auto()
    NEW = auto()


@dataclass(frozen=True, slots=True)
class _Scene:
    group: Group
    proposed: Mapping[str, tuple[Proposal, tuple[Move, ...]]]
    now: float
    settings: Settings
    live: Mapping[str, Pod] = field(init=False)

    def __post_init__(self) -> None:
        alive = {
            pod.metadata.uid: pod
            for pod in self.group.pods
            if pod.metadata.deletion_timestamp is None and pod.status.phase not in ("Succeeded", "Failed")
        }
        object.__setattr__(self, "live", alive)

    def lane(self, uid: str, move: Move, state: Rollout) -> _Lane:
        proposal, _ = self.proposed[uid]
        if not _is_gated(proposal, move, self.settings):
            return _Lane.FREE
        if any(self.now < failure.until and _repeats(move, failure.moves) for failure in state.failures):
            return _Lane.FAILED
        if state.phase is RolloutPhase.ROLLING and any(is_near(move, proven) for proven in state.moves):
            return _Lane.PROVEN
        return _Lane.NEW

    def in_lane(self, uid: str, lane: _Lane, state: Rollout) -> list[Move]:
        _, moves = self.proposed.get(uid, (None, ()))
        return [move for move in moves if self.lane(uid, move, state) is lane]


@dataclass(frozen=True, slots=True)
class _Progress:
    state: Rollout
    events: tuple[VpaEvent, ...] = ()

    def to(self, state: Rollout, *events: VpaEvent) -> _Progress:
        return _Progress(state, (*self.events, *events))


def waits_for_nobody(proposal: Proposal, settings: Settings) -> bool:
    """True when no part of the proposal needs a canary.

    Raises:
        QuantityError: the pod cannot be read.
    """
    return not any(_is_gated(proposal, move, settings) for move in moves_of(proposal))


def _is_gated(proposal: Proposal, move: Move, settings: Settings) -> bool:
    if settings.canary == "off" or (DueReason.QUICK_OOM in proposal.plan.reasons and not move.lowers):
        return False
    return settings.canary == "all" or move.lowers or move.restarts


def _repeats(move: Move, failed: Sequence[Move]) -> bool:
    """True when ``move`` does again what did harm. Plain growth did not, whatever went along with it."""
    for known in failed:
        if move.lowers and known.lowers and is_as_deep(move, known):
            return True
        if (move.lowers or move.restarts) and known.restarts and is_near(move, known):
            return True
    return False


def _record_in(pod: Pod, state: Rollout) -> Record | None:
    record = read_ledger(pod).last
    return record if record is not None and state.key and record.rollout == state.key else None


# -- harm


def _counts(harm: Harm, scene: _Scene, state: Rollout) -> bool:
    pod = scene.live.get(harm.uid)
    return pod is not None and watched(pod, state, scene.now, scene.settings) is not None


def _harmed(progress: _Progress, harm: Harm, scene: _Scene) -> _Progress:
    state = degraded(progress.state, harm.reason, f"pod {harm.pod}: {harm.message}", scene.now, scene.settings)
    failure = state.last_failure
    assert failure is not None  # it has just been noted
    message = f"{harm.reason}: {failure.message}; taken back, and not tried again before {format_time(failure.until)}"
    return progress.to(state, VpaEvent("Warning", EventReason.ROLLOUT_DEGRADED, message))


def _to_revert(state: Rollout, scene: _Scene) -> tuple[Pod, ...]:
    """The pods of the rollout that did harm that still have what it brought; not those that somebody else has resized since."""
    if state.phase is not RolloutPhase.DEGRADED:
        return ()
    records = ((pod, _record_in(pod, state)) for pod in scene.live.values())
    return tuple(pod for pod, record in records if record is not None and spec_is(pod, record.after) and undone(pod, record))


def _to_call_off(state: Rollout, scene: _Scene) -> tuple[Pod, ...]:
    if state.phase is not RolloutPhase.DEGRADED:
        return ()
    return tuple(pod for uid, pod in scene.live.items() if uid in scene.group.shrinking)


# -- the canary


def _watch_canary(progress: _Progress, scene: _Scene) -> _Progress:
    state = progress.state
    if state.phase is not RolloutPhase.CANARY or state.canary is None:
        return progress
    pod = scene.live.get(state.canary.uid)
    if pod is None:
        return progress.to(_without_canary(state))
    new = scene.in_lane(state.canary.uid, _Lane.NEW, state)
    changed = any(not any(is_near(move, known) for known in state.moves) for move in new)
    if changed and scene.now - state.began_at >= scene.settings.soak_seconds:
        return progress.to(*_given_more(state, pod, new, scene))
    if (new and not changed) or state.canary.uid in scene.group.shrinking:
        return progress.to(msgspec.structs.replace(state, since=None))
    return _soak(progress, pod, scene)


def _soak(progress: _Progress, pod: Pod, scene: _Scene) -> _Progress:
    """The canary has all that it is to have: let it stand it for the soak time."""
    state = progress.state
    if not is_complete(pod):
        return progress
    held = _held_by(pod, state)
    if not held:  # refused, or taken back for another reason than harm
        return progress.to(_without_canary(state))
    if state.since is None or any(not any(is_near(move, known) for known in state.moves) for move in held):
        return progress.to(msgspec.structs.replace(state, id=id_of(held), moves=held, since=scene.now))
    if scene.now - state.since < scene.settings.soak_seconds or scene.group.guard_problem:
        return progress
    done = msgspec.structs.replace(
        state, phase=RolloutPhase.ROLLING, moves=held, id=id_of(held), canary=None, since=scene.now, harmed=False
    )
    events = [VpaEvent("Normal", EventReason.ROLLOUT_PROVEN, f"pod {pod.metadata.name} has stood the change: the others follow")]
    if state.harmed:
        events.append(VpaEvent("Normal", EventReason.ROLLOUT_RECOVERED, f"pod {pod.metadata.name} came to no harm this time"))
    return progress.to(done, *events)


def _held_by(pod: Pod, state: Rollout) -> list[Move]:
    """What the canary holds of its change: where a part has grown again, but not to what it was at first, where it has grown to."""
    record = _record_in(pod, state)
    less = lowered(pod, record) if record is not None else frozenset()
    return [move if stands(pod, move) else at_present(pod, move) for move in state.moves if stands(pod, move) or move.part in less]


def _without_canary(state: Rollout) -> Rollout:
    phase = RolloutPhase.DEGRADED if state.harmed else RolloutPhase.IDLE
    return msgspec.structs.replace(state, phase=phase, key="", moves=[], canary=None, since=None)


def _given_more(state: Rollout, pod: Pod, new: Sequence[Move], scene: _Scene) -> tuple[Rollout, VpaEvent]:
    """The canary's rollout goes on with another change; what it had before the rollout stays known by the key."""
    parts, record = {move.part for move in new}, _record_in(pod, state)
    # Less than at first is a decrease, even where the canary itself now grows to it.
    first = origin_of(pod, record) if record is not None else {}
    new = [judged_from(first[move.container], move) if move.container in first else move for move in new]
    moves = [*(move for move in state.moves if move.part not in parts and stands(pod, move)), *new]
    changed = msgspec.structs.replace(state, id=id_of(moves), moves=moves, began_at=scene.now, since=None)
    return changed, _begun_event(pod, changed)


def _begin(progress: _Progress, scene: _Scene, *, waiting: bool) -> _Progress:
    """Choose a canary for what is new, unless one is at it."""
    state = progress.state
    if state.phase is RolloutPhase.CANARY or waiting or scene.group.guard_problem or len(_in_force(state, scene)) >= MAX_FAILURES:
        return progress
    patient = scene.now - (state.since or scene.now) < scene.settings.in_progress_limit_seconds
    if patient and any(scene.in_lane(uid, _Lane.PROVEN, state) for uid in scene.proposed):
        return progress  # first what is under way
    new = {uid: moves for uid in scene.proposed if (moves := scene.in_lane(uid, _Lane.NEW, state))}
    pod = _choose([scene.live[uid] for uid in new if uid in scene.live and _is_feasible(uid, state, scene)], scene)
    if pod is None:
        return progress
    moves = new[pod.metadata.uid]
    change = id_of(moves)
    touched = dict.fromkeys(move.container for move in moves)
    begun = msgspec.structs.replace(
        state,
        phase=RolloutPhase.CANARY,
        id=change,
        key=f"{change}-{scene.now:.0f}",
        moves=moves,
        canary=Canary(pod.metadata.uid, pod.metadata.name),
        began_at=scene.now,
        since=None,
        before={name: to_requirements(pod.desired(name)) for name in touched},
    )
    return progress.to(begun, _begun_event(pod, begun))


def _is_feasible(uid: str, state: Rollout, scene: _Scene) -> bool:
    """True when what may go for this pod as the canary is something that the API server would take."""
    proposal, moves = scene.proposed[uid]
    return restricted(proposal, [move for move in moves if scene.lane(uid, move, state) is not _Lane.FAILED]) is not None


def _in_force(state: Rollout, scene: _Scene) -> list[float]:
    return [failure.until for failure in state.failures if scene.now < failure.until]


def _choose(candidates: Sequence[Pod], scene: _Scene) -> Pod | None:
    """The pod that is Ready and has run longest: its caches are warm, so what it shows is what the others will show.

    Never the only one that serves, unless it is the only one there is.
    """
    ready = sum(is_ready(pod) for pod in scene.live.values())
    if len(scene.live) > 1 and ready <= 1:
        return None
    return min((pod for pod in candidates if is_ready(pod)), key=_age_key, default=None)


def _age_key(pod: Pod) -> tuple[float, str]:
    return parse_time(pod.status.start_time) if pod.status.start_time else float("inf"), pod.metadata.name


def _begun_event(pod: Pod, state: Rollout) -> VpaEvent:
    return VpaEvent("Normal", EventReason.ROLLOUT_BEGUN, f"pod {pod.metadata.name} is the first to get change {state.id}")


# -- what goes and what waits


def _sorted_out(state: Rollout, scene: _Scene, reverting: set[str]) -> tuple[tuple[Proposal, ...], tuple[Held, ...]]:
    go: list[Proposal] = []
    hold: list[Held] = []
    for uid, (proposal, moves) in scene.proposed.items():
        if uid in reverting:
            hold.append(Held(proposal, RefusalReason.DEGRADED, "the pod is being taken back to what it had"))
            continue
        allowed = [move for move in moves if _may_go(uid, move, state, scene)]
        part = restricted(proposal, allowed) if allowed else None
        if part is not None:
            gated = any(scene.lane(uid, move, state) is not _Lane.FREE for move in allowed)
            go.append(replace(part, rollout=state.key) if gated else part)
        if part is not proposal:
            hold.append(_held(uid, proposal, moves, state, scene))
    return tuple(go), tuple(hold)


def _may_go(uid: str, move: Move, state: Rollout, scene: _Scene) -> bool:
    match scene.lane(uid, move, state):
        case _Lane.FREE:
            return True
        case _Lane.FAILED:
            return False
        case _Lane.PROVEN:
            return not scene.group.guard_problem
        case _Lane.NEW:
            is_canary = state.canary is not None and state.canary.uid == uid
            return is_canary and not scene.group.guard_problem and any(is_near(move, known) for known in state.moves)


def _held(uid: str, proposal: Proposal, moves: Sequence[Move], state: Rollout, scene: _Scene) -> Held:
    failed = [move for move in moves if scene.lane(uid, move, state) is _Lane.FAILED]
    known = [f for f in state.failures if scene.now < f.until and any(_repeats(move, f.moves) for move in failed)]
    if known:
        last = max(known, key=lambda failure: failure.until)
        return Held(proposal, RefusalReason.DEGRADED, f"not before {format_time(last.until)}: {last.message}")
    if scene.group.guard_problem:
        return Held(proposal, RefusalReason.GUARD, f"the rollout waits until its guard can be asked: {scene.group.guard_problem}")
    if state.canary is not None:
        return Held(
            proposal, RefusalReason.CANARY, f"pod {state.canary.name} has to stand its own change for {scene.settings.soak_seconds:.0f} s"
        )
    return Held(proposal, RefusalReason.CANARY, "no pod can be the first now")
