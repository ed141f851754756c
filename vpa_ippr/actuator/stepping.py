"""Shrinking and Holding: small reclaim steps under a guard, a settle window after each, then the wait for the limit to follow."""

from __future__ import annotations

from dataclasses import replace

from vpa_ippr.actuator import signals
from vpa_ippr.actuator.assess import Sample, bearable_limit
from vpa_ippr.actuator.policy import Policy, mib
from vpa_ippr.actuator.reasons import Reason
from vpa_ippr.actuator.signals import Signal
from vpa_ippr.actuator.state import Ending, Pace, Reclaim, ShrinkState, WriteJournal
from vpa_ippr.actuator.turn import Move, Result, Turn, enter, hurt, pod_excess, set_guard, stepping_guard, watch_high, watch_limit
from vpa_ippr.api.shrink import Phase


def start_pace(usage_bytes: int, goal_bytes: int, seconds_left: float, policy: Policy) -> Pace:
    """The step that comes down to the goal within the deadline's share, between the policy's least and greatest."""
    steps = max(1.0, policy.deadline_step_share * seconds_left / (policy.settle_seconds + policy.tick_seconds))
    needed = 1 - (goal_bytes / usage_bytes) ** (1 / steps) if usage_bytes > goal_bytes > 0 else 0.0
    ratio = min(max(needed, policy.step_min_ratio), policy.step_max_ratio)
    return Pace(start_ratio=ratio, ratio=ratio, slack_ratio=policy.guard_slack_ratio)


def shrink(turn: Turn) -> Move:
    """One turn of Shrinking."""
    interrupted = _interrupted(turn) or watch_high(turn)
    if interrupted is not None:
        return interrupted
    if turn.pace.is_trimming:
        return _ready(_after_trim(turn))
    if turn.pace.asked_bytes is not None:
        return _after_reclaim(turn)
    if turn.pace.stable_since is not None:
        return _stabilise(turn)
    if turn.pace.steps == 0:
        return _next(turn)
    return _settle(turn)


def hold(turn: Turn) -> Move:
    """One turn of Holding: ready for the limit to follow, and out at once when the workload wants its memory."""
    interrupted = _interrupted(turn)
    if interrupted is not None:
        return interrupted
    if turn.pace.asked_bytes is not None:
        return _after_trim(turn).state, ()
    used = max(turn.sample.usage_bytes, turn.sample.peak_bytes)
    if used > _guard_passed_bytes(turn):
        message = f"usage {mib(used)} passed the guard {mib(turn.plan.guard_bytes)}"
        return hurt(Reason.GUARD_PASSED, message, bearable_limit(used, turn.policy))
    # Not before the look at usage: over the guard there is no guard to set again.
    answered = watch_high(turn)
    if answered is not None:
        return answered
    excess = pod_excess(turn)
    if excess > turn.plan.margin_bytes // 2:
        return hurt(Reason.POD_MEMORY, f"the pod as a whole uses {mib(excess)} more than its own limit will leave it")
    watched = _watch_window(turn)
    if isinstance(watched, Ending):
        return watched
    return _trim(watched) or _final_guard(watched) or (watched.state, ())


def _interrupted(turn: Turn) -> Move | None:
    signal = signals.hard(turn.state.samples, turn.state.guard_bytes, turn.normal, turn.policy)
    if signal is not None:
        return hurt(signal.reason, f"{signal.message} at {mib(turn.sample.usage_bytes)}", turn.achieved_bytes)
    return watch_limit(turn)


def _settle(turn: Turn) -> Move:
    pace = turn.pace
    if pace.window is None:
        opens = turn.now >= pace.window_from
        return (_with_pace(turn, replace(pace, window=turn.sample)).state if opens else turn.state), ()
    closed, signal = _close_window(turn)
    if closed is None:
        return turn.state, ()
    if signal is not None:
        return _back_off(_with_pace(turn, closed), signal)
    return _next(_with_pace(turn, _green(turn, closed)))


