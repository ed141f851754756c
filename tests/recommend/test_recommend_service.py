"""The recommender's cycles on a cluster and a source in memory: what the VPAs, checkpoints and events hold in the end."""

import json

import msgspec
import pytest
from recommend_support import CATALOGUE, OURS, Clock, Cluster, Source, T, a_service, a_vpa, at, run, usage_of

from vpa_ippr.api.errors import EXIT_DONE, EXIT_FAILED, EXIT_PARTIAL, ClusterError, SourceError
from vpa_ippr.api.meta import Condition, ObjectKey
from vpa_ippr.api.names import ANNOTATION_EXPLANATION
from vpa_ippr.api.pod import Container
from vpa_ippr.api.resources import Amounts
from vpa_ippr.api.series import WorkloadRef
from vpa_ippr.api.timestamps import format_time
from vpa_ippr.api.vpa import RecommenderSelector, VpaSpec
from vpa_ippr.recommend.cycle import RecommenderSettings
from vpa_ippr.recommend.history import history_start
from vpa_ippr.recommend.pipeline import recommend
from vpa_ippr.recommend.rounding import Rounding
from vpa_ippr.recommend.service import RecommenderService
from vpa_ippr.usage.container import DAY_SECONDS


def test_a_vpa_gets_the_numbers_of_the_pipeline():
    cluster, source = Cluster(a_vpa()), Source(usage_of())
    cluster.deploy("web")
    service = a_service(cluster, source, T + 600 * 60)
    result = service.run_cycle()
    (expected,) = recommend(source.usage, CATALOGUE["vpa-classic"], T + 600 * 60)
    assert cluster.status("web").recommendation.container_recommendations == [expected.to_status()]
    assert cluster.target("web") == expected.target.to_quantities()
    assert cluster.status("web").observed_generation == 3
    assert cluster.condition("web", "RecommendationProvided").status == "True"
    assert cluster.condition("web", "LowConfidence").reason == "ShortHistory"
    assert result.exit_code == EXIT_DONE
    assert (result.statuses_written, service.write_checkpoints().written) == (1, 1)
    assert result.outcomes[0].workload == WorkloadRef("shop", "Deployment", "web")


def test_the_history_has_both_its_ends():
    cluster, source = Cluster(a_vpa()), Source(usage_of(minutes=600))
    cluster.deploy("web")
    run(cluster, source, now=T + 600 * 60, history_seconds=599 * 60.0)  # the first sample is at the very start
    (expected,) = recommend(source.usage, CATALOGUE["vpa-classic"], T + 600 * 60)
    assert cluster.status("web").recommendation.container_recommendations == [expected.to_status()]
    (checkpoint,) = cluster.checkpoints.values()
    assert checkpoint.status.first_sample_start == format_time(T + 60)


def test_long_history_is_not_low_confidence():
    cluster = Cluster(a_vpa())
    cluster.deploy("web")
    run(cluster, Source(usage_of(minutes=2000)), T + 2000 * 60)
    assert cluster.condition("web", "LowConfidence") is None


def test_the_explanation_is_small_json():
    cluster = Cluster(a_vpa(app={"max_allowed": {"memory": "300M"}}))
    cluster.deploy("web", pods=("1", "2"))
    run(cluster, Source(usage_of(ooms=((T + 60, 10**9),)), usage_of("web-2", seed=2)))
    document = json.loads(cluster.vpas[ObjectKey("shop", "web")].metadata.annotations[ANNOTATION_EXPLANATION])
    assert (document["schema"], document["profile"]) == ("vpa-ippr/explanation/v1", "vpa-classic")
    entry = document["containers"]["app"]
    assert entry["memory"]["quantile"] == 0.9
    assert entry["memory"]["pod"] == "web-1"
    assert entry["oomKills"] == 1
    assert entry["samples"] == 1200
    assert entry["cappedBy"] == ["memory capped to maxAllowed"]


def test_nothing_is_written_when_nothing_has_changed():
    cluster, source = Cluster(a_vpa()), Source(usage_of())
    cluster.deploy("web")
    service = a_service(cluster, source, T + 600 * 60)
    at(service, T + 600 * 60)
    cluster.writes.clear()
    again = service.run_cycle()
    assert cluster.writes == []
    assert (again.statuses_written, service.write_checkpoints().written) == (0, 0)
    assert at(service, T + 601 * 60).statuses_written == 0
    assert len(cluster.events) == len(set(cluster.events)) == 2


