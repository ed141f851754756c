"""CPU and memory of one container as whole numbers, and the raw maps of quantities they come from."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from vpa_ippr.api.errors import QuantityError
from vpa_ippr.api.quantity import format_bytes, format_millicores, parse_bytes, parse_millicores


class Resource(enum.StrEnum):
    """The two resources that are scaled."""

    CPU = "cpu"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class Amounts:
    """An amount of each resource; None means that the object does not say."""

    cpu_millicores: int | None = None
    memory_bytes: int | None = None

    def get(self, resource: Resource) -> int | None:
        """The amount of one resource, in millicores or bytes."""
        return self.cpu_millicores if resource is Resource.CPU else self.memory_bytes

    def having(self, resource: Resource, amount: int | None) -> Amounts:
        """A copy with one amount replaced."""
        if resource is Resource.CPU:
            return Amounts(amount, self.memory_bytes)
        return Amounts(self.cpu_millicores, amount)

    def to_quantities(self) -> dict[str, str]:
        """The canonical quantities, without the resources that are not set."""
        quantities: dict[str, str] = {}
        if self.cpu_millicores is not None:
            quantities["cpu"] = format_millicores(self.cpu_millicores)
        if self.memory_bytes is not None:
            quantities["memory"] = format_bytes(self.memory_bytes)
        return quantities


def parse_amounts(quantities: Mapping[str, object], where: str) -> Amounts:
    """CPU and memory of a Kubernetes resource list; other resources are left out.

    Raises:
        QuantityError: a quantity cannot be read; the message begins with ``where``.
    """
    try:
        return Amounts(
            cpu_millicores=parse_millicores(quantities["cpu"]) if "cpu" in quantities else None,
            memory_bytes=parse_bytes(quantities["memory"]) if "memory" in quantities else None,
        )
    except QuantityError as error:
        raise QuantityError(f"{where}: {error}") from error


@dataclass(frozen=True, slots=True)
class ContainerResources:
    """Requests and limits of one container."""

    requests: Amounts = Amounts()
    limits: Amounts = Amounts()


class ResourceRequirements(msgspec.Struct, frozen=True, omit_defaults=True):
    """``v1.ResourceRequirements``, raw; quantities are read by ``parse`` so that one bad text spoils one container only."""

    requests: dict[str, str | int | float] = {}
    limits: dict[str, str | int | float] = {}

    def parse(self, where: str) -> ContainerResources:
        """The typed amounts; raises QuantityError naming ``where``."""
        return ContainerResources(
            requests=parse_amounts(self.requests, f"{where}.requests"),
            limits=parse_amounts(self.limits, f"{where}.limits"),
        )
