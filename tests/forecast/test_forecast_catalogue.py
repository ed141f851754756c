"""The catalogue: what is in it, and that a mistake in a profile is told with its file and key."""

from copy import deepcopy
from pathlib import Path

import pytest
import yaml

from vpa_ippr.api.errors import UsageError, ValidationError
from vpa_ippr.api.series import Resource
from vpa_ippr.forecast.catalogue import choose, default_directory, load_catalogue, load_profile
from vpa_ippr.forecast.quantiles import Horizon
from vpa_ippr.forecast.selection import SelectionRules
from vpa_ippr.usage.container import UsageRules

CLASSIC = default_directory() / "vpa-classic.yaml"


EXPERT = {"forecaster": "hour-of-day", "quantile": 0.9, "factor": 1.1}
RULES = {
    "experts": [EXPERT, EXPERT | {"forecaster": "gradient-boosting", "horizon": "day"}],
    "hysteresis": {"raise_above": 0.1, "lower_below": 0.1},
    "runs": EXPERT | {"forecaster": "trailing-quantile"},
    "peaks": [{"hours": 24, "factor": 1.05}],
    "seasons": [{"days": [1, 7], "ahead_hours": 6, "factor": 1.05}],
    "guard": {"share": 0.95, "factor": 1.1},
    "selection": {"overrun": 5},
}


def a_profile_file(tmp_path: Path, change=None, name="vpa-classic.yaml"):
    document = yaml.safe_load(CLASSIC.read_text())
    return written(document, change, tmp_path / name)


def an_ensemble_file(tmp_path: Path, change=None):
    document = yaml.safe_load(CLASSIC.read_text())
    rules = {"cpu": deepcopy(RULES), "memory": deepcopy(RULES)}
    document |= {"name": "mine", "forecaster": "ensemble", "ensemble": {"model": "global.skops", **rules}}
    return written(document, change, tmp_path / "mine.yaml")


def written(document, change, path):
    if change is not None:
        change(document)
    path.write_text(yaml.safe_dump(document))
    return path


def setting(path, value):
    def change(document):
        *parents, key = path.split(".")
        for parent in parents:
            document = document[int(parent) if isinstance(document, list) else parent]
        document[key] = value

    return change


def without(key):
    return lambda document: document["cpu"].pop(key)


def test_every_profile_that_comes_with_the_program_is_valid():
    assert "vpa-classic" in load_catalogue()


def test_classic_keeps_samples_as_upstream_does():
    assert load_catalogue()["vpa-classic"].usage_rules() == UsageRules()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (setting("cpu.quantile", 0.9), r"unknown field `quantile` - at `\$\.cpu`"),
        (setting("colour", "red"), "unknown field `colour`"),
        (setting("cpu.buckets.width", 1), r"unknown field `width` - at `\$\.cpu\.buckets`"),
        (without("margin_fraction"), r"missing required field `margin_fraction` - at `\$\.cpu`"),
        (setting("memory.half_life_seconds", "1d"), r"Expected `float`, got `str` - at `\$\.memory\.half_life_seconds`"),
        (setting("schema", "vpa-ippr/profile/v9"), r"Invalid enum value 'vpa-ippr/profile/v9' - at `\$\.schema`"),
        (setting("forecaster", "tea-leaves"), r"at `\$\.forecaster`"),
        (setting("name", "other"), "name: is 'other' in a file named 'vpa-classic'"),
        (setting("cpu.quantiles.target", 0.99), "cpu.quantiles: must hold 0 < lower_bound <= target"),
        (setting("cpu.quantiles.upper_bound", 1.5), "cpu.quantiles: must hold"),
        (setting("memory.half_life_seconds", 0), "memory.half_life_seconds: is 0.0: must be above 0"),
        (setting("memory.half_life_seconds", float("nan")), "memory.half_life_seconds: is nan"),
        (setting("cpu.margin_fraction", -0.1), "cpu.margin_fraction: is -0.1: must be 0 or more"),
        (setting("cpu.round_up_to", 0), "cpu.round_up_to: is 0: must be 1 or more"),
        (setting("cpu.buckets.ratio", 1.0), "cpu.buckets: must hold 0 < first < max and ratio > 1"),
        (setting("cpu.buckets.ratio", 1.0001), "cpu.buckets: make more than 10000 buckets"),
        (setting("memory_peaks.interval_seconds", -1), "memory_peaks.interval_seconds: is -1.0: must be above 0"),
        (setting("memory_peaks.oom_bump_up_ratio", 0.9), "memory_peaks.oom_bump_up_ratio: is 0.9: must be 1 or more"),
        (setting("confidence.lower_bound.exponent", 2.0), "confidence.lower_bound.exponent: is 2.0: the bound must move away"),
        (setting("confidence.upper_bound.multiplier", -1), "confidence.upper_bound.multiplier: is -1.0"),
    ],
)
def test_a_mistake_names_the_file_and_the_key(tmp_path, change, message):
    path = a_profile_file(tmp_path, change)
    with pytest.raises(ValidationError, match=message) as caught:
        load_profile(path)
    assert str(path) in str(caught.value)


