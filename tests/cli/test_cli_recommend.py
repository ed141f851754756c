"""``vpa-ippr recommend``: golden numbers through trace files, the JSON document, and bad input of every kind."""

import csv
import json
import random
from datetime import UTC, datetime
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from support.cli import COLUMNS, MI, START, FakePrometheus, dead_address, matrix, points, run, steady_rows, write_csv
from support.http import Answer, scripted_server

GOLDEN = json.loads((Path(__file__).parents[1] / "fixtures" / "golden" / "traces.json").read_text())
GIB = 1024 * MI
CLASSIC = ("--profile", "vpa-classic")
DAY = 86_400


@pytest.fixture(autouse=True)
def _no_prometheus_from_outside(monkeypatch):
    monkeypatch.delenv("PROMETHEUS_URL", raising=False)
    monkeypatch.delenv("VPA_IPPR_LOG_LEVEL", raising=False)


def uniform(count):
    source = random.Random(42)  # noqa: S311 - the golden numbers were made from this sequence
    return [(int(50 + source.random() * 950), int(200e6 + source.random() * 800e6)) for _ in range(count)]


# Millicores and bytes of each minute, as tests/fixtures/golden says.
GOLDEN_USE = {
    "const_1h": lambda _: (100, 300 * MI),
    "const_24h": lambda _: (100, 300 * MI),
    "const_8d": lambda _: (500, GIB),
    "idle_1h": lambda _: (1, 5 * MI),
    "step_4d": lambda i: (100, 300 * MI) if i < 2880 else (1000, 2 * GIB),
    "stepdown_6d": lambda i: (1000, 2 * GIB) if i < 2880 else (100, 300 * MI),
    "spiky_3d": lambda i: (2000 if i % 60 < 5 else 100, 3 * GIB if i == 1440 + 77 else 400 * MI),
    "oom_3x": lambda _: (200, 900 * MI),
    "uniform_2d": uniform(2880).__getitem__,
}
OOMS = {"oom_3x": ((120, GIB), (122, GIB), (124, 2 * GIB))}


def golden_file(folder, name):
    columns = (*COLUMNS, "namespace", "workload_kind", "workload", "pod")
    whose = ("shop", "StatefulSet", "web", "web-0")
    use = [(START + 60 * minute, *GOLDEN_USE[name](minute)) for minute in range(GOLDEN[name]["samples"])]
    rows = [("web/app/cpu", "app", "cpu", time, millicores / 1000, *whose) for time, millicores, _ in use]
    rows += [("web/app/memory", "app", "memory", time, memory, *whose) for time, _, memory in use]
    rows += [("web/app/oom", "app", "oom", START + 60 * minute, request, *whose) for minute, request in OOMS.get(name, ())]
    path = folder / f"{name}.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])
    return path


def amounts(expected):
    return {"cpu_millicores": expected["cpu_m"], "memory_bytes": expected["mem_b"]}


@pytest.mark.parametrize("as_of", [None, "2026-01-09T00:00:00Z"], ids=["at-its-end", "8-days-on"])
@pytest.mark.parametrize("name", GOLDEN)
def test_golden_traces_give_the_golden_numbers(tmp_path, name, as_of):
    outcome = run("recommend", *CLASSIC, "-f", "json", "--traces", golden_file(tmp_path, name), *(["--as-of", as_of] if as_of else []))
    assert (outcome.code, outcome.err) == (0, "")
    (item,) = outcome.json["items"]
    expected = GOLDEN[name]["expected"]
    assert item["target"] == item["uncapped_target"] == amounts(expected["target"])
    assert item["lower_bound"] == amounts(expected["lower"])
    assert item["upper_bound"] == amounts(expected["upper"])
    assert item["confidence"] == pytest.approx(expected["confidence"], rel=1e-12)
    assert item["explanation"]["oom_kills"] == len(OOMS.get(name, ()))


