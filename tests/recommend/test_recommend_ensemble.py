"""The recommender's cycles under an ensemble profile: the same numbers whatever happens between them, and what lifts a target."""

import json
from dataclasses import replace as changed

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recommend_support import CATALOGUE, Cluster, Source, T, a_service, a_vpa, at, cycles_of, usage_of

from support.ensembles import an_ensemble_profile
from vpa_ippr.api.errors import ClusterError
from vpa_ippr.api.meta import ObjectKey
from vpa_ippr.api.names import ANNOTATION_EXPLANATION, ANNOTATION_RESIZE_LEDGER
from vpa_ippr.api.resources import ResourceRequirements
from vpa_ippr.api.series import ContainerRef, OomKill, Resource, Usage, UsageSeries, WorkloadRef
from vpa_ippr.api.vpa import RecommenderSelector
from vpa_ippr.recommend.forecasts import ANNOTATION_FORECAST
from vpa_ippr.recommend.pipeline import recommend
from vpa_ippr.usage.container import DAY_SECONDS

PROFILE = an_ensemble_profile(history_days=2, replay_hours=4, young_hours=12)
BOTH = {**CATALOGUE, PROFILE.name: PROFILE}
ENSEMBLE = [RecommenderSelector(f"vpa-ippr-{PROFILE.name}")]
HOUR, MINUTE = 3600.0, 60.0
GIB, MIB = 2**30, 2**20
# Three days of history have been before the first cycle.
NOW = T + 3 * DAY_SECONDS


def used(pod="web-1", *, hours=96, start=T, seed=1, cpu=1.0, memory=1.0, ooms=(), gap=None):
    """A daily rhythm in samples a minute: about ``cpu`` cores and ``memory`` GiB; nothing between the hours of ``gap``."""
    random = np.random.default_rng(seed)
    times = start + MINUTE * np.arange(1, 60 * hours + 1)
    rhythm = 1 + 0.4 * np.sin(2 * np.pi * (times - T) / DAY_SECONDS)
    kept = np.ones(len(times), np.bool_) if gap is None else (times < start + gap[0] * HOUR) | (times > start + gap[1] * HOUR)
    ref = ContainerRef("shop", pod, "app")

    def series(resource, values):
        return UsageSeries(ref, resource, times[kept], values[kept])

    return Usage(
        (
            series(Resource.CPU, cpu * rhythm * random.gamma(25, 0.04, len(times))),
            series(Resource.MEMORY, memory * GIB * (1 + 0.1 * rhythm) * random.uniform(0.98, 1.0, len(times))),
        ),
        tuple(ooms),
        {("shop", pod): WorkloadRef("shop", "Deployment", pod.rpartition("-")[0])},
    )


def a_web(name="web", **rules):
    return a_vpa(name, recommenders=ENSEMBLE, **rules)


def a_cluster(*vpas, pods=("1",), **of_pods):
    cluster = Cluster(*(vpas or (a_web(),)))
    for vpa in cluster.vpas.values():
        cluster.deploy(vpa.metadata.name, pods, **of_pods)
    return cluster


def a_recommender(cluster, source, now=NOW, **settings):
    return a_service(cluster, source, now, BOTH, **settings)


def only(result):
    ((recommendation,),) = (outcome.recommendations for outcome in result.outcomes)
    return recommendation


def driver(recommendation, resource):
    return next(driver for driver in recommendation.explanation.drivers if driver.resource is resource)


def memory_driver(recommendation):
    return driver(recommendation, Resource.MEMORY)


def raises(recommendation):
    return {one.by: one.amount for one in memory_driver(recommendation).choice.raised_by}


def limited(memory, request=None):
    return {"resources": ResourceRequirements({"memory": request or memory}, {"memory": memory})}


def test_a_vpa_gets_the_numbers_of_the_pipeline():
    cluster, source = a_cluster(), Source(used())
    found = only(at(a_recommender(cluster, source), NOW))
    (expected,) = recommend(source.usage, PROFILE, NOW)
    assert found.estimate == expected.estimate
    assert cluster.target("web") == expected.target.to_quantities()
    for resource in Resource:
        bounds = [amounts.get(resource) for amounts in (found.lower_bound, found.target, found.upper_bound)]
        assert bounds == sorted(bounds)
    assert 1.3 < found.target.cpu_millicores / 1000 < 2.0
    assert 1.1 * GIB < found.target.memory_bytes < 1.4 * GIB
    assert cluster.condition("web", "LowConfidence") is None


