from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vpa_ippr.sandbox.promlabels import BadQueryDataError, QueryFailedError, UnsupportedQueryError
from vpa_ippr.sandbox.promql import MAX_NESTING, Matrix, query_instant, query_range
from vpa_ippr.sandbox.promvectors import Scalar, Vector
from vpa_ippr.sandbox.promwindows import RANGE_FUNCTIONS, Windows, quantile_over_time, windows_of
from vpa_ippr.sandbox.tsdb import Tsdb

NOW = 1000.0


@pytest.fixture(scope="module")
def tsdb() -> Tsdb:
    """``cpu`` counts two a second on web and one on db, from 0 at t=100, every 10 s; ``mem`` is steady; ``old`` ended at 700."""
    tsdb = Tsdb()
    for at in range(100, 1001, 10):
        for pod, speed in (("web", 2.0), ("db", 1.0)):
            tsdb.append({"__name__": "cpu", "pod": pod}, at, (at - 100) * speed)
            tsdb.append({"__name__": "mem", "pod": pod, "unit": "byte"}, at, 100.0 * speed)
        if at <= 700:
            tsdb.append({"__name__": "old", "pod": "web"}, at, float(at))
    tsdb.append({"__name__": "owner", "pod": "web", "owner": "shop"}, 990, 1.0)
    tsdb.append({"__name__": "owner", "pod": "db", "owner": "store"}, 990, 1.0)
    return tsdb


def _ask(tsdb: Tsdb, text: str, time: float = NOW) -> dict[str, float]:
    """Values of an instant vector by their labels, written name=value,..."""
    value = query_instant(tsdb, text, time)
    assert isinstance(value, Vector)
    shown = [",".join(f"{name}={text}" for name, text in labels) for labels in value.labels]
    return dict(zip(shown, value.values[:, 0].tolist(), strict=True))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cpu", {"__name__=cpu,pod=web": 1800, "__name__=cpu,pod=db": 900}),
        ('cpu{pod="web"} offset 5m', {"__name__=cpu,pod=web": 1200}),
        ('cpu{pod="web"} @ 500', {"__name__=cpu,pod=web": 800}),
        ("rate(cpu[1m])", {"pod=web": 2, "pod=db": 1}),
        ("increase(cpu[100s])", {"pod=web": 200, "pod=db": 100}),
        ("max_over_time(cpu[1m] offset 1m)", {"pod=web": 1680, "pod=db": 840}),
        ("count_over_time(cpu[1m])", {"pod=web": 7, "pod=db": 7}),
        ("quantile_over_time(0.5, cpu[20s])", {"pod=web": 1780, "pod=db": 890}),
        ("max_over_time(rate(cpu[1m])[5m:1m])", {"pod=web": 2, "pod=db": 1}),
        ("last_over_time(old[10m])", {"__name__=old,pod=web": 700}),
        ("sum(mem)", {"": 300}),
        ("sum by (unit) (mem)", {"unit=byte": 300}),
        ("avg without (pod) (mem)", {"unit=byte": 150}),
        ("topk(1, mem)", {"__name__=mem,pod=web,unit=byte": 200}),
        ("bottomk(1, mem)", {"__name__=mem,pod=db,unit=byte": 100}),
        ("quantile(0.5, mem)", {"": 150}),
        ("mem / 100", {"pod=web,unit=byte": 2, "pod=db,unit=byte": 1}),
        ("150 < mem", {"__name__=mem,pod=web,unit=byte": 200}),
        ("mem > bool 150", {"pod=web,unit=byte": 1, "pod=db,unit=byte": 0}),
        ("mem / ignoring (unit) cpu", {"pod=web": 200 / 1800, "pod=db": 100 / 900}),
        ("mem * on (pod) group_left (owner) owner", {"owner=shop,pod=web,unit=byte": 200, "owner=store,pod=db,unit=byte": 100}),
        ('owner and on (pod) cpu{pod="db"}', {"__name__=owner,owner=store,pod=db": 1}),
        ('owner unless on (pod) cpu{pod="db"}', {"__name__=owner,owner=shop,pod=web": 1}),
        ('mem{pod="db"} or cpu', {"__name__=mem,pod=db,unit=byte": 100, "__name__=cpu,pod=web": 1800, "__name__=cpu,pod=db": 900}),
        ('label_replace(owner{pod="db"}, "w", "${1}-x", "owner", "(st).*")', {"__name__=owner,owner=store,pod=db,w=st-x": 1}),
        ('label_join(owner{pod="db"}, "w", "/", "pod", "owner")', {"__name__=owner,owner=store,pod=db,w=db/store": 1}),
        ("clamp_min(mem, 150)", {"pod=web,unit=byte": 200, "pod=db,unit=byte": 150}),
        ("timestamp(owner)", {"owner=shop,pod=web": 990, "owner=store,pod=db": 990}),
        ('absent(mem{pod="cache",unit!="x"})', {"pod=cache": 1}),
        ("absent(mem)", {}),
        ("old", {"__name__=old,pod=web": 700}),
        ("-mem", {"pod=web,unit=byte": -200, "pod=db,unit=byte": -100}),
        ("vector(scalar(old))", {"": 700}),
        ("nothing + mem", {}),
    ],
)  # fmt: skip
def test_instant_queries(tsdb: Tsdb, text: str, expected: dict[str, float]) -> None:
    assert _ask(tsdb, text) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "expected"), [("1 + 2 * 3", 7), ("time()", NOW), ("2 > bool 1", 1), ("scalar(mem)", math.nan), ("-3 ^ 2", -9)]
)
def test_scalars(tsdb: Tsdb, text: str, expected: float) -> None:
    value = query_instant(tsdb, text, NOW)
    assert isinstance(value, Scalar)
    assert value.values.tolist() == pytest.approx([expected], nan_ok=True)


