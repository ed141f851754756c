"""Whole comparisons: deterministic, over common slots, against a baseline; and how they are shown."""

import math
import struct
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import combinations, product

import msgspec
import numpy as np
import pytest
from backtest_support import DAY, NAN, assert_same, fleet, made_up
from hypothesis import given
from hypothesis import strategies as st

from vpa_ippr.api.errors import UsageError
from vpa_ippr.api.series import Finding, Resource
from vpa_ippr.backtest.actuator import Conditions
from vpa_ippr.backtest.comparison import Plan, compare, compared
from vpa_ippr.backtest.contenders import contenders
from vpa_ippr.backtest.documents import render_json
from vpa_ippr.backtest.pareto import efficient
from vpa_ippr.backtest.pareto_labels import place_labels
from vpa_ippr.backtest.pareto_png import render_png
from vpa_ippr.backtest.pareto_svg import render_page, render_svg
from vpa_ippr.backtest.replay import replay
from vpa_ippr.backtest.table import render_table

PLAN = Plan(("krr-simple", "max-guard"), "vpa-classic", DAY, False, Conditions(refused=0.1, deferred=0.1, seed=4))
STEP = 1800.0
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def both():
    sources = ["shop"] * 4 + ["bank"] * 5
    return [compare(made_up(resource, series=9, days=4, step=STEP, sources=sources), PLAN) for resource in Resource]


def test_the_baseline_comes_first_and_is_1(both):
    for comparison in both:
        assert [outcome.policy for outcome in comparison.outcomes] == ["vpa-classic", "krr-simple", "max-guard"]
        balanced = comparison.outcomes[0].averages.balanced
        assert balanced["allocation_ratio"].value == balanced["slack_ratio"].value == 1.0
        assert balanced["violation_time_change"].value == 0.0


def test_the_same_again_is_the_same(both):
    again = compare(made_up(series=9, days=4, step=STEP, sources=["shop"] * 4 + ["bank"] * 5), PLAN)
    assert render_json(PLAN, [again], [], []) == render_json(PLAN, [both[0]], [], [])


def test_another_seed_is_other_luck(both):
    other = replace(PLAN, conditions=replace(PLAN.conditions, seed=5))
    again = compare(made_up(series=9, days=4, step=STEP, sources=["shop"] * 4 + ["bank"] * 5), other)
    assert again.outcomes[0].averages.balanced["violation_volume"] != both[0].outcomes[0].averages.balanced["violation_volume"]


def test_a_policy_is_the_same_whoever_it_is_compared_with():
    made = made_up(series=4, days=3, step=STEP)
    alone = compare(made, replace(PLAN, policies=("vpa-classic",)))
    # Both decide from the first slot on, so they are scored over the same slots.
    beside = compare(made, replace(PLAN, policies=("max-guard", "vpa-classic")))
    assert_same(alone.outcomes[0].averages, beside.outcomes[1].averages)


def test_replays_made_elsewhere_can_be_compared():
    made = made_up(series=4, days=3, step=STEP)
    replays = [replay(made, one, PLAN.conditions) for one in contenders(["vpa-classic", "max-guard"], made, own_floors=False)]
    plan = replace(PLAN, policies=("vpa-classic", "max-guard"))
    assert_same(compared(made, plan, replays).outcomes[1].averages, compare(made, plan).outcomes[1].averages)


def test_a_series_without_scored_slots_does_not_disturb_the_others():
    rows = made_up(series=5, days=3, step=STEP, seed=3).usage
    short = np.full(rows.shape[1], NAN)
    short[:10] = 1.0
    plan = replace(PLAN, policies=("max-guard",), conditions=Conditions())
    with_short = compare(fleet([*rows, short], step=STEP), plan).outcomes[1].averages
    assert_same(with_short, compare(fleet(rows, step=STEP), plan).outcomes[1].averages)


def test_nothing_to_score():
    with pytest.raises(UsageError, match="longer than the warm-up of 1 days") as caught:
        compare(made_up(days=0.5), PLAN)
    assert caught.value.reason == "TooLittleHistory"


def test_a_policy_that_never_decides_is_named():
    with pytest.raises(UsageError, match="cpu: nothing can be scored, as krr-simple never decided"):
        compare(made_up(days=1.5, step=STEP), PLAN)


def test_progress_is_told():
    told = []
    compare(made_up(series=2, days=3, step=STEP), replace(PLAN, policies=()), lambda *step: told.append(step))
    assert told[-1] == ("vpa-classic", 144, 144)
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)


def test_json_is_complete_and_has_no_nan(both):
    finding = Finding("Gap", "shop/web/app", 2, "a gap")
    document = msgspec.json.decode(render_json(PLAN, both, [finding], [finding]))
    assert document["schema"] == "vpa-ippr/backtest/v1"
    assert document["conditions"] == {"refused": 0.1, "deferred": 0.1, "deferred_seconds": 3600.0, "seed": 4}
    assert document["findings"] == document["failures"] == [{"reason": "Gap", "subject": "shop/web/app", "count": 2, "message": "a gap"}]
    cpu, memory = document["resources"]
    assert (cpu["unit_hours"], memory["unit_hours"]) == ("core-hours", "GiB-hours")
    assert cpu["sources"] == {"bank": 5, "shop": 4}
    policy = cpu["policies"][1]
    assert cpu["policies"][2]["refused_per_day"] > 0
    assert set(policy["by_source"]) == {"bank", "shop"}
    assert len(policy["series"]) == 9
    mean = np.mean([np.mean([one["violation_time"] for one in policy["series"] if one["source"] == name]) for name in ("bank", "shop")])
    assert policy["balanced"]["violation_time"]["value"] == pytest.approx(mean)


