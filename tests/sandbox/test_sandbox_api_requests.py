from __future__ import annotations

from typing import Any

import pytest
from sandbox_api_support import (
    APPLY,
    JSON_PATCH,
    MERGE,
    PODS,
    STRATEGIC,
    Api,
    a_config_map,
    a_deployment,
    a_pod,
    owned_by,
)

from vpa_ippr.sandbox.reading import Page, read_token, write_token

MAPS = "/api/v1/namespaces/default/configmaps"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"


@pytest.fixture
def api() -> Api:
    return Api()


class TestPaging:
    def test_pages_show_the_state_of_the_first_one(self, api: Api) -> None:
        for name in "abcde":
            api.must("POST", MAPS, a_config_map(name))
        first = api.must("GET", f"{MAPS}?limit=2")
        assert first["metadata"]["remainingItemCount"] == 3
        api.must("DELETE", f"{MAPS}/d")
        api.must("POST", MAPS, a_config_map("dd"))
        second = api.must("GET", f"{MAPS}?limit=2&continue={first['metadata']['continue']}")
        third = api.must("GET", f"{MAPS}?limit=2&continue={second['metadata']['continue']}")
        names = [item["metadata"]["name"] for page in (first, second, third) for item in page["items"]]
        assert names == list("abcde")
        assert {page["metadata"]["resourceVersion"] for page in (first, second, third)} == {first["metadata"]["resourceVersion"]}
        assert "continue" not in third["metadata"]

    def test_a_token_of_a_forgotten_revision_has_expired(self) -> None:
        api = Api(history=2)
        for name in "abc":
            api.must("POST", MAPS, a_config_map(name))
        token = api.must("GET", f"{MAPS}?limit=1")["metadata"]["continue"]
        for name in "xyz":
            api.must("POST", MAPS, a_config_map(name))
        code, body = api.send("GET", f"{MAPS}?limit=1&continue={token}")
        assert (code, body["reason"]) == (410, "Expired")
        assert "The provided continue parameter is too old" in body["message"]

    def test_tokens_survive_the_round_trip(self) -> None:
        page = Page(42, ("default", "pod-1"))
        assert read_token(write_token(page)) == page

    @pytest.mark.parametrize(
        ("query", "code", "message"),
        [
            ("resourceVersion=999999", 504, "Too large resource version: 999999"),
            ("resourceVersion=abc", 400, "invalid syntax"),
            ("limit=x", 400, "invalid syntax"),
        ],
    )
    def test_list_refusals(self, api: Api, query: str, code: int, message: str) -> None:
        found, body = api.send("GET", f"{MAPS}?{query}")
        assert found == code
        assert message in body["message"]

    def test_an_exact_revision_can_be_listed(self, api: Api) -> None:
        revision = api.must("POST", MAPS, a_config_map("a"))["metadata"]["resourceVersion"]
        api.must("POST", MAPS, a_config_map("b"))
        body = api.must("GET", f"{MAPS}?resourceVersion={revision}&resourceVersionMatch=Exact")
        assert [item["metadata"]["name"] for item in body["items"]] == ["a"]


