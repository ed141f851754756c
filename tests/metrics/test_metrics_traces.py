"""Trace files, written by the test: Parquet and CSV, good and bad."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vpa_ippr.api.errors import UsageError
from vpa_ippr.api.series import ContainerRef, OomKill, Resource, Window, WorkloadRef
from vpa_ippr.metrics.quality import Reason
from vpa_ippr.metrics.traces import TraceSource, kubernetes_name

EVERYTHING = Window(-1, 10_000_000, 60)
HEADER = "series_id,container,resource,timestamp,value"


def csv(directory: Path, *lines: str, header: str = HEADER, name: str = "trace.csv") -> Path:
    path = directory / name
    path.write_text("\n".join((header, *lines)) + "\n")
    return path


def parquet(directory: Path, name: str = "trace.parquet", **columns) -> Path:
    path = directory / name
    pq.write_table(pa.table(columns), path)
    return path


def by_key(usage) -> dict:
    return {
        (str(one.container.container), one.resource.value): list(zip(one.timestamps.tolist(), one.values.tolist(), strict=True))
        for one in usage.series
    }


def test_rows_become_series_kills_and_owners(tmp_path):
    path = csv(
        tmp_path,
        "src/web/cpu,web,cpu,60,0.25",
        "src/web/cpu,web,cpu,120,0.5",
        "src/web/memory,web,memory,60,1048576",
        "src/web/oom,web,oom,90,2097152",
    )
    usage = TraceSource([path]).fetch(EVERYTHING)

    container = ContainerRef("default", "src-web", "web")
    assert [(one.container, one.resource) for one in usage.series] == [(container, Resource.CPU), (container, Resource.MEMORY)]
    assert by_key(usage) == {("web", "cpu"): [(60, 0.25), (120, 0.5)], ("web", "memory"): [(60, 1048576)]}
    assert usage.ooms == (OomKill(container, 90.0, 2097152),)
    assert usage.owners == {("default", "src-web"): WorkloadRef("default", "Deployment", "src-web")}
    assert (usage.failures, usage.costs.samples) == ((), 4)
    assert all(one.timestamps.dtype == one.values.dtype == np.float64 for one in usage.series)


@pytest.mark.parametrize(
    ("extra", "values", "workload", "pod"),
    [
        ("", "", ("default", "Deployment", "s-web"), "s-web"),
        (",namespace", ",shop", ("shop", "Deployment", "s-web"), "s-web"),
        (",workload", ",front", ("default", "Deployment", "front"), "front"),
        (",workload,workload_kind", ",front,StatefulSet", ("default", "StatefulSet", "front"), "front"),
        (",workload,pod", ",front,front-0", ("default", "Deployment", "front"), "front-0"),
        (",pod", ",front-0", ("default", "Pod", "front-0"), "front-0"),
        (",namespace,workload_kind,workload,pod", ",,,,", ("default", "Deployment", "s-web"), "s-web"),
    ],
    ids=["none", "namespace", "workload", "kind", "pod", "pod-alone", "all-empty"],
)
def test_optional_columns_say_whose_the_rows_are(tmp_path, extra, values, workload, pod):
    path = csv(tmp_path, f"s/web/cpu,web,cpu,60,1{values}", header=HEADER + extra)
    source = TraceSource([path])
    usage = source.fetch(EVERYTHING)

    assert usage.owners == {(workload[0], pod): WorkloadRef(*workload)}
    assert usage.series[0].container == ContainerRef(workload[0], pod, "web")
    assert source.namespaces() == (workload[0],)


def test_containers_of_the_same_name_in_two_sources_stay_apart(tmp_path):
    path = csv(tmp_path, "a/vm1/cpu,vm1,cpu,60,1", "b/vm1/cpu,vm1,cpu,60,2", "vm1,vm1,cpu,60,3")
    usage = TraceSource([path]).fetch(EVERYTHING)

    assert [(one.container.pod, one.values.tolist()) for one in usage.series] == [("a-vm1", [1]), ("b-vm1", [2]), ("vm1", [3])]


def test_parquet_and_csv_give_the_same(tmp_path):
    rows = [("s/a/cpu", "a", "cpu", 60 * n, n / 8) for n in range(100)] + [("s/a/memory", "a", "memory", 60 * n, n * 4.0) for n in range(9)]
    names, containers, resources, times, values = (list(column) for column in zip(*rows, strict=True))
    as_parquet = parquet(
        tmp_path,
        series_id=pa.array(names).dictionary_encode(),
        container=containers,
        resource=resources,
        timestamp=pa.array(times, pa.int64()),
        value=pa.array(values, pa.float32()),
        value_max=values,
    )
    as_csv = csv(tmp_path, *(",".join(map(str, row)) for row in rows))

    assert by_key(TraceSource([as_parquet]).fetch(EVERYTHING)) == by_key(TraceSource([as_csv]).fetch(EVERYTHING))


@settings(max_examples=40)
@given(st.permutations(range(24)), st.integers(0, 1500), st.integers(1, 1500))
def test_any_order_of_rows_gives_the_same_series(tmp_path_factory, order, start, length):
    rows = [(f"s/{'abc'[n % 3]}/cpu", "abc"[n % 3], "cpu", 60 * (n // 3), float(n)) for n in range(24)]
    path = csv(tmp_path_factory.mktemp("order"), *(",".join(map(str, rows[index])) for index in order))
    found = by_key(TraceSource([path]).fetch(Window(start, start + length, 60)))

    expected: dict = {}
    for _, container, resource, time, value in rows:
        if start < time <= start + length:
            expected.setdefault((container, resource), []).append((time, value))
    assert found == expected


def test_unsorted_times_are_sorted_and_said_once_a_file(tmp_path):
    lines = [f"s/{name}/cpu,{name},cpu,{time},1" for name in "ab" for time in (120, 60, 180)]
    usage = TraceSource([csv(tmp_path, *lines)]).fetch(EVERYTHING)

    assert [one.timestamps.tolist() for one in usage.series] == [[60, 120, 180]] * 2
    (finding,) = [finding for finding in usage.findings if finding.reason == Reason.UNSORTED_TIMESTAMPS]
    assert finding.count == 2
    assert "trace.csv: times run backwards in 2 series" in finding.message
    assert usage.failures == ()


def test_bad_samples_are_dropped_and_counted(tmp_path):
    values = ["nan", "-1", "inf", "", "2", "3"]
    path = csv(tmp_path, *(f"s/a/cpu,a,cpu,{60 * n},{value}" for n, value in enumerate(values)), "s/a/cpu,a,cpu,,9", "s/a/cpu,a,cpu,300,1")
    usage = TraceSource([path]).fetch(Window(-1, 400, 60))

    assert usage.series[0].values.tolist() == [2, 3]
    assert {finding.reason: finding.count for finding in usage.findings} == {
        Reason.NON_FINITE_SAMPLES: 4,
        Reason.NEGATIVE_SAMPLES: 1,
        Reason.DUPLICATE_TIMESTAMPS: 1,
    }


def test_gaps_are_judged_by_the_interval_of_the_data(tmp_path):
    times = [300 * n for n in range(30)] + [300 * (n + 100) for n in range(30)]
    usage = TraceSource([csv(tmp_path, *(f"s/a/cpu,a,cpu,{time},1" for time in times))]).fetch(Window(-1, 40_000, 60))

    assert [(finding.reason, finding.count) for finding in usage.findings] == [(Reason.GAP, 1)]


def test_files_that_take_turns_make_one_series_and_overlaps_are_said(tmp_path):
    first = csv(tmp_path, "s/a/cpu,a,cpu,60,1", "s/a/cpu,a,cpu,120,5", name="1.csv")
    second = csv(tmp_path, "s/a/cpu,a,cpu,180,3", name="2.csv")
    third = csv(tmp_path, "s/a/cpu,a,cpu,120,4", "s/a/cpu,a,cpu,180,9", name="3.csv")

    turns = TraceSource([second, first]).fetch(EVERYTHING)
    assert by_key(turns) == {("a", "cpu"): [(60, 1), (120, 5), (180, 3)]}
    assert Reason.DUPLICATE_SERIES not in {finding.reason for finding in turns.findings}
    both = TraceSource([first, second, third]).fetch(EVERYTHING)
    assert by_key(both) == {("a", "cpu"): [(60, 1), (120, 5), (180, 9)]}
    assert [finding.count for finding in both.findings if finding.reason == Reason.DUPLICATE_SERIES] == [2]


def test_only_the_namespaces_asked_for(tmp_path):
    header = f"{HEADER},namespace"
    path = csv(tmp_path, "s/a/cpu,a,cpu,60,1,x", "s/b/cpu,b,cpu,60,1,y", "s/c/oom,c,oom,60,1,y", header=header)
    source = TraceSource([path])

    assert source.namespaces() == ("x", "y")
    assert list(by_key(source.fetch(EVERYTHING, ["x"]))) == [("a", "cpu")]
    assert source.fetch(EVERYTHING, ["x"]).ooms == ()
    nothing = source.fetch(EVERYTHING, ["z"])
    assert (nothing.series, [finding.reason for finding in nothing.findings]) == ((), [Reason.NO_DATA])


def test_span_covers_all_files(tmp_path):
    first = csv(tmp_path, "s/a/cpu,a,cpu,60,1", "s/a/cpu,a,cpu,,1", name="1.csv")
    second = csv(tmp_path, "s/a/cpu,a,cpu,500.5,1", name="2.csv")

    assert TraceSource([first, second]).span() == (60.0, 500.5)
    with pytest.raises(UsageError, match="no rows"):
        TraceSource([csv(tmp_path, name="empty.csv")]).span()


def bad_files(directory: Path) -> dict[str, tuple[Path, str]]:
    good = {"series_id": ["s/a/cpu"], "container": ["a"], "resource": ["cpu"], "timestamp": [60], "value": [1.0]}
    torn = parquet(directory, "torn.parquet", **good)
    torn.write_bytes(torn.read_bytes()[:-20])
    binary = directory / "binary.csv"
    binary.write_bytes(b"\x00\x01\xff\xfe\n\x00")
    (directory / "folder").mkdir()
    (directory / "none.csv").touch()
    without = {name: column for name, column in good.items() if name not in ("value", "resource")}
    return {
        "missing": (directory / "missing.parquet", "No such file"),
        "folder": (directory / "folder", "Is a directory"),
        "torn": (torn, "cannot be read as Parquet"),
        "binary": (binary, "no column|cannot be read as CSV"),
        "no-bytes": (directory / "none.csv", "cannot be read as CSV"),
        "no-column": (csv(directory, "a,cpu,1", header="container,resource,timestamp", name="c.csv"), "no column series_id, value"),
        "no-parquet-column": (parquet(directory, "c.parquet", **without), "no column resource, value"),
        "resource": (csv(directory, "s/a/gpu,a,gpu,1,1", name="r.csv"), "series s/a/gpu has resource 'gpu': expected cpu, memory, oom"),
        "value": (csv(directory, "s/a/cpu,a,cpu,1,lots", name="v.csv"), "'lots'"),
        "time": (csv(directory, "s/a/cpu,a,cpu,yesterday,1", name="t.csv"), "'yesterday'"),
        "ragged": (csv(directory, "s/a/cpu,a,cpu,1", name="g.csv"), "Expected 5 columns"),
        "no-container": (csv(directory, "s/a/cpu,,cpu,1,1", name="n.csv"), "a row has no container"),
        "text-values": (parquet(directory, "v.parquet", **{**good, "value": ["1"]}), "column value is of type string"),
        "null-resource": (parquet(directory, "n.parquet", **{**good, "resource": pa.array([None], pa.string())}), "no resource"),
    }


BAD = [
    *("missing", "folder", "torn", "binary", "no-bytes", "no-column", "no-parquet-column"),
    *("resource", "value", "time", "ragged", "no-container", "text-values", "null-resource"),
]


@pytest.mark.parametrize("case", BAD)
def test_a_file_that_cannot_be_used_is_one_clear_line(tmp_path, case):
    path, message = bad_files(tmp_path)[case]

    with pytest.raises(UsageError, match=message) as caught:
        TraceSource([path]).fetch(EVERYTHING)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_does_not_stop_the_others(tmp_path, case):
    path, _ = bad_files(tmp_path)[case]
    good = csv(tmp_path, "s/a/cpu,a,cpu,60,1", name="good.csv")
    usage = TraceSource([path, good]).fetch(EVERYTHING)

    assert by_key(usage) == {("a", "cpu"): [(60, 1)]}
    (failure,) = usage.failures
    assert failure.subject == str(path)
    assert failure.reason in ("TraceUnreadable", "TraceColumnMissing", "TraceBadValue")


def test_every_bad_file_is_in_the_error_when_none_is_good(tmp_path):
    with pytest.raises(UsageError, match=r"No such file.* \(and 1 more files\)"):
        TraceSource([tmp_path / "1", tmp_path / "2"]).fetch(EVERYTHING)
    with pytest.raises(UsageError, match="no trace file"):
        TraceSource([])


@pytest.mark.parametrize(
    ("text", "name"),
    [("bitbrains_rnd/vm001", "bitbrains-rnd-vm001"), ("Web", "web"), ("a..b", "a-b"), ("-x-", "x"), ("a" * 63, "a" * 63)],
)
def test_kubernetes_name(text, name):
    assert kubernetes_name(text) == name


@given(st.text(), st.text())
def test_a_kubernetes_name_is_always_valid(text, other):
    name = kubernetes_name(text)

    assert 0 < len(name) <= 63
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert name[0] != "-" != name[-1]


def test_long_names_that_differ_at_their_end_stay_different():
    assert kubernetes_name("x" * 100 + "1") != kubernetes_name("x" * 100 + "2")


def test_a_quarter_of_a_million_interleaved_rows_keep_their_series(tmp_path):
    containers, samples = 500, 500
    names = np.tile(np.array([f"s/c{n}/cpu" for n in range(containers)]), samples)
    path = parquet(
        tmp_path,
        series_id=names,
        container=np.tile(np.array([f"c{n}" for n in range(containers)]), samples),
        resource=np.full(names.size, "cpu"),
        timestamp=np.repeat(np.arange(samples) * 60, containers),
        value=np.tile(np.arange(containers, dtype=np.float64), samples),
    )
    usage = TraceSource([path]).fetch(EVERYTHING)

    assert len(usage.series) == containers
    assert all(set(one.values) == {float(one.container.container[1:])} and one.values.size == samples for one in usage.series)


def test_pyarrow_is_loaded_with_the_first_file_and_not_before():
    code = "import sys, vpa_ippr.metrics.traces; sys.exit('pyarrow' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_recorded_traces_are_read_whole():
    directory = Path(__file__).parents[3] / "shared" / "data" / "traces"
    if not directory.is_dir():
        pytest.skip(f"recorded traces are not at {directory}: this test needs real data")
    paths = sorted(directory.glob("dev_*.parquet"))
    source = TraceSource([path for path in paths if "bitbrains" not in path.name])
    first, last = source.span()
    usage = source.fetch(Window(first - 1, last, 300))

    assert usage.failures == ()
    assert len(usage.owners) == len({one.container.pod for one in usage.series}) > 300
    assert sum(one.values.size for one in usage.series) == usage.costs.samples > 1_000_000
    assert all(np.all(np.diff(one.timestamps) > 0) for one in usage.series)


def test_milliseconds_are_told_from_seconds(tmp_path):
    path = tmp_path / "ms.csv"
    path.write_text("series_id,container,resource,timestamp,value\na/b/cpu,b,cpu,1767225600000,0.5\n")
    source = TraceSource([path])
    for ask in (source.span, lambda: source.fetch(Window(0.0, 2e12, 60.0))):
        with pytest.raises(UsageError, match="must be seconds"):
            ask()
