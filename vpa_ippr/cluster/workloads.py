"""Finding the objects that pods belong to: the well-known controllers by their own API, others through their ``scale`` subresource."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import msgspec

from vpa_ippr.api.clock import Clock
from vpa_ippr.api.cluster import Workload
from vpa_ippr.api.errors import ValidationError
from vpa_ippr.api.meta import ObjectKey, ObjectMeta
from vpa_ippr.cluster import paths
from vpa_ippr.cluster.rest import ApiError, Rest


@dataclass(frozen=True, slots=True)
class _Kind:
    api_version: str
    plural: str


_WELL_KNOWN = {
    "Deployment": _Kind("apps/v1", "deployments"),
    "ReplicaSet": _Kind("apps/v1", "replicasets"),
    "StatefulSet": _Kind("apps/v1", "statefulsets"),
    "DaemonSet": _Kind("apps/v1", "daemonsets"),
    "Job": _Kind("batch/v1", "jobs"),
    "CronJob": _Kind("batch/v1", "cronjobs"),
    "ReplicationController": _Kind("v1", "replicationcontrollers"),
}


class _Spec(msgspec.Struct, frozen=True):
    replicas: int | None = None


class _Object(msgspec.Struct, rename="camel"):
    metadata: ObjectMeta
    spec: _Spec = _Spec()
    api_version: str = ""
    kind: str = ""


class _Resource(msgspec.Struct):
    name: str
    kind: str


class _ResourceList(msgspec.Struct):
    resources: list[_Resource] = []


class Remembered:
    """Workloads by namespace, API version, kind and name, each for half of ``seconds`` up to all of it; swept now and then."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._entries: dict[tuple[str, str, str, str], tuple[float, Workload]] = {}
        self._next_sweep = clock.now() + seconds

    def get(self, key: tuple[str, str, str, str]) -> Workload | None:
        """The workload, if it was put here and has not expired."""
        until, workload = self._entries.get(key, (0.0, None))
        return workload if self._clock.now() < until else None

    def put(self, key: tuple[str, str, str, str], workload: Workload) -> None:
        """Remember a workload."""
        now = self._clock.now()
        if now >= self._next_sweep:
            self._entries = {known: entry for known, entry in self._entries.items() if now < entry[0]}
            self._next_sweep = now + self._seconds
        # All that one cycle finds must not expire together, or one later cycle would ask for all of it at once.
        share = zlib.crc32("/".join(key).encode()) / 0xFFFFFFFF
        self._entries[key] = (now + self._seconds * (0.5 + share / 2), workload)


def find_workload(rest: Rest, namespace: str, api_version: str, kind: str, name: str) -> Workload | None:
    """The object of that kind and name; None when there is none, or it is neither a well-known controller nor scalable.

    Raises:
        ValidationError: the cluster serves no such kind.
        ClusterError: the API server could not be asked.
    """
    known = _WELL_KNOWN.get(kind)
    if known is not None and (not api_version or api_version.split("/")[0] == known.api_version.split("/")[0]):
        path = paths.named(known.api_version, ObjectKey(namespace, name), known.plural)
        return _workload(rest, path, known.api_version, kind)
    if not api_version:
        raise ValidationError(f"targetRef of kind {kind} needs an apiVersion", reason="UnknownKind")
    plural, scalable = _served(rest, api_version, kind)
    if not scalable:
        return None
    return _workload(rest, paths.named(api_version, ObjectKey(namespace, name), plural), api_version, kind)


def _workload(rest: Rest, path: str, api_version: str, kind: str) -> Workload | None:
    found = rest.find(path, _Object)
    if found is None:
        return None
    return Workload(api_version, kind, found.metadata.name, found.metadata.controller, found.spec.replicas)


def _served(rest: Rest, api_version: str, kind: str) -> tuple[str, bool]:
    """The plural of a kind, and whether it has a ``scale`` subresource."""
    try:
        resources = rest.get(paths.api_root(api_version), _ResourceList).resources
    except ApiError as error:
        if error.status == 404:
            raise ValidationError(f"the cluster serves no API {api_version}", reason="UnknownKind") from error
        raise
    plural = next((resource.name for resource in resources if resource.kind == kind and "/" not in resource.name), None)
    if plural is None:
        raise ValidationError(f"the cluster serves no kind {kind} in {api_version}", reason="UnknownKind")
    return plural, any(resource.name == f"{plural}/scale" for resource in resources)
