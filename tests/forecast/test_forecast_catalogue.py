"""The catalogue: what is in it, and that a mistake in a profile is told with its file and key."""

from pathlib import Path

import pytest
import yaml

from vpa_ippr.api.errors import UsageError, ValidationError
from vpa_ippr.forecast.catalogue import choose, default_directory, load_catalogue, load_profile
from vpa_ippr.usage.container import UsageRules

CLASSIC = default_directory() / "vpa-classic.yaml"


def a_profile_file(tmp_path: Path, change=None, name="vpa-classic.yaml"):
    document = yaml.safe_load(CLASSIC.read_text())
    if change is not None:
        change(document)
    path = tmp_path / name
    path.write_text(yaml.safe_dump(document))
    return path


def setting(path, value):
    def change(document):
        *parents, key = path.split(".")
        for parent in parents:
            document = document[parent]
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
