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
from vpa_ippr.resize.arranging import Arrangement, Budgets, HeldBack, arrange
from vpa_ippr.resize.consider import EvictionCandidate, without_room
from vpa_ippr.resize.evicting import Evictor
from vpa_ippr.resize.eviction import Keep
from vpa_ippr.resize.follow import Revert
from vpa_ippr.resize.ports import GuardSource, SignalSource, UpdaterPort
from vpa_ippr.resize.proposal import Proposal
from vpa_ippr.resize.rate import Bucket
from vpa_ippr.resize.reasons import AbortReason, OutcomeCode, RefusalReason
from vpa_ippr.resize.refusal import Answer, classify
from vpa_ippr.resize.relieving import Reliever
from vpa_ippr.resize.result import PodOutcome, UpdateResult
from vpa_ippr.resize.rollout import RolloutStep
from vpa_ippr.resize.rollout_writer import RolloutWriter
from vpa_ippr.resize.rules import VersionRules
from vpa_ippr.resize.settings import Settings
from vpa_ippr.resize.turn import PodTurn, Turn
from vpa_ippr.resize.watching import Watcher
from vpa_ippr.resize.world import World, read_world
from vpa_ippr.resize.writer import Writer

logger = logging.getLogger(__name__)

T = TypeVar("T")

_ANSWER_CODES = {Answer.READ_AGAIN: OutcomeCode.CONFLICT, Answer.GONE: OutcomeCode.GONE, Answer.TRY_AGAIN: OutcomeCode.UNAVAILABLE}


