"""All wishes of one node together: what goes, what waits, and in which order."""

import msgspec
import pytest
from fit_support import AMOUNTS, MIB, a_node, amounts_of, as_json, carried_out, pods_of_one_container, quantities, reported, sized, to
from hypothesis import given
from hypothesis import strategies as st

from vpa_ippr.api.cluster import Node
from vpa_ippr.api.resources import Amounts, ResourceRequirements
from vpa_ippr.resize.footprint import footprint, footprint_after
from vpa_ippr.resize.node_fit import HELD, KUBELET, NodeRoom
from vpa_ippr.resize.node_plan import Go, Hold, plan_node
from vpa_ippr.resize.reasons import RefusalReason
from vpa_ippr.resize.settings import Settings
from vpa_ippr.sandbox.podamounts import Totals
from vpa_ippr.sandbox.podfit import Deferred, NodeSettings, kubelet_feasibility, requests_allocated
from vpa_ippr.sandbox.versions import PROFILES

QUEUE = Settings(queue_when_full=True)


def plan(*wishes, beside=(), node=None, settings=None):
    pods = [*beside, *(wish.pod for wish in wishes)]
    return plan_node(node or a_node(), pods, wishes, settings or Settings())


def told(found):
    """``+name`` goes, ``-name`` waits, in the order of the verdicts."""
    return [("+" if isinstance(verdict, Go) else "-") + verdict.wish.pod.metadata.name for verdict in found.verdicts]


def the_hold(found) -> Hold:
    (hold,) = [verdict for verdict in found.verdicts if isinstance(verdict, Hold)]
    return hold


def test_growths_go_while_there_is_room():
    wishes = [to(sized(f"web-{i}", (200, 200)), (400, 200)) for i in range(3)]
    found = plan(*wishes)
    assert told(found) == ["+web-0", "+web-1", "-web-2"]
    hold = the_hold(found)
    assert hold.reason == RefusalReason.NODE_FULL
    assert hold.message == "node n1 has not enough room: cpu requested 400m, free 200m"


def test_one_that_does_not_fit_does_not_stop_those_behind_it():
    big, small = to(sized("a-big", (100, 100)), (900, 100)), to(sized("b-small", (100, 100)), (200, 100))
    assert told(plan(big, small, beside=[sized("other", (300, 300))])) == ["-a-big", "+b-small"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"priority": 10, "qos": "Burstable"}, {"priority": 1, "qos": "Guaranteed"}),
        ({"qos": "Guaranteed"}, {"qos": "Burstable"}),
        ({"pending": "Deferred", "since": "2026-01-01T00:00:00Z"}, {"pending": "Deferred", "since": "2026-01-01T00:00:01Z"}),
        ({"pending": "Deferred", "since": "2026-01-01T00:00:00Z"}, {}),
    ],
    ids=["priority before QoS class", "guaranteed", "pending for longer", "pending before new"],
)
def test_growths_stand_in_the_kubelets_order(first, second):
    # The names alone would put them the other way round.
    wishes = [to(sized("b", (100, 100), **first), (600, 100)), to(sized("a", (100, 100), **second), (600, 100))]
    assert told(plan(*wishes)) == told(plan(*reversed(wishes))) == ["+b", "-a"]


def test_pods_of_equal_rank_stand_by_namespace_and_name():
    wishes = [to(sized(name, (100, 100), namespace=namespace), (300, 100)) for namespace, name in (("shop", "a"), ("bank", "b"))]
    assert told(plan(*wishes)) == ["+b", "+a"]


@pytest.mark.parametrize(
    ("priority", "verdict"), [(0, "-"), (1, "-"), (2, "+")], ids=["equal rank", "it ranks higher", "ours ranks higher"]
)
def test_a_deferred_resize_of_equal_rank_takes_its_room_first(priority, verdict):
    waiting = sized("waiting", (600, 100), allocated=(200, 100), pending="Deferred", since="2026-01-01T00:00:00Z", priority=1)
    ours = sized("a", (100, 100), priority=priority or 1)
    waiting = waiting if priority else msgspec.structs.replace(waiting, spec=msgspec.structs.replace(waiting.spec, priority=1))
    assert told(plan(to(ours, (500, 100)), beside=[waiting])) == [f"{verdict}a"]


