"""``vpa-ippr actuator restore``, ``status`` and ``guard``: what journals hold, and putting it back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vpa_ippr.api.errors import EXIT_DONE, EXIT_FAILED, ActuatorError
from vpa_ippr.cli import options
from vpa_ippr.cli.actuator_options import (
    cgroup_root_option,
    journals_option,
    limit_text,
    mib,
    node_cgroups,
    output_option,
    proc_option,
    restorers,
)

if TYPE_CHECKING:
    from vpa_ippr.actuator.deadman import Observer, Restorer
    from vpa_ippr.actuator.journal import Entry
    from vpa_ippr.actuator.node_cgroups import NodeCgroups

_COLUMNS = ("SHRINK", "PHASE", "TARGET", "GUARD", "USAGE", "MEMORY.HIGH", "MEMORY.MAX", "LEFT", "OWNER")


@click.command()
@journals_option
@cgroup_root_option
@proc_option
@click.option("--all", "everything", is_flag=True, help="Also what a live owner holds, and what the next agent would take over.")
def restore(state_dirs: tuple[Path, ...], cgroup_root: Path, proc: Path, everything: bool) -> int:
    """Put back what an agent or a shrink that is no more has left.

    A live owner with --all may set its guard once more: stop it first, it then puts everything back by itself.
    """
    with node_cgroups(cgroup_root, proc) as cgroups:
        outcomes = [outcome for restorer in restorers(state_dirs, cgroups, proc) for outcome in restorer.settle(everything=everything)]
    for outcome in outcomes:
        click.echo(f"{outcome.entry.name}: {outcome.text}" + (" (its owner lives)" if outcome.was_alive else ""))
    if not outcomes:
        click.echo("nothing to put back")
    return EXIT_FAILED if any(outcome.error for outcome in outcomes) else EXIT_DONE


@click.command()
@journals_option
@cgroup_root_option
@proc_option
@output_option
def status(state_dirs: tuple[Path, ...], cgroup_root: Path, proc: Path, form: str) -> int:
    """Show what is under way or was left behind on this node."""
    import msgspec

    from vpa_ippr.actuator.journal import read_entries
    from vpa_ippr.api.clock import boottime_seconds

    now = boottime_seconds()
    with node_cgroups(cgroup_root, proc) as cgroups:
        rows = [
            _row(entry, cgroups, restorer, is_locked=is_locked, now=now)
            for restorer in restorers(state_dirs, cgroups, proc)
            if (entries := read_entries(restorer.directory))
            for is_locked in (restorer.is_locked(),)
            for entry in entries
        ]
    if form == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(rows), indent=2).decode())
    elif rows:
        click.echo(_table([_COLUMNS, *(_cells(row) for row in rows)]))
    else:
        click.echo("no shrink is under way, and none was left behind")
    return EXIT_DONE


@click.command()
@journals_option
@cgroup_root_option
@proc_option
@options.listen_options
def guard(state_dirs: tuple[Path, ...], cgroup_root: Path, proc: Path, listen: tuple[str, int] | None) -> int:
    """Watch journals, and put back what a process that has died or hangs has left.

    Runs beside the agent, as a container of its own, until it is stopped.
    """
    from vpa_ippr.actuator.deadman import DeadMan
    from vpa_ippr.api.clock import BootClock
    from vpa_ippr.cli.schedule import stop_signals

    clock = BootClock()
    with stop_signals(clock.stop), node_cgroups(cgroup_root, proc) as cgroups, _observed(state_dirs, cgroup_root, listen) as observer:
        DeadMan(restorers(state_dirs, cgroups, proc), clock, observer).run()
    return EXIT_DONE


@contextlib.contextmanager
def _observed(state_dirs: tuple[Path, ...], cgroup_root: Path, listen: tuple[str, int] | None) -> Iterator[Observer | None]:
    if listen is None:
        yield None
        return
    from vpa_ippr.cli.actuator_telemetry import DeadManTelemetry
    from vpa_ippr.cli.exposition import serving
    from vpa_ippr.cluster.telemetry import Telemetry

    telemetry = Telemetry()
    observer = DeadManTelemetry(telemetry, state_dirs)
    healthy, ready = observer.probes(cgroup_root)
    with serving(telemetry, listen, healthy=healthy, ready=ready):
        yield observer


def _row(entry: Entry, cgroups: NodeCgroups, restorer: Restorer, *, is_locked: bool, now: float) -> dict[str, Any]:
    held = restorer.owner_state(entry, is_locked=is_locked)
    deadline = entry.deadline_boottime_seconds
    row: dict[str, Any] = {
        "journal": str(restorer.directory),
        "shrink": f"{entry.namespace}/{entry.name}" if entry.namespace else entry.name,
        "container": entry.container_name or None,
        "phase": str(entry.phase),
        "targetBytes": entry.target_bytes,
        "guardBytes": entry.guard_bytes,
        "originalHighBytes": entry.original_high_bytes,
        "originalMaxBytes": entry.original_max_bytes,
        "secondsLeft": round(deadline - now) if deadline is not None else None,
        "ownerPid": entry.owner_pid,
        "owner": "gone" if held is None else held.why,
    }
    return row | _seen(entry, cgroups)


def _seen(entry: Entry, cgroups: NodeCgroups) -> dict[str, Any]:
    """The cgroup now; a node's trouble with one is told in its row."""
    try:
        cgroup = cgroups.of_entry(entry)
        snapshot = cgroup.read() if cgroup is not None and cgroup.identity() == entry.cgroup_identity else None
    except ActuatorError as error:
        return {"cgroup": "unreadable", "error": str(error)}
    if snapshot is None:
        return {"cgroup": "gone"}
    return {"cgroup": "there", "usageBytes": snapshot.usage_bytes, "highBytes": snapshot.high_bytes, "maxBytes": snapshot.max_bytes}


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    is_there = row["cgroup"] == "there"
    left = row["secondsLeft"]
    return (
        row["shrink"],
        row["phase"],
        mib(row["targetBytes"]),
        mib(row["guardBytes"]) if row["guardBytes"] is not None else "-",
        mib(row["usageBytes"]) if is_there else row["cgroup"],
        limit_text(row["highBytes"]) if is_there else "-",
        limit_text(row["maxBytes"]) if is_there else "-",
        f"{left} s" if left is not None else "-",
        row["owner"],
    )


def _table(rows: list[tuple[str, ...]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
