"""Who gets more memory at the limit, how much, and why not: the pure judgement, by tables and by what must hold of every relief."""

from dataclasses import replace

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from resize_support import (
    RULES,
    START,
    FakeCluster,
    a_container,
    a_pod,
    a_recommendation,
    a_vpa,
    expected_pod_qos,
    with_own_resources,
)

from vpa_ippr.api.cluster import Node
from vpa_ippr.api.hpa import HorizontalPodAutoscaler, HpaSpec, Metric, MetricTarget, ResourceMetric
from vpa_ippr.api.limit_range import LimitRange, LimitRangeItem, LimitRangeSpec
from vpa_ippr.api.meta import Condition, ObjectMeta
from vpa_ippr.api.names import ANNOTATION_LIMIT_POLICY, ANNOTATION_MAINTENANCE_WINDOWS, ANNOTATION_MIRROR_POD, ANNOTATION_PAUSE
from vpa_ippr.api.pod import ContainerState, ContainerStateTerminated, ContainerStateWaiting
from vpa_ippr.api.quota import ResourceQuota, ResourceQuotaSpec, ResourceQuotaStatus
from vpa_ippr.api.resources import parse_amounts
from vpa_ippr.api.vpa import ContainerPolicy, TargetRef
from vpa_ippr.resize.footprint import Wish
from vpa_ippr.resize.ledger import Infeasible, Ledger, Scope, to_annotations, with_hold_off, with_relief, with_resize
from vpa_ippr.resize.relief import Relief, pleas_of, relief_of
from vpa_ippr.resize.relief_size import Ground
from vpa_ippr.resize.rules import rules_for
from vpa_ippr.resize.settings import Settings
from vpa_ippr.resize.state import InfeasibleCause
from vpa_ippr.resize.world import read_world

MIB, GIB = 1 << 20, 1 << 30
SETTINGS = Settings()
BURSTABLE = a_container(cpu="200m", memory="1Gi", memory_limit="2Gi")
GUARANTEED = a_container(cpu="1", memory="2Gi", cpu_limit="1", memory_limit="2Gi")
SMALL_NODE = Node("n1", parse_amounts({"cpu": "8", "memory": "4Gi"}, "node"))
_replace = msgspec.structs.replace


class Scene:
    """One pod with a VPA, and what its node's agent tells of it."""

    def __init__(
        self, container=BURSTABLE, *, mode="InPlace", policy=None, rules=RULES, settings=SETTINGS, pod=None, others=(), **annotations
    ):
        recommendation = a_recommendation(cpu="200m", memory="1Gi")
        vpa = a_vpa(recommendation, mode=mode, policies=(policy,) if policy else ())
        names = {"limit_policy": ANNOTATION_LIMIT_POLICY, "pause": ANNOTATION_PAUSE, "windows": ANNOTATION_MAINTENANCE_WINDOWS}
        stated = {names[name]: text for name, text in annotations.items()}
        vpa = _replace(vpa, metadata=_replace(vpa.metadata, annotations=stated))
        self.cluster = FakeCluster(pod or a_pod(container), *others, vpas=(vpa,), rules=rules)
        self.rules, self.settings = rules, settings

    def change(self, **status):
        pod = self.cluster.pod
        self.cluster.pods[pod.key] = _replace(pod, status=_replace(pod.status, **status))

    def change_container(self, **fields):
        self.change(container_statuses=[_replace(one, **fields) for one in self.cluster.pod.status.container_statuses])

    def change_meta(self, **fields):
        pod = self.cluster.pod
        self.cluster.pods[pod.key] = _replace(pod, metadata=_replace(pod.metadata, **fields))

    def remember(self, ledger):
        self.change_meta(annotations=to_annotations(ledger))

    def verdict(self, **told):
        self.cluster.press(**told)
        world = read_world(self.cluster)
        pod = self.cluster.pod
        view = world.view(pod, world.vpa_of.get(pod.key), START, self.settings)
        (plea,) = pleas_of(self.cluster.node_memories)
        return relief_of(plea, view, self.rules, Ground.of(world, {"n1"}), self.settings)

    def limit(self, **told):
        verdict = self.verdict(**told)
        assert isinstance(verdict, Relief), verdict
        return verdict.after[verdict.container].limits.memory_bytes

    def reason(self, **told):
        verdict = self.verdict(**told)
        assert not isinstance(verdict, Relief), verdict
        return verdict.reason


