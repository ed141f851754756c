"""Tells what was measured: ``docs/actuator-validation.md`` from the results that the tests have kept.

``PYTHONPATH=tests python -m kernel.harness.report`` takes for each row the newest results of each kernel, all repeats of it.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kernel.harness.places import CACHE, REPOSITORY
from kernel.scenarios.driver import DEADLINE_SECONDS, LAB
from kernel.scenarios.ramps import ANSWER_SECONDS, LIMIT_MIB, PASSED_MIB, START_MIB
from vpa_ippr.actuator.policy import Policy

DOCUMENT = REPOSITORY / "docs" / "actuator-validation.md"
Found = list[dict[str, Any]]


@dataclass(frozen=True)
class Run:
    """One scenario's run on one kernel, taken out of its group."""

    release: str
    name: str
    function: str
    arguments: dict[str, Any]
    measured: dict[str, Any]
    at: int


def runs() -> Iterator[Run]:
    """All that is kept and came to an end."""
    for file in sorted((CACHE / "results").glob("*.json")):
        release = re.sub(r"\.(short|long)\.json$", "", file.name)
        for row in json.loads(file.read_text()):
            function, arguments, _ = row["scenario"]
            if row["error"] is not None:
                continue
            if function != "group:together":
                yield Run(release, function, function, arguments, row["measured"], row["at"])
                continue
            for name, (inner, inner_arguments) in arguments["parts"].items():
                yield Run(release, name, inner, inner_arguments, row["measured"][name], row["at"])


def newest(found: Iterable[Run]) -> dict[tuple[str, str], list[Run]]:
    """The runs by row and kernel; those of earlier arguments are left out."""
    grouped: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in found:
        grouped[run.name, run.release].append(run)
    kept = {}
    for key, same in grouped.items():
        arguments = max(same, key=lambda run: run.at).arguments
        kept[key] = [run for run in same if run.arguments == arguments]
    return dict(sorted(kept.items(), key=lambda item: (_order(item[0][0]), _version(item[0][1]))))


def document() -> str:
    """The whole page."""
    found = list(runs())
    shrinks = newest(run for run in found if run.function in ("shrinks:one", "shrinks:nested"))
    events = newest(run for run in found if run.function in ("shrinks:restarted", "shrinks:overwritten"))
    killed = newest(run for run in found if run.function in ("standalone:killed", "standalone:shrink"))
    sections = [
        _INTRODUCTION.format(kernels=", ".join(sorted({run.release for run in found}, key=_version)) or "none yet"),
        "## Workloads\n\n" + _table(_SHRINK_HEAD, (_shrink_cells(key, same) for key, same in shrinks.items())),
        "## Without the actuator\n\n" + _BASELINES + _table(_BASELINE_HEAD, _baselines(found)),
        "## Others meanwhile\n\n" + _table(_EVENT_HEAD, (_event_cells(key, same) for key, same in events.items())),
        "## More memory in the moment of the commit\n\n" + _COMMIT + _table(_COMMIT_HEAD, _commits(found)),
        "## Killed, stopped, and by hand\n\n" + _KILLED + _table(_KILLED_HEAD, (_killed_cells(key, same) for key, same in killed.items())),
        "## The guard against OOM kills\n\n" + _RAMPS + _table(_RAMP_HEAD, _ramps(found)),
        "## What was scaled\n\n" + _scaled(),
        _NOT_SHOWN,
    ]
    return "\n\n".join(section.strip() for section in sections) + "\n"


