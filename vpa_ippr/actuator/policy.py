"""How careful the agent is: every quantity, pace and threshold of a shrink, with its unit, default and reason, in one frozen object.

The defaults come from a lab on three kernels (6.1, 6.12, 7.3) and from what Senpai, TMO, oomd and Katalyst use in the field. A
MemoryShrink may override a few of them (``policy_overrides``), a node's operator most (``policy_file``). The table in docs/actuator.md is
made from this class: the name tells the unit, the line below a field why it is what it is.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

from vpa_ippr.api.errors import ValidationError

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


def mib(amount_bytes: float) -> str:
    """For messages."""
    return f"{amount_bytes / MIB:.1f} MiB"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """All that a shrink is judged and paced by. Percentages are of wall time unless the field says otherwise."""

    # The node.
    page_bytes: int = 4 * KIB
    """The kernel rounds limits down to it; found at the start."""
    node_cpus: int = 4
    """Each CPU may hold a pre-charge stock of 64 pages per cgroup, which ``memory.current`` counts as used; found at the start."""

    # What is worth a try at all.
    min_shrink_bytes: int = 64 * MIB
    """A limit that falls by less is not worth the disturbance."""
    min_shrink_ratio: float = 0.1
    """Nor one that falls by less than this share of itself."""
    startup_grace_seconds: float = 300.0
    """A container this young has not shown its need yet."""
    floor_bytes: int = 0
    """The caller's own knowledge of the need: counted as unreclaimable even when the kernel shows less."""
    respect_declared_heap: bool = True
    """Whether a target below what ``-Xmx``, ``MaxRAMPercentage``, ``GOMEMLIMIT`` or ``--max-old-space-size`` allow is refused."""
    excluded_namespaces: tuple[str, ...] = ("kube-system",)
    """The node depends on what runs there; shell patterns."""
    vm_runtime_classes: tuple[str, ...] = ("kata*", "*gvisor*", "runsc*")
    """RuntimeClasses whose containers keep their memory in a guest, where the node's cgroup says nothing; shell patterns, any case."""

    # Room below the target (goal = target - margin, guard = target - margin / 2).
    margin_ratio: float = 0.05
    """Share of the target that stays free, for what a workload may grow by between the last look and the lower limit."""
    margin_min_bytes: int = 16 * MIB
    """The least margin, to which the CPUs' stock is added."""
    margin_max_bytes: int = GIB
    """More margin than that protects nobody."""
    margin_burst_factor: float = 1.5
    """The margin is at least so many times the burst (peak less median) seen while observing."""
    reserve_min_bytes: int = 32 * MIB
    """Page cache that must stay even for a workload that maps no files: the pages of its own program."""
    reserve_mapped_ratio: float = 1.0
    """Share of the mapped files that must stay; 0.5 suits mappings known to be cold."""

    # Looking before touching.
    observe_seconds: float = 60.0
    """How long is looked, at 1 Hz, before anything is touched."""
    observe_max_seconds: float = 300.0
    """Looked at so long when bursts show, of which a full period must be seen, or growth that may be a fluctuation."""
    burst_extend_ratio: float = 0.1
    """Bursts above this share of the median need make the look longer."""
    horizon_seconds: float = 1800.0
    """A need that grows on for so long must still fit: catches leaks, which pass every test of calm."""

    # Pace.
    tick_seconds: float = 1.0
    """Between two looks, from Observing to Holding; pressure triggers come between."""
    probation_tick_seconds: float = 5.0
    """Between two looks once the limit is down and the guard is gone."""
    poll_seconds: float = 5.0
    """How often the API is asked for new or aborted shrinks, and for the pods of those under way."""
    report_seconds: float = 30.0
    """A phase's progress is reported at most so often; a change of phase at once. The updater trusts no Holding older than 120 s."""
    settle_seconds: float = 5.0
    """The window that is measured after each step; a refault takes a moment to come."""
    stability_seconds: float = 60.0
    """How long usage must stay at the goal, calm, before the limit may follow."""
    probation_seconds: float = 600.0
    """How long harm is watched for once the limit is down."""
    deadline_step_share: float = 0.5
    """The share of the deadline that the steps may take."""
    probe_steps: int = 3
    """The first reclaims are always the worst: until they have sorted the LRU, only the hard signals count."""
    probe_ratio: float = 0.01
    """Share of usage that a probe asks for, at most."""
    step_min_ratio: float = 0.005
    """Share of usage that a step asks for, at least."""
    step_max_ratio: float = 0.03
    """1 % in 6 s is what Senpai runs with for ever; a one-off shrink may go a little faster."""
    step_min_bytes: int = 4 * MIB
    """Less drowns in the noise of ``memory.current``."""
    step_max_bytes: int = 256 * MIB
    """More would be felt at once, however large the container; written in portions of 64 MiB."""
    step_growth: float = 1.5
    """After a calm window the step grows by this, up to what it began with."""
    guard_slack_ratio: float = 0.05
    """While stepping, memory.high stays this far above usage, so that a dead agent strangles nobody."""
    guard_slack_min_ratio: float = 0.01
    """A cache that refills to where it was before the step halves the slack down to this, or it would never shrink."""

    # Swap.
    may_swap: bool = False
    """Whether anonymous memory may be brought down by swapping it out; without, only page cache is taken."""
    swap_step_max_bytes: int = 16 * MIB
    """A step that may swap asks for no more: one large one took 42 s in the lab."""
    swap_out_bytes_per_second: int = MIB
    """Swap may grow no faster: beyond, disks wear out and the workload waits for what it lost."""

    # Soft signals: hold and go on smaller. Rates over the settle window, above the baseline seen while observing.
    soft_memory_some_percent: float = 0.5
    """Senpai aims at 0.17, TMO and oomd at 0.1, all for ever; a one-off shrink may sit a little above."""
    soft_memory_full_percent: float = 0.1
    """Time in which nobody in the container could work."""
    soft_io_some_percent: float = 5.0
    """Points above the baseline. The only signal of thrashing mapped files: under MGLRU a first refault is no memory stall."""
    soft_refault_percent: float = 10.0
    """Refaulted bytes in percent of the bytes that the step freed."""
    soft_major_fault_factor: float = 3.0
    """Times the baseline's major faults that are allowed, besides the next."""
    soft_major_faults_per_second: float = 50.0
    """Major faults that are allowed on top."""
    soft_steal_ratio: float = 0.3
    """Pages stolen per page scanned below which the kernel scans in vain."""
    backoff_seconds: float = 10.0
    """The extra wait after a soft window; doubles with each in a row."""
    backoff_max_seconds: float = 40.0
    """The longest such wait."""
    max_soft_windows: int = 6
    """So many soft windows in a row mean that the working set has been reached; four were too few in the lab."""
    max_fruitless_steps: int = 12
    """So many steps that brought usage no lower than before mean the same, although no single window showed it."""

    # Hard signals: release at once.
    hard_memory_some_percent: float = 10.0
    """Of wall time as such, whatever the baseline."""
    hard_memory_full_percent: float = 5.0
    """Every stalled case of the lab showed above 20 % within one window."""
    hard_memory_window_seconds: float = 2.0
    """The time over which the two above are measured."""
    hard_io_some_percent: float = 25.0
    """Points above the baseline."""
    hard_io_window_seconds: float = 5.0
    """Longer than for memory: I/O comes in bursts."""
    hard_refault_percent: float = 100.0
    """All that a step freed came back."""
    hard_refault_windows: int = 3
    """So many such windows in a row, the probes' apart."""
    hard_over_high_ratio: float = 0.02
    """Usage so far above the guard: from there on the kernel's penalty sleeps exceed 10 ms a batch."""
    stuck_steps: int = 4
    """So many steps in a row that freed next to nothing mean pinned, hot or dirty memory."""
    stuck_freed_ratio: float = 0.25
    """Next to nothing: less than this share of what was asked, or EAGAIN."""
    max_foreign_writes: int = 2
    """The first foreign write of memory.high is answered by setting the guard again, the second by giving way."""

    # After the commit.
    probation_limit_hits_per_second: float = 1.0
    """Hits of the new ``memory.max`` that are borne."""
    probation_limit_window_seconds: float = 30.0
    """The time over which they are counted."""

    # The node's limits.
    max_observing: int = 10
    """Shrinks that look at the same time."""
    max_stepping: int = 2
    """Shrinks that reclaim at the same time; of one pod only one is under way at all."""
    reclaim_node_share_per_minute: float = 0.01
    """Share of the node's memory that all steps together may ask for in a minute; 1 switches it off."""
    node_memory_some_percent: float = 1.0
    """Nothing begins while the node itself stalls on memory more than this (avg10)."""
    node_io_some_percent: float = 10.0
    """Nor while it waits for I/O more than this (avg10)."""
    node_pause_io_some_percent: float = 20.0
    """Above this share of waiting for I/O on the node (avg10) steps pause; what is held stays held."""
    node_conditions_seconds: float = 30.0
    """How often the kubelet's MemoryPressure and DiskPressure are asked for, while there is something to begin."""
    start_jitter_seconds: float = 10.0
    """Each shrink begins up to so much later, so that those opened together do not step together."""

    def __post_init__(self) -> None:
        broken = [f"{name}: must be a finite number and not negative" for name in _numbers_amiss(self)]
        # A rule cannot judge what is no number at all.
        broken += () if broken else [f"{name}: {text}" for name, text, holds in _RULES if not holds(self)]
        if broken:
            raise ValidationError(f"actuator policy: {'; '.join(broken)}", fields=tuple(broken), reason="InvalidPolicy")

    @property
    def stock_bytes(self) -> int:
        """How far ``memory.current`` may overstate usage: 64 pages a CPU (MEMCG_CHARGE_BATCH)."""
        return 64 * self.page_bytes * self.node_cpus

    def page_floor(self, amount_bytes: float) -> int:
        """Rounded down to a page, which is what the kernel makes of a limit."""
        return int(amount_bytes) // self.page_bytes * self.page_bytes


