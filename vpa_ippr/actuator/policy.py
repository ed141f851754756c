"""How careful the agent is: every quantity, pace and threshold of a shrink, with its unit, default and reason, in one frozen object.

The defaults come from a lab on three kernels (6.1, 6.12, 7.3) and from what Senpai, TMO, oomd and Katalyst use in the field. A
MemoryShrink may override a few of them (``spec.policy``); ``merge`` checks those.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from vpa_ippr.api.errors import ValidationError
from vpa_ippr.api.shrink import ShrinkPolicy

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """All that a shrink is judged and paced by. Percentages are of wall time unless the field says otherwise."""

    # The node.
    page_bytes: int = 4 * KIB
    node_cpus: int = 4
    """Each CPU may hold a pre-charge stock of 64 pages per cgroup, which ``memory.current`` counts as used."""

    # What is worth a try at all.
    min_shrink_bytes: int = 64 * MIB
    min_shrink_ratio: float = 0.1
    """A limit that falls by less than the greater of these two is not worth the disturbance."""
    startup_grace_seconds: float = 300.0
    """A container this young has not shown its need yet."""
    floor_bytes: int = 0
    """The caller's own knowledge of the need: counted as unreclaimable even when the kernel shows less."""

    # Room below the target (goal = target - margin, guard = target - margin / 2).
    margin_ratio: float = 0.05
    margin_min_bytes: int = 16 * MIB
    margin_max_bytes: int = GIB
    margin_burst_factor: float = 1.5
    """The margin is at least so many times the burst (peak less median) seen while observing."""
    reserve_min_bytes: int = 32 * MIB
    """Page cache that must stay even for a workload that maps no files: the pages of its own program."""
    reserve_mapped_ratio: float = 1.0
    """Share of the mapped files that must stay; 0.5 suits mappings known to be cold."""

    # Looking before touching.
    observe_seconds: float = 60.0
    observe_max_seconds: float = 300.0
    """Looked at so long when bursts show, of which a full period must be seen, or growth that may be a fluctuation."""
    burst_extend_ratio: float = 0.1
    horizon_seconds: float = 1800.0
    """A need that grows on for so long must still fit: catches leaks, which pass every test of calm."""

    # Pace.
    tick_seconds: float = 1.0
    probation_tick_seconds: float = 5.0
    poll_seconds: float = 5.0
    """How often the API is asked for new or aborted shrinks."""
    report_seconds: float = 30.0
    """A phase's progress is reported at most so often; a change of phase at once."""
    settle_seconds: float = 5.0
    stability_seconds: float = 60.0
    probation_seconds: float = 600.0
    deadline_step_share: float = 0.5
    """The share of the deadline that the steps may take."""
    probe_steps: int = 3
    """The first reclaims are always the worst: until they have sorted the LRU, only the hard signals count."""
    probe_ratio: float = 0.01
    step_min_ratio: float = 0.005
    step_max_ratio: float = 0.03
    """1 % in 6 s is what Senpai runs with for ever; a one-off shrink may go a little faster."""
    step_min_bytes: int = 4 * MIB
    step_max_bytes: int = 256 * MIB
    step_growth: float = 1.5
    guard_slack_ratio: float = 0.05
    """While stepping, memory.high stays this far above usage, so that a dead agent strangles nobody."""
    guard_slack_min_ratio: float = 0.01
    """A cache that refills to where it was before the step halves the slack down to this, or it would never shrink."""

    # Soft signals: hold and go on smaller. Rates over the settle window, above the baseline seen while observing.
    soft_memory_some_percent: float = 0.5
    soft_memory_full_percent: float = 0.1
    soft_io_some_percent: float = 5.0
    """The only signal of thrashing mapped files: under MGLRU a first refault is no memory stall."""
    soft_refault_percent: float = 10.0
    """Refaulted bytes in percent of the bytes that the step freed."""
    soft_major_fault_factor: float = 3.0
    soft_major_faults_per_second: float = 50.0
    soft_steal_ratio: float = 0.3
    """Pages stolen per page scanned below which the kernel scans in vain."""
    backoff_seconds: float = 10.0
    backoff_max_seconds: float = 40.0
    max_soft_windows: int = 6
    """So many soft windows in a row mean that the working set has been reached."""
    max_fruitless_steps: int = 12
    """So many steps that brought usage no lower than before mean the same, although no single window showed it."""

    # Hard signals: release at once.
    hard_memory_some_percent: float = 10.0
    hard_memory_full_percent: float = 5.0
    hard_memory_window_seconds: float = 2.0
    hard_io_some_percent: float = 25.0
    """Above the baseline."""
    hard_io_window_seconds: float = 5.0
    hard_refault_percent: float = 100.0
    hard_refault_windows: int = 3
    hard_over_high_ratio: float = 0.02
    """Above this the kernel's penalty sleeps exceed 10 ms a batch."""
    stuck_steps: int = 4
    stuck_freed_ratio: float = 0.25
    max_foreign_writes: int = 2
    """The first foreign write of memory.high is answered by setting the guard again, the second by giving way."""

    # After the commit.
    probation_limit_hits_per_second: float = 1.0
    probation_limit_window_seconds: float = 30.0

    # The node's limits.
    max_observing: int = 10
    max_stepping: int = 2

    def __post_init__(self) -> None:
        broken = tuple(f"{name}: {text}" for name, text, holds in _RULES if not holds(self))
        if broken:
            raise ValidationError(f"actuator policy: {'; '.join(broken)}", fields=broken, reason="InvalidPolicy")

    @property
    def stock_bytes(self) -> int:
        """How far ``memory.current`` may overstate usage: 64 pages a CPU (MEMCG_CHARGE_BATCH)."""
        return 64 * self.page_bytes * self.node_cpus

    def page_floor(self, amount_bytes: float) -> int:
        """Rounded down to a page, which is what the kernel makes of a limit."""
        return int(amount_bytes) // self.page_bytes * self.page_bytes


