"""The main job on real input: a real Prometheus that holds what containers used elsewhere, and every VPA gets its recommendation.

The same numbers must come out of every way there is: trace files, Prometheus alone, the recommender with the cluster, and the reports.

Time. History ends at a fixed moment. The recommender follows a clock that stands still at it (``--clock-url``), the other commands take
``--as-of``: decay and memory windows depend on the moment, so a run by the machine's clock would compare other numbers each time.

What may differ. Memory lies on the multiples of the step, so ``max_over_time`` over a step gives each sample back: it has to be equal to
the byte. CPU goes through a counter and ``rate()``, which extrapolates: 1 %, or the neighbouring bucket of the histogram.
"""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kubernetes.utils.quantity import parse_quantity

from support import programs
from support.fleet import CONTAINER, Fleet, build_fleet, write_traces
from support.fleet_objects import create_in_cluster, list_vpas
from support.fleet_series import state_series, usage_series
from support.prometheus import RealPrometheus, require_prometheus, write_openmetrics
from support.traces import STEP_SECONDS, Recorded, made_up, recorded, require_traces

pytestmark = pytest.mark.integration

END = 1_750_000_200
assert END % STEP_SECONDS == 0
AS_OF = ("--as-of", END)
STEP = ("--step", "5m")
PROFILE = ("--profile", "vpa-classic")
# A little more than the commands look back, so that the beginning of the window shows.
DAYS = 8.125
LEAST_DAYS = 7
CRDS = Path(__file__).parents[2] / "config" / "crd"

RESOURCES = ("cpu_millicores", "memory_bytes")
LEVELS = ("target", "lower_bound", "upper_bound")
# One bucket of the vpa-classic profile beside another, with its margin of 15 %, lies this far: 10 millicores and 5 % of the value.
BUCKET_FIRST_MILLICORES, BUCKET_RATIO, MARGIN = 10, 0.05, 1.15

Key = tuple[str, str, str, str]
Amounts = Mapping[str, int | None]


@dataclass(frozen=True)
class Input:
    """Where the use comes from, and how many containers that must be at the least."""

    use: Callable[[], list[Recorded]]
    least_containers: int


def real_use() -> list[Recorded]:
    require_traces()
    wanted = {"gcd2011": 102, "bitbrains_rnd": 160, "google2019": 8, "azure2017": 50, "nab": 5}
    return recorded(wanted, end=END, days=DAYS, least_days=LEAST_DAYS)


INPUTS = {"recorded": Input(real_use, 300), "made-up": Input(lambda: made_up(30, end=END, days=DAYS), 25)}


@dataclass(frozen=True)
class Run:
    """What went in, and what each program said."""

    input: Input
    fleet: Fleet
    from_traces: dict[str, Any]
    from_prometheus: dict[str, Any]
    recommender: subprocess.CompletedProcess[str]
    vpas: list[dict[str, Any]]
    cluster_table: subprocess.CompletedProcess[str]
    cluster_report: dict[str, Any]
    prometheus_report: dict[str, Any]


