"""The shrink machine: a pure function from a state and what is seen now to the next state and what is to be done.

    Pending -> Observing -> Shrinking -> Holding -> Committed -> Done
                  |             |           |           |
               Refused      Reverted | Aborted | Expired | Gone

Shrinking takes small reclaim steps, each followed by a settle window, and then stands at the goal for the stability time. Holding waits
for ``memory.max`` to be read at the target, Committed is the probation. Nothing is written before Shrinking, and every end after that goes
through ``_finish``: memory.high is put back and read back before the phase becomes terminal and the journal is dropped.
"""

from __future__ import annotations

import math
from dataclasses import replace

from vpa_ippr.actuator import signals
from vpa_ippr.actuator.assess import Assessment, assess, bearable_limit, growth_after_commit, needs_longer_look, take_sample
from vpa_ippr.actuator.policy import MIB, Policy, mib
from vpa_ippr.actuator.reasons import Reason
from vpa_ippr.actuator.state import (
    DropJournal,
    Ending,
    Observation,
    Original,
    ReportStatus,
    RestoreHigh,
    ShrinkState,
)
from vpa_ippr.actuator.stepping import hold, shrink, start_pace
from vpa_ippr.actuator.turn import Move, Result, Turn, enter, has_followed, hurt
from vpa_ippr.api.shrink import Phase

_SURE_SHARE_OF_PACE = 0.7
"""What a shrink may count on of the node's budget: the first steps refault, and others draw on it."""


def step(state: ShrinkState, observation: Observation, policy: Policy, now: float) -> Result:
    """One move. Call it again with a fresh observation right after a ``Reclaim`` or a ``RestoreHigh`` was carried out."""
    if state.phase.is_terminal:
        return state, ()
    turn = Turn(_look(state, observation, policy, now), observation, policy, now)
    move = state.ending or _forced_ending(turn) or _PHASES[state.phase](turn)
    moved, actions = _finish(turn, move) if isinstance(move, Ending) else move
    is_due = now - state.reported_at >= policy.report_seconds
    if moved.phase is not state.phase or moved.ending is not None or is_due:
        return replace(moved, reported_at=now), (*actions, ReportStatus())
    return moved, actions


def next_wake(state: ShrinkState, policy: Policy) -> float:
    """When the machine wants to look again; infinity once it is terminal."""
    if state.phase.is_terminal:
        return math.inf
    waits = {Phase.PENDING: policy.poll_seconds, Phase.COMMITTED: policy.probation_tick_seconds}
    wait = policy.tick_seconds if state.ending is not None else waits.get(state.phase, policy.tick_seconds)
    return state.updated_at + wait


def _look(state: ShrinkState, observation: Observation, policy: Policy, now: float) -> ShrinkState:
    if observation.snapshot is None:
        return replace(state, updated_at=now)
    sample = take_sample(observation.snapshot, now, policy.page_bytes, may_swap=policy.may_swap)
    kept = {Phase.OBSERVING: policy.observe_max_seconds, Phase.COMMITTED: policy.probation_seconds}.get(state.phase, 0.0)
    kept = max(kept, policy.probation_limit_window_seconds + policy.settle_seconds)
    edge = now - kept - 2 * policy.probation_tick_seconds
    # The last look stays however old it is, for the gap to be seen.
    kept_samples = [s for s in state.samples if s.at <= now and (s.at >= edge or s is state.last)]
    return replace(state, updated_at=now, samples=(*kept_samples, sample))


def _forced_ending(turn: Turn) -> Ending | None:
    """What ends a shrink in whatever phase it is."""
    observation, state = turn.observation, turn.state
    if observation.verdict is not None:
        return observation.verdict
    if observation.snapshot is None:
        return Ending(Phase.GONE, Reason.CONTAINER_GONE, "the container's cgroup is gone")
    if observation.abort:
        return Ending(Phase.ABORTED, Reason.ABORT_REQUESTED, "as asked")
    if not observation.snapshot.populated:
        return Ending(Phase.GONE, Reason.CONTAINER_EXITED, "no process is left in the container's cgroup")
    if state.phase is Phase.COMMITTED:
        return None
    if observation.snapshot.frozen:
        return hurt(Reason.FROZEN, "the container is frozen: its pages cannot come back and its pressure says nothing")
    if turn.now >= state.deadline_at and not has_followed(turn):
        return _expired(turn)
    return None


