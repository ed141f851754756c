"""Tables for ``kubectl get``: the columns of each resource and the cells of an object (``meta.k8s.io/v1`` Table)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from vpa_ippr.api.errors import ValidationError
from vpa_ippr.api.timestamps import parse_time
from vpa_ippr.sandbox.podcells import pod_cells
from vpa_ippr.sandbox.resources import Resource

Json = dict[str, Any]
Cells = Callable[[Json, float], list[Any]]

_MINUTE, _HOUR, _DAY, _YEAR = 60, 3600, 86400, 365 * 86400


@dataclass(frozen=True, slots=True)
class Column:
    """A column; kubectl shows priority 0 always and higher ones with ``-o wide``."""

    name: str
    type: str = "string"
    priority: int = 0

    def to_json(self) -> Json:
        """``metav1.TableColumnDefinition``."""
        form = "name" if self.name == "Name" else ""
        return {"name": self.name, "type": self.type, "format": form, "description": "", "priority": self.priority}


def table(rows: Sequence[Json], columns: Sequence[Column], metadata: Json) -> Json:
    """A Table of rows made by ``row``."""
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": [column.to_json() for column in columns],
        "rows": list(rows),
    }


def layout(resource: Resource, custom_columns: Sequence[Json]) -> tuple[list[Column], Cells]:
    """The columns of a resource and the function that fills them from an object and the present time."""
    if resource.custom:
        columns = [Column(c["name"], c["type"], c.get("priority", 0)) for c in custom_columns] or [Column("Age", "date")]
        sources = list(custom_columns) or [{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}]
        return [Column("Name"), *columns], lambda obj, now: [_name(obj), *(_custom_cell(c, obj, now) for c in sources)]
    columns_text, cells = _BUILT_IN.get(resource.storage_key, ("Name Age", lambda obj, now: [_name(obj), age(obj, now)]))
    return [_column(text) for text in columns_text.split()], cells


def row(obj: Json, cells: Sequence[Any], include: str) -> Json:
    """One row; ``include`` is the ``includeObject`` of the request."""
    entry: Json = {"cells": list(cells)}
    if include == "Object":
        entry["object"] = obj
    elif include != "None":
        entry["object"] = partial_metadata(obj)
    return entry


def partial_metadata(obj: Json) -> Json:
    """``PartialObjectMetadata`` of an object."""
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}


def human_duration(seconds: float) -> str:
    """As ``duration.HumanDuration`` prints: ``45s``, ``5m10s``, ``3h``, ``2d4h``."""
    whole = int(seconds)
    if whole < -1:
        return "<invalid>"
    steps = (
        (2 * _MINUTE, max(whole, 0), "s", 0, ""),
        (10 * _MINUTE, whole // _MINUTE, "m", whole % _MINUTE, "s"),
        (3 * _HOUR, whole // _MINUTE, "m", 0, ""),
        (8 * _HOUR, whole // _HOUR, "h", whole // _MINUTE % 60, "m"),
        (2 * _DAY, whole // _HOUR, "h", 0, ""),
        (8 * _DAY, whole // _DAY, "d", whole // _HOUR % 24, "h"),
        (2 * _YEAR, whole // _DAY, "d", 0, ""),
        (8 * _YEAR, whole // _YEAR, "y", whole // _DAY % 365, "d"),
    )
    for below, major, unit, minor, minor_unit in steps:
        if whole < below:
            return f"{major}{unit}" + (f"{minor}{minor_unit}" if minor else "")
    return f"{whole // _YEAR}y"


def age(obj: Json, now: float) -> str:
    """Time since creation."""
    return since(obj["metadata"].get("creationTimestamp"), now)


def since(text: str | None, now: float) -> str:
    """Time since an RFC 3339 time."""
    try:
        return human_duration(now - parse_time(text)) if text else "<unknown>"
    except ValidationError:
        return "<unknown>"


def _column(text: str) -> Column:
    """``Ready``, or ``Node+`` for a wide column; ``_`` stands for a space, ``#`` marks a number."""
    name = text.rstrip("+#").replace("_", " ")
    return Column(name, "integer" if "#" in text else "string", 1 if "+" in text else 0)


def _name(obj: Json) -> str:
    return str(obj["metadata"]["name"])


# Custom columns

_STEP = re.compile(
    r"""\.(?P<name>[^.\[\]]+)|\['(?P<quoted>[^']+)'\]|\[(?P<index>-?\d+|\*)\]|\[\?\(@\.(?P<key>[\w.]+)\s*==\s*["'](?P<value>[^"']*)["']\)\]"""
)


