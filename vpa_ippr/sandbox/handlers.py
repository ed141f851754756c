"""From a request to its answer: authentication, authorization, and the handler of the path and verb."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from vpa_ippr.sandbox import discovery, openapi, reading, writing
from vpa_ippr.sandbox.faults import ApiFaults
from vpa_ippr.sandbox.impersonation import acting_user
from vpa_ippr.sandbox.rbac import Authorizer, Tokens, action_of
from vpa_ippr.sandbox.requestinfo import Request
from vpa_ippr.sandbox.resources import Resource
from vpa_ippr.sandbox.responses import Response, Stream, error_response, json_response, text_response
from vpa_ippr.sandbox.reviews import review
from vpa_ippr.sandbox.status import StatusError, method_not_allowed, no_such_resource
from vpa_ippr.sandbox.store import Store
from vpa_ippr.sandbox.subresources import handle_subresource

logger = logging.getLogger(__name__)

Json = dict[str, Any]
Handler = Callable[[Store, Resource, Request], Response | Stream]

AUDIT_ENTRIES = 100_000
_AGGREGATED = "as=APIGroupDiscoveryList"
_NOT_FOUND = "404 page not found\n"
# The subresources that are the object itself with a part of it writable.
_VIEWS = {"status", "resize"}
_NEED_NAME = {"update", "patch"}
_VERBS: Mapping[str, Handler] = {
    "get": reading.get,
    "list": reading.list_objects,
    "watch": reading.watch,
    "create": writing.create,
    "update": writing.update,
    "patch": writing.patch,
    "delete": writing.delete,
    "deletecollection": writing.delete_collection,
}


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One request as it ended; ``code`` of a watch is that of its beginning."""

    verb: str
    resource: str
    subresource: str
    namespace: str
    name: str
    user: str
    code: int


