"""Profiles with one setting moved: whether what is shipped stands on a plateau or on a needle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from msgspec.structs import replace

from vpa_ippr.api.series import Resource
from vpa_ippr.forecast.catalogue import Profile
from vpa_ippr.forecast.rules import ResourceEnsemble

SHIPPED: Final = "as shipped"

_Change = Callable[[ResourceEnsemble], ResourceEnsemble]


def variants(profile: Profile, resource: Resource) -> dict[str, Profile]:
    """The profile itself, first, and with one setting of the resource at a time made smaller and larger; settings it lacks are left out."""
    ensemble = profile.ensemble
    assert ensemble is not None
    rules = ensemble.resource(resource)
    found = {SHIPPED: profile}
    for name, change in _changes(rules):
        changed = change(rules)
        moved = replace(ensemble, cpu=changed) if resource is Resource.CPU else replace(ensemble, memory=changed)
        found[name] = replace(profile, ensemble=moved)
    return found


def _changes(rules: ResourceEnsemble) -> Iterator[tuple[str, _Change]]:
    for factor in (0.97, 1.03):
        yield f"all margins x {factor:g}", _margins(factor)
    for factor in (0.5, 2.0):
        yield f"hysteresis x {factor:g}", _hysteresis(factor)
        if rules.selection is not None:
            for key in ("overrun", "violation", "resize"):
                yield f"selection.{key} x {factor:g}", _selection(key, factor)
        if rules.hysteresis.lower_after_hours:
            yield f"lower_after_hours x {factor:g}", _lower_after(factor)
        if rules.peaks:
            yield f"hours of peaks x {factor:g}", _peak_hours(factor)
        if rules.guard is not None:
            yield f"guard's distance to the limit x {factor:g}", _guard_distance(factor)


def _margins(factor: float) -> _Change:
    def change(rules: ResourceEnsemble) -> ResourceEnsemble:
        experts = tuple(replace(expert, factor=expert.factor * factor) for expert in rules.experts)
        peaks = tuple(replace(peak, factor=peak.factor * factor) for peak in rules.peaks)
        seasons = tuple(replace(season, factor=season.factor * factor) for season in rules.seasons)
        return replace(rules, experts=experts, peaks=peaks, seasons=seasons)

    return change


def _hysteresis(factor: float) -> _Change:
    return lambda rules: replace(
        rules,
        hysteresis=replace(
            rules.hysteresis, raise_above=rules.hysteresis.raise_above * factor, lower_below=rules.hysteresis.lower_below * factor
        ),
    )


def _lower_after(factor: float) -> _Change:
    return lambda rules: replace(rules, hysteresis=replace(rules.hysteresis, lower_after_hours=rules.hysteresis.lower_after_hours * factor))


def _selection(key: str, factor: float) -> _Change:
    def change(rules: ResourceEnsemble) -> ResourceEnsemble:
        assert rules.selection is not None
        return replace(rules, selection=replace(rules.selection, **{key: getattr(rules.selection, key) * factor}))

    return change


def _peak_hours(factor: float) -> _Change:
    return lambda rules: replace(rules, peaks=tuple(replace(peak, hours=max(1, round(peak.hours * factor))) for peak in rules.peaks))


def _guard_distance(factor: float) -> _Change:
    return lambda rules: replace(
        rules, guard=None if rules.guard is None else replace(rules.guard, share=1 - (1 - rules.guard.share) * factor)
    )
