"""Is a resize due?"""

import pytest
from resize_support import DAY, START, a_container, a_pod, a_recommendation, a_vpa

from vpa_ippr.api.errors import QuantityError
from vpa_ippr.api.resources import Resource
from vpa_ippr.api.vpa import ContainerPolicy
from vpa_ippr.resize.due import Due, NotDue, Part, decide
from vpa_ippr.resize.ledger import WHOLE_POD, Basis, History, HoldOff, Ledger, Scope, to_requirements
from vpa_ippr.resize.reasons import DueReason, NotDueReason
from vpa_ippr.resize.settings import Settings

SETTINGS = Settings()
YOUNG = 3600.0
OLD = 2 * DAY
CPU, MEMORY = Resource.CPU, Resource.MEMORY


def verdict(pod, vpa, history=None):
    return decide(pod, vpa, START, SETTINGS, history or History())


def app(cpu="1", memory="1Gi", **more):
    return a_container(cpu=cpu, memory=memory, **more)


@pytest.mark.parametrize(
    ("pod", "recommendation", "reasons"),
    [
        pytest.param(
            a_pod(app(), age=YOUNG), a_recommendation(cpu="2", memory="1Gi", lower={"cpu": "1500m"}), {DueReason.OUTSIDE_BOUNDS}, id="below"
        ),
        pytest.param(
            a_pod(app(), age=YOUNG),
            a_recommendation(cpu="500m", memory="1Gi", upper={"cpu": "700m"}),
            {DueReason.OUTSIDE_BOUNDS},
            id="above",
        ),
        pytest.param(
            a_pod(a_container(cpu="1"), age=YOUNG), a_recommendation(cpu="1", memory="1Gi"), {DueReason.REQUEST_MISSING}, id="no-request"
        ),
        pytest.param(
            a_pod(app(), age=YOUNG, ooms={"app": 120}), a_recommendation(cpu="1", memory="1050Mi"), {DueReason.QUICK_OOM}, id="quick-oom"
        ),
        pytest.param(a_pod(app(), age=OLD), a_recommendation(cpu="1", memory="1200Mi"), {DueReason.SIGNIFICANT_CHANGE}, id="old-and-large"),
        pytest.param(
            a_pod(app(), age=OLD), a_recommendation(cpu="1", memory="800Mi"), {DueReason.SIGNIFICANT_CHANGE}, id="old-and-smaller"
        ),
        pytest.param(a_pod(app(), age=YOUNG), a_recommendation(cpu="1200m", memory="1Gi"), {DueReason.CPU_SHORTAGE}, id="cpu-up-young"),
    ],
)
def test_due(pod, recommendation, reasons):
    due = verdict(pod, a_vpa(recommendation))
    assert isinstance(due, Due)
    assert set(due.reasons) == reasons


@pytest.mark.parametrize(
    ("pod", "recommendation", "reason"),
    [
        pytest.param(a_pod(app()), a_recommendation(cpu="1", memory="1Gi"), NotDueReason.UP_TO_DATE, id="same"),
        pytest.param(a_pod(app()), a_recommendation(cpu="1000m", memory="1048576Ki"), NotDueReason.UP_TO_DATE, id="same-in-other-notation"),
        pytest.param(a_pod(app(cpu="1m")), a_recommendation(cpu="2m", memory="1Gi"), NotDueReason.UP_TO_DATE, id="1m-is-2m"),
        pytest.param(
            a_pod(app(cpu="2m", cpu_limit="5m")), a_recommendation(cpu="1m", memory="1Gi"), NotDueReason.UP_TO_DATE, id="limits-up-to-10m"
        ),
        pytest.param(a_pod(app()), a_recommendation(cpu="1", memory="1073741900"), NotDueReason.UP_TO_DATE, id="same-page"),
        pytest.param(a_pod(app(), age=YOUNG), a_recommendation(cpu="1", memory="2Gi"), NotDueReason.POD_TOO_YOUNG, id="memory-up-young"),
        pytest.param(a_pod(app(), age=YOUNG), a_recommendation(cpu="500m", memory="1Gi"), NotDueReason.POD_TOO_YOUNG, id="cpu-down-young"),
        pytest.param(a_pod(app(), age=OLD), a_recommendation(cpu="1050m", memory="1Gi"), NotDueReason.CHANGE_TOO_SMALL, id="five-percent"),
        pytest.param(
            a_pod(app(), age=YOUNG), a_recommendation(cpu="1050m", memory="1Gi"), NotDueReason.CHANGE_TOO_SMALL, id="five-percent-young"
        ),
        pytest.param(
            a_pod(app(), age=YOUNG, ooms={"app": 3420}),
            a_recommendation(cpu="1", memory="1200Mi"),
            NotDueReason.POD_TOO_YOUNG,
            id="late-oom",
        ),
        pytest.param(
            a_pod(app(), age=YOUNG, ooms={"app": 120}), a_recommendation(cpu="1", memory="1Gi"), NotDueReason.UP_TO_DATE, id="oom-no-change"
        ),
        pytest.param(a_pod(app()), a_recommendation("other", cpu="2"), NotDueReason.NO_RECOMMENDATION, id="other-container"),
        pytest.param(
            a_pod(app(), deletion_timestamp="2026-01-01T00:00:00Z"), a_recommendation(cpu="9"), NotDueReason.POD_DELETING, id="deleting"
        ),
    ],
)
def test_not_due(pod, recommendation, reason):
    decision = verdict(pod, a_vpa(recommendation))
    assert isinstance(decision, NotDue)
    assert decision.reason is reason


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("Off", NotDueReason.MODE_OFF),
        ("Initial", NotDueReason.MODE_INITIAL),
        ("Sometimes", NotDueReason.MODE_UNKNOWN),
    ],
)
def test_modes_that_do_nothing(mode, reason):
    assert verdict(a_pod(app()), a_vpa(a_recommendation(cpu="3"), mode=mode)).reason is reason


