"""Recordings that do not end together: each workload is judged at its own end, as if it were alone."""

import msgspec
import numpy as np

from support.ensembles import CPU_RULES, an_ensemble_profile
from vpa_ippr.api.series import ContainerRef, OomKill, Resource, Usage, UsageSeries, WorkloadRef
from vpa_ippr.forecast.catalogue import load_catalogue
from vpa_ippr.forecast.ensemble import EnsembleDecider
from vpa_ippr.forecast.rules import Expert
from vpa_ippr.recommend.pipeline import recommend
from vpa_ippr.recommend.recordings import recommend_each_at_its_end

CLASSIC = load_catalogue()["vpa-classic"]
START, DAY, MIB = 1_767_225_600.0, 86_400.0, 1 << 20


def ref(name):
    return ContainerRef("shop", f"{name}-0", "app")


def usage(name, *, start=START, minutes=60, cores=0.1, memory=300 * MIB, ooms=()):
    times = start + 60.0 * np.arange(minutes)
    series = tuple(
        UsageSeries(ref(name), kind, times, np.full(minutes, float(value))) for kind, value in zip(Resource, (cores, memory), strict=True)
    )
    kills = tuple(OomKill(ref(name), at, request) for at, request in ooms)
    return Usage(series, kills, {("shop", f"{name}-0"): WorkloadRef("shop", "Deployment", name)})


def together(*parts):
    owners = {key: workload for part in parts for key, workload in part.owners.items()}
    return Usage(tuple(s for part in parts for s in part.series), tuple(o for part in parts for o in part.ooms), owners)


def test_each_workload_gets_what_it_would_get_alone():
    parts = [usage("early"), usage("late", start=START + 300 * DAY, cores=2), usage("same-end", cores=1)]
    found = recommend_each_at_its_end(together(*parts), CLASSIC, 8 * DAY)
    alone = [recommend(part, CLASSIC, float(part.series[0].timestamps[-1]))[0] for part in parts]
    assert found == alone
    assert [one.workload.name for one in found] == ["early", "late", "same-end"]


def rhythm(name, *, start, hours, seed):
    """A daily rhythm by the clock, in samples every five minutes."""
    random = np.random.default_rng(seed)
    times = start + 300.0 * np.arange(12 * hours)
    shape = (1 + 0.4 * np.sin(2 * np.pi * times / DAY)) * random.gamma(25, 0.04, len(times))
    series = tuple(UsageSeries(ref(name), kind, times, shape * unit) for kind, unit in zip(Resource, (0.3, 400 * MIB), strict=True))
    return Usage(series, (), {("shop", f"{name}-0"): WorkloadRef("shop", "Deployment", name)})


def test_an_ensemble_decides_recordings_together_as_it_does_alone(monkeypatch):
    by_the_clock = msgspec.structs.replace(CPU_RULES, experts=(Expert("holt-winters", 0.9, 1.1), *CPU_RULES.experts))
    profile = an_ensemble_profile(history_days=4, replay_hours=5, young_hours=12, cpu=by_the_clock)
    ends = {"old": 0.0, "late": 200 * DAY + 7 * 3600, "odd": 30 * DAY + 5 * 3600 + 1500, "next": 200 * DAY + 9 * 3600, "short": 77 * DAY}
    parts = [
        rhythm(name, start=START + end - 3600 * hours, hours=hours, seed=seed)
        for seed, (name, end) in enumerate(ends.items())
        for hours in ([3] if name == "short" else [97])
    ]
    alone = [recommend(part, profile, float(part.series[0].timestamps[-1]))[0] for part in parts]
    steps, step = [], EnsembleDecider.step
    monkeypatch.setattr(EnsembleDecider, "step", lambda decider, *rest: steps.append(len(rest[0])) or step(decider, *rest))
    found = recommend_each_at_its_end(together(*parts), profile, 8 * DAY)
    assert found == sorted(alone, key=lambda one: one.workload)
    assert max(steps) > 1, "those that are less than a day apart meet"


def test_the_history_is_closed_at_both_ends():
    (found,) = recommend_each_at_its_end(usage("web", minutes=61), CLASSIC, 1800)
    assert (found.explanation.samples, found.explanation.first_sample) == (31, START + 1800)


def test_a_kill_after_the_last_sample_is_the_end():
    killed = usage("web", ooms=[(START + 7200, 1 << 30)])
    (found,) = recommend_each_at_its_end(killed, CLASSIC, 8 * DAY)
    assert found.explanation.oom_kills == 1
    assert found.target.memory_bytes > (1 << 30)


def test_kills_before_the_history_do_not_count():
    killed = usage("web", ooms=[(START - DAY, 1 << 30), (START, 1 << 30)])
    (found,) = recommend_each_at_its_end(killed, CLASSIC, 59 * 60)
    assert found.explanation.oom_kills == 1


def test_pods_of_one_workload_share_an_end():
    first, second = usage("web"), usage("web", start=START + 3600)
    renamed = ContainerRef("shop", "web-1", "app")
    moved = tuple(UsageSeries(renamed, s.resource, s.timestamps, s.values) for s in second.series)
    owners = first.owners | {("shop", "web-1"): WorkloadRef("shop", "Deployment", "web")}
    (found,) = recommend_each_at_its_end(Usage(first.series + moved, (), owners), CLASSIC, 8 * DAY)
    assert (found.explanation.samples, found.explanation.last_sample) == (120, START + 3600 + 59 * 60)


def test_nothing_recorded_is_nothing_recommended():
    empty = UsageSeries(ref("web"), Resource.CPU, np.array([]), np.array([]))
    assert recommend_each_at_its_end(Usage((empty,)), CLASSIC, DAY) == []
