"""Server-side apply: merge what one manager applies, keep book of who owns which field, and refuse to take fields from others.

The book (``metadata.managedFields``) is opened at the first apply of an object: what is there by then belongs to ``before-first-apply``,
as on a server that had apply switched on later. From then on updates are recorded too.
"""

from __future__ import annotations

from typing import Any

from vpa_ippr.api.timestamps import format_time
from vpa_ippr.sandbox.managedfields import (
    Path,
    Shape,
    child,
    decode,
    element_step,
    encode,
    is_atomic,
    is_set,
    item,
    leaves,
    list_keys,
    readable,
)
from vpa_ippr.sandbox.resources import Resource
from vpa_ippr.sandbox.status import Cause, StatusError, object_details

Json = dict[str, Any]

BEFORE_FIRST_APPLY = "before-first-apply"
_SYSTEM = {
    "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "managedFields",
    "name", "namespace", "selfLink", "generateName",
}  # fmt: skip


def apply_object(
    current: Json,
    applied: Json,
    shape: Shape,
    resource: Resource,
    *,
    manager: str,
    subresource: str,
    force: bool,
    now: float,
) -> Json:
    """The current object (``{}`` when there is none) with what ``manager`` applies.

    Raises:
        StatusError: 409 when another manager owns a field that would change, unless ``force``.
    """
    wanted = dict(_owned(applied, shape, subresource))
    live = dict(_owned(current, shape, "*")) if current else {}
    book = _open_book(current, live, resource, now)
    mine = _find(book, manager, "Apply", subresource)
    conflicts = [(entry, path) for entry in book if entry is not mine for path in _contested(entry, wanted, live)]
    if conflicts and not force:
        raise _conflict(conflicts, resource, applied["metadata"]["name"])
    taken = {path for _, path in conflicts}
    before = set(decode(mine["fieldsV1"])) if mine else set()
    others = {path for entry in book if entry is not mine for path in decode(entry["fieldsV1"])} - taken
    merged: Json = _merge(current, _without_system_fields(applied), shape)
    for path in sorted(before - set(wanted) - others, key=len):
        _remove(merged, shape, path)
    kept = [pruned for entry in book if entry is not mine and (pruned := _without(entry, taken))]
    merged["metadata"]["managedFields"] = [_entry(manager, "Apply", resource, subresource, set(wanted), now), *kept]
    return merged


def track_update(current: Json, new: Json, shape: Shape, resource: Resource, *, manager: str, subresource: str, now: float) -> Json:
    """The new object with its book brought up to date: what changed belongs to ``manager`` from now on."""
    metadata = new["metadata"]
    metadata.pop("managedFields", None)
    book = current["metadata"].get("managedFields")
    if not book:
        return new
    before, after = dict(_owned(current, shape, "*")), dict(_owned(new, shape, "*"))
    changed = {path for path, value in after.items() if path not in before or before[path] != value}
    gone = set(before) - set(after)
    mine = _find(book, manager, "Update", subresource)
    kept = [pruned for entry in book if entry is not mine and (pruned := _without(entry, changed | gone))]
    owned = (set(decode(mine["fieldsV1"])) - gone if mine else set()) | changed
    if owned:
        entry = _entry(manager, "Update", resource, subresource, owned, now)
        kept.append({**entry, "time": mine["time"]} if mine and not changed else entry)
    metadata["managedFields"] = kept
    return new


def _owned(obj: Json, shape: Shape, subresource: str) -> list[tuple[Path, Any]]:
    """The fields that managers can own: all but the system's; the status belongs to the status subresource."""
    content = _without_system_fields(obj)
    content.pop("apiVersion", None)
    content.pop("kind", None)
    if subresource == "status":
        content = {"status": content.get("status", {})}
    elif subresource != "*":
        content.pop("status", None)
    return [(path, value) for path, value in leaves(content, shape) if path and path != ("f:metadata",)]


def _without_system_fields(obj: Json) -> Json:
    metadata = {key: value for key, value in (obj.get("metadata") or {}).items() if key not in _SYSTEM or key in ("name", "namespace")}
    return {**obj, "metadata": metadata}


def _open_book(current: Json, live: dict[Path, Any], resource: Resource, now: float) -> list[Json]:
    if not current:
        return []
    book: list[Json] = current["metadata"].get("managedFields") or []
    return book or [_entry(BEFORE_FIRST_APPLY, "Update", resource, "", set(live), now)]