@pytest.mark.parametrize("steps", [(600,), (1, 300, 301, 600), (599, 600), tuple(range(0, 601, 50))], ids=["once", "some", "late", "many"])
def test_cycle_by_cycle_gives_the_numbers_of_one_reading(steps):
    pods = ("1", "2", "3")
    data = [usage_of(f"web-{pod}", seed=int(pod), ooms=((T + 3000 * int(pod), 10**9),)) for pod in pods]
    cluster = Cluster(a_vpa())
    cluster.deploy("web", pods)
    service = a_service(cluster, Source(*data), T)
    for minute in steps:
        result = at(service, T + 60 * minute)
    whole = Cluster(a_vpa())
    whole.deploy("web", pods)
    assert result.outcomes[0].recommendations == run(whole, Source(*data)).outcomes[0].recommendations


def test_only_what_is_new_is_read():
    cluster, source = Cluster(a_vpa()), Source(usage_of())
    cluster.deploy("web")
    service = a_service(cluster, source, T + 6000)
    service.run_cycle()
    at(service, T + 6060)
    assert source.windows == [(history_start(T + 6000, 8 * DAY_SECONDS), T + 6000, ("shop",)), (T + 6000, T + 6060, ("shop",))]


def test_pods_that_have_ended_still_count():
    deployment = WorkloadRef("shop", "Deployment", "web")
    old, new = usage_of("web-0", minutes=100, owner=deployment), usage_of("web-1", minutes=100, start=T + 6000, seed=2)
    cluster, source = Cluster(a_vpa()), Source(old, new)
    cluster.deploy("web")
    result = run(cluster, source)
    assert result.outcomes[0].recommendations[0].explanation.samples == 200


def test_numbers_do_not_change_while_old_pods_are_folded_away():
    owner = WorkloadRef("shop", "Deployment", "web")
    data = [usage_of(f"web-{n}", minutes=600, start=T + n * 36_000, seed=n, owner=owner) for n in range(8)]
    cluster = Cluster(a_vpa())
    cluster.deploy("web", ("7",))
    service = a_service(cluster, Source(*data), T)
    for hour in range(0, 120, 5):
        result = at(service, T + 3600 * hour)
    again = Cluster(a_vpa())
    again.deploy("web", ("7",))
    expected = run(again, Source(*data), T + 3600 * 115).outcomes[0].recommendations[0]
    found = result.outcomes[0].recommendations[0]
    assert found.estimate == expected.estimate
    assert found.confidence == expected.confidence


def test_a_restart_gives_the_same_numbers_from_the_history():
    cluster, source = Cluster(a_vpa()), Source(usage_of(minutes=700))
    cluster.deploy("web")
    before = run(cluster, source).outcomes[0].recommendations
    assert run(cluster, source).outcomes[0].recommendations == before
    service = a_service(cluster, source, T + 700 * 60)
    (expected,) = recommend(source.usage, CATALOGUE["vpa-classic"], T + 700 * 60)
    assert service.run_cycle().outcomes[0].recommendations[0].estimate == expected.estimate


def test_a_restart_goes_on_from_the_checkpoint_where_the_source_forgets():
    data = usage_of(minutes=6000, ooms=((T + 4000 * 60, 2 * 10**9),))
    cluster, source = Cluster(a_vpa()), Source(data)
    cluster.deploy("web")
    first = a_service(cluster, source, T + 5000 * 60)
    before = at(first, T + 5000 * 60).outcomes[0].recommendations[0]
    source.retention = 3600.0
    restarted = a_service(cluster, source, T + 5000 * 60).run_cycle().outcomes[0].recommendations[0]
    assert restarted.estimate == before.estimate
    assert restarted.confidence == before.confidence
    # Half an hour of downtime is read again, and no sample twice.
    expected = at(first, T + 5030 * 60).outcomes[0].recommendations[0]
    late = a_service(cluster, source, T + 5030 * 60).run_cycle().outcomes[0].recommendations[0]
    assert late.estimate == expected.estimate
    assert late.explanation.samples == expected.explanation.samples


def test_a_restart_counts_no_sample_twice_of_a_pod_that_has_ended():
    ended = usage_of("web-0", minutes=4980, seed=3, owner=WorkloadRef("shop", "Deployment", "web"))
    cluster, source = Cluster(a_vpa()), Source(usage_of(minutes=6000), ended)
    cluster.deploy("web")
    before = run(cluster, source, T + 5000 * 60).outcomes[0].recommendations[0]
    source.retention = 3600.0
    after = run(cluster, source, T + 5000 * 60).outcomes[0].recommendations[0]
    assert after.explanation.samples == before.explanation.samples == 4980 + 5000
    assert after.estimate == before.estimate


