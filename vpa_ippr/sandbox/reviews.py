"""Review resources: questions about rights and tokens, answered and not stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vpa_ippr.sandbox.rbac import MASTERS, Action, Authorizer, Tokens
from vpa_ippr.sandbox.requestinfo import Request, User
from vpa_ippr.sandbox.resources import Resource
from vpa_ippr.sandbox.responses import Response, json_response
from vpa_ippr.sandbox.status import bad_request

Json = dict[str, Any]


def review(resource: Resource, request: Request, authorizer: Authorizer, tokens: Tokens) -> Response:
    """POST of a review: the object with its answer in ``status``."""
    body = request.decoded_body()
    if not isinstance(body, dict):
        raise bad_request("the body of a review must be an object")
    spec = body.get("spec") or {}
    answers: dict[str, Callable[[], Json]] = {
        "selfsubjectaccessreviews": lambda: _access(authorizer, request.user, spec),
        "subjectaccessreviews": lambda: _access(authorizer, User(spec.get("user", ""), tuple(spec.get("groups") or ())), spec),
        "selfsubjectrulesreviews": lambda: _rules(authorizer, request.user, spec.get("namespace", "")),
        "selfsubjectreviews": lambda: {"userInfo": _user_info(request.user)},
        "tokenreviews": lambda: _token(tokens, spec.get("token", "")),
    }
    answered = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": {}, "spec": spec}
    return json_response(201, {**answered, "status": answers[resource.plural]()})


def _access(authorizer: Authorizer, user: User, spec: Json) -> Json:
    allowed, reason = authorizer.decide(user, _action(spec))
    return {"allowed": allowed, "reason": reason} if reason else {"allowed": allowed}


def _action(spec: Json) -> Action:
    attributes = spec.get("nonResourceAttributes")
    if attributes is not None:
        return Action(attributes.get("verb", ""), path=attributes.get("path", ""))
    attributes = spec.get("resourceAttributes") or {}
    wanted = {
        "verb": "verb",
        "group": "group",
        "plural": "resource",
        "subresource": "subresource",
        "namespace": "namespace",
        "name": "name",
    }
    return Action(**{ours: attributes.get(theirs, "") for ours, theirs in wanted.items()})


def _rules(authorizer: Authorizer, user: User, namespace: str) -> Json:
    everything: Json = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}
    granted = [rule for rule, _ in authorizer.rules_for(user, namespace)]
    if MASTERS in user.groups:
        granted = [everything, {"verbs": ["*"], "nonResourceURLs": ["*"]}]
    resource_rules = [rule for rule in granted if "resources" in rule]
    path_rules = [{"verbs": r["verbs"], "nonResourceURLs": r["nonResourceURLs"]} for r in granted if "nonResourceURLs" in r]
    return {"resourceRules": resource_rules, "nonResourceRules": path_rules, "incomplete": False}


def _token(tokens: Tokens, token: str) -> Json:
    user = tokens.user_of(token)
    if user is None:
        return {"authenticated": False, "user": {}, "error": "invalid bearer token"}
    return {"authenticated": True, "user": _user_info(user)}


def _user_info(user: User) -> Json:
    return {"username": user.name, "groups": list(user.groups)}
