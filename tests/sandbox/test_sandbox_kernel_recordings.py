"""The kernel model is held to recordings of real kernels: played again on it, usage, pressure, refaults and outcomes come out alike.

What is recorded are single runs under emulation. Two runs of one row on one kernel differ by more than the model may differ from either,
so directions, kills and outcomes have to be the same, usage nearly, and pressure and refaults in their order of magnitude.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark import ParameterSet
from kernel_recordings import LIMIT_BYTES, PROGRAM_MIB, TICK_SECONDS, Recording, Replay, Totals, guest, name_of, recorded, workload

from vpa_ippr.actuator.cgroup import Snapshot
from vpa_ippr.actuator.journal import Journal
from vpa_ippr.actuator.machine import next_wake
from vpa_ippr.actuator.policy import Policy
from vpa_ippr.actuator.state import ShrinkState, begin
from vpa_ippr.actuator.task import Permission, Subject, Task
from vpa_ippr.api.meta import ObjectKey
from vpa_ippr.api.pod import Pod
from vpa_ippr.api.shrink import Phase
from vpa_ippr.sandbox.cgroup import SandboxCgroup
from vpa_ippr.sandbox.container import RunningContainer
from vpa_ippr.sandbox.pagecache import MIB, Demand
from vpa_ippr.sandbox.workloads import ProcessState

# Usage at one moment: what the LRU took first, the hot pages or the cold, decides how much has come back at a look.
USAGE_RATIO = 0.10
USAGE_MIB = 8.0
# Pressure and refaults over a whole recording: emulation alone makes a disk read 3 times as slow in one run as in the next.
MAGNITUDE = 3.0
# Below these nobody acts: the lab's soft thresholds are 1 % of memory and 5 points of io pressure.
MEMORY_FLOOR_PERCENT = 4.0
IO_FLOOR_PERCENT = 5.0
# What the first reclaims take of a hot set, which comes back: from nothing to a sixth of it, by how often it had been read before.
REFAULT_FLOOR_MIB = 10.0
# A write of memory.high frees from as much as it must to so many times that, in the single writes of e5.
LEAST_OVERSHOOT, MOST_OVERSHOOT = 1.0, 2.1
# So that much of the excess the model, which stands in the middle, may be off until something fills it again.
OVERSHOOT_SLACK = (MOST_OVERSHOOT - LEAST_OVERSHOOT) / 2
# The lab's prints tell rates over about so long after each write.
LAB_WINDOW_SECONDS = 6.0
LAB_SETTLE_SECONDS = 2.0
LEAK_OUTLASTS_SECONDS = 15.0
# The controller kills a reclaim after so long; the next look comes this much later at most.
LATE_SECONDS = 10.0
# A reclaim is noted when its writer has ended, which under emulation comes up to so long after the kernel has done it.
NOTED_LATE_SECONDS = 3.0
LOOK_SECONDS = 2.0


def is_near_mib(modelled: float, real: float, excess_mib: float = 0.0) -> bool:
    return abs(modelled - real) <= max(USAGE_MIB, USAGE_RATIO * real, OVERSHOOT_SLACK * excess_mib)


def is_alike(modelled: float, real: float, floor: float) -> bool:
    """The same order of magnitude, or both too little to matter."""
    if max(modelled, real) <= floor:
        return True
    low, high = sorted((modelled, real))
    return high <= MAGNITUDE * max(low, floor / MAGNITUDE)


def has_come_back_alike(modelled_mib: tuple[float, float], real_mib: tuple[float, float]) -> bool:
    """Usage before and after a limit was raised: near in the end, or grown at a rate of the same order, for that is the disk's."""
    grown, really = modelled_mib[1] - modelled_mib[0], real_mib[1] - real_mib[0]
    return is_near_mib(modelled_mib[1], real_mib[1]) or is_alike(grown, really, USAGE_MIB)


def differences(modelled: Totals, real: Totals) -> list[str]:
    """In which of its totals the model is out of the tolerances; memory pressure counts for itself and in the sum."""
    figures = (
        ("memory %", modelled.memory_percent, real.memory_percent, MEMORY_FLOOR_PERCENT),
        ("io %", modelled.io_percent, real.io_percent, IO_FLOOR_PERCENT),
        ("stalled %", modelled.stalled_percent, real.stalled_percent, IO_FLOOR_PERCENT),
        ("refault MiB", modelled.refault_mib, real.refault_mib, REFAULT_FLOOR_MIB),
    )
    return [f"{name}: {model:.1f} for {seen:.1f}" for name, model, seen, floor in figures if not is_alike(model, seen, floor)]


