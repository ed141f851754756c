"""Rounding of results: up to multiples, up to whole cores where a VPA's annotation asks for it, and to amounts that people can read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from vpa_ippr.api.quantity import humanize_bytes, parse_bytes
from vpa_ippr.api.resources import Amounts
from vpa_ippr.api.series import Resource
from vpa_ippr.recommend.result import Estimate

_MILLICORES_PER_CORE: Final = 1000


@dataclass(frozen=True, slots=True)
class Rounding:
    """How an operator wants all results rounded, on top of what the profile does; the defaults change nothing.

    ``cpu_millicores`` and ``memory_bytes``: results are rounded up to multiples of these. ``humanize_memory``: memory becomes what two
    decimals of Ki, Mi, Gi or Ti can say, and is written that way.
    """

    cpu_millicores: int = 1
    memory_bytes: int = 1
    humanize_memory: bool = False

    def of(self, estimate: Estimate) -> Estimate:
        """The estimate with all four values rounded."""
        return estimate.each(self._rounded)

    def _rounded(self, amounts: Amounts) -> Amounts:
        cpu, memory = amounts.cpu_millicores, amounts.memory_bytes
        if cpu is not None:
            cpu = round_up(cpu, self.cpu_millicores)
        if memory is not None:
            memory = round_up(memory, self.memory_bytes)
            memory = parse_bytes(humanize_bytes(memory)) if self.humanize_memory else memory
        return Amounts(cpu, memory)


AS_COMPUTED: Final = Rounding()


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