def json_path(path: str, obj: Any) -> list[Any]:
    """What a simple JSONPath selects: names, indexes, ``[*]`` and ``[?(@.key=="value")]``."""
    found = [obj]
    for match in _STEP.finditer(path):
        found = [below for value in found for below in _step(match, value)]
    return found


def _step(match: re.Match[str], value: Any) -> list[Any]:
    name = match["name"] or match["quoted"]
    if name:
        return [value[name]] if isinstance(value, dict) and name in value else []
    if not isinstance(value, list):
        return []
    if match["key"]:
        return [item for item in value if str(item.get(match["key"], "")) == match["value"]]
    if match["index"] == "*":
        return value
    index = int(match["index"])
    return [value[index]] if -len(value) <= index < len(value) else []


def _custom_cell(column: Json, obj: Json, now: float) -> Any:
    found = json_path(column["jsonPath"], obj)
    if not found:
        return None
    value = found[0]
    if column["type"] == "date":
        return since(value, now)
    return value if column["type"] in ("integer", "number", "boolean") else str(value)


# Built-in columns


def _spec(obj: Json, name: str, default: Any = None) -> Any:
    return (obj.get("spec") or {}).get(name, default)


def _status(obj: Json, name: str, default: Any = 0) -> Any:
    value = (obj.get("status") or {}).get(name)
    return default if value is None else value


def _deployment(obj: Json, now: float) -> list[Any]:
    ready = f"{_status(obj, 'readyReplicas')}/{_spec(obj, 'replicas', 1)}"
    return [_name(obj), ready, _status(obj, "updatedReplicas"), _status(obj, "availableReplicas"), age(obj, now), *_images(obj)]


def _replica_set(obj: Json, now: float) -> list[Any]:
    counts = [_spec(obj, "replicas", 1), _status(obj, "replicas"), _status(obj, "readyReplicas")]
    return [_name(obj), *counts, age(obj, now), *_images(obj)]


def _stateful_set(obj: Json, now: float) -> list[Any]:
    return [_name(obj), f"{_status(obj, 'readyReplicas')}/{_spec(obj, 'replicas', 1)}", age(obj, now), *_images(obj)[:2]]


def _daemon_set(obj: Json, now: float) -> list[Any]:
    names = ("desiredNumberScheduled", "currentNumberScheduled", "numberReady", "updatedNumberScheduled", "numberAvailable")
    selector = (_spec(obj, "template", {}).get("spec") or {}).get("nodeSelector") or {}
    return [_name(obj), *(_status(obj, name) for name in names), _pairs(selector), age(obj, now), *_images(obj)]


def _images(obj: Json) -> list[str]:
    containers = ((_spec(obj, "template") or {}).get("spec") or {}).get("containers") or []
    labels = (_spec(obj, "selector") or {}).get("matchLabels") or {}
    return [",".join(c["name"] for c in containers), ",".join(c.get("image", "") for c in containers), _pairs(labels)]


def _pairs(labels: Json) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items())) or "<none>"


def _job(obj: Json, now: float) -> list[Any]:
    conditions = {c["type"] for c in _status(obj, "conditions", []) if c["status"] == "True"}
    state = "Complete" if "Complete" in conditions else "Failed" if "Failed" in conditions else "Running"
    start, end = _status(obj, "startTime", None), _status(obj, "completionTime", None)
    duration = since(start, parse_time(end) if end else now) if start else ""
    return [_name(obj), state, f"{_status(obj, 'succeeded')}/{_spec(obj, 'completions', 1)}", duration, age(obj, now)]


def _cron_job(obj: Json, now: float) -> list[Any]:
    last = _status(obj, "lastScheduleTime", None)
    zone = _spec(obj, "timeZone") or "<none>"
    active = len(_status(obj, "active", []))
    return [
        _name(obj),
        _spec(obj, "schedule"),
        zone,
        str(_spec(obj, "suspend", False)),
        active,
        since(last, now) if last else "<none>",
        age(obj, now),
    ]


def _node(obj: Json, now: float) -> list[Any]:
    ready = next((c for c in _status(obj, "conditions", []) if c["type"] == "Ready"), None)
    state = "Unknown" if ready is None else "Ready" if ready["status"] == "True" else "NotReady"
    state += ",SchedulingDisabled" if _spec(obj, "unschedulable") else ""
    prefix = "node-role.kubernetes.io/"
    roles = [label.removeprefix(prefix) for label in obj["metadata"].get("labels") or {} if label.startswith(prefix)]
    return [_name(obj), state, ",".join(sorted(roles)) or "<none>", age(obj, now), _status(obj, "nodeInfo", {}).get("kubeletVersion", "")]