def test_decisions_are_made_by_the_hour():
    service = a_recommender(a_cluster(), Source(used()))
    targets = [only(at(service, NOW + minute * MINUTE)).target for minute in (0, 1, 30, 59, 60, 61)]
    assert len(set(targets[:4])) == 1
    assert len(set(targets[4:])) == 1
    assert targets[0] != targets[4]


def cycles(minutes, restarts=(), data=None):
    """Every cycle's recommendations; before each of ``restarts`` (indices) the recommender is started anew."""
    cluster, source = a_cluster(pods=("1", "2")), Source(*(data or (used(), used("web-2", seed=2, start=T + DAY_SECONDS, hours=72))))
    moments = [NOW + minute * MINUTE for minute in minutes]
    return [only(result) for result in cycles_of(lambda: a_recommender(cluster, source), moments, restarts)]


@settings(max_examples=8)
@given(st.data())
def test_a_restart_at_any_time_gives_the_same_numbers(data):
    minutes = sorted(data.draw(st.sets(st.integers(0, 9 * 60), min_size=2, max_size=7)))
    restarts = data.draw(st.sets(st.integers(1, len(minutes) - 1), min_size=1))
    for restarted, lasting in zip(cycles(minutes, restarts), cycles(minutes), strict=True):
        assert restarted.estimate == lasting.estimate
        assert restarted.explanation.drivers == lasting.explanation.drivers


@settings(max_examples=8)
@given(st.sets(st.integers(1, 4 * 60), max_size=5))
def test_how_often_cycles_run_changes_no_number(minutes):
    end = 4 * 60 + 5
    assert cycles([0, *sorted(minutes), end])[-1].estimate == cycles([0, end])[-1].estimate


def test_a_long_stop_keeps_what_was_learned():
    cluster, source = a_cluster(), Source(used(hours=120))
    service = a_recommender(cluster, source)
    for hour in range(20):
        at(service, NOW + hour * HOUR)
    late = NOW + 45 * HOUR
    result = at(a_recommender(cluster, source), late)
    assert result.findings == ()
    learned = driver(only(result), Resource.CPU).choice.coverage
    begun = driver(only(at(a_recommender(a_cluster(), source), late)), Resource.CPU).choice.coverage
    # A share of the few hours that were decided again, or of those and the twenty before.
    assert begun * 3 == pytest.approx(round(begun * 3))
    assert learned * 3 != pytest.approx(round(learned * 3))


def test_hours_without_samples_are_neither_nothing_nor_a_spike():
    gap = (80, 86)
    cluster, source = a_cluster(), Source(used(gap=gap))
    service = a_recommender(cluster, source, T + 79 * HOUR)
    before = only(at(service, T + 79 * HOUR)).target
    for hour in range(80, 90):
        during = only(at(service, T + hour * HOUR)).target
        assert 0.6 < during.cpu_millicores / before.cpu_millicores < 1.6
        assert 0.9 < during.memory_bytes / before.memory_bytes < 1.1


def test_a_lookup_that_fails_costs_nothing():
    def run(fail):
        cluster, source = a_cluster(a_web(), a_web("other")), Source(used(), used("other-1", seed=5))
        service = a_recommender(cluster, source)
        at(service, NOW)
        if fail:
            cluster.failing = {("find_workload", "web"): ClusterError("timed out")}
        at(service, NOW + 61 * MINUTE)
        cluster.failing = {}
        return {outcome.vpa.name: outcome.recommendations[0].explanation for outcome in at(service, NOW + 230 * MINUTE).outcomes}

    assert run(fail=True) == run(fail=False)


