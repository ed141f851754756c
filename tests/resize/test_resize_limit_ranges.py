"""What a namespace's LimitRanges make of a pod's targets, and that a bad one stops its namespace alone."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from resize_support import RULES, FakeClock, FakeCluster, a_container, a_pod, a_recommendation, a_vpa

from vpa_ippr.api.errors import ClusterError
from vpa_ippr.api.limit_range import LimitRange, LimitRangeItem, LimitRangeSpec
from vpa_ippr.api.meta import ObjectMeta
from vpa_ippr.api.resources import Amounts, ContainerResources, Resource, ResourceRequirements
from vpa_ippr.api.shrink import Phase
from vpa_ippr.api.vpa import ContainerPolicy
from vpa_ippr.recommend.limit_ranges import LimitBounds, NamespaceLimits
from vpa_ippr.resize.controller import Updater
from vpa_ippr.resize.ledger import Ledger, with_resize
from vpa_ippr.resize.reasons import OutcomeCode as Code
from vpa_ippr.resize.settings import Settings
from vpa_ippr.resize.targets import targets_of

MIB, GIB = 1 << 20, 1 << 30
APP = a_container(cpu="200m", memory="1Gi", cpu_limit="400m", memory_limit="2Gi")
REQUESTS_ONLY = (ContainerPolicy("*", controlled_values="RequestsOnly"),)


def of_containers(**bounds):
    return NamespaceLimits(container=LimitBounds(**bounds))


def of_pods(**bounds):
    return NamespaceLimits(pod=LimitBounds(**bounds))


def target(pod, limits, *policies, ledger=None, **recommended):
    vpa = a_vpa(a_recommendation(**(recommended or {"cpu": "1", "memory": "1Gi"})), policies=policies)
    return targets_of(pod, vpa, ledger or Ledger(), limits)[0]


@pytest.mark.parametrize(
    ("container", "limits", "policies", "cpu"),
    [
        (APP, NamespaceLimits(), (), (1000, 2000)),
        (APP, of_containers(maximum=Amounts(1200)), (), (600, 1200)),
        (APP, of_containers(minimum=Amounts(1500)), (), (1500, 3000)),
        (APP, of_pods(maximum=Amounts(1200)), (), (600, 1200)),
        (APP, of_containers(maximum=Amounts(1200)), (ContainerPolicy("app", min_allowed={"cpu": "800m"}),), (800, 1600)),
        (APP, of_containers(maximum=Amounts(1200)), REQUESTS_ONLY, (400, 400)),
        (APP, of_containers(maximum=Amounts(300)), REQUESTS_ONLY, (300, 400)),
        (APP, of_pods(maximum=Amounts(500)), REQUESTS_ONLY, (400, 400)),
        (a_container(cpu="200m", memory="1Gi"), of_containers(maximum=Amounts(800), default=Amounts(800)), (), (200, None)),
        (a_container(cpu="200m", memory="1Gi"), of_containers(maximum=Amounts(4000), default=Amounts(800)), (), (800, None)),
    ],
    ids=[
        "none",
        "the limit is at the maximum",
        "minimum",
        "pod",
        "policy wins",
        "requests only, its limit is lower",
        "requests only, the maximum is lower",
        "requests only, pod",
        "in proportion to the default limit",
        "never above the default limit",
    ],
)
def test_targets_fit_the_namespace(container, limits, policies, cpu):
    desired = target(a_pod(container), limits, *policies).desired
    assert (desired.requests.cpu_millicores, desired.limits.cpu_millicores) == cpu


def test_the_proportions_before_our_first_resize_are_those_that_count():
    limits = of_containers(maximum=Amounts(1000))
    pod = a_pod(a_container(cpu="300m", memory="1Gi", cpu_limit="700m", memory_limit="2Gi"))
    after = ContainerResources(Amounts(333, GIB), Amounts(777, 2 * GIB))
    resized = a_pod(a_container(cpu="333m", memory="1Gi", cpu_limit="777m", memory_limit="2Gi"))
    ledger = with_resize(Ledger(), pod, {"app": after}, 0.0)
    desired = target(resized, limits, ledger=ledger).desired
    assert desired.requests.cpu_millicores == 300 * 1000 // 700
    assert 1000 - 700 // 300 <= desired.limits.cpu_millicores <= 1000


def test_what_capped_a_target_is_said():
    assert target(a_pod(APP), of_containers(maximum=Amounts(1200))).capped_by == ("cpu capped to fit Max in container LimitRange",)
    assert target(a_pod(APP), of_pods(maximum=Amounts(1200))).capped_by == ("cpu capped to fit Max in pod LimitRange",)


def test_of_the_limits_in_the_spec_and_in_force_the_lower_counts_for_requests_only():
    pod = a_pod(APP)
    in_force = ResourceRequirements({"cpu": "200m", "memory": "1Gi"}, {"cpu": "300m", "memory": "3Gi"})
    statuses = [msgspec.structs.replace(status, resources=in_force) for status in pod.status.container_statuses]
    pod = msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, container_statuses=statuses))
    desired = target(pod, NamespaceLimits(), *REQUESTS_ONLY, cpu="1", memory="4Gi").desired
    assert desired.requests == Amounts(300, 2 * GIB)


def test_a_container_that_is_not_resized_takes_its_part_of_the_pod():
    side = a_container("side", cpu="500m", memory="1Gi", cpu_limit="600m", memory_limit="1Gi")
    desired = target(a_pod(APP, side), of_pods(maximum=Amounts(1600))).desired
    assert desired.limits.cpu_millicores == 1600 - 600


AMOUNT = st.integers(1, 10_000)


@given(AMOUNT, AMOUNT, AMOUNT, AMOUNT, st.integers(1, 20_000), st.integers(1, 10_000))
def test_no_target_breaks_a_maximum(request_amount, more, recommended, side_limit, container_max, pod_max):
    app = a_container(cpu=f"{request_amount}m", memory="1Gi", cpu_limit=f"{request_amount + more}m")
    side = a_container("side", cpu=f"{side_limit}m", memory="1Gi", cpu_limit=f"{side_limit}m")
    limits = NamespaceLimits(LimitBounds(maximum=Amounts(container_max)), LimitBounds(maximum=Amounts(pod_max)))
    found = target(a_pod(app, side), limits, cpu=f"{recommended}m")
    if not found.changes(Resource.CPU):
        return  # as the pod was admitted
    assert found.desired.limits.cpu_millicores <= container_max
    assert found.desired.limits.cpu_millicores + side_limit <= max(pod_max, side_limit + 1)


def a_limit_range(namespace="shop", **bounds):
    return LimitRange(ObjectMeta("bounds", namespace), LimitRangeSpec([LimitRangeItem("Container", **bounds)]))


def in_namespace(pod, namespace):
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, namespace=namespace))


def a_stage(*pods, limit_ranges, **recommended):
    clock = FakeClock()
    recommendation = a_recommendation(**(recommended or {"cpu": "1", "memory": "1Gi"}))
    vpas = tuple(in_namespace(a_vpa(recommendation), namespace) for namespace in dict.fromkeys(pod.metadata.namespace for pod in pods))
    cluster = FakeCluster(*pods, vpas=vpas, clock=clock)
    cluster.limit_ranges = list(limit_ranges)
    return cluster, Updater(cluster, clock, Settings(), RULES)


def test_a_resize_is_capped_and_its_event_says_why():
    cluster, updater = a_stage(a_pod(APP), limit_ranges=[a_limit_range(max={"cpu": "1200m"})])
    assert [outcome.code for outcome in updater.run_cycle().outcomes] == [Code.ISSUED]
    assert cluster.pod.desired("app").limits.cpu_millicores == 1200
    ((_, message),) = cluster.events
    assert message.endswith("app: cpu capped to fit Max in container LimitRange)")


def test_an_unreadable_limit_range_stops_its_namespace_alone():
    pods = (a_pod(APP), in_namespace(a_pod(APP, name="web-1"), "bank"))
    _, updater = a_stage(*pods, limit_ranges=[a_limit_range("bank", max={"cpu": "lots"})])
    outcomes = {outcome.pod.namespace: outcome for outcome in updater.run_cycle().outcomes}
    assert outcomes["shop"].code is Code.ISSUED
    assert (outcomes["bank"].code, outcomes["bank"].reason) == (Code.BAD_OBJECT, "BadQuantity")
    assert "limitrange bounds max: cannot read 'lots'" in outcomes["bank"].message
    assert len(updater.run_cycle().failures) == 1


def test_a_resize_and_a_shrink_under_way_are_followed_although_a_limit_range_cannot_be_read():
    cluster, updater = a_stage(a_pod(APP), limit_ranges=[], cpu="200m", memory="512Mi")
    assert [outcome.code for outcome in updater.run_cycle().outcomes] == [Code.SHRINK_OPENED]
    cluster.limit_ranges = [a_limit_range(max={"cpu": "lots"})]
    cluster.agent(Phase.HOLDING)
    assert [outcome.code for outcome in updater.run_cycle().outcomes] == [Code.SHRINK_PATCHED]
    assert cluster.memory_limit() == GIB


def test_limit_ranges_that_cannot_be_listed_stop_the_cycle():
    cluster, updater = a_stage(a_pod(APP), limit_ranges=[])
    cluster.failing["list_limit_ranges"] = ClusterError("limitranges: 403")
    with pytest.raises(ClusterError, match="limitranges: 403"):
        updater.run_cycle()
    assert cluster.resizes == []
