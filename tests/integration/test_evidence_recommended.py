"""What evidence makes of recommendations, from a simulated cluster over its Prometheus endpoint."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from support.cli import run
from support.clocks import FixedClock
from support.ensembles import an_ensemble_profile
from vpa_ippr.forecast.catalogue import Profile
from vpa_ippr.sandbox.background import BackgroundServer
from vpa_ippr.sandbox.node import GIB, NodeSpec
from vpa_ippr.sandbox.promserver import prometheus_app
from vpa_ippr.sandbox.simulation import Simulation
from vpa_ippr.sandbox.workloads import ANNOTATION_WORKLOAD
from vpa_ippr.usage.evidence import EvidenceRules

pytestmark = pytest.mark.integration

START, HOURS = 1_750_000_200, 3
END = START + HOURS * 3600
MI = 1024 * 1024
ANON = 50 * MI


def steady(level: str) -> list[dict[str, Any]]:
    return [{"kind": "steady", "level": level}]


# Name: limits, use.
PODS: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "throttled": ({"cpu": "200m", "memory": "256Mi"}, {"cpu": steady("400m"), "anon": steady("50Mi")}),
    "calm": ({"cpu": "1", "memory": "256Mi"}, {"cpu": steady("100m"), "anon": steady("50Mi")}),
    "log-reader": (
        {"cpu": "1", "memory": "256Mi"},
        {
            "cpu": steady("100m"),
            "anon": steady("50Mi"),
            "fileHot": steady("100Mi"),
            "fileCold": [{"kind": "ramp", "height": f"{20 * HOURS}Gi", "overSeconds": 3600 * HOURS}],
        },
    ),
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    simulation = Simulation(version="1.36", start_time=START, nodes=[NodeSpec("n1", 8000, 16 * GIB)])
    simulation.keeper.register("test")
    simulation.start()
    for name, (limits, use) in PODS.items():
        containers = [{"name": "app", "image": "app:1", "resources": {"limits": limits}}]
        metadata = {"name": name, "namespace": "default", "annotations": {ANNOTATION_WORKLOAD: json.dumps({"app": use})}}
        simulation.store.create("pods", {"metadata": metadata, "spec": {"nodeName": "n1", "containers": containers}})
    assert simulation.keeper.local_clock("test").wait_until(END + 1)
    server = BackgroundServer(prometheus_app(simulation.tsdb, FixedClock(float(END))), "127.0.0.1", 0)
    server.start()
    yield server.url
    server.stop()
    simulation.stop()


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    """Two profiles that differ in nothing but whether evidence counts."""
    directory = tmp_path_factory.mktemp("models")
    seeing = an_ensemble_profile("seeing")
    seeing = msgspec.structs.replace(seeing, memory=msgspec.structs.replace(seeing.memory, pod_minimum=16 * MI))
    blind = msgspec.structs.replace(seeing, name="blind", ensemble=msgspec.structs.replace(seeing.ensemble, evidence=EvidenceRules(False)))
    for profile in (seeing, blind):
        (directory / f"{profile.name}.yaml").write_text(yaml.safe_dump(_plain(profile)), encoding="utf-8")
    return directory


def _plain(profile: Profile) -> Any:
    return json.loads(msgspec.json.encode(profile))


@pytest.fixture(scope="module")
def found(url, models) -> dict[str, dict[str, dict[str, Any]]]:
    """What is recommended, by profile and pod."""
    answers = {}
    for profile in ("seeing", "blind"):
        outcome = run(
            "recommend", "--prometheus-url", url, "--models", models, "--profile", profile, "--as-of", END, "--format", "json"
        )  # fmt: skip
        assert outcome.code == 0, outcome.err
        assert outcome.json["findings"] == []
        answers[profile] = {item["workload"]["name"]: item for item in outcome.json["items"]}
    return answers


def evidence_on(item: dict[str, Any], resource: str) -> dict[str, Any]:
    return next(driver["choice"]["evidence"] for driver in item["explanation"]["drivers"] if driver["resource"] == resource)


def test_a_throttled_container_gets_more_cpu(found) -> None:
    seeing, blind = (found[profile]["throttled"] for profile in ("seeing", "blind"))

    assert blind["target"]["cpu_millicores"] == pytest.approx(220, rel=0.02), "its limit, and a margin"
    assert seeing["target"]["cpu_millicores"] == pytest.approx(440, rel=0.02), "what it wants, and a margin"
    assert seeing["target"]["memory_bytes"] == blind["target"]["memory_bytes"]
    assert evidence_on(seeing, "cpu")["uplifted_share"] == 1.0
    assert evidence_on(seeing, "cpu")["throttled_share"] > 0.4
    assert [finding["reason"] for finding in seeing["explanation"]["findings"]] == ["CpuCensored"]


def test_what_reads_logs_gets_less_memory_and_never_less_than_it_needs(found) -> None:
    seeing, blind = (found[profile]["log-reader"] for profile in ("seeing", "blind"))

    assert ANON + 50 * MI < seeing["target"]["memory_bytes"] < 0.95 * blind["target"]["memory_bytes"]
    assert seeing["target"]["cpu_millicores"] == blind["target"]["cpu_millicores"]
    assert evidence_on(seeing, "memory")["page_cache_bytes"] > 0
    assert "was not read again" in evidence_on(seeing, "memory")["why"]


def test_nothing_changes_where_use_is_need(found) -> None:
    seeing, blind = (found[profile]["calm"] for profile in ("seeing", "blind"))

    assert seeing["target"] == blind["target"]
    assert evidence_on(seeing, "cpu") == {"uplifted_share": 0.0, "throttled_share": 0.0, "page_cache_bytes": None, "why": None}
    assert evidence_on(blind, "cpu") is None
