"""What an API server can do: its version, and whether it serves ``pods/resize`` at all."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from vpa_ippr.cluster.rest import Rest


@dataclass(frozen=True, slots=True)
class ServerCapabilities:
    """``version`` is ``MAJOR.MINOR``; ``serves_resize`` is the one necessary condition for resizing in place (KEP-1287)."""

    version: str
    serves_resize: bool


class _Version(msgspec.Struct):
    major: str = ""
    minor: str = ""


class _Resource(msgspec.Struct):
    name: str
    verbs: list[str] = []


class _Resources(msgspec.Struct):
    resources: list[_Resource] = []


def discover(rest: Rest) -> ServerCapabilities:
    """Ask the server. Vendors add suffixes to the minor version (``33+``): only its digits count."""
    version = rest.get("/version", _Version)
    resources = rest.get("/api/v1", _Resources).resources
    minor = "".join(character for character in version.minor if character.isdigit())
    return ServerCapabilities(
        version=f"{version.major}.{minor}",
        serves_resize=any(resource.name == "pods/resize" and "patch" in resource.verbs for resource in resources),
    )
