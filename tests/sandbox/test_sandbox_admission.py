"""What stands between a client and its change besides the object's own rules: quotas, LimitRanges, budgets, RBAC, in a running cluster."""

from __future__ import annotations

from typing import Any

import pytest
from sandbox_api_support import JSON_PATCH, MERGE, Api, a_deployment, a_pod
from simulated_cluster import Cluster, amounts, container

from vpa_ippr.sandbox.eviction import BUDGETS, evict
from vpa_ippr.sandbox.status import StatusError
from vpa_ippr.sandbox.store import DeleteOptions

Json = dict[str, Any]
SIZE = amounts("300m", "300Mi")
RBAC = "/apis/rbac.authorization.k8s.io/v1"


def refusal(action: Any) -> StatusError:
    with pytest.raises(StatusError) as caught:
        action()
    return caught.value


def quota(cluster: Cluster, hard: Json) -> None:
    cluster.store.create("resourcequotas", {"metadata": {"name": "q", "namespace": "default"}, "spec": {"hard": hard}})
    cluster.run(2)


def used(cluster: Cluster) -> Json:
    found: Json = cluster.store.get("resourcequotas", "default", "q")["status"]["used"]
    return found


class TestQuota:
    @pytest.mark.parametrize(
        ("cpu", "memory", "exceeded"),
        [
            ("600m", "400Mi", "requested: cpu=300m, used: cpu=600m, limited: cpu=800m"),
            ("250m", "750Mi", "requested: memory=450Mi, used: memory=600Mi, limited: memory=800Mi"),
            ("600m", "750Mi", "requested: cpu=300m,memory=450Mi, used: cpu=600m,memory=600Mi, limited: cpu=800m,memory=800Mi"),
            ("350m", "300Mi", None),
            ("350m", "350Mi", None),
            ("400m", "400Mi", None),
        ],
    )
    def test_the_words_of_the_upstream_test(self, cpu: str, memory: str, exceeded: str | None) -> None:
        with Cluster() as cluster:
            quota(cluster, amounts("800m", "800Mi"))
            for name in ("one", "two"):
                cluster.create_pod(name, container(requests=SIZE, limits=SIZE), run=3)
            wanted = amounts(cpu, memory)
            if exceeded is None:
                cluster.resize("one", requests=wanted, limits=wanted)
            else:
                error = refusal(lambda: cluster.resize("one", requests=wanted, limits=wanted))
                assert (error.code, error.message) == (403, f'pods "one" is forbidden: exceeded quota: q, {exceeded}')

    def test_of_what_is_there_already_is_counted(self) -> None:
        with Cluster() as cluster:
            cluster.create_pod("one", container(requests=SIZE))
            quota(cluster, {"requests.cpu": "1", "pods": "3"})
            assert used(cluster) == {"requests.cpu": "300m", "pods": "1"}

    @pytest.mark.parametrize("lag", [0.0, 30.0])
    def test_a_shrink_gives_its_room_back_when_the_controller_has_seen_the_status(self, lag: float) -> None:
        with Cluster() as cluster:
            cluster.simulation.quotas.lag_seconds = lag
            cluster.create_pod("one", container(requests=SIZE))
            cluster.create_pod("two", container(requests=SIZE))
            quota(cluster, {"cpu": "600m"})
            cluster.run(lag)
            cluster.resize("one", requests={"cpu": "100m"})
            assert used(cluster) == {"cpu": "600m"}
            cluster.run(lag - 1 if lag else 3)
            grow = lambda: cluster.resize("two", requests={"cpu": "500m"})  # noqa: E731
            if lag:
                assert "exceeded quota" in refusal(grow).message
                cluster.run(6)
            assert used(cluster) == {"cpu": "400m"}
            assert grow()["spec"]["containers"][0]["resources"]["requests"]["cpu"] == "500m"

    def test_a_pod_that_goes_gives_its_room_back(self) -> None:
        with Cluster() as cluster:
            quota(cluster, {"cpu": "600m"})
            cluster.create_pod("one", container(requests=SIZE))
            cluster.store.delete("pods", "default", "one", grace_period_seconds=0)
            cluster.run(5)
            assert used(cluster) == {"cpu": "0"}

    def test_an_infeasible_resize_does_not_count(self) -> None:
        with Cluster(version="1.35", cpu_millicores=1000) as cluster:
            quota(cluster, {"cpu": "10"})
            cluster.create_pod("one", container(requests=SIZE))
            cluster.resize("one", requests={"cpu": "5"})
            assert used(cluster) == {"cpu": "5"}
            cluster.run(5)
            assert used(cluster) == {"cpu": "300m"}


def test_a_limit_range_that_comes_later_can_make_a_resize_fail() -> None:
    """Resize.md 1.2, step 3: it adds limits to containers that the caller never touched, which a BestEffort pod does not survive."""
    item = {"type": "Container", "default": {"memory": "1Gi"}, "defaultRequest": {"memory": "1Gi"}}
    with Cluster() as cluster:
        cluster.create_pod("none", container())
        cluster.create_pod("some", container(requests={"cpu": "100m"}))
        cluster.store.create("limitranges", {"metadata": {"name": "l", "namespace": "default"}, "spec": {"limits": [item]}})
        assert "Pod QOS Class may not change" in refusal(lambda: cluster.resize("none")).message
        resized = cluster.resize("some", requests={"cpu": "120m"})
        assert resized["spec"]["containers"][0]["resources"] == {
            "requests": {"cpu": "120m", "memory": "1Gi"},
            "limits": {"memory": "1Gi"},
        }
        assert "annotations" not in resized["metadata"], "the annotation of the plugin is dropped with all that is not resources"