# Where the model is out of its tolerances, and why that is left so. Strict: a mended model has to leave this table.
_UNSORTED = (
    "the LRU of 6.12 took hot pages and cold ones alike here, in other runs of the same row it told them apart; the model is in between"
)
_FIRST_STALL = (
    "what first came back of a hot set stalled 0.4 to 0.6 s of memory a MiB in the project's runs on 6.1 and 6.12, 0.05 in the lab's "
    "and in the model; the longer recordings of it stay below the floor"
)
_REFILL = "after the revert the model's mapped set comes back at the disk's speed, 48 MiB in 6 s; the real one took 15"
_THRASH = "a mapped set that thrashes under memory.high does so at hardly a third of the real rate: 38 MiB refaulted for 114"
MISSES = {
    ("shrink costs", "6.12.117 file 200 150 first"): _FIRST_STALL,
    ("shrink costs", "6.12.117 mmapf 200 150"): _THRASH,
    ("sweep usage", "6.12.117 file 200 150 memory.reclaim"): _UNSORTED,
    ("sweep usage", "7.3.4 mmapf 200 150 memory.high"): _REFILL,
    ("sweep costs", "6.12.117 file 200 150 memory.reclaim"): _UNSORTED,
}


def cases(pattern: str, what: str) -> list[ParameterSet]:
    """A test's parameters: the recordings, less what is known to be missed."""
    return [
        pytest.param(
            row, id=name, marks=[pytest.mark.xfail(reason=why, raises=AssertionError)] if (why := MISSES.get((what, name))) else []
        )
        for row in recorded(pattern)
        for name in [name_of(row)]
    ]


class TestShrinks:
    """The project's own runs: the controller's writes played again on the model, look by look."""

    @pytest.mark.parametrize("row", cases("shrinks-*.json", "shrink usage"))
    def test_usage_follows(self, row: Recording) -> None:
        far = []
        usage_mib = _usage_by_tick(row)
        for at, real_mib, *_ in row["trace"]:
            tick = math.floor(at / TICK_SECONDS)
            around = usage_mib[tick : tick + math.ceil(NOTED_LATE_SECONDS / TICK_SECONDS) + 1]
            if not any(is_near_mib(modelled_mib, real_mib) for modelled_mib in around):
                far.append(f"{around[0]:.1f} MiB for {real_mib} at {at} s")
        assert far == []

    @pytest.mark.parametrize("row", cases("shrinks-*.json", "shrink costs"))
    def test_pressure_refaults_and_kills_are_alike(self, row: Recording) -> None:
        replay = _start(row)
        end = row["trace"][-1]
        for write in row["writes"]:
            replay.run_until(write[0])
            _write(replay, row, write)
        replay.run_until(end[0])
        real = Totals(end[0], end[4] / 1e6, end[5] / 1e6, end[6] / 256)
        assert differences(replay.totals, real) == []
        assert replay.memory.oom_killed == bool(row["oom_kills"])

    @pytest.mark.parametrize("row", recorded("shrinks-*.json"), ids=name_of)
    def test_the_controller_comes_to_the_same_end_on_the_model(self, row: Recording, tmp_path: Path) -> None:
        state, container = _shrink(row, tmp_path)
        assert _class_of(state.phase) == _class_of(Phase(row["phase"])), state.message
        # A revert may be for memory pressure on one run and for refaults or the deadline on the next.
        assert row["phase"] != Phase.REFUSED or state.reason == row["reason"], state.message
        assert container.memory.oom_killed == bool(row["oom_kills"])
        assert container.memory.high_bytes is None


class TestAtOnce:
    """The naive baselines: one write of the target."""

    @pytest.mark.parametrize("row", recorded("at-once.json"), ids=name_of)
    def test_one_write_does_the_same(self, row: Recording) -> None:
        replay = Replay(row)
        replay.write(row["write"], row["mib"] * MIB)
        assert replay.memory.oom_killed == (not row["is_alive"])
        replay.run_until(row["during"]["seconds"])
        assert is_near_mib(replay.usage_mib, row["during"]["usage_after_mib"])
        assert differences(replay.totals, _during(row["during"])) == []

    @pytest.mark.parametrize("row", [row for row in recorded("at-once.json") if row["after"]], ids=name_of)
    def test_all_is_well_again_afterwards(self, row: Recording) -> None:
        replay = Replay(row)
        replay.write(row["write"], row["mib"] * MIB)
        replay.run_until(row["during"]["seconds"])
        raised_mib = replay.usage_mib
        replay.write(row["write"], None)
        # The baseline waits so long for the last penalty to be over.
        replay.run_until(row["during"]["seconds"] + 3.0 + row["after"]["seconds"])
        real = row["during"]["usage_after_mib"], row["after"]["usage_after_mib"]
        assert has_come_back_alike((raised_mib, replay.usage_mib), real)


