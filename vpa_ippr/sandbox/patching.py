"""The three patch formats: JSON patch (RFC 6902), merge patch (RFC 7386) and Kubernetes' strategic merge patch.

Strategic merge follows ``k8s.io/apimachinery/pkg/util/strategicpatch``: lists of structs merge by the key of their type, with the
directives ``$patch`` (replace, delete, merge), ``$deleteFromPrimitiveList/<list>``, ``$setElementOrder/<list>`` and ``$retainKeys``.
All functions leave their arguments alone.
"""

from __future__ import annotations

from typing import Any

from vpa_ippr.sandbox.schema import ANY, Field
from vpa_ippr.sandbox.status import StatusError, bad_request

Json = dict[str, Any]

_DIRECTIVE = "$patch"
_DELETE_PRIMITIVE = "$deleteFromPrimitiveList/"
_ORDER = "$setElementOrder/"
_RETAIN = "$retainKeys"


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7386: null removes, objects merge, everything else replaces."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


# JSON patch


def json_patch(target: Any, operations: Any) -> Any:
    """RFC 6902.

    Raises:
        StatusError: 400 when the patch is malformed, 422 when an operation cannot be carried out.
    """
    if not isinstance(operations, list):
        raise bad_request("json: cannot unmarshal object into Go value of type jsonpatch.Patch")
    document = _duplicate(target)
    for operation in operations:
        document = _operate(document, operation)
    return document


def _operate(document: Any, operation: Any) -> Any:
    if not isinstance(operation, dict) or "op" not in operation or "path" not in operation:
        raise bad_request("jsonpatch operation needs 'op' and 'path'")
    kind, path = operation["op"], _pointer(operation["path"])
    if kind == "test":
        if _lookup(document, path, default=None) != operation.get("value"):
            raise _unprocessable()
        return document
    if kind == "remove":
        return _removed(document, path)
    if kind in ("add", "replace"):
        return _put(document, path, _duplicate(operation.get("value")), replace=kind == "replace")
    if kind in ("move", "copy"):
        source = _pointer(operation.get("from", ""))
        value = _duplicate(_lookup(document, source))
        return _put(_removed(document, source) if kind == "move" else document, path, value, replace=False)
    raise bad_request(f"Unexpected kind: {kind}")


def _pointer(text: str) -> list[str]:
    if text and not text.startswith("/"):
        raise _unprocessable()
    return [step.replace("~1", "/").replace("~0", "~") for step in text.split("/")[1:]]


_MISSING = object()


def _lookup(document: Any, path: list[str], *, default: Any = _MISSING) -> Any:
    for step in path:
        if isinstance(document, dict) and step in document:
            document = document[step]
        elif isinstance(document, list) and step.isdigit() and int(step) < len(document):
            document = document[int(step)]
        elif default is not _MISSING:
            return default
        else:
            raise _unprocessable()
    return document


def _removed(document: Any, path: list[str]) -> Any:
    if not path:
        raise _unprocessable()
    parent, step = _lookup(document, path[:-1]), path[-1]
    _lookup(parent, [step])
    if isinstance(parent, list):
        del parent[int(step)]
    else:
        del parent[step]
    return document


def _put(document: Any, path: list[str], value: Any, *, replace: bool) -> Any:
    if not path:
        return value
    parent, step = _lookup(document, path[:-1]), path[-1]
    if replace:
        _lookup(parent, [step])
    if isinstance(parent, dict):
        parent[step] = value
    elif isinstance(parent, list):
        _put_element(parent, step, value, replace=replace)
    else:
        raise _unprocessable()
    return document


def _put_element(parent: list[Any], step: str, value: Any, *, replace: bool) -> None:
    if step == "-" and not replace:
        parent.append(value)
        return
    if not step.isdigit() or int(step) > len(parent):
        raise _unprocessable()
    if replace:
        parent[int(step)] = value
    else:
        parent.insert(int(step), value)


def _unprocessable() -> StatusError:
    return StatusError(422, "Invalid", "the server rejected our request due to an error in our request", details={})


# Strategic merge patch


