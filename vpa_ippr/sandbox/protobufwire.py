"""The wire format of protobuf: a message is a row of fields, each with its number and, in one of four forms, its value."""

from __future__ import annotations

from collections.abc import Iterator

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}
_VARINT_BITS = 64


class WireError(ValueError):
    """The bytes are no message of the expected type."""


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field in the order of the bytes: an unsigned 64-bit integer, or the bytes of all that is longer.

    Numbers of a fixed width are passed over: no type of Kubernetes that is read here has one.

    Raises:
        WireError: the bytes end too early or follow no rule.
    """
    place = 0
    while place < len(data):
        tag, place = _varint(data, place)
        number, form = tag >> 3, tag & 7
        if not number:
            raise WireError("0 is the number of no field")
        if form == _VARINT:
            value, place = _varint(data, place)
            yield number, value
            continue
        if form == _BYTES:
            size, place = _varint(data, place)
        elif form in _FIXED_BYTES:
            size = _FIXED_BYTES[form]
        else:
            raise WireError(f"unknown wire type {form}")
        start, place = place, place + size
        if place > len(data):
            raise WireError("it ends too early")
        if form == _BYTES:
            yield number, data[start:place]


def varints(data: bytes) -> list[int]:
    """The integers of a packed repeated field; WireError as for ``fields``."""
    found, place = [], 0
    while place < len(data):
        value, place = _varint(data, place)
        found.append(value)
    return found


def signed(value: int) -> int:
    """The ``int32`` or ``int64`` that was written as an unsigned integer of 64 bits."""
    return value - (1 << _VARINT_BITS) if value >> (_VARINT_BITS - 1) else value


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while shift < _VARINT_BITS:
        if place >= len(data):
            raise WireError("it ends too early")
        byte = data[place]
        value |= (byte & 0x7F) << shift
        place += 1
        if not byte & 0x80:
            return value & ((1 << _VARINT_BITS) - 1), place
        shift += 7
    raise WireError("a number has more than 64 bits")
