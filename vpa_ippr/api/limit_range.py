"""LimitRange: the bounds that a namespace sets on the resources of its containers and pods."""

from __future__ import annotations

import msgspec

from vpa_ippr.api.meta import ObjectMeta

Quantities = dict[str, str | int | float]


class LimitRangeItem(msgspec.Struct, frozen=True, rename="camel"):
    """``v1.LimitRangeItem``; ``type`` is ``Container``, ``Pod`` or ``PersistentVolumeClaim``."""

    type: str
    min: Quantities = {}
    max: Quantities = {}
    default: Quantities = {}


class LimitRangeSpec(msgspec.Struct, frozen=True):
    """``v1.LimitRangeSpec``."""

    limits: list[LimitRangeItem] = []


class LimitRange(msgspec.Struct, frozen=True):
    """``v1.LimitRange``."""

    metadata: ObjectMeta
    spec: LimitRangeSpec = LimitRangeSpec()
