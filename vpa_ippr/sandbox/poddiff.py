"""The difference of two pod specs in the form that the API server puts into "pod updates may not change fields other than".

It is a unified diff of the specs printed as indented JSON of Kubernetes' *internal* types: Go field names in the order of the Go structs,
unset fields included.
"""

from __future__ import annotations

import difflib
import json
from typing import Any

from vpa_ippr.sandbox.status import Json

_Fields = tuple[tuple[str, str, Any], ...]
"""Go name, JSON name and Go zero value of each field, in the order of the struct."""

_POD_SPEC: _Fields = (
    ("Volumes", "volumes", None),
    ("InitContainers", "initContainers", None),
    ("Containers", "containers", None),
    ("EphemeralContainers", "ephemeralContainers", None),
    ("RestartPolicy", "restartPolicy", ""),
    ("TerminationGracePeriodSeconds", "terminationGracePeriodSeconds", None),
    ("ActiveDeadlineSeconds", "activeDeadlineSeconds", None),
    ("DNSPolicy", "dnsPolicy", ""),
    ("NodeSelector", "nodeSelector", None),
    ("ServiceAccountName", "serviceAccountName", ""),
    ("AutomountServiceAccountToken", "automountServiceAccountToken", None),
    ("NodeName", "nodeName", ""),
    ("SecurityContext", "securityContext", None),
    ("ImagePullSecrets", "imagePullSecrets", None),
    ("Hostname", "hostname", ""),
    ("Subdomain", "subdomain", ""),
    ("SetHostnameAsFQDN", "setHostnameAsFQDN", None),
    ("Affinity", "affinity", None),
    ("SchedulerName", "schedulerName", ""),
    ("Tolerations", "tolerations", None),
    ("HostAliases", "hostAliases", None),
    ("PriorityClassName", "priorityClassName", ""),
    ("Priority", "priority", None),
    ("PreemptionPolicy", "preemptionPolicy", None),
    ("DNSConfig", "dnsConfig", None),
    ("ReadinessGates", "readinessGates", None),
    ("RuntimeClassName", "runtimeClassName", None),
    ("Overhead", "overhead", None),
    ("EnableServiceLinks", "enableServiceLinks", None),
    ("TopologySpreadConstraints", "topologySpreadConstraints", None),
    ("OS", "os", None),
    ("SchedulingGates", "schedulingGates", None),
    ("ResourceClaims", "resourceClaims", None),
    ("Resources", "resources", None),
)
_CONTAINER: _Fields = (
    ("Name", "name", ""),
    ("Image", "image", ""),
    ("Command", "command", None),
    ("Args", "args", None),
    ("WorkingDir", "workingDir", ""),
    ("Ports", "ports", None),
    ("EnvFrom", "envFrom", None),
    ("Env", "env", None),
    ("Resources", "resources", {}),
    ("ResizePolicy", "resizePolicy", None),
    ("RestartPolicy", "restartPolicy", None),
    ("RestartPolicyRules", "restartPolicyRules", None),
    ("VolumeMounts", "volumeMounts", None),
    ("VolumeDevices", "volumeDevices", None),
    ("LivenessProbe", "livenessProbe", None),
    ("ReadinessProbe", "readinessProbe", None),
    ("StartupProbe", "startupProbe", None),
    ("Lifecycle", "lifecycle", None),
    ("TerminationMessagePath", "terminationMessagePath", ""),
    ("TerminationMessagePolicy", "terminationMessagePolicy", ""),
    ("ImagePullPolicy", "imagePullPolicy", ""),
    ("SecurityContext", "securityContext", None),
    ("Stdin", "stdin", False),
    ("StdinOnce", "stdinOnce", False),
    ("TTY", "tty", False),
)
_REQUIREMENTS: _Fields = (("Limits", "limits", None), ("Requests", "requests", None), ("Claims", "claims", None))
_ENV: _Fields = (("Name", "name", ""), ("Value", "value", ""), ("ValueFrom", "valueFrom", None))
_STRUCTS: dict[str, _Fields] = {
    "containers": _CONTAINER,
    "initContainers": _CONTAINER,
    "ephemeralContainers": _CONTAINER,
    "resources": _REQUIREMENTS,
    "env": _ENV,
}
_MAPS = frozenset({"limits", "requests", "nodeSelector", "overhead"})


def spec_diff(old: Json, new: Json) -> str:
    """Hunks with three lines of context, each line ended; empty when the specs print alike."""
    before, after = (json.dumps(_struct(spec, _POD_SPEC), indent=1, ensure_ascii=False).splitlines() for spec in (old, new))
    hunks = list(difflib.unified_diff(before, after, lineterm="", n=3))[2:]
    return "".join(f"{line}\n" for line in hunks)


def _struct(value: Json, fields: _Fields) -> Json:
    known = {json_name for _, json_name, _ in fields}
    printed = {go_name: _print(json_name, value.get(json_name, zero)) for go_name, json_name, zero in fields}
    return {**printed, **{_capital(name): _print(name, item) for name, item in value.items() if name not in known}}


def _print(name: str, value: Any) -> Any:
    """A field's value; structs without a table of their own print the fields they have."""
    if isinstance(value, list):
        return [_print(name, item) for item in value]
    if not isinstance(value, dict):
        return value
    if name in _STRUCTS:
        return _struct(value, _STRUCTS[name])
    if name in _MAPS:
        return {key: value[key] for key in sorted(value)}
    return {_capital(key): _print(key, item) for key, item in value.items()}


def _capital(name: str) -> str:
    return name[:1].upper() + name[1:]
