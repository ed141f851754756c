import json
from dataclasses import replace

import pytest

from vpa_ippr.api.resources import Amounts, Resource
from vpa_ippr.api.series import Finding, WorkloadRef
from vpa_ippr.recommend.result import Choice, Driver, Explanation, Raise, Recommendation, Weighed
from vpa_ippr.report.recommendations import advice_from, render_recommendations, why

START = 1_767_225_600.0
DRIVERS = (Driver(Resource.CPU, 0.9, 109, "web-0"), Driver(Resource.MEMORY, 0.95, 1 << 30, None))
FINDING = Finding("Gap", "shop/web-0/app", 2, "gaps in cpu: 2")


def recommendation(**more):
    parts = {"samples": 60, "first_sample": START, "last_sample": START + 86_400}
    explanation = Explanation("vpa-classic", "decaying-histogram", DRIVERS, **(parts | more))
    target = Amounts(126, None)
    return Recommendation(WorkloadRef("shop", "Deployment", "web"), "app", target, Amounts(), Amounts(), target, 0.5, explanation)


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({}, "cpu p90 109m in web-0; memory p95 1Gi; 60 samples over 1.0 days"),
        ({"first_sample": None, "last_sample": None, "samples": 0}, "cpu p90 109m in web-0; memory p95 1Gi"),
        (
            {"oom_kills": 3, "capped_by": ("cpu capped to maxAllowed",)},
            "cpu p90 109m in web-0; memory p95 1Gi; 60 samples over 1.0 days; 3 OOM kills; cpu capped to maxAllowed",
        ),
    ],
    ids=["usual", "no-samples", "oom-and-cap"],
)
def test_why_is_one_line(more, line):
    assert why(recommendation(**more)) == line


def test_advice_carries_what_a_report_shows():
    advice = advice_from(recommendation(capped_by=("capped",), findings=(FINDING,)))
    assert (advice.target, advice.confidence, advice.notes) == (Amounts(126, None), 0.5, ("capped", "gaps in cpu: 2"))


def test_the_document_has_null_for_what_is_not_recommended():
    failure = Finding("PrometheusRefused", "bank", 1, "bank: refused")
    text = render_recommendations([recommendation(findings=(FINDING,))], as_of=START, findings=[FINDING], failures=[failure])
    assert text.endswith("}\n")
    document = json.loads(text)
    (item,) = document["items"]
    assert item["target"] == {"cpu_millicores": 126, "memory_bytes": None}
    assert item["explanation"]["findings"] == document["findings"] == [
        {"reason": "Gap", "subject": "shop/web-0/app", "count": 2, "message": "gaps in cpu: 2"}
    ]  # fmt: skip
    assert document["failures"][0]["subject"] == "bank"
    assert document["as_of"] == "2026-01-01T00:00:00Z"


def test_unknown_moments_are_null():
    (item,) = json.loads(render_recommendations([recommendation(first_sample=None, last_sample=None)], as_of=START))["items"]
    assert (item["explanation"]["first_sample"], item["explanation"]["last_sample"]) == (None, None)


CHOICE = Choice("hour-of-day", "hour", 120, 0.912, 48.0, START, START + 86_100, 350, (Raise("guard", 150),))


@pytest.mark.parametrize(
    ("choice", "line"),
    [
        (CHOICE, "cpu p90 109m in web-0 by hour-of-day, next hour, covers 91%, startup 350m, guard 150m"),
        (Choice("prior"), "cpu p90 109m in web-0 by prior"),
        (Choice("runs", weighed=Weighed(0.25, 0.5)), "cpu p90 109m in web-0 by runs, more wanted in 25% of the steps"),
        (Choice("runs", weighed=Weighed(0.0, 0.05)), "cpu p90 109m in web-0 by runs"),
        (Choice("runs", weighed=Weighed(page_cache=2**30, why="x")), "cpu p90 109m in web-0 by runs, without 1Gi of page cache"),
    ],
    ids=["all that can be known", "nothing known", "demand", "use is demand", "page cache"],
)
def test_an_ensemble_says_how_it_chose(choice, line):
    ensemble = Explanation("balanced", "ensemble", (Driver(Resource.CPU, 0.9, 109, "web-0", choice),), 0, None, None)
    assert why(replace(recommendation(), explanation=ensemble)) == line


def test_the_document_says_how_an_ensemble_chose():
    found = recommendation()
    drivers = (Driver(Resource.CPU, 0.9, 109, "web-0", CHOICE), DRIVERS[1])
    found = replace(found, explanation=replace(found.explanation, drivers=drivers))
    (item,) = json.loads(render_recommendations([found], as_of=START))["items"]
    chosen, plain = item["explanation"]["drivers"]
    assert plain["choice"] is None
    assert chosen["choice"] == {
        "by": "hour-of-day", "horizon": "hour", "p90": 120, "coverage": 0.912, "known_hours": 48.0, "from": "2026-01-01T00:00:00Z",
        "to": "2026-01-01T23:55:00Z", "startup_peak": 350, "raised_by": {"guard": 150},
        "evidence": None,
    }  # fmt: skip


def test_the_document_says_what_evidence_made_of_it():
    found, choice = recommendation(), replace(CHOICE, weighed=Weighed(0.25, 0.5, 2**20, "nobody missed it"))
    found = replace(found, explanation=replace(found.explanation, drivers=(Driver(Resource.CPU, 0.9, 109, "web-0", choice),)))
    (item,) = json.loads(render_recommendations([found], as_of=START))["items"]
    assert item["explanation"]["drivers"][0]["choice"]["evidence"] == {
        "uplifted_share": 0.25,
        "throttled_share": 0.5,
        "page_cache_bytes": 2**20,
        "why": "nobody missed it",
    }
