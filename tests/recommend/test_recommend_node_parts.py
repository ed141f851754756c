"""A DaemonSet whose pods are told apart by a label of their nodes, in the recommender's cycles on a cluster and a source in memory."""

import json
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recommend_support import CATALOGUE, Cluster, Source, T, a_service, a_vpa, at, usage_of

from support.ensembles import an_ensemble_profile
from vpa_ippr.api.cluster import Node
from vpa_ippr.api.errors import ClusterError, SourceError
from vpa_ippr.api.meta import ObjectKey
from vpa_ippr.api.names import ANNOTATION_NODE_LABEL_VALUE as MARK
from vpa_ippr.api.names import ANNOTATION_RECOMMENDATIONS_BY_NODE_LABEL as BY_VALUE
from vpa_ippr.api.names import ANNOTATION_SPLIT_BY_NODE_LABEL as ASKED
from vpa_ippr.api.resources import Amounts, Resource
from vpa_ippr.api.series import Finding, PodNodes, Usage, WorkloadRef
from vpa_ippr.api.vpa import RecommenderSelector
from vpa_ippr.recommend.node_parts import MAX_VALUES, largest_of
from vpa_ippr.recommend.pipeline import recommend
from vpa_ippr.recommend.result import Explanation, Recommendation

PROFILE = an_ensemble_profile()
BOTH = {**CATALOGUE, PROFILE.name: PROFILE}
AGENT = WorkloadRef("shop", "DaemonSet", "agent")
NOW = T + 600 * 60
NODES = {"n1": {"pool": "small"}, "n2": {"pool": "small"}, "n3": {"pool": "large"}, "n4": {}}


class PodNodeSource:
    def __init__(self, nodes):
        self.nodes = {("shop", pod): node for pod, node in nodes.items()}
        self.error = None
        self.broken = ()

    def fetch_pod_nodes(self, window, namespaces):
        assert window.start < window.end
        if self.error is not None:
            raise self.error
        return PodNodes(self.nodes, tuple(Finding("Timeout", name, 1, "timed out") for name in namespaces if name in self.broken))


def split_vpa(label="pool", **more):
    vpa = a_vpa("agent", **{"kind": "DaemonSet", **more})
    return msgspec.structs.replace(vpa, metadata=msgspec.structs.replace(vpa.metadata, annotations={ASKED: label}))


def a_cluster(vpa=None, nodes=NODES):
    cluster = Cluster(vpa or split_vpa())
    cluster.nodes = [Node(name, labels=labels) for name, labels in nodes.items()]
    cluster.add_workload("DaemonSet", "agent")
    for name in nodes:
        cluster.add_pod(f"agent-{name}", ("DaemonSet", "agent"), node=name)
    return cluster


def usage_on(node, times=1.0, **more):
    usage = usage_of(f"agent-{node}", seed=len(node) + ord(node[-1]), owner=AGENT, **more)
    return Usage(tuple(replace(one, values=one.values * times) for one in usage.series), usage.ooms, usage.owners)


def by_value(cluster):
    document = json.loads(cluster.vpas[ObjectKey("shop", "agent")].metadata.annotations[BY_VALUE])
    return {value: found[0]["target"] for value, found in document["values"].items()}


def by_checkpoint(cluster, name):
    return cluster.checkpoints[name].status.total_samples_count


def expected(*usages, now=NOW):
    (found,) = recommend(Source(*usages).usage, CATALOGUE["vpa-classic"], now)
    return found


def everything(minutes=600):
    return [
        usage_on("n1", minutes=minutes),
        usage_on("n2", minutes=minutes),
        usage_on("n3", 8, minutes=minutes),
        usage_on("n4", 3, minutes=minutes),
    ]


def test_each_value_gets_what_its_own_pods_need_and_the_status_the_largest():
    cluster, usages = a_cluster(), everything()
    result = at(a_service(cluster, Source(*usages), NOW), NOW)
    small, large, bare = expected(*usages[:2]), expected(usages[2]), expected(usages[3])
    assert by_value(cluster) == {
        "small": small.target.to_quantities(),
        "large": large.target.to_quantities(),
        "": bare.target.to_quantities(),
    }
    assert cluster.target("agent") == large.target.to_quantities()
    assert result.failures == ()
    assert result.outcomes[0].workload == AGENT