_RULES: tuple[tuple[str, str, Callable[[Policy], bool]], ...] = (
    ("max_fruitless_steps", "must be at least 1", lambda p: p.max_fruitless_steps >= 1),
    ("page_bytes", "must be a power of two of at least 4096", lambda p: p.page_bytes >= 4096 and p.page_bytes & (p.page_bytes - 1) == 0),
    ("node_cpus", "must be at least 1", lambda p: p.node_cpus >= 1),
    ("floor_bytes", "must not be negative", lambda p: p.floor_bytes >= 0),
    ("margin_ratio", "must be above 0 and below 0.5", lambda p: 0 < p.margin_ratio < 0.5),
    ("margin_min_bytes", "must be positive and at most margin_max_bytes", lambda p: 0 < p.margin_min_bytes <= p.margin_max_bytes),
    ("reserve_mapped_ratio", "must lie in 0..1", lambda p: 0 <= p.reserve_mapped_ratio <= 1),
    ("observe_seconds", "must be positive and at most observe_max_seconds", lambda p: 0 < p.observe_seconds <= p.observe_max_seconds),
    ("tick_seconds", "must be positive and at most settle_seconds", lambda p: 0 < p.tick_seconds <= p.settle_seconds),
    ("probation_tick_seconds", "must be positive", lambda p: p.probation_tick_seconds > 0),
    ("poll_seconds", "must be positive", lambda p: p.poll_seconds > 0),
    ("settle_seconds", "must lie in 1..300", lambda p: 1 <= p.settle_seconds <= 300),
    ("stability_seconds", "must lie in 0..3600", lambda p: 0 <= p.stability_seconds <= 3600),
    ("probation_seconds", "must not be negative", lambda p: p.probation_seconds >= 0),
    ("deadline_step_share", "must be above 0 and at most 1", lambda p: 0 < p.deadline_step_share <= 1),
    ("step_max_ratio", "must lie in 0.001..0.1 (0.1 to 10 percent of usage)", lambda p: 0.001 <= p.step_max_ratio <= 0.1),
    ("step_min_ratio", "must be positive and at most step_max_ratio", lambda p: 0 < p.step_min_ratio <= p.step_max_ratio),
    ("step_min_bytes", "must be positive and at most step_max_bytes", lambda p: 0 < p.step_min_bytes <= p.step_max_bytes),
    (
        "guard_slack_ratio",
        "must be at most 1 and at least guard_slack_min_ratio, which must be at least 0.005",
        lambda p: 0.005 <= p.guard_slack_min_ratio <= p.guard_slack_ratio <= 1,
    ),
    (
        "soft_memory_some_percent",
        "must be above 0 and at most hard_memory_some_percent",
        lambda p: 0 < p.soft_memory_some_percent <= p.hard_memory_some_percent,
    ),
    (
        "soft_refault_percent",
        "must be above 0 and at most hard_refault_percent",
        lambda p: 0 < p.soft_refault_percent <= p.hard_refault_percent,
    ),
    ("max_stepping", "must be at least 1 and at most max_observing", lambda p: 1 <= p.max_stepping <= p.max_observing),
)


def merge(policy: Policy, overrides: ShrinkPolicy) -> Policy:
    """The agent's policy with what one MemoryShrink asks to be different.

    Raises:
        ValidationError: an override is out of range; the message names the field in the object.
    """
    merged = policy
    broken: list[str] = []
    for field, value, apply in (
        ("stepPercent", overrides.step_percent, _with_step),
        ("settleSeconds", overrides.settle_seconds, _with_settle),
        ("stabilitySeconds", overrides.stability_seconds, _with_stability),
        ("maxPressurePercent", overrides.max_pressure_percent, _with_pressure),
        ("maxRefaultPercent", overrides.max_refault_percent, _with_refault),
        ("floorBytes", overrides.floor_bytes, _with_floor),
    ):
        if value is None:
            continue
        try:
            merged = apply(merged, value)
        except ValidationError as error:
            broken.append(f"spec.policy.{field} is {value:g}: {', '.join(error.fields)}")
    if broken:
        raise ValidationError("; ".join(broken), fields=tuple(broken), reason="InvalidPolicy")
    return merged


def _with_step(policy: Policy, percent: float) -> Policy:
    ratio = percent / 100
    return replace(
        policy, step_max_ratio=ratio, step_min_ratio=min(policy.step_min_ratio, ratio), probe_ratio=min(policy.probe_ratio, ratio)
    )


def _with_settle(policy: Policy, seconds: float) -> Policy:
    return replace(policy, settle_seconds=seconds, tick_seconds=min(policy.tick_seconds, seconds))


def _with_stability(policy: Policy, seconds: float) -> Policy:
    return replace(policy, stability_seconds=seconds)


def _with_pressure(policy: Policy, percent: float) -> Policy:
    return replace(policy, soft_memory_some_percent=percent)


def _with_refault(policy: Policy, percent: float) -> Policy:
    return replace(policy, soft_refault_percent=percent)


def _with_floor(policy: Policy, amount_bytes: float) -> Policy:
    return replace(policy, floor_bytes=int(amount_bytes))
