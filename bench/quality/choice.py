"""The settings of the main profile chosen anew, each fold's on the other folds: what tuning gains on series that it did not see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bench.quality.evidence import BASELINE, MAIN_PROFILE, Evidence
from bench.quality.measures import Pair, mixed
from bench.quality.targets import TARGETS, Judged, Target, best, judge
from vpa_ippr.backtest.scores import SeriesScores


@dataclass(frozen=True, slots=True)
class Choice:
    """The settings chosen for each fold, and the targets judged with every setting, and with each series under its fold's choice."""

    chosen: Mapping[int, str]
    by_setting: Mapping[str, tuple[Judged, ...]]
    crossed: tuple[Judged, ...]


def choose_anew(evidence: Evidence, seed: int) -> Choice | None:
    """Choose and judge; None when no settings were tried, or the series lie in fewer than two folds."""
    folds = sorted(set(evidence.folds.tolist()))
    if not evidence.variants or len(folds) < 2:
        return None
    pairs = pairs_of(evidence, evidence.variants, seed)
    targets = [target for target in TARGETS if target.profile == MAIN_PROFILE and target.resource is evidence.resource]
    chosen = {}
    for fold in folds:
        others = {name: pair.chosen(evidence.folds != fold) for name, pair in pairs.items()}
        chosen[fold] = best(others, others.__getitem__, targets)
    crossed = mixed([(evidence.variants[name], evidence.folds == fold) for fold, name in chosen.items()])
    return Choice(
        chosen=chosen,
        by_setting={name: _judged(pair, targets) for name, pair in pairs.items()},
        crossed=_judged(pairs_of(evidence, {MAIN_PROFILE: crossed}, seed)[MAIN_PROFILE], targets),
    )


def pairs_of(evidence: Evidence, scores: Mapping[str, SeriesScores], seed: int) -> dict[str, Pair]:
    """Each of these scores beside the baseline's."""
    baseline = evidence.scores[BASELINE]
    return {name: Pair(own, baseline, evidence.comparison.sources, seed) for name, own in scores.items()}


def _judged(pair: Pair, targets: list[Target]) -> tuple[Judged, ...]:
    return tuple(judge(target, target.measure(pair)) for target in targets)
