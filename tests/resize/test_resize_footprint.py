"""What a pod takes, in each way of counting; the last tests compare with the sandbox, which counts on its own."""

import msgspec
import pytest
from fit_support import MIB, amounts_of, as_json, pods_of_all_kinds, quantities, reported, sized, to
from hypothesis import given
from resize_support import a_container, a_pod

from vpa_ippr.api.errors import QuantityError
from vpa_ippr.api.pod import POD_LEVEL
from vpa_ippr.api.resources import Amounts, ContainerResources, ResourceRequirements
from vpa_ippr.resize.footprint import Wish, footprint, footprint_after, is_infeasible
from vpa_ippr.sandbox.podamounts import allocated_requests, effective_limits, effective_requests, pod_requests, totals


@pytest.mark.parametrize(
    ("pod", "desired", "allocated", "held", "counted"),
    [
        (sized(), (100, 100), (100, 100), (100, 100), (100, 100)),
        (sized(desired=(300, 50), allocated=(100, 100)), (300, 50), (100, 100), (100, 100), (300, 100)),
        (sized(desired=(100, 100), allocated=(100, 100), actual=(50, 400)), (100, 100), (100, 100), (100, 400), (100, 400)),
        (
            sized(desired=(300, 900), allocated=(200, 100), actual=(100, 200), pending="Deferred"),
            (300, 900),
            (200, 100),
            (200, 200),
            (300, 900),
        ),
        (
            sized(desired=(300, 900), allocated=(200, 100), actual=(100, 200), pending="Infeasible"),
            (300, 900),
            (200, 100),
            (200, 200),
            (200, 200),
        ),
    ],
    ids=["settled", "asked for", "shrinking", "deferred", "infeasible"],
)
def test_one_container(pod, desired, allocated, held, counted):
    found = footprint(pod)
    assert (found.desired, found.allocated) == (amounts_of(desired), amounts_of(allocated))
    assert (found.held, found.counted) == (amounts_of(held), amounts_of(counted))


@pytest.mark.parametrize(
    ("status", "allocated"),
    [
        ((None, None), (100, 100)),
        ((None, ResourceRequirements(quantities((70, 80)))), (70, 80)),
        ((quantities((60, 90)), ResourceRequirements(quantities((70, 80)))), (60, 90)),
    ],
    ids=["not started", "kubelet without allocatedResources", "reported"],
)
def test_allocated_is_read_from_the_best_source_there_is(status, allocated):
    assert footprint(reported(sized(), app=status)).allocated == amounts_of(allocated)


def test_a_wish_changes_what_is_desired_and_nothing_that_is_reported():
    pod = reported(sized(desired=(100, 100)), app=(None, None))
    found = footprint_after(to(pod, (500, 50)))
    assert (found.desired, found.allocated, found.held) == (amounts_of((500, 50)), amounts_of((100, 100)), amounts_of((100, 100)))


def test_a_new_wish_counts_where_the_old_spec_was_infeasible():
    pod = sized(desired=(900, 100), allocated=(100, 100), pending="Infeasible")
    assert is_infeasible(pod)
    assert footprint(pod).counted == amounts_of((100, 100))
    assert footprint_after(to(pod, (200, 100))).counted == amounts_of((200, 100))


def test_a_kubelet_of_1_32_says_infeasible_in_the_status():
    pod = sized()
    assert is_infeasible(msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, resize="Infeasible")))
    assert not is_infeasible(msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, resize="Deferred")))


@pytest.mark.parametrize(
    ("init", "cpu"),
    [
        ((), 300),
        ((("setup", None, 200),), 300),
        ((("setup", None, 500),), 500),
        ((("proxy", "Always", 50),), 350),
        ((("proxy", "Always", 50), ("setup", None, 500)), 550),
        ((("setup", None, 500), ("proxy", "Always", 50)), 500),
    ],
    ids=["none", "small", "large", "sidecar", "large after a sidecar", "large before a sidecar"],
)
def test_init_containers_and_sidecars(init, cpu):
    containers = tuple(a_container(name, cpu=f"{amount}m", restart_policy=policy) for name, policy, amount in init)
    pod = a_pod(a_container("one", cpu="100m"), a_container("two", cpu="200m"), init=containers)
    found = footprint(pod)
    assert [each.cpu_millicores for each in (found.desired, found.allocated, found.held, found.counted)] == [cpu] * 4


def test_overhead_comes_on_top_of_requests_and_of_limits_that_there_are():
    pod = sized(overhead=quantities((10, 20)))
    assert (footprint(pod).desired, footprint(pod).counted_limits) == (amounts_of((110, 120)), Amounts())
    limited = sized(overhead=quantities((10, 20)), limits=(200, 200))
    assert footprint(limited).counted_limits == amounts_of((210, 220))


def test_pod_level_amounts_stand_for_the_sum_where_they_are_set():
    level = ResourceRequirements({"cpu": "400m"}, {"cpu": "800m"})
    pod = sized(desired=(100, 100), limits=(200, 200), resources=level)
    assert footprint(pod).desired == Amounts(400, 100 * MIB)
    assert footprint(pod).counted_limits == Amounts(800, 200 * MIB)
    wish = Wish(pod, {POD_LEVEL: ContainerResources(Amounts(600), Amounts(900))})
    assert footprint_after(wish).desired == Amounts(600, 100 * MIB)
    assert footprint_after(wish).allocated == Amounts(400, 100 * MIB)


def test_a_pod_level_status_counts_only_beside_a_pod_level_spec():
    pod = sized(desired=(100, 100))
    status = msgspec.structs.replace(pod.status, resources=ResourceRequirements({"cpu": "700m"}), allocated_resources={"cpu": "800m"})
    assert footprint(msgspec.structs.replace(pod, status=status)).held == amounts_of((100, 100))
    spec = msgspec.structs.replace(pod.spec, resources=ResourceRequirements({"cpu": "400m"}))
    found = footprint(msgspec.structs.replace(pod, spec=spec, status=status))
    assert (found.desired.cpu_millicores, found.allocated.cpu_millicores, found.counted.cpu_millicores) == (400, 800, 800)


@pytest.mark.parametrize("part", ["spec", "allocated", "overhead"])
def test_an_amount_that_cannot_be_read_is_named(part):
    pod = {
        "spec": a_pod(a_container(cpu="lots"), qos="Burstable"),
        "allocated": reported(sized(), app=({"cpu": "lots"}, None)),
        "overhead": sized(overhead={"cpu": "lots"}),
    }[part]
    with pytest.raises(QuantityError, match=rf"(?i)^pod shop/web-0 .*{part}.*'lots'"):
        footprint(pod)


@given(pods_of_all_kinds())
def test_the_sandbox_counts_the_same(pod):
    found, document = footprint(pod), as_json(pod)
    assert numbers(found.desired) == tuple(totals(pod_requests(document)))
    assert numbers(found.allocated) == tuple(totals(allocated_requests(document)))
    assert numbers(found.counted) == tuple(totals(effective_requests(document)))
    if not pod.has_pod_level:  # the sandbox has no actual limits of the pod level
        assert numbers(found.counted_limits) == tuple(totals(effective_limits(document)))


@given(pods_of_all_kinds())
def test_what_is_held_lies_between_allocated_and_counted(pod):
    found = footprint(pod)
    assert all(a <= h <= c for a, h, c in zip(numbers(found.allocated), numbers(found.held), numbers(found.counted), strict=True))


def numbers(amounts):
    return amounts.cpu_millicores or 0, amounts.memory_bytes or 0
