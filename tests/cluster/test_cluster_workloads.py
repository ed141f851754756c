"""Owners of pods: the well-known controllers, what else is scalable, and what is neither."""

import pytest

from support.http import Answer, scripted_server
from support.sandbox import controller_spec, owner_of, template
from vpa_ippr.api.clock import SystemClock
from vpa_ippr.api.cluster import Workload
from vpa_ippr.api.errors import ValidationError
from vpa_ippr.cluster.kube import Kube
from vpa_ippr.cluster.paths import api_root
from vpa_ippr.cluster.rest import ApiError, Connection, Rest
from vpa_ippr.cluster.workloads import Remembered, find_workload

JOB_TEMPLATE = {"template": {"spec": {**template("web")["spec"], "restartPolicy": "Never"}}}
WELL_KNOWN = {
    "Deployment": ("apps/v1", "deployments.apps", controller_spec("web")),
    "ReplicaSet": ("apps/v1", "replicasets.apps", controller_spec("web")),
    "StatefulSet": ("apps/v1", "statefulsets.apps", {**controller_spec("web"), "serviceName": "web"}),
    "DaemonSet": ("apps/v1", "daemonsets.apps", {key: value for key, value in controller_spec("web").items() if key != "replicas"}),
    "Job": ("batch/v1", "jobs.batch", JOB_TEMPLATE),
    "CronJob": ("batch/v1", "cronjobs.batch", {"schedule": "0 3 * * *", "jobTemplate": {"spec": JOB_TEMPLATE}}),
}


@pytest.mark.parametrize("named", ["with-version", "without", "older-version"])
@pytest.mark.parametrize("kind", WELL_KNOWN)
def test_well_known_kinds(cluster, namespace, kind, named):
    version, resource, spec = WELL_KNOWN[kind]
    cluster.create(resource, namespace, "web", spec=spec)
    older = version.replace("v1", "v1beta1") if "/" in version else version
    asked = {"with-version": version, "without": "", "older-version": older}[named]
    assert find_workload(cluster.rest, namespace, asked, kind, "web") == Workload(version, kind, "web", replicas=spec.get("replicas"))
    assert find_workload(cluster.rest, namespace, asked, kind, "other") is None


def test_replication_controllers_are_well_known():
    with scripted_server(lambda _: Answer(body=b'{"metadata": {"name": "web"}}')) as server:
        found = find_workload(Rest(Connection(server.url)), "shop", "v1", "ReplicationController", "web")
    assert found == Workload("v1", "ReplicationController", "web")
    assert [request.path for request in server.requests] == ["/api/v1/namespaces/shop/replicationcontrollers/web"]


def test_the_controller_of_a_workload_is_told(cluster, namespace):
    deployment = cluster.create("deployments.apps", namespace, "web", spec=controller_spec("web"))
    metadata = {"ownerReferences": [owner_of(deployment)]}
    cluster.create("replicasets.apps", namespace, "web-abc", spec=controller_spec("web"), metadata=metadata)
    found = find_workload(cluster.rest, namespace, "apps/v1", "ReplicaSet", "web-abc")
    assert (found.controller.kind, found.controller.name) == ("Deployment", "web")


def definition(kind, plural, **subresources):
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}, "subresources": subresources}
    spec = {"group": "test.io", "scope": "Namespaced", "names": {"plural": plural, "kind": kind}, "versions": [version]}
    return {"metadata": {"name": f"{plural}.test.io"}, "spec": spec}


@pytest.fixture(scope="module")
def _custom_kinds(cluster):
    scale = {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}
    for one in (definition("Rollout", "rollouts", scale=scale), definition("Gear", "gears")):
        cluster.store.create("customresourcedefinitions.apiextensions.k8s.io", one)


@pytest.mark.usefixtures("_custom_kinds")
def test_other_kinds_count_when_they_are_scalable(cluster, namespace):
    for kind, resource in (("Rollout", "rollouts.test.io"), ("Gear", "gears.test.io")):
        cluster.create(resource, namespace, "web", apiVersion="test.io/v1", kind=kind, spec={"replicas": 1})
    assert find_workload(cluster.rest, namespace, "test.io/v1", "Rollout", "web") == Workload("test.io/v1", "Rollout", "web", replicas=1)
    assert find_workload(cluster.rest, namespace, "test.io/v1", "Rollout", "other") is None
    assert find_workload(cluster.rest, namespace, "test.io/v1", "Gear", "web") is None


