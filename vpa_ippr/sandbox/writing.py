"""The writing verbs: create, update, patch (four formats), delete and deletecollection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from vpa_ippr.sandbox import customschema
from vpa_ippr.sandbox.applying import apply_object, track_update
from vpa_ippr.sandbox.decoding import DecodingError, decode, go_text, strict_detail, unusable
from vpa_ippr.sandbox.managedfields import Shape
from vpa_ippr.sandbox.patching import json_patch, merge_patch, strategic_merge
from vpa_ippr.sandbox.presenting import from_version, to_version
from vpa_ippr.sandbox.reading import matcher
from vpa_ippr.sandbox.requestinfo import Request
from vpa_ippr.sandbox.resources import Resource
from vpa_ippr.sandbox.responses import Response, json_response, success
from vpa_ippr.sandbox.schema import ANY, built_in_type
from vpa_ippr.sandbox.status import (
    Cause,
    StatusError,
    bad_request,
    invalid,
    not_found,
    object_details,
    unsupported_media_type,
)
from vpa_ippr.sandbox.store import DeleteOptions, Deletion, Store

Json = dict[str, Any]

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
_RETURNED_WHEN_DELETED = {"pods", "services", "serviceaccounts", "persistentvolumeclaims"}
_NEED_VERSION = {"leases.coordination.k8s.io", "customresourcedefinitions.apiextensions.k8s.io"}


class Decoded:
    """Collects what field validation finds while a request's objects are read."""

    def __init__(self, store: Store, resource: Resource, request: Request) -> None:
        self._store = store
        self._resource = resource
        self._mode = request.query.get("fieldValidation") or "Warn"
        if self._mode not in ("Strict", "Warn", "Ignore"):
            raise bad_request(f'Unsupported value: "{self._mode}": supported values: "Ignore", "Strict", "Warn"')
        self.warnings: tuple[str, ...] = ()

    def read(self, obj: Any) -> Json:
        """The object without unknown fields.

        Raises:
            DecodingError: a value has the wrong type, or, in strict mode, a field is unknown.
        """
        resource = self._resource
        if not isinstance(obj, dict):
            raise unusable(resource.api_version, resource.kind, "json: cannot unmarshal into Go value: an object is expected")
        if resource.custom:
            decoded, unknown = customschema.prune(obj, self._store.rules.custom.schema(resource))
        else:
            decoded, unknown = decode(obj, resource.api_version, resource.kind)
        if not isinstance(decoded.get("metadata") or {}, dict):
            raise unusable(resource.api_version, resource.kind, "json: cannot unmarshal into Go struct field metadata")
        if unknown and self._mode == "Strict":
            raise unusable(resource.api_version, resource.kind, strict_detail(unknown))
        if unknown and self._mode == "Warn":
            self.warnings = tuple(f'unknown field "{path}"' for path in unknown)
        return from_version(resource, decoded)

    def read_patched(self, obj: Any, shown: str) -> Json:
        """The result of a patch; what cannot be read is the patch's fault (422), which ``shown`` quotes."""
        try:
            return self.read(obj)
        except DecodingError as error:
            quoted = msgspec.json.encode(shown).decode()
            raise invalid("", "", [Cause("FieldValueInvalid", f"Invalid value: {quoted}: {error.detail}", "patch")]) from error


def create(store: Store, resource: Resource, request: Request) -> Response:
    """POST to a collection."""
    decoded = Decoded(store, resource, request)
    body = request.decoded_body()
    _check_type(resource, body)
    obj = decoded.read(body)
    metadata = obj["metadata"] = obj.get("metadata") or {}
    metadata.pop("managedFields", None)
    if resource.namespaced:
        _check_namespace(metadata, request.target.namespace)
    created = store.create(_stored(store, resource), obj, dry_run=request.is_dry_run)
    return json_response(201, to_version(resource, created), decoded.warnings)


