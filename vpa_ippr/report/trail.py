"""The story of one workload, told pod by pod: what was recommended, what was done, what comes next and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from vpa_ippr.api.errors import QuantityError
from vpa_ippr.api.names import ANNOTATION_EXPLANATION
from vpa_ippr.api.resources import Amounts, ContainerResources, Resource, parse_amounts
from vpa_ippr.api.shrink import MemoryShrink
from vpa_ippr.api.timestamps import format_time
from vpa_ippr.api.vpa import ContainerRecommendation, Vpa
from vpa_ippr.report.units import cpu_text, memory_text
from vpa_ippr.resize.ledger import WHOLE_POD, HoldOff, Record, Scope, parse_stored, spec_is
from vpa_ippr.resize.patch import changes_between, describe
from vpa_ippr.resize.state import Idle
from vpa_ippr.resize.targets import Target
from vpa_ippr.resize.trail import NextStep, PodTrail
from vpa_ippr.resize.view import View

_WHY_KEYS = ("by", "horizon", "quantile", "pod", "knownHours", "coverage", "raisedBy")
_FORBIDDEN = {Scope.GROW: "is not raised", Scope.SHRINK: "memory is not lowered", Scope.ANY: "is left alone"}


@dataclass(frozen=True, slots=True)
class Story:
    """A workload, the VPAs that are about it, and the trails of its pods."""

    subject: str
    vpas: Sequence[Vpa]
    pods: Sequence[PodTrail]


def render_text(story: Story) -> str:
    """For a person: a few lines for each VPA and each pod."""
    return "\n".join(_lines(story)) + "\n"


def render_json(story: Story) -> str:
    """The same as JSON, one entry for each pod."""
    document = {
        "schema": "vpa-ippr.io/explain/v1",
        "subject": story.subject,
        "vpas": [_vpa_document(vpa) for vpa in story.vpas],
        "pods": [_pod_document(trail) for trail in story.pods],
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


def _lines(story: Story) -> Iterator[str]:
    count = len(story.pods)
    yield f"{story.subject}: {count} pod{'' if count == 1 else 's'}"
    if not story.vpas:
        yield "No VerticalPodAutoscaler is about it: nothing is recommended and nothing resized."
    for vpa in story.vpas:
        yield ""
        yield from _vpa_lines(vpa)
    for trail in story.pods:
        yield ""
        yield from _pod_lines(trail)


def _vpa_lines(vpa: Vpa) -> Iterator[str]:
    why = _explanation(vpa)
    made = f", by profile {why['profile']} as of {why['asOf']}" if {"profile", "asOf"} <= why.keys() else ""
    yield f"vpa {vpa.key}, mode {vpa.update_mode}{made}"
    found = vpa.status.recommendation
    if found is None or not found.container_recommendations:
        yield "  recommends nothing yet"
    for one in found.container_recommendations if found else []:
        reasons = why.get("containers", {}).get(one.container_name, {})
        for resource in Resource:
            if resource in one.target:
                yield f"  {one.container_name} {resource}: {_range_text(one, resource)}{_why_text(reasons.get(resource.value, {}))}"
        if reasons.get("cappedBy"):
            yield f"  {one.container_name} capped by {', '.join(reasons['cappedBy'])}"
    for condition in vpa.status.conditions:
        if condition.status == "True" and condition.type != "RecommendationProvided":
            yield f"  {condition.type} ({condition.reason}): {condition.message}"


def _range_text(one: ContainerRecommendation, resource: Resource) -> str:
    try:
        target, lower, upper = (parse_amounts(part, "").get(resource) for part in (one.target, one.lower_bound, one.upper_bound))
    except QuantityError:
        return str(one.target[resource])
    return f"{_amount(resource, target)} ({_amount(resource, lower)} to {_amount(resource, upper)} is left alone)"


def _why_text(why: Mapping[str, Any]) -> str:
    told = [f"{key} {_value_text(why[key])}" for key in _WHY_KEYS if key in why]
    return f"; {', '.join(told)}" if told else ""


def _value_text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} to {amount}" for name, amount in value.items())
    return str(value)


def _pod_lines(trail: PodTrail) -> Iterator[str]:
    yield f"pod {trail.pod.metadata.name} on {trail.pod.spec.node_name or 'no node'}"
    for target in trail.targets:
        for resource in Resource:
            yield f"  {target.container} {resource}: {_target_text(target, resource)}"
        for note in target.capped_by:
            yield f"  {target.container}: {note}"
    for pressed in trail.pressing:
        entry = pressed.plea.entry
        yield f"  pressing since {entry.since}: {entry.container_name} ({pressed.plea.text}); {_step_text(pressed.step)}"
    yield f"  next: {_step_text(trail.next_step)}"
    if trail.view is not None:
        yield from _history_lines(trail.view)


def _step_text(step: NextStep) -> str:
    return f"{step.code}{f' ({step.reason})' if step.reason else ''}{f': {step.message}' if step.message else ''}"


def _target_text(target: Target, resource: Resource) -> str:
    sides = (("request", target.current.requests, target.desired.requests), ("limit", target.current.limits, target.desired.limits))
    return ", ".join(f"{word} {_move_text(resource, before, after)}" for word, before, after in sides)


def _move_text(resource: Resource, before: Amounts, after: Amounts) -> str:
    old, new = before.get(resource), after.get(resource)
    return _amount(resource, old) if old == new else f"{_amount(resource, old)} -> {_amount(resource, new)}"


def _history_lines(view: View) -> Iterator[str]:
    ledger = view.ledger
    if ledger.last is not None:
        yield f"  last: {_record_text(ledger.last, view)}"
    for container, times in ledger.reliefs.items():
        last = format_time(max(times))
        yield f"  relieved: {container} got more memory at its limit {_times_text(len(times))} within an hour, last {last}"
    for hold_off in ledger.hold_offs:
        if view.now < hold_off.until:
            yield f"  held off: {_hold_off_text(hold_off)}"
    if ledger.infeasible is not None:
        known = ledger.infeasible
        size = f"{_amount(Resource.CPU, known.cpu_millicores)} CPU and {_amount(Resource.MEMORY, known.memory_bytes)}"
        yield f"  infeasible: a pod of {size} on node {known.node} ({known.cause})"
    yield from (f"  {_shrink_text(shrink)}" for shrink in view.shrinks)


def _times_text(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _shrink_text(shrink: MemoryShrink) -> str:
    status, target = shrink.status, _amount(Resource.MEMORY, shrink.spec.target_bytes)
    reason = f" ({status.reason})" if status.reason else ""
    message = f": {status.message}" if status.message else ""
    return f"memoryshrink {shrink.metadata.name} of {shrink.spec.container.name} to {target}: {status.phase}{reason}{message}"


def _record_text(record: Record, view: View) -> str:
    changes = changes_between(parse_stored(record.before), parse_stored(record.after))
    word = "taken back" if record.reverting else "issued"
    if not spec_is(view.pod, record.after):
        end = "the spec holds something else now"
    elif isinstance(view.state, Idle):
        end = "in force"
    else:
        end = "under way"
    shrink = f" for memoryshrink {record.shrink}" if record.shrink else ""
    return f"{word} {format_time(record.issued_at)}{shrink}: {describe(changes)}; {end}"


def _hold_off_text(hold_off: HoldOff) -> str:
    subject = "the pod" if hold_off.container == WHOLE_POD else hold_off.container
    floor = f" below {_amount(Resource.MEMORY, hold_off.floor_bytes)}" if hold_off.floor_bytes is not None else ""
    until = format_time(hold_off.until)
    return f"{subject} {_FORBIDDEN[hold_off.scope]}{floor} before {until}, after {hold_off.reason} (attempt {hold_off.attempts})"


def _amount(resource: Resource, amount: int | None) -> str:
    return cpu_text(amount) if resource is Resource.CPU else memory_text(amount)


def _explanation(vpa: Vpa) -> Mapping[str, Any]:
    """The recommender's own words; nothing where another recommender wrote, or somebody damaged them."""
    try:
        return msgspec.json.decode(vpa.metadata.annotations.get(ANNOTATION_EXPLANATION, "{}"), type=dict[str, Any])
    except msgspec.DecodeError:
        return {}