def test_a_value_is_seen_for_five_minutes(tsdb: Tsdb) -> None:
    assert _ask(tsdb, "old", 1000.0) == {"__name__=old,pod=web": 700}
    assert _ask(tsdb, "old", 1000.001) == {}


def test_a_stale_series_is_not_seen_and_its_marker_is_no_sample() -> None:
    tsdb = Tsdb()
    ref = tsdb.series({"__name__": "x"})
    for at in (10, 20, 30):
        tsdb.append_many([ref], at, np.array([at / 10]))
    tsdb.mark_stale(ref, 40)
    assert _ask(tsdb, "x", 39.9) == {"__name__=x": 3}
    assert _ask(tsdb, "x", 40) == {}
    assert _ask(tsdb, "sum_over_time(x[1m])", 60) == {"": 6}
    tsdb.append_many([ref], 50, np.array([9.0]))
    assert _ask(tsdb, "x", 50) == {"__name__=x": 9}


def test_a_range_query_is_one_instant_query_for_each_step(tsdb: Tsdb) -> None:
    for text in ("rate(cpu[45s])", "mem * on (pod) group_left (owner) owner", "old", "topk(1, cpu)", "sum(old or cpu)"):
        times_ms, vector = query_range(tsdb, text, 90, 1090, 33)
        assert times_ms.tolist() == list(range(90_000, 1_090_001, 33_000))
        for column, at in enumerate(times_ms.tolist()):
            rows = np.flatnonzero(vector.present[:, column])
            got = {",".join(f"{name}={value}" for name, value in vector.labels[row]): vector.values[row, column] for row in rows}
            assert got == _ask(tsdb, text, at / 1000)


def test_start_and_end_are_those_of_the_query(tsdb: Tsdb) -> None:
    _, vector = query_range(tsdb, 'cpu{pod="db"} @ end() - cpu @ start()', 200, 400, 100)
    assert vector.values.tolist() == [[200, 200, 200]]