# -- how much


@pytest.mark.parametrize(
    ("limit", "told", "wanted"),
    [
        ("2Gi", {}, 2458 * MIB),  # a fifth, in whole MiB
        ("100Mi", {}, 200 * MIB),  # 100 MiB at least
        ("512Mi", {"usage_bytes": 500 * MIB, "growth_bytes_per_second": 50 * MIB}, 3500 * MIB),  # a minute ahead
        ("512Mi", {"usage_bytes": 500 * MIB, "growth_bytes_per_second": -5 * MIB}, 615 * MIB),  # it shrinks just now
    ],
    ids=["ratio", "least", "growth", "shrinking"],
)
def test_the_new_limit_is_that_of_an_oom_bump_or_enough_for_a_minute(limit, told, wanted):
    assert Scene(a_container(cpu="200m", memory="50Mi", memory_limit=limit)).limit(**told) == wanted


def test_the_bump_is_as_the_containers_policy_says():
    policy = ContainerPolicy("app", oom_bump_up_ratio="1.5", oom_min_bump_up="10Mi")
    assert Scene(policy=policy).limit() == 3 * GIB


def test_only_the_limit_rises_where_the_qos_class_lets_it():
    verdict = Scene().verdict()
    assert verdict.after["app"].requests == parse_amounts({"cpu": "200m", "memory": "1Gi"}, "")
    assert verdict.floor_bytes == pytest.approx(1.1 * 0.97 * 2 * GIB, abs=2)
    assert not verdict.restarts
    assert verdict.message == "app memory limit 2Gi -> 2458Mi"


def test_a_guaranteed_pods_request_goes_along():
    after = Scene(GUARANTEED).verdict().after["app"]
    assert after.requests == after.limits == parse_amounts({"cpu": "1", "memory": "2458Mi"}, "")


def bounds(**item):
    return [LimitRange(ObjectMeta(name="bounds", namespace="shop"), LimitRangeSpec([LimitRangeItem(**item)]))]


def quota(hard, used):
    return [ResourceQuota(ObjectMeta(name="all", namespace="shop"), ResourceQuotaSpec(hard), ResourceQuotaStatus(hard, used))]


