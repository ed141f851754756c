"""ResourceQuota: what the pods of a namespace may request and be limited to together."""

from __future__ import annotations

import msgspec

from vpa_ippr.api.meta import ObjectMeta

Quantities = dict[str, str | int | float]


class ScopeRule(msgspec.Struct, frozen=True, rename="camel"):
    """``v1.ScopedResourceSelectorRequirement``: one condition on the pods that a quota counts."""

    scope_name: str
    operator: str
    values: list[str] = []


class ScopeSelector(msgspec.Struct, frozen=True, rename="camel"):
    """``v1.ScopeSelector``: all of its expressions have to hold."""

    match_expressions: list[ScopeRule] = []


class ResourceQuotaSpec(msgspec.Struct, frozen=True, rename="camel"):
    """``v1.ResourceQuotaSpec``."""

    hard: Quantities = {}
    scopes: list[str] = []
    scope_selector: ScopeSelector = ScopeSelector()


class ResourceQuotaStatus(msgspec.Struct, frozen=True):
    """``v1.ResourceQuotaStatus``: ``hard`` as it is enforced, and what is used of it."""

    hard: Quantities = {}
    used: Quantities = {}


class ResourceQuota(msgspec.Struct, frozen=True):
    """``v1.ResourceQuota``."""

    metadata: ObjectMeta
    spec: ResourceQuotaSpec = ResourceQuotaSpec()
    status: ResourceQuotaStatus = ResourceQuotaStatus()
