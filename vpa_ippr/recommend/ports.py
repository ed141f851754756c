"""What the recommender's service needs of the outside: sources of usage and of evidence, and a cluster. The other rooms implement these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from vpa_ippr.api.cluster import EventType, Node, Workload
from vpa_ippr.api.meta import ObjectKey
from vpa_ippr.api.pod import Pod
from vpa_ippr.api.series import Evidence, PodNodes, Usage, Window
from vpa_ippr.api.vpa import Vpa, VpaCheckpoint, VpaStatus


class UsageSource(Protocol):
    """Where usage comes from."""

    def fetch(self, window: Window, namespaces: Sequence[str] | None = None) -> Usage:
        """Samples and OOM kills with ``start < t <= end``; the subject of each of ``Usage.failures`` is a namespace.

        Raises:
            SourceError: nothing at all could be read.
        """
        ...


class EvidenceSource(Protocol):
    """Where evidence comes from that use is not need; not every source of usage has any."""

    def fetch_evidence(self, window: Window, namespaces: Sequence[str] | None = None) -> Evidence:
        """Evidence with ``start < t <= end``, on the multiples of the window's step.

        Raises:
            SourceError: nothing at all could be read.
        """
        ...


class PodNodeSource(Protocol):
    """Where it is known on which node a pod was that has ended; only asked where a VPA wants its pods told apart by their nodes."""

    def fetch_pod_nodes(self, window: Window, namespaces: Sequence[str]) -> PodNodes:
        """The nodes of the pods of the window; the subject of each of ``PodNodes.failures`` is a namespace."""
        ...


class RecommenderCluster(Protocol):
    """Reads and writes of the recommender; every method may raise ``ClusterError``, which spoils one object at most."""

    def list_vpas(self) -> list[Vpa]:
        """All VPAs; the service picks its own."""
        ...

    def list_pods(self) -> list[Pod]:
        """All pods."""
        ...

    def list_nodes(self) -> list[Node]:
        """All nodes; only asked where a VPA wants its pods told apart by their nodes."""
        ...

    def find_workload(self, namespace: str, api_version: str, kind: str, name: str) -> Workload | None:
        """The object of that kind and name; None when there is none, or it is neither a well-known controller nor scalable.

        ``api_version`` may be empty for a well-known kind. Raises ValidationError when the cluster serves no such kind.
        """
        ...

    def list_checkpoints(self) -> list[VpaCheckpoint]:
        """All checkpoints, of any recommender."""
        ...

    def put_checkpoint(self, checkpoint: VpaCheckpoint) -> None:
        """Create it, or replace its annotations and its whole status: a bucket that is not in it must not stay."""
        ...

    def patch_vpa_status(self, key: ObjectKey, status: VpaStatus) -> None:
        """Replace the status: a list that has become empty must not stay. Nothing happens when the VPA is gone."""
        ...

    def annotate_vpa(self, key: ObjectKey, annotations: Mapping[str, str]) -> None:
        """Set these annotations and leave all others. Nothing happens when the VPA is gone."""
        ...

    def record_event(self, vpa: Vpa, event_type: EventType, reason: str, message: str) -> None:
        """Record an event on the VPA; failures are the implementation's to log, never raised."""
        ...
