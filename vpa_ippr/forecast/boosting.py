"""The global model: quantile gradient boosting over the features of ``features.py``, one ensemble for each horizon and quantile.

It is trained once on many series (``training.py``) and asked for any container, those it never saw included. It is stored with skops:
reading such a file runs no code, and a class that is not on the short list below is refused before anything is built.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from vpa_ippr.api.errors import ValidationError
from vpa_ippr.api.series import Floats
from vpa_ippr.forecast.features import NAMES, build_features
from vpa_ippr.forecast.grid import UsageGrid
from vpa_ippr.forecast.quantiles import FittedQuantiles, Horizon, first_known
from vpa_ippr.forecast.seasonal import trailing

if TYPE_CHECKING:
    from sklearn.ensemble import HistGradientBoostingRegressor

GRADIENT_BOOSTING: Final = "gradient-boosting"
MODEL_SCHEMA: Final = "vpa-ippr/gradient-boosting/v1"
# Beyond what skops trusts by itself (numpy arrays, plain containers, scikit-learn's estimators): the class that holds one tree.
TRUSTED_TYPES: Final = frozenset({"sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor"})
MAX_MODEL_BYTES: Final = 5_000_000
_MAX_UNPACKED_BYTES: Final = 10 * MAX_MODEL_BYTES
# Log ratios that a forecast may reach: e^5 is 148 times the mean of the week's hourly maxima.
_MAX_LOG: Final = 5.0
# So much of a day's answer is the trailing quantile. Days are few (a series of four weeks holds 28), and what trees learn from few is
# rough. On sources that the model never saw a quarter takes 7 and 10 % off the loss at p90 and p95 and leaves coverage as it is; on other
# series of the sources it was trained on it adds 2 %. An hour's answer would only lose by it.
_TRAILING_SHARE: Final = 0.25
# How scikit-learn is told that no feature is a category.
_NO_CATEGORIES: Final = np.zeros((0, 8), dtype=np.uint32)
_NO_PLACES: Final = np.zeros(len(NAMES), dtype=np.uint32)


@dataclass(frozen=True, slots=True, eq=False)
class BoostingModel:
    """``ensembles[horizon]`` holds one ensemble for each of ``levels``, lowest first.

    ``probe`` (rows, features) and ``answers`` (rows, horizons * levels) are a few inputs and what the model said when it was trained: a
    library that reads the file differently is found out when it is loaded, not by wrong recommendations.
    """

    levels: tuple[float, ...]
    ensembles: Mapping[Horizon, tuple[HistGradientBoostingRegressor, ...]]
    probe: Floats
    answers: Floats

    def evaluate(self, matrix: Floats, horizon: Horizon, levels: int | None = None) -> Floats:
        """Log ratios at each level, or at the lowest ``levels`` of them, quantile crossing removed; shape (rows, levels)."""
        logs = np.stack([_sum_of_trees(ensemble, matrix) for ensemble in self.ensembles[horizon][:levels]], axis=1)
        return np.minimum(np.maximum.accumulate(logs, axis=1), _MAX_LOG)

    def save(self) -> bytes:
        """As a skops file; the same model gives the same bytes."""
        from skops import io as skops_io

        content = {
            "schema": MODEL_SCHEMA,
            "features": list(NAMES),
            "levels": list(self.levels),
            "ensembles": {horizon.value: list(ensembles) for horizon, ensembles in self.ensembles.items()},
            "probe": self.probe,
            "answers": self.answers,
        }
        return _without_chance(skops_io.dumps(content))


def _sum_of_trees(ensemble: HistGradientBoostingRegressor, matrix: Floats) -> Floats:
    """What ``ensemble.predict`` says, on one thread and without its checks, which take longer than the trees of a few rows.

    Two threads on a shared machine took ten times as long as one; sound trees over ``NAMES`` without categories are all that is trained
    and all that is loaded.
    """
    rows = np.ascontiguousarray(matrix, dtype=np.float64)
    total = np.full(len(rows), ensemble._baseline_prediction.item())
    for (tree,) in ensemble._predictors:
        total += tree.predict(rows, _NO_CATEGORIES, _NO_PLACES, 1)
    return total


def answers_of(model: BoostingModel) -> Floats:
    """What the model says to its probe."""
    return np.concatenate([model.evaluate(model.probe, horizon) for horizon in Horizon], axis=1)


def load_model(data: bytes) -> BoostingModel:
    """Read what ``BoostingModel.save`` wrote.

    Raises:
        ValidationError: ``ModelCorrupt`` (not such a file), ``ModelUntrusted`` (it holds classes that have no place in a model),
            ``ModelIncompatible`` (other features, or the installed scikit-learn reads other numbers from it: train again).
    """
    from skops import io as skops_io
    from skops.io.exceptions import UntrustedTypesFoundException

    if len(data) > MAX_MODEL_BYTES:
        raise ValidationError(f"the model has {len(data)} bytes, more than {MAX_MODEL_BYTES}", reason="ModelCorrupt")
    try:
        unpacked = sum(entry.file_size for entry in zipfile.ZipFile(io.BytesIO(data)).infolist())
        if unpacked > _MAX_UNPACKED_BYTES:
            raise ValidationError(f"the model unpacks to {unpacked} bytes, more than {_MAX_UNPACKED_BYTES}", reason="ModelCorrupt")
        model = _built(skops_io.loads(data, trusted=sorted(TRUSTED_TYPES)))
    except UntrustedTypesFoundException as error:
        raise ValidationError(f"the model is not trusted: {str(error).splitlines()[0]}", reason="ModelUntrusted") from error
    except (zipfile.BadZipFile, KeyError, ValueError, TypeError, AttributeError, ImportError) as error:
        raise ValidationError(f"not a model file: {error}", reason="ModelCorrupt") from error
    if not np.allclose(answers_of(model), model.answers, rtol=0, atol=1e-9):
        raise ValidationError(
            "this scikit-learn reads other numbers from the model than it was trained with: train it again", reason="ModelIncompatible"
        )
    return model


def _built(content: Any) -> BoostingModel:
    """ValueError, or what a missing key or a wrong type raises, when it is not what ``save`` writes."""
    if content["schema"] != MODEL_SCHEMA:
        raise ValueError(f"schema {content['schema']!r}")
    if content["features"] != list(NAMES):
        raise ValidationError("the model was trained on other features: train it again", reason="ModelIncompatible")
    levels = tuple(content["levels"])
    ensembles = {horizon: tuple(content["ensembles"][horizon.value]) for horizon in Horizon}
    probe, answers = (np.asarray(content[key], dtype=np.float64) for key in ("probe", "answers"))
    if any(len(found) != len(levels) or not all(map(_is_sound, found)) for found in ensembles.values()):
        raise ValueError("an ensemble is missing or its trees are damaged")
    if probe.shape[1] != len(NAMES) or answers.shape != (len(probe), len(levels) * len(Horizon)):
        raise ValueError("the answers do not fit the model")
    return BoostingModel(levels, ensembles, probe, answers)


def _is_sound(ensemble: HistGradientBoostingRegressor) -> bool:
    """Whether walking its trees stays inside them and ends: scikit-learn's compiled code follows their indices unchecked."""
    trees = [tree.nodes for stage in ensemble._predictors for tree in stage]
    is_plain = ensemble.n_features_in_ == len(NAMES) and all(len(stage) == 1 for stage in ensemble._predictors)
    return is_plain and ensemble._baseline_prediction.size == 1 and all(map(_is_sound_tree, trees))


