"""The global model: what it sees, what it learns, and that its file is safe to read."""

import io
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from skops import io as skops_io

from support.usage_grids import END, PER_DAY, PER_HOUR, SMALL_TRAINING, daily, of_rows
from vpa_ippr.api.errors import UsageError, ValidationError
from vpa_ippr.forecast.boosting import MAX_MODEL_BYTES, MODEL_SCHEMA, BoostingForecaster, load_model
from vpa_ippr.forecast.features import NAMES, build_features
from vpa_ippr.forecast.grid import UsageGrid
from vpa_ippr.forecast.quantiles import Horizon
from vpa_ippr.forecast.seasonal import TrailingForecaster
from vpa_ippr.forecast.training import TrainingOptions, collect_rows, outcome, train


def feature(grid, name):
    features = build_features(grid)
    return features.matrix[:, NAMES.index(name)], features.scale


# Good for nothing but its file.
TINY = replace(SMALL_TRAINING, rows=800, iterations=2, levels=(0.5, 0.9))


@pytest.fixture(scope="session")
def saved(training_grids):
    return train(training_grids, TINY).save()


def test_a_series_it_never_saw_is_forecast_with_honest_quantiles(model):
    grid = UsageGrid(np.concatenate([daily(20, 9, seed=77).values, daily(10, 9, seed=79, noise=0.3).values]), END)
    forecaster, hits = BoostingForecaster(model), []
    for hour in range(7 * 24, 9 * 24 - 1, 3):
        forecast = forecaster.fit(grid.until(hour * PER_HOUR)).predict(Horizon.HOUR, (0.5, 0.8, 0.9))
        hits.append(outcome(grid, hour * PER_HOUR, Horizon.HOUR)[:, None] <= forecast.values)
    assert np.mean(hits, axis=(0, 1)) == pytest.approx([0.5, 0.8, 0.9], abs=0.1)


def test_it_is_sharper_than_the_trailing_quantile(model):
    grid = daily(20, 9, seed=78)
    losses = {}
    for forecaster in (BoostingForecaster(model), TrailingForecaster()):
        loss = []
        for hour in range(7 * 24, 9 * 24 - 1, 4):
            forecast = forecaster.fit(grid.until(hour * PER_HOUR)).predict(Horizon.HOUR, (0.9,)).values[:, 0]
            error = outcome(grid, hour * PER_HOUR, Horizon.HOUR) - forecast
            loss.append(np.maximum(0.9 * error, -0.1 * error))
        losses[forecaster.name] = np.mean(loss)
    assert losses["gradient-boosting"] < 0.8 * losses["trailing-quantile"]


def test_features_are_numbers_of_the_series_alone():
    grid = daily(3, 9)
    assert build_features(grid).matrix.shape == (3, len(NAMES)) == (3, 34)
    assert np.isfinite(build_features(grid).matrix).all()
    one = build_features(UsageGrid(grid.values[1:2], grid.end))
    assert one.matrix[0].tolist() == build_features(grid).matrix[1].tolist()


def test_features_do_not_see_the_future():
    grid = daily(2, 9)
    changed = grid.values.copy()
    changed[:, -PER_DAY:] = 99.0
    before = [build_features(UsageGrid(values, END).until(8 * PER_DAY)).matrix.tolist() for values in (grid.values, changed)]
    assert before[0] == before[1]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("last_sample", 24.0),
        ("max_lag_1h", 24.0),
        ("max_lag_3h", 22.0),
        ("mean_1h", 24.0),
        ("mean_6h", 21.5),
        ("max_24h", 24.0),
        ("min_of_max_24h", 1.0),
        ("same_hour_1d", 1.0),
        ("same_hour_median_7d", 1.0),
        ("same_hour_max_7d", 24.0),
    ],
)
def test_a_feature_is_what_its_name_says(name, expected):
    hours = np.tile(np.arange(1.0, 25.0), 14)
    found, scale = feature(of_rows(np.repeat(hours, PER_HOUR)), name)
    assert scale.tolist() == [12.5]
    assert found[0] == pytest.approx(np.log((expected / 12.5 + 0.01) / 1.01))


def test_the_rhythm_and_the_calendar_are_seen():
    grid = daily(1, 14, noise=0.02)
    assert feature(grid, "acf_24h")[0][0] > 0.9
    assert feature(grid, "hour")[0][0] == 0
    assert feature(grid, "weekday")[0][0] == 3  # 1 January 2026 was a Thursday
    assert feature(grid, "known_hours")[0][0] == pytest.approx(np.log1p(336))


