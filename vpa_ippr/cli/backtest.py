"""``vpa-ippr backtest``: what policies would have done with recorded usage, compared; writes nothing but a plot if one is asked for."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vpa_ippr.api.clock import SystemClock
from vpa_ippr.api.errors import EXIT_DONE, EXIT_PARTIAL, QuantityError, UsageError
from vpa_ippr.cli import options
from vpa_ippr.cli.files import write_whole
from vpa_ippr.cli.terminal import colour_wanted, terminal_width

if TYPE_CHECKING:
    from vpa_ippr.api.series import Finding, Resource, Usage
    from vpa_ippr.backtest.comparison import Comparison, Plan
    from vpa_ippr.backtest.grid import ContainerKey, Fleet

_SHARE = click.FloatRange(0, 1)
_PLOTS = (".html", ".svg", ".png")


@dataclass(frozen=True, slots=True)
class _Recording:
    """Usage of one source: a trace file, or a Prometheus whose namespaces are the sources (``name`` is None then)."""

    name: str | None
    usage: Usage
    current: Mapping[Resource, Mapping[ContainerKey, float]]


class _Scale(click.ParamType[tuple[str, float]]):
    """``SOURCE=FACTOR`` or ``SOURCE/RESOURCE=FACTOR``; the factor is a quantity such as 4 or 16Gi."""

    name = "scale"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, float]:
        from vpa_ippr.api.quantity import parse_quantity

        if isinstance(value, tuple):
            return value
        source, separator, text = value.rpartition("=")
        try:
            factor = float(parse_quantity(text).value)
        except QuantityError as error:
            self.fail(str(error), param, ctx)
        if not (separator and source and factor > 0):
            self.fail(f"{value!r} is not SOURCE=FACTOR with a factor above 0, such as azure=4 or google/memory=16Gi", param, ctx)
        return source, factor


@click.command()
@options.trace_options
@options.prometheus_options
@click.option("--namespace", "-n", "namespaces", multiple=True, help="Only this namespace; may be repeated.")
@click.option("--policy", "policies", multiple=True, metavar="NAME[,NAME...]", help="Policies to compare; may be repeated; default: all.")
@click.option("--baseline", default="vpa-classic", show_default=True, help="The policy that the others are measured against.")
@click.option("--resource", type=click.Choice(["cpu", "memory", "both"]), default="both", show_default=True, help="What to replay.")
@click.option("--days", type=click.FloatRange(0, min_open=True), default=28.0, show_default=True, help="Days of each series to replay.")
@click.option("--min-days", type=click.FloatRange(0), default=4.0, show_default=True, help="Leave out series with fewer days of samples.")
@click.option("--warmup", type=options.DURATION, default=2 * 86_400.0, show_default="2d", help="Beginning of each series, not scored.")
@click.option("--grid", "step", type=options.DURATION, default=300.0, show_default="5m", help="Length of a slot of time.")
@click.option(
    "--floors", type=click.Choice(["on", "off"]), default="off", show_default=True, help="on: each policy's own; off: one for all."
)
@click.option("--refused", type=_SHARE, default=0.0, show_default=True, help="Share of resizes that the cluster refuses.")
@click.option("--deferred", type=_SHARE, default=0.0, show_default=True, help="Share of raises that have to wait.")
@click.option("--deferred-for", type=options.DURATION, default=3600.0, show_default="1h", help="How long they wait.")
@click.option("--scale", "scales", type=_Scale(), multiple=True, metavar="SOURCE=FACTOR", help="Cores or bytes in a source's unit.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the intervals and of refused and deferred resizes.")
@click.option("--format", "-f", "form", type=click.Choice(["table", "json"]), default="table", show_default=True, help="How to print.")
@click.option(
    "--plot", type=click.Path(path_type=Path, dir_okay=False), help="Also draw slack against violations: FILE.html, .svg or .png."
)
def backtest(
    traces: Sequence[Path],
    as_of: float | None,
    prometheus: options.PrometheusOptions,
    namespaces: Sequence[str],
    policies: Sequence[str],
    baseline: str,
    resource: str,
    days: float,
    min_days: float,
    warmup: float,
    step: float,
    floors: str,
    refused: float,
    deferred: float,
    deferred_for: float,
    scales: Sequence[tuple[str, float]],
    seed: int,
    form: str,
    plot: Path | None,
) -> int:
    """Replay recorded usage through policies, with what was known at each moment only, and compare them.

    Series come from trace files (each file is a source) or from Prometheus (each namespace is a source).
    """
    options.check_one_source(prometheus, traces)
    if plot is not None:
        _check_plot(plot)
    from vpa_ippr.api.series import Resource
    from vpa_ippr.backtest.actuator import Conditions
    from vpa_ippr.backtest.comparison import Plan
    from vpa_ippr.backtest.contenders import POLICIES, check_names

    names = tuple(name for text in policies for name in text.split(",") if name) or tuple(POLICIES)
    check_names((baseline, *names))
    plan = Plan(names, baseline, warmup, floors == "on", Conditions(refused, deferred, deferred_for, seed))
    wanted = tuple(Resource) if resource == "both" else (Resource(resource),)
    if traces:
        recordings, failures = _from_traces(traces, as_of, days, step, namespaces)
    else:
        recordings, failures = _from_prometheus(prometheus, as_of, days, step, namespaces)
    fleets = _fleets(recordings, wanted, dict(scales), step, days, min_days)
    comparisons = _compared(fleets, plan)
    findings = [finding for recording in recordings for finding in recording.usage.findings]
    _show(plan, comparisons, findings, failures, form, plot)
    options.tell(failures)
    return EXIT_PARTIAL if failures else EXIT_DONE


def _check_plot(plot: Path) -> None:
    from vpa_ippr.backtest.pareto_png import check_installed

    if plot.suffix not in _PLOTS:
        raise UsageError(f"--plot {plot}: name a file that ends in {', '.join(_PLOTS[:-1])} or {_PLOTS[-1]}")
    if plot.suffix == ".png":
        check_installed()


def _from_traces(
    traces: Sequence[Path], as_of: float | None, days: float, step: float, namespaces: Sequence[str]
) -> tuple[list[_Recording], list[Finding]]:
    from vpa_ippr.api.series import Finding, Window
    from vpa_ippr.metrics.traces import TraceSource

    recordings, failures, errors = [], [], []
    for path in traces:
        try:
            source = TraceSource([path])
            first, last = source.span() if as_of is None else (as_of - days * 86_400, as_of)
            # A window is open where it starts.
            recordings.append(_Recording(path.stem, source.fetch(Window(first - step, last, step), tuple(namespaces) or None), {}))
        except UsageError as error:
            errors.append(error)
            failures.append(Finding(error.reason, str(path), 1, str(error)))
    if not recordings:
        raise errors[0]
    return recordings, failures


def _from_prometheus(
    prometheus: options.PrometheusOptions, as_of: float | None, days: float, step: float, namespaces: Sequence[str]
) -> tuple[list[_Recording], list[Finding]]:
    from vpa_ippr.api.series import Resource, Window
    from vpa_ippr.report.usage import current_by_workload

    moment = time.time() if as_of is None else as_of
    with prometheus.open(SystemClock()) as source:
        usage = source.fetch(Window(moment - days * 86_400, moment, step), tuple(namespaces) or None)
        known = source.resources(moment, sorted({series.container.namespace for series in usage.series}))
    current: dict[Resource, dict[ContainerKey, float]] = {resource: {} for resource in Resource}
    for key, found in current_by_workload(known, usage.owners).items():
        for resource in Resource:
            amount = found.resources.requests.get(resource)
            if amount is not None:
                current[resource][key] = amount / (1000 if resource is Resource.CPU else 1)
    return [_Recording(None, usage, current)], list(usage.failures)


def _fleets(
    recordings: Sequence[_Recording], wanted: Sequence[Resource], scales: Mapping[str, float], step: float, days: float, min_days: float
) -> list[Fleet]:
    """One for each resource of which there are series enough."""
    from vpa_ippr.backtest.grid import fleet_of, pooled

    _check_scales(recordings, scales)
    fleets, short = [], []
    for resource in wanted:
        parts = [
            fleet_of(
                recording.usage, resource, source=recording.name, step_seconds=step, most_days=days,
                scale=scales.get(f"{recording.name}/{resource}", scales.get(recording.name or "", 1.0)),
                current=recording.current.get(resource),
            )
            for recording in recordings
        ]  # fmt: skip
        whole = pooled(parts)
        fleet = whole.chosen(whole.observed_days >= min_days)
        if len(fleet):
            fleets.append(fleet)
        elif len(whole):
            short.append(f"not one of {len(whole)} {resource} series has {min_days:g} days of samples on a grid of {step:g} s")
    if not fleets:
        raise UsageError(f"{'; '.join(short) or 'no series to replay'}: give a longer recording, a lower --min-days or a coarser --grid")
    for line in short:
        click.echo(f"vpa-ippr: {line}", err=True)
    return fleets


def _check_scales(recordings: Sequence[_Recording], scales: Mapping[str, float]) -> None:
    known = [recording.name for recording in recordings if recording.name]
    for source in scales:
        if source.removesuffix("/cpu").removesuffix("/memory") not in known:
            raise UsageError(f"--scale {source}: no such source; there are {', '.join(known) or 'none that can be scaled'}")


def _compared(fleets: Sequence[Fleet], plan: Plan) -> list[Comparison]:
    from vpa_ippr.backtest.comparison import compare

    with _progress() as tell:
        return [compare(fleet, plan, tell(str(fleet.resource))) for fleet in fleets]


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str], Callable[[str, int, int], None]]]:
    """A bar for each policy on stderr, if that is a terminal."""
    from rich.console import Console
    from rich.progress import Progress, TaskID

    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bars:
        tasks: dict[str, TaskID] = {}

        def tell(resource: str) -> Callable[[str, int, int], None]:
            def told(policy: str, done: int, total: int) -> None:
                label = f"{resource} {policy}"
                if label not in tasks:
                    tasks[label] = bars.add_task(label, total=total)
                bars.update(tasks[label], completed=done)

            return told

        yield tell


def _show(
    plan: Plan, comparisons: Sequence[Comparison], findings: Sequence[Finding], failures: Sequence[Finding], form: str, plot: Path | None
) -> None:
    from vpa_ippr.backtest.documents import render_json
    from vpa_ippr.backtest.table import render_table

    if form == "json":
        click.echo(render_json(plan, comparisons, findings, failures), nl=False)
    else:
        click.echo(render_table(comparisons, width=terminal_width(), colour=colour_wanted()), nl=False)
    if plot is not None:
        write_whole(plot, _drawn(comparisons, plot.suffix))


def _drawn(comparisons: Sequence[Comparison], suffix: str) -> str | bytes:
    from vpa_ippr.backtest.pareto_png import render_png
    from vpa_ippr.backtest.pareto_svg import render_page, render_svg
    from vpa_ippr.backtest.table import render_table

    if suffix == ".png":
        return render_png(comparisons)
    return render_svg(comparisons) if suffix == ".svg" else render_page(comparisons, render_table(comparisons))