def test_table(both):
    text = render_table(both)
    assert max(map(len, text.splitlines()[:-1])) <= 160
    for part in (
        "cpu: 9 containers",
        "memory: 9 containers",
        "OOMS",
        "krr-simple",
        "bank",
        "the same floor for all",
        "1.000 (1.000 to 1.000)",
    ):
        assert part in text
    narrow = render_table(both, width=110)
    assert "1.000 (" not in narrow
    assert "intervals" not in narrow
    assert "1.000" in narrow
    assert "\x1b" not in text
    assert "COVERAGE" not in text  # none of these forecasts


def test_one_source_needs_no_table_by_source():
    comparison = compare(made_up(series=4, days=4, step=STEP), PLAN)
    assert "SOURCE" not in render_table([comparison])


@pytest.mark.parametrize(
    ("points", "chosen"),
    [
        ([(1, 1), (2, 2)], [0]),
        ([(2, 1), (1, 2)], [1, 0]),
        ([(1, 3), (2, 2), (3, 1), (2.5, 2.5)], [0, 1, 2]),
        ([(1, 1), (1, 0.5), (1, 1)], [1]),
    ],
    ids=["one-beats-all", "a-trade", "one-beaten", "same-in-one"],
)
def test_efficient(points, chosen):
    assert efficient(points) == chosen


def test_svg_is_well_formed_and_names_every_policy(both):
    root = ET.fromstring(render_svg(both))  # noqa: S314
    labels = [text.text for text in root.iter(f"{SVG}text") if text.get("class") == "label"]
    assert sorted(labels) == sorted(2 * ["vpa-classic", "krr-simple", "max-guard"])
    for circle in root.iter(f"{SVG}circle"):
        assert 0 <= float(circle.get("cx")) <= 760
        assert 0 <= float(circle.get("cy")) <= 420
    spots = [(float(text.get("x")), float(text.get("y"))) for text in root.iter(f"{SVG}text") if text.get("class") == "label"][:3]
    assert all(abs(x - x2) > 60 or abs(y - y2) >= 14 for (x, y), (x2, y2) in combinations(spots, 2))


def test_the_same_picture_as_png(both):
    before = "matplotlib.pyplot" in sys.modules
    image = render_png(both)
    assert struct.unpack(">II", image[16:24]) == (2 * 760, 2 * 840)
    assert image == render_png(both)
    assert image != render_png(both[::-1])
    assert ("matplotlib.pyplot" in sys.modules) is before


PLACES = st.tuples(st.floats(70, 600), st.floats(50, 360))
POLICIES = ["static", "vpa-classic", "vpa-recreate", "krr-simple", "krr-simple-limit", "autopilot-window", "max-guard", "balanced", "cost"]


@given(st.lists(PLACES, max_size=len(POLICIES)))
def test_no_label_lies_on_another_or_on_a_point(places):
    points = list(zip(places, POLICIES, strict=False))
    labels = place_labels(points, 760, 31, 377)
    spans = []
    for label, (_, text) in zip(labels, points, strict=True):
        (x, y), width = label.at, 7.9 * len(text)  # as wide as it is drawn at most
        spans.append((x - width if label.is_left else x, y - 10, x if label.is_left else x + width, y + 3))
    for one, other in combinations(spans, 2):
        assert one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
    for (left, top, right, bottom), (x, y) in product(spans, places):
        assert not (left < x < right and top < y < bottom)
    for left, top, right, bottom in spans:
        assert 0 <= left < right <= 760
        assert 31 <= top < bottom <= 380


def test_a_label_far_from_its_point_is_led_to_it():
    alone, *_ = place_labels([((100, 100), "static")], 760, 31, 377)
    assert (alone.leader, alone.is_left, alone.at) == (None, False, (109, 104))
    crowded = place_labels([((100, 100), name) for name in ("static", "max-guard", "cost")], 760, 31, 377)
    assert [label.leader is None for label in crowded].count(False) == 1
    assert {label.leader[1] for label in crowded if label.leader} == {(100, 100)}


def test_a_page_is_escaped_and_complete(both):
    hostile = replace(both[0], plan=replace(PLAN, baseline="<script>"))
    page = render_page([hostile], "a < b")
    assert "<script>" not in page
    assert "a &lt; b" in page
    assert page.count("<svg") == 1


def test_nothing_to_draw_is_said():
    made = fleet(np.ones((4, 96)), step=STEP)
    comparison = compare(made, Plan(("max-guard",), "static", DAY, False, Conditions()))
    # Static is the highest use here: no slack, so no ratio to it.
    assert math.isnan(comparison.outcomes[1].averages.balanced["slack_ratio"].value)
    assert "nothing to draw" in render_svg([comparison])
    assert render_png([comparison]).startswith(b"\x89PNG")