def test_an_instant_query_for_a_range_gives_raw_samples(tsdb: Tsdb) -> None:
    value = query_instant(tsdb, 'cpu{pod="web"}[20s]', NOW)
    assert isinstance(value, Matrix)
    assert [(item.times_ms.tolist(), item.values.tolist()) for item in value.series] == [
        ([980_000, 990_000, 1_000_000], [1760, 1780, 1800])
    ]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("histogram_quantile(0.9, mem)", "histogram_quantile"),
        ("predict_linear(mem[5m], 60)", "predict_linear"),
        ("absent_over_time(mem[5m])", "absent_over_time"),
        ("stddev(mem)", "stddev"),
        ('count_values("v", mem)', "count_values"),
        ("mem atan2 cpu", "atan2"),
        ('mem{pod="a" or pod="b"}', "'or' between label matchers"),
        ("mem + fill(0) cpu", "fill"),
        ("mem @ -5", "before 1970"),
        ('mem{pod=~"[[:alpha:]]+"}', "regular expression"),
        ("mem{pod=`a\\\\b`}", "raw string"),
        ("(" * (MAX_NESTING + 1) + "mem" + ")" * (MAX_NESTING + 1), "brackets"),
        ("mem" + " + mem" * 100_000, "operators"),
        (" # ' \n" + "(" * 100_000, "brackets"),
    ],
    ids=lambda value: value[:40],
)
def test_what_is_not_supported_is_refused_by_name(tsdb: Tsdb, text: str, what: str) -> None:
    with pytest.raises(UnsupportedQueryError, match=what):
        query_instant(tsdb, text, NOW)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "sum(",
        "rate(mem)",
        "unknown(mem)",
        "1 == 2",
        '{pod=""}',
        'mem{pod=~"("}',
        "mem offset 10000000y",
        "mem[10000000y]",
        "mem @ 1e15",
    ],
)
def test_what_is_not_promql_is_bad_data(tsdb: Tsdb, text: str) -> None:
    with pytest.raises(BadQueryDataError):
        query_instant(tsdb, text, NOW)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("mem + on (unit) cpu", "found duplicate series for the match group {} on the right hand-side"),
        ("mem + on (unit) cpu{pod='db'}", None),
        ("mem - on (unit) mem{pod='db'}", "many-to-one matching must be explicit"),
        ("owner * on () group_left (owner) vector(1) + on (nothing) group_left () vector(1)", None),
        ('label_replace(owner, "owner", "", "", "") * on () group_left (pod) vector(1)', "grouping labels must ensure unique matches"),
        ('rate({__name__=~"cpu|mem",unit=""}[1m])', None),
        ('{pod="db",__name__=~"cpu|owner",owner=""} + {pod="db",__name__=~"mem"}', None),
        ('abs(label_replace(mem, "pod", "x", "", ""))', "same labelset"),
        ('label_replace(mem, "1", "x", "", "")', "invalid destination label name in label_replace"),
        ('label_replace(mem, "a", "x", "", "(")', "invalid regular expression in label_replace"),
        ("topk(NaN, mem)", "NaN"),
        ("max_over_time(vector(1)[3000w:1ms])", "too many samples"),
    ],
)
def test_errors_of_evaluation(tsdb: Tsdb, text: str, error: str | None) -> None:
    if error is None:
        query_instant(tsdb, text, NOW)
        return
    with pytest.raises(QueryFailedError, match=error.replace("{", r"\{")):
        query_instant(tsdb, text, NOW)


