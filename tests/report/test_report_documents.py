import csv
import io
import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from vpa_ippr.api.resources import Amounts, ContainerResources, Resource
from vpa_ippr.api.series import Finding, WorkloadRef
from vpa_ippr.report.documents import CSV_COLUMNS, render_csv, render_json, render_yaml
from vpa_ippr.report.model import Advice, Current, Report, Severity, build_report, severity_of
from vpa_ippr.report.table import render_table
from vpa_ippr.report.units import change_text, cpu_text, memory_text

GIB = 2**30


def advice(name: str, cpu: int | None = 100, memory: int | None = GIB, **more: object) -> Advice:
    return Advice(WorkloadRef("shop", "Deployment", name), "app", Amounts(cpu, memory), **more)  # type: ignore[arg-type]


def current(cpu: int | None, memory: int | None, replicas: int = 1) -> Current:
    return Current(ContainerResources(Amounts(cpu, memory), Amounts(None, memory)), replicas)


def report(*items: tuple[Advice, Current | None], **more: object) -> Report:
    now = {(a.workload, a.container): c for a, c in items if c is not None}
    return build_report((a for a, _ in items), now, as_of=1_767_225_600.0, source="test", profile="vpa-classic", **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("resource", "now", "target", "severity"),
    [
        (Resource.CPU, 1000, 100, Severity.CRITICAL),
        (Resource.CPU, 100, 1000, Severity.CRITICAL),
        (Resource.CPU, 1000, 700, Severity.WARNING),
        (Resource.CPU, 1000, 850, Severity.OK),
        (Resource.CPU, 1000, 960, Severity.GOOD),
        (Resource.CPU, 40, 1, Severity.GOOD),
        (Resource.MEMORY, GIB, GIB // 4, Severity.CRITICAL),
        (Resource.MEMORY, 60 * 2**20, 1, Severity.GOOD),
        (Resource.MEMORY, None, GIB, Severity.WARNING),
        (Resource.MEMORY, GIB, None, Severity.UNKNOWN),
    ],
)
def test_severity_is_by_share(resource: Resource, now: int | None, target: int | None, severity: Severity) -> None:
    assert severity_of(resource, now, target) is severity


def test_an_unknown_value_does_not_hide_a_known_bad_one() -> None:
    (row,) = report((advice("web", cpu=None, memory=GIB // 8), current(100, GIB))).rows
    assert row.severity is Severity.CRITICAL


def test_rows_come_worst_and_largest_first() -> None:
    small = (advice("small", cpu=100), current(200, GIB))
    large = (advice("large", cpu=1000), current(2000, GIB, replicas=10))
    fine = (advice("fine", cpu=100), current(100, GIB))
    assert [row.advice.workload.name for row in report(fine, small, large).rows] == ["large", "small", "fine"]


def test_totals_count_replicas_and_only_what_is_known_on_both_sides() -> None:
    totals = report((advice("a", cpu=100), current(300, None, replicas=4)), (advice("b", cpu=50), None)).totals
    assert (totals.requested, totals.recommended) == (Amounts(1200, None), Amounts(400, None))


def test_json_and_yaml_hold_the_same_document() -> None:
    built = report(
        (advice("web", why="p90 of 8 days"), current(500, GIB)),
        findings=[Finding("Gap", "shop/web", 2, "2 gaps")],
        failures=[Finding("QueryFailed", "db", 1, "timeout")],
    )
    document = json.loads(render_json(built))
    assert document == yaml.safe_load(render_yaml(built))
    assert document["schema"] == "vpa-ippr/report/v1"
    assert document["as_of"] == "2026-01-01T00:00:00Z"
    assert document["items"][0]["difference"] == {"cpu_millicores": -400, "memory_bytes": 0}
    assert document["failures"][0]["subject"] == "db"


def test_csv_is_one_full_row_a_container_with_plain_numbers() -> None:
    rows = list(csv.DictReader(io.StringIO(render_csv(report((advice("web"), current(500, GIB)), (advice("new"), None))))))
    assert tuple(rows[0]) == CSV_COLUMNS
    by_name = {row["workload"]: row for row in rows}
    assert by_name["web"]["cpu_difference_millicores"] == "-400"
    assert by_name["new"]["cpu_request_millicores"] == ""


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t"])
def test_csv_text_cannot_become_a_formula(start: str) -> None:
    rows = list(csv.DictReader(io.StringIO(render_csv(report((advice("web", why=f"{start}cmd|' /C calc'!A0"), None))))))
    assert rows[0]["why"].startswith("'")


def test_table_shows_the_step_from_old_to_new_without_colour_codes_when_piped() -> None:
    text = render_table(report((advice("web", cpu=250, memory=512 * 2**20), current(1000, GIB))))
    assert "1 → 250m -75%" in text
    assert "1Gi → 512Mi -50%" in text
    assert "\x1b" not in text


@given(st.integers(60, 200), st.text("abcxyz0189-.", min_size=1, max_size=80))
def test_table_fits_the_width_of_the_terminal(width: int, name: str) -> None:
    text = render_table(report((advice(name), current(1000, GIB))), width=max(width, 110))
    assert all(len(line) <= max(width, 110) for line in text.splitlines()[:2])


def test_markup_in_names_is_not_interpreted() -> None:
    assert "[red]web[/red]" in render_table(report((advice("[red]web[/red]"), None)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (cpu_text(250), "250m"), (cpu_text(1500), "1.5"), (cpu_text(12000), "12"), (cpu_text(None), "-"), (cpu_text(-1500), "-1.5"),
        (memory_text(64 * 2**20), "64Mi"), (memory_text(GIB + GIB // 4), "1.25Gi"), (memory_text(1_500_000), "1.4Mi"),
        (memory_text(None), "-"),
        (change_text(100, 150), "+50%"), (change_text(100, 100), ""), (change_text(0, 5), "new"), (change_text(None, 5), ""),
    ],
)  # fmt: skip
def test_amounts_read_well(text: str, expected: str) -> None:
    assert text == expected
