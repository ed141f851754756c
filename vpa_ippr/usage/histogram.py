"""Histograms of usage whose old samples fade: a sample one half-life older counts half.

Weights are not aged. A new sample is made heavier instead, by ``2^((t - reference) / half_life)``, and when that exponent would pass 100
the whole histogram is rescaled and the reference time moved (upstream VPA, ``decaying_histogram.go``). A percentile is the *end* of
the bucket it falls into, so it is never below the value that was seen.

Histograms are values: every operation returns a new one. Adding many samples in one call gives, bit for bit, what adding them one by
one gives, so a history read at once and the same history read minute by minute end in the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vpa_ippr.api.series import Floats

# Beyond 2^100 the weights are rescaled; the value is upstream's ``maxDecayExponent``.
MAX_DECAY_EXPONENT: Final = 100
# Go counts ``time.Round`` from the year 1; this is that moment before the Unix epoch, so that a half-life of 24 h means UTC midnight.
_YEAR_ONE_BEFORE_EPOCH_SECONDS: Final = 62_135_596_800


@dataclass(frozen=True, slots=True)
class BucketOptions:
    """Where the buckets begin, and the weight under which one counts as empty; made by the functions below.

    ``starts[n]`` is the nominal start of bucket n. ``thresholds[n - 1]`` is the smallest float that falls into bucket n: because of
    rounding in the logarithm it lies a few units in the last place above ``starts[n]`` for many n.
    """

    key: tuple[str, float, float, float]
    epsilon: float
    starts: Floats = field(compare=False)
    thresholds: Floats = field(compare=False)

    @property
    def count(self) -> int:
        """Number of buckets."""
        return len(self.starts)

    def find(self, values: ArrayLike) -> NDArray[np.int64]:
        """Bucket of each value; values beyond either end go into the first or the last bucket."""
        return np.searchsorted(self.thresholds, np.asarray(values, dtype=np.float64), side="right")

    def ends(self) -> Floats:
        """What a percentile in each bucket returns: the start of the next one, and the last bucket's own start."""
        return np.append(self.starts[1:], self.starts[-1])


@lru_cache(maxsize=32)
def linear_buckets(max_value: float, bucket_size: float, epsilon: float) -> BucketOptions:
    """Buckets of one size; the last one takes everything from ``max_value`` up."""
    count = math.ceil(max_value / bucket_size) + 1
    starts = np.arange(count, dtype=np.float64) * bucket_size
    thresholds = _thresholds(starts, lambda value: int(value / bucket_size))
    return BucketOptions(("linear", max_value, bucket_size, 1.0), epsilon, starts, thresholds)


@lru_cache(maxsize=32)
def exponential_buckets(max_value: float, first_bucket_size: float, ratio: float, epsilon: float) -> BucketOptions:
    """Buckets that each are ``ratio`` (> 1) times as wide as the one before; ``start(n) = first (ratio^n - 1) / (ratio - 1)``."""
    log_ratio = math.log(ratio)

    def position(value: float) -> float:
        return math.log(value * (ratio - 1) / first_bucket_size + 1) / log_ratio

    count = math.ceil(position(max_value)) + 1
    starts = np.array([first_bucket_size * (ratio**n - 1) / (ratio - 1) for n in range(count)])
    thresholds = _thresholds(starts, lambda value: 0 if value < first_bucket_size else int(position(value)))
    return BucketOptions(("exponential", max_value, first_bucket_size, ratio), epsilon, starts, thresholds)


def _thresholds(starts: Floats, find: Callable[[float], int]) -> Floats:
    """The smallest float of each bucket but the first, found by walking from its nominal start; exact where a vector log is not."""
    thresholds = starts[1:].copy()
    for index, start in enumerate(thresholds):
        value = float(start)
        while find(value) > index:
            value = math.nextafter(value, 0.0)
        while find(value) <= index:
            value = math.nextafter(value, math.inf)
        thresholds[index] = value
    return thresholds


