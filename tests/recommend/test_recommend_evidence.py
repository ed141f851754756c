"""Evidence in the recommender's cycle: demand for CPU and need of memory, what is held meanwhile, and that its loss costs nothing else."""

import json
from dataclasses import replace as changed

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recommend_support import CATALOGUE, Clock, Cluster, Source, T, a_vpa, at, cycles_of

from support.ensembles import MEMORY_RULES, an_ensemble_profile
from vpa_ippr.api.errors import SourceError
from vpa_ippr.api.meta import ObjectKey
from vpa_ippr.api.names import ANNOTATION_EXPLANATION, ANNOTATION_RESIZE_LEDGER
from vpa_ippr.api.resources import ResourceRequirements
from vpa_ippr.api.series import ContainerRef, Evidence, EvidenceKind, EvidenceSeries, Finding, Resource, Usage, UsageSeries, WorkloadRef
from vpa_ippr.api.vpa import RecommenderSelector
from vpa_ippr.forecast.rules import Hysteresis
from vpa_ippr.recommend.cycle import RecommenderSettings
from vpa_ippr.recommend.pipeline import recommend
from vpa_ippr.recommend.service import RecommenderService
from vpa_ippr.usage.container import DAY_SECONDS
from vpa_ippr.usage.evidence import EvidenceRules
from vpa_ippr.usage.steps import STEP_SECONDS

COOL = msgspec.structs.replace(MEMORY_RULES, hysteresis=Hysteresis(0.05, 0.15, lower_after_hours=3.0))
PROFILE = an_ensemble_profile(history_days=2, replay_hours=4, young_hours=12, memory=COOL)
BLIND = msgspec.structs.replace(
    PROFILE, name="blind", ensemble=msgspec.structs.replace(PROFILE.ensemble, evidence=EvidenceRules(enabled=False))
)
PROFILES = {**CATALOGUE, PROFILE.name: PROFILE, BLIND.name: BLIND}
HOUR, MINUTE = 3600.0, 60.0
GIB = 2**30
NOW = T + 3 * DAY_SECONDS
LIMIT = 2 * GIB
LOGS = {
    EvidenceKind.RSS: 0.2 * GIB,
    EvidenceKind.MAPPED_FILE: 0.0,
    EvidenceKind.ACTIVE_FILE: 0.7 * GIB,
    EvidenceKind.FILE_REFAULTS: 0.0,
    EvidenceKind.RECLAIMED: 2000.0,
    EvidenceKind.MEMORY_PRESSURE: 0.0,
}


def used(pod="web-1", hours=84, cpu=1.0, memory=1.0, seed=1):
    """About ``cpu`` cores and ``memory`` GiB in samples a minute, without a rhythm."""
    random = np.random.default_rng(seed)
    times = T + MINUTE * np.arange(1, 60 * hours + 1)
    ref = ContainerRef("shop", pod, "app")
    return Usage(
        (
            UsageSeries(ref, Resource.CPU, times, cpu * random.uniform(0.9, 1.0, len(times))),
            UsageSeries(ref, Resource.MEMORY, times, memory * GIB * random.uniform(0.97, 1.0, len(times))),
        ),
        (),
        {("shop", pod): WorkloadRef("shop", "Deployment", pod.rpartition("-")[0])},
    )


def evidence_of(values, pod="web-1", hours=84, since=T):
    """A value, or one drawn from a range, for each step that ends after ``since``."""
    random = np.random.default_rng(7)
    times = T + STEP_SECONDS * np.arange(1, 12 * hours + 1)
    times = times[times > since]
    ref = ContainerRef("shop", pod, "app")
    return tuple(
        EvidenceSeries(ref, kind, times, random.uniform(*value, len(times)) if isinstance(value, tuple) else np.full(len(times), value))
        for kind, value in values.items()
    )


class EvidentSource(Source):
    """Gives out evidence, too, and notes what is asked for."""

    def __init__(self, *usages, evidence=()):
        super().__init__(*usages)
        self.evidence = evidence
        self.asked = []
        self.no_evidence = None
        self.noted = Evidence(())

    def fetch_evidence(self, window, namespaces=None):
        self.asked.append((window, tuple(namespaces)))
        if self.no_evidence is not None:
            raise self.no_evidence
        series = []
        for one in self.evidence:
            part = slice(*np.searchsorted(one.timestamps, (window.start, window.end), side="right"))
            if one.container.namespace in namespaces and len(one.timestamps[part]):
                series.append(changed(one, timestamps=one.timestamps[part], values=one.values[part]))
        return changed(self.noted, series=tuple(series))