def test_outcomes_need_half_of_the_horizon():
    values = np.ones((1, 40))
    values[0, 20:27] = np.nan
    grid = UsageGrid(values, END)
    assert np.isnan(outcome(grid, 20, Horizon.HOUR)[0])
    assert outcome(grid, 21, Horizon.HOUR)[0] == 1.0


def test_training_draws_from_every_source_and_no_more_than_asked(training_grids):
    rows = collect_rows(training_grids, TrainingOptions(rows=1000))
    assert 800 <= len(rows.matrix) <= 1100
    assert np.isfinite(rows.targets[Horizon.HOUR]).all()
    young = np.expm1(rows.matrix[:, NAMES.index("known_hours")]) < 24
    assert 0.02 < young.mean() < 0.4


def test_the_same_data_and_seed_give_the_same_file(training_grids, saved):
    assert train(training_grids, TINY).save() == saved
    assert len(saved) < MAX_MODEL_BYTES


def test_another_seed_gives_another_model(training_grids, saved):
    assert train(training_grids, replace(TINY, seed=9)).save() != saved


def test_a_stored_model_answers_the_same(model):
    grid = daily(4, 8, seed=5)
    again = load_model(model.save())
    assert BoostingForecaster(again).fit(grid).dump() == BoostingForecaster(model).fit(grid).dump()
    assert again.levels == model.levels == SMALL_TRAINING.levels


def test_too_little_data_is_refused():
    with pytest.raises(UsageError, match="at least 500") as caught:
        train([daily(1, 0.2)], SMALL_TRAINING)
    assert caught.value.reason == "TooLittleData"


def test_nothing_at_all_is_refused():
    with pytest.raises(UsageError, match="0 rows"):
        train([], SMALL_TRAINING)


class NotAModel:
    pass


def _zip(**files):
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name.replace("_json", ".json"), content)
    return target.getvalue()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "ModelCorrupt"),
        (b"\x80\x04K\x01.", "ModelCorrupt"),
        (_zip(other="x"), "ModelCorrupt"),
        (_zip(schema_json="{}"), "ModelCorrupt"),
        (_zip(schema_json="no json"), "ModelCorrupt"),
        (b"x" * (MAX_MODEL_BYTES + 1), "ModelCorrupt"),
        (skops_io.dumps([1, 2]), "ModelCorrupt"),
        (skops_io.dumps({"schema": "other"}), "ModelCorrupt"),
        (skops_io.dumps({"schema": MODEL_SCHEMA}), "ModelCorrupt"),
        (skops_io.dumps({"schema": MODEL_SCHEMA, "ensembles": NotAModel()}), "ModelUntrusted"),
    ],
    ids=["empty", "a pickle", "another zip", "no schema", "no json", "too large", "a list", "another schema", "half", "another class"],
)
def test_what_is_no_model_is_refused(data, reason):
    with pytest.raises(ValidationError) as caught:
        load_model(data)
    assert caught.value.reason == reason


@pytest.mark.parametrize("field", ["left", "right", "feature_idx"])
def test_a_tree_that_leads_out_of_itself_is_refused(saved, field):
    content = skops_io.loads(saved, trusted=skops_io.get_untrusted_types(data=saved))
    content["ensembles"]["hour"][0]._predictors[1][0].nodes[field][0] = 1_000_000
    with pytest.raises(ValidationError, match="damaged") as caught:
        load_model(skops_io.dumps(content, compression=zipfile.ZIP_DEFLATED))
    assert caught.value.reason == "ModelCorrupt"


def test_a_file_that_unpacks_to_too_much_is_refused():
    data = _zip(schema_json=b"0" * (11 * MAX_MODEL_BYTES))
    assert len(data) < MAX_MODEL_BYTES
    with pytest.raises(ValidationError, match="unpacks"):
        load_model(data)


@pytest.mark.parametrize(("key", "value"), [("features", ["a"]), ("answers", None)], ids=["other features", "other answers"])
def test_a_model_that_would_answer_wrongly_is_refused(saved, key, value):
    content = skops_io.loads(saved, trusted=skops_io.get_untrusted_types(data=saved))
    content[key] = content["answers"] + 0.1 if value is None else value
    with pytest.raises(ValidationError, match="train it again") as caught:
        load_model(skops_io.dumps(content, compression=zipfile.ZIP_DEFLATED))
    assert caught.value.reason == "ModelIncompatible"