def test_a_container_that_is_new_among_others():
    cluster, source = a_cluster(), Source(used(), used("new-1", start=NOW + HOUR, hours=20, seed=3, cpu=0.2))
    service = a_recommender(cluster, source)
    at(service, NOW)
    cluster.vpas |= {vpa.key: vpa for vpa in (a_web("new"),)}
    cluster.deploy("new")
    at(service, NOW + 80 * MINUTE)
    assert cluster.condition("new", "LowConfidence").status == "True", "before its first whole hour the histograms answer"
    at(service, NOW + 5 * HOUR)
    recommendation = cluster.vpas[ObjectKey("shop", "new")].recommendation_for("app")
    assert recommendation.target["cpu"].endswith("m")
    assert cluster.condition("new", "LowConfidence").status == "True"
    assert cluster.condition("web", "LowConfidence") is None
    at(service, NOW + 15 * HOUR)
    assert cluster.condition("new", "LowConfidence") is None


def test_what_ran_long_before_its_vpa_is_decided_at_once():
    cluster, source = a_cluster(), Source(used(), used("new-1", seed=3))
    service = a_recommender(cluster, source)
    at(service, NOW)
    cluster.vpas |= {vpa.key: vpa for vpa in (a_web("new"),)}
    cluster.deploy("new")
    result = at(service, NOW + 10 * MINUTE)
    by_name = {outcome.vpa.name: outcome.recommendations[0] for outcome in result.outcomes}
    assert driver(by_name["new"], Resource.CPU).choice.known_hours == 48


def near_limit(at_minute, bytes_used, minutes=3):
    """Usage whose memory jumps after so many minutes."""
    base = used()
    cpu, memory = base.series
    values = memory.values.copy()
    first = int((NOW - T) / MINUTE) + at_minute
    values[first : first + minutes] = bytes_used
    return Usage((cpu, UsageSeries(memory.container, Resource.MEMORY, memory.timestamps, values)))


def test_memory_near_its_limit_is_raised_at_once_and_stays_raised():
    limit = int(1.5 * GIB)
    peak = 0.97 * limit
    cluster, source = a_cluster(**limited(str(limit))), Source(near_limit(10, peak))
    service = a_recommender(cluster, source)
    calm = only(at(service, NOW + 9 * MINUTE))
    assert raises(calm) == {}
    found = only(at(service, NOW + 12 * MINUTE))
    assert raises(found)["guard"] == found.target.memory_bytes == found.lower_bound.memory_bytes
    assert found.target.memory_bytes == pytest.approx(peak * 1.1, rel=1e-6)
    again = only(at(a_recommender(cluster, source), NOW + 40 * MINUTE))
    assert again.target == found.target, "the use has fallen, but no hour has been decided with it"
    later = only(at(service, NOW + 61 * MINUTE))
    assert "guard" not in raises(later)
    assert later.target.memory_bytes >= peak, "the hour that was decided since knows the peak"


@pytest.mark.parametrize("share", [0.9, 0.96], ids=["below", "above"])
def test_the_guard_minds_the_limit_in_force(share):
    limit = int(1.5 * GIB)
    cluster = a_cluster(**limited(str(limit)))
    found = only(at(a_recommender(cluster, Source(near_limit(10, share * limit))), NOW + 12 * MINUTE))
    assert ("guard" in raises(found)) == (share > 0.95)


def test_a_kill_lifts_the_memory_and_is_remembered():
    kill = OomKill(ContainerRef("shop", "web-1", "app"), NOW + 100.0, GIB, 2 * GIB)
    cluster, source = a_cluster(**limited("2Gi")), Source(used(ooms=(kill,)))
    service = a_recommender(cluster, source)
    at(service, NOW)
    found = only(at(service, NOW + 5 * MINUTE))
    assert raises(found)["oom-floor"] == found.target.memory_bytes == found.lower_bound.memory_bytes >= 2.5 * GIB
    assert found.explanation.oom_kills == 1
    source.usage = changed(source.usage, ooms=())  # what Prometheus forgets, the checkpoint knows
    assert raises(only(at(a_recommender(cluster, source), NOW + 6 * MINUTE))) == raises(found)


