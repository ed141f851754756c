"""The profiles of ``models/``: which forecaster, which quantiles, which margins. Read once, validated in full, then only data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Final, Literal, TypeVar

import msgspec
import yaml

from vpa_ippr.api.errors import UsageError, ValidationError
from vpa_ippr.api.series import Resource
from vpa_ippr.forecast.rules import Ensemble, broken_rules
from vpa_ippr.usage.container import EPSILON, UsageRules
from vpa_ippr.usage.histogram import BucketOptions, exponential_buckets

PROFILE_SCHEMA: Final = "vpa-ippr/profile/v1"
_MAX_BUCKETS: Final = 10_000


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a profile: every key is needed and no other is allowed."""


class Quantiles(_Part, frozen=True):
    """The quantile of use from which each value is taken, 0 to 1."""

    lower_bound: float
    target: float
    upper_bound: float


class Buckets(_Part, frozen=True):
    """An exponential histogram's buckets, in cores or bytes."""

    first: float
    ratio: float
    max: float

    def options(self) -> BucketOptions:
        """The buckets themselves."""
        return exponential_buckets(self.max, self.first, self.ratio, EPSILON)


class ResourceProfile(_Part, frozen=True):
    """How one resource is recommended; ``pod_minimum`` and ``round_up_to`` are in millicores or bytes."""

    quantiles: Quantiles
    half_life_seconds: float
    margin_fraction: float
    confidence_interval_seconds: float
    buckets: Buckets
    pod_minimum: int
    round_up_to: int


class MemoryPeaks(_Part, frozen=True):
    """How memory samples become peaks, and what an OOM kill adds."""

    interval_seconds: float
    interval_count: int
    oom_bump_up_ratio: float
    oom_min_bump_up_bytes: float


class ConfidenceFactor(_Part, frozen=True):
    """A bound is multiplied by ``(1 + multiplier / confidence) ** exponent``."""

    multiplier: float
    exponent: float


class Confidence(_Part, frozen=True):
    """How thin history widens the bounds, and the confidence below which it is called low."""

    upper_bound: ConfidenceFactor
    lower_bound: ConfidenceFactor
    low_below: float


class Profile(_Part, frozen=True):
    """One file of the catalogue."""

    schema: Literal["vpa-ippr/profile/v1"]
    name: str
    description: str
    forecaster: Literal["decaying-histogram", "ensemble"]
    cpu: ResourceProfile
    memory: ResourceProfile
    memory_peaks: MemoryPeaks
    confidence: Confidence
    ensemble: Ensemble | None = None

    def resource(self, resource: Resource) -> ResourceProfile:
        """The part for one resource."""
        return self.cpu if resource is Resource.CPU else self.memory

    def usage_rules(self) -> UsageRules:
        """How samples are kept under this profile."""
        return UsageRules(
            cpu_buckets=self.cpu.buckets.options(),
            memory_buckets=self.memory.buckets.options(),
            cpu_half_life_seconds=self.cpu.half_life_seconds,
            memory_half_life_seconds=self.memory.half_life_seconds,
            aggregation_interval_seconds=self.memory_peaks.interval_seconds,
            aggregation_interval_count=self.memory_peaks.interval_count,
            oom_bump_up_ratio=self.memory_peaks.oom_bump_up_ratio,
            oom_min_bump_up_bytes=self.memory_peaks.oom_min_bump_up_bytes,
        )


def default_directory() -> Path:
    """The catalogue that came with the program: inside the package when installed, ``models/`` at the root of a checkout."""
    packaged = Path(str(files("vpa_ippr"))) / "_models"
    return packaged if packaged.is_dir() else Path(__file__).resolve().parents[2] / "models"


def load_catalogue(directory: Path | None = None) -> dict[str, Profile]:
    """All profiles of a directory (default: the program's own) by name.

    Raises:
        UsageError: there is no such directory, or no profile in it.
        ValidationError: a file breaks the schema; the message names the file and the key.
    """
    directory = directory or default_directory()
    if not directory.is_dir():
        raise UsageError(f"model catalogue {directory} is not a directory: give one that holds profiles (*.yaml)")
    profiles = [load_profile(path) for path in sorted(directory.glob("*.yaml"))]
    if not profiles:
        raise UsageError(f"model catalogue {directory} holds no profile (*.yaml)")
    return {profile.name: profile for profile in profiles}


