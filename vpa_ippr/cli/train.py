"""``vpa-ippr train``: from trace files and made-up series to the global model and its card."""

from __future__ import annotations

import hashlib
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from vpa_ippr.api.clock import SystemClock
from vpa_ippr.api.errors import EXIT_DONE, UsageError
from vpa_ippr.cli import options
from vpa_ippr.cli.files import write_whole

if TYPE_CHECKING:
    from vpa_ippr.backtest.grid import Fleet
    from vpa_ippr.forecast.crossvalidation import Quality, Source

MODEL_FILE: Final = "gradient-boosting.skops"
CARD_FILE: Final = "gradient-boosting.md"
SYNTHETIC: Final = "synthetic"
_NOT_STATED: Final = "not stated"
_FILE = click.Path(path_type=Path, dir_okay=False)


class _Licence(click.ParamType[tuple[str, str]]):
    """``SOURCE=TEXT``."""

    name = "licence"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        source, separator, text = value.partition("=")
        if not (separator and source and text.strip()):
            self.fail(f"{value!r} is not SOURCE=TEXT such as nab=MIT", param, ctx)
        return source, " ".join(text.split())


@dataclass(frozen=True, slots=True)
class _Plan:
    """What was asked for."""

    traces: Sequence[Path]
    unseen: Sequence[Path]
    licences: Sequence[tuple[str, str]]
    synthetic: int
    folds: int
    seed: int
    date: str
    out: Path

    def command(self) -> str:
        """The command that trains the same model and writes the same card, run where the trace files lie."""
        words: list[str] = ["vpa-ippr", "train", "--traces", *(path.name for path in self.traces)]
        lines = [
            words,
            *(["--unseen", path.name] for path in self.unseen),
            *(["--licence", f"{source}={text}"] for source, text in self.licences),
            ["--synthetic", str(self.synthetic), "--folds", str(self.folds), "--seed", str(self.seed)],
            ["--date", self.date, "--out", str(self.out)],
        ]
        return " \\\n  ".join(shlex.join(line) for line in lines)


@click.command()
@options.trace_files("Trace files (Parquet or CSV) to train on.")
@click.option("--unseen", type=_FILE, multiple=True, help="Trace file to judge the model on, never to train on; may be repeated.")
@click.option("--licence", "licences", type=_Licence(), multiple=True, metavar="SOURCE=TEXT", help="Of a source's data, for the card.")
@click.option("--synthetic", type=click.IntRange(0), default=20, show_default=True, help="Made-up series of each family; 0 for none.")
@click.option("--folds", type=click.IntRange(2), default=5, show_default=True, help="Of the cross-validation.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of all that is drawn.")
@click.option("--date", type=click.DateTime(["%Y-%m-%d"]), help="For the card; default: today (UTC).")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), required=True, help=f"Directory for {MODEL_FILE} and {CARD_FILE}.")
def train(
    traces: Sequence[Path],
    unseen: Sequence[Path],
    licences: Sequence[tuple[str, str]],
    synthetic: int,
    folds: int,
    seed: int,
    date: datetime | None,
    out: Path,
) -> int:
    """Train the global model that forecasts CPU and memory, judge it, and write it with its card.

    Each trace file is a source and is named after it. The same files and options give the same model, byte for byte.
    """
    day = date or datetime.fromtimestamp(SystemClock().now(), UTC)
    plan = _Plan(traces, unseen, licences, synthetic, folds, seed, day.strftime("%Y-%m-%d"), out)
    _check(plan)
    sources, origins = _read(plan.traces)
    unseen_sources, unseen_origins = _read(plan.unseen)
    model, qualities, judged = _trained(plan, [*sources, *_made_up(plan)], unseen_sources)
    write_whole(plan.out / MODEL_FILE, model)
    write_whole(plan.out / CARD_FILE, _card(plan, model, origins | unseen_origins, qualities, judged))
    click.echo(f"{plan.out / MODEL_FILE}: {len(model):,} bytes, SHA-256 {hashlib.sha256(model).hexdigest()}")
    click.echo(f"{plan.out / CARD_FILE}: what it was made from, and how good it is")
    return EXIT_DONE


