"""The VPA's status and its explanation, as pure functions of what the recommender found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from vpa_ippr.api.meta import Condition, find_condition
from vpa_ippr.api.names import (
    ANNOTATION_EXPLANATION,
    CONDITION_CONFIG_UNSUPPORTED,
    CONDITION_LOW_CONFIDENCE,
    CONDITION_MEMORY_LEAK,
    CONDITION_NO_DATA,
    CONDITION_NO_PODS_MATCHED,
    CONDITION_OOM_FUSE,
    CONDITION_RECOMMENDATION_PROVIDED,
)
from vpa_ippr.api.series import Resource
from vpa_ippr.api.timestamps import format_time
from vpa_ippr.api.vpa import PodRecommendation, Vpa, VpaStatus
from vpa_ippr.recommend.result import Choice, Driver, Recommendation, Weighed
from vpa_ippr.usage.oom import OOM_FUSE

EXPLANATION_SCHEMA: Final = "vpa-ippr/explanation/v1"
# Upstream only ever removes this condition; it was set by old releases.
_CONDITION_CONFIG_DEPRECATED: Final = "ConfigDeprecated"
_OURS: Final = frozenset(
    {
        CONDITION_RECOMMENDATION_PROVIDED,
        CONDITION_CONFIG_UNSUPPORTED,
        CONDITION_NO_PODS_MATCHED,
        CONDITION_NO_DATA,
        CONDITION_LOW_CONFIDENCE,
        CONDITION_MEMORY_LEAK,
        CONDITION_OOM_FUSE,
        _CONDITION_CONFIG_DEPRECATED,
    }
)
# Findings on a container that are worth a condition of the VPA.
_FOUND_OUT: Final = {"MemoryLeak": CONDITION_MEMORY_LEAK, OOM_FUSE: CONDITION_OOM_FUSE}


@dataclass(frozen=True, slots=True)
class Problem:
    """Something a person should know of a VPA: the condition that says so, a reason code, and one line."""

    condition: str
    reason: str
    message: str


def problems_of(recommendations: Iterable[Recommendation]) -> list[Problem]:
    """What was found out about the containers that somebody should look after; one problem for each condition."""
    messages: dict[str, list[str]] = {}
    for recommendation in recommendations:
        for finding in recommendation.explanation.findings:
            if finding.reason in _FOUND_OUT:
                messages.setdefault(finding.reason, []).append(f"{recommendation.container}: {finding.message}")
    return [Problem(_FOUND_OUT[reason], reason, "; ".join(found)) for reason, found in sorted(messages.items())]


def build_status(
    vpa: Vpa,
    recommendations: Sequence[Recommendation] | None,
    problems: Sequence[Problem],
    now: float,
    *,
    humanize_memory: bool = False,
) -> VpaStatus:
    """The status to write; without recommendations (None) the old ones stay, for an old number is better than none.

    A condition keeps the time of its last transition. Conditions of others are left alone.
    """
    recommendation = vpa.status.recommendation
    if recommendations is not None:
        ordered = sorted(recommendations, key=lambda found: found.container)
        recommendation = PodRecommendation([found.to_status(humanize_memory=humanize_memory) for found in ordered])
    wanted = [Condition(problem.condition, "True", problem.reason, problem.message) for problem in problems]
    provided = recommendation is not None and bool(recommendation.container_recommendations)
    cause = problems[0] if problems and not provided else None
    wanted.append(
        Condition(
            CONDITION_RECOMMENDATION_PROVIDED,
            "True" if provided else "False",
            cause.reason if cause else "",
            cause.message if cause else "",
        )
    )
    ours = [_since(condition, find_condition(vpa.status.conditions, condition.type), now) for condition in wanted]
    others = [condition for condition in vpa.status.conditions if condition.type not in _OURS]
    return VpaStatus(
        recommendation=recommendation,
        conditions=sorted([*ours, *others], key=lambda condition: condition.type),
        observed_generation=vpa.metadata.generation,
    )


def new_conditions(vpa: Vpa, status: VpaStatus) -> list[Condition]:
    """The conditions that have become true or changed their reason: each is worth an event."""
    fresh = []
    for condition in status.conditions:
        before = find_condition(vpa.status.conditions, condition.type)
        known = before is not None and (before.status, before.reason) == (condition.status, condition.reason)
        if condition.type in _OURS and condition.status == "True" and not known:
            fresh.append(condition)
    return fresh


def needs_explanation(vpa: Vpa, status: VpaStatus) -> bool:
    """True when a target has changed since the last explanation; bounds move every cycle and explain nothing."""
    return ANNOTATION_EXPLANATION not in vpa.metadata.annotations or _targets(vpa.status) != _targets(status)


def explain(recommendations: Sequence[Recommendation], as_of: float) -> str:
    """The explanation annotation: small JSON, one entry a container."""
    containers = {found.container: _explain_container(found) for found in sorted(recommendations, key=lambda found: found.container)}
    profile = recommendations[0].explanation.profile if recommendations else ""
    document = {"schema": EXPLANATION_SCHEMA, "profile": profile, "asOf": format_time(as_of), "containers": containers}
    return msgspec.json.encode(document).decode()


def _explain_container(found: Recommendation) -> dict[str, object]:
    why = found.explanation
    entry: dict[str, object] = {
        "forecaster": why.forecaster,
        "confidence": round(found.confidence, 3),
        "samples": why.samples,
        "oomKills": why.oom_kills,
        **{driver.resource.value: _explain_driver(driver) for driver in why.drivers},
    }
    if why.first_sample is not None and why.last_sample is not None:
        entry |= {"firstSample": format_time(why.first_sample), "lastSample": format_time(why.last_sample)}
    if why.capped_by:
        entry["cappedBy"] = list(why.capped_by)
    if why.findings:
        entry["dataQuality"] = _count_by_reason(found)
    return entry


def _explain_driver(driver: Driver) -> Mapping[str, object]:
    unit = "millicores" if driver.resource is Resource.CPU else "bytes"
    pod = {"pod": driver.pod} if driver.pod is not None else {}
    choice = {} if driver.choice is None else _explain_choice(driver.choice, unit)
    return {"quantile": driver.quantile, unit: driver.value, **pod, **choice}


def _explain_choice(choice: Choice, unit: str) -> Mapping[str, object]:
    known: dict[str, object | None] = {
        "horizon": choice.horizon,
        f"p90{unit.capitalize()}": choice.told,
        "coverage": None if choice.coverage is None else round(choice.coverage, 3),
        "from": None if choice.first is None else format_time(choice.first),
        "to": None if choice.last is None else format_time(choice.last),
        f"startup{unit.capitalize()}": choice.startup_peak,
        "raisedBy": {one.by: one.amount for one in choice.raised_by} or None,
        "evidence": None if choice.weighed is None else _explain_weighed(choice.weighed),
    }
    return {
        "by": choice.by,
        "knownHours": round(choice.known_hours),
        **{key: value for key, value in known.items() if value is not None},
    }


def _explain_weighed(weighed: Weighed) -> Mapping[str, object]:
    known: dict[str, object | None] = {
        "upliftedShare": None if weighed.uplifted_share is None else round(weighed.uplifted_share, 3),
        "throttledShare": None if weighed.throttled_share is None else round(weighed.throttled_share, 3),
        "pageCacheBytes": weighed.page_cache,
        "why": weighed.why,
    }
    return {key: value for key, value in known.items() if value is not None}


def _count_by_reason(found: Recommendation) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for finding in found.explanation.findings:
        counts[finding.reason] += finding.count
    return dict(sorted(counts.items()))


def _targets(status: VpaStatus) -> dict[str, object]:
    found = status.recommendation.container_recommendations if status.recommendation else []
    return {one.container_name: (one.target, one.uncapped_target) for one in found}


def _since(condition: Condition, before: Condition | None, now: float) -> Condition:
    unchanged = before is not None and before.status == condition.status and before.last_transition_time is not None
    moment = before.last_transition_time if unchanged and before is not None else format_time(now)
    return Condition(condition.type, condition.status, condition.reason, condition.message, moment)
