"""What the server offers, as clients ask for it: groups, resources, version and the aggregated form."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from typing import Any

from vpa_ippr.sandbox.resources import Registry, Resource

Json = dict[str, Any]

_SUBRESOURCE_VERBS = {
    "status": ["get", "patch", "update"],
    "scale": ["get", "patch", "update"],
    "resize": ["get", "patch", "update"],
    "eviction": ["create"],
    "binding": ["create"],
    "token": ["create"],
    "log": ["get"],
}
_SUBRESOURCE_KINDS = {
    "scale": ("autoscaling", "v1", "Scale"),
    "eviction": ("policy", "v1", "Eviction"),
    "binding": ("", "v1", "Binding"),
    "token": ("authentication.k8s.io", "v1", "TokenRequest"),
}
# The order in which the real server lists the verbs of a custom resource.
_CUSTOM_VERBS = ["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"]


def version_info(version: str) -> Json:
    """``/version``."""
    major, minor = version.split(".")
    return {
        "major": major,
        "minor": minor,
        "emulationMajor": major,
        "emulationMinor": minor,
        "minCompatibilityMajor": major,
        "minCompatibilityMinor": str(int(minor) - 1),
        "gitVersion": f"v{version}.0+vpa-ippr-sandbox",
        "gitCommit": "",
        "gitTreeState": "",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "",
        "platform": "linux/amd64",
    }


def resource_list(registry: Registry, group: str, version: str) -> Json:
    """``APIResourceList`` of one group and version."""
    entries: list[Json] = []
    for resource in registry.all():
        if (resource.group, resource.version) == (group, version):
            entries += _entries(resource)
    group_version = f"{group}/{version}" if group else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": entries}


def api_versions(server: str) -> Json:
    """``/api``."""
    cidrs = [{"clientCIDR": "0.0.0.0/0", "serverAddress": server}]
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": cidrs}


def group_list(registry: Registry) -> Json:
    """``/apis``."""
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(name, versions) for name, versions in _groups(registry) if name]}


def group(registry: Registry, name: str) -> Json | None:
    """``/apis/<group>``, None when it is not served."""
    found = dict(_groups(registry)).get(name)
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(name, found)} if found else None


def aggregated(registry: Registry, *, legacy: bool) -> Json:
    """``apidiscovery.k8s.io/v2`` of ``/api`` (legacy) or ``/apis``."""
    items = []
    for name, versions in _groups(registry):
        if (name == "") is legacy:
            entries = [_aggregated_version(registry, name, version) for version in versions]
            items.append({"metadata": {"name": name, "creationTimestamp": None}, "versions": entries})
    return {"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items}


def _groups(registry: Registry) -> list[tuple[str, list[str]]]:
    groups: dict[str, list[str]] = {}
    for resource in registry.all():
        versions = groups.setdefault(resource.group, [])
        if resource.version not in versions:
            versions.append(resource.version)
    return list(groups.items())


def _group(name: str, versions: list[str]) -> Json:
    entries = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": entries, "preferredVersion": entries[0]}


def _entries(resource: Resource) -> Iterable[Json]:
    entry: Json = {
        "name": resource.plural,
        "singularName": resource.singular_name,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": _verbs(resource),
    }
    if resource.short_names:
        entry["shortNames"] = list(resource.short_names)
    if resource.categories:
        entry["categories"] = list(resource.categories)
    if "list" in resource.verbs:
        entry["storageVersionHash"] = _storage_hash(resource)
    yield entry
    for subresource in sorted(resource.subresources):
        group, version, kind = _SUBRESOURCE_KINDS.get(subresource, ("", "", resource.kind))
        below: Json = {"name": f"{resource.plural}/{subresource}", "singularName": "", "namespaced": resource.namespaced, "kind": kind}
        if version:
            below = {**below, "group": group, "version": version}
        yield {**below, "verbs": _SUBRESOURCE_VERBS[subresource]}


def _verbs(resource: Resource) -> list[str]:
    return list(_CUSTOM_VERBS) if resource.custom else list(resource.verbs)


def _storage_hash(resource: Resource) -> str:
    """``StorageVersionHash``: the first eight bytes of SHA-256 over group, version and kind."""
    text = f"{resource.group}/{resource.version}/{resource.kind}"
    return base64.b64encode(hashlib.sha256(text.encode()).digest()[:8]).decode()


def _aggregated_version(registry: Registry, group_name: str, version: str) -> Json:
    resources = [r for r in registry.all() if (r.group, r.version) == (group_name, version)]
    return {"version": version, "freshness": "Current", "resources": [_aggregated_resource(r) for r in resources]}


def _aggregated_resource(resource: Resource) -> Json:
    entry: Json = {
        "resource": resource.plural,
        "responseKind": {"group": resource.group, "version": resource.version, "kind": resource.kind},
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": resource.singular_name,
        "verbs": _verbs(resource),
    }
    if resource.short_names:
        entry["shortNames"] = list(resource.short_names)
    if resource.categories:
        entry["categories"] = list(resource.categories)
    subresources = []
    for name in sorted(resource.subresources):
        default = (resource.group, resource.version, resource.kind)
        group_name, version, kind = _SUBRESOURCE_KINDS.get(name, default)
        response = {"group": group_name, "version": version, "kind": kind}
        subresources.append({"subresource": name, "responseKind": response, "verbs": _SUBRESOURCE_VERBS[name]})
    return {**entry, "subresources": subresources} if subresources else entry
