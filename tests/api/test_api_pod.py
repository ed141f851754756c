import json
from typing import Any

import msgspec
import pytest

from vpa_ippr.api.errors import QuantityError
from vpa_ippr.api.meta import ObjectKey
from vpa_ippr.api.pod import POD_LEVEL, Container, Pod, ResizePolicy
from vpa_ippr.api.resources import Amounts, ContainerResources

MIB = 1 << 20


def container(name: str, cpu: str = "100m", **more: Any) -> dict[str, Any]:
    return {"name": name, "image": "i", "resources": {"requests": {"cpu": cpu}}, **more}


def pod(**parts: Any) -> Pod:
    document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web-0", "namespace": "shop"}, **parts}
    return msgspec.json.decode(json.dumps(document).encode(), type=Pod)


def test_containers_are_found_whatever_their_kind() -> None:
    found = pod(
        spec={
            "containers": [container("app")],
            "initContainers": [container("setup"), container("proxy", restartPolicy="Always")],
        },
        status={
            "containerStatuses": [{"name": "app", "restartCount": 2}],
            "initContainerStatuses": [{"name": "proxy", "containerID": "containerd://9"}],
        },
    )
    assert [found.container(name) is not None for name in ("app", "proxy", "setup", "other")] == [True, True, True, False]
    assert [one.is_sidecar for one in found.spec.init_containers] == [False, True]
    assert found.container_status("app").restart_count == 2
    assert found.container_status("proxy").container_id == "containerd://9"
    assert found.container_status("other") is None
    assert found.key == ObjectKey("shop", "web-0")


def test_what_is_wanted_and_what_is_in_force() -> None:
    in_force = {"requests": {"cpu": "200m"}, "limits": {"memory": "64Mi"}}
    found = pod(
        spec={"containers": [container("app"), container("new")]},
        status={"containerStatuses": [{"name": "app", "resources": in_force}, {"name": "new"}]},
    )
    assert found.desired("app") == ContainerResources(Amounts(100))
    assert found.actual("app") == ContainerResources(Amounts(200), Amounts(None, 64 * MIB))
    assert (found.actual("new"), found.actual("other"), found.desired("other")) == (None, None, ContainerResources())


def test_one_bad_quantity_spoils_one_container_only() -> None:
    found = pod(spec={"containers": [container("app", "lots"), container("fine")]})
    with pytest.raises(QuantityError, match=r"^pod shop/web-0 spec\.containers\[app\]\.resources\.requests: .*'lots'"):
        found.desired("app")
    assert found.desired("fine").requests == Amounts(100)


def test_a_bad_quantity_in_the_status_is_named() -> None:
    found = pod(status={"containerStatuses": [{"name": "app", "resources": {"limits": {"cpu": "x"}}}]})
    with pytest.raises(QuantityError, match=r"status\.containerStatuses\[app\]\.resources\.limits"):
        found.actual("app")


@pytest.mark.parametrize(
    ("policies", "restarts"),
    [([], False), ([ResizePolicy("memory", "RestartContainer")], True), ([ResizePolicy("memory", "NotRequired")], False)],
    ids=["none", "restart", "not-required"],
)
def test_whether_a_resize_restarts_the_container(policies: list[ResizePolicy], restarts: bool) -> None:
    found = Container("app", resize_policy=policies)
    assert found.restarts_on_resize_of("memory") is restarts
    assert not found.restarts_on_resize_of("cpu")


def test_mirror_pods_are_known_by_their_annotation() -> None:
    assert pod(metadata={"name": "p", "annotations": {"kubernetes.io/config.mirror": "abc"}}).is_mirror
    assert not pod().is_mirror


def test_a_pod_without_a_status_decodes() -> None:
    assert pod().status.phase == ""


def test_a_pods_own_resources_are_looked_up_like_a_containers() -> None:
    limits = {"cpu": "2"}
    found = pod(
        spec={"containers": [container("app")], "resources": {"limits": limits, "requests": {"cpu": "1"}}},
        status={"resources": {"limits": {"cpu": "3"}}},
    )
    assert (found.has_pod_level, pod(spec={"containers": [container("app")], "resources": {}}).has_pod_level) == (True, False)
    assert found.desired(POD_LEVEL) == ContainerResources(Amounts(1000), Amounts(2000))
    assert found.actual(POD_LEVEL) == ContainerResources(limits=Amounts(3000))
    assert pod(spec={"containers": [container("app")]}).container(POD_LEVEL) is None


def test_a_pods_operating_system_and_claims_are_read() -> None:
    found = pod(spec={"os": {"name": "windows"}}, status={"resize": "Deferred", "nodeAllocatableResourceClaimStatuses": [{"name": "c"}]})
    assert (found.spec.os.name, found.status.resize, len(found.status.node_allocatable_resource_claim_statuses)) == (
        "windows",
        "Deferred",
        1,
    )
