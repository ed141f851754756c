"""From trace files to findings: read, train, replay, judge."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

from bench.figures import MIB, memory_bytes
from bench.quality.corpus import Recording, find_files, judged, read_recording, read_scales
from bench.quality.evidence import Cost, Task, gather, tell
from bench.quality.findings import Findings, Run, find
from bench.quality.folds import dealt, fold_of
from bench.quality.models import OPEN_SOURCES, Recipe, RoutedBoosting, judges, train_one, training_grids
from vpa_ippr.api.errors import UsageError
from vpa_ippr.api.series import Resource
from vpa_ippr.forecast.boosting import BoostingModel
from vpa_ippr.forecast.catalogue import Profile, choose, load_catalogue
from vpa_ippr.forecast.forecasters import ProfileModel, load_profile_model
from vpa_ippr.forecast.grid import UsageGrid

FOLDS: Final = 3

Mapped = Callable[[Callable[..., Any], Iterable[Any]], Iterator[Any]]


@dataclass(frozen=True, slots=True)
class Request:
    """What to measure, on what. ``held_out``: patterns of files that are judged instead of the directory's, as data nobody saw."""

    directory: Path
    held_out: tuple[str, ...]
    profiles: tuple[str, ...]
    resources: tuple[Resource, ...]
    recipe: Recipe
    seed: int
    jobs: int
    date: str


def measure(request: Request) -> tuple[Run, list[Findings]]:
    """Measure it all; this takes many minutes on a real corpus.

    Raises:
        UsageError: nothing to read, an unknown profile, or profiles that name different models.
    """
    began = time.monotonic()
    profiles = _profiles(request.profiles)
    shipped = _shipped(profiles)
    recordings = _recordings(request)
    with _workers(request.jobs) as mapped:
        fold_of_group = dealt([fleet for one in recordings for fleet in one.fleets.values()], FOLDS, request.seed)
        needed = not request.held_out and any(one.source in OPEN_SOURCES for one in recordings)
        trained = _trained(request.recipe, recordings, fold_of_group, mapped) if needed else []
        models = (*(model for model, _ in trained), shipped.model)
        tasks = [_task(request, recordings, resource, fold_of_group, models, profiles) for resource in request.resources]
        findings = [find(evidence, request.profiles, request.seed) for evidence in mapped(gather, tasks)]
    run = Run(
        date=request.date,
        held_out=bool(request.held_out),
        seed=request.seed,
        folds=FOLDS,
        model_sha256=shipped.sha256,
        synthetic=request.recipe.synthetic,
        training=tuple(cost for _, cost in trained),
        wall_seconds=time.monotonic() - began,
    )
    return run, findings


def _profiles(names: Sequence[str]) -> dict[str, Profile]:
    catalogue = load_catalogue()
    profiles = {name: choose(catalogue, name) for name in names}
    for name, profile in profiles.items():
        if profile.ensemble is None:
            raise UsageError(f"profile {name} has no ensemble: it is measured anyway, or needs no proof")
    return profiles


def _shipped(profiles: Mapping[str, Profile]) -> ProfileModel:
    found = {name: load_profile_model(None, profile) for name, profile in profiles.items()}
    models = {model.sha256: model for model in found.values() if model is not None}
    if len(models) != 1:
        raise UsageError(f"the profiles {', '.join(profiles)} name {len(models)} models: measure those of one model at a time")
    return next(iter(models.values()))


def _recordings(request: Request) -> list[Recording]:
    of_directory = read_scales(request.directory)
    recordings = []
    for path in find_files(request.directory, request.held_out):
        recordings.append(read_recording(path, of_directory | read_scales(path.parent)))
        tell(f"read {path.name}")
    return recordings


def _trained(
    recipe: Recipe, recordings: Sequence[Recording], fold_of_group: Mapping[str, int], mapped: Mapped
) -> list[tuple[BoostingModel, Cost]]:
    work = [(training_grids(recordings, fold_of_group, fold, recipe), recipe, fold) for fold in range(FOLDS)]
    return list(mapped(_train, work))


def _train(work: tuple[list[UsageGrid], Recipe, int]) -> tuple[BoostingModel, Cost]:
    grids, recipe, fold = work
    began = time.process_time()
    model = train_one(grids, recipe)
    cost = Cost(time.process_time() - began, memory_bytes("VmHWM") / MIB)
    tell(f"trained without fold {fold}, {cost.cpu_seconds:.0f} s")
    return model, cost


def _task(
    request: Request,
    recordings: Sequence[Recording],
    resource: Resource,
    fold_of_group: Mapping[str, int],
    models: tuple[BoostingModel, ...],
    profiles: Mapping[str, Profile],
) -> Task:
    fleet = judged(recordings, resource)
    folds = fold_of(fleet, fold_of_group)
    model_of = judges(fleet.sources, folds, held_out=bool(request.held_out))
    # Whoever chooses settings on held-out data has no held-out data any more.
    return Task(fleet, folds, RoutedBoosting(models, model_of), profiles, request.seed, moves_settings=not request.held_out)


@contextmanager
def _workers(jobs: int) -> Iterator[Mapped]:
    """A ``map`` over so many processes; one job works in this process."""
    if jobs == 1:
        yield map
        return
    # Fresh processes: scikit-learn's threads do not survive a fork, and the memory of each part is its own.
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), max_tasks_per_child=1) as processes:
        yield processes.map
