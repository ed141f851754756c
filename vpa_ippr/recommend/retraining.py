"""Retraining the global model on what the recommender's own containers used: a challenger is trained, judged, and adopted if it is better.

A quarter of the workloads is held out of training and is what both models are judged on, each as it would serve: pinball loss at every
level over the next hour and the next day, counted in each series' own scale. Which workloads these are is decided by their names alone, so
it is the same quarter every time: a model that was adopted before has not seen it either. Each resource and horizon counts the same, or
memory, whose errors are small, would count nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from vpa_ippr.api.series import Finding, Floats, Resource
from vpa_ippr.forecast.boosting import BoostingForecaster, BoostingModel
from vpa_ippr.forecast.crossvalidation import look_back
from vpa_ippr.forecast.ensemble import TOLD_LEVEL
from vpa_ippr.forecast.families import SYNTHETIC_DAYS, SYNTHETIC_EACH, make_up, pooled
from vpa_ippr.forecast.forecasters import ProfileModel, profile_model
from vpa_ippr.forecast.grid import STEP_SECONDS, UsageGrid
from vpa_ippr.forecast.quantiles import LEVELS, Horizon
from vpa_ippr.forecast.training import DEFAULT_TRAINING, TrainingOptions, train
from vpa_ippr.recommend.cohorts import Key
from vpa_ippr.usage.steps import STEPS_PER_DAY, ContainerSteps

ADOPTED: Final = "ModelAdopted"
KEPT: Final = "ModelKept"
TOO_LITTLE: Final = "TooLittleData"
NOTHING: Final = "NothingToRetrain"
_SUBJECT: Final = "model"
_HELD_OUT: Final = 4  # one workload in so many
_RESAMPLES: Final = 1_000
_INTERVAL: Final = (0.025, 0.975)


@dataclass(frozen=True, slots=True)
class RetrainingRules:
    """When there is enough to learn from, how much is looked at, and when a challenger is better.

    Of each resource ``min_series`` containers of ``min_days`` measured days are needed, and at most ``max_series`` are taken. Over all,
    the loss must be lower by ``margin``, with the whole interval below 0; nowhere may it be higher by ``margin``, nor coverage farther from
    nominal by ``coverage_margin``. About ``moments`` of each resource are judged.
    """

    min_series: int = 50
    min_days: float = 7.0
    max_series: int = 1_000
    margin: float = 0.02
    coverage_margin: float = 0.01
    moments: int = 3_000
    training: TrainingOptions = DEFAULT_TRAINING


DEFAULT_RETRAINING: Final = RetrainingRules()


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """``model`` and its file ``data`` are there when it is to be adopted; ``finding`` says why, or why not."""

    finding: Finding
    model: ProfileModel | None = None
    data: bytes = b""


@dataclass(frozen=True, slots=True, eq=False)
class _Own:
    """The series of one resource, and of each the workload."""

    resource: Resource
    grid: UsageGrid
    groups: tuple[str, ...]

    def part(self, held: frozenset[str], *, inside: bool) -> _Own:
        rows = np.array([(group in held) == inside for group in self.groups], dtype=np.bool_)
        groups = tuple(group for group in self.groups if (group in held) == inside)
        return _Own(self.resource, UsageGrid(self.grid.values[rows], self.grid.end), groups)


@dataclass(frozen=True, slots=True, eq=False)
class _Losses:
    """Of one resource and horizon: sums over each workload's moments of both models' losses, and each model's coverage."""

    where: str
    groups: tuple[str, ...]
    ours: Floats
    theirs: Floats
    coverage: tuple[float, float]


def retrain(steps: Mapping[Key, ContainerSteps], champions: Sequence[ProfileModel], rules: RetrainingRules = DEFAULT_RETRAINING) -> Verdict:
    """Train on the containers' own use and on made-up series, and say whether the result should replace all ``champions``."""
    if not champions:
        return _kept(NOTHING, "no profile in use has a model")
    own = [_own_of(steps, resource, rules) for resource in Resource]
    fewest = min(own, key=lambda one: len(one.groups))
    if len(fewest.groups) < rules.min_series:
        needed = f"{rules.min_series} containers with {rules.min_days:g} measured days of {fewest.resource} are needed"
        return _kept(TOO_LITTLE, f"{needed}, there are {len(fewest.groups)}")
    held = _held_out({group for one in own for group in one.groups})
    judged = [one.part(held, inside=True) for one in own]
    if not all(len(one.groups) for one in judged):
        return _kept(TOO_LITTLE, "the containers are of too few workloads to hold some out")
    made_up = pooled(make_up(rules.training.seed, SYNTHETIC_EACH, SYNTHETIC_DAYS))
    data = train([*(one.part(held, inside=False).grid for one in own), made_up], rules.training).save()
    challenger = profile_model(data)  # judged is what will be read
    for champion in champions:
        better, why = _compared(challenger.model, champion.model, judged, rules)
        if not better:
            return _kept(KEPT, why)
    return Verdict(Finding(ADOPTED, _SUBJECT, 1, why), challenger, data)