def test_the_json_document(tmp_path):
    trace = write_csv(tmp_path / "t.csv", steady_rows())
    assert run("recommend", *CLASSIC, "--traces", trace, "-f", "json").json == {
        "schema": "vpa-ippr/recommendations/v1",
        "as_of": "2026-01-01T00:59:00Z",
        "items": [
            {
                "namespace": "default",
                "workload": {"kind": "Deployment", "name": "shop-web"},
                "container": "app",
                "target": amounts(GOLDEN["const_1h"]["expected"]["target"]),
                "lower_bound": amounts(GOLDEN["const_1h"]["expected"]["lower"]),
                "upper_bound": amounts(GOLDEN["const_1h"]["expected"]["upper"]),
                "uncapped_target": amounts(GOLDEN["const_1h"]["expected"]["target"]),
                "confidence": pytest.approx(59 / 1440),
                "explanation": {
                    "profile": "vpa-classic",
                    "forecaster": "decaying-histogram",
                    "drivers": [
                        {"resource": "cpu", "quantile": 0.9, "value": 110, "pod": "shop-web", "choice": None},
                        {"resource": "memory", "quantile": 0.9, "value": 330659541, "pod": "shop-web", "choice": None},
                    ],
                    "samples": 60,
                    "first_sample": "2026-01-01T00:00:00Z",
                    "last_sample": "2026-01-01T00:59:00Z",
                    "oom_kills": 0,
                    "capped_by": [],
                    "findings": [],
                },
            }
        ],
        "findings": [],
        "failures": [],
    }


def names(outcome):
    return [item["workload"]["name"] for item in outcome.json["items"]]


@pytest.mark.parametrize("flags", [("--traces", "a", "b"), ("--traces", "a", "--traces", "b"), ("b", "--traces", "a")], ids=" ".join)
def test_several_trace_files(tmp_path, flags):
    files = {name: write_csv(tmp_path / f"{name}.csv", steady_rows(f"shop/{name}")) for name in "ab"}
    outcome = run("recommend", "-f", "json", *(files.get(flag, flag) for flag in flags))
    assert (outcome.code, names(outcome)) == (0, ["shop-a", "shop-b"])


def test_recordings_that_end_at_different_times_are_each_judged_at_their_end(tmp_path):
    early = write_csv(tmp_path / "early.csv", steady_rows("shop/early"))
    late = write_csv(tmp_path / "late.csv", steady_rows("shop/late", start=START + 400 * DAY))
    together = run("recommend", "-f", "json", "--traces", early, late)
    alone = run("recommend", "-f", "json", "--traces", early)
    assert together.json["items"][0] == alone.json["items"][0]
    assert names(together) == ["shop-early", "shop-late"]


@pytest.mark.parametrize("as_of", ["2026-01-01T00:30:00Z", "2026-01-01T01:30:00+01:00", str(START + 1800), f"{START + 1800}.0"])
def test_as_of_cuts_the_history(tmp_path, as_of):
    trace = write_csv(tmp_path / "t.csv", [*steady_rows(minutes=31), *steady_rows(cores=5, memory=GIB, start=START + 31 * 60)])
    outcome = run("recommend", *CLASSIC, "-f", "json", "--traces", trace, "--as-of", as_of)
    (item,) = outcome.json["items"]
    assert outcome.json["as_of"] == "2026-01-01T00:30:00Z"
    assert (item["target"]["cpu_millicores"], item["explanation"]["samples"]) == (126, 31)


def test_history_includes_the_sample_at_its_beginning(tmp_path):
    trace = write_csv(tmp_path / "t.csv", steady_rows(minutes=61))
    outcome = run("recommend", *CLASSIC, "-f", "json", "--traces", trace, "--as-of", START + 3600, "--history", "30m")
    assert outcome.json["items"][0]["explanation"]["samples"] == 31
    assert run("recommend", *CLASSIC, "-f", "json", "--traces", trace, "--history", "30m").json == outcome.json


