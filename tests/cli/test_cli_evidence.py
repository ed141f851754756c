"""Evidence in ``vpa-ippr recommend``: asked for where the profile wants it, and done without where it cannot be had."""

import json

import msgspec
import pytest
import yaml

from support.cli import START, FakePrometheus, matrix, points, run
from support.ensembles import an_ensemble_profile
from support.http import Answer, scripted_server
from vpa_ippr.metrics.queries import EVIDENCE_METRICS

AS_OF = START + 2 * 3600
CONTAINER = {"namespace": "shop", "pod": "web-0", "container": "app"}
EVIDENCE = frozenset(metric for metrics in EVIDENCE_METRICS.values() for metric in metrics)


class EvidentPrometheus(FakePrometheus):
    """``throttled`` is the share of the periods, or what is answered instead; there is no other evidence."""

    def __init__(self, throttled):
        super().__init__("shop")
        self.throttled = throttled
        self.asked = 0

    def usual(self, form):
        if not any(metric in form["query"] for metric in EVIDENCE):
            return FakePrometheus.usual(form)
        self.asked += 1
        if isinstance(self.throttled, Answer):
            return self.throttled
        is_throttling = EVIDENCE_METRICS["cpu-throttled"][0] in form["query"]
        return matrix((CONTAINER, points(form, self.throttled))) if is_throttling else matrix()


@pytest.fixture
def recommended(tmp_path, monkeypatch):
    monkeypatch.delenv("PROMETHEUS_URL", raising=False)
    profile = an_ensemble_profile("ours", history_days=1)
    (tmp_path / "ours.yaml").write_text(yaml.safe_dump(json.loads(msgspec.json.encode(profile))))

    def recommended(prometheus, profile="ours"):
        catalogue = ("--models", tmp_path) if profile == "ours" else ()
        with scripted_server(prometheus) as server:
            source = ("--prometheus-url", server.url, "--as-of", AS_OF, "--history", "1d")
            return run("recommend", *source, *catalogue, "--profile", profile, "--format", "json")

    return recommended


def cpu(outcome):
    (item,) = outcome.json["items"]
    return item["target"]["cpu_millicores"]


def reasons(outcome):
    return [finding["reason"] for finding in outcome.json["findings"] if finding["reason"] not in ("Gaps", "OwnerUnknown")]


def test_evidence_counts(recommended):
    calm, throttled = recommended(EvidentPrometheus("0.0")), recommended(EvidentPrometheus("0.5"))
    assert cpu(throttled) == pytest.approx(2 * cpu(calm), rel=0.02)
    assert throttled.code == 0


def test_metrics_that_are_not_there_are_one_finding(recommended):
    assert reasons(recommended(EvidentPrometheus("0.5"))) == ["NoEvidence"]


def test_evidence_that_is_refused_stops_nothing(recommended):
    refused = Answer(422, json.dumps({"status": "error", "errorType": "execution", "error": "too many samples"}).encode())
    without, calm = recommended(EvidentPrometheus(refused)), recommended(EvidentPrometheus("0.0"))
    assert without.code == 0
    assert cpu(without) == cpu(calm)
    assert len(reasons(without)) == 1
    assert "too many samples" in without.json["findings"][-1]["message"]


def test_a_profile_without_an_ensemble_asks_for_none(recommended):
    prometheus = EvidentPrometheus("0.5")
    assert recommended(prometheus, "vpa-classic").code == 0
    assert prometheus.asked == 0