def _kept(reason: str, why: str) -> Verdict:
    return Verdict(Finding(reason, _SUBJECT, 1, f"the model stays as it is: {why}"))


def _own_of(steps: Mapping[Key, ContainerSteps], resource: Resource, rules: RetrainingRules) -> _Own:
    """Those with enough history; of too many, some by the digest of their names."""
    least = rules.min_days * STEPS_PER_DAY
    known = {key: one.row(resource) for key, one in steps.items()}
    enough = [key for key, row in known.items() if np.isfinite(row.values).sum() >= least]
    chosen = sorted(sorted(enough, key=lambda key: _digest(f"{_group(key)}/{key[1]}"))[: rules.max_series])
    end = max((known[key].end for key in chosen), default=0)
    width = max((end - known[key].end + len(known[key].values) for key in chosen), default=0)
    values = np.array([known[key].before(end, width) for key in chosen]).reshape(len(chosen), width)
    return _Own(resource, UsageGrid(values, end * STEP_SECONDS), tuple(map(_group, chosen)))


def _group(key: Key) -> str:
    workload, _ = key
    return f"{workload.namespace}/{workload.kind}/{workload.name}"


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=8).digest()


def _held_out(groups: set[str]) -> frozenset[str]:
    return frozenset(sorted(groups, key=_digest)[: len(groups) // _HELD_OUT])


def _compared(ours: BoostingModel, theirs: BoostingModel, judged: Sequence[_Own], rules: RetrainingRules) -> tuple[bool, str]:
    """Whether our model is better than theirs, and a line that says by how much."""
    losses = [found for own in judged for found in _losses(ours, theirs, own, rules)]
    change, low, high = _change(losses, rules.training.seed)
    told = f"loss {change:+.1%} ({low:+.1%} to {high:+.1%}) on {len({group for one in losses for group in one.groups})} held-out workloads"
    worse = [one.where for one in losses if one.ours.sum() > one.theirs.sum() * (1 + rules.margin)]
    missed = [one.where for one in losses if _miss(one.coverage[0]) > _miss(one.coverage[1]) + rules.coverage_margin]
    if change > -rules.margin or high >= 0:
        return False, f"{told}, and at least {-rules.margin:+.1%} is asked for"
    if worse:
        return False, f"{told}, but it is worse for {', '.join(worse)}"
    if missed:
        return False, f"{told}, but coverage is worse for {', '.join(missed)}"
    return True, told


def _miss(coverage: float) -> float:
    return abs(coverage - TOLD_LEVEL)


def _losses(ours: BoostingModel, theirs: BoostingModel, own: _Own, rules: RetrainingRules) -> Iterator[_Losses]:
    random = np.random.default_rng(rules.training.seed)
    each = -(-rules.moments // len(own.groups))
    names = sorted(set(own.groups))
    place = np.array([names.index(group) for group in own.groups])
    sums = {horizon: np.zeros((2, len(names))) for horizon in Horizon}
    covered = {horizon: np.zeros(3) for horizon in Horizon}
    for one in look_back([BoostingForecaster(model) for model in (ours, theirs)], LEVELS, own.grid, each, random):
        for index, told in enumerate(one.told):
            loss = _pinball(one.outcomes, told) / one.scale
            sums[one.horizon][index] += np.bincount(place[one.rows], loss, len(names))
            covered[one.horizon][index] += (one.outcomes <= told[:, LEVELS.index(TOLD_LEVEL)]).sum()
        covered[one.horizon][2] += len(one.rows)
    for horizon in Horizon:
        shares = covered[horizon][:2] / max(covered[horizon][2], 1)
        told_of = f"the next {horizon}'s {own.resource}"
        yield _Losses(told_of, tuple(names), sums[horizon][0], sums[horizon][1], (float(shares[0]), float(shares[1])))


def _pinball(outcomes: Floats, told: Floats) -> Floats:
    """The mean over all levels, for each outcome."""
    levels = np.array(LEVELS)
    errors = outcomes[:, None] - told
    return np.asarray(np.maximum(levels * errors, (levels - 1) * errors).mean(axis=1))


def _change(losses: Sequence[_Losses], seed: int) -> tuple[float, float, float]:
    """Our loss against theirs, in the mean over resources and horizons, with a bootstrap interval over workloads."""
    names = sorted({group for one in losses for group in one.groups})
    sums = np.zeros((len(losses), 2, len(names)))
    for index, one in enumerate(losses):
        columns = [names.index(group) for group in one.groups]
        sums[index][:, columns] = one.ours, one.theirs
    drawn = np.random.default_rng(seed).multinomial(len(names), [1 / len(names)] * len(names), _RESAMPLES)
    weights = np.concatenate((np.ones((1, len(names))), drawn))
    ours, theirs = (weights @ sums[:, index].T for index in (0, 1))
    ratios = np.divide(ours, theirs, out=np.ones_like(ours), where=theirs > 0)
    changes = ratios.mean(axis=1) - 1
    low, high = np.quantile(changes[1:], _INTERVAL)
    return float(changes[0]), float(low), float(high)