def test_a_damaged_checkpoint_is_refused_and_the_history_taken():
    cluster, source = Cluster(a_vpa()), Source(usage_of())
    cluster.deploy("web")
    expected = run(cluster, source).outcomes[0].recommendations
    checkpoint = cluster.checkpoints["web-app"]
    cluster.checkpoints["web-app"] = msgspec.structs.replace(checkpoint, status=msgspec.structs.replace(checkpoint.status, version="v9"))
    result = run(cluster, source)
    assert [finding.reason for finding in result.findings] == ["CheckpointForeign"]
    assert result.outcomes[0].recommendations == expected


def test_checkpoints_that_cannot_be_listed_are_waited_for():
    cluster, source = Cluster(a_vpa()), Source(usage_of())
    cluster.deploy("web")
    cluster.failing["list_checkpoints"] = ClusterError("checkpoints: 503")
    service = a_service(cluster, source, T + 600 * 60)
    first = service.run_cycle()
    assert (first.exit_code, service.write_checkpoints().written, cluster.checkpoints) == (EXIT_FAILED, 0, {})
    assert cluster.condition("web", "NoData").reason == "CheckpointsUnread"
    cluster.failing.clear()
    assert service.run_cycle().outcomes[0].recommendations


def test_checkpoints_are_owned_by_their_vpa():
    cluster, source = Cluster(a_vpa()), Source(usage_of())
    cluster.deploy("web")
    run(cluster, source)
    (owner,) = cluster.checkpoints["web-app"].metadata.owner_references
    assert (owner.kind, owner.name, owner.uid) == ("VerticalPodAutoscaler", "web", "uid-web")


def test_checkpoints_are_written_when_asked_for_and_hold_the_state_of_the_last_cycle():
    cluster, source = Cluster(a_vpa()), Source(usage_of())
    cluster.deploy("web")
    service = a_service(cluster, source, T + 300 * 60)
    assert service.write_checkpoints().written == 0  # nothing is known yet
    service.run_cycle()
    assert cluster.checkpoints == {}
    service._clock.moment += 120.0
    assert [service.write_checkpoints().written for _ in range(2)] == [1, 0]
    assert cluster.checkpoints["web-app"].status.last_update_time == format_time(T + 300 * 60)
    service.run_cycle()
    assert service.write_checkpoints().written == 1


def test_no_checkpoint_is_written_for_a_vpa_that_is_gone():
    cluster, source = Cluster(a_vpa()), Source(usage_of())
    cluster.deploy("web")
    service = a_service(cluster, source, T + 300 * 60)
    service.run_cycle()
    cluster.vpas.clear()
    service.run_cycle()
    assert service.write_checkpoints().written == 0


def test_a_checkpoint_that_cannot_be_written_is_tried_again_and_stops_no_other():
    cluster, source = two_shops()
    cluster.failing["put_checkpoint", "web-app"] = ClusterError("checkpoint: 503")
    service = a_service(cluster, source, T + 300 * 60)
    service.run_cycle()
    first = service.write_checkpoints()
    assert (first.written, [failure.subject for failure in first.failures]) == (1, ["checkpoints of vpa shop/web"])
    cluster.failing.clear()
    again = service.write_checkpoints()
    assert (again.written, again.failures) == (1, ())


def two_shops():
    cluster = Cluster(a_vpa(), a_vpa("api", namespace="mail"))
    cluster.deploy("web")
    cluster.deploy("api", namespace="mail")
    return cluster, Source(usage_of(), usage_of("api-1", namespace="mail", seed=2))


def test_a_namespace_that_cannot_be_read_keeps_its_recommendation_and_loses_nothing():
    cluster, source = two_shops()
    service = a_service(cluster, source, T + 300 * 60)
    service.run_cycle()
    before = cluster.target("api", "mail")
    source.broken = {"mail"}
    partial = at(service, T + 400 * 60)
    assert partial.exit_code == EXIT_PARTIAL
    assert cluster.target("api", "mail") == before
    assert cluster.condition("api", "NoData", "mail").reason == "Timeout"
    assert cluster.condition("api", "RecommendationProvided", "mail").status == "True"
    assert cluster.condition("web", "NoData") is None
    source.broken = set()
    whole = at(service, T + 500 * 60)
    assert whole.exit_code == EXIT_DONE
    assert cluster.condition("api", "NoData", "mail") is None
    samples = {outcome.vpa.name: outcome.recommendations[0].explanation.samples for outcome in whole.outcomes}
    assert samples == {"web": 500, "api": 500}