def load_profile(path: Path) -> Profile:
    """Read and check one profile; see ``load_catalogue`` for the errors."""
    try:
        profile = msgspec.convert(yaml.safe_load(path.read_text(encoding="utf-8")), Profile)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read profile {path}: {error}") from error
    except yaml.YAMLError as error:
        raise ValidationError(f"profile {path} is not YAML: {' '.join(str(error).split())}") from error
    except msgspec.ValidationError as error:
        raise ValidationError(f"profile {path}: {error}") from error
    broken = tuple(f"{key}: {why}" for key, why in _broken_rules(profile, path.stem))
    if broken:
        raise ValidationError(f"profile {path}: {'; '.join(broken)}", fields=broken)
    return profile


_Found = TypeVar("_Found")


def choose(catalogue: Mapping[str, _Found], name: str) -> _Found:
    """The entry of that name; UsageError with the known names if there is none."""
    found = catalogue.get(name)
    if found is None:
        raise UsageError(f"no profile is named {name!r}: choose one of {', '.join(sorted(catalogue))}", reason="UnknownProfile")
    return found


def _broken_rules(profile: Profile, stem: str) -> Iterator[tuple[str, str]]:
    if profile.name != stem:
        yield "name", f"is {profile.name!r} in a file named {stem!r}"
    if (profile.forecaster == "ensemble") != (profile.ensemble is not None):
        yield "ensemble", "is needed by the forecaster 'ensemble' and by no other"
    if profile.ensemble is not None:
        yield from broken_rules(profile.ensemble)
    for resource in Resource:
        for key, why in _broken_resource(profile.resource(resource)):
            yield f"{resource}.{key}", why
    yield from _not_above(0, profile.memory_peaks, "memory_peaks", ("interval_seconds", "interval_count"))
    yield from _not_from(1, profile.memory_peaks, "memory_peaks", ("oom_bump_up_ratio",))
    yield from _not_from(0, profile.memory_peaks, "memory_peaks", ("oom_min_bump_up_bytes",))
    yield from _not_from(0, profile.confidence, "confidence", ("low_below",))
    for bound in ("upper_bound", "lower_bound"):
        factor: ConfidenceFactor = getattr(profile.confidence, bound)
        yield from _not_from(0, factor, f"confidence.{bound}", ("multiplier",))
        sign = 1 if bound == "upper_bound" else -1
        if not (math.isfinite(factor.exponent) and factor.exponent * sign >= 0):
            yield f"confidence.{bound}.exponent", f"is {factor.exponent}: the bound must move away from the target"


def _broken_resource(part: ResourceProfile) -> Iterator[tuple[str, str]]:
    quantiles = part.quantiles
    if not 0 < quantiles.lower_bound <= quantiles.target <= quantiles.upper_bound <= 1:
        yield "quantiles", "must hold 0 < lower_bound <= target <= upper_bound <= 1"
    yield from _not_above(0, part, "", ("half_life_seconds", "confidence_interval_seconds"))
    yield from _not_from(0, part, "", ("margin_fraction", "pod_minimum"))
    yield from _not_from(1, part, "", ("round_up_to",))
    buckets = part.buckets
    if not (0 < buckets.first < buckets.max < math.inf and 1 < buckets.ratio < math.inf):
        yield "buckets", "must hold 0 < first < max and ratio > 1"
    elif math.log(buckets.max * (buckets.ratio - 1) / buckets.first + 1) / math.log(buckets.ratio) > _MAX_BUCKETS:
        yield "buckets", f"make more than {_MAX_BUCKETS} buckets: raise ratio or first"


def _not_above(bound: float, part: msgspec.Struct, prefix: str, keys: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for key in keys:
        if not bound < getattr(part, key) < math.inf:
            yield f"{prefix}.{key}".lstrip("."), f"is {getattr(part, key)}: must be above {bound}"


def _not_from(bound: float, part: msgspec.Struct, prefix: str, keys: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for key in keys:
        if not bound <= getattr(part, key) < math.inf:
            yield f"{prefix}.{key}".lstrip("."), f"is {getattr(part, key)}: must be {bound} or more"
