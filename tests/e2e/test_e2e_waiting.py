"""Resizes that the kubelet puts off or cannot do, and kubelets that die in the middle of one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from support.e2e_cluster import Town, amounts, container, deployment, town
from vpa_ippr.resize.settings import Settings
from vpa_ippr.sandbox.restarts import RestartStep
from vpa_ippr.sandbox.runtimefaults import RuntimeFault

pytestmark = pytest.mark.integration

QUEUES = Settings(queue_when_full=True)
SMALL = container(amounts("1", "128Mi"), amounts("", "256Mi"))


def crowded(found: Town, mode: str) -> None:
    """A workload that wants 3 of the 4 CPUs of its node, of which another pod has 2.5."""
    found.create(
        "pods", {"metadata": {"name": "filler", "namespace": "shop"}, "spec": {"containers": [container(amounts("2500m", "64Mi"))]}}
    )
    found.run(10)
    found.workload(deployment("web", 1, SMALL), mode)
    found.recommend("web", "3", "128Mi")


def pending(found: Town) -> str:
    conditions = found.pods("web")[0]["status"]["conditions"]
    return next((one["reason"] for one in conditions if one["type"] == "PodResizePending"), "")


def test_deferred_and_then_done(tmp_path: Path) -> None:
    with town(tmp_path, cpu="4") as found:
        crowded(found, "InPlace")
        updater = found.updater(QUEUES)
        found.cycle(updater, 3)
        assert pending(found) == "Deferred"
        assert found.codes()[-1] == ("ResizeDeferred", "")
        found.store.delete("pods", "shop", "filler")
        found.cycle_until(updater, lambda: found.requests("web", "status") == [("3", "128Mi")], most=8)
        found.cycle(updater)
        assert found.codes()[-1] == ("ResizeCompleted", "")
        assert found.writes() == {found.pods("web")[0]["metadata"]["name"]: 1}
        assert len(found.events("ResizeDeferred")) >= 1


def test_deferred_for_too_long_is_taken_back_and_not_tried_again_at_once(tmp_path: Path) -> None:
    with town(tmp_path, cpu="4") as found:
        crowded(found, "InPlace")
        updater = found.updater(QUEUES)
        cycles = found.cycle_until(updater, lambda: bool(found.events("ResizeReverted")), most=14)
        assert cycles >= 10
        assert ("ResizeReverted", "DeferredTooLong") in found.codes()
        found.cycle(updater, 10)
        assert found.requests("web") == [("1", "128Mi")]
        assert pending(found) == ""
        assert list(found.writes().values()) == [2]


def test_deferred_for_too_long_and_then_evicted(tmp_path: Path) -> None:
    with town(tmp_path, cpu="4", nodes=2) as found:
        found.store.update("nodes", None, "node-2", lambda node: {**node, "spec": {"unschedulable": True}})
        crowded(found, "InPlaceOrRecreate")
        uid = found.pods("web")[0]["metadata"]["uid"]
        found.store.update("nodes", None, "node-2", lambda node: {**node, "spec": {}})
        updater = found.updater(QUEUES)
        for _ in range(12):
            found.renew_admission()
            found.cycle(updater)
        assert ("PodEvicted", "DeferredTooLong") in found.codes()
        assert found.pods("web")[0]["metadata"]["uid"] != uid
        assert sum(found.writes("pods", "eviction", "create").values()) == 1


def test_a_full_node_is_not_asked_unless_it_is_wanted(tmp_path: Path) -> None:
    with town(tmp_path, cpu="4") as found:
        crowded(found, "InPlace")
        updater = found.updater()
        found.cycle(updater, 3)
        assert found.codes() == [("Refused", "NodeFull")] * 3
        assert not found.writes()
        found.store.delete("pods", "shop", "filler")
        found.run(5)
        found.cycle(updater)
        assert found.requests("web", "status") == [("3", "128Mi")]


def test_a_runtime_that_fails_for_good_has_its_resize_taken_back(tmp_path: Path) -> None:
    with town(tmp_path) as found:
        found.workload(deployment("web", 1, SMALL))
        found.sandbox.simulation.set_node_faults("node-1", [RuntimeFault("device busy", count=None)])
        found.recommend("web", "3", "192Mi")
        updater = found.updater()
        found.cycle_until(updater, lambda: bool(found.events("ResizeReverted")), most=6)
        assert ("ResizeFailing", "") in found.codes()
        assert ("ResizeReverted", "KubeletError") in found.codes()
        found.sandbox.simulation.set_node_faults("node-1")
        found.cycle(updater, 3)
        assert found.requests("web") == [("1", "128Mi")]


@pytest.mark.parametrize("step", [step for step in RestartStep if step is not RestartStep.WHILE_DEFERRED], ids=lambda step: step.value)
def test_a_kubelet_that_dies_in_a_resize_ends_it_well_and_once(step: RestartStep, tmp_path: Path) -> None:
    with town(tmp_path, restart_seconds=90) as found, found.agents():
        found.workload(deployment("web", 1, container(amounts("500m", "512Mi"), amounts("1", "1Gi"))))
        found.recommend("web", "200m", "256Mi")
        found.sandbox.simulation.restart_kubelet("node-1", step)
        updater = found.updater()
        found.cycle_until(updater, lambda: found.resources("web", "status")[0]["limits"]["memory"] == "512Mi", most=30)
        found.cycle(updater, 15)
        assert found.resources("web", "status") == [{"requests": amounts("200m", "256Mi"), "limits": amounts("400m", "512Mi")}]
        assert list(found.writes().values()) == [2]
        assert [shrink["status"]["phase"] for shrink in found.shrinks()] == ["Done"]
        assert found.pods("web")[0]["status"]["containerStatuses"][0]["restartCount"] == 0


def test_a_kubelet_that_dies_while_a_resize_is_deferred(tmp_path: Path) -> None:
    with town(tmp_path, cpu="4") as found:
        crowded(found, "InPlace")
        updater = found.updater(QUEUES)
        found.sandbox.simulation.restart_kubelet("node-1", RestartStep.WHILE_DEFERRED)
        found.cycle(updater, 4)
        assert pending(found) == "Deferred"
        found.store.delete("pods", "shop", "filler")
        done: Callable[[], bool] = lambda: found.requests("web", "status") == [("3", "128Mi")]  # noqa: E731
        found.cycle_until(updater, done, most=8)
        assert list(found.writes().values()) == [1]
