"""kernel.md 3.1 to 3.6 as tables: every row of the controller's description with the figures at which it turns."""

from dataclasses import replace

import pytest
from actuator_fakes import START, FakeKernel, Workload, World

from vpa_ippr.actuator import signals
from vpa_ippr.actuator.assess import Rates, assess, needs_longer_look, take_sample
from vpa_ippr.actuator.cgroup import PodLevel, Snapshot
from vpa_ippr.actuator.machine import step
from vpa_ippr.actuator.policy import GIB, MIB, Policy
from vpa_ippr.actuator.reasons import Reason
from vpa_ippr.actuator.state import Observation, Reclaim, RestoreHigh, WriteHigh, begin
from vpa_ippr.actuator.stepping import start_pace
from vpa_ippr.api.shrink import Phase

POLICY = Policy()
SWAPPING = Policy(may_swap=True)
LIMIT = 512 * MIB


def look(at=0.0, policy=POLICY, *, usage=200, anon=20, peak=None, mapped=0, swap=0, swap_free=0, fails=0, protected=0, **changes):
    stat = {
        "anon": anon * MIB,
        "inactive_anon": anon * MIB,
        "inactive_file": (usage - anon) * MIB,
        "file_mapped": mapped * MIB,
    }
    snapshot = Snapshot(
        usage_bytes=usage * MIB,
        high_bytes=None,
        max_bytes=LIMIT,
        stat=stat,
        peak_bytes=None if peak is None else peak * MIB,
        swap_bytes=swap * MIB,
        swap_free_bytes=swap_free * MIB,
        swap_failures=fails,
        protected_bytes=protected * MIB,
    )
    return replace(take_sample(snapshot, at, 4096, may_swap=policy.may_swap), **changes)


def looks(count=61, policy=POLICY, **changes):
    return [look(float(t), policy, **{k: v(t) if callable(v) else v for k, v in changes.items()}) for t in range(count)]


def verdict(policy=POLICY, target=256, **changes):
    found = assess(looks(policy=policy, **changes), target * MIB, policy).verdict
    return found and found.reason


# 3.1 U: what no reclaim can take.


@pytest.mark.parametrize(
    ("policy", "changes", "floor"),
    [
        (POLICY, {}, 120),
        (POLICY, {"swap_free": 1000}, 120),
        (SWAPPING, {}, 120),
        (SWAPPING, {"swap_free": 50}, 70),
        (SWAPPING, {"swap_free": 1000}, 0),
        (POLICY, {"protected": 150}, 150),
        (SWAPPING, {"protected": 150, "swap_free": 1000}, 150),
        (POLICY, {"protected": 900}, 200),
    ],
    ids=[
        "file-only",
        "swap-not-allowed",
        "no-swap",
        "little-swap",
        "much-swap",
        "memory.min-within",
        "memory.min-and-swap",
        "min-above-use",
    ],
)
def test_floor(policy, changes, floor):
    assert look(policy=policy, anon=120, **changes).floor_bytes == floor * MIB


# 3.1 F: max(32 MiB, min(file_mapped, file)).


@pytest.mark.parametrize(
    ("mapped", "ratio", "reserve"),
    [(0, 1.0, 32), (33, 1.0, 33), (150, 1.0, 150), (500, 1.0, 180), (150, 0.5, 75), (150, 0.0, 32)],
)
def test_reserve(mapped, ratio, reserve):
    policy = Policy(reserve_mapped_ratio=ratio)
    assert assess(looks(mapped=mapped), 400 * MIB, policy).reserve_bytes == reserve * MIB


# 3.2 OBSERVE: the four ways to be turned away, and what is extended.


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"anon": 20}, None),
        ({"anon": 206}, None),
        ({"usage": 250, "anon": 208}, Reason.UNRECLAIMABLE_ANON),
        ({"anon": 20, "usage": 300, "mapped": 240}, Reason.MAPPED_FILES),
        ({"anon": 20, "protected": 190, "usage": 300}, None),
        ({"anon": 20, "protected": 215, "usage": 300}, Reason.UNRECLAIMABLE_PROTECTED),
        ({"anon": lambda t: 100 + t / 60}, None),
        ({"anon": lambda t: 100 + 5 * t / 60}, Reason.GROWING),
        ({"peak": lambda t: 320 if t == 30 else None, "anon": 100}, Reason.BURSTY),
        ({"peak": lambda t: 230 if t == 30 else None, "anon": 100}, None),
    ],
    ids=[
        "fits",
        "just-fits",
        "U+F>G",
        "mapped",
        "memory.min-fits",
        "memory.min",
        "slope*horizon<room",
        "slope*horizon>room",
        "peak>G",
        "peak<G",
    ],
)
def test_observed_container(changes, reason):
    assert verdict(**changes) is reason


