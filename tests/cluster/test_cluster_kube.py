"""The services' port to the cluster and the agent's, over a real API server."""

import logging

import msgspec
import pytest

from support.http import Answer, scripted_server
from support.sandbox import CHECKPOINTS, SHRINKS, VPAS, owner_of, vpa_spec
from vpa_ippr.api.clock import SystemClock
from vpa_ippr.api.cluster import Node
from vpa_ippr.api.meta import Condition, ObjectKey, ObjectMeta, OwnerReference
from vpa_ippr.api.names import LABEL_NODE, node_label
from vpa_ippr.api.resources import Amounts, Resource
from vpa_ippr.api.shrink import ContainerReference, Intent, MemoryShrink, Phase, PodReference, ShrinkSpec, ShrinkStatus
from vpa_ippr.api.vpa import (
    CheckpointSpec,
    CheckpointStatus,
    ContainerRecommendation,
    HistogramCheckpoint,
    PodRecommendation,
    VpaCheckpoint,
    VpaStatus,
)
from vpa_ippr.cluster.kube import Kube
from vpa_ippr.cluster.node_port import NodePort
from vpa_ippr.cluster.rest import ApiError, Connection, Rest

MIB = 1 << 20
AMOUNTS = {"cpu": "100m", "memory": "128Mi"}


@pytest.fixture
def kube(cluster):
    return Kube(cluster.rest, SystemClock(), "vpa-ippr-test")


@pytest.fixture
def agent(cluster):
    return NodePort(cluster.rest, SystemClock())


def names(objects, namespace):
    return [one.metadata.name for one in objects if one.metadata.namespace == namespace]


def shrink_of(namespace, name, *, node="n1", pod="web-0"):
    metadata = ObjectMeta(name=name, namespace=namespace, labels={LABEL_NODE: node_label(node)})
    spec = ShrinkSpec(PodReference(pod, "uid-1"), node, ContainerReference("app", "containerd://1"), 64 * MIB)
    return MemoryShrink(metadata, spec)