def _check(plan: _Plan) -> None:
    if not plan.traces and not plan.synthetic:
        raise UsageError("nothing to train on: give --traces FILE... or a --synthetic above 0")
    names = [path.stem for path in (*plan.traces, *plan.unseen)]
    if len(set(names)) < len(names):
        raise UsageError(f"two trace files are named alike, and so would be their sources: {', '.join(sorted(names))}")
    if SYNTHETIC in names:
        raise UsageError(f"a trace file is named {SYNTHETIC!r}: that is what made-up series are called")
    for source, _ in plan.licences:
        if source not in names:
            raise UsageError(f"--licence {source}: no such source; there are {', '.join(names) or 'none'}")
    if not plan.out.is_dir():
        raise UsageError(f"--out {plan.out}: no such directory")


def _read(paths: Sequence[Path]) -> tuple[list[Source], dict[str, str]]:
    """The sources of each file, one for each resource, and the SHA-256 of each file by the source's name."""
    from vpa_ippr.api.series import Resource, Window
    from vpa_ippr.backtest.grid import STEP_SECONDS, fleet_of
    from vpa_ippr.metrics.traces import TraceSource

    sources, digests = [], {}
    for path in paths:
        trace = TraceSource([path])
        first, last = trace.span()
        usage = trace.fetch(Window(first - STEP_SECONDS, last, STEP_SECONDS))  # a window is open where it starts
        fleets = [fleet_of(usage, resource, source=path.stem) for resource in Resource]
        sources += [_source(fleet, path.stem) for fleet in fleets if len(fleet)]
        digests[path.stem] = hashlib.sha256(path.read_bytes()).hexdigest()
    return sources, digests


def _source(fleet: Fleet, name: str) -> Source:
    from vpa_ippr.forecast.crossvalidation import Source
    from vpa_ippr.forecast.grid import UsageGrid

    groups = tuple(f"{name}/{_workload(container)}" for container in fleet.names)
    return Source(name, str(fleet.resource), UsageGrid(fleet.usage, 0.0), groups)


def _workload(name: str) -> str:
    """What replicas have in common: the workload's name without the replica's number, as ``web-0`` and ``web-1`` have."""
    return re.sub(r"-\d+$", "", name.rpartition("/")[0])


def _made_up(plan: _Plan) -> list[Source]:
    from vpa_ippr.forecast.crossvalidation import Source
    from vpa_ippr.forecast.families import SYNTHETIC_DAYS, make_up, pooled

    if not plan.synthetic:
        return []
    grid = pooled(make_up(plan.seed, plan.synthetic, SYNTHETIC_DAYS))
    return [Source(SYNTHETIC, "any", grid, tuple(f"{SYNTHETIC}/{number}" for number in range(len(grid))))]


def _trained(plan: _Plan, sources: Sequence[Source], unseen: Sequence[Source]) -> tuple[bytes, list[Quality], list[Quality]]:
    """The model's file, what cross-validation says of each source, and what the model itself does with those it never saw."""
    from rich.console import Console
    from rich.progress import Progress

    from vpa_ippr.forecast.boosting import load_model
    from vpa_ippr.forecast.crossvalidation import MOMENTS, cross_validate, judge
    from vpa_ippr.forecast.training import TrainingOptions, train

    chosen = TrainingOptions(seed=plan.seed)
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bars:
        task = bars.add_task("cross-validation", total=plan.folds + 1)
        qualities = cross_validate(sources, chosen, plan.folds, MOMENTS, lambda done: bars.update(task, completed=done))
        bars.update(task, description="training")
        data = train([source.grid for source in sources], chosen).save()
        model = load_model(data)  # judged is what will be read, and a file that cannot be read is never written
        bars.update(task, completed=plan.folds + 1)
    return data, qualities, [judge(model, source, plan.seed, MOMENTS) for source in unseen]


def _card(plan: _Plan, model: bytes, digests: Mapping[str, str], qualities: Sequence[Quality], unseen: Sequence[Quality]) -> str:
    from vpa_ippr.forecast.families import SYNTHETIC_DAYS
    from vpa_ippr.forecast.modelcard import Card, TraceOrigin, render_card
    from vpa_ippr.forecast.training import TrainingOptions

    licences = dict(plan.licences)
    origins = {
        path.stem: TraceOrigin(path.name, digests[path.stem], licences.get(path.stem, _NOT_STATED)) for path in (*plan.traces, *plan.unseen)
    }
    card = Card(
        date=plan.date,
        artefact=MODEL_FILE,
        artefact_bytes=len(model),
        artefact_sha256=hashlib.sha256(model).hexdigest(),
        command=plan.command(),
        options=TrainingOptions(seed=plan.seed),
        folds=plan.folds,
        synthetic=plan.synthetic,
        synthetic_days=SYNTHETIC_DAYS,
        origins=origins,
        qualities=qualities,
        unseen=unseen,
    )
    return render_card(card)