@pytest.fixture(scope="module", params=INPUTS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    require_prometheus()
    source = INPUTS[request.param]
    fleet = build_fleet(source.use(), END)
    directory = tmp_path_factory.mktemp(request.param)
    traces = write_traces(fleet, directory / "traces")
    prometheus = RealPrometheus(directory / "prometheus")
    text = directory / "history.om"
    write_openmetrics(text, [*usage_series(fleet), *state_series(fleet, END)])
    prometheus.backfill(text)
    text.unlink()
    kubeconfig = directory / "kubeconfig"
    with prometheus, programs.sandbox(kubeconfig, "--empty", "--no-kubelet"), programs.standing_clock(END) as clock:
        create_in_cluster(fleet, kubeconfig, CRDS)
        at = ("--prometheus-url", prometheus.url, *STEP, *PROFILE)
        yield Run(
            input=source,
            fleet=fleet,
            from_traces=programs.run_json("recommend", "--traces", *traces, *AS_OF, *STEP, *PROFILE, "-f", "json"),
            from_prometheus=programs.run_json("recommend", *at, *AS_OF, "-f", "json"),
            recommender=programs.run("recommender", "--once", *at, "--kubeconfig", kubeconfig, "--clock-url", clock),
            vpas=list_vpas(kubeconfig),
            cluster_table=programs.run("report", "--kubeconfig", kubeconfig),
            cluster_report=programs.run_json("report", "--kubeconfig", kubeconfig, "-f", "json"),
            prometheus_report=programs.run_json("report", *at, *AS_OF, "-f", "json"),
        )


def by_container(document: dict[str, Any]) -> dict[Key, dict[str, Any]]:
    """The items of a document of recommendations or of a report."""
    items = {(item["namespace"], item["workload"]["kind"], item["workload"]["name"], item["container"]): item for item in document["items"]}
    assert len(items) == len(document["items"])
    return items


def by_vpa(run: Run) -> dict[Key, dict[str, Amounts]]:
    """What the VPAs say, in the same shape."""
    found = {}
    for vpa in run.vpas:
        target = vpa["spec"]["targetRef"]
        for one in vpa["status"]["recommendation"]["containerRecommendations"]:
            key = (vpa["metadata"]["namespace"], target["kind"], target["name"], one["containerName"])
            found[key] = {level: amounts(one[name]) for level, name in zip(LEVELS, ("target", "lowerBound", "upperBound"), strict=True)}
    return found


def amounts(quantities: Mapping[str, str]) -> Amounts:
    cpu, memory = quantities.get("cpu"), quantities.get("memory")
    return {
        "cpu_millicores": None if cpu is None else int(parse_quantity(cpu) * 1000),
        "memory_bytes": None if memory is None else int(parse_quantity(memory)),
    }


ANSWERS: dict[str, Callable[[Run], Mapping[Key, Mapping[str, Any]]]] = {
    "recommend": lambda run: by_container(run.from_prometheus),
    "recommender": by_vpa,
    "report-of-the-cluster": lambda run: by_container(run.cluster_report),
    "report-of-prometheus": lambda run: by_container(run.prometheus_report),
}
every_answer = pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)


def test_the_input_is_large_long_and_varied(run: Run) -> None:
    spans = [np.ptp(np.concatenate([pod.use.cpu.times for pod in workload.pods])) / 86_400 for workload in run.fleet.workloads]
    targets = [item["target"] for item in run.from_traces["items"]]

    assert sum(len(workload.pods) for workload in run.fleet.workloads) >= run.input.least_containers
    assert min(spans) >= LEAST_DAYS
    # Were most at the smallest recommendation there is, equal numbers would say little.
    for resource in RESOURCES:
        known = [target[resource] for target in targets if target[resource] is not None]
        assert len(set(known)) > 15, resource
        assert known.count(min(known)) < len(known) / 2, resource


def test_every_vpa_gets_a_recommendation(run: Run) -> None:
    assert run.recommender.returncode == 0, run.recommender.stderr
    assert {workload.key for workload in run.fleet.workloads} == by_vpa(run).keys()
    conditions = [
        (condition["type"], condition["status"])
        for vpa in run.vpas
        for condition in vpa["status"]["conditions"]
        if condition["type"] in ("RecommendationProvided", "NoPodsMatched", "NoData")
    ]
    assert conditions == [("RecommendationProvided", "True")] * len(run.vpas)


@every_answer
def test_every_container_is_there_once_with_the_same_resources(run: Run, answer) -> None:
    expected, found = by_container(run.from_traces), answer(run)

    assert found.keys() == expected.keys() == {workload.key for workload in run.fleet.workloads}
    for key, item in expected.items():
        for level in LEVELS:
            assert [found[key][level][one] is None for one in RESOURCES] == [item[level][one] is None for one in RESOURCES], key


@every_answer
def test_memory_is_exactly_what_the_trace_files_give(run: Run, answer) -> None:
    found = answer(run)

    for key, item in by_container(run.from_traces).items():
        assert [found[key][level]["memory_bytes"] for level in LEVELS] == [item[level]["memory_bytes"] for level in LEVELS], key


