"""Deployments and ReplicaSets."""

from __future__ import annotations

from typing import Any

from vpa_ippr.api.timestamps import format_time
from vpa_ippr.sandbox.owners import World, is_active, is_ready, owner_reference, phase_of, retry_delay, template_hash

Json = dict[str, Any]
HASH_LABEL = "pod-template-hash"


class ReplicaSets:
    """Keeps so many active pods."""

    kind = "ReplicaSet"

    def __init__(self, world: World) -> None:
        self._world = world
        self._not_before: dict[str, float] = {}

    def reconcile(self, owner: Json) -> None:
        """Create what is missing, delete what is too much: pods that are not ready first, then the youngest."""
        world, spec = self._world, owner["spec"]
        pods = world.active_pods(owner)
        wanted = spec.get("replicas", 1)
        if len(pods) < wanted:
            self._create(owner, wanted - len(pods))
        surplus = sorted(pods, key=lambda pod: pod["metadata"]["creationTimestamp"], reverse=True)
        for pod in sorted(surplus, key=is_ready)[: max(0, len(pods) - wanted)]:
            world.delete("pods", pod)
        ready = sum(is_ready(pod) for pod in pods)
        world.set_status(
            owner,
            {
                "replicas": len(pods),
                "fullyLabeledReplicas": len(pods),
                "readyReplicas": ready or None,
                "availableReplicas": ready or None,
                "observedGeneration": owner["metadata"].get("generation", 1),
            },
        )

    def _create(self, owner: Json, count: int) -> None:
        world, uid = self._world, owner["metadata"]["uid"]
        now = world.agenda.now()
        failures = sum(phase_of(pod) == "Failed" for pod in world.pods.owned_by(uid))
        if now < self._not_before.get(uid, now):
            return
        created = all(world.create_pod(owner, owner["spec"]["template"]) for _ in range(count))
        if failures or not created:
            self._not_before[uid] = now + retry_delay(failures)
            world.requeue(owner, self._not_before[uid])


class Deployments:
    """Keeps one ReplicaSet for each template that there was; the present one has all the pods once they are ready."""

    kind = "Deployment"

    def __init__(self, world: World) -> None:
        self._world = world

    def reconcile(self, owner: Json) -> None:
        """Make the present template's ReplicaSet, grow it, and then shrink the others."""
        world, spec = self._world, owner["spec"]
        digest = template_hash(spec["template"])
        sets = world.owners["ReplicaSet"].owned_by(owner["metadata"]["uid"])
        current = next((s for s in sets if (s["metadata"].get("labels") or {}).get(HASH_LABEL) == digest), None)
        old = [s for s in sets if s is not current]
        recreates = (spec.get("strategy") or {}).get("type") == "Recreate"
        pods_of_old = [pod for s in old for pod in world.pods.owned_by(s["metadata"]["uid"])]
        wanted = 0 if recreates and pods_of_old else spec.get("replicas", 1)
        if current is None:
            self._create_set(owner, digest, wanted)
        elif current["spec"].get("replicas", 1) != wanted:
            world.set_spec(current, replicas=wanted)
        current_pods = world.active_pods(current) if current else []
        if recreates or sum(is_ready(pod) for pod in current_pods) >= wanted:
            for replica_set in old:
                if replica_set["spec"].get("replicas", 1):
                    world.set_spec(replica_set, replicas=0)
        self._report(owner, current_pods, [pod for pod in pods_of_old if is_active(pod)])

    def _create_set(self, owner: Json, digest: str, replicas: int) -> None:
        spec, metadata = owner["spec"], owner["metadata"]
        template = spec["template"]
        labels = {**((template.get("metadata") or {}).get("labels") or {}), HASH_LABEL: digest}
        selector = spec["selector"]
        self._world.store.create(
            "replicasets.apps",
            {
                "metadata": {
                    "name": f"{metadata['name']}-{digest}",
                    "namespace": metadata["namespace"],
                    "labels": labels,
                    "ownerReferences": [owner_reference(owner)],
                },
                "spec": {
                    "replicas": replicas,
                    "selector": {**selector, "matchLabels": {**(selector.get("matchLabels") or {}), HASH_LABEL: digest}},
                    "template": {**template, "metadata": {**(template.get("metadata") or {}), "labels": labels}},
                },
            },
        )

    def _report(self, owner: Json, current: list[Json], old: list[Json]) -> None:
        wanted = owner["spec"].get("replicas", 1)
        total, ready = len(current) + len(old), sum(is_ready(pod) for pod in [*current, *old])
        updated_ready = sum(is_ready(pod) for pod in current)
        available, complete = ready >= wanted, updated_ready >= wanted and not old
        conditions = [
            self._condition(owner, "Available", available, "MinimumReplicasAvailable" if available else "MinimumReplicasUnavailable"),
            self._condition(owner, "Progressing", True, "NewReplicaSetAvailable" if complete else "ReplicaSetUpdated"),
        ]
        self._world.set_status(
            owner,
            {
                "observedGeneration": owner["metadata"].get("generation", 1),
                "replicas": total or None,
                "updatedReplicas": len(current) or None,
                "readyReplicas": ready or None,
                "availableReplicas": ready or None,
                "unavailableReplicas": max(0, wanted - ready) or None,
                "conditions": conditions,
            },
        )

    def _condition(self, owner: Json, kind: str, holds: bool, reason: str) -> Json:
        status = "True" if holds else "False"
        known = {c["type"]: c for c in (owner.get("status") or {}).get("conditions") or []}.get(kind)
        if known and (known["status"], known["reason"]) == (status, reason):
            return dict(known)
        moment = format_time(self._world.agenda.now())
        return {"type": kind, "status": status, "reason": reason, "message": "", "lastUpdateTime": moment, "lastTransitionTime": moment}
