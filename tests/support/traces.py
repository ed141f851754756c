"""Use of containers for tests on real input: recorded elsewhere and read from beside the repository, or made up and as long.

The recorded traces are no part of this project and must never become one: what is read here may be written below ``tmp_path`` only.
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

TRACES = Path(__file__).parents[2].parent / "shared" / "data" / "traces"

STEP_SECONDS = 300
DAY_SECONDS = 86_400


@dataclass(frozen=True)
class Samples:
    """Values of one resource; times are multiples of the step, in seconds since the epoch."""

    times: np.ndarray
    values: np.ndarray

    def between(self, after: float, until: float) -> Samples:
        """Those with ``after < t <= until``."""
        inside = (self.times > after) & (self.times <= until)
        return Samples(self.times[inside], self.values[inside])


NOTHING = Samples(np.empty(0, np.int64), np.empty(0))


@dataclass(frozen=True)
class Recorded:
    """What one container used: cores (means over the step that ends at each time) and whole bytes; ``memory`` may be empty."""

    source: str
    name: str
    cpu: Samples
    memory: Samples = NOTHING

    def between(self, after: float, until: float) -> Recorded:
        """The part with ``after < t <= until``."""
        return replace(self, cpu=self.cpu.between(after, until), memory=self.memory.between(after, until))


def require_traces() -> None:
    """Skip the test, loudly, where the recorded traces are not to be had."""
    if not (TRACES / "index.csv").is_file():
        pytest.skip(f"REAL INPUT NOT TESTED: no recorded traces in {TRACES}; the same test runs on made-up series instead")


def recorded(wanted: Mapping[str, int], *, end: int, days: float, least_days: float) -> list[Recorded]:
    """The last days of up to so many containers of each source, moved in time so that all end at ``end``.

    A container that was silent for so long that fewer than ``least_days`` are left is passed over.
    """
    with (TRACES / "index.csv").open(newline="") as file:
        index = list(csv.DictReader(file))
    found = (one for source, count in wanted.items() for one in _of_source(source, _long_enough(index, source, days)[:count], end, days))
    return [one for one in found if np.ptp(one.cpu.times) >= least_days * DAY_SECONDS]


def _long_enough(index: Sequence[Mapping[str, str]], source: str, days: float) -> list[tuple[str, Mapping[str, float]]]:
    """Containers whose every series spans the days, with the factor that makes cores or bytes of each resource's values."""
    scales: dict[str, dict[str, float]] = {}
    short = set()
    for row in index:
        if row["source"] == source:
            scales.setdefault(row["container"], {})[row["resource"]] = float(row["exp_scale"])
            short |= {row["container"]} if float(row["days"]) < days else set()
    most = max(len(of_one) for of_one in scales.values())
    return sorted((name, of_one) for name, of_one in scales.items() if name not in short and len(of_one) == most)


def _of_source(source: str, containers: Sequence[tuple[str, Mapping[str, float]]], end: int, days: float) -> Iterator[Recorded]:
    names = [name for name, _ in containers]
    table = pq.read_table(
        TRACES / f"dev_{source}.parquet",
        columns=["series_id", "timestamp", "value"],
        filters=[("container", "in", names)],
        read_dictionary=["series_id"],
    )
    ids = table.column("series_id").unify_dictionaries().combine_chunks()
    codes, texts = ids.indices.to_numpy(), ids.dictionary.to_pylist()
    firsts = np.flatnonzero(np.append(True, codes[1:] != codes[:-1]))  # a series' rows stand together
    parts = {texts[codes[begin]]: (begin, end) for begin, end in itertools.pairwise([*firsts, codes.size])}
    times, values = table.column("timestamp").to_numpy(), table.column("value").to_numpy().astype(np.float64)
    for name, scales in containers:
        found = {resource: slice(*parts[f"{source}/{name}/{resource}"]) for resource in scales}
        last = max(int(times[part][-1]) for part in found.values())
        moved = {resource: _moved(times[part] - last, values[part] * scales[resource], end, days) for resource, part in found.items()}
        memory = moved.get("memory", NOTHING)
        yield Recorded(source, name, moved["cpu"], Samples(memory.times, np.round(memory.values)))


def _moved(ages: np.ndarray, values: np.ndarray, end: int, days: float) -> Samples:
    """Onto the multiples of the step, of which ``end`` is one; of two samples that meet the later stays."""
    steps = np.round(ages / STEP_SECONDS).astype(np.int64)
    kept = np.append(steps[1:] != steps[:-1], True)
    return Samples(end + steps[kept] * STEP_SECONDS, values[kept]).between(end - days * DAY_SECONDS, end)


def made_up(count: int, *, end: int, days: float, seed: int = 0) -> list[Recorded]:
    """Daily rhythms with noise, bursts and gaps; every sixth container has no memory, and those come last."""
    random = np.random.default_rng(seed)
    times = np.arange(round(end - days * DAY_SECONDS) // STEP_SECONDS + 1, end // STEP_SECONDS + 1) * STEP_SECONDS
    made = []
    for number in range(count):
        rhythm = 1 + random.uniform(0, 0.8) * np.sin(times / DAY_SECONDS * 2 * np.pi + random.uniform(0, 6))
        cores = random.lognormal(-1, 1) * rhythm * random.gamma(8, 1 / 8, times.size) * np.where(random.random(times.size) < 0.01, 4, 1)
        used = random.lognormal(20.5, 1) * (1 + 0.1 * rhythm + random.gamma(2, 0.02, times.size))
        there = np.ones(times.size, np.bool_)
        if number % 3 == 1:
            first = int(random.integers(times.size // 2))
            there[first : first + int(random.integers(1, 150))] = False
        memory = Samples(times[there], np.round(used[there])) if number < count - count // 6 else NOTHING
        made.append(Recorded("madeup", f"made-{number:03}", Samples(times[there], np.round(cores[there], 5)), memory))
    return made