class TestWriting:
    def test_unknown_fields_are_dropped_with_a_warning(self, api: Api) -> None:
        pod = a_pod(nope=1)
        answer = api.raw("POST", PODS, pod)
        assert answer.code == 201
        assert answer.warnings == ('unknown field "spec.nope"',)
        assert "nope" not in api.must("GET", f"{PODS}/p")["spec"]
        assert api.raw("POST", f"{PODS}?fieldValidation=Ignore", {**pod, "metadata": {"name": "q"}}).warnings == ()

    def test_a_patch_with_unknown_fields_is_refused_in_strict_mode(self, api: Api) -> None:
        api.must("POST", PODS, a_pod())
        code, body = api.send("PATCH", f"{PODS}/p?fieldValidation=Strict", {"metadata": {"nope": 1}}, MERGE)
        assert code == 422
        assert 'strict decoding error: unknown field "metadata.nope"' in body["message"]

    @pytest.mark.parametrize(
        ("pod", "message"),
        [
            (a_pod(terminationGracePeriodSeconds="x"), "of type int64"),
            (a_pod(containers=[{"name": "c", "resources": {"requests": {"cpu": "lots"}}}]), "quantities must match"),
            (a_pod(containers={}), "cannot unmarshal object"),
            ({**a_pod(), "kind": "Node"}, "cannot be handled as a Pod"),
            ({**a_pod(), "apiVersion": "v9"}, "does not match the expected API version"),
            ([1], "an object is expected"),
        ],
    )
    def test_what_cannot_be_decoded(self, api: Api, pod: Any, message: str) -> None:
        code, body = api.send("POST", PODS, pod)
        assert code == 400
        assert message in body["message"]

    def test_broken_json_is_one_clear_line(self, api: Api) -> None:
        code, body = api.send("POST", PODS, b'{"kind": ')
        assert code == 400
        assert "couldn't parse the body" in body["message"]

    def test_yaml_bodies_are_read(self, api: Api) -> None:
        yaml = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: y}\ndata: {a: b}\n"
        assert api.must("POST", MAPS, yaml, "application/yaml")["data"] == {"a": "b"}

    def test_quantities_are_stored_in_canonical_form(self, api: Api) -> None:
        container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "0.5", "memory": "1024Ki"}}}
        created = api.must("POST", PODS, a_pod(containers=[container]))
        assert created["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "500m", "memory": "1Mi"}

    def test_a_lease_is_only_replaced_with_its_revision(self, api: Api) -> None:
        leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"}, "spec": {"holderIdentity": "a"}}
        api.must("POST", leases, lease)
        code, body = api.send("PUT", f"{leases}/l", lease)
        assert code == 422
        assert "metadata.resourceVersion: Invalid value: 0: must be specified for an update" in body["message"]

    @pytest.mark.parametrize(
        ("method", "url", "code"),
        [
            ("POST", f"{MAPS}/c", 405),
            ("PUT", MAPS, 405),
            ("DELETE", f"{MAPS}/c?dryRun=Some", 400),
            ("GET", f"{MAPS}/c/status", 404),
            ("POST", f"{PODS}/p/resize", 405),
            ("GET", f"{PODS}/p/eviction", 405),
            ("GET", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", 405),
            ("GET", "/nothing/here", 404),
            ("GET", "/api/v1/pods/p", 404),
            ("POST", "/api/v1/pods", 405),
        ],
    )
    def test_paths_and_methods_that_do_not_exist(self, api: Api, method: str, url: str, code: int) -> None:
        api.must("POST", MAPS, a_config_map())
        api.must("POST", PODS, a_pod())
        assert api.send(method, url, {} if method in ("POST", "PUT") else None)[0] == code

    def test_a_collection_is_deleted_as_far_as_the_selector_reaches(self, api: Api) -> None:
        for name, team in (("a", "x"), ("b", "x"), ("c", "y")):
            obj = a_config_map(name)
            obj["metadata"]["labels"] = {"team": team}
            api.must("POST", MAPS, obj)
        assert len(api.must("DELETE", f"{MAPS}?labelSelector=team%3Dx")["items"]) == 2
        assert [item["metadata"]["name"] for item in api.must("GET", MAPS)["items"]] == ["c"]

    def test_secrets_take_plain_text(self, api: Api) -> None:
        secrets = "/api/v1/namespaces/default/secrets"
        api.must("POST", secrets, {"metadata": {"name": "s"}, "stringData": {"k": "v"}})
        assert api.must("GET", f"{secrets}/s")["data"] == {"k": "dg=="}


class TestWorkloads:
    def test_defaults_of_a_deployment_and_of_its_template(self, api: Api) -> None:
        obj = a_deployment()
        del obj["spec"]["replicas"]
        spec = api.must("POST", DEPLOYMENTS, obj)["spec"]
        assert (spec["replicas"], spec["strategy"]["type"], spec["revisionHistoryLimit"]) == (1, "RollingUpdate", 10)
        template = spec["template"]["spec"]
        assert template["restartPolicy"] == "Always"
        assert not {"tolerations", "priority"} & set(template)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"spec": {"selector": {"matchLabels": {"app": "other"}}}}, "does not match template `labels`"),
            ({"spec": {"replicas": -1}}, "spec.replicas: Invalid value: -1: must be greater than or equal to 0"),
        ],
    )
    def test_rules_of_a_deployment(self, api: Api, change: dict[str, Any], message: str) -> None:
        api.must("POST", DEPLOYMENTS, a_deployment())
        code, body = api.send("PATCH", f"{DEPLOYMENTS}/web", change, MERGE)
        assert code == 422
        assert message in body["message"]

    def test_scale_reads_and_writes_the_replicas(self, api: Api) -> None:
        api.must("POST", DEPLOYMENTS, a_deployment(replicas=2))
        scale = api.must("GET", f"{DEPLOYMENTS}/web/scale")
        assert (scale["kind"], scale["spec"]["replicas"], scale["status"]["selector"]) == ("Scale", 2, "app=web")
        scale["spec"]["replicas"] = 4
        assert api.must("PUT", f"{DEPLOYMENTS}/web/scale", scale)["spec"]["replicas"] == 4
        assert api.send("PUT", f"{DEPLOYMENTS}/web/scale", scale)[0] == 409
        api.must("PATCH", f"{DEPLOYMENTS}/web/scale", {"spec": {"replicas": 1}}, MERGE)
        assert api.must("GET", f"{DEPLOYMENTS}/web")["spec"]["replicas"] == 1

    def test_a_job_selects_its_own_pods(self, api: Api) -> None:
        jobs = "/apis/batch/v1/namespaces/default/jobs"
        template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}
        job = api.must("POST", jobs, {"metadata": {"name": "j"}, "spec": {"template": template}})
        wanted = {"batch.kubernetes.io/controller-uid": job["metadata"]["uid"]}
        assert job["spec"]["selector"]["matchLabels"] == wanted
        assert wanted.items() <= job["spec"]["template"]["metadata"]["labels"].items()


