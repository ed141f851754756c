"""Can this container live below the target? Pure arithmetic over what the kernel showed while nothing was touched.

The floor U of a look is ``current - (active_file + inactive_file) - slab_reclaimable``: what the kernel cannot take without swap. Where
the policy lets swap be used, what of the anonymous LRU fits into it is taken off as well. LRU figures treat shmem (on the anonymous LRU),
mlock (unevictable) and MADV_FREE pages (on the file LRU) rightly. Pinned pages stay on the LRU, so U is a lower bound; the machine's stuck
rule catches those.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from vpa_ippr.actuator.cgroup import Snapshot
from vpa_ippr.actuator.policy import MIB, Policy, mib
from vpa_ippr.actuator.reasons import Reason

_KERNEL_KEYS = ("kernel_stack", "pagetables", "slab_unreclaimable", "percpu", "sock", "vmalloc", "sec_pagetables")
_LINE_CORRELATION = 0.8
_REFAULT_KEYS = ("workingset_refault_file", "workingset_refault_anon")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What one look at the cgroup means for a shrink; counters only ever grow."""

    at: float
    usage_bytes: int
    high_bytes: int | None
    floor_bytes: int
    grown_bytes: int
    """All that cannot be dropped, be it in memory or swapped out: what a leak makes grow, however much swap hides it."""
    peak_bytes: int
    """Highest usage since the look before, as far as the kernel tells; at least ``usage_bytes``."""
    file_bytes: int
    mapped_bytes: int
    anon_bytes: int
    shmem_bytes: int
    mlocked_bytes: int
    kernel_bytes: int
    memory_some_us: int
    memory_full_us: int
    io_some_us: int
    refault_bytes: int
    major_faults: int
    scanned_pages: int
    stolen_pages: int
    high_events: int
    limit_events: int
    oom_events: int
    oom_kills: int
    swap_bytes: int = 0
    swap_failures: int = 0
    swappable_bytes: int = 0
    """What could be swapped out, where the policy lets it."""
    protected_bytes: int = 0

    @property
    def peak_floor_bytes(self) -> int:
        """The floor at the peak; what came and went between two looks is counted as unreclaimable."""
        return self.floor_bytes + self.peak_bytes - self.usage_bytes


