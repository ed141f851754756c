"""Ensemble profiles through the command line: from a trace file to the explanation, and models that cannot be used."""

import math

import msgspec
import pytest
import yaml

from support.cli import MI, START, run, write_csv
from support.ensembles import an_ensemble_profile

DAYS = 3


@pytest.fixture(autouse=True)
def _no_prometheus_from_outside(monkeypatch):
    monkeypatch.delenv("PROMETHEUS_URL", raising=False)


def rhythm(name="shop/web"):
    """Three days of a daily rhythm, a sample every five minutes."""
    for index in range(DAYS * 288):
        height = 1 + 0.5 * math.sin(2 * math.pi * index / 288) + 0.05 * (index * 7 % 11) / 11
        yield name, "app", "cpu", START + 300 * index, round(0.4 * height, 6)
        yield name, "app", "memory", START + 300 * index, int(500 * MI * (1 + height / 10))


def a_catalogue(folder, **changes):
    profile = an_ensemble_profile(history_days=2, replay_hours=6, **changes)
    (folder / "test-ensemble.yaml").write_text(yaml.safe_dump(msgspec.to_builtins(profile, str_keys=True)))
    return folder


def test_recommendations_of_an_ensemble(tmp_path):
    trace = write_csv(tmp_path / "t.csv", rhythm())
    outcome = run("recommend", "-f", "json", "--traces", trace, "--profile", "test-ensemble", "--models", a_catalogue(tmp_path))
    assert (outcome.code, outcome.err) == (0, "")
    (item,) = outcome.json["items"]
    assert 400 < item["target"]["cpu_millicores"] < 800
    assert 550 * MI < item["target"]["memory_bytes"] < 700 * MI
    cpu, memory = item["explanation"]["drivers"]
    assert cpu["choice"]["known_hours"] == memory["choice"]["known_hours"] == 48
    assert item["explanation"]["forecaster"] == "ensemble"


@pytest.mark.parametrize("as_of", ["2026-01-03T12:00:00Z", "2026-01-02T00:30:00Z"])
def test_the_future_of_a_recording_is_not_looked_at(tmp_path, as_of):
    whole = write_csv(tmp_path / "whole.csv", rhythm())
    moment = {"2026-01-03T12:00:00Z": 60 * 3600, "2026-01-02T00:30:00Z": 24.5 * 3600}[as_of]
    part = write_csv(tmp_path / "part.csv", [row for row in rhythm() if row[3] <= START + moment])
    arguments = ("-f", "json", "--profile", "test-ensemble", "--models", a_catalogue(tmp_path), "--as-of", as_of, "--traces")
    assert run("recommend", *arguments, whole).json["items"] == run("recommend", *arguments, part).json["items"]


def test_the_table_and_the_report(tmp_path):
    trace = write_csv(tmp_path / "t.csv", rhythm())
    arguments = ("--traces", trace, "--profile", "test-ensemble", "--models", a_catalogue(tmp_path))
    assert "Deployment/" in run("recommend", *arguments).out
    (item,) = run("report", "-f", "json", *arguments).json["items"]
    assert " by " in item["why"]
    assert ", next " in item["why"]


def test_a_model_that_is_missing_is_one_line(tmp_path):
    trace = write_csv(tmp_path / "t.csv", rhythm())
    outcome = run("recommend", "--traces", trace, "--profile", "test-ensemble", "--models", a_catalogue(tmp_path, model="gone.skops"))
    assert outcome.code == 2
    assert len(outcome.error_lines) == 1
    assert "needs the model" in outcome.err
    assert "gone.skops" in outcome.err


def test_the_shipped_profile(tmp_path):
    trace = write_csv(tmp_path / "t.csv", rhythm())
    outcome = run("recommend", "-f", "json", "--traces", trace, "--profile", "balanced")
    assert (outcome.code, outcome.err) == (0, "")
    (item,) = outcome.json["items"]
    assert 300 < item["target"]["cpu_millicores"] < 900