class TestCaps:
    """What keeps a raise small, or from being made."""

    @pytest.mark.parametrize(
        ("highest", "wanted"), [("1Gi", None), ("1100Mi", 2200 * MIB), ("8Gi", 2458 * MIB)], ids=["reached", "near", "far"]
    )
    def test_the_limit_that_goes_with_max_allowed(self, highest, wanted):
        scene = Scene(policy=ContainerPolicy("app", max_allowed={"memory": highest}))
        assert scene.reason() == "AtMaximum" if wanted is None else scene.limit() == wanted

    def test_a_ratio_that_an_earlier_relief_has_changed_is_that_of_the_author(self):
        scene = Scene(policy=ContainerPolicy("app", max_allowed={"memory": "1100Mi"}))
        relief = scene.verdict()
        raised = a_container(cpu="200m", memory="1Gi", memory_limit="2200Mi")
        ledger = with_relief(Ledger(), "app", GIB, "MemoryRelieved", START - 600, SETTINGS)
        ledger = with_resize(ledger, scene.cluster.pod, relief.after, START - 600)
        again = Scene(raised, policy=ContainerPolicy("app", max_allowed={"memory": "1100Mi"}))
        again.remember(ledger)
        assert again.reason() == "AtMaximum"

    @pytest.mark.parametrize(
        ("policy", "wanted"),
        [("memory=cap:2100Mi", 2100 * MIB), ("memory=fixed-headroom:25%", 2458 * MIB), ("none", None), ("memory=cap:2Gi", "AtMaximum")],
    )
    def test_the_limit_policy(self, policy, wanted):
        scene = Scene(limit_policy=policy)
        if isinstance(wanted, int):
            assert scene.limit() == wanted
        else:
            assert scene.reason() == (wanted or "LimitNotControlled")

    def test_limits_that_are_not_the_vpas(self):
        assert Scene(policy=ContainerPolicy("app", controlled_values="RequestsOnly")).reason() == "LimitNotControlled"

    @pytest.mark.parametrize(
        ("item", "wanted"),
        [
            ({"type": "Container", "max": {"memory": "2200Mi"}}, 2200 * MIB),
            ({"type": "Container", "max": {"memory": "2Gi"}}, "LimitRange"),
            ({"type": "Pod", "max": {"memory": "3Gi"}}, 2200 * MIB),  # a sidecar has the rest
        ],
        ids=["container", "reached", "pod"],
    )
    def test_limit_ranges(self, item, wanted):
        sidecar = a_container("log", memory="100Mi", memory_limit="872Mi", restart_policy="Always")
        scene = Scene(pod=a_pod(BURSTABLE, init=(sidecar,)))
        scene.cluster.limit_ranges = bounds(**item)
        assert scene.limit() == wanted if isinstance(wanted, int) else scene.reason() == wanted

    @pytest.mark.parametrize(
        ("container", "hard", "used", "wanted"),
        [
            (BURSTABLE, {"limits.memory": "4Gi"}, {"limits.memory": "3996Mi"}, 2148 * MIB),
            (BURSTABLE, {"limits.memory": "4Gi"}, {"limits.memory": "4Gi"}, "QuotaWouldExceed"),
            (BURSTABLE, {"requests.memory": "4Gi"}, {"requests.memory": "4Gi"}, 2458 * MIB),
            (GUARANTEED, {"requests.memory": "4Gi"}, {"requests.memory": "4Gi"}, "QuotaWouldExceed"),
            (GUARANTEED, {"memory": "4Gi"}, {"memory": "3Gi"}, 2458 * MIB),
        ],
        ids=["part of it", "none of it", "requests stay", "requests go along", "enough"],
    )
    def test_quotas(self, container, hard, used, wanted):
        scene = Scene(container)
        scene.cluster.quotas = quota(hard, used)
        assert scene.limit() == wanted if isinstance(wanted, int) else scene.reason() == wanted

    def test_no_limit_above_what_the_node_can_allocate(self):
        scene = Scene()
        scene.cluster.nodes = [SMALL_NODE]
        assert scene.limit(usage_bytes=2 * GIB, growth_bytes_per_second=100 * MIB) == 4 * GIB
        scene.cluster.nodes = [replace(SMALL_NODE, allocatable=parse_amounts({"cpu": "8", "memory": "2Gi"}, ""))]
        assert scene.reason() == "NodeCapacity"

    @pytest.mark.parametrize(
        ("container", "other", "wanted"),
        [
            (BURSTABLE, "2Gi", 2458 * MIB),  # a limit alone is no promise
            (GUARANTEED, "1Gi", 2458 * MIB),
            (GUARANTEED, "1900Mi", 2196 * MIB),  # what there is
            (GUARANTEED, "2040Mi", "NodeFull"),
        ],
        ids=["burstable", "room", "little room", "no room"],
    )
    def test_room_on_the_node_is_needed_where_the_request_goes_along(self, container, other, wanted):
        neighbour = a_pod(a_container(cpu="1", memory=other), name="api-0")
        scene = Scene(container, others=(neighbour,))
        scene.cluster.nodes = [SMALL_NODE]
        assert scene.limit() == wanted if isinstance(wanted, int) else scene.reason() == wanted

    def test_what_is_promised_in_the_same_round_is_taken(self):
        other = a_pod(GUARANTEED, name="web-1")
        scene = Scene(GUARANTEED, others=(other,))
        scene.cluster.nodes = [replace(SMALL_NODE, allocatable=parse_amounts({"cpu": "8", "memory": "4600Mi"}, ""))]
        scene.cluster.press()
        scene.cluster.press("web-1")
        world = read_world(scene.cluster)
        ground = Ground.of(world, {"n1"})
        limits = []
        for plea in pleas_of(scene.cluster.node_memories):
            pod = scene.cluster.get_pod(plea.pod)
            relief = relief_of(plea, world.view(pod, world.vpa_of[pod.key], START, SETTINGS), RULES, ground, SETTINGS)
            if isinstance(relief, Relief):
                limits.append(relief.after["app"].limits.memory_bytes)
                ground.take(Wish(pod, relief.after))
        assert limits == [2458 * MIB, 2142 * MIB]

    def test_beneath_the_pods_own_limit(self):
        own = with_own_resources(a_pod(BURSTABLE), cpu="1", memory="1Gi", memory_limit="2200Mi")
        assert Scene(pod=own).limit() == 2200 * MIB
        full = with_own_resources(a_pod(BURSTABLE), cpu="1", memory="1Gi", memory_limit="2Gi")
        assert Scene(pod=full).reason() == "PodLevelResources"


