"""What the commands about this node's cgroups and journals have in common."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from vpa_ippr.actuator.deadman import Restorer
    from vpa_ippr.actuator.node_cgroups import NodeCgroups
    from vpa_ippr.actuator.policy import Policy
    from vpa_ippr.api.clock import BootClock

JOURNAL = Path("/var/lib/vpa-ippr/journal")
"""The agent's."""
STANDALONE = Path("/var/lib/vpa-ippr/standalone")
"""That of ``actuator shrink``: its own, so that it can be used beside an agent."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a command works."""

    cgroup_root: Path
    proc: Path
    state_dir: Path


cgroup_root_option = click.option(
    "--cgroup-root", type=click.Path(path_type=Path), default="/sys/fs/cgroup", show_default=True, help="Where cgroup v2 is mounted."
)
proc_option = click.option("--proc", type=click.Path(path_type=Path), default="/proc", show_default=True, help="The host's /proc.")
output_option = click.option(
    "--output", "-o", "form", type=click.Choice(("table", "json")), default="table", show_default=True, help="How to print."
)
journals_option = click.option(
    "--state-dir",
    "state_dirs",
    type=click.Path(path_type=Path),
    multiple=True,
    default=(JOURNAL, STANDALONE),
    show_default=True,
    help="Where a journal is kept; may be repeated.",
)


@contextlib.contextmanager
def stoppable() -> Iterator[tuple[BootClock, threading.Event]]:
    """A clock, and what SIGTERM, SIGINT and, from a terminal that is closed, SIGHUP set before they stop it."""
    from vpa_ippr.api.clock import BootClock
    from vpa_ippr.cli.schedule import stop_signals

    clock, stopped = BootClock(), threading.Event()

    def stop() -> None:
        stopped.set()
        clock.stop()

    before = signal.signal(signal.SIGHUP, lambda _number, _frame: stop())
    try:
        with stop_signals(stop):
            yield clock, stopped
    finally:
        signal.signal(signal.SIGHUP, before)


def node_policy() -> Policy:
    """The default policy on this node."""
    from vpa_ippr.actuator.policy import Policy

    return Policy(node_cpus=os.cpu_count() or 1, page_bytes=os.sysconf("SC_PAGE_SIZE"))


@contextlib.contextmanager
def node_cgroups(root: Path, proc: Path) -> Iterator[NodeCgroups]:
    """This node's cgroups, also those of nodes on which nothing could be shrunk any more."""
    from vpa_ippr.actuator.cgroupfs import CgroupFsFinder
    from vpa_ippr.actuator.node_cgroups import NodeCgroups
    from vpa_ippr.actuator.systemd import GuardWriter

    guards = GuardWriter()
    with (
        contextlib.closing(CgroupFsFinder(root, proc, guards=guards)) as finder,
        contextlib.closing(NodeCgroups(finder, root, proc, guards)) as cgroups,
    ):
        yield cgroups


def restorers(directories: Sequence[Path], cgroups: NodeCgroups, proc: Path) -> tuple[Restorer, ...]:
    """Those that settle the journals."""
    from vpa_ippr.actuator.deadman import Restorer
    from vpa_ippr.actuator.journal import read_boot_id
    from vpa_ippr.api.clock import boottime_seconds

    boot_id, page_bytes = read_boot_id(proc), os.sysconf("SC_PAGE_SIZE")
    now = lambda: (time.time(), boottime_seconds())  # noqa: E731
    return tuple(Restorer(directory, boot_id, cgroups, now, page_bytes=page_bytes) for directory in directories)


def mib(amount_bytes: float) -> str:
    """For people."""
    return f"{amount_bytes / 2**20:.1f} MiB"


def limit_text(limit_bytes: int | None) -> str:
    """A limit for people; None is ``max``."""
    return "max" if limit_bytes is None else mib(limit_bytes)
