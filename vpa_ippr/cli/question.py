"""The question that ``recommend`` and ``report`` ask of a source of usage, from the command line to the recommendations."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vpa_ippr.api.clock import SystemClock
from vpa_ippr.cli import options

if TYPE_CHECKING:
    from vpa_ippr.api.series import Evidence, Finding, Usage, Window
    from vpa_ippr.forecast.catalogue import Profile
    from vpa_ippr.metrics.prometheus import PrometheusSource
    from vpa_ippr.recommend.result import Recommendation


@dataclass(frozen=True, slots=True)
class Question:
    """Which usage, of which time, under which profile; ``as_of`` is None for now, or for the end of each recording."""

    prometheus: options.PrometheusOptions
    traces: tuple[Path, ...]
    as_of: float | None
    history: float
    step: float
    profile: str
    models: Path | None
    namespaces: tuple[str, ...]

    @property
    def names_a_source(self) -> bool:
        """True when there is somewhere to read usage from."""
        return bool(self.traces) or self.prometheus.url is not None


@dataclass(frozen=True, slots=True)
class Answer:
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


def question_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add the options of a question; the command gets them as one argument, ``question``."""

    @functools.wraps(command)
    def with_one_argument(**arguments: Any) -> int:
        names = Question.__dataclass_fields__
        question = Question(**{name: arguments.pop(name) for name in tuple(arguments) if name in names})
        return command(question=question, **arguments)

    namespaces = click.option("--namespace", "-n", "namespaces", multiple=True, help="Only this namespace; may be repeated.")
    with_history = options.profile_options(options.history_options(namespaces(with_one_argument)))
    return options.trace_options(options.prometheus_options(with_history))


def answer(question: Question) -> Answer:
    """Read the history and recommend.

    Raises:
        UsageError: no source is given, or both kinds are on the command line.
        SourceError: nothing could be read.
    """
    options.check_one_source(question.prometheus, question.traces)
    return _from_traces(question) if question.traces else _from_prometheus(question)


def _from_prometheus(question: Question) -> Answer:
    from vpa_ippr.api.series import Window
    from vpa_ippr.forecast.forecasters import load_profile_model
    from vpa_ippr.recommend.history import history_start
    from vpa_ippr.recommend.pipeline import recommend
    from vpa_ippr.recommend.series import history_seconds_of

    profile = options.load_profile(question.profile, question.models)
    model = load_profile_model(question.models, profile)
    moment = time.time() if question.as_of is None else question.as_of
    with question.prometheus.open(SystemClock()) as source:
        window = Window(history_start(moment, history_seconds_of(profile, question.history)), moment, question.step)
        usage = source.fetch(window, question.namespaces or None)
        evidence = _evidence(source, profile, window, question.namespaces or None)
    # A namespace without evidence is no failure: its use counts as it is.
    usage = replace(usage, findings=(*usage.findings, *evidence.findings, *evidence.failures))
    return Answer(recommend(usage, profile, moment, model, evidence), moment, question.prometheus.url or "", usage)


def _evidence(source: PrometheusSource, profile: Profile, usage: Window, namespaces: tuple[str, ...] | None) -> Evidence:
    from vpa_ippr.api.errors import SourceError
    from vpa_ippr.recommend.series import NO_EVIDENCE, evidence_window, keeping_of, unread_evidence

    window = evidence_window(keeping_of(profile), usage.start, usage.end)
    if window is None:
        return NO_EVIDENCE
    try:
        return source.fetch_evidence(window, namespaces)
    except SourceError as error:
        return unread_evidence(error)


def _from_traces(question: Question) -> Answer:
    from vpa_ippr.api.series import Window
    from vpa_ippr.forecast.forecasters import load_profile_model
    from vpa_ippr.metrics.traces import TraceSource
    from vpa_ippr.recommend.history import history_start
    from vpa_ippr.recommend.pipeline import recommend
    from vpa_ippr.recommend.recordings import recommend_each_at_its_end
    from vpa_ippr.recommend.series import history_seconds_of

    profile, wanted = options.load_profile(question.profile, question.models), question.namespaces or None
    model, history = load_profile_model(question.models, profile), history_seconds_of(profile, question.history)
    recording = TraceSource(question.traces)
    label = ", ".join(path.name for path in question.traces)
    if question.as_of is not None:
        moment = question.as_of
        usage = recording.fetch(Window(history_start(moment, history), moment, question.step), wanted)
        return Answer(recommend(usage, profile, moment, model), moment, label, usage, question.traces)
    # Recordings are seldom of one cluster at one time: without a moment given, each is judged at its own end.
    first, last = recording.span()
    usage = recording.fetch(Window(first - question.step, last, question.step), wanted)
    return Answer(recommend_each_at_its_end(usage, profile, history, model), last, label, usage, question.traces)
