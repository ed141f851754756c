"""Cases of upstream's histogram tests, and what must hold for any samples."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vpa_ippr.api.errors import ValidationError
from vpa_ippr.api.timestamps import parse_time
from vpa_ippr.api.vpa import HistogramCheckpoint
from vpa_ippr.usage.checkpoint import load_histogram, save_histogram
from vpa_ippr.usage.container import DAY_SECONDS, UsageRules
from vpa_ippr.usage.histogram import DecayingHistogram, exponential_buckets, linear_buckets

EPSILON = 1e-15
HOUR = 3600.0
START = 1234567890.0
# A whole multiple of the half-life, so that a sample at this time weighs what it says.
AT = math.floor(START / HOUR) * HOUR
RULES = UsageRules()


def a_histogram(max_value=10.0, size=1.0, half_life=HOUR, epsilon=EPSILON):
    return DecayingHistogram.empty(linear_buckets(max_value, size, epsilon), half_life)


def with_samples(*samples, histogram=None):
    histogram = histogram or a_histogram()
    for at, value, weight in samples:
        histogram = histogram.add(at, value, weight)
    return histogram


@pytest.mark.parametrize(("value", "bucket"), [(-1.0, 0), (0.0, 0), (1.3, 4), (100.0, 17)])
def test_linear_bucket_of_a_value(value, bucket):
    assert linear_buckets(5.0, 0.3, EPSILON).find(value) == bucket


def test_linear_buckets_cover_the_maximum():
    options = linear_buckets(5.0, 0.3, EPSILON)
    assert options.count == 18
    assert options.starts[17] == pytest.approx(5.1)


@pytest.mark.parametrize(("value", "bucket"), [(-1.0, 0), (0.0, 0), (39.99, 0), (40.0, 1), (100.0, 2), (900.0, 5)])
def test_exponential_bucket_of_a_value(value, bucket):
    assert exponential_buckets(500.0, 40.0, 1.5, EPSILON).find(value) == bucket


def test_exponential_bucket_starts():
    options = exponential_buckets(500.0, 40.0, 1.5, EPSILON)
    assert options.starts.tolist() == pytest.approx([0, 40, 100, 190, 325, 527.5])


def test_default_buckets_are_upstreams():
    assert (RULES.cpu_buckets.count, RULES.memory_buckets.count) == (176, 176)
    assert RULES.cpu_buckets.starts[-1] == pytest.approx(1021.109, abs=1e-3)
    assert RULES.memory_buckets.starts[-1] == pytest.approx(1_021_109_408_904.865, abs=1e-2)
    # Rounding in the logarithm puts about 75 of the exact bucket starts into the bucket below.
    assert np.count_nonzero(RULES.cpu_buckets.find(RULES.cpu_buckets.starts) != np.arange(176)) == 75


@given(st.floats(0, 2000))
def test_bucket_is_that_of_the_scalar_formula(value):
    expected = 0 if value < 0.01 else min(175, int(math.log(value * (1.05 - 1) / 0.01 + 1) / math.log(1.05)))
    assert RULES.cpu_buckets.find(value) == expected


@pytest.mark.parametrize(
    ("fraction", "value"),
    [(0.0, 2), (0.1, 2), (0.2, 3), (0.3, 3), (0.4, 4), (0.5, 4), (0.6, 4), (0.7, 5), (0.8, 5), (0.9, 5), (1.0, 5)],
)
def test_percentile_of_weights_that_grow(fraction, value):
    assert with_samples(*((AT, i, i) for i in range(1, 5))).percentile(fraction) == value


@pytest.mark.parametrize("fraction", [-0.5, 0.0, 0.5, 1.0, 1.5])
def test_percentile_of_nothing_is_zero(fraction):
    assert a_histogram().percentile(fraction) == 0.0


def test_percentile_outside_the_unit_interval():
    fine = a_histogram(1.0, 0.1)
    histogram = with_samples((AT, 0.1, 0.1), (AT, 0.2, 0.2), histogram=fine)
    assert (histogram.percentile(-0.1), histogram.percentile(1.1)) == pytest.approx((0.2, 0.3))
    wider = with_samples((AT, 0.0, 0.1), (AT, 1.0, 0.2), histogram=fine)
    assert (wider.percentile(-0.1), wider.percentile(1.1)) == pytest.approx((0.1, 1.0))  # the last bucket gives its start


def test_weight_below_epsilon_is_emptiness():
    histogram = with_samples((AT, 1.0, 2.5 * EPSILON)).subtract(AT, 1.0, EPSILON)
    assert not histogram.is_empty
    emptied = histogram.subtract(AT, 1.0, EPSILON)
    assert emptied.is_empty
    assert emptied.percentile(0.5) == 0.0


def test_dust_at_the_edges_does_not_empty_a_histogram():
    histogram = with_samples((AT, 9.9, 3 * EPSILON), (AT, 0.1, 0.3 * EPSILON), (AT, 999.9, 0.3 * EPSILON))
    assert not histogram.is_empty
    assert histogram.percentile(0.5) == 10.0


def test_merge_is_the_sum():
    merged = with_samples((AT, 1, 1), (AT, 2, 1)).merge(with_samples((AT, 2, 1), (AT, 3, 1)))
    direct = with_samples((AT, 1, 1), (AT, 2, 1), (AT, 2, 1), (AT, 3, 1))
    assert merged.weights.tolist() == direct.weights.tolist()
    assert merged.total_weight == direct.total_weight


@pytest.mark.parametrize(
    "other", [a_histogram(half_life=2 * HOUR), a_histogram(max_value=20.0)], ids=["another half-life", "other buckets"]
)
def test_what_cannot_be_added_is_not_merged(other):
    with pytest.raises(ValueError, match="different half-lives or buckets"):
        a_histogram().merge(other)


def test_an_old_heavy_sample_fades():
    histogram = with_samples((START, 2, 1000), (START + 20 * HOUR, 1, 1))
    assert (histogram.percentile(0.999), histogram.percentile(1.0)) == (2, 3)


def test_what_is_older_than_the_largest_exponent_is_gone():
    assert with_samples((START, 2, 1), (START + 101 * HOUR, 1, 1)).percentile(1.0) == 2


@pytest.mark.parametrize(("fraction", "value"), [(0.0, 2), (0.02, 2), (0.03, 3), (0.10, 3), (0.11, 4), (0.34, 4), (0.35, 5), (1.0, 5)])
def test_percentile_of_samples_one_half_life_apart(fraction, value):
    assert with_samples(*((START + i * HOUR, i, i) for i in range(1, 5))).percentile(fraction) == value


def test_reference_is_midnight_for_a_half_life_of_a_day():
    histogram = DecayingHistogram.empty(RULES.cpu_buckets, DAY_SECONDS)
    assert histogram.add(parse_time("2026-01-01T11:59:59Z"), 1.0).reference == parse_time("2026-01-01T00:00:00Z")
    assert histogram.add(parse_time("2026-01-01T12:00:00Z"), 1.0).reference == parse_time("2026-01-02T00:00:00Z")


@pytest.mark.parametrize(
    ("samples", "weights", "total"),
    [
        ([], {}, 0.0),
        ([(AT, 1, 1)], {"1": 10000}, 1.0),
        ([(AT, 1, 1), (AT, 2, 100000)], {"2": 10000}, 100001.0),
        ([(AT, 1, 1), (AT, 2, 10000), (AT, 3, 50)], {"1": 1, "2": 10000, "3": 50}, 10051.0),
    ],
    ids=["empty", "one", "too small to show", "three"],
)
def test_saved_weights(samples, weights, total):
    saved = save_histogram(with_samples(*samples))
    assert saved.bucket_weights == weights
    assert saved.total_weight == pytest.approx(total)


def test_loaded_weights_share_the_total_and_keep_the_reference():
    saved = HistogramCheckpoint("2018-01-02T03:04:05Z", {"0": 1, "1": 2}, 6.0)
    loaded = load_histogram(saved, a_histogram(), "here")
    assert loaded.weights[:2].tolist() == [2.0, 4.0]
    assert loaded.reference == parse_time("2018-01-02T03:04:05Z")


@pytest.mark.parametrize(
    ("weights", "total", "message"),
    [
        ({"-1": 1}, 1.0, "here.bucketWeights has bucket '-1': expected 0 to 10"),
        ({"99": 1}, 1.0, "here.bucketWeights has bucket '99': expected 0 to 10"),
        ({"one": 1}, 1.0, "bucket 'one'"),
        ({"1": -1}, 1.0, r"here.bucketWeights\[1\] is -1"),
        ({"1": 1}, -1.0, "here.totalWeight is -1.0"),
        ({"1": 1}, math.nan, "here.totalWeight is nan"),
    ],
)
def test_damaged_histograms_are_refused(weights, total, message):
    with pytest.raises(ValidationError, match=message) as caught:
        load_histogram(HistogramCheckpoint("2018-01-02T03:04:05Z", weights, total), a_histogram(), "here")
    assert caught.value.reason == "CheckpointCorrupt"


def test_a_lowest_bucket_of_about_epsilon_survives_saving():
    histogram = DecayingHistogram.empty(linear_buckets(10.0, 1.0, 0.001), HOUR)
    histogram = with_samples((AT, 0.5, 0.001), (AT, 9.5, 0.001 * 10000 - 0.001), histogram=histogram)
    empty = DecayingHistogram.empty(histogram.options, HOUR)
    loaded = load_histogram(save_histogram(histogram), empty, "here")
    assert not loaded.is_empty
    assert loaded.percentile(0.9) > 0


SAMPLES = st.lists(st.tuples(st.floats(0, 400 * HOUR), st.floats(0, 12), st.floats(0.01, 5)), max_size=40)


@given(SAMPLES, st.integers(0, 40))
def test_a_batch_is_the_same_as_one_by_one(samples, cut):
    one_by_one = with_samples(*((START + at, value, weight) for at, value, weight in samples))
    batch = a_histogram()
    for part in (samples[:cut], samples[cut:]):
        columns = np.array(part).reshape(-1, 3)
        batch = batch.add(START + columns[:, 0], columns[:, 1], columns[:, 2])
    assert batch.weights.tolist() == one_by_one.weights.tolist()
    assert batch.total_weight == one_by_one.total_weight
    assert batch.reference == one_by_one.reference


@settings(max_examples=50)
@given(SAMPLES, SAMPLES)
def test_a_merge_is_the_same_as_adding_all(left, right):
    samples = [[(START + at, value, weight) for at, value, weight in side] for side in (left, right)]
    merged = with_samples(*samples[0]).merge(with_samples(*samples[1]))
    direct = with_samples(*samples[0], *samples[1])
    if direct.reference is None:
        assert merged.is_empty
        return
    assert merged.reference is not None
    shift = 2.0 ** ((merged.reference - direct.reference) / HOUR)
    assert (merged.weights * shift).tolist() == pytest.approx(direct.weights.tolist(), rel=1e-9, abs=1e-9 * max(1.0, direct.total_weight))


@settings(max_examples=50)
@given(SAMPLES.filter(bool), st.floats(0, 1))
def test_more_use_never_lowers_a_percentile(samples, fraction):
    low = with_samples(*((START, value, weight) for _, value, weight in samples))
    high = with_samples(*((START, value + 1.0, weight) for _, value, weight in samples))
    assert high.percentile(fraction) >= low.percentile(fraction)


@settings(max_examples=50)
@given(SAMPLES, st.floats(0, 1), st.floats(0, 1))
def test_percentiles_are_in_order(samples, one, other):
    histogram = with_samples(*((START + at, value, weight) for at, value, weight in samples))
    assert histogram.percentile(min(one, other)) <= histogram.percentile(max(one, other))


@settings(max_examples=50)
@given(SAMPLES)
def test_saving_what_was_loaded_changes_nothing(samples):
    empty = DecayingHistogram.empty(linear_buckets(10.0, 1.0, 1e-4), HOUR)
    histogram = with_samples(*((AT + at, value, weight) for at, value, weight in samples), histogram=empty)
    once = save_histogram(histogram)
    twice = save_histogram(load_histogram(once, empty, "here"))
    assert twice.bucket_weights == once.bucket_weights
    assert twice.total_weight == pytest.approx(once.total_weight)