class TestPods:
    def test_binding(self, api: Api) -> None:
        api.must("POST", PODS, a_pod())
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n1"}}
        api.must("POST", f"{PODS}/p/binding", binding)
        pod = api.must("GET", f"{PODS}/p")
        assert pod["spec"]["nodeName"] == "n1"
        assert [(c["type"], c["status"]) for c in pod["status"]["conditions"]] == [("PodScheduled", "True")]
        assert api.send("POST", f"{PODS}/p/binding", binding)[0] == 409

    def test_a_resize_changes_resources_and_nothing_else(self, api: Api) -> None:
        api.must("POST", PODS, a_pod())
        patch = {
            "metadata": {"labels": {"a": "b"}},
            "spec": {"containers": [{"name": "app", "image": "x", "resources": {"requests": {"cpu": "1"}}}]},
        }
        resized = api.must("PATCH", f"{PODS}/p/resize", patch, STRATEGIC)
        container = resized["spec"]["containers"][0]
        assert (container["image"], container["resources"]["requests"]["cpu"]) == ("app:1", "1")
        assert "labels" not in resized["metadata"]
        assert resized["metadata"]["generation"] == 2
        assert api.must("GET", f"{PODS}/p/resize") == resized

    @pytest.mark.parametrize("dry_run", [True, False])
    def test_a_dry_run_of_a_resize_changes_nothing(self, api: Api, dry_run: bool) -> None:
        api.must("POST", PODS, a_pod())
        patch = {"spec": {"containers": [{"name": "app", "resources": {"requests": {"cpu": "1"}}}]}}
        api.must("PATCH", f"{PODS}/p/resize{'?dryRun=All' if dry_run else ''}", patch, STRATEGIC)
        assert api.must("GET", f"{PODS}/p")["metadata"]["generation"] == (1 if dry_run else 2)

    def test_a_dry_run_of_a_resize_charges_no_quota(self, api: Api) -> None:
        quotas = "/api/v1/namespaces/default/resourcequotas"
        api.must("POST", quotas, {"metadata": {"name": "q"}, "spec": {"hard": {"requests.cpu": "2"}}})
        api.must("PATCH", f"{quotas}/q/status", {"status": {"hard": {"requests.cpu": "2"}, "used": {"requests.cpu": "0"}}}, MERGE)
        api.must("POST", PODS, a_pod())
        patch = {"spec": {"containers": [{"name": "app", "resources": {"requests": {"cpu": "1"}}}]}}
        api.must("PATCH", f"{PODS}/p/resize?dryRun=All", patch, STRATEGIC)
        assert api.must("GET", f"{quotas}/q")["status"]["used"] == {"requests.cpu": "100m"}
        api.must("PATCH", f"{PODS}/p/resize", patch, STRATEGIC)
        assert api.must("GET", f"{quotas}/q")["status"]["used"] == {"requests.cpu": "1"}

    def test_logs_are_empty_and_need_the_pod(self, api: Api) -> None:
        api.must("POST", PODS, a_pod())
        assert api.send("GET", f"{PODS}/p/log") == (200, "")
        assert api.send("GET", f"{PODS}/nope/log")[0] == 404


