"""From kube-state-metrics' owner series to the topmost owner of each pod.

Two hops are enough for the built-in kinds: pod -> ReplicaSet -> Deployment (or Rollout), pod -> Job -> CronJob. Names are never
guessed from prefixes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from vpa_ippr.api.series import WorkloadRef
from vpa_ippr.metrics.decode import Row

# kube-state-metrics before 2.0 writes "<none>" where there is no owner, later versions an empty label.
_NO_OWNER = ("", "<none>")


@dataclass(frozen=True, slots=True)
class _Owner:
    kind: str
    name: str


def resolve_owners(
    namespace: str, pods: Iterable[Row], replicasets: Iterable[Row], jobs: Iterable[Row]
) -> dict[tuple[str, str], WorkloadRef]:
    """The workload of every pod, by (namespace, pod).

    A pod without a controller, or owned by its node (a static pod), is its own workload of kind ``Pod``. The rows may hold
    duplicates in any order.
    """
    above = {
        "ReplicaSet": _owners_by(replicasets, "replicaset"),
        "Job": _owners_by(jobs, "job_name"),
    }
    return {
        (namespace, pod): WorkloadRef(namespace, top.kind, top.name)
        for pod, direct in _owners_by(pods, "pod").items()
        for top in (_topmost(pod, direct, above),)
    }


def _topmost(pod: str, direct: _Owner | None, above: Mapping[str, Mapping[str, _Owner | None]]) -> _Owner:
    if direct is None or direct.kind == "Node":
        return _Owner("Pod", pod)
    return above.get(direct.kind, {}).get(direct.name) or direct


def _owners_by(rows: Iterable[Row], label: str) -> dict[str, _Owner | None]:
    """The owner by the value of ``label``; a name that was reused by another owner goes to the first in order, for repeatability."""
    owners: dict[str, _Owner | None] = {}
    for row in sorted(rows, key=lambda row: (row.labels.get("owner_kind", ""), row.labels.get("owner_name", ""))):
        name = row.labels.get(label, "")
        owner = _Owner(row.labels.get("owner_kind", ""), row.labels.get("owner_name", ""))
        if name and not owners.get(name):
            owners[name] = None if owner.kind in _NO_OWNER else owner
    return owners