class TestLabSweeps:
    """Lower and lower values, each for some seconds, and the revert."""

    @pytest.mark.parametrize("row", cases("lab-sweeps.json", "sweep usage"))
    def test_usage_follows(self, row: Recording) -> None:
        replay, far = Replay(row), []
        before_mib = math.nan
        for step in row["steps"]:
            held_mib = replay.usage_mib
            excess_mib = max(0.0, held_mib - (step["mib"] or math.inf)) if step["write"] == "memory.high" else 0.0
            _sweep(replay, step)
            is_raised = step["write"] == "memory.high" and step["mib"] is None
            moved = (held_mib, replay.usage_mib), (before_mib, step["usage_mib"])
            if not (has_come_back_alike(*moved) if is_raised else is_near_mib(replay.usage_mib, step["usage_mib"], excess_mib)):
                far.append(f"{replay.usage_mib:.1f} MiB for {step['usage_mib']} under {step['write']} {step['mib']}")
            before_mib = step["usage_mib"]
        assert far == []

    @pytest.mark.parametrize("row", cases("lab-sweeps.json", "sweep costs"))
    def test_pressure_and_refaults_are_alike(self, row: Recording) -> None:
        replay, real = Replay(row), Totals()
        for step in row["steps"]:
            _sweep(replay, step)
            real.seconds += LAB_WINDOW_SECONDS
            real.memory_seconds += step["memory_some_percent"] / 100 * LAB_WINDOW_SECONDS
            real.io_seconds += step["io_some_percent"] / 100 * LAB_WINDOW_SECONDS
            real.refault_mib += step["refault_pages_per_second"] / 256 * LAB_WINDOW_SECONDS
        assert differences(replay.totals, real) == []
        assert not replay.memory.oom_killed


class TestLabSteps:
    """A prototype's shrinks on 7.3, step by step."""

    @pytest.mark.parametrize("row", recorded("lab-steps.json"), ids=name_of)
    def test_steps_cost_the_same(self, row: Recording) -> None:
        replay, far, real = Replay(row), [], Totals()
        for at, usage_mib, high_mib, freed_mib, memory_percent, io_percent, refault_mib_per_second in row["steps"]:
            replay.run_until(at - LAB_SETTLE_SECONDS)
            if freed_mib:
                assert replay.write("memory.reclaim", int(freed_mib * MIB))
            replay.write("memory.high", high_mib * MIB)
            replay.run_until(at)
            real.memory_seconds += memory_percent / 100 * LAB_SETTLE_SECONDS
            real.io_seconds += io_percent / 100 * LAB_SETTLE_SECONDS
            real.refault_mib += refault_mib_per_second * LAB_SETTLE_SECONDS
            if not is_near_mib(replay.usage_mib, usage_mib):
                far.append(f"{replay.usage_mib:.1f} MiB for {usage_mib} at {at} s")
        real.seconds = replay.at
        assert far == []
        assert differences(replay.totals, real) == []

    @pytest.mark.parametrize("row", [row for row in recorded("lab-steps.json") if row["outcome"] == "OK"], ids=name_of)
    def test_the_limit_that_follows_kills_whom_it_killed(self, row: Recording) -> None:
        replay = Replay(row)
        for at, _, high_mib, freed_mib, *_ in row["steps"]:
            replay.run_until(at - LAB_SETTLE_SECONDS)
            if freed_mib:
                replay.write("memory.reclaim", int(freed_mib * MIB))
            replay.write("memory.high", high_mib * MIB)
            replay.run_until(at)
        replay.write("memory.max", row["target_mib"] * MIB)
        replay.write("memory.high", None)
        replay.run_until(replay.at + LEAK_OUTLASTS_SECONDS)
        assert replay.memory.oom_killed == bool(row["oom_kills"])


class TestLabWrites:
    """How exact single writes are, over 200 MiB of cache that is partly hot."""

    @pytest.mark.parametrize(
        "row", recorded("lab-reclaims.json"), ids=lambda row: f"{row['kernel'].split('-')[0]} {row['write']} {row['percent']} %"
    )
    def test_frees_as_much(self, row: Recording) -> None:
        replay = Replay({"kernel": row["kernel"], "mode": "file", "size": 200, "hot": 60})
        usage = replay.usage_mib
        if row["write"] == "memory.reclaim":
            assert replay.write("memory.reclaim", int(row["asked_mib"] * MIB))
            assert usage - replay.usage_mib == pytest.approx(row["freed_mib"], rel=0.02, abs=0.2)
            return
        replay.write("memory.high", int((usage - row["asked_mib"]) * MIB))
        for freed in (usage - replay.usage_mib, row["freed_mib"]):
            assert LEAST_OVERSHOOT - 0.05 <= freed / row["asked_mib"] <= MOST_OVERSHOOT

    @pytest.mark.parametrize("row", recorded("lab-refusals.json"), ids=name_of)
    def test_refuses_where_nothing_can_be_had(self, row: Recording) -> None:
        replay = Replay(row)
        is_complete = replay.write("memory.reclaim", row["asked_mib"] * MIB)
        assert is_complete == (row["result"] == "ok")
        assert is_near_mib(replay.usage_mib, row["usage_mib"])