def _is_sound_tree(nodes: Any) -> bool:
    inner = nodes["is_leaf"] == 0
    place = np.arange(len(nodes))[inner]
    children = np.stack((nodes["left"][inner], nodes["right"][inner]))
    ends = bool((children > place).all() and (children < len(nodes)).all())
    known = bool(((nodes["feature_idx"][inner] >= 0) & (nodes["feature_idx"][inner] < len(NAMES))).all())
    return len(nodes) > 0 and ends and known and not nodes["is_categorical"].any()


@dataclass(frozen=True, slots=True)
class Asked:
    """What of a forecast somebody reads; the rest is not worked out, and is NaN.

    ``hour``, ``day``: the highest level that is read of each horizon, 0 for none. Of a series with samples in fewer than
    ``whole_below_hours`` hours of its history all is read.
    """

    hour: float = 1.0
    day: float = 1.0
    whole_below_hours: float = 0.0


EVERYTHING: Final = Asked()


@dataclass(frozen=True, slots=True)
class BoostingForecaster:
    """Asks the global model, and for the day the last week, too.

    A series of which nothing is known has no answer, and one that used nothing is expected to use nothing. What is worked out does not
    depend on what else is ``asked``.
    """

    model: BoostingModel
    asked: Asked = EVERYTHING
    name: str = GRADIENT_BOOSTING

    def fit(self, grid: UsageGrid) -> FittedQuantiles:
        """Build the features and ask."""
        features = build_features(grid)
        known_hours = grid.is_known().sum(axis=1)
        is_whole = known_hours < self.asked.whole_below_hours
        # A day needs no less than an hour, so who reads a day reads the hour, too.
        hour_read = self._read(max(self.asked.hour, self.asked.day), is_whole)
        day_read = self._read(self.asked.day, is_whole)
        hour = features.from_log(self._logs(features.matrix, Horizon.HOUR, hour_read))
        day = features.from_log(self._logs(features.matrix, Horizon.DAY, day_read))
        fallback, recent_hour, recent_day = trailing(grid, self.model.levels)
        day = (1 - _TRAILING_SHARE) * day + _TRAILING_SHARE * recent_day
        own = self.name, np.where(hour_read, hour, 0.0), np.where(day_read, day, 0.0)
        found = first_known([own, (fallback, recent_hour, recent_day)], self.model.levels)
        return replace(found, hour=np.where(hour_read, found.hour, np.nan), day=np.where(day_read, found.day, np.nan))

    def _read(self, highest: float, is_whole: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """What is read, (series, levels): up to the level at or above the highest, and of the lowest the next, as it is interpolated."""
        count = max(int(np.searchsorted(self.model.levels, highest)) + 1, 2) if highest else 0
        return is_whole[:, None] | (np.arange(len(self.model.levels)) < count)

    def _logs(self, matrix: Floats, horizon: Horizon, read: NDArray[np.bool_]) -> Floats:
        """What the model says, NaN where it is not read: each row is read up to some level."""
        logs = np.full(read.shape, np.nan)
        counts = read.sum(axis=1)
        for count in np.unique(counts[counts > 0]):
            rows = counts == count
            logs[rows, :count] = self.model.evaluate(matrix[rows], horizon, count)
        return logs


def _without_chance(data: bytes) -> bytes:
    """The same skops file without what differs from run to run: addresses of objects (as their ids and file names) and the time."""
    source = zipfile.ZipFile(io.BytesIO(data))
    schema = source.read("schema.json").decode()
    numbers: dict[str, int] = {}
    for found in re.findall(r'"__id__": (\d+)', schema):
        numbers.setdefault(found, len(numbers))
    schema = re.sub(r'"__id__": (\d+)', lambda match: f'"__id__": {numbers[match[1]]}', schema)
    schema = re.sub(r'"file": "(\d+)(\.\w+)"', lambda match: f'"file": "{numbers[match[1]]}{match[2]}"', schema)
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as written:
        for name in source.namelist():
            if name != "schema.json":
                _write(written, _renumbered(name, numbers), source.read(name))
        _write(written, "schema.json", schema.encode())
    return target.getvalue()


def _renumbered(name: str, numbers: Mapping[str, int]) -> str:
    stem, _, suffix = name.partition(".")
    return f"{numbers[stem]}.{suffix}"


def _write(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name)  # dated 1980, whenever it is written
    entry.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(entry, content)
