"""Hourly decisions of many containers: each hour once, in order, whoever is decided together and whatever was missed."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.ensembles import an_ensemble_profile, forecasters_of
from support.usage_grids import daily, with_gaps
from vpa_ippr.api.series import Resource, WorkloadRef
from vpa_ippr.recommend import cohorts as module
from vpa_ippr.recommend.cohorts import Cohorts, Rows
from vpa_ippr.usage.revisions import Segment
from vpa_ippr.usage.steps import StepRow

ENSEMBLE = an_ensemble_profile(history_days=2, replay_hours=6, young_hours=12).ensemble
HOUR0 = 490_000  # hours since the epoch at which the rows begin
DATA = {
    resource: with_gaps(daily(6, 5, seed=seed)).values.astype(np.float32) for resource, seed in ((Resource.CPU, 1), (Resource.MEMORY, 2))
}
MARK = "mark"


def key(index):
    return WorkloadRef("shop", "Deployment", f"web-{index}"), "app"


def rows(hours, begins=None, segments=()):
    """Each container's rows read up to so many hours after ``HOUR0`` (a number for all, or by index), beginning at ``begins``."""
    found = {}
    for index, until in hours.items() if isinstance(hours, dict) else dict.fromkeys(range(6), hours).items():
        begin = (begins or {}).get(index, 0)
        parts = [StepRow((HOUR0 + until) * 12, DATA[resource][index, 12 * begin : 12 * until]) for resource in Resource]
        found[key(index)] = Rows(*parts, segments)
    return found


def a_fleet(resource=Resource.CPU, ensemble=ENSEMBLE, mark=MARK):
    return Cohorts(resource, ensemble, forecasters_of(resource), mark)


def outcome(fleet, keys=None):
    """The decisions and the whole state of every container."""
    return {one: (fleet.decision(one), bytes(fleet.dump(one).state)) for one in keys or rows(1)}


class Spy:
    """Notes which hours are decided for how many containers."""

    def __init__(self, monkeypatch):
        self.steps = []
        original = module.EnsembleDecider.step

        def step(decider, state, grid, fitted):
            self.steps.append((round(grid.end / 3600) - HOUR0, len(grid)))
            return original(decider, state, grid, fitted)

        monkeypatch.setattr(module.EnsembleDecider, "step", step)


def test_each_hour_is_decided_once(monkeypatch):
    spy, fleet = Spy(monkeypatch), a_fleet()
    for until in (60, 60, 61, 63, 63):
        fleet.advance(rows(until))
    assert spy.steps == [(hour, 6) for hour in [*range(55, 61), 61, 62, 63]]
    assert {fleet.decision(one).hour for one in rows(1)} == {HOUR0 + 63}


@pytest.mark.parametrize("resource", list(Resource))
def test_a_decision_uses_nothing_after_its_hour(resource):
    fleet, other = a_fleet(resource), a_fleet(resource)
    fleet.advance(rows(60))
    other.advance({one: Rows(extended(found.cpu), extended(found.memory)) for one, found in rows(60).items()})
    assert outcome(fleet) == outcome(other)


def extended(row):
    """With eleven steps more, of large values."""
    return StepRow(row.end + 11, np.concatenate((row.values, np.full(11, 1e6, dtype=np.float32))))


@settings(max_examples=5)
@given(st.permutations(range(6)), st.integers(1, 5), st.sampled_from(list(Resource)))
def test_who_is_decided_together_changes_no_number(order, cut, resource):
    together = a_fleet(resource)
    together.advance(rows(62))
    for part in (order[:cut], order[cut:]):
        alone = a_fleet(resource)
        alone.advance(rows(dict.fromkeys(part, 62)))
        for index in part:
            assert outcome(alone, [key(index)]) == outcome(together, [key(index)])


def test_large_fleets_are_decided_in_parts(monkeypatch):
    whole = a_fleet()
    whole.advance(rows(60))
    monkeypatch.setattr(module, "_ROWS_AT_ONCE", 4)
    spy, parts = Spy(monkeypatch), a_fleet()
    parts.advance(rows(60))
    assert {count for _, count in spy.steps} == {4, 2}
    assert outcome(parts) == outcome(whole)


def test_one_that_cannot_be_read_waits_and_catches_up(monkeypatch):
    fleet, steady = a_fleet(), a_fleet()
    for fleet_hours, until in (({**dict.fromkeys(range(6), 60)}, 60), ({**dict.fromkeys(range(6), 62), 2: 60}, 62)):
        fleet.advance(rows(fleet_hours))
        steady.advance(rows(until))
    assert fleet.decision(key(2)).hour == HOUR0 + 60
    assert fleet.decision(key(1)).hour == HOUR0 + 62
    spy = Spy(monkeypatch)
    fleet.advance(rows(63))
    steady.advance(rows(63))
    assert spy.steps[:3] == [(61, 1), (62, 1), (63, 6)]
    assert outcome(fleet) == outcome(steady)


@settings(max_examples=4)
@given(st.lists(st.integers(60, 75), min_size=1, max_size=4).map(sorted))
def test_stored_and_loaded_at_any_time(moments):
    moments = [*moments, 76]
    lasting, stored = a_fleet(), a_fleet()
    for until in moments:
        lasting.advance(rows(until))
        stored.advance(rows(until))
        dumps = {one: msgspec.json.decode(msgspec.json.encode(stored.dump(one)), type=module.StoredForecast) for one in rows(1)}
        stored = a_fleet()
        assert stored.load(dumps) == {}
        stored.advance(rows(until))
    assert outcome(stored) == outcome(lasting)