def test_lists_come_as_typed_objects(cluster, kube, namespace):
    cluster.create("limitranges", namespace, "bounds", spec={"limits": [{"type": "Container", "max": {"cpu": "2"}}]})
    (limit_range,) = (one for one in kube.list_limit_ranges() if one.metadata.namespace == namespace)
    assert limit_range.spec.limits[0].max == {"cpu": "2"}
    cluster.create("poddisruptionbudgets.policy", namespace, "web", spec={"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}})
    (pdb,) = (one for one in kube.list_pdbs() if one.metadata.namespace == namespace)
    assert pdb.spec.selector is not None
    assert pdb.spec.selector.match_labels == {"app": "web"}
    cluster.create(VPAS, namespace, "web", spec=vpa_spec("StatefulSet", "web"))
    kube.create_shrink(shrink_of(namespace, "web-0-1"))
    kube.put_checkpoint(VpaCheckpoint(ObjectMeta(name="web-app", namespace=namespace), CheckpointSpec("web", "app")))
    (vpa,) = (vpa for vpa in kube.list_vpas() if vpa.metadata.namespace == namespace)
    assert (vpa.spec.target_ref.kind, vpa.spec.recommenders[0].name) == ("StatefulSet", "vpa-ippr")
    assert names(kube.list_shrinks(), namespace) == ["web-0-1"]
    assert names(kube.list_checkpoints(), namespace) == ["web-app"]
    assert kube.left_out == ()


def test_pods_are_those_on_a_node_that_have_not_ended(cluster, kube, namespace):
    for name, node, phase in (
        ("running", "n1", "Running"),
        ("starting", "n1", "Pending"),
        ("unscheduled", "", "Pending"),
        ("done", "n1", "Succeeded"),
        ("broken", "n1", "Failed"),
    ):
        cluster.pod(namespace, name, node=node, phase=phase)
    assert names(kube.list_pods(), namespace) == ["running", "starting"]


def test_nodes_have_a_size_and_a_version(kube):
    (node,) = kube.list_nodes()
    assert (node.name, node.allocatable) == ("n1", Amounts(4000, 8 << 30))
    assert node.kubelet_version.startswith("v1.36")
    assert node.labels["kubernetes.io/hostname"] == "n1"


def test_a_node_that_cannot_be_read_is_left_out_and_logged(caplog):
    def node(name, cpu):
        status = {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "110"}, "nodeInfo": {"kubeletVersion": "v1.36.0"}}
        return {"metadata": {"name": name}, "status": status}

    listing = {"metadata": {"resourceVersion": "7"}, "items": [node("n1", "4"), node("n2", "four")]}
    with scripted_server(lambda _: Answer(body=msgspec.json.encode(listing))) as server, caplog.at_level(logging.WARNING):
        nodes = Kube(Rest(Connection(server.url)), SystemClock(), "test").list_nodes()
    assert nodes == [Node("n1", Amounts(4000, 8 << 30), "v1.36.0")]
    assert nodes[0].shape == f"n1/4000m/{8 << 30}"
    (record,) = caplog.records
    assert "node n2" in record.error


def test_an_object_that_cannot_be_read_is_named_and_the_others_are_kept(caplog):
    listing = {"metadata": {}, "items": [{"metadata": {"name": "bad", "namespace": "shop"}, "spec": 7}, {"metadata": {"name": "good"}}]}
    pages = [listing, {"metadata": {}, "items": []}]
    with scripted_server(lambda _: Answer(body=msgspec.json.encode(pages[0]))) as server, caplog.at_level(logging.WARNING):
        kube = Kube(Rest(Connection(server.url)), SystemClock(), "test")
        assert [vpa.metadata.name for vpa in kube.list_vpas()] == ["good"]
        (line,) = kube.left_out
        assert "shop/bad" in line
        assert [record.error for record in caplog.records] == [line]
        pages.pop(0)
        kube.list_vpas()
        assert kube.left_out == ()


def test_what_is_gone_is_none_or_nothing(kube, agent, namespace):
    key = ObjectKey(namespace, "nobody")
    assert (kube.get_pod(key), agent.get_pod(key), kube.get_shrink(key)) == (None, None, None)
    kube.patch_vpa_status(key, VpaStatus())
    kube.annotate_vpa(key, {"a": "b"})
    kube.delete_shrink(key)
    agent.patch_shrink_status(key, ShrinkStatus())
    for write in (lambda: kube.resize_pod(key, {"spec": {}}), lambda: kube.patch_shrink_intent(key, Intent.ABORT)):
        with pytest.raises(ApiError) as caught:
            write()
        assert (caught.value.status, caught.value.reason) == (404, "NotFound")


@pytest.mark.parametrize("call", ["get_pod", "get_shrink", "patch_vpa_status", "annotate_vpa", "patch_shrink_status"])
def test_other_refusals_are_not_taken_for_gone(call):
    arguments = {"patch_vpa_status": (VpaStatus(),), "annotate_vpa": ({},), "patch_shrink_status": (ShrinkStatus(),)}.get(call, ())
    answer = Answer(403, b'{"kind": "Status", "reason": "Forbidden", "message": "no", "code": 403}')
    with scripted_server(lambda _: answer) as server:
        rest = Rest(Connection(server.url))
        port = NodePort(rest, SystemClock()) if call == "patch_shrink_status" else Kube(rest, SystemClock(), "test")
        with pytest.raises(ApiError, match="no"):
            getattr(port, call)(ObjectKey("shop", "web"), *arguments)


def test_resize_changes_the_pod_and_a_stale_precondition_is_a_conflict(cluster, kube, namespace):
    created = cluster.pod(namespace, "web-0", requests=AMOUNTS)
    key = ObjectKey(namespace, "web-0")
    patch = {
        "metadata": {"resourceVersion": created["metadata"]["resourceVersion"]},
        "spec": {"containers": [{"name": "app", "resources": {"requests": {"cpu": "200m"}}}]},
    }
    resized = kube.resize_pod(key, patch)
    assert resized.desired("app").requests == Amounts(200, 128 * MIB)
    assert kube.get_pod(key) == resized
    with pytest.raises(ApiError) as caught:
        kube.resize_pod(key, patch)
    assert (caught.value.status, caught.value.api_reason) == (409, "Conflict")


def test_a_refused_resize_says_why(cluster, kube, namespace):
    cluster.pod(namespace, "web-0", requests=AMOUNTS, limits=AMOUNTS)
    patch = {"spec": {"containers": [{"name": "app", "resources": {"requests": {"cpu": "50m"}}}]}}
    with pytest.raises(ApiError, match="QOS") as caught:
        kube.resize_pod(ObjectKey(namespace, "web-0"), patch)
    assert caught.value.status == 422
    assert caught.value.causes[0].reason == "FieldValueInvalid"


def test_annotating_a_pod_keeps_other_annotations_and_obeys_its_precondition(cluster, kube, namespace):
    created = cluster.pod(namespace, "web-0")
    key, version = ObjectKey(namespace, "web-0"), created["metadata"]["resourceVersion"]
    kube.annotate_pod(key, {"metadata": {"annotations": {"a": "1"}}})
    assert kube.annotate_pod(key, {"metadata": {"annotations": {"b": "2"}}}).metadata.annotations == {"a": "1", "b": "2"}
    with pytest.raises(ApiError) as caught:
        kube.annotate_pod(key, {"metadata": {"resourceVersion": version, "annotations": {"c": "3"}}})
    assert caught.value.status == 409


def test_annotating_a_vpa(cluster, kube, namespace):
    cluster.create(VPAS, namespace, "web", spec=vpa_spec("StatefulSet", "web"), metadata={"annotations": {"a": "1"}})
    kube.annotate_vpa(ObjectKey(namespace, "web"), {"b": "2"})
    assert cluster.store.get(VPAS, namespace, "web")["metadata"]["annotations"] == {"a": "1", "b": "2"}


def test_a_status_is_replaced_as_a_whole(cluster, kube, namespace):
    cluster.create(VPAS, namespace, "web", spec=vpa_spec("StatefulSet", "web"))
    key = ObjectKey(namespace, "web")

    def status(*containers, **more):
        return VpaStatus(PodRecommendation([ContainerRecommendation(name, {"cpu": "100m"}, **more) for name in containers]))

    kube.patch_vpa_status(key, status("app", "sidecar", upper_bound={"cpu": "1"}))
    shorter = msgspec.structs.replace(status("app"), conditions=[Condition("NoData", "True", "NoSamples", "none")])
    kube.patch_vpa_status(key, shorter)
    (vpa,) = (vpa for vpa in kube.list_vpas() if vpa.key == key)
    assert vpa.status == shorter
    kube.patch_vpa_status(key, VpaStatus())
    assert cluster.store.get(VPAS, namespace, "web").get("status") == {}
    assert cluster.store.get(VPAS, namespace, "web")["spec"]["targetRef"]["name"] == "web"


def test_a_checkpoint_is_created_then_replaced_without_leftovers(cluster, kube, namespace):
    owner = OwnerReference("autoscaling.k8s.io/v1", "VerticalPodAutoscaler", "web", uid="uid-1")

    def checkpoint(weights, **annotations):
        metadata = ObjectMeta(name="web-app", namespace=namespace, annotations=annotations, owner_references=[owner])
        histogram = HistogramCheckpoint("2026-01-01T00:00:00Z", weights, 12.5)
        return VpaCheckpoint(metadata, CheckpointSpec("web", "app"), CheckpointStatus(version="v3", cpu_histogram=histogram))

    kube.put_checkpoint(checkpoint({"1": 10_000, "7": 3}, old="yes"))
    kube.put_checkpoint(checkpoint({"2": 10_000}, new="yes"))
    (found,) = (one for one in kube.list_checkpoints() if one.metadata.namespace == namespace)
    assert found.status == checkpoint({"2": 10_000}).status
    assert found.metadata.annotations == {"new": "yes"}
    assert found.metadata.owner_references == [owner]
    assert cluster.store.get(CHECKPOINTS, namespace, "web-app")["status"]["cpuHistogram"]["bucketWeights"] == {"2": 10_000}


def test_a_checkpoint_that_is_refused_is_an_error():
    with scripted_server(lambda _: Answer(403, b'{"message": "forbidden"}')) as server:
        kube = Kube(Rest(Connection(server.url)), SystemClock(), "test")
        with pytest.raises(ApiError, match="forbidden"):
            kube.put_checkpoint(VpaCheckpoint(ObjectMeta(name="web-app", namespace="shop")))
    assert [request.method for request in server.requests] == ["PATCH"]


def test_the_life_of_a_shrink(cluster, kube, agent, namespace):
    key = ObjectKey(namespace, "web-0-1")
    kube.create_shrink(shrink_of(namespace, "web-0-1"))
    with pytest.raises(ApiError) as caught:
        kube.create_shrink(shrink_of(namespace, "web-0-1"))
    assert (caught.value.status, caught.value.api_reason) == (409, "AlreadyExists")
    agent.patch_shrink_status(key, ShrinkStatus(Phase.HOLDING, "Held", usage_bytes=60 * MIB, steps=4))
    agent.patch_shrink_status(key, ShrinkStatus(Phase.COMMITTED, "LimitLowered"))
    assert kube.get_shrink(key).status == ShrinkStatus(Phase.COMMITTED, "LimitLowered")
    kube.patch_shrink_intent(key, Intent.ABORT)
    (found,) = (shrink for shrink in kube.list_shrinks() if shrink.key == key)
    assert (found.spec.intent, found.spec.target_bytes, found.status.phase) == (Intent.ABORT, 64 * MIB, Phase.COMMITTED)
    kube.delete_shrink(key)
    assert cluster.store.find(SHRINKS, namespace, "web-0-1") is None


def test_the_agent_sees_the_shrinks_of_its_own_node(kube, agent, namespace):
    for name, node in (("a", "n1"), ("b", "n2"), ("c", "n1")):
        kube.create_shrink(shrink_of(namespace, name, node=node))
    assert names(agent.list_shrinks("n1"), namespace) == ["a", "c"]
    assert agent.list_shrinks("n3") == []


LONG = "ip-10-0-0-1.a-very-long-domain-name-as-some-clouds-give-them.region.compute.example"


def test_the_agent_of_a_node_with_a_long_name_sees_its_shrinks_only(kube, agent, namespace):
    for name, node in (("a", LONG), ("b", f"{LONG}.org")):
        kube.create_shrink(shrink_of(namespace, name, node=node))
    assert names(agent.list_shrinks(LONG), namespace) == ["a"]
    assert names(agent.list_shrinks(f"{LONG}.org"), namespace) == ["b"]


def test_a_label_alone_does_not_make_a_shrink_the_nodes(kube, agent, namespace):
    foreign = shrink_of(namespace, "a", node="n2")
    kube.create_shrink(msgspec.structs.replace(foreign, metadata=msgspec.structs.replace(foreign.metadata, labels={LABEL_NODE: "n1"})))
    assert names(agent.list_shrinks("n1"), namespace) == []


def test_the_agent_skips_a_shrink_that_it_cannot_read(caplog):
    listing = {"metadata": {}, "items": [{"metadata": {"name": "bad", "namespace": "shop"}, "spec": {}}]}
    with scripted_server(lambda _: Answer(body=msgspec.json.encode(listing))) as server, caplog.at_level(logging.WARNING):
        assert NodePort(Rest(Connection(server.url)), SystemClock()).list_shrinks("n1") == []
    assert "shop/bad" in caplog.records[0].error


def test_the_agent_reads_pods_and_records_events_on_them(cluster, agent, namespace):
    created = cluster.pod(namespace, "web-0", requests=AMOUNTS)
    assert agent.get_pod(ObjectKey(namespace, "web-0")).desired("app").requests.get(Resource.CPU) == 100
    agent.record_event(shrink_of(namespace, "a"), "Warning", "ShrinkRefused", "too much anonymous memory")
    (event,) = cluster.store.list("events", namespace)
    assert event["involvedObject"] == {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": "web-0", "uid": "uid-1"}
    assert (event["type"], event["source"]["component"]) == ("Warning", "vpa-ippr-actuator")
    assert created["metadata"]["name"] == "web-0"


def test_an_event_about_a_vpa_points_at_it(cluster, kube, namespace):
    cluster.create(VPAS, namespace, "web", spec=vpa_spec("StatefulSet", "web"))
    (vpa,) = (vpa for vpa in kube.list_vpas() if vpa.metadata.namespace == namespace)
    kube.record_event(vpa, "Normal", "RecommendationProvided", "a recommendation is there")
    (event,) = cluster.store.list("events", namespace)
    reference = {key: event["involvedObject"][key] for key in ("apiVersion", "kind", "name", "uid")}
    assert reference == {key: value for key, value in owner_of(cluster.store.get(VPAS, namespace, "web")).items() if key != "controller"}
