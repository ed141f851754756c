"""``vpa-ippr recommend``: recommendations from a source of usage, printed; nothing is written anywhere."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vpa_ippr.api.clock import SystemClock
from vpa_ippr.api.errors import EXIT_DONE, EXIT_PARTIAL
from vpa_ippr.cli import options

if TYPE_CHECKING:
    from vpa_ippr.api.series import Finding, Usage
    from vpa_ippr.recommend.result import Recommendation


@dataclass(frozen=True, slots=True)
class Found:
    """What a source gave: recommendations, where they come from, and what was noticed."""

    recommendations: Sequence[Recommendation]
    as_of: float
    source: str
    usage: Usage
    files: tuple[Path, ...] = ()

    @property
    def faults(self) -> tuple[Finding, ...]:
        """What is wrong with a whole namespace or file, as against the data of one container; a table leaves this to stderr."""
        files = set(map(str, self.files))
        return (*self.usage.failures, *(finding for finding in self.usage.findings if finding.subject in files))

    @property
    def remarks(self) -> tuple[Finding, ...]:
        """All other findings."""
        faults = self.faults
        return tuple(finding for finding in self.usage.findings if finding not in faults)


@click.command()
@options.trace_options
@options.prometheus_options
@options.profile_options
@options.history_options
@click.option("--namespace", "-n", "namespaces", multiple=True, help="Only this namespace; may be repeated.")
@click.option("--format", "-f", "form", type=click.Choice(["table", "json"]), default="table", show_default=True, help="How to print.")
def recommend(
    traces: Sequence[Path],
    as_of: float | None,
    prometheus: options.PrometheusOptions,
    profile: str,
    models: Path | None,
    history: float,
    step: float,
    namespaces: Sequence[str],
    form: str,
) -> int:
    """Print recommendations from Prometheus or from trace files; writes nowhere."""
    found = find(traces, as_of, prometheus, profile, models, history, step, namespaces)
    if form == "json":
        from vpa_ippr.report.recommendations import render_recommendations

        click.echo(
            render_recommendations(found.recommendations, as_of=found.as_of, findings=found.usage.findings, failures=found.usage.failures),
            nl=False,
        )
    else:
        click.echo(_table(found, profile), nl=False)
    options.tell(found.faults)
    return EXIT_PARTIAL if found.usage.failures else EXIT_DONE


def find(
    traces: Sequence[Path],
    as_of: float | None,
    prometheus: options.PrometheusOptions,
    profile: str,
    models: Path | None,
    history: float,
    step: float,
    namespaces: Sequence[str],
) -> Found:
    """Read the history and recommend.

    Raises:
        UsageError: no source is given, or both kinds are on the command line.
    """
    options.check_one_source(prometheus, traces)
    from vpa_ippr.api.series import Window
    from vpa_ippr.metrics.traces import TraceSource
    from vpa_ippr.recommend.history import history_start
    from vpa_ippr.recommend.pipeline import recommend as recommend_at
    from vpa_ippr.recommend.recordings import recommend_each_at_its_end

    chosen, wanted = options.load_profile(profile, models), tuple(namespaces) or None
    if not traces:
        moment = time.time() if as_of is None else as_of
        with prometheus.open(SystemClock()) as source:
            usage = source.fetch(Window(history_start(moment, history), moment, step), wanted)
        return Found(recommend_at(usage, chosen, moment), moment, prometheus.url or "", usage)
    recording = TraceSource(traces)
    label = ", ".join(path.name for path in traces)
    if as_of is not None:
        usage = recording.fetch(Window(history_start(as_of, history), as_of, step), wanted)
        return Found(recommend_at(usage, chosen, as_of), as_of, label, usage, tuple(traces))
    # Recordings are seldom of one cluster at one time: without a moment given, each is judged at its own end.
    first, last = recording.span()
    usage = recording.fetch(Window(first - step, last, step), wanted)
    return Found(recommend_each_at_its_end(usage, chosen, history), last, label, usage, tuple(traces))


def terminal_width() -> int | None:
    """The width of the terminal that stdout is, or None when it is piped."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _table(found: Found, profile: str) -> str:
    from vpa_ippr.report.model import build_report
    from vpa_ippr.report.recommendations import advice_from
    from vpa_ippr.report.table import render_table

    built = build_report(
        map(advice_from, found.recommendations), {}, as_of=found.as_of, source=found.source, profile=profile,
        findings=found.remarks,
    )  # fmt: skip
    return render_table(built, width=terminal_width(), colour=colour_wanted())


def colour_wanted() -> bool:
    """True on a terminal, unless NO_COLOR says otherwise (no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")
