"""Cycles of the recommender's service on a cluster in memory: the first one, which reads the history, and those after it."""

from __future__ import annotations

from bench.clock import StandingClock
from bench.figures import Figure, best_of
from bench.objects import DAY_SECONDS, NOW
from bench.recommender_world import MemorySource, MemoryWorld
from vpa_ippr.forecast.catalogue import load_catalogue
from vpa_ippr.recommend.cycle import CheckpointResult, CycleResult, RecommenderSettings
from vpa_ippr.recommend.service import RecommenderService

_VPAS = 1_500
_PODS_EACH = 2
_DAYS = 8
_STEADY_CYCLES = 4
_CHECKPOINT_SECONDS = 600.0


def measure() -> list[Figure]:
    world, clock = MemoryWorld(_VPAS, _PODS_EACH), StandingClock(NOW)
    source = MemorySource(world)
    settings = RecommenderSettings("vpa-classic", history_seconds=_DAYS * DAY_SECONDS)
    service = RecommenderService(source, world, clock, load_catalogue(), settings)
    results: list[CycleResult] = []
    saved: list[CheckpointResult] = []

    def cycle(_: None) -> None:
        results.append(service.run_cycle())
        assert not results[-1].failures, results[-1].failures[:3]

    def save(_: None) -> None:
        saved.append(service.write_checkpoints())
        assert not saved[-1].failures, saved[-1].failures[:3]

    def pass_time(seconds: float) -> None:
        clock.moment += seconds
        source.make_minute(clock.moment)

    def something_new() -> None:
        pass_time(_CHECKPOINT_SECONDS)
        cycle(None)

    source.make_history(_DAYS)
    first = best_of(1, lambda: None, cycle)
    world.new_targets = 0
    steady = best_of(_STEADY_CYCLES, lambda: pass_time(60.0), cycle)
    statuses = sum(result.statuses_written for result in results[1:]) / _STEADY_CYCLES
    changed = f"{statuses:,.0f} statuses written, {world.new_targets / _STEADY_CYCLES:,.0f} with a new target"
    saving = best_of(2, something_new, save)
    size = f"{_VPAS:,} VPAs, {_VPAS * _PODS_EACH:,} pods"
    return [
        Figure(name="recommender.first", size=f"{size}, {_DAYS} d x 1 min", run=first, units=_VPAS, unit="VPA"),
        Figure(name="recommender.steady", size=size, run=steady, units=_VPAS, unit="VPA", note=changed),
        Figure(
            name="recommender.checkpoints",
            size=size,
            run=saving,
            units=_VPAS,
            unit="VPA",
            note=f"{saved[-1].written} checkpoints, each VPA's once in 10 min",
        ),
    ]
