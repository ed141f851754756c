"""Rounding of results: up to multiples, and up to whole cores where a VPA's annotation asks for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from vpa_ippr.api.resources import Amounts
from vpa_ippr.api.series import Resource
from vpa_ippr.recommend.result import Estimate

_MILLICORES_PER_CORE: Final = 1000


def round_up(amount: int, multiple: int) -> int:
    """The smallest multiple of ``multiple`` that is not below ``amount``."""
    return -(-amount // multiple) * multiple


def wants_whole_cores(annotations: Mapping[str, str], container: str) -> bool:
    """True when the VPA carries upstream's post-processor annotation for that container."""
    return annotations.get(f"vpa-post-processor.kubernetes.io/{container}_integerCPU") == "true"


def to_whole_cores(estimate: Estimate) -> Estimate:
    """All CPU values rounded up to whole cores."""

    def up(amounts: Amounts) -> Amounts:
        millicores = amounts.cpu_millicores
        return amounts if millicores is None else amounts.having(Resource.CPU, round_up(millicores, _MILLICORES_PER_CORE))

    return estimate.each(up)
