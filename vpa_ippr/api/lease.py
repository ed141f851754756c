"""Lease: who may act, and how lately they said that they are there (``coordination.k8s.io/v1``)."""

from __future__ import annotations

import msgspec

from vpa_ippr.api.meta import ObjectMeta

LEASE_API_VERSION = "coordination.k8s.io/v1"


class LeaseSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """``coordination/v1.LeaseSpec``; the times are ``metav1.MicroTime``. A lease that was given back has no holder."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(msgspec.Struct, frozen=True, rename="camel"):
    """``coordination/v1.Lease``."""

    metadata: ObjectMeta
    spec: LeaseSpec = LeaseSpec()
    api_version: str = LEASE_API_VERSION
    kind: str = "Lease"