class TestRights:
    def test_a_role_reaches_its_namespace_and_no_further(self, api: Api) -> None:
        rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"
        rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}
        api.must("POST", f"{rbac}/roles", {"metadata": {"name": "r"}, "rules": [rule]})
        subject = {"kind": "User", "name": "bob"}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"}
        api.must("POST", f"{rbac}/rolebindings", {"metadata": {"name": "b"}, "roleRef": role, "subjects": [subject]})
        assert api.send("GET", PODS, token="t-bob")[0] == 200
        code, body = api.send("GET", "/api/v1/pods", token="t-bob")
        assert code == 403
        assert body["message"] == 'pods is forbidden: User "bob" cannot list resource "pods" in API group "" at the cluster scope'
        assert api.send("GET", f"{PODS}/p", token="t-bob")[0] == 403

    def test_resource_names_narrow_a_rule(self, api: Api) -> None:
        rbac = "/apis/rbac.authorization.k8s.io/v1"
        rule = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"], "resourceNames": ["one"]}
        api.must("POST", f"{rbac}/clusterroles", {"metadata": {"name": "r"}, "rules": [rule]})
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "r"}
        subject = {"kind": "Group", "name": "system:authenticated"}
        api.must("POST", f"{rbac}/clusterrolebindings", {"metadata": {"name": "b"}, "roleRef": role, "subjects": [subject]})
        for name in ("one", "two"):
            api.must("POST", MAPS, a_config_map(name))
        assert [api.send("GET", f"{MAPS}/{name}", token="t-bob")[0] for name in ("one", "two")] == [200, 403]

    def test_without_a_token_only_the_public_paths_answer(self, api: Api) -> None:
        assert api.send("GET", "/readyz", token=None) == (200, "ok")
        code, body = api.send("GET", PODS, token=None)
        assert code == 403
        assert 'User "system:anonymous"' in body["message"]

    def test_a_service_account_gets_a_token_that_works(self, api: Api) -> None:
        accounts = "/api/v1/namespaces/default/serviceaccounts"
        api.must("POST", accounts, {"metadata": {"name": "robot"}})
        token = api.must("POST", f"{accounts}/robot/token", {"spec": {}})["status"]["token"]
        who = api.must("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", {}, token=token)
        assert who["status"]["userInfo"]["username"] == "system:serviceaccount:default:robot"
        review = api.must("POST", "/apis/authentication.k8s.io/v1/tokenreviews", {"spec": {"token": token}})
        assert review["status"]["authenticated"]

    def test_who_may_impersonate_acts_as_the_other_with_the_other_s_rights(self, api: Api) -> None:
        code, body = api.send("GET", PODS, impersonate_user="alice")
        assert code == 403
        assert 'User "alice" cannot list resource "pods"' in body["message"]
        assert api.send("GET", PODS, impersonate_user="alice", impersonate_group="ops,system:masters")[0] == 200
        account = "system:serviceaccount:default:robot"
        who = api.must("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", {}, impersonate_user=account)
        assert who["status"]["userInfo"]["username"] == account
        assert "system:serviceaccounts:default" in who["status"]["userInfo"]["groups"]

    def test_who_may_not_impersonate_is_told_so(self, api: Api) -> None:
        code, body = api.send("GET", PODS, token="t-bob", impersonate_user="alice")
        assert code == 403
        assert body["message"] == (
            'users "alice" is forbidden: User "bob" cannot impersonate resource "users" in API group "" at the cluster scope'
        )
        assert api.send("GET", PODS, impersonate_group="ops")[0] == 500

    def test_the_audit_log_has_every_request_with_its_outcome(self, api: Api) -> None:
        api.must("POST", PODS, a_pod())
        api.send("PATCH", f"{PODS}/p/resize", {"spec": {}}, STRATEGIC, token="t-bob")
        api.send("GET", PODS, token="wrong")
        seen = [(e.verb, e.resource, e.subresource, e.namespace, e.user, e.code) for e in api.server.audit]
        assert seen == [
            ("create", "pods", "", "default", "kubernetes-admin", 201),
            ("patch", "pods", "resize", "default", "bob", 403),
            ("list", "pods", "", "default", "system:anonymous", 401),
        ]


