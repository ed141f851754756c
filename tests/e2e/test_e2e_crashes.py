"""The updater dies before each single write of a rollout, one after the other: what comes after it makes up for it, once."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.e2e_cluster import Town, amounts, container, deployment, town
from vpa_ippr.resize.settings import Settings

pytestmark = pytest.mark.integration

SETTINGS = Settings(soak_seconds=120)
AFTER = {"requests": amounts("200m", "256Mi"), "limits": amounts("400m", "512Mi")}


class CrashError(BaseException):
    """No handler of ordinary errors holds it up, as none holds up a SIGKILL."""


class Dying:
    """Lets so many writes through, and then no more for ever."""

    def __init__(self, writes: int) -> None:
        self._left = writes

    def __call__(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise CrashError


def is_done(found: Town, pods: int = 2) -> bool:
    return found.resources("web", "status") == [AFTER] * pods and all(shrink["status"]["phase"] == "Done" for shrink in found.shrinks())


@pytest.mark.parametrize("writes", [0, 2], ids=lambda writes: f"after-{writes}-writes")
def test_lives_of_so_many_writes_end_the_rollout_well(writes: int, tmp_path: Path) -> None:
    """No life gets further than ``writes`` writes in the first of its cycles; where that is none, each second life is a whole one."""
    with town(tmp_path) as found, found.agents():
        found.workload(deployment("web", 2, container(amounts("500m", "512Mi"), amounts("1", "1Gi"))))
        found.recommend("web", "200m", "256Mi")
        lives = 0
        for life in range(120):
            updater = found.updater(SETTINGS, guard=Dying(writes) if life % 2 == 0 else lambda: None)
            try:
                found.cycle(updater)
            except CrashError:
                lives += 1
                found.run(1)
            if is_done(found):
                break
        assert is_done(found)
        assert lives >= 1
        assert set(found.writes().values()) == {2}
        assert len(found.shrinks()) == 2
        assert {shrink["spec"]["pod"]["name"] for shrink in found.shrinks()} == {pod["metadata"]["name"] for pod in found.pods("web")}


@pytest.mark.parametrize("nth", range(1, 13))
def test_a_crash_before_the_nth_write(nth: int, tmp_path: Path) -> None:
    with town(tmp_path) as found, found.agents():
        found.workload(deployment("web", 1, container(amounts("500m", "512Mi"), amounts("1", "1Gi"))))
        found.recommend("web", "200m", "256Mi")
        updater, crashed = found.updater(SETTINGS, guard=Dying(nth - 1)), False
        for _ in range(90):
            try:
                found.cycle(updater)
            except CrashError:
                crashed = True
                updater = found.updater(SETTINGS)
            if is_done(found, 1):
                break
        assert crashed
        assert is_done(found, 1)
        assert set(found.writes().values()) == {2}
        assert len(found.shrinks()) == 1


def test_a_life_that_ends_right_after_a_resize_leaves_all_that_it_takes_to_undo_it(tmp_path: Path) -> None:
    """Not even the event of the canary's resize is written; harm comes while nobody looks."""
    use = {"app": {"anon": [{"kind": "ramp", "height": "300Mi", "overSeconds": 20}]}}
    before = container(amounts("500m", "512Mi"), amounts("1", "1Gi"), restart=("memory",))
    with town(tmp_path) as found:
        found.workload(deployment("web", 3, before, use=use))
        found.recommend("web", "500m", "128Mi")

        def die() -> None:
            if found.writes():
                raise CrashError

        with pytest.raises(CrashError):
            found.cycle(found.updater(SETTINGS, guard=die))
        found.run(300)
        assert [pod["status"]["containerStatuses"][0]["restartCount"] > 0 for pod in found.pods("web")].count(True) == 1
        found.cycle(found.updater(SETTINGS), 3)
        assert found.requests("web") == [("500m", "512Mi")] * 3
        assert found.writes().total() == 2
        condition = found.vpa_condition("web", "Degraded")
        assert condition is not None
        assert (condition["status"], condition["reason"]) == ("True", "OutOfMemory")
