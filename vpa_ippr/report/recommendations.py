"""Recommendations for a person and for programs: what ``vpa-ippr recommend`` prints, and the advice that a report is built from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from vpa_ippr.api.resources import Amounts
from vpa_ippr.api.series import Finding, Resource
from vpa_ippr.api.timestamps import format_time
from vpa_ippr.recommend.result import Choice, Driver, Recommendation, Weighed
from vpa_ippr.report.model import Advice
from vpa_ippr.report.units import cpu_text, memory_text

SCHEMA = "vpa-ippr/recommendations/v1"


def advice_from(recommendation: Recommendation) -> Advice:
    """The part of a recommendation that a report shows."""
    return Advice(
        workload=recommendation.workload,
        container=recommendation.container,
        target=recommendation.target,
        lower_bound=recommendation.lower_bound,
        upper_bound=recommendation.upper_bound,
        confidence=recommendation.confidence,
        why=why(recommendation),
        notes=(*recommendation.explanation.capped_by, *(finding.message for finding in recommendation.explanation.findings)),
    )


def why(recommendation: Recommendation) -> str:
    """One line: which quantile of what, from whom, on how many samples."""
    explanation = recommendation.explanation
    parts = [_driver_text(driver) for driver in explanation.drivers]
    if explanation.first_sample is not None and explanation.last_sample is not None:
        days = (explanation.last_sample - explanation.first_sample) / 86_400
        parts.append(f"{explanation.samples} samples over {days:.1f} days")
    if explanation.oom_kills:
        parts.append(f"{explanation.oom_kills} OOM kill{'' if explanation.oom_kills == 1 else 's'}")
    return "; ".join([*parts, *explanation.capped_by])


def _driver_text(driver: Driver) -> str:
    whose = f" in {driver.pod}" if driver.pod else ""
    chosen = "" if driver.choice is None else f" {_choice_text(driver.choice, driver.resource)}"
    return f"{driver.resource} p{driver.quantile * 100:g} {_amount_text(driver.resource, driver.value)}{whose}{chosen}"


def _choice_text(choice: Choice, resource: Resource) -> str:
    horizon = f", next {choice.horizon}" if choice.horizon else ""
    coverage = f", covers {choice.coverage:.0%}" if choice.coverage is not None else ""
    startup = "" if choice.startup_peak is None else f", startup {_amount_text(resource, choice.startup_peak)}"
    raised = "".join(f", {one.by} {_amount_text(resource, one.amount)}" for one in choice.raised_by)
    return f"by {choice.by}{horizon}{coverage}{startup}{raised}{_weighed_text(choice.weighed)}"


def _weighed_text(weighed: Weighed | None) -> str:
    """What evidence changed; nothing where use counts as it was measured."""
    if weighed is None:
        return ""
    uplifted = f", more wanted in {weighed.uplifted_share:.0%} of the steps" if weighed.uplifted_share else ""
    cache = f", without {memory_text(weighed.page_cache)} of page cache" if weighed.page_cache else ""
    return uplifted + cache


def _amount_text(resource: Resource, amount: int) -> str:
    return cpu_text(amount) if resource is Resource.CPU else memory_text(amount)


def render_recommendations(
    recommendations: Iterable[Recommendation], *, as_of: float, findings: Sequence[Finding] = (), failures: Sequence[Finding] = ()
) -> str:
    """The JSON document of ``vpa-ippr recommend``; amounts are whole millicores and bytes, null where nothing is recommended."""
    document = {
        "schema": SCHEMA,
        "as_of": format_time(as_of),
        "items": [_item(recommendation) for recommendation in recommendations],
        "findings": [_finding(finding) for finding in findings],
        "failures": [_finding(failure) for failure in failures],
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


def _item(recommendation: Recommendation) -> dict[str, Any]:
    explanation = recommendation.explanation
    return {
        "namespace": recommendation.workload.namespace,
        "workload": {"kind": recommendation.workload.kind, "name": recommendation.workload.name},
        "container": recommendation.container,
        "target": _amounts(recommendation.target),
        "lower_bound": _amounts(recommendation.lower_bound),
        "upper_bound": _amounts(recommendation.upper_bound),
        "uncapped_target": _amounts(recommendation.uncapped_target),
        "confidence": recommendation.confidence,
        "explanation": {
            "profile": explanation.profile,
            "forecaster": explanation.forecaster,
            "drivers": [_driver(driver) for driver in explanation.drivers],
            "samples": explanation.samples,
            "first_sample": format_time(explanation.first_sample) if explanation.first_sample is not None else None,
            "last_sample": format_time(explanation.last_sample) if explanation.last_sample is not None else None,
            "oom_kills": explanation.oom_kills,
            "capped_by": list(explanation.capped_by),
            "findings": [_finding(finding) for finding in explanation.findings],
        },
    }


def _driver(driver: Driver) -> dict[str, Any]:
    choice = driver.choice
    return {
        "resource": driver.resource.value,
        "quantile": driver.quantile,
        "value": driver.value,
        "pod": driver.pod,
        "choice": None if choice is None else _choice(choice),
    }


def _choice(choice: Choice) -> dict[str, Any]:
    return {
        "by": choice.by,
        "horizon": choice.horizon,
        "p90": choice.told,
        "coverage": choice.coverage,
        "known_hours": choice.known_hours,
        "from": format_time(choice.first) if choice.first is not None else None,
        "to": format_time(choice.last) if choice.last is not None else None,
        "startup_peak": choice.startup_peak,
        "raised_by": {one.by: one.amount for one in choice.raised_by},
        "evidence": None if choice.weighed is None else _weighed(choice.weighed),
    }


def _weighed(weighed: Weighed) -> dict[str, Any]:
    return {
        "uplifted_share": weighed.uplifted_share,
        "throttled_share": weighed.throttled_share,
        "page_cache_bytes": weighed.page_cache,
        "why": weighed.why,
    }


def _amounts(amounts: Amounts) -> dict[str, int | None]:
    return {"cpu_millicores": amounts.cpu_millicores, "memory_bytes": amounts.memory_bytes}


def _finding(finding: Finding) -> dict[str, Any]:
    return {"reason": finding.reason, "subject": finding.subject, "count": finding.count, "message": finding.message}
