"""The field selectors that each resource supports; all others are refused as the real server does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vpa_ippr.sandbox.resources import Resource

Json = dict[str, Any]
FieldReader = Callable[[Json], str]


def _path(*steps: str) -> FieldReader:
    def read(obj: Json) -> str:
        value: Any = obj
        for step in steps:
            value = value.get(step) if isinstance(value, dict) else None
        if value is None:
            return ""
        return str(value).lower() if isinstance(value, bool) else str(value)

    return read


def _pod_ip(obj: Json) -> str:
    return _path("status", "podIP")(obj)


def _event_source(obj: Json) -> str:
    return _path("source", "component")(obj) or _path("reportingComponent")(obj)


_COMMON: dict[str, FieldReader] = {"metadata.name": _path("metadata", "name"), "metadata.namespace": _path("metadata", "namespace")}
_INVOLVED = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
_BY_RESOURCE: dict[str, dict[str, FieldReader]] = {
    "pods": {
        "spec.nodeName": _path("spec", "nodeName"),
        "spec.restartPolicy": _path("spec", "restartPolicy"),
        "spec.schedulerName": _path("spec", "schedulerName"),
        "spec.serviceAccountName": _path("spec", "serviceAccountName"),
        "spec.hostNetwork": lambda obj: _path("spec", "hostNetwork")(obj) or "false",
        "status.phase": _path("status", "phase"),
        "status.podIP": _pod_ip,
        "status.nominatedNodeName": _path("status", "nominatedNodeName"),
    },
    "nodes": {"spec.unschedulable": lambda obj: _path("spec", "unschedulable")(obj) or "false"},
    "namespaces": {"status.phase": _path("status", "phase")},
    "secrets": {"type": _path("type")},
    "replicasets.apps": {"status.replicas": lambda obj: _path("status", "replicas")(obj) or "0"},
    "jobs.batch": {"status.successful": lambda obj: _path("status", "succeeded")(obj) or "0"},
    "events": {
        **{f"involvedObject.{step}": _path("involvedObject", step) for step in _INVOLVED},
        **{f"regarding.{step}": _path("involvedObject", step) for step in _INVOLVED},
        "reason": _path("reason"),
        "reportingComponent": _path("reportingComponent"),
        "reportingController": _path("reportingComponent"),
        "source": _event_source,
        "type": _path("type"),
    },
}


def field_readers(resource: Resource) -> Mapping[str, FieldReader]:
    """What a field selector on that resource may name."""
    own = _BY_RESOURCE.get(resource.storage_key)
    common = _COMMON if resource.namespaced else {"metadata.name": _COMMON["metadata.name"]}
    return {**common, **own} if own else common
