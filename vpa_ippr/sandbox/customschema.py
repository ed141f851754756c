"""Custom resources' structural schemas: pruning, defaulting and validation of objects, with the real server's messages.

A schema is the ``openAPIV3Schema`` of a CustomResourceDefinition, used as it is; its rules are compiled once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from vpa_ippr.api.errors import ValidationError
from vpa_ippr.api.timestamps import parse_time
from vpa_ippr.sandbox.cel import CelError, Rule, compile_rule
from vpa_ippr.sandbox.status import Cause

Json = dict[str, Any]

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}
_BLOCKING = {"FieldValueRequired", "FieldValueTypeInvalid", "FieldValueNotSupported", "FieldValueTooLong", "FieldValueTooMany"}
_UNCHECKED_RULES = Cause(
    "FieldValueInvalid",
    "Invalid value: null: some validation rules were not checked because the object was invalid; "
    "correct the existing errors to complete validation",
    "<nil>",
)
_RULE_REASONS = {
    "FieldValueInvalid": "Invalid value: {}",
    "FieldValueForbidden": "Forbidden: {}",
    "FieldValueRequired": "Required value: {}",
    "FieldValueDuplicate": "Duplicate value: {}",
}
_META = {"apiVersion", "kind", "metadata"}


def check_schema(schema: Json, path: str = "openAPIV3Schema") -> list[Cause]:
    """What keeps a schema from being served here: no type, or a rule outside of the supported part of CEL."""
    causes: list[Cause] = []
    untyped = not schema.get("type") and not schema.get("x-kubernetes-int-or-string")
    if untyped and not schema.get("x-kubernetes-preserve-unknown-fields"):
        causes.append(Cause("FieldValueRequired", "Required value: must not be empty for specified object fields", f"{path}.type"))
    for index, entry in enumerate(schema.get("x-kubernetes-validations") or []):
        causes += _check_rule(entry, f"{path}.x-kubernetes-validations[{index}]")
    for name, below in (schema.get("properties") or {}).items():
        causes += check_schema(below, f"{path}.properties[{name}]")
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), dict):
            causes += check_schema(schema[name], f"{path}.{name}")
    return causes


def _check_rule(entry: Json, path: str) -> list[Cause]:
    unsupported = sorted(set(entry) - {"rule", "message", "reason", "fieldPath"})
    if unsupported:
        return [Cause("FieldValueForbidden", f"Forbidden: {unsupported[0]} is not supported by this API server", path)]
    try:
        compile_rule(entry["rule"])
    except CelError as error:
        return [Cause("FieldValueInvalid", f"Invalid value: {json.dumps(entry['rule'])}: {error}", f"{path}.rule")]
    return []


def prune(value: Any, schema: Json, path: str = "", *, is_root: bool = True) -> tuple[Any, list[str]]:
    """The value without the fields that the schema does not name, and their paths."""
    unknown: list[str] = []
    return _pruned(value, schema, path, unknown, is_root=is_root), unknown


def _pruned(value: Any, schema: Json, path: str, unknown: list[str], *, is_root: bool = False) -> Any:
    if isinstance(value, list):
        item = schema.get("items")
        return [_pruned(v, item, f"{path}[{i}]", unknown) for i, v in enumerate(value)] if item else value
    if not isinstance(value, dict):
        return value
    is_root = is_root or bool(schema.get("x-kubernetes-embedded-resource"))
    properties, additional = schema.get("properties") or {}, schema.get("additionalProperties")
    kept: Json = {}
    for key, item in value.items():
        below = f"{path}.{key}" if path else key
        if is_root and key in _META:
            kept[key] = item
        elif key in properties:
            kept[key] = _pruned(item, properties[key], below, unknown)
        elif isinstance(additional, dict):
            kept[key] = _pruned(item, additional, below, unknown)
        elif additional or schema.get("x-kubernetes-preserve-unknown-fields"):
            kept[key] = item
        else:
            unknown.append(below)
    return kept


def fill_defaults(value: Any, schema: Json) -> Any:
    """The value with the defaults of absent fields; a null of a field that may not be null counts as absent."""
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        return [fill_defaults(item, schema["items"]) for item in value]
    if not isinstance(value, dict):
        return value
    filled = dict(value)
    for name, below in (schema.get("properties") or {}).items():
        if filled.get(name) is None and not (name in filled and below.get("nullable")):
            if "default" in below:
                filled[name] = json.loads(json.dumps(below["default"]))
            elif name in filled:
                del filled[name]
        if name in filled:
            filled[name] = fill_defaults(filled[name], below)
    if isinstance(schema.get("additionalProperties"), dict):
        known = schema.get("properties") or {}
        filled = {k: v if k in known else fill_defaults(v, schema["additionalProperties"]) for k, v in filled.items()}
    return filled


def validate(value: Json, schema: Json, old: Json | None = None) -> list[Cause]:
    """Every broken rule; the CEL rules are checked only when the value has the right shape."""
    causes = list(_shape(value, schema, ""))
    rules = _has_rules(schema)
    if any(cause.reason in _BLOCKING for cause in causes):
        return [*causes, _UNCHECKED_RULES] if rules else causes
    return causes + list(_rules(value, schema, old, "")) if rules else causes


# Shape


def _shape(value: Any, schema: Json, path: str) -> Iterator[Cause]:
    if value is None and schema.get("nullable"):
        return
    mismatch = _type_cause(value, schema, path)
    if mismatch:
        yield mismatch
        return
    if "enum" in schema and value not in schema["enum"]:
        supported = ", ".join(json.dumps(choice) for choice in schema["enum"])
        yield Cause("FieldValueNotSupported", f"Unsupported value: {json.dumps(value)}: supported values: {supported}", path)
    yield from _scalar(value, schema, path)
    if isinstance(value, dict):
        yield from _members(value, schema, path)
    if isinstance(value, list):
        yield from _elements(value, schema, path)
    yield from _combined(value, schema, path)


def _type_cause(value: Any, schema: Json, path: str) -> Cause | None:
    if schema.get("x-kubernetes-int-or-string"):
        wanted, accepted = "integer,string", isinstance(value, int | str) and not isinstance(value, bool)
    elif "type" in schema:
        wanted = schema["type"]
        accepted = isinstance(value, _TYPES[wanted]) and (wanted == "boolean" or not isinstance(value, bool))
        accepted = accepted or (wanted == "integer" and isinstance(value, float) and value.is_integer())
    else:
        return None
    if accepted:
        return _format_cause(value, schema, path)
    found = json.dumps(_type_name(value))
    return Cause("FieldValueTypeInvalid", f"Invalid value: {found}: {path} in body must be of type {wanted}: {found}", path)


def _format_cause(value: Any, schema: Json, path: str) -> Cause | None:
    if schema.get("format") != "date-time" or not isinstance(value, str):
        return None
    try:
        parse_time(value)
    except ValidationError:
        shown = json.dumps(value)
        return Cause("FieldValueInvalid", f"Invalid value: {shown}: {path} in body must be of type date-time: {shown}", path)
    return None


def _type_name(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    return next(name for name, types in _TYPES.items() if isinstance(value, types))


_Limit = tuple[str, Callable[[Any, Any], bool], str]
_NUMBER_LIMITS: tuple[_Limit, ...] = (
    ("minimum", lambda value, limit: value >= limit, "should be greater than or equal to {}"),
    ("maximum", lambda value, limit: value <= limit, "should be less than or equal to {}"),
    ("multipleOf", lambda value, limit: value % limit == 0, "should be a multiple of {}"),
)
_STRING_LIMITS: tuple[_Limit, ...] = (
    ("minLength", lambda value, limit: len(value) >= limit, "should be at least {} chars long"),
    ("pattern", lambda value, limit: re.search(limit, value) is not None, "should match '{}'"),
)


def _scalar(value: Any, schema: Json, path: str) -> Iterator[Cause]:
    limits: tuple[_Limit, ...] = ()
    if isinstance(value, int | float) and not isinstance(value, bool):
        limits = _NUMBER_LIMITS
    elif isinstance(value, str):
        limits = _STRING_LIMITS
        if len(value) > schema.get("maxLength", len(value)):
            yield Cause("FieldValueTooLong", f"Too long: may not be more than {schema['maxLength']} bytes", path)
    for name, passes, detail in limits:
        if name in schema and not passes(value, schema[name]):
            yield Cause("FieldValueInvalid", f"Invalid value: {json.dumps(value)}: {path} in body {detail.format(schema[name])}", path)


def _members(value: Json, schema: Json, path: str) -> Iterator[Cause]:
    for name in schema.get("required") or []:
        if name not in value:
            yield Cause("FieldValueRequired", "Required value", _below(path, name))
    properties, additional = schema.get("properties") or {}, schema.get("additionalProperties")
    for name, item in value.items():
        below = properties.get(name, additional if isinstance(additional, dict) else None)
        if below is not None and not (path == "" and name in _META):
            yield from _shape(item, below, _below(path, name))


def _elements(value: list[Any], schema: Json, path: str) -> Iterator[Cause]:
    if len(value) < schema.get("minItems", 0):
        detail = f"{path} in body should have at least {schema['minItems']} items"
        yield Cause("FieldValueInvalid", f"Invalid value: {json.dumps(len(value))}: {detail}", path)
    if len(value) > schema.get("maxItems", len(value)):
        yield Cause("FieldValueTooMany", f"Too many: {len(value)}: must have at most {schema['maxItems']} items", path)
    for index, item in enumerate(value):
        yield from _shape(item, schema.get("items") or {}, f"{path}[{index}]")
    if schema.get("x-kubernetes-list-type") == "map":
        yield from _duplicates(value, schema.get("x-kubernetes-list-map-keys") or [], path)


def _duplicates(value: list[Any], keys: list[str], path: str) -> Iterator[Cause]:
    seen: set[str] = set()
    for index, item in enumerate(value):
        identity = json.dumps({key: item.get(key) for key in keys} if isinstance(item, dict) else item)
        if identity in seen:
            yield Cause("FieldValueDuplicate", f"Duplicate value: {identity}", f"{path}[{index}]")
        seen.add(identity)


def _combined(value: Any, schema: Json, path: str) -> Iterator[Cause]:
    for below in schema.get("allOf") or []:
        yield from _shape(value, below, path)
    matches = {name: [not any(_shape(value, below, path)) for below in schema.get(name) or []] for name in ("anyOf", "oneOf")}
    shown = json.dumps(value)
    if matches["anyOf"] and not any(matches["anyOf"]):
        yield Cause("FieldValueInvalid", f'Invalid value: {shown}: "{path}" must validate at least one schema (anyOf)', path)
    if matches["oneOf"] and sum(matches["oneOf"]) != 1:
        yield Cause("FieldValueInvalid", f'Invalid value: {shown}: "{path}" must validate one and only one schema (oneOf)', path)
    if "not" in schema and not any(_shape(value, schema["not"], path)):
        yield Cause("FieldValueInvalid", f'Invalid value: {shown}: "{path}" must not validate the schema (not)', path)


# Rules


def _has_rules(schema: Any) -> bool:
    if not isinstance(schema, dict):
        return False
    if schema.get("x-kubernetes-validations"):
        return True
    below = [*(schema.get("properties") or {}).values(), schema.get("items"), schema.get("additionalProperties")]
    return any(_has_rules(entry) for entry in below)


def _rules(value: Any, schema: Json, old: Any, path: str) -> Iterator[Cause]:
    for entry in schema.get("x-kubernetes-validations") or []:
        cause = _checked(compile_rule(entry["rule"]), entry, value, old, path)
        if cause is not None:
            yield cause
    if isinstance(value, dict):
        properties, additional = schema.get("properties") or {}, schema.get("additionalProperties")
        for name, item in value.items():
            below = properties.get(name, additional if isinstance(additional, dict) else None)
            if below is not None:
                yield from _rules(item, below, old.get(name) if isinstance(old, dict) else None, _below(path, name))
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        for index, item in enumerate(value):
            yield from _rules(item, schema["items"], _old_element(item, old, schema), f"{path}[{index}]")


def _checked(rule: Rule, entry: Json, value: Any, old: Any, path: str) -> Cause | None:
    if rule.uses_old and old is None:
        return None
    reason = entry.get("reason", "FieldValueInvalid")
    path = f"{path}{entry['fieldPath']}" if "fieldPath" in entry else path
    try:
        if rule.holds(value, old):
            return None
        detail = entry.get("message") or f"failed rule: {rule.source}"
    except CelError as error:
        detail = str(error)
    return Cause(reason, _RULE_REASONS[reason].format(detail), path)


def _old_element(item: Any, old: Any, schema: Json) -> Any:
    """Elements are compared with their former self only where the list says what identifies them."""
    keys = schema.get("x-kubernetes-list-map-keys")
    if not keys or not isinstance(old, list):
        return None
    wanted = [item.get(key) for key in keys]
    return next((entry for entry in old if [entry.get(key) for key in keys] == wanted), None)


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
