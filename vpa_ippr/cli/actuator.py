"""``vpa-ippr actuator``: the agent of one node, which carries out its MemoryShrinks on cgroup v2."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

import click

from vpa_ippr.api.errors import EXIT_DONE
from vpa_ippr.cli import options


@click.command()
@options.cluster_options
@click.option("--node-name", envvar="NODE_NAME", required=True, help="Name of this node, from spec.nodeName.")
@click.option(
    "--cgroup-root", type=click.Path(path_type=Path), default="/sys/fs/cgroup", show_default=True, help="Where cgroup v2 is mounted."
)
@click.option("--proc", type=click.Path(path_type=Path), default="/proc", show_default=True, help="The host's /proc.")
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path),
    default="/var/lib/vpa-ippr/journal",
    show_default=True,
    help="Where the journal is kept.",
)
def actuator(kubeconfig: str | None, context: str | None, node_name: str, cgroup_root: Path, proc: Path, state_dir: Path) -> int:
    """Bring the memory of this node's containers below lower limits, step by step, and put everything back when stopped."""
    from vpa_ippr.actuator.agent import Agent
    from vpa_ippr.actuator.cgroupfs import CgroupFsFinder
    from vpa_ippr.actuator.features import probe
    from vpa_ippr.actuator.journal import Journal, read_boot_id
    from vpa_ippr.actuator.policy import Policy
    from vpa_ippr.api.clock import SystemClock
    from vpa_ippr.cli.schedule import stop_signals
    from vpa_ippr.cluster.node_port import NodePort
    from vpa_ippr.cluster.rest import Rest, in_cluster_connection

    probe(cgroup_root, proc).require()
    if kubeconfig is None:
        connection = in_cluster_connection()
    else:
        from vpa_ippr.cluster.connection import connect

        connection = connect(kubeconfig, context)
    clock, stopped = SystemClock(), threading.Event()

    def stop() -> None:
        stopped.set()
        clock.stop()

    # One thread watches the guards and talks to the API: it must never be blind for long, and asks again at the next poll anyway.
    port = NodePort(Rest(connection, timeout_seconds=2.0, retries=0), clock)
    policy = Policy(node_cpus=os.cpu_count() or 1, page_bytes=os.sysconf("SC_PAGE_SIZE"))
    # Not at intervals: each round says when the next one is due, which is seconds while memory is brought down.
    with contextlib.closing(CgroupFsFinder(cgroup_root, proc)) as cgroups, stop_signals(stop):
        Agent(node_name, port, port, cgroups, Journal(state_dir, read_boot_id(proc)), clock, policy).run(stopped)
    return EXIT_DONE
