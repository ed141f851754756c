"""Recommendations for a person and for programs: what ``vpa-ippr recommend`` prints, and the advice that a report is built from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from vpa_ippr.api.resources import Amounts
from vpa_ippr.api.series import Finding, Resource
from vpa_ippr.api.timestamps import format_time
from vpa_ippr.recommend.result import Driver, Recommendation
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
    value = cpu_text(driver.value) if driver.resource is Resource.CPU else memory_text(driver.value)
    whose = f" in {driver.pod}" if driver.pod else ""
    return f"{driver.resource} p{driver.quantile * 100:g} {value}{whose}"


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
            "drivers": [
                {"resource": driver.resource.value, "quantile": driver.quantile, "value": driver.value, "pod": driver.pod}
                for driver in explanation.drivers
            ],
            "samples": explanation.samples,
            "first_sample": format_time(explanation.first_sample) if explanation.first_sample is not None else None,
            "last_sample": format_time(explanation.last_sample) if explanation.last_sample is not None else None,
            "oom_kills": explanation.oom_kills,
            "capped_by": list(explanation.capped_by),
            "findings": [_finding(finding) for finding in explanation.findings],
        },
    }


def _amounts(amounts: Amounts) -> dict[str, int | None]:
    return {"cpu_millicores": amounts.cpu_millicores, "memory_bytes": amounts.memory_bytes}


def _finding(finding: Finding) -> dict[str, Any]:
    return {"reason": finding.reason, "subject": finding.subject, "count": finding.count, "message": finding.message}
