"""The demo's first hours, as a user runs it: everything that it promises to show must be there."""

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.integration

# Recommendations, a deferred resize, a reverted shrink and committed ones: all within the first hours.
DAYS = "0.1"


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo") / "out"


@pytest.fixture(scope="module")
def run(output: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "vpa_ippr.cli", "demo", "--days", DAYS, "--output", str(output)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


@pytest.fixture(scope="module")
def summary(run: subprocess.CompletedProcess[str], output: Path) -> dict[str, Any]:
    assert run.returncode == 0, run.stderr
    found: dict[str, Any] = json.loads((output / "summary.json").read_text())
    return found


def events_by_pod(summary: dict[str, Any]) -> dict[str, list[str]]:
    found = defaultdict(list)
    for event in summary["events"]:
        found[event["pod"]].append(event["reason"])
    return found


def test_memory_limits_went_down_through_shrinks_and_nobody_was_killed_for_it(summary: dict[str, Any]) -> None:
    done = [shrink for shrink in summary["shrinks"] if shrink["phase"] == "Done"]
    assert len(done) >= 5
    assert not [kill for kill in summary["oom_kills"] if kill["below_first_limit"]]
    committed = {event["pod"] for event in summary["events"] if event["reason"] == "ShrinkCommitted"}
    assert {shrink["pod"] for shrink in done} <= committed


def test_the_cold_cache_was_reclaimed(summary: dict[str, Any]) -> None:
    assert [s["phase"] for s in summary["shrinks"] if s["pod"] == "warehouse-0"] == ["Done"]


def test_a_shrink_was_taken_back_because_the_workload_needed_its_memory(summary: dict[str, Any]) -> None:
    reverted = [s for s in summary["shrinks"] if s["pod"] == "search-0" and s["phase"] == "Reverted"]
    assert reverted
    assert reverted[0]["reason"] in ("MemoryPressure", "IoPressure", "Refaults", "SettledAbove", "MajorFaults")


def test_a_resize_waited_for_room_on_its_node_and_was_done_then(summary: dict[str, Any]) -> None:
    """Nothing is asked for that would only sit Deferred."""
    (trainer,) = [reasons for pod, reasons in events_by_pod(summary).items() if pod.startswith("trainer-")]
    assert "ResizeDeferred" not in trainer
    assert trainer.index("ResizeIssued") < trainer.index("ResizeCompleted")


def test_a_resize_was_refused_with_its_reason(summary: dict[str, Any]) -> None:
    refused = [event for event in summary["events"] if event["reason"] == "ResizeRefused"]
    assert any(event["pod"].startswith("simulator-") and "node node-small has 4000" in event["message"] for event in refused)


def test_the_oom_loop_ended_with_more_memory(summary: dict[str, Any]) -> None:
    kills = [kill for kill in summary["oom_kills"] if kill["pod"].startswith("importer-")]
    assert kills
    last_raise = max(e["at"] for e in summary["events"] if e["pod"].startswith("importer-") and e["reason"] == "ResizeIssued")
    assert max(kill["at"] for kill in kills) < last_raise


def test_what_a_person_sees(run: subprocess.CompletedProcess[str], output: Path, summary: dict[str, Any]) -> None:
    for words in ("MEMORY LIMIT", "SHRINK OF POD", "resizes:", "OOM kills: 0 with a limit that we had lowered", "page: "):
        assert words in run.stdout
    assert "\x1b" not in run.stdout + run.stderr
    page = (output / "index.html").read_text()
    assert page.count("<svg") == 2 * page.count("<article")
    assert page.count("<article") >= 15
    assert "Traceback" not in "".join(path.read_text() for path in output.glob("*.log"))


def test_a_directory_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    command = [sys.executable, "-m", "vpa_ippr.cli", "demo", "--output", str(tmp_path)]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode == 2
    assert "not empty" in refused.stderr
    assert (tmp_path / "thesis.txt").exists()
