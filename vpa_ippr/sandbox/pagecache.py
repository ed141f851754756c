"""The reclaimable side of a container's memory: which pages the kernel takes first, and what it costs to lose them.

Four kinds: ``text`` (the program's own pages), ``hot`` (a file set that is touched all the time), ``cold`` (read once, free to lose) and
``slab`` (dentries and the like). Calibrated on a laboratory of real kernels for direction and order, not for wall-clock figures.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec

PAGE_BYTES = 4096
MIB = 1024 * 1024
# Laboratory: a hot set of 150 MiB held at 145 / 120 MiB lost 13 / 42 % of the time, which a square root of the missing share fits.
STALL_OF_MISSING = 0.9
# Of that loss, memory pressure shows a half for files that are read and next to nothing for mapped ones (0.5-2 % against 24-37 % io).
MEMORY_SHARE_READ = 0.5
MEMORY_SHARE_MAPPED = 0.03

# How much of the time that the disk is at it the processes wait for: more for page faults than for reads.
WAIT_OF_READ = 0.5
WAIT_OF_FAULT = 1.0
# What MGLRU takes of a mapped file's hot pages while there are cold ones: nearly all that it freed came back, with 60 of 200 MiB hot as
# with 150. Under memory.high it goes on to take nothing else: recordings thrash there for a minute beside 50 MiB of cold pages.
MAPPED_HOT_SHARE = 0.93


@dataclass(frozen=True, slots=True)
class KernelSettings:
    """Figures of the machine under the containers."""

    text_bytes: int = 2 * MIB
    """Program pages of a container that must be resident for it to run at full speed."""
    read_bytes_per_second: float = 200.0 * MIB
    """What the disk gives one container."""
    reclaim_seconds_per_byte: float = 0.0005 / MIB
    """Cost of direct reclaim, charged to the container as memory stall."""
    hit_cost_share: float = 0.01
    """What touching a page in memory costs, as a share of reading it from disk: a hot set that is touched at random finds its last
    missing pages the later the fewer they are."""
    unsorted_share: float = 0.15
    """Share of a freshly read hot set that the LRU has not yet told from cold and takes first (laboratory: 10 of 60 MiB)."""
    activates_refaults: bool = False
    """Whatever comes back counts as of the working set at once, as on 6.12; elsewhere (6.1, 7.3) not before the second time."""
    multi_gen_lru: bool = True
    """MGLRU, which keeps hitting the hot pages of mapped files (laboratory: 7.3 reverted where 6.1 went through)."""


class Demand(msgspec.Struct, frozen=True, gc=False):
    """What a container's processes want at one moment; bytes, but for the CPU."""

    cpu_millicores: float = 0.0
    anon_bytes: float = 0.0
    shmem_bytes: float = 0.0
    locked_bytes: float = 0.0
    kernel_bytes: float = 0.0
    file_hot_bytes: float = 0.0
    file_cold_bytes: float = 0.0
    """Cold cache read since the start; more is read as this grows."""
    slab_bytes: float = 0.0
    """Reclaimable slab made since the start, likewise."""
    cold_reread_bytes_per_second: float = 0.0
    """How fast cold pages are asked for again once they are lost."""
    mapped: bool = False
    """The hot set is mapped into memory, not read."""


@dataclass(frozen=True, slots=True)
class Reads:
    """What one step brought in from disk, and what it stalled for."""

    read_bytes: int = 0
    refaulted_bytes: int = 0
    evicted_bytes: int = 0
    memory_stall_share: float = 0.0
    io_stall_share: float = 0.0
    read_memory_seconds: float = 0.0
    """Waiting for what was read that counts as memory stall: pages of the working set."""
    read_io_seconds: float = 0.0


def page_floor(amount_bytes: float) -> int:
    """Rounded down to a page, as the kernel does with what is written to its limits."""
    return int(amount_bytes) // PAGE_BYTES * PAGE_BYTES


