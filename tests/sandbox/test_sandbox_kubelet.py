"""The simulated kubelet, seen through the API and through a node agent's cgroup handles."""

from __future__ import annotations

import re
from typing import Any

import pytest
from simulated_cluster import Cluster, amounts, container, steady

from vpa_ippr.sandbox.pagecache import MIB

Json = dict[str, Any]
PENDING, IN_PROGRESS = "PodResizePending", "PodResizeInProgress"
BURSTABLE = {"requests": amounts("100m", "128Mi"), "limits": amounts("200m", "256Mi")}


def test_a_bound_pod_runs_and_reports_everything_a_client_looks_at() -> None:
    with Cluster() as cluster:
        pod = cluster.create_pod("web", container(**BURSTABLE), workload={"app": steady("50Mi")})
        status, entry = pod["status"], pod["status"]["containerStatuses"][0]
        assert (status["phase"], status["qosClass"], status["observedGeneration"]) == ("Running", "Burstable", 1)
        assert {c["type"]: c["status"] for c in status["conditions"]} == dict.fromkeys(
            ("PodScheduled", "PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady"), "True"
        )
        assert re.fullmatch(r"containerd://[0-9a-f]{64}", entry["containerID"])
        assert entry["ready"]
        assert entry["restartCount"] == 0
        assert "running" in entry["state"]
        assert entry["resources"] == BURSTABLE
        assert entry["allocatedResources"] == BURSTABLE["requests"]
        assert status["startTime"] == "2027-01-15T08:00:00Z"


