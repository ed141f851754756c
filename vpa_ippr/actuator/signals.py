"""Is the workload being hurt? Soft signals slow a shrink down, hard ones end it at once.

Memory pressure alone does not see page-cache damage (a mapped hot file lost 90 % of its throughput at 0.00 % memory pressure), so I/O
pressure, refaults and major faults count as well. ``workingset_activate`` is not used: under MGLRU buffered reads do not raise it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vpa_ippr.actuator.assess import Rates, Sample, rates
from vpa_ippr.actuator.policy import Policy
from vpa_ippr.actuator.reasons import Reason


@dataclass(frozen=True, slots=True)
class Signal:
    """A threshold that was passed."""

    reason: Reason
    message: str


def refault_percent(window: Sample, now: Sample, freed_bytes: int, normal: Rates) -> float:
    """What came back in the window, above what is normal, in percent of what the step freed; 0 when nothing was freed."""
    if freed_bytes <= 0:
        return 0.0
    expected = normal.refault_bytes_per_second * (now.at - window.at)
    return 100.0 * max(0.0, now.refault_bytes - window.refault_bytes - expected) / freed_bytes


def soft(window: Sample, now: Sample, refaulted_percent: float, steal_ratio: float | None, normal: Rates, policy: Policy) -> Signal | None:
    """The first soft threshold that was passed over a settle window."""
    seen = rates(window, now)
    some = seen.memory_some_percent - normal.memory_some_percent
    full = seen.memory_full_percent - normal.memory_full_percent
    io = seen.io_some_percent - normal.io_some_percent
    allowed_faults = policy.soft_major_fault_factor * normal.major_faults_per_second + policy.soft_major_faults_per_second
    if some > policy.soft_memory_some_percent or full > policy.soft_memory_full_percent:
        return Signal(Reason.MEMORY_PRESSURE, f"memory pressure {some:.2f} % some, {full:.2f} % full above normal")
    if io > policy.soft_io_some_percent:
        return Signal(Reason.IO_PRESSURE, f"I/O pressure {io:.1f} points above normal")
    if refaulted_percent > policy.soft_refault_percent:
        return Signal(Reason.REFAULTS, f"{refaulted_percent:.0f} % of what was freed came back")
    if seen.major_faults_per_second > allowed_faults:
        return Signal(Reason.MAJOR_FAULTS, f"{seen.major_faults_per_second:.0f} major faults/s, {allowed_faults:.0f} allowed")
    swapped = now.swap_bytes - window.swap_bytes
    if swapped > policy.swap_out_bytes_per_second * (now.at - window.at):
        return Signal(Reason.SWAPPING, f"{swapped} bytes were swapped out in {now.at - window.at:.0f} s")
    if steal_ratio is not None and steal_ratio < policy.soft_steal_ratio:
        return Signal(Reason.SCANNING_IN_VAIN, f"the kernel took {100 * steal_ratio:.0f} % of the pages it scanned")
    return None


def hard(samples: Sequence[Sample], guard_bytes: int | None, normal: Rates, policy: Policy) -> Signal | None:
    """The first hard threshold that was passed; ``samples`` are the last looks in order of time."""
    return _killed(samples, guard_bytes) or hard_pressure(samples, normal, policy) or _over_high(samples, guard_bytes, policy)


def hard_pressure(samples: Sequence[Sample], normal: Rates, policy: Policy) -> Signal | None:
    """Pressure that no shrink may cause; memory as such, I/O above what is normal."""
    now = samples[-1]
    before = since(samples, policy.hard_memory_window_seconds)
    if before is not None:
        seen = rates(before, now)
        some, full = seen.memory_some_percent, seen.memory_full_percent
        if some > policy.hard_memory_some_percent or full > policy.hard_memory_full_percent:
            return Signal(Reason.MEMORY_PRESSURE, f"memory pressure {some:.1f} % some, {full:.1f} % full")
    before = since(samples, policy.hard_io_window_seconds)
    if before is not None:
        io = rates(before, now).io_some_percent - normal.io_some_percent
        if io > policy.hard_io_some_percent:
            return Signal(Reason.IO_PRESSURE, f"I/O pressure {io:.1f} points above normal")
    return None


def since(samples: Sequence[Sample], seconds: float) -> Sample | None:
    """The newest look that is at least so old, seen from the last one."""
    edge = samples[-1].at - seconds
    return next((sample for sample in reversed(samples) if sample.at <= edge), None)


def _killed(samples: Sequence[Sample], guard_bytes: int | None) -> Signal | None:
    if len(samples) < 2:
        return None
    before, now = samples[-2], samples[-1]
    if now.oom_kills > before.oom_kills or now.oom_events > before.oom_events:
        return Signal(Reason.OUT_OF_MEMORY, f"out of memory at {now.usage_bytes} bytes ({now.oom_kills - before.oom_kills} killed)")
    if now.swap_failures > before.swap_failures:
        return Signal(Reason.SWAP_FULL, f"swap was full {now.swap_failures - before.swap_failures} times")
    # A cache-heavy container touches its limit all the time; once a guard stands below the limit, only a burst gets there.
    if guard_bytes is not None and before.high_bytes == guard_bytes and now.limit_events > before.limit_events:
        return Signal(Reason.OUT_OF_MEMORY, f"reached memory.max {now.limit_events - before.limit_events} times over the guard")
    return None


def _over_high(samples: Sequence[Sample], guard_bytes: int | None, policy: Policy) -> Signal | None:
    before = since(samples, policy.hard_memory_window_seconds)
    if guard_bytes is None or before is None or before.high_bytes != guard_bytes:
        return None
    edge = guard_bytes * (1 + policy.hard_over_high_ratio)
    now = samples[-1]
    if before.usage_bytes > edge and now.usage_bytes > edge and now.high_events > before.high_events:
        return Signal(Reason.OVER_HIGH, f"usage {now.usage_bytes} stays above the guard {guard_bytes}: the kernel throttles")
    return None
