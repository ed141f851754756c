"""How many pods of a workload may be out of service at a time."""

import dataclasses

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from resize_support import READY, START, a_container, a_pod, a_vpa

from vpa_ippr.api.meta import Condition, ObjectMeta
from vpa_ippr.api.pdb import LabelSelector, PdbSpec, PdbStatus, PodDisruptionBudget
from vpa_ippr.api.timestamps import format_time
from vpa_ippr.resize.budget import Budget
from vpa_ippr.resize.settings import Settings

SETTINGS = Settings()
UNREADY = Condition("Ready", "False")


def pods(ready, *conditions, labels=None):
    app = a_container(cpu="1", memory="1Gi")
    return [
        a_pod(app, name=f"web-{n}", conditions=(READY if r else UNREADY, *conditions), labels=labels or {}) for n, r in enumerate(ready)
    ]


def budget(group, configured=None, pdbs=(), settings=SETTINGS, **update):
    return Budget.of(group, configured, pdbs, a_vpa(**update), settings)


def a_pdb(allowed=1, *, healthy=(3, 2), policy="IfHealthyBudget", observed=1, name="web"):
    return PodDisruptionBudget(
        ObjectMeta(name=name, namespace="shop", generation=1),
        PdbSpec(LabelSelector({"app": "web"}), policy),
        PdbStatus(allowed, *healthy, observed),
    )


@pytest.mark.parametrize(
    ("ready", "configured", "update", "allowed"),
    [
        pytest.param([1, 1, 1], None, {}, True, id="all-serve"),
        pytest.param([1, 1, 1, 0], None, {}, True, id="half-may-be-missing"),
        pytest.param([1, 1, 0, 0], None, {}, False, id="half-are-missing"),
        pytest.param([1, 1], 4, {}, False, id="half-are-not-there"),
        pytest.param([0, 1, 1, 0], None, {}, True, id="it-serves-no-more-itself"),
        pytest.param([1], None, {}, False, id="too-few"),
        pytest.param([1], None, {"min_replicas": 1}, True, id="one-of-one"),
        pytest.param([1], 2, {"min_replicas": 1}, False, id="one-of-two"),
        pytest.param([1, 1], None, {"min_replicas": 3}, False, id="fewer-than-the-vpa-asks-for"),
    ],
)
def test_a_share_of_the_configured_replicas_may_be_missing(ready, configured, update, allowed):
    group = pods(ready)
    assert (budget(group, configured, **update).allows(group[0]) is None) is allowed


def test_a_pod_of_which_a_resize_is_under_way_does_not_serve():
    group = [*pods([1, 1]), *pods([1, 1], Condition("PodResizeInProgress", "True"))[1:]]
    assert "serve" in budget(group, settings=dataclasses.replace(SETTINGS, disruption_tolerance=0.0)).allows(group[0])


def test_a_pod_that_is_going_counts_for_nothing():
    first, second = pods([1, 1])
    going = msgspec.structs.replace(second, metadata=msgspec.structs.replace(second.metadata, deletion_timestamp=format_time(START)))
    assert "fewer" in budget([first, going]).allows(first)


def test_where_the_share_is_less_than_one_pod_one_goes_at_a_time():
    group = pods([1, 1, 1])
    strict = budget(group, settings=dataclasses.replace(SETTINGS, disruption_tolerance=0.1))
    assert strict.allows(group[0]) is None
    assert strict.taking(group[0]).allows(group[1]) is not None


@given(st.lists(st.booleans(), min_size=1, max_size=9), st.sampled_from([0.0, 0.3, 0.5, 1.0]))
def test_however_many_are_asked_for_enough_go_on_serving(ready, tolerance):
    group = pods(ready)
    left = budget(group, settings=dataclasses.replace(SETTINGS, disruption_tolerance=tolerance))
    taken = []
    for pod in group:
        if left.allows(pod) is None:
            left, taken = left.taking(pod), [*taken, pod]
    lost = sum(READY in pod.status.conditions for pod in taken)
    serving = sum(ready) - lost
    assert serving >= len(group) - int(len(group) * tolerance) or lost <= 1
    if all(ready) and len(group) >= SETTINGS.min_replicas:
        assert taken


@pytest.mark.parametrize(
    ("pdbs", "says"),
    [
        pytest.param([a_pdb(1)], None, id="allows-one"),
        pytest.param([a_pdb(0)], "allows no disruption", id="allows-none"),
        pytest.param([a_pdb(1, observed=0)], "being processed", id="not-yet-counted"),
        pytest.param([a_pdb(1), a_pdb(1, name="b")], "more than one", id="two"),
        pytest.param(
            [msgspec.structs.replace(a_pdb(0), metadata=ObjectMeta(name="web", namespace="bank"))], None, id="of-another-namespace"
        ),
        pytest.param([msgspec.structs.replace(a_pdb(0), spec=PdbSpec(LabelSelector({"app": "db"})))], None, id="of-other-pods"),
    ],
)
def test_pod_disruption_budgets_count_as_for_evictions(pdbs, says):
    group = pods([1, 1, 1], labels={"app": "web"})
    answer = budget(group, pdbs=pdbs).allows(group[0])
    assert (answer is None) if says is None else says in answer


@pytest.mark.parametrize(
    ("pdb", "allowed"),
    [
        pytest.param(a_pdb(0, healthy=(2, 2)), True, id="the-healthy-suffice"),
        pytest.param(a_pdb(0, healthy=(1, 2)), False, id="the-healthy-do-not"),
        pytest.param(a_pdb(0, healthy=(1, 2), policy="AlwaysAllow"), True, id="always"),
    ],
)
def test_a_pod_that_is_not_ready_may_be_let_go(pdb, allowed):
    group = pods([0, 1, 1], labels={"app": "web"})
    left = budget(group, pdbs=[pdb])
    assert (left.allows(group[0]) is None) is allowed
    if allowed:
        assert left.taking(group[0]).pdbs == (pdb,)


def test_what_is_taken_is_taken_from_the_next_workload_too():
    group = pods([1, 1, 1], labels={"app": "web"})
    left = budget(group, pdbs=[a_pdb(1)]).taking(group[0])
    assert "allows no disruption" in budget(group, pdbs=left.pdbs).allows(group[1])