@pytest.mark.parametrize("mode", ["InPlaceOrRecreate", "InPlace"])
def test_modes_that_resize_in_place(mode):
    due = verdict(a_pod(app()), a_vpa(a_recommendation(cpu="3"), mode=mode))
    assert isinstance(due, Due)
    assert not due.by_eviction


@pytest.mark.parametrize("mode", ["Recreate", "Auto"])
def test_modes_that_evict_are_due_by_eviction(mode):
    due = verdict(a_pod(app()), a_vpa(a_recommendation(cpu="3"), mode=mode))
    assert isinstance(due, Due)
    assert due.by_eviction


@pytest.mark.parametrize("mode", ["Recreate", "Auto"])
def test_more_cpu_for_a_young_pod_is_not_worth_an_eviction(mode):
    decision = verdict(a_pod(app(), age=YOUNG), a_vpa(a_recommendation(cpu="1200m", memory="1Gi"), mode=mode))
    assert decision.reason is NotDueReason.POD_TOO_YOUNG


@pytest.mark.parametrize(
    ("containers", "recommendations", "change"),
    [
        pytest.param([("a", "2", None)], [("a", "10", None)], 4.0, id="2-to-10"),
        pytest.param([("a", "4", None)], [("a", "2", None)], 0.5, id="4-to-2"),
        pytest.param([("a", "10m", None)], [("a", "900m", None)], 89.0, id="10m-to-900m"),
        pytest.param([("a", "3", "10M")], [("a", "6", "20M")], 2.0, id="both-double"),
        pytest.param([("a", "4", "10M")], [("a", "2", "20M")], 1.5, id="down-and-up"),
        pytest.param([("a", "4", "20M")], [("a", "2", "10M")], 1.0, id="both-halve"),
        pytest.param([("a", "1", None), ("b", "2", None)], [("a", "4", None), ("b", "8", None)], 3.0, id="two-grow"),
        pytest.param([("a", "3", None), ("b", "7", None)], [("a", "1", None), ("b", "2", None)], 0.7, id="two-shrink"),
        pytest.param([("a", "6", "10M"), ("b", "4", "30M")], [("a", "8", "20M"), ("b", "7", "20M")], 1.0, id="opposites-do-not-cancel"),
    ],
)
def test_change_is_upstreams_measure(containers, recommendations, change):
    pod = a_pod(*(a_container(name, cpu=cpu, memory=memory) for name, cpu, memory in containers))
    wanted = [a_recommendation(name, **({"cpu": cpu} | ({"memory": memory} if memory else {}))) for name, cpu, memory in recommendations]
    assert verdict(pod, a_vpa(*wanted)).change == pytest.approx(change)


def test_cpu_shortage_of_a_young_pod_touches_only_that_cpu():
    pod = a_pod(app(), a_container("side", cpu="1", memory="1Gi"), age=YOUNG)
    vpa = a_vpa(a_recommendation(cpu="2", memory="2Gi"), a_recommendation("side", cpu="500m", memory="1Gi"))
    assert verdict(pod, vpa).parts == (Part("app", CPU),)


def test_cpu_shortage_of_one_container_is_not_diluted_by_a_large_neighbour():
    pod = a_pod(app(cpu="100m"), a_container("big", cpu="8", memory="1Gi"), age=OLD)
    due = verdict(pod, a_vpa(a_recommendation(cpu="200m", memory="1Gi"), a_recommendation("big", cpu="8", memory="1Gi")))
    assert (due.reasons, due.parts) == ((DueReason.CPU_SHORTAGE,), (Part("app", CPU),))


def test_vpas_own_oom_threshold_wins():
    pod = a_pod(app(), age=YOUNG, ooms={"app": 3420})
    due = verdict(pod, a_vpa(a_recommendation(cpu="1", memory="1200Mi"), evict_after_oom_seconds=7200))
    assert due.reasons == (DueReason.QUICK_OOM,)


