"""Each mode of a VPA against a cluster: what is resized, what is evicted, what is left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.e2e_cluster import Town, amounts, container, deployment, town
from vpa_ippr.resize.settings import Settings

pytestmark = pytest.mark.integration

SMALL = container(amounts("200m", "128Mi"), amounts("1", "256Mi"))
SETTINGS = Settings(canary="off")


def go(found: Town, mode: str | None, cpu: str, *, admission: bool, cycles: int = 2) -> tuple[int, int, set[tuple[str, str]]]:
    """How many pods were resized and evicted, and what was said of the pods in the first cycle."""
    found.workload(deployment("web", 2, SMALL), mode)
    found.recommend("web", cpu, "128Mi")
    updater = found.updater(SETTINGS)
    for _ in range(cycles):
        if admission:
            found.renew_admission()
        found.cycle(updater)
    said = {(str(one.code), str(one.reason)) for one in found.history[:2]}
    return len(found.writes()), len(found.writes("pods", "eviction", "create")), said


@pytest.mark.parametrize(
    ("mode", "admission", "resized", "evicted", "said"),
    [
        ("Off", True, 0, 0, {("NotDue", "ModeOff")}),
        ("Initial", True, 0, 0, {("NotDue", "ModeInitial")}),
        ("Recreate", True, 0, 2, {("PodEvicted", "OutsideBounds"), ("NotDue", "DisruptionBudget")}),
        ("Recreate", False, 0, 0, {("NotDue", "NoAdmission")}),
        ("Auto", True, 0, 2, {("PodEvicted", "OutsideBounds"), ("NotDue", "DisruptionBudget")}),
        (None, True, 0, 2, {("PodEvicted", "OutsideBounds"), ("NotDue", "DisruptionBudget")}),
        ("InPlaceOrRecreate", True, 2, 0, {("ResizeIssued", "OutsideBounds")}),
        ("InPlace", True, 2, 0, {("ResizeIssued", "OutsideBounds")}),
    ],
    ids=["Off", "Initial", "Recreate", "Recreate-without-admission", "Auto", "none", "InPlaceOrRecreate", "InPlace"],
)
def test_what_a_mode_does_where_all_can_be_done_in_place(
    mode: str | None, admission: bool, resized: int, evicted: int, said: set[tuple[str, str]], tmp_path: Path
) -> None:
    with town(tmp_path) as found:
        assert go(found, mode, "500m", admission=admission) == (resized, evicted, said)


@pytest.mark.parametrize(
    ("mode", "admission", "evicted", "said"),
    [
        ("InPlace", True, 0, {("Refused", "NodeCapacity")}),
        ("InPlaceOrRecreate", False, 0, {("Refused", "NodeCapacity")}),
        ("InPlaceOrRecreate", True, 2, {("PodEvicted", "OutsideBounds"), ("Refused", "NodeCapacity")}),
    ],
    ids=["InPlace", "InPlaceOrRecreate-without-admission", "InPlaceOrRecreate"],
)
def test_what_a_mode_does_where_it_cannot_be_done_in_place(
    mode: str, admission: bool, evicted: int, said: set[tuple[str, str]], tmp_path: Path
) -> None:
    with town(tmp_path, cpu="4") as found:
        # A larger node that nothing runs on: only there the new pods would have room.
        found.create("nodes", {**large_node(found), "spec": {"unschedulable": True}})
        assert go(found, mode, "6", admission=admission) == (0, evicted, said)


def large_node(found: Town) -> dict[str, object]:
    known = found.store.get("nodes", None, "node-1")
    status = {**known["status"], **{part: {**known["status"][part], "cpu": "16"} for part in ("capacity", "allocatable")}}
    return {"metadata": {"name": "large", "labels": known["metadata"]["labels"]}, "status": status}
