"""Settings of simulated nodes from a file or a request: fields of ``NodeSpec``, ``KubeletSettings`` and ``NodeSettings`` in camel case.

    "*":
      statsLagSeconds: 30
    node-1:
      kubeletVersion: "1.33"
      cpu: "4"
      memory: 16Gi
      staticCpuManager: true
      runtimeMemoryCheck: crio

What is said of one node goes before what is said of all (``*``).
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from vpa_ippr.api.errors import QuantityError, UsageError
from vpa_ippr.api.quantity import parse_quantity
from vpa_ippr.sandbox.node import KubeletSettings, NodeSpec
from vpa_ippr.sandbox.podfit import NodeSettings
from vpa_ippr.sandbox.versions import profile

Json = dict[str, Any]
ALL_NODES = "*"
_NOT_SETTINGS = {"node", "kernel"}


def parse_node_settings(text: bytes | str, source: str) -> dict[str, Json]:
    """The settings by node name of a YAML or JSON document; ``source`` is what errors call it.

    Raises:
        UsageError: it is no mapping of node names to settings, or a setting is unknown or of the wrong type.
    """
    try:
        found = msgspec.yaml.decode(text, type=dict[str, dict[str, Any]])
    except msgspec.MsgspecError as error:
        raise UsageError(f"{source}: expected node names (or '*') with their settings: {error}") from error
    for name, settings in found.items():
        apply_settings(NodeSpec(name), settings, f"{source}: {name}")
    return found


def with_settings(nodes: Sequence[NodeSpec], settings: Mapping[str, Json], source: str) -> list[NodeSpec]:
    """The nodes with their settings.

    Raises:
        UsageError: a node of the settings is not among them.
    """
    unknown = settings.keys() - {node.name for node in nodes} - {ALL_NODES}
    if unknown:
        raise UsageError(
            f"{source}: there is no node {sorted(unknown)[0]}: the nodes are {', '.join(node.name for node in nodes) or 'none'}"
        )
    return [apply_settings(node, {**settings.get(ALL_NODES, {}), **settings.get(node.name, {})}, source) for node in nodes]


def apply_settings(spec: NodeSpec, settings: Json, source: str) -> NodeSpec:
    """The node with these settings; all that they do not name stays as it is.

    Raises:
        UsageError: a setting is unknown or of the wrong type.
    """
    for name, value in settings.items():
        spec = _with_one(spec, name, value, f"{source}: {name}")
    return spec


def _with_one(spec: NodeSpec, name: str, value: Any, source: str) -> NodeSpec:
    if name in ("cpu", "memory"):
        return _with_size(spec, name, value, source)
    if name == "kubeletVersion":
        return dataclasses.replace(spec, kubelet_version=profile(str(value)).version)
    kubelet = spec.kubelet
    if name in _NODE_FIELDS:
        changed = dataclasses.replace(kubelet.node, **{_NODE_FIELDS[name]: _converted(value, NodeSettings, _NODE_FIELDS[name], source)})
        return dataclasses.replace(spec, kubelet=dataclasses.replace(kubelet, node=changed))
    if name in _KUBELET_FIELDS:
        field = _KUBELET_FIELDS[name]
        converted = _converted(value, KubeletSettings, field, source)
        return dataclasses.replace(spec, kubelet=dataclasses.replace(kubelet, **{field: converted}))
    raise UsageError(f"{source} is no setting of a node: choose from {', '.join(sorted(SETTINGS))}")


def _with_size(spec: NodeSpec, name: str, value: Any, source: str) -> NodeSpec:
    try:
        quantity = parse_quantity(value)
    except QuantityError as error:
        raise UsageError(f"{source}: {error}") from error
    if name == "cpu":
        return dataclasses.replace(spec, cpu_millicores=quantity.to_millicores())
    return dataclasses.replace(spec, memory_bytes=quantity.to_bytes())


def _converted(value: Any, owner: type, field: str, source: str) -> Any:
    try:
        converted = msgspec.convert(value, typing.get_type_hints(owner)[field])
    except msgspec.ValidationError as error:
        raise UsageError(f"{source}: {error}") from error
    if isinstance(converted, float) and converted < 0:
        raise UsageError(f"{source}: {converted} is below 0")
    return converted


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


_KUBELET_FIELDS = {_camel(f.name): f.name for f in dataclasses.fields(KubeletSettings) if f.name not in _NOT_SETTINGS}
_NODE_FIELDS = {_camel(f.name): f.name for f in dataclasses.fields(NodeSettings)}
FIXED_SETTINGS = frozenset({"cpu", "memory", "kubeletVersion"})
"""Those that a node has from its start."""
SETTINGS = frozenset({*FIXED_SETTINGS, *_KUBELET_FIELDS, *_NODE_FIELDS})
"""The names of all settings."""


def shown_settings(spec: NodeSpec) -> Json:
    """The settings of a kubelet as they would be written in a file."""
    kubelet = {name: getattr(spec.kubelet, field) for name, field in _KUBELET_FIELDS.items()}
    node = {name: getattr(spec.kubelet.node, field) for name, field in _NODE_FIELDS.items()}
    shown: Json = msgspec.to_builtins({**kubelet, **node})
    return shown
