"""Cleaning: whatever goes in, only clean series come out, and everything taken out is counted."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vpa_ippr.api.series import ContainerRef, Resource
from vpa_ippr.metrics.quality import Cleaned, Reason, clean, findings_of, merge, usual_interval_seconds

CONTAINER = ContainerRef("shop", "web-1", "app")
NAN, INF = np.nan, np.inf

samples = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 30).map(float), st.floats(0, 100), st.just(NAN)),
        st.one_of(st.floats(allow_nan=True, allow_infinity=True), st.floats(0, 10)),
    )
)


def arrays(rows: list[tuple[float, float]]) -> tuple[np.ndarray, np.ndarray]:
    table = np.array(rows, np.float64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


@given(samples)
def test_a_cleaned_series_keeps_its_promises_and_accounts_for_every_sample(rows):
    cleaned = clean(*arrays(rows))

    assert np.all(np.isfinite(cleaned.values) & (cleaned.values >= 0))
    assert np.all(np.diff(cleaned.timestamps) > 0)
    assert cleaned.values.size + cleaned.non_finite + cleaned.negative + cleaned.duplicate_timestamps == len(rows)


@given(samples)
def test_the_largest_value_of_each_time_stays(rows):
    largest: dict[float, float] = {}
    for time, value in rows:
        if np.isfinite(time) and np.isfinite(value) and value >= 0:
            largest[time] = max(value, largest.get(time, 0.0))
    cleaned = clean(*arrays(rows))

    assert dict(zip(cleaned.timestamps.tolist(), cleaned.values.tolist(), strict=True)) == largest


@given(samples)
def test_cleaning_twice_changes_nothing_more(rows):
    once = clean(*arrays(rows))
    twice = clean(once.timestamps, once.values)

    assert twice.timestamps.tolist() == once.timestamps.tolist()
    assert twice.values.tolist() == once.values.tolist()
    assert (twice.non_finite, twice.negative, twice.duplicate_timestamps, twice.unsorted) == (0, 0, 0, 0)


@given(st.lists(samples, min_size=1, max_size=4))
def test_merging_parts_is_cleaning_them_together(parts):
    merged = merge([clean(*arrays(part)) for part in parts])
    together = clean(*arrays([row for part in parts for row in part]))

    assert merged.timestamps.tolist() == together.timestamps.tolist()
    assert merged.values.tolist() == together.values.tolist()
    assert (merged.non_finite, merged.negative) == (together.non_finite, together.negative)


@pytest.mark.parametrize(
    ("rows", "counts"),
    [
        ([(1, 5), (2, NAN), (3, INF), (4, -INF)], {"non_finite": 3}),
        ([(1, -1), (2, -1e-9), (3, 0)], {"negative": 2}),
        ([(1, 5), (1, 7), (1, 6), (2, 1)], {"duplicate_timestamps": 2}),
        ([(3, 1), (1, 2), (2, 3), (0, 4)], {"unsorted": 2}),
        ([(NAN, 1), (1, 2)], {"non_finite": 1}),
        ([(1, 2), (2, 3)], {}),
        ([], {}),
    ],
    ids=["not-finite", "negative", "twice", "unsorted", "no-time", "clean", "empty"],
)
def test_what_is_counted(rows, counts):
    cleaned = clean(*arrays(rows))
    expected = {"non_finite": 0, "negative": 0, "duplicate_timestamps": 0, "unsorted": 0} | counts

    assert {name: getattr(cleaned, name) for name in expected} == expected


def series(times: list[float], **counts: int) -> Cleaned:
    return Cleaned(np.array(times, np.float64), np.ones(len(times)), **counts)


def reasons(cleaned: Cleaned, interval: float = 60, expected: float = 100) -> dict[str, int]:
    found = findings_of(CONTAINER, Resource.CPU, cleaned, interval_seconds=interval, expected_samples=expected)
    return {finding.reason: finding.count for finding in found}


@pytest.mark.parametrize(
    ("step_between", "gaps"), [(120, 0), (150, 0), (151, 1), (3600, 1)], ids=["one-missed", "at-the-bound", "above", "long"]
)
def test_a_gap_is_more_than_two_and_a_half_intervals(step_between, gaps):
    times = [60.0 * n for n in range(30)] + [60.0 * 29 + step_between + 60.0 * n for n in range(30)]

    assert reasons(series(times)).get(Reason.GAP, 0) == gaps


def test_few_samples_are_said_only_of_a_window_that_could_hold_more():
    assert reasons(series([60.0, 120.0])) == {Reason.FEW_SAMPLES: 2}
    assert reasons(series([60.0, 120.0]), expected=2) == {}


def test_every_finding_names_the_container_the_count_and_the_resource():
    cleaned = series([60.0 * n for n in range(30)], non_finite=3, negative=2, duplicate_timestamps=4, unsorted=1)
    found = list(findings_of(CONTAINER, Resource.MEMORY, cleaned, interval_seconds=60, expected_samples=30))

    assert {finding.reason: finding.count for finding in found} == {
        Reason.NON_FINITE_SAMPLES: 3,
        Reason.NEGATIVE_SAMPLES: 2,
        Reason.DUPLICATE_TIMESTAMPS: 4,
        Reason.UNSORTED_TIMESTAMPS: 1,
    }
    for finding in found:
        assert finding.subject == "shop/web-1/app"
        assert finding.message.startswith(f"shop/web-1/app: {finding.count} memory ")


@pytest.mark.parametrize(("times", "interval"), [([], 0), ([5], 0), ([0, 60, 120, 1000], 60)], ids=["none", "one", "gap"])
def test_usual_interval_is_the_median(times, interval):
    assert usual_interval_seconds(np.array(times, np.float64)) == interval
