"""The upstream recommender's numbers, exactly: nine synthetic traces with their checkpoints, and every level an output can have."""

import json
import random
from pathlib import Path

import numpy as np
import pytest

from vpa_ippr.api.meta import ObjectKey
from vpa_ippr.api.resources import Amounts
from vpa_ippr.api.series import ContainerRef, OomKill, Resource, Usage, UsageSeries
from vpa_ippr.api.timestamps import format_time, parse_time
from vpa_ippr.forecast.catalogue import load_catalogue
from vpa_ippr.recommend.estimate import to_amount, with_margin
from vpa_ippr.recommend.instances import feed
from vpa_ippr.recommend.pipeline import recommend
from vpa_ippr.usage.checkpoint import StoredState, save_checkpoint
from vpa_ippr.usage.container import DAY_SECONDS, AggregateState

GOLDEN = Path(__file__).parents[1] / "fixtures" / "golden"
TRACES = json.loads((GOLDEN / "traces.json").read_text())
LATTICE = json.loads((GOLDEN / "lattice.json").read_text())
CLASSIC = load_catalogue()["vpa-classic"]
START = parse_time("2026-01-01T00:00:00Z")
MIB, GIB = 2**20, 2**30
REF = ContainerRef("shop", "web-1", "app")


def uniform(count):
    source = random.Random(42)  # noqa: S311 - the golden numbers were made from this sequence
    pairs = [(int(50 + source.random() * 950), int(200e6 + source.random() * 800e6)) for _ in range(count)]
    return tuple(np.array(column) for column in zip(*pairs, strict=True))


def trace(name):
    minute = np.arange(TRACES[name]["samples"])
    constant = np.ones_like(minute)
    ooms = ()
    match name:
        case "const_1h" | "const_24h":
            millicores, memory = 100 * constant, 300 * MIB * constant
        case "const_8d":
            millicores, memory = 500 * constant, GIB * constant
        case "idle_1h":
            millicores, memory = constant, 5 * MIB * constant
        case "step_4d":
            millicores, memory = np.where(minute < 2880, 100, 1000), np.where(minute < 2880, 300 * MIB, 2 * GIB)
        case "stepdown_6d":
            millicores, memory = np.where(minute < 2880, 1000, 100), np.where(minute < 2880, 2 * GIB, 300 * MIB)
        case "spiky_3d":
            millicores, memory = np.where(minute % 60 < 5, 2000, 100), np.where(minute == 1440 + 77, 3 * GIB, 400 * MIB)
        case "oom_3x":
            millicores, memory = 200 * constant, 900 * MIB * constant
            kills = ((120, GIB), (122, GIB), (124, 2 * GIB))
            ooms = tuple(OomKill(REF, START + 60 * at, request) for at, request in kills)
        case _:
            millicores, memory = uniform(len(minute))
    times = START + 60.0 * minute
    cpu = UsageSeries(REF, Resource.CPU, times, millicores / 1000)
    return Usage((cpu, UsageSeries(REF, Resource.MEMORY, times, memory.astype(float))), ooms)


def amounts(expected):
    return Amounts(expected["cpu_m"], expected["mem_b"])


@pytest.mark.parametrize("name", TRACES)
def test_recommendation(name):
    (found,) = recommend(trace(name), CLASSIC, START + 8 * DAY_SECONDS)
    expected = TRACES[name]["expected"]
    assert found.target == found.uncapped_target == amounts(expected["target"])
    assert found.lower_bound == amounts(expected["lower"])
    assert found.upper_bound == amounts(expected["upper"])
    assert found.confidence == pytest.approx(expected["confidence"], rel=1e-12)


@pytest.mark.parametrize("name", TRACES)
def test_checkpoint(name):
    rules = CLASSIC.usage_rules()
    instances, _ = feed({}, trace(name), lambda _: rules, until=START + 8 * DAY_SECONDS)
    stored = StoredState(AggregateState.empty(rules), instances, START)
    # Eight days on, every aggregation interval has ended: the checkpoint holds all peaks, as the golden ones do.
    status = save_checkpoint(ObjectKey("shop", "web"), "app", stored, live={REF}, now=START + 8 * DAY_SECONDS).status
    for saved, key in ((status.cpu_histogram, "cpu_checkpoint"), (status.memory_histogram, "mem_checkpoint")):
        expected = TRACES[name][key]
        assert saved.bucket_weights == expected["bucketWeights"]
        assert saved.total_weight == pytest.approx(expected["totalWeight"], rel=1e-9)
        assert saved.reference_timestamp == format_time(parse_time(expected["ref"]))
    assert status.total_samples_count == TRACES[name]["samples"]


def test_every_level_of_the_lattice():
    rules = CLASSIC.usage_rules()
    cpu, memory = rules.cpu_buckets.ends(), rules.memory_buckets.ends()
    assert len(LATTICE) == 175
    for row in LATTICE:
        bucket = row["bucket_end_index"] - 1
        millicores, memory_bytes = to_amount(cpu[bucket] * 1000), to_amount(memory[bucket])
        assert (millicores, memory_bytes) == (row["cpu_end_millicores"], row["mem_end_bytes"])
        assert with_margin(millicores, CLASSIC.cpu.margin_fraction) == row["cpu_with_margin_millicores"]
        assert with_margin(memory_bytes, CLASSIC.memory.margin_fraction) == row["mem_with_margin_bytes"]


def test_every_target_above_the_minimum_is_on_the_lattice():
    cpu_levels = {row["cpu_with_margin_millicores"] for row in LATTICE} | {CLASSIC.cpu.pod_minimum}
    memory_levels = {row["mem_with_margin_bytes"] for row in LATTICE} | {CLASSIC.memory.pod_minimum}
    source = np.random.default_rng(5)
    times = START + 60.0 * np.arange(30)
    for scale in np.geomspace(0.001, 2000, 40):
        values = source.uniform(0, scale, len(times))
        series = (UsageSeries(REF, Resource.CPU, times, values), UsageSeries(REF, Resource.MEMORY, times, values * 1e9))
        (found,) = recommend(Usage(series), CLASSIC, times[-1])
        assert found.target.cpu_millicores in cpu_levels
        assert found.target.memory_bytes in memory_levels