def test_growth_below_the_margin_over_the_horizon_is_no_leak():
    # 0.009 MiB/s * 1800 s = 16.2 MiB < M = 17 MiB, although the need ends above the goal.
    assert verdict(anon=lambda t: 195 + 0.009 * t) is None


def test_swap_does_not_hide_a_leak():
    leak = {"anon": 100, "swap": lambda t: 4 * t / 60, "swap_free": 1000}
    assert verdict(SWAPPING, **leak) is None, "far below the goal: what is swapped out is not in memory"
    rising = {"anon": 190, "usage": 250, "swap": lambda t: 4 * t / 60, "swap_free": 40}
    assert verdict(SWAPPING, **rising) is Reason.GROWING


@pytest.mark.parametrize(("height", "longer"), [(8, False), (14, True)], ids=["below-10-percent", "above-10-percent"])
def test_bursts_make_the_look_longer(height, longer):
    seen = looks(anon=100, usage=300, peak=lambda t: 300 + height if t == 30 else None)
    plan = assess(seen, 256 * MIB, POLICY)
    assert needs_longer_look(plan, seen, POLICY) is longer


# 3.2 PREFLIGHT: L0 - T >= max(64 MiB, 10 % of L0), T < L0.


@pytest.mark.parametrize(
    ("limit", "target", "reason"),
    [
        (512, 448, None),
        (512, 449, Reason.TOO_SMALL),
        (10_000, 9_000, None),
        (10_000, 9_001, Reason.TOO_SMALL),
        (512, 512, Reason.LIMIT_NOT_ABOVE),
        (512, 600, Reason.LIMIT_NOT_ABOVE),
        (512, 0, Reason.INVALID_TARGET),
    ],
)
def test_what_is_worth_a_try(limit, target, reason):
    snapshot = Snapshot(usage_bytes=100 * MIB, high_bytes=None, max_bytes=limit * MIB)
    state, _ = step(begin(target * MIB, START, 900, START), Observation(snapshot=snapshot), POLICY, START)
    assert state.phase is (Phase.OBSERVING if reason is None else Phase.REFUSED)
    assert reason is None or state.reason == reason


# 3.3: f = clamp(1 - (G/current)^(1/steps), 0.5 %, 3 %).


@pytest.mark.parametrize(
    ("usage", "seconds", "ratio"),
    [(400, 900, 0.0092), (210, 900, 0.005), (1000, 900, 0.0212), (1000, 60, 0.03), (200, 900, 0.005)],
    ids=["half", "a-little", "a-fifth-left", "in-a-hurry", "there-already"],
)
def test_start_pace(usage, seconds, ratio):
    assert start_pace(usage * MIB, 200 * MIB, seconds, POLICY).start_ratio == pytest.approx(ratio, abs=0.0002)


# 3.4 soft, the rows that test_actuator_assess does not hold.


@pytest.mark.parametrize(("swapped", "reason"), [(5, None), (6, Reason.SWAPPING)], ids=["1-MiB/s", "more"])
def test_swap_grows_no_faster_than_the_endurance_rule(swapped, reason):
    signal = signals.soft(look(0.0), look(5.0, swap=swapped), 0.0, None, Rates(), POLICY)
    assert (signal and signal.reason) == reason


# 3.4 hard: every row with the values on both sides.

GUARD = 210 * MIB