@pytest.mark.parametrize(
    ("policy", "outcome"),
    [
        pytest.param(ContainerPolicy("app", mode="Off"), NotDueReason.NO_RECOMMENDATION, id="container-off"),
        pytest.param(ContainerPolicy("*", mode="Off"), NotDueReason.NO_RECOMMENDATION, id="all-off"),
        pytest.param(ContainerPolicy("app", max_allowed={"cpu": "1"}), NotDueReason.UP_TO_DATE, id="capped-at-present"),
        pytest.param(ContainerPolicy("app", controlled_resources=["memory"]), NotDueReason.UP_TO_DATE, id="cpu-not-controlled"),
        pytest.param(ContainerPolicy("app", controlled_resources=[]), NotDueReason.UP_TO_DATE, id="nothing-controlled"),
    ],
)
def test_policy_can_leave_nothing_to_do(policy, outcome):
    vpa = a_vpa(a_recommendation(cpu="3", memory="1Gi"), policies=(policy,))
    assert verdict(a_pod(app()), vpa).reason is outcome


def test_requests_only_stops_at_the_limit():
    pod = a_pod(app(cpu="1", cpu_limit="1500m"))
    vpa = a_vpa(a_recommendation(cpu="3", memory="1Gi"), policies=(ContainerPolicy("app", controlled_values="RequestsOnly"),))
    assert verdict(pod, vpa).change == pytest.approx(0.5)


def hold(scope, until, container="app", floor=None):
    return History(Ledger(hold_offs=[HoldOff(container, scope, until, 1, "Why", floor)]))


GROW = a_recommendation(cpu="1", memory="2Gi")
REDUCE = a_recommendation(cpu="1", memory="512Mi")
LIMITED = app(memory_limit="2Gi")


@pytest.mark.parametrize(
    ("recommendation", "history", "expected"),
    [
        pytest.param(GROW, hold(Scope.GROW, START + 1), NotDueReason.HOLD_OFF, id="growth-held"),
        pytest.param(GROW, hold(Scope.GROW, START + 1, WHOLE_POD), NotDueReason.HOLD_OFF, id="growth-of-pod-held"),
        pytest.param(GROW, hold(Scope.GROW, START), None, id="over"),
        pytest.param(GROW, hold(Scope.GROW, START + 1, "other"), None, id="other-container"),
        pytest.param(GROW, hold(Scope.SHRINK, START + 1), None, id="failed-shrink-does-not-hold-growth"),
        pytest.param(REDUCE, hold(Scope.SHRINK, START + 1), NotDueReason.HOLD_OFF, id="decrease-held"),
        pytest.param(REDUCE, hold(Scope.GROW, START + 1), None, id="held-growth-does-not-hold-decrease"),
        pytest.param(REDUCE, hold(Scope.ANY, START + 1), NotDueReason.HOLD_OFF, id="all-held"),
        pytest.param(REDUCE, hold(Scope.SHRINK, START + 1, floor=1100 << 20), NotDueReason.LEARNED_FLOOR, id="below-floor"),
        pytest.param(REDUCE, hold(Scope.SHRINK, START + 1, floor=1 << 30), None, id="at-floor"),
        pytest.param(REDUCE, History(shrinking={"app": 1 << 30}), NotDueReason.SHRINK_ACTIVE, id="being-shrunk"),
        pytest.param(GROW, History(shrinking={"app": 1 << 30}), None, id="growth-during-shrink"),
    ],
)
def test_hold_offs_and_shrinks_keep_parts_back(recommendation, history, expected):
    decision = verdict(a_pod(LIMITED), a_vpa(recommendation), history)
    assert getattr(decision, "reason", None) is expected


def test_a_held_part_does_not_hold_the_others():
    decision = verdict(a_pod(LIMITED), a_vpa(a_recommendation(cpu="2", memory="512Mi")), hold(Scope.SHRINK, START + 1))
    assert decision.parts == (Part("app", CPU),)


def test_a_quantity_that_cannot_be_read_is_named():
    with pytest.raises(QuantityError, match=r"recommendation for app.*abc"):
        verdict(a_pod(app()), a_vpa(a_recommendation(cpu="abc")))


def test_sidecars_count():
    pod = a_pod(app(), init=(a_container("side", cpu="1", memory="1Gi", restart_policy="Always"),))
    assert verdict(pod, a_vpa(a_recommendation("side", cpu="2", memory="1Gi"))).containers == ("side",)


def test_a_limit_alone_out_of_place_is_noticed():
    """After a shrink was undone by raising the limit alone, the request is right but the limit is not what goes with it."""
    pod = a_pod(app(memory_limit="4Gi"))
    original = a_pod(app(memory_limit="2Gi")).desired("app")
    ledger = Ledger(bases={"app": Basis(to_requirements(original), to_requirements(pod.desired("app")))})
    decision = verdict(pod, a_vpa(a_recommendation(cpu="1", memory="1Gi")), History(ledger))
    assert decision.parts == (Part("app", MEMORY),)
    assert decision.change == pytest.approx(2.0)
