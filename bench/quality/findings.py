"""One run's results: what was measured, held against the targets; what the page and the document show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from bench.quality.choice import Choice, choose_anew, pairs_of
from bench.quality.evidence import CALIBRATED, Cost, Evidence
from bench.quality.measures import Pair, mean, ratio
from bench.quality.models import OPEN_SOURCES
from bench.quality.targets import SOURCE_RULES, Judged, Verdict, judge_coverage, judge_source, judge_targets
from vpa_ippr.api.series import Resource
from vpa_ippr.backtest.averages import Average
from vpa_ippr.forecast.boosting import GRADIENT_BOOSTING
from vpa_ippr.forecast.quantiles import Horizon
from vpa_ippr.forecast.seasonal import TRAILING

# Stands for all sources.
BALANCED: Final = "all, balanced"


@dataclass(frozen=True, slots=True)
class Run:
    """What was run: on which day, on data that nobody tuned on or not, with which model, in how many folds, and what it took."""

    date: str
    held_out: bool
    seed: int
    folds: int
    model_sha256: str
    synthetic: int
    training: tuple[Cost, ...]
    wall_seconds: float


@dataclass(frozen=True, slots=True)
class SourceCheck:
    """How one profile did on one source beside the baseline."""

    profile: str
    source: str
    measured: Average
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class ForecastCheck:
    """How good forecasts of one source were: coverage of the 90 % quantile as told, of the model alone and of the last week's quantile,
    and the pinball losses of the first two by that of the last.
    """

    source: str
    coverage: Average
    verdict: Verdict
    coverage_model: float
    coverage_trailing: float
    pinball: Average
    pinball_model: float


@dataclass(frozen=True, slots=True)
class Findings:
    """What is to be said of one resource; ``sources`` counts the series."""

    evidence: Evidence
    sources: Mapping[str, int]
    targets: tuple[Judged, ...]
    source_checks: tuple[SourceCheck, ...]
    horizon: Horizon | None
    forecast_checks: tuple[ForecastCheck, ...]
    choice: Choice | None

    @property
    def resource(self) -> Resource:
        """Of what."""
        return self.evidence.resource

    @property
    def verdicts(self) -> list[Verdict]:
        """All of them: targets, sources and coverage."""
        return [
            *(one.verdict for one in self.targets),
            *(one.verdict for one in self.source_checks),
            *(one.verdict for one in self.forecast_checks),
        ]


def find(evidence: Evidence, profiles: tuple[str, ...], seed: int) -> Findings:
    """Hold the evidence against the targets."""
    pairs = pairs_of(evidence, {name: evidence.scores[name] for name in profiles}, seed)
    sources = dict(sorted(Counter(evidence.comparison.sources).items()))
    rule = SOURCE_RULES[evidence.resource]
    checks = []
    for profile, pair in pairs.items():
        for source, series in sources.items():
            measured = rule.more(pair.of_source(source))
            checks.append(SourceCheck(profile, source, measured, judge_source(rule, profile, measured, series)))
    return Findings(
        evidence=evidence,
        sources=sources,
        targets=tuple(judge_targets(evidence.resource, pairs)),
        source_checks=tuple(checks),
        horizon=evidence.horizon,
        forecast_checks=tuple(_forecasts(evidence, sources, seed)),
        choice=choose_anew(evidence, seed),
    )


def is_open(source: str) -> bool:
    """Whether the shipped model was trained on series of that source."""
    return source in OPEN_SOURCES


def _forecasts(evidence: Evidence, sources: Mapping[str, int], seed: int) -> list[ForecastCheck]:
    if not evidence.forecasts:
        return []
    scores, names = evidence.forecasts, evidence.comparison.sources
    pairs = [Pair(scores[name], scores[TRAILING], names, seed) for name in (CALIBRATED, GRADIENT_BOOSTING, TRAILING)]
    found = [_forecast(source, series, *(pair.of_source(source) for pair in pairs)) for source, series in sources.items()]
    # The average over sources says nothing of any one of them, so it has no verdict.
    return [*found, _forecast(BALANCED, 0, *pairs)]


def _forecast(source: str, series: int, told: Pair, model: Pair, trailing: Pair) -> ForecastCheck:
    coverage = mean("coverage")(told)
    return ForecastCheck(
        source=source,
        coverage=coverage,
        verdict=judge_coverage(coverage, series),
        coverage_model=mean("coverage")(model).value,
        coverage_trailing=mean("coverage")(trailing).value,
        pinball=ratio("pinball")(told),
        pinball_model=ratio("pinball")(model).value,
    )