class TestResize:
    def test_is_in_progress_and_then_in_force_without_a_restart(self) -> None:
        with Cluster() as cluster:
            cluster.create_pod("web", container(**BURSTABLE))
            before = cluster.status("web")
            cluster.resize("web", requests={"cpu": "150m"}, limits={"cpu": "400m", "memory": "300Mi"})
            cluster.run(0.5)
            condition = cluster.condition("web", IN_PROGRESS)
            assert condition is not None
            assert condition["observedGeneration"] == 2
            assert "reason" not in condition
            cluster.run(2)
            entry = cluster.status("web")
            assert cluster.condition("web", IN_PROGRESS) is None
            assert entry["resources"] == {"requests": amounts("150m", "128Mi"), "limits": amounts("400m", "300Mi")}
            assert entry["allocatedResources"] == amounts("150m", "128Mi")
            assert (entry["containerID"], entry["restartCount"]) == (before["containerID"], 0)
            assert cluster.pod("web")["status"]["observedGeneration"] == 2
            assert {"ResizeStarted", "ResizeCompleted"} <= set(cluster.events("web"))

    @pytest.mark.parametrize(
        ("policy", "change", "restarts"),
        [
            (("memory",), {"limits": {"memory": "300Mi"}}, 1),
            (("memory",), {"requests": {"memory": "140Mi"}}, 1),
            (("memory",), {"limits": {"cpu": "300m"}}, 0),
            (("cpu",), {"requests": {"cpu": "120m"}}, 1),
            (("cpu", "memory"), {"requests": amounts("120m", "140Mi")}, 1),
            ((), {"limits": amounts("300m", "300Mi")}, 0),
        ],
    )
    def test_restarts_only_where_the_policy_says_so(self, policy: tuple[str, ...], change: Json, restarts: int) -> None:
        with Cluster() as cluster:
            cluster.create_pod("web", container(restart=policy, **BURSTABLE))
            before = cluster.status("web")
            cluster.resize("web", **change)
            cluster.run(5)
            entry = cluster.status("web")
            assert entry["restartCount"] == restarts
            assert (entry["containerID"] != before["containerID"]) == bool(restarts)
            assert ("terminated" in entry["lastState"]) == bool(restarts)
            assert cluster.condition("web", IN_PROGRESS) is None
            spec = cluster.pod("web")["spec"]["containers"][0]["resources"]
            assert entry["resources"] == spec
            assert ("Killing" in cluster.events("web")) == bool(restarts)

    def test_memory_below_usage_is_refused_for_ever_until_the_spec_goes_back(self) -> None:
        with Cluster() as cluster:
            cluster.create_pod("web", container(**BURSTABLE), run=40, workload={"app": steady("150Mi")})
            cluster.resize("web", limits={"memory": "140Mi", "cpu": "300m"})
            cluster.run(300)
            condition = cluster.condition("web", IN_PROGRESS)
            assert condition is not None
            assert condition["reason"] == "Error"
            assert condition["message"].startswith("cannot decrease memory limits: [attempting to set pod memory limit (146800640) below")
            assert re.search(r'container "app" memory limit \(\d+\) below current usage', condition["message"])
            entry = cluster.status("web")
            assert entry["resources"]["limits"] == amounts("200m", "256Mi"), "nothing of the resize is applied, not even the CPU"
            assert entry["restartCount"] == 0
            assert cluster.condition("web", PENDING) is None
            cluster.resize("web", limits={"memory": "256Mi", "cpu": "200m"})
            cluster.run(3)
            assert cluster.condition("web", IN_PROGRESS) is None

    def test_refused_decrease_goes_through_once_the_cache_was_reclaimed(self) -> None:
        with Cluster() as cluster:
            use = steady("60Mi", fileCold=[{"kind": "steady", "level": "150Mi"}])
            cluster.create_pod("web", container(**BURSTABLE), run=40, workload={"app": use})
            cluster.resize("web", limits={"memory": "140Mi"})
            cluster.run(30)
            assert cluster.condition("web", IN_PROGRESS) is not None
            cgroup = cluster.cgroup("web")
            assert cgroup.reclaim(120 * MIB)
            cluster.run(45)
            assert cluster.condition("web", IN_PROGRESS) is None
            snapshot = cgroup.read()
            assert snapshot is not None
            assert snapshot.max_bytes == 140 * MIB
            assert cluster.status("web")["restartCount"] == 0

    def test_the_check_believes_statistics_that_are_out_of_date(self) -> None:
        """A container that grows between the statistics and the write is killed: the race that the shrink closes."""
        use = {"app": {"anon": [{"kind": "steady", "level": "50Mi"}, {"kind": "shift", "height": "100Mi", "fromSeconds": 78}]}}
        restarts = {}
        for lag in (0.0, 60.0):
            with Cluster(stats_lag_seconds=lag) as cluster:
                cluster.create_pod("web", container(**BURSTABLE), run=80, workload=use)
                cluster.resize("web", limits={"memory": "140Mi"})
                cluster.run(30)
                restarts[lag] = cluster.status("web")["restartCount"]
        assert restarts == {0.0: 0, 60.0: 1}

    @pytest.mark.parametrize(("node_version", "killed"), [("1.33", True), ("1.36", False)])
    def test_an_older_node_checks_the_pod_alone_and_lets_a_container_be_killed(self, node_version: str, killed: bool) -> None:
        """kubernetes#129152: the pod's new limit is above the pod's usage, the container's is not."""
        use = {"app": steady("150Mi"), "other": steady("20Mi")}
        with Cluster(node_version=node_version) as cluster:
            cluster.create_pod("web", container(**BURSTABLE), container("other", **BURSTABLE), run=40, workload=use)
            assert cluster.store.get("nodes", None, "n1")["status"]["nodeInfo"]["kubeletVersion"] == f"v{node_version}.0"
            cluster.resize("web", limits={"memory": "140Mi"})
            cluster.run(60)
            assert (cluster.status("web")["restartCount"] > 0) == killed
            assert (cluster.condition("web", IN_PROGRESS) is None) == killed

    def test_an_older_node_refuses_what_the_whole_pod_does_not_fit_in(self) -> None:
        with Cluster(node_version="1.33") as cluster:
            cluster.create_pod("web", container(**BURSTABLE), run=40, workload={"app": steady("150Mi")})
            cluster.resize("web", limits={"memory": "140Mi"})
            cluster.run(30)
            condition = cluster.condition("web", IN_PROGRESS)
            assert condition is not None
            assert condition["message"] == "aborting attempt to set pod memory limit less than current memory usage for pod web"

    def test_a_runtime_that_fails_is_an_error_and_changes_nothing(self) -> None:
        with Cluster(runtime_error="runtime is out of order") as cluster:
            cluster.create_pod("web", container(**BURSTABLE))
            cluster.resize("web", limits={"cpu": "300m"})
            cluster.run(60)
            condition = cluster.condition("web", IN_PROGRESS)
            assert condition is not None
            assert (condition["reason"], condition["message"]) == ("Error", "runtime is out of order")
            assert cluster.status("web")["resources"]["limits"]["cpu"] == "200m"
            assert cluster.events("web").count("ResizeError") == 1

    def test_requests_that_the_kernel_cannot_tell_apart_show_as_asked(self) -> None:
        with Cluster() as cluster:
            cluster.create_pod("web", container(requests=amounts("2m", "64Mi"), limits=amounts("10m", "64Mi")))
            cluster.resize("web", requests={"cpu": "1m"}, limits={"cpu": "5m"})
            cluster.run(3)
            resources = cluster.status("web")["resources"]
            assert (resources["requests"]["cpu"], resources["limits"]["cpu"]) == ("1m", "5m")

    def test_two_resizes_at_once_end_at_the_second(self) -> None:
        with Cluster() as cluster:
            cluster.create_pod("web", container(**BURSTABLE))
            cluster.resize("web", limits={"cpu": "300m"})
            cluster.resize("web", limits={"cpu": "350m"})
            cluster.run(5)
            assert cluster.status("web")["resources"]["limits"]["cpu"] == "350m"
            assert cluster.condition("web", IN_PROGRESS) is None

    def test_of_a_sidecar_works_as_of_a_container(self) -> None:
        with Cluster() as cluster:
            sidecar = {**container("proxy", requests=amounts("50m", "32Mi")), "restartPolicy": "Always"}
            cluster.create_pod("web", container(**BURSTABLE), initContainers=[sidecar])
            cluster.resize("web", container="proxy", requests={"cpu": "80m"})
            cluster.run(3)
            entry = cluster.pod("web")["status"]["initContainerStatuses"][0]
            assert entry["resources"]["requests"]["cpu"] == "80m"
            assert entry["restartCount"] == 0


