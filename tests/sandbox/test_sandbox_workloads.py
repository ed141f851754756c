"""Formulas and traces of simulated containers, and the annotation that chooses them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vpa_ippr.api.errors import ValidationError
from vpa_ippr.sandbox.pagecache import MIB
from vpa_ippr.sandbox.workloads import ANNOTATION_WORKLOAD, FormulaWorkload, ProcessState, parse_workloads

Json = dict[str, Any]
HOUR = 3600.0
MIDNIGHT = 1_800_057_600.0  # 2027-01-16T00:00:00Z
STARTED = ProcessState(MIDNIGHT, memory_limit_bytes=1024 * MIB)


def workload(**entry: Any) -> FormulaWorkload:
    return FormulaWorkload(parse_workloads({ANNOTATION_WORKLOAD: json.dumps({"app": entry})})["app"])


def anon_mib(part: Json, age: float) -> float:
    return workload(anon=[part]).usage(MIDNIGHT + age, STARTED).anon_bytes / MIB


@pytest.mark.parametrize(
    ("part", "age", "expected"),
    [
        ({"kind": "steady", "level": "100Mi"}, 5 * HOUR, 100),
        ({"kind": "daily", "low": "100Mi", "high": "300Mi", "peakHour": 14}, 14 * HOUR, 300),
        ({"kind": "daily", "low": "100Mi", "high": "300Mi", "peakHour": 14}, 2 * HOUR, 100),
        ({"kind": "leak", "perHour": "20Mi"}, 3 * HOUR, 60),
        ({"kind": "burst", "height": "50Mi", "everySeconds": 100, "forSeconds": 10}, 205, 50),
        ({"kind": "burst", "height": "50Mi", "everySeconds": 100, "forSeconds": 10}, 215, 0),
        ({"kind": "burst", "height": "50Mi", "everySeconds": 100, "forSeconds": 10, "offsetSeconds": 40}, 45, 50),
        ({"kind": "burst", "height": "50Mi", "everySeconds": 100, "forSeconds": 10, "offsetSeconds": 40}, 5, 0),
        ({"kind": "ramp", "height": "400Mi", "overSeconds": 100}, 25, 100),
        ({"kind": "ramp", "height": "400Mi", "overSeconds": 100}, 5000, 400),
        ({"kind": "shift", "height": "80Mi", "fromSeconds": 100}, 99, 0),
        ({"kind": "shift", "height": "80Mi", "fromSeconds": 100}, 9999, 80),
        ({"kind": "shift", "height": "80Mi", "fromSeconds": 100, "untilSeconds": 200}, 200, 0),
        ({"kind": "limitShare", "share": 0.25}, 10, 256),
        ({"kind": "trace", "values": [1048576, 2097152, 3145728], "stepSeconds": 60, "startTime": MIDNIGHT}, 61, 2),
        ({"kind": "trace", "values": [1048576, 2097152, 3145728], "stepSeconds": 60, "startTime": MIDNIGHT}, 185, 1),
    ],
)
def test_parts(part: Json, age: float, expected: float) -> None:
    assert anon_mib(part, age) == pytest.approx(expected, rel=1e-6)


def test_parts_add_up_and_cpu_traces_are_in_cores() -> None:
    both = workload(
        cpu=[{"kind": "steady", "level": "250m"}, {"kind": "trace", "values": [0.5], "stepSeconds": 60}],
        fileHot=[{"kind": "steady", "level": "10Mi"}, {"kind": "leak", "perHour": "1Mi"}],
    ).usage(MIDNIGHT + HOUR, STARTED)
    assert both.cpu_millicores == 750
    assert both.file_hot_bytes == pytest.approx(11 * MIB)


def test_a_restarted_process_starts_from_its_initial_footprint() -> None:
    leaking = workload(anon=[{"kind": "steady", "level": "100Mi"}, {"kind": "leak", "perHour": "50Mi"}])
    moment = MIDNIGHT + 10 * HOUR
    assert leaking.usage(moment, STARTED).anon_bytes == pytest.approx(600 * MIB)
    assert leaking.usage(moment, ProcessState(moment)).anon_bytes == 100 * MIB


def test_a_share_of_no_limit_is_nothing() -> None:
    assert workload(anon=[{"kind": "limitShare", "share": 0.5}]).usage(MIDNIGHT, ProcessState(MIDNIGHT)).anon_bytes == 0


@given(st.integers(0, 2**32 - 1), st.floats(0, 30 * 86400))
def test_noise_depends_on_seed_and_time_alone_and_never_goes_below_nothing(seed: int, age: float) -> None:
    entry = {
        "seed": seed,
        "anon": [{"kind": "steady", "level": "100Mi", "noise": 0.5}],
        "cpu": [{"kind": "steady", "level": "1", "noise": 2}],
    }
    one, other = workload(**entry), workload(**entry)
    other.usage(MIDNIGHT, STARTED)
    assert one.usage(MIDNIGHT + age, STARTED) == other.usage(MIDNIGHT + age, STARTED)
    assert one.usage(MIDNIGHT + age, STARTED).cpu_millicores >= 0


def test_noise_has_the_asked_spread_and_differs_by_seed() -> None:
    def series(seed: int) -> list[float]:
        noisy = workload(seed=seed, anon=[{"kind": "steady", "level": "100Mi", "noise": 0.1}])
        return [noisy.usage(MIDNIGHT + 60 * minute, STARTED).anon_bytes / MIB for minute in range(1000)]

    values = series(1)
    mean = sum(values) / len(values)
    spread = (sum((value - mean) ** 2 for value in values) / len(values)) ** 0.5
    assert mean == pytest.approx(100, abs=2)
    assert spread == pytest.approx(10, abs=1.5)
    assert values != series(2)


@pytest.mark.parametrize(
    ("entry", "step"),
    [
        ({"anon": [{"kind": "steady", "level": "1Mi"}]}, 15),
        ({"anon": [{"kind": "burst", "height": "1Mi", "everySeconds": 20, "forSeconds": 4}]}, 2),
        ({"cpu": [{"kind": "burst", "height": "1", "everySeconds": 20, "forSeconds": 1}]}, 1),
    ],
)
def test_the_step_sees_every_burst(entry: Json, step: float) -> None:
    assert workload(**entry).step_seconds == step


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("not json", "JSON"),
        ("[]", "Expected `object`"),
        ('{"app": {"cpu": [{"kind": "sudden"}]}}', "sudden"),
        ('{"app": {"cpu": [{"kind": "steady", "level": "lots"}]}}', "cannot read 'lots'"),
        ('{"app": {"anon": [{"kind": "steady", "level": "-1Mi"}]}}', "negative"),
        ('{"app": {"anon": [{"kind": "steady"}]}}', "level"),
        ('{"app": {"ram": []}}', "ram"),
        ('{"app": {"anon": [{"kind": "burst", "height": "1Mi", "everySeconds": 0, "forSeconds": 1}]}}', "everySeconds is 0"),
        ('{"app": {"anon": [{"kind": "ramp", "height": "1Mi", "overSeconds": -5}]}}', "overSeconds is -5"),
        ('{"app": {"anon": [{"kind": "trace", "values": [], "stepSeconds": 60}]}}', "no values"),
        ('{"app": {"cpu": [{"kind": "limitShare", "share": 0.5}]}}', "anon only"),
    ],
)
def test_a_bad_annotation_is_one_clear_line(text: str, expected: str) -> None:
    with pytest.raises(ValidationError) as caught:
        parse_workloads({ANNOTATION_WORKLOAD: text})
    message = str(caught.value)
    assert message.startswith(f"annotation {ANNOTATION_WORKLOAD}: ")
    assert expected in message
    assert "\n" not in message


def test_without_the_annotation_nothing_is_chosen() -> None:
    assert parse_workloads({}) == {}