@pytest.mark.parametrize(
    ("seconds", "changes", "reason"),
    [
        (2, {"memory_some_us": 200_000}, None),
        (2, {"memory_some_us": 200_001}, Reason.MEMORY_PRESSURE),
        (2, {"memory_full_us": 100_000}, None),
        (2, {"memory_full_us": 100_001}, Reason.MEMORY_PRESSURE),
        (5, {"io_some_us": 1_250_000}, None),
        (5, {"io_some_us": 1_250_001}, Reason.IO_PRESSURE),
        (1, {"oom_events": 1}, Reason.OUT_OF_MEMORY),
        (1, {"oom_kills": 1}, Reason.OUT_OF_MEMORY),
        (1, {"limit_events": 1}, Reason.OUT_OF_MEMORY),
        (1, {"swap_failures": 1}, Reason.SWAP_FULL),
        (2, {"high_events": 1}, None),
        (2, {"usage_bytes": 214 * MIB, "high_events": 1}, None),
        (2, {"usage_bytes": 215 * MIB, "high_events": 1}, Reason.OVER_HIGH),
        (2, {"usage_bytes": 215 * MIB}, None),
        (1, {"usage_bytes": 215 * MIB, "high_events": 1}, None),
    ],
    ids=[
        "some=10%",
        "some>10%",
        "full=5%",
        "full>5%",
        "io=25pp",
        "io>25pp",
        "oom",
        "oom_kill",
        "max",
        "swap-fail",
        "high-events-below",
        "usage<1.02*high",
        "usage>1.02*high",
        "over-without-events",
        "over-for-a-second",
    ],
)
def test_hard_row(seconds, changes, reason):
    was = {"usage_bytes": changes.get("usage_bytes", 200 * MIB), "high_bytes": GUARD}
    before = [replace(look(float(t)), **was) for t in range(seconds)]
    now = replace(look(float(seconds)), **was, **{k: v for k, v in changes.items() if k != "usage_bytes"})
    signal = signals.hard([*before, now], GUARD, Rates(), POLICY)
    assert (signal and signal.reason) == reason


# 3.4 counts in a row, and 3.3 probes and back-off: through the machine.


class Driven:
    """The machine under a hand-fed cgroup: what a test sets is what it sees."""

    def __init__(self, policy=POLICY, target=256, usage=400, anon=60, **fixed):
        self.policy, self.now, self.usage, self.anon = policy, START, float(usage), anon
        self.high, self.max, self.fixed, self.stat = None, LIMIT, fixed, {}
        self.freed_share, self.is_complete = 1.0, True
        self.memory_us = self.refault_pages = self.swapped = 0
        self.reclaims, self.highs = [], []
        self.state = begin(target * MIB, START, 900, START)
        self.observation = {}
        while self.state.phase in (Phase.PENDING, Phase.OBSERVING) and self.now < START + 600:
            self.tick()

    def snapshot(self):
        anon = int(self.anon * MIB)
        usage = int(self.usage * MIB)
        stat = {
            "anon": anon,
            "inactive_anon": anon,
            "inactive_file": usage - anon,
            "workingset_refault_file": self.refault_pages,
        }
        figures = {"swap_bytes": int(self.swapped)} | self.fixed
        return Snapshot(
            usage_bytes=usage,
            high_bytes=self.high,
            max_bytes=self.max,
            stat=stat | self.stat,
            memory_some_us=int(self.memory_us),
            **figures,
        )

    def tick(self, seconds=1.0, stall=0.0):
        self.now += seconds
        self.memory_us += stall * seconds * 1e6
        complete = True
        for _ in range(6):
            seen = Observation(snapshot=self.snapshot(), reclaim_complete=complete, **self.observation)
            self.state, actions = step(self.state, seen, self.policy, self.now)
            again = False
            for action in actions:
                match action:
                    case Reclaim(amount):
                        self.reclaims.append((self.now, amount))
                        self.usage -= self.freed_share * amount / MIB
                        complete, again = self.is_complete, True
                    case WriteHigh(high):
                        assert high > self.usage * MIB
                        self.highs.append(high)
                        self.high = high
                    case RestoreHigh(high):
                        self.high, again = high, True
            if not again:
                break

    def until(self, *phases, stall=0.0, most=1500):
        for _ in range(most):
            if self.state.phase in phases or self.state.phase.is_terminal:
                return self.state
            self.tick(stall=stall)
        raise AssertionError(self.state)


def test_four_steps_that_free_next_to_nothing_are_stuck():
    driven = Driven()
    driven.freed_share = 0.2
    assert driven.until(Phase.HOLDING).reason == Reason.STUCK
    assert len(driven.reclaims) == 1 + 4  # the first was made when Observing ended


