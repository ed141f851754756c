"""The Prometheus source against a real Prometheus: what it reads is what was recorded, and what the trace-file source reads."""

import itertools
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.clocks import FixedClock
from support.prometheus import RealPrometheus, TestSeries, require_prometheus, write_openmetrics
from vpa_ippr.api.series import ContainerRef, Resource, Usage, Window, WorkloadRef
from vpa_ippr.metrics.prometheus import PrometheusSource
from vpa_ippr.metrics.quality import Reason
from vpa_ippr.metrics.settings import PrometheusSettings
from vpa_ippr.metrics.traces import TraceSource

pytestmark = pytest.mark.integration

STEP = 300
SCRAPE = 60
START = 1_700_000_100  # a multiple of the step
LENGTH = 2 * 86_400
END = START + LENGTH
WINDOW = Window(START, END, STEP)
MI = 1024 * 1024

CPU, MEMORY = "container_cpu_usage_seconds_total", "container_memory_working_set_bytes"
WEB = ContainerRef("shop", "web-7f9-a", "app")
PEAKY = ContainerRef("shop", "web-7f9-b", "app")
WORKER = ContainerRef("batch", "nightly-28-x", "worker")
STATIC = ContainerRef("batch", "static-node-1", "app")


def labels(container: ContainerRef, **more: str) -> dict[str, str]:
    return {
        "namespace": container.namespace,
        "pod": container.pod,
        "container": container.container,
        "job": "kubelet",
        "id": f"/kubepods/{container.pod}/{container.container}",
        **more,
    }


def sampled(name: str, series_labels: dict[str, str], times, values) -> TestSeries:
    return TestSeries({"__name__": name, **series_labels}, (np.asarray(times) * 1000).astype(np.int64), np.asarray(values, np.float64))


SCRAPES = np.arange(START, END + 1, SCRAPE)
POINTS = np.arange(START + STEP, END + 1, STEP)