class TestPending:
    def test_deferred_says_what_is_missing_and_is_done_when_room_comes(self) -> None:
        with Cluster(cpu_millicores=1000) as cluster:
            cluster.create_pod("big", container(requests={"cpu": "600m"}))
            cluster.create_pod("web", container(requests={"cpu": "300m"}))
            cluster.resize("web", requests={"cpu": "500m"})
            cluster.run(1)
            condition = cluster.condition("web", PENDING)
            assert condition is not None
            assert (condition["reason"], condition["observedGeneration"]) == ("Deferred", 2)
            assert condition["message"] == "Node didn't have enough resource: cpu, requested: 500, used: 600, capacity: 1000"
            assert cluster.message("web", "ResizeDeferred").startswith("Pod resize OutOfcpu: {")
            assert cluster.status("web")["allocatedResources"] == {"cpu": "300m"}
            cluster.store.delete("pods", "default", "big")
            cluster.run(5)
            assert cluster.condition("web", PENDING) is None
            assert cluster.status("web")["allocatedResources"] == {"cpu": "500m"}

    def test_the_shrinking_of_another_pod_makes_room(self) -> None:
        with Cluster(cpu_millicores=1000) as cluster:
            cluster.create_pod("big", container(requests={"cpu": "600m"}))
            cluster.create_pod("web", container(requests={"cpu": "300m"}))
            cluster.resize("web", requests={"cpu": "500m"})
            cluster.run(1)
            cluster.resize("big", requests={"cpu": "400m"})
            cluster.run(5)
            assert cluster.status("web")["allocatedResources"] == {"cpu": "500m"}

    def test_the_queue_goes_by_priority_then_guaranteed_then_age(self) -> None:
        """Upstream's deferred-2: one place at a time; the plain pod that waits longest comes last."""
        third = amounts("300m", "64Mi")
        with Cluster(cpu_millicores=2000) as cluster:
            cluster.create_pod("first", container(requests={"cpu": "1000m"}))
            cluster.create_pod("plain", container(requests=third))
            cluster.create_pod("guaranteed", container(requests=third, limits=third))
            cluster.create_pod("important", container(requests=third), priority=1000)
            for name in ("plain", "guaranteed", "important"):
                wanted = {"cpu": "1300m"}
                cluster.resize(name, requests=wanted, **({"limits": wanted} if name == "guaranteed" else {}))
                cluster.run(2)
            order = []
            for _ in range(3):
                done = "first" if not order else order[-1]
                cluster.store.delete("pods", "default", done)
                cluster.run(10)
                remaining = [p["metadata"]["name"] for p in cluster.pods()]
                order += [n for n in remaining if cluster.status(n)["allocatedResources"]["cpu"] == "1300m"]
            assert order == ["important", "guaranteed", "plain"]

    @pytest.mark.parametrize(
        ("version", "reason", "message"),
        [("1.35", "Infeasible", "Node didn't have enough capacity: cpu, requested: 5000, capacity: 4000")],
    )
    def test_larger_than_the_node(self, version: str, reason: str, message: str) -> None:
        with Cluster(version=version) as cluster:
            cluster.create_pod("web", container(requests={"cpu": "300m"}))
            cluster.resize("web", requests={"cpu": "5"})
            cluster.run(400)
            condition = cluster.condition("web", PENDING)
            assert condition is not None
            assert (condition["reason"], condition["message"]) == (reason, message)
            cluster.resize("web", requests={"cpu": "300m"})
            cluster.run(1)
            assert cluster.condition("web", PENDING) is None
            assert cluster.status("web")["restartCount"] == 0

    def test_transition_time_stays_while_the_reason_does(self) -> None:
        with Cluster(cpu_millicores=1000) as cluster:
            cluster.create_pod("big", container(requests={"cpu": "600m"}))
            cluster.create_pod("web", container(requests={"cpu": "300m"}))
            cluster.resize("web", requests={"cpu": "500m"})
            cluster.run(20)
            first = cluster.condition("web", PENDING)
            cluster.resize("web", requests={"cpu": "550m"})
            cluster.run(20)
            second = cluster.condition("web", PENDING)
            assert first is not None
            assert second is not None
            assert second["lastTransitionTime"] == first["lastTransitionTime"]
            assert second["observedGeneration"] == 3

    def test_versions_differ_in_events_and_generations(self) -> None:
        seen = {}
        for version in ("1.33", "1.34", "1.36"):
            with Cluster(version=version, cpu_millicores=1000) as cluster:
                cluster.create_pod("web", container(requests={"cpu": "300m"}))
                cluster.resize("web", requests={"cpu": "400m"})
                cluster.run(5)
                has_generation = "observedGeneration" in cluster.pod("web")["status"]
                seen[version] = ([e for e in cluster.events("web") if e.startswith("Resize")], has_generation)
        assert seen == {"1.33": ([], False), "1.34": (["ResizeCompleted"], True), "1.36": (["ResizeStarted", "ResizeCompleted"], True)}

    def test_a_finished_pod_makes_room_at_once_or_at_the_next_periodic_retry(self) -> None:
        waited = {}
        for version in ("1.35", "1.36"):
            with Cluster(version=version, cpu_millicores=1000) as cluster:
                use = {"app": {"finishesAfterSeconds": 60}}
                cluster.create_pod("batch", container(requests={"cpu": "600m"}), restartPolicy="Never", workload=use, run=1)
                cluster.create_pod("web", container(requests={"cpu": "300m"}), run=32)
                cluster.resize("web", requests={"cpu": "500m"})
                waited[version] = 0
                while cluster.status("web")["allocatedResources"] != {"cpu": "500m"} and waited[version] < 600:
                    cluster.run(1)
                    waited[version] += 1
        assert waited["1.36"] < 60 < waited["1.35"] < 300


