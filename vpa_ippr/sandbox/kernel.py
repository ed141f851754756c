"""A model of the kernel's control of one container's memory and CPU (cgroup v2, no swap): coarse, but right in direction.

The rules follow the sources of 6.1, 6.12 and 7.3 and a laboratory of those kernels:

* ``memory.high``: growth above it first reclaims; what cannot be reclaimed sleeps ``64 * r^2`` seconds for each 256 KiB, ``r`` being the
  relative excess, up to 2 s; sleeps of 10 ms or less are skipped (``mem_cgroup_handle_over_high``). Below the floor even an idle process
  stalls, since its text is evicted and every refault is a throttled charge.
* ``memory.max``: reclaim, then OOM kill. A write of a lower value does the same at once.
* ``memory.reclaim``: frees exactly what is asked, or what there is and answers EAGAIN. It charges no pressure to the container; what shows
  are the refaults.

One process a container, so that "some" and "full" pressure are the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from vpa_ippr.sandbox.pagecache import MIB, PAGE_BYTES, Demand, KernelSettings, PageCache, page_floor

# MEMCG_CHARGE_BATCH, 64 pages: what one sleep pays for.
BATCH_BYTES = 64 * PAGE_BYTES
PENALTY_SECONDS = 64.0
MAX_SLEEP_SECONDS = 2.0
# The excess up to which the penalty is at most HZ/100 and skipped.
FREE_EXCESS = 0.0125
# Laboratory: 150 MiB idle under high = 150 / 148 / 100 MiB stalled 23 / 45 / 98 % of the time; c * r / (1 + c * r) fits with c = 45.
FLOOR_STALL = 45.0
# A process that lacks its text reads it over and over, the faster the less it is held up; 38 MiB/s is what recordings come down to.
TEXT_REFAULT_BYTES_PER_SECOND = 38 * MIB
TEXT_REFAULT_POWER = 4
# What a write of memory.high frees for each byte of excess: 1.0 to 2.7 in 43 recorded writes, 1.47 in the median.
HIGH_OVERSHOOT = 1.5
# "high" events a second of stall (laboratory: 60 to 330 a second at 20 to 50 % stall).
HIGH_EVENTS_PER_STALLED_SECOND = 300
# A reclaim that fails scans what it cannot free, 16 times over.
RECLAIM_RETRIES = 16
CFS_PERIOD_SECONDS = 0.1
_UNLIMITED = 1 << 62


@dataclass(slots=True)
class Counters:
    """What only grows: ``memory.events``, the counters of ``memory.stat`` (pages) and the ``total=`` of the pressure files (seconds)."""

    high: int = 0
    max: int = 0
    oom: int = 0
    oom_kill: int = 0
    refault_pages: int = 0
    major_faults: int = 0
    scanned_pages: int = 0
    stolen_pages: int = 0
    memory_stall_seconds: float = 0.0
    io_stall_seconds: float = 0.0


class ContainerMemory:
    """One container's memory cgroup; a limit of None is ``max``. Once ``oom_killed`` nothing runs in it any more.

    ``outer_max_bytes`` is what the pod's cgroup leaves for this container, when that is less than its own limit.
    """

    def __init__(self, max_bytes: int | None = None, settings: KernelSettings | None = None) -> None:
        self.max_bytes = None if max_bytes is None else page_floor(max_bytes)
        self.outer_max_bytes: int | None = None
        self.high_bytes: int | None = None
        self._settings = settings or KernelSettings()
        self.cache = PageCache(self._settings)
        self.counters = Counters()
        self.oom_killed = False
        self.anon_bytes = 0
        self.shmem_bytes = 0
        self.locked_bytes = 0
        self.kernel_bytes = 0
        self.peak_bytes = 0
        self._sleep_owed_seconds = 0.0

    @property
    def process_bytes(self) -> int:
        """What only the process itself can give back: there is no swap."""
        return self.anon_bytes + self.shmem_bytes + self.locked_bytes + self.kernel_bytes

    @property
    def usage_bytes(self) -> int:
        """``memory.current``."""
        return self.process_bytes + self.cache.total_bytes

    @property
    def working_set_bytes(self) -> int:
        """Usage less inactive file pages, as cAdvisor reports it."""
        return max(0, self.usage_bytes - self.cache.inactive_bytes)

    @property
    def hard_limit_bytes(self) -> int | None:
        """What the kernel kills at: the container's own limit or the pod's."""
        limits = [limit for limit in (self.max_bytes, self.outer_max_bytes) if limit is not None]
        return min(limits) if limits else None

    def stat(self) -> dict[str, int]:
        """``memory.stat``: bytes, and pages for the counters."""
        cache, counters = self.cache, self.counters
        stacks = self.kernel_bytes // 4
        return {
            "anon": self.anon_bytes + self.locked_bytes,
            "file": cache.file_bytes + self.shmem_bytes,
            "kernel": self.kernel_bytes + cache.slab_bytes,
            "kernel_stack": stacks,
            "pagetables": stacks,
            "shmem": self.shmem_bytes,
            "file_mapped": cache.mapped_bytes,
            "file_dirty": 0,
            "inactive_anon": 0,
            "active_anon": self.anon_bytes + self.shmem_bytes,
            "inactive_file": cache.inactive_bytes,
            "active_file": cache.file_bytes - cache.inactive_bytes,
            "unevictable": self.locked_bytes,
            "slab_reclaimable": cache.slab_bytes,
            "slab_unreclaimable": self.kernel_bytes - 2 * stacks,
            "workingset_refault_anon": 0,
            "workingset_refault_file": counters.refault_pages,
            "pgmajfault": counters.major_faults,
            "pgscan": counters.scanned_pages,
            "pgsteal": counters.stolen_pages,
        }

    def events(self) -> dict[str, int]:
        """``memory.events``."""
        counters = self.counters
        return {
            "low": 0,
            "high": counters.high,
            "max": counters.max,
            "oom": counters.oom,
            "oom_kill": counters.oom_kill,
            "oom_group_kill": 0,
        }

    def set_high(self, high_bytes: int | None) -> None:
        """Write ``memory.high``: sets it, then reclaims as the kernel's writer does, which takes more than the excess."""
        self.high_bytes = None if high_bytes is None else page_floor(high_bytes)
        self._sleep_owed_seconds = 0.0
        if self.high_bytes is not None and self.usage_bytes > self.high_bytes:
            self._evict(int(HIGH_OVERSHOOT * (self.usage_bytes - self.high_bytes)))

    def set_max(self, max_bytes: int | None) -> None:
        """Write ``memory.max``: sets it first, then reclaims, then OOM-kills until usage fits."""
        self.max_bytes = None if max_bytes is None else page_floor(max_bytes)
        limit = self.hard_limit_bytes
        if limit is None or self.usage_bytes <= limit:
            return
        self.counters.max += 1
        self._evict(self.usage_bytes - limit)
        if self.usage_bytes > limit:
            self._oom_kill()

    def reclaim(self, amount_bytes: int) -> bool:
        """Write ``memory.reclaim``: False (EAGAIN) when less than asked could be freed; what could be is freed all the same."""
        wanted = page_floor(amount_bytes)
        return self._evict(wanted) >= wanted

    def run(self, demand: Demand, seconds: float) -> float:
        """Let the processes run for ``seconds`` towards ``demand``; the share of the time in which they were not stalled, 0 to 1.

        The step must be short (1 s) where a limit is near, and may be as long as the demand allows elsewhere.
        """
        if self.oom_killed or seconds <= 0:
            return 0.0
        if self._is_undisturbed(demand):
            return 1.0
        stalled = self._grow_process(demand, seconds)
        if stalled is None:
            return 0.0
        limit = min(self.hard_limit_bytes or _UNLIMITED, self.high_bytes or _UNLIMITED)
        reads = self.cache.read(demand, seconds, max(0, limit - self.process_bytes))
        self._count_reads(reads.refaulted_bytes, reads.evicted_bytes)
        floor_share = self._floor_stall_share(limit)
        self._count_text_refaults(floor_share, seconds)
        self.counters.high += int(floor_share * seconds * HIGH_EVENTS_PER_STALLED_SECOND) if self.high_bytes is not None else 0
        memory_stall = stalled + (reads.memory_stall_share + floor_share) * seconds + reads.read_memory_seconds
        memory_stall += reads.evicted_bytes * self._settings.reclaim_seconds_per_byte
        memory_stall = min(seconds, memory_stall)
        io_stall = reads.io_stall_share * seconds + reads.read_io_seconds
        io_stall = min(seconds - memory_stall, io_stall)
        self.counters.memory_stall_seconds += memory_stall
        self.counters.io_stall_seconds += io_stall
        self.peak_bytes = max(self.peak_bytes, self.usage_bytes)
        return 1.0 - (memory_stall + io_stall) / seconds

    def _is_undisturbed(self, demand: Demand) -> bool:
        """The usual case, done at once: nothing to read, and no limit near what the process wants to have."""
        if self.high_bytes is not None or not self.cache.is_content(demand):
            return False
        anon, shmem = page_floor(demand.anon_bytes), page_floor(demand.shmem_bytes)
        locked, kernel = page_floor(demand.locked_bytes), page_floor(demand.kernel_bytes)
        usage = anon + shmem + locked + kernel + self.cache.total_bytes
        limit = self.hard_limit_bytes
        if limit is not None and usage > limit:
            return False
        self.anon_bytes, self.shmem_bytes, self.locked_bytes, self.kernel_bytes = anon, shmem, locked, kernel
        self.peak_bytes = max(self.peak_bytes, usage)
        return True

    def _grow_process(self, demand: Demand, seconds: float) -> float | None:
        """Bring the process' own memory to what it wants, as far as the limits let it; the seconds that it slept, None if it was killed."""
        self.kernel_bytes = page_floor(demand.kernel_bytes)
        slept = 0.0
        for kind in ("anon_bytes", "shmem_bytes", "locked_bytes"):
            held: int = getattr(self, kind)
            wanted = page_floor(getattr(demand, kind))
            if wanted > held:
                growth, pause = self._charge(wanted - held, seconds - slept)
                wanted = held + growth
                slept += pause
                if self.oom_killed:
                    return None
            setattr(self, kind, wanted)
        return slept

    def _charge(self, amount: int, seconds: float) -> tuple[int, float]:
        """How much of ``amount`` the process gets within ``seconds``, and how long it has to sleep for it."""
        hard = self.hard_limit_bytes or _UNLIMITED
        high = self.high_bytes if self.high_bytes is not None else _UNLIMITED
        excess = self.usage_bytes + amount - min(hard, high)
        if excess <= 0:
            return amount, 0.0
        freed = self._evict(excess)
        slept = min(seconds, freed * self._settings.reclaim_seconds_per_byte)
        if self.usage_bytes + amount > hard:
            self.counters.max += 1
        if high != _UNLIMITED:
            return self._charge_above_high(amount, seconds, slept)
        if self.usage_bytes + amount > hard:
            self._oom_kill()
        return amount, slept

    def _charge_above_high(self, amount: int, seconds: float, slept: float) -> tuple[int, float]:
        assert self.high_bytes is not None
        # "high=0 is treated as one page" (calculate_overage).
        high = max(self.high_bytes, PAGE_BYTES)
        usage, hard = self.usage_bytes, self.hard_limit_bytes or _UNLIMITED
        slept += self._sleep_owed_seconds
        charged = max(0, min(amount, page_floor(high * (1 + FREE_EXCESS)) - usage))
        while charged < amount and slept < seconds and usage + charged <= hard:
            charged += min(BATCH_BYTES, amount - charged)
            excess_share = (usage + charged - high) / high
            slept += min(MAX_SLEEP_SECONDS, PENALTY_SECONDS * excess_share * excess_share)
        if usage + charged > high:
            self.counters.high += charged // BATCH_BYTES + 1
        if usage + charged > hard:
            self._oom_kill()
        # A sleep that is longer than the step goes on in the next one.
        self._sleep_owed_seconds = max(0.0, slept - seconds)
        return charged, min(slept, seconds)

    def _floor_stall_share(self, limit: int) -> float:
        """The time lost because the program's own pages do not fit beside what cannot be reclaimed."""
        excess_share = max(0, self.process_bytes + self._settings.text_bytes - limit) / max(limit, PAGE_BYTES)
        return FLOOR_STALL * excess_share / (1 + FLOOR_STALL * excess_share)

    def _count_text_refaults(self, floor_share: float, seconds: float) -> None:
        if floor_share:
            running_share = (1 - floor_share) ** TEXT_REFAULT_POWER
            self.counters.refault_pages += int(TEXT_REFAULT_BYTES_PER_SECOND * running_share * seconds) // PAGE_BYTES

    def _count_reads(self, refaulted_bytes: int, evicted_bytes: int) -> None:
        pages = refaulted_bytes // PAGE_BYTES
        self.counters.refault_pages += pages
        self.counters.major_faults += pages if self.cache.mapped else 0
        self.counters.scanned_pages += evicted_bytes // PAGE_BYTES
        self.counters.stolen_pages += evicted_bytes // PAGE_BYTES
        if evicted_bytes:
            # Cache that fills up to a limit meets it once a batch.
            at_high = self.high_bytes is not None and self.high_bytes < (self.hard_limit_bytes or _UNLIMITED)
            meetings = evicted_bytes // BATCH_BYTES + 1
            self.counters.high += meetings if at_high else 0
            self.counters.max += 0 if at_high else meetings

    def _evict(self, amount: int) -> int:
        freed = self.cache.take(amount)
        self.counters.stolen_pages += freed // PAGE_BYTES
        retries = 1 if freed >= amount else RECLAIM_RETRIES
        self.counters.scanned_pages += freed // PAGE_BYTES * retries
        return freed

    def _oom_kill(self) -> None:
        self.peak_bytes = max(self.peak_bytes, self.hard_limit_bytes or 0)
        self.counters.oom += 1
        self.counters.oom_kill += 1
        self.oom_killed = True
        self.anon_bytes = self.locked_bytes = self.kernel_bytes = 0
        self.cache.take(self.cache.total_bytes)


class ContainerCpu:
    """One container's CPU bandwidth control; a limit of None is no quota."""

    def __init__(self, limit_millicores: int | None = None) -> None:
        self.limit_millicores = limit_millicores
        self.usage_seconds = 0.0
        self.periods = 0.0
        self.throttled_periods = 0.0
        self.throttled_seconds = 0.0

    def run(self, demand_millicores: float, seconds: float) -> None:
        """Use the CPU for ``seconds``: as much as is wanted, up to the limit."""
        limit = self.limit_millicores
        used = demand_millicores if limit is None else min(demand_millicores, limit)
        self.usage_seconds += used / 1000 * seconds
        if limit is None:
            return
        periods = seconds / CFS_PERIOD_SECONDS
        self.periods += periods
        if demand_millicores > limit:
            self.throttled_periods += periods
            self.throttled_seconds += (demand_millicores - limit) / demand_millicores * seconds