def _green(turn: Turn, closed: Pace) -> Pace:
    """A calm window: larger steps again; where new cache has filled what the step freed, larger than planned, under a closer guard."""
    policy, pace = turn.policy, turn.pace
    has_refilled = pace.before is not None and turn.sample.usage_bytes >= pace.before.usage_bytes
    start = min(policy.step_max_ratio, policy.step_growth * pace.start_ratio) if has_refilled else pace.start_ratio
    slack = max(policy.guard_slack_min_ratio, pace.slack_ratio / 2) if has_refilled else pace.slack_ratio
    return replace(closed, soft_windows=0, start_ratio=start, ratio=min(start, policy.step_growth * pace.ratio), slack_ratio=slack)


def _next(turn: Turn) -> Move:
    if turn.sample.usage_bytes <= turn.plan.goal_bytes:
        return _stand(turn)
    turn = _with_pace(turn, _with_lowest(turn))
    fruitless = turn.pace.steps - turn.pace.lowest_step
    if fruitless >= turn.policy.max_fruitless_steps:
        message = f"{fruitless} steps came no lower than {mib(turn.pace.lowest_bytes or 0)}: the rest is in use"
        return hurt(Reason.SETTLED_ABOVE, message, turn.achieved_bytes)
    return _take_step(turn)


def _with_lowest(turn: Turn) -> Pace:
    """Half of the least step is progress; less may be noise of ``memory.current``."""
    pace, usage = turn.pace, turn.sample.usage_bytes
    if pace.lowest_bytes is not None and usage > pace.lowest_bytes - turn.policy.step_min_bytes // 2:
        return pace
    return replace(pace, lowest_bytes=usage, lowest_step=pace.steps)


def _take_step(turn: Turn) -> Result:
    policy, pace, usage = turn.policy, turn.pace, turn.sample.usage_bytes
    is_probe = pace.steps < policy.probe_steps
    ratio = min(policy.probe_ratio, pace.ratio) if is_probe else pace.ratio
    swaps = turn.sample.swappable_bytes > 0
    wanted = min(max(ratio * usage, policy.step_min_bytes), policy.swap_step_max_bytes if swaps else policy.step_max_bytes)
    amount = max(policy.page_bytes, policy.page_floor(min(wanted, usage - turn.plan.goal_bytes + policy.page_bytes)))
    allowed = _allowed_by_node(turn, amount)
    if allowed is None:
        return _wait_for_node(turn)
    amount = allowed
    stepped = replace(pace, steps=pace.steps + 1, asked_bytes=amount, before=turn.sample)
    message = f"{mib(usage)} used, goal {mib(turn.plan.goal_bytes)}"
    return _reclaim(replace(turn.state, pace=stepped, reason=Reason.STEPPING, message=message), amount, policy)


def _reclaim(state: ShrinkState, amount: int, policy: Policy) -> Result:
    journal = () if state.touched else (WriteJournal(),)
    return replace(state, touched=True), (*journal, Reclaim(amount, may_swap=policy.may_swap))


def _allowed_by_node(turn: Turn, amount: int) -> int | None:
    """How much of a step the node bears now; None when it is too busy, or its budget is too small to be worth a step."""
    allowance = turn.observation.allowance_bytes
    if not turn.observation.may_reclaim:
        return None
    if allowance is None or allowance >= amount:
        return amount
    return turn.policy.page_floor(allowance) if allowance >= min(amount, turn.policy.step_min_bytes) else None


def _wait_for_node(turn: Turn) -> Result:
    """Stand still under the guard; what happens meanwhile is not the last step's doing, so only pressure counts."""
    message = "the node's reclaim for this minute is used up" if turn.observation.may_reclaim else turn.observation.wait_message
    pace = replace(turn.pace, before=None, freed_bytes=0, steal_ratio=None)
    return replace(turn.state, pace=pace, reason=Reason.WAITING_FOR_NODE, message=message), ()