def _entry(manager: str, operation: str, resource: Resource, subresource: str, paths: set[Path], now: float) -> Json:
    entry: Json = {
        "manager": manager,
        "operation": operation,
        "apiVersion": resource.api_version,
        "time": format_time(now),
        "fieldsType": "FieldsV1",
        "fieldsV1": encode(paths),
    }
    return {**entry, "subresource": subresource} if subresource else entry


def _find(book: list[Json], manager: str, operation: str, subresource: str) -> Json | None:
    wanted = (manager, operation, subresource)
    return next((e for e in book if (e["manager"], e["operation"], e.get("subresource", "")) == wanted), None)


def _contested(entry: Json, wanted: dict[Path, Any], live: dict[Path, Any]) -> list[Path]:
    owned = set(decode(entry["fieldsV1"]))
    return sorted(path for path, value in wanted.items() if path in owned and live.get(path) != value)


def _without(entry: Json, paths: set[Path]) -> Json | None:
    left = set(decode(entry["fieldsV1"])) - paths
    return {**entry, "fieldsV1": encode(left)} if left else None


def _conflict(conflicts: list[tuple[Json, Path]], resource: Resource, name: str) -> StatusError:
    causes = [Cause("FieldManagerConflict", f"conflict with {_described(entry)}", readable(path)) for entry, path in conflicts]
    if len(conflicts) == 1:
        detail = f"1 conflict: {causes[0].message}: {causes[0].field}"
    else:
        by_manager: dict[str, list[str]] = {}
        for entry, path in conflicts:
            by_manager.setdefault(_described(entry), []).append(readable(path))
        parts = [f"conflicts with {owner}:\n" + "\n".join(f"- {field}" for field in fields) for owner, fields in by_manager.items()]
        detail = f"{len(conflicts)} conflicts: " + "\n".join(parts)
    details = {**object_details(resource.plural, resource.group, name), "causes": [cause.to_json() for cause in causes]}
    return StatusError(409, "Conflict", f"Apply failed with {detail}", details=details)


def _described(entry: Json) -> str:
    text = f'"{entry["manager"]}"'
    if entry.get("subresource"):
        text += f' with subresource "{entry["subresource"]}"'
    if entry["operation"] == "Update":
        text += f" using {entry['apiVersion']} at {entry['time']}"
    return text


# Merging and removing


def _merge(live: Any, applied: Any, shape: Shape) -> Any:
    if isinstance(applied, dict) and isinstance(live, dict) and not is_atomic(shape):
        merged = dict(live)
        for name, value in applied.items():
            merged[name] = _merge(live.get(name), value, child(shape, name))
        return merged
    if isinstance(applied, list) and isinstance(live, list):
        if list_keys(shape):
            return _merge_elements(live, applied, shape)
        if is_set(shape):
            return [*live, *(element for element in applied if element not in live)]
    return applied


def _merge_elements(live: list[Any], applied: list[Any], shape: Shape) -> list[Any]:
    merged = list(live)
    places = {element_step(shape, element): index for index, element in enumerate(merged)}
    for element in applied:
        step = element_step(shape, element)
        if step in places:
            merged[places[step]] = _merge(merged[places[step]], element, item(shape))
        else:
            merged.append(element)
    return merged


def _remove(node: Any, shape: Shape, path: Path) -> None:
    """Remove the field at ``path`` from ``node`` in place; what is not there any more is no matter."""
    step, rest = path[0], path[1:]
    if isinstance(node, dict) and step.startswith("f:"):
        name = step[2:]
        if name not in node:
            return
        if not rest:
            del node[name]
            return
        node[name] = list(node[name]) if isinstance(node[name], list) else dict(node[name]) if isinstance(node[name], dict) else node[name]
        _remove(node[name], child(shape, name), rest)
    elif isinstance(node, list):
        place = next((i for i, element in enumerate(node) if _step_of(shape, element, step) == step), None)
        if place is None:
            return
        if not rest:
            del node[place]
        else:
            node[place] = dict(node[place])
            _remove(node[place], item(shape), rest)


def _step_of(shape: Shape, element: Any, like: str) -> str:
    return element_step(shape, element) if like.startswith("k:") else next(iter(leaves([element], shape)))[0][-1]