class Api:
    """The API over a store, without its transport."""

    def __init__(self, store: Store, tokens: Tokens, version: str, address: Callable[[], str]) -> None:
        self.store = store
        self.tokens = tokens
        self.faults = ApiFaults()
        self.audit: deque[AuditEntry] = deque(maxlen=AUDIT_ENTRIES)
        self._authorizer = Authorizer(store)
        self._version = version
        self._address = address

    def handle(self, request: Request) -> Response | Stream:
        """Answer one request; every refusal and every failure becomes a response."""
        try:
            request, answer = self._answer(request)
        except StatusError as error:
            answer = error_response(error)
        except Exception:
            logger.exception("a request failed", extra={"method": request.method, "path": request.path})
            answer = error_response(StatusError(500, "InternalError", "Internal error occurred: see the log of the sandbox"))
        self._record(request, answer)
        return answer

    def _answer(self, request: Request) -> tuple[Request, Response | Stream]:
        caller = self.tokens.authenticate(request)
        known = replace(request, user=caller)
        try:
            known = replace(known, user=acting_user(caller, request, self._authorizer))
            self._authorizer.check(known.user, action_of(known))
            if not known.target.is_resource:
                return known, self._other(known)
            return known, self.faults.answer(known) or self._resource(known)
        except StatusError as error:
            return known, error_response(error)

    def _record(self, request: Request, answer: Response | Stream) -> None:
        target = request.target
        if target.is_resource:
            code = answer.code if isinstance(answer, Response) else 200
            entry = (request.verb, target.plural, target.subresource, target.namespace, target.name, request.user.name, code)
            self.audit.append(AuditEntry(*entry))

    # Resources

    def _resource(self, request: Request) -> Response | Stream:
        target = request.target
        resource = self.store.registry.at(target.group, target.version, target.plural)
        if resource is None:
            return self._missing_resource(request)
        if resource.namespaced and not target.namespace and target.name:
            raise no_such_resource()
        if target.namespace and not resource.namespaced:
            # Authorization sees the namespace of a namespace; its object has none.
            request = replace(request, target=replace(target, namespace=""))
        if target.subresource:
            return self._subresource(resource, request)
        if resource.verbs == ("create",):
            if request.verb != "create":
                raise method_not_allowed()
            return review(resource, request, self._authorizer, self.tokens)
        if (request.verb == "create") is bool(target.name) and request.verb in _NEED_NAME | {"create"}:
            raise method_not_allowed()
        if resource.namespaced and not target.namespace and request.verb in ("create", "deletecollection"):
            raise method_not_allowed()
        return self._carry_out(resource, request)

    def _subresource(self, resource: Resource, request: Request) -> Response | Stream:
        name = request.target.subresource
        if name not in resource.subresources:
            raise no_such_resource()
        if name not in _VIEWS:
            return handle_subresource(self.store, self.tokens, resource, request)
        if request.verb not in ("get", "update", "patch"):
            raise method_not_allowed()
        return self._carry_out(resource, request)

    def _carry_out(self, resource: Resource, request: Request) -> Response | Stream:
        handler = _VERBS.get(request.verb)
        if handler is None:
            raise method_not_allowed()
        return handler(self.store, resource, request)

    def _missing_resource(self, request: Request) -> Response:
        target = request.target
        if self.store.registry.serves_group_version(target.group, target.version):
            raise no_such_resource()
        return text_response(404, _NOT_FOUND)

    # Everything else

    def _other(self, request: Request) -> Response:
        if request.method not in ("GET", "HEAD"):
            raise method_not_allowed()
        path = request.path.rstrip("/") or "/"
        fixed = self._fixed(path, request)
        if fixed is not None:
            return fixed
        steps = path.strip("/").split("/")
        if steps[0] == "openapi":
            return self._openapi(steps, request)
        found = self._discovered(steps)
        return json_response(200, found) if found else text_response(404, _NOT_FOUND)

    def _fixed(self, path: str, request: Request) -> Response | None:
        registry = self.store.registry
        if path in ("/healthz", "/livez", "/readyz") or path.startswith(("/healthz/", "/livez/", "/readyz/")):
            return text_response(200, "ok")
        if path == "/version":
            return json_response(200, discovery.version_info(self._version))
        if path in ("/api", "/apis"):
            if _AGGREGATED in request.headers.get("accept", "") and "v=v2;" in request.headers["accept"].replace(",", ";"):
                body = discovery.aggregated(registry, legacy=path == "/api")
                media = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
                return Response(200, json_response(200, body).body, media)
            return json_response(200, discovery.api_versions(self._address()) if path == "/api" else discovery.group_list(registry))
        if path == "/":
            paths = ["/api", "/api/v1", "/apis", "/healthz", "/livez", "/openapi/v2", "/openapi/v3", "/readyz", "/version"]
            return json_response(200, {"paths": paths})
        return None

    def _discovered(self, steps: list[str]) -> Json | None:
        registry = self.store.registry
        if steps == ["api", "v1"]:
            return discovery.resource_list(registry, "", "v1")
        if steps[0] == "apis" and len(steps) == 2:
            return discovery.group(registry, steps[1])
        if steps[0] == "apis" and len(steps) == 3 and registry.serves_group_version(steps[1], steps[2]):
            return discovery.resource_list(registry, steps[1], steps[2])
        return None

    def _openapi(self, steps: list[str], request: Request) -> Response:
        registry, custom = self.store.registry, self.store.rules.custom
        found: Json | None = None
        if steps[1:] == ["v2"]:
            if openapi.SWAGGER_PROTOBUF in request.headers.get("accept", ""):
                return Response(200, openapi.EMPTY_SWAGGER, openapi.SWAGGER_PROTOBUF.replace("@", "."))
            found = openapi.swagger(registry)
        elif steps[1:] == ["v3"]:
            found = openapi.index(registry)
        elif steps[1:3] == ["v3", "api"] and len(steps) == 4:
            found = openapi.document(registry, custom, "", steps[3])
        elif steps[1:3] == ["v3", "apis"] and len(steps) == 5:
            found = openapi.document(registry, custom, steps[3], steps[4])
        return json_response(200, found) if found else text_response(404, _NOT_FOUND)


def too_large(limit: int) -> Response:
    """413 for a body that is too large."""
    return error_response(StatusError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {limit}"))
