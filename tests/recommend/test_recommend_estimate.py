"""Margin, confidence, minimum and rounding: upstream's own numeric cases."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vpa_ippr.api.resources import Amounts
from vpa_ippr.forecast.catalogue import ConfidenceFactor, load_catalogue
from vpa_ippr.recommend.estimate import MAX_AMOUNT, Level, confidence_of, estimate, pod_share, to_amount, with_confidence, with_margin
from vpa_ippr.recommend.result import Estimate
from vpa_ippr.recommend.rounding import round_up, to_whole_cores, wants_whole_cores
from vpa_ippr.usage.container import DAY_SECONDS, SampleSpan

CLASSIC = load_catalogue()["vpa-classic"]
CORES_3_14, BYTES_3_14 = 3140, 3_140_000_000
# Nine samples, two minutes apart.
NINE = SampleSpan(9, 0.0, 960.0)


@pytest.mark.parametrize(
    ("cores", "millicores"), [(0.069946, 69), (0.61535112, 615), (0.00455, 4), (-1.0, 0), (math.inf, MAX_AMOUNT), (math.nan, 0)]
)
def test_cores_become_whole_millicores(cores, millicores):
    assert to_amount(cores * 1000) == millicores


@pytest.mark.parametrize(("amount", "factor", "scaled"), [(1213, 1.2414, 1505), (12, 1.1, 13)])
def test_scaling_truncates(amount, factor, scaled):
    assert to_amount(amount * factor) == scaled


@pytest.mark.parametrize(("exponent", "amount"), [(1.0, MAX_AMOUNT), (-1.0, 0)], ids=["upper", "lower"])
def test_without_history_the_bounds_are_everything_and_nothing(exponent, amount):
    assert with_confidence(CORES_3_14, confidence_of(SampleSpan(), DAY_SECONDS), ConfidenceFactor(1.0, exponent)) == amount


@pytest.mark.parametrize(
    ("interval_seconds", "confidence", "millicores", "memory_bytes"),
    [(DAY_SECONDS, 0.00625, 907_460, 907_460_000_000), (18 * 60.0, 0.5, 4521, 4_521_600_000)],
    ids=["of a day", "of 18 minutes"],
)
def test_confidence(interval_seconds, confidence, millicores, memory_bytes):
    found = confidence_of(NINE, interval_seconds)
    assert found == pytest.approx(confidence)
    factor = ConfidenceFactor(0.1, 2.0)
    assert with_confidence(CORES_3_14, found, factor) == millicores
    assert with_confidence(BYTES_3_14, found, factor) == pytest.approx(memory_bytes, abs=1)


def test_many_samples_in_a_short_time_are_not_a_long_history():
    assert confidence_of(SampleSpan(100_000, 0.0, DAY_SECONDS / 2), DAY_SECONDS) == 0.5


def test_few_samples_over_a_long_time_are_not_either():
    assert confidence_of(SampleSpan(192, 0.0, 8 * DAY_SECONDS), DAY_SECONDS) == pytest.approx(0.1333, abs=1e-4)


@pytest.mark.parametrize(
    ("minutes", "upper", "lower"),
    [(5, 289.0, 0.6028), (30, 49.0, 0.9105), (60, 25.0, 0.9537), (720, 3.0, 0.9960), (1440, 2.0, 0.9980), (10080, 1.1429, 0.9997)],
)
def test_bounds_narrow_with_history(minutes, upper, lower):
    confidence = minutes / 1440
    assert with_confidence(10**9, confidence, CLASSIC.confidence.upper_bound) / 10**9 == pytest.approx(upper, abs=1e-4)
    assert with_confidence(10**9, confidence, CLASSIC.confidence.lower_bound) / 10**9 == pytest.approx(lower, abs=1e-4)


def test_a_factor_too_large_for_a_float_is_the_maximum():
    assert with_confidence(1, 1e-6, ConfidenceFactor(1e9, 1000.0)) == MAX_AMOUNT


@pytest.mark.parametrize(("amount", "result"), [(CORES_3_14, 3454), (BYTES_3_14, 3_454_000_000)])
def test_margin_of_ten_percent(amount, result):
    assert with_margin(amount, 0.1) == result


@pytest.mark.parametrize(("containers", "millicores", "memory_bytes"), [(1, 25, 262_144_000), (2, 12, 131_072_000), (3, 8, 87_381_333)])
def test_pod_minimum_is_shared(containers, millicores, memory_bytes):
    assert pod_share(25, containers) == millicores
    assert pod_share(262_144_000, containers) == memory_bytes


def test_minimum_lifts_what_lies_below_it():
    found = estimate(Level(1, 1, 1), CLASSIC.cpu, CLASSIC.confidence, 8.0, 25)
    assert (found.lower_bound, found.target, found.upper_bound) == (25, 25, 25)


@given(
    st.lists(st.integers(0, 10**12), min_size=3, max_size=3).map(sorted),
    st.floats(0, 60),
    st.integers(0, 10**6),
    st.integers(1, 10**6),
)
def test_bounds_surround_the_target(levels, confidence, minimum, multiple):
    part = replace_round_up(multiple)
    found = estimate(Level(*levels), part, CLASSIC.confidence, confidence, minimum)
    assert minimum <= found.lower_bound <= found.target <= found.upper_bound
    assert found.target >= levels[1]
    assert all(amount % multiple == 0 for amount in (found.lower_bound, found.target, found.upper_bound))


def replace_round_up(multiple):
    part = CLASSIC.memory
    return type(part)(**{**{name: getattr(part, name) for name in part.__struct_fields__}, "round_up_to": multiple})


@pytest.mark.parametrize(
    ("amount", "multiple", "rounded"),
    [(1000, 3, 1002), (1231241, 13, 1231243), (839_500_000, 128 * 2**20, 896 * 2**20), (100, 7, 105), (105, 7, 105), (0, 7, 0)],
)
def test_rounding_up(amount, multiple, rounded):
    assert round_up(amount, multiple) == rounded


@pytest.mark.parametrize(("millicores", "whole"), [(8100, 9000), (8600, 9000), (5200, 6000), (6000, 6000)])
def test_whole_cores(millicores, whole):
    amounts = Amounts(millicores, 7)
    found = to_whole_cores(Estimate(amounts, amounts, amounts, replace(amounts, cpu_millicores=None)))
    assert found == Estimate(Amounts(whole, 7), Amounts(whole, 7), Amounts(whole, 7), Amounts(None, 7))


@pytest.mark.parametrize(("value", "wanted"), [("true", True), ("True", False), ("false", False)])
def test_whole_cores_only_where_asked_for(value, wanted):
    annotations = {"vpa-post-processor.kubernetes.io/app_integerCPU": value}
    assert wants_whole_cores(annotations, "app") is wanted
    assert not wants_whole_cores(annotations, "other")
