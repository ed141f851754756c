"""What live pods tell: limits in force, the newest revision, floors of shrinks, and memory near its limit."""

import json
import math

import numpy as np
import pytest

from vpa_ippr.api.meta import ObjectMeta
from vpa_ippr.api.names import ANNOTATION_RESIZE_LEDGER
from vpa_ippr.api.pod import Container, ContainerStatus, Pod, PodSpec, PodStatus
from vpa_ippr.api.resources import ResourceRequirements
from vpa_ippr.api.series import ContainerRef, Resource, UsageSeries
from vpa_ippr.api.timestamps import format_time
from vpa_ippr.forecast.rules import GuardRules
from vpa_ippr.recommend.live import LiveSigns, Revision, guard_need, read_live, scalable
from vpa_ippr.usage.feeding import feed
from vpa_ippr.usage.steps import ContainerSteps, StepRules

T = 1_767_225_600.0
STEP = int(T // 300)
GIB = 2**30


def a_pod(name="web-1", limit="2Gi", request="1Gi", actual=None, started=T, created=None, annotations=None, **labels):
    resources = ResourceRequirements({"memory": request} if request else {}, {"memory": limit} if limit else {})
    statuses = [] if actual is None else [ContainerStatus("app", resources=ResourceRequirements({}, {"memory": actual}))]
    metadata = ObjectMeta(
        name,
        "shop",
        labels={label.replace("_", "-"): value for label, value in labels.items()},
        annotations=annotations or {},
        creation_timestamp=None if created is None else format_time(created),
    )
    status = PodStatus("Running", start_time=None if started is None else format_time(started), container_statuses=statuses)
    return Pod(metadata, PodSpec([Container("app", resources=resources)]), status)


@pytest.mark.parametrize(
    ("pods", "limit"),
    [
        ([a_pod()], 2 * GIB),
        ([a_pod(actual="3Gi")], 3 * GIB),
        ([a_pod(), a_pod("web-2", limit="1Gi")], GIB),
        ([a_pod(limit=None)], math.nan),
        ([], math.nan),
    ],
    ids=["of the spec", "in force goes before", "the lowest", "none", "no pod"],
)
def test_the_limit_of_a_container(pods, limit):
    assert read_live(pods, T).limit("app") == pytest.approx(limit, nan_ok=True)


def test_a_pod_that_cannot_be_read_spoils_no_other():
    signs = read_live([a_pod("bad", limit="much"), a_pod("web-2")], T)
    assert signs.limits == {"app": {"web-2": 2 * GIB}}
    assert [(finding.reason, finding.subject) for finding in signs.findings] == [("BadQuantity", "shop/bad")]


@pytest.mark.parametrize(
    ("pods", "revision"),
    [
        ([a_pod(pod_template_hash="a")], Revision("a", STEP)),
        ([a_pod(controller_revision_hash="web-7d")], Revision("web-7d", STEP)),
        ([a_pod(pod_template_hash="a"), a_pod("2", started=T + 900, pod_template_hash="b")], Revision("b", STEP + 3)),
        (
            [
                a_pod(pod_template_hash="b"),
                a_pod("2", started=T + 900, pod_template_hash="b"),
                a_pod("3", started=T + 500, pod_template_hash="a"),
            ],
            Revision("b", STEP),
        ),
        ([a_pod(started=None, created=T + 600, pod_template_hash="a")], Revision("a", STEP + 2)),
        ([a_pod()], None),
        ([a_pod(started=None, pod_template_hash="a")], None),
        ([], None),
    ],
    ids=[
        "deployment",
        "stateful set",
        "the one that started last",
        "begins with its first pod",
        "not started yet",
        "no label",
        "no time",
        "no pod",
    ],
)
def test_the_newest_revision(pods, revision):
    assert read_live(pods, T).revision == revision


def ledger(*hold_offs):
    return {ANNOTATION_RESIZE_LEDGER: json.dumps({"holdOffs": list(hold_offs), "settled": ["x"]})}


def hold_off(floor, **changes):
    return {"container": "app", "scope": "Shrink", "until": T + 60, "attempts": 1, "reason": "x", "floorBytes": floor} | changes


@pytest.mark.parametrize(
    ("pods", "floors"),
    [
        ([a_pod(annotations=ledger(hold_off(GIB)))], {"app": GIB // 2}),
        ([a_pod(annotations=ledger(hold_off(GIB + 1)))], {"app": GIB // 2 + 1}),
        ([a_pod(request=None, annotations=ledger(hold_off(GIB)))], {"app": GIB}),
        ([a_pod(annotations=ledger(hold_off(GIB, until=T)))], {}),
        ([a_pod(annotations=ledger(hold_off(GIB, scope="Any")))], {}),
        ([a_pod(annotations=ledger(hold_off(None)))], {}),
        ([a_pod(limit=None, annotations=ledger(hold_off(GIB)))], {}),
        ([a_pod(annotations=ledger(hold_off(GIB))), a_pod("2", annotations=ledger(hold_off(2 * GIB)))], {"app": GIB}),
    ],
    ids=["with the limit's ratio", "rounded up", "no request", "over", "another scope", "no floor", "no limit any more", "the highest"],
)
def test_floors_of_shrinks_are_requests(pods, floors):
    assert read_live(pods, T).shrink_floors == floors


@pytest.mark.parametrize("text", ["{", "[]", '{"holdOffs": [{"container": 1}]}'], ids=["cut off", "another kind", "another type"])
def test_a_ledger_that_cannot_be_read(text):
    signs = read_live([a_pod(annotations={ANNOTATION_RESIZE_LEDGER: text})], T)
    assert [finding.reason for finding in signs.findings] == ["LedgerUnreadable"]
    assert signs.limits == {"app": {"web-1": 2 * GIB}}


def resized(**moments):
    return {ANNOTATION_RESIZE_LEDGER: json.dumps({"bases": {"app": {"original": {}, "expected": {}, **moments}}})}


@pytest.mark.parametrize(
    ("wanted", "request_bytes"),
    [({"web-1", "2"}, 3 * GIB), ({"web-1"}, GIB), ({"3"}, None), (set(), None), ({"gone"}, None)],
    ids=["the highest", "of one", "no request", "of none", "no such pod"],
)
def test_what_pods_request(wanted, request_bytes):
    signs = read_live([a_pod(), a_pod("2", request="3Gi", limit="3Gi"), a_pod("3", request=None, limit=None)], T)
    assert signs.request("app", Resource.MEMORY, wanted) == request_bytes


@pytest.mark.parametrize(
    ("moments", "pods"),
    [({"memoryAt": T - 10}, {"web-1"}), ({"memoryAt": T - 20}, set()), ({"cpuAt": T - 10}, set()), ({}, set())],
    ids=["since", "not since", "another resource", "never"],
)
def test_which_pods_were_resized(moments, pods):
    signs = read_live([a_pod(annotations=resized(**moments)), a_pod("2")], T)
    assert signs.resized("app", Resource.MEMORY, T - 20) == pods


@pytest.mark.parametrize(
    ("samples", "age", "growth", "need"),
    [
        ([1.8, 1.89], 0, 0.0, None),
        ([1.8, 1.91], 0, 0.0, 1.91 * 1.1),
        ([1.91, 1.8], 0, 0.0, None),
        ([1.8, 1.91], 601, 0.0, None),
        ([1.5, 1.7], 0, 1.0, None),
        ([1.5, 1.8], 0, 1.0, 2.1 * 1.1),
        ([1.8, 1.5], 0, 1.0, None),
    ],
    ids=["below", "above", "the newest counts", "too old", "growing slowly", "growing fast", "shrinking"],
)
def test_memory_near_its_limit(samples, age, growth, need):
    ref = ContainerRef("shop", "web-1", "app")
    times = T + 60.0 * (1 + np.arange(len(samples)))
    series = UsageSeries(ref, Resource.MEMORY, times, np.array(samples) * GIB)
    steps = feed(ContainerSteps.empty(StepRules(10), T), [series], until=T + 200)
    signs = LiveSigns({"app": {"web-1": 2 * GIB, "gone": 1}})
    found = guard_need(steps, "shop", "app", signs, GuardRules(0.95, 1.1, growth), times[-1] + age)
    assert found == (None if need is None else pytest.approx(need * GIB, abs=2))


def test_the_pod_that_needs_most_counts():
    series = [
        UsageSeries(ContainerRef("shop", pod, "app"), Resource.MEMORY, np.array([T + 60.0]), np.array([used]))
        for pod, used in (("web-1", 1.95 * GIB), ("web-2", 3.9 * GIB))
    ]
    steps = feed(ContainerSteps.empty(StepRules(10), T), series, until=T + 100)
    signs = LiveSigns({"app": {"web-1": 2 * GIB, "web-2": 4 * GIB}})
    assert guard_need(steps, "shop", "app", signs, GuardRules(0.95, 1.1), T + 100) == pytest.approx(3.9 * GIB * 1.1, abs=2)
    assert guard_need(steps, "shop", "app", LiveSigns(), GuardRules(0.95, 1.1), T + 100) is None


def test_what_can_be_scaled():
    init = [Container("setup"), Container("proxy", restart_policy="Always")]
    assert [one.name for one in scalable(Pod(ObjectMeta("p"), PodSpec([Container("app")], init)))] == ["app", "proxy"]
