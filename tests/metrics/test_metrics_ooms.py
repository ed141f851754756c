"""Kills from sticky gauges, restart counters and termination times, on a one-minute grid whose first point is the baseline."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vpa_ippr.api.series import ContainerRef, OomKill
from vpa_ippr.metrics.decode import Row
from vpa_ippr.metrics.ooms import OomEvidence, find_kills, pods_of

CONTAINER = ContainerRef("shop", "web-1", "app")
BASELINE = 6000.0
MI = 1024 * 1024


def row(values: list[float | None]) -> Row:
    """One value a minute from the baseline on; None: no sample."""
    present = [(BASELINE + 60 * index, value) for index, value in enumerate(values) if value is not None]
    table = np.array(present, np.float64).reshape(-1, 2)
    return Row({"pod": "web-1"}, table[:, 0], table[:, 1])


def kills(reason, restarts=None, terminated=None, requests=None, limits=None, container=CONTAINER) -> list[OomKill]:
    def one(values):
        return {} if values is None else {container: row(values)}

    return find_kills(OomEvidence(one(reason), one(restarts), one(terminated), one(requests), one(limits)), BASELINE)


def minutes(found: list[OomKill]) -> list[float]:
    return [(kill.at - BASELINE) / 60 for kill in found]


@pytest.mark.parametrize(
    ("reason", "restarts", "expected"),
    [
        ([None, None, 1, 1, 1], [0, 0, 1, 1, 1], [2]),
        ([1, 1, 1, 1, 1], [4, 4, 4, 4, 4], []),
        ([1, 1, 1, 1, 1], [4, 4, 5, 5, 6], [2, 4]),
        ([1, 1, None, None, 1], [4, 4, 5, 5, 6], [4]),
        ([None, None, 1, 0, 1], [0, 0, 3, 4, 5], [2, 4]),
        ([None, None, None, 1, 1], [None, None, None, 1, 1], [3]),
        ([None, None, None, 1, 1], [None, None, None, 0, 0], []),
        ([1, 1, 1, 1, 1], [5, 0, 0, 1, 1], [3]),
        ([None, 1, 1], None, []),
    ],
    ids=[
        "one",
        "old-and-sticky",
        "two-in-a-row",
        "other-termination-between",
        "several-between-points-count-once",
        "new-pod-first-seen-killed",
        "no-restart-no-kill",
        "pod-replaced-under-its-name",
        "no-evidence-of-when",
    ],
)
def test_a_kill_is_a_restart_while_the_gauge_is_up(reason, restarts, expected):
    assert minutes(kills(reason, restarts)) == expected


@pytest.mark.parametrize(
    ("reason", "minutes_of_termination", "expected"),
    [
        ([None, 1, 1, 1], [None, 0.5, 0.5, 0.5], [0.5]),
        ([1, 1, 1, 1], [-90, -90, 1.75, 2.25], [1.75, 2.25]),
        ([1, 1, 1, 1], [-90, -90, -90, -90], []),
        ([None, None, 1, 1], [-90, 0.5, 1.5, 1.5], [1.5]),
        ([1, 1, 1, 1], [-0.5, 0.25, 0.25, 0.25], [0.25]),
        ([None, 1, 1, 1], [None, -5, -5, -5], [-5]),
        ([None, None, 1, 1], [None, None, -90, -90], []),
    ],
    ids=["one", "two", "old-and-sticky", "after-another-end", "seen-late", "exporter-was-late", "exporter-was-away"],
)
def test_the_time_of_termination_is_taken_where_it_is_known(reason, minutes_of_termination, expected):
    terminated = [None if minute is None else BASELINE + 60 * minute for minute in minutes_of_termination]
    # The counter is deliberately silent: the time of termination says more.
    assert minutes(kills(reason, [7] * len(reason), terminated)) == expected


def test_request_and_limit_are_those_in_force_at_the_kill():
    found = kills(
        reason=[None, 1, 1, 1],
        restarts=[0, 1, 1, 2],
        requests=[64 * MI, 64 * MI, 128 * MI, 128 * MI],
        limits=[256 * MI, 256 * MI, 512 * MI, 512 * MI],
    )

    assert [(kill.memory_request_bytes, kill.memory_limit_bytes) for kill in found] == [
        (64 * MI, 256 * MI),
        (128 * MI, 512 * MI),
    ]


@pytest.mark.parametrize(
    ("requests", "expected"), [(None, 0), ([None, None, None, 32 * MI], 32 * MI)], ids=["no-request", "first-known-later"]
)
def test_a_request_that_is_not_known_at_the_kill(requests, expected):
    (kill,) = kills([None, 1, 1, 1], [0, 1, 1, 1], requests=requests)

    assert (kill.memory_request_bytes, kill.memory_limit_bytes) == (expected, None)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2)), min_size=2, max_size=30), st.data())
def test_reads_that_follow_each_other_see_each_kill_once(history, data):
    restarts = np.cumsum([step for _, step in history]).astype(float)
    reason = [1.0 if up else None for up, _ in history]
    cut = data.draw(st.integers(0, len(history) - 1))

    whole = kills(reason, list(restarts))
    first = kills(reason[: cut + 1], list(restarts[: cut + 1]))
    evidence = OomEvidence({CONTAINER: row(reason)}, {CONTAINER: row(list(restarts))}, {}, {}, {})
    rest = find_kills(_from(evidence, cut), BASELINE + 60 * cut)

    assert [kill.at for kill in first + rest] == [kill.at for kill in whole]


def _from(evidence: OomEvidence, cut: int) -> OomEvidence:
    def later(rows):
        return {
            container: Row(one.labels, *(column[one.timestamps >= BASELINE + 60 * cut] for column in (one.timestamps, one.values)))
            for container, one in rows.items()
        }

    return OomEvidence(later(evidence.reason), later(evidence.restarts), {}, {}, {})


def test_pods_are_named_once_and_in_order():
    rows = [Row({"pod": name}, np.empty(0), np.empty(0)) for name in ("b", "a", "b", "")]

    assert pods_of(rows) == ("a", "b")
