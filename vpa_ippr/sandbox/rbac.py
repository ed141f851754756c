"""Who may do what: static tokens to users, and the rules of RBAC objects in the store."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from vpa_ippr.sandbox.requestinfo import Request, User
from vpa_ippr.sandbox.status import StatusError, forbidden
from vpa_ippr.sandbox.store import Store

Json = dict[str, Any]

_RBAC = "rbac.authorization.k8s.io"
MASTERS = "system:masters"
_ANONYMOUS = User("system:anonymous", ("system:unauthenticated",))
_PUBLIC_PATHS = ("/healthz", "/livez", "/readyz", "/version")
_DISCOVERY_PATHS = (*_PUBLIC_PATHS, "/api", "/apis", "/openapi")
_SELF_REVIEWS = {"selfsubjectaccessreviews", "selfsubjectrulesreviews", "selfsubjectreviews"}


class Tokens:
    """The bearer tokens that are known."""

    def __init__(self, users: Mapping[str, User]) -> None:
        self._users = dict(users)

    def user_of(self, token: str) -> User | None:
        """The user of a token, or None."""
        return self._users.get(token)

    def for_service_account(self, namespace: str, name: str) -> str:
        """A new token for a ServiceAccount."""
        token = secrets.token_urlsafe(24)
        self._users[token] = service_account(namespace, name)
        return token

    def authenticate(self, request: Request) -> User:
        """The user who sends the request; no token at all is the anonymous user.

        Raises:
            StatusError: 401 for an unknown token.
        """
        header = request.headers.get("authorization", "")
        if not header:
            return _ANONYMOUS
        scheme, _, token = header.partition(" ")
        user = self.user_of(token.strip()) if scheme.lower() == "bearer" else None
        if user is None:
            raise StatusError(401, "Unauthorized", "Unauthorized")
        return user


def service_account(namespace: str, name: str) -> User:
    """The user that a ServiceAccount is."""
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
    return User(f"system:serviceaccount:{namespace}:{name}", groups)


@dataclass(frozen=True, slots=True)
class Action:
    """What is to be done, on a resource or (with ``path``) on another path."""

    verb: str
    group: str = ""
    plural: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""

    @property
    def resource(self) -> str:
        """``pods`` or ``pods/resize``."""
        return f"{self.plural}/{self.subresource}" if self.subresource else self.plural


def action_of(request: Request) -> Action:
    """What a request does."""
    target = request.target
    if not target.is_resource:
        return Action(request.verb, path=request.path)
    return Action(request.verb, target.group, target.plural, target.subresource, target.namespace, target.name)


class Authorizer:
    """Evaluates the RBAC objects of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def check(self, user: User, action: Action) -> None:
        """Raise StatusError 403, in the real server's words, unless the user may."""
        if not self.decide(user, action)[0]:
            raise _refusal(user, action)

    def decide(self, user: User, action: Action) -> tuple[bool, str]:
        """Whether the user may, and which binding says so."""
        if MASTERS in user.groups:
            return True, ""
        if _open_to_all(user, action):
            return True, ""
        for rule, reason in self.rules_for(user, action.namespace):
            if _covers(rule, action):
                return True, reason
        return False, ""

    def rules_for(self, user: User, namespace: str) -> Iterator[tuple[Json, str]]:
        """The rules that bindings give to the user in that namespace, each with the sentence that explains it."""
        for binding in self._objects("clusterrolebindings"):
            yield from self._granted(binding, user, "")
        if namespace:
            for binding in self._objects("rolebindings", namespace):
                yield from self._granted(binding, user, namespace)

    def _granted(self, binding: Json, user: User, namespace: str) -> Iterator[tuple[Json, str]]:
        subject = next((s for s in binding.get("subjects") or [] if _is_subject(s, user, namespace)), None)
        if subject is None:
            return
        role = binding["roleRef"]
        kind, plural = ("ClusterRole", "clusterroles") if role["kind"] == "ClusterRole" else ("Role", "roles")
        found = self._store.find(f"{plural}.{_RBAC}", namespace if kind == "Role" else None, role["name"])
        name = binding["metadata"]["name"] + (f"/{namespace}" if namespace else "")
        what = "RoleBinding" if namespace else "ClusterRoleBinding"
        reason = f'RBAC: allowed by {what} "{name}" of {kind} "{role["name"]}" to {_describe(subject)}'
        for rule in (found or {}).get("rules") or []:
            yield rule, reason

    def _objects(self, plural: str, namespace: str | None = None) -> list[Json]:
        records, _ = self._store.snapshot(f"{plural}.{_RBAC}", namespace)
        return [record.obj for _, record in records]


def _open_to_all(user: User, action: Action) -> bool:
    """The bootstrap roles system:public-info-viewer, system:discovery and system:basic-user."""
    if action.path:
        known = "system:authenticated" in user.groups
        allowed = _DISCOVERY_PATHS if known else _PUBLIC_PATHS
        return action.verb == "get" and any(action.path == path or action.path.startswith(f"{path}/") for path in allowed)
    return action.plural in _SELF_REVIEWS and action.verb == "create" and "system:authenticated" in user.groups


def _is_subject(subject: Json, user: User, namespace: str) -> bool:
    if subject["kind"] == "ServiceAccount":
        return user.name == f"system:serviceaccount:{subject.get('namespace') or namespace}:{subject['name']}"
    if subject["kind"] == "Group":
        return subject["name"] in user.groups
    return bool(subject["name"] == user.name)


def _describe(subject: Json) -> str:
    name = subject["name"] + (f"/{subject['namespace']}" if subject.get("namespace") else "")
    return f'{subject["kind"]} "{name}"'


def _covers(rule: Json, action: Action) -> bool:
    if not _has(rule.get("verbs"), action.verb):
        return False
    if action.path:
        return any(action.path == p or (p.endswith("*") and action.path.startswith(p[:-1])) for p in rule.get("nonResourceURLs") or [])
    names = rule.get("resourceNames")
    return (
        _has(rule.get("apiGroups"), action.group)
        and (_has(rule.get("resources"), action.resource) or f"*/{action.subresource}" in (rule.get("resources") or []))
        and (not names or action.name in names)
    )


def _has(listed: list[str] | None, wanted: str) -> bool:
    return listed is not None and (wanted in listed or "*" in listed)


def _refusal(user: User, action: Action) -> StatusError:
    if action.path:
        return StatusError(403, "Forbidden", f'forbidden: User "{user.name}" cannot {action.verb} path "{action.path}"', details={})
    where = f'in the namespace "{action.namespace}"' if action.namespace else "at the cluster scope"
    detail = f'User "{user.name}" cannot {action.verb} resource "{action.resource}" in API group "{action.group}" {where}'
    return forbidden(action.plural, action.name, detail, action.group)