@pytest.mark.parametrize(
    ("policy", "least"),
    [({"oom_bump_up_ratio": "3"}, 6 * GIB), ({"oom_min_bump_up": "5Gi"}, 7 * GIB), ({"oom_bump_up_ratio": "1.1"}, 2.6 * GIB)],
    ids=["a ratio", "an amount", "less than the profile's"],
)
def test_a_policy_says_what_a_kill_adds_at_least(policy, least):
    kill = OomKill(ContainerRef("shop", "web-1", "app"), NOW - 100.0, GIB, 2 * GIB)
    cluster = a_cluster(a_web(app=policy), **limited("2Gi"))
    found = only(at(a_recommender(cluster, Source(used(ooms=(kill,)))), NOW))
    assert raises(found)["oom-floor"] == pytest.approx(least, rel=1e-6)


def held_off(floor, scope="Shrink", until=NOW + DAY_SECONDS, container="app"):
    hold_off = {"container": container, "scope": scope, "until": until, "attempts": 1, "reason": "Reverted", "floorBytes": floor}
    return {"annotations": {ANNOTATION_RESIZE_LEDGER: json.dumps({"holdOffs": [hold_off]})}}


@pytest.mark.parametrize(
    ("ledger", "floor"),
    [
        (held_off(3 * GIB), 1.5 * GIB),
        (held_off(3 * GIB, scope="Grow"), None),
        (held_off(3 * GIB, until=NOW - 1), None),
        (held_off(3 * GIB, container="other"), None),
        (held_off(None), None),
    ],
    ids=["in force", "of a growth", "over", "of another container", "nothing learned"],
)
def test_what_a_shrink_has_taught_is_respected(ledger, floor):
    cluster = a_cluster(**limited("8Gi", "4Gi"), **ledger)
    found = only(at(a_recommender(cluster, Source(used())), NOW))
    if floor is None:
        assert raises(found) == {}
    else:
        assert raises(found)["shrink-floor"] == found.target.memory_bytes == found.lower_bound.memory_bytes == floor


def test_a_ledger_that_cannot_be_read_is_told():
    cluster = a_cluster(annotations={ANNOTATION_RESIZE_LEDGER: "{"})
    result = at(a_recommender(cluster, Source(used())), NOW)
    assert [finding.reason for finding in result.findings] == ["LedgerUnreadable"]
    assert raises(only(result)) == {}


def test_a_leak_is_told_hours_ahead():
    leaking = used()
    cpu, memory = leaking.series
    begin = NOW - 12 * HOUR
    grown = memory.values + np.maximum(memory.timestamps - begin, 0) / HOUR * 100 * MIB
    limit = 4 * GIB
    data = Usage((cpu, UsageSeries(memory.container, Resource.MEMORY, memory.timestamps, grown)))
    full = float(memory.timestamps[np.argmax(grown >= limit)])
    cluster = a_cluster(**limited("4Gi"))
    at(a_recommender(cluster, Source(data)), NOW)
    assert full - NOW >= 6 * HOUR
    assert cluster.condition("web", "MemoryLeak").status == "True"
    assert "meets its limit in" in cluster.condition("web", "MemoryLeak").message
    assert ("web", "Warning", "MemoryLeak") in cluster.events
    # What is recommended says so, too.
    document = json.loads(cluster.vpas[ObjectKey("shop", "web")].metadata.annotations[ANNOTATION_EXPLANATION])
    assert document["containers"]["app"]["dataQuality"] == {"MemoryLeak": 1}


def test_what_does_not_leak_is_no_leak():
    cluster = a_cluster(**limited("4Gi"))
    at(a_recommender(cluster, Source(used())), NOW)
    assert cluster.condition("web", "MemoryLeak") is None


