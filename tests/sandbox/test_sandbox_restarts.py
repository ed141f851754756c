"""The kubelet dies in the middle of a resize and comes back: nothing is lost, nothing is done twice in effect."""

from __future__ import annotations

from typing import Any

import pytest
from simulated_cluster import Cluster, amounts, container, steady

from vpa_ippr.sandbox.pagecache import MIB
from vpa_ippr.sandbox.restarts import RestartStep
from vpa_ippr.sandbox.versions import PROFILES

Json = dict[str, Any]
PENDING, IN_PROGRESS = "PodResizePending", "PodResizeInProgress"
BURSTABLE = {"requests": amounts("100m", "128Mi"), "limits": amounts("200m", "256Mi")}
LARGER = {"requests": amounts("150m", "140Mi"), "limits": amounts("300m", "300Mi")}
IN_RESIZE = [step for step in RestartStep if step not in (RestartStep.NOW, RestartStep.WHILE_DEFERRED)]


def is_up(cluster: Cluster) -> bool:
    return bool(cluster.simulation.node_state("n1")["kubeletIsUp"])


def restart(cluster: Cluster, step: RestartStep = RestartStep.NOW) -> None:
    cluster.simulation.restart_kubelet("n1", step)
    cluster.run(0.01)


class TestInAResize:
    @pytest.mark.parametrize("version", sorted(PROFILES))
    @pytest.mark.parametrize("step", IN_RESIZE, ids=lambda step: step.value)
    def test_it_is_finished_by_the_next_process(self, step: RestartStep, version: str) -> None:
        with Cluster(version=version, restart_seconds=20) as cluster:
            before = cluster.create_pod("web", container(**BURSTABLE))["status"]["containerStatuses"][0]
            restart(cluster, step)
            cluster.resize("web", **LARGER)
            cluster.run(10)
            assert not is_up(cluster)
            cluster.run(20)
            assert is_up(cluster)
            entry = cluster.status("web")
            assert entry["resources"] == LARGER
            assert (entry["restartCount"], entry["containerID"]) == (0, before["containerID"])
            assert cluster.condition("web", IN_PROGRESS) is None
            assert cluster.condition("web", PENDING) is None
            assert "resize" not in cluster.pod("web")["status"]
            snapshot = cluster.cgroup("web").read()
            assert snapshot is not None
            assert snapshot.max_bytes == 300 * MIB

    @pytest.mark.parametrize(
        ("step", "allocated", "applied"),
        [
            (RestartStep.BEFORE_ALLOCATION, "128Mi", 256),
            (RestartStep.AFTER_ALLOCATION, "128Mi", 256),
            (RestartStep.BEFORE_CALL, "128Mi", 256),
            (RestartStep.AFTER_CALL, "128Mi", 300),
            (RestartStep.AFTER_ACTUATION, "128Mi", 300),
            (RestartStep.BEFORE_STATUS, "140Mi", 300),
        ],
        ids=lambda value: getattr(value, "value", None),
    )
    def test_what_has_happened_until_then(self, step: RestartStep, allocated: str, applied: int) -> None:
        """The API learns nothing from a process that dies in one go; the kernel has what was called before."""
        with Cluster(restart_seconds=60) as cluster:
            cluster.create_pod("web", container(**BURSTABLE))
            restart(cluster, step)
            cluster.resize("web", **LARGER)
            cluster.run(10)
            snapshot = cluster.cgroup("web").read()
            assert snapshot is not None
            assert snapshot.max_bytes == applied * MIB
            assert cluster.status("web")["allocatedResources"]["memory"] == allocated

    @pytest.mark.parametrize("step", [RestartStep.AFTER_ALLOCATION, RestartStep.NOW], ids=lambda step: step.value)
    def test_a_container_that_restarts_for_it_restarts_once(self, step: RestartStep) -> None:
        with Cluster() as cluster:
            cluster.create_pod("web", container(restart=("cpu",), **BURSTABLE))
            if step is not RestartStep.NOW:
                restart(cluster, step)
            cluster.resize("web", **LARGER)
            cluster.run(0.5)
            if step is RestartStep.NOW:
                restart(cluster)
            cluster.run(30)
            entry = cluster.status("web")
            assert (entry["restartCount"], entry["resources"]) == (1, LARGER)
            assert cluster.condition("web", IN_PROGRESS) is None

    def test_the_spec_goes_back_while_the_kubelet_is_away(self) -> None:
        with Cluster(restart_seconds=20) as cluster:
            cluster.create_pod("web", container(**BURSTABLE))
            restart(cluster, RestartStep.AFTER_CALL)
            cluster.resize("web", **LARGER)
            cluster.run(5)
            cluster.resize("web", **BURSTABLE)
            cluster.run(30)
            assert cluster.status("web")["resources"] == BURSTABLE
            assert cluster.condition("web", IN_PROGRESS) is None
            assert cluster.pod("web")["status"]["observedGeneration"] == 3