def strategic_merge(target: Json, patch: Json, kind: Field = ANY) -> Json:
    """Merge ``patch`` into ``target``, an object of the type ``kind``; a type that is not known merges as a merge patch does.

    Raises:
        StatusError: 400 when a list element lacks its merge key or a directive makes no sense.
    """
    directive = patch.get(_DIRECTIVE)
    if directive == "replace":
        return {key: _stripped(value) for key, value in patch.items() if key != _DIRECTIVE}
    if directive == "delete":
        return {}
    if directive not in (None, "merge"):
        raise bad_request(f"Unknown patch type: {directive}")
    result, fields = dict(target), kind.fields()
    for key, value in patch.items():
        if not key.startswith("$"):
            _merge_field(result, key, value, _field_of(kind, fields, key), patch.get(f"{_ORDER}{key}"))
    for key, value in patch.items():
        _apply_list_directive(result, key, value, patch, kind, fields)
    if _RETAIN in patch:
        keep = set(patch[_RETAIN])
        return {key: value for key, value in result.items() if key in keep}
    return result


def _field_of(kind: Field, fields: dict[str, Field], key: str) -> Field:
    return kind.item if kind.is_map else fields.get(key, ANY)


def _merge_field(result: Json, key: str, value: Any, field: Field, order: list[Any] | None) -> None:
    if value is None:
        result.pop(key, None)
    elif isinstance(value, dict):
        before = result.get(key)
        merged = strategic_merge(before if isinstance(before, dict) else {}, value, field)
        if value.get(_DIRECTIVE) == "delete":
            result.pop(key, None)
        else:
            result[key] = merged
    elif isinstance(value, list) and field.merges:
        result[key] = _merge_list(result.get(key) or [], value, field, order)
    else:
        result[key] = _stripped(value)


def _merge_list(before: list[Any], patch: list[Any], field: Field, order: list[Any] | None) -> list[Any]:
    elements = [element for element in patch if not _is_replace_directive(element)]
    if len(elements) < len(patch):
        return [_stripped(element) for element in elements]
    merged = list(before)
    for element in elements:
        if field.merge_key:
            _merge_element(merged, element, field)
        elif element not in merged:
            merged.append(element)
    return _ordered(merged, before, elements if order is None else order, field.merge_key)


def _is_replace_directive(element: Any) -> bool:
    return isinstance(element, dict) and set(element) == {_DIRECTIVE} and element[_DIRECTIVE] == "replace"


def _merge_element(merged: list[Any], element: Json, field: Field) -> None:
    if not isinstance(element, dict) or field.merge_key not in element:
        raise bad_request(f"map: {element} does not contain declared merge key: {field.merge_key}")
    wanted = element[field.merge_key]
    place = next((i for i, item in enumerate(merged) if item.get(field.merge_key) == wanted), None)
    if element.get(_DIRECTIVE) == "delete":
        merged[:] = [item for item in merged if item.get(field.merge_key) != wanted]
    elif place is None:
        merged.append(strategic_merge({}, element, field.item))
    else:
        merged[place] = strategic_merge(merged[place], element, field.item)


def _apply_list_directive(result: Json, key: str, value: Any, patch: Json, kind: Field, fields: dict[str, Field]) -> None:
    if key.startswith(_DELETE_PRIMITIVE):
        name = key.removeprefix(_DELETE_PRIMITIVE)
        if name in result:
            result[name] = [item for item in result[name] if item not in value]
    elif key.startswith(_ORDER):
        name = key.removeprefix(_ORDER)
        # A list that the patch changes too has been ordered when it was merged.
        if result.get(name) and name not in patch:
            result[name] = _ordered(result[name], result[name], value, _field_of(kind, fields, name).merge_key)


def _ordered(merged: list[Any], before: list[Any], order: list[Any], merge_key: str) -> list[Any]:
    """The elements named by ``order`` in that order, merged with those that only the server has (``normalizeElementOrder``).

    A server's element comes before a patched one only if it did so before; a new element comes before the server's that are left.
    """

    def identity(item: Any) -> Any:
        return item.get(merge_key) if merge_key and isinstance(item, dict) else item

    ranks = {identity(item): rank for rank, item in enumerate(order)}
    places = {identity(item): place for place, item in enumerate(before)}
    patched = sorted((item for item in merged if identity(item) in ranks), key=lambda item: ranks[identity(item)])
    kept = [item for item in merged if identity(item) not in ranks]
    result: list[Any] = []
    while kept and patched:
        place = places.get(identity(patched[0]))
        comes_first = place is not None and places[identity(kept[0])] < place
        result.append(kept.pop(0) if comes_first else patched.pop(0))
    return result + kept + patched


def _stripped(value: Any) -> Any:
    """A new value as it is stored: without directives and without nulls."""
    if isinstance(value, dict):
        return {key: _stripped(item) for key, item in value.items() if not key.startswith("$") and item is not None}
    if isinstance(value, list):
        return [_stripped(item) for item in value if not _is_replace_directive(item)]
    return value


def _duplicate(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _duplicate(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_duplicate(item) for item in value]
    return value