def test_parquet_and_csv_say_the_same(tmp_path):
    rows = steady_rows()
    parquet = tmp_path / "t.parquet"
    pyarrow.parquet.write_table(pyarrow.table(dict(zip(COLUMNS, zip(*rows, strict=True), strict=True))), parquet)
    (from_csv, from_parquet) = (run("recommend", "-f", "json", "--traces", path) for path in (write_csv(tmp_path / "t.csv", rows), parquet))
    assert from_parquet.json == from_csv.json


def test_only_the_namespaces_that_are_asked_for(tmp_path):
    rows = [(*row, namespace) for namespace in ("shop", "bank", "lab") for row in steady_rows(f"{namespace}/web")]
    trace = write_csv(tmp_path / "t.csv", rows, (*COLUMNS, "namespace"))
    assert names(run("recommend", "-f", "json", "--traces", trace, "-n", "shop", "-n", "lab")) == ["lab-web", "shop-web"]


def test_the_table(tmp_path):
    outcome = run("recommend", *CLASSIC, "--traces", write_csv(tmp_path / "t.csv", steady_rows()))
    assert outcome.code == 0
    row = "default Deployment/shop-web app - - → 126m - - → 363Mi - 0.04 WARNING"
    assert outcome.out.splitlines()[1].split() == row.split()
    assert outcome.out.splitlines()[-1] == "1 container at 2026-01-01T00:59:00Z from t.csv, profile vpa-classic"


@pytest.mark.parametrize("command", ["recommend", "report"])
def test_the_default_profile_is_balanced(tmp_path, command):
    arguments = (command, "-f", "json", "--traces", write_csv(tmp_path / "t.csv", steady_rows()))
    documents = {
        profile: run(*arguments, *(("--profile", profile) if profile else ())).json for profile in (None, "balanced", "vpa-classic")
    }
    assert documents[None] == documents["balanced"] != documents["vpa-classic"]


def one_error(outcome, code, *parts):
    """Exactly one line on stderr that holds every part, and that exit code."""
    assert outcome.code == code, outcome
    (line,) = outcome.error_lines
    assert line.startswith("vpa-ippr: ")
    assert [part for part in parts if part not in line] == []
    return line


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ((), "give a source of usage: --prometheus-url URL or --traces FILE..."),
        (("--traces", "t.csv", "--prometheus-url", "http://h"), "give one source of usage, not both"),
        (("t.csv",), "unexpected argument 't.csv': trace files are given with --traces"),
        (("--traces", "t.csv", "--profile", "bold"), "no profile is named 'bold': choose one of "),
        (("--traces", "t.csv", "--models", "nowhere"), "nowhere"),
    ],
    ids=["no-source", "both-sources", "stray-argument", "unknown-profile", "no-models"],
)
def test_bad_arguments(arguments, line):
    outcome = run("recommend", *arguments)
    one_error(outcome, 2, line)
    assert outcome.out == ""


def test_trace_files_win_over_an_address_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("PROMETHEUS_URL", f"http://{dead_address()}")
    assert run("recommend", "--traces", write_csv(tmp_path / "t.csv", steady_rows())).code == 0


def good_rows():
    return steady_rows("shop/good")


BAD_FILES = {
    "missing-column": (lambda path: write_csv(path, [row[:4] for row in good_rows()], COLUMNS[:4]), "no column value (it has series_id"),
    "unknown-resource": (lambda path: write_csv(path, [("a/b/disk", "b", "disk", START, 1)]), "resource 'disk': expected cpu, memory, oom"),
    "text-for-number": (lambda path: write_csv(path, [("a/b/cpu", "b", "cpu", START, "lots")]), "lots"),
    "no-container": (lambda path: write_csv(path, [("a/b/cpu", "", "cpu", START, 1)]), "a row has no container"),
    "empty": (lambda path: path.write_bytes(b""), "cannot be read as CSV: Empty CSV file"),
    "cut-parquet": (lambda path: path.write_bytes(b"PAR1\x15\x04\x15"), "cannot be read as Parquet"),
    "garbage": (lambda path: path.write_bytes(bytes(range(128, 256)) * 8), "cannot be read as CSV"),
    "directory": (lambda path: path.mkdir(), "Is a directory"),
    "not-there": (lambda _path: None, "No such file or directory"),
}


