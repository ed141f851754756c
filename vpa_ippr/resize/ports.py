"""What the updater needs of the outside: one Protocol, implemented over the Kubernetes API by the cluster room."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from vpa_ippr.api.cluster import EventType, Node, ObjectRef
from vpa_ippr.api.hpa import HorizontalPodAutoscaler
from vpa_ippr.api.limit_range import LimitRange
from vpa_ippr.api.meta import Condition, ObjectKey
from vpa_ippr.api.node_memory import NodeMemory
from vpa_ippr.api.pdb import PodDisruptionBudget
from vpa_ippr.api.pod import Pod
from vpa_ippr.api.quota import ResourceQuota
from vpa_ippr.api.shrink import Intent, MemoryShrink
from vpa_ippr.api.signals import Signals
from vpa_ippr.api.vpa import Vpa
from vpa_ippr.recommend.ownership import FindWorkload

Patch = dict[str, object]


class ApiCause(Protocol):
    """One entry of a Status' ``details.causes``."""

    @property
    def reason(self) -> str:
        """Such as ``NodeCapacity`` or ``FieldValueForbidden``."""
        ...


@runtime_checkable
class ApiRefusal(Protocol):
    """The API server's own answer, as an error carries it; an error without these got no answer at all."""

    status: int
    api_reason: str
    causes: Sequence[ApiCause]


class UpdaterPort(Protocol):
    """Reads and writes of the updater.

    Every method may raise a ``vpa_ippr.api.errors.ClusterError``; one that the API server answered looks like an ``ApiRefusal``.
    """

    def list_vpas(self) -> list[Vpa]:
        """All VPAs that this updater serves."""
        ...

    def list_pods(self) -> list[Pod]:
        """All pods that are on a node and have not ended."""
        ...

    def list_nodes(self) -> list[Node]:
        """All nodes."""
        ...

    def list_limit_ranges(self) -> list[LimitRange]:
        """All LimitRanges; the updater's role needs the right to list ``limitranges``."""
        ...

    def list_quotas(self) -> list[ResourceQuota]:
        """All ResourceQuotas; the updater's role needs the right to list ``resourcequotas``."""
        ...

    def list_pdbs(self) -> list[PodDisruptionBudget]:
        """All PodDisruptionBudgets; the updater's role needs the right to list ``poddisruptionbudgets`` of the group ``policy``."""
        ...

    def list_hpas(self) -> list[HorizontalPodAutoscaler]:
        """All HorizontalPodAutoscalers; the updater's role needs the right to list ``horizontalpodautoscalers`` of ``autoscaling``."""
        ...

    def list_shrinks(self) -> list[MemoryShrink]:
        """All MemoryShrinks."""
        ...

    def list_node_memories(self) -> list[NodeMemory]:
        """What the nodes' agents tell of containers that press against their memory limits; nothing where that kind is not installed.

        Never waited for: the updater does its other work where it is not known. Its role needs the right to list and watch
        ``nodememories``.
        """
        ...

    @property
    def find_workload(self) -> FindWorkload:
        """Finds an object that pods can belong to, by namespace, API version, kind and name; as the recommender's port does."""
        ...

    def get_pod(self, key: ObjectKey) -> Pod | None:
        """The pod as it is now, not from a cache; None when it is gone."""
        ...

    def get_shrink(self, key: ObjectKey) -> MemoryShrink | None:
        """The MemoryShrink as it is now, not from a cache; None when it is gone."""
        ...

    def resize_pod(self, key: ObjectKey, patch: Patch) -> Pod:
        """Strategic-merge patch of the pod's ``resize`` subresource; 409 when ``metadata.resourceVersion`` in it is outdated."""
        ...

    def dry_run_resize(self, key: ObjectKey, patch: Patch) -> Pod:
        """The same request with ``dryRun=All``: admitted and validated, the quota included, but not stored; the kubelet is not asked."""
        ...

    def annotate_pod(self, key: ObjectKey, patch: Patch) -> Pod:
        """Merge patch of the pod's ``metadata``; 409 when ``metadata.resourceVersion`` in it is outdated."""
        ...

    def evict_pod(self, key: ObjectKey, uid: str) -> None:
        """Evict the pod of that UID; 429 when a PodDisruptionBudget forbids it, 409 when another pod has its name now.

        The updater's role needs the right to create ``pods/eviction``.
        """
        ...

    def admission_renewed_at(self) -> float | None:
        """When an admission controller that applies recommendations to new pods has renewed its lease last; None when there is none."""
        ...

    def annotate_vpa(self, key: ObjectKey, annotations: Mapping[str, str]) -> None:
        """Set these annotations and leave all others; nothing happens when the VPA is gone."""
        ...

    def put_vpa_condition(self, vpa: Vpa, condition: Condition) -> None:
        """Set one condition of the VPA's status; 422 or 409 when the VPA has changed since it was read."""
        ...

    def create_shrink(self, shrink: MemoryShrink) -> None:
        """Create a MemoryShrink; 409 when one of that name exists."""
        ...

    def patch_shrink_intent(self, key: ObjectKey, intent: Intent) -> None:
        """Change ``spec.intent``."""
        ...

    def delete_shrink(self, key: ObjectKey) -> None:
        """Delete a MemoryShrink; nothing happens when it is gone."""
        ...

    def record_event(self, about: ObjectRef | Vpa, event_type: EventType, reason: str, message: str) -> None:
        """Record an event; failures are the implementation's to log, never raised."""
        ...


class GuardSource(Protocol):
    """Evaluates the PromQL guards that users set on their rollouts."""

    def evaluate(self, query: str) -> float | None:
        """The largest value of the query's answer at this moment; None when the answer is empty.

        Raises:
            SourceError: it could not be evaluated.
        """
        ...


class SignalSource(Protocol):
    """Tells what containers go through."""

    def signals(self, namespace: str, pods: Sequence[str], at: float, window_seconds: float) -> Mapping[str, Mapping[str, Signals]]:
        """By pod and container, over the ``window_seconds`` before ``at``; what is not measured is None, or not there.

        Raises:
            SourceError: it could not be read.
        """
        ...


def reference_to(pod: Pod) -> ObjectRef:
    """The pod as the subject of an event."""
    return ObjectRef("v1", "Pod", pod.metadata.namespace, pod.metadata.name, pod.metadata.uid)


def with_precondition(pod: Pod, patch: Mapping[str, object]) -> Patch:
    """``patch`` with the pod's UID and resourceVersion in it, so that no other writer's change is overwritten (409 instead)."""
    metadata = {"uid": pod.metadata.uid, "resourceVersion": pod.metadata.resource_version}
    given = patch.get("metadata")
    return {**patch, "metadata": {**(given if isinstance(given, dict) else {}), **metadata}}
