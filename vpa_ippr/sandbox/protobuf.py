r"""Request bodies in protobuf, which the typed clients of client-go (and so most of ``kubectl create``) send, in their JSON form.

The server answers in JSON, which these clients accept; only what they send needs decoding. The envelope is ``k8s\\0`` and a
``runtime.Unknown``. The types lie in ``protobuf_types.json``: the kind of each ``apiVersion/kind``, and for each message the name, the type
and possibly a mode of every field by its number. No message contains itself, so that the table bounds how deeply a body is nested; the
server bounds its size.

The modes: ``repeated``; ``map`` (by string, the type is that of the values); ``inline`` (in JSON the fields stand in the outer object);
``omitted`` and ``kept`` tell whether a zero means absent, where it is not as usual for the type (yes for a text, no for all others).
"""

from __future__ import annotations

import base64
import functools
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from typing import Any

import msgspec

from vpa_ippr.api.timestamps import format_time
from vpa_ippr.sandbox.protobufwire import WireError, fields, signed, varints
from vpa_ippr.sandbox.status import StatusError, bad_request

Json = dict[str, Any]

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"
_TYPE_META, _RAW = 1, 2
_API_VERSION, _KIND = 1, 2
# The times whose year has the four digits that RFC 3339 asks for, in seconds of the Unix epoch.
_FIRST_SECOND, _END_SECOND = -30_610_224_000, 253_402_300_800
_INT_OR_STRING_STRING = 1


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    kind: str
    mode: str = ""

    @property
    def omits_zero(self) -> bool:
        return self.mode == "omitted" or (self.kind in ("string", "bytes") and not self.mode)


def decode_body(body: bytes) -> Json:
    """The object in a protobuf body.

    Raises:
        StatusError: 400 when it cannot be read, 415 for a kind that is read as JSON or YAML only.
    """
    if not body.startswith(_MAGIC):
        raise bad_request("the body is not in the protobuf format of Kubernetes: it does not begin with k8s")
    try:
        envelope = dict(fields(body[len(_MAGIC) :]))
        head = dict(fields(_bytes(envelope.get(_TYPE_META))))
        api_version, kind = _text(head.get(_API_VERSION, b"")), _text(head.get(_KIND, b""))
        message = _kinds().get(f"{api_version}/{kind}") or _kinds().get(kind)
        if message is None:
            raise _unknown_kind(api_version, kind)
        return {"apiVersion": api_version, "kind": kind, **_message(_bytes(envelope.get(_RAW, b"")), message)}
    except ValueError as error:
        raise bad_request(f"the protobuf body cannot be read: {error}") from error


def _unknown_kind(api_version: str, kind: str) -> StatusError:
    message = (
        f'the kind "{kind}" in version "{api_version}" is not read as protobuf - accepted media types include: '
        "application/json, application/yaml"
    )
    return StatusError(415, "UnsupportedMediaType", message)


@functools.cache
def _source() -> Json:
    text = resources.files("vpa_ippr.sandbox").joinpath("protobuf_types.json").read_bytes()
    source: Json = msgspec.json.decode(text)
    return source


def _kinds() -> dict[str, str]:
    kinds: dict[str, str] = _source()["kinds"]
    return kinds


@functools.cache
def _fields_of(message: str) -> dict[int, _Field]:
    return {int(number): _Field(*entry) for number, entry in _source()["messages"][message].items()}


def _message(data: bytes, message: str) -> Json:
    known, result = _fields_of(message), dict[str, Any]()
    for number, found in fields(data):
        field = known.get(number)
        if field is not None:
            _add(result, field, found)
    return result


def _add(result: Json, field: _Field, found: int | bytes) -> None:
    """One field's value into the object; what JSON writes as null is left out."""
    if field.mode == "map":
        key, value = _map_entry(_bytes(found), field.kind)
        if value is not None:
            result.setdefault(field.name, {})[key] = value
    elif field.mode == "repeated":
        result.setdefault(field.name, []).extend(_items(found, field.kind))
    elif field.mode == "inline":
        result.update(_message(_bytes(found), field.kind))
    else:
        value = _value(found, field.kind)
        if value is not None and (value or not field.omits_zero):
            result[field.name] = value


def _map_entry(data: bytes, kind: str) -> tuple[str, Any]:
    entry = dict(fields(data))
    return _text(entry.get(1, b"")), _value(entry.get(2, b""), kind)


def _items(found: int | bytes, kind: str) -> list[Any]:
    """A repeated field's elements: one, or of packed integers any number."""
    if kind == "integer" and isinstance(found, bytes):
        return [signed(value) for value in varints(found)]
    return [_value(found, kind)]


def _value(found: int | bytes, kind: str) -> Any:
    read = _READERS.get(kind)
    return read(found) if read else _message(_bytes(found), kind)


def _bytes(found: int | bytes | None) -> bytes:
    if not isinstance(found, bytes):
        raise WireError("a field is absent that must be there" if found is None else "a number where bytes are expected")
    return found


def _text(found: int | bytes) -> str:
    return _bytes(found).decode()


def _number(found: int | bytes) -> int:
    if not isinstance(found, int):
        raise WireError("bytes where a number is expected")
    return signed(found)


def _base64(found: int | bytes) -> str:
    return base64.b64encode(_bytes(found)).decode()


def _strings(found: int | bytes) -> list[str]:
    """A list that is a message of its own, as the values of a map must be."""
    return [_text(item) for number, item in fields(_bytes(found)) if number == 1]


def _quantity(found: int | bytes) -> str:
    return _text(dict(fields(_bytes(found))).get(1, b"")) or "0"


def _int_or_string(found: int | bytes) -> int | str:
    parts = dict(fields(_bytes(found)))
    if parts.get(1, 0) == _INT_OR_STRING_STRING:
        return _text(parts.get(3, b""))
    return _number(parts.get(2, 0))


def _embedded_json(found: int | bytes) -> Any:
    """An object of any type; it is JSON within the protobuf."""
    text = dict(fields(_bytes(found))).get(1, b"")
    try:
        return msgspec.json.decode(_bytes(text)) if text else None
    except (msgspec.DecodeError, RecursionError) as error:
        raise WireError(f"JSON inside it: {error}") from error


def _time(found: int | bytes) -> str | None:
    """``metav1.Time``, which has whole seconds; None for Go's zero time, which is written as an empty message."""
    parts = dict(fields(_bytes(found)))
    if not parts:
        return None
    seconds = _number(parts.get(1, 0))
    if not _FIRST_SECOND <= seconds < _END_SECOND:
        raise WireError(f"{seconds} s are no time between the years 1000 and 9999")
    return format_time(seconds)


_READERS: dict[str, Callable[[int | bytes], Any]] = {
    "string": _text,
    "bytes": _base64,
    "boolean": lambda found: bool(_number(found)),
    "integer": _number,
    "strings": _strings,
    "quantity": _quantity,
    "intOrString": _int_or_string,
    "json": _embedded_json,
    "time": _time,
}