def a_web(name="web", profile=PROFILE.name, **rules):
    return a_vpa(name, recommenders=[RecommenderSelector(f"vpa-ippr-{profile}")], **rules)


def a_cluster(*vpas, pods=("1",), **of_pods):
    cluster = Cluster(*(vpas or (a_web(),)))
    for vpa in cluster.vpas.values():
        cluster.deploy(vpa.metadata.name, pods, **of_pods)
    return cluster


def a_recommender(cluster, source, now=NOW, evidence=True):
    return RecommenderService(source, cluster, Clock(now), PROFILES, RecommenderSettings("vpa-classic"), source if evidence else None)


def only(result):
    ((recommendation,),) = (outcome.recommendations for outcome in result.outcomes)
    return recommendation


def first(source, *, cluster=None, evidence=True, now=NOW):
    return only(at(a_recommender(cluster or a_cluster(), source, now, evidence), now))


def choice(recommendation, resource):
    return next(driver for driver in recommendation.explanation.drivers if driver.resource is resource).choice


def raised(recommendation, resource):
    return {one.by: one.amount for one in choice(recommendation, resource).raised_by}


def reasons(recommendation):
    return {finding.reason for finding in recommendation.explanation.findings}


def asking(cpu=None, memory=None, ledger=None):
    requests = {key: value for key, value in (("cpu", cpu), ("memory", memory)) if value}
    return {"resources": ResourceRequirements(requests, {}), "annotations": {} if ledger is None else {ANNOTATION_RESIZE_LEDGER: ledger}}


THROTTLED = evidence_of({EvidenceKind.CPU_THROTTLED: 0.5})


def test_a_throttled_container_gets_what_it_wanted():
    source = EvidentSource(used(), evidence=THROTTLED)
    with_it, without = first(source), first(source, evidence=False)
    assert with_it.target.cpu_millicores == pytest.approx(2 * without.target.cpu_millicores, rel=0.02)
    assert with_it.target.memory_bytes == without.target.memory_bytes
    assert (choice(with_it, Resource.CPU).weighed.uplifted_share, choice(with_it, Resource.CPU).weighed.throttled_share) == (1.0, 0.5)
    assert reasons(with_it) == {"CpuCensored"}
    assert reasons(without) == set()


def test_the_explanation_tells_what_evidence_made_of_it():
    cluster = a_cluster()
    first(EvidentSource(used(), evidence=(*THROTTLED, *evidence_of(LOGS))), cluster=cluster)
    entry = json.loads(cluster.vpas[ObjectKey("shop", "web")].metadata.annotations[ANNOTATION_EXPLANATION])["containers"]["app"]
    assert entry["cpu"]["evidence"] == {"upliftedShare": 1.0, "throttledShare": 0.5}
    assert entry["memory"]["evidence"]["pageCacheBytes"] == pytest.approx(0.25 * 0.7 * GIB, rel=1e-3)
    assert "was not read again" in entry["memory"]["evidence"]["why"]
    assert entry["dataQuality"] == {"CpuCensored": 288}


def test_page_cache_that_nobody_misses_is_not_recommended():
    source = EvidentSource(used(), evidence=evidence_of(LOGS))
    with_it, without = first(source), first(source, evidence=False)
    assert with_it.target.memory_bytes == pytest.approx(without.target.memory_bytes - 0.25 * 0.7 * GIB * 1.07, rel=0.05)
    assert with_it.target.memory_bytes > (1 - 0.25 * 0.7) * GIB
    assert with_it.target.cpu_millicores == without.target.cpu_millicores


def test_the_guard_minds_need_and_not_page_cache():
    limits = {"resources": ResourceRequirements({"memory": "1Gi"}, {"memory": "1Gi"})}
    usage = used(memory=0.6)
    cpu, memory = usage.series
    grown = np.where(memory.timestamps >= NOW + 5 * MINUTE, 0.985 * GIB, memory.values)
    source = EvidentSource(
        Usage((cpu, changed(memory, values=grown)), (), usage.owners), evidence=evidence_of(LOGS | {EvidenceKind.ACTIVE_FILE: 0.3 * GIB})
    )
    for evidence in (True, False):
        service = a_recommender(a_cluster(**limits), source, evidence=evidence)
        at(service, NOW)
        assert ("guard" in raised(only(at(service, NOW + 12 * MINUTE)), Resource.MEMORY)) == (not evidence)


