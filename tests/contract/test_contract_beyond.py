"""What upstream has no test for, as far as it can be seen through the API."""

from __future__ import annotations

from typing import Any

import pytest
from contract_cluster import JSON_PATCH, STRATEGIC, Namespace, RefusedError, is_ready, is_settled
from contract_pods import Container, Res, guaranteed, has_resources, measured, patch_of, pod_of, restarts, specs, statuses

pytestmark = pytest.mark.integration

Json = dict[str, Any]
UNSCHEDULED = {"schedulerName": "contract-nobody"}
BURSTABLE = Res(cpu=20, cpu_limit=30, memory=35, memory_limit=45)
RAISED = {"containers": [{"name": "c1", "resources": {"requests": {"cpu": "25m"}}}]}
LIMIT_RANGE = {"type": "Container", "default": {"cpu": "100m", "memory": "100Mi"}, "defaultRequest": {"cpu": "50m", "memory": "50Mi"}}


@pytest.fixture
def waiting_pod(namespace: Namespace) -> Json:
    return namespace.create_pod(pod_of(Container("c1", BURSTABLE), **UNSCHEDULED))


class TestTheRequest:
    def test_whatever_else_is_sent_along_is_ignored(self, namespace: Namespace, waiting_pod: Json) -> None:
        spec = {"containers": [{"name": "c1", "image": "other:1", "resources": {"requests": {"cpu": "25m"}}}], "nodeName": "elsewhere"}
        metadata = {"labels": {"new": "yes"}, "annotations": {"new": "yes"}, "finalizers": ["example.com/held"]}
        namespace.resize(spec, metadata=metadata)
        pod = namespace.pod()
        assert measured(specs(pod)["c1"]["resources"]) == BURSTABLE.but(cpu=25)
        assert specs(pod)["c1"]["image"] == specs(waiting_pod)["c1"]["image"]
        assert "nodeName" not in pod["spec"]
        kept = ("labels", "annotations", "finalizers")
        assert [pod["metadata"].get(key) for key in kept] == [waiting_pod["metadata"].get(key) for key in kept]
        assert pod["metadata"]["generation"] == 2

    def test_only_ignored_things_are_no_change(self, namespace: Namespace, waiting_pod: Json) -> None:
        namespace.resize({"containers": [{"name": "c1", "image": "other:1"}]})
        assert namespace.pod()["spec"] == waiting_pod["spec"]
        assert namespace.pod()["metadata"]["generation"] == 1

    @pytest.mark.parametrize("method", ["PUT", "PATCH"])
    def test_a_stale_resource_version(self, namespace: Namespace, waiting_pod: Json, method: str) -> None:
        labels = {"metadata": {"labels": {"new": "yes"}}}
        namespace.cluster.send("PATCH", f"{namespace.path}/pods/pod", labels, STRATEGIC)
        stale = waiting_pod["metadata"]["resourceVersion"]
        body = waiting_pod if method == "PUT" else {"spec": RAISED, "metadata": {"resourceVersion": stale}}
        kind = "application/json" if method == "PUT" else STRATEGIC
        with pytest.raises(RefusedError) as caught:
            namespace.cluster.send(method, f"{namespace.path}/pods/pod/resize", body, kind)
        assert (caught.value.code, caught.value.reason) == (409, "Conflict")
        assert namespace.pod()["metadata"]["generation"] == 1

    @pytest.mark.usefixtures("waiting_pod")
    def test_a_json_patch_whose_test_fails(self, namespace: Namespace) -> None:
        path = "/spec/containers/0/resources/requests/cpu"
        patch = [{"op": "test", "path": path, "value": "21m"}, {"op": "replace", "path": path, "value": "25m"}]
        assert namespace.refused(patch, kind=JSON_PATCH).code == 422
        patch[0]["value"] = "20m"
        assert namespace.resize(patch, kind=JSON_PATCH)["metadata"]["generation"] == 2

    def test_a_dry_run(self, namespace: Namespace, waiting_pod: Json) -> None:
        tried = namespace.resize(RAISED, dry_run=True)
        assert measured(specs(tried)["c1"]["resources"]) == BURSTABLE.but(cpu=25)
        assert namespace.pod() == waiting_pod

    @pytest.mark.usefixtures("waiting_pod")
    def test_a_dry_run_is_refused_as_the_request_would_be(self, namespace: Namespace) -> None:
        patch = {"containers": [{"name": "c1", "resources": {"requests": {"cpu": "31m"}}}]}
        dry, wet = namespace.refused(patch, dry_run=True), namespace.refused(patch)
        assert (dry.code, dry.message, dry.causes) == (wet.code, wet.message, wet.causes)

    @pytest.mark.usefixtures("kubelet")  # where there is one, there is a quota controller too
    def test_a_dry_run_is_not_charged(self, namespace: Namespace) -> None:
        path = f"{namespace.path}/resourcequotas/quota"
        get = namespace.cluster.send
        namespace.create("resourcequotas", "ResourceQuota", "quota", spec={"hard": {"cpu": "200m"}})
        namespace.cluster.wait("the quota is known", lambda: get("GET", path).get("status", {}).get("hard"), shown=lambda: get("GET", path))
        namespace.create_pod(pod_of(Container("c1", BURSTABLE), **UNSCHEDULED))
        namespace.resize(RAISED, dry_run=True)
        assert get("GET", path)["status"]["used"] == {"cpu": "20m"}

    def test_a_later_limit_range_adds_its_defaults(self, namespace: Namespace) -> None:
        """To every container, and without the annotation that says so at creation."""
        containers = (Container("c1", Res(cpu=20, cpu_limit=30)), Container("c2", Res(cpu=22, cpu_limit=32)))
        created = namespace.create_pod(pod_of(*containers, **UNSCHEDULED))
        namespace.create("limitranges", "LimitRange", "range", spec={"limits": [LIMIT_RANGE]})
        if namespace.cluster.minor == 33:
            assert "memory limits cannot be added" in namespace.refused(RAISED).message
            return
        namespace.resize(RAISED)
        pod = namespace.pod()
        found = {name: measured(spec["resources"]) for name, spec in specs(pod).items()}
        assert found == {"c1": Res(25, 30, 50, 100), "c2": Res(22, 32, 50, 100)}
        assert pod["metadata"].get("annotations") == created["metadata"].get("annotations")

    def test_a_later_limit_range_may_stand_in_the_way(self, namespace: Namespace) -> None:
        namespace.create_pod(pod_of(Container("c1", Res(cpu=120)), **UNSCHEDULED))
        namespace.create("limitranges", "LimitRange", "range", spec={"limits": [LIMIT_RANGE]})
        refusal = namespace.refused({"containers": [{"name": "c1", "resources": {"requests": {"cpu": "130m"}}}]})
        assert refusal.code == 422
        assert 'Invalid value: "130m": must be less than or equal to cpu limit of 100m' in refusal.message

    def test_a_limit_without_a_request_brings_the_request(self, namespace: Namespace) -> None:
        namespace.create_pod(pod_of(Container("c1", Res(memory=35)), **UNSCHEDULED))
        namespace.resize({"containers": [{"name": "c1", "resources": {"limits": {"cpu": "30m"}}}]})
        assert measured(specs(namespace.pod())["c1"]["resources"]) == Res(cpu=30, cpu_limit=30, memory=35)

    @pytest.mark.usefixtures("waiting_pod")
    def test_a_pod_that_nobody_has_scheduled(self, namespace: Namespace) -> None:
        """Larger than any node: who schedules it will look."""
        huge = {"requests": {"cpu": "100k"}, "limits": {"cpu": "100k"}}
        assert namespace.resize({"containers": [{"name": "c1", "resources": huge}]})["metadata"]["generation"] == 2