@pytest.mark.parametrize("text", ["cpu", "rate(cpu[1m])", "vector(1) * on () group_right () cpu"])
def test_a_result_that_would_not_fit_into_memory_is_refused(tsdb: Tsdb, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("vpa_ippr.sandbox.promvectors.MAX_SAMPLES", 100)
    assert len(query_range(tsdb, text, 500, 549, 1)[1].labels) == 2
    with pytest.raises(QueryFailedError, match="too many samples"):
        query_range(tsdb, text, 500, 550, 1)


def test_the_deepest_query_that_is_let_through_is_evaluated(tsdb: Tsdb) -> None:
    text = "mem"
    for _ in range(MAX_NESTING):
        text = f"max_over_time({text}[10s:10s])"
    assert _ask(tsdb, text) == {"pod=web,unit=byte": 200, "pod=db,unit=byte": 100}


def test_rate_stretches_to_the_ends_of_the_window_as_prometheus_does() -> None:
    """Samples at 1..4 min of a 5 min window, value 60 a minute: 180 in 3 min, half a minute... worked out by hand below."""
    tsdb = Tsdb()
    for minute in range(1, 5):
        tsdb.append({"__name__": "c"}, 1_000_000 + 60 * minute, 1000 + 60.0 * minute)
    # Both ends are 60 s away, under 1.1 times the spacing of 60 s: stretched over the whole window.
    assert _ask(tsdb, "rate(c[5m])", 1_000_300) == {"": pytest.approx(180 * (300 / 180) / 300)}
    # The end is 100 s away, more than 66 s: half a spacing is added there, 60 s at the start.
    assert _ask(tsdb, "increase(c[340s])", 1_000_340) == {"": pytest.approx(180 * (180 + 60 + 30) / 180)}


def test_rate_does_not_stretch_a_counter_below_zero() -> None:
    tsdb = Tsdb()
    for second, value in ((60, 10.0), (120, 70.0), (180, 130.0)):
        tsdb.append({"__name__": "c"}, 1_000_000 + second, value)
    # At one a second it was zero 10 s before its first sample.
    assert _ask(tsdb, "increase(c[4m])", 1_000_200) == {"": pytest.approx(120 * (120 + 10 + 20) / 120)}


def test_rate_counts_a_reset_as_a_start_from_zero() -> None:
    tsdb = Tsdb()
    for second, value in ((0, 100.0), (60, 160.0), (120, 30.0), (180, 90.0)):
        tsdb.append({"__name__": "c"}, 1_000_000 + second, value)
    assert _ask(tsdb, "increase(c[3m])", 1_000_180) == {"": pytest.approx(60 + 30 + 60)}
    assert _ask(tsdb, "resets(c[3m])", 1_000_180) == {"": 1}


series = st.lists(
    st.tuples(st.integers(1, 40_000), st.one_of(st.floats(-1e6, 1e6), st.just(math.nan), st.just(math.inf))), min_size=1, max_size=40
)


def _windows(rows: list[tuple[int, float]], ends: list[int], reach: int) -> tuple[Windows, list[list[float]]]:
    times = np.cumsum([step for step, _ in rows])
    values = np.array([value for _, value in rows])
    windows = windows_of(times, values, np.sort(np.array(ends)), reach)
    return windows, [values[(times >= end - reach) & (times <= end)].tolist() for end in sorted(ends)]


def _naive(name: str, values: list[float]) -> float:
    numbers = [value for value in values if not math.isnan(value)]
    match name:
        case "max_over_time":
            return max(numbers, default=math.nan)
        case "min_over_time":
            return min(numbers, default=math.nan)
        case "sum_over_time":
            return sum(values)
        case "avg_over_time":
            return sum(values) / len(values)
        case "count_over_time":
            return len(values)
        case "last_over_time":
            return values[-1]
        case "resets":
            return sum(after < before for before, after in pairwise(values))
    raise AssertionError(name)


@pytest.mark.parametrize(
    "name",
    ["max_over_time", "min_over_time", "sum_over_time", "avg_over_time", "count_over_time", "last_over_time", "resets"],
)
@given(rows=series, ends=st.lists(st.integers(0, 900_000), min_size=1, max_size=10), reach=st.integers(1, 300_000))
def test_windows_are_reduced_as_by_the_definition(name: str, rows: list[tuple[int, float]], ends: list[int], reach: int) -> None:
    windows, slices = _windows(rows, ends, reach)
    values, present = RANGE_FUNCTIONS[name](windows)
    assert present.tolist() == [bool(part) for part in slices]
    got = values[present].tolist()
    assert got == pytest.approx([_naive(name, part) for part in slices if part], nan_ok=True, rel=1e-9, abs=1e-6)


@given(
    rows=st.lists(st.tuples(st.integers(1, 40_000), st.floats(-1e6, 1e6)), min_size=1, max_size=40),
    ends=st.lists(st.integers(0, 900_000), min_size=1, max_size=10),
    reach=st.integers(1, 300_000),
    quantile=st.floats(0, 1),
)
def test_quantiles_over_time_interpolate_linearly(rows: list[tuple[int, float]], ends: list[int], reach: int, quantile: float) -> None:
    windows, slices = _windows(rows, ends, reach)
    values, present = quantile_over_time(windows, np.full(len(ends), quantile))
    assert present.tolist() == [bool(part) for part in slices]
    expected = [float(np.quantile(part, quantile)) for part in slices if part]
    assert values[present].tolist() == pytest.approx(expected, rel=1e-9, abs=1e-6)
