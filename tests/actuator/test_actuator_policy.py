"""The policy object and what a MemoryShrink may override of it."""

import math

import pytest

from vpa_ippr.actuator.policy import Policy
from vpa_ippr.actuator.policy_overrides import merge
from vpa_ippr.api.errors import ValidationError
from vpa_ippr.api.shrink import ShrinkPolicy


def test_overrides_replace_only_what_they_name():
    base = Policy()
    overrides = ShrinkPolicy(
        step_percent=2.0, settle_seconds=7, stability_seconds=90, max_pressure_percent=1.5, max_refault_percent=20, floor_bytes=5
    )
    merged = merge(base, overrides)
    assert (merged.step_max_ratio, merged.settle_seconds, merged.stability_seconds) == (0.02, 7, 90)
    assert (merged.soft_memory_some_percent, merged.soft_refault_percent, merged.floor_bytes) == (1.5, 20, 5)
    assert merged.hard_memory_some_percent == base.hard_memory_some_percent
    assert merge(base, ShrinkPolicy()) == base


def test_small_step_and_settle_pull_their_companions_along():
    merged = merge(Policy(), ShrinkPolicy(step_percent=0.2, settle_seconds=1))
    assert merged.step_min_ratio <= merged.step_max_ratio == 0.002
    assert merged.probe_ratio == 0.002
    assert merged.tick_seconds <= merged.settle_seconds


@pytest.mark.parametrize(
    ("overrides", "field"),
    [
        (ShrinkPolicy(step_percent=0.0), "stepPercent"),
        (ShrinkPolicy(step_percent=11.0), "stepPercent"),
        (ShrinkPolicy(step_percent=math.nan), "stepPercent"),
        (ShrinkPolicy(settle_seconds=0.5), "settleSeconds"),
        (ShrinkPolicy(stability_seconds=-1.0), "stabilitySeconds"),
        (ShrinkPolicy(stability_seconds=math.inf), "stabilitySeconds"),
        (ShrinkPolicy(max_pressure_percent=10.5), "maxPressurePercent"),
        (ShrinkPolicy(max_refault_percent=0.0), "maxRefaultPercent"),
        (ShrinkPolicy(floor_bytes=-1), "floorBytes"),
    ],
    ids=str,
)
def test_override_out_of_range_names_the_field(overrides, field):
    with pytest.raises(ValidationError, match=rf"spec\.policy\.{field}"):
        merge(Policy(), overrides)


def test_all_broken_overrides_are_told_at_once():
    with pytest.raises(ValidationError) as caught:
        merge(Policy(), ShrinkPolicy(step_percent=50.0, floor_bytes=-1))
    assert len(caught.value.fields) == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"page_bytes": 1000},
        {"node_cpus": 0},
        {"margin_ratio": 0.6},
        {"margin_min_bytes": 2 << 30},
        {"observe_seconds": 400.0},
        {"tick_seconds": 6.0},
        {"poll_seconds": 0.0},
        {"probation_seconds": -1.0},
        {"deadline_step_share": 0.0},
        {"guard_slack_ratio": 0.001},
        {"max_stepping": 11},
        {"reserve_mapped_ratio": 1.1},
        {"step_min_bytes": 0},
        {"probation_tick_seconds": 0.0},
    ],
    ids=str,
)
def test_policy_that_cannot_work_is_refused(changes):
    with pytest.raises(ValidationError, match="actuator policy"):
        Policy(**changes)
