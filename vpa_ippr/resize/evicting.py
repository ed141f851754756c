"""Evictions of one cycle: judged one after the other, each against what those before it have left of budgets and rate."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from vpa_ippr.api.errors import ClusterError
from vpa_ippr.resize.arranging import Budgets
from vpa_ippr.resize.consider import EvictionCandidate
from vpa_ippr.resize.eviction import Evict, EvictionRate, Keep, Surroundings, judge_eviction, refilled
from vpa_ippr.resize.ports import UpdaterPort
from vpa_ippr.resize.reasons import EventReason, OutcomeCode
from vpa_ippr.resize.refusal import Answer, classify
from vpa_ippr.resize.result import PodOutcome
from vpa_ippr.resize.rollout_state import Rollout, failure_in_force
from vpa_ippr.resize.settings import Settings
from vpa_ippr.resize.world import World
from vpa_ippr.resize.writer import Writer

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Admission:
    """When an admission controller has renewed its lease last, or why that cannot be told."""

    renewed_at: float | None
    problem: str = ""


def ask_admission(cluster: UpdaterPort) -> Admission:
    """Ask for the admission controllers' leases; where that fails nothing can be evicted."""
    try:
        return Admission(cluster.admission_renewed_at())
    except ClusterError as error:
        logger.warning("lease of an admission controller not read: nothing is evicted", extra={"error": str(error)})
        return Admission(None, f"its lease cannot be read: {error}")


def judge_candidate(
    candidate: EvictionCandidate,
    world: World,
    budgets: Budgets,
    rollout: Rollout,
    admission: Admission,
    rate: EvictionRate | None,
    settings: Settings,
) -> Evict | Keep:
    """Whether the pod is to be evicted, by all that is known of its surroundings.

    Raises:
        QuantityError: a quantity of the pod or of the VPA cannot be read.
    """
    view, vpa = candidate.view, candidate.vpa
    budget = budgets.of(vpa)
    surroundings = Surroundings(
        admission_renewed_at=admission.renewed_at,
        live_pods=budget.live,
        budget=budget,
        rate=rate,
        nodes=tuple(world.nodes.values()),
        limits=view.limits,
        admission_problem=admission.problem,
        failure=failure_in_force(rollout, view.now),
    )
    return judge_eviction(view.pod, vpa, candidate.occasion, view.circumstances, surroundings, view.now, settings)


class Evictor:
    """Evicts pods; between cycles it remembers only how many may be evicted at once."""

    def __init__(self, cluster: UpdaterPort, writer: Writer, settings: Settings) -> None:
        self._cluster = cluster
        self._writer = writer
        self._settings = settings
        self._rate: EvictionRate | None = None
        self._admission: Admission | None = None

    def begin_cycle(self, now: float) -> None:
        """Refill the rate, and ask anew for the admission controller when it is first needed."""
        self._rate = refilled(self._rate, now, self._settings)
        self._admission = None

    def judge(self, candidate: EvictionCandidate, world: World, budgets: Budgets, rollout: Rollout) -> Evict | Keep:
        """Whether the pod is to be evicted now; ``rollout`` is that of its VPA.

        Raises:
            VpaIpprError: an object cannot be read.
        """
        if self._admission is None:
            self._admission = ask_admission(self._cluster)
        return judge_candidate(candidate, world, budgets, rollout, self._admission, self._rate, self._settings)

    def evict(self, candidate: EvictionCandidate, verdict: Evict, budgets: Budgets) -> PodOutcome:
        """Ask the API server, which has the last word on PodDisruptionBudgets.

        Raises:
            ClusterError: the API failed.
        """
        view, pod = candidate.view, candidate.view.pod
        try:
            self._cluster.evict_pod(pod.key, pod.metadata.uid)
        except ClusterError as error:
            refusal = classify(error)
            if refusal.answer is not Answer.REFUSED:
                self._charge(candidate, budgets)  # it may be done, with its answer lost, or the pod is gone anyhow
                raise
            self._writer.say_once(pod, EventReason.RESIZE_REFUSED, f"evict {refusal.reason}", refusal.message)
            return view.outcome(OutcomeCode.REFUSED, refusal.reason or "", refusal.message)
        self._charge(candidate, budgets)
        why = ", ".join(verdict.reasons)
        self._writer.say(pod, EventReason.POD_EVICTED, why)
        self._writer.say_of_vpa(candidate.vpa, "Normal", EventReason.POD_EVICTED, f"pod {pod.metadata.name}: {why}")
        logger.info("pod evicted", extra={"pod": str(pod.key), "reasons": why})
        return view.outcome(OutcomeCode.EVICTED, verdict.reasons[0], why)

    def _charge(self, candidate: EvictionCandidate, budgets: Budgets) -> None:
        budgets.take(candidate.vpa, candidate.view.pod)
        self._rate = self._rate.taking() if self._rate is not None else None
