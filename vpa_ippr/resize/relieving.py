"""The round in which containers that press against their memory limits get more: the agents' reports are read, pods raised at once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from vpa_ippr.api.clock import Clock
from vpa_ippr.api.errors import ClusterError
from vpa_ippr.api.meta import ObjectKey
from vpa_ippr.api.pod import Pod
from vpa_ippr.api.shrink import Intent
from vpa_ippr.api.timestamps import parse_time
from vpa_ippr.api.vpa import Vpa
from vpa_ippr.resize.arranging import Budgets
from vpa_ippr.resize.footprint import Wish
from vpa_ippr.resize.issuing import with_infeasible
from vpa_ippr.resize.ledger import WHOLE_POD, Ledger, Scope, read_ledger, with_hold_off, with_relief
from vpa_ippr.resize.ports import UpdaterPort
from vpa_ippr.resize.reasons import AbortReason, EventReason, NotDueReason, OutcomeCode, RefusalReason, ReliefReason, RevertReason
from vpa_ippr.resize.refusal import Answer, classify
from vpa_ippr.resize.relief import Plea, Relief, Unrelieved, is_fresh, pleas_of, relief_of
from vpa_ippr.resize.relief_size import Ground
from vpa_ippr.resize.result import PodOutcome
from vpa_ippr.resize.rules import VersionRules
from vpa_ippr.resize.settings import Settings
from vpa_ippr.resize.state import Pending, PendingReason, classify_infeasible
from vpa_ippr.resize.view import View
from vpa_ippr.resize.world import World, read_world
from vpa_ippr.resize.writer import ResizeRefusedError, Writer

logger = logging.getLogger(__name__)

Guarded = Callable[[ObjectKey, Vpa | None, Callable[[], PodOutcome]], PodOutcome]
"""Calls, and makes an outcome of an error."""

_ATTEMPTS: Final = 2
"""The kubelet writes the pod's status all the time; more than one conflict in a row is no chance any more."""
# As it should be, or over in a moment: no news to anybody.
_QUIET: Final = frozenset(
    {
        ReliefReason.STALE,
        ReliefReason.OTHER_POD,
        ReliefReason.OTHER_CONTAINER,
        ReliefReason.OTHER_LIMIT,
        ReliefReason.NOT_CONTROLLED,
        ReliefReason.LIMIT_NOT_CONTROLLED,
        ReliefReason.UNDER_WAY,
        ReliefReason.TOO_SOON,
        NotDueReason.NO_VPA,
        NotDueReason.MODE_OFF,
        NotDueReason.MODE_INITIAL,
        NotDueReason.MODE_NEEDS_EVICTION,
        NotDueReason.MODE_UNKNOWN,
        NotDueReason.PAUSED,
        NotDueReason.POD_DELETING,
        NotDueReason.POD_NOT_RUNNING,
    }
)


