"""Rules of a resize that the recorded answers do not reach, and what holds for every resize."""

import copy

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from vpa_ippr.sandbox.podamounts import same_spec
from vpa_ippr.sandbox.podresize import ResizeRequest, admit_create, admit_resize
from vpa_ippr.sandbox.podrules import admit_update, qos_class
from vpa_ippr.sandbox.status import StatusError
from vpa_ippr.sandbox.versions import PROFILES

NODE = {
    "metadata": {"name": "n1", "labels": {"kubernetes.io/os": "linux"}},
    "status": {"allocatable": {"cpu": "2", "memory": "4Gi"}},
}
INIT_FEATURE = "InPlacePodVerticalScalingInitContainers"
POD_LEVEL_FEATURE = "InPlacePodLevelResourcesVerticalScaling"
RUNNING = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}


def a_container(name="c", requests=None, limits=None, **more):
    resources = {key: value for key, value in (("requests", requests), ("limits", limits)) if value is not None}
    return {"name": name, "image": "app:1", "resources": resources, **more}


def a_pod(*containers, version="1.36", status=None, metadata=None, **spec):
    raw = {"metadata": {"name": "p", "namespace": "default", **(metadata or {})}, "spec": {"containers": list(containers), **spec}}
    pod = admit_create(raw, profile=PROFILES[version])
    pod["status"].update(status or {})
    return pod


def burstable(**options):
    return a_pod(a_container(requests={"cpu": "100m", "memory": "100Mi"}, limits={"cpu": "200m", "memory": "200Mi"}), **options)


def changed(pod, requests=None, limits=None, field="containers", index=0):
    new = copy.deepcopy(pod)
    resources = new["spec"][field][index]["resources"]
    for kind, amounts in (("requests", requests), ("limits", limits)):
        if amounts:
            resources[kind] = {**resources.get(kind, {}), **amounts}
    return new


def resize(old, new, version="1.36", **context):
    return admit_resize(ResizeRequest(old=old, new=new, profile=PROFILES[version], **context))


def refusal(old, new, version="1.36", **context):
    with pytest.raises(StatusError) as caught:
        resize(old, new, version, **context)
    return caught.value


def lines(error):
    return [f"{cause['field']}: {cause['message']}" for cause in error.causes]


class TestWhatTheNodeMustKnow:
    def test_a_running_container_without_reported_resources(self):
        pod = burstable(status={"containerStatuses": [{"name": "c", "state": RUNNING}]})
        error = refusal(pod, changed(pod, {"cpu": "120m"}))
        assert lines(error) == ["spec: Forbidden: Pod running on node without support for resize"]

    def test_only_the_first_running_container_counts(self):
        statuses = [
            {"name": "a", "state": {"waiting": {}}},
            {"name": "c", "state": RUNNING, "resources": {}},
            {"name": "d", "state": RUNNING},
        ]
        pod = burstable(status={"containerStatuses": statuses})
        assert resize(pod, changed(pod, {"cpu": "120m"}))["metadata"]["generation"] == 2

    def test_a_node_that_is_gone(self):
        pod = burstable(nodeName="n1")
        assert refusal(pod, changed(pod, {"cpu": "120m"})).message == 'pods "p" is forbidden: node "n1" not found'
        assert resize(pod, changed(pod, {"cpu": "120m"}), "1.35")

    def test_a_windows_node(self):
        pod = burstable(nodeName="n1")
        node = {"metadata": {"name": "n1", "labels": {"kubernetes.io/os": "windows"}}, "status": NODE["status"]}
        error = refusal(pod, changed(pod, {"cpu": "120m"}), node=node)
        assert error.message == 'pods "p" is forbidden: pod resize is only supported on linux nodes, node "n1" is "windows"'
        assert error.causes == [{"reason": "UnsupportedPlatform"}]

    def test_overhead_counts_against_the_node(self):
        pod = burstable(nodeName="n1", overhead={"cpu": "1"})
        error = refusal(pod, changed(pod, {"cpu": "1500m"}, {"cpu": "1800m"}), node=NODE)
        assert error.message.endswith("cpu, requested: 2500, allocatable: 2000")

    def test_a_resize_to_the_same_is_not_checked_against_the_node(self):
        pod = burstable(nodeName="n1")
        small = {**NODE, "status": {"allocatable": {"cpu": "1m", "memory": "1"}}}
        assert resize(pod, copy.deepcopy(pod), node=small) == pod


