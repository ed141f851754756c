"""What the phases of the shrink machine share: the turn they are given, the guard, and the ways a turn can end."""

from __future__ import annotations

from dataclasses import dataclass, replace

from vpa_ippr.actuator.assess import Assessment, Rates, Sample, bearable_limit
from vpa_ippr.actuator.cgroup import Snapshot
from vpa_ippr.actuator.policy import Policy
from vpa_ippr.actuator.reasons import Reason
from vpa_ippr.actuator.state import (
    Action,
    Ending,
    Observation,
    Original,
    Pace,
    RestoreHigh,
    ShrinkState,
    WriteHigh,
    WriteJournal,
)
from vpa_ippr.api.shrink import Phase

_LATE_TICKS = 5

Result = tuple[ShrinkState, tuple[Action, ...]]
Move = Result | Ending
"""What a phase answers: go on like this, or end like that."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One move of one shrink. ``state`` already holds the new look as its last sample."""

    state: ShrinkState
    observation: Observation
    policy: Policy
    now: float

    @property
    def snapshot(self) -> Snapshot:
        """The look itself; only in turns that have one."""
        assert self.observation.snapshot is not None
        return self.observation.snapshot

    @property
    def sample(self) -> Sample:
        """The look, reduced to what decides."""
        assert self.state.last is not None
        return self.state.last

    @property
    def was_blind(self) -> bool:
        """True when so long nobody looked (a suspended node, an agent that was held up) that the time in between proves nothing."""
        samples = self.state.samples
        # Looks that come a little late are no gap, however short the windows.
        longest = max(self.policy.settle_seconds, _LATE_TICKS * self.policy.tick_seconds)
        return len(samples) > 1 and samples[-1].at - samples[-2].at > longest

    @property
    def original(self) -> Original:
        """The limits before us; known from Observing on."""
        assert self.state.original is not None
        return self.state.original

    @property
    def plan(self) -> Assessment:
        """Goal, guard and margin; known from Shrinking on."""
        assert self.state.plan is not None
        return self.state.plan

    @property
    def pace(self) -> Pace:
        """The steps so far; known from Shrinking on."""
        assert self.state.pace is not None
        return self.state.pace

    @property
    def normal(self) -> Rates:
        """The baseline; nothing is normal for a shrink that was taken over from a dead agent."""
        return self.state.plan.baseline if self.state.plan is not None else Rates()

    @property
    def achieved_bytes(self) -> int:
        """The lowest limit that the workload has shown to bear: for what it uses now."""
        return bearable_limit(self.sample.usage_bytes, self.policy)


def enter(state: ShrinkState, phase: Phase, reason: str, message: str, now: float) -> ShrinkState:
    """The state in another phase."""
    return replace(state, phase=phase, phase_since=now, reason=reason, message=message)


def hurt(reason: Reason, message: str, floor_bytes: int | None = None) -> Ending:
    """End because of harm; counts as a refusal when nothing was touched yet."""
    return Ending(Phase.REFUSED, reason, message, floor_bytes)


def set_guard(turn: Turn, wanted_bytes: int) -> Result:
    """Make ``wanted_bytes`` the guard, journal first; where the original stands lower (or the limit does), that is the guard."""
    state, original = turn.state, turn.original
    is_needless = any(limit is not None and limit <= wanted_bytes for limit in (original.high_bytes, original.max_bytes))
    guard = None if is_needless else wanted_bytes
    stands = turn.sample.high_bytes == (original.high_bytes if guard is None else guard)
    if stands and guard == state.guard_bytes:
        return state, ()
    moved = replace(state, guard_bytes=guard, previous_guard_bytes=state.guard_bytes or state.previous_guard_bytes, touched=True)
    write = RestoreHigh(original.high_bytes) if guard is None else WriteHigh(guard)
    return moved, (WriteJournal(),) if stands else (WriteJournal(), write)


def stepping_guard(turn: Turn, slack_ratio: float) -> int:
    """``max(Hg, usage * (1 + slack))``, rounded up to a page: always above what is used now."""
    page = turn.policy.page_bytes
    above = turn.policy.page_floor(turn.sample.usage_bytes * (1 + slack_ratio)) + page
    return max(turn.policy.page_floor(turn.plan.guard_bytes), above)


def has_followed(turn: Turn) -> bool:
    """True when ``memory.max`` reads the target."""
    limit = turn.snapshot.max_bytes
    return limit is not None and turn.policy.page_floor(limit) == turn.state.target_bytes


def pod_excess(turn: Turn) -> int:
    """How far the pod as a whole is above what its own limit will leave once the container's has come down; 0 when it fits.

    The kubelet lowers the pod's limit along with the container's. Other containers up to their limits fit by themselves; what does not are
    files in tmpfs and cache that dead containers have left. Half the margin, as for the guard, is what they may take.
    """
    pod, limit = turn.snapshot.pod, turn.original.max_bytes
    if pod is None or pod.max_bytes is None or limit is None:
        return 0
    return max(0, pod.usage_bytes - (pod.max_bytes - limit + turn.plan.guard_bytes))


def watch_limit(turn: Turn) -> Move | None:
    """Answer to others that write memory.max: the updater's commit, or a foreign limit."""
    limit = turn.snapshot.max_bytes
    if has_followed(turn):
        return commit(turn)
    if limit != turn.original.max_bytes:
        return hurt(Reason.LIMIT_CHANGED, f"memory.max went from {turn.original.max_bytes} to {limit} by another hand")
    return None


def watch_high(turn: Turn) -> Move | None:
    """Answer to others that write memory.high."""
    state, high = turn.state, turn.snapshot.high_bytes
    if high == state.expected_high_bytes or (state.pace is not None and state.pace.asked_bytes is not None):
        return None
    # A finite value is somebody's will (MemoryQoS recomputes it at each update); ``max`` is what systemd writes on a daemon-reload.
    original = replace(turn.original, high_bytes=high) if high is not None and not state.is_ours(high) else turn.original
    adopted = replace(state, original=original, foreign_writes=state.foreign_writes + 1)
    if adopted.foreign_writes >= turn.policy.max_foreign_writes:
        return hurt(Reason.FOREIGN_WRITER, f"memory.high was set to {high} by another hand again")
    moved, actions = set_guard(replace(turn, state=adopted), stepping_guard(turn, _slack(turn)))
    # The journal must know what is to be put back, also where no guard has to be written.
    return moved, actions or ((WriteJournal(),) if original != turn.original else ())


def _slack(turn: Turn) -> float:
    """While standing at the goal the guard is the final one, with no slack over usage."""
    pace = turn.state.pace
    return 0.0 if pace is None or pace.stable_since is not None else pace.slack_ratio


def commit(turn: Turn) -> Result:
    """The limit has followed: give the workload its memory.high back and watch for harm."""
    state = turn.state
    message = f"memory.max is {state.target_bytes}; watching for {turn.policy.probation_seconds:.0f} s"
    high = turn.sample.high_bytes
    original = turn.original
    if high is not None and not state.is_ours(high):
        # A resize through the systemd driver or with MemoryQoS sets memory.high together with memory.max: that is no tampering.
        original = replace(original, high_bytes=high)
    moved = enter(state, Phase.COMMITTED, Reason.PROBATION, message, turn.now)
    moved = replace(moved, original=original, committed=turn.sample, samples=(turn.sample,), touched=True)
    restore = () if high == original.high_bytes else (RestoreHigh(original.high_bytes),)
    return moved, (WriteJournal(), *restore)
