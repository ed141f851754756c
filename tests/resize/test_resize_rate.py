"""The rate over all workloads."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from resize_support import START, a_container, a_pod, requirements
from rollout_support import SETTINGS, SIGNIFICANT, a_proposal

from vpa_ippr.resize.rate import limit_rate
from vpa_ippr.resize.reasons import DueReason

OOM = (DueReason.QUICK_OOM,)


def limited(rate):
    return dataclasses.replace(SETTINGS, max_resizes_per_minute=rate)


def resize_to(cpu, name, reasons=SIGNIFICANT):
    return a_proposal(a_pod(a_container(cpu="1", memory="1Gi"), name=name), reasons=reasons, app=requirements(cpu, "1Gi"))


def names(proposals):
    return [proposal.view.pod.metadata.name for proposal in proposals]


def test_without_a_rate_all_go_in_their_order():
    rated = limit_rate([resize_to("500m", "a"), resize_to("2", "b")], None, START, SETTINGS)
    assert (names(rated.go), names(rated.hold), rated.bucket) == (["a", "b"], [], None)


def test_growth_goes_before_decreases_and_the_rest_waits_for_its_minute():
    proposals = [resize_to("500m", "less"), resize_to("2", "more"), resize_to("3", "most")]
    rated = limit_rate(proposals, None, START, limited(2))
    assert (names(rated.go), names(rated.hold)) == (["more", "most"], ["less"])
    again = limit_rate(rated.hold, rated.bucket, START + 29, limited(2))
    assert names(again.go) == []
    assert names(limit_rate(again.hold, again.bucket, START + 31, limited(2)).go) == ["less"]


def test_what_was_killed_for_memory_never_waits():
    spent = limit_rate([resize_to("2", "a")], None, START, limited(1)).bucket
    rated = limit_rate([resize_to("2", "b"), resize_to("2", "c", OOM), resize_to("2", "d", OOM)], spent, START, limited(1))
    assert (names(rated.go), names(rated.hold)) == (["c", "d"], ["b"])


@pytest.mark.parametrize("seconds", [60, 3600, -5], ids=["minute", "hour", "clock-set-back"])
def test_no_more_than_a_minutes_worth_is_ever_saved_up(seconds):
    spent = limit_rate([resize_to("2", str(n)) for n in range(3)], None, START, limited(3)).bucket
    rated = limit_rate([resize_to("2", str(n)) for n in range(9)], spent, START + seconds, limited(3))
    assert len(rated.go) == (3 if seconds > 0 else 0)


@given(st.lists(st.floats(0, 120), min_size=1, max_size=12), st.floats(0.5, 10))
def test_no_stretch_of_time_sees_more_than_the_rate_and_one_burst(waits, rate):
    proposals, bucket, now, sent = [resize_to("2", str(n)) for n in range(15)], None, START, 0
    for wait in waits:
        now += wait
        rated = limit_rate(proposals, bucket, now, limited(rate))
        bucket, sent = rated.bucket, sent + len(rated.go)
    assert sent <= max(rate, 1) + (now - START) * rate / 60 + 1e-6
