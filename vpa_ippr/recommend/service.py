"""The recommender's cycle: VPAs and pods from the cluster, usage from the source, recommendations back into the VPAs.

Everything that decides lives in the other modules; this one moves values between them and the ports. What fails for one VPA, pod or
namespace is told in the result and stops nothing else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Final

from vpa_ippr.api.clock import Clock
from vpa_ippr.api.cluster import EventType
from vpa_ippr.api.errors import ClusterError, SourceError, VpaIpprError
from vpa_ippr.api.meta import ObjectKey
from vpa_ippr.api.names import (
    ANNOTATION_EXPLANATION,
    ANNOTATION_RECOMMENDATIONS_BY_NODE_LABEL,
    CONDITION_CONFIG_UNSUPPORTED,
    CONDITION_LOW_CONFIDENCE,
    CONDITION_NO_DATA,
    CONDITION_NO_PODS_MATCHED,
    CONDITION_RECOMMENDATION_PROVIDED,
)
from vpa_ippr.api.node_split import write_by_value
from vpa_ippr.api.series import Evidence, Finding, Usage, Window, WorkloadRef
from vpa_ippr.api.vpa import Vpa
from vpa_ippr.forecast.catalogue import Profile
from vpa_ippr.forecast.forecasters import ProfileModel
from vpa_ippr.recommend.checkpoints import Stored, new_checkpoint, read_checkpoints
from vpa_ippr.recommend.cycle import CheckpointResult, CycleResult, RecommenderSettings, VpaOutcome
from vpa_ippr.recommend.cycle_state import CycleState
from vpa_ippr.recommend.ended_pods import ended_pods, place, read_pod_nodes
from vpa_ippr.recommend.history import ReadRequest, Tracking, UsageHistory
from vpa_ippr.recommend.live import scalable
from vpa_ippr.recommend.node_parts import SeenNodes, largest_of, value_of, with_parts
from vpa_ippr.recommend.outlooks import Outlooks
from vpa_ippr.recommend.ownership import pod_workload
from vpa_ippr.recommend.pipeline import ContainerUse, WorkloadUse, estimate_workloads
from vpa_ippr.recommend.planning import Plan, plan_vpas
from vpa_ippr.recommend.ports import EvidenceSource, PodNodeSource, RecommenderCluster, UsageSource
from vpa_ippr.recommend.postprocess import postprocess
from vpa_ippr.recommend.result import Recommendation
from vpa_ippr.recommend.retraining import DEFAULT_RETRAINING, RetrainingRules, Verdict, retrain
from vpa_ippr.recommend.series import NO_EVIDENCE, keeping_of, unread_evidence
from vpa_ippr.recommend.status import Problem, build_status, explain, needs_explanation, new_conditions, problems_of

_ENDED: Final = ("Succeeded", "Failed")


class RecommenderService:
    """Keeps the usage of our VPAs' workloads from cycle to cycle, and writes recommendations; one thread at a time."""

    def __init__(
        self,
        source: UsageSource,
        cluster: RecommenderCluster,
        clock: Clock,
        catalogue: Mapping[str, Profile],
        settings: RecommenderSettings,
        evidence: EvidenceSource | None = None,
        model: ProfileModel | None = None,
        pod_nodes: PodNodeSource | None = None,
    ) -> None:
        """Without ``evidence`` what was used counts; ``model`` takes the place of those that profiles name.

        Without ``pod_nodes`` pods that have ended do not count where pods are told apart by their nodes.
        """
        self._source = source
        self._evidence = evidence
        self._pod_nodes = pod_nodes
        self._cluster = cluster
        self._clock = clock
        self._catalogue = catalogue
        self._settings = settings
        self._history = UsageHistory()
        self._outlooks = Outlooks(self._history, settings.models, model)
        self._nodes = SeenNodes()
        # What the last cycle served, part by part, with its pods, and when: checkpoints are of that state.
        self._served: tuple[tuple[Plan, WorkloadRef, frozenset[str]], ...] = ()
        self._served_at = clock.now()

    def run_cycle(self) -> CycleResult:
        """Bring every VPA of ours up to date.

        Raises:
            ClusterError: the VPAs or the pods could not be listed, so that nothing can be done.
        """
        cycle = CycleState(self._clock.now(), cache(self._cluster.find_workload))
        self._plan(cycle)
        self._match_pods(cycle)
        self._track(cycle)
        self._read_usage(cycle)
        self._recommend(cycle)
        return cycle.result()

    def write_checkpoints(self) -> CheckpointResult:
        """Write what has changed since it was last written, of every VPA that the last cycle served."""
        saving = CycleState(self._served_at, self._cluster.find_workload)
        for plan, part, pods in self._served:
            with saving.guard(f"checkpoints of vpa {plan.vpa.key}"):
                self._write_checkpoints_of(saving, plan, part, pods)
        return CheckpointResult(saving.checkpoints_written, tuple(saving.failures))

    def retrain(self, rules: RetrainingRules = DEFAULT_RETRAINING) -> Verdict:
        """Train a model on what was read until now, and judge it; nothing changes before it is adopted."""
        return retrain(self._history.steps(), self._outlooks.models, rules)

    def adopt(self, model: ProfileModel) -> None:
        """Use this model from the next cycle on, which decides the last hours again, as after a restart with it.

        Every checkpoint is out of date: write them after that cycle.
        """
        self._outlooks.adopt(model)
        self._history.save_all()

    def _plan(self, cycle: CycleState) -> None:
        plans, refused = plan_vpas(self._cluster.list_vpas(), self._catalogue, self._settings, cycle.find)
        broken = self._outlooks.prepare(plan.profile for plan in plans)
        plans = [_unless_broken(plan, broken.get(plan.profile.name)) for plan in plans]
        cycle.plans = plans = self._split(cycle, plans)
        cycle.failures += [plan.failure for plan in plans if plan.failure is not None]
        unsupported = [(plan.vpa, plan.workload, plan.problem) for plan in plans if plan.problem is not None]
        for vpa, workload, problem in [*unsupported, *((one.vpa, None, one.problem) for one in refused)]:
            cycle.failures.append(Finding(problem.reason, str(vpa.key), 1, f"vpa {vpa.key}: {problem.message}"))
            with cycle.guard(f"vpa {vpa.key}"):
                self._publish(cycle, vpa, workload, None, (problem,))

    def _split(self, cycle: CycleState, plans: Sequence[Plan]) -> list[Plan]:
        if all(plan.split is None for plan in plans):
            return list(plans)
        unread = None
        try:
            self._nodes.see(self._cluster.list_nodes(), cycle.now)
        except ClusterError as error:
            unread = error
        plans = [with_parts(plan, self._nodes, unread) for plan in plans]
        # Where several VPAs name one workload, the one that is served decides.
        for plan in sorted(plans, key=lambda plan: plan.is_served):
            cycle.splits.pop(plan.workload, None)
            if plan.split is not None:
                cycle.splits[plan.workload] = plan.split
        return plans

    def _match_pods(self, cycle: CycleState) -> None:
        namespaces = {plan.workload.namespace for plan in cycle.plans}
        for pod in self._cluster.list_pods():
            if pod.metadata.namespace not in namespaces:
                continue
            with cycle.guard(f"pod {pod.key}"):
                workload = pod_workload(pod, cycle.find)
                if workload is not None and workload in cycle.splits:
                    workload = self._nodes.part(workload, cycle.splits[workload], pod.spec.node_name)
                if workload is None:
                    continue
                cycle.owners[pod.metadata.namespace, pod.metadata.name] = workload
                if pod.status.phase not in _ENDED:
                    cycle.live[workload].append(pod)

    def _track(self, cycle: CycleState) -> None:
        # Those that are served come last, so that theirs are the rules where several VPAs name one workload.
        ordered = sorted(cycle.plans, key=lambda plan: plan.is_served)
        tracked = [(part, plan) for plan in ordered for part in plan.parts]
        self._history.track({part: Tracking(plan.rules, plan.rules_of, keeping_of(plan.profile)) for part, plan in tracked})
        cycle.profiles = {part: plan.profile for part, plan in tracked}
        served = ((plan, part, cycle.live.get(part, ())) for plan in cycle.served for part in plan.parts)
        self._served = tuple((plan, part, frozenset(pod.metadata.name for pod in pods)) for plan, part, pods in served)
        self._served_at = cycle.now

    def _read_usage(self, cycle: CycleState) -> None:
        # A workload whose target cannot be looked up waits: its pods are not known, so reading on would pass over their samples.
        workloads = {part for plan in cycle.served for part in plan.parts}
        new = self._history.new_among(workloads)
        stored = self._read_checkpoints(cycle, new)
        for request in self._history.requests(workloads, cycle.now, self._settings.history_seconds):
            if stored is None and new.intersection(request.workloads):
                # Without the checkpoints a shorter history would be taken for the whole one, and written over it.
                message = "the checkpoints could not be listed, so the history is not read yet"
                cycle.unread |= dict.fromkeys(request.workloads, Finding("CheckpointsUnread", "checkpoints", 1, message))
                continue
            self._read(cycle, request, stored or Stored())

    def _read(self, cycle: CycleState, request: ReadRequest, stored: Stored) -> None:
        window = Window(request.start, cycle.now, self._settings.step_seconds)
        try:
            usage = self._source.fetch(window, request.namespaces)
        except SourceError as error:
            failure = Finding(error.reason, "usage", 1, str(error))
            cycle.failures.append(failure)
            cycle.unread |= dict.fromkeys(request.workloads, failure)
            return
        failed = {failure.subject: failure for failure in usage.failures}
        cycle.failures += usage.failures
        cycle.findings += usage.findings
        cycle.unread |= {workload: failed[workload.namespace] for workload in request.workloads if workload.namespace in failed}
        request, owners = self._place(cycle, request, window, usage)
        begun = self._history.new_among(request.workloads)
        evidence = self._read_evidence(cycle, request, frozenset(failed))
        cycle.findings += self._history.absorb(request, usage, cycle.now, owners, stored.usage, failed, stored.learned, evidence)
        begun -= self._history.new_among(begun)
        for plan in cycle.served:
            for part in begun.intersection(plan.parts):
                learned = {key: one for key, one in stored.learned.items() if key[0] == part}
                cycle.findings += self._outlooks.restore(plan.profile, learned)

    def _place(
        self, cycle: CycleState, request: ReadRequest, window: Window, usage: Usage
    ) -> tuple[ReadRequest, Mapping[tuple[str, str], WorkloadRef]]:
        """The owners of the pods, those included that have ended where pods are told apart by their nodes.

        Parts in namespaces whose pods cannot be placed leave the request, and wait.
        """
        ended = ended_pods(usage.owners, request.workloads, cycle.owners)
        found = read_pod_nodes(self._pod_nodes, window, ended)
        placement = place(ended, found, cycle.splits, self._nodes)
        cycle.failures += placement.failures
        cycle.findings += placement.findings
        waiting = placement.waiting_among(request.workloads)
        cycle.unread |= waiting
        readable = tuple(workload for workload in request.workloads if workload not in waiting)
        return replace(request, workloads=readable), {**cycle.owners, **placement.owners}

    def _read_evidence(self, cycle: CycleState, request: ReadRequest, unread: Collection[str]) -> Evidence:
        """The evidence that goes with the usage. It is optional: where it cannot be read, what was measured counts."""
        wanted = self._history.evidence_request(request, cycle.now)
        if self._evidence is None or wanted is None:
            return NO_EVIDENCE
        window, namespaces = wanted
        readable = [namespace for namespace in namespaces if namespace not in unread]
        if not readable:
            return NO_EVIDENCE
        try:
            evidence = self._evidence.fetch_evidence(window, readable)
        except SourceError as error:
            evidence = unread_evidence(error)
        cycle.findings += (*evidence.findings, *evidence.failures)
        return evidence

    def _read_checkpoints(self, cycle: CycleState, new: frozenset[WorkloadRef]) -> Stored | None:
        """What is stored of these workloads; None when the checkpoints could not be listed."""
        if not new:
            return Stored()
        try:
            checkpoints = self._cluster.list_checkpoints()
        except ClusterError as error:
            cycle.failures.append(Finding(error.reason, "checkpoints", 1, str(error)))
            return None
        stored = read_checkpoints(checkpoints, [plan for plan in cycle.served if new.intersection(plan.parts)])
        cycle.findings += stored.findings
        return stored

    def _recommend(self, cycle: CycleState) -> None:
        known: dict[ObjectKey, bool] = {}
        by_profile: dict[str, list[WorkloadUse]] = defaultdict(list)
        for plan in cycle.served:
            with cycle.guard(f"vpa {plan.vpa.key}"):
                uses = {part: self._present_uses(cycle, part) for part in plan.parts}
                known[plan.vpa.key] = any(uses.values())
                for part, used in uses.items():
                    active = {name: use for name, use in used.items() if not plan.policy_of(name).off}
                    by_profile[plan.profile.name].append(WorkloadUse(part, active))
        found: dict[WorkloadRef, list[Recommendation]] = defaultdict(list)
        estimated: set[str] = set()
        for name, workloads in by_profile.items():
            with cycle.guard(f"profile {name}"):
                for recommendation in self._estimate(cycle, self._catalogue[name], workloads):
                    found[recommendation.workload].append(recommendation)
                estimated.add(name)
        for plan in [plan for plan in cycle.served if plan.vpa.key in known and (plan.profile.name in estimated or not plan.parts)]:
            with cycle.guard(f"vpa {plan.vpa.key}"):
                self._settle(cycle, plan, known[plan.vpa.key], {part: found[part] for part in plan.parts})

    def _estimate(self, cycle: CycleState, profile: Profile, workloads: Sequence[WorkloadUse]) -> list[Recommendation]:
        # An ensemble goes on for all that are tracked, or what is not served for a moment would be forgotten.
        pods = {workload: cycle.live.get(workload, []) for workload, other in cycle.profiles.items() if other is profile}
        outlooks, findings = self._outlooks.at(profile, pods, cycle.now)
        cycle.findings += findings
        return estimate_workloads(workloads, profile, cycle.findings, outlooks)

    def _present_uses(self, cycle: CycleState, part: WorkloadRef) -> dict[str, ContainerUse]:
        """The containers that live pods have; all that are known while there is no pod, as between the runs of a CronJob."""
        pods = cycle.live.get(part, [])
        names = {container.name for pod in pods for container in scalable(pod)}
        return self._history.uses(part, cycle.now, names if pods else None)

    def _settle(self, cycle: CycleState, plan: Plan, known: bool, by_part: Mapping[WorkloadRef, Sequence[Recommendation]]) -> None:
        unread = next((cycle.unread[part] for part in plan.parts if part in cycle.unread), None)
        found = [one for recommendations in by_part.values() for one in recommendations]
        problems = []
        if not any(cycle.live.get(part) for part in plan.parts):
            message = f"no pod of {plan.workload.kind}/{plan.workload.name} is running"
            problems.append(Problem(CONDITION_NO_PODS_MATCHED, "NoPodsMatched", message))
        if unread is not None:
            problems.append(Problem(CONDITION_NO_DATA, unread.reason, unread.message))
        elif not known:
            problems.append(Problem(CONDITION_NO_DATA, "NoSamples", "no usage of any of its containers was found"))
        if any(recommendation.is_thin for recommendation in found):
            problems.append(Problem(CONDITION_LOW_CONFIDENCE, "ShortHistory", "the history is short, so the bounds are wide"))
        problems += problems_of(found)
        recommendations = None
        if unread is None and known:
            processed = {part: self._postprocessed(plan, own) for part, own in by_part.items()}
            if plan.split is None:
                recommendations = processed[plan.workload]
            else:
                recommendations = largest_of(plan.workload, processed.values())
                self._publish_parts(plan.vpa, plan.split, processed)
        self._publish(cycle, plan.vpa, plan.workload, recommendations, tuple(problems))

    def _postprocessed(self, plan: Plan, found: Iterable[Recommendation]) -> tuple[Recommendation, ...]:
        allowed, rounding = self._settings.max_allowed, self._settings.rounding
        processed = (postprocess(r, plan.vpa, plan.policy_of(r.container), allowed, rounding) for r in found)
        return tuple(recommendation for recommendation in processed if recommendation is not None)

    def _publish_parts(self, vpa: Vpa, label: str, by_part: Mapping[WorkloadRef, Sequence[Recommendation]]) -> None:
        humanize = self._settings.rounding.humanize_memory
        values = {value_of(part): [one.to_status(humanize_memory=humanize) for one in found] for part, found in by_part.items() if found}
        text = write_by_value(label, values)
        if vpa.metadata.annotations.get(ANNOTATION_RECOMMENDATIONS_BY_NODE_LABEL) != text:
            self._cluster.annotate_vpa(vpa.key, {ANNOTATION_RECOMMENDATIONS_BY_NODE_LABEL: text})

    def _publish(
        self,
        cycle: CycleState,
        vpa: Vpa,
        workload: WorkloadRef | None,
        recommendations: tuple[Recommendation, ...] | None,
        problems: tuple[Problem, ...],
    ) -> None:
        humanize = self._settings.rounding.humanize_memory
        status = build_status(vpa, recommendations, problems, cycle.now, humanize_memory=humanize)
        if status != vpa.status:
            self._cluster.patch_vpa_status(vpa.key, status)
            cycle.statuses_written += 1
        if recommendations and needs_explanation(vpa, status):
            self._cluster.annotate_vpa(vpa.key, {ANNOTATION_EXPLANATION: explain(recommendations, cycle.now)})
        for condition in new_conditions(vpa, status):
            event_type: EventType = "Normal" if condition.type == CONDITION_RECOMMENDATION_PROVIDED else "Warning"
            self._cluster.record_event(
                vpa, event_type, condition.reason or condition.type, condition.message or "a recommendation is there"
            )
        cycle.outcomes.append(VpaOutcome(vpa.key, workload, recommendations, problems))

    def _write_checkpoints_of(self, cycle: CycleState, plan: Plan, part: WorkloadRef, pods: frozenset[str]) -> None:
        for name, state in self._history.changed(part).items():
            learned = self._outlooks.stored(plan.profile, part, name)
            self._cluster.put_checkpoint(new_checkpoint(plan.vpa, (part, name), state, learned, pods=pods, now=cycle.now))
            self._history.saved(part, name)
            cycle.checkpoints_written += 1


def _unless_broken(plan: Plan, error: VpaIpprError | None) -> Plan:
    """A plan whose profile cannot be used is not served, and says so."""
    if error is None or not plan.is_served:
        return plan
    return replace(plan, problem=Problem(CONDITION_CONFIG_UNSUPPORTED, error.reason, str(error)))
