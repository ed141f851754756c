"""Room on a node, by each count."""

import pytest
from fit_support import MIB, a_node, amounts_of, pods_of_one_container, sized
from hypothesis import given
from hypothesis import strategies as st

from vpa_ippr.api.cluster import Node
from vpa_ippr.api.meta import ObjectKey
from vpa_ippr.api.resources import Amounts, Resource
from vpa_ippr.resize.footprint import footprint
from vpa_ippr.resize.node_fit import HELD, KUBELET, SCHEDULER, NodeRoom, Shortage

SHRINKING = sized("shrinking", (100, 100), allocated=(100, 100), actual=(100, 500))
WAITING = sized("waiting", (700, 100), allocated=(200, 100), pending="Deferred")
INFEASIBLE = sized("infeasible", (900, 100), allocated=(50, 100), pending="Infeasible")


def room(*pods, node=None, count=HELD):
    return NodeRoom.of(node or a_node(), {pod.key: footprint(pod) for pod in pods}, count)


def key(name):
    return ObjectKey("shop", name)


@pytest.mark.parametrize(
    ("count", "free"),
    [(KUBELET, (650, 700)), (SCHEDULER, (150, 300)), (HELD, (650, 300))],
    ids=["kubelet", "scheduler", "held"],
)
def test_what_is_free(count, free):
    assert room(SHRINKING, WAITING, INFEASIBLE, count=count).free == amounts_of(free)


@pytest.mark.parametrize(
    ("requests", "short"),
    [
        ((900, 900), ()),
        ((901, 900), ((Resource.CPU, 901, 900),)),
        ((901, 901), ((Resource.CPU, 901, 900), (Resource.MEMORY, 901 * MIB, 900 * MIB))),
        ((0, 901), ((Resource.MEMORY, 901 * MIB, 900 * MIB),)),
    ],
    ids=["just fits", "cpu", "both", "memory alone"],
)
def test_a_pod_has_what_the_others_leave(requests, short):
    found = room(sized("web-0", (300, 300)), sized("web-1", (100, 100))).shortages(key("web-0"), amounts_of(requests))
    assert found == tuple(Shortage(*each) for each in short)


def test_what_a_pod_does_not_request_is_not_looked_at_however_full_the_node_is():
    overfull = room(sized("web-0", (0, 0)), sized("web-1", (2000, 100)))
    assert overfull.shortages(key("web-0"), Amounts(None, 900 * MIB)) == ()
    assert overfull.shortages(key("web-0"), amounts_of((1, 900))) == (Shortage(Resource.CPU, 1, -1000),)


def test_a_shortage_in_words():
    assert str(Shortage(Resource.CPU, 1500, 200)) == "cpu requested 1500m, free 200m"
    assert str(Shortage(Resource.MEMORY, 2048 * MIB, -5)) == "memory requested 2Gi, free 0"


def test_a_resource_of_unknown_size_is_never_short():
    unknown = room(sized("web-0"), node=Node("n1", Amounts(None, 1000 * MIB)))
    assert unknown.free == Amounts(None, 900 * MIB)
    assert unknown.shortages(key("web-0"), amounts_of((10**9, 1000))) == ()
    assert [each.resource for each in unknown.shortages(key("web-0"), amounts_of((10**9, 1001)))] == [Resource.MEMORY]


def test_taking_replaces_what_a_pod_took_and_leaves_the_room_before_as_it_was():
    before = room(sized("web-0", (300, 300)))
    after = before.taking(key("web-0"), amounts_of((500, 100))).taking(key("new"), amounts_of((100, 100)))
    assert (before.free, after.free) == (amounts_of((700, 700)), amounts_of((400, 800)))


@given(st.lists(pods_of_one_container("web-0"), max_size=4))
def test_free_is_what_the_sum_of_all_leaves_and_the_scheduler_never_sees_more_than_the_kubelet(pods):
    footprints = {ObjectKey("shop", f"p{i}"): footprint(pod) for i, pod in enumerate(pods)}
    kubelet, held, scheduler = (NodeRoom.of(a_node(), footprints, count).free for count in (KUBELET, HELD, SCHEDULER))
    for resource, size in ((Resource.CPU, 1000), (Resource.MEMORY, 1000 * MIB)):
        assert kubelet.get(resource) == size - sum(f.allocated.get(resource) or 0 for f in footprints.values())
        assert kubelet.get(resource) >= held.get(resource) >= scheduler.get(resource)
