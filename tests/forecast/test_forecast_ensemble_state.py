"""The ensemble's memory moved about: stored and read again, split and joined, interrupted."""

import base64
import json
from dataclasses import fields, is_dataclass

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.ensembles import CPU_RULES, MEMORY_RULES, forecasters_of
from support.usage_grids import daily
from vpa_ippr.api.errors import ValidationError
from vpa_ippr.api.series import Resource
from vpa_ippr.forecast.ensemble import EnsembleDecider, look
from vpa_ippr.forecast.ensemble_state import dump_state, fingerprint, interrupted, joined, load_state, rounded, take
from vpa_ippr.forecast.forecasters import ProfileModel

GRID = daily(4, 8, seed=3)
CPU, MEMORY = EnsembleDecider(CPU_RULES, 24), EnsembleDecider(MEMORY_RULES, 24)
MARK = fingerprint(CPU_RULES, None)


def followed(decider, resource, grid, hours, state=None, first=5 * 24):
    """The state after so many hours, and the last decision."""
    state = decider.start(len(grid)) if state is None else state
    decision = None
    for hour in range(first, first + hours):
        known = grid.until(12 * hour)
        state, decision = decider.step(state, known, look(known, forecasters_of(resource)))
        state = rounded(state)
    return state, decision


@pytest.fixture(scope="module")
def settled():
    return {
        Resource.CPU: followed(CPU, Resource.CPU, GRID, 30)[0],
        Resource.MEMORY: followed(MEMORY, Resource.MEMORY, GRID, 30)[0],
    }


def leaves(value, path=""):
    """Every array and number of a state, with where it stands."""
    if is_dataclass(value):
        for entry in fields(value):
            yield from leaves(getattr(value, entry.name), f"{path}.{entry.name}")
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from leaves(one, f"{path}[{key}]")
    elif isinstance(value, tuple):
        for index, one in enumerate(value):
            yield from leaves(one, f"{path}[{index}]")
    else:
        yield path, value


def assert_same(left, right):
    ours, theirs = dict(leaves(left)), dict(leaves(right))
    assert ours.keys() == theirs.keys()
    for path, value in ours.items():
        np.testing.assert_array_equal(value, theirs[path], err_msg=path)


@pytest.mark.parametrize(("resource", "decider"), [(Resource.CPU, CPU), (Resource.MEMORY, MEMORY)], ids=["cpu", "memory"])
def test_a_stored_state_is_read_bit_for_bit(settled, resource, decider):
    state = settled[resource]
    for index in range(len(state)):
        data = dump_state(state, index, MARK)
        assert len(data) < 3000
        assert_same(load_state(data, decider, MARK), take(state, [index]))


@pytest.mark.parametrize("hours", [0, 1, 5], ids=["before the first hour", "after one", "while a day's issues are gathering"])
def test_a_young_state_can_be_stored(hours):
    state, _ = followed(CPU, Resource.CPU, GRID, hours)
    assert_same(load_state(dump_state(state, 2, MARK), CPU, MARK), take(state, [2]))


@settings(max_examples=5)
@given(st.integers(1, 29), st.permutations(range(4)))
def test_going_on_from_storage_gives_the_same_numbers(hour, order):
    before, _ = followed(CPU, Resource.CPU, GRID, hour)
    stored = joined([load_state(dump_state(before, index, MARK), CPU, MARK) for index in order])
    again, found = followed(CPU, Resource.CPU, take_rows(GRID, order), 30 - hour, stored, first=120 + hour)
    whole, expected = followed(CPU, Resource.CPU, GRID, 30)
    assert_same(again, take(whole, order))
    np.testing.assert_array_equal(found.target, expected.target[list(order)])


def take_rows(grid, order):
    return type(grid)(grid.values[list(order)], grid.end)


