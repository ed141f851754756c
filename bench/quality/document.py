"""A run's findings for programs: one JSON document, without anything of the recordings but how many series there were."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

import msgspec

from bench.quality.choice import Choice
from bench.quality.findings import Findings, Run
from bench.quality.targets import Judged

SCHEMA: Final = "vpa-ippr/quality/v1"


def render_json(run: Run, findings: Sequence[Findings]) -> bytes:
    """Indented JSON; what is not known, or infinite, is null."""
    document = {"schema": SCHEMA, "run": asdict(run), "resources": [_resource(one) for one in findings]}
    return msgspec.json.format(msgspec.json.encode(_plain(document)), indent=2) + b"\n"


def _resource(one: Findings) -> dict[str, Any]:
    comparison = one.evidence.comparison
    return {
        "resource": one.resource,
        "sources": dict(one.sources),
        "container_days": comparison.container_days,
        "targets": [_judged(judged) for judged in one.targets],
        "policies": [
            {
                "policy": outcome.policy,
                "balanced": {name: asdict(average) for name, average in outcome.averages.balanced.items()},
                "by_source": {source: dict(numbers) for source, numbers in outcome.averages.by_source.items()},
            }
            for outcome in comparison.outcomes
        ],
        "source_checks": [asdict(check) for check in one.source_checks],
        "forecast_horizon": one.horizon,
        "forecast_checks": [asdict(check) for check in one.forecast_checks],
        "settings": None if one.choice is None else _choice(one.choice),
        "cost": asdict(one.evidence.cost),
    }


def _choice(choice: Choice) -> dict[str, Any]:
    return {
        "chosen": {str(fold): name for fold, name in choice.chosen.items()},
        "by_setting": {name: [_judged(judged) for judged in found] for name, found in choice.by_setting.items()},
        "chosen_on_other_folds": [_judged(judged) for judged in choice.crossed],
    }


def _judged(judged: Judged) -> dict[str, Any]:
    target = judged.target
    return {
        "item": target.item,
        "profile": target.profile,
        "what": target.text,
        "sense": target.sense,
        "bound": target.bound,
        "measured": asdict(judged.measured),
        "head_room": judged.head_room,
        "verdict": judged.verdict,
    }


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
