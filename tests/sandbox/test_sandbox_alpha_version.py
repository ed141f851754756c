"""1.32 with the gate on: the last version in which a string and no condition tells what becomes of a resize."""

from __future__ import annotations

from typing import Any

import pytest
from simulated_cluster import Cluster, amounts, container, steady

from vpa_ippr.sandbox.pagecache import MIB
from vpa_ippr.sandbox.status import StatusError

Json = dict[str, Any]
BURSTABLE = {"requests": amounts("100m", "128Mi"), "limits": amounts("200m", "256Mi")}
NOT_REQUIRED = [{"resourceName": name, "restartPolicy": "NotRequired"} for name in ("cpu", "memory")]


def status_resize(cluster: Cluster, name: str = "web") -> str | None:
    found: str | None = cluster.pod(name)["status"].get("resize")
    return found


class TestApi:
    def test_pods_have_no_generation_and_a_default_policy_for_what_they_request(self) -> None:
        with Cluster(version="1.32") as cluster:
            restarts = {"resourceName": "memory", "restartPolicy": "RestartContainer"}
            own = {**container("own", requests={"memory": "1Mi", "cpu": "1m"}), "resizePolicy": [restarts]}
            pod = cluster.create_pod("web", container(**BURSTABLE), container("bare"), own)
            policies = [c.get("resizePolicy") for c in pod["spec"]["containers"]]
            assert policies == [NOT_REQUIRED, None, [restarts, NOT_REQUIRED[0]]]
            assert "generation" not in pod["metadata"]
            resized = cluster.resize("web", requests={"cpu": "150m"})
            assert "generation" not in resized["metadata"]

    def test_a_resize_is_proposed_by_the_api_server(self) -> None:
        with Cluster(version="1.32") as cluster:
            cluster.create_pod("web", container(**BURSTABLE))
            assert cluster.resize("web", requests={"cpu": "150m"})["status"]["resize"] == "Proposed"

    def test_a_memory_limit_may_be_lowered_and_added(self) -> None:
        with Cluster(version="1.32") as cluster:
            cluster.create_pod("web", container(**BURSTABLE), container("free", requests={"memory": "10Mi"}))
            cluster.resize("web", limits={"memory": "200Mi"})
            cluster.resize("web", container="free", limits={"memory": "64Mi"})
            cluster.run(3)
            assert cluster.status("web")["resources"]["limits"]["memory"] == "200Mi"

    def test_the_resize_policy_may_change_and_counts_from_then_on(self) -> None:
        with Cluster(version="1.32") as cluster:
            cluster.create_pod("web", container(**BURSTABLE))

            def restart_for_cpu(pod: Json) -> Json:
                pod["spec"]["containers"][0]["resizePolicy"][0]["restartPolicy"] = "RestartContainer"
                return pod

            cluster.store.update("pods", "default", "web", restart_for_cpu, subresource="resize")
            cluster.resize("web", requests={"cpu": "150m"})
            cluster.run(5)
            assert cluster.status("web")["restartCount"] == 1

    @pytest.mark.parametrize(
        ("field", "change", "message"),
        [
            ("containers", {"resources": {**BURSTABLE, "limits": {"cpu": "200m"}}}, "resource limits cannot be removed"),
            ("containers", {"resources": {"requests": {"memory": "128Mi"}, "limits": {"memory": "256Mi"}}}, "requests cannot be removed"),
            ("initContainers", {"resources": {"requests": {"cpu": "2m"}}}, "spec: Forbidden: only cpu and memory resources are mutable\n"),
            (
                "containers",
                {"resources": {**BURSTABLE, "requests": {**BURSTABLE["requests"], "ephemeral-storage": "1Gi"}}},
                "spec: Forbidden: only cpu and memory resources are mutable\n",
            ),
            ("containers", {"resizePolicy": [{"resourceName": "disk", "restartPolicy": "NotRequired"}]}, 'Unsupported value: "disk"'),
        ],
        ids=["limit-removed", "request-removed", "sidecar", "other-resource", "policy-of-no-resource"],
    )
    def test_what_it_refuses(self, field: str, change: Json, message: str) -> None:
        with Cluster(version="1.32") as cluster:
            sidecar = {**container("proxy", requests={"cpu": "1m"}), "restartPolicy": "Always"}
            cluster.create_pod("web", container(**BURSTABLE), initContainers=[sidecar])

            def mutate(pod: Json) -> Json:
                pod["spec"][field][0].update(change)
                return pod

            with pytest.raises(StatusError) as caught:
                cluster.store.update("pods", "default", "web", mutate, subresource="resize")
            assert caught.value.code == 422
            assert message in caught.value.message


class TestKubelet:
    def test_in_progress_and_then_nothing(self) -> None:
        with Cluster(version="1.32") as cluster:
            cluster.create_pod("web", container(**BURSTABLE))
            cluster.resize("web", requests={"cpu": "150m"})
            cluster.run(0.5)
            assert status_resize(cluster) == "InProgress"
            cluster.run(2)
            pod = cluster.pod("web")
            assert "resize" not in pod["status"]
            assert "allocatedResources" not in cluster.status("web")
            assert "observedGeneration" not in pod["status"]
            assert cluster.status("web")["resources"]["requests"]["cpu"] == "150m"
            assert not [e for e in cluster.events("web") if e.startswith("Resize")]

    def test_a_limit_below_the_usage_of_the_pod_stays_in_progress(self) -> None:
        with Cluster(version="1.32") as cluster:
            cluster.create_pod("web", container(**BURSTABLE), run=40, workload={"app": steady("150Mi")})
            cluster.resize("web", limits={"memory": "140Mi"})
            cluster.run(60)
            assert status_resize(cluster) == "InProgress"
            assert {c["type"] for c in cluster.pod("web")["status"]["conditions"]}.isdisjoint({"PodResizePending", "PodResizeInProgress"})
            snapshot = cluster.cgroup("web").read()
            assert snapshot is not None
            assert snapshot.max_bytes == 256 * MIB
            cluster.resize("web", limits={"memory": "256Mi"})
            cluster.run(3)
            assert status_resize(cluster) is None

    def test_deferred_is_a_word_and_a_bare_event_and_ends_at_a_later_sync(self) -> None:
        with Cluster(version="1.32", cpu_millicores=1000) as cluster:
            cluster.create_pod("big", container(requests={"cpu": "600m"}))
            cluster.create_pod("web", container(requests={"cpu": "300m"}))
            cluster.resize("web", requests={"cpu": "500m"})
            cluster.run(1)
            assert status_resize(cluster) == "Deferred"
            assert cluster.message("web", "ResizeDeferred") == (
                "Node didn't have enough resource: cpu, requested: 500, used: 600, capacity: 1000"
            )
            cluster.store.delete("pods", "default", "big")
            cluster.run(200)
            assert status_resize(cluster) is None
            assert cluster.status("web")["resources"]["requests"]["cpu"] == "500m"

    def test_larger_than_the_node_is_infeasible_and_does_not_count_for_the_scheduler(self) -> None:
        with Cluster(version="1.32", cpu_millicores=1000) as cluster:
            cluster.create_pod("web", container(requests={"cpu": "300m"}))
            cluster.resize("web", requests={"cpu": "5"})
            cluster.run(1)
            assert status_resize(cluster) == "Infeasible"
            assert cluster.message("web", "ResizeInfeasible").startswith("Node didn't have enough capacity: cpu")
            cluster.create_pod("other", container(requests={"cpu": "600m"}), node="")
            assert cluster.pod("other")["spec"]["nodeName"] == "n1"
