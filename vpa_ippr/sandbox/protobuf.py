r"""The few request bodies that kubectl sends as protobuf and not as JSON: reviews, evictions and requests for tokens.

Typed clients of client-go prefer protobuf. The server answers them in JSON, which they accept; only what they send needs decoding. The
envelope is ``k8s\\0`` and a ``runtime.Unknown``; the field numbers are those of the published ``generated.proto`` files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from vpa_ippr.sandbox.status import bad_request, unsupported_media_type

Json = dict[str, Any]

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True, slots=True)
class _Field:
    """A field of a message; ``kind`` is ``string``, ``bytes``, ``integer``, ``boolean`` or the name of a message."""

    name: str
    kind: str = "string"
    repeated: bool = False


_RESOURCE_ATTRIBUTES = ("namespace", "verb", "group", "version", "resource", "subresource", "name")
_MESSAGES: dict[str, dict[int, _Field]] = {
    "Unknown": {1: _Field("typeMeta", "TypeMeta"), 2: _Field("raw", "bytes")},
    "TypeMeta": {1: _Field("apiVersion"), 2: _Field("kind")},
    "ObjectMeta": {1: _Field("name"), 2: _Field("generateName"), 3: _Field("namespace")},
    "ResourceAttributes": {number: _Field(name) for number, name in enumerate(_RESOURCE_ATTRIBUTES, 1)},
    "NonResourceAttributes": {1: _Field("path"), 2: _Field("verb")},
    "AccessSpec": {
        1: _Field("resourceAttributes", "ResourceAttributes"),
        2: _Field("nonResourceAttributes", "NonResourceAttributes"),
        3: _Field("user"),
        4: _Field("groups", repeated=True),
    },
    "RulesSpec": {1: _Field("namespace")},
    "TokenReviewSpec": {1: _Field("token"), 2: _Field("audiences", repeated=True)},
    "TokenRequestSpec": {1: _Field("audiences", repeated=True), 4: _Field("expirationSeconds", "integer")},
    "Preconditions": {1: _Field("uid"), 2: _Field("resourceVersion")},
    "DeleteOptions": {
        1: _Field("gracePeriodSeconds", "integer"),
        2: _Field("preconditions", "Preconditions"),
        3: _Field("orphanDependents", "boolean"),
        4: _Field("propagationPolicy"),
        5: _Field("dryRun", repeated=True),
    },
    "SelfSubjectAccessReview": {1: _Field("metadata", "ObjectMeta"), 2: _Field("spec", "AccessSpec")},
    "SubjectAccessReview": {1: _Field("metadata", "ObjectMeta"), 2: _Field("spec", "AccessSpec")},
    "SelfSubjectRulesReview": {1: _Field("metadata", "ObjectMeta"), 2: _Field("spec", "RulesSpec")},
    "SelfSubjectReview": {1: _Field("metadata", "ObjectMeta")},
    "TokenReview": {1: _Field("metadata", "ObjectMeta"), 2: _Field("spec", "TokenReviewSpec")},
    "TokenRequest": {1: _Field("metadata", "ObjectMeta"), 2: _Field("spec", "TokenRequestSpec")},
    "Eviction": {1: _Field("metadata", "ObjectMeta"), 2: _Field("deleteOptions", "DeleteOptions")},
}
_BODIES = frozenset(
    {
        *("SelfSubjectAccessReview", "SubjectAccessReview", "SelfSubjectRulesReview", "SelfSubjectReview"),
        *("TokenReview", "TokenRequest", "Eviction", "DeleteOptions"),
    }
)


def decode_body(body: bytes) -> Json:
    """The object in a protobuf body.

    Raises:
        StatusError: 400 when it cannot be read, 415 for a kind that is read as JSON or YAML only.
    """
    if not body.startswith(_MAGIC):
        raise bad_request("the body is not in the protobuf format of Kubernetes: it does not begin with k8s")
    try:
        envelope = _message(body[len(_MAGIC) :], "Unknown")
        kind = envelope["typeMeta"].get("kind", "")
        if kind not in _BODIES:
            raise unsupported_media_type(["application/json", "application/yaml"])
        return {**envelope["typeMeta"], **_message(envelope.get("raw", b""), kind)}
    except (IndexError, KeyError, UnicodeDecodeError) as error:
        raise bad_request(f"the protobuf body cannot be read: {error}") from error


def _message(data: bytes, name: str) -> Json:
    fields, result = _MESSAGES[name], dict[str, Any]()
    for number, found in _entries(data):
        field = fields.get(number)
        if field is None:
            continue
        value = _value(found, field.kind)
        # Go writes an absent string as an empty one.
        if value == "":
            continue
        if field.repeated:
            result.setdefault(field.name, []).append(value)
        else:
            result[field.name] = value
    return result


def _value(found: Any, kind: str) -> Any:
    if kind == "string":
        return found.decode()
    if kind == "boolean":
        return bool(found)
    if kind in ("bytes", "integer"):
        return found
    return _message(found, kind)


def _entries(data: bytes) -> Iterator[tuple[int, Any]]:
    place = 0
    while place < len(data):
        tag, place = _varint(data, place)
        wire = tag & 7
        if wire == _VARINT:
            value, place = _varint(data, place)
            yield tag >> 3, value
        elif wire == _BYTES:
            size, place = _varint(data, place)
            if place + size > len(data):
                raise IndexError("it ends too early")
            yield tag >> 3, data[place : place + size]
            place += size
        elif wire in (_FIXED64, _FIXED32):
            place += 8 if wire == _FIXED64 else 4
        else:
            raise IndexError(f"unknown wire type {wire}")


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        value |= (byte & 0x7F) << shift
        place += 1
        if not byte & 0x80:
            return value, place
        shift += 7