@every_answer
def test_cpu_is_what_the_trace_files_give_within_a_percent_or_a_bucket(run: Run, answer) -> None:
    found = answer(run)

    for key, item in by_container(run.from_traces).items():
        expected = [item[level]["cpu_millicores"] for level in LEVELS]
        given = [found[key][level]["cpu_millicores"] for level in LEVELS]
        assert all(cpu_is_near(*pair) for pair in zip(given, expected, strict=True)), (key, given, expected)


def cpu_is_near(given: int, expected: int) -> bool:
    distance, low = abs(given - expected), min(given, expected)
    return distance <= max(0.01 * expected, MARGIN * BUCKET_FIRST_MILLICORES + BUCKET_RATIO * low + 1)


def test_confidence_and_history_are_the_same(run: Run) -> None:
    live = by_container(run.from_prometheus)

    for key, item in by_container(run.from_traces).items():
        assert live[key]["confidence"] == pytest.approx(item["confidence"]), key
        for name in ("samples", "first_sample", "last_sample", "oom_kills"):
            assert live[key]["explanation"][name] == item["explanation"][name], (key, name)


@every_answer
def test_a_kill_for_memory_raises_the_recommendation(run: Run, answer) -> None:
    found = answer(run)

    for workload in run.fleet.killed:
        needed = 1.2 * workload.memory_request_bytes
        assert needed > 1.2 * max(pod.use.memory.values.max() for pod in workload.pods)
        assert found[workload.key]["target"]["memory_bytes"] >= needed


def test_each_kill_counts_once(run: Run) -> None:
    killed = {workload.key for workload in run.fleet.killed}

    for document in (run.from_traces, run.from_prometheus):
        kills = {key: item["explanation"]["oom_kills"] for key, item in by_container(document).items()}
        assert {key: count for key, count in kills.items() if count} == dict.fromkeys(killed, 1)


def test_what_is_odd_about_the_series_is_said_and_nothing_failed(run: Run) -> None:
    def noticed(reason: str) -> set[str]:
        return {finding["subject"] for finding in run.from_prometheus["findings"] if finding["reason"] == reason}

    twice = run.fleet.scraped_twice
    assert noticed("DuplicateSeries") == {f"{twice.namespace}/{pod.name}/{CONTAINER}" for pod in twice.pods}
    assert not noticed("OwnerUnknown")
    assert run.from_prometheus["failures"] == run.prometheus_report["failures"] == run.cluster_report["failures"] == []


def test_the_report_prints_every_row(run: Run) -> None:
    assert run.cluster_table.returncode == 0, run.cluster_table.stderr
    lines = run.cluster_table.stdout.splitlines()

    assert sorted(names_in(lines)) == sorted([w.namespace, f"{w.kind}/{w.name}", CONTAINER] for w in run.fleet.workloads)
    assert any(line.startswith(f"{len(run.fleet.workloads)} containers at ") for line in lines)


def names_in(lines: list[str]) -> list[list[str]]:
    """The first three columns of a table; a long name goes on in the next line, where the first column is empty."""
    bounds = [lines[0].index(title) for title in ("NAMESPACE", "WORKLOAD", "CONTAINER", "PODS")]
    rows: list[list[str]] = []
    for line in lines[1 : lines.index("")]:
        cells = [line[begin:end].strip() for begin, end in itertools.pairwise(bounds)]
        if cells[0]:
            rows.append(cells)
        else:
            rows[-1] = ["".join(parts) for parts in zip(rows[-1], cells, strict=True)]
    return rows


@pytest.mark.parametrize("which", ["cluster_report", "prometheus_report"])
def test_a_report_shows_what_containers_have_now(run: Run, which: str) -> None:
    found = by_container(getattr(run, which))

    for workload in run.fleet.workloads:
        item = found[workload.key]
        assert item["requests"] == dict(zip(RESOURCES, (workload.cpu_request_millicores, workload.memory_request_bytes), strict=True))
        assert item["limits"] == dict(zip(RESOURCES, (workload.cpu_limit_millicores, workload.memory_limit_bytes), strict=True))
        assert item["replicas"] == len(workload.running), workload.key
