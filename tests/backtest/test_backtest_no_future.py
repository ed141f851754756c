"""No policy sees what is still to come: changing data from a moment on changes nothing that was decided by then."""

from dataclasses import replace

import numpy as np
import pytest
from backtest_support import PLAIN_POLICIES, made_up
from hypothesis import given, settings
from hypothesis import strategies as st

from vpa_ippr.api.series import Resource
from vpa_ippr.backtest.actuator import ActuatorRules, Conditions
from vpa_ippr.backtest.contenders import ENSEMBLES, POLICIES, Scene
from vpa_ippr.backtest.policy import HistoryView, Targets
from vpa_ippr.backtest.replay import Contender, replay

STEP = 1800.0


class Noting:
    """Notes what a policy says, by the slot."""

    def __init__(self, policy):
        self._policy, self.name, self.said = policy, policy.name, {}

    def decide(self, view: HistoryView) -> Targets:
        targets = self._policy.decide(view)
        told = targets.target if targets.forecast is None else targets.forecast.values
        self.said[view.now] = np.array([targets.target, targets.lower, targets.upper, told])
        return targets


def runs(scene, names, conditions):
    for name in names:
        contender = POLICIES[name](scene)
        noting = Noting(contender.policy)
        yield noting.said, replay(scene.fleet, Contender(noting, contender.rules), conditions)


def check(fleet, changed, names, conditions, moment, forecasters=None):
    """What was said and done until that moment is the same for both; for each policy whether it said other things later."""
    differ = []
    scenes = [Scene(one, own_floors=False, forecasters=forecasters or {}) for one in (fleet, replace(fleet, usage=changed))]
    for (said, replayed), (other_said, other_replayed) in zip(*(runs(scene, names, conditions) for scene in scenes), strict=True):
        for slot in (slot for slot in said if slot <= moment):
            np.testing.assert_array_equal(said[slot], other_said[slot])
        np.testing.assert_array_equal(replayed.allocation[:, : moment + 1], other_replayed.allocation[:, : moment + 1])
        differ.append(any(not np.array_equal(said[slot], other_said[slot], equal_nan=True) for slot in said))
    return differ


# Slot 144 begins the only day at whose start a policy that decides daily has the 100 points it may need.
@pytest.mark.parametrize("resource", Resource)
@pytest.mark.parametrize("name", PLAIN_POLICIES)
@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 99), moment=st.integers(0, 191) | st.just(144), factor=st.sampled_from([0.0, 0.01, 7.0, 1e4, np.nan]))
def test_changing_the_future_changes_no_decision(resource, name, seed, moment, factor):
    # What is set now is given, not found in the data.
    fleet = replace(made_up(resource, series=3, days=4, step=STEP, seed=seed), current=np.full(3, 1.0 if resource is Resource.CPU else 2e9))
    changed = fleet.usage.copy()
    changed[:, moment:] *= factor
    check(fleet, changed, [name], Conditions(refused=0.2, deferred=0.2, seed=seed), moment)


@pytest.mark.parametrize(("moment", "factor"), [(53, 7.0), (56, np.nan)], ids=["more from half past two", "nothing from four o'clock"])
@pytest.mark.parametrize("resource", Resource)
def test_no_ensemble_sees_the_future_either(stand_ins, resource, moment, factor):
    """On the second day, when outcomes of a whole day are being learned, too."""
    fleet = made_up(resource, series=3, days=1.25, step=STEP)
    changed = fleet.usage.copy()
    changed[:, moment:] *= factor
    assert all(check(fleet, changed, ENSEMBLES, Conditions(), moment, stand_ins))


class Prying:
    """Looks for more than it is shown."""

    name = "prying"

    def __init__(self):
        self.found = []

    def decide(self, view: HistoryView) -> Targets:
        for array in (view.usage, view.allocation):
            assert not array.flags.writeable
            whole = array
            while whole.base is not None:
                whole = whole.base
            self.found.append(np.isfinite(whole[:, view.now :]).any())
        return Targets.only(np.ones(len(view.starts)))


def test_the_future_is_not_behind_the_view_either():
    prying = Prying()
    replay(made_up(days=1, step=STEP), Contender(prying, ActuatorRules(interval_seconds=STEP)), Conditions())
    assert prying.found
    assert not any(prying.found)


def test_a_view_is_what_came_before():
    fleet = made_up(days=1, step=STEP)
    seen = []

    class Looking:
        name = "looking"

        def decide(self, view):
            seen.append((view.now, view.moments - fleet.starts, view.usage.copy(), view.recent(2 * STEP).shape[1]))
            return Targets.only(np.ones(len(view.starts)))

    replay(fleet, Contender(Looking(), ActuatorRules(interval_seconds=4 * STEP)), Conditions())
    assert [now for now, *_ in seen] == list(range(0, 48, 4))
    for now, since, usage, recent in seen:
        assert (since == now * STEP).all()
        assert recent == min(2, now)
        np.testing.assert_array_equal(usage, fleet.usage[:, :now])
