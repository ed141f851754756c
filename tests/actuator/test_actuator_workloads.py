"""The agent over workloads of every character: what comes out, and that nobody is hurt on the way."""

import pytest
from actuator_fakes import FakeKernel, Workload, World, bursts, noisy

from vpa_ippr.api.shrink import Phase, ShrinkPolicy

DONE, REFUSED, REVERTED, EXPIRED = Phase.DONE, Phase.REFUSED, Phase.REVERTED, Phase.EXPIRED

ROWS = [
    pytest.param(Workload(anon=lambda _t: 400), REFUSED, "UnreclaimableAnonymous", id="anon-idle-above"),
    pytest.param(Workload(anon=lambda _t: 180), DONE, "Shrunk", id="anon-idle-below"),
    pytest.param(Workload(anon=noisy(150, 4, 1)), DONE, "Shrunk", id="anon-noisy-below"),
    pytest.param(Workload(cold=400, hot=40), DONE, "Shrunk", id="file-cold"),
    pytest.param(Workload(cold=280, hot=120), DONE, "Shrunk", id="file-hot-below"),
    pytest.param(Workload(cold=100, hot=300), REVERTED, None, id="file-hot-above"),
    pytest.param(Workload(cold=280, hot=120, mapped=True), DONE, "Shrunk", id="mmap-hot-below"),
    pytest.param(Workload(cold=100, hot=300, mapped=True), REFUSED, "MappedFiles", id="mmap-hot-above"),
    pytest.param(Workload(shmem=300), REFUSED, "UnreclaimableShmem", id="shmem"),
    pytest.param(Workload(anon=lambda t: 100 + 2 * t), REFUSED, "Growing", id="leak"),
    pytest.param(Workload(anon=lambda t: 160 + 0.05 * t), REFUSED, "Growing", id="slow-leak"),
    pytest.param(Workload(anon=bursts(100, 150, 20, 4)), REFUSED, "Bursty", id="fork-bursts"),
    pytest.param(Workload(cold=20, pinned_cache=380), REVERTED, "Stuck", id="dirty-or-pinned"),
    pytest.param(Workload(mlocked=300), REFUSED, "UnreclaimableMlocked", id="mlock"),
    pytest.param(Workload(kernel=300), REFUSED, "UnreclaimableKernel", id="kernel-memory"),
    pytest.param(Workload(cold=400, refill_mib_per_second=1), DONE, "Shrunk", id="streaming-reads"),
]


@pytest.mark.parametrize(("workload", "phase", "reason"), ROWS)
def test_outcome_by_workload(state_dir, workload, phase, reason):
    world = World(state_dir)
    kernel = world.add(FakeKernel(workload))
    uid = world.ask(target_mib=256)

    status = world.run_until(uid)

    assert status.phase is phase, status
    assert reason is None or status.reason == reason, status
    assert kernel.oom_kills == 0
    assert kernel.high is None
    assert kernel.strangled == []
    assert world.journal_files() == []
    if phase is REFUSED:
        assert kernel.written == []
        assert kernel.reclaims == 0
    if phase is DONE:
        assert kernel.stall_memory_us <= 200_000
        assert kernel.max == 256 * 1024 * 1024


@pytest.mark.parametrize(
    ("anon_mib", "target_mib", "policy", "reason"),
    [
        (20, 510, None, "TooSmall"),
        (20, 512, None, "LimitNotAbove"),
        (20, 0.001, None, "InvalidTarget"),
        (20, 256, ShrinkPolicy(step_percent=50.0), "InvalidPolicy"),
        (20, 256, ShrinkPolicy(floor_bytes=300 * 1024 * 1024), "BelowFloor"),
    ],
    ids=["too-small", "not-above", "no-target", "bad-policy", "learned-floor"],
)
def test_refused_without_a_touch(state_dir, anon_mib, target_mib, policy, reason):
    world = World(state_dir)
    kernel = world.add(FakeKernel(Workload(anon=lambda _t: anon_mib)))
    status = world.run_until(world.ask(target_mib, policy=policy))
    assert (status.phase, status.reason) == (REFUSED, reason)
    assert kernel.written == []


def test_refusal_teaches_a_floor_that_is_bearable(state_dir):
    world = World(state_dir)
    world.add(FakeKernel(Workload(anon=lambda _t: 300)))
    refused = world.run_until(world.ask(256))
    assert refused.floor_bytes is not None
    assert 300 * 2**20 < refused.floor_bytes < 400 * 2**20
    again = world.run_until(world.ask(refused.floor_bytes / 2**20))
    assert again.phase is DONE, again


def test_original_high_lower_than_the_guard_is_never_raised(state_dir):
    original = 200 * 2**20
    world = World(state_dir)
    kernel = world.add(FakeKernel(Workload(cold=100, hot=20), high_bytes=original))
    status = world.run_until(world.ask(256))
    assert status.phase is DONE, status
    assert kernel.high == original
    assert all(high == original for high in kernel.written)


def test_finite_original_high_comes_back(state_dir):
    original = 460 * 2**20
    world = World(state_dir)
    kernel = world.add(FakeKernel(Workload(cold=380, hot=20), high_bytes=original))
    status = world.run_until(world.ask(256))
    assert status.phase is DONE, status
    assert min(high for high in kernel.written if high) < 256 * 2**20
    assert kernel.written[-1] == original