class TestCrashes:
    OOM = {"app": {"anon": [{"kind": "ramp", "height": "400Mi", "overSeconds": 40}]}}  # noqa: RUF012

    def test_out_of_memory_is_terminated_and_backs_off_ever_longer(self) -> None:
        with Cluster() as cluster:
            cluster.create_pod("web", container(**BURSTABLE), run=60, workload=self.OOM)
            first = cluster.status("web")
            assert first["restartCount"] >= 1
            assert first["lastState"]["terminated"]["reason"] == "OOMKilled"
            assert first["lastState"]["terminated"]["exitCode"] == 137
            cluster.run(600)
            entry = cluster.status("web")
            assert entry["state"]["waiting"]["reason"] == "CrashLoopBackOff"
            assert 4 <= entry["restartCount"] <= 8
            ready = cluster.condition("web", "Ready")
            assert ready is not None
            assert ready["status"] == "False"
            assert cluster.pod("web")["status"]["phase"] == "Running"

    def test_a_resize_ends_the_back_off_and_the_container_has_what_it_needs(self) -> None:
        with Cluster(version="1.37") as cluster:
            cluster.create_pod("web", container(**BURSTABLE), run=600, workload=self.OOM)
            while "waiting" not in cluster.status("web")["state"]:
                cluster.run(5)
            restarts = cluster.status("web")["restartCount"]
            cluster.resize("web", limits={"memory": "512Mi"})
            cluster.run(120)
            entry = cluster.status("web")
            assert entry["ready"]
            assert entry["restartCount"] == restarts + 1

    @pytest.mark.parametrize(("version", "raises", "survives"), [("1.36", None, False), ("1.36", True, True), ("1.37", None, True)])
    def test_pod_cgroup_of_a_stopped_container(self, version: str, raises: bool | None, survives: bool) -> None:
        """kubernetes#138760: the pod's memory.max stays at the old sum, and the container dies at the old size for ever."""
        with Cluster(version=version, raises_pod_cgroup_of_stopped=raises) as cluster:
            cluster.create_pod("web", container(**BURSTABLE), run=600, workload=self.OOM)
            while "waiting" not in cluster.status("web")["state"]:
                cluster.run(5)
            cluster.resize("web", limits={"memory": "512Mi"})
            restarts = cluster.status("web")["restartCount"]
            cluster.run(900)
            assert (cluster.status("web")["restartCount"] == restarts + 1) == survives
            if not survives:
                # The known way out: another resize while the container runs.
                while "running" not in cluster.status("web")["state"]:
                    cluster.run(1)
                cluster.resize("web", limits={"memory": "500Mi"})
                restarts = cluster.status("web")["restartCount"]
                cluster.run(900)
                assert cluster.status("web")["restartCount"] == restarts


