"""What to do about a resize that is under way: wait, or take it back by reverting the spec, which is the only cancel there is.

Only what we asked for ourselves is ever taken back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vpa_ippr.api.pod import Pod
from vpa_ippr.api.resources import Amounts, ContainerResources, Resource, ResourceRequirements
from vpa_ippr.resize.ledger import Ledger, Record, parse_stored, spec_is
from vpa_ippr.resize.patch import changes_to
from vpa_ippr.resize.qos import desired_resources, qos_class
from vpa_ippr.resize.reasons import OutcomeCode, RevertReason
from vpa_ippr.resize.rules import VersionRules
from vpa_ippr.resize.settings import Settings
from vpa_ippr.resize.state import Failed, Idle, Pending, PendingReason, ResizeState, Unsupported


@dataclass(frozen=True, slots=True)
class Proceed:
    """Nothing is under way: the pod may be looked at anew."""


@dataclass(frozen=True, slots=True)
class Wait:
    """The kubelet is at work, or somebody else's resize is."""

    code: OutcomeCode
    message: str = ""


@dataclass(frozen=True, slots=True)
class Revert:
    """Our last resize is to be taken back."""

    reason: RevertReason
    message: str


@dataclass(frozen=True, slots=True)
class ResumeRevert:
    """We had decided to take it back, but the spec still holds the resize: the request never arrived."""


Step = Proceed | Wait | Revert | ResumeRevert


def follow(pod: Pod, state: ResizeState, ledger: Ledger, now: float, settings: Settings) -> Step:
    """The next step for a pod whose resize stands at ``state``."""
    record = ledger.last
    if record is not None and record.reverting and not spec_is(pod, record.after) and spec_is(pod, record.before):
        return ResumeRevert()
    if isinstance(state, Idle | Unsupported):
        return Proceed()
    if record is None or not spec_is(pod, record.after):
        return Wait(OutcomeCode.FOREIGN, f"a resize that is not ours stands at {_name(state)}")
    reason = None if record.reverting else _lost(state, record, now, settings)
    if reason is not None:
        return Revert(reason, _message(state))
    return Wait(_code(state), _message(state))


def _lost(state: ResizeState, record: Record, now: float, settings: Settings) -> RevertReason | None:
    """Why there is no use in waiting longer, or None."""
    match state:
        case Pending(PendingReason.INFEASIBLE):
            return RevertReason.INFEASIBLE
        case Pending():
            limit, reason = settings.deferred_limit_seconds, RevertReason.DEFERRED_TOO_LONG
        case Failed():
            limit, reason = settings.error_limit_seconds, RevertReason.KUBELET_ERROR
        case _:
            limit, reason = settings.in_progress_limit_seconds, RevertReason.STUCK
    since = max(record.issued_at, getattr(state, "since", None) or 0.0)
    return reason if now - since >= limit else None


def revert_target(pod: Pod, before: Mapping[str, ResourceRequirements], rules: VersionRules) -> dict[str, ContainerResources] | None:
    """The resources that take the pod back to ``before``; None when the API server would not take them.

    A memory limit that is already in force is not lowered again: that would be a decrease nobody prepared. On 1.33 no memory limit in the
    spec may go down at all without a restart.
    """
    undone = {
        name: _with_memory_kept(pod, name, resources, rules) for name, resources in parse_stored(before).items() if pod.container(name)
    }
    if not changes_to(pod, undone):
        return None
    # What was not there before cannot be removed again.
    left = {name: _over(resources, pod.desired(name)) for name, resources in undone.items()}
    kept = qos_class(pod, desired_resources(pod, left)) == (pod.status.qos_class or qos_class(pod, desired_resources(pod, {})))
    return undone if kept else None


def _over(resources: ContainerResources, present: ContainerResources) -> ContainerResources:
    """The amounts that ``resources`` states, and those at present of the others."""

    def laid(stated: Amounts, known: Amounts) -> Amounts:
        return Amounts(*(known.get(one) if stated.get(one) is None else stated.get(one) for one in Resource))

    return ContainerResources(laid(resources.requests, present.requests), laid(resources.limits, present.limits))


def _with_memory_kept(pod: Pod, name: str, before: ContainerResources, rules: VersionRules) -> ContainerResources:
    container, present, actual = pod.container(name), pod.desired(name), pod.actual(name)
    limit = before.limits.memory_bytes
    if limit is None or (container is not None and container.restarts_on_resize_of(Resource.MEMORY)):
        return before
    # A kubelet that does not look at the use of each container must not get a decrease by way of a status that is out of date.
    in_force = actual if actual is not None and rules.memory_limit_decrease and rules.container_memory_check else present
    kept = in_force.limits.memory_bytes
    if kept is None or kept <= limit:
        return before
    request = kept if before.requests.memory_bytes == limit else before.requests.memory_bytes
    return ContainerResources(
        before.requests.having(Resource.MEMORY, request),
        before.limits.having(Resource.MEMORY, min(kept, present.limits.memory_bytes or kept)),
    )


def _code(state: ResizeState) -> OutcomeCode:
    match state:
        case Pending():
            return OutcomeCode.DEFERRED
        case Failed():
            return OutcomeCode.FAILING
        case _:
            return OutcomeCode.IN_PROGRESS


def _message(state: ResizeState) -> str:
    return state.message if isinstance(state, Pending | Failed) else ""


def _name(state: ResizeState) -> str:
    return type(state).__name__ if not isinstance(state, Pending) else state.reason
