"""What is asked about pods that were resized lately, and what comes of it."""

from dataclasses import replace

import msgspec
import pytest
from resize_support import FakeApiError, FakeClock, FakeCluster, a_container, a_pod, a_recommendation, a_vpa

from vpa_ippr.api.errors import SourceError
from vpa_ippr.api.meta import ObjectKey
from vpa_ippr.api.names import ANNOTATION_ROLLOUT_GUARD
from vpa_ippr.api.signals import Signals
from vpa_ippr.resize.controller import Updater
from vpa_ippr.resize.ledger import Ledger, with_resize
from vpa_ippr.resize.ledger import to_annotations as ledger_annotations
from vpa_ippr.resize.reasons import OutcomeCode as Code
from vpa_ippr.resize.rollout_state import Canary, Rollout, RolloutPhase, read_rollout, to_annotations
from vpa_ippr.resize.rules import rules_for
from vpa_ippr.resize.settings import Settings
from vpa_ippr.resize.watching import Watcher
from vpa_ippr.resize.world import read_world

SETTINGS = Settings()
APP = a_container(cpu="2", memory="1Gi", cpu_limit="4", memory_limit="1Gi")
CPU_DOWN = a_recommendation(cpu="1", memory="1Gi")
WEB_0, WEB_1 = ObjectKey("shop", "web-0"), ObjectKey("shop", "web-1")
GONE = SourceError("gone")


class Prometheus:
    """One guard's value, and signals before and since the resize; either may be an error."""

    def __init__(self, *, guard=None, before=0.0, since=0.0):
        self.guard, self.before, self.since = guard, before, since
        self.resized_at = None
        self.asked = []

    def evaluate(self, query):
        if isinstance(self.guard, Exception):
            raise self.guard
        self.asked.append(query)
        return self.guard

    def signals(self, namespace, pods, at, window_seconds):
        assert (namespace, pods) == ("shop", ["web-0"]), "only the canary is watched"
        assert 120 <= window_seconds <= SETTINGS.soak_seconds
        if isinstance(self.since, Exception):
            raise self.since
        is_before = at <= self.resized_at
        return {"web-0": {"app": Signals(cpu_throttled=self.before if is_before else self.since)}}


class Stage:
    """Two pods whose CPU is to come down, and an updater with a Prometheus."""

    def __init__(self, prometheus=None, *, guard=None):
        self.clock = FakeClock()
        vpa = a_vpa(CPU_DOWN)
        if guard is not None:
            vpa = msgspec.structs.replace(
                vpa, metadata=msgspec.structs.replace(vpa.metadata, annotations={ANNOTATION_ROLLOUT_GUARD: guard})
            )
        self.cluster = FakeCluster(a_pod(APP, name="web-0"), a_pod(APP, name="web-1"), vpas=(vpa,), clock=self.clock)
        self.prometheus = prometheus
        self.updater = Updater(self.cluster, self.clock, SETTINGS, rules_for("1.36"), guards=prometheus, signals=prometheus)

    def cycle(self, seconds=60.0):
        self.clock.moment += seconds
        result = self.updater.run_cycle()
        assert self.cluster.violations == []
        for name in ("web-0", "web-1"):
            self.cluster.kubelet("done", name=name)
        return {outcome.pod.name: (outcome.code, outcome.reason) for outcome in result.outcomes}

    def until_canary(self):
        """The canary has the change."""
        found = self.cycle()
        assert found == {"web-0": (Code.ISSUED, "SignificantChange"), "web-1": (Code.REFUSED, "WaitsForCanary")}
        if self.prometheus is not None:
            self.prometheus.resized_at = self.clock.moment

    def cpu(self, key):
        return self.cluster.pods[key].desired("app").requests.cpu_millicores

    @property
    def rollout(self):
        return read_rollout(self.cluster.vpas[0])


def test_without_harm_the_other_pod_follows_after_the_soak():
    stage = Stage(Prometheus(since=0.1))
    stage.until_canary()
    stage.cycle()
    assert stage.cycle()["web-1"] == (Code.REFUSED, "WaitsForCanary")
    stage.cycle(SETTINGS.soak_seconds)
    stage.cycle()
    assert (stage.cpu(WEB_0), stage.cpu(WEB_1)) == (1000, 1000)
    assert stage.rollout.phase is RolloutPhase.ROLLING


@pytest.mark.parametrize(
    ("before", "since", "harmed"),
    [(0.0, 0.5, True), (0.3, 0.5, False), (0.0, 0.2, False), (0.1, 0.3, True)],
    ids=["throttled", "throttled before, too", "hardly throttled", "far more than before"],
)
def test_throttling_that_the_resize_brought_takes_it_back(before, since, harmed):
    stage = Stage(Prometheus(before=before, since=since))
    stage.until_canary()
    for _ in range(4):
        stage.cycle()
    assert (stage.rollout.phase is RolloutPhase.DEGRADED) is harmed
    assert stage.cpu(WEB_0) == (2000 if harmed else 1000)
    assert stage.cpu(WEB_1) == 2000


def test_signals_that_cannot_be_read_do_no_harm_and_stop_nothing():
    stage = Stage(Prometheus(since=SourceError("prometheus: connection refused")))
    stage.until_canary()
    for _ in range(3):
        stage.cycle()
    stage.cycle(SETTINGS.soak_seconds)
    stage.cycle()
    assert stage.cpu(WEB_1) == 1000


