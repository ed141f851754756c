"""``vpa-ippr recommend``: recommendations from a source of usage, printed; nothing is written anywhere."""

from __future__ import annotations

import click

from vpa_ippr.api.errors import EXIT_DONE, EXIT_PARTIAL
from vpa_ippr.cli import options
from vpa_ippr.cli.question import Answer, Question, answer, question_options
from vpa_ippr.cli.terminal import colour_wanted, terminal_width


@click.command()
@question_options
@click.option("--format", "-f", "form", type=click.Choice(["table", "json"]), default="table", show_default=True, help="How to print.")
def recommend(question: Question, form: str) -> int:
    """Print recommendations from Prometheus or from trace files; writes nowhere."""
    found = answer(question)
    click.echo(_json(found) if form == "json" else _table(found, question.profile), nl=False)
    options.tell(found.faults)
    return EXIT_PARTIAL if found.usage.failures else EXIT_DONE


def _json(found: Answer) -> str:
    from vpa_ippr.report.recommendations import render_recommendations

    return render_recommendations(found.recommendations, as_of=found.as_of, findings=found.usage.findings, failures=found.usage.failures)


def _table(found: Answer, profile: str) -> str:
    from vpa_ippr.report.model import build_report
    from vpa_ippr.report.recommendations import advice_from
    from vpa_ippr.report.table import render_table

    advice = map(advice_from, found.recommendations)
    built = build_report(advice, {}, as_of=found.as_of, source=found.source, profile=profile, findings=found.remarks)
    return render_table(built, width=terminal_width(), colour=colour_wanted())
