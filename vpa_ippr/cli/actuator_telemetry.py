"""The node agent's and the dead-man's metrics, and what their probes answer. Loaded only where somebody listens."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from vpa_ippr.actuator import deadman
from vpa_ippr.actuator.journal import count_entries
from vpa_ippr.actuator.reasons import Reason
from vpa_ippr.actuator.restoring import Adopt, Drop, Restore, Verdict
from vpa_ippr.api.node_memory import NodeMemoryStatus, PressingReason
from vpa_ippr.api.shrink import Phase
from vpa_ippr.cli.exposition import serving
from vpa_ippr.cluster.telemetry import Probe, Telemetry, api_observer

if TYPE_CHECKING:
    from vpa_ippr.actuator.assess import Rates, Sample
    from vpa_ippr.actuator.ports import Effort
    from vpa_ippr.actuator.pressing_watch import NodeMemoryPort
    from vpa_ippr.actuator.state import ShrinkState
    from vpa_ippr.api.pod import Pod
    from vpa_ippr.cli.actuator_options import Place

STALE_SECONDS = 60.0
"""A loop that has not come round for so long hangs: it looks once in a few seconds, and no request that it makes takes longer than two."""

_OTHER = "Other"
_SHRINK_SECONDS = (30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0, 7200.0)
_UNDER_WAY = tuple(phase for phase in Phase if not phase.is_terminal)
_VERDICTS = {Restore: "Restored", Drop: "Dropped", Adopt: "Adopted"}
_LEFT, _FAILED = "Left", "Failed"
_STALLS = ("memory-some", "memory-full", "io-some")

_ENDS: dict[Phase, tuple[Reason, ...]] = {
    Phase.DONE: (Reason.SHRUNK,),
    Phase.ABORTED: (Reason.ABORT_REQUESTED, Reason.SHRINK_DELETED, Reason.POD_DELETING),
    Phase.EXPIRED: (Reason.DEADLINE_PASSED,),
    Phase.GONE: (Reason.CONTAINER_GONE, Reason.CONTAINER_EXITED, Reason.CONTAINER_REPLACED, Reason.POD_GONE),
}
_ON_THE_WAY = frozenset(
    {
        Reason.WAITING_FOR_TURN,
        Reason.WAITING_FOR_NODE,
        Reason.OBSERVING,
        Reason.STEPPING,
        Reason.BACKING_OFF,
        Reason.STABILISING,
        Reason.READY,
        Reason.PROBATION,
    }
)
_ONLY_REFUSED = frozenset(
    {
        Reason.UNRECLAIMABLE_ANON,
        Reason.UNRECLAIMABLE_SHMEM,
        Reason.UNRECLAIMABLE_MLOCKED,
        Reason.UNRECLAIMABLE_KERNEL,
        Reason.UNRECLAIMABLE_PROTECTED,
        Reason.MAPPED_FILES,
        Reason.BELOW_FLOOR,
        Reason.GROWING,
        Reason.BURSTY,
        Reason.BUSY,
        Reason.LIMIT_NOT_ABOVE,
        Reason.TOO_SMALL,
        Reason.INVALID_SPEC,
        Reason.INVALID_POLICY,
        Reason.INVALID_TARGET,
        Reason.STARTUP_GRACE,
        Reason.STATIC_POD,
        Reason.RESIZE_PENDING,
        Reason.EXCLUDED_NAMESPACE,
        Reason.VM_RUNTIME,
        Reason.NODE_PACE,
        Reason.DECLARED_HEAP,
        Reason.CGROUP_NOT_FOUND,
        Reason.CGROUP_V1,
        Reason.NO_MEMORY_CONTROLLER,
        Reason.KERNEL_TOO_OLD,
    }
)
_ONLY_REVERTED = frozenset(
    {
        Reason.MEMORY_PRESSURE,
        Reason.IO_PRESSURE,
        Reason.REFAULTS,
        Reason.MAJOR_FAULTS,
        Reason.SCANNING_IN_VAIN,
        Reason.SWAPPING,
        Reason.SWAP_FULL,
        Reason.OVER_HIGH,
        Reason.STUCK,
        Reason.SETTLED_ABOVE,
        Reason.GUARD_PASSED,
        Reason.FOREIGN_WRITER,
        Reason.AGENT_STOPPED,
        Reason.AGENT_RESTARTED,
        Reason.OOM_KILLED_AFTER_COMMIT,
        Reason.PRESSURE_AFTER_COMMIT,
        Reason.LIMIT_HITS_AFTER_COMMIT,
        Reason.GROWING_AFTER_COMMIT,
    }
)
_MAY_END = tuple(reason for reason in Reason if reason not in _ON_THE_WAY and not any(reason in ends for ends in _ENDS.values()))
ENDS: Mapping[Phase, tuple[str, ...]] = {
    phase: (*map(str, reasons), _OTHER)
    for phase, reasons in (
        *_ENDS.items(),
        (Phase.REFUSED, (*(reason for reason in _MAY_END if reason not in _ONLY_REVERTED), Reason.POD_DELETING)),
        (Phase.REVERTED, tuple(reason for reason in _MAY_END if reason not in _ONLY_REFUSED)),
    )
}
"""The reasons that each outcome is counted by. Not every pair of both: a thousand nodes would have half a million series."""


class Pulse:
    """When a loop came round last."""

    def __init__(self, telemetry: Telemetry, name: str, text: str, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        # Stands still in a suspend, in which nobody can come round either.
        self._at = monotonic()
        self._gauge = telemetry.gauge(name, text)

    def beat(self) -> None:
        """It came round now."""
        self._at = self._monotonic()
        self._gauge.set(time.time())

    def trouble(self) -> str | None:
        """What a probe answers."""
        seconds = self._monotonic() - self._at
        return f"has not come round for {seconds:.0f} s" if seconds > STALE_SECONDS else None


@dataclass(slots=True)
class _Excess:
    """Stalls of one shrink above what is normal for its container, and how much of that was counted already, by kind."""

    seen: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_STALLS, 0.0))
    counted: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_STALLS, 0.0))


class AgentTelemetry:
    """Observes an agent."""

    def __init__(self, telemetry: Telemetry, journal: Path, monotonic: Callable[[], float] = time.monotonic) -> None:
        """``journal``: the directory; its entries are counted when somebody asks."""
        self._under_way = telemetry.gauge("actuator_shrinks", "Shrinks under way.", phase=_UNDER_WAY)
        ends = [(phase, reason) for phase, reasons in ENDS.items() for reason in reasons]
        self._finished = telemetry.counter_of("actuator_shrinks_finished_total", "Shrinks that have ended.", ("outcome", "reason"), ends)
        self._freed = telemetry.counter("actuator_freed_bytes_total", "Bytes by which memory limits came down in shrinks that are done.")
        self._stalls = telemetry.counter(
            "actuator_stall_seconds_total", "Seconds stalled above normal in containers that are being shrunk.", kind=_STALLS
        )
        self._seconds = telemetry.histogram("actuator_shrink_seconds", "Seconds that a shrink took that touched anything.", _SHRINK_SECONDS)
        self._recoveries = telemetry.counter(
            "actuator_recoveries_total", "Journal entries of an agent before this one, by what became of them.", verdict=_VERDICTS.values()
        )
        self._reclaimed = telemetry.counter("actuator_reclaim_bytes_total", "Bytes that the kernel was asked to reclaim.")
        self._reclaim_seconds = telemetry.counter("actuator_reclaim_seconds_total", "Seconds that it took over that.")
        self._foreign = telemetry.counter("actuator_foreign_writes_total", "Times that another hand wrote over a guard.")
        self._cut_off = telemetry.gauge("actuator_cut_off", "1 while the API server cannot be reached.")
        self._loops = telemetry.counter("actuator_loops_total", "Times that all shrinks were looked at.")
        self._pulse = Pulse(telemetry, "actuator_last_loop_timestamp_seconds", "When all shrinks were last looked at.", monotonic)
        telemetry.follow("actuator_journal_entries", "Entries in the journal.", partial(count_entries, journal))
        self._excess: dict[str, _Excess] = {}
        self._left_over: int | None = None

    def ticked(self, shrink_uid: str, before: ShrinkState, after: ShrinkState, effort: Effort) -> None:
        """See ``vpa_ippr.actuator.ports.Observer``."""
        self._reclaimed.inc(effort.reclaimed_bytes)
        self._reclaim_seconds.inc(effort.reclaim_seconds)
        self._foreign.inc(max(0, after.foreign_writes - before.foreign_writes))
        if before.touched or after.touched:
            self._count_stalls(shrink_uid, before, after)
        if after.phase.is_terminal and not before.phase.is_terminal:
            self._excess.pop(shrink_uid, None)
            self._count_end(before, after)

    def recovered(self, verdict: Verdict) -> None:
        """See ``vpa_ippr.actuator.ports.Observer``."""
        name = _VERDICTS.get(type(verdict))
        if name is not None:
            self._recoveries.inc(verdict=name)

    def ended_round(self, phases: Collection[Phase], *, is_cut_off: bool, left_over: int) -> None:
        """See ``vpa_ippr.actuator.ports.Observer``."""
        found = Counter(phases)
        for phase in _UNDER_WAY:
            self._under_way.set(found[phase], phase=phase)
        self._cut_off.set(is_cut_off)
        self._left_over = left_over
        self._loops.inc()
        self._pulse.beat()

    def probes(self, cgroup_root: Path) -> tuple[dict[str, Probe], dict[str, Probe]]:
        """What is healthy, and what is ready."""
        return {"loop": self._pulse.trouble}, {"journal": self._not_recovered, "cgroups": partial(_unreadable, cgroup_root)}

    def _not_recovered(self) -> str | None:
        if self._left_over is None:
            return "not looked at yet"
        return f"{self._left_over} entries of an agent before this one could not be put back yet" if self._left_over else None

    def _count_end(self, before: ShrinkState, after: ShrinkState) -> None:
        reason = str(after.reason)
        self._finished.inc(outcome=after.phase, reason=reason if reason in ENDS[after.phase] else _OTHER)
        # The write that the shrink gives way to is not in its state any more.
        self._foreign.inc(after.reason == Reason.FOREIGN_WRITER)
        if before.touched:
            self._seconds.observe(max(0.0, after.updated_at - after.started_at))
        limit = after.original.max_bytes if after.original is not None else None
        if after.phase is Phase.DONE and limit is not None:
            self._freed.inc(max(0, limit - after.target_bytes))

    def _count_stalls(self, shrink_uid: str, before: ShrinkState, after: ShrinkState) -> None:
        """Nothing is normal for a shrink of an agent before this one, so nothing can be above it."""
        plan = after.plan or before.plan
        if plan is None or before.last is None or after.last is None or after.last.at <= before.last.at:
            return
        excess = self._excess.setdefault(shrink_uid, _Excess())
        for kind, seconds in _above_normal(before.last, after.last, plan.baseline).items():
            excess.seen[kind] += seconds
            # A calm second makes up for a stalled one before it, or what is normal would add up to harm.
            news = excess.seen[kind] - excess.counted[kind]
            if news > 0:
                self._stalls.inc(news, kind=kind)
                excess.counted[kind] = excess.seen[kind]


class CountingPort:
    """What the watch for memory pressure tells the API, told here as well; the way to the API is ``port``."""

    def __init__(self, telemetry: Telemetry, port: NodeMemoryPort, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._port = port
        self._pressing = telemetry.gauge("actuator_pressing_containers", "Containers short of memory, as last told.", reason=PressingReason)
        self._reports = telemetry.counter("actuator_pressing_reports_total", "Writes of the node's NodeMemory.")
        self._pulse = Pulse(telemetry, "actuator_last_watch_timestamp_seconds", "When the watch last asked for the node's pods.", monotonic)

    @property
    def probes(self) -> dict[str, Probe]:
        """What is healthy."""
        return {"watch": self._pulse.trouble}

    def list_pods(self, node_name: str) -> list[Pod]:
        """See ``vpa_ippr.actuator.pressing_watch.NodeMemoryPort``."""
        self._pulse.beat()
        return self._port.list_pods(node_name)

    def put_node_memory(self, node_name: str, status: NodeMemoryStatus) -> None:
        """See ``vpa_ippr.actuator.pressing_watch.NodeMemoryPort``."""
        found = Counter(one.reason for one in status.pressing)
        for reason in PressingReason:
            self._pressing.set(found[reason], reason=reason)
        self._port.put_node_memory(node_name, status)
        self._reports.inc()


class NodeTelemetry:
    """All that ``vpa-ippr actuator`` tells of itself."""

    def __init__(self, place: Place) -> None:
        self._telemetry = Telemetry()
        self._place = place
        self._healthy: dict[str, Probe] = {}
        self.observe_request = api_observer(self._telemetry)
        self.agent = AgentTelemetry(self._telemetry, place.state_dir)

    def counting(self, port: NodeMemoryPort) -> CountingPort:
        """The watch's way to the API; to be asked for before it is served."""
        counting = CountingPort(self._telemetry, port)
        self._healthy |= counting.probes
        return counting

    def serving(self, listen: tuple[str, int] | None) -> contextlib.AbstractContextManager[None]:
        """See ``vpa_ippr.cli.exposition.serving``."""
        healthy, ready = self.agent.probes(self._place.cgroup_root)
        return serving(self._telemetry, listen, healthy=self._healthy | healthy, ready=ready)


