"""The limits that go with new requests: the ratio of limit to request stays what it was (upstream's rules)."""

from __future__ import annotations

from dataclasses import dataclass

from vpa_ippr.api.quantity import MAX_INT64
from vpa_ippr.api.resources import Amounts, ContainerResources
from vpa_ippr.api.series import Resource


@dataclass(frozen=True, slots=True)
class Limits:
    """New limits of a container, and a note for each that could not keep its ratio."""

    amounts: Amounts
    notes: tuple[str, ...] = ()


def proportional_limits(original: ContainerResources, requests: Amounts, default_limits: Amounts = Amounts()) -> Limits:
    """The limits for ``requests``; ``default_limits`` are the LimitRange's for containers that set none.

    No limit stays no limit. A limit without a request, or equal to it, becomes the new request. Otherwise it is scaled as the request
    is, rounded down, and clamped to what an int64 holds.
    """
    amounts, notes = Amounts(), []
    for resource in Resource:
        limit = proportional_limit(resource, original, requests.get(resource), default_limits)
        if limit is not None and limit > MAX_INT64:
            limit = MAX_INT64
            notes.append(f"{resource}: failed to keep limit to request ratio; capping limit to int64")
        amounts = amounts.having(resource, limit)
    return Limits(amounts, tuple(notes))


def proportional_limit(resource: Resource, original: ContainerResources, request: int | None, default_limits: Amounts) -> int | None:
    """One resource's limit for a new request, unclamped; None where there is none."""
    limit = original.limits.get(resource) or default_limits.get(resource)
    if not limit or not request:
        return None
    old_request = original.requests.get(resource)
    if not old_request or old_request == limit:
        return request
    return limit * request // old_request


def boundary_request(resource: Resource, original: ContainerResources, bound: int | None, default_limits: Amounts) -> int | None:
    """The request whose proportional limit is ``bound``, rounded down; None where no limit is set, so that none can break the bound."""
    limit = original.limits.get(resource) or default_limits.get(resource)
    if not limit or not bound:
        return None
    request = original.requests.get(resource)
    return bound if not request else request * bound // limit