class TestBudgets:
    def budget(self, cluster: Cluster, **spec: Any) -> None:
        selector = {"selector": {"matchLabels": {"app": "web"}}}
        cluster.store.create(BUDGETS, {"metadata": {"name": "b", "namespace": "default"}, "spec": {**selector, **spec}})
        cluster.run(2)

    def status(self, cluster: Cluster) -> Json:
        found: Json = cluster.store.get(BUDGETS, "default", "b")["status"]
        return found

    def evict_one(self, cluster: Cluster) -> None:
        running = [p for p in cluster.pods() if not p["metadata"].get("deletionTimestamp")]
        evict(cluster.store, "default", running[0]["metadata"]["name"], DeleteOptions())

    @pytest.mark.parametrize(
        ("spec", "desired", "allowed"),
        [
            ({"minAvailable": 3}, 3, 1),
            ({"minAvailable": "50%"}, 2, 2),
            ({"minAvailable": "51%"}, 3, 1),
            ({"maxUnavailable": 1}, 3, 1),
            ({"maxUnavailable": "30%"}, 2, 2),
            ({"maxUnavailable": 0}, 4, 0),
            ({"minAvailable": 5}, 5, 0),
            ({}, 1, 3),
        ],
        ids=str,
    )
    def test_figures_of_a_deployment_of_four(self, spec: Json, desired: int, allowed: int) -> None:
        with Cluster() as cluster:
            cluster.store.create("deployments.apps", a_deployment(replicas=4))
            cluster.run(10)
            self.budget(cluster, **spec)
            status = self.status(cluster)
            figures = [status[key] for key in ("expectedPods", "currentHealthy", "desiredHealthy", "disruptionsAllowed")]
            assert figures == [4, 4, desired, allowed]
            condition = status["conditions"][0]
            assert (condition["status"], condition["reason"]) == (("True", "SufficientPods") if allowed else ("False", "InsufficientPods"))
            assert status["observedGeneration"] == 1

    def test_evictions_go_one_at_a_time(self) -> None:
        with Cluster() as cluster:
            cluster.store.create("deployments.apps", a_deployment(replicas=3))
            cluster.run(10)
            self.budget(cluster, maxUnavailable=1)
            self.evict_one(cluster)
            error = refusal(lambda: self.evict_one(cluster))
            assert (error.code, error.causes[0]["message"]) == (429, "The disruption budget b needs 2 healthy pods and has 3 currently")
            cluster.run(0.5)
            assert "needs 2 healthy pods and has 2 currently" in refusal(lambda: self.evict_one(cluster)).causes[0]["message"]
            cluster.run(10)
            assert len(cluster.pods()) == 3
            assert self.status(cluster)["disruptionsAllowed"] == 1
            assert "disruptedPods" not in self.status(cluster)
            self.evict_one(cluster)

    def test_pods_whose_controller_has_no_scale_are_left_alone(self) -> None:
        with Cluster() as cluster:
            template = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [container()]}}
            spec = {"selector": {"matchLabels": {"app": "web"}}, "template": template}
            cluster.store.create("daemonsets.apps", {"metadata": {"name": "web", "namespace": "default"}, "spec": spec})
            cluster.run(10)
            self.budget(cluster, maxUnavailable=1)
            status = self.status(cluster)
            assert (status["disruptionsAllowed"], status["conditions"][0]["reason"]) == (0, "SyncFailed")


class TestAccess:
    def api(self, resource: str) -> Api:
        """Bob may get and patch ``resource`` and nothing else."""
        api = Api()
        api.must("POST", "/api/v1/namespaces/default/pods", a_pod())
        rules = [{"apiGroups": [""], "resources": [resource], "verbs": ["get", "patch", "update"]}]
        api.must("POST", f"{RBAC}/clusterroles", {"metadata": {"name": "r"}, "rules": rules})
        subject = {"kind": "User", "name": "bob", "apiGroup": "rbac.authorization.k8s.io"}
        role = {"kind": "ClusterRole", "name": "r", "apiGroup": "rbac.authorization.k8s.io"}
        api.must("POST", f"{RBAC}/clusterrolebindings", {"metadata": {"name": "b"}, "subjects": [subject], "roleRef": role})
        return api

    @pytest.mark.parametrize(
        ("resource", "codes"),
        [("pods", (200, 403)), ("pods/resize", (403, 200)), ("*/resize", (403, 200)), ("pods/status", (403, 403)), ("*", (200, 200))],
    )
    def test_pods_and_their_resize_are_two_things(self, resource: str, codes: tuple[int, int]) -> None:
        api, url = self.api(resource), "/api/v1/namespaces/default/pods/p"
        labels = api.send("PATCH", url, {"metadata": {"labels": {"a": "b"}}}, MERGE, token="t-bob")
        change = [{"op": "replace", "path": "/spec/containers/0/resources/requests/cpu", "value": "120m"}]
        resize = api.send("PATCH", f"{url}/resize", change, JSON_PATCH, token="t-bob")
        assert (labels[0], resize[0]) == codes
        if codes[1] == 403:
            words = 'User "bob" cannot patch resource "pods/resize" in API group "" in the namespace "default"'
            assert resize[1]["message"] == f'pods "p" is forbidden: {words}'

    def test_get_of_the_resize_is_the_pod(self) -> None:
        api = self.api("pods/resize")
        url = "/api/v1/namespaces/default/pods/p"
        assert api.must("GET", f"{url}/resize", token="t-bob") == api.must("GET", url)
        for method in ("POST", "DELETE"):
            assert api.send(method, f"{url}/resize", {})[0] == 405
