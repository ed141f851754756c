"""The reading verbs: get, list with selectors and paging, and watch."""

from __future__ import annotations

import base64
import binascii
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from vpa_ippr.sandbox.fields import field_readers
from vpa_ippr.sandbox.presenting import presenter_for
from vpa_ippr.sandbox.requestinfo import Request
from vpa_ippr.sandbox.resources import Resource
from vpa_ippr.sandbox.responses import Response, Stream
from vpa_ippr.sandbox.selectors import everything, parse_field_selector, parse_label_selector
from vpa_ippr.sandbox.status import Cause, StatusError, bad_request, expired
from vpa_ippr.sandbox.store import Key, Record, Store
from vpa_ippr.sandbox.watching import Watch, parse_watch_options

Json = dict[str, Any]

_CONTINUE_VERSION = "meta.k8s.io/v1"
_EXPIRED_PAGE = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue "
    "parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token "
    "results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and "
    "now may show up in the list."
)
# Without timeoutSeconds a watch ends after 30 to 60 minutes, as with the real server's --min-request-timeout.
_MIN_WATCH_SECONDS = 1800


@dataclass(frozen=True, slots=True)
class Page:
    """Where a list goes on: the revision of its first page and the key after which the next one starts."""

    revision: int
    after: Key


def get(store: Store, resource: Resource, request: Request) -> Response:
    """GET of one object."""
    record = store.record(resource, request.target.namespace, request.target.name)
    present = presenter_for(request, resource, store.rules.custom, store.clock.now())
    return Response(200, present.one(record))


def list_objects(store: Store, resource: Resource, request: Request) -> Response:
    """GET of a collection."""
    matches = matcher(resource, request)
    present = presenter_for(request, resource, store.rules.custom, store.clock.now())
    limit = request.number("limit") or 0
    records, revision = _records(store, resource, request)
    selected = [(key, record) for key, record in records if matches(record)]
    metadata: Json = {"resourceVersion": str(revision)}
    if limit and len(selected) > limit:
        metadata["continue"] = write_token(Page(revision, selected[limit - 1][0]))
        if not request.query.get("labelSelector") and not request.query.get("fieldSelector"):
            metadata["remainingItemCount"] = len(selected) - limit
        selected = selected[:limit]
    return Response(200, present.many([record for _, record in selected], metadata))


def _records(store: Store, resource: Resource, request: Request) -> tuple[list[tuple[Key, Record]], int]:
    namespace, token = request.target.namespace, request.query.get("continue")
    asked = request.query.get("resourceVersion", "")
    if token:
        if asked not in ("", "0"):
            raise bad_request("specifying resource version is not allowed when using continue")
        page = read_token(token)
        try:
            records, revision = store.snapshot(resource, namespace, at=page.revision)
        except StatusError as error:
            raise expired(_EXPIRED_PAGE) from error
        return [entry for entry in records if entry[0] > page.after], revision
    version = _list_version(store, asked)
    exact = request.query.get("resourceVersionMatch") == "Exact" and version
    return store.snapshot(resource, namespace, at=version if exact else None)


def _list_version(store: Store, text: str) -> int:
    if not text:
        return 0
    if not text.isdigit():
        raise bad_request(f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax')
    version = int(text)
    if version > store.revision:
        details = {"causes": [Cause("ResourceVersionTooLarge", "Too large resource version").to_json()], "retryAfterSeconds": 1}
        raise StatusError(504, "Timeout", f"Too large resource version: {version}, current: {store.revision}", details=details)
    return version


def watch(store: Store, resource: Resource, request: Request) -> Stream:
    """GET with ``watch``."""
    options = parse_watch_options(request.query)
    present = presenter_for(request, resource, store.rules.custom, store.clock.now())
    matches = matcher(resource, request)
    timeout = request.number("timeoutSeconds") or _MIN_WATCH_SECONDS * (1 + random.random())  # noqa: S311 - spreads reconnects
    watch = Watch(store, resource, matches, present.one, options)
    return Stream(watch, resource, float(timeout), sends_bookmarks=options.bookmarks)


def matcher(resource: Resource, request: Request) -> Callable[[Record], bool]:
    """The selection that a request makes by its namespace, name and selectors; StatusError 400 for selectors that cannot be read."""
    labels_match = parse_label_selector(request.query.get("labelSelector"))
    fields_match = parse_field_selector(request.query.get("fieldSelector"), field_readers(resource))
    namespace, name = request.target.namespace, request.target.name
    if labels_match is everything and fields_match is everything and not namespace and not name:
        return everything

    def matches(record: Record) -> bool:
        metadata = record.obj["metadata"]
        placed = (not namespace or metadata.get("namespace") == namespace) and (not name or metadata["name"] == name)
        return placed and labels_match(record.labels) and fields_match(record.obj)

    return matches


def write_token(page: Page) -> str:
    """The continue token of a page."""
    body = {"v": _CONTINUE_VERSION, "rv": page.revision, "start": "/".join(page.after) + "\0"}
    return base64.urlsafe_b64encode(msgspec.json.encode(body)).decode().rstrip("=")


def read_token(token: str) -> Page:
    """The page of a continue token; StatusError 400 in the words of the real server."""
    try:
        raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    except (binascii.Error, ValueError) as error:
        raise bad_request(f"invalid continue token: continue key is not valid: {error}") from error
    if not raw.startswith(b"{"):
        first = f"\\u{raw[0]:04x}" if raw and not 32 <= raw[0] < 127 else raw[:1].decode()
        raise bad_request(f"invalid continue token: continue key is not valid: invalid character '{first}' looking for beginning of value")
    try:
        body = msgspec.json.decode(raw)
        namespace, _, name = body["start"].rstrip("\0").partition("/")
        return Page(int(body["rv"]), (namespace, name))
    except (msgspec.DecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise bad_request(f"invalid continue token: continue key is not valid: {error}") from error
