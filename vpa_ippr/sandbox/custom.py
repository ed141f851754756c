"""CustomResourceDefinitions: checked when they are made, then served under their names like every other resource."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from vpa_ippr.sandbox.customschema import check_schema
from vpa_ippr.sandbox.resources import Registry, Resource
from vpa_ippr.sandbox.status import Cause

Json = dict[str, Any]

_OPEN_SCHEMA: Json = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def default_definition(crd: Json, now: str) -> None:
    """Fill the names, the conversion and the status that the real server and its naming controller give to a definition."""
    spec = crd.get("spec") or {}
    names = spec.get("names") or {}
    kind = names.get("kind", "")
    names.setdefault("singular", kind.lower())
    names.setdefault("listKind", f"{kind}List")
    spec.setdefault("conversion", {"strategy": "None"})
    spec["names"] = names
    crd["spec"] = spec
    conditions = [
        ("NamesAccepted", "NoConflicts", "no conflicts found"),
        ("Established", "InitialNamesAccepted", "the initial names have been accepted"),
    ]
    crd["status"] = {
        "acceptedNames": copy.deepcopy(names),
        "conditions": [
            {"type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": now}
            for kind, reason, message in conditions
        ],
        "storedVersions": [version["name"] for version in spec.get("versions") or [] if version.get("storage")],
    }


def definition_causes(crd: Json) -> list[Cause]:
    """What is wrong with a definition."""
    spec = crd["spec"]
    names = spec["names"]
    causes: list[Cause] = []
    expected = f"{names.get('plural', '')}.{spec.get('group', '')}"
    if crd["metadata"]["name"] != expected:
        shown = f'Invalid value: "{crd["metadata"]["name"]}": must be spec.names.plural+"."+spec.group'
        causes.append(Cause("FieldValueInvalid", shown, "metadata.name"))
    if spec.get("scope") not in ("Namespaced", "Cluster"):
        causes.append(Cause("FieldValueRequired", "Required value", "spec.scope"))
    versions = spec.get("versions") or []
    if sum(bool(version.get("storage")) for version in versions) != 1:
        shown = "Invalid value: must have exactly one version marked as storage version"
        causes.append(Cause("FieldValueInvalid", shown, "spec.versions"))
    for index, version in enumerate(versions):
        path = f"spec.versions[{index}].schema.openAPIV3Schema"
        schema = (version.get("schema") or {}).get("openAPIV3Schema")
        if not isinstance(schema, dict):
            causes.append(Cause("FieldValueRequired", "Required value: schemas are required", path))
        else:
            causes += check_schema(schema, path)
    return causes


def resources_of(crd: Json) -> Iterator[Resource]:
    """The served versions of a definition."""
    spec, names = crd["spec"], crd["spec"]["names"]
    for version in sorted(spec["versions"], key=lambda v: not v.get("storage")):
        if version.get("served"):
            yield Resource(
                group=spec["group"],
                version=version["name"],
                plural=names["plural"],
                kind=names["kind"],
                namespaced=spec["scope"] == "Namespaced",
                subresources=frozenset(version.get("subresources") or {}),
                has_generation=True,
                short_names=tuple(names.get("shortNames") or ()),
                categories=tuple(names.get("categories") or ()),
                singular=names["singular"],
                custom=True,
            )


class CustomTypes:
    """The schemas and columns of the custom resources that are served now."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._versions: dict[tuple[str, str, str], Json] = {}

    def serve(self, crd: Json) -> None:
        """Start serving a definition, or serve its new form."""
        self.withdraw(crd)
        spec = crd["spec"]
        entries = {(spec["group"], version["name"], spec["names"]["plural"]): version for version in spec["versions"]}
        self._versions = {**self._versions, **entries}
        # The storage version comes first; the last one registered answers to the bare key.
        for resource in reversed(list(resources_of(crd))):
            self._registry.add(resource)

    def withdraw(self, crd: Json) -> None:
        """Stop serving a definition."""
        group, plural = crd["spec"]["group"], crd["spec"]["names"]["plural"]
        self._versions = {key: version for key, version in self._versions.items() if (key[0], key[2]) != (group, plural)}
        self._registry.remove(group, plural)

    def schema(self, resource: Resource) -> Json:
        """The structural schema of a served version."""
        version = self._versions.get((resource.group, resource.version, resource.plural), {})
        schema: Json = (version.get("schema") or {}).get("openAPIV3Schema") or _OPEN_SCHEMA
        return schema

    def columns(self, resource: Resource) -> list[Json]:
        """The additional printer columns of a served version."""
        version = self._versions.get((resource.group, resource.version, resource.plural), {})
        return version.get("additionalPrinterColumns") or []

    def scale_paths(self, resource: Resource) -> Json:
        """The paths of the scale subresource, possibly none."""
        version = self._versions.get((resource.group, resource.version, resource.plural), {})
        paths: Json = (version.get("subresources") or {}).get("scale") or {}
        return paths