def _numbers_amiss(policy: Policy) -> list[str]:
    values = ((one.name, getattr(policy, one.name)) for one in dataclasses.fields(policy))
    return [name for name, value in values if isinstance(value, int | float) and not (math.isfinite(value) and value >= 0)]


def _ordered(low: str, high: str) -> tuple[str, str, Callable[[Policy], bool]]:
    return low, f"must be above 0 and at most {high}", lambda p: 0 < getattr(p, low) <= getattr(p, high)


def _positive(name: str) -> tuple[str, str, Callable[[Policy], bool]]:
    return name, "must be positive", lambda p: getattr(p, name) > 0


_RULES: tuple[tuple[str, str, Callable[[Policy], bool]], ...] = (
    ("page_bytes", "must be a power of two of at least 4096", lambda p: p.page_bytes >= 4096 and p.page_bytes & (p.page_bytes - 1) == 0),
    ("margin_ratio", "must be above 0 and below 0.5", lambda p: 0 < p.margin_ratio < 0.5),
    ("min_shrink_ratio", "must lie in 0..1", lambda p: p.min_shrink_ratio <= 1),
    ("reserve_mapped_ratio", "must lie in 0..1", lambda p: p.reserve_mapped_ratio <= 1),
    ("horizon_seconds", "must lie in 60..86400", lambda p: 60 <= p.horizon_seconds <= 86400),
    (
        "tick_seconds",
        "must be positive and at most settle_seconds and hard_memory_window_seconds",
        lambda p: 0 < p.tick_seconds <= min(p.settle_seconds, p.hard_memory_window_seconds),
    ),
    ("report_seconds", "must lie in 1..60", lambda p: 1 <= p.report_seconds <= 60),
    ("settle_seconds", "must lie in 1..300", lambda p: 1 <= p.settle_seconds <= 300),
    ("stability_seconds", "must be at most 3600", lambda p: p.stability_seconds <= 3600),
    ("deadline_step_share", "must be above 0 and at most 1", lambda p: 0 < p.deadline_step_share <= 1),
    ("step_max_ratio", "must lie in 0.001..0.1 (0.1 to 10 percent of usage)", lambda p: 0.001 <= p.step_max_ratio <= 0.1),
    ("step_growth", "must be at least 1", lambda p: p.step_growth >= 1),
    (
        "guard_slack_ratio",
        "must be at most 1 and at least guard_slack_min_ratio, which must be at least 0.005",
        lambda p: 0.005 <= p.guard_slack_min_ratio <= p.guard_slack_ratio <= 1,
    ),
    ("stuck_freed_ratio", "must be at most 1", lambda p: p.stuck_freed_ratio <= 1),
    ("soft_steal_ratio", "must be at most 1", lambda p: p.soft_steal_ratio <= 1),
    (
        "reclaim_node_share_per_minute",
        "must be above 0 and at most 1 (1 switches the limit off)",
        lambda p: 0 < p.reclaim_node_share_per_minute <= 1,
    ),
    (
        "node_io_some_percent",
        "must be at most node_pause_io_some_percent",
        lambda p: p.node_io_some_percent <= p.node_pause_io_some_percent,
    ),
    ("start_jitter_seconds", "must be at most 300", lambda p: p.start_jitter_seconds <= 300),
    _ordered("margin_min_bytes", "margin_max_bytes"),
    _ordered("observe_seconds", "observe_max_seconds"),
    _ordered("step_min_ratio", "step_max_ratio"),
    _ordered("step_min_bytes", "step_max_bytes"),
    _ordered("soft_memory_some_percent", "hard_memory_some_percent"),
    _ordered("soft_memory_full_percent", "hard_memory_full_percent"),
    _ordered("soft_io_some_percent", "hard_io_some_percent"),
    _ordered("soft_refault_percent", "hard_refault_percent"),
    _ordered("max_stepping", "max_observing"),
    *map(
        _positive,
        (
            "node_cpus",
            "probation_tick_seconds",
            "poll_seconds",
            "probe_ratio",
            "backoff_seconds",
            "max_soft_windows",
            "max_fruitless_steps",
            "hard_memory_window_seconds",
            "hard_io_window_seconds",
            "hard_refault_windows",
            "stuck_steps",
            "max_foreign_writes",
            "probation_limit_window_seconds",
            "swap_step_max_bytes",
            "swap_out_bytes_per_second",
            "node_conditions_seconds",
        ),
    ),
)
