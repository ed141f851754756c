"""The updater: reads the cluster once a cycle and gives each pod its turn.

All that must survive is in the API objects (the pod's ledger annotation, the MemoryShrinks), so a cycle may end anywhere and the next one,
in this process or another, goes on from what it finds there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from vpa_ippr.api.clock import Clock
from vpa_ippr.api.errors import ClusterError, VpaIpprError
from vpa_ippr.api.meta import ObjectKey
from vpa_ippr.api.pod import Pod
from vpa_ippr.api.vpa import Vpa
from vpa_ippr.resize.arranging import arrange
from vpa_ippr.resize.ports import UpdaterPort
from vpa_ippr.resize.proposal import Proposal
from vpa_ippr.resize.reasons import OutcomeCode
from vpa_ippr.resize.refusal import Answer, classify
from vpa_ippr.resize.result import PodOutcome, UpdateResult
from vpa_ippr.resize.rules import VersionRules
from vpa_ippr.resize.settings import Settings
from vpa_ippr.resize.turn import PodTurn
from vpa_ippr.resize.world import World, read_world
from vpa_ippr.resize.writer import Writer

logger = logging.getLogger(__name__)

T = TypeVar("T")

_ANSWER_CODES = {Answer.READ_AGAIN: OutcomeCode.CONFLICT, Answer.GONE: OutcomeCode.GONE, Answer.TRY_AGAIN: OutcomeCode.UNAVAILABLE}


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
        world = read_world(self._cluster)
        self._turn.begin_cycle({pod.metadata.uid for pod in world.pods})
        outcomes = list(world.problems)
        proposals: list[Proposal] = []
        for pod, vpa in world.ours():
            step = self._guarded(pod.key, vpa, partial(self._visit, world, pod, vpa))
            if isinstance(step, Proposal):
                proposals.append(step)
            elif step is not None:
                outcomes.append(step)
        outcomes += self._carry_out(proposals)
        for orphan in world.orphans():
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

    def _visit(self, world: World, pod: Pod, vpa: Vpa | None) -> PodOutcome | Proposal | None:
        if pod.metadata.deletion_timestamp is not None:
            return None
        # The time is of each pod's own turn: a cycle may last longer than a Holding may be old.
        return self._turn.take(world.view(pod, vpa, self._clock.now(), self._settings))

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