def test_a_checkpoint_that_reaches_further_back_gives_the_first_targets():
    # The classic recommender has seen days of heavy use; then the history is lost and the profile changed.
    cluster, source = Cluster(a_vpa(recommenders=[RecommenderSelector("vpa-ippr")])), Source(used(cpu=3.0, memory=3.0, hours=48))
    cluster.deploy("web")
    classic = at(a_service(cluster, source, T + 48 * HOUR, BOTH), T + 48 * HOUR).outcomes[0].recommendations[0]
    cluster.vpas = {vpa.key: vpa for vpa in (a_web(),)}
    fresh = Source(used(start=T + 49 * HOUR, hours=40))
    service = a_recommender(cluster, fresh, T + 52 * HOUR)
    young = only(at(service, T + 52 * HOUR))
    assert young.target.memory_bytes == pytest.approx(classic.target.memory_bytes, rel=0.05)
    assert driver(young, Resource.CPU).choice.raised_by[0].by == "prior"
    assert young.lower_bound.cpu_millicores < young.target.cpu_millicores, "a prior is a guess: it makes nobody's request too small"
    assert cluster.condition("web", "LowConfidence").status == "True"
    grown = only(at(service, T + 70 * HOUR))
    assert grown.target.cpu_millicores < young.target.cpu_millicores / 1.5
    assert driver(grown, Resource.CPU).choice.raised_by == ()
    assert cluster.condition("web", "LowConfidence") is None


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda text: text[:-9], "ForecastStateCorrupt"),
        (lambda text: text.replace("forecast-state/v1", "forecast-state/v7"), "ForecastStateCorrupt"),
        (lambda text: text.replace('"kills":1', '"kills":-1'), "ForecastStateCorrupt"),
        (lambda text: text.replace("ensemble-state/v1", "ensemble-state/v7"), "ModelCorrupt"),
        (lambda text: text.replace('"mark":"', '"mark":"x'), "ProfileChanged"),
    ],
    ids=["cut off", "another schema", "kills", "another state", "other rules"],
)
def test_damaged_states_are_refused_and_rebuilt(spoil, reason):
    kill = OomKill(ContainerRef("shop", "web-1", "app"), NOW - 100.0, GIB, GIB)
    cluster, source = a_cluster(), Source(used(ooms=(kill,)))
    before = only(at(a_recommender(cluster, source), NOW))
    (name, checkpoint), *_ = cluster.checkpoints.items()
    annotations = checkpoint.metadata.annotations
    spoilt = annotations | {ANNOTATION_FORECAST: spoil(annotations[ANNOTATION_FORECAST])}
    assert spoilt != annotations
    cluster.checkpoints[name] = msgspec.structs.replace(
        checkpoint, metadata=msgspec.structs.replace(checkpoint.metadata, annotations=spoilt)
    )
    result = at(a_recommender(cluster, source), NOW)
    assert {finding.reason for finding in result.findings} == {reason}
    assert only(result).estimate == before.estimate, "the first cycle had been a beginning, too"


def test_checkpoints_are_small_and_readable_by_upstream():
    cluster = a_cluster()
    at(a_recommender(cluster, Source(used(), used("web-2", seed=2))), NOW)
    (checkpoint,) = cluster.checkpoints.values()
    assert checkpoint.status.version == "v3"
    assert checkpoint.status.total_samples_count > 4000
    assert len(checkpoint.metadata.annotations[ANNOTATION_FORECAST]) < 8_000


def test_a_model_that_is_not_there_stops_its_profile_alone(tmp_path):
    ensemble = msgspec.structs.replace(PROFILE.ensemble, model="gone.skops")
    catalogue = {**BOTH, PROFILE.name: msgspec.structs.replace(PROFILE, ensemble=ensemble)}
    cluster, source = a_cluster(a_web(), a_vpa("other")), Source(used(), used("other-1"))
    service = a_service(cluster, source, NOW, catalogue, models=tmp_path)
    result = at(service, NOW)
    assert [failure.reason for failure in result.failures] == ["ModelMissing"]
    assert str(tmp_path / "gone.skops") in cluster.condition("web", "ConfigUnsupported").message
    assert cluster.target("other")["cpu"]


def test_an_ensemble_that_fails_stops_its_profile_alone_and_keeps_what_stands(monkeypatch):
    cluster, source = a_cluster(a_web(), a_vpa("other")), Source(used(), used("other-1"))
    service = a_recommender(cluster, source)
    at(service, NOW)
    before = cluster.target("web")
    with monkeypatch.context() as broken:
        broken.setattr("vpa_ippr.recommend.cohorts.look", lambda *_: 1 / 0)
        result = at(service, NOW + 61 * MINUTE)
    assert [(failure.reason, failure.subject) for failure in result.failures] == [("Unexpected", f"profile {PROFILE.name}")]
    assert [outcome.vpa.name for outcome in result.outcomes] == ["other"]
    assert cluster.target("web") == before
    at(service, NOW + 62 * MINUTE)
    assert cluster.target("web") != before


