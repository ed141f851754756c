from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vpa_ippr.api.errors import ValidationError
from vpa_ippr.sandbox.promlabels import BadQueryDataError, Matcher, UnsupportedQueryError
from vpa_ippr.sandbox.tsdb import ROW_SAMPLES, Tsdb, is_stale

ALL: list[Matcher] = []


def _named(name: str, **labels: str) -> dict[str, str]:
    return {"__name__": name, **labels}


def _pods(tsdb: Tsdb, *matchers: Matcher) -> list[str]:
    return [dict(samples.labels)["pod"] for samples in tsdb.select(matchers, 0, 1e9)]


@given(
    scrapes=st.lists(st.tuples(st.integers(1, 60), st.sets(st.integers(0, 4))), max_size=400),
    bounds=st.tuples(st.integers(0, 12_000), st.integers(0, 12_000)),
)
def test_select_returns_exactly_what_was_appended_in_the_interval(scrapes: list[tuple[int, set[int]]], bounds: tuple[int, int]) -> None:
    tsdb = Tsdb()
    refs = [tsdb.series(_named("x", pod=str(number))) for number in range(5)]
    expected: dict[str, list[tuple[int, float]]] = {}
    now = 0
    for step, members in scrapes:
        now += step
        chosen = sorted(members)
        tsdb.append_many([refs[member] for member in chosen], now, np.array([now + member / 10 for member in chosen]))
        for member in chosen:
            if min(bounds) <= now <= max(bounds):
                expected.setdefault(str(member), []).append((now * 1000, now + member / 10))
    read = tsdb.select(ALL, min(bounds), max(bounds))
    got = {dict(item.labels)["pod"]: list(zip(item.times_ms.tolist(), item.values.tolist(), strict=True)) for item in read}
    assert got == expected


@pytest.mark.parametrize(
    ("matchers", "pods"),
    [
        ([], ["db", "web-1", "web-2"]),
        ([Matcher("__name__", "=", "x")], ["db", "web-1", "web-2"]),
        ([Matcher("__name__", "=", "y")], []),
        ([Matcher("pod", "=", "db")], ["db"]),
        ([Matcher("pod", "!=", "db")], ["web-1", "web-2"]),
        ([Matcher("pod", "=~", "web-.")], ["web-1", "web-2"]),
        ([Matcher("pod", "=~", "web")], []),
        ([Matcher("pod", "!~", "db|web-2")], ["web-1"]),
        ([Matcher("tier", "=", "")], ["web-1", "web-2"]),
        ([Matcher("tier", "!=", "")], ["db"]),
        ([Matcher("tier", "=~", "back|")], ["db", "web-1", "web-2"]),
        ([Matcher("pod", "=~", "(?i)WEB-1")], ["web-1"]),
        ([Matcher("pod", "=~", "web.*"), Matcher("pod", "!~", ".*1")], ["web-2"]),
    ],
    ids=str,
)
def test_matchers(matchers: list[Matcher], pods: list[str]) -> None:
    tsdb = Tsdb()
    for labels in ({"pod": "web-2"}, {"pod": "web-1", "tier": ""}, {"pod": "db", "tier": "back"}):
        tsdb.append(_named("x", **labels), 1, 1.0)
    assert _pods(tsdb, *matchers) == pods


@pytest.mark.parametrize(
    "expression",
    ["[[:alpha:]]", r"\pL", r"a\z", "a{,3}", "(?=a)", "(?x) a", r"(a)\1", "a++", r"\x{41}", r"\<a"],
)
def test_a_regex_that_go_and_python_read_differently_is_refused(expression: str) -> None:
    with pytest.raises(UnsupportedQueryError):
        Matcher("pod", "=~", expression).predicate()


def test_a_broken_regex_is_bad_data() -> None:
    with pytest.raises(BadQueryDataError, match="error parsing regexp"):
        Matcher("pod", "=~", "(").predicate()


def test_the_same_labels_are_the_same_series_in_any_order() -> None:
    tsdb = Tsdb()
    assert tsdb.series({"__name__": "x", "a": "1", "b": "2", "c": ""}) == tsdb.series({"b": "2", "a": "1", "__name__": "x"})
    assert tsdb.series(_named("x", a="1")) != tsdb.series(_named("x", a="1", b="2"))


