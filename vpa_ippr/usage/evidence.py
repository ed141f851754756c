"""What tells use from need: throttling, pressure and the page cache, judged element by element.

All arrays of one call have the same shape, one row a container (and one column a step, where there are steps); NaN is "not measured".

CPU. What a container used is what it got. While it is stopped at its quota, or waits for a CPU that others have, its use is a lower bound
of its demand: the sample is *censored*.

Memory. The working set is all memory but the inactive page cache (kubelet: usage - ``inactive_file``), so it holds cache that was read
twice, and perhaps not since. How much of that is needed, refaults tell: pages that were reclaimed and soon read again. That is only
evidence where something *was* reclaimed: a container far from its limit shows no refaults however hot its cache is. Shared memory counts as
``file`` in cAdvisor's cache but cannot be reclaimed without swap, so only ``active_file`` is ever taken off, never "cache".
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from vpa_ippr.api.series import Finding, Floats

CPU_CENSORED: Final = "CpuCensored"
MEMORY_TIGHT: Final = "MemoryTight"
_MIB: Final = 1024.0 * 1024.0

Bools = NDArray[np.bool_]


class CpuEvidenceRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When observed CPU counts as censored, and how far it is lifted."""

    throttled_share_bound: float = 0.1
    """Share of CFS periods. Below that the uplift is under 1.12, which a margin covers; the usual alert (CPUThrottlingHigh) is at 0.25."""

    pressure_share_bound: float = 0.1
    """Share of the time (PSI "some"). Threads that meet on one CPU wait a little on an idle machine, too."""

    max_uplift: float = 2.0
    """What is behind a limit cannot be seen from before it: at most double, then look again."""


class MemoryEvidenceRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much page cache counts as need, and when a limit is tight."""

    pressure_share_bound: float = 0.01
    """Share of the time (PSI "some"). Controllers that squeeze on purpose keep to 0.001 (TMO, oomd, Katalyst); ten times that hurts."""

    min_cache_share: float = 0.2
    """Share of the working set that must be active cache for it to be looked at: below that there is little to gain."""

    min_turnover_share: float = 0.01
    """Share of the active cache that must have been reclaimed within a step for the absence of refaults to mean anything."""

    low_reuse: float = 0.01
    """Share of the reclaimed pages that are read again: up to here reclaim took what nobody needed (Katalyst's accuracy of 0.99)."""

    high_reuse: float = 0.1
    """From here on all cache is needed; the bound at which our own shrinking of a container stops."""

    kept_share: float = 0.75
    """Share of the active cache that counts even if nothing is read again. Refaults speak for the pages at the end of the list alone: a
    quarter at a time, and the next refaults tell."""

    rss_margin: float = 1.1
    """Need is never below this multiple of the anonymous memory."""


class EvidenceRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How evidence is judged; not ``enabled``: none is asked for, and what was measured counts."""

    enabled: bool = True
    cpu: CpuEvidenceRules = CpuEvidenceRules()
    memory: MemoryEvidenceRules = MemoryEvidenceRules()


DEFAULT_CPU_EVIDENCE_RULES: Final = CpuEvidenceRules()
DEFAULT_MEMORY_EVIDENCE_RULES: Final = MemoryEvidenceRules()


@dataclass(frozen=True, slots=True, eq=False)
class CpuCensoring:
    """``uplift``: factor for the CPU value, 1 where it may be taken as it is, NaN without evidence. ``throttled``, ``waiting``: why."""

    uplift: Floats
    throttled: Bools
    waiting: Bools

    @property
    def censored(self) -> Bools:
        """Where use is but a lower bound of demand: a CPU limit must not be lowered."""
        return self.throttled | self.waiting

    def finding(self, row: int, subject: str) -> Finding | None:
        """What is to be said of one container; None if none of its steps is censored."""
        throttled, waiting = np.atleast_1d(self.throttled[row]), np.atleast_1d(self.waiting[row])
        censored = throttled | waiting
        count = int(np.count_nonzero(censored))
        if not count:
            return None
        causes = [
            f"{what} in {int(np.count_nonzero(flags))}"
            for flags, what in ((throttled, "throttled"), (waiting, "waiting for a CPU"))
            if flags.any()
        ]
        highest = float(np.max(np.atleast_1d(self.uplift[row])[censored]))
        message = (
            f"{subject}: CPU use is less than demand ({' and '.join(causes)} of {censored.size} steps); counted up to {highest:.2f} times"
        )
        return Finding(CPU_CENSORED, subject, count, message)


def judge_cpu(
    cores: Floats, throttled_share: Floats, pressure_share: Floats, rules: CpuEvidenceRules = DEFAULT_CPU_EVIDENCE_RULES
) -> CpuCensoring:
    """How far the demand for CPU is above the observed use.

    Throttling: a share p of the periods is cut off at the quota. Were the demand of a period exponentially distributed, the maximum
    likelihood estimate of its mean would be the sum of what was observed over the number of periods that were *not* cut off (type I
    censoring; Lawless, Statistical Models and Methods for Lifetime Data, 4.1), that is the observed mean times 1 / (1 - p).

    Pressure: for a share w of the time at least one task was ready and had no CPU (Documentation/accounting/psi.rst), so demand was at
    least w cores above use. A throttled task waits as well: of the two estimates the larger counts, never both.

    Args:
        cores: use, averaged over each step.
        throttled_share: of the CFS periods, 0 to 1; NaN without a quota, or in a step in which no period passed.
        pressure_share: of the time, 0 to 1.
        rules: bounds.
    """
    throttled = throttled_share > rules.throttled_share_bound
    waiting = pressure_share > rules.pressure_share_bound
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        by_throttling = np.where(throttled, 1.0 / (1.0 - np.minimum(throttled_share, 1.0)), 1.0)
        by_pressure = np.where(waiting, 1.0 + np.minimum(pressure_share, 1.0) / cores, 1.0)
    # With no known use there is nothing that a share of a core could be compared with.
    uplift = np.minimum(np.fmax(by_throttling, by_pressure), rules.max_uplift)
    return CpuCensoring(np.where(np.isnan(throttled_share) & np.isnan(pressure_share), np.nan, uplift), throttled, waiting)


class NeedReason(enum.IntEnum):
    """Why a container's memory need is what it is."""

    NOT_MEASURED = 0
    NO_EVIDENCE = 1
    LITTLE_CACHE = 2
    UNDER_PRESSURE = 3
    NOT_RECLAIMED = 4
    REUSED = 5
    PARTLY_REUSED = 6
    NOT_REUSED = 7


_WORDS: Final = {
    NeedReason.NOT_MEASURED: "no working set was measured",
    NeedReason.NO_EVIDENCE: "the working set counts: the page cache in it was not measured",
    NeedReason.LITTLE_CACHE: "the working set counts: there is little page cache in it",
    NeedReason.UNDER_PRESSURE: "the working set counts: tasks wait for memory",
    NeedReason.NOT_RECLAIMED: "the working set counts: nothing was reclaimed, so nobody knows whether the page cache is needed",
    NeedReason.REUSED: "the working set counts: page cache that was reclaimed was read again",
    NeedReason.PARTLY_REUSED: "part of the page cache does not count: of what was reclaimed little was read again",
    NeedReason.NOT_REUSED: "part of the page cache does not count: what was reclaimed was not read again",
}


@dataclass(frozen=True, slots=True, eq=False)
class MemoryParts:
    """What was measured of a container's memory: bytes; pages a second; a share of the time for ``pressure_share``.

    ``rss`` is anonymous memory (cgroup v2). ``active_file`` should be a low value of the step and the others high ones.
    """

    working_set: Floats
    rss: Floats
    mapped_file: Floats
    active_file: Floats
    refaulted_pages_per_second: Floats
    reclaimed_pages_per_second: Floats
    pressure_share: Floats


@dataclass(frozen=True, slots=True, eq=False)
class MemoryNeed:
    """``need_bytes``: what the container needs, NaN where no working set is known. ``reason``: a ``NeedReason`` for each."""

    need_bytes: Floats
    working_set_bytes: Floats
    reason: NDArray[np.int8]

    def words(self, row: int) -> str:
        """Why the newest number of one container is what it is."""
        reason = NeedReason(int(np.atleast_1d(self.reason[row])[-1]))
        need, used = (float(np.atleast_1d(values[row])[-1]) / _MIB for values in (self.need_bytes, self.working_set_bytes))
        return f"{_WORDS[reason]} ({need:.0f} of {used:.0f} MiB)" if math.isfinite(used) else _WORDS[reason]


def judge_need(
    parts: MemoryParts, step_seconds: float, page_bytes: int = 4096, rules: MemoryEvidenceRules = DEFAULT_MEMORY_EVIDENCE_RULES
) -> MemoryNeed:
    """Memory need told from page cache: the working set, less that part of the active cache which refaults say nobody misses.

    Of the active file pages those that are mapped (program text, mapped indexes) always count: their loss shows in I/O, hardly in refaults.
    Of the rest the share that counts rises from ``kept_share`` to 1 as the share of reclaimed pages that come back rises from ``low_reuse``
    to ``high_reuse``. Everything that is not measured counts as needed.
    """
    cache = np.maximum(parts.active_file - parts.mapped_file, 0.0)
    reclaimed = parts.reclaimed_pages_per_second
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        reuse = parts.refaulted_pages_per_second / reclaimed
        turnover = reclaimed * page_bytes * step_seconds / parts.active_file
    reason = _need_reason(parts, cache, reuse, turnover, rules)
    counted = np.interp(reuse, (rules.low_reuse, rules.high_reuse), (rules.kept_share, 1.0))
    # Sampled at other moments than the working set, the parts can be more than the whole: never off more than is beyond rss.
    lowest = np.fmin(rules.rss_margin * parts.rss, parts.working_set)
    less = np.maximum(parts.working_set - (1.0 - counted) * cache, lowest)
    need = np.where(reason >= NeedReason.PARTLY_REUSED, less, parts.working_set)
    return MemoryNeed(need, parts.working_set, reason)


def _need_reason(parts: MemoryParts, cache: Floats, reuse: Floats, turnover: Floats, rules: MemoryEvidenceRules) -> NDArray[np.int8]:
    unmeasured = (
        np.isnan(cache) | np.isnan(parts.rss) | np.isnan(parts.refaulted_pages_per_second) | np.isnan(parts.reclaimed_pages_per_second)
    )
    conditions = (
        (np.isnan(parts.working_set), NeedReason.NOT_MEASURED),
        (unmeasured, NeedReason.NO_EVIDENCE),
        (cache < rules.min_cache_share * parts.working_set, NeedReason.LITTLE_CACHE),
        (parts.pressure_share > rules.pressure_share_bound, NeedReason.UNDER_PRESSURE),
        (~(turnover >= rules.min_turnover_share), NeedReason.NOT_RECLAIMED),
        (reuse >= rules.high_reuse, NeedReason.REUSED),
        (reuse > rules.low_reuse, NeedReason.PARTLY_REUSED),
    )
    tests, reasons = zip(*conditions, strict=True)
    found: NDArray[np.int8] = np.select(tests, reasons, default=NeedReason.NOT_REUSED).astype(np.int8)
    return found


@dataclass(frozen=True, slots=True, eq=False)
class MemoryTightness:
    """``tight``: tasks waited for memory, so it must not be lowered. ``share``: of the time; NaN where nothing was measured."""

    tight: Bools
    share: Floats

    def finding(self, row: int, subject: str) -> Finding | None:
        """What is to be said of one container; None if it was never tight."""
        tight, share = np.atleast_1d(self.tight[row]), np.atleast_1d(self.share[row])
        count = int(np.count_nonzero(tight))
        if not count:
            return None
        message = (
            f"{subject}: tasks waited for memory in {count} of {tight.size} steps, up to {share[tight].max():.1%} of the time:"
            " the limit is tight and is not lowered"
        )
        return Finding(MEMORY_TIGHT, subject, count, message)


def judge_pressure(pressure_share: Floats, rules: MemoryEvidenceRules = DEFAULT_MEMORY_EVIDENCE_RULES) -> MemoryTightness:
    """Where pressure says that memory is short. No pressure proves nothing: losing mapped pages shows as I/O alone."""
    return MemoryTightness(pressure_share > rules.pressure_share_bound, pressure_share)


def broken_evidence_rules(rules: EvidenceRules) -> Iterator[tuple[str, str]]:
    """Each key that breaks a rule, and which."""
    for key, why in broken_cpu_evidence_rules(rules.cpu):
        yield f"cpu.{key}", why
    for key, why in broken_memory_evidence_rules(rules.memory):
        yield f"memory.{key}", why


def broken_cpu_evidence_rules(rules: CpuEvidenceRules) -> Iterator[tuple[str, str]]:
    """Each key that breaks a rule, and which."""
    for key in ("throttled_share_bound", "pressure_share_bound"):
        if not 0 <= getattr(rules, key) <= 1:
            yield key, f"is {getattr(rules, key)}: must be 0 to 1"
    if not 1 <= rules.max_uplift < math.inf:
        yield "max_uplift", f"is {rules.max_uplift}: must be 1 or more"


def broken_memory_evidence_rules(rules: MemoryEvidenceRules) -> Iterator[tuple[str, str]]:
    """Each key that breaks a rule, and which."""
    for key in ("pressure_share_bound", "min_cache_share", "kept_share"):
        if not 0 <= getattr(rules, key) <= 1:
            yield key, f"is {getattr(rules, key)}: must be 0 to 1"
    if not 0 < rules.min_turnover_share < math.inf:
        # At 0 a container of which nothing was reclaimed would count as one that misses nothing.
        yield "min_turnover_share", f"is {rules.min_turnover_share}: must be above 0"
    if not 0 <= rules.low_reuse < rules.high_reuse < math.inf:
        yield "low_reuse", f"is {rules.low_reuse}: must be 0 or more, and below high_reuse"
    if not 1 <= rules.rss_margin < math.inf:
        yield "rss_margin", f"is {rules.rss_margin}: must be 1 or more"