def test_a_resize_that_the_kubelet_has_not_looked_at_yet_stands_before_ours_too():
    asked = sized("z", (600, 100), allocated=(200, 100))
    assert told(plan(to(sized("a", (100, 100)), (500, 100)), beside=[asked])) == ["-a"]


@pytest.mark.parametrize(
    "waiting",
    [
        sized("z", (1500, 100), allocated=(200, 100), pending="Deferred"),
        sized("z", (700, 100), allocated=(200, 100), pending="Infeasible"),
    ],
    ids=["deferred for ever", "infeasible"],
)
def test_one_that_waits_in_vain_takes_no_room(waiting):
    assert told(plan(to(sized("a", (100, 100)), (800, 100)), beside=[waiting])) == ["+a"]


def test_a_pod_being_deleted_keeps_its_room_but_gets_no_more():
    leaving = sized("z", (700, 100), allocated=(200, 100), pending="Deferred")
    metadata = msgspec.structs.replace(leaving.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    leaving = msgspec.structs.replace(leaving, metadata=metadata)
    assert told(plan(to(sized("a", (100, 100)), (800, 100)), beside=[leaving])) == ["+a"]
    assert told(plan(to(sized("a", (100, 100)), (801, 100)), beside=[leaving])) == ["-a"]


def test_what_shrinks_or_stays_goes_first_even_on_a_node_that_is_too_full():
    pods = {name: sized(name, (500, 500), limits=(600, 600)) for name in ("limit", "shrink", "grow")}
    wishes = [to(pods["grow"], (501, 500)), to(pods["shrink"], (400, 400)), to(pods["limit"], (500, 500), (900, 900))]
    assert told(plan(*wishes)) == ["+limit", "+shrink", "-grow"]


def test_room_that_a_shrink_makes_is_given_away_in_the_next_cycle_and_told_in_this():
    shrink, grow = to(sized("small", (600, 100)), (200, 100)), to(sized("tall", (300, 100)), (600, 100))
    found = plan(grow, shrink)
    assert told(found) == ["+small", "-tall"]
    assert the_hold(found).message == (
        "node n1 has not enough room: cpu requested 600m, free 400m; it will have once the shrinks under way are carried out"
    )
    accepted = carried_out(shrink)
    assert told(plan(grow, beside=[accepted])) == ["-tall"]
    assert "under way" in the_hold(plan(grow, beside=[accepted])).message
    done = sized("small", (200, 100))
    assert told(plan(grow, beside=[done])) == ["+tall"]


def test_a_shrink_that_is_allocated_but_still_occupies_memory_makes_no_room():
    allocated = sized("small", (100, 200), allocated=(100, 200), actual=(100, 700))
    assert told(plan(to(sized("tall", (100, 300)), (100, 500)), beside=[allocated])) == ["-tall"]


def test_nor_does_one_whose_later_resize_is_infeasible():
    infeasible = sized("small", (2000, 200), allocated=(100, 200), actual=(100, 700), pending="Infeasible")
    assert told(plan(to(sized("tall", (100, 300)), (100, 500)), beside=[infeasible])) == ["-tall"]


def test_a_change_that_grows_in_one_resource_and_shrinks_in_the_other_gives_nothing_away_yet():
    mixed = to(sized("a", (100, 800)), (500, 100))
    other = to(sized("b", (100, 100)), (100, 300))
    assert told(plan(mixed, other)) == ["+a", "-b"]


def test_a_pod_has_to_fit_in_each_resource_that_it_requests_even_where_it_does_not_grow():
    overfull = sized("other", (100, 950))
    found = plan(to(sized("a", (100, 100)), (200, 100)), beside=[overfull])
    assert the_hold(found).message == "node n1 has not enough room: memory requested 100Mi, free 50Mi"


@pytest.mark.parametrize(
    ("grown", "priority", "verdict"),
    [(600, 0, "+a"), (600, 2_000_000_000, "-a"), (1001, 0, "-a")],
    ids=["queues", "critical pods would have others evicted", "larger than the node"],
)
def test_a_growth_may_be_told_to_queue(grown, priority, verdict):
    wish = to(sized("a", (100, 100), priority=priority), (grown, 100))
    assert told(plan(wish, beside=[sized("other", (600, 100))], settings=QUEUE)) == [verdict]
    assert told(plan(wish, beside=[sized("other", (600, 100))])) == ["-a"]


def test_a_growth_that_queues_takes_no_room_from_those_behind_it():
    wishes = [to(sized("a", (100, 100)), (900, 100)), to(sized("b", (100, 100)), (300, 100))]
    assert told(plan(*wishes, beside=[sized("other", (300, 100))], settings=QUEUE)) == ["+a", "+b"]
    wishes.append(to(sized("c", (100, 100)), (400, 100)))
    assert told(plan(*wishes, beside=[sized("other", (300, 100))], settings=Settings())) == ["-a", "+b", "-c"]


def test_a_pod_larger_than_its_node_is_told_apart():
    hold = the_hold(plan(to(sized("a", (100, 100), overhead=quantities((50, 0))), (951, 100)), settings=QUEUE))
    assert hold.reason == RefusalReason.NODE_CAPACITY
    assert hold.message == "node n1 is too small for the pod even alone: cpu requested 1001m, free 1"


def test_nothing_is_checked_on_an_unknown_node_or_size():
    wish = to(sized("a", (100, 100)), (10**6, 10**6))
    assert told(plan_node(None, [wish.pod], [wish], Settings())) == ["+a"]
    assert told(plan(wish, node=Node("n1"))) == ["+a"]
    assert told(plan(wish, node=Node("n1", Amounts(None, 10**6 * MIB)))) == ["+a"]


def test_a_pod_that_cannot_be_read_holds_back_nobody_but_itself():
    bad = reported(sized("bad"), app=({"cpu": "lots"}, ResourceRequirements()))
    found = plan(to(sized("a", (100, 100)), (200, 100)), beside=[bad])
    assert told(found) == ["+a"]
    assert found.unreadable[0].startswith("pod shop/bad ")
    found = plan(to(sized("a", (100, 100)), (200, 100)), to(bad, (200, 100)))
    assert told(found) == ["-bad", "+a"]
    assert the_hold(found).reason == RefusalReason.UNREADABLE
    assert "'lots'" in the_hold(found).message
    assert found.unreadable == ()


def test_the_pod_of_a_wish_counts_as_the_wish_has_it():
    stale, fresh = sized("a", (900, 100)), sized("a", (100, 100))
    found = plan_node(a_node(), [stale], [to(fresh, (200, 100)), to(sized("b", (100, 100)), (700, 100))], Settings())
    assert told(found) == ["+a", "+b"]


@st.composite
def nodes_full_of_wishes(draw):
    """Pods on a node, and wishes for some of them."""
    pods = [draw(pods_of_one_container(f"p{i}")) for i in range(draw(st.integers(1, 5)))]
    wished = draw(st.lists(st.sampled_from(pods), unique_by=lambda pod: pod.key, min_size=1))
    wishes = [to(pod, draw(AMOUNTS)) for pod in wished]
    return a_node(draw(st.integers(300, 3000)), draw(st.integers(300, 3000))), pods, wishes


@given(nodes_full_of_wishes(), st.randoms(use_true_random=False), st.sampled_from([Settings(), QUEUE]))
def test_the_order_of_the_input_does_not_matter_and_each_wish_gets_one_verdict(world, random, settings):
    node, pods, wishes = world
    found = plan_node(node, pods, wishes, settings)
    assert sorted(verdict.wish.pod.key for verdict in found.verdicts) == sorted(wish.pod.key for wish in wishes)
    for listed in (pods, wishes):
        random.shuffle(listed)
    assert plan_node(node, pods, wishes, settings) == found


@given(nodes_full_of_wishes())
def test_no_growth_that_goes_takes_more_than_the_node_has(world):
    node, pods, wishes = world
    room = NodeRoom.of(node, {pod.key: footprint(pod) for pod in pods}, HELD)
    for verdict in plan_node(node, pods, wishes, Settings()).verdicts:
        after = footprint_after(verdict.wish)
        if isinstance(verdict, Go) and after.grows:
            assert room.shortages(verdict.wish.pod.key, after.desired) == ()
            taken = [max(h or 0, d or 0) for h, d in zip(values(after.held), values(after.desired), strict=True)]
            room = room.taking(verdict.wish.pod.key, Amounts(*taken))


def values(amounts):
    return amounts.cpu_millicores, amounts.memory_bytes


@given(nodes_full_of_wishes())
def test_a_kubelet_that_looks_at_them_in_this_order_defers_no_growth(world):
    """The sandbox's kubelet decides on each patch as it comes, and never lets go of what it had allocated."""
    node, pods, wishes = world
    size = Totals(node.allocatable.cpu_millicores, node.allocatable.memory_bytes)
    taken = {pod.key: requests_allocated(as_json(pod)) for pod in pods}
    for verdict in plan_node(node, pods, wishes, Settings()).verdicts:
        grows = footprint_after(verdict.wish).grows
        if isinstance(verdict, Hold) or not grows:
            continue
        key, patched = verdict.wish.pod.key, as_json(carried_out(verdict.wish))
        others = Totals(*(sum(t[i] for k, t in taken.items() if k != key) for i in range(2)))
        assert not isinstance(kubelet_feasibility(patched, others, size, PROFILES["1.36"], NodeSettings()), Deferred)
        taken[key] = Totals(*(max(t, v or 0) for t, v in zip(taken[key], values(footprint_after(verdict.wish).desired), strict=True)))


@given(nodes_full_of_wishes())
def test_what_goes_alone_goes_too_beside_shrinks(world):
    node, pods, wishes = world
    growth, *others = wishes
    shrinks = [wish for wish in others if not footprint_after(wish).grows]
    # A pod whose wish shrinks it leaves the queue, in which it may have waited for more: that is all it does for others.
    alone = plan_node(node, pods, [growth], Settings()).verdicts
    if isinstance(alone[0], Go):
        together = plan_node(node, pods, [growth, *shrinks], Settings()).verdicts
        assert all(isinstance(verdict, Go) for verdict in together)


def test_the_shrink_of_a_waiting_growth_takes_it_out_of_the_queue():
    waiting = sized("waiting", (700, 100), allocated=(300, 100), pending="Deferred")
    growth = to(sized("a", (100, 100)), (500, 100))
    assert told(plan(growth, beside=[waiting])) == ["-a"]
    assert told(plan(growth, to(waiting, (300, 100)))) == ["+waiting", "+a"]
    assert amounts_of((300, 100)) == footprint_after(to(waiting, (300, 100))).held


def test_the_kubelets_count_of_a_plan_is_within_the_node():
    wishes = [to(sized(f"p{i}", (100, 100)), (300, 100)) for i in range(5)]
    found = plan(*wishes)
    after = {verdict.wish.pod.key: carried_out(verdict.wish) if isinstance(verdict, Go) else verdict.wish.pod for verdict in found.verdicts}
    allocated = {key: footprint(reported(pod, app=(pod.spec.containers[0].resources.requests, None))) for key, pod in after.items()}
    assert min(values(NodeRoom.of(a_node(), allocated, KUBELET).free)) >= 0
    assert told(found) == ["+p0", "+p1", "-p2", "-p3", "-p4"]
