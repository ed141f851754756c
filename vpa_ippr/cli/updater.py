"""``vpa-ippr updater``: the component that resizes pods in place."""

from __future__ import annotations

import click

from vpa_ippr.api.errors import EXIT_DONE, EXIT_PARTIAL
from vpa_ippr.cli import options
from vpa_ippr.cli.server_rules import server_rules


@click.command()
@options.cluster_options
@options.clock_options
@options.period_options
@options.leader_options("updater")
@options.listen_options
@click.option(
    "--min-pod-age", type=options.DURATION, default=43_200.0, show_default="12h", help="Younger pods inside their bounds are left alone."
)
@click.option(
    "--min-change", type=click.FloatRange(0, 1), default=0.1, show_default=True, help="Smaller changes inside the bounds are left alone."
)
@click.option(
    "--deferred-limit", type=options.DURATION, default=600.0, show_default="10m", help="A resize deferred for longer is taken back."
)
@click.option("--once", is_flag=True, help="Run one cycle and exit: 0 done, 1 failed, 3 partial.")
def updater(
    kubeconfig: str | None,
    context: str | None,
    clock_url: str | None,
    interval: float,
    jitter: float | None,
    election: options.LeaderOptions,
    listen: tuple[str, int] | None,
    min_pod_age: float,
    min_change: float,
    deferred_limit: float,
    once: bool,
) -> int:
    """Compare pods with recommendations, resize them in place and follow each resize to its end."""
    from vpa_ippr.cli.exposition import serving
    from vpa_ippr.cli.leading import open_leading, writing_rest
    from vpa_ippr.cli.schedule import Job, run_jobs
    from vpa_ippr.cluster.connection import connect
    from vpa_ippr.cluster.kube import Kube
    from vpa_ippr.cluster.telemetry import Telemetry
    from vpa_ippr.resize.controller import Updater
    from vpa_ippr.resize.settings import Settings

    clock = options.make_clock(clock_url, "updater")
    connection = connect(kubeconfig, context)
    leading, telemetry = open_leading(election, connection, clock, once=once), Telemetry()
    rest = writing_rest(connection, leading, telemetry)
    settings = Settings(min_pod_age_seconds=min_pod_age, min_change=min_change, deferred_limit_seconds=deferred_limit)
    service = Updater(Kube(rest, clock, "vpa-ippr-updater"), clock, settings, server_rules(rest))
    if once:
        return EXIT_PARTIAL if service.run_cycle().failures else EXIT_DONE
    with serving(telemetry, listen):
        run_jobs([Job("cycle", service.run_cycle, interval, jitter or 0.0)], clock, leading=leading)
    return EXIT_DONE
