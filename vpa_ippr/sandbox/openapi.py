"""OpenAPI documents: what ``kubectl apply`` and ``kubectl explain`` read of each group and version.

Version 3 has, for each resource, its type and a PATCH operation with the query parameters that are honoured; the descriptions of the
real documents are not there. Version 2 is reduced to the types' names, for clients that only look for the document.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from vpa_ippr.sandbox.custom import CustomTypes
from vpa_ippr.sandbox.resources import Registry, Resource
from vpa_ippr.sandbox.schema import Field, built_in_kinds, struct_fields

Json = dict[str, Any]

SWAGGER_PROTOBUF = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
EMPTY_SWAGGER = b"\x0a\x032.0\x12\x19\x0a\x0aKubernetes\x12\x0bunversioned\x42\x00\x4a\x00"
"""Version 2 in the only form that kubectl takes, without any type. It reads it to check a ``kind: List`` by itself; types that it does
not find there it leaves to the server, which validates every item strictly."""

_SCALARS: dict[str, Json] = {
    "string": {"type": "string"},
    "time": {"type": "string", "format": "date-time"},
    "integer": {"type": "integer", "format": "int64"},
    "number": {"type": "number", "format": "double"},
    "boolean": {"type": "boolean"},
    "quantity": {"type": "string"},
    "intOrString": {"type": "string", "format": "int-or-string"},
    "any": {"type": "object"},
}
_QUERY = ("dryRun", "fieldManager", "fieldValidation", "force")
_PATCH_TYPES = ("application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml")


def index(registry: Registry) -> Json:
    """``/openapi/v3``: the document of each group and version."""
    paths = {}
    for group, version in sorted({(r.group, r.version) for r in registry.all()}):
        path = f"apis/{group}/{version}" if group else f"api/{version}"
        names = sorted(r.key for r in registry.all() if (r.group, r.version) == (group, version))
        digest = hashlib.sha256(",".join(names).encode()).hexdigest()[:32].upper()
        paths[path] = {"serverRelativeURL": f"/openapi/v3/{path}?hash={digest}"}
    return {"paths": paths}


def document(registry: Registry, custom: CustomTypes, group: str, version: str) -> Json | None:
    """The document of one group and version, None when it is not served."""
    resources = [r for r in registry.all() if (r.group, r.version) == (group, version)]
    if not resources:
        return None
    schemas: dict[str, Json] = {}
    paths: dict[str, Json] = {}
    for resource in resources:
        name = _add_type(schemas, custom, resource)
        paths.update(_paths(resource, name))
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "unversioned"},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def swagger(registry: Registry) -> Json:
    """``/openapi/v2``."""
    definitions = {
        f"{r.group or 'core'}.{r.version}.{r.kind}": {"type": "object", "x-kubernetes-group-version-kind": [_gvk(r)]}
        for r in registry.all()
    }
    info = {"title": "Kubernetes", "version": "unversioned"}
    return {"swagger": "2.0", "info": info, "paths": {}, "definitions": definitions}


def _paths(resource: Resource, schema: str) -> Json:
    root = f"/apis/{resource.group}/{resource.version}" if resource.group else f"/api/{resource.version}"
    place = f"{root}/namespaces/{{namespace}}" if resource.namespaced else root
    collection = f"{place}/{resource.plural}"
    reference = {"$ref": f"#/components/schemas/{schema}"}
    answer = {"200": {"description": "OK", "content": {"application/json": {"schema": reference}}}}
    parameters = [{"name": name, "in": "query", "schema": {"type": "string"}} for name in _QUERY]

    def operation(action: str, media: tuple[str, ...] = ("application/json",)) -> Json:
        return {
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": _gvk(resource),
            "parameters": parameters,
            "requestBody": {"content": {kind: {"schema": reference} for kind in media}},
            "responses": answer,
        }

    paths: Json = {collection: {"post": operation("post")}}
    if "patch" in resource.verbs:
        media = _PATCH_TYPES if resource.custom else (*_PATCH_TYPES, "application/strategic-merge-patch+json")
        paths[f"{collection}/{{name}}"] = {"put": operation("put"), "patch": operation("patch", media)}
    return paths


def _add_type(schemas: dict[str, Json], custom: CustomTypes, resource: Resource) -> str:
    if resource.custom:
        name = f"{'.'.join(reversed(resource.group.split('.')))}.{resource.version}.{resource.kind}"
        meta = _full_name("meta.v1.ObjectMeta")
        _add_struct(schemas, "meta.v1.ObjectMeta")
        schema: Json = msgspec.json.decode(msgspec.json.encode(custom.schema(resource)))
        reference = {"allOf": [{"$ref": f"#/components/schemas/{meta}"}], "default": {}}
        head = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": reference}
        schema["properties"] = {**(schema.get("properties") or {}), **head}
        schemas[name] = {**schema, "x-kubernetes-group-version-kind": [_gvk(resource)]}
        return name
    struct = built_in_kinds()[f"{resource.api_version}/{resource.kind}"]
    _add_struct(schemas, struct)
    name = _full_name(struct)
    schemas[name]["x-kubernetes-group-version-kind"] = [_gvk(resource)]
    return name


def _add_struct(schemas: dict[str, Json], struct: str) -> None:
    name = _full_name(struct)
    if name in schemas:
        return
    schema: Json = {"type": "object", "properties": {}}
    schemas[name] = schema
    fields = struct_fields(struct)
    for field_name, field in fields.items():
        schema["properties"][field_name] = {**_type(schemas, field), **_extensions(field)}
    required = [field_name for field_name, field in fields.items() if field.required]
    if required:
        schema["required"] = required


def _type(schemas: dict[str, Json], field: Field) -> Json:
    if field.struct:
        _add_struct(schemas, field.struct)
        return {"allOf": [{"$ref": f"#/components/schemas/{_full_name(field.struct)}"}], "default": {}}
    if field.is_list:
        return {"type": "array", "items": _type(schemas, field.item)}
    if field.is_map:
        return {"type": "object", "additionalProperties": _type(schemas, field.item)}
    return dict(_SCALARS[field.type])


def _extensions(field: Field) -> Json:
    strategy = ",".join(name for name, wanted in (("merge", field.merges), ("retainKeys", field.retains_keys)) if wanted)
    entries: Json = {
        "x-kubernetes-patch-strategy": strategy,
        "x-kubernetes-patch-merge-key": field.merge_key,
        "x-kubernetes-list-type": field.list_type,
        "x-kubernetes-list-map-keys": list(field.list_keys),
    }
    return {key: value for key, value in entries.items() if value}


def _full_name(struct: str) -> str:
    prefix = "io.k8s.apimachinery.pkg.apis" if struct.startswith("meta.") else "io.k8s.api"
    return f"{prefix}.{struct}"


def _gvk(resource: Resource) -> Json:
    return {"group": resource.group, "version": resource.version, "kind": resource.kind}