def test_what_is_loaded_takes_the_place_of_what_was_there():
    fleet = a_fleet()
    fleet.advance(rows(60))
    early = {one: fleet.dump(one) for one in rows(1)}
    fleet.advance(rows(61))
    late = outcome(fleet)
    fleet.load(early)
    fleet.advance(rows(61))
    assert outcome(fleet) == late


def test_what_cannot_be_loaded_is_told_and_begun_anew():
    fleet, fresh = a_fleet(), a_fleet()
    fleet.advance(rows(60))
    other = a_fleet(mark="other")
    refused = other.load({key(0): fleet.dump(key(0))})
    assert {one: error.reason for one, error in refused.items()} == {key(0): "ProfileChanged"}
    other.advance(rows(60))
    fresh.advance(rows(60))
    assert other.decision(key(0)) == fresh.decision(key(0))


def test_a_newcomer_begins_where_it_is_first_seen_with_what_the_others_know(monkeypatch):
    fleet = a_fleet()
    fleet.advance(rows(dict.fromkeys(range(5), 60)))
    spy = Spy(monkeypatch)
    fleet.advance(rows(dict.fromkeys(range(6), 61), begins={5: 60}))
    assert spy.steps == [(61, 6)], "its first hour is decided with the others' next"
    decision = fleet.decision(key(5))
    assert decision is None or decision.known_hours <= 1


def test_a_newcomer_with_a_history_is_decided_for_the_last_hours_again(monkeypatch):
    fleet = a_fleet()
    fleet.advance(rows(dict.fromkeys(range(5), 60)))
    spy = Spy(monkeypatch)
    fleet.advance(rows(dict.fromkeys(range(6), 60)))
    assert spy.steps == [(hour, 1) for hour in range(55, 61)]
    cold = a_fleet()
    cold.advance(rows({5: 60}))
    assert outcome(fleet, [key(5)]) != outcome(cold, [key(5)]), "it knows what the others have learned"


def test_a_newcomer_of_hours_that_were_missed_joins_when_the_others_get_there():
    def run(moments):
        fleet = a_fleet()
        fleet.advance(rows(dict.fromkeys(range(5), 60)))
        for until in moments:
            fleet.advance(rows(dict.fromkeys(range(6 if until > 61 else 5), until), begins={5: 61}))
        return outcome(fleet)

    assert run([64]) == run([61, 62, 63, 64])


def test_who_has_no_sample_is_not_decided(monkeypatch):
    spy, fleet = Spy(monkeypatch), a_fleet()
    nothing = StepRow((HOUR0 + 60) * 12, np.full(600, np.nan, dtype=np.float32))
    fleet.advance({key(0): Rows(nothing, nothing)})
    assert spy.steps == []
    assert fleet.decision(key(0)) is None
    assert fleet.dump(key(0)) is None


def test_who_is_no_longer_tracked_is_forgotten():
    fleet, other = a_fleet(), a_fleet()
    fleet.advance(rows(60))
    fleet.advance(rows(dict.fromkeys((0, 3), 61)))
    other.advance(rows(60))
    other.advance(rows(61))
    assert fleet.decision(key(1)) is None
    assert fleet.dump(key(1)) is None
    assert outcome(fleet, [key(0), key(3)]) == outcome(other, [key(0), key(3)])


def test_a_long_gap_is_not_replayed_in_full(monkeypatch):
    fleet = a_fleet()
    fleet.advance(rows(60))
    spy = Spy(monkeypatch)
    fleet.advance(rows(90))
    assert spy.steps == [(hour, 6) for hour in range(85, 91)]
    cold = a_fleet()
    cold.advance(rows(90))
    assert outcome(fleet) != outcome(cold), "the calibration is kept"


def test_without_replay_the_present_hour_is_decided_all_the_same(monkeypatch):
    spy = Spy(monkeypatch)
    fleet = a_fleet(ensemble=msgspec.structs.replace(ENSEMBLE, replay_hours=0))
    fleet.advance(rows(60))
    fleet.advance(rows(61))
    assert spy.steps == [(60, 6), (61, 6)]


def test_history_is_scaled_to_the_present_revision():
    plain, rolled = a_fleet(), a_fleet()
    plain.advance(rows(60))
    segments = [Segment(0, "a"), Segment((HOUR0 + 58) * 12, "b")]
    rolled.advance({one: Rows(lifted(found.cpu), found.memory, segments) for one, found in rows(60).items()})
    seen = [one for one, found in rows(60).items() if np.isfinite(found.cpu.values[-24:]).any()]
    assert len(seen) >= 4
    assert min(rolled.decision(one).target / plain.decision(one).target for one in seen) > 2.0


def lifted(row):
    """With three times the use in the last two hours."""
    values = row.values.copy()
    values[-24:] *= 3
    return StepRow(row.end, values)


def test_a_forecaster_that_fails_costs_no_state(monkeypatch):
    fleet, steady = a_fleet(), a_fleet()
    fleet.advance(rows(60))
    steady.advance(rows(60))
    with monkeypatch.context() as broken:
        broken.setattr(module, "look", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            fleet.advance(rows(61))
    fleet.advance(rows(61))
    steady.advance(rows(61))
    assert outcome(fleet) == outcome(steady)
