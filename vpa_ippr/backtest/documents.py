"""A comparison for programs: one JSON document with scores balanced over sources, per source and per series."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Final

import msgspec

from vpa_ippr.api.resources import Resource
from vpa_ippr.api.series import Finding
from vpa_ippr.backtest.averages import Average
from vpa_ippr.backtest.comparison import Comparison, Outcome, Plan
from vpa_ippr.backtest.grid import DAY_SECONDS
from vpa_ippr.backtest.scores import SeriesScores

SCHEMA: Final = "vpa-ippr/backtest/v1"
_SERIES_FIELDS: Final = tuple(field.name for field in fields(SeriesScores))


def to_document(plan: Plan, comparisons: Sequence[Comparison], findings: Sequence[Finding], failures: Sequence[Finding]) -> dict[str, Any]:
    """Plain data; the schema is documented in docs/backtest.md. What is not known is null."""
    return {
        "schema": SCHEMA,
        "baseline": plan.baseline,
        "warmup_days": plan.warmup_seconds / DAY_SECONDS,
        "floors": "own" if plan.own_floors else "common",
        "conditions": {
            "refused": plan.conditions.refused,
            "deferred": plan.conditions.deferred,
            "deferred_seconds": plan.conditions.deferred_seconds,
            "seed": plan.conditions.seed,
        },
        "resources": [_resource(comparison) for comparison in comparisons],
        "findings": [_finding(finding) for finding in findings],
        "failures": [_finding(failure) for failure in failures],
    }


def render_json(plan: Plan, comparisons: Sequence[Comparison], findings: Sequence[Finding], failures: Sequence[Finding]) -> str:
    """Indented JSON, with a newline at the end."""
    return msgspec.json.format(msgspec.json.encode(to_document(plan, comparisons, findings, failures)), indent=2).decode() + "\n"


def _resource(comparison: Comparison) -> dict[str, Any]:
    return {
        "resource": comparison.resource.value,
        "unit_hours": "core-hours" if comparison.resource is Resource.CPU else "GiB-hours",
        "container_days": comparison.container_days,
        "sources": dict(sorted(Counter(comparison.sources).items())),
        "policies": [_policy(comparison, outcome) for outcome in comparison.outcomes],
    }


def _policy(comparison: Comparison, outcome: Outcome) -> dict[str, Any]:
    columns = {name: getattr(outcome.series, name).tolist() for name in _SERIES_FIELDS}
    return {
        "policy": outcome.policy,
        "refused_per_day": outcome.refused_per_day,
        "balanced": {metric: _average(average) for metric, average in outcome.averages.balanced.items()},
        "by_source": {source: _known(numbers) for source, numbers in outcome.averages.by_source.items()},
        "series": [
            {"name": name, "source": source} | _known({column: columns[column][row] for column in columns})
            for row, (name, source) in enumerate(zip(comparison.names, comparison.sources, strict=True))
        ],
    }


def _average(average: Average) -> dict[str, float | None]:
    return _known({"value": average.value, "low": average.low, "high": average.high})


def _known(numbers: Mapping[str, float]) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in numbers.items()}


def _finding(finding: Finding) -> dict[str, Any]:
    return {"reason": finding.reason, "subject": finding.subject, "count": finding.count, "message": finding.message}