class DeadManTelemetry:
    """Observes a dead-man."""

    def __init__(self, telemetry: Telemetry, journals: Collection[Path], monotonic: Callable[[], float] = time.monotonic) -> None:
        outcomes = (*_VERDICTS.values(), _LEFT, _FAILED)
        self._entries = telemetry.counter("deadman_entries_total", "Journal entries, by what became of them.", outcome=outcomes)
        self._pulse = Pulse(telemetry, "deadman_last_look_timestamp_seconds", "When the journals were last looked at.", monotonic)
        telemetry.follow("deadman_journal_entries", "Entries in the journals.", lambda: sum(map(count_entries, journals)))

    def settled(self, outcome: deadman.Outcome) -> None:
        """See ``vpa_ippr.actuator.deadman.Observer``."""
        self._entries.inc(outcome=_FAILED if outcome.error else _VERDICTS.get(type(outcome.verdict), _LEFT))

    def looked(self) -> None:
        """See ``vpa_ippr.actuator.deadman.Observer``."""
        self._pulse.beat()

    def probes(self, cgroup_root: Path) -> tuple[dict[str, Probe], dict[str, Probe]]:
        """What is healthy, and what is ready."""
        return {"loop": self._pulse.trouble}, {"cgroups": partial(_unreadable, cgroup_root)}


def _above_normal(before: Sample, after: Sample, normal: Rates) -> dict[str, float]:
    seconds = after.at - before.at
    figures = (
        (after.memory_some_us - before.memory_some_us, normal.memory_some_percent),
        (after.memory_full_us - before.memory_full_us, normal.memory_full_percent),
        (after.io_some_us - before.io_some_us, normal.io_some_percent),
    )
    return {kind: stalled_us / 1e6 - percent / 100 * seconds for kind, (stalled_us, percent) in zip(_STALLS, figures, strict=True)}


def _unreadable(cgroup_root: Path) -> str | None:
    try:
        (cgroup_root / "cgroup.controllers").read_bytes()
    except OSError as error:
        return f"{cgroup_root} cannot be read: {error.strerror or error}"
    return None