def test_an_ensemble_is_read_with_its_defaults(tmp_path):
    ensemble = load_profile(an_ensemble_file(tmp_path)).ensemble
    assert ensemble is not None
    assert ensemble.resource(Resource.CPU) == ensemble.resource(Resource.MEMORY)
    part = ensemble.cpu
    assert [(expert.forecaster, expert.horizon) for expert in part.experts] == [
        ("hour-of-day", Horizon.HOUR),
        ("gradient-boosting", Horizon.DAY),
    ]
    assert part.selection == SelectionRules(overrun=5)
    assert (part.min_density, ensemble.history_days, ensemble.replay_hours, ensemble.young_hours) == (0.5, 14, 48, 24)


def test_what_is_left_out_of_an_ensemble_is_not_done(tmp_path):
    def change(document):
        for key in ("selection", "peaks", "seasons", "guard"):
            del document["ensemble"]["memory"][key]

    part = load_profile(an_ensemble_file(tmp_path, change)).ensemble.memory
    assert part.selection is part.guard is None


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model", "global.pkl", r"ensemble\.model: is 'global\.pkl': give the name of a \*\.skops file"),
        ("model", "../global.skops", r"ensemble\.model: is"),
        ("model", "Global.skops", r"ensemble\.model: is"),
        ("model", None, r"ensemble\.model: is needed by the gradient-boosting experts of cpu"),
        ("history_days", 0, r"ensemble\.history_days: is 0: must be 1 or more"),
        ("replay_hours", -1, r"ensemble\.replay_hours: is -1: must be 0 or more"),
        ("young_hours", -1, r"ensemble\.young_hours: is -1: must be 0 or more"),
        ("speed", 1, r"unknown field `speed` - at `\$\.ensemble`"),
        ("series", {"pods": 0}, r"ensemble\.series\.pods: is 0\.0: must be above 0 and at most 1"),
        ("series", {"startup_seconds": 7200}, r"ensemble\.series\.startup_seconds: is 7200\.0: must be 0 to 3600"),
        ("series", {"cpu_revisions": {"up_hours": -1}}, r"ensemble\.series\.cpu_revisions\.up_hours: is -1\.0: must be 0 or more"),
        ("series", {"memory_revisions": {"noise": float("nan")}}, r"ensemble\.series\.memory_revisions\.noise: is nan"),
        ("oom", {"near_share": 0}, r"ensemble\.oom\.near_share: is 0\.0"),
        ("oom", {"raise_ratios": []}, r"ensemble\.oom\.raise_ratios: must hold one ratio or more"),
        ("oom", {"max_growth": 1}, r"ensemble\.oom\.max_growth: is 1\.0: must be above 1"),
        ("cpu.experts", [], r"ensemble\.cpu\.experts: must name one expert or more"),
        ("cpu.experts.1.forecaster", "tea-leaves", r"'tea-leaves' - at `\$\.ensemble\.cpu\.experts\[1\]\.forecaster`"),
        ("cpu.experts.1.horizon", "week", r"'week' - at `\$\.ensemble\.cpu\.experts\[1\]\.horizon`"),
        ("cpu.experts.1.margin", 2, "unknown field `margin`"),
        ("memory.experts.1.quantile", 0.99, r"ensemble\.memory\.experts\[1\]\.quantile: is 0\.99: must be 0\.5 to 0\.98"),
        ("memory.experts.0.quantile", 0.4, r"ensemble\.memory\.experts\[0\]\.quantile: is 0\.4"),
        ("memory.experts.0.quantile", float("nan"), r"ensemble\.memory\.experts\[0\]\.quantile: is nan"),
        ("cpu.experts.0.factor", 0, r"ensemble\.cpu\.experts\[0\]\.factor: is 0\.0: must be above 0"),
        ("cpu.experts.0.factor", float("inf"), r"ensemble\.cpu\.experts\[0\]\.factor: is inf"),
        ("cpu.runs.quantile", 1.0, r"ensemble\.cpu\.runs\.quantile: is 1\.0"),
        ("cpu.runs.forecaster", "hour-of-day", r"ensemble\.cpu\.runs\.forecaster: is 'hour-of-day': must be trailing-quantile"),
        ("cpu.hysteresis.raise_above", -0.1, r"ensemble\.cpu\.hysteresis: must hold raise_above >= 0"),
        ("cpu.hysteresis.lower_below", 1.0, r"ensemble\.cpu\.hysteresis: must hold .* lower_below < 1"),
        ("memory.peaks.0.hours", 0, r"ensemble\.memory\.peaks\[0\]: must hold hours >= 1"),
        ("memory.peaks.0.factor", 0, r"ensemble\.memory\.peaks\[0\]: must hold .* factor > 0"),
        ("memory.seasons.0.days", [], r"ensemble\.memory\.seasons\[0\]\.days: must name one day or more"),
        ("memory.seasons.0.days", [0], r"ensemble\.memory\.seasons\[0\]\.days: must name .* 1 or more days ago"),
        ("memory.seasons.0.ahead_hours", 0, r"ensemble\.memory\.seasons\[0\]: must hold 1 <= ahead_hours <= 24"),
        ("memory.seasons.0.before_hours", 25, r"ensemble\.memory\.seasons\[0\]: must hold .* before_hours <= 24"),
        ("memory.seasons.0.factor", 0, r"ensemble\.memory\.seasons\[0\]\.factor: is 0\.0: must be above 0"),
        ("memory.guard.share", 1.1, r"ensemble\.memory\.guard: must hold 0 < share <= 1 < factor"),
        ("memory.guard.share", 0.9, r"ensemble\.memory\.guard: must hold share \* factor > 1"),
        ("memory.guard.growth", -1, r"ensemble\.memory\.guard: must hold .* growth >= 0"),
        ("cpu.hysteresis.lower_after_hours", -1, r"ensemble\.cpu\.hysteresis: must hold .* lower_after_hours >= 0"),
        ("memory.guard.factor", 1.0, r"ensemble\.memory\.guard: must hold"),
        ("cpu.min_density", 1.5, r"ensemble\.cpu\.min_density: is 1\.5: must be 0 to 1"),
        ("cpu.ceiling", 0.9, r"ensemble\.cpu\.ceiling: is 0\.9: must be 1 or more"),
        *(
            (f"cpu.selection.{key}", -1, rf"ensemble\.cpu\.selection\.{key}: is -1\.0: must be 0 or more")
            for key in ("overrun", "violation", "resize", "resize_share", "switching", "prior_hours")
        ),
        ("cpu.selection.half_life_hours", 0, r"ensemble\.cpu\.selection\.half_life_hours: is 0\.0: must be above 0"),
        ("cpu.selection.patience", 1, r"unknown field `patience` - at `\$\.ensemble\.cpu\.selection`"),
    ],
)
def test_a_mistake_in_an_ensemble_names_the_file_and_the_key(tmp_path, key, value, message):
    path = an_ensemble_file(tmp_path, setting(f"ensemble.{key}", value))
    with pytest.raises(ValidationError, match=message) as caught:
        load_profile(path)
    assert str(path) in str(caught.value)