class Reliever:
    """Relieves; all that it must not forget is in the pods' ledgers."""

    def __init__(self, cluster: UpdaterPort, writer: Writer, clock: Clock, settings: Settings, rules: VersionRules) -> None:
        self._cluster = cluster
        self._writer = writer
        self._clock = clock
        self._settings = settings
        self._rules = rules

    def relieve(self, guarded: Guarded, *, may_restart: bool) -> list[PodOutcome]:
        """An outcome for each container that an agent tells of. Without ``may_restart`` those that would be restarted wait.

        Raises:
            ClusterError: the cluster could not be read.
        """
        now = self._clock.now()
        pleas = list(pleas_of(self._cluster.list_node_memories()))
        fresh = [plea for plea in pleas if is_fresh(plea, now, self._settings)]
        outcomes = [_stale(plea) for plea in pleas if plea not in fresh]
        if not fresh:
            return outcomes
        wanted = {plea.pod for plea in fresh}
        one_round = _Round(read_world(self._cluster, lambda pod: pod.key in wanted), {plea.node for plea in fresh})
        budgets = _LazyBudgets(self._cluster, self._settings) if may_restart else None
        vpa_of = one_round.world.vpa_of
        return [*outcomes, *(guarded(one.pod, vpa_of.get(one.pod), partial(self._attend, one, one_round, budgets)) for one in fresh)]

    def _attend(self, plea: Plea, one_round: _Round, budgets: _LazyBudgets | None) -> PodOutcome:
        """Judged by what is listed, so that most cost no request; then by the pod as it is now."""
        listed, now = one_round.pods.get(plea.pod), self._clock.now()
        if plea.pod in one_round.world.unmatched:
            return next(one for one in one_round.world.problems if one.pod == plea.pod)
        if listed is None:
            return _gone(plea)
        verdict = self._judge(plea, listed, one_round, now)
        if isinstance(verdict, Relief):
            verdict = self._try(plea, one_round, budgets, now, attempts=_ATTEMPTS)
        return verdict

    def _try(self, plea: Plea, one_round: _Round, budgets: _LazyBudgets | None, now: float, *, attempts: int) -> PodOutcome:
        pod = self._cluster.get_pod(plea.pod)
        if pod is None:
            return _gone(plea)
        verdict = self._judge(plea, pod, one_round, now)
        if isinstance(verdict, PodOutcome):
            return verdict
        try:
            return self._relieve(one_round.view(pod, now, self._settings), plea, verdict, one_round.ground, budgets)
        except ClusterError as error:
            if classify(error).answer is not Answer.READ_AGAIN or attempts == 1:
                raise
        return self._try(plea, one_round, budgets, now, attempts=attempts - 1)

    def _judge(self, plea: Plea, pod: Pod, one_round: _Round, now: float) -> Relief | PodOutcome:
        view = one_round.view(pod, now, self._settings)
        verdict = relief_of(plea, view, self._rules, one_round.ground, self._settings)
        return verdict if isinstance(verdict, Relief) else self._leave(view, plea, verdict)

    def _leave(self, view: View, plea: Plea, no: Unrelieved) -> PodOutcome:
        if no.reason not in _QUIET:
            entry = plea.entry
            occasion = f"{entry.container_name} {no.reason} {entry.limit_bytes}"
            self._writer.say_once(view.pod, EventReason.NOT_RELIEVED, occasion, f"{no.reason}: {no.message} ({plea.text})")
        return view.outcome(OutcomeCode.NOT_RELIEVED, no.reason, no.message)

    def _relieve(self, view: View, plea: Plea, relief: Relief, ground: Ground, budgets: _LazyBudgets | None) -> PodOutcome:
        refusal = _unaffordable(view, relief, budgets)
        if refusal is not None:
            return self._leave(view, plea, Unrelieved(RefusalReason.DISRUPTION_BUDGET, refusal))
        self._call_off(view, relief.container)
        ledger = with_relief(
            self._learned(view, relief), relief.container, relief.floor_bytes, OutcomeCode.RELIEVED, view.now, self._settings
        )
        try:
            self._writer.resize(view.pod, ledger, relief.after, view.now)
        except ResizeRefusedError as error:
            return self._refused(view, plea, error)
        self._writer.say(view.pod, EventReason.MEMORY_RELIEVED, f"{relief.message} ({plea.text})")
        ground.take(Wish(view.pod, relief.after))
        seconds = max(0.0, self._clock.now() - parse_time(plea.entry.observed_time))
        return replace(view.outcome(OutcomeCode.RELIEVED, plea.entry.reason, relief.message), seconds=seconds)

    def _call_off(self, view: View, container: str) -> None:
        """The agent gives back what it holds; more memory does not wait for that, nor for the request to arrive."""
        for shrink in view.active:
            if shrink.spec.container.name == container and shrink.spec.intent is not Intent.ABORT:
                try:
                    self._writer.abort_shrink(shrink, AbortReason.PRESSING, view.pod)
                except ClusterError as error:  # the next cycle sees that the limit has changed, and calls it off
                    logger.warning("shrink not called off", extra={"shrink": str(shrink.key), "error": str(error)})

    def _learned(self, view: View, relief: Relief) -> Ledger:
        """With what a resize has taught of which the relief takes the place."""
        if not relief.takes_back or not isinstance(view.state, Pending):
            return view.ledger
        if view.state.reason is PendingReason.INFEASIBLE:
            return with_infeasible(view, view.ledger, classify_infeasible(view.state.message))
        return with_hold_off(view.ledger, WHOLE_POD, Scope.GROW, RevertReason.DEFERRED_TOO_LONG, view.now, self._settings)

    def _refused(self, view: View, plea: Plea, error: ResizeRefusedError) -> PodOutcome:
        refusal = classify(error.cause)
        reason = refusal.reason or RefusalReason.INVALID
        if reason is not RefusalReason.PERMISSION_DENIED:
            container = plea.entry.container_name
            ledger = with_hold_off(read_ledger(error.pod), container, Scope.GROW, reason, view.now, self._settings)
            self._writer.remember(error.pod, ledger)
        return self._leave(view, plea, Unrelieved(reason, refusal.message))


class _Round:
    """What is read once for all that are relieved together."""

    def __init__(self, world: World, nodes: set[str]) -> None:
        self.world = world
        self.pods: Mapping[ObjectKey, Pod] = {pod.key: pod for pod in world.pods}
        self.ground = Ground.of(world, nodes)

    def view(self, pod: Pod, now: float, settings: Settings) -> View:
        """What there is to see of the pod."""
        return self.world.view(pod, self.world.vpa_of.get(pod.key), now, settings)


class _LazyBudgets:
    """Budgets need all pods of a workload, and hardly any relief a budget."""

    def __init__(self, cluster: UpdaterPort, settings: Settings) -> None:
        self._cluster = cluster
        self._settings = settings
        self._budgets: Budgets | None = None

    def refusal(self, vpa: Vpa, pod: Pod) -> str | None:
        """Why the pod may not be disturbed now; None when it may, and then the budget is charged."""
        if self._budgets is None:
            self._budgets = Budgets(read_world(self._cluster), self._settings)
        return self._budgets.charge(vpa, pod)


def _unaffordable(view: View, relief: Relief, budgets: _LazyBudgets | None) -> str | None:
    if not relief.restarts or view.vpa is None:
        return None
    if budgets is None:
        return "nothing is restarted in the middle of a cycle"
    return budgets.refusal(view.vpa, view.pod)


def _gone(plea: Plea) -> PodOutcome:
    return PodOutcome(plea.pod, None, OutcomeCode.NOT_RELIEVED, ReliefReason.OTHER_POD, "no such pod is there")


def _stale(plea: Plea) -> PodOutcome:
    return PodOutcome(plea.pod, None, OutcomeCode.NOT_RELIEVED, ReliefReason.STALE, f"the agent of node {plea.node} wrote at {plea.beat}")
