"""Evidence from a simulated cluster, through its own endpoint and a real Prometheus: the same, and the judgements fit the workloads."""

import json
from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
import pytest

from support.clocks import FixedClock
from support.prometheus import RealPrometheus, TestSeries, require_prometheus, write_openmetrics
from vpa_ippr.api.series import ContainerRef, Evidence, EvidenceKind, Resource, Usage, Window
from vpa_ippr.metrics.prometheus import PrometheusSource
from vpa_ippr.metrics.quality import Reason
from vpa_ippr.metrics.queries import CPU_METRIC, EVIDENCE_METRICS, MEMORY_METRIC
from vpa_ippr.metrics.settings import PrometheusSettings
from vpa_ippr.sandbox.background import BackgroundServer
from vpa_ippr.sandbox.node import GIB, NodeSpec
from vpa_ippr.sandbox.promlabels import Matcher
from vpa_ippr.sandbox.promserver import prometheus_app
from vpa_ippr.sandbox.simulation import Simulation
from vpa_ippr.sandbox.workloads import ANNOTATION_WORKLOAD
from vpa_ippr.usage.evidence import MemoryParts, NeedReason, judge_cpu, judge_need, judge_pressure

pytestmark = pytest.mark.integration

START, STEP = 1_750_000_200, 300
END = START + 12 * STEP
# The first points see the containers start.
WINDOW = Window(START + 2 * STEP, END, STEP)
MI = 1024 * 1024


def part(level: str) -> list[dict[str, Any]]:
    return [{"kind": "steady", "level": level}]


# Name: limits, use.
PODS: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "throttled": ({"cpu": "200m", "memory": "256Mi"}, {"cpu": part("400m"), "anon": part("50Mi")}),
    "calm": ({"cpu": "1", "memory": "256Mi"}, {"cpu": part("100m"), "anon": part("50Mi")}),
    "unlimited": ({}, {"cpu": part("100m"), "anon": part("50Mi"), "fileCold": part("300Mi")}),
    "hot-cache": ({"cpu": "1", "memory": "256Mi"}, {"cpu": part("100m"), "anon": part("50Mi"), "fileHot": part("400Mi")}),
    # Reads on and on what it never reads again, beside a set that fits.
    "log-reader": (
        {"cpu": "1", "memory": "256Mi"},
        {
            "cpu": part("100m"),
            "anon": part("50Mi"),
            "fileHot": part("100Mi"),
            "fileCold": [{"kind": "ramp", "height": "20Gi", "overSeconds": 3600}],
        },
    ),
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Simulation]:
    simulation = Simulation(version="1.36", start_time=START, nodes=[NodeSpec("n1", 8000, 16 * GIB)])
    simulation.keeper.register("test")
    simulation.start()
    for name, (limits, use) in PODS.items():
        containers = [{"name": "app", "image": "app:1", "resources": {"limits": limits}}]
        metadata = {"name": name, "namespace": "default", "annotations": {ANNOTATION_WORKLOAD: json.dumps({"app": use})}}
        simulation.store.create("pods", {"metadata": metadata, "spec": {"nodeName": "n1", "containers": containers}})
    assert simulation.keeper.local_clock("test").wait_until(END + 1)
    yield simulation
    simulation.stop()


@pytest.fixture(scope="module")
def sandbox_url(cluster) -> Iterator[str]:
    server = BackgroundServer(prometheus_app(cluster.tsdb, FixedClock(float(END))), "127.0.0.1", 0)
    server.start()
    yield server.url
    server.stop()


@pytest.fixture(scope="module")
def prometheus_url(cluster, tmp_path_factory) -> Iterator[str]:
    require_prometheus()
    directory = tmp_path_factory.mktemp("prometheus")
    names = {CPU_METRIC, MEMORY_METRIC, *chain.from_iterable(EVIDENCE_METRICS.values())}
    series = []
    for name in sorted(names):
        for samples in cluster.tsdb.select([Matcher("__name__", "=", name)], START, END):
            kept = ~np.isnan(samples.values)
            series.append(TestSeries(dict(samples.labels), samples.times_ms[kept], samples.values[kept]))
    write_openmetrics(directory / "history.om", series)
    prometheus = RealPrometheus(directory)
    prometheus.backfill(directory / "history.om")
    with prometheus:
        yield prometheus.url


def source(url: str, **settings: Any) -> PrometheusSource:
    return PrometheusSource(PrometheusSettings(url=url, **settings), FixedClock(float(END)))


@pytest.fixture(scope="module", params=["sandbox", "prometheus"])
def found(request) -> tuple[Usage, Evidence]:
    with source(request.getfixturevalue(f"{request.param}_url")) as opened:
        return opened.fetch(WINDOW), opened.fetch_evidence(WINDOW)