def _after_reclaim(turn: Turn) -> Move:
    policy, pace, now = turn.policy, turn.pace, turn.sample
    before, asked = pace.before, pace.asked_bytes
    assert before is not None
    assert asked is not None
    freed = before.usage_bytes - now.usage_bytes
    # The last few pages above the goal drown in the noise of memory.current: only a whole step tells.
    is_short = asked >= policy.step_min_bytes and freed < policy.stuck_freed_ratio * asked
    is_stuck = is_short or not turn.observation.reclaim_complete
    settled = replace(
        pace,
        asked_bytes=None,
        freed_bytes=max(0, freed),
        steal_ratio=_steal_ratio(before, now),
        stuck_steps=pace.stuck_steps + 1 if is_stuck else 0,
        window=now,
        window_from=turn.now,
    )
    if settled.stuck_steps >= policy.stuck_steps:
        message = f"{settled.stuck_steps} steps in a row freed next to nothing at {mib(now.usage_bytes)}: pinned, hot or dirty"
        return hurt(Reason.STUCK, message, turn.achieved_bytes)
    if now.usage_bytes <= turn.plan.goal_bytes:
        return _stand(_with_pace(turn, settled))
    return set_guard(_with_pace(turn, settled), stepping_guard(turn, settled.slack_ratio))


def _close_window(turn: Turn) -> tuple[Pace | None, Signal | None]:
    """The pace after a settle window that is over, with the soft signal it showed; (None, None) while it is open."""
    policy, pace, now = turn.policy, turn.pace, turn.sample
    window = pace.window
    if window is None or now.at - window.at < _window_seconds(turn, window):
        return None, None
    refaulted = signals.refault_percent(window, now, pace.freed_bytes, turn.normal)
    if pace.steps <= policy.probe_steps and pace.stable_since is None:
        return replace(pace, window=None), None
    is_thrashing = refaulted > policy.hard_refault_percent
    closed = replace(pace, window=None, refault_windows=pace.refault_windows + 1 if is_thrashing else 0)
    return closed, signals.soft(window, now, refaulted, pace.steal_ratio, turn.normal, policy)


def _window_seconds(turn: Turn, window: Sample) -> float:
    """The settle time; longer after a step that swapped, so that swap grows no faster than is allowed."""
    policy, began = turn.policy, turn.pace.before or window
    swapped = min(max(0, window.swap_bytes - began.swap_bytes), policy.swap_step_max_bytes)
    return max(policy.settle_seconds, swapped / policy.swap_out_bytes_per_second)


def _back_off(turn: Turn, signal: Signal) -> Move:
    """A soft signal between steps: halve the step and wait longer each time."""
    policy, pace = turn.policy, turn.pace
    counted = _count_soft(turn, signal)
    if isinstance(counted, Ending):
        return counted
    wait = min(policy.backoff_seconds * 2**pace.soft_windows, policy.backoff_max_seconds)
    slower = replace(counted.pace, ratio=max(pace.ratio / 2, policy.step_min_ratio), window_from=turn.now + wait)
    state = replace(counted.state, reason=Reason.BACKING_OFF, message=f"waits {wait:.0f} s: {signal.message}")
    return replace(state, pace=slower), ()


def _watch_window(turn: Turn) -> Turn | Ending:
    """The settle windows follow one another while standing at the goal; a soft one begins the stability time anew."""
    closed, signal = _close_window(turn)
    if closed is None:
        return turn
    turn = _with_pace(turn, replace(closed, window=turn.sample))
    if signal is None:
        return _with_pace(turn, replace(turn.pace, soft_windows=0))
    return _count_soft(_with_pace(turn, replace(turn.pace, stable_since=turn.now)), signal)


def _count_soft(turn: Turn, signal: Signal) -> Turn | Ending:
    """Count a soft window; enough of them in a row mean that the working set has been reached."""
    policy, pace = turn.policy, turn.pace
    count = pace.soft_windows + 1
    if pace.refault_windows >= policy.hard_refault_windows:
        return hurt(Reason.REFAULTS, f"all that was freed came back in {pace.refault_windows} windows in a row", turn.achieved_bytes)
    if count >= policy.max_soft_windows:
        message = f"settled at {mib(turn.sample.usage_bytes)} after {count} windows: {signal.message}"
        return hurt(Reason.SETTLED_ABOVE, message, turn.achieved_bytes)
    return _with_pace(turn, replace(pace, soft_windows=count, backoffs=pace.backoffs + 1))


