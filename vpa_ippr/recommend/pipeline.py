"""From usage to recommendations, with no cluster and no clock: the whole decision as functions of the data.

Samples go into one state for each container instance. Instances are folded into one state for each container of a workload, and quantiles
of that become the recommendation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from vpa_ippr.api.resources import Amounts
from vpa_ippr.api.series import ContainerRef, Evidence, EvidenceSeries, Finding, OomKill, Resource, Usage, UsageSeries, WorkloadRef
from vpa_ippr.forecast.catalogue import Profile
from vpa_ippr.forecast.decaying import DecayingPercentiles
from vpa_ippr.forecast.forecasters import ProfileModel
from vpa_ippr.recommend.cohorts import Key, Rows
from vpa_ippr.recommend.estimate import Level, confidence_of, estimate, pod_share, to_amount
from vpa_ippr.recommend.forecasts import ProfileForecasts
from vpa_ippr.recommend.instances import Instances, by_last_sample, feed, workload_of
from vpa_ippr.recommend.needs import NO_OUTLOOK, PRIOR, Outlook, amounts_of, driver_of, settle
from vpa_ippr.recommend.result import Driver, Explanation, Raise, Recommendation
from vpa_ippr.recommend.series import NO_EVIDENCE, ContainerSeries, Keeping, feed_series, keeping_of
from vpa_ippr.usage.container import (
    DAY_SECONDS,
    MILLI,
    AggregateState,
    ContainerState,
    SampleSpan,
    UsageRules,
    aggregate,
)
from vpa_ippr.usage.histogram import DecayingHistogram
from vpa_ippr.usage.steps import STEP_SECONDS, STEPS_PER_DAY, ContainerSteps, StepRow


@dataclass(frozen=True, slots=True, eq=False)
class ContainerUse:
    """One container of a workload: what all its instances used, and those of them that are still told apart.

    ``series`` is there under an ensemble profile.
    """

    total: AggregateState
    instances: Mapping[ContainerRef, ContainerState]
    series: ContainerSeries | None = None


@dataclass(frozen=True, slots=True, eq=False)
class WorkloadUse:
    """A workload and its containers by name; the smallest recommendation for a pod is shared among these containers."""

    workload: WorkloadRef
    containers: Mapping[str, ContainerUse]


def recommend(
    usage: Usage, profile: Profile, as_of: float, model: ProfileModel | None = None, evidence: Evidence = NO_EVIDENCE
) -> list[Recommendation]:
    """Recommendations for every container in ``usage``, from its samples up to ``as_of``, in order of workload and container.

    A container whose last sample is older than the profile's expiry gets none; a resource without a sample is left out. An ensemble
    decides the last hours again, as many as its profile says, with the ``evidence`` there is on each step (see ``evidence_window``).

    Raises:
        UsageError: the profile's ensemble needs a model, and none is given.
    """
    return recommend_together([Moment(usage, as_of, evidence)], profile, model)


@dataclass(frozen=True, slots=True, eq=False)
class Moment:
    """Usage of some workloads and the moment at which they are judged."""

    usage: Usage
    as_of: float
    evidence: Evidence = NO_EVIDENCE


def recommend_together(moments: Sequence[Moment], profile: Profile, model: ProfileModel | None = None) -> list[Recommendation]:
    """What ``recommend`` says of each moment, one after the other; no workload may be in two of them.

    The ensemble decides them together, which changes no number and takes a fraction of the time.
    """
    judged = [_judged(moment, profile) for moment in moments]
    outlooks = _outlooks(judged, profile, model) if profile.ensemble is not None else {}
    return [one for moment in judged for one in estimate_workloads(moment.uses, profile, moment.findings, outlooks)]


@dataclass(frozen=True, slots=True, eq=False)
class _Judged:
    """What is known of the workloads at a moment."""

    as_of: float
    uses: Sequence[WorkloadUse]
    findings: tuple[Finding, ...]


def _judged(moment: Moment, profile: Profile) -> _Judged:
    rules, usage, as_of = profile.usage_rules(), moment.usage, moment.as_of
    instances, findings = feed({}, usage, lambda _: rules, until=as_of)
    by_workload: dict[WorkloadRef, dict[str, Instances]] = defaultdict(lambda: defaultdict(dict))
    for ref, state in instances.items():
        by_workload[workload_of(ref, usage.owners)][ref.container][ref] = state
    keeping = keeping_of(profile)
    series = {} if keeping is None else _series(usage, moment.evidence, keeping, as_of)
    uses = [
        WorkloadUse(workload, current_uses(containers, {}, lambda _: rules, as_of, _of_workload(series, workload)))
        for workload, containers in sorted(by_workload.items())
    ]
    return _Judged(as_of, uses, (*usage.findings, *findings))


def _series(usage: Usage, evidence: Evidence, keeping: Keeping, as_of: float) -> dict[Key, ContainerSeries]:
    """What an ensemble looks at of each container; a recording begins with its first sample."""
    begin = min((float(one.timestamps[0]) for one in usage.series if len(one.timestamps)), default=as_of)
    empty = ContainerSeries.empty(keeping, max(begin, as_of - keeping.steps.history_seconds))
    series: dict[Key, list[UsageSeries]] = defaultdict(list)
    ooms: dict[Key, list[OomKill]] = defaultdict(list)
    for one in usage.series:
        series[workload_of(one.container, usage.owners), one.container.container].append(one)
    for oom in usage.ooms:
        ooms[workload_of(oom.container, usage.owners), oom.container.container].append(oom)
    judging: dict[Key, list[EvidenceSeries]] = defaultdict(list)
    for found in evidence.series:
        judging[workload_of(found.container, usage.owners), found.container.container].append(found)
    return {
        key: feed_series(empty, Usage(tuple(series[key]), tuple(ooms[key])), keeping, judging[key], until=as_of)
        for key in {*series, *ooms}
    }  # fmt: skip


def _of_workload(series: Mapping[Key, ContainerSeries], workload: WorkloadRef) -> dict[str, ContainerSeries]:
    return {container: one for (owner, container), one in series.items() if owner == workload}


def _outlooks(judged: Sequence[_Judged], profile: Profile, model: ProfileModel | None) -> dict[Key, Outlook]:
    """Those of all moments, decided side by side: every history is moved by whole days to within a day of the newest.

    Forecasts look at a history and, some of them, at the hour of the day; no decision depends on the date.
    """
    forecasts = ProfileForecasts(profile, model)
    newest = max((one.as_of for one in judged), default=0.0)
    known = [(one.as_of, key, series) for one in judged for key, series in series_of(one.uses).items()]
    rows = {}
    for as_of, key, series in known:
        steps = int((newest - as_of) // DAY_SECONDS) * STEPS_PER_DAY
        cpu, memory = (StepRow(row.end + steps, row.values) for row in (series.steps.cpu, series.steps.memory))
        rows[key] = Rows(cpu, memory)
    forecasts.advance(rows, {})
    return {key: forecasts.outlook(key, series, as_of) for as_of, key, series in known}


def current_uses(
    containers: Mapping[str, Instances],
    bases: Mapping[str, AggregateState],
    rules_of: Callable[[str], UsageRules],
    as_of: float,
    series: Mapping[str, ContainerSeries],
) -> dict[str, ContainerUse]:
    """The containers of one workload that still count, each with its instances folded onto its base."""
    uses = {}
    for name in sorted({*containers, *bases}):
        rules, instances = rules_of(name), containers.get(name, {})
        base = bases.get(name) or AggregateState.empty(rules)
        total = aggregate(base, (state for _, state in by_last_sample(instances)))
        if as_of - total.last_sample < rules.expiry_seconds:
            uses[name] = ContainerUse(total, instances, series.get(name))
    return uses


def series_of(uses: Iterable[WorkloadUse]) -> dict[Key, ContainerSeries]:
    """The series of all containers that have some."""
    return {(use.workload, name): one.series for use in uses for name, one in use.containers.items() if one.series is not None}


def estimate_workloads(
    uses: Sequence[WorkloadUse], profile: Profile, findings: Iterable[Finding] = (), outlooks: Mapping[Key, Outlook] | None = None
) -> list[Recommendation]:
    """Recommendations for workloads that share a profile; ``findings`` are explained with the containers that they name.

    ``outlooks``: what the ensemble of the profile says, where it has one.
    """
    keys = [(use, name, container) for use in uses for name, container in use.containers.items()]
    levels = {
        resource: _quantiles([_histogram(container.total, resource) for _, _, container in keys], profile, resource)
        for resource in Resource
    }
    pods = {resource: _driving_pods([container for _, _, container in keys], profile, resource) for resource in Resource}
    noticed: dict[str, list[Finding]] = defaultdict(list)
    for finding in findings:
        noticed[finding.subject].append(finding)
    found = []
    for index, (use, name, container) in enumerate(keys):
        own = {
            resource: (levels[resource][index], pods[resource][index])
            for resource in Resource
            if not _histogram(container.total, resource).is_empty
        }
        about = tuple(f for ref in sorted(container.instances) for f in noticed.get(f"{ref.namespace}/{ref.pod}/{ref.container}", ()))
        outlook = (outlooks or {}).get((use.workload, name), NO_OUTLOOK)
        recommendation = _recommendation(use, name, own, profile, about, outlook)
        if recommendation is not None:
            found.append(recommendation)
    return found


@dataclass(frozen=True, slots=True)
class _Result:
    """What is recommended of one resource, why, and how much history it rests on (in days of one sample a minute)."""

    level: Level
    driver: Driver
    confidence: float
    is_thin: bool


def _recommendation(
    workload: WorkloadUse,
    name: str,
    quantiles: Mapping[Resource, tuple[Level, str | None]],
    profile: Profile,
    findings: tuple[Finding, ...],
    outlook: Outlook,
) -> Recommendation | None:
    container = workload.containers[name]
    results: dict[Resource, _Result] = {}
    for resource, (level, pod) in quantiles.items():
        part = profile.resource(resource)
        minimum = pod_share(part.pod_minimum, len(workload.containers))
        driver = Driver(resource, part.quantiles.target, level.target, pod)
        if container.series is None:
            results[resource] = _from_histogram(container, driver, level, profile, minimum)
        else:
            said = _from_histogram(container, driver, level, profile, 0)
            results[resource] = _from_ensemble(container.total, container.series.steps, said, outlook, profile, minimum)
    if not results:
        return None
    lower, target, upper = Amounts(), Amounts(), Amounts()
    for resource, result in results.items():
        lower, target = lower.having(resource, result.level.lower_bound), target.having(resource, result.level.target)
        upper = upper.having(resource, result.level.upper_bound)
    total = container.total
    span = total.cpu_span.merged(total.memory_span)
    explanation = Explanation(
        profile=profile.name,
        forecaster=profile.forecaster,
        drivers=tuple(result.driver for result in results.values()),
        samples=_confidence_span(total).count,
        first_sample=span.first,
        last_sample=span.last,
        oom_kills=total.oom_kills,
        findings=(*findings, *outlook.findings),
    )
    confidence, is_thin = min(result.confidence for result in results.values()), any(result.is_thin for result in results.values())
    return Recommendation(workload.workload, name, target, lower, upper, target, confidence, explanation, is_thin)


def _from_histogram(container: ContainerUse, driver: Driver, level: Level, profile: Profile, minimum: int) -> _Result:
    part = profile.resource(driver.resource)
    confidence = confidence_of(_confidence_span(container.total), part.confidence_interval_seconds)
    result = estimate(level, part, profile.confidence, confidence, minimum)
    return _Result(result, driver, confidence, confidence < profile.confidence.low_below)


def _from_ensemble(
    total: AggregateState, steps: ContainerSteps, said: _Result, outlook: Outlook, profile: Profile, minimum: int
) -> _Result:
    """What the ensemble decided; before it has, what the histograms ``said``.

    Of a container that is young to the ensemble the histograms may know more, from a checkpoint that reaches further back.
    """
    resource, ensemble = said.driver.resource, profile.ensemble
    assert ensemble is not None  # only its containers have series
    decision = outlook.decision(resource)
    is_thin = decision is None or decision.known_hours < ensemble.young_hours
    base = said.level if decision is None else amounts_of(decision, resource)
    raises = outlook.floors_of(resource)
    if is_thin and _reaches_further_back(total, steps.row(resource)):
        raises = (Raise(PRIOR, said.level.target), *raises)
    level, raised_by = settle(base, raises, profile.resource(resource), minimum, outlook.ceiling_of(resource))
    return _Result(level, driver_of(said.driver, decision, raised_by, steps), said.confidence, is_thin)


def _reaches_further_back(total: AggregateState, row: StepRow) -> bool:
    """True when the histograms know of samples from before the row's first step."""
    first = total.cpu_span.merged(total.memory_span).first
    return first is not None and (row.span is None or first < (row.span[0] - 1) * STEP_SECONDS)