def _vpa_document(vpa: Vpa) -> Mapping[str, object]:
    return {
        "name": str(vpa.key),
        "mode": vpa.update_mode,
        "recommendation": vpa.status.recommendation,
        "conditions": vpa.status.conditions,
        "explanation": _explanation(vpa),
    }


def _pod_document(trail: PodTrail) -> Mapping[str, object]:
    view, step = trail.view, trail.next_step
    return {
        "pod": str(trail.pod.key),
        "node": trail.pod.spec.node_name,
        "vpa": str(trail.vpa.key) if trail.vpa else None,
        "containers": {
            target.container: {
                "current": _resources_document(target.current),
                "desired": _resources_document(target.desired),
                "cappedBy": target.capped_by,
            }
            for target in trail.targets
        },
        "pressing": [{"told": pressed.plea.entry, "next": _step_document(pressed.step)} for pressed in trail.pressing],
        "next": _step_document(step),
        "ledger": view.ledger if view else None,
        "shrinks": [{"name": s.metadata.name, "spec": s.spec, "status": s.status} for s in view.shrinks] if view else [],
    }


def _step_document(step: NextStep) -> Mapping[str, object]:
    return {"code": step.code, "reason": step.reason, "message": step.message}


def _resources_document(resources: ContainerResources) -> Mapping[str, object]:
    return {"requests": resources.requests.to_quantities(), "limits": resources.limits.to_quantities()}