def _expired(turn: Turn) -> Ending:
    state = turn.state
    message = f"not committed within {state.deadline_at - state.started_at:.0f} s ({state.phase}: {state.message or state.reason})"
    # What was not tried because the node was busy says nothing of the container.
    is_tried = state.phase is Phase.SHRINKING and state.reason != Reason.WAITING_FOR_NODE
    floor = turn.achieved_bytes if is_tried else None
    return Ending(Phase.EXPIRED, Reason.DEADLINE_PASSED, message, floor)


def _pending(turn: Turn) -> Move:
    state, policy, snapshot = turn.state, turn.policy, turn.snapshot
    limit, target = snapshot.max_bytes, state.target_bytes
    if target <= 0:
        return hurt(Reason.INVALID_TARGET, f"a target of {target} bytes is less than a page")
    if limit is not None and limit <= target:
        return hurt(Reason.LIMIT_NOT_ABOVE, f"memory.max is {limit} already, not above the target {target}")
    if limit is not None and limit - target < max(policy.min_shrink_bytes, policy.min_shrink_ratio * limit):
        return hurt(Reason.TOO_SMALL, f"{mib(limit - target)} less of {mib(limit)} is not worth the disturbance")
    if not turn.observation.may_observe:
        return replace(state, samples=(), reason=Reason.WAITING_FOR_TURN, message=turn.observation.wait_message), ()
    observing = enter(state, Phase.OBSERVING, Reason.OBSERVING, f"for {policy.observe_seconds:.0f} s, touching nothing", turn.now)
    return replace(observing, original=Original(snapshot.high_bytes, limit), samples=(turn.sample,)), ()


def _observing(turn: Turn) -> Move:
    state, policy, snapshot = turn.state, turn.policy, turn.snapshot
    if snapshot.max_bytes != turn.original.max_bytes:
        return hurt(Reason.LIMIT_CHANGED, f"memory.max went from {turn.original.max_bytes} to {snapshot.max_bytes} while observing")
    first, last = state.samples[0], turn.sample
    if last.oom_kills > first.oom_kills or last.oom_events > first.oom_events:
        return hurt(Reason.OUT_OF_MEMORY, "out of memory under the present limit already")
    state = replace(state, original=Original(snapshot.high_bytes, snapshot.max_bytes))
    if turn.was_blind:
        return replace(state, phase_since=turn.now, samples=(last,)), ()
    elapsed = turn.now - state.phase_since
    if elapsed < policy.observe_seconds:
        return state, ()
    plan = assess(state.samples, state.target_bytes, policy)
    if elapsed < policy.observe_max_seconds and needs_longer_look(plan, state.samples, policy):
        return state, ()
    return _begin(replace(turn, state=state), plan)


def _begin(turn: Turn, plan: Assessment) -> Move:
    """Looked at for long enough: refused, or the first step."""
    state, policy, last = turn.state, turn.policy, turn.sample
    if plan.verdict is not None:
        return hurt(plan.verdict.reason, plan.verdict.message, plan.verdict.floor_bytes)
    unreachable = _out_of_reach(turn, plan)
    if unreachable is not None:
        return unreachable
    if not turn.observation.may_step:
        return replace(state, reason=Reason.WAITING_FOR_TURN, message=turn.observation.wait_message), ()
    pace = start_pace(last.usage_bytes, plan.goal_bytes, state.deadline_at - turn.now, policy)
    shrinking = enter(state, Phase.SHRINKING, Reason.STEPPING, f"{mib(last.usage_bytes)} used, goal {mib(plan.goal_bytes)}", turn.now)
    shrinking = replace(shrinking, plan=plan, pace=pace, samples=(last,), floor_bytes=plan.bearable_bytes)
    return shrink(replace(turn, state=shrinking))


