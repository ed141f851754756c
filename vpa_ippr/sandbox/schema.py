"""The types of the built-in objects: which fields there are, of which type, and how lists merge.

The facts lie in ``builtin_types.json``, reduced from the published OpenAPI of Kubernetes. A type is written as ``string``, ``integer``,
``quantity``, …, ``#name`` (a struct), ``[type`` (a list) or ``{type`` (a map by string).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib import resources
from typing import Any

import msgspec

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a struct.

    ``merges``: a strategic merge patch merges the list by ``merge_key`` (or as a set of scalars) where it would otherwise replace it.
    ``list_keys``: what identifies an element for server-side apply; ``is_atomic``: apply owns the value as a whole.
    """

    type: str
    merges: bool = False
    retains_keys: bool = False
    merge_key: str = ""
    list_type: str = ""
    list_keys: tuple[str, ...] = ()
    is_atomic: bool = False
    required: bool = False

    @property
    def item(self) -> Field:
        """The element of a list or the value of a map."""
        return _plain(self.type[1:])

    @property
    def is_list(self) -> bool:
        """True for ``[type``."""
        return self.type.startswith("[")

    @property
    def is_map(self) -> bool:
        """True for ``{type``."""
        return self.type.startswith("{")

    @property
    def struct(self) -> str:
        """The name of the struct, or an empty text."""
        return self.type[1:] if self.type.startswith("#") else ""

    def fields(self) -> dict[str, Field]:
        """The fields of a struct; empty for everything else."""
        return struct_fields(self.struct) if self.struct else {}


ANY = Field("any")


@functools.cache
def _plain(name: str) -> Field:
    return Field(name)


@functools.cache
def _source() -> Json:
    text = resources.files("vpa_ippr.sandbox").joinpath("builtin_types.json").read_bytes()
    source: Json = msgspec.json.decode(text)
    return source


@functools.cache
def struct_fields(name: str) -> dict[str, Field]:
    """The fields of a struct such as ``core.v1.PodSpec``."""
    return {field: _field(entry) for field, entry in _source()["types"][name].items()}


def struct_names() -> list[str]:
    """Every struct that is known."""
    return list(_source()["types"])


def built_in_type(api_version: str, kind: str) -> Field | None:
    """The type of a built-in kind, or None for any other."""
    name = _source()["kinds"].get(f"{api_version}/{kind}")
    return _plain(f"#{name}") if name else None


def built_in_kinds() -> dict[str, str]:
    """The struct of every built-in kind, by ``apiVersion/kind``."""
    kinds: dict[str, str] = _source()["kinds"]
    return kinds


def _field(entry: str | Json) -> Field:
    if isinstance(entry, str):
        return _plain(entry)
    strategy = entry.get("strategy", "")
    return Field(
        type=entry["type"],
        merges="merge" in strategy,
        retains_keys="retainKeys" in strategy,
        merge_key=entry.get("mergeKey", ""),
        list_type=entry.get("listType", ""),
        list_keys=tuple(entry.get("listKeys", ())),
        is_atomic=entry.get("atomic", False) or entry.get("listType") == "atomic",
        required=entry.get("required", False),
    )