class TestInitContainers:
    INIT = a_container("i", requests={"cpu": "50m"}, limits={"cpu": "100m"})

    def test_resized_where_the_node_declares_it(self):
        pod = burstable(nodeName="n1", initContainers=[self.INIT])
        node = {**NODE, "status": {**NODE["status"], "declaredFeatures": [INIT_FEATURE]}}
        resized = resize(pod, changed(pod, {"cpu": "70m"}, field="initContainers"), node=node)
        assert resized["spec"]["initContainers"][0]["resources"]["requests"] == {"cpu": "70m"}

    def test_not_with_restart_policy(self):
        pod = burstable(initContainers=[self.INIT])
        pod["spec"]["initContainers"][0]["resizePolicy"] = [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]
        error = refusal(pod, changed(pod, {"cpu": "70m"}, field="initContainers"))
        assert lines(error) == [
            "spec.initContainers[0]: Forbidden: non-sidecar init containers with a resize policy of RestartContainer cannot be resized"
        ]

    @pytest.mark.parametrize(
        ("version", "line"),
        [
            ("1.33", "spec: Forbidden: only cpu and memory resources for sidecar containers are mutable"),
            ("1.36", "spec.initContainers[0]: Forbidden: only cpu and memory resources for init or sidecar containers are mutable"),
        ],
    )
    def test_other_resources_of_a_sidecar(self, version, line):
        sidecar = a_container("s", requests={"cpu": "50m", "ephemeral-storage": "1Gi"}, restartPolicy="Always")
        pod = burstable(version=version, initContainers=[sidecar])
        error = refusal(pod, changed(pod, {"ephemeral-storage": "2Gi"}, field="initContainers"), version)
        assert lines(error) == [line]

    def test_renamed(self):
        pod = burstable(initContainers=[self.INIT])
        new = copy.deepcopy(pod)
        new["spec"]["initContainers"][0]["name"] = "j"
        assert lines(refusal(pod, new)) == [
            "spec.initContainers[0].name: Forbidden: initContainers may not be renamed or reordered on resize"
        ]


LEVEL = {"requests": {"cpu": "100m", "memory": "100Mi"}, "limits": {"cpu": "200m", "memory": "200Mi"}}


class TestPodLevel:
    @pytest.fixture
    def pod(self):
        return a_pod(a_container(), resources=LEVEL)

    @staticmethod
    def with_level(pod, level):
        new = copy.deepcopy(pod)
        new["spec"].pop("resources")
        if level:
            new["spec"]["resources"] = level
        return new

    def test_resized_where_the_node_declares_it(self, pod):
        pod["spec"]["nodeName"] = "n1"
        node = {**NODE, "status": {**NODE["status"], "declaredFeatures": [POD_LEVEL_FEATURE]}}
        level = {**LEVEL, "requests": {"cpu": "150m", "memory": "100Mi"}}
        assert resize(pod, self.with_level(pod, level), node=node)["spec"]["resources"] == level

    def test_1_34_refuses_any_resize_with_one_error(self, pod):
        error = refusal(pod, changed(pod, {"cpu": "1"}, {"cpu": "1m"}), "1.34")
        assert lines(error) == ["[]: Forbidden: pods with pod-level resources cannot be resized"]

    @pytest.mark.parametrize("kind", ["requests", "limits"])
    def test_an_amount_cannot_be_removed(self, pod, kind):
        level = {**LEVEL, kind: {"cpu": LEVEL[kind]["cpu"]}}
        if kind == "requests":  # the missing request would come back from the limit
            level["limits"] = {"cpu": "200m"}
        error = refusal(pod, self.with_level(pod, level))
        assert f"spec.resources.{kind}: Forbidden: pod-level resource {kind} cannot be removed" in lines(error)

    def test_all_cannot_be_removed(self, pod):
        assert "spec.resources: Forbidden: pod-level resources cannot be removed" in lines(refusal(pod, self.with_level(pod, None)))


