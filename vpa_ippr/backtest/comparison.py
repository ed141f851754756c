"""Several policies on the same history, scored over the same slots against one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vpa_ippr.api.errors import UsageError
from vpa_ippr.api.series import Resource
from vpa_ippr.backtest.actuator import Conditions
from vpa_ippr.backtest.averages import Averages, average
from vpa_ippr.backtest.contenders import contenders
from vpa_ippr.backtest.grid import DAY_SECONDS, Fleet
from vpa_ippr.backtest.replay import Replay, replay
from vpa_ippr.backtest.scores import SeriesScores, score, slots_to_score


@dataclass(frozen=True, slots=True)
class Plan:
    """What to compare and how; ``baseline`` is replayed whether or not it is among ``policies``."""

    policies: tuple[str, ...]
    baseline: str
    warmup_seconds: float
    own_floors: bool
    conditions: Conditions


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """One policy's scores; ``refused_per_day`` is over all series and all of their time."""

    policy: str
    series: SeriesScores
    averages: Averages
    refused_per_day: float


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """All policies on one fleet; ``container_days`` are the scored container-days."""

    resource: Resource
    plan: Plan
    names: tuple[str, ...]
    sources: tuple[str, ...]
    container_days: float
    outcomes: tuple[Outcome, ...]


Tell = Callable[[str, int, int], None]
"""Told which policy has done how many slots of how many."""


def compare(fleet: Fleet, plan: Plan, tell: Tell | None = None) -> Comparison:
    """Replay every policy of the plan and score them; the baseline comes first if it was not named.

    Raises:
        UsageError: a policy is not known, or no series has a slot that can be scored.
    """
    names = tuple(dict.fromkeys(plan.policies if plan.baseline in plan.policies else (plan.baseline, *plan.policies)))
    replays = [
        replay(fleet, contender, plan.conditions, None if tell is None else _telling(tell, contender.policy.name))
        for contender in contenders(names, fleet, own_floors=plan.own_floors)
    ]
    return compared(fleet, plan, replays)


def compared(fleet: Fleet, plan: Plan, replays: Sequence[Replay]) -> Comparison:
    """The comparison of replays that were made already, of which one is the baseline's."""
    scored = slots_to_score(fleet, replays, plan.warmup_seconds)
    if not scored.any():
        raise UsageError(_nothing_scored(fleet, plan, replays), reason="TooLittleHistory")
    scores = {one.policy: score(fleet, one, scored) for one in replays}
    days = float(fleet.observed_days.sum())
    return Comparison(
        resource=fleet.resource,
        plan=plan,
        names=fleet.names,
        sources=fleet.sources,
        container_days=float(scores[plan.baseline].days.sum()),
        outcomes=tuple(
            Outcome(
                one.policy,
                scores[one.policy],
                average(scores[one.policy], scores[plan.baseline], fleet.sources, plan.conditions.seed),
                float(one.refused.sum()) / days,
            )
            for one in replays
        ),
    )


def _nothing_scored(fleet: Fleet, plan: Plan, replays: Sequence[Replay]) -> str:
    if not slots_to_score(fleet, (), plan.warmup_seconds).any():
        return f"no {fleet.resource} series is longer than the warm-up of {plan.warmup_seconds / DAY_SECONDS:g} days: shorten --warmup"
    late = [one.policy for one in replays if not slots_to_score(fleet, [one], plan.warmup_seconds).any()]
    return f"{fleet.resource}: nothing can be scored, as {' and '.join(late) or 'together the policies'} never decided: leave them out"


def _telling(tell: Tell, policy: str) -> Callable[[int, int], None]:
    return lambda done, total: tell(policy, done, total)
