"""Forecasters made ready from a profile, the model file that it names, and Holt-Winters whose factors are those of midnight."""

import msgspec
import numpy as np
import pytest

from support.ensembles import an_ensemble_profile
from support.usage_grids import daily, with_gaps
from vpa_ippr.api.errors import UsageError, ValidationError
from vpa_ippr.api.series import Resource
from vpa_ippr.forecast.catalogue import load_catalogue
from vpa_ippr.forecast.forecasters import DailyHoltWinters, ProfileModel, build_forecasters, load_profile_model
from vpa_ippr.forecast.holtwinters import with_factors
from vpa_ippr.forecast.quantiles import Horizon
from vpa_ippr.forecast.rules import ForecasterName
from vpa_ippr.forecast.smoothing import learn_factors

NAMES = ForecasterName.__args__
GRID = daily(3, 7, seed=4)
PROFILE = an_ensemble_profile(model="small.skops")


@pytest.fixture(scope="module")
def model_directory(model, tmp_path_factory):
    directory = tmp_path_factory.mktemp("models")
    (directory / "small.skops").write_bytes(model.save())
    return directory


@pytest.mark.parametrize("resource", list(Resource))
def test_every_forecaster_of_the_schema_can_be_built(model, resource):
    forecasters = build_forecasters(PROFILE, resource, ProfileModel(model, "x"), NAMES)
    assert tuple(forecasters) == NAMES
    for name, forecaster in forecasters.items():
        assert forecaster.name == name
        assert np.isfinite(forecaster.fit(GRID).hour).all()


def test_the_decaying_histogram_has_the_buckets_of_its_resource():
    values = [
        build_forecasters(PROFILE, resource, None, ["decaying-histogram"])["decaying-histogram"].fit(GRID).hour for resource in Resource
    ]
    assert values[0].max() < 20, "cores"
    assert values[1].min() == pytest.approx(1e7), "the first bucket of memory"


def test_a_model_is_read_and_told_apart_from_another(model_directory):
    loaded = load_profile_model(model_directory, PROFILE)
    assert len(loaded.sha256) == 64
    assert build_forecasters(PROFILE, Resource.CPU, loaded, ["gradient-boosting"])["gradient-boosting"].model is loaded.model


def test_a_profile_without_a_model_needs_none(tmp_path):
    assert load_profile_model(tmp_path, load_catalogue()["vpa-classic"]) is None
    assert load_profile_model(tmp_path, an_ensemble_profile()) is None


def test_a_model_that_is_missing(tmp_path):
    with pytest.raises(UsageError, match=r"profile test-ensemble needs the model .*small\.skops") as found:
        load_profile_model(tmp_path, PROFILE)
    assert found.value.reason == "ModelMissing"
    with pytest.raises(UsageError, match="names no model"):
        build_forecasters(PROFILE, Resource.CPU, None, ["gradient-boosting"])


def test_a_model_that_is_damaged_is_named(tmp_path):
    (tmp_path / "small.skops").write_bytes(b"nonsense")
    with pytest.raises(ValidationError, match=r"model .*small\.skops of profile test-ensemble") as found:
        load_profile_model(tmp_path, PROFILE)
    assert found.value.reason == "ModelCorrupt"


def test_the_shipped_profiles_find_their_models():
    for profile in load_catalogue().values():
        if profile.ensemble is not None:
            assert (load_profile_model(None, profile) is None) == (profile.ensemble.model is None)


def test_the_model_is_asked_for_what_is_not_calibrated_too():
    shipped = load_catalogue()["balanced"]
    experts = (shipped.ensemble.cpu.experts[0], msgspec.structs.replace(shipped.ensemble.cpu.experts[5], calibrated=False))
    cpu = msgspec.structs.replace(shipped.ensemble.cpu, experts=experts)
    profile = msgspec.structs.replace(shipped, ensemble=msgspec.structs.replace(shipped.ensemble, cpu=cpu))
    assert experts[1].quantile == 0.98
    forecaster = build_forecasters(profile, Resource.CPU, load_profile_model(None, profile), ["gradient-boosting"])["gradient-boosting"]
    assert np.isfinite(forecaster.fit(daily(2, 3, seed=1)).predict(Horizon.HOUR, (0.98,)).values).all()