class TestCgroups:
    def test_a_restarted_container_is_another_cgroup_and_the_old_handle_is_gone(self) -> None:
        with Cluster() as cluster:
            cluster.create_pod("web", container(restart=("memory",), **BURSTABLE), workload={"app": steady("50Mi")})
            old = cluster.cgroup("web")
            old.write_high(200 * MIB)
            cluster.resize("web", limits={"memory": "300Mi"})
            cluster.run(5)
            new = cluster.cgroup("web")
            assert old.read() is None
            assert not old.reclaim(MIB)
            old.write_high(None)
            assert new.identity() != old.identity()
            snapshot = new.read()
            assert snapshot is not None
            assert (snapshot.high_bytes, snapshot.max_bytes) == (None, 300 * MIB)

    @pytest.mark.parametrize(("systemd", "left"), [(True, None), (False, 200 * MIB)])
    def test_systemd_takes_memory_high_back_when_limits_are_written(self, systemd: bool, left: int | None) -> None:
        with Cluster(systemd_driver=systemd) as cluster:
            cluster.create_pod("web", container(**BURSTABLE), workload={"app": steady("50Mi")})
            cgroup = cluster.cgroup("web")
            cgroup.write_high(200 * MIB)
            cluster.resize("web", limits={"cpu": "300m"})
            cluster.run(5)
            snapshot = cgroup.read()
            assert snapshot is not None
            assert snapshot.high_bytes == left

    def test_peak_is_private_to_a_handle_and_starts_anew_with_each_read(self) -> None:
        burst = [{"kind": "burst", "height": "80Mi", "everySeconds": 100, "forSeconds": 10, "offsetSeconds": 50}]
        with Cluster() as cluster:
            use = {"app": {"anon": [{"kind": "steady", "level": "50Mi"}, *burst]}}
            cluster.create_pod("web", container(**BURSTABLE), run=20, workload=use)
            cgroup, other = cluster.cgroup("web"), cluster.cgroup("web")
            cluster.run(70)
            peaks = []
            for handle in (cgroup, cgroup, other):
                snapshot = handle.read()
                assert snapshot is not None
                peaks.append(snapshot.peak_bytes)
            assert peaks[0] is not None
            assert peaks[0] > 125 * MIB
            assert peaks[1] is not None
            assert peaks[1] < 60 * MIB
            assert peaks[2] == peaks[0]

    def test_an_unknown_container_has_no_cgroup(self) -> None:
        with Cluster() as cluster:
            pod = cluster.create_pod("web", container(**BURSTABLE))
            finder = cluster.simulation.cgroups("n1", dict)
            assert finder.find(pod["metadata"]["uid"], "containerd://0", "Burstable") is None
            assert finder.find("0", pod["status"]["containerStatuses"][0]["containerID"], "Burstable") is None
            assert cluster.simulation.cgroups("elsewhere", dict).find("0", "containerd://0", "Burstable") is None

    def test_a_guard_makes_the_nodes_go_in_small_steps(self) -> None:
        with Cluster() as cluster:
            cluster.create_pod("web", container(**BURSTABLE), workload={"app": steady("50Mi")})
            assert cluster.simulation.step_seconds == 15
            cgroup = cluster.cgroup("web")
            cgroup.write_high(200 * MIB)
            assert cluster.simulation.step_seconds == 1
            cgroup.write_high(None)
            assert cluster.simulation.step_seconds == 15