@dataclass(frozen=True, slots=True, eq=False)
class DecayingHistogram:
    """An immutable decaying histogram; ``weights`` are scaled to ``reference`` (seconds since the epoch, None while empty)."""

    options: BucketOptions
    half_life_seconds: float
    weights: Floats
    total_weight: float = 0.0
    reference: float | None = None

    @classmethod
    def empty(cls, options: BucketOptions, half_life_seconds: float) -> DecayingHistogram:
        """A histogram with no samples."""
        return cls(options, half_life_seconds, np.zeros(options.count))

    @property
    def occupied(self) -> tuple[int, int] | None:
        """First and last bucket that hold at least epsilon; None when there is none."""
        return occupied_range(self.weights, self.options.epsilon)

    @property
    def is_empty(self) -> bool:
        """True when no bucket holds at least epsilon."""
        return self.occupied is None

    def add(self, timestamps: ArrayLike, values: ArrayLike, weights: ArrayLike = 1.0) -> DecayingHistogram:
        """Add samples, in the order given; ``timestamps`` in seconds, ``values`` in the histogram's unit."""
        times = np.asarray(timestamps, dtype=np.float64).reshape(-1)
        buckets = self.options.find(values).reshape(-1)
        sample_weights = np.asarray(weights, dtype=np.float64)
        if sample_weights.ndim == 0:
            sample_weights = np.full(len(times), sample_weights)
        histogram, begin = self, 0
        while begin < len(times):
            if histogram._is_beyond_exponent(float(times[begin])):
                histogram = histogram._shifted(float(times[begin]))
            late = times[begin:] > histogram._latest_timestamp()
            end = begin + int(late.argmax()) if late.any() else len(times)
            histogram = histogram._add_chunk(times[begin:end], buckets[begin:end], sample_weights[begin:end])
            begin = end
        return histogram

    def subtract(self, timestamp: float, value: float, weight: float = 1.0) -> DecayingHistogram:
        """Take one sample out again; what is left below epsilon becomes 0."""
        shifted = self._shifted(timestamp) if self._is_beyond_exponent(timestamp) else self
        assert shifted.reference is not None  # _is_beyond_exponent is true without one
        amount = weight * 2.0 ** ((timestamp - shifted.reference) / self.half_life_seconds)
        weights, bucket = shifted.weights.copy(), int(self.options.find(value))
        weights[bucket] = self._without_dust(float(weights[bucket]) - amount)
        return replace(shifted, weights=weights, total_weight=self._without_dust(shifted.total_weight - amount))

    def merge(self, other: DecayingHistogram) -> DecayingHistogram:
        """Both histograms' samples together.

        Raises:
            ValueError: half-lives or buckets differ; such weights cannot be added.
        """
        if self.half_life_seconds != other.half_life_seconds or self.options != other.options:
            raise ValueError("cannot merge histograms of different half-lives or buckets")
        if other.reference is None:
            return self
        if self.reference is None:
            return other
        mine, theirs = self, other
        if self.reference < other.reference:
            mine = self._shifted(other.reference)
        elif other.reference < self.reference:
            theirs = other._shifted(self.reference)
        return replace(mine, weights=mine.weights + theirs.weights, total_weight=mine.total_weight + theirs.total_weight)

    def percentile(self, fraction: float) -> float:
        """The end of the bucket in which the cumulated weight reaches ``fraction`` of the total; 0 when empty."""
        occupied = self.occupied
        if occupied is None:
            return 0.0
        first, last = occupied
        # The last occupied bucket is the answer whatever its weight: rounding must not lead past it.
        reached = np.cumsum(self.weights[first:last]) >= fraction * self.total_weight
        bucket = first + int(np.argmax(reached)) if reached.any() else last
        return float(self.options.starts[min(bucket + 1, self.options.count - 1)])

    def _add_chunk(self, times: Floats, buckets: NDArray[np.int64], sample_weights: Floats) -> DecayingHistogram:
        assert self.reference is not None
        scaled = sample_weights * np.exp2((times - self.reference) / self.half_life_seconds)
        weights = self.weights.copy()
        np.add.at(weights, buckets, scaled)  # in order, unlike a grouped sum: the result does not depend on the batches
        total = float(np.cumsum(np.concatenate(((self.total_weight,), scaled)))[-1])
        return replace(self, weights=weights, total_weight=total)

    def _latest_timestamp(self) -> float:
        assert self.reference is not None
        return self.reference + MAX_DECAY_EXPONENT * self.half_life_seconds

    def _is_beyond_exponent(self, timestamp: float) -> bool:
        return self.reference is None or timestamp > self._latest_timestamp()

    def _shifted(self, timestamp: float) -> DecayingHistogram:
        """The same histogram scaled to a new reference: ``timestamp`` rounded half up to a whole multiple of the half-life."""
        half_life = self.half_life_seconds
        since_year_one = timestamp + _YEAR_ONE_BEFORE_EPOCH_SECONDS
        reference = math.floor(since_year_one / half_life + 0.5) * half_life - _YEAR_ONE_BEFORE_EPOCH_SECONDS
        if self.reference is None:
            return replace(self, reference=reference)
        factor = math.ldexp(1.0, math.floor((self.reference - reference) / half_life + 0.5))
        return replace(self, weights=self.weights * factor, total_weight=self.total_weight * factor, reference=reference)

    def _without_dust(self, weight: float) -> float:
        return weight if weight >= self.options.epsilon else 0.0


def occupied_range(weights: Floats, epsilon: float) -> tuple[int, int] | None:
    """First and last index whose weight is at least ``epsilon``."""
    held = np.flatnonzero(weights >= epsilon)
    return (int(held[0]), int(held[-1])) if len(held) else None