class TestConditions:
    def test_an_error_is_recalled_with_a_new_time_and_tried_again(self) -> None:
        with Cluster() as cluster:
            cluster.create_pod("web", container(**BURSTABLE), run=40, workload={"app": steady("150Mi")})
            cluster.resize("web", limits={"memory": "140Mi"})
            cluster.run(40)
            before = cluster.condition("web", IN_PROGRESS)
            restart(cluster)
            cluster.run(6)
            after = cluster.condition("web", IN_PROGRESS)
            assert before is not None
            assert after is not None
            assert (after["reason"], after["observedGeneration"]) == ("Error", before["observedGeneration"])
            assert after["lastTransitionTime"] > before["lastTransitionTime"]
            cluster.run(40)
            assert cluster.status("web")["resources"] == BURSTABLE

    def test_statistics_are_missing_until_the_first_housekeeping(self) -> None:
        with Cluster(stats_lag_seconds=30) as cluster:
            cluster.create_pod("web", container(**BURSTABLE), run=60, workload={"app": steady("50Mi")})
            restart(cluster)
            cluster.resize("web", limits={"memory": "200Mi"})
            cluster.run(8)
            condition = cluster.condition("web", IN_PROGRESS)
            assert condition is not None
            assert condition["message"] == 'cannot decrease memory limits: [missing pod memory usage, missing container "app" memory usage]'
            cluster.run(60)
            assert cluster.condition("web", IN_PROGRESS) is None
            assert cluster.status("web")["resources"]["limits"]["memory"] == "200Mi"

    def test_deferred_is_recalled_and_the_queue_is_built_anew(self) -> None:
        with Cluster(cpu_millicores=1000) as cluster:
            for name, priority in (("big", 0), ("plain", 0), ("urgent", 1000)):
                cluster.create_pod(name, container(requests={"cpu": "300m"}), priority=priority)
            for name in ("plain", "urgent"):
                cluster.resize(name, requests={"cpu": "600m"})
                cluster.run(20)
            before = cluster.condition("plain", PENDING)
            restart(cluster, RestartStep.WHILE_DEFERRED)
            assert not is_up(cluster), "a pod is deferred already"
            cluster.run(10)
            after = cluster.condition("plain", PENDING)
            assert before is not None
            assert after is not None
            assert (after["reason"], after["message"]) == ("Deferred", before["message"])
            assert after["lastTransitionTime"] > before["lastTransitionTime"]
            cluster.store.delete("pods", "default", "big")
            cluster.run(10)
            assert cluster.status("urgent")["allocatedResources"] == {"cpu": "600m"}
            assert cluster.status("plain")["allocatedResources"] == {"cpu": "300m"}

    def test_it_dies_when_a_pod_becomes_deferred(self) -> None:
        with Cluster(cpu_millicores=1000) as cluster:
            cluster.create_pod("web", container(requests={"cpu": "300m"}))
            cluster.create_pod("big", container(requests={"cpu": "600m"}))
            restart(cluster, RestartStep.WHILE_DEFERRED)
            assert is_up(cluster)
            cluster.resize("web", requests={"cpu": "500m"})
            cluster.run(1)
            assert not is_up(cluster)
            assert (cluster.condition("web", PENDING) or {}).get("reason") == "Deferred"

    def test_room_that_came_while_it_was_away_is_used(self) -> None:
        with Cluster(cpu_millicores=1000) as cluster:
            cluster.create_pod("web", container(requests={"cpu": "300m"}))
            cluster.create_pod("big", container(requests={"cpu": "600m"}), terminationGracePeriodSeconds=0)
            cluster.resize("web", requests={"cpu": "500m"})
            cluster.run(1)
            restart(cluster)
            cluster.store.delete("pods", "default", "big", grace_period_seconds=0)
            cluster.run(10)
            assert cluster.condition("web", PENDING) is None
            assert cluster.status("web")["allocatedResources"] == {"cpu": "500m"}


class TestPods:
    def test_what_came_and_went_meanwhile(self) -> None:
        with Cluster(restart_seconds=30) as cluster:
            cluster.create_pod("stays", container(**BURSTABLE))
            cluster.create_pod("goes", container(**BURSTABLE))
            restart(cluster)
            assert cluster.create_pod("comes", container(**BURSTABLE))["status"]["phase"] == "Pending"
            cluster.store.delete("pods", "default", "goes")
            cluster.run(20)
            assert len(cluster.pods()) == 3
            cluster.run(20)
            assert {p["metadata"]["name"]: p["status"]["phase"] for p in cluster.pods()} == {"comes": "Running", "stays": "Running"}
            assert cluster.status("stays")["restartCount"] == 0

    def test_a_back_off_is_forgotten(self) -> None:
        use = {"app": {"finishesAfterSeconds": 2, "exitCode": 1}}
        with Cluster() as cluster:
            cluster.create_pod("web", container(), run=600, workload=use)
            while "waiting" not in cluster.status("web")["state"]:
                cluster.run(1)
            restarts = cluster.status("web")["restartCount"]
            restart(cluster)
            cluster.run(7)
            assert cluster.status("web")["restartCount"] == restarts + 1

    def test_a_container_that_cannot_be_made_stays_so(self) -> None:
        with Cluster() as cluster:
            cluster.create_pod("web", container(), workload={"app": {"cpu": [{"kind": "steady", "level": "lots"}]}})
            restart(cluster)
            cluster.run(20)
            assert cluster.status("web")["state"]["waiting"]["reason"] == "CreateContainerConfigError"

    def test_a_container_that_dies_meanwhile_is_noticed_afterwards(self) -> None:
        with Cluster(restart_seconds=60) as cluster:
            cluster.create_pod("web", container(), run=10, workload={"app": {"finishesAfterSeconds": 30}})
            restart(cluster)
            cluster.run(50)
            assert "running" in cluster.status("web")["state"], "the API says what the last process said"
            cluster.run(30)
            assert cluster.status("web")["restartCount"] == 1
