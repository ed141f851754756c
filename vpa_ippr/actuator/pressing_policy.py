"""When a container counts as pressing, and how the node is watched for it: every quantity with its unit, default and reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from vpa_ippr.api.errors import ValidationError

_KIB = 1024
_MIB = 1024 * _KIB


@dataclass(frozen=True, slots=True, kw_only=True)
class PressingPolicy:
    """All that the guard against OOM kills is decided by. "Need" is usage without page cache and reclaimable slab."""

    # The node.
    page_bytes: int = 4 * _KIB
    """Of the kernel; found at the start."""
    node_cpus: int = 4
    """Each CPU may hold a pre-charge stock of 64 pages per cgroup, which counts as used; found at the start."""

    # NearLimit: the need is within the reserve of the limit.
    near_ratio: float = 0.05
    """Share of the limit that is the reserve, within which the need presses."""
    near_min_bytes: int = 16 * _MIB
    """The least reserve, to which the stock is added: the margin of a shrink, so that one that has just ended does not press by itself."""
    near_max_ratio: float = 0.15
    """But no more than this share: 16 MiB are half of a sidecar with 32 MiB, which is not in danger there."""

    # WillReachLimit: the need reaches the limit within the lead time if it goes on growing as it does.
    lead_seconds: float = 20.0
    """Time to report, decide, resize, and for the kubelet and the runtime to act, each some seconds on a busy node."""
    far_ratio: float = 0.5
    """A need below this share of the limit is far from it."""
    far_lead_seconds: float = 10.0
    """There growth counts only when it reaches the limit so soon: a program that starts fills its heap at full speed, too."""
    growth_short_seconds: float = 1.8
    """Both halves of the window must grow, so that one jump is no ramp; a little less than two ticks, which are never quite even."""
    growth_long_seconds: float = 5.5
    """The same for programs that grow by a chunk every few seconds; the faster of the two counts."""

    # MemoryStall: all tasks wait for memory while usage is at the limit.
    stall_full_percent: float = 5.0
    """Share of the time in which no task of the container could work, with usage at the limit."""
    stall_window_seconds: float = 1.8
    """The time over which it is measured: two seconds, less what ticks are uneven by."""
    stall_need_ratio: float = 0.5
    """Below that share of the limit most of it is page cache, which gives way: a log writer stalls there, and more would not help it."""

    # LimitHits: reclaim at the limit again and again while the need is near it.
    hits_per_second: float = 1.0
    """So often the kernel reclaims at the limit while the need is near it."""
    hits_window_seconds: float = 2.7
    """The time over which hits are counted."""
    hits_room_factor: float = 2.0
    """Near means for hits: within so many reserves."""

    # Hysteresis.
    release_factor: float = 1.5
    """What presses already is judged by thresholds that are so much easier to reach."""
    calm_seconds: float = 10.0
    """It no longer presses when nothing was seen for so long, or when its limit was changed."""
    killed_seconds: float = 120.0
    """An OOM kill counts for so long: two cycles of an updater that does not watch."""

    # Looking.
    tick_seconds: float = 1.0
    """Each container's usage and limit are read so often."""
    close_ratio: float = 0.7
    """Above this share of the limit a container is looked at closely each time, page cache or not."""
    idle_seconds: float = 5.0
    """All others are looked at closely so often, which finds kills by bursts that are shorter than a tick."""
    max_triggered: int = 32
    """So many containers at most, of those whose need is above ``stall_need_ratio``, wake the watch early by pressure triggers: each holds
    three descriptors in a process that may have 1024."""
    wake_seconds: float = 0.2
    """Rounds that were woken early are at least so far apart."""
    pods_seconds: float = 5.0
    """How often the list of containers is compared with the node's pods, which a watch keeps up to date."""
    search_seconds: float = 15.0
    """A container without a cgroup (a VM) is looked for again after so long."""
    search_max_seconds: float = 240.0
    """Then after twice as long each time, up to this: the search goes through the whole tree."""

    # Telling.
    beat_seconds: float = 60.0
    """All is written so often at least: the updater trusts no list that is older than three minutes."""
    figures_seconds: float = 5.0
    """Figures that changed are written so often at most; a beginning, an end, a kill and another limit at once."""
    change_ratio: float = 0.05
    """Usage that changed by less than this is not written."""
    retry_seconds: float = 2.0
    """The wait after a failed write."""
    retry_max_seconds: float = 10.0
    """It is doubled with each failure, up to this."""

    def __post_init__(self) -> None:
        broken = tuple(f"{name}: {text}" for name, text, holds in _RULES if not holds(self))
        if broken:
            raise ValidationError(f"pressing policy: {'; '.join(broken)}", fields=broken, reason="InvalidPolicy")

    def reserve_bytes(self, limit_bytes: int) -> float:
        """How near to the limit is near."""
        stock_bytes = 64 * self.page_bytes * self.node_cpus
        return min(max(self.near_ratio * limit_bytes, self.near_min_bytes + stock_bytes), self.near_max_ratio * limit_bytes)

    @property
    def window_seconds(self) -> float:
        """Looks older than this decide nothing."""
        return max(self.growth_long_seconds, self.stall_window_seconds, self.hits_window_seconds) + 2 * self.tick_seconds


