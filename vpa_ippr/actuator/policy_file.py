"""The node's own policy from a TOML file: ``settle_seconds = 10``, one line a field of ``Policy``, amounts of bytes as ``"64Mi"`` too."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path

from vpa_ippr.actuator.policy import Policy
from vpa_ippr.api.errors import QuantityError, UsageError, ValidationError
from vpa_ippr.api.quantity import parse_bytes

FOUND = frozenset({"page_bytes", "node_cpus"})
"""Facts of the node, which no file changes."""
_PER_SHRINK = frozenset({"floor_bytes"})


def load_policy(path: Path, base: Policy) -> Policy:
    """``base`` with what the file says.

    Raises:
        UsageError: the file cannot be read, a key is unknown or a value cannot be; one line an error, all of them.
    """
    try:
        stated = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"cannot read the policy file {path}: {error}") from error
    settable = {field.name: getattr(base, field.name) for field in dataclasses.fields(Policy) if field.name not in FOUND | _PER_SHRINK}
    errors: list[str] = []
    changes: dict[str, object] = {}
    for key, value in stated.items():
        if key not in settable:
            errors.append(f"{key}: {_why_unknown(key, value)}")
            continue
        try:
            changes[key] = _converted(key, value, settable[key])
        except (TypeError, QuantityError) as error:
            errors.append(f"{key}: {error}")
    try:
        changed = dataclasses.replace(base, **changes)  # type: ignore[arg-type]  # each is of the field's own type by now
    except ValidationError as error:
        errors += error.fields
    if errors:
        raise UsageError("\n".join(f"policy file {path}: {line}" for line in errors), reason="InvalidPolicy")
    return changed


def _why_unknown(key: str, value: object) -> str:
    if isinstance(value, dict):
        return "the file has no tables, only keys"
    if key in FOUND:
        return "is found on the node and cannot be set"
    return "belongs to a single shrink and cannot be set" if key in _PER_SHRINK else "is no field of the policy"


def _converted(key: str, value: object, default: object) -> object:
    """The value as the field's type.

    Raises:
        TypeError: it is of another one.
        QuantityError: an amount cannot be read.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    match default:
        case bool() if isinstance(value, bool):
            return value
        case int() if isinstance(value, str) and key.endswith(("_bytes", "_bytes_per_second")):
            return parse_bytes(value)
        case int() if not isinstance(default, bool) and is_number and isinstance(value, int):
            return value
        case float() if is_number:
            return float(value)  # type: ignore[arg-type]  # a number
        case tuple() if isinstance(value, list) and all(isinstance(one, str) for one in value):
            return tuple(value)
    kinds = {bool: "true or false", int: "a whole number", float: "a number", tuple: "a list of texts"}
    amount = ' or an amount such as "64Mi"' if key.endswith("_bytes") else ""
    raise TypeError(f"must be {kinds[type(default)]}{amount}, not {value!r}")
