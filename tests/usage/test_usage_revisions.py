"""History across rollouts: a fatter revision is believed at once, a leaner one slowly, and coming back restores what was."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vpa_ippr.usage.revisions import RevisionRules, Segment, followed, rebased

RULES = RevisionRules()
DAY, HOUR = 288, 12
BEGIN = 20_000 * DAY
A, B, C = "6d4cf56db6", "7f9c8bb1aa", "5b8d7c9eff"


def rhythm(steps, begin=BEGIN, seed=1):
    """Busy by day, quiet at night, with some noise."""
    noise = np.random.default_rng(seed).gamma(100, 0.01, steps)
    return (1 + 0.6 * np.sin(2 * np.pi * (begin + np.arange(steps)) / DAY)) * noise


def rolled_out(before, after, factor):
    """So many steps of the old revision, then of one that uses ``factor`` times as much."""
    values = rhythm(before + after)
    values[before:] *= factor
    return values


def scale(values, segments, steps, rules=RULES):
    """By what the first steps were scaled."""
    result = rebased(values, BEGIN + len(values), segments, rules)
    ratios = result[:steps] / values[:steps]
    assert np.ptp(ratios) < 1e-12
    return ratios[0]


@pytest.mark.parametrize(
    ("factor", "after", "low", "high"),
    [
        (2.0, HOUR, 1.7, 2.1),
        (2.0, DAY, 1.9, 2.1),
        (0.5, HOUR, 0.85, 0.95),
        (0.5, DAY, 0.5, 0.62),
        (0.5, 3 * DAY, 0.5, 0.56),
        (1.1, DAY, 1.0, 1.0),
        (1.0, 2 * HOUR, 1.0, 1.0),
    ],
    ids=["fatter after an hour", "fatter after a day", "leaner after an hour", "leaner after a day", "leaner later", "noise", "the same"],
)
def test_how_soon_a_change_is_believed(factor, after, low, high):
    values = rolled_out(5 * DAY + 7 * HOUR, after, factor)
    found = scale(values, [Segment(BEGIN + 5 * DAY + 7 * HOUR, B)], 5 * DAY)
    assert low <= found <= high


def test_what_the_present_revision_used_stays():
    values = rolled_out(2 * DAY, 5 * HOUR, 3.0)
    result = rebased(values, BEGIN + len(values), [Segment(BEGIN + 2 * DAY, B)], RULES)
    np.testing.assert_array_equal(result[2 * DAY :], values[2 * DAY :])


def test_coming_back_restores():
    values = rhythm(5 * DAY)
    values[3 * DAY : 4 * DAY] *= 4.0
    segments = [Segment(BEGIN, A), Segment(BEGIN + 3 * DAY, B), Segment(BEGIN + 4 * DAY, A)]
    for later in (1, HOUR, DAY):
        end = 4 * DAY + later
        result = rebased(values[:end], BEGIN + end, segments, RULES)
        np.testing.assert_array_equal(result[: 3 * DAY], values[: 3 * DAY])
        assert result[3 * DAY : 4 * DAY].max() < 1.2 * values[: 3 * DAY].max(), "the fat revision's day no longer counts as it was"


def test_each_other_revision_has_its_own_ratio():
    values = rhythm(6 * DAY)
    values[: 2 * DAY] *= 8.0
    values[2 * DAY : 4 * DAY] *= 2.0
    segments = [Segment(BEGIN, A), Segment(BEGIN + 2 * DAY, B), Segment(BEGIN + 4 * DAY, C)]
    result = rebased(values, BEGIN + 6 * DAY, segments, RULES)
    peaks = [result[begin * DAY : (begin + 2) * DAY].max() for begin in (0, 2, 4)]
    assert max(peaks) < 1.5 * min(peaks)


@pytest.mark.parametrize(
    ("segments", "end"),
    [
        ([], 2 * DAY),
        ([Segment(BEGIN - 5, A)], 2 * DAY),
        ([Segment(BEGIN, A)], 2 * DAY),
        ([Segment(BEGIN + DAY, A)], DAY),
        ([Segment(BEGIN - 9, A), Segment(BEGIN + 2 * DAY, B)], 2 * DAY),
    ],
    ids=["none known", "began long ago", "began with the row", "begins later", "the next begins later"],
)
def test_without_a_rollout_nothing_changes(segments, end):
    values = rolled_out(DAY, DAY, 3.0)[:end]
    np.testing.assert_array_equal(rebased(values, BEGIN + end, segments, RULES), values)


@pytest.mark.parametrize(
    "spoil", [lambda v: v[:DAY].fill(0), lambda v: v[DAY:].fill(np.nan), lambda v: v[:DAY].fill(np.nan), lambda v: v[DAY:].fill(0)],
    ids=["nothing used before", "not seen yet", "nothing known before", "nothing used since"],
)  # fmt: skip
def test_without_evidence_nothing_changes(spoil):
    values = rolled_out(DAY, HOUR, 2.0)
    spoil(values)
    np.testing.assert_array_equal(rebased(values, BEGIN + len(values), [Segment(BEGIN + DAY, B)], RULES), values)


def test_a_revision_that_was_never_seen_at_this_hour_is_compared_with_the_usual():
    values = rolled_out(6 * HOUR, HOUR, 3.0)
    found = scale(values, [Segment(BEGIN + 6 * HOUR, B)], 6 * HOUR)
    assert found > 2.0


@given(st.floats(0.05, 20), st.integers(1, 3 * DAY), st.integers(1, 3 * DAY))
def test_a_scale_lies_between_the_old_and_the_new(factor, before, after):
    values = np.ones(before + after)
    values[before:] *= factor
    found = scale(values, [Segment(BEGIN + before, B)], before)
    assert min(1, factor) - 1e-9 <= found <= max(1, factor) + 1e-9


def test_segments_follow_rollouts():
    segments = followed((), A, BEGIN)
    assert followed(segments, A, BEGIN + 50) == segments, "a pod more of the same"
    segments = followed(segments, B, BEGIN + 100)
    assert followed(segments, A, BEGIN) == segments, "old pods during the rollout"
    segments = followed(segments, A, BEGIN + 200)
    assert segments == (Segment(0, A), Segment(BEGIN + 100, B), Segment(BEGIN + 200, A))
    for more in range(100):
        segments = followed(segments, f"r{more}", BEGIN + 300 + more)
    assert len(segments) == 16
    assert segments[-1].revision == "r99"
