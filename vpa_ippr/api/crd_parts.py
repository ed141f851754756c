"""What the schemas of CustomResourceDefinitions are put together from."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]


def an_object(description: str, required: list[str] | None = None, **properties: Schema) -> Schema:
    """An object with these properties."""
    schema: Schema = {"type": "object", "description": description, "properties": properties}
    return schema | ({"required": required} if required else {})


def a_string(description: str, **more: object) -> Schema:
    """A text."""
    return {"type": "string", "description": description, **more}


def an_integer(description: str, form: str = "int32", **more: object) -> Schema:
    """A whole number."""
    return {"type": "integer", "format": form, "description": description, **more}


def a_number(description: str, **more: object) -> Schema:
    """A number."""
    return {"type": "number", "description": description, **more}


def a_list(description: str, items: Schema, **more: object) -> Schema:
    """A list of one kind of items."""
    return {"type": "array", "description": description, "items": items, **more}


def a_time(description: str) -> Schema:
    """An RFC 3339 time."""
    return {"type": "string", "format": "date-time", "nullable": True, "description": description}


def a_column(name: str, path: str, kind: str = "string", **more: object) -> dict[str, object]:
    """A column of ``kubectl get``."""
    return {"name": name, "type": kind, "jsonPath": path, **more}


def a_definition(
    group: str, version: str, names: dict[str, Any], schema: Schema, *, scope: str = "Namespaced", **version_fields: object
) -> dict[str, Any]:
    """A CustomResourceDefinition with one version; ``schema`` holds the object's spec and status, ``names`` what the type is called."""
    root = an_object(
        f"{names['kind']} of {group}.",
        ["spec"] if "required" in schema.get("spec", {}) else None,
        apiVersion=a_string("Version of the schema."),
        kind=a_string("The kind of the object."),
        metadata={"type": "object"},
        **schema,
    )
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names['plural']}.{group}"},
        "spec": {
            "group": group,
            "names": names,
            "scope": scope,
            "versions": [{"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": root}, **version_fields}],
        },
    }