class TestConsequences:
    def test_dependents_go_with_their_owner(self, api: Api) -> None:
        owner = api.must("POST", DEPLOYMENTS, a_deployment())
        api.must("POST", PODS, a_pod(owner=owned_by(owner)))
        api.must("DELETE", f"{DEPLOYMENTS}/web")
        assert api.send("GET", f"{PODS}/p")[0] == 404

    def test_orphans_stay_without_the_reference(self, api: Api) -> None:
        owner = api.must("POST", DEPLOYMENTS, a_deployment())
        api.must("POST", PODS, a_pod(owner=owned_by(owner)))
        api.must("DELETE", f"{DEPLOYMENTS}/web?propagationPolicy=Orphan")
        assert api.send("GET", f"{DEPLOYMENTS}/web")[0] == 404
        assert "ownerReferences" not in api.must("GET", f"{PODS}/p")["metadata"]

    def test_in_the_foreground_the_owner_waits_for_its_dependents(self, api: Api) -> None:
        owner = api.must("POST", DEPLOYMENTS, a_deployment())
        api.must("POST", PODS, a_pod(owner=owned_by(owner, block=True), nodeName="n1"))
        api.must("DELETE", f"{DEPLOYMENTS}/web?propagationPolicy=Foreground")
        assert api.must("GET", f"{DEPLOYMENTS}/web")["metadata"]["finalizers"] == ["foregroundDeletion"]
        api.must("DELETE", f"{PODS}/p?gracePeriodSeconds=0")
        assert api.send("GET", f"{DEPLOYMENTS}/web")[0] == 404

    def test_an_object_with_another_living_owner_stays(self, api: Api) -> None:
        first, second = (api.must("POST", DEPLOYMENTS, a_deployment(name)) for name in ("a", "b"))
        pod = a_pod(owner=owned_by(first))
        pod["metadata"]["ownerReferences"].append({**owned_by(second), "controller": False})
        api.must("POST", PODS, pod)
        api.must("DELETE", f"{DEPLOYMENTS}/a")
        assert [o["name"] for o in api.must("GET", f"{PODS}/p")["metadata"]["ownerReferences"]] == ["b"]
        api.must("DELETE", f"{DEPLOYMENTS}/b")
        assert api.send("GET", f"{PODS}/p")[0] == 404

    def test_a_namespace_goes_when_it_is_empty(self, api: Api) -> None:
        api.must("POST", "/api/v1/namespaces", {"metadata": {"name": "team"}})
        api.must("POST", "/api/v1/namespaces/team/configmaps", {"metadata": {"name": "c"}})
        pod = a_pod(nodeName="n1")
        pod["metadata"]["namespace"] = "team"
        api.must("POST", "/api/v1/namespaces/team/pods", pod)
        assert api.must("DELETE", "/api/v1/namespaces/team")["status"]["phase"] == "Terminating"
        assert api.send("GET", "/api/v1/namespaces/team/configmaps/c")[0] == 404
        code, body = api.send("POST", "/api/v1/namespaces/team/configmaps", {"metadata": {"name": "d"}})
        assert code == 403
        assert "because it is being terminated" in body["message"]
        api.must("DELETE", "/api/v1/namespaces/team/pods/p?gracePeriodSeconds=0")
        assert api.send("GET", "/api/v1/namespaces/team")[0] == 404


