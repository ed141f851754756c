"""The agent over the sandbox's kernel model: the same cgroup port, another kernel."""

import pytest
from actuator_fakes import FakeApi, FakeClock, World, container_id

from vpa_ippr.actuator.cgroup import Snapshot
from vpa_ippr.actuator.policy import MIB, Policy
from vpa_ippr.api.shrink import Phase
from vpa_ippr.sandbox.cgroup import SandboxCgroup
from vpa_ippr.sandbox.container import RunningContainer
from vpa_ippr.sandbox.workloads import FormulaWorkload, parse_workloads

ROWS = [
    ('"anon": [{"kind": "steady", "level": "400Mi"}]', Phase.REFUSED, "UnreclaimableAnonymous"),
    ('"anon": [{"kind": "steady", "level": "160Mi"}]', Phase.DONE, None),
    ('"anon": [{"kind": "steady", "level": "20Mi"}], "fileCold": [{"kind": "steady", "level": "400Mi"}]', Phase.DONE, None),
    (
        (
            '"anon": [{"kind": "steady", "level": "20Mi"}], "fileHot": [{"kind": "steady", "level": "100Mi"}], '
            '"fileCold": [{"kind": "steady", "level": "250Mi"}]'
        ),
        Phase.DONE,
        None,
    ),
    (
        (
            '"anon": [{"kind": "steady", "level": "20Mi"}], "fileHot": [{"kind": "steady", "level": "320Mi"}], '
            '"fileCold": [{"kind": "steady", "level": "80Mi"}]'
        ),
        Phase.REVERTED,
        None,
    ),
    ('"shmem": [{"kind": "steady", "level": "300Mi"}]', Phase.REFUSED, "UnreclaimableShmem"),
    ('"locked": [{"kind": "steady", "level": "300Mi"}]', Phase.REFUSED, "UnreclaimableMlocked"),
    ('"anon": [{"kind": "steady", "level": "100Mi"}, {"kind": "leak", "perHour": "200Mi"}]', Phase.REFUSED, "Growing"),
    (
        '"anon": [{"kind": "steady", "level": "100Mi"}, {"kind": "burst", "height": "150Mi", "everySeconds": 20, "forSeconds": 4}]',
        Phase.REFUSED,
        "Bursty",
    ),
]


class SandboxKernel:
    """Gives the world's container the sandbox's memory."""

    def __init__(self, clock: FakeClock, workload: str) -> None:
        spec = parse_workloads({"sandbox.vpa-ippr.io/workload": '{"app": {' + workload + "}}"})["app"]
        start = clock.time - 3600
        self.container = RunningContainer(container_id(1), 7, FormulaWorkload(spec), start, memory_limit_bytes=512 * MIB)
        self.container.advance(clock.time)
        self._clock = clock
        self.cgroup = SandboxCgroup(self.container, clock.now, Snapshot, lambda: None)
        self.gone = False

    @property
    def max(self) -> int | None:
        return self.container.memory.max_bytes

    @max.setter
    def max(self, value: int) -> None:
        self.container.memory.set_max(value)

    def advance(self, _seconds: float) -> None:
        self.container.advance(self._clock.time)

    def __getattr__(self, name: str):
        return getattr(self.cgroup, name)


@pytest.mark.parametrize(("workload", "phase", "reason"), ROWS, ids=range(len(ROWS)))
def test_outcome_over_the_sandbox_kernel(state_dir, workload, phase, reason):
    world = World(state_dir)
    assert isinstance(world.api, FakeApi)
    kernel = SandboxKernel(world.clock, workload)
    world.add(kernel)
    status = world.run_until(world.ask(256))
    memory = kernel.container.memory
    assert status.phase is phase, status
    assert reason is None or status.reason == reason, status
    assert memory.counters.oom_kill == 0
    assert memory.high_bytes is None
    assert memory.max_bytes == (256 if phase is Phase.DONE else 512) * MIB
    assert phase is not Phase.DONE or memory.counters.memory_stall_seconds < 0.2


def test_steps_that_come_no_lower_end_the_shrink_long_before_its_deadline(state_dir):
    """A hot set that no single window gives away: all soft and hard signals of refaults are switched off."""
    deaf = {"soft_refault_percent": 1e9, "hard_refault_percent": 1e9, "soft_io_some_percent": 99.0, "hard_io_some_percent": 100.0}
    deaf |= {"soft_memory_some_percent": 98.0, "soft_memory_full_percent": 98.0, "hard_memory_some_percent": 99.0}
    world = World(state_dir, Policy(**deaf, hard_memory_full_percent=99.0, soft_steal_ratio=0.0, max_fruitless_steps=4))
    hot = '"anon": [{"kind": "steady", "level": "20Mi"}], "fileHot": [{"kind": "steady", "level": "320Mi"}]'
    kernel = SandboxKernel(world.clock, hot)
    world.add(kernel)
    status = world.run_until(world.ask(256))
    assert (status.phase, status.reason) == (Phase.REVERTED, "SettledAbove")
    assert "no lower than" in status.message
    assert kernel.container.memory.high_bytes is None