# -- whether


@pytest.mark.parametrize(
    ("told", "wanted"),
    [
        ({"ago": 200.0}, "StaleReport"),
        ({"beat_ago": 200.0}, "StaleReport"),
        ({"ago": -200.0}, "StaleReport"),
        ({"observed_time": "yesterday"}, "StaleReport"),
        ({"pod_uid": "another"}, "AnotherPod"),
        ({"container_id": "containerd://another"}, "AnotherContainer"),
        ({"limit_bytes": GIB}, "LimitDiffers"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_what_does_not_fit_the_pod_is_not_believed(told, wanted):
    assert Scene().reason(**told) == wanted


def test_the_report_of_another_node_is_not_believed():
    scene = Scene()
    scene.cluster.press()
    (memory,) = scene.cluster.node_memories
    elsewhere = _replace(memory, metadata=ObjectMeta(name="n2"))
    world = read_world(scene.cluster)
    pod = scene.cluster.pod
    (plea,) = pleas_of([elsewhere])
    verdict = relief_of(plea, world.view(pod, world.vpa_of[pod.key], START, SETTINGS), RULES, Ground.of(world, {"n1", "n2"}), SETTINGS)
    assert verdict.reason == "AnotherPod"


@pytest.mark.parametrize(
    ("mode", "wanted"),
    [
        ("Off", "ModeOff"),
        ("Initial", "ModeInitial"),
        ("Recreate", "ModeNeedsEviction"),
        ("Auto", "ModeNeedsEviction"),
        ("Sideways", "ModeUnknown"),
    ],
)
def test_only_the_modes_that_resize_in_place(mode, wanted):
    assert Scene(mode=mode).reason() == wanted


@pytest.mark.parametrize("mode", ["InPlace", "InPlaceOrRecreate"])
def test_both_modes_that_resize_in_place(mode):
    assert Scene(mode=mode).limit() == 2458 * MIB


@pytest.mark.parametrize(
    ("how", "wanted"),
    [
        ({"policy": ContainerPolicy("app", mode="Off")}, "MemoryNotControlled"),
        ({"policy": ContainerPolicy("app", controlled_resources=["cpu"])}, "MemoryNotControlled"),
        ({"pause": "true"}, "Paused"),
        ({"settings": Settings(paused=True)}, "Paused"),
        ({"container": a_container(memory="1Gi")}, "LimitDiffers"),
        ({"container": a_container(cpu="1", memory="1Gi", memory_limit="2Gi", restarts=("memory",))}, "WouldRestart"),
        ({"pod": a_pod(BURSTABLE, annotations={ANNOTATION_MIRROR_POD: "1"})}, "StaticPod"),
        ({"pod": a_pod(BURSTABLE, deletion_timestamp="2027-01-15T08:00:00Z")}, "PodDeleting"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_is_not_the_updaters_to_change(how, wanted):
    assert Scene(**how).reason() == wanted


def test_no_vpa():
    scene = Scene()
    vpa = scene.cluster.vpas[0]
    scene.cluster.vpas = [_replace(vpa, spec=_replace(vpa.spec, target_ref=TargetRef("StatefulSet", "other", "apps/v1")))]
    assert scene.reason() == "NoVpa"


def test_a_closed_window_does_not_stop_it():
    assert Scene(windows="Mon 00:00-00:01 UTC").limit() == 2458 * MIB


@pytest.mark.parametrize("version", ["1.32", "1.33", "1.36"])
def test_every_version_that_resizes_in_place(version):
    assert Scene(rules=rules_for(version)).limit() == 2458 * MIB


@pytest.mark.parametrize(("version", "wanted"), [("1.32", "VersionForbidsContainer"), ("1.33", 2458 * MIB)])
def test_sidecars_where_the_version_resizes_them(version, wanted):
    sidecar = a_container("log", cpu="10m", memory="1Gi", memory_limit="2Gi", restart_policy="Always")
    scene = Scene(pod=a_pod(BURSTABLE, init=(sidecar,)), rules=rules_for(version))
    assert scene.limit(container="log") == wanted if isinstance(wanted, int) else scene.reason(container="log") == wanted


def test_a_static_memory_manager_is_not_asked_again():
    scene = Scene(GUARANTEED)
    node = scene.cluster.nodes[0]
    scene.remember(Ledger(infeasible=Infeasible(node.shape, InfeasibleCause.MEMORY_MANAGER, 1000, 2 * GIB)))
    assert scene.reason() == "StaticMemoryManager"


def test_an_hpa_on_memory_stands_against_a_request_that_goes_along_alone():
    metric = Metric("Resource", ResourceMetric("memory", MetricTarget("Utilization")))
    hpa = HorizontalPodAutoscaler(ObjectMeta(name="hpa", namespace="shop"), HpaSpec(TargetRef("StatefulSet", "web", "apps/v1"), [metric]))
    scene = Scene(GUARANTEED)
    scene.cluster.hpas = [hpa]
    assert scene.reason() == "HorizontalPodAutoscaler"
    scene = Scene()
    scene.cluster.hpas = [hpa]
    assert scene.limit() == 2458 * MIB


def test_a_container_that_restarts_for_more_memory_does_so_only_after_a_kill():
    container = a_container(cpu="1", memory="1Gi", memory_limit="2Gi", restarts=("memory",))
    assert Scene(container).reason() == "WouldRestart"
    assert Scene(container).verdict(reason="OomKilled").restarts


def test_a_container_that_is_down_is_helped_only_if_it_was_killed_for_memory():
    scene = Scene()
    killed = ContainerState(terminated=ContainerStateTerminated(137, "OOMKilled"))
    scene.change_container(state=ContainerState(waiting=ContainerStateWaiting("CrashLoopBackOff")), last_state=killed)
    assert scene.limit() == 2458 * MIB
    scene.change_container(last_state=ContainerState())
    assert scene.reason() == "PodNotRunning"


# -- again and again


@pytest.mark.parametrize(
    ("ago", "wanted"),
    [
        ([10.0], "RelievedLately"),
        ([30.0], None),
        ([40.0, 90.0, 200.0, 300.0], None),
        ([40.0, 90.0, 200.0, 300.0, 3500.0], "LeakSuspected"),
        ([40.0, 90.0, 200.0, 300.0, 3601.0], None),
        ([0.0], None),  # the first attempt of this very round
    ],
    ids=["sooner", "a pause later", "four", "five", "long ago", "this one"],
)
def test_not_too_soon_and_not_too_often(ago, wanted):
    scene = Scene()
    scene.remember(Ledger(reliefs={"app": [START - seconds for seconds in ago], "log": [START - 1]}))
    assert scene.reason() == wanted if wanted else scene.limit() == 2458 * MIB


def test_hold_offs_do_not_stop_it_but_its_own_refusal_does():
    ledger = with_hold_off(Ledger(), "*", Scope.ANY, "KubeletError", START, SETTINGS)
    scene = Scene()
    scene.remember(with_hold_off(ledger, "app", Scope.SHRINK, "Growing", START, SETTINGS))
    assert scene.limit() == 2458 * MIB
    scene.remember(with_hold_off(ledger, "app", Scope.GROW, "AdmissionDenied", START, SETTINGS))
    assert scene.reason() == "AdmissionDenied"


class TestUnderWay:
    """A resize stands in the pod's status."""

    def test_a_raise_that_is_being_carried_out_is_waited_for(self):
        scene = Scene(a_container(cpu="200m", memory="1Gi", memory_limit="3Gi"))
        scene.change_container(resources=BURSTABLE.resources)
        scene.change_meta(generation=2)
        assert scene.reason() == "ResizeUnderWay"

    def test_a_limit_that_is_coming_down_is_raised_from_where_it_is(self):
        scene = Scene(a_container(cpu="200m", memory="500Mi", memory_limit="1Gi"))
        scene.change_container(resources=BURSTABLE.resources)
        scene.change(conditions=[Condition("PodResizeInProgress", "True", "Error", "below current usage")])
        assert scene.limit() == 2458 * MIB

    def test_another_resource_that_is_being_changed_does_not_matter(self):
        scene = Scene()
        scene.change_container(resources=a_container(cpu="100m", memory="1Gi", memory_limit="2Gi").resources)
        scene.change(conditions=[Condition("PodResizeInProgress", "True")])
        assert scene.limit() == 2458 * MIB

    def test_what_somebody_else_waits_for_is_not_taken_from_them(self):
        scene = Scene()
        scene.change(conditions=[Condition("PodResizePending", "True", "Deferred", "no room")])
        assert scene.reason() == "ResizeUnderWay"


def test_the_most_urgent_is_first():
    cluster = FakeCluster(a_pod(BURSTABLE), a_pod(BURSTABLE, name="web-1"), a_pod(BURSTABLE, name="web-2"))
    for name, reason in (("web-0", "WillReachLimit"), ("web-1", "SomethingNew"), ("web-2", "OomKilled")):
        cluster.press(name, reason=reason)
    assert [plea.pod.name for plea in pleas_of(cluster.node_memories)] == ["web-2", "web-0", "web-1"]


# -- what holds of every relief

KINDS = st.sampled_from(
    [
        BURSTABLE,
        GUARANTEED,
        a_container(memory="1Gi", memory_limit="1Gi"),
        a_container(cpu="1", cpu_limit="1", memory="64Mi", memory_limit="64Mi"),
    ]
)
sizes = st.integers(0, 20 * GIB)


@given(
    KINDS,
    st.floats(0.5, 1.05),
    st.integers(-GIB, 10 * GIB),
    st.one_of(st.none(), sizes),
    st.one_of(st.none(), sizes),
    st.one_of(st.none(), sizes),
)
def test_a_relief_lowers_nothing_and_keeps_to_every_bound(container, used, growth, size, quota_bytes, range_bytes):
    scene = Scene(container)
    if size is not None:
        scene.cluster.nodes = [Node("n1", parse_amounts({"cpu": "8", "memory": size}, ""))]
    if quota_bytes is not None:
        scene.cluster.quotas = quota({"limits.memory": str(quota_bytes)}, {"limits.memory": "0"})
    if range_bytes:
        scene.cluster.limit_ranges = bounds(type="Container", max={"memory": str(range_bytes)})
    pod = scene.cluster.pod
    old = pod.desired("app")
    verdict = scene.verdict(usage_bytes=int(old.limits.memory_bytes * used), growth_bytes_per_second=growth)
    assume(isinstance(verdict, Relief))
    new = verdict.after["app"]
    assert new.limits.memory_bytes > old.limits.memory_bytes
    assert (new.requests.memory_bytes or 0) >= (old.requests.memory_bytes or 0)
    assert (new.requests.cpu_millicores, new.limits.cpu_millicores) == (old.requests.cpu_millicores, old.limits.cpu_millicores)
    assert size is None or new.limits.memory_bytes <= size
    assert not range_bytes or new.limits.memory_bytes <= range_bytes
    assert quota_bytes is None or new.limits.memory_bytes - old.limits.memory_bytes <= quota_bytes
    resources = {side: amounts.to_quantities() for side, amounts in (("requests", new.requests), ("limits", new.limits))}
    changed = _replace(pod, spec=_replace(pod.spec, containers=[_replace(container, resources=_replace(container.resources, **resources))]))
    assert expected_pod_qos(changed) == pod.status.qos_class
