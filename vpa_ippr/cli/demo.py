"""``vpa-ippr demo``: the whole loop in an embedded cluster, two simulated days in about three minutes."""

from __future__ import annotations

import contextlib
import logging
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import click

from vpa_ippr.api.errors import EXIT_DONE, EXIT_FAILED, UsageError
from vpa_ippr.api.timestamps import format_time

_MARKER = "vpa-ippr-demo"
# On 1.33 memory limits only go up: there would be nothing to show.
_VERSIONS = ("1.34", "1.35", "1.36", "1.37")


@click.command()
@click.option("--days", type=click.FloatRange(0, 30, min_open=True), default=2.0, show_default=True, help="Simulated days.")
@click.option(
    "--kubernetes-version", type=click.Choice(_VERSIONS), default="1.36", show_default=True, help="Which Kubernetes to behave like."
)
@click.option(
    "--output", type=click.Path(path_type=Path, file_okay=False), default="demo-output", show_default=True, help="Page, logs, kubeconfig."
)
@click.option("--keep-running", is_flag=True, help="Leave the cluster and its components up afterwards, at the wall clock's speed.")
def demo(days: float, kubernetes_version: str, output: Path, keep_running: bool) -> int:
    """Run recommender, updater and node agents against an embedded cluster, and show what they did."""
    import msgspec

    from vpa_ippr.cli.demo_run import START_TIME, demo_cluster, running_components
    from vpa_ippr.cli.demo_show import render_story, summarise, write_page
    from vpa_ippr.cli.demo_story import tell_story
    from vpa_ippr.cli.terminal import colour_wanted, terminal_width

    directory, end, began = _prepare(output), START_TIME + days * 86_400, time.monotonic()
    _log_to(directory / "actuator.log")
    click.echo(f"{days:g} days of a cluster with 15 workloads; logs and kubeconfig are in {directory}", err=True)
    with demo_cluster(directory, kubernetes_version) as cluster, running_components(cluster, directory) as run:
        with _progress(START_TIME, end) as tell:
            observed = run.until(end, tell)
        story = tell_story(cluster, observed, START_TIME, end)
        page = directory / "index.html"
        write_page(story, page)
        (directory / "summary.json").write_bytes(msgspec.json.format(msgspec.json.encode(summarise(story)), indent=2))
        click.echo(render_story(story, width=terminal_width(), colour=colour_wanted()), nl=False)
        click.echo(f"page: {page.resolve()}")
        click.echo(f"{days:g} days took {time.monotonic() - began:.0f} s", err=True)
        if keep_running:
            _keep_running(cluster.kubeconfig, cluster.sandbox.prometheus_url, end, run.at_wall_speed)
    return EXIT_FAILED if any(kill.lowered for kill in story.ooms) else EXIT_DONE


def _prepare(output: Path) -> Path:
    """An empty directory for this run; one that holds anything else than an earlier run is left alone."""
    if output.exists() and any(output.iterdir()) and not (output / _MARKER).exists():
        raise UsageError(f"--output {output} is not empty and not of an earlier demo: name another directory")
    try:
        shutil.rmtree(output, ignore_errors=True)
        output.mkdir(parents=True)
        (output / _MARKER).touch()
    except OSError as error:
        raise UsageError(f"--output {output} cannot be made: {error.strerror}; name another directory") from error
    return output


def _log_to(path: Path) -> None:
    """The agents run in this process: what they log goes into a file as the other components' does."""
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.getLogger().handlers[0].formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)


@contextlib.contextmanager
def _progress(start: float, end: float) -> Iterator[Callable[[float], None]]:
    """A bar on stderr when that is a terminal; nothing otherwise."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not sys.stderr.isatty(), transient=True) as progress:
        task = progress.add_task("day 1 00:00", total=end - start)

        def tell(now: float) -> None:
            minutes = int(now - start) // 60
            clock = f"day {minutes // 1440 + 1} {minutes // 60 % 24:02d}:{minutes % 60:02d}"
            progress.update(task, completed=now - start, description=clock)

        yield tell


def _keep_running(kubeconfig: Path, prometheus_url: str, now: float, go_on: Callable[[], None]) -> None:
    stopped = threading.Event()

    def stop(_signal: int, _frame: FrameType | None) -> None:
        stopped.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    go_on()
    click.echo("the cluster is still up, at the wall clock's speed; stop it with Ctrl-C", err=True)
    click.echo(f"  vpa-ippr report --kubeconfig {kubeconfig}", err=True)
    click.echo(f"  vpa-ippr recommend --prometheus-url {prometheus_url} --as-of {format_time(now)}", err=True)
    stopped.wait()
