"""How a pod's containers are started: what ``v1.Pod`` says of commands and environment.

Apart from ``api.pod``, because reading the environment triples what it costs to decode a cluster's pods, and only a shrink asks.
"""

from __future__ import annotations

import msgspec

from vpa_ippr.api.meta import ObjectMeta


class EnvVar(msgspec.Struct, frozen=True):
    """``v1.EnvVar``; one whose value comes from elsewhere has none here."""

    name: str
    value: str = ""


class ContainerLaunch(msgspec.Struct, frozen=True):
    """The part of ``v1.Container`` that says what is run; what the image adds by itself is not known."""

    name: str
    command: list[str] = []
    args: list[str] = []
    env: list[EnvVar] = []


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    containers: list[ContainerLaunch] = []
    init_containers: list[ContainerLaunch] = []


class PodLaunch(msgspec.Struct, frozen=True):
    """The part of ``v1.Pod`` that says what is run."""

    metadata: ObjectMeta
    spec: _Spec = _Spec()

    def container(self, name: str) -> ContainerLaunch | None:
        """The container, sidecar or init container of that name."""
        return next((c for c in [*self.spec.containers, *self.spec.init_containers] if c.name == name), None)
