"""The updater: reads the cluster once a cycle and gives each pod its turn.

All that must survive is in the API objects (the pod's ledger annotation, the MemoryShrinks), so a cycle may end anywhere and the next one,
in this process or another, goes on from what it finds there.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from vpa_ippr.api.clock import Clock
from vpa_ippr.api.cluster import Node
from vpa_ippr.api.errors import ClusterError, QuantityError, ValidationError, VpaIpprError
from vpa_ippr.api.meta import ObjectKey
from vpa_ippr.api.names import ANNOTATION_RESIZE_LEDGER
from vpa_ippr.api.node_split import for_node
from vpa_ippr.api.pod import Pod
from vpa_ippr.api.shrink import MemoryShrink
from vpa_ippr.api.vpa import Vpa
from vpa_ippr.recommend.limit_ranges import UNLIMITED, NamespaceLimits, limits_by_namespace
from vpa_ippr.resize.arranging import arrange
from vpa_ippr.resize.matching import index_vpas, vpa_of
from vpa_ippr.resize.ports import UpdaterPort
from vpa_ippr.resize.proposal import Proposal
from vpa_ippr.resize.reasons import OutcomeCode
from vpa_ippr.resize.refusal import Answer, classify
from vpa_ippr.resize.result import PodOutcome, UpdateResult
from vpa_ippr.resize.rules import VersionRules
from vpa_ippr.resize.settings import Settings
from vpa_ippr.resize.turn import PodTurn
from vpa_ippr.resize.view import look
from vpa_ippr.resize.writer import Writer

logger = logging.getLogger(__name__)

T = TypeVar("T")

_ANSWER_CODES = {Answer.READ_AGAIN: OutcomeCode.CONFLICT, Answer.GONE: OutcomeCode.GONE, Answer.TRY_AGAIN: OutcomeCode.UNAVAILABLE}


_PodId = tuple[str, str]
"""Namespace and UID: anybody may write any UID into a MemoryShrink of a namespace of their own."""


@dataclass(frozen=True, slots=True)
class _World:
    pods: list[Pod]
    nodes: dict[str, Node]
    shrinks: dict[_PodId, list[MemoryShrink]]
    vpa_of: dict[ObjectKey, Vpa]
    groups: dict[ObjectKey, list[Pod]]
    limits: dict[str, NamespaceLimits | QuantityError]
    unmatched: list[PodOutcome]
    damaged: list[PodOutcome]


class Updater:
    """Resizes pods towards what their VPAs recommend. One instance at a time may run against a cluster (leader election)."""

    def __init__(self, cluster: UpdaterPort, clock: Clock, settings: Settings, rules: VersionRules) -> None:
        self._cluster = cluster
        self._clock = clock
        self._settings = settings
        self._turn = PodTurn(cluster, Writer(cluster, settings), settings, rules)

    def run_cycle(self) -> UpdateResult:
        """One look at everything, and one step for each pod that needs one.

        Raises:
            ClusterError: the cluster could not be read at all. A failure on one pod is an outcome, and the others go on.
        """
        world = self._read()
        self._turn.begin_cycle({pod.metadata.uid for pod in world.pods})
        outcomes = [*world.unmatched, *world.damaged]
        proposals: list[Proposal] = []
        unmatched = {outcome.pod for outcome in world.unmatched}
        for pod in world.pods:
            vpa = world.vpa_of.get(pod.key)
            known = _id(pod) in world.shrinks or ANNOTATION_RESIZE_LEDGER in pod.metadata.annotations
            if pod.key not in unmatched and (vpa is not None or known):
                step = self._guarded(pod.key, vpa, partial(self._visit, pod, vpa, world))
                if isinstance(step, Proposal):
                    proposals.append(step)
                elif step is not None:
                    outcomes.append(step)
        outcomes += self._carry_out(proposals)
        alive = {_id(pod) for pod in world.pods}
        for orphan in (shrink for pod_id, shrinks in world.shrinks.items() if pod_id not in alive for shrink in shrinks):
            key = ObjectKey(orphan.metadata.namespace, orphan.spec.pod.name)
            swept = self._guarded(key, None, partial(self._turn.shrinks.sweep, orphan, self._clock.now()))
            outcomes += [swept] if swept is not None else []
        result = UpdateResult(tuple(outcomes))
        logger.info("updater cycle done", extra={"pods": len(world.pods), **{code.value: n for code, n in result.counts().items()}})
        return result

    def _carry_out(self, proposals: Sequence[Proposal]) -> list[PodOutcome]:
        arrangement = arrange(proposals, self._settings)
        outcomes = [self._guarded(p.view.pod.key, p.vpa, partial(self._turn.carry_out, p)) for p in arrangement.go]
        return outcomes + [self._turn.hold_back(held.proposal, held.reason, held.message) for held in arrangement.held]

    def _visit(self, pod: Pod, vpa: Vpa | None, world: _World) -> PodOutcome | Proposal | None:
        if pod.metadata.deletion_timestamp is not None:
            return None
        group = world.groups.get(vpa.key, []) if vpa else []
        shrinks = world.shrinks.get(_id(pod), [])
        now = self._clock.now()  # of each pod's own turn: a cycle may last longer than a Holding may be old
        limits = world.limits.get(pod.metadata.namespace, UNLIMITED)
        return self._turn.take(look(pod, vpa, group, world.nodes.get(pod.spec.node_name), shrinks, now, self._settings, limits))

    def _read(self) -> _World:
        pods, index = self._cluster.list_pods(), index_vpas(self._cluster.list_vpas())
        nodes = {node.name: node for node in self._cluster.list_nodes()}
        shrinks: dict[_PodId, list[MemoryShrink]] = defaultdict(list)
        for shrink in self._cluster.list_shrinks():
            shrinks[shrink.metadata.namespace, shrink.spec.pod.uid].append(shrink)
        vpas: dict[ObjectKey, Vpa] = {}
        groups: dict[ObjectKey, list[Pod]] = defaultdict(list)
        unmatched: list[PodOutcome] = []
        damaged: dict[ObjectKey, PodOutcome] = {}
        for pod in pods:
            try:
                vpa = vpa_of(pod, index, self._cluster.find_workload)
            except ClusterError as error:
                unmatched.append(PodOutcome(pod.key, None, OutcomeCode.UNAVAILABLE, error.reason, f"owner of the pod: {error}"))
                continue
            if vpa is not None:
                try:
                    vpas[pod.key] = for_node(vpa, node.labels if (node := nodes.get(pod.spec.node_name)) else None)
                except ValidationError as error:  # what is recommended for all pods is enough for each
                    vpas[pod.key] = vpa
                    message = f"vpa {vpa.key}: {error}"
                    damaged.setdefault(vpa.key, PodOutcome(pod.key, vpa.key, OutcomeCode.BAD_OBJECT, error.reason, message))
                groups[vpa.key].append(pod)
        limits = limits_by_namespace(self._cluster.list_limit_ranges())
        return _World(pods, nodes, shrinks, vpas, groups, limits, unmatched, list(damaged.values()))

    def _guarded(self, pod: ObjectKey, vpa: Vpa | None, act: Callable[[], T]) -> T | PodOutcome:
        """What ``act`` gives; an error becomes an outcome, so that one pod never stops the others."""
        key = vpa.key if vpa else None
        try:
            return act()
        except ClusterError as error:
            refusal = classify(error)
            code = _ANSWER_CODES.get(refusal.answer, OutcomeCode.REFUSED)
            outcome = PodOutcome(pod, key, code, refusal.reason or error.reason, str(error))
        except VpaIpprError as error:
            outcome = PodOutcome(pod, key, OutcomeCode.BAD_OBJECT, error.reason, str(error))
        except Exception as error:
            logger.exception("pod could not be dealt with", extra={"pod": str(pod)})
            outcome = PodOutcome(pod, key, OutcomeCode.FAILED, type(error).__name__, str(error))
        if outcome.is_failure:
            logger.warning("pod not dealt with", extra={"pod": str(pod), "reason": outcome.reason, "error": outcome.message})
        return outcome


def _id(pod: Pod) -> _PodId:
    return pod.metadata.namespace, pod.metadata.uid