@pytest.mark.parametrize("form", ["table", "json"])
@pytest.mark.parametrize("kind", BAD_FILES)
def test_a_bad_trace_file_alone(tmp_path, kind, form):
    make, line = BAD_FILES[kind]
    path = tmp_path / "bad.trace"
    make(path)
    outcome = run("recommend", "-f", form, "--traces", path)
    one_error(outcome, 2, f"trace file {path}: ", line)
    assert outcome.out == ""


@pytest.mark.parametrize("as_of", [(), ("--as-of", "2026-01-01T01:00:00Z")], ids=["own-end", "as-of"])
@pytest.mark.parametrize("kind", BAD_FILES)
def test_a_bad_trace_file_among_good_ones(tmp_path, kind, as_of):
    make, line = BAD_FILES[kind]
    path = tmp_path / "bad.trace"
    make(path)
    outcome = run("recommend", "-f", "json", "--traces", path, write_csv(tmp_path / "good.csv", good_rows()), *as_of)
    one_error(outcome, 3, f"trace file {path}: ", line)
    assert names(outcome) == ["shop-good"]
    (failure,) = outcome.json["failures"]
    assert failure["subject"] == str(path)


def test_a_table_leaves_what_failed_to_stderr(tmp_path):
    outcome = run("recommend", "--traces", tmp_path / "nowhere.csv", write_csv(tmp_path / "good.csv", good_rows()))
    one_error(outcome, 3, "nowhere.csv: No such file")
    assert "shop-good" in outcome.out
    assert "No such file" not in outcome.out


def test_a_file_without_rows(tmp_path):
    one_error(run("recommend", "--traces", write_csv(tmp_path / "t.csv", [])), 2, "trace files hold no rows: ")


def test_unsorted_times_are_sorted_and_told(tmp_path):
    rows = steady_rows()
    random.Random(3).shuffle(rows)  # noqa: S311
    outcome = run("recommend", "-f", "json", "--traces", write_csv(tmp_path / "t.csv", rows))
    one_error(outcome, 0, "t.csv: times run backwards in 2 series", "the rows were sorted")
    ordered = run("recommend", "-f", "json", "--traces", write_csv(tmp_path / "t.csv", steady_rows()))
    assert outcome.json["items"] == ordered.json["items"]
    assert [finding["reason"] for finding in outcome.json["findings"]] == ["UnsortedTimestamps"]


def test_values_that_are_no_usage_are_left_out_and_counted(tmp_path):
    rows = steady_rows()
    for index, value in enumerate(("nan", "inf", "-1"), start=10):
        rows[index] = (*rows[index][:4], value)
    outcome = run("recommend", *CLASSIC, "-f", "json", "--traces", write_csv(tmp_path / "t.csv", rows))
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.json["items"][0]["target"]["cpu_millicores"] == 126
    counted = {finding["reason"]: finding["count"] for finding in outcome.json["findings"]}
    assert counted == {"NonFiniteSamples": 2, "NegativeSamples": 1, "Gap": 1}


def test_no_samples_before_as_of(tmp_path):
    outcome = run("recommend", "-f", "json", "--traces", write_csv(tmp_path / "t.csv", steady_rows()), "--as-of", "2020-01-01T00:00:00Z")
    assert (outcome.code, outcome.json["items"]) == (0, [])
    assert [finding["reason"] for finding in outcome.json["findings"]] == ["NoData"]


def from_prometheus(server, *more, retries=0):
    source = ("--prometheus-url", server.url, "--query-retries", retries, "--history", "2h")
    return run("recommend", *CLASSIC, "-f", "json", *source, *more)