def test_four_eagains_are_stuck():
    driven = Driven()
    driven.freed_share, driven.is_complete = 0.5, False
    assert driven.until(Phase.HOLDING).reason == Reason.STUCK


def test_three_short_steps_are_not_stuck():
    driven = Driven()
    driven.freed_share = 0.2
    while len(driven.reclaims) < 4:
        driven.tick()
    driven.freed_share = 1.0
    assert driven.until(Phase.HOLDING).phase is Phase.HOLDING


def test_probes_are_small_and_deaf_to_soft_signals_and_six_soft_windows_settle_above():
    driven = Driven()
    while len(driven.reclaims) < 3:
        driven.tick(stall=0.02)
    assert driven.state.pace.soft_windows == 0
    usage = 400.0
    for _, amount in driven.reclaims:
        assert amount <= max(0.01 * usage * MIB, POLICY.step_min_bytes)
        usage -= amount / MIB
    state = driven.until(Phase.HOLDING, stall=0.02)
    assert (state.phase, state.reason) == (Phase.REVERTED, Reason.SETTLED_ABOVE)
    assert state.floor_bytes > driven.usage * MIB
    soft_began = driven.reclaims[2][0]
    # Six windows of 5 s, with waits of 10, 20, 40, 40 and 40 s between them, and one step after each wait.
    assert driven.now - soft_began >= 6 * 5 + 10 + 20 + 40 + 40 + 40


def test_five_soft_windows_and_a_calm_one_go_on():
    driven = Driven()
    while driven.state.pace is None or driven.state.pace.soft_windows < 5:
        driven.tick(stall=0.02)
    assert driven.until(Phase.HOLDING).phase is Phase.HOLDING
    assert driven.state.pace.backoffs == 5


def test_hard_signals_count_from_the_first_probe():
    driven = Driven()
    began = driven.now
    state = driven.until(Phase.HOLDING, stall=0.2)
    assert (state.phase, state.reason) == (Phase.REVERTED, Reason.MEMORY_PRESSURE)
    assert driven.now - began <= 3
    assert driven.high is None


def test_three_windows_in_which_all_comes_back_revert():
    driven = Driven()
    while driven.state.pace.steps <= POLICY.probe_steps:
        driven.tick()
    for _ in range(400):
        if driven.state.phase.is_terminal:
            break
        driven.refault_pages += 4000
        driven.tick()
    assert (driven.state.phase, driven.state.reason) == (Phase.REVERTED, Reason.REFAULTS)


def test_the_guard_is_above_usage_at_each_step_and_never_below_the_final_one():
    driven = Driven()
    driven.until(Phase.HOLDING)
    final = POLICY.page_floor(driven.state.plan.guard_bytes)
    assert driven.highs == sorted(driven.highs, reverse=True)
    assert driven.highs[-1] == final
    assert min(driven.highs) == final


# 3.2 GUARD: current <= G and calm for the stability time, peak <= Hg.


def test_holding_takes_the_whole_stability_time_at_the_goal():
    driven = Driven()
    while driven.state.pace.stable_since is None:
        driven.tick()
    reached = driven.now
    driven.until(Phase.HOLDING)
    assert driven.now - reached >= POLICY.stability_seconds
    assert driven.usage * MIB <= driven.state.plan.goal_bytes


def test_a_soft_window_at_the_goal_begins_the_stability_time_anew():
    driven = Driven()
    while driven.state.pace.stable_since is None:
        driven.tick()
    for _ in range(30):
        driven.tick()
    for _ in range(6):
        driven.tick(stall=0.02)
    disturbed = driven.now
    driven.until(Phase.HOLDING)
    assert driven.now - disturbed >= POLICY.stability_seconds - POLICY.settle_seconds


# 3.5 anon with swap: small steps, no faster than 1 MiB/s.


def test_steps_that_swap_are_small_and_slow():
    state = _SwappingContainer()
    state.run(200)
    assert state.amounts
    assert max(state.amounts) <= 16 * MIB
    assert state.swapped <= 200 * MIB + 16 * MIB


