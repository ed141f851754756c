"""Proposals made by hand, and pods as they are after resizes of ours."""

from __future__ import annotations

import msgspec
from resize_support import READY, START, a_vpa, apply

from vpa_ippr.api.meta import Condition
from vpa_ippr.api.pod import ContainerState, ContainerStateRunning, ContainerStateTerminated, Pod
from vpa_ippr.api.resources import ContainerResources, ResourceRequirements
from vpa_ippr.api.timestamps import format_time
from vpa_ippr.api.vpa import Vpa
from vpa_ippr.resize.ledger import read_ledger, to_annotations, with_resize
from vpa_ippr.resize.patch import changes_to, patch_for, restarts
from vpa_ippr.resize.plan import Plan, ShrinkNeed
from vpa_ippr.resize.proposal import Proposal
from vpa_ippr.resize.reasons import DueReason
from vpa_ippr.resize.settings import Settings
from vpa_ippr.resize.view import look

SETTINGS = Settings()
VPA = a_vpa()
SIGNIFICANT = (DueReason.SIGNIFICANT_CHANGE,)
MIB = 1 << 20


def a_proposal(
    pod: Pod,
    *,
    reasons: tuple[DueReason, ...] = SIGNIFICANT,
    shrinks: tuple[ShrinkNeed, ...] = (),
    vpa: Vpa = VPA,
    **wanted: ResourceRequirements,
) -> Proposal:
    """``wanted``: whole resources by container."""
    after = {name: resources.parse(name) for name, resources in wanted.items()}
    changes = changes_to(pod, after)
    kept = {change.container: after[change.container] for change in changes}
    plan = Plan(patch_for(pod, changes), changes, kept, restarts(pod, changes), shrinks, (), reasons)
    return Proposal(look(pod, vpa, (), None, (), START, SETTINGS), vpa, plan)


def resized(pod: Pod, after: dict[str, ContainerResources], now: float, **how: object) -> Pod:
    """The pod after a resize of ours, ledger and all, carried out at once."""
    ledger = with_resize(read_ledger(pod), pod, after, now, **how)
    changed = apply(pod, patch_for(pod, changes_to(pod, after)))
    return annotated(changed, to_annotations(ledger))


def annotated(obj, annotations: dict[str, str]):
    """A pod or a VPA with these annotations too."""
    metadata = msgspec.structs.replace(obj.metadata, annotations={**obj.metadata.annotations, **annotations})
    return msgspec.structs.replace(obj, metadata=metadata)


def killed(pod: Pod, at: float, *, reason: str = "OOMKilled", container: str = "app", restarts: int = 1) -> Pod:
    """The pod after its container was killed at that moment and started again."""
    ended = ContainerStateTerminated(137, reason=reason, started_at=format_time(at - 60), finished_at=format_time(at))
    return _with_status(
        pod,
        container,
        restarts,
        last_state=ContainerState(terminated=ended),
        state=ContainerState(running=ContainerStateRunning(format_time(at + 1))),
    )


def restarted(pod: Pod, times: int = 1, container: str = "app") -> Pod:
    return _with_status(pod, container, times)


def _with_status(pod: Pod, container: str, restarts: int, **changes: object) -> Pod:
    statuses = [
        msgspec.structs.replace(s, restart_count=s.restart_count + restarts, **changes) if s.name == container else s
        for s in pod.status.container_statuses
    ]
    return msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, container_statuses=statuses))


def unready(pod: Pod, since: float | None) -> Pod:
    lost = Condition("Ready", "False", last_transition_time=format_time(since) if since is not None else None)
    return with_conditions(pod, lost)


def ready(pod: Pod) -> Pod:
    return with_conditions(pod, READY)


def with_conditions(pod: Pod, *conditions: Condition) -> Pod:
    return msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, conditions=list(conditions)))
