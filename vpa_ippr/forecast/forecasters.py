"""The forecasters that a profile's experts name, made ready; and the model file that some of them need."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np

from vpa_ippr.api.errors import UsageError, ValidationError
from vpa_ippr.api.series import Floats, Resource
from vpa_ippr.forecast.boosting import EVERYTHING, GRADIENT_BOOSTING, Asked, BoostingForecaster, BoostingModel, load_model
from vpa_ippr.forecast.catalogue import Profile, default_directory
from vpa_ippr.forecast.ensemble import EnsembleDecider, needed_forecasters
from vpa_ippr.forecast.grid import HOUR_SECONDS, HOURS_PER_DAY, STEP_SECONDS, UsageGrid
from vpa_ippr.forecast.holtwinters import HOLT_WINTERS, with_factors
from vpa_ippr.forecast.peaks import PeaksForecaster
from vpa_ippr.forecast.quantiles import LEVELS, FittedQuantiles, GridForecaster, Horizon
from vpa_ippr.forecast.seasonal import DecayingForecaster, SeasonalForecaster, TrailingForecaster
from vpa_ippr.forecast.smoothing import learn_factors
from vpa_ippr.usage.container import DAY_SECONDS

# Factors of so many series are kept: each takes about 300 bytes.
_MAX_REMEMBERED: Final = 20_000
_DIGEST_BYTES: Final = 16
# Checking and building one takes two seconds, and the profiles share it.
_load_once: Final = lru_cache(maxsize=2)(load_model)


@dataclass(frozen=True, slots=True, eq=False)
class ProfileModel:
    """A model and the SHA-256 of its file, which tells whether two runs used the same one."""

    model: BoostingModel
    sha256: str


def profile_model(data: bytes) -> ProfileModel:
    """The model of a file's content.

    Raises:
        ValidationError: see ``boosting.load_model`` for the reasons; also ``ModelIncompatible`` when it lacks levels that profiles may ask.
    """
    model = _load_once(data)
    if (model.levels[0], model.levels[-1]) != (LEVELS[0], LEVELS[-1]):
        raise ValidationError(
            f"the model knows the levels {model.levels[0]} to {model.levels[-1]}, {LEVELS[0]} to {LEVELS[-1]} are needed: train it again",
            reason="ModelIncompatible",
        )
    return ProfileModel(model, hashlib.sha256(data).hexdigest())


def is_model_named(profile: Profile) -> bool:
    """Whether the profile names a model."""
    return profile.ensemble is not None and profile.ensemble.model is not None


def load_profile_model(directory: Path | None, profile: Profile) -> ProfileModel | None:
    """The model that a profile names, from the catalogue's directory (default: the program's own); None when it needs none.

    Raises:
        UsageError: the file is not there or cannot be read (reason ``ModelMissing``).
        ValidationError: it is damaged, not trusted or of another version; see ``boosting.load_model`` for the reasons.
    """
    if profile.ensemble is None or profile.ensemble.model is None:
        return None
    path = (directory or default_directory()) / profile.ensemble.model
    try:
        data = path.read_bytes()
    except OSError as error:
        message = f"profile {profile.name} needs the model {path}, which cannot be read ({error.strerror}): put it there or train one"
        raise UsageError(message, reason="ModelMissing") from error
    try:
        return profile_model(data)
    except ValidationError as error:
        raise ValidationError(f"model {path} of profile {profile.name}: {error}", reason=error.reason) from error


def build_forecasters(profile: Profile, resource: Resource, model: ProfileModel | None, names: Iterable[str]) -> dict[str, GridForecaster]:
    """The named forecasters of one resource under a profile, in that order.

    Raises:
        UsageError: the gradient boosting is asked for and no model is given.
    """
    part = profile.resource(resource)
    makers: Mapping[str, Callable[[], GridForecaster]] = {
        "trailing-quantile": TrailingForecaster,
        "hour-of-day": SeasonalForecaster,
        "day-of-week": lambda: SeasonalForecaster("week"),
        "decaying-histogram": lambda: DecayingForecaster(part.buckets.options(), part.half_life_seconds),
        "holt-winters": DailyHoltWinters,
        "gradient-boosting": lambda: _boosting(profile, resource, model),
        "peaks-trend": PeaksForecaster,
    }
    return {name: makers[name]() for name in names}


def _boosting(profile: Profile, resource: Resource, model: ProfileModel | None) -> BoostingForecaster:
    if model is None:
        raise UsageError(f"profile {profile.name} uses gradient boosting and names no model", reason="ModelMissing")
    return BoostingForecaster(model.model, _asked(profile, resource))


def _asked(profile: Profile, resource: Resource) -> Asked:
    """What the decisions of a resource read of the global model: its experts' levels, and of a young series the bounds."""
    if profile.ensemble is None or GRADIENT_BOOSTING not in needed_forecasters([profile.ensemble.resource(resource)]):
        return EVERYTHING
    decider = EnsembleDecider(profile.ensemble.resource(resource), profile.ensemble.young_hours)
    hour, day = (max(decider.read_levels.get((GRADIENT_BOOSTING, horizon), {0.0})) for horizon in Horizon)
    return Asked(hour, day, profile.ensemble.young_hours)


@dataclass(frozen=True, slots=True)
class DailyHoltWinters:
    """Holt-Winters whose factors are those of the history up to the last midnight (UTC), smoothing all that came until now.

    Learning takes some 30 ms a series, so what was learned is remembered by the history that it was learned from: asking again within the
    day costs nothing, and forgetting changes no number.
    """

    jobs: int = 1
    name: str = HOLT_WINTERS
    _remembered: dict[bytes, Floats] = field(default_factory=dict, init=False, repr=False, compare=False)

    def fit(self, grid: UsageGrid) -> FittedQuantiles:
        """The factors of the last midnight, and what they make of the history."""
        hours = _whole_days(grid)
        keys = [hashlib.blake2b(row.tobytes(), digest_size=_DIGEST_BYTES).digest() for row in hours]
        new = {key: row for row, key in enumerate(keys) if key not in self._remembered}
        learned = learn_factors(hours[list(new.values())], self.jobs)
        self._remembered.update(zip(new, learned.factors, strict=True))
        factors = np.array([self._remembered[key] for key in keys], dtype=np.float64).reshape(len(grid), 4)
        self._forget(len(grid))
        return replace(with_factors(grid, factors), findings=learned.findings)

    def _forget(self, in_use: int) -> None:
        for key in list(self._remembered)[: max(len(self._remembered) - max(_MAX_REMEMBERED, in_use), 0)]:
            del self._remembered[key]


def _whole_days(grid: UsageGrid) -> Floats:
    """Hourly maxima from the first midnight after the grid begins to the last one: the same for every hour of a day."""
    midnight = grid.end // DAY_SECONDS
    since = round((grid.end - midnight * DAY_SECONDS) / HOUR_SECONDS)
    begin = (grid.end - grid.steps * STEP_SECONDS) // DAY_SECONDS + 1
    hours = max(int(midnight - begin), 1) * HOURS_PER_DAY
    return grid.hourly_maxima(hours + since)[:, :hours]
