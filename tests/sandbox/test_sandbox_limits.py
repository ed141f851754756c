import copy

import pytest

from vpa_ippr.sandbox.limits import apply_limit_ranges, check_limit_ranges, default_limit_range
from vpa_ippr.sandbox.podresize import admit_create
from vpa_ippr.sandbox.status import StatusError


def a_range(*items):
    return {"metadata": {"name": "lr"}, "spec": {"limits": list(items)}}


def for_containers(**bounds):
    return a_range({"type": "Container", **bounds})


def a_container(name="c", requests=None, limits=None):
    return {"name": name, "image": "app:1", "resources": {"requests": requests or {}, "limits": limits or {}}}


def a_pod(*containers, **spec):
    return {"metadata": {"name": "p"}, "spec": {"containers": list(containers), **spec}}


def violations(pod, *limit_ranges):
    with pytest.raises(StatusError) as caught:
        check_limit_ranges(pod, limit_ranges)
    assert caught.value.code == 403
    return caught.value.message.removeprefix('pods "p" is forbidden: ')


class TestDefaults:
    def test_the_limit_range_itself_is_completed(self):
        item = {"type": "Container", "max": {"cpu": "2", "memory": "2Gi"}, "min": {"cpu": "1m", "pods": "1"}, "default": {"cpu": "1"}}
        filled = default_limit_range(a_range(item))["spec"]["limits"][0]
        assert filled["default"] == {"cpu": "1", "memory": "2Gi"}
        assert filled["defaultRequest"] == {"cpu": "1", "memory": "2Gi", "pods": "1"}

    def test_a_range_for_pods_has_no_defaults(self):
        limit_range = a_range({"type": "Pod", "max": {"cpu": "2"}})
        assert default_limit_range(limit_range) == limit_range

    def test_what_is_missing_is_set_and_said(self):
        pod = a_pod(a_container(requests={"cpu": "7m"}), initContainers=[a_container("i", limits={"cpu": "9m"})])
        before = copy.deepcopy(pod)
        mutated = apply_limit_ranges(pod, [for_containers(default={"cpu": "1", "memory": "1Gi"}, defaultRequest={"cpu": "0.5"})])
        assert pod == before
        assert mutated["spec"]["containers"][0]["resources"] == {
            "requests": {"cpu": "7m", "memory": "1Gi"},
            "limits": {"cpu": "1", "memory": "1Gi"},
        }
        assert mutated["spec"]["initContainers"][0]["resources"] == {
            "requests": {"cpu": "500m", "memory": "1Gi"},
            "limits": {"cpu": "9m", "memory": "1Gi"},
        }
        assert mutated["metadata"]["annotations"]["kubernetes.io/limit-ranger"] == (
            "LimitRanger plugin set: memory request for container c; cpu, memory limit for container c; "
            "cpu, memory request for init container i; memory limit for init container i"
        )

    def test_nothing_missing_nothing_said(self):
        full = {"cpu": "1", "memory": "1Gi"}
        pod = a_pod(a_container(requests=full, limits=full))
        assert apply_limit_ranges(pod, [for_containers(default=full)]) == pod

    def test_defaults_can_decide_the_qos_class(self):
        default = {"cpu": "1", "memory": "1Gi"}
        assert admit_create(a_pod(a_container()), [for_containers(default=default)])["status"]["qosClass"] == "Guaranteed"


@pytest.mark.parametrize(
    ("bounds", "container", "expected"),
    [
        ({"max": {"cpu": "1"}}, a_container(), "maximum cpu usage per Container is 1.  No limit is specified"),
        ({"max": {"cpu": "1"}}, a_container(limits={"cpu": "1001m"}), "maximum cpu usage per Container is 1, but limit is 1001m"),
        (
            {"max": {"cpu": "1"}},
            a_container(limits={"cpu": "1"}, requests={"cpu": "2"}),
            "maximum cpu usage per Container is 1, but request is 2",
        ),
        ({"min": {"memory": "1Mi"}}, a_container(), "minimum memory usage per Container is 1Mi.  No request is specified"),
        (
            {"min": {"memory": "1Mi"}},
            a_container(requests={"memory": "1Mi"}, limits={"memory": "1"}),
            "minimum memory usage per Container is 1Mi, but limit is 1",
        ),
        (
            {"maxLimitRequestRatio": {"cpu": "2"}},
            a_container(requests={"cpu": "100m"}, limits={"cpu": "250m"}),
            "cpu max limit to request ratio per Container is 2, but provided ratio is 2.500000",
        ),
        (
            {"maxLimitRequestRatio": {"cpu": "2"}},
            a_container(limits={"cpu": "1"}),
            "cpu max limit to request ratio per Container is 2, but no request is specified or request is 0",
        ),
        (
            {"maxLimitRequestRatio": {"cpu": "2"}},
            a_container(requests={"cpu": "1"}),
            "cpu max limit to request ratio per Container is 2, but no limit is specified or limit is 0",
        ),
        (
            {"min": {"cpu": "1"}, "max": {"memory": "1Gi"}},
            a_container(requests={"cpu": "1m"}, limits={"memory": "2Gi"}),
            "[minimum cpu usage per Container is 1, but request is 1m, maximum memory usage per Container is 1Gi, but limit is 2Gi]",
        ),
    ],
)
def test_container_bounds(bounds, container, expected):
    assert violations(a_pod(container), for_containers(**bounds)) == expected


def test_pod_bounds_count_all_containers():
    half = a_container(requests={"cpu": "600m"}, limits={"cpu": "600m"})
    bound = a_range({"type": "Pod", "max": {"cpu": "1"}})
    check_limit_ranges(a_pod(half), [bound])
    assert violations(a_pod(half, {**half, "name": "d"}), bound) == "maximum cpu usage per Pod is 1, but limit is 1200m"


def test_a_violation_by_several_containers_is_said_once():
    pod = a_pod(a_container(limits={"cpu": "2"}), a_container("d", limits={"cpu": "2"}))
    assert violations(pod, for_containers(max={"cpu": "1"})) == "maximum cpu usage per Container is 1, but limit is 2"


def test_only_the_first_violated_range_speaks():
    pod = a_pod(a_container(limits={"cpu": "2", "memory": "2"}))
    ranges = (for_containers(max={"cpu": "3"}), for_containers(max={"memory": "1"}), for_containers(max={"cpu": "1"}))
    assert violations(pod, *ranges) == "maximum memory usage per Container is 1, but limit is 2"


def test_at_the_bound_is_inside():
    pod = a_pod(a_container(requests={"cpu": "1"}, limits={"cpu": "2"}))
    check_limit_ranges(pod, [for_containers(min={"cpu": "1000m"}, max={"cpu": "2"}, maxLimitRequestRatio={"cpu": "2"})])