class TestEviction:
    BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"

    @pytest.fixture
    def ready(self, api: Api) -> Api:
        api.must("POST", PODS, a_pod(labels={"app": "x"}))
        status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        api.must("PATCH", f"{PODS}/p/status", {"status": status}, STRATEGIC)
        return api

    @pytest.mark.parametrize(("allowed", "code"), [(0, 429), (2, 201)])
    def test_a_budget_decides(self, ready: Api, allowed: int, code: int) -> None:
        ready.must("POST", self.BUDGETS, {"metadata": {"name": "b"}, "spec": {"selector": {"matchLabels": {"app": "x"}}}})
        status = {"observedGeneration": 1, "disruptionsAllowed": allowed, "currentHealthy": 1, "desiredHealthy": 1}
        ready.must("PATCH", f"{self.BUDGETS}/b/status", {"status": status}, MERGE)
        assert ready.send("POST", f"{PODS}/p/eviction", {"metadata": {"name": "p"}})[0] == code
        assert ready.send("GET", f"{PODS}/p")[0] == (404 if code == 201 else 200)

    def test_without_a_budget_it_is_a_deletion(self, ready: Api) -> None:
        ready.must("POST", f"{PODS}/p/eviction", {"metadata": {"name": "p"}})
        assert ready.send("GET", f"{PODS}/p")[0] == 404

    def test_a_uid_precondition_is_kept(self, ready: Api) -> None:
        options = {"preconditions": {"uid": "00000000-0000-0000-0000-000000000000"}}
        assert ready.send("POST", f"{PODS}/p/eviction", {"metadata": {"name": "p"}, "deleteOptions": options})[0] == 409