def test_a_source_that_is_down_keeps_all_recommendations():
    cluster, source = two_shops()
    service = a_service(cluster, source, T + 300 * 60)
    service.run_cycle()
    before = cluster.target("web"), cluster.target("api", "mail")
    source.error = SourceError("prometheus: connection refused")
    result = at(service, T + 400 * 60)
    assert result.exit_code == EXIT_FAILED
    assert (cluster.target("web"), cluster.target("api", "mail")) == before
    assert cluster.condition("web", "NoData").message == "prometheus: connection refused"


def test_one_vpa_that_cannot_be_written_does_not_stop_the_others():
    cluster, source = two_shops()
    cluster.failing["patch_vpa_status", "web"] = ClusterError("vpa shop/web: 403")
    result = run(cluster, source)
    assert result.exit_code == EXIT_PARTIAL
    assert [failure.subject for failure in result.failures] == ["vpa shop/web"]
    assert cluster.target("api", "mail")


def test_what_nobody_foresaw_does_not_stop_the_others_either():
    cluster, source = two_shops()
    cluster.failing["patch_vpa_status", "web"] = RuntimeError("boom")
    result = run(cluster, source)
    assert [(failure.reason, failure.message) for failure in result.failures] == [
        ("Unexpected", "vpa shop/web: unexpected RuntimeError: boom")
    ]
    assert cluster.target("api", "mail")


def test_pods_that_cannot_be_listed_are_an_error_of_the_cycle():
    cluster, source = two_shops()
    cluster.failing["list_pods"] = ClusterError("pods: 500")
    with pytest.raises(ClusterError, match="pods: 500"):
        run(cluster, source)


def unsupported(cluster, name="web"):
    condition = cluster.condition(name, "ConfigUnsupported")
    return condition.reason, condition.message


@pytest.mark.parametrize(
    ("vpa", "reason", "message"),
    [
        (a_vpa(target="gone"), "TargetNotFound", "targetRef Deployment/gone: there is none in namespace shop"),
        (a_vpa(kind="ReplicaSet", target="good-rs"), "TargetNotTopmost", "ReplicaSet/good-rs is owned by Deployment/good: name that one"),
        (a_vpa(kind="Rocket"), "KindUnknown", "the cluster serves no Rocket"),
        (a_vpa(kind="Node"), "TargetUnsupported", "a node cannot be scaled"),
        (a_vpa(kind=""), "InvalidSpec", "spec.targetRef.kind: required"),
        (msgspec.structs.replace(a_vpa(), spec=VpaSpec(recommenders=OURS)), "InvalidSpec", "spec.targetRef: required"),
        (a_vpa(recommenders=[RecommenderSelector("vpa-ippr-fast")]), "UnknownProfile", "no profile is named 'fast': choose one of"),
        (a_vpa(app={"max_allowed": {"cpu": "many"}}), "BadQuantity", "cannot read 'many' as a quantity"),
        (a_vpa(app={"mode": "Sometimes"}), "InvalidSpec", "mode"),
    ],
    ids=["no target", "not topmost", "kind", "node", "no kind", "no targetRef", "profile", "quantity", "mode"],
)
def test_a_vpa_that_cannot_be_served_says_why_and_others_go_on(vpa, reason, message):
    cluster = Cluster(vpa, a_vpa("good"))
    cluster.deploy("good")
    cluster.deploy("web")
    result = run(cluster, Source(usage_of("good-1")))
    assert unsupported(cluster)[0] == reason
    assert message in unsupported(cluster)[1]
    assert cluster.condition("web", "RecommendationProvided").status == "False"
    assert cluster.condition("web", "RecommendationProvided").reason == reason
    assert ("web", "Warning", reason) in cluster.events
    assert cluster.target("good")
    assert result.exit_code == EXIT_PARTIAL


def test_a_target_that_comes_back_has_its_history_and_loses_the_condition():
    cluster, source = Cluster(a_vpa()), Source(usage_of())
    cluster.deploy("web")
    service = a_service(cluster, source, T + 300 * 60)
    service.run_cycle()
    target = cluster.target("web")
    found = cluster.workloads.pop(("shop", "Deployment", "web"))
    at(service, T + 400 * 60)
    assert unsupported(cluster)[0] == "TargetNotFound"
    assert cluster.target("web") == target
    cluster.workloads["shop", "Deployment", "web"] = found
    result = at(service, T + 500 * 60)
    assert cluster.condition("web", "ConfigUnsupported") is None
    assert result.outcomes[0].recommendations[0].explanation.samples == 500


