"""The errors of the API server: one exception that carries a Kubernetes ``metav1.Status``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vpa_ippr.api.errors import VpaIpprError

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Cause:
    """One broken rule: ``reason`` is a ``metav1.CauseType`` such as ``FieldValueInvalid``, ``field`` a path such as ``spec.replicas``."""

    reason: str
    message: str
    field: str = ""

    @property
    def line(self) -> str:
        """How the rule reads inside the message of the whole object."""
        return f"{self.field}: {self.message}"

    def to_json(self) -> Json:
        """``metav1.StatusCause``; an empty field is left out, as ``omitempty`` does."""
        entries = {"field": self.field, "message": self.message, "reason": self.reason}
        return {key: value for key, value in entries.items() if value}


class StatusError(VpaIpprError):
    """A refused request, with everything that its ``Status`` object shows."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        details: Json | None = None,
    ) -> None:
        super().__init__(message, reason=reason)
        self.code = code
        self.message = message
        self.details = details

    def to_json(self) -> Json:
        """The ``Status`` object that a client receives."""
        body: Json = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": self.message}
        if self.reason:
            body["reason"] = self.reason
        if self.details is not None:
            body["details"] = self.details
        body["code"] = self.code
        return body

    @property
    def causes(self) -> list[Json]:
        """The causes of the details, possibly none."""
        return list((self.details or {}).get("causes", []))


def qualified(name: str, group: str) -> str:
    """``pods`` or ``leases.coordination.k8s.io``: how messages name a resource or a kind."""
    return f"{name}.{group}" if group else name


def object_details(kind: str, group: str, name: str) -> Json:
    """``details`` that name an object; empty parts are left out."""
    return {key: value for key, value in (("name", name), ("group", group), ("kind", kind)) if value}


def bad_request(message: str) -> StatusError:
    """400: the request itself cannot be understood."""
    return StatusError(400, "BadRequest", message)


def not_found(plural: str, name: str, group: str = "") -> StatusError:
    """404 for an object."""
    return StatusError(404, "NotFound", f'{qualified(plural, group)} "{name}" not found', details=object_details(plural, group, name))


def already_exists(plural: str, name: str, group: str = "") -> StatusError:
    """409 for a second create."""
    return StatusError(
        409, "AlreadyExists", f'{qualified(plural, group)} "{name}" already exists', details=object_details(plural, group, name)
    )


def conflict(plural: str, name: str, detail: str, group: str = "") -> StatusError:
    """409 for a lost race or a failed precondition."""
    message = f'Operation cannot be fulfilled on {qualified(plural, group)} "{name}": {detail}'
    return StatusError(409, "Conflict", message, details=object_details(plural, group, name))


MODIFIED_MEANWHILE = "the object has been modified; please apply your changes to the latest version and try again"


def forbidden(plural: str, name: str, detail: str, group: str = "", causes: Sequence[Cause] = ()) -> StatusError:
    """403 by authorization or by an admission check."""
    subject = f'{qualified(plural, group)} "{name}"' if name else qualified(plural, group)
    details = object_details(plural, group, name)
    if causes:
        details["causes"] = [cause.to_json() for cause in causes]
    return StatusError(403, "Forbidden", f"{subject} is forbidden: {detail}", details=details)


def invalid(kind: str, name: str, causes: Sequence[Cause], group: str = "") -> StatusError:
    """422 for an object that breaks rules; one cause prints bare, several in brackets."""
    lines = [cause.line for cause in causes]
    listed = lines[0] if len(lines) == 1 else f"[{', '.join(lines)}]"
    details = {**object_details(kind, group, name), "causes": [cause.to_json() for cause in causes]}
    return StatusError(422, "Invalid", f'{qualified(kind, group)} "{name}" is invalid: {listed}', details=details)


def expired(message: str) -> StatusError:
    """410: the revision is no longer held."""
    return StatusError(410, "Expired", message)


def too_many_requests(message: str, retry_after_seconds: int, causes: Sequence[Cause] = ()) -> StatusError:
    """429 with the time to wait."""
    details: Json = {"causes": [cause.to_json() for cause in causes]} if causes else {}
    if retry_after_seconds:
        details["retryAfterSeconds"] = retry_after_seconds
    return StatusError(429, "TooManyRequests", message, details=details)


def no_such_resource() -> StatusError:
    """404 for a path below a group that is served."""
    return StatusError(404, "NotFound", "the server could not find the requested resource", details={})


def method_not_allowed() -> StatusError:
    """405 for a verb that the resource does not have."""
    return StatusError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource", details={})


def unsupported_media_type(accepted: Sequence[str]) -> StatusError:
    """415 for a body in a format that the endpoint does not read."""
    message = f"the body of the request was in an unknown format - accepted media types include: {', '.join(accepted)}"
    return StatusError(415, "UnsupportedMediaType", message)
