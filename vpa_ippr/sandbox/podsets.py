"""StatefulSets and DaemonSets: owners that know each of their pods by name or by node."""

from __future__ import annotations

from typing import Any

from vpa_ippr.sandbox.owners import World, is_active, is_ready, phase_of, retry_delay, template_hash

Json = dict[str, Any]
REVISION_LABEL = "controller-revision-hash"


class StatefulSets:
    """Pods ``name-0``, ``name-1`` and so on, made in order unless they may be made in parallel."""

    kind = "StatefulSet"

    def __init__(self, world: World) -> None:
        self._world = world

    def reconcile(self, owner: Json) -> None:
        """Make the next pod, or remove one: too many, failed, or of an old template (the highest first, when all others are ready)."""
        world, spec = self._world, owner["spec"]
        digest, wanted = template_hash(spec["template"]), spec.get("replicas", 1)
        pods = {_ordinal(pod): pod for pod in world.pods.owned_by(owner["metadata"]["uid"])}
        for pod in pods.values():
            if phase_of(pod) in ("Succeeded", "Failed"):
                world.delete("pods", pod)
        self._create_missing(owner, pods, digest)
        surplus = [ordinal for ordinal, pod in pods.items() if ordinal >= wanted and is_active(pod)]
        if surplus:
            world.delete("pods", pods[max(surplus)])
        elif all(is_ready(pod) for pod in pods.values()) and len(pods) == wanted and not _updates_on_delete(spec):
            _replace_outdated(world, sorted(pods.values(), key=_ordinal, reverse=True), digest)
        _report(world, owner, list(pods.values()), digest)

    def _create_missing(self, owner: Json, pods: dict[int, Json], digest: str) -> None:
        name, spec = owner["metadata"]["name"], owner["spec"]
        in_parallel = spec.get("podManagementPolicy") == "Parallel"
        for ordinal in range(spec.get("replicas", 1)):
            if ordinal not in pods:
                pod_name = f"{name}-{ordinal}"
                labels = {
                    "statefulset.kubernetes.io/pod-name": pod_name,
                    "apps.kubernetes.io/pod-index": str(ordinal),
                    REVISION_LABEL: f"{name}-{digest}",
                }
                self._world.create_pod(owner, spec["template"], pod_name, labels=labels)
            if not in_parallel and not (ordinal in pods and is_ready(pods[ordinal])):
                return


class DaemonSets:
    """One pod on each node that the template's node selector matches."""

    kind = "DaemonSet"

    def __init__(self, world: World) -> None:
        self._world = world

    def reconcile(self, owner: Json) -> None:
        """Make what is missing, delete what has no node any more, replace pods of an old template one by one."""
        world, spec = self._world, owner["spec"]
        digest = template_hash(spec["template"])
        owned = world.pods.owned_by(owner["metadata"]["uid"])
        nodes = self._nodes(spec["template"])
        active = [pod for pod in owned if is_active(pod)]
        for pod in active:
            if pod["spec"].get("nodeName") not in nodes:
                world.delete("pods", pod)
        covered = {pod["spec"].get("nodeName") for pod in owned if phase_of(pod) != "Failed"}
        failures = [pod for pod in owned if phase_of(pod) == "Failed" and not pod["metadata"].get("deletionTimestamp")]
        for pod in failures:
            # The node refused it: a new one is tried when the old one has been removed, after a while.
            world.agenda.after(retry_delay(0), lambda pod=pod: world.delete("pods", pod))  # type: ignore[misc]
        for node in sorted(nodes - covered - {pod["spec"].get("nodeName") for pod in failures}):
            labels = {REVISION_LABEL: digest, "pod-template-generation": str(owner["metadata"].get("generation", 1))}
            world.create_pod(owner, spec["template"], node=node, labels=labels)
        if active and all(is_ready(pod) for pod in active) and not _updates_on_delete(spec):
            _replace_outdated(world, active, digest)
        ready = sum(is_ready(pod) for pod in active)
        world.set_status(
            owner,
            {
                "desiredNumberScheduled": len(nodes),
                "currentNumberScheduled": len(active),
                "numberMisscheduled": 0,
                "numberReady": ready,
                "numberAvailable": ready or None,
                "numberUnavailable": len(nodes) - ready or None,
                "updatedNumberScheduled": sum(_is_of(pod, digest) for pod in active) or None,
                "observedGeneration": owner["metadata"].get("generation", 1),
            },
        )

    def _nodes(self, template: Json) -> set[str]:
        selector = template["spec"].get("nodeSelector") or {}
        return {
            name
            for (_, name), node in self._world.nodes.objects.items()
            if selector.items() <= (node["metadata"].get("labels") or {}).items()
        }


def _ordinal(pod: Json) -> int:
    return int(pod["metadata"]["name"].rpartition("-")[2])


def _is_of(pod: Json, digest: str) -> bool:
    revision: str = (pod["metadata"].get("labels") or {}).get(REVISION_LABEL, "")
    return revision.endswith(digest)


def _updates_on_delete(spec: Json) -> bool:
    return (spec.get("updateStrategy") or {}).get("type") == "OnDelete"


def _replace_outdated(world: World, pods: list[Json], digest: str) -> None:
    outdated = [pod for pod in pods if not _is_of(pod, digest)]
    if outdated:
        world.delete("pods", outdated[0])


def _report(world: World, owner: Json, pods: list[Json], digest: str) -> None:
    active = [pod for pod in pods if is_active(pod)]
    ready = sum(is_ready(pod) for pod in active)
    updated = sum(_is_of(pod, digest) for pod in active)
    name = owner["metadata"]["name"]
    world.set_status(
        owner,
        {
            "observedGeneration": owner["metadata"].get("generation", 1),
            "replicas": len(active),
            "readyReplicas": ready or None,
            "availableReplicas": ready,
            "currentReplicas": updated or None,
            "updatedReplicas": updated or None,
            "currentRevision": f"{name}-{digest}",
            "updateRevision": f"{name}-{digest}",
        },
    )