class _SwappingContainer(Driven):
    """All that is reclaimed goes to swap."""

    def __init__(self):
        super().__init__(SWAPPING, target=300, usage=480, anon=440, swap_free_bytes=GIB)

    @property
    def amounts(self):
        return [amount for _, amount in self.reclaims]

    def run(self, seconds):
        for _ in range(seconds):
            before = sum(self.amounts)
            self.tick()
            self.swapped += sum(self.amounts) - before


# 3.9 pod level.


@pytest.mark.parametrize(
    ("stray", "outcome"), [(5, Phase.HOLDING), (30, Phase.HOLDING), (200, Phase.REFUSED)], ids=["pause", "some-tmpfs", "much-tmpfs"]
)
def test_the_pod_must_fit_as_well(stray, outcome):
    """Another container stands at its own limit of 1 GiB; ``stray`` is what nobody's limit covers."""
    driven = _PodWith(stray)
    state = driven.until(Phase.HOLDING)
    assert state.phase is outcome
    if outcome is Phase.HOLDING:
        assert driven.usage + 1024 + stray <= 1024 + 256
    else:
        assert state.reason == Reason.POD_MEMORY
        assert driven.reclaims == []
        assert state.floor_bytes > 256 * MIB


def test_a_pod_that_outgrows_its_lower_limit_while_held_is_given_its_memory_back():
    driven = _PodWith(5)
    driven.until(Phase.HOLDING)
    driven.stray = 60
    state = driven.until()
    assert (state.phase, state.reason) == (Phase.REVERTED, Reason.POD_MEMORY)


class _PodWith(Driven):
    def __init__(self, stray):
        self.stray = stray
        super().__init__()

    def snapshot(self):
        pod = PodLevel(int((self.usage + 1024 + self.stray) * MIB), GIB + LIMIT)
        return replace(super().snapshot(), pod=pod)


# 3.6: the guard stays until the limit is read back; 3.9: whoever writes memory.high besides.


def test_the_guard_goes_only_with_the_limit():
    driven = Driven()
    driven.until(Phase.HOLDING)
    for _ in range(100):
        driven.tick()
    assert driven.high == POLICY.page_floor(driven.state.plan.guard_bytes)
    driven.max = 256 * MIB
    driven.tick()
    assert (driven.state.phase, driven.high) == (Phase.COMMITTED, None)


@pytest.mark.parametrize(
    ("writes", "phase", "original"),
    [([None], Phase.HOLDING, None), ([300 * MIB], Phase.HOLDING, 300 * MIB), ([None, None], Phase.REVERTED, None)],
    ids=["max-once", "memory-qos", "max-twice"],
)
def test_foreign_writes_of_high(writes, phase, original):
    driven = Driven()
    driven.until(Phase.HOLDING)
    for high in writes:
        driven.high = high
        driven.tick()
    assert driven.state.phase is phase
    assert driven.state.original.high_bytes == original


def test_readiness_that_flips_reverts_and_a_container_that_never_was_ready_does_not_count(state_dir):
    world = World(state_dir / "a", Policy(start_jitter_seconds=0))
    kernel = world.add(FakeKernel(Workload(anon=lambda _t: 60, cold=300)))
    uid = world.ask(256)
    world.run_until(uid, Phase.SHRINKING)
    world.set_ready("web-1", ready=False)
    status = world.run_until(uid)
    assert (status.phase, status.reason) == (Phase.REVERTED, "NotReady")
    assert status.floor_bytes is not None
    assert kernel.high is None
    never = World(state_dir / "b", Policy(start_jitter_seconds=0))
    never.add(FakeKernel(Workload(anon=lambda _t: 60, cold=300)))
    never.set_ready("web-1", ready=False)
    assert never.run_until(never.ask(256)).phase is Phase.DONE


@pytest.mark.parametrize("phase", [Phase.SHRINKING, Phase.HOLDING])
def test_a_pod_that_is_being_deleted_gets_its_memory_back(state_dir, phase):
    world = World(state_dir, Policy(start_jitter_seconds=0))
    kernel = world.add(FakeKernel(Workload(anon=lambda _t: 60, cold=300)))
    uid = world.ask(256)
    world.run_until(uid, phase, commits=False)
    world.delete_pod("web-1")
    status = world.run_until(uid, commits=False)
    assert (status.phase, status.reason) == (Phase.ABORTED, "PodDeleting")
    assert kernel.high is None