class Updater:
    """Resizes pods towards what their VPAs recommend. One instance at a time may run against a cluster (leader election)."""

    def __init__(
        self,
        cluster: UpdaterPort,
        clock: Clock,
        settings: Settings,
        rules: VersionRules,
        guards: GuardSource | None = None,
        signals: SignalSource | None = None,
        alarm: Callable[[], bool] = lambda: False,
    ) -> None:
        """Without ``guards`` a rollout with a guard waits; without ``signals`` only the pods' own objects tell of harm.

        ``alarm`` is True once after the news that a container presses against its memory limit: it is dealt with in between.
        """
        self._cluster = cluster
        self._clock = clock
        self._settings = settings
        writer = Writer(cluster, settings)
        self._turn = PodTurn(cluster, writer, settings, rules)
        self._evictor = Evictor(cluster, writer, settings)
        self._rollouts = RolloutWriter(cluster, writer)
        self._reliever = Reliever(cluster, writer, clock, settings, rules)
        self._alarm = alarm
        self._is_relieving = False
        self._in_between: list[PodOutcome] = []
        self._watcher = Watcher(guards, signals, settings)
        self._bucket: Bucket | None = None
        self._no_room_since: dict[str, float] = {}

    def run_cycle(self) -> UpdateResult:
        """One look at everything, and one step for each pod that needs one.

        Raises:
            ClusterError: the cluster could not be read at all. A failure on one pod is an outcome, and the others go on.
        """
        relieved = self._relieve(may_restart=True)
        world = read_world(self._cluster)
        self._turn.begin_cycle({pod.metadata.uid for pod in world.pods}, {vpa.key for vpa in world.vpas})
        self._evictor.begin_cycle(self._clock.now())
        outcomes = list(world.problems)
        proposals: list[Proposal] = []
        candidates: list[EvictionCandidate] = []
        budgets = Budgets(world, self._settings)
        for pod, vpa in world.ours():
            match self._guarded(pod.key, vpa, partial(self._visit, world, pod, vpa, budgets)):
                case Proposal() as proposal:
                    proposals.append(proposal)
                case EvictionCandidate() as candidate:
                    candidates.append(candidate)
                case PodOutcome() as outcome:
                    outcomes.append(outcome)
        arranged = self._arrange(world, proposals, budgets)
        reverting = {pod.key for step in arranged.rollouts.values() for pod in step.revert}
        # What is being taken back is neither left as it is nor evicted: the new pod would have the change that did harm.
        outcomes = [*relieved, *(outcome for outcome in outcomes if outcome.pod not in reverting)]
        done, crowded = self._carry_out(world, arranged, proposals, budgets)
        outcomes += done
        for candidate in [*candidates, *crowded]:
            key = candidate.view.pod.key
            if key not in reverting:
                outcomes.append(self._guarded(key, candidate.vpa, partial(self._settle, candidate, world, arranged, budgets)))
        for orphan in world.orphans():
            key = ObjectKey(orphan.metadata.namespace, orphan.spec.pod.name)
            swept = self._guarded(key, None, partial(self._turn.shrinks.sweep, orphan, self._clock.now()))
            outcomes += [swept] if swept is not None else []
        result = UpdateResult((*outcomes, *self._in_between), budgets.taken, budgets.left)
        self._in_between = []
        logger.info("updater cycle done", extra={"pods": len(world.pods), **{code.value: n for code, n in result.counts().items()}})
        return result

    def relieve(self) -> UpdateResult:
        """The quick round between cycles: give more to the containers that press against their memory limits. For the same thread."""
        return UpdateResult(tuple(self._relieve(may_restart=True)))

    def _relieve(self, *, may_restart: bool) -> list[PodOutcome]:
        self._is_relieving = True
        self._alarm()  # whatever it is about is read now
        try:
            return self._reliever.relieve(self._guarded, may_restart=may_restart)
        except ClusterError as error:  # the cycle says more of it, if it concerns that too
            logger.warning("nobody relieved", extra={"reason": error.reason, "error": str(error)})
            return []
        finally:
            self._is_relieving = False

    def _arrange(self, world: World, proposals: Sequence[Proposal], budgets: Budgets) -> Arrangement:
        now = self._clock.now()
        arranged = arrange(world, proposals, budgets, self._watcher.watch(world, now), self._bucket, now, self._settings)
        self._bucket = arranged.bucket
        return arranged

    def _carry_out(
        self, world: World, arranged: Arrangement, proposals: Sequence[Proposal], budgets: Budgets
    ) -> tuple[list[PodOutcome], list[EvictionCandidate]]:
        """What became of the proposals; those for which their node has no room may be candidates for an eviction instead."""
        outcomes: list[PodOutcome] = []
        unwritten: dict[ObjectKey, ClusterError] = {}
        for vpa in world.vpas:
            step = arranged.rollouts.get(vpa.key)
            if step is not None:
                failure = self._rollouts.write(vpa, step)
                if failure is not None:
                    logger.warning("rollout not noted: nothing new of it goes", extra={"vpa": str(vpa.key), "error": str(failure)})
                    unwritten[vpa.key] = failure
                # Whatever could be noted: what did harm is taken back.
                outcomes += self._take_back(world, vpa, step, budgets, noted=failure is None)
        for proposal in arranged.go:
            # What belongs to no rollout needs no note of it.
            unnoted = unwritten.get(proposal.vpa.key) if proposal.rollout is not None else None
            outcomes.append(self._guarded(proposal.view.pod.key, proposal.vpa, partial(self._send, proposal, unnoted)))
        outcomes += [_failed(p, error) for p in proposals if (error := arranged.failures.get(p.vpa.key)) is not None]
        gone = {outcome.pod for outcome in outcomes}
        crowded, held = self._crowded([one for one in arranged.held if one.proposal.view.pod.key not in gone])
        return [*outcomes, *held], crowded

    def _send(self, proposal: Proposal, unwritten: ClusterError | None) -> PodOutcome:
        """Carry it out, unless the state of its rollout could not be written."""
        if unwritten is not None:
            raise unwritten
        return self._turn.carry_out(proposal)

    def _crowded(self, held: Sequence[HeldBack]) -> tuple[list[EvictionCandidate], list[PodOutcome]]:
        """Told apart: the pods whose node has had no room for so long that an eviction may be the better way, and all others."""
        now = self._clock.now()
        no_room = {one.proposal.view.pod.metadata.uid for one in held if one.reason is RefusalReason.NODE_FULL}
        self._no_room_since = {uid: self._no_room_since.get(uid, now) for uid in no_room}
        crowded: list[EvictionCandidate] = []
        outcomes: list[PodOutcome] = []
        # One outcome a pod, though a part of its proposal may wait for one thing and another part for another.
        for one in {one.proposal.view.pod.key: one for one in reversed(held)}.values():
            since = self._no_room_since.get(one.proposal.view.pod.metadata.uid)
            candidate = None if since is None else without_room(one.proposal, one.reason, one.message, since)
            if candidate is not None:
                crowded.append(candidate)
            else:
                outcomes.append(self._turn.hold_back(one.proposal, one.reason, one.message))
        return crowded, outcomes

    def _take_back(self, world: World, vpa: Vpa, step: RolloutStep, budgets: Budgets, *, noted: bool) -> list[PodOutcome]:
        outcomes = [self._guarded(pod.key, vpa, partial(self._roll_back, world, pod, budgets, noted=noted)) for pod in step.revert]
        for pod in step.call_off:
            outcome = self._guarded(pod.key, vpa, partial(self._call_off, world, pod))
            outcomes += [outcome] if outcome is not None else []
        return outcomes

    def _roll_back(self, world: World, pod: Pod, budgets: Budgets, *, noted: bool) -> PodOutcome:
        return self._turn.roll_back(world.view(pod, world.vpa_of.get(pod.key), self._clock.now(), self._settings), budgets, noted=noted)

    def _call_off(self, world: World, pod: Pod) -> None:
        self._turn.shrinks.abort_all(world.view(pod, world.vpa_of.get(pod.key), self._clock.now(), self._settings), AbortReason.DEGRADED)

    def _settle(self, candidate: EvictionCandidate, world: World, arranged: Arrangement, budgets: Budgets) -> PodOutcome:
        otherwise = candidate.otherwise
        verdict = self._evictor.judge(candidate, world, budgets, arranged.rollout_of(candidate.vpa))
        if isinstance(verdict, Keep):
            return self._turn.spare(candidate, verdict)
        outcome = self._evictor.evict(candidate, verdict, budgets)
        # What has come to nothing does not stay so because the eviction is refused.
        if outcome.code is OutcomeCode.REFUSED and isinstance(otherwise, Revert):
            return self._turn.take_back(candidate.view, otherwise)
        return outcome

    def _visit(self, world: World, pod: Pod, vpa: Vpa | None, budgets: Budgets) -> Turn | None:
        if pod.metadata.deletion_timestamp is not None:
            return None
        # The time is of each pod's own turn: a cycle may last longer than a Holding may be old.
        return self._turn.take(world.view(pod, vpa, self._clock.now(), self._settings), budgets)

    def _guarded(self, pod: ObjectKey, vpa: Vpa | None, act: Callable[[], T]) -> T | PodOutcome:
        """What ``act`` gives; an error becomes an outcome, so that one pod never stops the others."""
        if not self._is_relieving and self._alarm():
            # What restarts a container waits: the cycle has its own account of the budgets.
            self._in_between += self._relieve(may_restart=False)
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


def _failed(proposal: Proposal, error: Exception) -> PodOutcome:
    key = proposal.vpa.key
    code, reason = (OutcomeCode.BAD_OBJECT, error.reason) if isinstance(error, VpaIpprError) else (OutcomeCode.FAILED, type(error).__name__)
    return PodOutcome(proposal.view.pod.key, key, code, reason, f"rollout of {key}: {error}")
