"""``python -m bench.quality``: measure the profiles on recorded series and write what came of it."""

from __future__ import annotations

import argparse
import datetime
import os
import sys
from pathlib import Path

from bench.quality.document import render_json
from bench.quality.family_figures import measure_families, render_families
from bench.quality.findings import Findings, Run
from bench.quality.models import Recipe
from bench.quality.page import notes_of, render
from bench.quality.run import Request, measure
from vpa_ippr.api.errors import VpaIpprError
from vpa_ippr.api.series import Resource
from vpa_ippr.backtest.contenders import ENSEMBLES
from vpa_ippr.backtest.pareto_svg import render_svg
from vpa_ippr.cli.files import write_whole
from vpa_ippr.forecast.families import SYNTHETIC_EACH
from vpa_ippr.forecast.training import DEFAULT_TRAINING

_PAGE = Path("docs/quality.md")


def main() -> int:
    arguments = _parser().parse_args()
    # One thread a process: on a machine that others use, more took ten times as long.
    os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))
    request = Request(
        directory=arguments.traces_dir,
        held_out=tuple(arguments.holdout),
        profiles=tuple(name for name in arguments.profiles.split(",") if name),
        resources=tuple(Resource) if arguments.resource == "both" else (Resource(arguments.resource),),
        recipe=Recipe(DEFAULT_TRAINING, arguments.synthetic),
        seed=arguments.seed,
        jobs=arguments.jobs,
        date=arguments.date,
    )
    try:
        run, findings = measure(request)
        families = render_families(measure_families()) if arguments.families and not arguments.holdout else ""
        _write(run, findings, arguments.out or (None if arguments.holdout else _PAGE), arguments.json, families)
    except VpaIpprError as error:
        print(f"quality: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _write(run: Run, findings: list[Findings], page: Path | None, document: Path | None, families: str) -> None:
    if document is not None:
        write_whole(document, render_json(run, findings))
    if page is None:
        print(render(run, findings, None, "", families), end="")
        return
    picture = page.with_suffix(".svg")
    write_whole(picture, render_svg([one.evidence.comparison for one in findings]))
    notes = notes_of(page.read_text(encoding="utf-8")) if page.is_file() else ""
    write_whole(page, render(run, findings, picture.name, notes, families))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.quality", description="Measure the profiles against the VPA on recorded series.")
    parser.add_argument(
        "--traces-dir", type=Path, required=True, metavar="DIR", help="Trace files (*.parquet) and, if any, their index.csv."
    )
    parser.add_argument(
        "--holdout", nargs="+", default=[], metavar="PATTERN", help="Judge these files of DIR (or elsewhere) instead, as data nobody saw."
    )
    parser.add_argument(
        "--profiles", default=",".join(ENSEMBLES), metavar="NAME[,NAME...]", help="Profiles to measure (default: %(default)s)."
    )
    parser.add_argument("--resource", choices=[*Resource, "both"], default="both")
    parser.add_argument("--out", type=Path, metavar="FILE", help=f"The page (default: {_PAGE}, with --holdout standard output).")
    parser.add_argument("--json", type=Path, metavar="FILE", help="Also write the numbers to FILE.")
    parser.add_argument(
        "--families", action=argparse.BooleanOptionalAction, default=True, help="Also measure made-up families (default: yes)."
    )
    parser.add_argument("--jobs", type=int, choices=(1, 2), default=2, help="Processes (default: %(default)s).")
    parser.add_argument("--seed", type=int, default=0, help="Of folds and intervals (default: %(default)s).")
    parser.add_argument(
        "--synthetic",
        type=int,
        default=SYNTHETIC_EACH,
        metavar="N",
        help="Made-up series of each family that the shipped model was trained on.",
    )
    parser.add_argument("--date", default=datetime.date.today().isoformat(), help="Shown on the page (default: today).")  # noqa: DTZ011 - a person's day
    return parser


if __name__ == "__main__":
    sys.exit(main())
