"""Canaries against a cluster: one pod first and then the others; on harm all get back what they had, until it is tried again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.e2e_cluster import Town, amounts, container, deployment, steady, town
from vpa_ippr.api.timestamps import format_time
from vpa_ippr.resize.settings import Settings
from vpa_ippr.sandbox.workloads import ANNOTATION_WORKLOAD

pytestmark = pytest.mark.integration

Json = dict[str, Any]
SETTINGS = Settings(soak_seconds=300, degraded_hold_off_seconds=1800, hold_off_seconds=60)
BEFORE = amounts("500m", "512Mi"), amounts("1", "1Gi")


def lowered(found: Town, name: str, memory: str) -> int:
    return sum(one["limits"]["memory"] == memory for one in found.resources(name, "status"))


def test_one_pod_first_and_then_the_others(tmp_path: Path) -> None:
    with town(tmp_path) as found, found.agents():
        found.workload(deployment("web", 4, container(*BEFORE)))
        found.recommend("web", "200m", "256Mi")
        updater, most_before_proof = found.updater(SETTINGS), 0
        for _ in range(60):
            found.cycle(updater)
            if not found.events("RolloutProven"):
                most_before_proof = max(most_before_proof, sum(cpu == "200m" for cpu, _ in found.requests("web")))
            if lowered(found, "web", "512Mi") == 4:
                break
        assert most_before_proof == 1
        assert found.resources("web", "status") == [{"requests": amounts("200m", "256Mi"), "limits": amounts("400m", "512Mi")}] * 4
        assert set(found.writes().values()) == {2}  # the CPU at once, the memory when it is held
        assert found.vpa_condition("web", "Degraded") is None
        found.cycle(updater, 20)
        assert {shrink["status"]["phase"] for shrink in found.shrinks()} == {"Done"}
        assert len(found.shrinks()) == 4


def unready(found: Town) -> None:
    """The canary's application no longer answers its probe."""
    canary = next(pod for pod in found.pods("web") if pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] == "200m")

    def mutate(pod: Json) -> Json:
        ready = {"type": "Ready", "status": "False", "lastTransitionTime": format_time(found.clock.now())}
        others = [one for one in pod["status"]["conditions"] if one["type"] != "Ready"]
        return {**pod, "status": {**pod["status"], "conditions": [*others, ready]}}

    found.store.update("pods", "shop", canary["metadata"]["name"], mutate, subresource="status")


HARMS = {
    "OutOfMemory": (("500m", "128Mi"), ("memory",), {"app": {"anon": [{"kind": "ramp", "height": "300Mi", "overSeconds": 20}]}}),
    "ContainerRestarted": (("200m", "512Mi"), (), {"app": {"finishesAfterSeconds": 150}}),
    "NotReady": (("200m", "512Mi"), (), steady("40Mi")),
}


@pytest.mark.parametrize("reason", HARMS)
def test_a_harmed_canary_is_taken_back_and_it_is_tried_again_later(reason: str, tmp_path: Path) -> None:
    wanted, restart, use = HARMS[reason]
    with town(tmp_path) as found:
        found.workload(deployment("web", 3, container(*BEFORE, restart=restart), use=use), run=30)
        found.recommend("web", *wanted)
        updater = found.updater(SETTINGS)
        found.cycle(updater)
        assert sum(one == wanted for one in found.requests("web")) == 1
        if reason == "NotReady":
            unready(found)
        found.cycle_until(updater, lambda: found.vpa_condition("web", "Degraded") is not None, most=12)
        condition = found.vpa_condition("web", "Degraded")
        assert condition is not None
        assert (condition["status"], condition["reason"]) == ("True", reason)
        found.cycle(updater, 3)
        assert found.requests("web") == [("500m", "512Mi")] * 3
        assert ("ResizeReverted", "RolloutDegraded") in found.codes()
        assert sum(found.writes().values()) == 2  # the resize of the canary and its being taken back
        assert found.events("RolloutDegraded") == ["web"]

        # Nothing like it until the hold-off is over; then a canary again, which has no trouble this time.
        mend(found)
        found.cycle(updater, 20)
        assert sum(found.writes().values()) == 2
        found.cycle_until(updater, lambda: found.requests("web", "status") == [wanted] * 3, most=90)
        condition = found.vpa_condition("web", "Degraded")
        assert condition is not None
        assert (condition["status"], condition["reason"]) == ("False", "Recovered")
        assert found.events("RolloutRecovered") == ["web"]
        assert not [one for one in found.sandbox.api.audit if one.resource == "verticalpodautoscalers" and one.code >= 400]


def mend(found: Town) -> None:
    """From their next start on the pods use little; they are made anew by hand."""
    calm = json.dumps(steady("40Mi"))

    def mutate(owner: Json) -> Json:
        owner["spec"]["template"]["metadata"]["annotations"][ANNOTATION_WORKLOAD] = calm
        return owner

    found.store.update("deployments.apps", "shop", "web", mutate)
    found.run(120)
