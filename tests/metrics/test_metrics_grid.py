"""Evaluation times: aligned, complete, never twice, never too many at once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vpa_ippr.api.errors import UsageError
from vpa_ippr.api.series import Window
from vpa_ippr.metrics import grid
from vpa_ippr.metrics.grid import Grid


def times(points: Grid) -> list[int]:
    return list(range(points.first_ms, points.last_ms + 1, points.step_ms))


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (600, 1200, [900_000, 1_200_000]),
        (601, 1199, [900_000]),
        (599, 1201, [600_000, 900_000, 1_200_000]),
        (601, 899, []),
    ],
    ids=["start-excluded-end-included", "inside", "outside", "between-two-points"],
)
def test_grid_is_the_multiples_of_the_step_in_the_window(start, end, expected):
    points = grid.aligned(Window(start, end, 300), 300)

    assert times(points) == expected
    assert points.points == len(expected)


windows = st.builds(
    lambda start, length, step: Window(start, start + length, step),
    st.floats(0, 2e9),
    st.floats(0.01, 5000),
    st.integers(1, 5000).map(float),
)


@given(windows, st.integers(1, 50))
def test_chunks_hold_every_point_once_in_order(window, most):
    points = grid.aligned(window, window.step_seconds)
    chunks = list(points.chunks(most))

    assert [time for chunk in chunks for time in times(chunk)] == times(points)
    assert all(0 < chunk.points <= most for chunk in chunks)


@given(windows, st.floats(0, 1))
def test_a_window_read_in_two_parts_has_the_points_of_one_read(window, share):
    middle = window.start + (window.end - window.start) * share
    step = window.step_seconds
    parts = times(grid.aligned(Window(window.start, middle, step), step)) + times(grid.aligned(Window(middle, window.end, step), step))

    assert parts == times(grid.aligned(window, step))


@pytest.mark.parametrize(
    ("window", "message"),
    [(Window(10, 10, 60), "before it starts"), (Window(20, 10, 60), "before it starts"), (Window(0, 10, 0), "too short")],
    ids=["empty", "backwards", "no-step"],
)
def test_a_window_that_holds_nothing_is_refused(window, message):
    with pytest.raises(UsageError, match=message):
        grid.check_window(window)


@pytest.mark.parametrize(
    ("length", "expected"),
    [(60, 1), (3600, 1), (3 * 3600, 3), (8 * 86400, 8), (91 * 86400, 8)],
)
def test_probes_are_few_and_end_with_the_window(length, expected):
    points = grid.probes(Window(1_000_000, 1_000_000 + length, 60), 3600, 8)

    assert points.points == expected
    assert points.last_ms == (1_000_000 + length) * 1000
    assert points.first_ms > 1_000_000_000 - 3_600_000


@pytest.mark.parametrize(
    ("samples", "interval"),
    [(61, 60), (60, 60), (240, 15), (241, 15), (13, 300), (12, 300), (120, 30), (51, 72), (2, 1800)],
)
def test_scrape_interval_from_the_samples_of_an_hour(samples, interval):
    assert grid.scrape_interval_seconds(samples, 3600) == interval


@pytest.mark.parametrize(
    ("step", "scrape", "expected"),
    [(300, 60, 300), (60, 60, 60), (60, 61, 60), (60, 300, 300), (60, 90, 120), (0.5, 1, 1)],
)
def test_points_are_not_closer_than_scrapes(step, scrape, expected):
    assert grid.effective_step_seconds(step, scrape) == expected


@pytest.mark.parametrize(
    ("series", "expected"), [(0, 10_000), (1, 10_000), (500, 4_000), (10_000_000, 1)], ids=["none", "one", "many", "too-many"]
)
def test_a_query_is_bounded_by_points_and_by_samples(series, expected):
    assert grid.chunk_points(series, 10_000, 2_000_000) == expected
