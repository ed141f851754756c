"""The updater's process is killed around each kind of write that it makes: no resize is lost, and none is made twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from support.e2e_cluster import Town, amounts, container, deployment, town
from support.updater_process import Proxy, Seen, UpdaterProcess, proxy_to

pytestmark = pytest.mark.integration

BEFORE = amounts("500m", "512Mi"), amounts("1", "1Gi")
KINDS = {
    "PATCH pods",
    "PATCH pods/resize",
    "POST pods/eviction",
    "POST memoryshrinks",
    "PATCH memoryshrinks",
    "DELETE memoryshrinks",
    "PATCH verticalpodautoscalers",
    "PATCH verticalpodautoscalers/status",
    "POST events",
}


class Doomed:
    """A process that is killed at the first write of each kind, ``moment`` its being carried out, and begun again at once."""

    def __init__(self, found: Town, proxy: Proxy, moment: str) -> None:
        self.killed_at: set[str] = set()
        self._clocks = found.sandbox.clocks
        arguments = ("--clock-url", found.sandbox.clock_url, "--soak", "2m", "--min-pod-age", "10m")
        ended = partial(self._clocks.drop, "updater")
        self._process = UpdaterProcess(found.folder, "updater", found.kubeconfig, proxy, *arguments, on_end=ended)
        hook: Callable[[Seen], None] = self._kill
        setattr(proxy, moment, hook)

    def start(self) -> None:
        self._clocks.register("updater")
        self._process.start()

    def stop(self) -> None:
        self._clocks.drop("updater")
        self._process.stop()

    def _kill(self, seen: Seen) -> None:
        kind = f"{seen.method} {seen.resource}"
        if kind in self.killed_at:
            return
        self.killed_at.add(kind)
        self._process.kill()
        self._clocks.drop("updater")
        self.start()
        raise ConnectionAbortedError  # who is dead hears no answer, and what was not sent yet is not sent


@contextmanager
def doomed(found: Town, moment: str) -> Iterator[Doomed]:
    with proxy_to(found.sandbox.api.url) as proxy:
        process = Doomed(found, proxy, moment)
        process.start()
        try:
            yield process
        finally:
            process.stop()


def wait_for(found: Town, done: Callable[[], bool], most_minutes: int = 120) -> None:
    for _ in range(2 * most_minutes):
        found.renew_admission()
        found.run(30)
        if done():
            return
    raise AssertionError(f"not so after {most_minutes} minutes")


def is_settled(found: Town, name: str, memory: str) -> bool:
    """The limit is down on all pods, and no shrink of theirs is under way."""
    down = all(one["limits"]["memory"] == memory for one in found.resources(name, "status"))
    return down and all(shrink["status"]["phase"] in ("Done", "Aborted") for shrink in found.shrinks())


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_process_that_is_killed_around_each_kind_of_write(moment: str, tmp_path: Path) -> None:
    with town(tmp_path, nodes=3) as found, found.agents("node-3"):
        use = {"app": {"anon": [{"kind": "ramp", "height": "300Mi", "overSeconds": 20}]}}
        found.workload(deployment("web", 3, container(*BEFORE), nodeName="node-1"))
        found.workload(deployment("frail", 2, container(*BEFORE, restart=("memory",)), use=use, nodeName="node-2"))
        found.workload(deployment("old", 2, container(*BEFORE), nodeName="node-2"), "Recreate")
        found.workload(deployment("unattended", 1, container(*BEFORE), nodeName="node-3"))
        found.recommend("unattended", "500m", "128Mi")
        with doomed(found, moment) as process:
            wait_for(found, lambda: bool(found.shrinks()))
            found.recommend("unattended", "500m", "512Mi")
            wait_for(found, lambda: bool(found.writes("memoryshrinks", "", "delete")))
            found.recommend("web", "200m", "256Mi")
            found.recommend("frail", "500m", "128Mi")
            found.recommend("old", "200m", "256Mi", slack=True)
            wait_for(found, lambda: is_settled(found, "web", "512Mi"))
            found.recommend("old", "500m", "512Mi")
            assert process.killed_at >= KINDS
        web = {pod["metadata"]["name"] for pod in found.pods("web")}
        assert {name: count for name, count in found.writes().items() if name in web} == dict.fromkeys(web, 2)
        assert sorted(shrink["spec"]["pod"]["name"] for shrink in found.shrinks()) == sorted(web)
        assert found.requests("unattended") == [("500m", "512Mi")]
        assert all(count == 1 for count in found.writes("pods", "eviction", "create").values())
        condition = found.vpa_condition("frail", "Degraded")
        assert condition is not None
        assert (condition["status"], condition["reason"]) == ("True", "OutOfMemory")
        assert found.requests("frail") == [("500m", "512Mi")] * 2
