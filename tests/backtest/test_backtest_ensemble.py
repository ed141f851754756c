"""The ensembles as policies: the history that they see on any grid, and that replays do not disturb each other."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from backtest_support import DAY, HOUR, MIB, NAN, START, fleet, made_up

from vpa_ippr.api.errors import UsageError
from vpa_ippr.api.series import Resource, WorkloadRef
from vpa_ippr.backtest.actuator import Conditions, Guard, RelativeRule
from vpa_ippr.backtest.comparison import Plan, compared
from vpa_ippr.backtest.contenders import COMMON_FLOOR, Scene, contenders, ensemble_contender
from vpa_ippr.backtest.documents import render_json
from vpa_ippr.backtest.ensemble import EnsemblePolicy, Outlooks, fits_steps
from vpa_ippr.backtest.policy import HistoryView
from vpa_ippr.backtest.replay import Contender, replay
from vpa_ippr.backtest.table import render_table
from vpa_ippr.forecast.catalogue import load_catalogue
from vpa_ippr.forecast.ensemble import EnsembleDecider, needed_forecasters
from vpa_ippr.forecast.forecasters import build_forecasters
from vpa_ippr.forecast.quantiles import Horizon
from vpa_ippr.forecast.rules import Ensemble, Expert, GuardRules, Hysteresis, Peak, ResourceEnsemble
from vpa_ippr.forecast.seasonal import TRAILING, TrailingForecaster
from vpa_ippr.forecast.selection import SelectionRules
from vpa_ippr.recommend.cohorts import Cohorts, Rows
from vpa_ippr.usage.steps import StepRow

RUNS = Expert(TRAILING, 0.95, 1.1)
BAND = Hysteresis(0.2, 0.3, 2.0)
CPU = ResourceEnsemble(
    (Expert(TRAILING, 0.8, 1.1), Expert("decaying-histogram", 0.9, 1.1), Expert("hour-of-day", 0.9, 1.0)), BAND, RUNS, SelectionRules()
)
MEMORY = ResourceEnsemble(
    (Expert(TRAILING, 0.9, 1.05, Horizon.DAY),), BAND, RUNS, peaks=(Peak(24, 1.05),), guard=GuardRules(0.9, 1.3, 0.5), min_density=0.2
)  # fmt: skip
CLASSIC = load_catalogue()["vpa-classic"]


def a_profile(name="mine", *, half_life=DAY, **ensemble):
    part = msgspec.structs.replace(CLASSIC.cpu, half_life_seconds=half_life)
    return msgspec.structs.replace(CLASSIC, name=name, forecaster="ensemble", cpu=part, ensemble=Ensemble(CPU, MEMORY, **ensemble))


class Noting:
    """Keeps the histories that it is shown."""

    name = TRAILING

    def __init__(self):
        self.seen = []

    def fit(self, grid):
        self.seen.append(grid)
        return TrailingForecaster().fit(grid)


def grids_of(made, days=14.0):
    """The histories that a policy looked at in a replay, and what it said to each slot."""
    noting, said = Noting(), {}
    policy = EnsemblePolicy("noting", EnsembleDecider(MEMORY, 0), {TRAILING: noting}, len(made), days)

    class Listening:
        name = "listening"

        def decide(self, view):
            said[view.now] = policy.decide(view)
            return said[view.now]

    replay(made, Contender(Listening(), ensemble_contender(a_profile(), Scene(made, own_floors=False)).rules), Conditions())
    return noting.seen, said


def test_it_decides_at_every_whole_hour_on_the_hours_before():
    made = made_up(series=3, days=0.5)
    grids, said = grids_of(made)
    assert list(said) == list(range(0, 144, 12))
    assert np.isnan(said[0].target).all()
    assert [grid.steps for grid in grids] == list(range(12, 144, 12))
    for grid in grids:
        np.testing.assert_array_equal(grid.values, made.usage[:, : grid.steps])
        assert grid.end == grid.steps * 300.0


def test_it_looks_back_no_further_than_its_profile_says():
    made = made_up(series=2, days=1.5)
    grids, _ = grids_of(made, days=1.0)
    assert max(grid.steps for grid in grids) == 288
    np.testing.assert_array_equal(grids[-1].values, made.usage[:, -288 - 12 : -12])


def test_a_finer_grid_gives_the_largest_of_each_five_minutes():
    made = made_up(series=3, days=0.25, step=60.0)
    grids, _ = grids_of(made)
    expected = np.fmax.reduce(made.usage.reshape(3, -1, 5), axis=2)
    np.testing.assert_array_equal(grids[-1].values, expected[:, :-12])
    assert np.isnan(expected).any()


@pytest.mark.parametrize("resource", Resource)
def test_the_same_use_on_a_finer_or_coarser_grid_is_decided_the_same(resource):
    coarse = made_up(resource, series=4, days=2, step=1800.0)
    targets = {}
    for step in (60.0, 300.0, 900.0, 1800.0):
        made = fleet(np.repeat(coarse.usage, round(1800 / step), axis=1), resource, step=step, starts=coarse.starts)
        contender = ensemble_contender(a_profile(), Scene(made, own_floors=False))
        done = replay(made, contender, Conditions())
        targets[step] = np.array([one.values for one in done.forecasts.values()]), done.allocation[:, :: round(HOUR / step)]
    for told, held in targets.values():
        np.testing.assert_array_equal(told, targets[300.0][0])
        if resource is Resource.CPU:  # near a limit or after a kill memory is raised in the next slot, however long that is
            np.testing.assert_array_equal(held, targets[300.0][1])


@pytest.mark.parametrize("resource", Resource)
def test_it_decides_as_the_recommender_does(resource):
    made = made_up(resource, series=4, days=1.5)
    made = replace(made, usage=made.usage.astype(np.float32).astype(float))  # as the recommender keeps it
    profile, keys, begin = a_profile(history_days=1), [(WorkloadRef("ns", "Deployment", f"w{row}"), "app") for row in range(4)], 490_000
    assert profile.ensemble is not None
    forecasters = build_forecasters(profile, resource, None, needed_forecasters([profile.ensemble.resource(resource)]))
    running, policy = (
        Cohorts(resource, profile.ensemble, forecasters, "mark"),
        ensemble_contender(profile, Scene(made, own_floors=False)).policy,
    )
    for hour in range(1, 36):
        used = made.usage[:, : 12 * hour]
        said = policy.decide(HistoryView(resource, 300.0, made.starts, used, used, np.full(4, NAN)))
        rows = [StepRow((begin + hour) * 12, row.astype(np.float32)) for row in used]
        running.advance({key: Rows(row, row) for key, row in zip(keys, rows, strict=True)})
        decided = [running.decision(key) for key in keys]
        assert said.forecast is not None
        for name, numbers in (("target", said.target), ("lower", said.lower), ("upper", said.upper), ("told", said.forecast.values)):
            assert [getattr(one, name) for one in decided] == numbers.tolist()


@pytest.mark.parametrize(
    ("step", "fits"),
    [(60, True), (100, True), (150, True), (300, True), (600, True), (1800, True), (3600, True), (420, False), (7200, False)],
)
def test_grids_that_can_be_made_steps_of_five_minutes(step, fits):
    assert fits_steps(float(step)) is fits


def test_another_grid_is_refused_with_what_to_do():
    with pytest.raises(UsageError, match="policy balanced counts in steps of five minutes: give a --grid that divides them"):
        contenders(["balanced"], made_up(days=1, step=420.0), own_floors=False)


@pytest.mark.parametrize("resource", Resource)
def test_a_policy_decides_the_same_alone_and_beside_others(resource):
    """The others mean something else by the same names: other buckets, another history."""
    made = made_up(resource, series=4, days=3, step=1800.0)
    profiles = [a_profile(), a_profile("short", history_days=1), a_profile("slow", half_life=7 * DAY), a_profile("again")]

    def run(scene, profile):
        return replay(made, ensemble_contender(profile, scene), Conditions(seed=1))

    together = Scene(made, own_floors=False)
    found = [run(together, profile) for profile in profiles]
    for profile, beside in zip(profiles, found, strict=True):
        alone = run(Scene(made, own_floors=False), profile)
        np.testing.assert_array_equal(alone.allocation, beside.allocation)
        np.testing.assert_array_equal(alone.resized, beside.resized)
        assert list(alone.forecasts) == list(beside.forecasts)
        for slot, told in alone.forecasts.items():
            np.testing.assert_array_equal(told.values, beside.forecasts[slot].values)
    np.testing.assert_array_equal(found[0].allocation, found[3].allocation)
    assert not np.array_equal(found[0].allocation, found[1].allocation, equal_nan=True)


def test_forecasters_are_asked_once_for_all_policies():
    made = made_up(series=2, days=0.5)
    noting, outlooks = Noting(), Outlooks()
    for _ in range(3):
        policy = EnsemblePolicy("one", EnsembleDecider(MEMORY, 0), {TRAILING: noting}, 2, 14, outlooks)
        replay(made, Contender(policy, ensemble_contender(a_profile(), Scene(made, own_floors=False)).rules), Conditions())
    assert len(noting.seen) == 11


def test_hysteresis_guard_and_floor_are_the_profiles():
    for resource, guard, own in ((Resource.CPU, None, 0.025), (Resource.MEMORY, Guard(0.9, 1.3, 0.5), 250 * MIB)):
        made = fleet([[1.0]], resource)
        rules = [ensemble_contender(a_profile(), Scene(made, own_floors=own_floors)).rules for own_floors in (False, True)]
        assert [one.floor for one in rules] == [COMMON_FLOOR[resource], pytest.approx(own)]
        for one in rules:
            assert (one.interval_seconds, one.due, one.guard) == (HOUR, RelativeRule(0.2, 0.3, 0.0, 2 * HOUR), guard)


def test_a_profile_without_an_ensemble_is_no_contender():
    with pytest.raises(UsageError, match="profile vpa-classic has no ensemble"):
        ensemble_contender(CLASSIC, Scene(fleet([[1.0]]), own_floors=False))


def test_what_is_told_is_for_the_horizon_of_the_first_expert():
    for resource, horizon in ((Resource.CPU, HOUR), (Resource.MEMORY, DAY)):
        made = made_up(resource, series=2, days=0.5)
        policy = ensemble_contender(a_profile(), Scene(made, own_floors=False)).policy
        told = policy.decide(HistoryView(resource, 300.0, made.starts, made.usage, made.usage, np.full(2, NAN))).forecast
        assert (told.quantile, told.horizon_seconds) == (0.9, horizon)
        assert np.isfinite(told.values).all()


def test_a_day_of_the_replay_is_a_day_whenever_it_began():
    """Rows are aligned at their beginnings, so no policy may use the time of day."""
    made = made_up(series=2, days=2)
    runs = [
        replay(one, ensemble_contender(a_profile(), Scene(one, own_floors=False)), Conditions())
        for one in (made, replace(made, starts=np.full(2, START + 12_345)))
    ]
    np.testing.assert_array_equal(runs[0].allocation, runs[1].allocation)


def test_its_forecasts_are_scored_and_shown():
    plan = Plan(("vpa-classic",), "vpa-classic", DAY, False, Conditions())
    comparisons = []
    for resource in Resource:
        made = made_up(resource, series=8, days=4, step=1800.0, sources=["north"] * 4 + ["south"] * 4)
        both = [*contenders(["vpa-classic"], made, own_floors=False), ensemble_contender(a_profile("ours"), Scene(made, own_floors=False))]
        comparisons.append(compared(made, plan, [replay(made, one, Conditions()) for one in both]))
    document = msgspec.json.decode(render_json(plan, comparisons, [], []))
    for resource in document["resources"]:
        classic, ours = resource["policies"]
        for metric, least, most in (("coverage", 0.6, 1.0), ("pinball", 0.01, 2.0)):
            assert classic["balanced"][metric] == {"value": None, "low": None, "high": None}
            numbers = ours["balanced"][metric]
            assert least < numbers["low"] <= numbers["value"] <= numbers["high"] <= most
            assert set(ours["by_source"]) == {"north", "south"}
            assert all(least < one[metric] <= most for one in ours["by_source"].values())
            assert all(one[metric] is not None for one in ours["series"])
    text = render_table(comparisons)
    coverage = document["resources"][0]["policies"][1]["balanced"]["coverage"]["value"]
    line = next(line for line in text.splitlines() if line.startswith("ours"))
    assert line.split()[-1] == f"{coverage:.1%}"
    assert text.count("COVERAGE") == text.count("PINBALL") == 4
    assert max(map(len, text.splitlines()[:-1])) <= 160
    assert "(" not in render_table(comparisons, width=140)
