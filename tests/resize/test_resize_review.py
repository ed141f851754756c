"""What a hostile neighbour, a dead agent, or an owner who writes into the pod's annotations must not bring about."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from resize_support import FakeApiError, FakeClock, FakeCluster, a_container, a_pod, a_recommendation, a_vpa

from vpa_ippr.api.errors import ClusterError
from vpa_ippr.api.meta import ObjectKey
from vpa_ippr.api.names import ANNOTATION_PREVIOUS_RESOURCES, ANNOTATION_RESIZE_LEDGER
from vpa_ippr.api.pod import ContainerState, ContainerStateRunning, ContainerStateWaiting
from vpa_ippr.api.shrink import Phase
from vpa_ippr.api.timestamps import format_time
from vpa_ippr.resize.controller import Updater
from vpa_ippr.resize.reasons import OutcomeCode as Code
from vpa_ippr.resize.rules import rules_for
from vpa_ippr.resize.settings import Settings

MIB = 1 << 20
GIB = 1 << 30
SETTINGS = Settings()
APP = a_container(cpu="200m", memory="1Gi", memory_limit="2Gi")
MEMORY_DOWN = a_recommendation(cpu="200m", memory="512Mi")
CPU_UP = a_recommendation(cpu="400m", memory="1Gi")


class Stage:
    """One pod whose memory is to go down, and an updater."""

    def __init__(self, *recommendations, pods=None) -> None:
        self.clock = FakeClock()
        vpas = (a_vpa(*(recommendations or (MEMORY_DOWN,))),)
        self.cluster = FakeCluster(*(pods or [a_pod(APP)]), vpas=vpas, clock=self.clock)
        self.updater = Updater(self.cluster, self.clock, SETTINGS, rules_for("1.36"))

    def cycle(self, seconds: float = 60.0):
        self.clock.moment += seconds
        outcomes = self.updater.run_cycle().outcomes
        assert self.cluster.violations == []
        return outcomes

    def codes(self, seconds: float = 60.0):
        return [outcome.code for outcome in self.cycle(seconds)]

    def edit_pod(self, **status: object) -> None:
        pod = self.cluster.pod
        self.cluster.pods[pod.key] = msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, **status))

    def edit_container_status(self, **fields: object) -> None:
        self.edit_pod(container_statuses=[msgspec.structs.replace(self.cluster.pod.status.container_statuses[0], **fields)])

    def annotate_pod(self, text: str) -> None:
        pod = self.cluster.pod
        annotations = {**pod.metadata.annotations, ANNOTATION_RESIZE_LEDGER: text}
        self.cluster.pods[pod.key] = msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, annotations=annotations))

    def edit_shrink(self, *, annotations: dict[str, str] | None = None, namespace: str = "shop", **status: object) -> None:
        (key, shrink), *_ = self.cluster.shrinks.items()
        meta = msgspec.structs.replace(shrink.metadata, namespace=namespace)
        if annotations is not None:
            meta = msgspec.structs.replace(meta, annotations=annotations)
        del self.cluster.shrinks[key]
        changed = msgspec.structs.replace(shrink, metadata=meta, status=msgspec.structs.replace(shrink.status, **status))
        self.cluster.shrinks[changed.key] = changed


def opened() -> Stage:
    stage = Stage()
    assert stage.codes() == [Code.SHRINK_OPENED]
    return stage


def committed() -> Stage:
    stage = opened()
    stage.cluster.agent(Phase.HOLDING)
    assert stage.codes() == [Code.SHRINK_PATCHED]
    return stage


# -- a Holding that nobody holds any more


def test_a_holding_that_the_agent_no_longer_confirms_is_not_trusted():
    stage = opened()
    stage.cluster.agent(Phase.HOLDING, held_time=format_time(stage.clock.moment))
    stage.cluster.agent_is_dead = True
    stage.cycle(SETTINGS.held_seconds + 1)
    assert stage.cluster.memory_limit() == 2 * GIB


def test_a_holding_that_grows_old_within_the_cycle_is_not_trusted():
    stage = opened()
    stage.cluster.agent(Phase.HOLDING, held_time=format_time(stage.clock.moment))
    stage.cluster.agent_is_dead = True
    nodes = stage.cluster.list_nodes

    def slowly():
        stage.clock.moment += 600
        return nodes()

    stage.cluster.list_nodes = slowly
    stage.cycle(0)
    assert stage.cluster.memory_limit() == 2 * GIB


def test_a_holding_that_was_confirmed_a_moment_ago_is_trusted():
    stage = opened()
    stage.cluster.agent(Phase.HOLDING, held_time=format_time(stage.clock.moment))
    stage.cluster.agent_is_dead = True
    assert stage.codes(30) == [Code.SHRINK_PATCHED]


def test_a_holding_without_a_time_is_not_trusted():
    stage = opened()
    stage.cluster.agent_is_dead = True
    stage.cluster.agent(Phase.HOLDING)
    stage.cycle()
    assert stage.cluster.memory_limit() == 2 * GIB


@pytest.mark.parametrize(
    "status",
    [
        pytest.param({"state": ContainerState(waiting=ContainerStateWaiting("CrashLoopBackOff"))}, id="waiting"),
        pytest.param({"container_id": "", "state": ContainerState(running=ContainerStateRunning())}, id="no-id"),
        pytest.param({"name": "other"}, id="no-status"),
    ],
)
def test_only_the_running_container_that_is_held_gets_the_lower_limit(status):
    stage = opened()
    stage.cluster.agent(Phase.HOLDING)
    stage.edit_container_status(**status)
    stage.cycle()
    assert stage.cluster.memory_limit() == 2 * GIB


@pytest.mark.parametrize("phase", [Phase.OBSERVING, Phase.SHRINKING, Phase.HOLDING])
def test_a_shrink_whose_agent_died_is_given_up(phase):
    stage = opened()
    stage.cluster.agent_is_dead = True
    stage.cluster.agent(phase)
    assert stage.codes(SETTINGS.shrink_deadline_seconds + SETTINGS.agent_grace_seconds + 1) == [Code.SHRINK_DISCARDED]
    assert stage.cluster.memory_limit() == 2 * GIB
    assert stage.cluster.shrinks == {}


def test_a_probation_outlasts_the_deadline_but_not_for_ever():
    stage = committed()
    stage.cluster.kubelet("done")
    stage.cluster.agent(Phase.COMMITTED)
    stage.cycle()
    assert Code.SHRINK_DISCARDED not in stage.codes(SETTINGS.shrink_deadline_seconds + SETTINGS.agent_grace_seconds)
    assert Code.SHRINK_DISCARDED in stage.codes(SETTINGS.probation_grace_seconds)


# -- shrinks of others


def test_a_shrink_of_another_namespace_says_nothing_about_the_pod():
    stage = opened()
    stage.edit_shrink(namespace="evil", annotations={}, phase=Phase.HOLDING)
    stage.cluster.recommend(CPU_UP)
    assert Code.ISSUED in stage.codes()
    assert stage.cluster.memory_limit() == 2 * GIB


def test_a_shrink_of_another_namespace_raises_no_limit():
    stage = committed()
    stage.cluster.kubelet("done")
    stage.cycle()
    annotations = {ANNOTATION_PREVIOUS_RESOURCES: '{"limits": {"memory": "10Ti"}}'}
    stage.edit_shrink(namespace="evil", annotations=annotations, phase=Phase.REVERTED)
    stage.cycle()
    assert stage.cluster.memory_limit() == GIB


@pytest.mark.parametrize("text", [{}, {ANNOTATION_PREVIOUS_RESOURCES: "{"}, {ANNOTATION_PREVIOUS_RESOURCES: '{"limits": {"memory": "x"}}'}])
@pytest.mark.parametrize("phase", [Phase.OBSERVING, Phase.HOLDING, Phase.REVERTED])
def test_a_shrink_that_is_not_ours_does_not_stop_the_pods_other_resizes(text, phase):
    stage = opened()
    stage.edit_shrink(annotations=text, phase=phase)
    stage.cluster.recommend(CPU_UP)
    codes = [*stage.codes(), *stage.codes()]
    assert Code.ISSUED in codes
    assert Code.BAD_OBJECT not in codes
    assert stage.cluster.memory_limit() == 2 * GIB


def test_memory_is_given_back_although_the_shrinks_annotation_was_taken_away():
    stage = committed()
    stage.cluster.kubelet("done")
    stage.edit_shrink(annotations={}, phase=Phase.REVERTED)
    assert stage.codes() == [Code.SHRINK_UNDONE]
    assert stage.cluster.memory_limit() == 2 * GIB


def test_giving_back_never_lowers_a_limit():
    stage = committed()
    stage.cluster.kubelet("done")
    annotations = {ANNOTATION_PREVIOUS_RESOURCES: '{"limits": {"memory": "16Mi"}}'}
    stage.edit_shrink(annotations=annotations, phase=Phase.REVERTED)
    stage.cycle()
    assert stage.cluster.memory_limit() == GIB


# -- lists that leave something out


def test_a_pod_that_the_list_left_out_keeps_its_shrink():
    stage = committed()
    stage.cluster.agent(Phase.REVERTED, reason="PressureAfterCommit")
    stage.cluster.list_pods = list
    assert stage.codes() == []
    del stage.cluster.list_pods
    assert stage.codes() == [Code.SHRINK_UNDONE]
    assert stage.cluster.memory_limit() == 2 * GIB


def test_a_pod_that_cannot_be_asked_for_keeps_its_shrink():
    stage = opened()
    stage.cluster.list_pods = list

    def fail(_key):
        raise ClusterError("timed out")

    stage.cluster.get_pod = fail
    assert stage.codes() == [Code.UNAVAILABLE]
    assert len(stage.cluster.shrinks) == 1


def test_the_shrinks_of_a_pod_that_has_ended_are_cleaned_up():
    stage = opened()
    stage.edit_pod(phase="Failed")
    assert stage.codes() == [Code.SHRINK_ABORTED]


# -- loops


def test_a_container_in_a_crash_loop_gets_no_shrink_each_cycle():
    stage = opened()
    stage.cluster.agent(Phase.GONE, reason="ContainerExited")
    for _ in range(10):
        stage.cycle()
    assert len(stage.cluster.shrinks) == 1
    assert Code.SHRINK_OPENED in stage.codes(SETTINGS.hold_off_seconds)


def test_a_shrink_that_ended_lately_does_not_stop_one_that_asks_for_less():
    stage = opened()
    stage.cluster.agent(Phase.GONE, reason="ContainerExited")
    stage.cycle()
    stage.cluster.recommend(a_recommendation(cpu="200m", memory="700Mi"))
    assert stage.codes() == [Code.SHRINK_OPENED]


def test_an_owner_that_wipes_the_ledger_gets_no_shrink_and_no_event_each_cycle():
    stage = opened()
    stage.cluster.agent(Phase.REFUSED, reason="UnreclaimableAnonymous")
    for cycle in range(10):
        stage.cycle()
        if cycle % 3 == 0:
            stage.annotate_pod("{}")
    assert len(stage.cluster.shrinks) == 1
    assert stage.cluster.reasons.count("ShrinkRefused") == 1


def rival(stage: Stage, cpu: str) -> None:
    """Somebody else resizes the pod."""
    pod = stage.cluster.pod
    other = a_container(cpu=cpu, memory="1Gi", memory_limit="2Gi")
    meta = msgspec.structs.replace(pod.metadata, generation=pod.metadata.generation + 1)
    stage.cluster.pods[pod.key] = msgspec.structs.replace(pod, metadata=meta, spec=msgspec.structs.replace(pod.spec, containers=[other]))
    stage.cluster.kubelet("done")


def test_two_writers_do_not_take_turns_each_cycle():
    stage = Stage(CPU_UP)
    for _ in range(24 * 60):
        stage.cycle()
        stage.cluster.kubelet("done")
        if stage.cluster.pod.desired("app").requests.cpu_millicores == 400:
            rival(stage, "100m")
    assert len(stage.cluster.resizes) < 12
    assert stage.cluster.reasons.count("ResizeRefused") < 12


def test_after_one_change_by_somebody_else_the_recommendation_is_applied_again_later():
    stage = Stage(CPU_UP)
    stage.cycle()
    rival(stage, "100m")
    outcome, *_ = stage.cycle()
    assert (outcome.code, outcome.reason) == (Code.REFUSED, "ForeignWriter")
    stage.cycle(SETTINGS.hold_off_seconds)
    assert stage.cluster.pod.desired("app").requests.cpu_millicores == 400


def test_what_a_limit_range_fills_in_with_our_resize_is_nobody_elses():
    stage = Stage(CPU_UP)
    stage.cycle()
    pod = stage.cluster.pod
    filled = a_container(cpu="400m", cpu_limit="2", memory="1Gi", memory_limit="2Gi")
    stage.cluster.pods[pod.key] = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, containers=[filled]))
    stage.cluster.kubelet("done")
    stage.cluster.recommend(a_recommendation(cpu="600m", memory="1Gi"))
    assert Code.REFUSED not in [*stage.codes(), *stage.codes()]
    assert stage.cluster.pod.desired("app").requests.cpu_millicores == 600


# -- ledgers that we did not write


@pytest.mark.parametrize(
    "text",
    [
        '{"last": {"issuedAt": 0, "before": {"app": {"limits": {"memory": "lots"}}}, "after": {"app": {}}}}',
        '{"last": {"issuedAt": 0, "before": {"app": {}}, "after": {}, "shrink": "x"}}',
        '{"bases": {"app": {"original": {"requests": {"cpu": "-1"}}, "expected": {}}}}',
        '{"holdOffs": 3}',
    ],
    ids=["quantity", "nothing-after", "negative", "type"],
)
def test_a_ledger_that_we_cannot_have_written_is_begun_anew(text):
    stage = Stage(CPU_UP)
    stage.annotate_pod(text)
    assert stage.codes() == [Code.ISSUED]


def test_a_forged_ledger_lowers_no_memory_limit():
    stage = Stage(a_recommendation(cpu="200m", memory="1Gi"))
    small, now = (
        '{"app": {"limits": {"memory": "16Mi"}}}',
        '{"app": {"requests": {"cpu": "200m", "memory": "1Gi"}, "limits": {"memory": "2Gi"}}}',
    )
    stage.annotate_pod(f'{{"last": {{"issuedAt": 0, "before": {small}, "after": {now}}}}}')
    stage.cluster.kubelet("Error", "no")
    stage.cycle(3600)
    stage.cycle(3600)
    stage.annotate_pod(f'{{"last": {{"issuedAt": 0, "before": {now}, "after": {small}, "reverting": true}}}}')
    stage.cycle()
    assert stage.cluster.memory_limit() == 2 * GIB


@pytest.mark.parametrize("original", ['{"memory": "0"}', '{"memory": "1"}'], ids=["no-limit", "rounds-to-nothing"])
def test_a_forged_ratio_takes_no_limit_away(original):
    stage = Stage()
    spec = '{"requests": {"cpu": "200m", "memory": "1Gi"}, "limits": {"memory": "2Gi"}}'
    basis = f'{{"original": {{"requests": {{"cpu": "1", "memory": "9Ei"}}, "limits": {original}}}, "expected": {spec}}}'
    stage.annotate_pod(f'{{"bases": {{"app": {basis}}}}}')
    assert stage.codes() == [Code.SHRINK_OPENED]
    assert stage.cluster.shrink.spec.target_bytes == GIB


def test_one_pods_bad_ledger_leaves_the_others_alone():
    stage = Stage(CPU_UP, pods=[a_pod(APP), a_pod(APP, name="web-1")])
    stage.annotate_pod('{"last": {"issuedAt": 1e308, "before": {"\\ud83d": {}}, "after": {"\\ud83d": {}}, "reverting": true}}')
    stage.cycle()
    assert stage.cluster.pods[ObjectKey("shop", "web-1")].desired("app").requests.cpu_millicores == 400


AMOUNTS = st.sampled_from(["0", "1", "200m", "16Mi", "512Mi", "1Gi", "2Gi", "4Gi", "9Ei", "-1", "x"])
REQUIREMENTS = st.fixed_dictionaries(
    {}, optional={side: st.dictionaries(st.sampled_from(["cpu", "memory"]), AMOUNTS) for side in ("requests", "limits")}
)
SPEC = {"requests": {"cpu": "200m", "memory": "1Gi"}, "limits": {"memory": "2Gi"}}
CONTAINERS = st.dictionaries(st.sampled_from(["app", "ghost"]), st.one_of(st.just(SPEC), REQUIREMENTS), max_size=2)
RECORDS = st.fixed_dictionaries(
    {"issuedAt": st.sampled_from([0.0, -1e300, 1e300, 1.8e9]), "before": CONTAINERS, "after": CONTAINERS},
    optional={
        "reverting": st.booleans(),
        "shrink": st.sampled_from(["", "x"]),
        "stopped": st.just(["app"]),
        "nudge": st.booleans(),
        "generation": st.integers(-1, 3),
    },
)
HOLD_OFFS = st.fixed_dictionaries(
    {
        "container": st.sampled_from(["app", "*"]),
        "scope": st.sampled_from(["Grow", "Shrink", "Any"]),
        "until": st.sampled_from([0.0, -1e300, 1e300, 1.8e9]),
        "attempts": st.integers(-(2**62), 2**62),
        "reason": st.text(max_size=5),
    },
    optional={"floorBytes": st.integers(-(2**62), 2**62)},
)
LEDGERS = st.fixed_dictionaries(
    {},
    optional={
        "last": RECORDS,
        "bases": st.dictionaries(st.just("app"), st.fixed_dictionaries({"original": REQUIREMENTS, "expected": st.just(SPEC)})),
        "holdOffs": st.lists(HOLD_OFFS, max_size=2),
        "settled": st.lists(st.text(max_size=3), max_size=2),
    },
)


@given(ledger=LEDGERS, verdict=st.sampled_from(["done", "Error", "Deferred", "Infeasible", "busy"]), restarts=st.booleans())
def test_no_forged_ledger_lowers_a_memory_limit_or_breaks_the_cycle(ledger, verdict, restarts):
    app = a_container(cpu="200m", memory="1Gi", memory_limit="2Gi", restarts=("memory",) if restarts else ())
    stage = Stage(pods=[a_pod(app), a_pod(APP, name="web-1")])
    stage.annotate_pod(json.dumps(ledger))
    stage.cluster.kubelet(verdict, "no")
    for _ in range(3):
        codes = stage.codes(4000)  # the cluster's own watch over the safety rules is read in it
        assert Code.FAILED not in codes
        assert Code.BAD_OBJECT not in codes


def test_a_revert_that_stays_refused_does_not_flood_the_pods_events():
    stage = committed()
    stage.cluster.kubelet("done")
    stage.cluster.agent(Phase.REVERTED, reason="PressureAfterCommit")
    stage.cluster.resize_errors = [FakeApiError(403, "exceeded quota: q") for _ in range(10)]
    for _ in range(10):
        stage.cycle(1000)
    assert stage.cluster.reasons.count("ResizeRefused") == 1
    stage.cycle(1000)
    assert stage.cluster.memory_limit() == 2 * GIB