@pytest.mark.parametrize("labels", [{"a": "1"}, {"__name__": ""}, {"__name__": "x", "bad-name": "1"}], ids=str)
def test_a_series_without_name_or_with_a_bad_label_is_refused(labels: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        Tsdb().series(labels)


@pytest.mark.parametrize("again", [10.0, 9.0, 10.0004], ids=["equal", "older", "same-millisecond"])
def test_a_scrape_that_is_not_newer_is_refused_whole(again: float) -> None:
    tsdb = Tsdb()
    tsdb.append(_named("x"), 10, 1.0)
    refs = [tsdb.series(_named("fresh")), tsdb.series(_named("x"))]
    with pytest.raises(ValidationError, match="not newer") as caught:
        tsdb.append_many(refs, again, np.array([1.0, 2.0]))
    assert caught.value.reason == "OutOfOrderSample"
    assert [dict(item.labels) for item in tsdb.select(ALL, 0, 100)] == [_named("x")]


def test_a_scrape_needs_one_value_for_each_series_and_each_series_once() -> None:
    tsdb = Tsdb()
    ref = tsdb.series(_named("x"))
    with pytest.raises(ValidationError, match="1 series but 2 values"):
        tsdb.append_many([ref], 1, np.array([1.0, 2.0]))
    with pytest.raises(ValidationError, match="twice"):
        tsdb.append_many([ref, ref], 1, np.array([1.0, 2.0]))
    tsdb.append_many([], 1, np.array([]))
    assert tsdb.select(ALL, 0, 100) == []


def test_a_series_is_marked_stale_once_and_only_if_it_lived() -> None:
    tsdb = Tsdb()
    never, lived = tsdb.series(_named("never")), tsdb.series(_named("lived"))
    tsdb.append_many([lived], 1, np.array([5.0]))
    for at in (2, 3):
        tsdb.mark_stale(never, at)
        tsdb.mark_stale(lived, at)
    (samples,) = tsdb.select(ALL, 0, 100)
    assert samples.times_ms.tolist() == [1000, 2000]
    assert is_stale(samples.values).tolist() == [False, True]
    assert not is_stale(np.array([np.nan])).any()


def test_a_stale_mark_on_a_full_row_is_seen() -> None:
    tsdb = Tsdb()
    ref = tsdb.series(_named("x"))
    for at in range(ROW_SAMPLES):
        tsdb.append_many([ref], at + 1, np.array([1.0]))
    tsdb.mark_stale(ref, 1000)
    tsdb.mark_stale(ref, 1001)
    assert is_stale(tsdb.select(ALL, 0, 2000)[0].values).sum() == 1


def test_rows_older_than_the_retention_are_used_again() -> None:
    tsdb = Tsdb(retention_seconds=1000)
    dead, living = tsdb.series(_named("dead")), tsdb.series(_named("living"))
    tsdb.append_many([dead], 1, np.array([7.0]))
    for at in range(1, 17_001):
        tsdb.append_many([living], at, np.array([float(at)]))
    (samples,) = tsdb.select(ALL, 0, 1e6)
    assert dict(samples.labels) == _named("living")
    assert samples.values.tolist() == list(range(int(samples.values[0]), 17_001))
    assert 1000 <= samples.values.size < 12_000
    tsdb.append_many([dead], 50_000, np.array([8.0]))
    assert tsdb.select([Matcher("__name__", "=", "dead")], 0, 1e6)[0].values.tolist() == [8.0]


def test_labels_of_series_that_lived_in_the_interval() -> None:
    tsdb = Tsdb()
    tsdb.append(_named("early"), 10, 1.0)
    tsdb.append(_named("late"), 100, 1.0)
    found = {span: [dict(labels)["__name__"] for labels in tsdb.select_labels(ALL, *span)] for span in [(0, 50), (50, 200), (0, 200)]}
    assert found == {(0, 50): ["early"], (50, 200): ["late"], (0, 200): ["early", "late"]}


def test_readers_see_whole_scrapes_while_another_thread_writes() -> None:
    tsdb = Tsdb()
    refs = np.array([tsdb.series(_named("x", pod=str(number))) for number in range(20)])
    scrapes = 2000

    def write() -> None:
        for at in range(1, scrapes + 1):
            tsdb.append_many(refs, at, np.full(20, float(at)))

    writer = threading.Thread(target=write)
    writer.start()
    lengths: set[int] = set()
    while len(lengths) == 0 or max(lengths) < scrapes:
        read = tsdb.select(ALL, 0, 1e6)
        sizes = {samples.values.size for samples in read}
        assert len(sizes) <= 1
        lengths |= sizes
        assert all(samples.values.tolist() == list(range(1, samples.values.size + 1)) for samples in read[:1])
    writer.join()
    assert max(lengths) == scrapes
