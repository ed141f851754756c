"""``vpa-ippr actuator``: the agent of one node, which carries out its MemoryShrinks on cgroup v2, and the tools beside it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vpa_ippr.api.errors import EXIT_DONE
from vpa_ippr.cli import options
from vpa_ippr.cli.actuator_journal import guard, restore, status
from vpa_ippr.cli.actuator_options import (
    JOURNAL,
    Place,
    cgroup_root_option,
    node_cgroups,
    node_policy,
    proc_option,
    restorers,
    stoppable,
)
from vpa_ippr.cli.actuator_shrink import shrink
from vpa_ippr.cli.logs import configure_logging

if TYPE_CHECKING:
    from vpa_ippr.actuator.policy import Policy
    from vpa_ippr.cli.actuator_telemetry import NodeTelemetry
    from vpa_ippr.cluster.rest import Connection, Observe


@click.group(invoke_without_command=True)
@options.cluster_options
@click.option("--node-name", envvar="NODE_NAME", help="Name of this node, from spec.nodeName; the agent cannot do without.")
@cgroup_root_option
@proc_option
@click.option("--state-dir", type=click.Path(path_type=Path), default=JOURNAL, show_default=True, help="Where the agent's journal is kept.")
@click.option("--policy-file", type=click.Path(path_type=Path), help="This node's own policy, in TOML.")
@options.listen_options
@click.pass_context
def actuator(
    command: click.Context,
    kubeconfig: str | None,
    context: str | None,
    node_name: str | None,
    cgroup_root: Path,
    proc: Path,
    state_dir: Path,
    policy_file: Path | None,
    listen: tuple[str, int] | None,
) -> int:
    """Bring the memory of this node's containers below lower limits, step by step, and put everything back when stopped.

    Without a command this is the agent of a node, which carries out what the cluster asks for. The commands need no cluster.
    """
    if command.invoked_subcommand is not None:
        _log_as_a_tool(command)
        return EXIT_DONE
    if not node_name:
        raise click.UsageError("Missing option '--node-name' (env var: 'NODE_NAME').", command)
    return _run_agent(_connection(kubeconfig, context), node_name, Place(cgroup_root, proc, state_dir), policy_file, listen)


for tool in (shrink, restore, status, guard):
    actuator.add_command(tool)


def _log_as_a_tool(command: click.Context) -> None:
    """What the agent and the dead-man have to say are their logs; the others' own output says what a person needs."""
    parent = command.parent
    if command.invoked_subcommand != guard.name and parent is not None and parent.params.get("log_level") is None:
        configure_logging("error", parent.params.get("log_format", "text"))


def _connection(kubeconfig: str | None, context: str | None) -> Connection:
    if kubeconfig is None:
        from vpa_ippr.cluster.rest import in_cluster_connection

        return in_cluster_connection()
    from vpa_ippr.cluster.connection import connect

    return connect(kubeconfig, context)


def _policy(policy_file: Path | None) -> Policy:
    if policy_file is None:
        return node_policy()
    from vpa_ippr.actuator.policy_file import load_policy

    return load_policy(policy_file, node_policy())


def _telemetry(place: Place, listen: tuple[str, int] | None) -> NodeTelemetry | None:
    if listen is None:
        return None
    from vpa_ippr.cli.actuator_telemetry import NodeTelemetry

    return NodeTelemetry(place)


def _run_agent(connection: Connection, node_name: str, place: Place, policy_file: Path | None, listen: tuple[str, int] | None) -> int:
    from vpa_ippr.actuator.agent import Agent, Surroundings
    from vpa_ippr.actuator.alarms import PressureAlarms
    from vpa_ippr.actuator.cgroupfs import CgroupFsFinder
    from vpa_ippr.actuator.features import probe
    from vpa_ippr.actuator.journal import open_journal, read_boot_id
    from vpa_ippr.actuator.node_state import NodeState, ProcNode
    from vpa_ippr.actuator.ports import Unobserved
    from vpa_ippr.actuator.pressing_watch import start_pressing_watch
    from vpa_ippr.cluster.node_port import NodePort
    from vpa_ippr.cluster.rest import Rest

    told = _telemetry(place, listen)
    observe: Observe = told.observe_request if told is not None else lambda _method, _status, _seconds: None
    observer = told.agent if told is not None else Unobserved()
    probe(place.cgroup_root, place.proc).require()
    policy = _policy(policy_file)
    # Not at intervals: each round says when the next one is due, which is seconds while memory is brought down.
    with stoppable() as (clock, stopped), node_cgroups(place.cgroup_root, place.proc) as cgroups, contextlib.ExitStack() as stack:
        journal = open_journal(place.state_dir, read_boot_id(place.proc), clock)
        # A shrink without the cluster that used this directory and died: the agent knows containers only.
        for restorer in restorers([place.state_dir], cgroups, place.proc):
            for outcome in restorer.settle_own(journal, only_standalone=True):
                if not outcome.error:
                    observer.recovered(outcome.verdict)
        # One thread watches the guards and talks to the API: it must never be blind for long, and asks again at the next poll anyway.
        port, watch_port = (NodePort(Rest(connection, timeout_seconds=2.0, retries=0, observe=observe), clock) for _ in range(2))
        alarms = stack.enter_context(contextlib.closing(PressureAlarms()))
        around = Surroundings(NodeState(ProcNode(place.proc), policy), port, alarms, clock.resync, observer)
        agent = Agent(node_name, port, port, cgroups.finder, journal, clock, policy, around)
        # Its own: the watch is another thread.
        finder = stack.enter_context(contextlib.closing(CgroupFsFinder(place.cgroup_root, place.proc)))
        pressing_port = told.counting(watch_port) if told is not None else watch_port
        if told is not None:
            stack.enter_context(told.serving(listen))
        stack.enter_context(contextlib.closing(start_pressing_watch(node_name, pressing_port, finder, clock)))
        agent.run(stopped)
    return EXIT_DONE
