"""The upstream recommender over many series at once gives the numbers of ``recommend.pipeline``, one series at a time."""

import numpy as np
import pytest
from backtest_support import DAY, GIB, START, Scripted, made_up

from support import traces
from vpa_ippr.api.series import ContainerRef, OomKill, Resource, Usage, UsageSeries
from vpa_ippr.backtest.actuator import ActuatorRules, Conditions
from vpa_ippr.backtest.grid import fleet_of
from vpa_ippr.backtest.histograms import FleetHistograms
from vpa_ippr.backtest.policy import HistoryView, Targets
from vpa_ippr.backtest.replay import Contender, replay
from vpa_ippr.backtest.vpa import VpaPolicy
from vpa_ippr.forecast.catalogue import load_catalogue
from vpa_ippr.recommend.pipeline import recommend
from vpa_ippr.usage.histogram import DecayingHistogram, exponential_buckets

CLASSIC = load_catalogue()["vpa-classic"]


class Listening:
    """Passes another policy's targets on as the replay's, and asks ``heard`` at chosen slots."""

    name = "listening"

    def __init__(self, leader, heard, asked):
        self._leader, self._heard, self._asked, self.said = leader, heard, asked, {}

    def decide(self, view: HistoryView) -> Targets:
        if view.now in self._asked:
            self.said[view.now] = (view, self._heard.decide(view))
        return self._leader.decide(view)


def expected(view, row, resource):
    """What the pipeline recommends for one series of a view, in cores or bytes."""
    known = np.isfinite(view.usage[row])
    times, used, held = (array[known] for array in (view.starts[row] + 300.0 * np.arange(view.now), view.usage[row], view.allocation[row]))
    ref = ContainerRef("ns", "pod", "app")
    kills = ()
    if resource is Resource.MEMORY:
        kills = tuple(OomKill(ref, at, int(limit)) for at, use, limit in zip(times, used, held, strict=True) if use > limit)
    found = recommend(Usage((UsageSeries(ref, resource, times, used),), kills), CLASSIC, times[-1])
    scale = 1000 if resource is Resource.CPU else 1
    return len(kills), [amounts.get(resource) / scale for amounts in (found[0].target, found[0].lower_bound, found[0].upper_bound)]


def agree(fleet, leader, instants):
    """Compare every series at those instants; returns how many kills the pipeline was told of."""
    part = CLASSIC.resource(fleet.resource)
    minimum = part.pod_minimum / (1000 if fleet.resource is Resource.CPU else 1)
    listening = Listening(leader, VpaPolicy("vpa", CLASSIC, fleet.resource, len(fleet)), set(instants))
    replay(fleet, Contender(listening, ActuatorRules(interval_seconds=300.0, bump=None)), Conditions())
    kills = 0
    for view, targets in listening.said.values():
        floored = targets.at_least(minimum)
        for row in range(len(fleet)):
            if np.isfinite(view.usage[row]).any():
                count, numbers = expected(view, row, fleet.resource)
                kills += count
                assert [floored.target[row], floored.lower[row], floored.upper[row]] == numbers
    return kills


@pytest.mark.parametrize("seed", [1, 2])
def test_cpu_equals_the_pipeline_at_random_instants(seed):
    fleet = made_up(series=6, days=5, seed=seed)
    agree(fleet, Scripted([1.0]), [1, 2, *np.random.default_rng(seed).integers(3, fleet.slots, 12).tolist()])


@pytest.mark.parametrize("limit", [GIB / 2, 2 * GIB])
def test_memory_equals_the_pipeline_at_random_instants_with_oom_kills(limit):
    fleet = made_up(Resource.MEMORY, series=4, days=3, seed=int(limit) % 97)
    assert agree(fleet, Scripted([limit]), [1, 2, *np.random.default_rng(7).integers(3, fleet.slots, 5).tolist()]) > 0


def test_recorded_series_equal_the_pipeline():
    traces.require_traces()
    recorded = traces.recorded({"gcd2011": 5}, end=int(START), days=6, least_days=4)
    for resource in Resource:
        parts = [one.cpu if resource is Resource.CPU else one.memory for one in recorded]
        usage = Usage(
            tuple(
                UsageSeries(ContainerRef("ns", one.name, "app"), resource, part.times.astype(float), part.values)
                for one, part in zip(recorded, parts, strict=True)
            )
        )
        agree(fleet_of(usage, resource), Scripted([np.nan]), [300, 777, 1200])


def test_before_the_first_sample_nothing_is_said():
    fleet = made_up(days=0.1)
    view = HistoryView(fleet.resource, 300.0, fleet.starts, fleet.usage[:, :0], fleet.usage[:, :0], np.full(len(fleet), np.nan))
    assert np.isnan(VpaPolicy("vpa", CLASSIC, fleet.resource, len(fleet)).decide(view).target).all()


def test_a_slot_counts_as_so_many_readings():
    fleet = made_up(series=3, days=2)
    view = HistoryView(fleet.resource, 300.0, fleet.starts, fleet.usage, fleet.usage, np.full(3, 1.0))
    once, five = (VpaPolicy("vpa", CLASSIC, fleet.resource, 3, samples).decide(view) for samples in (1.0, 5.0))
    np.testing.assert_array_equal(once.target, five.target)
    assert (once.upper > five.upper).all()
    assert (once.lower <= five.lower).all()


def test_histograms_are_rescaled_as_the_single_one_is():
    options = exponential_buckets(1000.0, 0.01, 1.05, 1e-4)
    times = START + np.array([0, 0.3, 60, 99.7, 101, 250, 250.1]) * DAY
    values = np.array([0.5, 0.6, 3.0, 0.2, 0.1, 7.0, 0.3])
    many, single = FleetHistograms.empty(3, options, DAY), DecayingHistogram.empty(options, DAY)
    rows = np.array([1])
    for time, value in zip(times, values, strict=True):
        single = single.add(time, value, 0.1)
        many.add(rows, np.array([time]), np.array([value]), 0.1)
        np.testing.assert_array_equal(many.weights[1], single.weights)
        fractions = (0.5, 0.9, 0.95)
        assert many.percentiles(fractions)[1].tolist() == [single.percentile(fraction) for fraction in fractions]
    assert not many.percentiles((0.9,))[[0, 2]].any()
