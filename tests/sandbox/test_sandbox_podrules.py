import copy
import json
from pathlib import Path

import pytest

from vpa_ippr.sandbox.podamounts import totals
from vpa_ippr.sandbox.podrules import (
    admit_create,
    admit_update,
    default_pod,
    pod_requests,
    qos_class,
    validate_pod_create,
    validate_pod_update,
)
from vpa_ippr.sandbox.status import StatusError
from vpa_ippr.sandbox.versions import PROFILES

STEPS = json.loads((Path(__file__).parents[1] / "fixtures" / "contract" / "api-1.36.json").read_text())
MIB = 2**20


def a_container(name="c", **resources):
    return {"name": name, "image": "registry.test/app:1", "resources": resources}


def a_pod(*containers, **spec):
    return {"metadata": {"name": "p", "namespace": "default"}, "spec": {"containers": list(containers or [a_container()]), **spec}}


def amounts(cpu=None, memory=None):
    return {name: value for name, value in (("cpu", cpu), ("memory", memory)) if value is not None}


def refusal(action, *arguments):
    with pytest.raises(StatusError) as caught:
        action(*arguments)
    return caught.value


def recorded(method, path, nth=0):
    steps = [s for s in STEPS if s["scenario"] == "crud" and s["method"] == method and s["path"] == path]
    return steps[nth]


class TestDefaults:
    def test_a_new_pod_is_what_a_real_server_stores(self):
        step = recorded("POST", "/api/v1/namespaces/default/pods")
        created = default_pod(step["body"])
        stored = step["response"]["body"]
        assert created["spec"] == stored["spec"]
        assert created["status"] == stored["status"]
        assert created["metadata"]["generation"] == stored["metadata"]["generation"]

    def test_a_limit_without_a_request_is_the_request_too(self):
        pod = default_pod(a_pod(a_container(limits=amounts("2", "1Gi"), requests=amounts("1"))))
        assert pod["spec"]["containers"][0]["resources"]["requests"] == amounts("1", "1Gi")

    def test_pod_level_requests_come_from_the_containers_before_the_limit(self):
        container = a_container(requests=amounts("300m"))
        pod = default_pod(a_pod(container, resources={"limits": amounts("2", "1Gi")}))
        assert pod["spec"]["resources"]["requests"] == amounts("300m", "1Gi")

    def test_pod_level_resources_are_dropped_where_they_are_not_served(self):
        pod = a_pod(resources={"limits": amounts("2")})
        assert "resources" not in default_pod(pod, PROFILES["1.33"])["spec"]
        assert default_pod(pod, PROFILES["1.34"])["spec"]["resources"]["limits"] == amounts("2")

    @pytest.mark.parametrize(
        ("image", "policy"),
        [
            ("app", "Always"),
            ("app:latest", "Always"),
            ("host:5000/app", "Always"),
            ("app:1", "IfNotPresent"),
            ("host:5000/app:1", "IfNotPresent"),
            ("app@sha256:abc", "IfNotPresent"),
        ],
    )
    def test_pull_policy(self, image, policy):
        pod = default_pod(a_pod({"name": "c", "image": image}))
        assert pod["spec"]["containers"][0]["imagePullPolicy"] == policy

    def test_system_priority_class(self):
        assert default_pod(a_pod(priorityClassName="system-node-critical"))["spec"]["priority"] == 2_000_001_000

    def test_tolerations_are_added_only_where_missing(self):
        own = {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}
        tolerations = default_pod(a_pod(tolerations=[own]))["spec"]["tolerations"]
        assert [(t["key"], t["tolerationSeconds"]) for t in tolerations] == [(own["key"], 5), ("node.kubernetes.io/unreachable", 300)]

    def test_a_given_status_is_dropped(self):
        assert default_pod({**a_pod(), "status": {"phase": "Running"}})["status"] == {"phase": "Pending", "qosClass": "BestEffort"}

    def test_defaults_are_idempotent_and_leave_the_argument_alone(self):
        pod = a_pod(a_container(limits=amounts("0.5", "104857600")))
        before = copy.deepcopy(pod)
        once = default_pod(pod)
        assert pod == before
        assert default_pod(once) == once

    @pytest.mark.parametrize("spec", [{"containers": "none"}, {"containers": [a_container(requests={"cpu": "abc"})]}])
    def test_what_cannot_be_read_is_a_bad_request(self, spec):
        error = refusal(default_pod, {"metadata": {"name": "p"}, "spec": spec})
        assert (error.code, error.reason) == (400, "BadRequest")
        assert error.message.startswith('Pod in version "v1" cannot be handled as a Pod: ')