def test_a_lookup_that_fails_changes_nothing_and_costs_no_history():
    cluster, source = Cluster(a_vpa()), Source(usage_of())
    cluster.deploy("web")
    cluster.failing["find_workload", "web"] = ClusterError("deployments: 503")
    service = a_service(cluster, source, T + 300 * 60)
    failed = service.run_cycle()
    assert failed.exit_code == EXIT_FAILED
    assert cluster.status("web").conditions == []
    cluster.failing.clear()
    assert at(service, T + 400 * 60).outcomes[0].recommendations[0].explanation.samples == 400


def test_of_two_vpas_the_older_is_served_and_the_other_is_told():
    cluster = Cluster(a_vpa("new", target="web", created=T + 60), a_vpa("old", target="web"))
    cluster.deploy("web")
    run(cluster, Source(usage_of()))
    assert cluster.target("old")
    assert unsupported(cluster, "new") == ("OlderVpaWins", "Deployment/web is already served by the older vpa old: delete one of them")
    assert ("new", "Warning", "OlderVpaWins") in cluster.events


@pytest.mark.parametrize(
    ("recommenders", "default", "ours"),
    [
        (["vpa-ippr"], False, True),
        (["vpa-ippr-vpa-classic"], False, True),
        ([], False, False),
        ([], True, True),
        (["default"], True, False),
        (["vpa-ipprx"], False, False),
    ],
)
def test_which_vpas_are_ours(recommenders, default, ours):
    cluster = Cluster(a_vpa(recommenders=[RecommenderSelector(name) for name in recommenders]))
    cluster.deploy("web")
    result = run(cluster, Source(usage_of()), default_recommender=default)
    assert (len(result.outcomes), bool(cluster.writes)) == (int(ours), ours)


@pytest.mark.parametrize(
    ("recommender", "profile"),
    [("vpa-ippr", "balanced"), ("vpa-ippr-vpa-classic", "vpa-classic")],
    ids=["the default", "named"],
)
def test_a_vpa_that_names_no_profile_gets_the_default(recommender, profile):
    cluster = Cluster(a_vpa(recommenders=[RecommenderSelector(recommender)]))
    cluster.deploy("web")
    service = RecommenderService(Source(usage_of()), cluster, Clock(T + 600 * 60), CATALOGUE, RecommenderSettings())
    (outcome,) = service.run_cycle().outcomes
    (recommended,) = outcome.recommendations
    assert recommended.explanation.profile == profile


def test_a_cron_job_keeps_its_recommendation_between_runs():
    cluster = Cluster(a_vpa("nightly", kind="CronJob"))
    cluster.add_workload("CronJob", "nightly")
    cluster.add_workload("Job", "nightly-1", ("CronJob", "nightly"))
    cluster.add_pod("nightly-1-x", ("Job", "nightly-1"), phase="Succeeded")
    result = run(cluster, Source(usage_of("nightly-1-x")))
    assert cluster.target("nightly")
    assert cluster.condition("nightly", "NoPodsMatched").status == "True"
    assert cluster.condition("nightly", "RecommendationProvided").status == "True"
    assert result.exit_code == EXIT_DONE


def test_no_pods_and_no_data():
    cluster = Cluster(a_vpa())
    cluster.add_workload("Deployment", "web")
    run(cluster, Source(usage_of("stranger")))
    assert cluster.condition("web", "NoPodsMatched").message == "no pod of Deployment/web is running"
    assert cluster.condition("web", "NoData").reason == "NoSamples"
    provided = cluster.condition("web", "RecommendationProvided")
    assert (provided.status, provided.reason) == ("False", "NoPodsMatched")
    assert cluster.status("web").recommendation is None


def test_a_pod_that_outlives_its_controller_still_counts_for_its_workload():
    cluster, source = Cluster(a_vpa()), Source(usage_of())
    cluster.deploy("web")
    service = a_service(cluster, source, T + 300 * 60)
    service.run_cycle()
    del cluster.workloads["shop", "ReplicaSet", "web-rs"]
    assert at(service, T + 400 * 60).outcomes[0].recommendations[0].explanation.samples == 400