def test_without_the_annotation_nothing_is_told_apart():
    cluster, usages = a_cluster(a_vpa("agent", kind="DaemonSet")), everything()
    cluster.failing["list_nodes"] = ClusterError("forbidden")
    result = at(a_service(cluster, Source(*usages), NOW), NOW)
    assert result.failures == ()
    assert cluster.target("agent") == expected(*usages).target.to_quantities()
    assert list(cluster.checkpoints) == ["agent-app"]


def test_every_value_has_a_checkpoint_of_its_own():
    cluster = a_cluster()
    at(a_service(cluster, Source(*everything()), NOW), NOW)
    assert {one.metadata.annotations[MARK] for one in cluster.checkpoints.values()} == {"pool=small", "pool=large", "pool="}
    assert {one.spec.container_name for one in cluster.checkpoints.values()} == {"app"}
    assert all(name.startswith("agent-app-") for name in cluster.checkpoints)


@pytest.mark.parametrize(
    ("recommender", "retention"),
    [("vpa-ippr", float("inf")), ("vpa-ippr", 3600.0), (f"vpa-ippr-{PROFILE.name}", float("inf"))],
    ids=["with the history", "without it", "under an ensemble"],
)
def test_a_restart_gives_the_same_numbers(recommender, retention):
    cluster = a_cluster(split_vpa(recommenders=[RecommenderSelector(recommender)]))
    source = Source(*everything(6000))
    first = a_service(cluster, source, T, BOTH)
    at(first, T + 5000 * 60)
    source.retention = retention
    later = T + 5030 * 60
    at(a_service(cluster, source, later, BOTH), later)
    restarted, written = by_value(cluster), cluster.status("agent").recommendation
    at(first, later)
    assert by_value(cluster) == restarted
    assert cluster.status("agent").recommendation == written


def test_a_restart_remembers_a_node_that_is_gone():
    cluster, source = a_cluster(), Source(usage_on("n1"), usage_on("n2", 20, minutes=300), usage_on("n3"))
    pod_nodes = PodNodeSource({"agent-n2": "n2"})
    at(a_service(cluster, source, T, pod_nodes=pod_nodes), T + 300 * 60)
    before = by_value(cluster)["small"]
    cluster.nodes = [node for node in cluster.nodes if node.name != "n2"]
    cluster.pods = [pod for pod in cluster.pods if pod.metadata.name != "agent-n2"]
    result = at(a_service(cluster, source, T, pod_nodes=pod_nodes), T + 300 * 60)
    assert by_value(cluster)["small"] == before
    assert [finding.reason for finding in result.findings] == ["PodNodeUnknown"]


def test_pods_that_have_ended_count_where_they_ran():
    usages = [usage_on("n1"), usage_on("n3", 8), usage_on("old", 20, minutes=300)]
    cluster = a_cluster(nodes={"n1": NODES["n1"], "n3": NODES["n3"]})
    at(a_service(cluster, Source(*usages), NOW, pod_nodes=PodNodeSource({"agent-old": "n1"})), NOW)
    assert by_value(cluster) == {
        "small": expected(usages[0], usages[2]).target.to_quantities(),
        "large": expected(usages[1]).target.to_quantities(),
    }


@pytest.mark.parametrize("how", ["error", "broken"])
def test_what_cannot_be_placed_waits_and_loses_nothing(how):
    usages = [usage_on("n1"), usage_on("old", 20, minutes=300)]
    cluster, pod_nodes = a_cluster(nodes={"n1": NODES["n1"]}), PodNodeSource({"agent-old": "n1"})
    setattr(pod_nodes, how, {"error": SourceError("503"), "broken": ("shop",)}[how])
    service = a_service(cluster, Source(*usages), NOW, pod_nodes=pod_nodes)
    assert at(service, NOW).failures
    assert cluster.condition("agent", "NoData").status == "True"
    setattr(pod_nodes, how, {"error": None, "broken": ()}[how])
    at(service, NOW)
    assert by_value(cluster) == {"small": expected(*usages).target.to_quantities()}


