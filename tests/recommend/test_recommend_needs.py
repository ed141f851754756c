"""From decisions to amounts: what lifts a target, how bounds follow, what is said of it; and kills and samples on their way in."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.ensembles import an_ensemble_profile
from support.usage_grids import END, daily
from vpa_ippr.api.errors import UsageError, ValidationError
from vpa_ippr.api.resources import Amounts
from vpa_ippr.api.series import ContainerRef, OomKill, Resource, Usage, UsageSeries, WorkloadRef
from vpa_ippr.forecast.catalogue import load_catalogue
from vpa_ippr.recommend.cohorts import Decision
from vpa_ippr.recommend.estimate import Level
from vpa_ippr.recommend.forecasts import ANNOTATION_FORECAST, Guard, StoredContainer, read_stored, write_stored
from vpa_ippr.recommend.needs import amounts_of, settle
from vpa_ippr.recommend.pipeline import recommend
from vpa_ippr.recommend.recordings import recommend_each_at_its_end
from vpa_ippr.recommend.result import Raise
from vpa_ippr.recommend.series import ContainerSeries, FreshSeries, feed_series, feed_together, history_seconds_of, keeping_of
from vpa_ippr.usage.oom import OomMemory
from vpa_ippr.usage.revisions import Segment

CLASSIC = load_catalogue()["vpa-classic"]
PROFILE = an_ensemble_profile(history_days=3, replay_hours=4, young_hours=24)
PART = PROFILE.memory
REF = ContainerRef("shop", "web-1", "app")
WEB = WorkloadRef("shop", "Deployment", "web")
GIB = 2**30


@pytest.mark.parametrize(
    ("base", "raises", "minimum", "level", "lifted"),
    [
        (Level(80, 100, 120), [], 0, Level(80, 100, 120), []),
        (Level(80, 100, 120), [Raise("prior", 150)], 0, Level(80, 150, 180), ["prior"]),
        (Level(80, 100, 120), [Raise("prior", 90)], 0, Level(80, 100, 120), []),
        (Level(80, 100, 120), [Raise("guard", 110)], 0, Level(110, 110, 132), ["guard"]),
        (Level(80, 100, 120), [Raise("oom-floor", 90)], 0, Level(90, 100, 120), []),
        (Level(80, 100, 120), [Raise("prior", 300), Raise("oom-floor", 200)], 0, Level(200, 300, 360), ["prior", "oom-floor"]),
        (Level(80, 100, 120), [], 110, Level(110, 110, 120), []),
        (Level(0, 0, 0), [Raise("shrink-floor", 5)], 0, Level(5, 5, 5), ["shrink-floor"]),
    ],
    ids=["nothing", "a prior", "a low prior", "a floor above", "a floor below", "both", "the minimum", "a floor alone"],
)
def test_what_lifts_a_target(base, raises, minimum, level, lifted):
    found, by = settle(base, raises, PART, minimum)
    assert found == level
    assert [one.by for one in by] == lifted


@pytest.mark.parametrize(
    ("ceiling", "level"),
    [(200, Level(110, 110, 132)), (105, Level(105, 105, 126)), (90, Level(90, 90, 120))],
    ids=["far above", "below a floor", "below the decision"],
)
def test_nothing_lifts_a_target_above_its_ceiling(ceiling, level):
    assert settle(Level(80, 100, 120), [Raise("guard", 110)], PART, 0, ceiling)[0] == level


RAISES = st.lists(st.builds(Raise, st.sampled_from(["prior", "guard"]), st.integers(0, 10**12)))


@given(st.tuples(*[st.integers(0, 10**12)] * 3).map(sorted), RAISES)
def test_bounds_stay_in_order(amounts, raises):
    level, _ = settle(Level(*amounts), raises, PART, 7)
    assert 7 <= level.lower_bound <= level.target <= level.upper_bound
    assert all(level.target >= one.amount for one in raises)


def test_a_decision_in_whole_amounts():
    decision = Decision(1, 0.2519, 0.2, 0.3, "hour-of-day", 0.9, 30.0)
    assert amounts_of(decision, Resource.CPU) == Level(200, 251, 300)


def recorded(hours=100, pod="web-1", start=0, ooms=(), seed=1, resources=tuple(Resource)):
    """A recording that ends at ``END`` at the latest; ``start`` hours after its beginning."""
    grid = daily(2, hours / 24, seed=seed)
    times = END - 300.0 * np.arange(grid.steps, 0, -1) + 10
    ref = ContainerRef("shop", pod, "app")
    rows = dict(zip(Resource, (grid.values[0], grid.values[1] / grid.values[1].max() * GIB), strict=True))
    series = tuple(UsageSeries(ref, resource, times[12 * start :], rows[resource][12 * start :]) for resource in resources)
    return Usage(series, tuple(ooms), {("shop", pod): WEB})


def only(found):
    (recommendation,) = found
    return recommendation


def test_a_recording_is_judged_by_the_ensemble():
    found = only(recommend(recorded(), PROFILE, END))
    assert found.explanation.forecaster == "ensemble"
    assert not found.is_thin
    cpu, memory = found.explanation.drivers
    assert cpu.choice.by in {expert.forecaster for expert in PROFILE.ensemble.cpu.experts}
    assert cpu.choice.known_hours == 72
    assert cpu.value == found.target.cpu_millicores
    assert memory.choice.raised_by == ()
    classic = only(recommend(recorded(), CLASSIC, END))
    assert found.confidence == classic.confidence
    assert found.explanation.samples == classic.explanation.samples


def test_a_recording_of_less_than_an_hour_is_judged_by_its_histograms():
    usage, moment = recorded(hours=2, start=1), END - 900  # the whole hour is not over
    found, classic = only(recommend(usage, PROFILE, moment)), only(recommend(usage, CLASSIC, moment))
    assert found.estimate == classic.estimate
    assert found.is_thin
    assert [driver.choice.by for driver in found.explanation.drivers] == ["prior", "prior"]


def test_a_young_container_has_wide_bounds():
    young, old = only(recommend(recorded(hours=5), PROFILE, END)), only(recommend(recorded(), PROFILE, END))

    def width(found):
        return found.upper_bound.cpu_millicores / found.lower_bound.cpu_millicores

    assert young.is_thin
    assert width(young) > width(old)
    assert width(young) < 25


@pytest.mark.parametrize("resource", list(Resource))
def test_a_resource_without_samples_is_left_out(resource):
    found = only(recommend(recorded(resources=(resource,)), PROFILE, END))
    assert [driver.resource for driver in found.explanation.drivers] == [resource]
    assert [other for other in Resource if found.target.get(other) is not None] == [resource]


def test_the_pod_minimum_is_shared():
    usage = recorded()
    small = tuple(
        UsageSeries(ContainerRef("shop", "web-1", name), one.resource, one.timestamps, one.values * 1e-6)
        for name in "ab"
        for one in usage.series
    )
    found = recommend(Usage(small, owners=usage.owners), PROFILE, END)
    assert [one.target for one in found] == [Amounts(12, 131_072_000)] * 2


def test_kills_lift_memory_with_memory_data_alone():
    kill = OomKill(REF, END - 7200, GIB, 2 * GIB)
    found = only(recommend(recorded(resources=(Resource.MEMORY,), ooms=[kill]), PROFILE, END))
    assert found.target.memory_bytes == found.lower_bound.memory_bytes > 2.5 * GIB
    assert [(one.by, one.amount) for one in found.explanation.drivers[0].choice.raised_by] == [("oom-floor", found.target.memory_bytes)]


def test_a_loop_of_kills_is_stable_after_three():
    """A need of three times the limit; every kill meets the limit that the recommendation before it had asked for."""
    need, limit, kills = 3 * GIB, GIB, []
    for index in range(10):
        at = END - 36_000 + 600 * index
        if need <= limit:
            break
        kills.append(OomKill(REF, at, limit, limit))
        found = only(recommend(recorded(ooms=kills), PROFILE, at + 300))
        limit = found.target.memory_bytes
    assert len(kills) <= 3
    assert limit < 2 * need


def test_a_fuse_that_has_blown_is_told():
    kills = [OomKill(REF, END - 36_000 + 600 * index, GIB, GIB * 2**index) for index in range(8)]
    found = only(recommend(recorded(ooms=kills), PROFILE, END))
    assert "OomFuse" in [finding.reason for finding in found.explanation.findings]


def test_recordings_that_end_apart_are_judged_at_their_ends():
    late, early = recorded(), recorded(hours=60, pod="api-1", seed=3)
    shifted = tuple(UsageSeries(one.container, one.resource, one.timestamps - 50_000, one.values) for one in early.series)
    api = WorkloadRef("shop", "Deployment", "api")
    both = Usage((*late.series, *shifted), owners={("shop", "web-1"): WEB, ("shop", "api-1"): api})
    found = recommend_each_at_its_end(both, PROFILE, history_seconds_of(PROFILE, 0.0))
    assert [one.workload.name for one in found] == ["api", "web"]
    assert found[1].estimate == only(recommend(late, PROFILE, float(late.series[0].timestamps[-1]))).estimate


def test_a_model_is_needed_where_an_expert_asks_it():
    ensemble = PROFILE.ensemble
    boosted = msgspec.structs.replace(ensemble.cpu.experts[0], forecaster="gradient-boosting")
    cpu = msgspec.structs.replace(ensemble.cpu, experts=(boosted,))
    profile = msgspec.structs.replace(PROFILE, ensemble=msgspec.structs.replace(ensemble, cpu=cpu, model="x.skops"))
    with pytest.raises(UsageError, match="gradient boosting"):
        recommend(recorded(), profile, END)


def test_how_far_back_history_is_read():
    assert history_seconds_of(CLASSIC, 5.0) == 5.0
    needed = history_seconds_of(PROFILE, 5.0)
    assert 3 * 86_400 + 4 * 3600 + 120 <= needed <= 3 * 86_400 + 4 * 3600 + 1800
    assert history_seconds_of(PROFILE, 1e9) == 1e9


@given(st.lists(st.integers(0, 6000), max_size=5).map(sorted), st.lists(st.integers(1, 99), min_size=1, max_size=5, unique=True))
def test_kills_fed_in_parts_teach_the_same(moments, minutes):
    keeping = keeping_of(PROFILE)
    begin = END - 6000
    kills = tuple(OomKill(REF, begin + 60.0 * minute, GIB, GIB + minute) for minute in minutes)
    times = begin + 45.0 * np.arange(1, 130)
    memory = UsageSeries(REF, Resource.MEMORY, times, GIB * (1 + times % 7))
    usage = Usage((memory,), kills)
    whole = feed_series(ContainerSeries.empty(keeping, begin), usage, keeping, until=END)
    parts, after = ContainerSeries.empty(keeping, begin), -np.inf
    for moment in [*(begin + one for one in moments), END]:
        (parts,) = feed_together([FreshSeries(parts, usage, keeping, after=after)], until=moment)
        after = moment
    assert parts.oom == whole.oom
    again = feed_series(whole, usage, keeping, until=END)
    assert again.oom == whole.oom, "a history that is read again teaches nothing new"


STORED = StoredContainer(
    guard=Guard(5, 10), oom={"kills": 1, "last_kill_at": 5.0, "floor_bytes": 7.0}, segments=(Segment(0, "a"), Segment(9, "b"))
)


@pytest.mark.parametrize("stored", [STORED, StoredContainer()], ids=["all", "nothing"])
def test_what_is_stored_is_read_again(stored):
    annotations = write_stored(stored)
    assert read_stored(annotations, "checkpoint x") == stored
    assert '"schema":"vpa-ippr/forecast-state/v1"' in annotations[ANNOTATION_FORECAST]
    assert read_stored(annotations, "").oom_memory.kills == (1 if stored.oom else 0)


def test_without_the_annotation_nothing_is_stored():
    assert read_stored({}, "checkpoint x") is None
    assert StoredContainer().oom_memory == OomMemory()


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"schema":"other/v1"}', '{"oom":{"kills":-1}}', '{"guard":[1]}', '{"segments":[["a",0]]}', '{"cpu":{"hour":"x"}}'],
)
def test_what_is_damaged_is_refused(text):
    with pytest.raises(ValidationError, match="checkpoint x annotation") as found:
        read_stored({ANNOTATION_FORECAST: text}, "checkpoint x")
    assert found.value.reason == "ForecastStateCorrupt"
