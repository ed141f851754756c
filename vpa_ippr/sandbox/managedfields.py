"""Which fields an object has, as server-side apply counts them, and the ``FieldsV1`` form in which ownership is stored.

A path is a tuple of steps as they are written in ``FieldsV1``: ``f:name``, ``k:{"name":"c1"}`` (an element by its keys), ``v:"x"`` (an
element of a set). Lists and maps that a schema calls atomic, and lists that it says nothing about, count as one field.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from vpa_ippr.sandbox.schema import ANY, Field

Json = dict[str, Any]
Path = tuple[str, ...]
Shape = Field | Json
"""The type of a value: of a built-in struct, or the structural schema of a custom resource."""


def child(shape: Shape, name: str) -> Shape:
    """The type of one field of a struct or map."""
    if isinstance(shape, Field):
        return shape.item if shape.is_map else shape.fields().get(name, ANY)
    properties: Json = shape.get("properties") or {}
    found = properties.get(name, shape.get("additionalProperties"))
    return found if isinstance(found, dict) else {}


def item(shape: Shape) -> Shape:
    """The type of the elements of a list."""
    if isinstance(shape, Field):
        return shape.item if shape.is_list else ANY
    return shape.get("items") or {}


def list_keys(shape: Shape) -> tuple[str, ...]:
    """What identifies an element of a list; nothing for an atomic list or a set."""
    if isinstance(shape, Field):
        return () if shape.is_atomic else shape.list_keys
    return tuple(shape.get("x-kubernetes-list-map-keys") or ())


def is_set(shape: Shape) -> bool:
    """True for a list that is a set of scalars."""
    kind = shape.list_type if isinstance(shape, Field) else shape.get("x-kubernetes-list-type")
    return kind == "set"


def is_atomic(shape: Shape) -> bool:
    """True for a map that is owned as a whole."""
    return shape.is_atomic if isinstance(shape, Field) else shape.get("x-kubernetes-map-type") == "atomic"


def element_step(shape: Shape, element: Any) -> str:
    """The step that leads to an element of a list with keys."""
    keys = {key: element[key] for key in list_keys(shape) if isinstance(element, dict) and key in element}
    return f"k:{json.dumps(keys, separators=(',', ':'))}"


def leaves(value: Any, shape: Shape, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every field with its value; an element of a list with keys counts itself too, with the value None."""
    if isinstance(value, dict) and value and not is_atomic(shape):
        for name, below in value.items():
            yield from leaves(below, child(shape, name), (*path, f"f:{name}"))
    elif isinstance(value, list) and list_keys(shape):
        for element in value:
            step = (*path, element_step(shape, element))
            yield step, None
            yield from leaves(element, item(shape), step)
    elif isinstance(value, list) and is_set(shape):
        for element in value:
            yield (*path, f"v:{json.dumps(element)}"), None
    else:
        yield path, value


def encode(paths: Iterable[Path]) -> Json:
    """``FieldsV1`` of a set of paths."""
    tree: Json = {}
    for path in sorted(paths):
        node = tree
        for step in path:
            node = node.setdefault(step, {})
        if path[-1].startswith("k:"):
            node.setdefault(".", {})
    return tree


def decode(tree: Json, path: Path = ()) -> Iterator[Path]:
    """The paths of ``FieldsV1``."""
    if not tree and path:
        yield path
    for step, below in tree.items():
        if step == ".":
            yield path
        else:
            yield from decode(below, (*path, step))


def readable(path: Path) -> str:
    """``.spec.containers[name="c1"].image``."""
    text = ""
    for step in path:
        kind, value = step[:2], step[2:]
        if kind == "f:":
            text += f".{value}"
        elif kind == "k:":
            text += "[" + ",".join(f"{key}={json.dumps(item)}" for key, item in json.loads(value).items()) + "]"
        else:
            text += f"[={value}]"
    return text