class TestTables:
    def test_pods(self, api: Api) -> None:
        api.must("POST", PODS, a_pod())
        entry = {"name": "app", "ready": True, "restartCount": 2, "state": {"running": {}}}
        api.must("PATCH", f"{PODS}/p/status", {"status": {"phase": "Running", "containerStatuses": [entry]}}, STRATEGIC)
        api.clock.moment += 330
        table = api.must("GET", PODS, accept=TABLE)
        shown = [c["name"] for c in table["columnDefinitions"] if not c["priority"]]
        assert shown == ["Name", "Ready", "Status", "Restarts", "Age"]
        assert table["rows"][0]["cells"][:5] == ["p", "1/1", "Running", "2", "5m30s"]
        assert table["rows"][0]["object"]["kind"] == "PartialObjectMetadata"

    @pytest.mark.parametrize(
        ("state", "shown"),
        [
            ({"waiting": {"reason": "CrashLoopBackOff"}}, "CrashLoopBackOff"),
            ({"terminated": {"reason": "OOMKilled", "exitCode": 137}}, "OOMKilled"),
            ({"terminated": {"exitCode": 3}}, "ExitCode:3"),
            ({"running": {}}, "Running"),
        ],
    )
    def test_the_state_of_a_pod_in_one_word(self, api: Api, state: dict[str, Any], shown: str) -> None:
        api.must("POST", PODS, a_pod())
        status = {"phase": "Running", "containerStatuses": [{"name": "app", "state": state}]}
        api.must("PATCH", f"{PODS}/p/status", {"status": status}, STRATEGIC)
        assert api.must("GET", f"{PODS}/p", accept=TABLE)["rows"][0]["cells"][2] == shown

    def test_every_resource_has_as_many_cells_as_columns(self, api: Api) -> None:
        api.must("POST", DEPLOYMENTS, a_deployment())
        api.must("POST", PODS, a_pod())
        api.must("POST", "/api/v1/nodes", {"metadata": {"name": "n1"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}})
        checked = 0
        for resource in api.store.registry.all():
            if "list" in resource.verbs:
                root = f"/apis/{resource.group}" if resource.group else "/api"
                table = api.must("GET", f"{root}/{resource.version}/{resource.plural}", accept=TABLE)
                checked += len(table["rows"])
                assert {len(row["cells"]) for row in table["rows"]} <= {len(table["columnDefinitions"])}
        assert checked >= 8

    def test_metadata_alone(self, api: Api) -> None:
        api.must("POST", MAPS, a_config_map(a="b"))
        accept = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
        body = api.must("GET", MAPS, accept=accept)
        assert (body["kind"], list(body["items"][0])) == ("PartialObjectMetadataList", ["kind", "apiVersion", "metadata"])

    def test_nothing_but_json_is_served(self, api: Api) -> None:
        assert api.send("GET", MAPS, accept="application/vnd.kubernetes.protobuf")[0] == 406


class TestDiscovery:
    def test_aggregated_discovery_names_every_resource_of_the_plain_one(self, api: Api) -> None:
        accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
        groups = api.must("GET", "/apis", accept=accept)["items"] + api.must("GET", "/api", accept=accept)["items"]
        aggregated = {(g["metadata"]["name"], v["version"], r["resource"]) for g in groups for v in g["versions"] for r in v["resources"]}
        plain = set()
        for group in api.must("GET", "/apis")["groups"]:
            for version in group["versions"]:
                body = api.must("GET", f"/apis/{version['groupVersion']}")
                plain |= {(group["name"], version["version"], r["name"]) for r in body["resources"] if "/" not in r["name"]}
        plain |= {("", "v1", r["name"]) for r in api.must("GET", "/api/v1")["resources"] if "/" not in r["name"]}
        assert aggregated == plain

    def test_resize_is_announced_with_its_verbs(self, api: Api) -> None:
        found = next(r for r in api.must("GET", "/api/v1")["resources"] if r["name"] == "pods/resize")
        assert (found["kind"], found["verbs"]) == ("Pod", ["get", "patch", "update"])

    def test_every_openapi_document_resolves_its_references(self, api: Api) -> None:
        for entry in api.must("GET", "/openapi/v3")["paths"].values():
            document = api.must("GET", entry["serverRelativeURL"])
            known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
            assert set(references(document)) <= known

    def test_events_are_one_set_in_two_groups(self, api: Api) -> None:
        event = {
            "metadata": {"name": "e"},
            "involvedObject": {"kind": "Pod", "name": "p"},
            "reason": "Resized",
            "message": "done",
            "type": "Normal",
        }
        api.must("POST", "/api/v1/namespaces/default/events", event)
        other = api.must("GET", "/apis/events.k8s.io/v1/namespaces/default/events/e")
        assert (other["apiVersion"], other["regarding"]["name"], other["note"]) == ("events.k8s.io/v1", "p", "done")
        listed = api.must("GET", "/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3Dp,reason%3DResized")
        assert len(listed["items"]) == 1


