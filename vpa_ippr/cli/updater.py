"""``vpa-ippr updater``: the component that resizes pods in place."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import click

from vpa_ippr.api.clock import SystemClock
from vpa_ippr.api.errors import EXIT_DONE, EXIT_PARTIAL
from vpa_ippr.cli import options
from vpa_ippr.cli.server_rules import server_rules
from vpa_ippr.cli.updater_options import admission_option, settings_options

if TYPE_CHECKING:
    from vpa_ippr.api.clock import Clock
    from vpa_ippr.cli.schedule import Bell
    from vpa_ippr.cluster.kube import Kube
    from vpa_ippr.cluster.rest import Rest
    from vpa_ippr.resize.settings import Settings

# What could not be relieved is looked at again, for its pause may be over; costs nothing while nothing presses.
_RELIEF_SECONDS = 10.0


@click.command()
@options.cluster_options
@options.clock_options
@options.period_options
@options.leader_options("updater")
@options.listen_options
@options.prometheus_options
@settings_options
@admission_option
@click.option("--once", is_flag=True, help="Run one cycle and exit: 0 done, 1 failed, 3 partial.")
def updater(
    kubeconfig: str | None,
    context: str | None,
    clock_url: str | None,
    interval: float,
    jitter: float | None,
    election: options.LeaderOptions,
    listen: tuple[str, int] | None,
    prometheus: options.PrometheusOptions,
    settings: Callable[[], Settings],
    admission_namespaces: tuple[str, ...],
    once: bool,
) -> int:
    """Compare pods with recommendations, resize them in place and follow each resize to its end.

    With --prometheus-url throttling, pressure and the users' own rollout guards are watched after a change. A container of which its node's
    agent tells that it runs into its memory limit gets more at once.
    """
    from vpa_ippr.cli.exposition import serving
    from vpa_ippr.cli.leading import open_leading, writing_rest
    from vpa_ippr.cli.schedule import Bell, Job, run_jobs
    from vpa_ippr.cli.updater_telemetry import UpdaterTelemetry
    from vpa_ippr.cluster.connection import connect
    from vpa_ippr.cluster.telemetry import Telemetry
    from vpa_ippr.resize.controller import Updater

    clock = options.make_clock(clock_url, "updater")
    chosen, connection = settings(), connect(kubeconfig, context)
    leading, telemetry = open_leading(election, connection, clock, once=once), Telemetry()
    rest = writing_rest(connection, leading, telemetry)
    rules, kube = server_rules(rest), _kube(rest, clock, admission_namespaces, once=once)
    bell = Bell()
    with prometheus.open_signals(clock) as signals:
        service = Updater(kube, clock, chosen, rules, guards=signals, signals=signals, alarm=bell.went_off)
        told = UpdaterTelemetry(telemetry)
        cycle = partial(told.timed, service.run_cycle)
        if once:
            return EXIT_PARTIAL if cycle().failures else EXIT_DONE
        jobs = [Job("cycle", cycle, interval, jitter or 0.0)]
        if _follows_pressing(kube, bell):
            jobs.append(Job("relief", partial(told.relieved, service.relieve), _RELIEF_SECONDS, bell=bell))
        with serving(telemetry, listen):
            run_jobs(jobs, clock, leading=leading, warm_up=kube.list_pods)
    return EXIT_DONE


def _follows_pressing(kube: Kube, bell: Bell) -> bool:
    """Whether the bell is rung when a node's agent tells of a pressing container; where nothing is watched each cycle asks."""
    from vpa_ippr.cluster.cached import CachedKube
    from vpa_ippr.resize.relief_news import ReliefNews

    if not isinstance(kube, CachedKube):
        return False
    kube.follow_node_memories(ReliefNews(bell.ring).tell)
    return True


def _kube(rest: Rest, clock: Clock, admission_namespaces: tuple[str, ...], *, once: bool) -> Kube:
    """Watch caches pay off from the second cycle on, and follow the wall clock alone."""
    from vpa_ippr.cluster.cached import CachedKube
    from vpa_ippr.cluster.kube import Kube

    kind = CachedKube if isinstance(clock, SystemClock) and not once else Kube
    return kind(rest, clock, "vpa-ippr-updater", admission_namespaces)