def counter(cores: np.ndarray) -> np.ndarray:
    """The CPU counter at every scrape, for cores that are constant within each step."""
    return np.concatenate(([0.0], np.cumsum(np.repeat(cores, STEP // SCRAPE) * SCRAPE)))


def use(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Cores and bytes of each step: a daily rhythm with noise."""
    random = np.random.default_rng(seed)
    day = 1 + 0.5 * np.sin(np.arange(POINTS.size) * STEP / 86_400 * 2 * np.pi)
    return np.round(day * random.gamma(2, 0.1, POINTS.size), 4), np.round(day * random.gamma(9, 30, POINTS.size)) * MI


def usage_series() -> Iterator[TestSeries]:
    for seed, container in enumerate((WEB, PEAKY, WORKER, STATIC)):
        cores, bytes_used = use(seed)
        cpu, memory = counter(cores), np.append(bytes_used[0], np.repeat(bytes_used, STEP // SCRAPE))
        keep = np.ones(SCRAPES.size, np.bool_)
        if container == PEAKY:
            memory[502] = 8 * 1024 * MI  # one scrape, between two points
        if container == WORKER:
            keep[600:720] = False  # two hours without a scrape
        if container == STATIC:
            cpu[1440:] -= cpu[1440]  # the same cgroup, counted from zero again
        for job in ("kubelet", "kubernetes-cadvisor") if container == WEB else ("kubelet",):
            yield sampled(CPU, labels(container, job=job), SCRAPES[keep], cpu[keep])
            yield sampled(MEMORY, labels(container, job=job), SCRAPES[keep], memory[keep])
    # What cAdvisor shows beside the containers: the pod's cgroup, and the pause container.
    for name in ("", "POD"):
        pod = ContainerRef(WEB.namespace, WEB.pod, name)
        yield sampled(CPU, labels(pod), SCRAPES, np.arange(SCRAPES.size) * 600.0)
        yield sampled(MEMORY, labels(pod), SCRAPES, np.full(SCRAPES.size, 64.0 * 1024 * MI))


FIRST_KILL, SECOND_KILL = START + 36_017, START + 90_041


def state_series() -> Iterator[TestSeries]:
    """kube-state-metrics, scraped by two jobs, for the owners, the kills and the requests."""
    for job in ("ksm-a", "ksm-b"):

        def gauge(name: str, value, since: float = 0, job: str = job, **more: str) -> TestSeries:
            times = SCRAPES[since < SCRAPES]
            return sampled(name, {"job": job, **more}, times, value(times) if callable(value) else np.full(times.size, float(value)))

        def owner(namespace: str, pod: str, kind: str, name: str) -> TestSeries:
            whose = {"owner_kind": kind, "owner_name": name, "owner_is_controller": "true"}
            return gauge("kube_pod_owner", 1, namespace=namespace, pod=pod, **whose)

        yield owner("shop", WEB.pod, "ReplicaSet", "web-7f9")
        yield owner("shop", PEAKY.pod, "ReplicaSet", "web-7f9")
        yield owner("batch", WORKER.pod, "Job", "nightly-28")
        yield owner("batch", STATIC.pod, "Node", "node-1")
        yield gauge("kube_replicaset_owner", 1, namespace="shop", replicaset="web-7f9", owner_kind="Deployment", owner_name="web")
        yield gauge("kube_job_owner", 1, namespace="batch", job_name="nightly-28", owner_kind="CronJob", owner_name="nightly")
        for container in (WEB, WORKER):
            me = {"namespace": container.namespace, "pod": container.pod, "container": container.container}
            yield gauge("kube_pod_container_status_last_terminated_reason", 1, since=FIRST_KILL, reason="OOMKilled", **me)
            yield gauge(
                "kube_pod_container_status_restarts_total", lambda times: 1.0 * (times > FIRST_KILL) + 1.0 * (times > SECOND_KILL), **me
            )
            yield gauge(
                "kube_pod_container_resource_requests",
                lambda times: np.where(times < SECOND_KILL - 600, 64 * MI, 96 * MI),
                resource="memory",
                unit="byte",
                **me,
            )
            yield gauge("kube_pod_container_resource_limits", 256 * MI, resource="memory", unit="byte", **me)
            if container == WEB:  # only newer versions export the time
                yield gauge(
                    "kube_pod_container_status_last_terminated_timestamp",
                    lambda times: np.where(times > SECOND_KILL, SECOND_KILL, FIRST_KILL),
                    since=FIRST_KILL,
                    **me,
                )


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory) -> Iterator[RealPrometheus]:
    require_prometheus()
    directory = tmp_path_factory.mktemp("prometheus")
    text = directory / "history.om"
    write_openmetrics(text, [*usage_series(), *state_series()])
    server = RealPrometheus(directory)
    server.backfill(text)
    with server:
        yield server


def fetch(prometheus: RealPrometheus, window: Window = WINDOW, namespaces=None, **settings) -> Usage:
    with PrometheusSource(PrometheusSettings(url=prometheus.url, **settings), FixedClock(float(END))) as source:
        return source.fetch(window, namespaces)


@pytest.fixture(scope="module")
def usage(prometheus) -> Usage:
    return fetch(prometheus)


def series_of(usage: Usage, container: ContainerRef, resource: Resource):
    (found,) = [one for one in usage.series if (one.container, one.resource) == (container, resource)]
    return found


def test_every_container_is_found_once_and_nothing_else(usage, prometheus):
    assert sorted((one.container, one.resource) for one in usage.series) == sorted(
        (container, resource) for container in (WEB, PEAKY, WORKER, STATIC) for resource in Resource
    )
    assert usage.failures == ()
    with PrometheusSource(PrometheusSettings(url=prometheus.url), FixedClock(float(END))) as source:
        assert source.namespaces() == ("batch", "shop")


def test_memory_is_exactly_and_cpu_nearly_what_the_trace_file_says(usage, tmp_path):
    cores, bytes_used = use(0)
    path = tmp_path / "web.parquet"
    pq.write_table(
        pa.table(
            {
                "series_id": ["s/app/cpu"] * POINTS.size + ["s/app/memory"] * POINTS.size,
                "container": ["app"] * 2 * POINTS.size,
                "resource": ["cpu"] * POINTS.size + ["memory"] * POINTS.size,
                "timestamp": np.tile(POINTS, 2),
                "value": np.concatenate([cores, bytes_used]),
                "namespace": [WEB.namespace] * 2 * POINTS.size,
                "workload": ["web"] * 2 * POINTS.size,
                "pod": [WEB.pod] * 2 * POINTS.size,
            }
        ),
        path,
    )
    traces = TraceSource([path]).fetch(WINDOW)

    for resource, tolerance in ((Resource.MEMORY, 0), (Resource.CPU, 1e-6)):
        live, recorded = series_of(usage, WEB, resource), series_of(traces, WEB, resource)
        np.testing.assert_array_equal(live.timestamps, recorded.timestamps)
        np.testing.assert_allclose(live.values, recorded.values, rtol=tolerance, atol=tolerance / 1000)
    assert traces.owners[WEB.namespace, WEB.pod] == usage.owners[WEB.namespace, WEB.pod]


def test_a_peak_of_one_scrape_between_two_points_is_seen_once(usage):
    peaky = series_of(usage, PEAKY, Resource.MEMORY)

    assert np.count_nonzero(peaky.values == 8 * 1024 * MI) == 1
    assert peaky.timestamps[np.argmax(peaky.values)] == START + 101 * STEP


def test_owners_are_followed_to_the_top(usage):
    assert usage.owners == {
        ("shop", WEB.pod): WorkloadRef("shop", "Deployment", "web"),
        ("shop", PEAKY.pod): WorkloadRef("shop", "Deployment", "web"),
        ("batch", WORKER.pod): WorkloadRef("batch", "CronJob", "nightly"),
        ("batch", STATIC.pod): WorkloadRef("batch", "Pod", STATIC.pod),
    }


def test_each_kill_is_found_once_with_its_request(usage):
    def grid_after(moment: float) -> float:
        return -(-moment // STEP) * STEP

    assert [(kill.container, kill.at, kill.memory_request_bytes, kill.memory_limit_bytes) for kill in usage.ooms] == [
        (WORKER, grid_after(FIRST_KILL), 64 * MI, 256 * MI),
        (WORKER, grid_after(SECOND_KILL), 96 * MI, 256 * MI),
        (WEB, FIRST_KILL, 64 * MI, 256 * MI),
        (WEB, SECOND_KILL, 96 * MI, 256 * MI),
    ]


def test_what_is_wrong_with_the_data_is_said(usage):
    found = {(finding.reason, finding.subject): finding.count for finding in usage.findings}

    assert found == {
        (Reason.DUPLICATE_SERIES, "shop/web-7f9-a/app"): 2,
        (Reason.GAP, "batch/nightly-28-x/worker"): 1,
        (Reason.COUNTER_RESETS, "batch/static-node-1/app"): 1,
    }
    assert sum(finding.reason == Reason.GAP for finding in usage.findings) == 2  # CPU and memory


def test_a_counter_that_starts_again_gives_no_spike(usage):
    cores, _ = use(3)
    static = series_of(usage, STATIC, Resource.CPU)

    assert static.values.max() <= cores.max() * 1.01
    np.testing.assert_allclose(static.values[static.timestamps < START + 1440 * SCRAPE], cores[: 1440 * SCRAPE // STEP - 1], atol=1e-6)


def test_the_same_question_has_the_same_answer_and_parts_make_the_whole(usage, prometheus):
    cuts = [START, START + 30_000, START + 30_017, START + 100_000, END]
    parts = [fetch(prometheus, Window(start, end, STEP)) for start, end in itertools.pairwise(cuts)]
    again = fetch(prometheus)

    for one in usage.series:
        np.testing.assert_array_equal(series_of(again, one.container, one.resource).values, one.values)
        pieces = [
            part for usage_part in parts for part in usage_part.series if (part.container, part.resource) == (one.container, one.resource)
        ]
        np.testing.assert_array_equal(np.concatenate([piece.timestamps for piece in pieces]), one.timestamps)
        np.testing.assert_array_equal(np.concatenate([piece.values for piece in pieces]), one.values)
    assert sorted((kill for part in parts for kill in part.ooms), key=lambda kill: (kill.container, kill.at)) == sorted(
        usage.ooms, key=lambda kill: (kill.container, kill.at)
    )


def test_more_points_than_prometheus_allows_are_read_in_slices(prometheus):
    usage = fetch(prometheus, Window(START, END, 15), ["shop"], scrape_interval_seconds=15)

    assert LENGTH / 15 > 11_000
    assert usage.failures == ()
    memory = series_of(usage, WEB, Resource.MEMORY)
    assert memory.timestamps.tolist() == SCRAPES[1:].tolist()


def test_a_cluster_that_is_not_there_gives_nothing_and_says_so(prometheus):
    usage = fetch(prometheus, cluster="elsewhere")

    assert usage.series == ()
    assert [finding.reason for finding in usage.findings] == [Reason.NO_DATA]


def test_matchers_that_shut_out_the_owners_leave_the_usage_and_say_so(prometheus):
    usage = fetch(prometheus, namespaces=["shop"], extra_matchers=('job=~"kubelet|kubernetes-.*"',))

    assert {one.container for one in usage.series} == {WEB, PEAKY}
    assert usage.owners == {}
    assert [(finding.subject, finding.count) for finding in usage.findings if finding.reason == Reason.OWNER_UNKNOWN] == [("shop", 2)]
