"""``vpa-ippr recommender``: the component that writes recommendations into VPAs."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vpa_ippr.api.errors import EXIT_DONE
from vpa_ippr.cli import options

if TYPE_CHECKING:
    from vpa_ippr.recommend.cycle import CycleResult

logger = logging.getLogger(__name__)


@click.command()
@options.prometheus_options
@options.cluster_options
@options.profile_options
@options.history_options
@options.clock_options
@click.option("--interval", type=options.DURATION, default=60.0, show_default="1m", help="Time between two cycles.")
@click.option("--default-recommender", is_flag=True, help="Serve the VPAs that name no recommender, too.")
@click.option("--once", is_flag=True, help="Run one cycle and exit: 0 done, 1 failed, 3 partial.")
def recommender(
    prometheus: options.PrometheusOptions,
    kubeconfig: str | None,
    context: str | None,
    profile: str,
    models: Path | None,
    history: float,
    step: float,
    clock_url: str | None,
    interval: float,
    default_recommender: bool,
    once: bool,
) -> int:
    """Compute recommendations from Prometheus and write them to the VPAs."""
    from vpa_ippr.cli.periodic import run_periodically
    from vpa_ippr.cluster.connection import connect
    from vpa_ippr.cluster.kube import Kube
    from vpa_ippr.cluster.rest import Rest
    from vpa_ippr.forecast.catalogue import choose, load_catalogue
    from vpa_ippr.recommend.cycle import RecommenderSettings
    from vpa_ippr.recommend.service import RecommenderService

    catalogue = load_catalogue(models)
    choose(catalogue, profile)
    clock = options.make_clock(clock_url, "recommender")
    settings = RecommenderSettings(
        default_profile=profile, default_recommender=default_recommender, history_seconds=history, step_seconds=step
    )
    with prometheus.open(clock) as source:
        kube = Kube(Rest(connect(kubeconfig, context)), clock, "vpa-ippr-recommender")
        service = RecommenderService(source, kube, clock, catalogue, settings)
        if once:
            result = service.run_cycle()
            _tell(result)
            return result.exit_code
        run_periodically(lambda: _tell(service.run_cycle()), clock, interval, name="recommender")
    return EXIT_DONE


def _tell(result: CycleResult) -> None:
    for failure in result.failures:
        logger.warning("not done", extra={"subject": failure.subject, "reason": failure.reason, "error": failure.message})
    recommended = sum(1 for outcome in result.outcomes if outcome.recommendations)
    logger.info(
        "cycle done",
        extra={
            "vpas": len(result.outcomes),
            "recommended": recommended,
            "written": result.statuses_written,
            "failed": len(result.failures),
        },
    )