def _as_large(row: Recording) -> Recording:
    """As it was at the first look: a leak has grown by then, and read-ahead has brought in more than was asked for."""
    return {**row, "size": row["trace"][0][1] - PROGRAM_MIB} if row["mode"] in ("leak", "file", "mmapf") else row


def _start(row: Recording) -> Replay:
    return Replay(_as_large(row))


def _usage_by_tick(row: Recording) -> list[float]:
    replay, writes, usage_mib = _start(row), list(row["writes"]), []
    while replay.at <= row["trace"][-1][0] + NOTED_LATE_SECONDS:
        while writes and writes[0][0] <= replay.at:
            _write(replay, row, writes.pop(0))
        usage_mib.append(replay.usage_mib)
        replay.run_until(replay.at + TICK_SECONDS)
    return usage_mib


def _write(replay: Replay, row: Recording, write: list[Any]) -> None:
    at, file, value, result = write
    if result == "late":
        replay.write(file, _freed_late_bytes(row, at, value))
    else:
        assert replay.write(file, value) == (result == "ok")


def _freed_late_bytes(row: Recording, at: float, asked_bytes: int) -> int:
    """What a reclaim freed whose writer was killed in the end: only the trace tells."""
    seen = [usage_mib for moment, usage_mib, *_ in row["trace"] if -LATE_SECONDS <= moment - at <= LOOK_SECONDS]
    return min(asked_bytes, int((max(seen) - min(seen)) * MIB))


def _during(measured: Recording) -> Totals:
    seconds = measured["seconds"]
    return Totals(seconds, measured["stall_seconds"], measured["io_some_percent"] / 100 * seconds, measured["refault_mib"])


def _sweep(replay: Replay, step: Recording) -> None:
    if step["write"] == "memory.reclaim":
        assert replay.write("memory.reclaim", int((replay.usage_mib - step["mib"]) * MIB))
    elif step["write"] is not None:
        replay.write("memory.high", None if step["mib"] is None else step["mib"] * MIB)
    replay.run_until(replay.at + LAB_WINDOW_SECONDS)


def _class_of(phase: Phase) -> str:
    """Done, refused untouched, or tried, given up and put back."""
    return "GivenUp" if phase in (Phase.REVERTED, Phase.EXPIRED) else str(phase)


class _Clock:
    """Jumps to what is waited for."""

    def __init__(self) -> None:
        self.time = 1_800_000_000.0

    def now(self) -> float:
        return self.time

    def wait_until(self, moment: float) -> bool:
        self.time = max(self.time, moment)
        return True

    def stop(self) -> None:
        """Nothing waits."""


class _NoPods:
    def get_pod(self, key: ObjectKey) -> Pod | None:  # noqa: ARG002 - the port's signature
        return None


class _Recorded:
    """The recorded workload as the sandbox runs one."""

    step_seconds = 0.5
    finishes_after_seconds = None
    exit_code = 0

    def __init__(self, row: Recording, began_at: float) -> None:
        self._demand = workload(row)
        self._began_at = began_at

    def usage(self, moment: float, state: ProcessState) -> Demand:  # noqa: ARG002 - the workload's signature
        return self._demand(moment - self._began_at)


def _shrink(row: Recording, directory: Path) -> tuple[ShrinkState, RunningContainer]:
    """The real machine over the model, with the recorded policy; the commit is a write of memory.max, as it was in the guest."""
    clock, policy = _Clock(), Policy(**row["policy"])
    started_at = clock.time - 90.0
    running = RunningContainer(
        "containerd://" + "a" * 64,
        7,
        _Recorded(_as_large(row), clock.time),
        started_at,
        memory_limit_bytes=LIMIT_BYTES,
        kernel=guest(row["kernel"]),
    )
    running.advance(clock.time)
    target = policy.page_floor(row["target_mib"] * MIB)
    subject = Subject(ObjectKey("default", "lab"), "uid", "lab", "pod", "lab", running.container_id, "Burstable")
    cgroup = SandboxCgroup(running, clock.now, Snapshot, lambda: None)
    task = Task(subject, begin(target, clock.time, row["deadline_seconds"], clock.time), policy, cgroup, _NoPods())
    journal = Journal(directory, "boot")
    try:
        while not task.is_over:
            was = task.state.phase
            task.tick(Permission(), journal, clock)
            if task.state.phase is Phase.HOLDING is not was:
                running.memory.set_max(target)
            wake = next_wake(task.state, policy)
            clock.wait_until(wake if math.isfinite(wake) else clock.time)
    finally:
        journal.close()
    return task.state, running
