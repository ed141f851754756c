"""``vpa-ippr backtest``: from trace files and from Prometheus to tables, JSON and pictures, and bad input of every kind."""

import sys
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from support.cli import MI, START, FakePrometheus, dead_address, run, write_csv
from support.http import scripted_server

DAY = 86_400
QUICK = ("--days", 3, "--min-days", 1, "--warmup", "1d", "--grid", "30m", "--policy", "vpa-classic,max-guard")


@pytest.fixture(autouse=True)
def _no_prometheus_from_outside(monkeypatch):
    monkeypatch.delenv("PROMETHEUS_URL", raising=False)
    monkeypatch.delenv("VPA_IPPR_LOG_LEVEL", raising=False)


def trace(path, *, names=("web", "api"), days=3.0, scale=1.0, seed=0):
    random = np.random.default_rng(seed)
    times = START + np.arange(0, round(days * DAY), 1800)
    rows = []
    for name in names:
        cores, used = random.gamma(4, 0.05, times.size) * scale, 200 * MI + random.gamma(2, 20 * MI, times.size)
        rows += [(f"{name}/cpu", "app", "cpu", int(time), f"{value:.5f}") for time, value in zip(times, cores, strict=True)]
        rows += [(f"{name}/memory", "app", "memory", int(time), int(value)) for time, value in zip(times, used, strict=True)]
    return write_csv(path, rows)


def policies(outcome, resource=0):
    return {one["policy"]: one for one in outcome.json["resources"][resource]["policies"]}


def test_table(tmp_path):
    outcome = run("backtest", "--traces", trace(tmp_path / "shop.csv"), *QUICK)
    assert (outcome.code, outcome.err) == (0, "")
    for text in (
        "cpu: 2 containers, 4 container-days scored",
        "memory: 2 containers",
        "vpa-classic",
        "max-guard",
        "the same floor for all",
    ):
        assert text in outcome.out


def test_json(tmp_path):
    outcome = run("backtest", "--traces", trace(tmp_path / "shop.csv"), *QUICK, "-f", "json", "--seed", 3, "--refused", 0.5)
    assert (outcome.code, outcome.err) == (0, "")
    document = outcome.json
    assert document["schema"] == "vpa-ippr/backtest/v1"
    assert [part["resource"] for part in document["resources"]] == ["cpu", "memory"]
    assert document["resources"][0]["sources"] == {"shop": 2}
    assert document["conditions"] == {"refused": 0.5, "deferred": 0.0, "deferred_seconds": 3600.0, "seed": 3}
    assert policies(outcome)["vpa-classic"]["balanced"]["allocation_ratio"]["value"] == 1.0
    assert policies(outcome)["max-guard"]["balanced"]["violation_time_change"]["value"] < 0


def test_the_same_seed_prints_the_same(tmp_path):
    path = trace(tmp_path / "shop.csv")
    one, two = (run("backtest", "--traces", path, *QUICK, "-f", "json", "--seed", 1, "--deferred", 0.4) for _ in range(2))
    assert one.out == two.out


def test_each_file_is_a_source_and_may_be_scaled(tmp_path):
    files = trace(tmp_path / "a.csv"), trace(tmp_path / "b.csv", scale=0.25)
    flags = (*QUICK, "-f", "json", "--scale", "b/cpu=4", "--resource", "cpu", "--policy", "static")
    found = policies(run("backtest", "--traces", *files, *flags))["static"]["by_source"]
    # Both hold the same use, but for the digits that the file of fractions has lost.
    assert found["a"]["relative_slack"] == pytest.approx(found["b"]["relative_slack"], rel=1e-3)


def test_only_one_resource(tmp_path):
    outcome = run("backtest", "--traces", trace(tmp_path / "t.csv"), *QUICK, "--resource", "memory", "-f", "json")
    assert [part["resource"] for part in outcome.json["resources"]] == ["memory"]


def test_the_baseline_need_not_be_named_among_the_policies(tmp_path):
    flags = (*QUICK[:-2], "--policy", "max-guard", "--baseline", "static", "-f", "json")
    outcome = run("backtest", "--traces", trace(tmp_path / "t.csv"), *flags)
    assert list(policies(outcome)) == ["static", "max-guard"]
    assert policies(outcome)["static"]["balanced"]["slack_ratio"]["value"] == 1.0


def test_days_and_as_of_choose_the_stretch(tmp_path):
    path = trace(tmp_path / "t.csv")
    outcome = run("backtest", "--traces", path, *QUICK[2:], "--days", 2, "-f", "json")
    assert outcome.json["resources"][0]["container_days"] == pytest.approx(2)
    outcome = run("backtest", "--traces", path, *QUICK[2:], "--days", 2, "--as-of", START + 1.5 * DAY, "-f", "json")
    assert outcome.json["resources"][0]["container_days"] == pytest.approx(1, abs=0.05)


def test_floors(tmp_path):
    def allocated(floors):
        outcome = run("backtest", "--traces", trace(tmp_path / "t.csv", scale=1e-4), *QUICK, "--floors", floors, "-f", "json")
        return policies(outcome)["vpa-classic"]["series"][0]["allocated"]

    assert allocated("on") / allocated("off") == pytest.approx(25 / 11)