def roll_out(factor, hours, labels=("aaaa", "bbbb")):
    """A workload whose new revision, from ``NOW + 30 min``, uses ``factor`` times as much; the CPU target before and after."""
    begin = NOW + 30 * MINUTE
    old, new = used("web-a", hours=72), used("web-b", start=begin, hours=40, cpu=factor, seed=2)
    cluster, source = Cluster(a_web()), Source(old, new)
    cluster.deploy("web", ("a",), labels={"pod-template-hash": labels[0]}, started=T)
    service = a_recommender(cluster, source)
    before = only(at(service, NOW)).target.cpu_millicores
    cluster.pods.clear()
    cluster.deploy("web", ("b",), labels={"pod-template-hash": labels[1]}, started=begin)
    at(service, NOW + 45 * MINUTE)
    service = a_recommender(cluster, source)
    return before, only(at(service, NOW + hours * HOUR)).target.cpu_millicores


@pytest.mark.parametrize(
    ("factor", "hours", "low", "high"),
    [(3.0, 2, 2.4, 3.9), (0.3, 2, 0.75, 1.3), (0.3, 25, 0.25, 0.6)],
    ids=["fatter after an hour", "leaner after an hour", "leaner after a day"],
)
def test_a_rollout_is_followed(factor, hours, low, high):
    before, after = roll_out(factor, hours)
    assert low < after / before < high
    _, unseen = roll_out(factor, hours, labels=("aaaa", "aaaa"))
    assert (after > 1.2 * unseen) if factor > 1 else (after <= unseen)


def test_the_busiest_pod_is_named():
    cluster = a_cluster(pods=("1", "2"))
    found = only(at(a_recommender(cluster, Source(used(), used("web-2", seed=2, cpu=1.5, memory=0.5))), NOW))
    assert {driver.resource: driver.pod for driver in found.explanation.drivers} == {Resource.CPU: "web-2", Resource.MEMORY: "web-1"}


def test_the_explanation_says_how_it_was_decided():
    cluster = a_cluster(a_web(app={"max_allowed": {"memory": "300M"}}))
    at(a_recommender(cluster, Source(used())), NOW)
    entry = json.loads(cluster.vpas[ObjectKey("shop", "web")].metadata.annotations[ANNOTATION_EXPLANATION])["containers"]["app"]
    names = {expert.forecaster for expert in PROFILE.ensemble.cpu.experts}
    assert entry["forecaster"] == "ensemble"
    assert entry["cpu"]["by"] in names
    assert entry["cpu"]["horizon"] in ("hour", "day")
    assert 0 <= entry["cpu"]["coverage"] <= 1
    assert entry["cpu"]["knownHours"] == 48
    assert entry["cpu"]["p90Millicores"] > 0
    assert (entry["cpu"]["from"], entry["cpu"]["to"]) == ("2026-01-01T20:00:00Z", "2026-01-03T23:55:00Z")
    assert entry["cpu"]["pod"] == "web-1"


def test_classic_and_ensemble_vpas_beside_each_other():
    cluster, source = a_cluster(a_web(), a_vpa("other")), Source(used(), usage_of("other-1"))
    result = at(a_recommender(cluster, source), NOW)
    profiles = {outcome.vpa.name: outcome.recommendations[0].explanation.profile for outcome in result.outcomes}
    assert profiles == {"web": PROFILE.name, "other": "vpa-classic"}


def test_a_vpa_that_changes_its_profile_goes_on():
    cluster, source = Cluster(a_vpa()), Source(used())
    cluster.deploy("web")
    service = a_recommender(cluster, source)
    at(service, NOW)
    cluster.vpas = {vpa.key: vpa for vpa in (a_web(),)}
    found = only(at(service, NOW + MINUTE))
    assert driver(found, Resource.CPU).choice.known_hours == 48
    cluster.vpas = {vpa.key: vpa for vpa in (a_vpa(),)}
    assert driver(only(at(service, NOW + 2 * MINUTE)), Resource.CPU).choice is None
