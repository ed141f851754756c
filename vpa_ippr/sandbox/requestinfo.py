"""What a request is about: the path and the method, read as ``k8s.io/apiserver/pkg/endpoints/request`` does."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote

import msgspec

from vpa_ippr.sandbox import protobuf
from vpa_ippr.sandbox.status import bad_request

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete", "GET": "get", "HEAD": "get"}
_NAMESPACE_SUBRESOURCES = {"status", "finalize"}


@dataclass(frozen=True, slots=True)
class User:
    """Who asks."""

    name: str
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Target:
    """The resource that a path names; all parts empty for a path that is no resource."""

    group: str = ""
    version: str = ""
    plural: str = ""
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def is_resource(self) -> bool:
        """True below ``/api/v1/`` and ``/apis/<group>/<version>/``."""
        return bool(self.plural)


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request, read completely."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes = b""
    target: Target = field(default_factory=Target)
    user: User = field(default_factory=lambda: User("system:anonymous", ("system:unauthenticated",)))

    @property
    def verb(self) -> str:
        """The verb that authorization knows."""
        if not self.target.is_resource:
            return self.method.lower()
        verb = _VERBS.get(self.method, self.method.lower())
        if verb == "get" and self.wants_watch:
            return "watch"
        if verb == "get" and not self.target.name:
            return "list"
        if verb == "delete" and not self.target.name:
            return "deletecollection"
        return verb

    @property
    def wants_watch(self) -> bool:
        """True when the query asks for a watch."""
        return self.flag("watch")

    def flag(self, name: str) -> bool:
        """A boolean of the query."""
        return self.query.get(name, "").lower() in ("1", "true") or (name in self.query and self.query[name] == "")

    def number(self, name: str) -> int | None:
        """A number of the query, None when absent; StatusError 400 when it is none."""
        text = self.query.get(name)
        if not text:
            return None
        try:
            return int(text)
        except ValueError as error:
            raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax') from error

    @property
    def is_dry_run(self) -> bool:
        """True for ``dryRun=All``; StatusError 400 for any other value."""
        value = self.query.get("dryRun", "")
        if value not in ("", "All"):
            raise bad_request(f'Invalid value: ["{value}"]: dryRun must be All')
        return value == "All"

    @property
    def content_type(self) -> str:
        """The media type of the body without parameters."""
        return self.headers.get("content-type", "application/json").partition(";")[0].strip().lower()

    @property
    def field_manager(self) -> str:
        """Who manages the fields that the request sets: as asked for, else the program of the user agent."""
        return self.query.get("fieldManager") or self.headers.get("user-agent", "unknown").partition("/")[0] or "unknown"

    def decoded_body(self) -> Any:
        """The body, in JSON, YAML or (for the kinds that kubectl sends so) protobuf; StatusError 400 or 415 when it cannot be read."""
        if self.content_type == protobuf.MEDIA_TYPE:
            return protobuf.decode_body(self.body)
        try:
            if "yaml" in self.content_type and not self.body.lstrip().startswith(b"{"):
                return msgspec.yaml.decode(self.body)
            return msgspec.json.decode(self.body)
        except (msgspec.DecodeError, ValueError) as error:
            raise bad_request(f"the object provided is unrecognized (must be of type Object): couldn't parse the body: {error}") from error


def parse_target(path: str) -> Target:
    """The resource that ``path`` names."""
    steps = [unquote(step) for step in path.strip("/").split("/")]
    if steps[0] == "api" and len(steps) >= 3:
        group, version, rest = "", steps[1], steps[2:]
    elif steps[0] == "apis" and len(steps) >= 4:
        group, version, rest = steps[1], steps[2], steps[3:]
    else:
        return Target()
    namespace = ""
    if rest[0] == "namespaces" and len(rest) >= 2:
        namespace = rest[1]
        if len(rest) > 2 and rest[2] not in _NAMESPACE_SUBRESOURCES:
            rest = rest[2:]
    name = rest[1] if len(rest) > 1 else ""
    return Target(group, version, rest[0], namespace, name, "/".join(rest[2:]))


def parse_query(text: str) -> dict[str, str]:
    """The query; of a repeated parameter the first counts."""
    return dict(reversed(parse_qsl(text, keep_blank_values=True)))
