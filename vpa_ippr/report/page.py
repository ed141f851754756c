"""The page of a run: one self-contained HTML file with a chart for each workload and what happened to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from vpa_ippr.report.chart import Line, Mark, Scale, draw_chart
from vpa_ippr.report.units import cpu_text, memory_text

_MEMORY = Scale(1024, (1, 2, 4, 8, 16, 32, 64, 128, 256, 512), lambda value: memory_text(int(value)))
_CPU = Scale(10, (1, 2, 2.5, 5), lambda value: cpu_text(round(value * 1000)))


@dataclass(frozen=True, slots=True)
class Happening:
    """One line of a workload's story."""

    at: float
    style: str
    text: str


@dataclass(frozen=True, slots=True)
class Chapter:
    """One container's two days: what it is, its lines, what happened, and how it ended."""

    anchor: str
    title: str
    character: str
    cpu: Sequence[Line]
    memory: Sequence[Line]
    happenings: Sequence[Happening]
    outcome: str


@dataclass(frozen=True, slots=True)
class Page:
    """Everything the page shows. ``figures`` are (label, value) pairs for the head of the page."""

    title: str
    subtitle: str
    start: float
    end: float
    figures: Sequence[tuple[str, str]]
    chapters: Sequence[Chapter]


def render_page(page: Page) -> str:
    """The page as HTML; every text is escaped by the template."""
    return _template().render(page=page, charts=[_charts(page, chapter) for chapter in page.chapters], clock=lambda at: _clock(page, at))


def _charts(page: Page, chapter: Chapter) -> tuple[Markup, Markup]:
    marks = [Mark(happening.at, happening.style, f"{_clock(page, happening.at)} {happening.text}") for happening in chapter.happenings]
    memory = draw_chart(f"memory of {chapter.title}", chapter.memory, marks, start=page.start, end=page.end, scale=_MEMORY)
    cpu = draw_chart(f"CPU of {chapter.title}", chapter.cpu, marks, start=page.start, end=page.end, scale=_CPU)
    return memory, cpu


def _clock(page: Page, at: float) -> str:
    minutes = int(at - page.start) // 60
    day, minute = divmod(minutes, 24 * 60)
    return f"day {day + 1} {minute // 60:02d}:{minute % 60:02d}"


@cache
def _template() -> Template:
    text = resources.files("vpa_ippr.report").joinpath("page.html.j2").read_text(encoding="utf-8")
    return Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True).from_string(text)
