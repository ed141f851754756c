"""Raw samples in, clean series and findings out: what was wrong with the data is counted and said, never swallowed.

A finding concerns one container (its subject is ``namespace/pod/container``) or one namespace, and carries a reason code of
``Reason``. Nothing is filled in: a gap stays a gap.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from vpa_ippr.api.series import ContainerRef, Finding, Floats, Resource

# One missed scrape leaves a hole of two intervals and is common; a gap begins above that, with room for jitter.
GAP_INTERVALS = 2.5

# Two hours of five-minute points: below that no percentile says much.
MIN_SAMPLES = 24


class Reason(enum.StrEnum):
    """What can be noticed about the data."""

    NON_FINITE_SAMPLES = "NonFiniteSamples"
    NEGATIVE_SAMPLES = "NegativeSamples"
    DUPLICATE_TIMESTAMPS = "DuplicateTimestamps"
    UNSORTED_TIMESTAMPS = "UnsortedTimestamps"
    DUPLICATE_SERIES = "DuplicateSeries"
    GAP = "Gap"
    FEW_SAMPLES = "FewSamples"
    COUNTER_RESETS = "CounterResets"
    LABELS_MISSING = "LabelsMissing"
    OWNER_UNKNOWN = "OwnerUnknown"
    OOM_WITHOUT_REQUEST = "OomWithoutRequest"
    NO_DATA = "NoData"
    NO_EVIDENCE = "NoEvidence"
    SERVER_WARNING = "ServerWarning"


@dataclass(frozen=True, slots=True)
class Cleaned:
    """A series fit for use (finite, not negative, strictly increasing in time) and what had to be done to it."""

    timestamps: Floats
    values: Floats
    non_finite: int = 0
    negative: int = 0
    duplicate_timestamps: int = 0
    unsorted: int = 0


def clean(timestamps: Floats, values: Floats) -> Cleaned:
    """Drop what is not a sample, put the rest in order, and of several values at one time keep the largest.

    ``unsorted`` counts the places where time runs backwards, ``duplicate_timestamps`` the samples given up for a larger one.
    """
    # A NaN in either column makes the whole sample unusable.
    finite = np.isfinite(values) & np.isfinite(timestamps)
    usable = finite & (values >= 0)
    kept = int(np.count_nonzero(usable))
    non_finite = values.size - int(np.count_nonzero(finite))
    if kept < values.size:
        timestamps, values = timestamps[usable], values[usable]
    steps = np.diff(timestamps)
    unsorted = int(np.count_nonzero(steps < 0))
    if unsorted:
        order = np.argsort(timestamps, kind="stable")
        timestamps, values = timestamps[order], values[order]
        steps = np.diff(timestamps)
    duplicates = int(np.count_nonzero(steps == 0))
    if duplicates:
        firsts = np.flatnonzero(np.concatenate(([True], steps != 0)))
        timestamps, values = timestamps[firsts], np.maximum.reduceat(values, firsts)
    return Cleaned(timestamps, values, non_finite, finite.size - non_finite - kept, duplicates, unsorted)


def merge(parts: Sequence[Cleaned]) -> Cleaned:
    """Several series of one container as one: the largest value at each time. Duplicate times between parts are no fault of the data."""
    if len(parts) == 1:
        return parts[0]
    both = clean(np.concatenate([part.timestamps for part in parts]), np.concatenate([part.values for part in parts]))
    return Cleaned(
        both.timestamps,
        both.values,
        sum(part.non_finite for part in parts),
        sum(part.negative for part in parts),
        sum(part.duplicate_timestamps for part in parts),
        sum(part.unsorted for part in parts),
    )


def usual_interval_seconds(timestamps: Floats) -> float:
    """The median distance between samples; 0 when there is none."""
    return float(np.median(np.diff(timestamps))) if timestamps.size > 1 else 0.0


def findings_of(
    container: ContainerRef, resource: Resource, series: Cleaned, *, interval_seconds: float, expected_samples: float
) -> Iterator[Finding]:
    """What is to be said of one cleaned series.

    ``interval_seconds`` is the distance that samples should have; ``expected_samples`` how many the window could hold, so that a
    short window is not blamed on the data.
    """
    subject = subject_of(container)
    for reason, count, what in (
        (Reason.NON_FINITE_SAMPLES, series.non_finite, "samples are NaN or infinite and were dropped"),
        (Reason.NEGATIVE_SAMPLES, series.negative, "samples are negative and were dropped"),
        (Reason.UNSORTED_TIMESTAMPS, series.unsorted, "times run backwards; the samples were sorted"),
        (Reason.DUPLICATE_TIMESTAMPS, series.duplicate_timestamps, "samples repeat a time; the largest value was kept"),
    ):
        if count:
            yield Finding(reason, subject, count, f"{subject}: {count} {resource} {what}")
    gaps = np.diff(series.timestamps)
    gaps = gaps[gaps > GAP_INTERVALS * interval_seconds]
    if gaps.size:
        message = f"{subject}: gaps in {resource}: {gaps.size}, the longest {gaps.max():.0f} s (samples are {interval_seconds:g} s apart)"
        yield Finding(Reason.GAP, subject, int(gaps.size), message)
    if series.timestamps.size < MIN_SAMPLES <= expected_samples:
        message = f"{subject}: only {series.timestamps.size} {resource} samples where the window could hold {expected_samples:.0f}"
        yield Finding(Reason.FEW_SAMPLES, subject, int(series.timestamps.size), message)


def subject_of(container: ContainerRef) -> str:
    """How findings name a container."""
    return f"{container.namespace}/{container.pod}/{container.container}"