def _event(obj: Json, now: float) -> list[Any]:
    involved = obj.get("involvedObject") or {}
    seen = obj.get("lastTimestamp") or obj.get("eventTime") or obj["metadata"].get("creationTimestamp")
    subject = f"{involved.get('kind', '').lower()}/{involved.get('name', '')}"
    return [since(seen, now), obj.get("type", ""), obj.get("reason", ""), subject, (obj.get("message") or "").strip()]


def _service(obj: Json, now: float) -> list[Any]:
    ports = ",".join(f"{p['port']}/{p.get('protocol', 'TCP')}" for p in _spec(obj, "ports") or []) or "<none>"
    return [_name(obj), _spec(obj, "type", ""), _spec(obj, "clusterIP") or "<none>", "<none>", ports, age(obj, now)]


def _quota(obj: Json, now: float) -> list[Any]:
    used, hard = _status(obj, "used", {}), _status(obj, "hard", {})
    shown = [f"{name}: {used.get(name, 0)}/{hard[name]}" for name in sorted(hard)]
    requests = ", ".join(text for text in shown if not text.startswith("limits."))
    return [_name(obj), requests, ", ".join(text for text in shown if text.startswith("limits.")), age(obj, now)]


def _budget(obj: Json, now: float) -> list[Any]:
    least, most = _spec(obj, "minAvailable"), _spec(obj, "maxUnavailable")
    bounds = ["N/A" if bound is None else str(bound) for bound in (least, most)]
    return [_name(obj), *bounds, _status(obj, "disruptionsAllowed"), age(obj, now)]


def _autoscaler(obj: Json, now: float) -> list[Any]:
    target = _spec(obj, "scaleTargetRef", {})
    bounds = [str(_spec(obj, "minReplicas", 1)), _spec(obj, "maxReplicas", 0), _status(obj, "currentReplicas")]
    return [_name(obj), f"{target.get('kind')}/{target.get('name')}", "<unknown>", *bounds, age(obj, now)]


_BUILT_IN: dict[str, tuple[str, Cells]] = {
    "pods": (
        "Name Ready Status Restarts Age IP+ Node+ Nominated_Node+ Readiness_Gates+",
        lambda obj, now: pod_cells(obj, lambda text: since(text, now)),
    ),
    "deployments.apps": ("Name Ready Up-to-date# Available# Age Containers+ Images+ Selector+", _deployment),
    "replicasets.apps": ("Name Desired# Current# Ready# Age Containers+ Images+ Selector+", _replica_set),
    "statefulsets.apps": ("Name Ready Age Containers+ Images+", _stateful_set),
    "daemonsets.apps": (
        "Name Desired# Current# Ready# Up-to-date# Available# Node_Selector Age Containers+ Images+ Selector+",
        _daemon_set,
    ),
    "jobs.batch": ("Name Status Completions Duration Age", _job),
    "cronjobs.batch": ("Name Schedule Timezone Suspend Active# Last_Schedule Age", _cron_job),
    "nodes": ("Name Status Roles Age Version", _node),
    "namespaces": ("Name Status Age", lambda obj, now: [_name(obj), _status(obj, "phase", ""), age(obj, now)]),
    "events": ("Last_Seen Type Reason Object Message", _event),
    "configmaps": ("Name Data# Age", lambda obj, now: [_name(obj), len(obj.get("data") or {}), age(obj, now)]),
    "secrets": ("Name Type Data# Age", lambda obj, now: [_name(obj), obj.get("type"), len(obj.get("data") or {}), age(obj, now)]),
    "services": ("Name Type Cluster-IP External-IP Port(s) Age", _service),
    "limitranges": ("Name Created_At", lambda obj, _: [_name(obj), obj["metadata"].get("creationTimestamp")]),
    "resourcequotas": ("Name Request Limit Age", _quota),
    "leases.coordination.k8s.io": ("Name Holder Age", lambda obj, now: [_name(obj), _spec(obj, "holderIdentity") or "", age(obj, now)]),
    "poddisruptionbudgets.policy": ("Name Min_Available Max_Unavailable Allowed_Disruptions# Age", _budget),
    "horizontalpodautoscalers.autoscaling": ("Name Reference Targets MinPods MaxPods# Replicas# Age", _autoscaler),
    "customresourcedefinitions.apiextensions.k8s.io": (
        "Name Created_At",
        lambda obj, _: [_name(obj), obj["metadata"].get("creationTimestamp")],
    ),
}