def test_deletion_stops_the_containers_and_lets_the_object_go() -> None:
    with Cluster() as cluster:
        cluster.create_pod("web", container(**BURSTABLE))
        cgroup = cluster.cgroup("web")
        cluster.store.delete("pods", "default", "web")
        assert "deletionTimestamp" in cluster.pod("web")["metadata"]
        cluster.run(3)
        assert cluster.pods() == []
        assert cgroup.read() is None


def test_init_containers_come_first_and_sidecars_stay() -> None:
    with Cluster() as cluster:
        inits = [container("setup"), {**container("proxy"), "restartPolicy": "Always"}]
        use = {"setup": {"finishesAfterSeconds": 30}}
        pod = cluster.create_pod("web", container(), run=20, initContainers=inits, workload=use)
        assert pod["status"]["phase"] == "Pending"
        assert pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == "ContainerCreating"
        cluster.run(40)
        pod = cluster.pod("web")
        states = [next(iter(entry["state"])) for entry in pod["status"]["initContainerStatuses"]]
        assert states == ["terminated", "running"]
        assert pod["status"]["phase"] == "Running"


@pytest.mark.parametrize(("code", "phase"), [(0, "Succeeded"), (3, "Failed")])
def test_a_pod_that_is_never_restarted_ends(code: int, phase: str) -> None:
    with Cluster() as cluster:
        use = {"app": {"finishesAfterSeconds": 60, "exitCode": code}}
        cluster.create_pod("task", container(), run=90, restartPolicy="Never", workload=use)
        pod = cluster.pod("task")
        assert pod["status"]["phase"] == phase
        assert pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == code


def test_a_bad_workload_is_said_on_the_container() -> None:
    with Cluster() as cluster:
        use = {"app": {"cpu": [{"kind": "steady", "level": "lots"}]}}
        pod = cluster.create_pod("web", container(), workload=use)
        waiting = pod["status"]["containerStatuses"][0]["state"]["waiting"]
        assert waiting["reason"] == "CreateContainerConfigError"
        assert "cannot read 'lots' as a quantity" in waiting["message"]
        assert pod["status"]["phase"] == "Pending"


def test_a_pod_that_was_bound_without_room_is_rejected() -> None:
    with Cluster(cpu_millicores=1000) as cluster:
        pod = cluster.create_pod("huge", container(requests={"cpu": "2"}))
        assert (pod["status"]["phase"], pod["status"]["reason"]) == ("Failed", "OutOfcpu")
        assert "requested: 2000, used: 0, capacity: 1000" in pod["status"]["message"]
