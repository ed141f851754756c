"""Controllers, scheduler and scrapes: what a cluster does around its pods."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest
from simulated_cluster import START, Cluster, amounts, container, steady

from vpa_ippr.api.errors import ValidationError
from vpa_ippr.sandbox.jobs import next_time
from vpa_ippr.sandbox.pagecache import MIB
from vpa_ippr.sandbox.promlabels import Matcher
from vpa_ippr.sandbox.workloads import ANNOTATION_WORKLOAD

Json = dict[str, Any]


def owner(name: str, template: Json | None = None, **spec: Any) -> Json:
    labels = {"app": name}
    template = template or {"spec": {"containers": [container(requests=amounts("100m", "64Mi"))]}}
    template = {**template, "metadata": {"labels": labels, **template.get("metadata", {})}}
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"selector": {"matchLabels": labels}, "template": template, **spec}}


def image(name: str) -> Json:
    return {"spec": {"containers": [{"name": "app", "image": name}]}}


def owners_of(pod: Json) -> list[tuple[str, str, bool]]:
    return [(o["kind"], o["name"], o["controller"]) for o in pod["metadata"]["ownerReferences"]]


class TestDeployment:
    def test_makes_a_replica_set_with_ready_pods(self) -> None:
        with Cluster() as cluster:
            cluster.store.create("deployments.apps", owner("web", replicas=3))
            cluster.run(10)
            (replica_set,) = cluster.store.list("replicasets.apps")
            digest = replica_set["metadata"]["labels"]["pod-template-hash"]
            assert replica_set["metadata"]["name"] == f"web-{digest}"
            assert owners_of(replica_set) == [("Deployment", "web", True)]
            pods = cluster.pods()
            assert len(pods) == 3
            for pod in pods:
                assert pod["metadata"]["name"].startswith(f"web-{digest}-")
                assert owners_of(pod) == [("ReplicaSet", f"web-{digest}", True)]
                assert pod["metadata"]["labels"] == {"app": "web", "pod-template-hash": digest}
            status = cluster.store.get("deployments.apps", "default", "web")["status"]
            assert (status["replicas"], status["readyReplicas"], status["availableReplicas"], status["updatedReplicas"]) == (3, 3, 3, 3)
            assert {c["type"]: c["status"] for c in status["conditions"]} == {"Available": "True", "Progressing": "True"}

    def test_scales_and_replaces_a_lost_pod(self) -> None:
        with Cluster() as cluster:
            cluster.store.create("deployments.apps", owner("web", replicas=2))
            cluster.run(10)
            lost = cluster.pods()[0]["metadata"]["name"]
            cluster.store.delete("pods", "default", lost)
            cluster.run(10)
            names = [pod["metadata"]["name"] for pod in cluster.pods()]
            assert len(names) == 2
            assert lost not in names
            for replicas in (5, 1, 0):
                cluster.store.update(
                    "deployments.apps", "default", "web", lambda d, n=replicas: {**d, "spec": {**d["spec"], "replicas": n}}
                )
                cluster.run(10)
                assert len(cluster.pods()) == replicas

    @pytest.mark.parametrize("strategy", ["RollingUpdate", "Recreate"])
    def test_a_new_template_replaces_all_pods(self, strategy: str) -> None:
        with Cluster() as cluster:
            cluster.store.create("deployments.apps", owner("web", image("app:1"), replicas=2, strategy={"type": strategy}))
            cluster.run(10)
            template = owner("web", image("app:2"))["spec"]["template"]
            cluster.store.update("deployments.apps", "default", "web", lambda d: {**d, "spec": {**d["spec"], "template": template}})
            ready = []
            for _ in range(40):
                cluster.run(0.5)
                ready.append(cluster.store.get("deployments.apps", "default", "web")["status"].get("readyReplicas", 0))
            assert [pod["spec"]["containers"][0]["image"] for pod in cluster.pods()] == ["app:2", "app:2"]
            assert (min(ready) >= 2) == (strategy == "RollingUpdate")
            assert sorted(s["spec"]["replicas"] for s in cluster.store.list("replicasets.apps")) == [0, 2]

    def test_pods_that_the_node_rejects_are_not_made_in_a_tight_loop(self) -> None:
        with Cluster(cpu_millicores=500) as cluster:
            template = {"spec": {"nodeName": "n1", "containers": [container(requests={"cpu": "2"})]}}
            cluster.store.create("deployments.apps", owner("web", template, replicas=1))
            cluster.run(600)
            assert 2 <= len(cluster.pods()) <= 8

    def test_a_pod_that_the_api_refuses_becomes_an_event(self) -> None:
        with Cluster() as cluster:
            quota = {"metadata": {"name": "small", "namespace": "default"}, "spec": {"hard": {"pods": "1"}}}
            cluster.store.create("resourcequotas", quota)
            cluster.store.create("deployments.apps", owner("web", replicas=2))
            cluster.run(10)
            assert len(cluster.pods()) == 1
            assert "exceeded quota: small" in cluster.message(cluster.store.list("replicasets.apps")[0]["metadata"]["name"], "FailedCreate")


class TestStatefulSet:
    def test_makes_pods_in_order_and_takes_the_last_first(self) -> None:
        with Cluster() as cluster:
            template = {"spec": {"containers": [container()]}}
            cluster.store.create("statefulsets.apps", owner("db", template, replicas=3, serviceName="db"))
            cluster.run(1)
            assert [pod["metadata"]["name"] for pod in cluster.pods()] == ["db-0"]
            cluster.run(20)
            pods = cluster.pods()
            assert [pod["metadata"]["name"] for pod in pods] == ["db-0", "db-1", "db-2"]
            assert pods[1]["metadata"]["labels"]["apps.kubernetes.io/pod-index"] == "1"
            starts = [pod["status"]["startTime"] for pod in pods]
            assert starts == sorted(starts)
            cluster.store.update("statefulsets.apps", "default", "db", lambda s: {**s, "spec": {**s["spec"], "replicas": 1}})
            cluster.run(20)
            assert [pod["metadata"]["name"] for pod in cluster.pods()] == ["db-0"]
            status = cluster.store.get("statefulsets.apps", "default", "db")["status"]
            assert (status["replicas"], status["readyReplicas"]) == (1, 1)

    def test_a_new_template_goes_through_one_pod_at_a_time(self) -> None:
        with Cluster() as cluster:
            cluster.store.create("statefulsets.apps", owner("db", image("db:1"), replicas=3, serviceName="db"))
            cluster.run(30)
            template = owner("db", image("db:2"))["spec"]["template"]
            cluster.store.update("statefulsets.apps", "default", "db", lambda s: {**s, "spec": {**s["spec"], "template": template}})
            fewest = 3
            for _ in range(60):
                cluster.run(0.5)
                status = cluster.store.get("statefulsets.apps", "default", "db")["status"]
                fewest = min(fewest, status.get("readyReplicas", 0))
            assert fewest == 2
            assert {pod["spec"]["containers"][0]["image"] for pod in cluster.pods()} == {"db:2"}


def test_daemon_set_has_one_pod_on_each_matching_node_and_follows_new_nodes() -> None:
    with Cluster(nodes=3) as cluster:
        cluster.store.create("daemonsets.apps", owner("agent"))
        cluster.run(10)
        assert sorted(pod["spec"]["nodeName"] for pod in cluster.pods()) == ["n1", "n2", "n3"]
        status = cluster.store.get("daemonsets.apps", "default", "agent")["status"]
        assert (status["desiredNumberScheduled"], status["numberReady"]) == (3, 3)
        cluster.store.create("nodes", {"metadata": {"name": "late"}})
        allocatable = {"cpu": "4", "memory": "8Gi", "pods": "110"}
        cluster.store.update("nodes", None, "late", lambda n: {**n, "status": {"allocatable": allocatable}}, subresource="status")
        cluster.run(10)
        pods = {pod["spec"]["nodeName"]: pod["status"]["phase"] for pod in cluster.pods()}
        assert pods["late"] == "Running"


class TestJob:
    def job(self, **spec: Any) -> Json:
        template = {
            "metadata": {
                "annotations": {ANNOTATION_WORKLOAD: json.dumps({"app": {"finishesAfterSeconds": 30, "exitCode": spec.pop("code", 0)}})}
            },
            "spec": {"restartPolicy": "Never", "containers": [container()]},
        }
        return {"metadata": {"name": "task", "namespace": "default"}, "spec": {"template": template, **spec}}

    def test_runs_pods_until_enough_have_succeeded(self) -> None:
        with Cluster() as cluster:
            cluster.store.create("jobs.batch", self.job(completions=3, parallelism=2))
            cluster.run(10)
            assert len(cluster.pods()) == 2
            cluster.run(200)
            pods = cluster.pods()
            assert [pod["status"]["phase"] for pod in pods] == ["Succeeded"] * 3
            assert owners_of(pods[0]) == [("Job", "task", True)]
            status = cluster.store.get("jobs.batch", "default", "task")["status"]
            assert status["succeeded"] == 3
            assert [c["type"] for c in status["conditions"]] == ["Complete"]
            assert "completionTime" in status

    def test_gives_up_after_its_back_off_limit(self) -> None:
        with Cluster() as cluster:
            cluster.store.create("jobs.batch", self.job(code=1, backoffLimit=2))
            cluster.run(3600)
            status = cluster.store.get("jobs.batch", "default", "task")["status"]
            assert status["failed"] == 3
            assert [c["type"] for c in status["conditions"]] == ["Failed"]
            assert len(cluster.pods()) == 3

    def test_cron_job_starts_jobs_on_time_and_keeps_the_last_three(self) -> None:
        with Cluster() as cluster:
            job = self.job()
            cron = {
                "metadata": {"name": "tick", "namespace": "default"},
                "spec": {"schedule": "*/10 * * * *", "jobTemplate": {"spec": job["spec"]}},
            }
            cluster.store.create("cronjobs.batch", cron)
            cluster.run(3600 + 120)
            jobs = cluster.store.list("jobs.batch")
            assert len(jobs) == 3
            assert all(owners_of(job) == [("CronJob", "tick", True)] for job in jobs)
            status = cluster.store.get("cronjobs.batch", "default", "tick")["status"]
            assert status["lastScheduleTime"] == "2027-01-15T09:00:00Z"


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("*/5 * * * *", "2027-01-15 08:05"),
        ("0 * * * *", "2027-01-15 09:00"),
        ("30 2 * * *", "2027-01-16 02:30"),
        ("0 0 1 * *", "2027-02-01 00:00"),
        ("0 12 * * 1-5", "2027-01-15 12:00"),
        ("0 7 * * 1-5", "2027-01-18 07:00"),
        ("0 0 * * 7", "2027-01-17 00:00"),
        ("0 0 13 * 5", "2027-01-22 00:00"),
        ("15,45 8-10/2 * 1 *", "2027-01-15 08:15"),
        ("@daily", "2027-01-16 00:00"),
        ("0 0 29 2 *", "2028-02-29 00:00"),
    ],
)
def test_cron_schedule(schedule: str, expected: str) -> None:
    assert datetime.fromtimestamp(next_time(schedule, START), UTC).strftime("%Y-%m-%d %H:%M") == expected


@pytest.mark.parametrize("schedule", ["", "* * * *", "60 * * * *", "a * * * *", "*/0 * * * *", "0 0 30 2 *", "5-1 * * * *"])
def test_bad_cron_schedule(schedule: str) -> None:
    with pytest.raises(ValidationError):
        next_time(schedule, START)


class TestScheduler:
    def test_spreads_pods_by_what_they_request(self) -> None:
        with Cluster(nodes=3) as cluster:
            cluster.store.create("deployments.apps", owner("web", replicas=6))
            cluster.run(10)
            assert Counter(pod["spec"]["nodeName"] for pod in cluster.pods()) == {"n1": 2, "n2": 2, "n3": 2}

    def test_a_pod_waits_with_its_reason_and_is_bound_when_room_comes(self) -> None:
        with Cluster(cpu_millicores=1000) as cluster:
            cluster.create_pod("first", container(requests={"cpu": "800m"}))
            waiting = cluster.create_pod("second", container(requests={"cpu": "500m"}), node="")
            (condition,) = waiting["status"]["conditions"]
            assert (condition["type"], condition["status"], condition["reason"]) == ("PodScheduled", "False", "Unschedulable")
            assert condition["message"] == "0/1 nodes are available: 1 Insufficient cpu."
            cluster.resize("first", requests={"cpu": "400m"})
            cluster.run(10)
            assert cluster.pod("second")["status"]["phase"] == "Running"

    def test_more_important_pods_go_first_and_selectors_are_kept(self) -> None:
        with Cluster(nodes=2, cpu_millicores=1000) as cluster:
            selector = {"kubernetes.io/hostname": "n2"}
            for name, priority in (("low", 0), ("high", 10)):
                cluster.create_pod(name, container(requests={"cpu": "700m"}), node="", run=0, nodeSelector=selector, priority=priority)
            cluster.run(10)
            assert cluster.pod("high")["spec"]["nodeName"] == "n2"
            assert "nodeName" not in cluster.pod("low")["spec"]


class TestScrapes:
    def values(self, cluster: Cluster, metric: str, **labels: str) -> list[float]:
        matchers = [Matcher("__name__", "=", metric), *(Matcher(name, "=", value) for name, value in labels.items())]
        found = cluster.simulation.tsdb.select(matchers, START, cluster.clock.now())
        assert len(found) <= 1, [samples.labels for samples in found]
        return found[0].values.tolist() if found else []

    def test_cadvisor_series_hold_what_the_container_used(self) -> None:
        with Cluster() as cluster:
            use = {"app": steady("100Mi", cpu="300m", fileCold=[{"kind": "steady", "level": "50Mi"}])}
            cluster.create_pod("web", container(requests=amounts("100m", "64Mi"), limits=amounts("200m", "256Mi")), run=300, workload=use)
            here = {"namespace": "default", "pod": "web", "container": "app"}
            cpu = self.values(cluster, "container_cpu_usage_seconds_total", **here)
            assert cpu[-1] - cpu[-3] == pytest.approx(60 * 0.2, rel=0.01), "used up to the limit"
            working_set = self.values(cluster, "container_memory_working_set_bytes", **here)[-1]
            assert 100 * MIB < working_set < 110 * MIB
            assert self.values(cluster, "container_memory_cache", **here)[-1] >= 50 * MIB
            assert self.values(cluster, "container_memory_rss", **here)[-1] == 100 * MIB
            throttled = self.values(cluster, "container_cpu_cfs_throttled_periods_total", **here)
            assert throttled[-1] - throttled[-3] == pytest.approx(600)
            waited = self.values(cluster, "container_pressure_cpu_waiting_seconds_total", **here)
            assert waited[-1] - waited[-3] == pytest.approx(60 * 1 / 3, rel=0.01), "stopped for a third of what it wanted"
            assert self.values(cluster, "container_memory_working_set_bytes", pod="web", container="")[-1] == pytest.approx(working_set)
            assert self.values(cluster, "container_memory_working_set_bytes", pod="web", container="POD")[-1] < MIB

    def test_page_cache_that_is_reclaimed_and_read_again_shows_as_refaults(self) -> None:
        with Cluster() as cluster:
            use = {"app": steady("100Mi", fileHot=[{"kind": "steady", "level": "200Mi"}])}
            cluster.create_pod("web", container(limits=amounts("200m", "256Mi")), run=300, workload=use)
            here = {"namespace": "default", "pod": "web", "container": "app"}
            reclaimed, refaulted = (
                self.values(cluster, f"container_memory_{name}_total", **here) for name in ("pgsteal", "workingset_refault_file")
            )
            assert reclaimed[-1] > reclaimed[-3]
            assert refaulted[-1] - refaulted[-3] == pytest.approx(reclaimed[-1] - reclaimed[-3], rel=0.1)
            active, cache = (self.values(cluster, f"container_memory_{name}", **here)[-1] for name in ("total_active_file_bytes", "cache"))
            assert 0 < active <= cache < 156 * MIB

    def test_kube_state_metrics_series_follow_the_objects(self) -> None:
        with Cluster() as cluster:
            cluster.store.create("deployments.apps", owner("web", replicas=1))
            cluster.run(60)
            (pod,) = cluster.pods()
            name, replica_set = pod["metadata"]["name"], pod["metadata"]["ownerReferences"][0]["name"]
            assert self.values(cluster, "kube_pod_owner", pod=name, owner_kind="ReplicaSet", owner_name=replica_set)[-1] == 1
            assert self.values(cluster, "kube_replicaset_owner", replicaset=replica_set, owner_kind="Deployment", owner_name="web")[-1] == 1
            assert self.values(cluster, "kube_pod_container_resource_requests", pod=name, resource="cpu", unit="core")[-1] == 0.1
            assert self.values(cluster, "kube_pod_container_resource_requests", pod=name, resource="memory", unit="byte")[-1] == 64 * MIB
            cluster.resize(name, requests={"cpu": "250m"})
            cluster.run(60)
            assert self.values(cluster, "kube_pod_container_resource_requests", pod=name, resource="cpu")[-1] == 0.25
            assert self.values(cluster, "kube_pod_status_phase", pod=name, phase="Running")[-1] == 1

    def test_out_of_memory_kills_and_new_incarnations_show(self) -> None:
        with Cluster() as cluster:
            use = {"app": {"anon": [{"kind": "ramp", "height": "400Mi", "overSeconds": 100}]}}
            pod = cluster.create_pod("web", container(limits={"memory": "256Mi"}), run=50, workload=use)
            first = pod["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
            cluster.run(100)
            assert self.values(cluster, "kube_pod_container_status_restarts_total", container="app")[-1] >= 1
            assert self.values(cluster, "kube_pod_container_status_last_terminated_reason", reason="OOMKilled")[-1] == 1
            assert self.values(cluster, "kube_pod_container_status_last_terminated_timestamp")[-1] > START
            old = self.values(cluster, "container_memory_working_set_bytes", name=first)
            assert old[-1] != old[-1], "the dead container's series ends with a staleness marker"

    def test_series_of_a_deleted_pod_become_stale(self) -> None:
        with Cluster() as cluster:
            cluster.create_pod("web", container(), run=60)
            cluster.store.delete("pods", "default", "web")
            cluster.run(120)
            for metric in ("kube_pod_info", "kube_pod_created"):
                values = self.values(cluster, metric, pod="web")
                assert values[0] == values[0]
                assert values[-1] != values[-1]
