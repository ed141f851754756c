"""What differs between Kubernetes versions, as one table; the rows are the minors of API server and kubelet.

How a kubelet reports a resize (the string ``status.resize`` in 1.32, conditions from 1.33, ``observedGeneration`` from 1.34) is no column:
a pod's own status tells, see ``state``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from vpa_ippr.api.cluster import Node
from vpa_ippr.api.errors import UsageError

POD_LEVEL_FEATURE = "InPlacePodLevelResourcesVerticalScaling"
INIT_CONTAINERS_FEATURE = "InPlacePodVerticalScalingInitContainers"


@dataclass(frozen=True, slots=True)
class VersionRules:
    """The rules of one minor version that a plan depends on, with its default feature gates.

    Of the API server:
        ``memory_limit_decrease``: a memory limit may go down although the memory resizePolicy is not RestartContainer (1.33 answers 422).
        ``memory_limit_add``: the same of a memory limit where there was none.
        ``claims_block_resize``: a pod with node-allocatable resource claims (DRA) is not resized (1.36 alone).
        ``node_capacity_refused``: more than the node has is a 403; before, the kubelet calls it Infeasible.

    Of the API server and the kubelet, where the older of the two counts:
        ``sidecars``, ``init_containers``: native sidecars, and init containers that are running, may be resized.
        ``pod_level_resources``: the pod's own resources may be resized (KEP-5419).

    Of the kubelet:
        ``container_memory_check``: a memory decrease is checked against the use of each container, not of the pod alone.
        ``static_managers_block_any``: where the static CPU or memory manager is on, any resize of a Guaranteed pod is infeasible, not only
        one of that resource.
        ``stale_pod_cgroup``: a resize accepted while a container is not running does not reach the pod's cgroup (kubernetes#138760; its
        fix is in 1.37, and where it was ported back the remedy does no harm).
    """

    minor: int
    memory_limit_decrease: bool
    memory_limit_add: bool
    claims_block_resize: bool
    node_capacity_refused: bool
    sidecars: bool
    init_containers: bool
    pod_level_resources: bool
    container_memory_check: bool
    static_managers_block_any: bool
    stale_pod_cgroup: bool


# In 1.32 the gate is alpha, and off; a server that serves pods/resize all the same has it on.
_V1_32 = VersionRules(
    minor=32,
    memory_limit_decrease=True,
    memory_limit_add=True,
    claims_block_resize=False,
    node_capacity_refused=False,
    sidecars=False,
    init_containers=False,
    pod_level_resources=False,
    container_memory_check=False,
    static_managers_block_any=True,
    stale_pod_cgroup=True,
)
_V1_33 = replace(_V1_32, minor=33, memory_limit_decrease=False, memory_limit_add=False, sidecars=True)
_V1_34 = replace(
    _V1_33, minor=34, memory_limit_decrease=True, memory_limit_add=True, container_memory_check=True, static_managers_block_any=False
)
_V1_35 = replace(_V1_34, minor=35)
_V1_36 = replace(_V1_35, minor=36, claims_block_resize=True, node_capacity_refused=True, init_containers=True, pod_level_resources=True)
_V1_37 = replace(_V1_36, minor=37, claims_block_resize=False, stale_pod_cgroup=False)

RULES: dict[str, VersionRules] = {f"1.{rules.minor}": rules for rules in (_V1_32, _V1_33, _V1_34, _V1_35, _V1_36, _V1_37)}
_OLDEST = min(rules.minor for rules in RULES.values())
_NEWEST = max(rules.minor for rules in RULES.values())
_VERSION = re.compile(r"v?1\.(\d+)")


def rules_for(version: str) -> VersionRules:
    """The rules of a server version such as ``1.36``, ``v1.34.2`` or ``v1.33.1-eks-1``; a newer minor gets the newest row.

    Raises:
        UsageError: the version cannot be read, or is older than 1.32, which has no ``pods/resize``.
    """
    minor = _minor(version)
    if minor is None:
        raise UsageError(f"cannot read Kubernetes version {version!r}: expected something like 1.36", reason="BadVersion")
    if minor < _OLDEST:
        raise UsageError(
            f"Kubernetes {version} does not resize pods through pods/resize: 1.{_OLDEST} or newer is needed", reason="VersionTooOld"
        )
    return RULES[f"1.{min(minor, _NEWEST)}"]


def rules_for_pod(server: VersionRules, node: Node | None) -> VersionRules:
    """The rules for a pod on ``node``, whose kubelet may be up to three minors older than the server (version skew policy).

    The kubelet's own rules count as of its version, and what both must know only where both do. Of a node that is not known, or whose
    version cannot be read, no more is expected than of the server.
    """
    minor = _minor(node.kubelet_version) if node else None
    if node is None or minor is None:
        return server
    kubelet = RULES[f"1.{min(max(minor, _OLDEST), _NEWEST)}"]
    return replace(
        server,
        sidecars=server.sidecars and kubelet.sidecars,
        init_containers=server.init_containers and kubelet.init_containers and _declares(node, INIT_CONTAINERS_FEATURE),
        pod_level_resources=server.pod_level_resources and kubelet.pod_level_resources and _declares(node, POD_LEVEL_FEATURE),
        container_memory_check=kubelet.container_memory_check,
        static_managers_block_any=kubelet.static_managers_block_any,
        stale_pod_cgroup=kubelet.stale_pod_cgroup,
    )


def _declares(node: Node, feature: str) -> bool:
    """False where the kubelet declares features, but not this one: the API server would refuse (NodeDeclaredFeatureValidator)."""
    return not node.declared_features or feature in node.declared_features


def _minor(version: str) -> int | None:
    match = _VERSION.match(version)
    return int(match[1]) if match else None