class PageCache:
    """Cache and reclaimable slab of one container."""

    def __init__(self, settings: KernelSettings) -> None:
        self._settings = settings
        self.text_bytes = 0
        self.hot_bytes = 0
        self.cold_bytes = 0
        self.slab_bytes = 0
        self.mapped = False
        self._unsorted_bytes = 0
        self._hot_known_bytes = 0
        self._returned_bytes = 0
        self._cold_read_bytes = 0
        self._slab_made_bytes = 0

    @property
    def file_bytes(self) -> int:
        """Page cache without shmem."""
        return self.text_bytes + self.hot_bytes + self.cold_bytes

    @property
    def total_bytes(self) -> int:
        """All that reclaim could take."""
        return self.file_bytes + self.slab_bytes

    @property
    def inactive_bytes(self) -> int:
        """Cache on the inactive list."""
        return self.cold_bytes + self._unsorted_bytes

    @property
    def mapped_bytes(self) -> int:
        """``file_mapped``."""
        return self.text_bytes + (self.hot_bytes if self.mapped else 0)

    def is_content(self, demand: Demand) -> bool:
        """All that the processes touch is in memory already: a step would read nothing."""
        return (
            self.text_bytes == self._settings.text_bytes
            and self.hot_bytes == page_floor(demand.file_hot_bytes)
            and demand.file_cold_bytes < self._cold_read_bytes + PAGE_BYTES
            and demand.slab_bytes < self._slab_made_bytes + PAGE_BYTES
            and (not demand.cold_reread_bytes_per_second or self.cold_bytes >= self._cold_read_bytes)
            and self.mapped == demand.mapped
        )

    def take(self, amount_bytes: int) -> int:
        """Evict up to so much, in the order of the LRU lists; the bytes freed."""
        wanted = min(page_floor(amount_bytes + PAGE_BYTES - 1), self.total_bytes)
        left = wanted
        if self._takes_hot():
            left -= self._take_hot(min(page_floor(left * MAPPED_HOT_SHARE), self.hot_bytes))
        unsorted = min(left, self._unsorted_bytes)
        left -= self._take_hot(unsorted)
        for kind in ("cold_bytes", "slab_bytes"):
            held: int = getattr(self, kind)
            part = min(left, held)
            setattr(self, kind, held - part)
            left -= part
        left -= self._take_hot(min(left, self.hot_bytes))
        self.text_bytes -= left
        return wanted

    def read(self, demand: Demand, seconds: float, capacity_bytes: int) -> Reads:
        """Let the processes touch their files for ``seconds`` when cache may hold ``capacity_bytes``."""
        self.mapped = demand.mapped
        self.text_bytes = min(self._settings.text_bytes, capacity_bytes)
        hot_wanted = page_floor(demand.file_hot_bytes)
        hot_capacity = capacity_bytes - self.text_bytes
        disk_bytes = self._settings.read_bytes_per_second * seconds
        hot_read, hot_refaulted = self._read_hot(hot_wanted, hot_capacity, disk_bytes)
        # While the set still fills what it may have, nothing is pushed out: what is missing costs its reading and no more.
        is_full = self.hot_bytes > hot_capacity - PAGE_BYTES
        cold_read, cold_refaulted = self._read_cold(demand, seconds, disk_bytes - hot_read)
        fresh_slab = page_floor(max(0.0, demand.slab_bytes - self._slab_made_bytes))
        self._slab_made_bytes += fresh_slab
        self.slab_bytes += fresh_slab
        # Of a set that does not fit, what is pushed out is counted below.
        evicted = self._fit(capacity_bytes, takes_hot=self._takes_hot() and not is_full)
        missing_share = max(0, hot_wanted - hot_capacity) / hot_wanted if hot_wanted and is_full else 0.0
        stall = STALL_OF_MISSING * math.sqrt(missing_share)
        memory_share = MEMORY_SHARE_MAPPED if self.mapped else MEMORY_SHARE_READ
        working_set_read = hot_refaulted * self._working_set_share()
        wait_share = WAIT_OF_FAULT if self.mapped else WAIT_OF_READ
        stall_per_byte = wait_share / self._settings.read_bytes_per_second
        memory_seconds = working_set_read * memory_share * stall_per_byte
        # A page that does not fit is read each time that it is touched and pushes another out.
        thrashed = page_floor(min(missing_share * hot_wanted, stall * self._settings.read_bytes_per_second) * seconds)
        self._returned_bytes += hot_refaulted + thrashed
        return Reads(
            read_bytes=hot_read + cold_read,
            refaulted_bytes=hot_refaulted + cold_refaulted + thrashed,
            evicted_bytes=evicted + thrashed,
            memory_stall_share=stall * memory_share,
            io_stall_share=stall * (1 - memory_share),
            read_memory_seconds=memory_seconds,
            read_io_seconds=(hot_read + cold_read) * stall_per_byte - memory_seconds,
        )

    def _fit(self, capacity_bytes: int, *, takes_hot: bool) -> int:
        """Old cold cache makes room for the new, or hot pages as well; the bytes evicted."""
        excess = self.total_bytes - capacity_bytes
        if excess <= 0:
            return 0
        if takes_hot:
            pushed_out = self._take_hot(min(excess, self.hot_bytes))
            return pushed_out + (self.take(excess - pushed_out) if excess > pushed_out else 0)
        old_cold = min(excess, self.cold_bytes)
        self.cold_bytes -= old_cold
        return old_cold + (self.take(excess - old_cold) if excess > old_cold else 0)

    def _read_hot(self, wanted: int, capacity: int, disk_bytes: float) -> tuple[int, int]:
        """Bytes of the hot set read, and how many of them had been there before."""
        if wanted < self.hot_bytes:
            # What the processes no longer touch has become cold.
            self.cold_bytes += self.hot_bytes - wanted
            self._cold_read_bytes += self.hot_bytes - wanted
            self.hot_bytes = wanted
            self._unsorted_bytes = min(self._unsorted_bytes, wanted)
        self._hot_known_bytes = min(self._hot_known_bytes, wanted)
        if wanted == self._hot_known_bytes > self.hot_bytes:
            missing_share = 1 - self.hot_bytes / wanted
            disk_bytes = max(PAGE_BYTES, disk_bytes * missing_share / (missing_share + self._settings.hit_cost_share))
        read = page_floor(max(0.0, min(wanted - self.hot_bytes, capacity - self.hot_bytes, disk_bytes)))
        # Pages of the set that were never in memory come last: the LRU has yet to learn that they are hot.
        fresh = max(0, self.hot_bytes + read - self._hot_known_bytes)
        self.hot_bytes += read
        self._hot_known_bytes += fresh
        self._unsorted_bytes += page_floor(fresh * self._settings.unsorted_share)
        return read, read - fresh

    def _read_cold(self, demand: Demand, seconds: float, disk_bytes: float) -> tuple[int, int]:
        """Bytes of cold data read, and how many of them were read again."""
        fresh = page_floor(max(0.0, min(demand.file_cold_bytes - self._cold_read_bytes, disk_bytes)))
        again = 0
        if demand.cold_reread_bytes_per_second and self._cold_read_bytes:
            lost_share = max(0.0, 1.0 - self.cold_bytes / self._cold_read_bytes)
            again = page_floor(min(demand.cold_reread_bytes_per_second * seconds * lost_share, disk_bytes - fresh))
        self._cold_read_bytes += fresh
        self.cold_bytes += fresh + again
        return fresh + again, again

    def _takes_hot(self) -> bool:
        """MGLRU does not tell the hot pages of a mapped file from cold ones."""
        return self.mapped and self._settings.multi_gen_lru

    def _working_set_share(self) -> float:
        """How much of what comes back the kernel counts as of the working set: what has come back before."""
        if self._settings.activates_refaults:
            return 1.0
        return min(1.0, self._returned_bytes / self._hot_known_bytes) if self._hot_known_bytes else 0.0

    def _take_hot(self, amount: int) -> int:
        self._unsorted_bytes -= min(self._unsorted_bytes, amount)
        self.hot_bytes -= amount
        return amount