FULL = amounts("1", "1Gi")


@pytest.mark.parametrize(
    ("expected", "pod"),
    [
        pytest.param("BestEffort", a_pod(), id="nothing"),
        pytest.param("BestEffort", a_pod(a_container(requests=amounts("0"))), id="zero is nothing"),
        pytest.param("BestEffort", a_pod(a_container(requests={"ephemeral-storage": "1Gi"})), id="only storage"),
        pytest.param("Guaranteed", a_pod(a_container(limits=FULL, requests=FULL)), id="equal"),
        pytest.param("Guaranteed", a_pod(a_container(limits=FULL, requests=amounts("1000m", "1073741824"))), id="equal in other words"),
        pytest.param("Burstable", a_pod(a_container(limits=FULL, requests=amounts("1"))), id="one request"),
        pytest.param("Burstable", a_pod(a_container(limits=amounts("1"), requests=amounts("1"))), id="no memory limit"),
        pytest.param("Burstable", a_pod(a_container(limits=FULL, requests=FULL), a_container("d")), id="one container without"),
        pytest.param(
            "Burstable", a_pod(a_container(limits=FULL, requests=FULL), initContainers=[a_container("i")]), id="init container without"
        ),
        pytest.param("Guaranteed", a_pod(a_container(), resources={"limits": FULL, "requests": FULL}), id="pod level"),
        pytest.param(
            "Burstable",
            a_pod(a_container(limits=FULL, requests=FULL), resources={"requests": amounts("1")}),
            id="pod level stands for the containers",
        ),
    ],
)
def test_qos_class(expected, pod):
    assert qos_class(pod) == expected


@pytest.mark.parametrize(
    ("expected", "pod"),
    [
        pytest.param((300, 0), a_pod(a_container(requests=amounts("100m")), a_container("d", requests=amounts("200m"))), id="sum"),
        pytest.param(
            (500, 0),
            a_pod(a_container(requests=amounts("100m")), initContainers=[a_container("i", requests=amounts("500m"))]),
            id="largest init container",
        ),
        pytest.param(
            (900, 0),
            a_pod(
                a_container(requests=amounts("100m")),
                initContainers=[
                    {**a_container("s", requests=amounts("400m")), "restartPolicy": "Always"},
                    a_container("i", requests=amounts("500m")),
                ],
            ),
            id="init container beside an earlier sidecar",
        ),
        pytest.param(
            (500, 0),
            a_pod(
                a_container(requests=amounts("100m")),
                initContainers=[
                    a_container("i", requests=amounts("300m")),
                    {**a_container("s", requests=amounts("400m")), "restartPolicy": "Always"},
                ],
            ),
            id="sidecar runs with the containers",
        ),
        pytest.param((110, 5 * MIB), a_pod(a_container(requests=amounts("100m")), overhead=amounts("10m", "5Mi")), id="overhead"),
        pytest.param(
            (60, 7),
            a_pod(a_container(requests=amounts("10m", "7")), resources={"requests": amounts("50m")}, overhead=amounts("10m")),
            id="pod level replaces the sum",
        ),
    ],
)
def test_pod_requests(expected, pod):
    assert totals(pod_requests(pod)) == expected