@pytest.mark.usefixtures("kubelet")
class TestTheKubelet:
    def test_two_resizes_at_once(self, namespace: Namespace) -> None:
        """Whether the first is carried out in between is a race; the second is what counts."""
        main = Container("c1", guaranteed(20, 35))
        namespace.run_pod(pod_of(main))
        for res in (guaranteed(25, 40), guaranteed(30, 50)):
            namespace.resize(patch_of(main.of(res)))
        done = namespace.wait("the second one", "pod", lambda pod: is_settled(pod) and has_resources(pod, (main.of(guaranteed(30, 50)),)))
        assert done["metadata"]["generation"] == 3
        assert restarts(done) == {"c1": 0}

    def test_there_and_back_at_once(self, namespace: Namespace) -> None:
        main = Container("c1", guaranteed(20, 35))
        namespace.run_pod(pod_of(main))
        for res in (guaranteed(30, 35), guaranteed(20, 35)):
            namespace.resize(patch_of(main.of(res)))
        done = namespace.wait("it is as it was", "pod", lambda pod: is_settled(pod) and has_resources(pod, (main,)))
        assert restarts(done) == {"c1": 0}

    def test_a_pod_that_has_ended(self, namespace: Namespace) -> None:
        """The request is granted, and nothing comes of it."""
        main = Container("c1", BURSTABLE)
        pod = pod_of(main, restartPolicy="Never")
        pod["spec"]["containers"][0] |= {"image": "registry.k8s.io/e2e-test-images/busybox:1.37.0-1", "command": ["true"]}
        pod["metadata"]["annotations"] = {"sandbox.vpa-ippr.io/workload": '{"c1": {"finishesAfterSeconds": 1}}'}
        namespace.create_pod(pod)
        namespace.wait("it has ended", "pod", lambda pod: pod["status"]["phase"] == "Succeeded")
        assert namespace.resize(RAISED)["metadata"]["generation"] == 2
        clock = namespace.cluster.clock
        assert clock.wait_until(clock.now() + 10)
        ended = namespace.pod()
        assert is_settled(ended)
        assert ended["status"]["phase"] == "Succeeded"

    def test_more_memory_for_a_container_that_dies_of_too_little(self, namespace: Namespace) -> None:
        """Allocated at once; whether it then lives depends on kubernetes#138760, which 1.37 has fixed."""
        small, large = Container("c1", guaranteed(20, 64)), Container("c1", guaranteed(20, 256))
        pod = pod_of(small)
        hog = "x=$(head -c 100000000 /dev/zero | tr '\\0' a); sleep 1000000"
        pod["spec"]["containers"][0] |= {"image": "registry.k8s.io/e2e-test-images/busybox:1.37.0-1", "command": ["sh", "-c", hog]}
        pod["metadata"]["annotations"] = {
            "sandbox.vpa-ippr.io/workload": '{"c1": {"anon": [{"kind": "ramp", "height": "100Mi", "overSeconds": 5}]}}'
        }
        namespace.create_pod(pod)
        namespace.wait("it crashes again and again", "pod", _backs_off)
        namespace.resize(patch_of(large))
        namespace.wait("the memory is allocated", "pod", lambda pod: is_settled(pod) and _allocated(pod) == large.res.requests)
        if namespace.cluster.kubelet_minor >= 37:
            namespace.wait("it lives", "pod", lambda pod: is_ready(pod) and has_resources(pod, (large,)))


def _backs_off(pod: Json) -> bool:
    status = statuses(pod).get("c1", {})
    died = status.get("lastState", {}).get("terminated", {})
    return died.get("reason") in ("OOMKilled", "Error") and status["state"].get("waiting", {}).get("reason") == "CrashLoopBackOff"


def _allocated(pod: Json) -> Json:
    return measured({"requests": statuses(pod)["c1"].get("allocatedResources")}).requests