def _out_of_reach(turn: Turn, plan: Assessment) -> Ending | None:
    """Why the container, fit by itself, cannot come down: its pod takes the room, or the node's budget is too small for the deadline."""
    policy, snapshot, limit = turn.policy, turn.snapshot, turn.original.max_bytes
    pod, kept = snapshot.pod, plan.floor_bytes + plan.reserve_bytes
    if pod is not None and pod.max_bytes is not None and limit is not None:
        besides = pod.usage_bytes - snapshot.usage_bytes - (pod.max_bytes - limit)
        if besides + kept > plan.guard_bytes:
            message = (
                f"the pod uses {mib(besides)} besides its containers' limits (tmpfs, cache of dead containers) and {mib(kept)} must stay"
            )
            return hurt(Reason.POD_MEMORY, message, bearable_limit(besides + kept, policy))
    speed = turn.observation.pace_bytes_per_second
    if speed is not None:
        seconds = max(0.0, turn.state.deadline_at - turn.now - policy.stability_seconds)
        reached = snapshot.usage_bytes - _SURE_SHARE_OF_PACE * speed * seconds
        if reached > plan.goal_bytes:
            rate = f"{60 * speed / MIB:.0f} MiB a minute on this node"
            message = f"{rate} come down to {mib(reached)} by the deadline, goal {mib(plan.goal_bytes)}"
            return hurt(Reason.NODE_PACE, message, bearable_limit(reached, policy))
    return None


def _committed(turn: Turn) -> Move:
    state, policy = turn.state, turn.policy
    harm = _harm_after_commit(turn)
    if harm is not None:
        return Ending(Phase.REVERTED, harm.reason, harm.message, _above_target(turn))
    if not has_followed(turn):
        return Ending(Phase.REVERTED, Reason.LIMIT_CHANGED, f"memory.max went on to {turn.snapshot.max_bytes} by another hand")
    if turn.now - state.phase_since >= policy.probation_seconds:
        growing = growth_after_commit(state.samples, state.target_bytes, policy)
        if growing is not None:
            return Ending(Phase.REVERTED, growing.reason, growing.message, growing.floor_bytes)
        return Ending(Phase.DONE, Reason.SHRUNK, f"calm at {mib(turn.sample.usage_bytes)} under {mib(state.target_bytes)}")
    if state.is_ours(turn.sample.high_bytes):
        return state, (RestoreHigh(turn.original.high_bytes),)
    return state, ()


def _harm_after_commit(turn: Turn) -> signals.Signal | None:
    state, policy, now = turn.state, turn.policy, turn.sample
    assert state.committed is not None
    kills = now.oom_kills - state.committed.oom_kills
    if kills > 0:
        return signals.Signal(Reason.OOM_KILLED_AFTER_COMMIT, f"{kills} killed for memory under the new limit")
    pressure = signals.hard_pressure(state.samples, turn.normal, policy)
    if pressure is not None:
        return signals.Signal(Reason.PRESSURE_AFTER_COMMIT, f"{pressure.message} under the new limit")
    before = signals.since(state.samples, policy.probation_limit_window_seconds)
    if before is not None and now.at > before.at:
        hits = (now.limit_events - before.limit_events) / (now.at - before.at)
        if hits > policy.probation_limit_hits_per_second:
            return signals.Signal(Reason.LIMIT_HITS_AFTER_COMMIT, f"reached the new limit {hits:.1f} times a second")
    return None


def _above_target(turn: Turn) -> int:
    margin = turn.state.plan.margin_bytes if turn.state.plan is not None else turn.policy.margin_min_bytes
    return turn.state.target_bytes + margin


def _finish(turn: Turn, ending: Ending) -> Result:
    """Put memory.high back, and end once it reads so."""
    state, observation = turn.state, turn.observation
    if not state.touched:
        return _terminal(turn, ending), ()
    if ending.phase is Phase.REFUSED:
        ending = replace(ending, phase=Phase.REVERTED)
    snapshot = observation.snapshot
    if snapshot is not None:
        high = snapshot.high_bytes
        is_foreign = high is not None and not state.is_ours(high)
        is_over = high == turn.original.high_bytes or is_foreign
    else:
        is_over = not observation.unreadable or observation.restored
    if is_over:
        return _terminal(turn, ending), (DropJournal(),)
    return replace(state, ending=ending, reason=ending.reason, message=ending.message), (RestoreHigh(turn.original.high_bytes),)


def _terminal(turn: Turn, ending: Ending) -> ShrinkState:
    ended = enter(turn.state, ending.phase, ending.reason, ending.message, turn.now)
    floor = ending.floor_bytes
    limit = turn.state.original.max_bytes if turn.state.original is not None else None
    if floor is not None and limit is not None:
        floor = min(floor, limit)
    return replace(ended, ending=None, touched=False, floor_bytes=floor, guard_bytes=None, previous_guard_bytes=None)


_PHASES = {
    Phase.PENDING: _pending,
    Phase.OBSERVING: _observing,
    Phase.SHRINKING: shrink,
    Phase.HOLDING: hold,
    Phase.COMMITTED: _committed,
}