@pytest.mark.parametrize(
    ("ended", "held"), [(0.0, True), (50 * MINUTE, True), (70 * MINUTE, False)], ids=["now", "within the hour", "an hour ago"]
)
def test_cpu_is_not_lowered_while_it_is_censored(ended, held):
    pod = asking(cpu="5")
    evidence = tuple(
        changed(one, timestamps=one.timestamps[kept], values=one.values[kept])
        for one in evidence_of({EvidenceKind.CPU_THROTTLED: 0.2})
        for kept in [one.timestamps <= NOW - ended]
    )
    found = first(EvidentSource(used(), evidence=evidence), cluster=a_cluster(**pod))
    assert raised(found, Resource.CPU) == ({"cpu-censored": 5000} if held else {})
    assert (found.target.cpu_millicores == 5000) == held
    assert found.lower_bound.cpu_millicores < 2000, "a pod that has less is not too small for certain"


def test_memory_is_not_lowered_while_it_is_tight():
    tight = evidence_of({EvidenceKind.MEMORY_PRESSURE: 0.05}, since=NOW - HOUR)
    cluster, source = a_cluster(**asking(memory="3Gi")), EvidentSource(used(hours=96), evidence=tight)
    service = a_recommender(cluster, source)
    found = only(at(service, NOW))
    assert raised(found, Resource.MEMORY) == {"memory-tight": 3 * GIB}
    assert found.target.memory_bytes == found.lower_bound.memory_bytes == 3 * GIB
    assert reasons(found) == {"MemoryTight"}
    source.evidence = ()
    calm = only(at(service, NOW + 65 * MINUTE))
    assert raised(calm, Resource.MEMORY) == {}
    assert calm.target.memory_bytes < 1.5 * GIB
    assert "MemoryTight" in reasons(calm), "it is told for a day"


def test_what_other_pods_have_is_not_held():
    cluster = a_cluster(pods=())
    cluster.add_pod("web-1", ("ReplicaSet", "web-rs"), **asking(memory="2Gi"))
    cluster.add_pod("web-2", ("ReplicaSet", "web-rs"), **asking(memory="6Gi"))
    source = EvidentSource(used(), used("web-2", seed=2), evidence=evidence_of({EvidenceKind.MEMORY_PRESSURE: 0.05}))
    assert first(source, cluster=cluster).target.memory_bytes == 2 * GIB


def test_evidence_is_asked_for_beside_usage_and_only_when_a_step_is_over():
    source = EvidentSource(used(), evidence=THROTTLED)
    service = a_recommender(a_cluster(), source)
    for minute in (0, 1, 4, 5, 6, 21):
        at(service, NOW + minute * MINUTE)
    usage_windows = {(start, end) for start, end, _ in source.windows}
    asked = [(window.start, window.end, window.step_seconds, namespaces) for window, namespaces in source.asked]
    assert [(end - NOW) / MINUTE for _, end, _, _ in asked] == [0, 5, 21]
    assert {(start, end) for start, end, _, _ in asked} <= usage_windows
    assert {(step, namespaces) for _, _, step, namespaces in asked} == {(STEP_SECONDS, ("shop",))}


def test_only_profiles_with_rules_for_it_ask_for_evidence():
    source = EvidentSource(used(), used("other-1"), used("blind-1"), evidence=THROTTLED)
    cluster = a_cluster(a_vpa("other"), a_web("blind", profile="blind"))
    at(a_recommender(cluster, source), NOW)
    assert source.asked == []


def test_classic_numbers_do_not_change():
    source = EvidentSource(used(), used("other-1"), evidence=(*THROTTLED, *evidence_of({EvidenceKind.CPU_THROTTLED: 0.5}, "other-1")))
    found = {}
    for evidence in (True, False):
        result = at(a_recommender(a_cluster(a_web(), a_vpa("other")), source, evidence=evidence), NOW)
        found[evidence] = {outcome.vpa.name: outcome.recommendations[0].estimate for outcome in result.outcomes}
    assert found[True]["other"] == found[False]["other"]
    assert found[True]["web"] != found[False]["web"]


@pytest.mark.parametrize("error", [SourceError("connection refused", reason="Unreachable"), None], ids=["nothing", "a namespace"])
def test_evidence_that_cannot_be_read_stops_nothing(error):
    source = EvidentSource(used(), evidence=())
    source.no_evidence = error
    source.noted = Evidence((), failures=(Finding("Timeout", "shop", 1, "shop: timed out"),))
    result = at(a_recommender(a_cluster(), source), NOW)
    assert [finding.reason for finding in result.findings] == ["Unreachable" if error else "Timeout"]
    assert result.exit_code == 0
    assert only(result).estimate == first(source, evidence=False).estimate