def test_an_owner_that_is_no_workload_ends_the_chain():
    cluster = Cluster(a_vpa())
    cluster.deploy("web")
    cluster.add_workload("Deployment", "web", ("Shop", "main"))
    run(cluster, Source(usage_of()))
    assert cluster.target("web")


def test_containers_that_no_pod_has_any_more_have_no_part():
    cluster = Cluster(a_vpa())
    cluster.deploy("web", containers=("app",), init=(Container("proxy", restart_policy="Always"), Container("setup")))
    names = ("app", "proxy", "setup", "gone")
    run(cluster, Source(*(usage_of(container=name, seed=seed) for seed, name in enumerate(names))))
    assert [found.container_name for found in cluster.status("web").recommendation.container_recommendations] == ["app", "proxy"]


@pytest.mark.parametrize(
    ("policies", "expected"),
    [
        ({"side": {"mode": "Off"}}, {"app": {"cpu", "memory"}}),
        ({"*": {"mode": "Off"}}, {}),
        ({"*": {"mode": "Off"}, "app": {"mode": "Auto"}}, {"app": {"cpu", "memory"}}),
        ({"app": {"controlled_resources": ["memory"]}}, {"app": {"memory"}, "side": {"cpu", "memory"}}),
        ({"app": {"controlled_resources": []}}, {"side": {"cpu", "memory"}}),
    ],
    ids=["one off", "all off", "all but one off", "memory only", "nothing controlled"],
)
def test_policies_choose_containers_and_resources(policies, expected):
    cluster = Cluster(a_vpa(**policies))
    cluster.deploy("web", containers=("app", "side"))
    run(cluster, Source(usage_of(), usage_of(container="side")))
    found = cluster.status("web").recommendation.container_recommendations
    assert {one.container_name: set(one.target) for one in found} == expected
    assert cluster.condition("web", "NoData") is None
    assert cluster.condition("web", "RecommendationProvided").status == str(bool(expected))


def test_whole_cores_and_the_operators_maximum():
    vpa = a_vpa()
    metadata = msgspec.structs.replace(vpa.metadata, annotations={"vpa-post-processor.kubernetes.io/app_integerCPU": "true"})
    cluster = Cluster(msgspec.structs.replace(vpa, metadata=metadata))
    cluster.deploy("web")
    run(cluster, Source(usage_of()), max_allowed=Amounts(None, 10**8))
    assert cluster.target("web") == {"cpu": "1", "memory": "100M"}


def test_conditions_of_others_and_times_of_transition_are_kept():
    vpa = a_vpa()
    since = format_time(T - 3600)
    conditions = [Condition("RecommendationProvided", "True", "", "", since), Condition("Reviewed", "True", "ByHand", "", since)]
    cluster = Cluster(msgspec.structs.replace(vpa, status=msgspec.structs.replace(vpa.status, conditions=conditions)))
    cluster.deploy("web")
    run(cluster, Source(usage_of(minutes=2000)), T + 2000 * 60)
    assert cluster.status("web").conditions == conditions
    assert cluster.events == []


def test_a_vpa_that_is_new_gets_the_whole_history():
    cluster, source = Cluster(a_vpa()), Source(usage_of(), usage_of("api-1", seed=2))
    cluster.deploy("web")
    cluster.deploy("api")
    service = a_service(cluster, source, T + 300 * 60)
    service.run_cycle()
    cluster.vpas[ObjectKey("shop", "api")] = a_vpa("api")
    result = at(service, T + 301 * 60)
    samples = {outcome.vpa.name: outcome.recommendations[0].explanation.samples for outcome in result.outcomes}
    assert samples == {"api": 301, "web": 301}


def test_a_changed_policy_counts_from_the_next_cycle_and_costs_no_history():
    cluster, source = Cluster(a_vpa()), Source(usage_of(ooms=((T + 350 * 60, 10**9),)))
    cluster.deploy("web")
    service = a_service(cluster, source, T + 300 * 60)
    service.run_cycle()
    cluster.vpas[ObjectKey("shop", "web")] = a_vpa(app={"oom_bump_up_ratio": "3"})
    found = at(service, T + 400 * 60).outcomes[0].recommendations[0]
    assert found.explanation.samples == 400
    assert found.target.memory_bytes > 3 * 10**9


def test_the_operators_rounding_is_in_the_status():
    cluster = Cluster(a_vpa())
    cluster.deploy("web")
    run(cluster, Source(usage_of()), rounding=Rounding(cpu_millicores=1500, memory_bytes=2**27, humanize_memory=True))
    assert cluster.target("web") == {"cpu": "1500m", "memory": "1.00Gi"}