_INTRODUCTION = """
# The actuator on real kernels

Made by `PYTHONPATH=tests python -m kernel.harness.report` from what `make test-kernel` measured; do not edit. Debian's kernels under QEMU
without hardware virtualisation, two emulated CPUs and 1.5 to 2.3 GiB:
{kernels}.
Every figure is a range over the runs where there is more than one. `KERNEL_SET=long` runs all rows and repeats them. Workloads:
`tests/kernel/workloads/wl.c`.

Emulation makes CPU dear and disks cheap, and rows run beside one another: seconds are larger than on a real machine, and the throughput
before and after is of a machine that others share. Stall is what PSI counted for the container (`some`) from the first look to the last.
"""
_BASELINES = """\
The same kind of workload, and the target written at once by one `write`, into `memory.max` or into `memory.high`, for six seconds.

"""
_COMMIT = """\
A container with page cache and a heap takes more anonymous memory at the moment at which its shrink is ready and the limit is written, the
latter 0 to 0.36 s later, unless the container uses more than the new limit by then, which the kubelet would refuse. The margin is 5 MiB.

"""
_KILLED = """\
`vpa-ippr actuator shrink --commit direct` (in Holding `--commit none`) as a process of its own is killed in a phase. Healed: `memory.high`
and the journal are as they were; counted from the start of `actuator restore`, less what that takes with nothing to put back (the start of
Python, many seconds here), or from the death where `actuator guard` runs already and looks every five seconds.

"""
_RAMPS = f"""\
A heap grows from {START_MIB} MiB at a steady pace in a container of {LIMIT_MIB} MiB. `PressingWatch` watches it with its default policy;
{ANSWER_SECONDS:g} s after it reports, `memory.max` is raised by the updater's rule. Saved: it has come to {PASSED_MIB} MiB alive. Beside
them one each with nobody to raise the limit.

"""
_NOT_SHOWN = """
## What is not shown

- Nodes without any CPU to spare: with eleven shrinks at once on these two CPUs (6.12), one that was started for cold cache, one for hot
  cache and two for a foreign write were reverted as `Stuck`: the process that writes `memory.reclaim` did not come to run within its
  ten seconds; all was put back and nobody was hurt, but the reason is not the true one. With more of it they expired while observing. Those
  runs are not in the tables.
- The rows that are not in the tables: they are written, and have not been measured yet.
- Real disks and real CPUs: the absolute cost of a revert on a busy database has to be measured where it runs.
- 512 MiB and more: the guests are small. Shares, not sizes, decide in most rules; the floors in MiB are scaled as above.
- The kubelet and the API in the loop: the commit is a write of `memory.max`; a real kubelet, with its own checks, takes seconds.
- `systemctl daemon-reload` and a runtime's update by themselves: their writes are played by file here.
- A real JVM or Go program: their heaps are played by anonymous memory of the same course.
- The agent of a cluster as the process that is killed: it is `actuator shrink`, which has the same machine, journal and recovery.
"""
_SHRINK_HEAD = ("row", "workload", "kernel", "runs", "outcome", "seconds", "stall s", "refaults MiB", "ops/s before", "after", "OOM kills")
_BASELINE_HEAD = ("written", "workload", "kernel", "runs", "alive", "stalled %", "ops/s before", "meanwhile", "OOM kills")
_EVENT_HEAD = ("row", "kernel", "runs", "outcome", "seconds", "stall s", "memory.high at the end", "OOM kills")
_COMMIT_HEAD = ("MiB more", "kernel", "runs", "not killed", "outcome")
_KILLED_HEAD = ("row", "kernel", "runs", "memory.high then", "healed after s", "memory.high", "memory.max MiB", "OOM kills")
_RAMP_HEAD = ("MiB/s asked", "kernel", "real pace", "told at MiB", "saved", "killed", "alone")


def _shrink_cells(key: tuple[str, str], same: Sequence[Run]) -> tuple[str, ...]:
    found = [run.measured for run in same]
    return (
        key[0],
        _workload(same[0]),
        _short(key[1]),
        str(len(found)),
        _counted(_end(one) for one in found),
        _range(found, lambda one: one["seconds"], 0),
        _range(found, lambda one: one["stall_seconds"], 2),
        _range(found, lambda one: one["refault_mib"], 1),
        _range(found, lambda one: one["before"]["ops_per_second"], 0),
        _range(found, lambda one: one["after"].get("ops_per_second"), 0),
        str(sum(one["oom_kills"] for one in found)),
    )


def _baselines(found: Iterable[Run]) -> Iterator[tuple[str, ...]]:
    named = (
        Run(run.release, f"{run.arguments['knob']} {run.arguments['mode']}", run.function, run.arguments, run.measured, run.at)
        for run in found
        if run.function == "baselines:at_once"
    )
    for (_, release), same in newest(named).items():
        results = [run.measured for run in same]
        yield (
            f"`{same[0].arguments['knob']}` = {same[0].arguments['target_mib']} MiB",
            _workload(same[0]),
            _short(release),
            str(len(results)),
            _counted("yes" if one["is_alive"] else "no" for one in results),
            _range(results, lambda one: one["during"]["memory_some_percent"], 0),
            _range(results, lambda one: one["before"]["ops_per_second"], 0),
            _range(results, lambda one: one["during"]["ops_per_second"], 0),
            str(sum(one["oom_kills"] for one in results)),
        )