def _confidence_span(total: AggregateState) -> SampleSpan:
    """Upstream counts CPU samples alone; a container that has none is judged by its memory samples, not as if it had no history."""
    return total.cpu_span if total.cpu_span.count else total.memory_span


def _quantiles(histograms: Sequence[DecayingHistogram], profile: Profile, resource: Resource) -> list[Level]:
    part = profile.resource(resource)
    wanted = (part.quantiles.lower_bound, part.quantiles.target, part.quantiles.upper_bound)
    scale = MILLI if resource is Resource.CPU else 1.0
    values = DecayingPercentiles.of(histograms, part.buckets.options()).predict(wanted) * scale
    return [Level(*(to_amount(value) for value in row)) for row in values.tolist()]


def _driving_pods(uses: Sequence[ContainerUse], profile: Profile, resource: Resource) -> list[str | None]:
    """For each container the pod whose own quantile is the highest; of equals the first by name."""
    states = [
        (index, ref.pod, use.instances[ref]) for index, use in enumerate(uses) if len(use.instances) > 1 for ref in sorted(use.instances)
    ]
    levels = _quantiles([_instance_histogram(state, resource) for _, _, state in states], profile, resource)
    highest = [-1] * len(uses)
    pods: list[str | None] = [next((ref.pod for ref in use.instances), None) for use in uses]
    for (index, pod, _), level in zip(states, levels, strict=True):
        if level.target > highest[index]:
            highest[index], pods[index] = level.target, pod
    return pods


def _histogram(total: AggregateState, resource: Resource) -> DecayingHistogram:
    return total.cpu if resource is Resource.CPU else total.memory


def _instance_histogram(state: ContainerState, resource: Resource) -> DecayingHistogram:
    return state.cpu if resource is Resource.CPU else state.memory()
