"""Arrays inside JSON, bit for bit: NaN and infinity survive, and reading them runs no code."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import TypeVar

import msgspec
import numpy as np

from vpa_ippr.api.errors import ValidationError
from vpa_ippr.api.series import Floats


class Packed(msgspec.Struct, frozen=True):
    """One array of floats."""

    shape: tuple[int, ...]
    float64: str


def pack(values: Floats) -> Packed:
    """As base64 of little-endian doubles."""
    return Packed(values.shape, base64.b64encode(np.ascontiguousarray(values, dtype="<f8").tobytes()).decode())


def unpack(packed: Packed) -> Floats:
    """The inverse of ``pack``; ValueError when the bytes do not fit the shape."""
    return np.frombuffer(base64.b64decode(packed.float64, validate=True), dtype="<f8").reshape(packed.shape).astype(np.float64)


_State = TypeVar("_State", bound=msgspec.Struct)


def read_state(data: bytes, kind: type[_State], what: str) -> _State:
    """JSON of a state; ValidationError of reason ``ModelCorrupt`` when it is not of that kind."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise ValidationError(f"not a {what}: {error}", reason="ModelCorrupt") from error


def unpack_rows(packed: Mapping[str, Packed], axes: Mapping[str, tuple[int, ...]], what: str) -> dict[str, Floats]:
    """Arrays by name, of exactly the shapes given in ``axes``; ValidationError of reason ``ModelCorrupt`` otherwise."""
    if packed.keys() != axes.keys():
        raise ValidationError(f"not a {what}: it holds {', '.join(sorted(packed)) or 'nothing'}", reason="ModelCorrupt")
    try:
        arrays = {name: unpack(found) for name, found in packed.items()}
    except ValueError as error:
        raise ValidationError(f"not a {what}: {error}", reason="ModelCorrupt") from error
    for name, shape in axes.items():
        if arrays[name].shape != shape:
            raise ValidationError(f"not a {what}: {name} has shape {arrays[name].shape} and should have {shape}", reason="ModelCorrupt")
    return arrays