@pytest.mark.parametrize("suffix", ["svg", "html"])
def test_plot(tmp_path, suffix):
    plot = tmp_path / f"plot.{suffix}"
    assert run("backtest", "--traces", trace(tmp_path / "t.csv"), *QUICK, "--plot", plot).code == 0
    text = plot.read_text()
    assert "max-guard" in text
    if suffix == "svg":
        ET.fromstring(text)  # noqa: S314
    else:
        assert "<script" not in text


def test_plot_as_png(tmp_path):
    plot = tmp_path / "plot.png"
    assert run("backtest", "--traces", trace(tmp_path / "t.csv"), *QUICK, "--plot", plot).code == 0
    assert plot.read_bytes().startswith(b"\x89PNG\r\n")


def test_a_png_without_matplotlib_is_one_line_and_costs_no_work(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    outcome = run("backtest", "--traces", tmp_path / "never-read.csv", *QUICK, "--plot", tmp_path / "plot.png")
    assert outcome.code == 2
    (line,) = outcome.error_lines
    assert line.startswith("vpa-ippr: a PNG is drawn with matplotlib, which is not installed: pip install 'vpa-ippr[plot]'")


def test_a_file_that_cannot_be_read_leaves_the_others(tmp_path):
    outcome = run("backtest", "--traces", trace(tmp_path / "t.csv"), tmp_path / "missing.csv", *QUICK, "-f", "json")
    assert outcome.code == 3
    assert outcome.error_lines == [f"vpa-ippr: trace file {tmp_path}/missing.csv: No such file or directory"]
    assert [failure["reason"] for failure in outcome.json["failures"]] == ["TraceUnreadable"]


def test_one_resource_too_short_is_said_and_the_other_goes_on(tmp_path):
    rows = [("web/cpu", "app", "cpu", START + 1800 * slot, 0.1) for slot in range(144)]
    path = write_csv(tmp_path / "t.csv", [*rows, ("web/memory", "app", "memory", START, 1e8)])
    outcome = run("backtest", "--traces", path, *QUICK)
    assert outcome.code == 0
    assert outcome.error_lines == ["vpa-ippr: not one of 1 memory series has 1 days of samples on a grid of 1800 s"]
    assert "cpu: 1 containers" in outcome.out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "give a source of usage"),
        (("--traces", "t.csv", "--prometheus-url", "http://localhost"), "give one source of usage, not both"),
        (("--traces", "missing.csv"), "No such file"),
        (("--traces", "t.csv", "--policy", "magic"), "no policy is named 'magic': choose from static, vpa-classic"),
        (("--traces", "t.csv", "--baseline", "magic"), "no policy is named 'magic'"),
        (("--traces", "t.csv", "--min-days", 30), "not one of 2 cpu series has 30 days of samples on a grid of 300 s; not one of 2 memory"),
        (("--traces", "t.csv", "--warmup", "9d", "--min-days", 1, "--grid", "30m"), "longer than the warm-up of 9 days"),
        (("--traces", "t.csv", "--plot", "x.gif"), "--plot x.gif: name a file that ends in .html, .svg or .png"),
        (("--traces", "t.csv", "--min-days", 1, "--scale", "other=4"), "--scale other: no such source; there are t"),
        (("--traces", "t.csv", "--scale", "t=0"), "with a factor above 0"),
        (("--traces", "t.csv", "--scale", "t"), "--scale"),
        (("--traces", "t.csv", "--scale", "t=x"), "--scale"),
        (("--traces", "t.csv", "--refused", 1.5), "--refused"),
    ],
    ids=lambda value: " ".join(map(str, value[-2:])) if isinstance(value, tuple) else "",
)
def test_bad_usage(tmp_path, monkeypatch, flags, message):
    monkeypatch.chdir(tmp_path)
    trace(tmp_path / "t.csv")
    outcome = run("backtest", *flags)
    assert outcome.code == 2
    assert outcome.out == ""
    assert len(outcome.error_lines) == 1
    assert message in outcome.err


def test_a_plot_that_cannot_be_written(tmp_path):
    outcome = run("backtest", "--traces", trace(tmp_path / "t.csv"), *QUICK, "--plot", tmp_path / "no" / "x.svg")
    assert outcome.code == 2
    assert "No such file or directory" in outcome.err


def test_prometheus_names_sources_and_what_is_set_now():
    with scripted_server(FakePrometheus("shop", "bank")) as server:
        flags = ("--prometheus-url", server.url, "--as-of", START + 3 * DAY, "-f", "json")
        outcome = run("backtest", *flags, *QUICK[:-2], "--policy", "static,vpa-classic")
    assert (outcome.code, outcome.err) == (0, "")
    cpu, memory = outcome.json["resources"]
    assert cpu["sources"] == {"bank": 1, "shop": 1}
    # 100m and 256Mi are set; 0.5 cores and 200Mi are used.
    assert policies(outcome)["static"]["balanced"]["violation_volume"]["value"] == pytest.approx(0.8)
    assert policies(outcome, 1)["static"]["balanced"]["relative_slack"]["value"] == pytest.approx(56 / 256)
    assert memory["policies"][0]["series"][0]["name"] == "bank/StatefulSet/web/app"


def test_a_prometheus_that_is_not_there():
    outcome = run("backtest", "--prometheus-url", f"http://{dead_address()}", "--query-retries", 0)
    assert outcome.code == 1
    assert len(outcome.error_lines) == 1


def test_help_names_the_options():
    outcome = run("backtest", "--help")
    assert outcome.code == 0
    for option in ("--policy", "--baseline", "--warmup", "--floors", "--refused", "--plot", "--scale", "--seed"):
        assert option in outcome.out