@pytest.mark.parametrize(
    ("api_version", "kind", "message"),
    [
        ("test.example/v1", "Engine", "the cluster serves no API test.example/v1"),
        ("apps/v1", "Engine", "the cluster serves no kind Engine in apps/v1"),
        ("v1", "Scale", "the cluster serves no kind Scale in v1"),
        ("", "Engine", "targetRef of kind Engine needs an apiVersion"),
        ("other.io/v1", "Deployment", "the cluster serves no API other.io/v1"),
    ],
)
def test_a_kind_that_is_not_served_is_an_invalid_target(cluster, namespace, api_version, kind, message):
    with pytest.raises(ValidationError, match=message) as caught:
        find_workload(cluster.rest, namespace, api_version, kind, "web")
    assert caught.value.reason == "UnknownKind"


def test_a_kind_of_the_core_that_owns_no_pods_is_no_workload(cluster, namespace):
    assert find_workload(cluster.rest, namespace, "v1", "ConfigMap", "web") is None


@pytest.mark.parametrize("kind", ["Deployment", "Engine"])
def test_a_refusal_is_not_taken_for_absence(kind):
    with scripted_server(lambda _: Answer(403, b'{"message": "forbidden"}')) as server, pytest.raises(ApiError, match="forbidden"):
        find_workload(Rest(Connection(server.url)), "shop", "apps/v1", kind, "web")


def test_a_name_cannot_lead_to_another_path(cluster, namespace):
    assert find_workload(cluster.rest, namespace, "apps/v1", "Deployment", "../../../../api/v1/nodes") is None


class Clock:
    moment = 1000.0

    def now(self):
        return self.moment


def key(name):
    return ("shop", "apps/v1", "Deployment", name)


def test_remembered_workloads_expire():
    clock, web = Clock(), Workload("apps/v1", "Deployment", "web")
    remembered = Remembered(clock, 600)
    remembered.put(key("web"), web)
    clock.moment += 299
    assert remembered.get(key("web")) == web
    assert remembered.get(key("other")) is None
    clock.moment += 301
    assert remembered.get(key("web")) is None


def test_what_was_found_together_does_not_expire_together():
    clock = Clock()
    remembered = Remembered(clock, 600)
    names = [f"web-{number}" for number in range(200)]
    for name in names:
        remembered.put(key(name), Workload("apps/v1", "Deployment", name))
    left = []
    for _ in range(5):
        clock.moment += 100
        left.append(sum(remembered.get(key(name)) is not None for name in names))
    assert left[:2] == [200, 200]
    assert 100 < left[3] < 160
    assert 40 < left[4] < 100


def test_what_has_expired_is_swept_out():
    clock = Clock()
    remembered = Remembered(clock, 600)
    for number in range(5):
        remembered.put(key(f"web-{number}"), Workload("apps/v1", "Deployment", f"web-{number}"))
        clock.moment += 200
    clock.moment += 300
    remembered.put(key("last"), Workload("apps/v1", "Deployment", "last"))
    assert set(remembered._entries) <= {key("web-3"), key("web-4"), key("last")}
    assert key("last") in remembered._entries


def test_a_workload_is_asked_for_once_while_it_is_remembered_and_absence_is_not():
    body = b'{"metadata": {"name": "web"}}'
    with scripted_server(lambda request: Answer(body=body) if request.path.endswith("/web") else Answer(404)) as server:
        kube = Kube(Rest(Connection(server.url)), SystemClock(), "test")
        for name in ("web", "web", "gone", "gone"):
            kube.find_workload("shop", "apps/v1", "Deployment", name)
    assert [request.path.rpartition("/")[2] for request in server.requests] == ["web", "gone", "gone"]


def test_an_api_version_from_outside_cannot_lead_elsewhere():
    assert api_root("v1") == "/api/v1"
    assert api_root("apps/v1") == "/apis/apps/v1"
    assert api_root("apps/../../api/v1/secrets?x=") == "/apis/apps/..%2F..%2Fapi%2Fv1%2Fsecrets%3Fx%3D"