def update(store: Store, resource: Resource, request: Request) -> Response:
    """PUT of one object or of its status or resize subresource."""
    target = request.target
    decoded = Decoded(store, resource, request)
    body = request.decoded_body()
    _check_type(resource, body)
    obj = decoded.read(body)
    metadata = obj["metadata"] = obj.get("metadata") or {}
    _check_name(metadata, target.name)
    if resource.namespaced:
        _check_namespace(metadata, target.namespace)
    if not metadata.get("resourceVersion") and (resource.custom or resource.key in _NEED_VERSION):
        cause = Cause("FieldValueInvalid", "Invalid value: 0: must be specified for an update", "metadata.resourceVersion")
        raise invalid(resource.kind, target.name, [cause], resource.group)

    def replace(current: Json) -> Json:
        return _tracked(store, resource, request, current, obj)

    stored = store.update(
        _stored(store, resource), target.namespace, target.name, replace, subresource=target.subresource or None, dry_run=request.is_dry_run
    )
    return json_response(200, to_version(resource, stored), decoded.warnings)


def patch(store: Store, resource: Resource, request: Request) -> Response:
    """PATCH of one object or of its status or resize subresource."""
    target = request.target
    decoded = Decoded(store, resource, request)
    if request.content_type == APPLY_PATCH:
        return _apply(store, resource, request, decoded)
    change = _patcher(resource, request)
    # A strategic merge patch is quoted as Go prints the map, the other formats as they came.
    is_strategic = request.content_type == STRATEGIC_PATCH
    shown = go_text(request.decoded_body()) if is_strategic else request.body.decode("utf-8", "replace")

    def mutate(current: Json) -> Json:
        patched = decoded.read_patched(change(to_version(resource, current)), shown)
        patched["metadata"] = patched.get("metadata") or {}
        _check_name(patched["metadata"], target.name)
        return _tracked(store, resource, request, current, patched)

    stored = store.update(
        _stored(store, resource), target.namespace, target.name, mutate, subresource=target.subresource or None, dry_run=request.is_dry_run
    )
    return json_response(200, to_version(resource, stored), decoded.warnings)


def _patcher(resource: Resource, request: Request) -> Callable[[Json], Any]:
    accepted = [JSON_PATCH, MERGE_PATCH, *([] if resource.custom else [STRATEGIC_PATCH]), APPLY_PATCH]
    kind = request.content_type
    if kind not in accepted:
        raise unsupported_media_type(accepted)
    body = request.decoded_body()
    if kind == JSON_PATCH:
        return lambda current: json_patch(current, body)
    if not isinstance(body, dict):
        raise bad_request("error decoding patch: json: cannot unmarshal into Go value of type map[string]interface {}")
    if kind == MERGE_PATCH:
        return lambda current: merge_patch(current, body)
    schema = built_in_type(resource.api_version, resource.kind) or ANY
    return lambda current: strategic_merge(current, body, schema)


def _apply(store: Store, resource: Resource, request: Request, decoded: Decoded) -> Response:
    """Server-side apply: changes what is there, or creates it."""
    target = request.target
    manager = request.query.get("fieldManager")
    if not manager:
        cause = Cause("FieldValueRequired", "Required value: is required for apply patch", "fieldManager")
        raise invalid("PatchOptions", "", [cause], "meta.k8s.io")
    body = request.decoded_body()
    _check_type(resource, body)
    applied = decoded.read(body)
    metadata = applied["metadata"] = applied.get("metadata") or {}
    metadata.setdefault("name", target.name)
    _check_name(metadata, target.name)
    if resource.namespaced:
        _check_namespace(metadata, target.namespace)
    stored, now = _stored(store, resource), store.clock.now()
    shape, force = _shape(store, stored), request.flag("force")

    def merge(current: Json) -> Json:
        return apply_object(current, applied, shape, resource, manager=manager, subresource=target.subresource, force=force, now=now)

    if store.find(stored, target.namespace, target.name) is None:
        if target.subresource:
            raise not_found(resource.plural, target.name, resource.group)
        created = store.create(stored, merge({}), dry_run=request.is_dry_run)
        return json_response(201, to_version(resource, created), decoded.warnings)
    updated = store.update(stored, target.namespace, target.name, merge, subresource=target.subresource or None, dry_run=request.is_dry_run)
    return json_response(200, to_version(resource, updated), decoded.warnings)


