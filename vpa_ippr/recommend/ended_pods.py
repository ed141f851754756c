"""Where the pods of a workload are told apart by their nodes: the parts of pods that have ended, by the nodes on which they ran."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from vpa_ippr.api.errors import SourceError
from vpa_ippr.api.series import Finding, PodNodes, Window, WorkloadRef
from vpa_ippr.recommend.node_parts import SeenNodes
from vpa_ippr.recommend.ports import PodNodeSource

PodName = tuple[str, str]
"""Namespace and name of a pod."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The part that each pod belongs to; ``failures`` holds one finding for each namespace in which that could not be found out."""

    owners: Mapping[PodName, WorkloadRef]
    failures: tuple[Finding, ...] = ()
    findings: tuple[Finding, ...] = ()

    def waiting_among(self, workloads: Iterable[WorkloadRef]) -> dict[WorkloadRef, Finding]:
        """The parts that must not be read on, for they would pass over samples of pods that could not be placed, and why that was."""
        failed = {failure.subject: failure for failure in self.failures}
        return {workload: failed[workload.namespace] for workload in workloads if workload.part and workload.namespace in failed}


def ended_pods(
    owners: Mapping[PodName, WorkloadRef], workloads: Iterable[WorkloadRef], present: Collection[PodName]
) -> dict[PodName, WorkloadRef]:
    """The pods, and their ``owners``, that are not ``present`` any more and are of a workload with a part among ``workloads``."""
    wanted = frozenset(replace(workload, part="") for workload in workloads if workload.part)
    return {pod: owner for pod, owner in owners.items() if owner in wanted and pod not in present}


def read_pod_nodes(source: PodNodeSource | None, window: Window, pods: Iterable[PodName]) -> PodNodes:
    """The nodes of the pods of the window, in the namespaces of these pods; none are known without a source."""
    namespaces = sorted({namespace for namespace, _ in pods})
    if source is None or not namespaces:
        return PodNodes({})
    try:
        return source.fetch_pod_nodes(window, namespaces)
    except SourceError as error:
        return PodNodes({}, tuple(Finding(error.reason, namespace, 1, f"{namespace}: {error}") for namespace in namespaces))


def place(ended: Mapping[PodName, WorkloadRef], found: PodNodes, splits: Mapping[WorkloadRef, str], seen: SeenNodes) -> Placement:
    """The parts of the pods, given the nodes that were ``found``; ``splits``: the label that tells the pods of each owner apart."""
    placed = {pod: part for pod, owner in ended.items() if (part := seen.part(owner, splits[owner], found.nodes.get(pod, ""))) is not None}
    failed = {failure.subject for failure in found.failures}
    lost = [pod for pod in ended if pod not in placed and pod[0] not in failed]
    return Placement(placed, found.failures, (_lost_finding(lost),) if lost else ())


def _lost_finding(lost: list[PodName]) -> Finding:
    message = f"{len(lost)} pods that have ended, such as {'/'.join(lost[0])}, do not count: their node is gone or not known"
    return Finding("PodNodeUnknown", lost[0][0], len(lost), message)