def test_a_newcomer_begins_with_what_the_others_learned(settled):
    state = take(settled[Resource.CPU], [1, -1])
    (group, calibration), *_ = state.calibrations.items()
    pooled = np.median(settled[Resource.CPU].calibrations[group].offset, axis=0)
    np.testing.assert_array_equal(calibration.offset[1], pooled)
    assert calibration.observations[1] == 0
    assert np.isnan(state.named[1]).all()
    assert all(np.isnan(issue.raw[1]).all() for waiting in state.pending.values() for issue in waiting)


def test_states_of_different_age_are_joined(settled):
    young = followed(CPU, Resource.CPU, take_rows(GRID, [0]), 5)[0]
    both = joined([young, settled[Resource.CPU]])
    for group, waiting in both.pending.items():
        assert len(waiting) == len(settled[Resource.CPU].pending[group])
        assert np.isnan(waiting[0].raw[0]).all() == (len(waiting) > len(young.pending[group]))
        np.testing.assert_array_equal(waiting[-1].raw[0], young.pending[group][-1].raw[0])
    assert len(both) == 5


def test_after_an_interruption_nothing_waits_and_the_offsets_stay(settled):
    state = interrupted(settled[Resource.CPU])
    assert all(waiting == () for waiting in state.pending.values())
    assert np.isnan(state.named).all()
    group = next(iter(state.calibrations))
    assert state.calibrations[group] is settled[Resource.CPU].calibrations[group]


def changed(data, **values):
    return json.dumps(json.loads(data) | values).encode()


def numbers(*values):
    return base64.b64encode(np.array(values, dtype="<f8").tobytes()).decode()


def test_the_state_of_another_profile_is_refused(settled):
    data = dump_state(settled[Resource.CPU], 0, MARK)
    with pytest.raises(ValidationError) as found:
        load_state(data, CPU, fingerprint(MEMORY_RULES, None))
    assert found.value.reason == "ProfileChanged"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data[:-20],
        lambda _: b"[]",
        lambda data: changed(data, schema="vpa-ippr/other/v1"),
        lambda data: changed(data, learned="@@@"),
        lambda data: changed(data, learned="AAAA"),
        lambda data: changed(data, learned=""),
        lambda data: changed(data, learned=json.loads(data)["learned"][:-4]),
        lambda data: changed(data, learned=numbers(*[np.nan] * (len(base64.b64decode(json.loads(data)["learned"])) // 8))),
        lambda data: changed(data, learned=numbers(*[9.0] * (len(base64.b64decode(json.loads(data)["learned"])) // 8))),
        lambda data: changed(data, said=json.loads(data)["said"] + numbers(1.0)),
        lambda data: changed(data, waiting=[1]),
        lambda data: changed(data, waiting=[99] * len(json.loads(data)["waiting"])),
        lambda data: changed(data, waiting=[-1] * len(json.loads(data)["waiting"])),
    ],
    ids=[
        "cut off", "another kind", "another schema", "no base64", "no whole number", "empty", "too short", "not finite", "no such expert",
        "too long", "a group missing", "too many waiting", "less than none waiting",
    ],
)  # fmt: skip
def test_damaged_states_are_refused(settled, spoil):
    with pytest.raises(ValidationError) as found:
        load_state(spoil(dump_state(settled[Resource.CPU], 0, MARK)), CPU, MARK)
    assert found.value.reason == "ModelCorrupt"


def test_the_fingerprint_tells_rules_and_model_apart():
    one, other = ProfileModel(None, "a" * 64), ProfileModel(None, "b" * 64)
    marks = {fingerprint(CPU_RULES, None), fingerprint(MEMORY_RULES, None), fingerprint(MEMORY_RULES, one)}
    assert len(marks) == 2, "no expert of these asks the model"
    boosted = with_boosting(CPU_RULES)
    assert fingerprint(boosted, one) != fingerprint(boosted, other)


def with_boosting(rules):
    experts = (msgspec.structs.replace(rules.experts[0], forecaster="gradient-boosting"), *rules.experts[1:])
    return msgspec.structs.replace(rules, experts=experts)
