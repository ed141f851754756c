"""The cluster as one cycle of the updater sees it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from vpa_ippr.api.cluster import Node
from vpa_ippr.api.errors import ClusterError, QuantityError, ValidationError
from vpa_ippr.api.meta import ObjectKey
from vpa_ippr.api.names import ANNOTATION_RESIZE_LEDGER
from vpa_ippr.api.node_split import for_node
from vpa_ippr.api.pod import Pod
from vpa_ippr.api.shrink import MemoryShrink
from vpa_ippr.api.vpa import Vpa
from vpa_ippr.recommend.limit_ranges import UNLIMITED, NamespaceLimits, limits_by_namespace
from vpa_ippr.resize.matching import index_vpas, vpa_of
from vpa_ippr.resize.ports import UpdaterPort
from vpa_ippr.resize.reasons import OutcomeCode
from vpa_ippr.resize.result import PodOutcome
from vpa_ippr.resize.settings import Settings
from vpa_ippr.resize.view import View, look

PodId = tuple[str, str]
"""Namespace and UID: anybody may write any UID into a MemoryShrink of a namespace of their own."""


@dataclass(frozen=True, slots=True)
class World:
    """All objects of one cycle.

    ``vpa_of`` names the VPA of each pod that has one, with what its node's label makes of it; ``groups`` the pods of each VPA. ``limits``
    are those of each namespace, or the error with which they were read. ``problems`` are the outcomes of pods that could not be matched
    and of VPAs that are damaged; the pods among them in ``unmatched`` are left alone.
    """

    pods: Sequence[Pod]
    vpas: Sequence[Vpa]
    nodes: Mapping[str, Node]
    shrinks: Mapping[PodId, Sequence[MemoryShrink]]
    vpa_of: Mapping[ObjectKey, Vpa]
    groups: Mapping[ObjectKey, Sequence[Pod]]
    limits: Mapping[str, NamespaceLimits | QuantityError]
    unmatched: frozenset[ObjectKey]
    problems: tuple[PodOutcome, ...]

    def ours(self) -> Iterator[tuple[Pod, Vpa | None]]:
        """The pods that have a VPA, or have been resized or shrunk by us before."""
        for pod in self.pods:
            vpa = self.vpa_of.get(pod.key)
            known = pod_id(pod) in self.shrinks or ANNOTATION_RESIZE_LEDGER in pod.metadata.annotations
            if pod.key not in self.unmatched and (vpa is not None or known):
                yield pod, vpa

    def orphans(self) -> Iterator[MemoryShrink]:
        """The shrinks of which the pod is not there."""
        alive = {pod_id(pod) for pod in self.pods}
        return (shrink for owner, shrinks in self.shrinks.items() if owner not in alive for shrink in shrinks)

    def view(self, pod: Pod, vpa: Vpa | None, now: float, settings: Settings) -> View:
        """What there is to see of one pod.

        Raises:
            QuantityError, ValidationError: the pod cannot be read.
        """
        group = self.groups.get(vpa.key, ()) if vpa else ()
        limits = self.limits.get(pod.metadata.namespace, UNLIMITED)
        return look(pod, vpa, group, self.nodes.get(pod.spec.node_name), self.shrinks.get(pod_id(pod), ()), now, settings, limits)


def pod_id(pod: Pod) -> PodId:
    """What tells the pod from all others, those of the same name before and after it included."""
    return pod.metadata.namespace, pod.metadata.uid


def read_world(cluster: UpdaterPort) -> World:
    """The cluster as it is now.

    Raises:
        ClusterError: it could not be listed; an owner that could not be looked up is a problem of its pod alone.
    """
    pods, listed = cluster.list_pods(), cluster.list_vpas()
    index = index_vpas(listed)
    nodes = {node.name: node for node in cluster.list_nodes()}
    shrinks: dict[PodId, list[MemoryShrink]] = defaultdict(list)
    for shrink in cluster.list_shrinks():
        shrinks[shrink.metadata.namespace, shrink.spec.pod.uid].append(shrink)
    vpas: dict[ObjectKey, Vpa] = {}
    groups: dict[ObjectKey, list[Pod]] = defaultdict(list)
    unmatched: dict[ObjectKey, PodOutcome] = {}
    damaged: dict[ObjectKey, PodOutcome] = {}
    for pod in pods:
        try:
            vpa = vpa_of(pod, index, cluster.find_workload)
        except ClusterError as error:
            unmatched[pod.key] = PodOutcome(pod.key, None, OutcomeCode.UNAVAILABLE, error.reason, f"owner of the pod: {error}")
            continue
        if vpa is not None:
            try:
                vpas[pod.key] = for_node(vpa, node.labels if (node := nodes.get(pod.spec.node_name)) else None)
            except ValidationError as error:  # what is recommended for all pods is enough for each
                vpas[pod.key] = vpa
                message = f"vpa {vpa.key}: {error}"
                damaged.setdefault(vpa.key, PodOutcome(pod.key, vpa.key, OutcomeCode.BAD_OBJECT, error.reason, message))
            groups[vpa.key].append(pod)
    limits = limits_by_namespace(cluster.list_limit_ranges())
    problems = (*unmatched.values(), *damaged.values())
    return World(pods, listed, nodes, shrinks, vpas, groups, limits, frozenset(unmatched), problems)