def take_sample(snapshot: Snapshot, at: float, page_bytes: int, *, may_swap: bool = False) -> Sample:
    """Reduce a snapshot to the figures that decide."""
    stat, events, usage = snapshot.stat, snapshot.events, snapshot.usage_bytes
    file_bytes = stat.get("active_file", 0) + stat.get("inactive_file", 0)
    resident = max(0, usage - file_bytes - stat.get("slab_reclaimable", 0))
    anon_lru = stat.get("active_anon", 0) + stat.get("inactive_anon", 0)
    swappable = min(snapshot.swap_free_bytes, anon_lru, resident) if may_swap else 0
    return Sample(
        at=at,
        usage_bytes=usage,
        high_bytes=snapshot.high_bytes,
        floor_bytes=max(resident - swappable, min(usage, snapshot.protected_bytes)),
        grown_bytes=resident + snapshot.swap_bytes,
        peak_bytes=max(usage, snapshot.peak_bytes or 0),
        file_bytes=file_bytes,
        mapped_bytes=stat.get("file_mapped", 0),
        anon_bytes=stat.get("anon", 0),
        shmem_bytes=stat.get("shmem", 0),
        mlocked_bytes=stat.get("unevictable", 0),
        kernel_bytes=sum(stat.get(key, 0) for key in _KERNEL_KEYS),
        memory_some_us=snapshot.memory_some_us,
        memory_full_us=snapshot.memory_full_us,
        io_some_us=snapshot.io_some_us,
        refault_bytes=page_bytes * sum(stat.get(key, 0) for key in _REFAULT_KEYS),
        major_faults=stat.get("pgmajfault", 0),
        scanned_pages=stat.get("pgscan", 0),
        stolen_pages=stat.get("pgsteal", 0),
        high_events=events.get("high", 0),
        limit_events=events.get("max", 0),
        oom_events=events.get("oom", 0),
        oom_kills=events.get("oom_kill", 0) + events.get("oom_group_kill", 0),
        swap_bytes=snapshot.swap_bytes,
        swap_failures=snapshot.swap_failures,
        swappable_bytes=swappable,
        protected_bytes=min(usage, snapshot.protected_bytes),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What happened between two samples; percentages of wall time."""

    memory_some_percent: float = 0.0
    memory_full_percent: float = 0.0
    io_some_percent: float = 0.0
    refault_bytes_per_second: float = 0.0
    major_faults_per_second: float = 0.0


def rates(before: Sample, after: Sample) -> Rates:
    """Rates from one sample to a later one; zero when no time has passed."""
    seconds = after.at - before.at
    if seconds <= 0:
        return Rates()

    def rate(earlier: int, later: int) -> float:
        return max(0, later - earlier) / seconds

    return Rates(
        memory_some_percent=rate(before.memory_some_us, after.memory_some_us) / 1e4,
        memory_full_percent=rate(before.memory_full_us, after.memory_full_us) / 1e4,
        io_some_percent=rate(before.io_some_us, after.io_some_us) / 1e4,
        refault_bytes_per_second=rate(before.refault_bytes, after.refault_bytes),
        major_faults_per_second=rate(before.major_faults, after.major_faults),
    )


def baseline(samples: Sequence[Sample]) -> Rates:
    """The median of each rate from look to look: what is normal for this container."""
    each = [rates(before, after) for before, after in itertools.pairwise(samples)]
    if not each:
        return Rates()
    return Rates(
        memory_some_percent=statistics.median(r.memory_some_percent for r in each),
        memory_full_percent=statistics.median(r.memory_full_percent for r in each),
        io_some_percent=statistics.median(r.io_some_percent for r in each),
        refault_bytes_per_second=statistics.median(r.refault_bytes_per_second for r in each),
        major_faults_per_second=statistics.median(r.major_faults_per_second for r in each),
    )


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why a container cannot be brought below its target, and the lowest limit that it would bear."""

    reason: Reason
    message: str
    floor_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """What a shrink to ``target_bytes`` has to respect; ``verdict`` is set when it must not be tried."""

    target_bytes: int
    margin_bytes: int
    floor_bytes: int
    """U: highest unreclaimable amount seen, bursts included."""
    reserve_bytes: int
    """F: page cache that must stay."""
    bearable_bytes: int
    """The lowest limit that this container would bear by what was seen."""
    slope_bytes_per_second: float
    baseline: Rates
    verdict: Verdict | None = None

    @property
    def goal_bytes(self) -> int:
        """G: usage to come down to before the limit may follow."""
        return self.target_bytes - self.margin_bytes

    @property
    def guard_bytes(self) -> int:
        """Hg: the final memory.high, half-way between goal and target."""
        return self.target_bytes - self.margin_bytes // 2

    @property
    def fits_now(self) -> bool:
        """True when nothing but time speaks against the target."""
        return self.floor_bytes + self.reserve_bytes <= self.goal_bytes


def assess(samples: Sequence[Sample], target_bytes: int, policy: Policy) -> Assessment:
    """Judge the observation window; ``samples`` are in order of time and not empty."""
    floors = _peak_floors(samples)
    median_floor = statistics.median(floors)
    burst = max(floors) - median_floor
    floor, reserve = max([*floors, policy.floor_bytes]), _reserve(samples, policy)
    found = Assessment(
        target_bytes=target_bytes,
        margin_bytes=_margin(burst, target_bytes, policy),
        floor_bytes=floor,
        reserve_bytes=reserve,
        bearable_bytes=bearable_limit(floor + reserve, policy, burst),
        slope_bytes_per_second=slope([s.at for s in samples], [s.grown_bytes for s in samples]),
        baseline=baseline(samples),
    )
    verdict = _judge(found, samples, median_floor, policy)
    return found if verdict is None else replace(found, verdict=verdict)


def needs_longer_look(plan: Assessment, samples: Sequence[Sample], policy: Policy) -> bool:
    """True when the window shows bursts, of which a full period must be seen, or growth that may be no more than a fluctuation.

    Judged by the floor and not by usage, because page cache that comes and goes gives way by itself.
    """
    if plan.verdict is not None:
        return plan.verdict.reason is Reason.GROWING and plan.fits_now
    floors = _peak_floors(samples)
    median_floor = statistics.median(floors)
    return max(floors) - median_floor > max(policy.burst_extend_ratio * median_floor, policy.stock_bytes)


def slope(times: Sequence[float], values: Sequence[float]) -> float:
    """Least-squares slope in units a second; 0 for less than two moments."""
    mean_time, mean_value = statistics.fmean(times), statistics.fmean(values)
    spread = sum((t - mean_time) ** 2 for t in times)
    if spread == 0:
        return 0.0
    return sum((t - mean_time) * (v - mean_value) for t, v in zip(times, values, strict=True)) / spread


def _peak_floors(samples: Sequence[Sample]) -> list[int]:
    # The first look's peak belongs to a time before we looked.
    return [samples[0].floor_bytes, *(s.peak_floor_bytes for s in samples[1:])]


def _margin(burst_bytes: float, target_bytes: int, policy: Policy) -> int:
    least = policy.margin_min_bytes + policy.stock_bytes
    clamped = min(max(policy.margin_ratio * target_bytes, least), policy.margin_max_bytes)
    return policy.page_floor(max(clamped, policy.margin_burst_factor * burst_bytes) + policy.page_bytes - 1)


def bearable_limit(need_bytes: float, policy: Policy, burst_bytes: float = 0.0) -> int:
    """The lowest limit whose goal is not below ``need_bytes``."""
    least = max(policy.margin_min_bytes + policy.stock_bytes, policy.margin_burst_factor * burst_bytes)
    by_ratio = min(need_bytes / (1 - policy.margin_ratio), need_bytes + policy.margin_max_bytes)
    return policy.page_floor(max(need_bytes + least, by_ratio)) + 2 * policy.page_bytes


def _reserve(samples: Sequence[Sample], policy: Policy) -> int:
    mapped = max(min(policy.reserve_mapped_ratio * s.mapped_bytes, s.file_bytes) for s in samples)
    return max(policy.reserve_min_bytes, int(mapped))


def _judge(found: Assessment, samples: Sequence[Sample], median_floor: float, policy: Policy) -> Verdict | None:
    growth = found.slope_bytes_per_second * policy.horizon_seconds
    last_floor = samples[-1].floor_bytes
    if growth > found.margin_bytes and last_floor + growth > found.goal_bytes and _is_steady_growth(samples):
        return Verdict(
            Reason.GROWING,
            f"needs {mib(last_floor)} and grows by {found.slope_bytes_per_second / MIB:.3f} MiB/s: above the goal of "
            f"{mib(found.goal_bytes)} within {policy.horizon_seconds:.0f} s",
            bearable_limit(last_floor + growth + found.reserve_bytes, policy),
        )
    if not found.fits_now:
        return _infeasible(found, samples, median_floor, policy)
    return _busy(found.baseline, policy)


def growth_after_commit(samples: Sequence[Sample], target_bytes: int, policy: Policy) -> Verdict | None:
    """Whether a need that grew steadily through the probation outgrows the new limit within the horizon; None when it does not.

    A minute of looking cannot tell a slow leak from a fluctuation, the whole probation can.
    """
    need, margin = samples[-1].floor_bytes, _margin(0, target_bytes, policy)
    per_second = slope([s.at for s in samples], [s.grown_bytes for s in samples])
    growth = per_second * policy.horizon_seconds
    if growth <= margin or need + growth <= target_bytes - margin or not _is_steady_growth(samples):
        return None
    message = (
        f"needs {mib(need)} and grows by {per_second / MIB:.3f} MiB/s: above {mib(target_bytes - margin)} "
        f"within {policy.horizon_seconds:.0f} s"
    )
    return Verdict(Reason.GROWING_AFTER_COMMIT, message, bearable_limit(need + growth, policy))


def _is_steady_growth(samples: Sequence[Sample]) -> bool:
    """A leak is a line that rises from each third of the window to the next; noise and bursts tilt the regression but do not lie on it."""
    if len(samples) < 3:
        return True
    third = len(samples) // 3
    floors = [s.grown_bytes for s in samples]
    first, middle, last = (statistics.median(part) for part in (floors[:third], floors[third:-third], floors[-third:]))
    return first < middle < last and statistics.correlation([s.at for s in samples], floors) > _LINE_CORRELATION


def _infeasible(found: Assessment, samples: Sequence[Sample], median_floor: float, policy: Policy) -> Verdict:
    kept = f"{mib(found.reserve_bytes)} of page cache must stay"
    room = f"{mib(found.floor_bytes)} cannot be reclaimed and {kept}, goal {mib(found.goal_bytes)}"
    top = max(samples, key=lambda s: s.peak_floor_bytes)
    if policy.floor_bytes > max(_peak_floors(samples)):
        return Verdict(Reason.BELOW_FLOOR, f"the floor given with the shrink stands against it: {room}", found.bearable_bytes)
    if median_floor + found.reserve_bytes <= found.target_bytes - _margin(0, found.target_bytes, policy):
        return Verdict(Reason.BURSTY, f"comes by bursts up to more than is there: {room}", found.bearable_bytes)
    if found.floor_bytes + policy.reserve_min_bytes <= found.goal_bytes:
        return Verdict(Reason.MAPPED_FILES, f"maps files that must stay: {room}", found.bearable_bytes)
    kinds = {
        Reason.UNRECLAIMABLE_ANON: top.anon_bytes - min(top.anon_bytes, top.mlocked_bytes),
        Reason.UNRECLAIMABLE_SHMEM: top.shmem_bytes,
        Reason.UNRECLAIMABLE_MLOCKED: top.mlocked_bytes,
        Reason.UNRECLAIMABLE_KERNEL: top.kernel_bytes,
        Reason.UNRECLAIMABLE_PROTECTED: top.protected_bytes,
    }
    reason = max(kinds, key=lambda kind: kinds[kind])
    return Verdict(reason, f"{room}; most of it is {_KIND_WORDS[reason]} ({mib(kinds[reason])})", found.bearable_bytes)


_KIND_WORDS = {
    Reason.UNRECLAIMABLE_ANON: "anonymous memory without swap",
    Reason.UNRECLAIMABLE_SHMEM: "shared memory or tmpfs (an emptyDir of medium Memory takes a sizeLimit)",
    Reason.UNRECLAIMABLE_MLOCKED: "locked in memory",
    Reason.UNRECLAIMABLE_KERNEL: "kernel memory",
    Reason.UNRECLAIMABLE_PROTECTED: "protected by the memory.min of cgroups within",
}


def _busy(normal: Rates, policy: Policy) -> Verdict | None:
    """Memory stalls before we begin leave no room to see ours; I/O waits are normal up to the hard bound."""
    if normal.memory_some_percent > policy.soft_memory_some_percent or normal.memory_full_percent > policy.soft_memory_full_percent:
        stalls = f"{normal.memory_some_percent:.1f} % some, {normal.memory_full_percent:.1f} % full"
        return Verdict(Reason.BUSY, f"stalls on memory already ({stalls}): try again when calm")
    if normal.io_some_percent > policy.hard_io_some_percent:
        return Verdict(Reason.BUSY, f"waits for I/O {normal.io_some_percent:.1f} % of the time already: try again when calm")
    return None