_RULES: tuple[tuple[str, str, Callable[[PressingPolicy], bool]], ...] = (
    ("page_bytes", "must be a power of two of at least 4096", lambda p: p.page_bytes >= 4096 and p.page_bytes & (p.page_bytes - 1) == 0),
    ("node_cpus", "must be at least 1", lambda p: p.node_cpus >= 1),
    ("near_ratio", "must be above 0 and at most near_max_ratio", lambda p: 0 < p.near_ratio <= p.near_max_ratio),
    ("near_max_ratio", "must be below 0.5", lambda p: p.near_max_ratio < 0.5),
    ("near_min_bytes", "must not be negative", lambda p: p.near_min_bytes >= 0),
    ("far_lead_seconds", "must be positive and at most lead_seconds", lambda p: 0 < p.far_lead_seconds <= p.lead_seconds),
    ("lead_seconds", "must be at most 300", lambda p: p.lead_seconds <= 300),
    ("far_ratio", "must lie in 0..1", lambda p: 0 <= p.far_ratio <= 1),
    (
        "growth_short_seconds",
        "must be longer than tick_seconds and at most growth_long_seconds",
        lambda p: p.tick_seconds < p.growth_short_seconds <= p.growth_long_seconds,
    ),
    ("stall_full_percent", "must be above 0 and at most 100", lambda p: 0 < p.stall_full_percent <= 100),
    ("stall_window_seconds", "must be positive", lambda p: p.stall_window_seconds > 0),
    ("stall_need_ratio", "must lie in 0..1", lambda p: 0 <= p.stall_need_ratio <= 1),
    ("hits_per_second", "must be positive", lambda p: p.hits_per_second > 0),
    ("hits_window_seconds", "must be positive", lambda p: p.hits_window_seconds > 0),
    ("hits_room_factor", "must be at least 1", lambda p: p.hits_room_factor >= 1),
    ("release_factor", "must lie in 1..2", lambda p: 1 <= p.release_factor <= 2),
    ("calm_seconds", "must not be negative", lambda p: p.calm_seconds >= 0),
    ("killed_seconds", "must not be negative", lambda p: p.killed_seconds >= 0),
    ("tick_seconds", "must lie in 0.1..2: what presses is told within two seconds", lambda p: 0.1 <= p.tick_seconds <= 2),
    ("close_ratio", "must be above 0 and at most 0.9", lambda p: 0 < p.close_ratio <= 0.9),
    ("idle_seconds", "must be at least tick_seconds", lambda p: p.idle_seconds >= p.tick_seconds),
    ("max_triggered", "must not be negative", lambda p: p.max_triggered >= 0),
    ("wake_seconds", "must be positive and at most tick_seconds", lambda p: 0 < p.wake_seconds <= p.tick_seconds),
    ("pods_seconds", "must be at least tick_seconds", lambda p: p.pods_seconds >= p.tick_seconds),
    ("search_seconds", "must be positive and at most search_max_seconds", lambda p: 0 < p.search_seconds <= p.search_max_seconds),
    ("beat_seconds", "must lie in 1..90: the updater trusts a list for three minutes", lambda p: 1 <= p.beat_seconds <= 90),
    ("figures_seconds", "must not be negative", lambda p: p.figures_seconds >= 0),
    ("change_ratio", "must lie in 0..1", lambda p: 0 <= p.change_ratio <= 1),
    ("retry_seconds", "must be positive and at most retry_max_seconds", lambda p: 0 < p.retry_seconds <= p.retry_max_seconds),
)
