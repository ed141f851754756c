"""The parts that every Kubernetes object shares, decoded from its JSON; only the fields that we read are kept."""

from __future__ import annotations

import msgspec


class OwnerReference(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """``metav1.OwnerReference``."""

    api_version: str
    kind: str
    name: str
    uid: str = ""
    controller: bool = False
    block_owner_deletion: bool = False


class ObjectMeta(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """``metav1.ObjectMeta``."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: list[OwnerReference] = []

    @property
    def controller(self) -> OwnerReference | None:
        """The managing owner, if there is one."""
        return next((owner for owner in self.owner_references if owner.controller), None)


class Condition(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A status condition, of a pod or of one of our objects."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None
    observed_generation: int | None = None


class ObjectKey(msgspec.Struct, frozen=True, order=True):
    """Namespace and name of a namespaced object."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def find_condition(conditions: list[Condition], kind: str) -> Condition | None:
    """The condition of that type, or None."""
    return next((condition for condition in conditions if condition.type == kind), None)
