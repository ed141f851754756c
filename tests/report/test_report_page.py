from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vpa_ippr.report.chart import Line, Mark, Scale, draw_chart, thin
from vpa_ippr.report.page import Chapter, Happening, Page, render_page

HOUR = 3600.0


def line(values: list[float], *, stepped: bool = False) -> Line:
    return Line("usage", "usage", np.arange(len(values)) * HOUR, np.array(values, dtype=np.float64), stepped)


def chart(*lines: Line, marks: tuple[Mark, ...] = ()) -> str:
    return str(draw_chart("memory", lines, marks, start=0.0, end=10 * HOUR, scale=Scale(10, (1, 2, 5), "{:g}".format)))


def test_a_gap_in_the_data_is_a_gap_in_the_line() -> None:
    assert chart(line([1, 2, np.nan, 3, 4])).count("M") == 2


def test_a_step_line_holds_its_value_until_the_next() -> None:
    drawn = chart(line([1, 1, 3, 3], stepped=True))
    path = drawn.split(' d="')[1].split('"')[0]
    xs, ys = zip(*(point.lstrip("ML").split(",") for point in path.split()), strict=True)
    assert len(xs) == 4
    assert ys[0] == ys[1]
    assert xs[1] == xs[2]


def test_marks_outside_the_chart_are_left_out() -> None:
    marks = (Mark(HOUR, "done", "inside"), Mark(-HOUR, "done", "before"), Mark(20 * HOUR, "done", "after"))
    drawn = chart(line([1, 2]), marks=marks)
    assert "inside" in drawn
    assert "before" not in drawn
    assert "after" not in drawn


def test_nothing_at_all_still_draws_a_frame() -> None:
    assert chart().startswith("<svg")
    assert chart(line([np.nan])).count("<path") == 0


@given(st.lists(st.floats(0, 1e12), min_size=1, max_size=3000))
def test_thinning_keeps_the_peak_and_the_order(values: list[float]) -> None:
    times, kept = thin(np.arange(len(values), dtype=np.float64), np.array(values))
    assert kept.max() == max(values)
    assert (np.diff(times) > 0).all()
    assert len(times) <= 1200


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href") and value]


HOSTILE = "<script>alert(1)</script>\"'&{{ 7*7 }}"


@pytest.fixture
def page() -> Page:
    chapter = Chapter("w0", HOSTILE, HOSTILE, [line([1, 2])], [line([1, 2])], [Happening(HOUR, "done", HOSTILE)], HOSTILE)
    return Page(HOSTILE, HOSTILE, 0.0, 10 * HOUR, [(HOSTILE, HOSTILE)], [chapter])


def test_hostile_names_are_text(page: Page) -> None:
    text = render_page(page)
    parser = Tags()
    parser.feed(text)
    assert "script" not in parser.tags
    assert "49" not in text
    assert "&lt;script&gt;" in text


def test_the_page_needs_nothing_from_elsewhere(page: Page) -> None:
    parser = Tags()
    parser.feed(render_page(page))
    assert all(link.startswith("#") for link in parser.links)


def test_each_workload_has_two_charts_and_its_story(page: Page) -> None:
    text = render_page(page)
    assert text.count("<svg") == 2
    assert "day 1 01:00" in text
