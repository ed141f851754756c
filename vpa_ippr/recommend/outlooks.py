"""The ensembles of all profiles in the recommender's cycle: what the pods and the history tell them, and what they say of containers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vpa_ippr.api.errors import UsageError, ValidationError
from vpa_ippr.api.pod import Pod
from vpa_ippr.api.series import Finding, Resource, WorkloadRef
from vpa_ippr.forecast.catalogue import Profile
from vpa_ippr.forecast.forecasters import ProfileModel, is_model_named, load_profile_model
from vpa_ippr.recommend.cohorts import Key, Rows
from vpa_ippr.recommend.forecasts import ProfileForecasts, StoredContainer
from vpa_ippr.recommend.history import UsageHistory
from vpa_ippr.recommend.holds import held_by_pods
from vpa_ippr.recommend.live import LiveSigns, guard_need, read_live
from vpa_ippr.recommend.needs import Outlook
from vpa_ippr.recommend.series import ContainerSeries


@dataclass(frozen=True, slots=True, eq=False)
class _Seen:
    """A workload under an ensemble: its containers' series and what its pods tell."""

    workload: WorkloadRef
    series: Mapping[str, ContainerSeries]
    signs: LiveSigns


class Outlooks:
    """Keeps the forecasts of each profile that is in use; not for use by several threads at once."""

    def __init__(self, history: UsageHistory, models: Path | None, model: ProfileModel | None = None) -> None:
        """``models``: the directory of the models that profiles name; ``model`` takes the place of all of these."""
        self._history = history
        self._models = models
        self._model = model
        self._named: dict[str, ProfileModel] = {}
        self._by_profile: dict[str, ProfileForecasts] = {}

    def prepare(self, profiles: Iterable[Profile]) -> dict[str, ValidationError | UsageError]:
        """Make ready these profiles' ensembles and forget all others; why one cannot be used, by its name."""
        wanted = {profile.name: profile for profile in profiles if profile.ensemble is not None}
        for name in self._by_profile.keys() - wanted.keys():
            del self._by_profile[name]
            self._named.pop(name, None)
        broken: dict[str, ValidationError | UsageError] = {}
        for name in wanted.keys() - self._by_profile.keys():
            try:
                model = self._model or load_profile_model(self._models, wanted[name])
                self._by_profile[name] = ProfileForecasts(wanted[name], model)
                if model is not None and is_model_named(wanted[name]):
                    self._named[name] = model
            except (UsageError, ValidationError) as error:
                broken[name] = error
        return broken

    @property
    def models(self) -> list[ProfileModel]:
        """The models that are in use, each once."""
        return list({model.sha256: model for model in self._named.values()}.values())

    def adopt(self, model: ProfileModel) -> None:
        """Use this model for every profile that names one."""
        self._model = model
        for name in self._named:
            self._named[name] = model
            self._by_profile[name].use(model)

    def restore(self, profile: Profile, learned: Mapping[Key, StoredContainer]) -> list[Finding]:
        """Go on from checkpoints; what is told has to be learned anew."""
        if profile.name not in self._by_profile or not learned:
            return []
        refused = self._by_profile[profile.name].load(learned)
        return [Finding(error.reason, f"{key[0].namespace}/{key[0].name}/{key[1]}", 1, str(error)) for key, error in refused.items()]

    def at(self, profile: Profile, pods: Mapping[WorkloadRef, Sequence[Pod]], now: float) -> tuple[dict[Key, Outlook], tuple[Finding, ...]]:
        """What is known of the containers of these workloads, given their live pods; and what could not be read of the pods."""
        forecasts = self._by_profile.get(profile.name)
        if forecasts is None or profile.ensemble is None:
            return {}, ()
        seen = [self._seen(workload, live, now) for workload, live in pods.items()]
        rows, limits = {}, {}
        for one in seen:
            segments = self._history.segments(one.workload)
            for name, series in one.series.items():
                rows[one.workload, name] = Rows(series.steps.cpu, series.steps.memory, segments)
                limits[one.workload, name] = one.signs.limit(name)
        forecasts.advance(rows, limits)
        outlooks = {}
        guard = profile.ensemble.memory.guard
        for one in seen:
            for name, series in one.series.items():
                key = one.workload, name
                need = None if guard is None else guard_need(series.steps, one.workload.namespace, name, one.signs, guard, now)
                held = held_by_pods(series.steps, name, one.signs, profile.ensemble, now)
                held[Resource.MEMORY] = (*forecasts.guarded(key, now, need), *held[Resource.MEMORY])
                outlooks[key] = forecasts.outlook(key, series, now, held)
        return outlooks, tuple(finding for one in seen for finding in one.signs.findings)

    def stored(self, profile: Profile, workload: WorkloadRef, container: str) -> StoredContainer | None:
        """What a checkpoint should hold of a container; None under a profile without an ensemble."""
        forecasts, series = self._by_profile.get(profile.name), self._history.series(workload).get(container)
        if forecasts is None or series is None:
            return None
        return forecasts.dump((workload, container), series.oom, self._history.segments(workload))

    def _seen(self, workload: WorkloadRef, pods: Sequence[Pod], now: float) -> _Seen:
        signs = read_live(pods, now)
        if signs.revision is not None:
            self._history.see_revision(workload, signs.revision.name, signs.revision.begin)
        return _Seen(workload, self._history.series(workload), signs)