def _tracked(store: Store, resource: Resource, request: Request, current: Json, new: Json) -> Json:
    return track_update(
        current,
        new,
        _shape(store, _stored(store, resource)),
        resource,
        manager=request.field_manager,
        subresource=request.target.subresource,
        now=store.clock.now(),
    )


def _shape(store: Store, stored: Resource) -> Shape:
    return store.rules.custom.schema(stored) if stored.custom else built_in_type(stored.api_version, stored.kind) or ANY


def delete(store: Store, resource: Resource, request: Request) -> Response:
    """DELETE of one object."""
    target = request.target
    deletion = store.remove(_stored(store, resource), target.namespace, target.name, delete_options(request))
    if deletion.gone and resource.key not in _RETURNED_WHEN_DELETED:
        details = {**object_details(resource.plural, resource.group, target.name), "uid": deletion.obj["metadata"]["uid"]}
        return success(details)
    return json_response(200, to_version(resource, deletion.obj))


def delete_collection(store: Store, resource: Resource, request: Request) -> Response:
    """DELETE of a collection, as far as the selectors reach."""
    matches, options = matcher(resource, request), delete_options(request)
    records, revision = store.snapshot(resource, request.target.namespace)
    deleted: list[Deletion] = []
    for (namespace, name), record in records:
        if matches(record):
            # Another client may have been faster.
            try:
                deleted.append(store.remove(_stored(store, resource), namespace, name, options))
            except StatusError as error:
                if error.code != 404:
                    raise
    items = [to_version(resource, deletion.obj) for deletion in deleted]
    head = {"kind": f"{resource.kind}List", "apiVersion": resource.api_version, "metadata": {"resourceVersion": str(revision)}}
    return json_response(200, {**head, "items": items})


def delete_options(request: Request) -> DeleteOptions:
    """The options of the body and, taking precedence, of the query."""
    body = request.decoded_body() if request.body.strip() else {}
    if not isinstance(body, dict):
        raise bad_request("the body of a deletion must be DeleteOptions")
    return options_from(body, request)


def options_from(body: Json, request: Request) -> DeleteOptions:
    """``DeleteOptions`` of an object and of the query."""
    preconditions = body.get("preconditions") or {}
    grace = request.number("gracePeriodSeconds")
    grace = body.get("gracePeriodSeconds") if grace is None else grace
    propagation = request.query.get("propagationPolicy") or body.get("propagationPolicy")
    if propagation is None:
        orphans = body.get("orphanDependents") or request.flag("orphanDependents")
        propagation = "Orphan" if orphans else "Background"
    return DeleteOptions(
        grace_period_seconds=grace,
        uid=preconditions.get("uid"),
        resource_version=preconditions.get("resourceVersion"),
        propagation=propagation,
        dry_run=request.is_dry_run or bool(body.get("dryRun")),
    )


def _stored(store: Store, resource: Resource) -> Resource:
    """The resource under which the objects are kept, for a group that shares them with another."""
    return store.registry.named(resource.storage) if resource.storage else resource


def _check_type(resource: Resource, body: Any) -> None:
    if not isinstance(body, dict):
        raise bad_request("the object provided is unrecognized (must be of type Object): an object is expected")
    kind, version = body.get("kind") or resource.kind, body.get("apiVersion") or resource.api_version
    if kind != resource.kind or version != resource.api_version:
        if version != resource.api_version:
            raise bad_request(f"the API version in the data ({version}) does not match the expected API version ({resource.api_version})")
        raise bad_request(f"{kind} in version {version!r} cannot be handled as a {resource.kind}: no kind match")


def _check_name(metadata: Json, name: str) -> None:
    given = metadata.get("name") or name
    if given != name:
        raise bad_request(f"the name of the object ({given}) does not match the name on the URL ({name})")


def _check_namespace(metadata: Json, namespace: str) -> None:
    given = metadata.setdefault("namespace", namespace)
    if given and namespace and given != namespace:
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
    if not given:
        raise StatusError(400, "BadRequest", "an empty namespace may not be set during creation")