def _event_cells(key: tuple[str, str], same: Sequence[Run]) -> tuple[str, ...]:
    found = [run.measured for run in same]
    return (
        key[0],
        _short(key[1]),
        str(len(found)),
        _counted(_end(one) for one in found),
        _range(found, lambda one: one["seconds"], 0),
        _range(found, lambda one: max(0.0, one["stall_seconds"]), 2),
        _counted(_limit(one["high_after"]) for one in found),
        str(sum(max(0, one["oom_kills"]) for one in found)),
    )


def _commits(found: Iterable[Run]) -> Iterator[tuple[str, ...]]:
    named = (
        Run(run.release, str(run.arguments["touch"]), run.function, run.arguments, run.measured, run.at)
        for run in found
        if run.function == "shrinks:burst_at_commit"
    )
    for (touch, release), same in newest(named).items():
        results: Found = [one for run in same for one in run.measured["runs"]]
        unkilled = sum(one["is_alive"] and one["oom_kills"] == 0 for one in results)
        yield touch, _short(release), str(len(results)), str(unkilled), _counted(_end(one) for one in results)


def _killed_cells(key: tuple[str, str], same: Sequence[Run]) -> tuple[str, ...]:
    found = [run.measured for run in same]
    return (
        key[0],
        _short(key[1]),
        str(len(found)),
        _counted(_limit(one["high_then"]) for one in found) if "high_then" in found[0] else "-",
        _range(found, lambda one: max(0.0, one["healed_seconds"] - one["idle_seconds"]) if "idle_seconds" in one else None, 1),
        _counted(_limit(one["high"]) for one in found),
        _counted(str(one["max_mib"]) for one in found),
        str(sum(one["oom_kills"] for one in found)),
    )


def _ramps(found: Iterable[Run]) -> Iterator[tuple[str, ...]]:
    named = (
        Run(run.release, str(run.arguments["rate"]), run.function, run.arguments, run.measured, run.at)
        for run in found
        if run.function == "ramps:ramps"
    )
    for (rate, release), same in newest(named).items():
        guarded: Found = [one for run in same for one in run.measured["guarded"]]
        alone = [run.measured["alone"] for run in same]
        saved = sum(one["is_saved"] for one in guarded)
        yield (
            rate,
            _short(release),
            _range(guarded, lambda one: one["pace_mib"], 1),
            _range(guarded, lambda one: one["told_at_mib"], 0),
            f"{saved} of {len(guarded)} ({100 * saved / len(guarded):.0f} %)",
            str(sum(one["oom_kills"] > 0 for one in guarded)),
            f"{sum(one['is_saved'] for one in alone)} of {len(alone)}",
        )


def _scaled() -> str:
    default = Policy()
    lines = [f"The deadline is {DEADLINE_SECONDS:g} s instead of 900 s. What the policy says otherwise in the guest:\n"]
    rows = ((f"`{name}`", f"{getattr(default, name):,}", f"{value:,}") for name, value in LAB.items())
    return "\n".join(lines) + "\n" + _table(("quantity", "default", "here"), rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(cells)} |" for cells in rows]
    if not lines:
        return "Not measured yet."
    return "\n".join([f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *lines])


def _workload(run: Run) -> str:
    options = run.arguments.get("options", run.arguments)
    said = [str(run.arguments.get("mode", "file"))]
    said += [f"{key} {options[key]}" for key in ("size", "hot", "rate", "peak", "every", "hold") if key in options]
    if "min_mib" in run.arguments:
        said.append(f"memory.min {run.arguments['min_mib']}")
    return f"{' '.join(said)}, to {run.arguments['target_mib']} MiB"


def _end(one: dict[str, Any]) -> str:
    return f"{one['phase']} {one['reason']}"


def _limit(text: str) -> str:
    return text if text == "max" else f"{int(text) / 2**20:.0f} MiB"


def _counted(texts: Iterable[str]) -> str:
    counts = Counter(texts).most_common()
    return ", ".join(text if len(counts) == 1 else f"{count}x {text}" for text, count in counts)


def _range(found: Found, value: Callable[[dict[str, Any]], float | None], digits: int) -> str:
    values = sorted(number for one in found if (number := value(one)) is not None)
    if not values:
        return "-"
    low, high = (f"{number:.{digits}f}" for number in (values[0], values[-1]))
    return low if low == high else f"{low} to {high}"


def _short(release: str) -> str:
    return release.partition("-")[0].partition("+")[0]


def _version(release: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", release)[:3]]


def _order(name: str) -> tuple[int, str]:
    number = re.match(r"\d+", name)
    return (int(number.group()) if number else 99, name)


if __name__ == "__main__":
    DOCUMENT.write_text(document())
    sys.stdout.write(f"{DOCUMENT}\n")