def test_a_namespace_whose_usage_could_not_be_read_is_read_with_its_evidence_later():
    def run(broken):
        cluster, source = a_cluster(), EvidentSource(used(), evidence=evidence_of({EvidenceKind.CPU_THROTTLED: (0.0, 0.6)}))
        service = a_recommender(cluster, source)
        at(service, NOW)
        source.broken = {"shop"} if broken else set()
        at(service, NOW + 61 * MINUTE)
        source.broken = set()
        return only(at(service, NOW + 70 * MINUTE))

    assert run(broken=True).explanation == run(broken=False).explanation


def cycles(minutes, restarts=()):
    cluster = a_cluster(pods=("1", "2"), **asking("1", "1Gi"))
    evidence = [
        *evidence_of({EvidenceKind.CPU_THROTTLED: (0.0, 0.6), EvidenceKind.CPU_PRESSURE: (0.0, 0.2)}),
        *evidence_of(LOGS | {EvidenceKind.FILE_REFAULTS: (0.0, 200.0), EvidenceKind.MEMORY_PRESSURE: (0.0, 0.011)}, "web-2"),
    ]
    source = EvidentSource(used(), used("web-2", seed=2, memory=1.2), evidence=evidence)
    moments = [NOW + minute * MINUTE for minute in minutes]
    return [only(result) for result in cycles_of(lambda: a_recommender(cluster, source), moments, restarts)]


@settings(max_examples=6)
@given(st.data())
def test_a_restart_at_any_time_gives_the_same_numbers(data):
    minutes = sorted(data.draw(st.sets(st.integers(0, 6 * 60), min_size=2, max_size=6)))
    restarts = data.draw(st.sets(st.integers(1, len(minutes) - 1), min_size=1))
    for restarted, lasting in zip(cycles(minutes, restarts), cycles(minutes), strict=True):
        assert restarted.estimate == lasting.estimate
        assert restarted.explanation == lasting.explanation


@settings(max_examples=6)
@given(st.sets(st.integers(1, 3 * 60), max_size=5))
def test_how_often_cycles_run_changes_no_number(minutes):
    end = 3 * 60 + 5
    several, two = cycles([0, *sorted(minutes), end])[-1], cycles([0, end])[-1]
    assert several.estimate == two.estimate
    assert several.explanation.drivers == two.explanation.drivers


def test_a_question_without_a_cluster_gets_the_same_numbers():
    source = EvidentSource(used(), evidence=(*THROTTLED, *evidence_of(LOGS)))
    (found,) = recommend(source.usage, PROFILE, NOW, evidence=Evidence(source.evidence))
    assert found.estimate == first(source).estimate


def resized(hours_ago, resource="memory"):
    return json.dumps({"bases": {"app": {"original": {}, "expected": {}, f"{resource}At": NOW - hours_ago * HOUR}}})


@pytest.mark.parametrize(
    ("ledger", "held"),
    [(resized(2.9), True), (resized(3.1), False), (resized(1, "cpu"), False), (None, False)],
    ids=["of late", "long enough ago", "only its CPU", "never"],
)
def test_memory_is_not_lowered_soon_after_a_resize(ledger, held):
    found = first(EvidentSource(used()), cluster=a_cluster(**asking(memory="3Gi", ledger=ledger)))
    assert raised(found, Resource.MEMORY) == ({"recent-resize": 3 * GIB} if held else {})
    assert (found.target.memory_bytes == 3 * GIB) == held
    assert found.lower_bound.memory_bytes < 1.5 * GIB


def test_pods_that_were_not_resized_come_down_to_those_that_were():
    cluster = a_cluster(pods=(), **asking())
    cluster.add_pod("web-1", ("ReplicaSet", "web-rs"), **asking(memory="3Gi", ledger=resized(1)))
    cluster.add_pod("web-2", ("ReplicaSet", "web-rs"), **asking(memory="4Gi", ledger=resized(4)))
    cluster.add_pod("web-3", ("ReplicaSet", "web-rs"), **asking(memory="5Gi"))
    assert first(EvidentSource(used()), cluster=cluster).target.memory_bytes == 3 * GIB


def test_a_resize_of_late_does_not_keep_memory_from_rising():
    found = first(EvidentSource(used(memory=2.0)), cluster=a_cluster(**asking(memory="1Gi", ledger=resized(1))))
    assert found.target.memory_bytes > 2 * GIB
    assert raised(found, Resource.MEMORY) == {}