def _stand(turn: Turn) -> Result:
    """At the goal: the final guard, and the stability time begins."""
    standing = replace(turn.pace, stable_since=turn.now, window=turn.sample, window_from=turn.now)
    state = replace(turn.state, reason=Reason.STABILISING, message=f"at {mib(turn.sample.usage_bytes)}, must stay calm")
    return set_guard(replace(turn, state=replace(state, pace=standing)), turn.policy.page_floor(turn.plan.guard_bytes))


def _stabilise(turn: Turn) -> Move:
    if turn.sample.peak_bytes > _guard_passed_bytes(turn) or turn.was_blind:
        turn = _with_pace(turn, replace(turn.pace, stable_since=turn.now))
    watched = _watch_window(turn)
    if isinstance(watched, Ending):
        return watched
    if watched.sample.usage_bytes > watched.plan.goal_bytes:
        return _trim(watched) or _take_step(_with_pace(watched, replace(watched.pace, stable_since=None)))
    return (_trim(watched) if pod_excess(watched) else None) or _ready(watched)


def _ready(turn: Turn) -> Result:
    """Into Holding once the goal has been kept for the stability time."""
    stable_since = turn.pace.stable_since
    assert stable_since is not None
    if turn.now - stable_since < turn.policy.stability_seconds or turn.sample.usage_bytes > turn.plan.goal_bytes:
        return turn.state, ()
    excess = pod_excess(turn)
    if excess:
        message = f"the pod as a whole uses {mib(excess)} more than its own limit will leave it"
        return replace(turn.state, reason=Reason.POD_MEMORY, message=message), ()
    message = f"calm at {mib(turn.sample.usage_bytes)}; the limit may come down to {mib(turn.plan.target_bytes)}"
    guarded = _final_guard(turn)
    if guarded is not None:
        return guarded
    # The journal has an entry from here on, also where usage was at the goal and the original memory.high guards it: nothing was written.
    holding = enter(replace(turn.state, touched=True), Phase.HOLDING, Reason.READY, message, turn.now)
    return holding, (WriteJournal(),)


def _final_guard(turn: Turn) -> Result | None:
    """Back down to the height that the guard lost when another hand wrote memory.high while usage was above; None where it has it."""
    if turn.sample.usage_bytes > turn.plan.goal_bytes:
        return None
    state, actions = set_guard(turn, turn.policy.page_floor(turn.plan.guard_bytes))
    return (state, actions) if actions else None


def _trim(turn: Turn) -> Result | None:
    """Take back what cache has grown above the goal, so that the whole margin stands when the limit follows; None when not to be done."""
    excess = max(turn.sample.usage_bytes - turn.plan.goal_bytes, pod_excess(turn))
    wanted = excess + min(turn.policy.step_min_bytes, turn.plan.margin_bytes // 8)
    amount = turn.policy.page_floor(min(wanted, turn.policy.step_max_bytes))
    if excess <= 0 or turn.sample.file_bytes - amount < turn.plan.reserve_bytes or _allowed_by_node(turn, amount) != amount:
        return None
    pace = replace(turn.pace, asked_bytes=amount, before=turn.sample, is_trimming=True)
    return _reclaim(replace(turn.state, pace=pace), amount, turn.policy)


def _after_trim(turn: Turn) -> Turn:
    is_above = turn.sample.usage_bytes > turn.plan.goal_bytes
    stable_since = turn.now if is_above else turn.pace.stable_since
    return _with_pace(turn, replace(turn.pace, asked_bytes=None, is_trimming=False, stable_since=stable_since))


def _guard_passed_bytes(turn: Turn) -> int:
    """Page cache may stand right at the guard, where the kernel reclaims it: an eighth of the margin tells that from a growing need."""
    return turn.plan.guard_bytes + turn.plan.margin_bytes // 8


def _steal_ratio(before: Sample, now: Sample) -> float | None:
    scanned = now.scanned_pages - before.scanned_pages
    return (now.stolen_pages - before.stolen_pages) / scanned if scanned > 0 else None


def _with_pace(turn: Turn, pace: Pace) -> Turn:
    return replace(turn, state=replace(turn.state, pace=pace))