def test_recommendations_from_prometheus():
    with scripted_server(FakePrometheus()) as server:
        outcome = from_prometheus(server, "--as-of", "2026-01-01T02:00:00Z")
    assert (outcome.code, outcome.err) == (0, "")
    (item,) = outcome.json["items"]
    assert (item["namespace"], item["workload"], item["container"]) == ("shop", {"kind": "StatefulSet", "name": "web"}, "app")
    assert item["explanation"]["samples"] == 121
    assert item["target"]["cpu_millicores"] == 587


def test_without_as_of_it_is_now():
    with scripted_server(FakePrometheus()) as server:
        before = datetime.now(UTC).replace(microsecond=0)
        outcome = from_prometheus(server)
        after = datetime.now(UTC)
    assert before <= datetime.fromisoformat(outcome.json["as_of"]) <= after


def test_nobody_answers_for_prometheus():
    address = dead_address()
    outcome = run("recommend", "--prometheus-url", f"http://{address}", "--query-retries", 0)
    line = one_error(outcome, 1, f"Prometheus http://{address}", "Connection refused")
    assert "0x" not in line
    assert outcome.out == ""


@pytest.mark.parametrize(
    ("answer", "parts"),
    [
        (Answer(500, b"oops"), ("HTTP 500", "given up after 1 attempts")),
        (Answer(503, b"<html><body>\n<h1>Bad\nGateway</h1></html>"), ("HTTP 503",)),
        (Answer(200, b"<!DOCTYPE html>\n<html>login</html>", {"Content-Type": "text/html"}), ("a web page",)),
        (Answer(200, b'{"status": "success", "data": ["sh'), ()),
        (Answer(200, b'{"status": "success", "data": ["shop"]}', cut_after=10), ()),
        (Answer(200, b'{"status": "error", "errorType": "execution", "error": "too\\nmany samples"}'), ("many samples",)),
        (Answer(200, b"[]"), ()),
        (Answer(400, b'{"status": "error", "errorType": "bad_data", "error": "parse error at char 5"}'), ("parse error at char 5", "400")),
        (Answer(401, b"Unauthorized"), ("401",)),
        (Answer(302, b"", {"Location": "http://login/"}), ("redirects to http://login/",)),
    ],
    ids=["500", "503-html", "html", "truncated", "cut", "error-status", "other-json", "400", "401", "redirect"],
)
def test_a_prometheus_that_lies(answer, parts):
    with scripted_server(lambda _request: answer) as server:
        outcome = from_prometheus(server)
    one_error(outcome, 1, f"Prometheus {server.url}/api/v1/label/namespace/values", *parts)
    assert outcome.out == ""


def test_one_namespace_fails_and_the_others_are_printed():
    def sick(form):
        return Answer(422, b'{"status": "error", "errorType": "execution", "error": "query processing would load too many samples"}')

    with scripted_server(FakePrometheus("bank", "shop", **{'namespace="bank"': sick})) as server:
        outcome = from_prometheus(server, "--as-of", START)
    one_error(outcome, 3, "bank: ", "too many samples")
    assert [item["namespace"] for item in outcome.json["items"]] == ["shop"]
    assert [failure["subject"] for failure in outcome.json["failures"]] == ["bank"]


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "-5"])
def test_samples_that_are_no_usage_change_nothing(value):
    def spoiled(form):
        good = points(form, str(200 * MI))
        return matrix(({"pod": "web-0", "container": "app"}, [*good[:10], [good[10][0], value], *good[11:]]))

    with scripted_server(FakePrometheus()) as server:
        clean = from_prometheus(server, "--as-of", START)
    with scripted_server(FakePrometheus(**{"max_over_time(container_memory": spoiled})) as server:
        outcome = from_prometheus(server, "--as-of", START)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.json["items"][0]["target"] == clean.json["items"][0]["target"]
    assert 1 in [finding["count"] for finding in outcome.json["findings"]]


def test_an_empty_prometheus_is_no_error_but_said():
    with scripted_server(FakePrometheus(container_=lambda _form: matrix())) as server:
        outcome = from_prometheus(server)
    assert (outcome.code, outcome.json["items"]) == (0, [])
    assert [finding["reason"] for finding in outcome.json["findings"]] == ["NoData"]