def test_all_mistakes_are_told_at_once(tmp_path):
    def change(document):
        document["ensemble"]["cpu"]["min_density"] = 2
        document["ensemble"]["memory"]["peaks"][0]["hours"] = 0

    with pytest.raises(ValidationError) as caught:
        load_profile(an_ensemble_file(tmp_path, change))
    assert [field.partition(":")[0] for field in caught.value.fields] == ["ensemble.cpu.min_density", "ensemble.memory.peaks[0]"]


@pytest.mark.parametrize(
    "path", [lambda directory: an_ensemble_file(directory, setting("forecaster", "decaying-histogram")),
             lambda directory: an_ensemble_file(directory, setting("ensemble", None)),
             lambda directory: a_profile_file(directory, setting("forecaster", "ensemble"))],
    ids=["rules without the forecaster", "no rules", "the forecaster without rules"],
)  # fmt: skip
def test_an_ensemble_and_its_forecaster_belong_together(tmp_path, path):
    with pytest.raises(ValidationError, match="ensemble: is needed by the forecaster 'ensemble' and by no other"):
        load_profile(path(tmp_path))


@pytest.mark.parametrize("text", ["a: [", "", "- 1"], ids=["not YAML", "empty", "a list"])
def test_a_file_that_holds_no_profile(tmp_path, text):
    path = tmp_path / "broken.yaml"
    path.write_text(text)
    with pytest.raises(ValidationError, match=r"broken\.yaml"):
        load_profile(path)


def test_another_directory_takes_the_place_of_the_programs_own(tmp_path):
    a_profile_file(tmp_path, setting("name", "mine"), "mine.yaml")
    assert sorted(load_catalogue(tmp_path)) == ["mine"]


def test_directories_without_a_profile(tmp_path):
    with pytest.raises(UsageError, match="is not a directory"):
        load_catalogue(tmp_path / "absent")
    with pytest.raises(UsageError, match="holds no profile"):
        load_catalogue(tmp_path)


def test_an_unknown_profile_is_told_with_the_known_ones():
    with pytest.raises(UsageError, match=r"no profile is named 'fast': choose one of .*vpa-classic") as caught:
        choose(load_catalogue(), "fast")
    assert caught.value.reason == "UnknownProfile"
