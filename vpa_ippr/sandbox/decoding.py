"""Reading a built-in object as the real server's decoder does: types checked, quantities canonical, unknown fields dropped and named."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from vpa_ippr.api.errors import QuantityError
from vpa_ippr.api.quantity import parse_quantity
from vpa_ippr.sandbox.schema import Field, built_in_type
from vpa_ippr.sandbox.status import StatusError

Json = dict[str, Any]

_GO_TYPES = {"string": "string", "integer": "int64", "number": "float64", "boolean": "bool", "time": "string"}
_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "time": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "intOrString": (int, str),
}
_BAD_QUANTITY = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
_TIME = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?(Z|[+-]\d{2}:\d{2})")


@dataclass(slots=True)
class _Decoder:
    unknown: list[str] = field(default_factory=list)

    def value(self, found: Any, kind: Field, path: str, place: str) -> Any:
        if kind.struct:
            return self.struct(found, kind, path, place)
        if kind.is_list:
            if not isinstance(found, list):
                raise _mismatch(found, place, f"[]{kind.item.struct.rpartition('.')[2] or kind.item.type}")
            return [self.value(item, kind.item, f"{path}[{index}]", place) for index, item in enumerate(found)]
        if kind.is_map:
            if not isinstance(found, dict):
                raise _mismatch(found, place, f"map[string]{_GO_TYPES.get(kind.item.type, kind.item.type)}")
            return {key: self.value(item, kind.item, f"{path}[{key}]", place) for key, item in found.items() if item is not None}
        if kind.type == "quantity":
            return canonical_quantity(found)
        return self.scalar(found, kind, place)

    def struct(self, found: Any, kind: Field, path: str, place: str) -> Json:
        if not isinstance(found, dict):
            raise _mismatch(found, place, kind.struct)
        known, decoded = kind.fields(), {}
        owner = kind.struct.rpartition(".")[2]
        steps = place.partition(".")[2]
        for name, item in found.items():
            below = f"{path}.{name}" if path else name
            entry = known.get(name)
            if entry is None:
                self.unknown.append(below)
                continue
            if item is None:
                continue
            read = self.value(item, entry, below, f"{owner}.{steps}.{name}" if steps else f"{owner}.{name}")
            # An empty list or map means the same as none at all; the real server leaves it out (omitempty).
            if read or entry.required or not (entry.is_list or entry.is_map):
                decoded[name] = read
        return decoded

    def scalar(self, found: Any, kind: Field, place: str) -> Any:
        expected = _PYTHON_TYPES.get(kind.type)
        if expected is None:
            return found
        if not isinstance(found, expected) or (isinstance(found, bool) and kind.type != "boolean"):
            raise _mismatch(found, place, _GO_TYPES.get(kind.type, kind.type))
        if kind.type == "time" and isinstance(found, str) and not _TIME.fullmatch(found):
            raise ValueError(f'parsing time "{found}" as "2006-01-02T15:04:05Z07:00": cannot parse "{found}" as "2006"')
        return found


def decode(obj: Json, api_version: str, kind: str) -> tuple[Json, list[str]]:
    """The object as it is stored, and the paths of the fields that its type does not have.

    Raises:
        StatusError: 400 when a value has the wrong type or a quantity cannot be read.
    """
    root = built_in_type(api_version, kind)
    if root is None:
        return obj, []
    decoder = _Decoder()
    try:
        decoded = decoder.value(obj, root, "", kind)
    except ValueError as error:
        raise unusable(api_version, kind, str(error)) from error
    return decoded, decoder.unknown


class DecodingError(StatusError):
    """400: the object cannot be read; ``detail`` is what the decoder says by itself."""

    def __init__(self, message: str, detail: str) -> None:
        super().__init__(400, "BadRequest", message)
        self.detail = detail


def unusable(api_version: str, kind: str, detail: str) -> DecodingError:
    """400 with the decoder's wording."""
    version = api_version.rpartition("/")[2]
    return DecodingError(f'{kind} in version "{version}" cannot be handled as a {kind}: {detail}', detail)


def strict_detail(unknown: list[str]) -> str:
    """What strict decoding says about fields that do not exist."""
    return "strict decoding error: " + ", ".join(f'unknown field "{path}"' for path in unknown)


def canonical_quantity(found: Any) -> str:
    """The canonical text of a quantity; ValueError with the decoder's message when it is none."""
    try:
        return str(parse_quantity(found.strip() if isinstance(found, str) else found))
    except QuantityError as error:
        raise ValueError(_BAD_QUANTITY) from error


def go_text(value: Any) -> str:
    """A value as Go's ``%+v`` prints it: ``map[a:1 b:[x <nil>]]``."""
    if isinstance(value, dict):
        return f"map[{' '.join(f'{key}:{go_text(value[key])}' for key in sorted(value))}]"
    if isinstance(value, list):
        return f"[{' '.join(go_text(item) for item in value)}]"
    if value is None:
        return "<nil>"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _mismatch(found: Any, place: str, go_type: str) -> ValueError:
    return ValueError(f"json: cannot unmarshal {_json_kind(found)} into Go struct field {place} of type {go_type}")


def _json_kind(found: Any) -> str:
    if isinstance(found, bool):
        return "bool"
    if isinstance(found, int | float):
        return "number"
    if isinstance(found, str):
        return "string"
    return "array" if isinstance(found, list) else "object"