class TestOtherResources:
    def test_the_old_hole_of_a_list_that_was_absent(self):
        pod = a_pod(a_container(requests={"cpu": "10m"}))
        new = changed(pod, {}, {"cpu": "20m", "ephemeral-storage": "1Gi"})
        new["spec"]["containers"][0]["resources"]["requests"]["ephemeral-storage"] = "1Gi"
        # The requests were there, so the new one among them is seen; the limits were not.
        assert refusal(pod, new, "1.34").code == 422
        empty = a_pod(a_container(requests={"cpu": "10m", "ephemeral-storage": "1Gi"}))
        only_limits = changed(empty, {}, {"ephemeral-storage": "1Gi"})
        assert resize(empty, only_limits, "1.34")["spec"]["containers"][0]["resources"]["limits"] == {"ephemeral-storage": "1Gi"}
        assert lines(refusal(empty, only_limits, "1.35")) == ["spec: Forbidden: only cpu and memory resources are mutable"]

    def test_a_container_with_claims_cannot_be_resized(self):
        pod = burstable()
        pod["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
        assert "spec: Forbidden: only cpu and memory resources are mutable" in lines(refusal(pod, changed(pod, {"cpu": "120m"})))

    def test_the_resize_policy_is_immutable(self):
        pod = burstable()
        new = copy.deepcopy(pod)
        new["spec"]["containers"][0]["resizePolicy"] = [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]
        assert lines(refusal(pod, new)) == ["spec: Forbidden: only cpu and memory resources are mutable"]

    def test_device_claims_block_1_36_only(self):
        pod = burstable(status={"nodeAllocatableResourceClaimStatuses": [{"resourceClaimName": "x"}]})
        new = changed(pod, {"cpu": "120m"})
        assert lines(refusal(pod, new)) == ["spec: Forbidden: pods with node allocatable resource claims cannot be resized"]
        assert resize(pod, new, "1.37")


MAX = {"metadata": {"name": "lr"}, "spec": {"limits": [{"type": "Container", "max": {"cpu": "500m"}}]}}


class TestLimitRangesAndQuotas:
    def test_limit_range_spares_a_pod_that_is_being_deleted(self):
        pod = burstable()
        new = changed(pod, {"cpu": "600m"}, {"cpu": "900m"})
        assert refusal(pod, new, limit_ranges=[MAX]).code == 403
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        assert resize(pod, new, limit_ranges=[MAX])

    def test_validation_comes_before_admission(self):
        pod = burstable()
        assert refusal(pod, changed(pod, {"cpu": "600m"}), limit_ranges=[MAX]).code == 422

    def test_a_limit_range_made_later_adds_its_defaults(self):
        pod = a_pod(a_container(requests={"cpu": "100m", "memory": "100Mi"}))
        later = {"metadata": {"name": "lr"}, "spec": {"limits": [{"type": "Container", "default": {"cpu": "1"}}]}}
        resized = resize(pod, changed(pod, {"cpu": "120m"}), limit_ranges=[later])
        assert resized["spec"]["containers"][0]["resources"] == {
            "requests": {"cpu": "120m", "memory": "100Mi"},
            "limits": {"cpu": "1"},
        }
        assert resized["metadata"] == {**pod["metadata"], "generation": 2}

    @pytest.mark.parametrize(
        ("cpu", "memory", "detail"),
        [
            ("600m", "400Mi", "requested: cpu=300m, used: cpu=600m, limited: cpu=800m"),
            ("250m", "750Mi", "requested: memory=450Mi, used: memory=600Mi, limited: memory=800Mi"),
            ("600m", "750Mi", "requested: cpu=300m,memory=450Mi, used: cpu=600m,memory=600Mi, limited: cpu=800m,memory=800Mi"),
            ("350m", "300Mi", None),
            ("400m", "400Mi", None),
        ],
    )
    def test_upstream_quota_cases(self, cpu, memory, detail):
        pod = a_pod(a_container(requests={"cpu": "300m", "memory": "300Mi"}, limits={"cpu": "300m", "memory": "300Mi"}))
        hard = {"cpu": "800m", "memory": "800Mi"}
        quota = {"metadata": {"name": "q"}, "spec": {"hard": hard}, "status": {"hard": hard, "used": {"cpu": "600m", "memory": "600Mi"}}}
        wanted = {"cpu": cpu, "memory": memory}
        if detail is None:
            assert resize(pod, changed(pod, wanted, wanted), quotas=[quota])
        else:
            error = refusal(pod, changed(pod, wanted, wanted), quotas=[quota])
            assert error.message == f'pods "p" is forbidden: exceeded quota: q, {detail}'


# Objects that are not what they should be


def paths(value, above=()):
    """The path of everything inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*above, key)
        yield from paths(item, (*above, key))


FULL_POD = {
    "metadata": {"name": "p", "namespace": "d", "labels": {"a": "b"}, "annotations": {"c": "d"}},
    "spec": {
        "containers": [
            a_container(
                requests={"cpu": "1"},
                limits={"cpu": "2"},
                resizePolicy=[{"resourceName": "memory", "restartPolicy": "NotRequired"}],
                ports=[{"containerPort": 80}],
            )
        ],
        "initContainers": [a_container("i", requests={"cpu": "1"}, limits={"memory": "1Gi"}, restartPolicy="Always")],
        "tolerations": [{"key": "k", "operator": "Exists"}],
        "overhead": {"cpu": "1m"},
        "resources": {"limits": {"cpu": "4"}},
        "os": {"name": "linux"},
        "nodeName": "n1",
        "activeDeadlineSeconds": 5,
    },
}
RANGE = {"metadata": {"name": "lr"}, "spec": {"limits": [{"type": "Container", "default": {"cpu": "3"}, "max": {"cpu": "9"}}]}}
QUOTA = {"metadata": {"name": "q"}, "spec": {"hard": {"limits.cpu": "50", "pods": "5"}}}


@pytest.mark.parametrize("instead", [None, 7, {"x": {}}], ids=str)
@pytest.mark.parametrize("path", list(paths(FULL_POD)), ids=lambda path: ".".join(map(str, path)))
def test_a_damaged_object_is_refused_with_a_status_or_accepted(path, instead):
    stored = admit_create(FULL_POD, [RANGE], [QUOTA])
    damaged = copy.deepcopy(FULL_POD)
    *way, last = path
    holder = damaged
    for step in way:
        holder = holder[step]
    if instead is None:
        del holder[last]
    else:
        holder[last] = instead
    actions = (
        lambda: admit_create(damaged, [RANGE], [QUOTA]),
        lambda: admit_update(stored, damaged),
        lambda: resize(stored, damaged, node=NODE, limit_ranges=[RANGE], quotas=[QUOTA]),
    )
    assert {code_of(action) for action in actions} <= {200, 400, 403, 422}


def code_of(action):
    try:
        action()
    except StatusError as error:
        return error.code
    return 200


# What holds for every resize

CPUS = st.sampled_from(["10m", "100m", "0.1", "1", "1500m"])
MEMORIES = st.sampled_from(["64Mi", "67108864", "1Gi", "128974848", "2Gi"])
AMOUNTS = st.fixed_dictionaries({}, optional={"cpu": CPUS, "memory": MEMORIES})
CONTAINERS = st.builds(lambda r, m: a_container(requests=r, limits=m), AMOUNTS, AMOUNTS)
VERSIONS = st.sampled_from(sorted(PROFILES))


@st.composite
def pods(draw, version):
    containers = draw(st.lists(CONTAINERS, min_size=1, max_size=3))
    spec = {"containers": [{**c, "name": f"c{i}"} for i, c in enumerate(containers)]}
    if draw(st.booleans()):
        spec["initContainers"] = [{**draw(CONTAINERS), "name": "side", "restartPolicy": "Always"}]
    try:
        return admit_create({"metadata": {"name": "p", "namespace": "d", "labels": {"a": "b"}}, "spec": spec}, profile=PROFILES[version])
    except StatusError:
        assume(False)


@st.composite
def requests_to_resize(draw):
    """A pod and the same pod with other resources, or other anything, and the version of its API server."""
    version = draw(VERSIONS)
    old = draw(pods(version))
    new = copy.deepcopy(old)
    for container in [*new["spec"]["containers"], *new["spec"].get("initContainers", [])]:
        if draw(st.booleans()):
            resources = container["resources"]
            container["resources"] = {kind: {**resources.get(kind, {}), **draw(AMOUNTS)} for kind in ("requests", "limits")}
        if draw(st.booleans()):
            container["image"] = "other:2"
    if draw(st.booleans()):
        new["metadata"]["labels"] = {"x": "y"}
        new["spec"]["nodeName"] = "elsewhere"
        new["status"] = {"phase": "Failed"}
    return old, new, version


def without_resources(pod, version):
    stripped = copy.deepcopy(pod)
    stripped["metadata"].pop("generation", None)
    stripped["status"].pop("resize", None)
    for container in [*stripped["spec"]["containers"], *stripped["spec"].get("initContainers", [])]:
        container.pop("resources")
        if PROFILES[version].resize_policy_defaulted:
            container.pop("resizePolicy", None)  # that of a resource that gets its first request
    return stripped


@settings(max_examples=50)
@given(st.data(), VERSIONS)
def test_a_resize_to_the_same_spec_changes_nothing(data, version):
    pod = data.draw(pods(version))
    assert resize(pod, copy.deepcopy(pod), version) == pod


@settings(max_examples=50)
@given(requests_to_resize())
def test_an_admitted_resize_changes_resources_only_and_never_the_qos_class(request_):
    old, new, version = request_
    try:
        resized = resize(old, new, version)
    except StatusError:
        return
    assert without_resources(resized, version) == without_resources(old, version)
    assert qos_class(resized) == old["status"]["qosClass"]
    for was, now in zip(old["spec"]["containers"], resized["spec"]["containers"], strict=True):
        for kind in ("requests", "limits"):
            assert was["resources"].get(kind, {}).keys() <= now["resources"].get(kind, {}).keys()


@settings(max_examples=50)
@given(requests_to_resize())
def test_the_generation_rises_exactly_when_the_spec_means_something_else(request_):
    old, new, version = request_
    try:
        resized = resize(old, new, version)
    except StatusError:
        return
    if not PROFILES[version].pod_generation:
        assert "generation" not in resized["metadata"]
        return
    rise = resized["metadata"]["generation"] - old["metadata"]["generation"]
    assert rise == (0 if same_spec(old, resized) else 1)


@settings(max_examples=50)
@given(requests_to_resize())
def test_an_admitted_resize_can_be_sent_again(request_):
    old, new, version = request_
    try:
        resized = resize(old, new, version)
    except StatusError:
        return
    assert resize(resized, new, version) == resized
