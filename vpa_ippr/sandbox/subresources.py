"""The subresources that are more than a part of their object: scale, eviction, binding, token and log."""

from __future__ import annotations

from typing import Any

from vpa_ippr.api.timestamps import format_time
from vpa_ippr.sandbox.eviction import evict
from vpa_ippr.sandbox.patching import json_patch, merge_patch
from vpa_ippr.sandbox.rbac import Tokens
from vpa_ippr.sandbox.requestinfo import Request
from vpa_ippr.sandbox.resources import Resource
from vpa_ippr.sandbox.responses import Response, json_response, success, text_response
from vpa_ippr.sandbox.status import bad_request, conflict, method_not_allowed
from vpa_ippr.sandbox.store import Store
from vpa_ippr.sandbox.tables import json_path
from vpa_ippr.sandbox.writing import JSON_PATCH, options_from

Json = dict[str, Any]

_TOKEN_SECONDS = 3600


def handle_subresource(store: Store, tokens: Tokens, resource: Resource, request: Request) -> Response:
    """One request to such a subresource; StatusError 404 and 405 as for every other path."""
    name = request.target.subresource
    if name == "scale":
        return _scale(store, resource, request)
    if name == "log" and request.method == "GET":
        store.record(resource, request.target.namespace, request.target.name)
        # Nothing in the sandbox writes a log.
        return text_response(200, "")
    if request.method != "POST":
        raise method_not_allowed()
    if name == "eviction":
        return _evict(store, request)
    if name == "binding":
        return _bind(store, request)
    return _request_token(store, tokens, request)


def _evict(store: Store, request: Request) -> Response:
    body = _body(request)
    options = options_from(body.get("deleteOptions") or {}, request)
    evict(store, request.target.namespace, request.target.name, options)
    return success(code=201)


def _bind(store: Store, request: Request) -> Response:
    target, node = request.target, (_body(request).get("target") or {}).get("name")
    if not node:
        raise bad_request("target.name: Required value")
    now = format_time(store.clock.now())

    def bind(pod: Json) -> Json:
        bound = pod["spec"].get("nodeName")
        if bound:
            raise conflict("pods/binding", target.name, f'pod {target.name} is already assigned to node "{bound}"')
        status = pod.get("status") or {}
        conditions = [c for c in status.get("conditions") or [] if c["type"] != "PodScheduled"]
        scheduled = {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": now}
        return {**pod, "spec": {**pod["spec"], "nodeName": node}, "status": {**status, "conditions": [*conditions, scheduled]}}

    store.update("pods", target.namespace, target.name, bind, subresource="binding", dry_run=request.is_dry_run)
    return success(code=201)


def _request_token(store: Store, tokens: Tokens, request: Request) -> Response:
    target, body = request.target, _body(request)
    store.record("serviceaccounts", target.namespace, target.name)
    expires = format_time(store.clock.now() + (body.get("spec") or {}).get("expirationSeconds", _TOKEN_SECONDS))
    status = {"token": tokens.for_service_account(target.namespace, target.name), "expirationTimestamp": expires}
    head = {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "metadata": {"name": target.name}}
    return json_response(201, {**head, "spec": body.get("spec") or {}, "status": status})


def _body(request: Request) -> Json:
    body = request.decoded_body()
    if not isinstance(body, dict):
        raise bad_request("the body must be an object")
    return body


# Scale


def _scale(store: Store, resource: Resource, request: Request) -> Response:
    target = request.target
    paths = store.rules.custom.scale_paths(resource) if resource.custom else {}
    if request.method == "GET":
        return json_response(200, _scale_of(store.get(resource, target.namespace, target.name), paths))
    if request.method not in ("PUT", "PATCH"):
        raise method_not_allowed()
    body = request.decoded_body()

    def mutate(current: Json) -> Json:
        before = _scale_of(current, paths)
        wanted = body
        if request.method == "PATCH":
            wanted = json_patch(before, body) if request.content_type == JSON_PATCH else merge_patch(before, body)
        replicas = (wanted.get("spec") or {}).get("replicas", 0)
        if not isinstance(replicas, int) or isinstance(replicas, bool):
            raise bad_request('Scale in version "v1" cannot be handled as a Scale: spec.replicas must be an integer')
        version = (wanted.get("metadata") or {}).get("resourceVersion")
        metadata = {**current["metadata"], **({"resourceVersion": version} if version else {})}
        return {**_with_replicas(current, paths, replicas), "metadata": metadata}

    updated = store.update(resource, target.namespace, target.name, mutate, dry_run=request.is_dry_run)
    return json_response(200, _scale_of(updated, paths))


def _scale_of(obj: Json, paths: Json) -> Json:
    metadata = obj["metadata"]
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    wanted = json_path(paths.get("specReplicasPath", ".spec.replicas"), obj)
    actual = json_path(paths.get("statusReplicasPath", ".status.replicas"), obj)
    selector = ((obj.get("spec") or {}).get("selector") or {}).get("matchLabels") or {}
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: metadata[key] for key in kept if key in metadata},
        "spec": {"replicas": wanted[0] if wanted else 0},
        "status": {
            "replicas": actual[0] if actual else 0,
            "selector": ",".join(f"{key}={value}" for key, value in sorted(selector.items())),
        },
    }


def _with_replicas(obj: Json, paths: Json, replicas: int) -> Json:
    *parents, last = paths.get("specReplicasPath", ".spec.replicas").strip(".").split(".")
    changed = dict(obj)
    node = changed
    for name in parents:
        node[name] = dict(node.get(name) or {})
        node = node[name]
    node[last] = replicas
    return changed
