"""Errors that the API server is told to give: by share and seed, to some users or resources, and watches that expire."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from sandbox_api_support import MERGE, PODS, Api, a_config_map, a_pod, events

from vpa_ippr.api.errors import UsageError
from vpa_ippr.sandbox.faults import FaultPlan
from vpa_ippr.sandbox.responses import Response

MAPS = "/api/v1/namespaces/default/configmaps"
LABEL: dict[str, Any] = {"metadata": {"labels": {"a": "b"}}}


def codes(api: Api, count: int = 200, method: str = "PATCH", url: str = f"{PODS}/p", **options: Any) -> list[int]:
    body = LABEL if method == "PATCH" else None
    return [api.send(method, url, body, MERGE, **options)[0] for _ in range(count)]


def an_api(plan: FaultPlan) -> Api:
    api = Api()
    api.must("POST", PODS, a_pod())
    api.must("POST", MAPS, a_config_map())
    api.server.faults.set(plan)
    return api


class TestShares:
    def test_are_kept_about_and_the_rest_is_answered(self) -> None:
        found = Counter(codes(an_api(FaultPlan({409: 0.1, 429: 0.1, 500: 0.1})), 1000))
        assert set(found) == {200, 409, 429, 500}
        assert all(60 < found[code] < 140 for code in (409, 429, 500))

    def test_a_seed_gives_the_same_again_and_another_seed_something_else(self) -> None:
        runs = [codes(an_api(FaultPlan({500: 0.3}, seed=seed))) for seed in (1, 1, 2)]
        assert runs[0] == runs[1] != runs[2]

    def test_reads_and_creations_never_conflict(self) -> None:
        api = an_api(FaultPlan({409: 1.0}))
        assert set(codes(api, 5)) == {409}
        assert set(codes(api, 5, "GET")) == {200}
        assert api.send("POST", PODS, a_pod("q"))[0] == 201

    def test_nothing_is_carried_out(self) -> None:
        api = an_api(FaultPlan({500: 1.0}))
        assert codes(api, 1) == [500]
        assert "labels" not in api.store.get("pods", "default", "p")["metadata"]
        assert api.server.audit[-1].code == 500

    def test_no_shares_no_faults_again(self) -> None:
        api = an_api(FaultPlan({500: 1.0}))
        api.server.faults.set(FaultPlan())
        assert set(codes(api, 20)) == {200}

    @pytest.mark.parametrize("shares", [{404: 0.1}, {409: -0.1}, {409: 0.6, 500: 0.6}], ids=str)
    def test_that_are_none(self, shares: dict[int, float]) -> None:
        with pytest.raises(UsageError):
            FaultPlan(shares)


class TestAnswers:
    def test_too_many_requests_is_text_with_the_time_to_wait(self) -> None:
        answer = an_api(FaultPlan({429: 1.0})).raw("GET", f"{PODS}/p")
        assert isinstance(answer, Response)
        assert (answer.code, answer.retry_after_seconds, answer.body[:17]) == (429, 1, b"Too many requests")

    def test_conflict_and_failure_are_a_status(self) -> None:
        api = an_api(FaultPlan({409: 1.0}))
        assert api.send("PATCH", f"{PODS}/p/resize", {}, MERGE)[1]["reason"] == "Conflict"
        api.server.faults.set(FaultPlan({500: 1.0}))
        assert api.send("GET", f"{PODS}/p")[1]["message"] == "etcdserver: request timed out"

    def test_an_eviction_that_a_budget_delays_says_when_to_come_back(self) -> None:
        api = an_api(FaultPlan())
        api.store.update("pods", "default", "p", lambda pod: {**pod, "status": {"phase": "Running"}}, subresource="status")
        api.must("POST", "/apis/policy/v1/namespaces/default/poddisruptionbudgets", {"metadata": {"name": "b"}, "spec": {"selector": {}}})
        answer = api.raw("POST", f"{PODS}/p/eviction", {"metadata": {"name": "p"}})
        assert isinstance(answer, Response)
        assert (answer.code, answer.retry_after_seconds) == (429, 10)


class TestWhoAndWhat:
    def test_only_the_user_that_is_meant(self) -> None:
        api = an_api(FaultPlan({500: 1.0}, users=("bob",)))
        assert codes(api, 3) == [200] * 3
        assert codes(api, 3, token="t-bob") == [403] * 3, "who may not is told so first"
        rule = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
        rbac = "/apis/rbac.authorization.k8s.io/v1"
        api.must("POST", f"{rbac}/clusterroles", {"metadata": {"name": "all"}, "rules": [rule]})
        role = {"kind": "ClusterRole", "name": "all", "apiGroup": "rbac.authorization.k8s.io"}
        subject = {"kind": "User", "name": "bob", "apiGroup": "rbac.authorization.k8s.io"}
        api.must("POST", f"{rbac}/clusterrolebindings", {"metadata": {"name": "b"}, "roleRef": role, "subjects": [subject]})
        assert codes(api, 3, token="t-bob") == [500] * 3

    @pytest.mark.parametrize(
        ("resource", "failing"), [("pods", [f"{PODS}/p"]), ("pods/resize", [f"{PODS}/p/resize"]), ("configmaps", [f"{MAPS}/c"])]
    )
    def test_only_the_resource_that_is_meant(self, resource: str, failing: list[str]) -> None:
        api = an_api(FaultPlan({500: 1.0}, resources=(resource,)))
        urls = [f"{PODS}/p", f"{PODS}/p/resize", f"{MAPS}/c"]
        assert [url for url in urls if api.send("GET", url)[0] == 500] == failing

    def test_discovery_and_health_are_spared(self) -> None:
        api = an_api(FaultPlan({500: 1.0}))
        assert [api.send("GET", url)[0] for url in ("/healthz", "/api/v1", "/version")] == [200, 200, 200]


class TestExpiry:
    def test_open_watches_end_with_410_and_old_revisions_are_gone(self) -> None:
        api = an_api(FaultPlan())
        listed = api.must("GET", PODS)["metadata"]["resourceVersion"]
        quiet, busy = api.watch(f"{PODS}?watch=1&resourceVersion={listed}"), api.watch(f"{MAPS}?watch=1")
        assert [kind for kind, _ in events(busy)] == ["ADDED"]
        api.must("POST", MAPS, a_config_map("d"))
        api.store.expire_watches()
        for stream in (quiet, busy):
            assert [(kind, obj and (obj["code"], obj["reason"])) for kind, obj in events(stream)] == [
                ("ERROR", (410, "Expired")),
                ("END", None),
            ]
        again = events(api.watch(f"{PODS}?watch=1&resourceVersion={listed}"))
        assert [kind for kind, _ in again] == ["ERROR", "END"]

    def test_a_new_list_leads_to_a_watch_that_works(self) -> None:
        api = an_api(FaultPlan())
        api.store.expire_watches()
        listed = api.must("GET", PODS)["metadata"]["resourceVersion"]
        stream = api.watch(f"{PODS}?watch=1&resourceVersion={listed}")
        api.must("PATCH", f"{PODS}/p", LABEL, MERGE)
        assert [kind for kind, _ in events(stream)] == ["MODIFIED"]

    def test_a_stream_is_woken(self) -> None:
        api, woken = an_api(FaultPlan()), []
        api.store.listen("pods", lambda: woken.append(1))
        api.store.expire_watches()
        assert woken == [1]