def of(evidence: Evidence, pod: str, kind: EvidenceKind) -> np.ndarray:
    """One row; NaN where there is nothing, on the points of the window."""
    points = np.arange(WINDOW.start + STEP, WINDOW.end + 1, STEP)
    row = np.full((1, points.size), np.nan)
    for one in evidence.series:
        if (one.container, one.kind) == (ContainerRef("default", pod, "app"), kind):
            row[0, np.searchsorted(points, one.timestamps)] = one.values
    return row


def use(usage: Usage, pod: str, resource: Resource) -> np.ndarray:
    (one,) = [one for one in usage.series if (one.container.pod, one.resource) == (pod, resource)]
    return one.values[None, :]


def need(found: tuple[Usage, Evidence], pod: str):
    usage, evidence = found
    parts = MemoryParts(
        use(usage, pod, Resource.MEMORY),
        *(
            of(evidence, pod, kind)
            for kind in (
                EvidenceKind.RSS,
                EvidenceKind.MAPPED_FILE,
                EvidenceKind.ACTIVE_FILE,
                EvidenceKind.FILE_REFAULTS,
                EvidenceKind.RECLAIMED,
                EvidenceKind.MEMORY_PRESSURE,
            )
        ),
    )
    return judge_need(parts, STEP)


def test_every_kind_is_found_of_every_container_that_can_have_it(found) -> None:
    _, evidence = found

    assert (evidence.findings, evidence.failures) == ((), ())
    kinds = {pod: {one.kind for one in evidence.series if one.container.pod == pod} for pod in PODS}
    assert kinds.pop("unlimited") == set(EvidenceKind) - {EvidenceKind.CPU_THROTTLED}
    assert set(map(frozenset, kinds.values())) == {frozenset(EvidenceKind)}
    assert {one.container.container for one in evidence.series} == {"app"}


def test_evidence_lies_on_the_grid_of_the_usage(found) -> None:
    usage, evidence = found
    (cpu,) = [one for one in usage.series if (one.container.pod, one.resource) == ("calm", Resource.CPU)]

    for one in evidence.series:
        assert one.timestamps.tolist() == cpu.timestamps.tolist(), one


def test_the_sandbox_and_prometheus_say_the_same(sandbox_url, prometheus_url) -> None:
    answers = []
    for url in (sandbox_url, prometheus_url):
        with source(url) as opened:
            answers.append(opened.fetch_evidence(WINDOW))

    for one, other in zip(*(answer.series for answer in answers), strict=True):
        assert (one.container, one.kind) == (other.container, other.kind)
        np.testing.assert_allclose(one.values, other.values, rtol=1e-9, atol=1e-12)


def test_a_throttled_container_wants_more_than_it_uses(found) -> None:
    usage, evidence = found

    for pod, uplift in (("throttled", 2.0), ("calm", 1.0), ("unlimited", 1.0)):
        cores = use(usage, pod, Resource.CPU)
        judged = judge_cpu(cores, of(evidence, pod, EvidenceKind.CPU_THROTTLED), of(evidence, pod, EvidenceKind.CPU_PRESSURE))
        assert judged.uplift == pytest.approx(np.full(cores.shape, uplift)), pod


def test_cache_that_is_reused_counts_and_cache_that_is_not_counts_in_part(found) -> None:
    usage, _ = found
    hot, logs, calm = need(found, "hot-cache"), need(found, "log-reader"), need(found, "calm")

    assert set(hot.reason[0]) <= {NeedReason.REUSED, NeedReason.UNDER_PRESSURE}
    assert (hot.need_bytes == use(usage, "hot-cache", Resource.MEMORY)).all()
    assert set(logs.reason[0]) == {NeedReason.NOT_REUSED}
    assert logs.need_bytes.max() < use(usage, "log-reader", Resource.MEMORY).min()
    assert logs.need_bytes.min() > 50 * MI
    assert set(calm.reason[0]) == {NeedReason.LITTLE_CACHE}


def test_a_limit_that_is_too_small_for_what_is_read_is_tight(found) -> None:
    _, evidence = found

    for pod, tight in (("hot-cache", True), ("calm", False)):
        assert judge_pressure(of(evidence, pod, EvidenceKind.MEMORY_PRESSURE)).tight.all() == tight, pod


def test_metrics_that_are_not_there_are_one_finding(prometheus_url) -> None:
    with source(prometheus_url, extra_matchers=('pod="unlimited"',)) as opened:
        evidence = opened.fetch_evidence(WINDOW, ["default"])

    assert {one.kind for one in evidence.series} == set(EvidenceKind) - {EvidenceKind.CPU_THROTTLED}
    assert [(finding.reason, finding.count) for finding in evidence.findings] == [(Reason.NO_EVIDENCE, 1)]
    assert evidence.failures == ()