def test_a_guard_that_fires_takes_the_change_back_and_says_so_on_the_vpa():
    stage = Stage(Prometheus(guard=3.0), guard='errors{pod="$pod"} > 1')
    stage.until_canary()
    found = stage.cycle()
    assert found["web-0"] == (Code.REVERTED, "RolloutDegraded")
    assert stage.prometheus.asked == ['errors{pod="web-0"} > 1']
    assert stage.cpu(WEB_0) == 2000
    (condition,) = stage.cluster.vpas[0].status.conditions
    assert (condition.type, condition.status) == ("Degraded", "True")
    assert "web-0" in condition.message
    assert "RolloutDegraded" in stage.cluster.reasons
    for _ in range(5):
        assert stage.cycle()["web-0"] == (Code.REFUSED, "Degraded")


@pytest.mark.parametrize(
    ("prometheus", "guard"),
    [(None, "errors > 1"), (Prometheus(guard=GONE, since=GONE), "errors > 1"), (Prometheus(), "errors >")],
    ids=["no Prometheus", "Prometheus gone", "no PromQL"],
)
def test_a_rollout_waits_for_a_guard_that_cannot_be_asked(prometheus, guard):
    stage = Stage(prometheus, guard=guard)
    found = [stage.cycle() for _ in range(3)][-1]
    if isinstance(prometheus, Prometheus) and isinstance(prometheus.guard, Exception):
        # It is asked about a pod, so it has to have one first.
        assert found["web-1"] == (Code.REFUSED, "GuardUnknown")
    else:
        assert found == {"web-0": (Code.REFUSED, "GuardUnknown"), "web-1": (Code.REFUSED, "GuardUnknown")}
        assert stage.cpu(WEB_0) == 2000
    assert stage.cpu(WEB_1) == 2000


def test_a_prometheus_that_does_not_answer_is_asked_a_few_times_a_cycle_and_no_more():
    prometheus, clock = Prometheus(), FakeClock()
    asked = []

    def evaluate(query):
        asked.append(query)
        raise GONE

    prometheus.evaluate = evaluate
    pods = [a_pod(APP, name=f"web-{number}") for number in range(8)]
    vpas = []
    for number, pod in enumerate(pods):
        vpa = a_vpa(CPU_DOWN, name=f"web-{number}")
        canary = Rollout(1, RolloutPhase.CANARY, key="k", canary=Canary(pod.metadata.uid, pod.metadata.name))
        annotations = {ANNOTATION_ROLLOUT_GUARD: "errors > 1", **to_annotations(canary)}
        vpas.append(msgspec.structs.replace(vpa, metadata=msgspec.structs.replace(vpa.metadata, annotations=annotations)))
    cluster = FakeCluster(*pods, vpas=tuple(vpas), clock=clock)
    watcher = Watcher(prometheus, None, SETTINGS)
    world = replace(read_world(cluster), groups={vpa.key: [pod] for vpa, pod in zip(vpas, pods, strict=True)})
    assert len(watcher.watch(world, clock.now()).guard_problems) == 8
    assert len(asked) == 3
    watcher.watch(world, clock.now())
    assert len(asked) == 6


@pytest.mark.parametrize("down", [False, True])
def test_growth_goes_although_the_rollout_beside_it_cannot_be_written(down):
    stage = Stage()
    stage.cluster.recommend(a_recommendation(cpu="1", memory="4Gi"))
    stage.cluster.pods[WEB_0] = a_pod(a_container(cpu="2", memory="1Gi", memory_limit="2Gi"), name="web-0")
    stage.cluster.pods[WEB_1] = a_pod(a_container(cpu="2", memory="1Gi", memory_limit="2Gi"), name="web-1")
    if down:
        stage.cluster.failing["annotate_vpa"] = FakeApiError(403, "verticalpodautoscalers is forbidden", api_reason="Forbidden")
    stage.cycle()
    assert stage.cluster.pods[WEB_1].desired("app").requests.memory_bytes == 4 << 30
    assert stage.cpu(WEB_0) == (2000 if down else 1000)


def test_the_pods_of_a_workload_are_asked_about_together():
    """One query for those that were resized at about the same time, however many they are."""
    prometheus, clock, asked = Prometheus(), FakeClock(), []

    def signals(namespace, pods, at, window_seconds):
        asked.append((len(pods), window_seconds))
        return {"web-7": {"app": Signals(cpu_throttled=0.9 if at == clock.moment else 0.0)}}

    prometheus.signals = signals
    before, after = a_pod(a_container(cpu="4", memory="1Gi", cpu_limit="8", memory_limit="1Gi")), {"app": a_pod(APP).desired("app")}
    ledgers = [with_resize(Ledger(), before, after, clock.moment - elapsed, rollout="k") for elapsed in (0, 130, 700)]
    pods = [a_pod(APP, name=f"web-{number}", annotations=ledger_annotations(ledgers[number % 3])) for number in range(300)]
    vpa = a_vpa(CPU_DOWN)
    rolling = to_annotations(Rollout(1, RolloutPhase.ROLLING, key="k"))
    vpa = msgspec.structs.replace(vpa, metadata=msgspec.structs.replace(vpa.metadata, annotations=rolling))
    cluster = FakeCluster(*pods, vpas=(vpa,), clock=clock)
    harms = Watcher(None, prometheus, SETTINGS).watch(read_world(cluster), clock.now()).harms[vpa.key]
    assert [harm.pod for harm in harms] == ["web-7"]
    assert sorted(asked) == [(1, 120), (100, 120), (100, 480)]
