"""The kernel model against what real kernels did (rows of the laboratory: 200 MiB containers, no swap), as inequalities."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vpa_ippr.sandbox.kernel import ContainerCpu, ContainerMemory
from vpa_ippr.sandbox.pagecache import MIB, PAGE_BYTES, Demand, KernelSettings


def settle(memory: ContainerMemory, demand: Demand, seconds: int = 10) -> float:
    """Run in steps of a second; the mean share of time that the processes were not stalled."""
    return sum(memory.run(demand, 1.0) for _ in range(seconds)) / seconds


def started(demand: Demand, max_mib: int | None = 256, **settings: object) -> ContainerMemory:
    memory = ContainerMemory(None if max_mib is None else max_mib * MIB, KernelSettings(**settings))  # type: ignore[arg-type]
    settle(memory, demand)
    assert not memory.oom_killed
    return memory


def stalls(memory: ContainerMemory, demand: Demand, seconds: int = 10) -> tuple[float, float]:
    """Memory and io pressure in percent over the next seconds."""
    before = memory.counters.memory_stall_seconds, memory.counters.io_stall_seconds
    settle(memory, demand, seconds)
    counters = memory.counters
    return (counters.memory_stall_seconds - before[0]) / seconds * 100, (counters.io_stall_seconds - before[1]) / seconds * 100


ANON_IDLE = Demand(anon_bytes=150 * MIB)
FILE_COLD = Demand(anon_bytes=MIB, file_hot_bytes=20 * MIB, file_cold_bytes=180 * MIB)
FILE_HOT_150 = Demand(anon_bytes=MIB, file_hot_bytes=150 * MIB, file_cold_bytes=50 * MIB)
FILE_HOT_60 = Demand(anon_bytes=MIB, file_hot_bytes=60 * MIB, file_cold_bytes=140 * MIB)
MMAP_HOT_150 = Demand(anon_bytes=MIB, file_hot_bytes=150 * MIB, file_cold_bytes=50 * MIB, mapped=True)
SHMEM = Demand(shmem_bytes=120 * MIB)


def leak(second: int) -> Demand:
    return Demand(anon_bytes=(116 + 4 * second) * MIB)


class TestHigh:
    def test_above_the_floor_costs_nothing(self) -> None:
        memory = started(ANON_IDLE)
        memory.set_high(155 * MIB)
        assert stalls(memory, ANON_IDLE) == (0.0, 0.0)

    def test_below_the_floor_even_an_idle_process_stalls_and_more_the_lower_it_is(self) -> None:
        pressures = []
        for high in (151, 150, 148, 140, 100):
            memory = started(ANON_IDLE)
            memory.set_high(high * MIB)
            pressures.append(stalls(memory, ANON_IDLE)[0])
            assert memory.counters.high > 0
            assert memory.counters.oom_kill == 0
        assert pressures == sorted(pressures)
        assert pressures[1] > 20
        assert pressures[-1] > 90

    def test_raising_it_again_ends_the_stall_at_once(self) -> None:
        memory = started(ANON_IDLE)
        memory.set_high(140 * MIB)
        settle(memory, ANON_IDLE)
        memory.set_high(None)
        assert stalls(memory, ANON_IDLE)[0] == 0

    def test_turns_a_leak_into_a_hang_without_a_kill(self) -> None:
        memory = started(leak(0), max_mib=160)
        memory.set_high(130 * MIB)
        progress = [memory.run(leak(second), 1.0) for second in range(36)]
        assert not memory.oom_killed
        assert 130 * MIB <= memory.usage_bytes <= 160 * MIB
        assert sum(progress[-10:]) / 10 < 0.7

    def test_growth_slows_with_the_square_of_the_excess(self) -> None:
        """64 * r^2 seconds for 256 KiB: at 10 % over high about 400 KiB a second, at 17.7 % the cap of 128 KiB a second."""
        memory = started(Demand(anon_bytes=100 * MIB), max_mib=None)
        memory.set_high(100 * MIB)
        grown = [memory.usage_bytes]
        for second in range(1, 200):
            memory.run(Demand(anon_bytes=(100 + 50 * second) * MIB), 1.0)
            grown.append(memory.usage_bytes)
        rates = [later - earlier for earlier, later in pairwise(grown)]
        assert rates[0] > 256 * 1024
        assert sum(rates[:20]) > sum(rates[50:70]) >= sum(rates[-20:])
        assert sum(rates[-20:]) / 20 <= 128 * 1024

    def test_written_below_usage_reclaims_more_cache_than_it_must_without_pressure_on_the_container(self) -> None:
        memory = started(FILE_HOT_150)
        usage, counters = memory.usage_bytes, memory.counters
        before = counters.memory_stall_seconds
        memory.set_high(180 * MIB)
        freed = usage - memory.usage_bytes
        assert 1.0 * (usage - 180 * MIB) < freed < 2.1 * (usage - 180 * MIB)
        assert counters.memory_stall_seconds == before

    def test_cold_cache_below_it_is_free(self) -> None:
        memory = started(FILE_COLD)
        memory.set_high(60 * MIB)
        settle(memory, FILE_COLD, 5)
        memory_percent, io_percent = stalls(memory, FILE_COLD)
        assert memory_percent < 0.1
        assert io_percent < 0.1
        assert memory.usage_bytes <= 60 * MIB

    @pytest.mark.parametrize("high_mib", [145, 120])
    def test_below_a_hot_file_set_costs_refaults_and_io_pressure(self, high_mib: int) -> None:
        memory = started(FILE_HOT_150)
        memory.set_high(high_mib * MIB)
        settle(memory, FILE_HOT_150, 5)
        refaults = memory.counters.refault_pages
        memory_percent, io_percent = stalls(memory, FILE_HOT_150)
        assert memory_percent > 2
        assert io_percent > 5
        assert memory.counters.refault_pages > refaults

    def test_mapped_files_show_in_io_pressure_and_major_faults_but_hardly_in_memory_pressure(self) -> None:
        memory = started(MMAP_HOT_150)
        memory.set_high(120 * MIB)
        settle(memory, MMAP_HOT_150, 5)
        faults = memory.counters.major_faults
        memory_percent, io_percent = stalls(memory, MMAP_HOT_150)
        assert memory_percent < 3
        assert io_percent > 20
        assert memory.counters.major_faults > faults

    def test_value_is_rounded_down_to_a_page(self) -> None:
        memory = ContainerMemory()
        memory.set_high(104857601)
        assert memory.high_bytes == 104857600


class TestMax:
    def test_below_anon_kills(self) -> None:
        memory = started(ANON_IDLE)
        memory.set_max(100 * MIB)
        assert memory.oom_killed
        assert memory.events()["oom_kill"] == 1
        assert memory.usage_bytes == 0

    @pytest.mark.parametrize("demand", [FILE_HOT_60, FILE_HOT_150], ids=["hot 60", "hot 150"])
    def test_below_cache_reclaims_without_a_kill(self, demand: Demand) -> None:
        memory = started(demand)
        memory.set_max(100 * MIB)
        settle(memory, demand)
        assert not memory.oom_killed
        assert memory.usage_bytes <= 100 * MIB

    def test_above_usage_changes_nothing_and_a_leak_dies_later(self) -> None:
        memory = started(Demand(anon_bytes=70 * MIB))
        memory.set_max(100 * MIB)
        assert not memory.oom_killed
        for second in range(60):
            memory.run(Demand(anon_bytes=(70 + second) * MIB), 1.0)
        assert memory.oom_killed

    def test_streaming_reads_stay_at_the_limit_and_count_max_events(self) -> None:
        memory = ContainerMemory(120 * MIB)
        for second in range(30):
            memory.run(Demand(file_cold_bytes=10 * second * MIB), 1.0)
        assert memory.usage_bytes <= 120 * MIB
        assert memory.counters.max > 0
        assert memory.counters.memory_stall_seconds > 0
        assert not memory.oom_killed

    def test_the_pods_own_limit_kills_below_the_containers(self) -> None:
        memory = started(Demand(anon_bytes=70 * MIB))
        memory.outer_max_bytes = 80 * MIB
        memory.run(Demand(anon_bytes=90 * MIB), 1.0)
        assert memory.oom_killed

    def test_nothing_runs_after_a_kill(self) -> None:
        memory = started(ANON_IDLE)
        memory.set_max(100 * MIB)
        assert memory.run(ANON_IDLE, 1.0) == 0.0
        assert memory.usage_bytes == 0


class TestReclaim:
    @pytest.mark.parametrize("share", [0.01, 0.02, 0.05, 0.10, 0.25, 0.50])
    def test_frees_what_is_asked_and_charges_no_pressure(self, share: float) -> None:
        memory = started(FILE_HOT_60)
        usage = memory.usage_bytes
        asked = int(usage * share)
        stalled = memory.counters.memory_stall_seconds
        assert memory.reclaim(asked)
        assert abs(usage - memory.usage_bytes - asked) <= PAGE_BYTES
        assert memory.counters.memory_stall_seconds == stalled

    def test_more_than_there_is_frees_what_there_is_and_answers_eagain(self) -> None:
        memory = started(FILE_COLD)
        assert not memory.reclaim(500 * MIB)
        assert memory.usage_bytes == memory.process_bytes

    @pytest.mark.parametrize("demand", [ANON_IDLE, SHMEM], ids=["anon", "shmem"])
    def test_what_only_the_process_can_give_back_is_not_freed(self, demand: Demand) -> None:
        memory = started(demand)
        process = memory.process_bytes
        assert not memory.reclaim(50 * MIB)
        assert memory.usage_bytes == process

    def test_the_first_small_steps_take_hot_pages_and_later_ones_do_not(self) -> None:
        memory = started(FILE_HOT_60)
        refaults = []
        for _ in range(12):
            before = memory.counters.refault_pages
            memory.reclaim(4 * MIB)
            settle(memory, FILE_HOT_60, 2)
            refaults.append((memory.counters.refault_pages - before) * PAGE_BYTES)
        assert refaults[0] > 2 * MIB
        assert refaults[-1] == 0

    def test_steps_shrink_cold_cache_down_to_the_hot_set_for_nothing(self) -> None:
        memory = started(FILE_HOT_60)
        while memory.usage_bytes > 95 * MIB:
            memory.reclaim(4 * MIB)
            memory.run(FILE_HOT_60, 2.0)
        assert stalls(memory, FILE_HOT_60) == (0.0, 0.0)
        assert memory.usage_bytes > 60 * MIB

    def test_mglru_keeps_hitting_mapped_hot_pages_and_the_classic_lru_does_not(self) -> None:
        demand = Demand(anon_bytes=MIB, file_hot_bytes=60 * MIB, file_cold_bytes=140 * MIB, mapped=True)
        refaults = {}
        for multi_gen in (True, False):
            memory = started(demand, multi_gen_lru=multi_gen)
            for _ in range(10):
                memory.reclaim(4 * MIB)
                settle(memory, demand, 2)
            before = memory.counters.refault_pages
            memory.reclaim(4 * MIB)
            settle(memory, demand, 2)
            refaults[multi_gen] = memory.counters.refault_pages - before
        assert refaults[True] > 0
        assert refaults[False] == 0

    def test_lost_cold_pages_come_back_only_as_fast_as_they_are_asked_for(self) -> None:
        demand = Demand(file_cold_bytes=100 * MIB, cold_reread_bytes_per_second=MIB)
        memory = started(demand)
        memory.reclaim(50 * MIB)
        before = memory.usage_bytes
        settle(memory, demand, 10)
        assert 3 * MIB < memory.usage_bytes - before < 10 * MIB


def test_stat_adds_up_to_the_usage_and_names_what_the_floor_needs() -> None:
    demand = Demand(
        anon_bytes=30 * MIB, shmem_bytes=20 * MIB, locked_bytes=5 * MIB, kernel_bytes=4 * MIB, file_hot_bytes=40 * MIB,
        file_cold_bytes=50 * MIB, slab_bytes=3 * MIB,
    )  # fmt: skip
    memory = started(demand)
    stat = memory.stat()
    assert stat["anon"] + stat["file"] + stat["kernel"] == memory.usage_bytes
    assert stat["active_file"] + stat["inactive_file"] + stat["shmem"] == stat["file"]
    assert stat["slab_reclaimable"] == 3 * MIB
    assert stat["unevictable"] == 5 * MIB
    floor = memory.usage_bytes - stat["active_file"] - stat["inactive_file"] - stat["slab_reclaimable"]
    assert floor == memory.process_bytes
    assert memory.working_set_bytes == memory.usage_bytes - stat["inactive_file"]


def test_without_pressure_one_long_step_is_like_many_short_ones() -> None:
    long, short = ContainerMemory(512 * MIB), ContainerMemory(512 * MIB)
    long.run(FILE_HOT_60, 15.0)
    settle(short, FILE_HOT_60, 15)
    assert long.usage_bytes == short.usage_bytes
    assert long.stat() == short.stat()


sizes = st.integers(0, 300).map(lambda mib: mib * MIB)
demands = st.builds(
    Demand, anon_bytes=sizes, shmem_bytes=sizes, file_hot_bytes=sizes, file_cold_bytes=sizes, slab_bytes=sizes, mapped=st.booleans()
)
actions: st.SearchStrategy[Callable[[ContainerMemory], object]] = st.one_of(
    st.integers(1, 400).map(lambda mib: lambda memory: memory.set_high(mib * MIB)),
    st.integers(1, 400).map(lambda mib: lambda memory: memory.set_max(mib * MIB)),
    st.integers(1, 400).map(lambda mib: lambda memory: memory.reclaim(mib * MIB)),
    st.just(lambda memory: memory.set_high(None)),
)


@settings(max_examples=60)
@given(st.lists(st.tuples(demands, actions), max_size=8))
def test_whatever_happens_the_books_are_right(steps: list[tuple[Demand, Callable[[ContainerMemory], object]]]) -> None:
    memory = ContainerMemory(512 * MIB)
    stalled = 0.0
    for demand, action in steps:
        action(memory)
        progress = memory.run(demand, 1.0)
        assert 0.0 <= progress <= 1.0
        # What a killed process had in tmpfs stays charged.
        assert memory.oom_killed or memory.usage_bytes <= (memory.hard_limit_bytes or 0)
        parts = (memory.anon_bytes, memory.shmem_bytes, memory.cache.text_bytes, memory.cache.hot_bytes, memory.cache.cold_bytes)
        assert min(parts) >= 0
        assert 0 <= memory.cache.inactive_bytes <= memory.cache.file_bytes
        assert memory.usage_bytes % PAGE_BYTES == 0
        total = memory.counters.memory_stall_seconds + memory.counters.io_stall_seconds
        assert 0 <= total - stalled <= 1.0 + 1e-9
        stalled = total


def test_cpu_is_used_up_to_the_limit_and_throttling_is_counted() -> None:
    cpu = ContainerCpu(500)
    cpu.run(200, 10)
    assert (cpu.usage_seconds, cpu.throttled_periods, cpu.periods) == (2.0, 0, 100)
    cpu.run(1000, 10)
    assert cpu.usage_seconds == 7.0
    assert cpu.throttled_periods == 100
    assert cpu.throttled_seconds == 5.0


def test_cpu_without_a_limit_is_never_throttled() -> None:
    cpu = ContainerCpu()
    cpu.run(3000, 10)
    assert (cpu.usage_seconds, cpu.periods, cpu.throttled_seconds) == (30.0, 0, 0)