def references(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [value["$ref"]] if "$ref" in value else [ref for item in value.values() for ref in references(item)]
    if isinstance(value, list):
        return [ref for item in value for ref in references(item)]
    return []


class TestApply:
    URL = f"{DEPLOYMENTS}/web"

    def apply(self, api: Api, manager: str, spec: dict[str, Any], query: str = "") -> tuple[int, Any]:
        obj = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec}
        return api.send("PATCH", f"{self.URL}?fieldManager={manager}{query}", obj, APPLY)

    def test_creates_and_then_changes(self, api: Api) -> None:
        spec = a_deployment()["spec"]
        code, created = self.apply(api, "a", spec)
        assert code == 201
        assert [entry["manager"] for entry in created["metadata"]["managedFields"]] == ["a"]
        code, changed = self.apply(api, "a", {**spec, "replicas": 7})
        assert (code, changed["spec"]["replicas"]) == (200, 7)

    def test_a_field_of_another_manager_is_a_conflict_unless_forced(self, api: Api) -> None:
        spec = a_deployment(replicas=2)["spec"]
        self.apply(api, "a", spec)
        code, body = self.apply(api, "b", {"replicas": 3})
        assert (code, body["reason"]) == (409, "Conflict")
        assert body["message"] == 'Apply failed with 1 conflict: conflict with "a": .spec.replicas'
        assert body["details"]["causes"][0]["reason"] == "FieldManagerConflict"
        code, body = self.apply(api, "b", {"replicas": 3}, "&force=true")
        assert (code, body["spec"]["replicas"]) == (200, 3)
        assert self.apply(api, "a", spec)[0] == 409

    def test_the_same_value_is_shared_without_conflict(self, api: Api) -> None:
        self.apply(api, "a", a_deployment(replicas=2)["spec"])
        assert self.apply(api, "b", {"replicas": 2})[0] == 200

    def test_what_a_manager_no_longer_applies_is_removed(self, api: Api) -> None:
        spec = a_deployment()["spec"]
        container = spec["template"]["spec"]["containers"][0]
        container["env"] = [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]
        self.apply(api, "a", spec)
        container["env"] = [{"name": "B", "value": "2"}]
        _, body = self.apply(api, "a", spec)
        assert body["spec"]["template"]["spec"]["containers"][0]["env"] == [{"name": "B", "value": "2"}]

    def test_elements_merge_by_their_keys(self, api: Api) -> None:
        self.apply(api, "a", a_deployment()["spec"])
        container = {"name": "app", "env": [{"name": "X", "value": "y"}]}
        _, body = self.apply(api, "b", {"template": {"spec": {"containers": [container]}}})
        merged = body["spec"]["template"]["spec"]["containers"]
        assert [(c["name"], c["image"], c["env"]) for c in merged] == [("app", "app:1", [{"name": "X", "value": "y"}])]

    def test_an_update_takes_its_fields_over(self, api: Api) -> None:
        self.apply(api, "a", a_deployment(replicas=2)["spec"])
        api.must("PATCH", f"{self.URL}?fieldManager=hand", {"spec": {"replicas": 9}}, MERGE)
        code, body = self.apply(api, "a", a_deployment(replicas=2)["spec"])
        assert code == 409
        assert 'conflict with "hand" using apps/v1 at 2026-01-01T00:00:00Z: .spec.replicas' in body["message"]

    def test_what_was_there_before_belongs_to_nobody_in_particular(self, api: Api) -> None:
        api.must("POST", DEPLOYMENTS, a_deployment(replicas=2))
        code, body = self.apply(api, "a", {"replicas": 3})
        assert code == 409
        assert "before-first-apply" in body["message"]

    def test_a_manager_is_required(self, api: Api) -> None:
        code, body = api.send("PATCH", self.URL, {"metadata": {"name": "web"}}, APPLY)
        assert code == 422
        assert "fieldManager: Required value" in body["message"]


def test_json_patch_through_the_api(api: Api) -> None:
    api.must("POST", MAPS, a_config_map(a="1"))
    operations = [{"op": "test", "path": "/data/a", "value": "1"}, {"op": "add", "path": "/data/b", "value": "2"}]
    assert api.must("PATCH", f"{MAPS}/c", operations, JSON_PATCH)["data"] == {"a": "1", "b": "2"}
