"""``vpa-ippr recommender``: the component that writes recommendations into VPAs."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from vpa_ippr.api.errors import EXIT_DONE
from vpa_ippr.cli import options

_MULTIPLE = click.IntRange(1)


@click.command()
@options.prometheus_options
@options.cluster_options
@options.profile_options
@options.history_options
@options.clock_options
@options.period_options
@options.leader_options("recommender")
@options.listen_options
@click.option(
    "--checkpoint-interval",
    type=options.DURATION,
    default=600.0,
    show_default="10m",
    help="Time between two writings of checkpoints; they are also written when the recommender stops.",
)
@click.option(
    "--retrain-interval",
    type=options.DURATION,
    help="Train a model on own history this often, and use it if it is better; default: never. See docs/training.md.",
)
@click.option(
    "--model-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Use the model in this file instead of the profile's, if it is there, and keep there what is retrained.",
)
@click.option("--report-file", type=click.Path(path_type=Path, dir_okay=False), help="Keep a JSON report of all VPAs in this file.")
@click.option("--report-interval", type=options.DURATION, default=3600.0, show_default="1h", help="Time between two reports.")
@click.option("--max-allowed-cpu", type=options.CPU, help="Most CPU for containers whose policy sets no maximum, such as 4 or 500m.")
@click.option("--max-allowed-memory", type=options.MEMORY, help="The same for memory, such as 8Gi.")
@click.option("--round-cpu-millicores", type=_MULTIPLE, default=1, show_default=True, help="Round CPU up to multiples of this.")
@click.option("--round-memory-bytes", type=_MULTIPLE, default=1, show_default=True, help="Round memory up to multiples of this.")
@click.option("--humanize-memory", is_flag=True, help="Write memory with two decimals and Ki, Mi, Gi or Ti.")
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
    jitter: float | None,
    election: options.LeaderOptions,
    listen: tuple[str, int] | None,
    checkpoint_interval: float,
    retrain_interval: float | None,
    model_file: Path | None,
    report_file: Path | None,
    report_interval: float,
    max_allowed_cpu: int | None,
    max_allowed_memory: int | None,
    round_cpu_millicores: int,
    round_memory_bytes: int,
    humanize_memory: bool,
    default_recommender: bool,
    once: bool,
) -> int:
    """Compute recommendations from Prometheus and write them to the VPAs."""
    from vpa_ippr.api.resources import Amounts
    from vpa_ippr.cli.exposition import serving
    from vpa_ippr.cli.leading import open_leading, writing_rest
    from vpa_ippr.cli.recommender_jobs import Retraining, Timing, jobs_of, read_model, run_once, save_checkpoints, write_report
    from vpa_ippr.cli.schedule import run_jobs
    from vpa_ippr.cluster.connection import connect
    from vpa_ippr.cluster.kube import Kube
    from vpa_ippr.cluster.telemetry import Telemetry
    from vpa_ippr.forecast.catalogue import choose, load_catalogue
    from vpa_ippr.forecast.forecasters import is_model_named
    from vpa_ippr.recommend.cycle import RecommenderSettings
    from vpa_ippr.recommend.rounding import Rounding
    from vpa_ippr.recommend.service import RecommenderService

    catalogue = load_catalogue(models)
    choose(catalogue, profile)
    clock = options.make_clock(clock_url, "recommender")
    settings = RecommenderSettings(
        default_profile=profile,
        default_recommender=default_recommender,
        history_seconds=history,
        step_seconds=step,
        models=models,
        max_allowed=Amounts(max_allowed_cpu, max_allowed_memory),
        rounding=Rounding(round_cpu_millicores, round_memory_bytes, humanize_memory),
    )
    model = None if model_file is None else read_model(model_file)
    with prometheus.open(clock) as source:
        connection = connect(kubeconfig, context)
        leading, telemetry = open_leading(election, connection, clock, once=once), Telemetry()
        kube = Kube(writing_rest(connection, leading, telemetry), clock, "vpa-ippr-recommender")
        service = RecommenderService(source, kube, clock, catalogue, settings, source, model, source)
        if once:
            return run_once(service)
        timing = Timing(interval, checkpoint_interval, retrain_interval, report_interval, jitter or 0.0)
        retrain = Retraining(service, model_file, waits=model is not None) if any(map(is_model_named, catalogue.values())) else None
        report = None
        if report_file is not None:
            report = partial(write_report, kube, clock, f"the VPAs of {connection.base_url}", report_file)
        jobs = jobs_of(service, timing, retrain=retrain, report=report)
        with serving(telemetry, listen):
            run_jobs(jobs, clock, at_end=partial(save_checkpoints, service), leading=leading)
    return EXIT_DONE
