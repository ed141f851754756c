"""The checkpoints of our VPAs: what they hold of workloads that are new, and what is written into them.

Besides the histograms, which are as upstream writes them, they hold what an ensemble remembers of a container.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import msgspec

from vpa_ippr.api.errors import ValidationError
from vpa_ippr.api.meta import ObjectKey, OwnerReference
from vpa_ippr.api.series import ContainerRef, Finding
from vpa_ippr.api.vpa import Vpa, VpaCheckpoint
from vpa_ippr.recommend.cohorts import Key
from vpa_ippr.recommend.forecasts import StoredContainer, read_stored, write_stored
from vpa_ippr.recommend.node_parts import as_prior, mark_of, marked
from vpa_ippr.recommend.planning import Plan
from vpa_ippr.usage.checkpoint import StoredState, load_checkpoint, save_checkpoint

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Stored:
    """What checkpoints hold of containers: their histograms, and what their ensemble remembers; ``findings``: what was refused."""

    usage: Mapping[Key, StoredState] = field(default_factory=dict)
    learned: Mapping[Key, StoredContainer] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()


def read_checkpoints(checkpoints: Iterable[VpaCheckpoint], plans: Iterable[Plan]) -> Stored:
    """What the checkpoints hold of the workloads of these plans, and of the parts of their pods.

    What is damaged is refused with a reason, and the history is read instead.
    """
    by_vpa = {plan.vpa.key: plan for plan in plans}
    usage: dict[Key, StoredState] = {}
    learned: dict[Key, StoredContainer] = {}
    findings: list[Finding] = []
    # A part's own checkpoint comes after that of all pods, which is the beginning of a part without one.
    for checkpoint in sorted(checkpoints, key=lambda one: bool(mark_of(one))):
        plan = by_vpa.get(ObjectKey(checkpoint.metadata.namespace, checkpoint.spec.vpa_object_name))
        if plan is not None:
            with _refusing(checkpoint, plan, findings):
                usage |= _usage_in(checkpoint, plan)
            with _refusing(checkpoint, plan, findings):
                learned |= _learned_in(checkpoint, plan)
    return Stored(usage, learned, tuple(findings))


def new_checkpoint(
    vpa: Vpa, key: Key, state: StoredState, learned: StoredContainer | None, *, pods: Collection[str], now: float
) -> VpaCheckpoint:
    """The checkpoint of a container of the VPA's workload, or of the part of its pods that ``key`` names; ``pods``: those that are live."""
    part, container = key
    live = {ContainerRef(part.namespace, pod, container) for pod in pods}
    checkpoint = save_checkpoint(vpa.key, container, state, live=live, now=now)
    checkpoint = marked(checkpoint, part) if part.part else checkpoint
    # Owned by the VPA, so that it goes when the VPA goes.
    owner = OwnerReference(vpa.api_version, vpa.kind, vpa.metadata.name, uid=vpa.metadata.uid)
    annotations = checkpoint.metadata.annotations | ({} if learned is None else write_stored(learned))
    metadata = msgspec.structs.replace(checkpoint.metadata, owner_references=[owner], annotations=annotations)
    return msgspec.structs.replace(checkpoint, metadata=metadata)


def _usage_in(checkpoint: VpaCheckpoint, plan: Plan) -> dict[Key, StoredState]:
    container = checkpoint.spec.container_name
    state = load_checkpoint(checkpoint, plan.rules_of(container))
    if _is_of_all_parts(checkpoint, plan):
        return dict.fromkeys(((part, container) for part in plan.parts), as_prior(state))
    # The nodes of pods that have ended may be gone, so a part cannot be told from the history alone.
    return {_key_of(checkpoint, plan): replace(state, goes_first=bool(mark_of(checkpoint)))}


def _learned_in(checkpoint: VpaCheckpoint, plan: Plan) -> dict[Key, StoredContainer]:
    if _is_of_all_parts(checkpoint, plan):
        return {}
    metadata = checkpoint.metadata
    learned = read_stored(metadata.annotations, f"checkpoint {metadata.namespace}/{metadata.name}")
    return {} if learned is None else {_key_of(checkpoint, plan): learned}


def _is_of_all_parts(checkpoint: VpaCheckpoint, plan: Plan) -> bool:
    """True when the pods were not told apart yet when it was written, and are now."""
    return plan.split is not None and not mark_of(checkpoint)


def _key_of(checkpoint: VpaCheckpoint, plan: Plan) -> Key:
    return replace(plan.workload, part=mark_of(checkpoint)), checkpoint.spec.container_name


@contextmanager
def _refusing(checkpoint: VpaCheckpoint, plan: Plan, findings: list[Finding]) -> Iterator[None]:
    try:
        yield
    except ValidationError as error:
        container = checkpoint.spec.container_name
        _log.warning("checkpoint refused", extra={"vpa": str(plan.vpa.key), "container": container, "reason": error.reason})
        findings.append(Finding(error.reason, str(plan.vpa.key), 1, str(error)))
