"""Errors that the API server is told to answer with, at random but repeatably: a share of conflicts, of refusals for load, of failures.

Requests outside of resources (discovery, health) and those of other users than asked for are left alone. A conflict is only ever the answer
to a change of an object that is there.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from vpa_ippr.api.errors import UsageError
from vpa_ippr.sandbox.requestinfo import Request
from vpa_ippr.sandbox.responses import Response, error_response
from vpa_ippr.sandbox.status import MODIFIED_MEANWHILE, StatusError, conflict

CODES = (409, 429, 500)
RETRY_AFTER_SECONDS = 1
_TOO_MANY = b"Too many requests, please try again later.\n"
_CONFLICTING = {"update", "patch", "delete"}


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """Which share of the requests fails, and how.

    ``shares`` gives for each of 409, 429 and 500 a share of 0 to 1; together they are at most 1. Only requests of ``users`` (names as RBAC
    knows them) to ``resources`` (``pods``, ``pods/resize``) count; nothing there means all of them.
    """

    shares: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0
    users: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raises UsageError for shares that are none."""
        unknown = [code for code in self.shares if code not in CODES]
        if unknown:
            raise UsageError(f"cannot answer requests with {unknown[0]}: give shares of {', '.join(map(str, CODES))}")
        if any(share < 0 for share in self.shares.values()) or sum(self.shares.values()) > 1:
            raise UsageError("the shares of failing requests must be 0 or more and together at most 1")

    def concerns(self, request: Request) -> bool:
        """The request is one of those that may fail."""
        target = request.target
        name = f"{target.plural}/{target.subresource}" if target.subresource else target.plural
        return (not self.users or request.user.name in self.users) and (not self.resources or name in self.resources)


class ApiFaults:
    """Decides for each request whether it fails; may be used from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._plan = FaultPlan()
        self._random = random.Random(0)  # noqa: S311 - repeatable on purpose

    @property
    def plan(self) -> FaultPlan:
        """What is set at present."""
        return self._plan

    def set(self, plan: FaultPlan) -> None:
        """Follow this plan from now on; its seed begins anew."""
        with self._lock:
            self._plan, self._random = plan, random.Random(plan.seed)  # noqa: S311 - repeatable on purpose

    def answer(self, request: Request) -> Response | None:
        """The error to answer with instead of carrying out the request, or None."""
        with self._lock:
            if not self._plan.shares or not self._plan.concerns(request):
                return None
            drawn = self._random.random()
            for code in CODES:
                drawn -= self._plan.shares.get(code, 0.0)
                if drawn < 0:
                    return _refusal(code, request)
        return None


def _refusal(code: int, request: Request) -> Response | None:
    target = request.target
    if code == 429:
        # API priority and fairness answers in plain text (apiserver, tooManyRequests).
        return Response(429, _TOO_MANY, "text/plain; charset=utf-8", retry_after_seconds=RETRY_AFTER_SECONDS)
    if code == 500:
        return error_response(StatusError(500, "", "etcdserver: request timed out"))
    if request.verb not in _CONFLICTING:
        return None
    return error_response(conflict(target.plural, target.name, MODIFIED_MEANWHILE, target.group))
