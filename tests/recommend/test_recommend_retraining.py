"""Retraining on own history: when a challenger is adopted, and that a restart after it gives the same numbers."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from recommend_support import CATALOGUE, Clock, Cluster, Source, T, a_vpa, at, usage_of

from support.ensembles import CPU_RULES, an_ensemble_profile
from support.usage_grids import SMALL_TRAINING, daily
from vpa_ippr.api.series import Resource, WorkloadRef
from vpa_ippr.api.vpa import RecommenderSelector
from vpa_ippr.forecast.forecasters import profile_model
from vpa_ippr.forecast.grid import UsageGrid
from vpa_ippr.forecast.rules import Expert
from vpa_ippr.forecast.training import train
from vpa_ippr.recommend import retraining as module
from vpa_ippr.recommend.cycle import RecommenderSettings
from vpa_ippr.recommend.forecasts import ANNOTATION_FORECAST
from vpa_ippr.recommend.retraining import RetrainingRules, retrain
from vpa_ippr.recommend.service import RecommenderService
from vpa_ippr.usage.steps import ContainerSteps, StepRow, StepRules

END = 490_000 * 12
RULES = RetrainingRules(min_series=16, min_days=7, max_series=40, moments=200, training=replace(SMALL_TRAINING, rows=1_000, iterations=6))
GOOD, BAD = daily(24, 10, seed=3), UsageGrid(np.random.default_rng(1).pareto(1.2, (24, 10 * 288)), 0.0)


@pytest.fixture(autouse=True)
def _few_made_up(monkeypatch):
    monkeypatch.setattr(module, "SYNTHETIC_EACH", 1)
    monkeypatch.setattr(module, "SYNTHETIC_DAYS", 9.0)


@pytest.fixture(scope="module")
def good():
    return profile_model(train([GOOD], replace(SMALL_TRAINING, iterations=25)).save())


@pytest.fixture(scope="module")
def bad():
    """It knows nothing of rhythms."""
    return profile_model(train([BAD], replace(SMALL_TRAINING, iterations=2)).save())


def own(count=32, days=9, *, workloads=None, seed=11):
    grids = [daily(count, days, seed=seed + index).values.astype(np.float32) for index in range(2)]
    return {
        (WorkloadRef("shop", "Deployment", f"web-{index % (workloads or count)}"), f"app-{index}"): ContainerSteps(
            StepRules(16 * 288), 0.0, StepRow(END + index % 3, grids[0][index]), StepRow(END, grids[1][index] * np.float32(1e9))
        )
        for index in range(count)
    }


def test_a_better_challenger_is_adopted(bad):
    verdict = retrain(own(), [bad], RULES)
    assert (verdict.finding.reason, verdict.finding.subject) == ("ModelAdopted", "model")
    assert "on 8 held-out workloads" in verdict.finding.message
    assert profile_model(verdict.data).sha256 == verdict.model.sha256 != bad.sha256
    assert retrain(own(), [bad], RULES).data == verdict.data, "the same history gives the same model"


def test_a_worse_challenger_is_refused(good, bad):
    poor = replace(RULES, training=replace(SMALL_TRAINING, iterations=1, learning_rate=0.01))
    for champions in ([good], [bad, good]):
        verdict = retrain(own(), champions, poor)
        assert (verdict.finding.reason, verdict.model, verdict.data) == ("ModelKept", None, b"")
        assert "the model stays as it is: loss +" in verdict.finding.message


@pytest.mark.parametrize(
    ("steps", "champions", "reason", "message"),
    [
        ({}, 1, "TooLittleData", "16 containers with 7 measured days of cpu are needed, there are 0"),
        (own(15), 1, "TooLittleData", "there are 15"),
        (own(16, days=6.9), 1, "TooLittleData", "there are 0"),
        (own(16, workloads=3), 1, "TooLittleData", "too few workloads"),
        (own(), 0, "NothingToRetrain", "no profile in use has a model"),
    ],
    ids=["nothing", "too few", "too short", "of three workloads", "no model"],
)
def test_too_little_is_not_learned_from(monkeypatch, bad, steps, champions, reason, message):
    monkeypatch.setattr(module, "train", lambda *_: pytest.fail("trained"))
    verdict = retrain(steps, [bad] * champions, RULES)
    assert (verdict.finding.reason, verdict.model) == (reason, None)
    assert message in verdict.finding.message


def test_what_is_judged_is_never_trained_on_and_always_the_same(monkeypatch, bad):
    seen = []

    def spy(grids, options):
        seen.append({row[np.isfinite(row)].tobytes() for grid in grids[:-1] for row in grid.values})
        return train(grids, options)

    monkeypatch.setattr(module, "train", spy)
    steps = own(32, workloads=16)
    retrain(steps, [bad], RULES)
    retrain(dict(reversed(steps.items())), [bad], RULES)
    assert seen[0] == seen[1]
    trained = {workload.name for (workload, _), one in steps.items() if one.cpu.values.astype(np.float64).tobytes() in seen[0]}
    assert len(trained) == 12, "a quarter of the workloads is held out, whole"
    assert len(seen[0]) == 2 * 24


def test_of_many_containers_some_are_taken(monkeypatch, bad):
    sizes = []
    monkeypatch.setattr(module, "train", lambda grids, options: sizes.append(list(map(len, grids))) or train(grids, options))
    retrain(own(32), [bad], replace(RULES, max_series=20))
    assert sizes == [[15, 15, 11]]


def losses(where, ratio, coverage=(0.9, 0.9), spread=0.0):
    """Twenty workloads on which our loss is ``ratio`` times theirs, give or take ``spread``."""
    change = np.where(np.arange(20) % 2, spread, -spread)
    return module._Losses(where, tuple(f"w{index:02}" for index in range(20)), ratio + change, np.ones(20), coverage)


@pytest.mark.parametrize(
    ("found", "adopted", "message"),
    [
        ([losses("a", 0.9), losses("b", 0.95)], True, "loss -7.5%"),
        ([losses("a", 0.985), losses("b", 0.985)], False, "at least -2.0% is asked for"),
        ([losses("a", 0.95, spread=0.6), losses("b", 0.95, spread=0.6)], False, "asked for"),
        ([losses("a", 0.8), losses("b", 1.03)], False, "worse for b"),
        ([losses("a", 0.8), losses("b", 1.01)], True, "loss -9.5%"),
        ([losses("a", 0.9), losses("b", 0.9, (0.87, 0.91))], False, "coverage is worse for b"),
        ([losses("a", 0.9), losses("b", 0.9, (0.91, 0.86))], True, "loss -10.0%"),
    ],
    ids=["better", "by too little", "by chance", "worse somewhere", "a little worse somewhere", "covers less", "covers better"],
)
def test_when_a_challenger_is_better(monkeypatch, good, bad, found, adopted, message):
    monkeypatch.setattr(module, "_losses", lambda _ours, _theirs, own, _rules: found if own.resource is Resource.CPU else [])
    monkeypatch.setattr(module, "train", lambda *_: good.model)
    verdict = retrain(own(), [bad], RULES)
    assert (verdict.model is not None) is adopted
    assert message in verdict.finding.message


BOOSTED = msgspec.structs.replace(CPU_RULES, experts=(Expert("gradient-boosting", 0.9, 1.1), *CPU_RULES.experts))
PROFILE = an_ensemble_profile(history_days=2, replay_hours=4, young_hours=12, cpu=BOOSTED, model="old.skops")
NOW, HOUR = T + 3 * 86_400, 3600.0


@pytest.fixture
def models(tmp_path):
    (tmp_path / "old.skops").write_bytes(train([BAD], replace(SMALL_TRAINING, iterations=2)).save())
    return tmp_path


def a_fleet():
    cluster = Cluster(a_vpa("web", recommenders=[RecommenderSelector(f"vpa-ippr-{PROFILE.name}")]))
    cluster.deploy("web")
    return cluster, Source(usage_of("web-1", minutes=4 * 1440))


def a_recommender(cluster, source, models, model=None):
    catalogue = {**CATALOGUE, PROFILE.name: PROFILE}
    return RecommenderService(source, cluster, Clock(NOW), catalogue, RecommenderSettings(models=models), model=model)


def recommended(result):
    return [outcome.recommendations for outcome in result.outcomes]


@pytest.mark.parametrize("hours", [0, 1, 5])
def test_a_restart_after_an_adoption_gives_the_same_numbers(models, good, hours):
    cluster, source = a_fleet()
    lasting = a_recommender(cluster, source, models)
    before = recommended(at(lasting, NOW))
    lasting.adopt(good)
    adopted = recommended(at(lasting, NOW))
    assert adopted != before
    for hour in range(hours + 1):
        lasting_says = recommended(at(lasting, NOW + hour * HOUR))
    restarted = a_recommender(cluster, source, models, good)
    assert recommended(at(restarted, NOW + hours * HOUR)) == lasting_says


def test_who_starts_with_the_model_decides_as_who_adopts_it(models, good):
    """The checkpoints are of the model before, so that nothing can be used of them."""
    cluster, source = a_fleet()
    lasting = a_recommender(cluster, source, models)
    at(lasting, NOW)
    lasting.adopt(good)
    started = a_recommender(cluster, source, models, good).run_cycle()
    assert recommended(lasting.run_cycle()) == recommended(started)
    assert [finding.reason for finding in started.findings] == ["ProfileChanged"]


def test_checkpoints_are_written_anew_and_what_does_not_rest_on_the_model_stays(models, good):
    cluster, source = a_fleet()
    service = a_recommender(cluster, source, models)
    at(service, NOW)

    def states():
        (checkpoint,) = cluster.checkpoints.values()
        stored = msgspec.json.decode(checkpoint.metadata.annotations[ANNOTATION_FORECAST])
        return {resource: stored[resource]["state"] for resource in ("cpu", "memory")}

    old = states()
    service.adopt(good)
    at(service, NOW)
    new = states()
    assert new["cpu"]["mark"] != old["cpu"]["mark"]
    assert new["memory"] == old["memory"]


def test_the_models_in_use(models, good):
    cluster, source = a_fleet()
    service = a_recommender(cluster, source, models)
    assert service.retrain().finding.reason == "NothingToRetrain", "before the first cycle"
    at(service, NOW)
    assert service.retrain().finding.reason == "TooLittleData"
