"""The recommender's cycle: VPAs and pods from the cluster, usage from the source, recommendations back into the VPAs.

Everything that decides lives in the other modules; this one moves values between them and the ports. What fails for one VPA, pod or
namespace is told in the result and stops nothing else.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Final

import msgspec

from vpa_ippr.api.clock import Clock
from vpa_ippr.api.cluster import EventType
from vpa_ippr.api.errors import ClusterError, SourceError, ValidationError, VpaIpprError
from vpa_ippr.api.meta import ObjectKey, OwnerReference
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
from vpa_ippr.api.pod import Pod
from vpa_ippr.api.series import ContainerRef, Evidence, Finding, PodNodes, Usage, Window, WorkloadRef
from vpa_ippr.api.vpa import Vpa, VpaCheckpoint
from vpa_ippr.forecast.catalogue import Profile
from vpa_ippr.forecast.forecasters import ProfileModel
from vpa_ippr.recommend.cohorts import Key
from vpa_ippr.recommend.cycle import CheckpointResult, CycleResult, RecommenderSettings, VpaOutcome
from vpa_ippr.recommend.forecasts import StoredContainer, read_stored, write_stored
from vpa_ippr.recommend.history import ReadRequest, Tracking, UsageHistory
from vpa_ippr.recommend.live import scalable
from vpa_ippr.recommend.node_parts import SeenNodes, as_prior, largest_of, mark_of, marked, value_of, with_parts
from vpa_ippr.recommend.outlooks import Outlooks
from vpa_ippr.recommend.ownership import FindWorkload, pod_workload
from vpa_ippr.recommend.pipeline import ContainerUse, WorkloadUse, estimate_workloads
from vpa_ippr.recommend.planning import Plan, plan_vpas
from vpa_ippr.recommend.ports import EvidenceSource, PodNodeSource, RecommenderCluster, UsageSource
from vpa_ippr.recommend.postprocess import postprocess
from vpa_ippr.recommend.result import Recommendation
from vpa_ippr.recommend.retraining import DEFAULT_RETRAINING, RetrainingRules, Verdict, retrain
from vpa_ippr.recommend.series import NO_EVIDENCE, keeping_of, unread_evidence
from vpa_ippr.recommend.status import Problem, build_status, explain, needs_explanation, new_conditions, problems_of
from vpa_ippr.usage.checkpoint import StoredState, load_checkpoint, save_checkpoint

_log = logging.getLogger(__name__)
_ENDED: Final = ("Succeeded", "Failed")


@dataclass(slots=True)
class _Stored:
    """What the checkpoints hold of workloads that are new: their histograms, and what their ensemble remembers."""

    usage: dict[Key, StoredState] = field(default_factory=dict)
    learned: dict[Key, StoredContainer] = field(default_factory=dict)


@dataclass(slots=True)
class _Cycle:
    """What one cycle gathers."""

    now: float
    find: FindWorkload
    plans: list[Plan] = field(default_factory=list)
    # Of all workloads that are tracked, those included that are not served this time.
    profiles: dict[WorkloadRef, Profile] = field(default_factory=dict)
    # The node label by which the pods of a workload are told apart, where they are.
    splits: dict[WorkloadRef, str] = field(default_factory=dict)
    owners: dict[tuple[str, str], WorkloadRef] = field(default_factory=dict)
    live: dict[WorkloadRef, list[Pod]] = field(default_factory=lambda: defaultdict(list))
    unread: dict[WorkloadRef, Finding] = field(default_factory=dict)
    outcomes: list[VpaOutcome] = field(default_factory=list)
    failures: list[Finding] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    statuses_written: int = 0
    checkpoints_written: int = 0

    @property
    def served(self) -> list[Plan]:
        return [plan for plan in self.plans if plan.is_served]

    @contextmanager
    def guard(self, subject: str) -> Iterator[None]:
        """The boundary between objects: what goes wrong inside becomes a failure of ``subject``."""
        try:
            yield
        except VpaIpprError as error:
            self.failures.append(Finding(error.reason, subject, 1, f"{subject}: {error}"))
        except Exception as error:  # noqa: BLE001 - the boundary between objects: one must not stop the others
            _log.exception("object not served", extra={"object": subject})
            self.failures.append(Finding("Unexpected", subject, 1, f"{subject}: unexpected {type(error).__name__}: {error}"))


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
        cycle = _Cycle(self._clock.now(), cache(self._cluster.find_workload))
        self._plan(cycle)
        self._match_pods(cycle)
        self._track(cycle)
        self._read_usage(cycle)
        self._recommend(cycle)
        return CycleResult(
            cycle.now,
            tuple(cycle.outcomes),
            tuple(cycle.failures),
            tuple(cycle.findings),
            cycle.statuses_written,
        )

    def write_checkpoints(self) -> CheckpointResult:
        """Write what has changed since it was last written, of every VPA that the last cycle served."""
        saving = _Cycle(self._served_at, self._cluster.find_workload)
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

    def _plan(self, cycle: _Cycle) -> None:
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

    def _split(self, cycle: _Cycle, plans: Sequence[Plan]) -> list[Plan]:
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

    def _match_pods(self, cycle: _Cycle) -> None:
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

    def _track(self, cycle: _Cycle) -> None:
        # Those that are served come last, so that theirs are the rules where several VPAs name one workload.
        ordered = sorted(cycle.plans, key=lambda plan: plan.is_served)
        tracked = [(part, plan) for plan in ordered for part in plan.parts]
        self._history.track({part: Tracking(plan.rules, plan.rules_of, keeping_of(plan.profile)) for part, plan in tracked})
        cycle.profiles = {part: plan.profile for part, plan in tracked}
        served = ((plan, part, cycle.live.get(part, ())) for plan in cycle.served for part in plan.parts)
        self._served = tuple((plan, part, frozenset(pod.metadata.name for pod in pods)) for plan, part, pods in served)
        self._served_at = cycle.now

    def _read_usage(self, cycle: _Cycle) -> None:
        # A workload whose target cannot be looked up waits: its pods are not known, so reading on would pass over their samples.
        workloads = {part for plan in cycle.served for part in plan.parts}
        new = self._history.new_among(workloads)
        stored = self._load_checkpoints(cycle, new) if new else _Stored()
        for request in self._history.requests(workloads, cycle.now, self._settings.history_seconds):
            if stored is None and new.intersection(request.workloads):
                # Without the checkpoints a shorter history would be taken for the whole one, and written over it.
                message = "the checkpoints could not be listed, so the history is not read yet"
                cycle.unread |= dict.fromkeys(request.workloads, Finding("CheckpointsUnread", "checkpoints", 1, message))
                continue
            self._read(cycle, request, stored or _Stored())

    def _read(self, cycle: _Cycle, request: ReadRequest, stored: _Stored) -> None:
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
        self, cycle: _Cycle, request: ReadRequest, window: Window, usage: Usage
    ) -> tuple[ReadRequest, Mapping[tuple[str, str], WorkloadRef]]:
        """The owners of the pods, those included that have ended where pods are told apart by their nodes.

        Parts in namespaces whose pods cannot be placed leave the request, and wait.
        """
        wanted = {replace(workload, part="") for workload in request.workloads if workload.part}
        ended = {pod: owner for pod, owner in usage.owners.items() if owner in wanted and pod not in cycle.owners}
        if not ended:
            return request, cycle.owners
        found = self._read_pod_nodes(window, sorted({namespace for namespace, _ in ended}))
        placed = {
            pod: part
            for pod, owner in ended.items()
            if (part := self._nodes.part(owner, cycle.splits[owner], found.nodes.get(pod, ""))) is not None
        }
        failed = {failure.subject: failure for failure in found.failures}
        cycle.failures += found.failures
        waiting = [workload for workload in request.workloads if workload.part and workload.namespace in failed]
        cycle.unread |= {workload: failed[workload.namespace] for workload in waiting}
        lost = [pod for pod in ended if pod not in placed and pod[0] not in failed]
        if lost:
            message = f"{len(lost)} pods that have ended, such as {'/'.join(lost[0])}, do not count: their node is gone or not known"
            cycle.findings.append(Finding("PodNodeUnknown", lost[0][0], len(lost), message))
        return replace(request, workloads=tuple(one for one in request.workloads if one not in waiting)), cycle.owners | placed

    def _read_pod_nodes(self, window: Window, namespaces: Sequence[str]) -> PodNodes:
        if self._pod_nodes is None:
            return PodNodes({})
        try:
            return self._pod_nodes.fetch_pod_nodes(window, namespaces)
        except SourceError as error:
            return PodNodes({}, tuple(Finding(error.reason, namespace, 1, f"{namespace}: {error}") for namespace in namespaces))

    def _read_evidence(self, cycle: _Cycle, request: ReadRequest, unread: Collection[str]) -> Evidence:
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

    def _load_checkpoints(self, cycle: _Cycle, new: frozenset[WorkloadRef]) -> _Stored | None:
        try:
            checkpoints = self._cluster.list_checkpoints()
        except ClusterError as error:
            cycle.failures.append(Finding(error.reason, "checkpoints", 1, str(error)))
            return None
        plans = {plan.vpa.key: plan for plan in cycle.served if new.intersection(plan.parts)}
        stored = _Stored()
        # A part's own checkpoint comes after that of all pods, which is the beginning of a part without one.
        for checkpoint in sorted(checkpoints, key=lambda one: bool(mark_of(one))):
            plan = plans.get(ObjectKey(checkpoint.metadata.namespace, checkpoint.spec.vpa_object_name))
            if plan is not None:
                self._load(cycle, plan, checkpoint, stored)
        return stored

    @staticmethod
    def _load(cycle: _Cycle, plan: Plan, checkpoint: VpaCheckpoint, stored: _Stored) -> None:
        name, mark = checkpoint.spec.container_name, mark_of(checkpoint)
        if plan.split is not None and not mark:
            with _refusing(cycle, plan, name):
                prior = as_prior(load_checkpoint(checkpoint, plan.rules_of(name)))
                stored.usage |= dict.fromkeys(((part, name) for part in plan.parts), prior)
            return
        key = replace(plan.workload, part=mark), name
        with _refusing(cycle, plan, name):
            # The nodes of pods that have ended may be gone, so a part cannot be told from the history alone.
            stored.usage[key] = replace(load_checkpoint(checkpoint, plan.rules_of(name)), goes_first=bool(mark))
        with _refusing(cycle, plan, name):
            learned = read_stored(checkpoint.metadata.annotations, f"checkpoint {checkpoint.metadata.namespace}/{checkpoint.metadata.name}")
            if learned is not None:
                stored.learned[key] = learned

    def _recommend(self, cycle: _Cycle) -> None:
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

    def _estimate(self, cycle: _Cycle, profile: Profile, workloads: Sequence[WorkloadUse]) -> list[Recommendation]:
        # An ensemble goes on for all that are tracked, or what is not served for a moment would be forgotten.
        pods = {workload: cycle.live.get(workload, []) for workload, other in cycle.profiles.items() if other is profile}
        outlooks, findings = self._outlooks.at(profile, pods, cycle.now)
        cycle.findings += findings
        return estimate_workloads(workloads, profile, cycle.findings, outlooks)

    def _present_uses(self, cycle: _Cycle, part: WorkloadRef) -> dict[str, ContainerUse]:
        """The containers that live pods have; all that are known while there is no pod, as between the runs of a CronJob."""
        pods = cycle.live.get(part, [])
        names = {container.name for pod in pods for container in scalable(pod)}
        return self._history.uses(part, cycle.now, names if pods else None)

    def _settle(self, cycle: _Cycle, plan: Plan, known: bool, by_part: Mapping[WorkloadRef, Sequence[Recommendation]]) -> None:
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
        cycle: _Cycle,
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

    def _write_checkpoints_of(self, cycle: _Cycle, plan: Plan, part: WorkloadRef, pods: frozenset[str]) -> None:
        vpa = plan.vpa
        owner = OwnerReference(vpa.api_version, vpa.kind, vpa.metadata.name, uid=vpa.metadata.uid)
        for name, state in self._history.changed(part).items():
            live = {ContainerRef(part.namespace, pod, name) for pod in pods}
            checkpoint = save_checkpoint(vpa.key, name, state, live=live, now=cycle.now)
            checkpoint = marked(checkpoint, part) if part.part else checkpoint
            # Owned by the VPA, so that it goes when the VPA goes.
            learned = self._outlooks.stored(plan.profile, part, name)
            annotations = checkpoint.metadata.annotations | ({} if learned is None else write_stored(learned))
            metadata = msgspec.structs.replace(checkpoint.metadata, owner_references=[owner], annotations=annotations)
            self._cluster.put_checkpoint(msgspec.structs.replace(checkpoint, metadata=metadata))
            self._history.saved(part, name)
            cycle.checkpoints_written += 1


def _unless_broken(plan: Plan, error: VpaIpprError | None) -> Plan:
    """A plan whose profile cannot be used is not served, and says so."""
    if error is None or not plan.is_served:
        return plan
    return replace(plan, problem=Problem(CONDITION_CONFIG_UNSUPPORTED, error.reason, str(error)))


@contextmanager
def _refusing(cycle: _Cycle, plan: Plan, container: str) -> Iterator[None]:
    """What is damaged in a checkpoint is refused with a reason, and the history is read instead."""
    try:
        yield
    except ValidationError as error:
        _log.warning("checkpoint refused", extra={"vpa": str(plan.vpa.key), "container": container, "reason": error.reason})
        cycle.findings.append(Finding(error.reason, str(plan.vpa.key), 1, str(error)))
