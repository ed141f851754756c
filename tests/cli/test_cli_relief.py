"""The guard against OOM kills end to end: a node's report in the API server, and the limit that the updater raises over HTTP."""

import os
import signal
import threading
import time

import pytest

from support.cli import run
from support.sandbox import VPAS, controller_spec, owner_of, running_sandbox, vpa_spec
from vpa_ippr.api.clock import SystemClock
from vpa_ippr.api.node_memory import NodeMemoryStatus, PressingContainer
from vpa_ippr.api.pod import Pod
from vpa_ippr.api.timestamps import format_micro_time
from vpa_ippr.cli import updater
from vpa_ippr.cluster import paths
from vpa_ippr.cluster.cache import WatchCache
from vpa_ippr.cluster.cached import CachedKube
from vpa_ippr.cluster.node_port import NodePort
from vpa_ippr.sandbox.node import NodeSpec

pytestmark = pytest.mark.integration

MIB, GIB = 1 << 20, 1 << 30


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch, tmp_path):
    for name in ("PROMETHEUS_URL", "KUBECONFIG", "VPA_IPPR_LOG_LEVEL", "VPA_IPPR_CLOCK_URL", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture(autouse=True)
def _watches_end_with_the_test(monkeypatch):
    """They are daemon threads, which live as long as the process."""
    begun, start = [], WatchCache.start

    def noted(cache):
        begun.append(cache)
        start(cache)

    monkeypatch.setattr(CachedKube.__init__, "__kwdefaults__", {**CachedKube.__init__.__kwdefaults__, "start": noted})
    yield
    for cache in begun:
        cache.stop()


@pytest.fixture
def cluster(tmp_path):
    """A pod that has what is recommended."""
    with running_sandbox(tmp_path, kubelet=False, tls=False, nodes=[NodeSpec("n1", 4_000, 64 << 30)]) as running:
        owner = running.create("statefulsets.apps", "shop", "web", spec={**controller_spec("web"), "serviceName": "web"})
        running.pod("shop", "web-0", owner=owner_of(owner), requests={"cpu": "200m", "memory": "1Gi"}, limits={"memory": "2Gi"})
        amounts = {"cpu": "200m", "memory": "1Gi"}
        status = {"recommendation": {"containerRecommendations": [{"containerName": "app", "target": amounts}]}}
        running.create(VPAS, "shop", "web", spec=vpa_spec("StatefulSet", "web", updatePolicy={"updateMode": "InPlace"}), status=status)
        yield running


def press(cluster):
    """What the agent of n1 writes."""
    pod, now = cluster.store.get("pods", "shop", "web-0"), format_micro_time(time.time())
    entry = PressingContainer(
        "shop", "web-0", pod["metadata"]["uid"], "app", "containerd://1", 1990 * MIB, 2 * GIB, "WillReachLimit", "", 10 * MIB, now, now
    )
    NodePort(cluster.rest, SystemClock()).put_node_memory("n1", NodeMemoryStatus([entry], 1, now))


def memory_limit(cluster):
    return cluster.store.get("pods", "shop", "web-0")["spec"]["containers"][0]["resources"]["limits"]["memory"]


def test_a_cycle_alone_raises_the_limit_and_explain_tells(cluster):
    press(cluster)
    arguments = ("explain", "shop/StatefulSet/web", "--kubeconfig", cluster.kubeconfig)
    before = run(*arguments).out
    assert "(WillReachLimit: 1990Mi of 2Gi in use, 10Mi/s more); MemoryRelieved (WillReachLimit): app memory limit 2Gi -> 2590Mi" in before
    assert run("updater", "--once", "--kubeconfig", cluster.kubeconfig).code == 0
    assert memory_limit(cluster) == "2590Mi"
    after = run(*arguments).out
    assert "NotRelieved (ResizeUnderWay): the limit is being raised to 2590Mi" in after
    assert "relieved: app got more memory at its limit once within an hour, last 20" in after
    assert "held off: app memory is not lowered below 2.14Gi before 20" in after
    reasons = [event["reason"] for event in cluster.store.list("events", "shop")]
    assert "MemoryRelieved" in reasons


def test_the_news_wakes_the_updater_up_long_before_its_next_cycle(cluster, monkeypatch):
    monkeypatch.setattr(updater, "_RELIEF_SECONDS", 3600.0)  # only the bell is left
    raised = []

    def act():
        """When the first cycle has run, the agent tells; when the limit is raised, the updater is stopped."""
        try:
            began = cluster.store.get("pods", "shop", "web-0")["metadata"]["resourceVersion"]
            first_cycle.wait(60)
            press(cluster)
            told = time.monotonic()
            for event in cluster.rest.watch(paths.PODS, Pod, began, timeout_seconds=60):
                if event.object is not None and event.object.desired("app").limits.memory_bytes != 2 * GIB:
                    raised.append((event.object.desired("app").limits.memory_bytes, time.monotonic() - told))
                    break
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    first_cycle = threading.Event()
    timed = updater_telemetry().timed
    monkeypatch.setattr(updater_telemetry(), "timed", lambda self, cycle: (timed(self, cycle), first_cycle.set())[0])
    agent = threading.Thread(target=act)
    agent.start()
    assert run("updater", "--interval", "1h", "--kubeconfig", cluster.kubeconfig).code == 0
    agent.join()
    ((limit, seconds),) = raised
    assert limit == 2590 * MIB
    assert seconds < 30  # some hundredths on a quiet machine


def updater_telemetry():
    from vpa_ippr.cli.updater_telemetry import UpdaterTelemetry

    return UpdaterTelemetry
