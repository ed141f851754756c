"""The sandbox's Prometheus endpoint and a real Prometheus, given the same samples, must answer the same."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support import asgi
from support.prometheus import RealPrometheus, TestSeries, write_openmetrics
from vpa_ippr.api.clock import SystemClock
from vpa_ippr.metrics import queries
from vpa_ippr.sandbox.promserver import prometheus_app
from vpa_ippr.sandbox.tsdb import STALE, Tsdb

pytestmark = pytest.mark.integration

START = 1_700_000_000
HOURS = 6
SCRAPE_SECONDS = 30
CPU, MEMORY = queries.CPU_METRIC, queries.MEMORY_METRIC


def _scrape_times(rng: np.random.Generator, first_hour: float = 0, last_hour: float = HOURS) -> np.ndarray:
    """Every 30 s, some of them late by milliseconds, one in fifty missed, and a hole of twelve minutes after two hours."""
    times = np.arange(START + first_hour * 3600, START + last_hour * 3600, SCRAPE_SECONDS) * 1000
    times = times.astype(np.int64) + rng.integers(0, 400, times.size) * rng.integers(0, 2, times.size)
    hole = (times >= (START + 7200) * 1000) & (times < (START + 7920) * 1000)
    return times[~hole & (rng.random(times.size) > 0.02)]


def _counter(rng: np.random.Generator, times: np.ndarray, *, resets: int) -> np.ndarray:
    value = np.cumsum(rng.gamma(2.0, 1.5, times.size))
    for at in rng.integers(1, times.size, resets):
        value[at:] -= value[at] - rng.random()
    return value.round(6)


def _samples() -> list[TestSeries]:
    rng = np.random.default_rng(7)
    out: list[TestSeries] = []

    def add(name: str, times: np.ndarray, values: np.ndarray, **labels: str) -> None:
        out.append(TestSeries({"__name__": name, **labels}, times, values.astype(float)))

    containers = [("a", "web-1", "app"), ("a", "web-1", "sidecar"), ("a", "web-2", "app"), ("b", "db-0", "postgres"), ("b", "job-x", "run")]
    for number, (namespace, pod, container) in enumerate(containers):
        for job in ("kubelet", "cadvisor")[: 1 + (number == 0)]:
            life = (2.5, 4.0) if pod == "job-x" else (0.0, HOURS)
            times = _scrape_times(rng, *life)
            labels = {"namespace": namespace, "pod": pod, "container": container, "job": job, "id": f"/kubepods/{number}"}
            add(CPU, times, _counter(rng, times, resets=number), **labels)
            add(MEMORY, times, rng.integers(1, 2**30, times.size), **labels)
        steady = np.arange(START, START + HOURS * 3600, 60) * 1000
        where = {"namespace": namespace, "pod": pod}
        add(
            "kube_pod_container_resource_limits",
            steady,
            np.full(steady.size, 2.0**29 * (number + 1)),
            resource="memory",
            container=container,
            **where,
        )
        add(
            "kube_pod_container_resource_requests",
            steady,
            np.full(steady.size, 2.0**28 * (number + 1)),
            resource="memory",
            container=container,
            **where,
        )
        add(
            "kube_pod_container_status_restarts_total",
            steady,
            np.minimum(np.arange(steady.size) // 90, number),
            container=container,
            **where,
        )
        add(
            "kube_pod_container_status_last_terminated_timestamp",
            steady,
            np.full(steady.size, START + 60.5 * number),
            container=container,
            **where,
        )
    for container, reason in (("app", "OOMKilled"), ("sidecar", "Error")):
        times = np.arange(START + 7200, START + 14_400, 60) * 1000
        add(
            "kube_pod_container_status_last_terminated_reason",
            times,
            np.ones(times.size),
            namespace="a",
            pod="web-1",
            container=container,
            reason=reason,
        )
    for namespace, pod, kind, owner in (
        ("a", "web-1", "ReplicaSet", "web-5d"),
        ("a", "web-2", "ReplicaSet", "web-5d"),
        ("b", "db-0", "StatefulSet", "db"),
        ("b", "job-x", "Job", "job-1"),
    ):
        add(
            "kube_pod_owner",
            steady,
            np.ones(steady.size),
            namespace=namespace,
            pod=pod,
            owner_kind=kind,
            owner_name=owner,
            owner_is_controller="true",
        )
        add("kube_pod_info", steady, np.ones(steady.size), namespace=namespace, pod=pod, node=f"node-{pod[-1]}", host_ip="10.0.0.1")
    add(
        "kube_replicaset_owner", steady, np.ones(steady.size), namespace="a", replicaset="web-5d", owner_kind="Deployment", owner_name="web"
    )
    add("kube_job_owner", steady, np.ones(steady.size), namespace="b", job_name="job-1", owner_kind="CronJob", owner_name="job")
    odd = np.array([1.0, math.nan, 3.0, math.inf, -5.0, -math.inf, 0.0, 1e-9, 1e22, 123456789.125])
    times = np.arange(START, START + HOURS * 3600, 45) * 1000
    for number in range(4):
        add("odd", times, np.roll(np.resize(odd, times.size), number), n=str(number), word=f'x-{"ab"[number % 2]}.é"\\')
    add("level", times, np.arange(times.size) % 7, n="7")
    return out


SAMPLES = _samples()
SCOPE_A, SCOPE_B = queries.Scope("a"), queries.Scope("b", ('job="kubelet"',))
PODS = ("web-1", "web-2", "web.3")

OUR_SOURCE = {
    "cpu": queries.cpu(SCOPE_A, 300),
    "cpu-short": queries.cpu(SCOPE_B, 120),
    "memory": queries.memory(SCOPE_A, 300),
    "instances": queries.instances(SCOPE_A),
    "scrape-counts": queries.scrape_counts(SCOPE_A, 3600),
    "resets": queries.counter_resets(SCOPE_A, 3600),
    "pod-owners": queries.pod_owners(SCOPE_A, 7200),
    "replicaset-owners": queries.replicaset_owners(SCOPE_A, 7200),
    "job-owners": queries.job_owners(queries.Scope("b"), 7200),
    "oom-killed": queries.oom_killed(SCOPE_A, 7200),
    "oom-reason": queries.oom_reason(SCOPE_A, PODS),
    "restarts": queries.restarts(SCOPE_A, PODS),
    "termination-times": queries.termination_times(SCOPE_A, PODS),
    "memory-requests": queries.memory_requests(SCOPE_A, PODS),
    "memory-limits": queries.memory_limits(SCOPE_A, PODS),
    "namespaces": queries.container_selector(()),
}

LANGUAGE = [
    # selectors
    MEMORY,
    f'{MEMORY}{{namespace="a",pod=~"web-.*",container!="sidecar",job!~"cad.*"}}',
    '{__name__=~"kube_.*owner",namespace!=""}',
    f'{MEMORY}{{image="",container=~"app|POD|"}}',
    f'{MEMORY}{{pod="nothing"}}',
    f"{MEMORY} offset 10m",
    f"{MEMORY} offset -5m",
    f"{MEMORY} @ {START + 9000}.5",
    f"{CPU} @ end() - {CPU} @ start()",
    'odd{word="x-a.é\\"\\\\"}',
    # windows
    f"rate({CPU}[5m])",
    f"rate({CPU}[75s])",
    f"rate({CPU}[1h] offset 30m)",
    f"rate({CPU}[10m] @ {START + 8000})",
    f"increase({CPU}[1h])",
    f"increase({CPU}[31s])",
    f"irate({CPU}[5m])",
    f"delta({MEMORY}[20m])",
    f"idelta({MEMORY}[20m])",
    f"resets({CPU}[2h])",
    f"changes({MEMORY}[10m])",
    "rate(odd[10m])",
    "rate(level[10m])",
    "changes(odd[10m])",
    "resets(odd[10m])",
    f"max_over_time({MEMORY}[10m])",
    f"min_over_time({MEMORY}[10m])",
    f"avg_over_time({MEMORY}[10m])",
    f"sum_over_time({MEMORY}[1h])",
    f"count_over_time({MEMORY}[1h])",
    f"last_over_time({MEMORY}[20m])",
    f"present_over_time({MEMORY}[20m])",
    f"quantile_over_time(0.95, {MEMORY}[1h])",
    "max_over_time(odd[5m])",
    "min_over_time(odd[5m])",
    "sum_over_time(odd[5m])",
    "avg_over_time(odd[5m])",
    "quantile_over_time(0.37, odd[10m])",
    "quantile_over_time(1.5, odd[10m])",
    "quantile_over_time(-1, odd[10m])",
    "quantile_over_time(scalar(level) / 6, odd[10m])",
    # subqueries
    f"quantile_over_time(0.9, max by (container,pod,job)(rate({CPU}[75s]))[2h:75s])",
    f"max_over_time(max by (container,pod,job)({MEMORY})[1h:75s])",
    f"count_over_time(max by (container,pod,job)({MEMORY})[2h:1m])",
    f"rate({CPU}[1h:5m] offset 7m)",
    f"max_over_time({MEMORY}[1h:])",
    f"max_over_time(rate({CPU}[5m])[30m:1m] @ {START + 15_000})",
    "sum_over_time(vector(2)[10m:1m])",
    f"avg_over_time(max_over_time({MEMORY}[5m])[30m:2m])",
    # aggregations
    f"sum by (namespace,pod) ({MEMORY})",
    f"sum without (job,id) ({MEMORY})",
    f"avg({MEMORY})",
    f"count by (namespace) ({MEMORY})",
    f"min by (pod) ({MEMORY})",
    f"group by (container) ({MEMORY})",
    f"quantile by (namespace) (0.75, {MEMORY})",
    f"topk by (namespace) (1, {MEMORY})",
    f"bottomk(2, {MEMORY})",
    "topk(3, odd)",
    "bottomk(3, odd)",
    "topk(0, odd)",
    "topk(scalar(level), odd)",
    "max(odd)",
    "min(odd)",
    "sum(odd)",
    "avg(odd)",
    "quantile(0.4, odd)",
    "quantile(2, odd)",
    "max by (nothing) (odd)",
    "sum(max by (instance)(nothing))",
    # operators
    f"{MEMORY} / 2 ^ 20",
    f"2 - {MEMORY} % 1000",
    f"-{MEMORY}",
    f"{MEMORY} > 5e8",
    f"{MEMORY} > bool 5e8",
    f"5e8 < {MEMORY}",
    "odd == odd",
    "odd != odd",
    "odd >= bool 0",
    "odd % 3",
    "odd ^ 0.5",
    "odd / 0",
    "1 / 0 > bool 5",
    f"{MEMORY} / on (namespace,pod,container) group_left (resource) kube_pod_container_resource_limits",
    f"kube_pod_container_resource_limits / on (namespace,pod,container) group_right () {MEMORY}",
    f"kube_pod_container_resource_limits > on (namespace,pod,container) group_right () {MEMORY}",
    f"{MEMORY} * on (namespace,pod) group_left (node) kube_pod_info",
    f"{MEMORY} * on (namespace,pod) group_left (node) topk by (namespace,pod) (1, max by (namespace,pod,node) (kube_pod_info))",
    "kube_pod_container_resource_limits - ignoring (resource) kube_pod_container_resource_requests",
    "kube_pod_container_resource_limits > on (pod,container) kube_pod_container_resource_requests",
    "kube_pod_container_resource_limits > kube_pod_container_resource_requests",
    f"{MEMORY} + {CPU}",
    f"{MEMORY} + on (pod) {CPU}",
    f"{MEMORY} + on (namespace,pod) group_left () {CPU}",
    f"nothing + on (namespace) {CPU}",
    f"({MEMORY} > 1e12) + on (namespace) {CPU}",
    f"{MEMORY} + on (namespace) group_left () nothing",
    f"sum by (pod) ({MEMORY}) / ignoring (container) group_right () sum by (pod,container) ({MEMORY})",
    f'{MEMORY} and on (pod,container) kube_pod_container_status_last_terminated_reason{{reason="OOMKilled"}}',
    f"{MEMORY} unless on (pod) kube_pod_container_status_last_terminated_reason",
    f"{MEMORY} > 8e8 or {MEMORY} < 2e8",
    f"kube_pod_container_resource_limits or {MEMORY}",
    "(level > 3) or on () vector(0)",
    ('max_over_time(max by (pod) (kube_pod_container_resource_limits{resource="memory"})[1h:1m]) * on (pod) group_right () '
     'max by (pod,container) (kube_pod_container_status_last_terminated_reason{reason="OOMKilled"})'),
    # functions
    'label_replace(kube_pod_owner, "workload", "$1-${2}x$$$9", "owner_name", "(.*)-(.*)")',
    'label_replace(kube_pod_owner, "pod", "same", "owner_kind", "ReplicaSet")',
    'label_replace(kube_pod_owner, "owner_name", "", "owner_kind", ".*")',
    'label_replace(kube_pod_owner, "w", "${name}", "owner_name", "(?P<name>[a-z]+).*")',
    'label_replace(kube_pod_owner, "9x", "", "owner_kind", ".*")',
    'label_join(kube_pod_owner, "key", "/", "namespace", "pod", "missing")',
    'label_join(kube_pod_owner, "pod", "", "missing")',
    "clamp_min(odd, 1)",
    "clamp_max(odd, 1)",
    "abs(odd)",
    "ceil(odd / 7)",
    "floor(odd / 7)",
    f"timestamp({MEMORY})",
    f"timestamp({MEMORY} offset 3m)",
    f"timestamp(({MEMORY}))",
    f"timestamp(abs({MEMORY}))",
    f"timestamp({MEMORY} @ {START + 9000})",
    "time()",
    "scalar(level)",
    "scalar(odd)",
    "vector(1.5)",
    "3.0e-7 + 1e21 * 2",
    'absent(nothing{a="b",c="d",c!="e",f=~"g"})',
    'absent((nothing{a="b"}))',
    "absent(level)",
    "absent(level > 3)",
    "absent(sum(nothing))",
    "sum by (job) (absent(nothing))",
    # errors of evaluation
    '{__name__=~"container_.*",pod="web-2"} * 2',
    'rate({__name__=~"container_.*",pod="web-2"}[5m])',
    "topk(NaN, odd)",
]  # fmt: skip

INSTANT_ONLY = [
    f"{MEMORY}[3m]",
    f"({MEMORY}[3m] offset 1h)",
    "level[5m:1m]",
    f"max by (pod) ({MEMORY})[10m:3m]",
    '"a text"',
    "sort(odd)",
    "sort_desc(level or odd)",
    f"topk(3, {MEMORY})",
]

QUERIES = [*OUR_SOURCE.values(), *LANGUAGE]
IDS = [*OUR_SOURCE, *LANGUAGE]

INSTANTS = [START + 3600, START + 7300.25, START + 7919, START + 12_345.678, START + HOURS * 3600 + 200]
RANGES = [
    (START - 600, START + HOURS * 3600 + 900, 300),
    (START + 6900, START + 8400, 15),
    (START + 9000.5, START + 9900.75, 7.25),
]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealPrometheus]:
    directory: Path = tmp_path_factory.mktemp("prometheus")
    prometheus = RealPrometheus(directory)
    text = directory / "samples.txt"
    write_openmetrics(text, SAMPLES)
    prometheus.backfill(text)
    with prometheus:
        yield prometheus


@pytest.fixture(scope="module")
def app() -> Any:
    tsdb = Tsdb()
    for item in SAMPLES:
        _write(tsdb, item)
    return prometheus_app(tsdb, SystemClock())


def _write(tsdb: Tsdb, item: TestSeries) -> None:
    for at, value in zip((item.times_ms / 1000).tolist(), item.values.tolist(), strict=True):
        tsdb.append(item.labels, at, value)


def _assert_same(real: RealPrometheus, app: Any, path: str, params: dict[str, str]) -> None:
    status, expected = real.get(path, params)
    answer = asgi.get(app, path, params)
    got = answer.json()
    assert (answer.status, got.get("error")) == (status, expected.get("error")), params
    assert _comparable(params, got) == _comparable(params, expected), params


class _Number:
    """Equal to another within 1e-9 of its size, and NaN to NaN."""

    def __init__(self, text: str) -> None:
        self.value = float(text)

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, _Number)
        return math.isclose(self.value, other.value, rel_tol=1e-9) or (math.isnan(self.value) and math.isnan(other.value))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self.value)


def _comparable(params: dict[str, str], body: dict[str, Any]) -> Any:
    """The answer with numbers in place of texts; the order of an instant query counts only where PromQL defines it."""
    data = body.get("data")
    if data is None or data["resultType"] in ("scalar", "string"):
        return body
    for item in data["result"]:
        if "value" in item:
            item["value"] = [item["value"][0], _Number(item["value"][1])]
        if "values" in item:
            item["values"] = [[at, _Number(text)] for at, text in item["values"]]
    if "time" in params and not params["query"].startswith(("sort", "topk(3")):
        data["result"].sort(key=lambda item: sorted(item["metric"].items()))
    return body


@pytest.mark.parametrize("query", [*QUERIES, *INSTANT_ONLY], ids=[*IDS, *INSTANT_ONLY])
def test_instant_queries_give_what_prometheus_gives(real: RealPrometheus, app: Any, query: str) -> None:
    for time in INSTANTS:
        _assert_same(real, app, "/api/v1/query", {"query": query, "time": str(time)})


@pytest.mark.parametrize("query", QUERIES, ids=IDS)
def test_range_queries_give_what_prometheus_gives(real: RealPrometheus, app: Any, query: str) -> None:
    for start, end, step in RANGES:
        _assert_same(real, app, "/api/v1/query_range", {"query": query, "start": str(start), "end": str(end), "step": str(step)})


@pytest.mark.parametrize("query", INSTANT_ONLY[:5])
def test_range_queries_for_what_has_no_range_are_refused_as_prometheus_does(real: RealPrometheus, app: Any, query: str) -> None:
    _assert_same(real, app, "/api/v1/query_range", {"query": query, "start": str(START), "end": str(START), "step": "60"})


@pytest.mark.parametrize(
    "changed",
    [
        {"time": "yesterday"},
        {"time": "2023-11-15T01:00:00Z"},
        {"time": "2023-11-15T01:00:00.5+01:00"},
        {"timeout": "5s"},
        {"timeout": "soon"},
    ],
    ids=str,
)
def test_instant_parameters(real: RealPrometheus, app: Any, changed: dict[str, str]) -> None:
    _assert_same(real, app, "/api/v1/query", {"query": "level", "time": str(START + 99), **changed})


@pytest.mark.parametrize(
    "changed",
    [
        {"step": "0"},
        {"step": "-5"},
        {"step": "1m"},
        {"step": "often"},
        {"start": "x"},
        {"end": ""},
        {"end": str(START - 1)},
        {"end": str(START + 11_000), "step": "1"},
        {"end": str(START + 11_001), "step": "1"},
        {"end": str(START + 1100.05), "step": "0.1"},
        {"end": str(START + 1100.11), "step": "0.1"},
    ],
    ids=str,
)
def test_range_parameters(real: RealPrometheus, app: Any, changed: dict[str, str]) -> None:
    _assert_same(
        real, app, "/api/v1/query_range", {"query": "level", "start": str(START), "end": str(START + 600), "step": "60", **changed}
    )


@pytest.mark.parametrize(
    ("path", "params"),
    [
        ("/api/v1/labels", {}),
        ("/api/v1/labels", {"match[]": CPU}),
        ("/api/v1/label/__name__/values", {}),
        ("/api/v1/label/namespace/values", {"match[]": '{pod=~"web.*"}'}),
        ("/api/v1/label/pod/values", {"start": str(START), "end": str(START + 60 * HOURS)}),
        ("/api/v1/label/not-a-name/values", {}),
        ("/api/v1/label/unknown/values", {}),
        ("/api/v1/series", {"match[]": f'{CPU}{{namespace="a"}}'}),
        ("/api/v1/series", {}),
        ("/api/v1/metadata", {}),
    ],
    ids=str,
)
def test_catalogue(real: RealPrometheus, app: Any, path: str, params: dict[str, str]) -> None:
    status, expected = real.get(path, params)
    answer = asgi.get(app, path, params)
    assert (answer.status, answer.json()) == (status, expected)


@pytest.mark.parametrize("path", ["/-/ready", "/-/healthy"])
def test_probes(real: RealPrometheus, app: Any, path: str) -> None:
    answer = asgi.get(app, path)
    assert (answer.status, answer.body.decode()) == real.get(path)


@pytest.mark.parametrize("query", ["odd", "odd / 7", "odd * 1e12", "odd[5m]", "scalar(level) * 1e21", "scalar(level) / 1e9", "1 / 3"])
def test_numbers_are_written_as_in_prometheus(real: RealPrometheus, app: Any, query: str) -> None:
    params = {"query": query, "time": str(START + 7919.5)}
    assert asgi.get(app, "/api/v1/query", params).json() == real.get("/api/v1/query", params)[1]


@pytest.mark.parametrize(
    "query", ["", "rate(level)", "sum(", "level[5m] + 1", "1 == 2", 'level{a=~"("}', "unknown(level)", "sum_over_time(time()[1m:1s])"]
)
def test_what_is_not_promql_is_bad_data_to_both(real: RealPrometheus, app: Any, query: str) -> None:
    for path in ("/api/v1/query", "/api/v1/query_range"):
        params = {"query": query, "time": str(START), "start": str(START), "end": str(START), "step": "1"}
        status, expected = real.get(path, params)
        answer = asgi.get(app, path, params)
        assert (answer.status, answer.json()["errorType"]) == (status, expected["errorType"]) == (400, "bad_data")


STALE_QUERIES = [
    "gone",
    "gone[5m]",
    "count_over_time(gone[5m])",
    "rate(gone[5m])",
    "max_over_time(gone[3m:30s])",
    "absent(gone)",
    "sum(gone)",
    "timestamp(gone)",
]


@pytest.mark.parametrize("query", STALE_QUERIES)
def test_stale_series_vanish_as_in_prometheus(written: tuple[RealPrometheus, Any], query: str) -> None:
    for offset in range(0, 900, 50):
        _assert_same(*written, "/api/v1/query", {"query": query, "time": str(START + offset)})
    if not query.endswith("]"):
        _assert_same(*written, "/api/v1/query_range", {"query": query, "start": str(START), "end": str(START + 900), "step": "10"})


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RealPrometheus, Any]]:
    """Two series, one of which is missing from scrapes 10 to 14 and from 20 on."""
    tsdb = Tsdb()
    times = np.arange(START, START + 900, 30) * 1000
    values = np.arange(times.size, dtype=float)
    scraped = np.ones(times.size, dtype=bool)
    scraped[10:15] = scraped[20:] = False
    shown = scraped.copy()
    shown[[10, 20]] = True  # the marker itself
    interrupted = TestSeries({"__name__": "gone", "n": "1"}, times[shown], np.where(scraped, values, STALE)[shown])
    steady = TestSeries({"__name__": "gone", "n": "2"}, times[:12], values[:12])
    ref = tsdb.series(interrupted.labels)
    for at, there in zip((times / 1000).tolist(), scraped.tolist(), strict=True):
        if there:
            tsdb.append(interrupted.labels, at, (at - START) / 30)
        else:
            tsdb.mark_stale(ref, at)
    _write(tsdb, steady)
    with RealPrometheus(tmp_path_factory.mktemp("stale")) as prometheus:
        prometheus.remote_write([interrupted, steady])
        yield prometheus, prometheus_app(tsdb, SystemClock())