class TestValidation:
    def test_a_bad_name_and_no_containers_as_recorded(self):
        step = next(s for s in STEPS if (s["body"] or {}) and "Bad_Name" in json.dumps(s["body"]))
        error = refusal(validate_pod_create, default_pod(step["body"]))
        assert error.to_json() == step["response"]["body"]

    @pytest.mark.parametrize(
        ("line", "pod"),
        [
            pytest.param(
                'spec.containers[0].resources.requests: Invalid value: "2": must be less than or equal to cpu limit of 1',
                a_pod(a_container(limits=amounts("1"), requests=amounts("2"))),
                id="request above limit",
            ),
            pytest.param(
                'spec.containers[0].resources.requests[memory]: Invalid value: "-1": must be greater than or equal to 0',
                a_pod(a_container(requests=amounts(memory="-1"))),
                id="negative",
            ),
            pytest.param(
                "spec.containers[0].resources.limits: Required value: Limit must be set for non overcommitable resources",
                a_pod(a_container(requests={"example.com/gpu": "1"})),
                id="extended resource without limit",
            ),
            pytest.param(
                'spec.containers[0].resources.requests: Invalid value: "1": must be equal to example.com/gpu limit of 2',
                a_pod(a_container(requests={"example.com/gpu": "1"}, limits={"example.com/gpu": "2"})),
                id="extended resource not equal",
            ),
            pytest.param('spec.containers[1].name: Duplicate value: "c"', a_pod(a_container(), a_container()), id="two of the same name"),
            pytest.param("spec.containers[0].image: Required value", a_pod({"name": "c"}), id="no image"),
            pytest.param("spec.containers[0].name: Required value", a_pod({"image": "i:1"}), id="no container name"),
            pytest.param(
                'spec.containers[0].name: Invalid value: "C": a lowercase RFC 1123 label must consist of lower case alphanumeric '
                "characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used "
                "for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')",
                a_pod(a_container("C")),
                id="bad container name",
            ),
            pytest.param(
                'spec.containers[0].resources.limits[example.com/gpu]: Invalid value: "1500m": must be an integer',
                a_pod({**a_container(), "resources": {"limits": {"example.com/gpu": "1500m"}, "requests": {"example.com/gpu": "1500m"}}}),
                id="half a device",
            ),
            pytest.param(
                'spec.resources.requests[example.com/gpu]: Unsupported value: "example.com/gpu": supported values: "cpu", "hugepages-", '
                '"memory"',
                a_pod(resources={"requests": {"example.com/gpu": "1"}}),
                id="pod level of another resource",
            ),
            pytest.param(
                'spec.containers[0].resizePolicy[1]: Duplicate value: "cpu"',
                a_pod({**a_container(), "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}] * 2}),
                id="two policies for one resource",
            ),
            pytest.param(
                'spec.containers[0].resizePolicy: Unsupported value: "Never": supported values: "NotRequired", "RestartContainer"',
                a_pod({**a_container(), "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "Never"}]}),
                id="unknown policy",
            ),
            pytest.param(
                'spec.restartPolicy: Unsupported value: "Maybe": supported values: "Always", "OnFailure", "Never"',
                a_pod(restartPolicy="Maybe"),
                id="restart policy",
            ),
            pytest.param(
                'spec.containers[0].resizePolicy: Unsupported value: "disk": supported values: "cpu", "memory"',
                a_pod({**a_container(), "resizePolicy": [{"resourceName": "disk", "restartPolicy": "NotRequired"}]}),
                id="resize policy of another resource",
            ),
            pytest.param(
                "spec.containers[0].resizePolicy: Invalid value: \"RestartContainer\": must be 'NotRequired' when pod `restartPolicy` "
                "is 'Never'",
                a_pod(
                    {**a_container(), "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]},
                    restartPolicy="Never",
                ),
                id="restart on resize of a pod that never restarts",
            ),
            pytest.param(
                'spec.resources.requests[cpu]: Invalid value: "1": must be greater than or equal to aggregate container requests of 2',
                a_pod(a_container(requests=amounts("2")), resources={"requests": amounts("1")}),
                id="pod level below the containers",
            ),
        ],
    )
    def test_a_broken_rule(self, line, pod):
        error = refusal(admit_create, pod)
        assert (error.code, error.reason) == (422, "Invalid")
        assert line in [f"{cause['field']}: {cause['message']}" for cause in error.causes]

    def test_several_broken_rules_are_listed_in_order(self):
        error = refusal(admit_create, a_pod({"name": "c"}, {"name": "c", "image": "i:1"}))
        assert error.message == (
            'Pod "p" is invalid: [spec.containers[0].image: Required value, spec.containers[1].name: Duplicate value: "c"]'
        )

    def test_a_name_is_required(self):
        error = refusal(admit_create, {**a_pod(), "metadata": {}})
        assert error.message == 'Pod "" is invalid: metadata.name: Required value: name or generateName is required'

    def test_restart_on_resize_of_an_init_container_is_refused_from_1_36(self):
        init = {**a_container("i"), "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]}
        pod = a_pod(initContainers=[init])
        admit_create(pod, profile=PROFILES["1.35"])
        assert "must not be set to 'RestartContainer' for non-sidecar initContainers" in refusal(admit_create, pod).message


class TestUpdate:
    @pytest.fixture
    def stored(self):
        return admit_create(a_pod(a_container(requests=amounts("10m"))))

    @staticmethod
    def changed(pod, **spec):
        new = copy.deepcopy(pod)
        new["spec"].update(spec)
        return new

    def test_resources_are_refused_with_the_recorded_diff(self):
        step = next(s for s in STEPS if s["note"] == "resources through the main endpoint")
        old = admit_create(recorded("POST", "/api/v1/namespaces/default/pods")["body"])
        new = copy.deepcopy(old)
        new["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "20m"
        assert refusal(validate_pod_update, old, new).to_json() == step["response"]["body"]

    def test_an_image_change_raises_the_generation(self, stored):
        new = copy.deepcopy(stored)
        new["spec"]["containers"][0]["image"] = "registry.test/app:2"
        assert admit_update(stored, new)["metadata"]["generation"] == 2

    def test_a_label_change_does_not(self, stored):
        new = copy.deepcopy(stored)
        new["metadata"]["labels"] = {"a": "b"}
        updated = admit_update(stored, new)
        assert (updated["metadata"]["generation"], updated["metadata"]["labels"]) == (1, {"a": "b"})

    def test_the_status_is_not_written_here(self, stored):
        new = copy.deepcopy(stored)
        new["status"]["phase"] = "Failed"
        assert admit_update(stored, new)["status"] == stored["status"]

    def test_a_replaced_pod_keeps_its_priority(self):
        stored = admit_create(a_pod(priority=7))
        assert admit_update(stored, a_pod())["spec"]["priority"] == 7

    @pytest.mark.parametrize(
        "spec",
        [
            {"nodeName": "n2"},
            {"terminationGracePeriodSeconds": 1},
            {"resources": {"limits": {"cpu": "1"}}},
            {"hostNetwork": True},
        ],
        ids=lambda spec: next(iter(spec)),
    )
    def test_other_fields_may_not_change(self, stored, spec):
        error = refusal(admit_update, stored, self.changed(stored, **spec))
        assert error.code == 422
        assert "pod updates may not change fields other than `spec.containers[*].image`" in error.message
        assert "\n+" in error.message

    def test_containers_may_not_be_added(self, stored):
        new = self.changed(stored, containers=[*stored["spec"]["containers"], a_container("d")])
        assert refusal(admit_update, stored, new).message == (
            'Pod "p" is invalid: spec.containers: Forbidden: pod updates may not add or remove containers'
        )

    def test_tolerations_may_be_added_and_not_removed(self, stored):
        extra = {"key": "k", "operator": "Exists"}
        tolerations = stored["spec"]["tolerations"]
        admit_update(stored, self.changed(stored, tolerations=[*tolerations, extra]))
        with_extra = admit_update(stored, self.changed(stored, tolerations=[*tolerations, extra]))
        assert "existing toleration can not be modified" in refusal(admit_update, with_extra, stored).message

    def test_scheduling_gates_may_be_lifted(self):
        stored = admit_create(a_pod(schedulingGates=[{"name": "wait"}]))
        assert admit_update(stored, self.changed(stored, schedulingGates=[]))["metadata"]["generation"] == 2

    def test_a_negative_grace_period_may_become_one_second(self):
        stored = admit_create(a_pod(terminationGracePeriodSeconds=-1))
        assert admit_update(stored, self.changed(stored, terminationGracePeriodSeconds=1))

    @pytest.mark.parametrize(("old", "new", "fits"), [(None, 5, True), (5, 4, True), (5, 6, False), (5, None, False), (5, -1, False)])
    def test_the_deadline_may_only_come_closer(self, old, new, fits):
        stored = admit_create(a_pod(**({} if old is None else {"activeDeadlineSeconds": old})))
        changed = self.changed(stored, activeDeadlineSeconds=new)
        if fits:
            assert admit_update(stored, changed)["spec"]["activeDeadlineSeconds"] == new
        else:
            assert "spec.activeDeadlineSeconds: Invalid value" in refusal(admit_update, stored, changed).message
