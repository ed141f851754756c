"""The global model: how good its answers are, and that its file is safe to read."""

import io
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from skops import io as skops_io

from support.usage_grids import END, PER_HOUR, SMALL_TRAINING, daily
from vpa_ippr.api.errors import ValidationError
from vpa_ippr.forecast.boosting import MAX_MODEL_BYTES, MODEL_SCHEMA, Asked, BoostingForecaster, load_model
from vpa_ippr.forecast.features import build_features
from vpa_ippr.forecast.grid import UsageGrid
from vpa_ippr.forecast.quantiles import Horizon
from vpa_ippr.forecast.seasonal import TrailingForecaster
from vpa_ippr.forecast.training import outcome, train

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


def test_a_stored_model_answers_the_same(model):
    grid = daily(4, 8, seed=5)
    again = load_model(model.save())
    one, other = BoostingForecaster(again).fit(grid), BoostingForecaster(model).fit(grid)
    np.testing.assert_array_equal(one.hour, other.hour)
    np.testing.assert_array_equal(one.day, other.day)
    assert again.levels == model.levels == SMALL_TRAINING.levels


def test_of_no_series_there_is_nothing_to_say(model):
    fitted = BoostingForecaster(model).fit(UsageGrid(np.empty((0, 5 * PER_HOUR)), END))
    assert fitted.predict(Horizon.DAY, (0.9,)).values.shape == (0, 1)


def test_a_quarter_of_the_days_answer_is_the_trailing_quantile(model):
    grid = daily(5, 9, seed=6)
    own = build_features(grid)
    alone = own.from_log(model.evaluate(own.matrix, Horizon.DAY))
    trailing = TrailingForecaster().fit(grid).predict(Horizon.DAY, model.levels).values
    answer = BoostingForecaster(model).fit(grid).predict(Horizon.DAY, model.levels).values
    assert answer == pytest.approx(0.75 * alone + 0.25 * trailing)


@pytest.mark.parametrize(
    ("asked", "hours", "days"),
    [
        (Asked(0.9, 0.0), 3, 0),
        (Asked(0.85, 0.0), 3, 0),
        (Asked(0.5, 0.0), 2, 0),
        (Asked(0.0, 0.9), 3, 3),
        (Asked(0.98, 0.5), 4, 2),
        (Asked(0.5, 0.0, 48.0), 2, 0),
    ],
    ids=["no day", "between two levels", "the lowest level", "a day alone", "both", "young ones in full"],
)
def test_what_is_not_asked_is_left_out_and_the_rest_is_the_same_bit_for_bit(model, asked, hours, days):
    assert model.levels == (0.5, 0.8, 0.9, 0.98)
    grid = UsageGrid(daily(6, 9, seed=9).values, END)
    grid.values[0], grid.values[1, : -47 * PER_HOUR], grid.values[2, : -48 * PER_HOUR] = np.nan, np.nan, np.nan
    whole, part = (BoostingForecaster(model, *one).fit(grid) for one in ((), (asked,)))
    young = np.array([False, True, False, False, False, False]) & (asked.whole_below_hours > 0)
    for horizon, count in (("hour", hours), ("day", days)):
        columns = np.arange(len(model.levels))[None, :]
        read = (columns < count) | young[:, None]
        np.testing.assert_array_equal(getattr(part, horizon), np.where(read, getattr(whole, horizon), np.nan))
    assert part.method_of.tolist() == whole.method_of.tolist()
    if asked.hour:
        wanted = Horizon.HOUR, (asked.hour,)
        np.testing.assert_array_equal(part.predict(*wanted).values, whole.predict(*wanted).values)


def test_the_trees_are_summed_as_scikit_learn_does(model):
    matrix = build_features(daily(40, 9, seed=10)).matrix
    matrix[::3, 5] = np.nan
    for horizon, ensembles in model.ensembles.items():
        expected = np.maximum.accumulate(np.stack([one.predict(matrix) for one in ensembles], axis=1), axis=1)
        np.testing.assert_array_equal(model.evaluate(matrix, horizon), expected)


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