def test_nodes_that_cannot_be_listed_are_waited_for():
    cluster = a_cluster()
    service = a_service(cluster, Source(*everything(700)), NOW)
    at(service, NOW)
    before = cluster.vpas.copy()
    cluster.failing["list_nodes"] = ClusterError("nodes: 403")
    assert [failure.subject for failure in at(service, NOW + 60).failures] == ["shop/agent"]
    assert cluster.vpas == before
    cluster.failing.clear()
    at(service, NOW + 120)
    usages = everything(700)
    assert by_value(cluster)["small"] == expected(*usages[:2], now=NOW + 120).target.to_quantities()


def test_a_checkpoint_of_all_pods_is_the_beginning_of_each_value():
    cluster, source = a_cluster(a_vpa("agent", kind="DaemonSet")), Source(*everything(6000))
    at(a_service(cluster, source, T), T + 600 * 60)
    whole = cluster.target("agent")
    kept = cluster.checkpoints["agent-app"]
    cluster.vpas = {vpa.key: vpa for vpa in [split_vpa()]}
    source.retention = 60.0
    at(a_service(cluster, source, T), T + 600 * 60)
    assert set(map(str, by_value(cluster).values())) == {str(whole)}
    assert cluster.checkpoints["agent-app"] == kept


@pytest.mark.parametrize("whole_last", [False, True], ids=["listed first", "listed last"])
def test_a_value_with_a_checkpoint_of_its_own_needs_no_other(whole_last):
    cluster, source = a_cluster(a_vpa("agent", kind="DaemonSet")), Source(*everything(6000))
    at(a_service(cluster, source, T), T + 4000 * 60)
    whole = cluster.checkpoints.pop("agent-app")
    cluster.vpas = {vpa.key: vpa for vpa in [split_vpa()]}
    at(a_service(cluster, source, T), T + 5000 * 60)
    before = by_value(cluster)
    parts = cluster.checkpoints
    cluster.checkpoints = {**parts, "agent-app": whole} if whole_last else {"agent-app": whole, **parts}
    source.retention = 60.0
    at(a_service(cluster, source, T), T + 5000 * 60)
    assert by_value(cluster) == before


def test_all_pods_together_are_not_taken_from_the_checkpoint_of_one_value():
    cluster, source = a_cluster(), Source(*everything())
    at(a_service(cluster, source, NOW), NOW)
    cluster.vpas = {vpa.key: vpa for vpa in [a_vpa("agent", kind="DaemonSet")]}
    at(a_service(cluster, source, NOW), NOW)
    assert cluster.target("agent") == expected(*everything()).target.to_quantities()
    assert by_checkpoint(cluster, "agent-app") == 4 * 600


@pytest.mark.parametrize(
    ("vpa", "reason"),
    [
        (split_vpa("no label"), "InvalidNodeLabel"),
        (split_vpa(kind="Deployment"), "SplitUnsupported"),
        (split_vpa("many"), "TooManyNodeLabelValues"),
    ],
    ids=["label", "kind", "values"],
)
def test_what_cannot_be_split_is_told(vpa, reason):
    cluster = a_cluster(vpa, {f"n{number}": {"many": str(number)} for number in range(MAX_VALUES + 1)})
    at(a_service(cluster, Source(), NOW), NOW)
    assert cluster.condition("agent", "ConfigUnsupported").reason == reason


AMOUNTS = st.builds(Amounts, st.none() | st.integers(1, 10**6), st.none() | st.integers(1, 10**12))
EXPLANATION = Explanation("p", "f", (), 1, None, None)
PART = st.builds(
    lambda container, *amounts: Recommendation(AGENT, container, *amounts, 1.0, EXPLANATION),
    st.sampled_from(["app", "sidecar"]),
    *[AMOUNTS] * 4,
)


@given(st.lists(st.lists(PART, max_size=3), max_size=4))
def test_the_largest_is_enough_for_every_part_and_no_more(parts):
    found = {one.container: one.estimate for one in largest_of(AGENT, parts)}
    every = [one for part in parts for one in part]
    assert list(found) == sorted({one.container for one in every})
    for container, estimate in found.items():
        for field in ("target", "lower_bound", "upper_bound", "uncapped_target"):
            for resource in Resource:
                amounts = {getattr(one, field).get(resource) for one in every if one.container == container} - {None}
                assert getattr(estimate, field).get(resource) == max(amounts, default=None)
