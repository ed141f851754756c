"""Acting as somebody else (``kubectl --as``): the ``Impersonate-*`` headers, for those who may."""

from __future__ import annotations

from vpa_ippr.sandbox.rbac import Action, Authorizer, service_account
from vpa_ippr.sandbox.requestinfo import Request, User
from vpa_ippr.sandbox.status import StatusError

_AUTHENTICATED = "system:authenticated"
_SERVICE_ACCOUNT = "system:serviceaccount:"


def acting_user(caller: User, request: Request, authorizer: Authorizer) -> User:
    """The user as whom the request is carried out: the one impersonated, or the caller.

    Raises:
        StatusError: 403 when the caller may not impersonate that user or group, 500 for groups without a user (as the real server).
    """
    name = request.headers.get("impersonate-user", "")
    groups = tuple(group.strip() for group in request.headers.get("impersonate-group", "").split(",") if group.strip())
    if not name:
        if groups:
            raise StatusError(500, "InternalError", f"Internal error occurred: requested {list(groups)} without impersonating a user")
        return caller
    account = _service_account(name)
    if account is not None:
        namespace, short = account
        authorizer.check(caller, Action("impersonate", plural="serviceaccounts", namespace=namespace, name=short))
    else:
        authorizer.check(caller, Action("impersonate", plural="users", name=name))
    for group in groups:
        authorizer.check(caller, Action("impersonate", plural="groups", name=group))
    if account is not None and not groups:
        return service_account(*account)
    return User(name, groups if _AUTHENTICATED in groups or name == "system:anonymous" else (*groups, _AUTHENTICATED))


def _service_account(name: str) -> tuple[str, str] | None:
    namespace, separator, short = name.removeprefix(_SERVICE_ACCOUNT).partition(":")
    return (namespace, short) if name.startswith(_SERVICE_ACCOUNT) and separator and namespace and short else None