def counting(monkeypatch):
    from vpa_ippr.forecast import forecasters

    learned = []
    original = forecasters.learn_factors

    def learn(hours, jobs=1):
        learned.append(len(hours))
        return original(hours, jobs)

    monkeypatch.setattr(forecasters, "learn_factors", learn)
    return learned


def test_holt_winters_learns_once_a_day(monkeypatch):
    learned = counting(monkeypatch)
    grid, forecaster = daily(2, 7, seed=1), DailyHoltWinters()  # ends at a midnight
    for hour in range(25):
        forecaster.fit(grid.until(grid.steps - 12 * (24 - hour)))
    assert learned == [2, *[0] * 23, 2]


def test_what_is_remembered_changes_no_number():
    grid, lasting = with_gaps(daily(3, 7, seed=2)), DailyHoltWinters()
    for hours in (30, 20, 3, 0):
        known = grid.until(grid.steps - 12 * hours)
        one, other = lasting.fit(known), DailyHoltWinters().fit(known)
        np.testing.assert_array_equal(one.hour, other.hour)
        np.testing.assert_array_equal(one.day, other.day)


@pytest.mark.parametrize("hours", [0, 5], ids=["at midnight", "five hours later"])
def test_holt_winters_smooths_all_with_the_factors_of_midnight(hours):
    grid = daily(3, 9, seed=5)  # begins at a midnight; the first whole day is left out
    known, learned_from = grid.until((8 * 24 + hours) * 12), grid.until(8 * 288).last(7)
    mine, plain = DailyHoltWinters().fit(known), with_factors(known, learn_factors(learned_from.hourly_maxima(7 * 24)).factors)
    assert "holt-winters" in {mine.methods[index] for index in mine.method_of}
    np.testing.assert_allclose(mine.hour, plain.hour)
    np.testing.assert_allclose(mine.day, plain.day)


def test_a_new_row_among_known_ones_is_learned_alone(monkeypatch):
    learned = counting(monkeypatch)
    grid, forecaster = daily(3, 7, seed=1), DailyHoltWinters()
    forecaster.fit(type(grid)(grid.values[:2], grid.end))
    forecaster.fit(grid)
    assert learned == [2, 1]


@pytest.mark.parametrize("days", [0.25, 1, 3])
def test_a_short_history_falls_back(days):
    fitted = DailyHoltWinters().fit(GRID.last(days))
    assert "holt-winters" not in {fitted.methods[index] for index in fitted.method_of}
    assert np.isfinite(fitted.hour).all()


def test_only_so_many_are_remembered(monkeypatch):
    from vpa_ippr.forecast import forecasters

    monkeypatch.setattr(forecasters, "_MAX_REMEMBERED", 2)
    learned = counting(monkeypatch)
    forecaster = DailyHoltWinters()
    for seed in (1, 2, 1):
        forecaster.fit(daily(2, 2, seed=seed))
    assert learned == [2, 2, 2]


def test_the_profile_schema_checks_what_series_are_made_of():
    from vpa_ippr.forecast.rules import SeriesRules, broken_rules
    from vpa_ippr.usage.oom import OomRules
    from vpa_ippr.usage.revisions import RevisionRules

    def broken(**changes):
        return {key for key, _ in broken_rules(msgspec.structs.replace(PROFILE.ensemble, **changes))}

    assert broken() == set()
    assert broken(series=SeriesRules(pods=0.0)) == {"ensemble.series.pods"}
    assert broken(series=SeriesRules(pods=1.1)) == {"ensemble.series.pods"}
    assert broken(series=SeriesRules(startup_seconds=-1)) == {"ensemble.series.startup_seconds"}
    assert broken(series=SeriesRules(startup_seconds=7200)) == {"ensemble.series.startup_seconds"}
    assert broken(series=SeriesRules(memory_revisions=RevisionRules(noise=float("nan")))) == {"ensemble.series.memory_revisions.noise"}
    assert broken(oom=OomRules(max_growth=0.5)) == {"ensemble.oom.max_growth"}
