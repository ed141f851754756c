"""The status that a kubelet reports for a pod: pure functions from what it knows to ``v1.PodStatus``."""

from __future__ import annotations

from typing import Any

from vpa_ippr.api.names import POD_RESIZE_IN_PROGRESS, POD_RESIZE_PENDING
from vpa_ippr.api.quantity import format_millicores
from vpa_ippr.api.resources import Amounts
from vpa_ippr.api.timestamps import format_time
from vpa_ippr.sandbox.podworker import Ended, ManagedContainer, PodWorker, ResizeCondition, Role, typed
from vpa_ippr.sandbox.versions import PodLevelResources, VersionProfile

Json = dict[str, Any]
# Conditions that the kubelet owns; others, such as PodScheduled, are left as they are.
_OWN_CONDITIONS = ("PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready", POD_RESIZE_PENDING, POD_RESIZE_IN_PROGRESS)
# Requests up to 2m and limits up to 10m are all the same to the kernel; the allocated text is kept (SyncPod, MinShares and MinQuota).
_MIN_REQUEST_MILLICORES = 2
_MIN_LIMIT_MILLICORES = 10


def pod_status(worker: PodWorker, stored: Json, profile: VersionProfile, now: float) -> Json:
    """The whole status, with those conditions of the stored one that belong to others."""
    status: Json = {key: stored[key] for key in ("qosClass", "nominatedNodeName") if key in stored}
    status["phase"] = phase(worker)
    if profile.condition_generation:
        status["observedGeneration"] = worker.generation
    if worker.admission_failure:
        reason, _, message = worker.admission_failure.partition(": ")
        status |= {"reason": reason, "message": message}
    if worker.started_at is not None:
        status["startTime"] = format_time(worker.started_at)
    status["conditions"] = _conditions(worker, stored.get("conditions") or [], profile, now)
    if profile.status_resize and (worker.pending or worker.in_progress):
        status["resize"] = worker.pending.reason if worker.pending else "InProgress"
    status["containerStatuses"] = [container_status(c, profile) for c in worker.containers if c.role is Role.MAIN]
    inits = [container_status(c, profile) for c in worker.containers if c.role is not Role.MAIN]
    if inits:
        status["initContainerStatuses"] = inits
    if profile.pod_level_resources is PodLevelResources.RESIZABLE and worker.allocated_pod:
        status["resources"] = worker.actuated_pod
        status["allocatedResources"] = worker.allocated_pod.get("requests") or {}
    return status


def phase(worker: PodWorker) -> str:
    """``Pending``, ``Running``, ``Succeeded`` or ``Failed``."""
    if worker.is_terminal:
        codes = [c.last.exit.exit_code if c.last else 1 for c in worker.mains]
        return "Failed" if worker.admission_failure or any(codes) else "Succeeded"
    return "Running" if any(c.running or c.last for c in worker.mains) else "Pending"


def is_ready(worker: PodWorker) -> bool:
    """All regular containers and sidecars run."""
    return not worker.deleting and all(c.running is not None for c in worker.containers if c.role is not Role.INIT)


def container_status(container: ManagedContainer, profile: VersionProfile) -> Json:
    """``v1.ContainerStatus``."""
    running = container.running
    status: Json = {
        "name": container.name,
        "image": container.spec.get("image", ""),
        "imageID": "",
        "ready": running is not None,
        "started": running is not None,
        "restartCount": container.restart_count,
        "state": {},
        "lastState": {},
        "resources": actual_resources(container),
    }
    if running is not None:
        status["containerID"] = running.container_id
        status["state"] = {"running": {"startedAt": format_time(running.started_at)}}
    elif container.last is not None and not container.waiting_reason:
        status["containerID"] = container.last.container_id
        status["state"] = {"terminated": _terminated(container.last)}
        return _with_allocated(status, container, profile)
    else:
        status["state"] = {"waiting": {"reason": container.waiting_reason, "message": container.waiting_message}}
    if container.last is not None:
        status["lastState"] = {"terminated": _terminated(container.last)}
    return _with_allocated(status, container, profile)


def allocation_view(worker: PodWorker) -> Json:
    """The pod with nothing but the kubelet's own allocation in its status: what its feasibility check starts from."""

    def view(container: ManagedContainer) -> Json:
        allocated = container.allocated
        return {"name": container.name, "allocatedResources": allocated.get("requests") or {}, "resources": allocated}

    status: Json = {"containerStatuses": [view(c) for c in worker.mains], "conditions": []}
    status["initContainerStatuses"] = [view(c) for c in worker.containers if c.role is not Role.MAIN]
    status["allocatedResources"] = worker.allocated_pod.get("requests") or {}
    if worker.pending is not None:
        condition = {"type": POD_RESIZE_PENDING, "reason": worker.pending.reason, "lastTransitionTime": format_time(worker.pending.since)}
        status["conditions"].append(condition)
    return {**worker.pod, "status": status}


def actual_resources(container: ManagedContainer) -> Json:
    """What is in force: the allocated values, with CPU and memory of what the runtime was last told while the container runs."""
    allocated, actuated = container.allocated, container.actuated
    if container.running is None:
        return allocated
    wanted, told = typed(allocated), typed(actuated)
    requests = _overlay(allocated, actuated, "requests", wanted.requests, told.requests, _MIN_REQUEST_MILLICORES)
    limits = _overlay(allocated, actuated, "limits", wanted.limits, told.limits, _MIN_LIMIT_MILLICORES)
    quota = container.running.cpu.limit_millicores
    if quota is not None and quota > (told.limits.cpu_millicores or quota) and quota > _MIN_LIMIT_MILLICORES:
        limits["cpu"] = format_millicores(quota)  # rounded up by the runtime, which reports what the cgroup has
    return {key: value for key, value in (("limits", limits), ("requests", requests)) if value}


def _overlay(allocated: Json, actuated: Json, kind: str, wanted: Amounts, told: Amounts, smallest_millicores: int) -> Json:
    merged = dict(allocated.get(kind) or {})
    in_force = actuated.get(kind) or {}
    for resource in ("cpu", "memory"):
        merged.pop(resource, None)
        if resource in in_force:
            merged[resource] = in_force[resource]
    if max(wanted.cpu_millicores or 0, told.cpu_millicores or 0) <= smallest_millicores and "cpu" in (allocated.get(kind) or {}):
        merged["cpu"] = allocated[kind]["cpu"]
    return merged


def _with_allocated(status: Json, container: ManagedContainer, profile: VersionProfile) -> Json:
    requests = container.allocated.get("requests")
    if requests and profile.allocated_in_status:
        status["allocatedResources"] = requests
    return status


def _terminated(ended: Ended) -> Json:
    return {
        "exitCode": ended.exit.exit_code,
        "reason": ended.exit.reason,
        "startedAt": format_time(ended.started_at),
        "finishedAt": format_time(ended.exit.at),
        "containerID": ended.container_id,
    }


def _conditions(worker: PodWorker, stored: list[Json], profile: VersionProfile, now: float) -> list[Json]:
    others = [condition for condition in stored if condition["type"] not in _OWN_CONDITIONS]
    if not any(condition["type"] == "PodScheduled" for condition in others):
        # A pod that was created with its node: no scheduler has said so.
        others.append(_basic("PodScheduled", True, "", {}, now))
    before = {condition["type"]: condition for condition in stored}
    ready = is_ready(worker) and not worker.is_terminal
    initialized = all(c.done for c in worker.containers if c.role is Role.INIT)
    reason = "PodCompleted" if worker.is_terminal else "ContainersNotReady"
    basic = [
        _basic("PodReadyToStartContainers", worker.started_at is not None and not worker.is_terminal, reason, before, now),
        _basic("Initialized", initialized, "ContainersNotInitialized", before, now),
        _basic("Ready", ready, reason, before, now),
        _basic("ContainersReady", ready, reason, before, now),
    ]
    if profile.status_resize:
        return [*others, *basic]
    resize = [(POD_RESIZE_PENDING, worker.pending), (POD_RESIZE_IN_PROGRESS, worker.in_progress)]
    return [*others, *basic, *(_resize(kind, condition, profile) for kind, condition in resize if condition is not None)]


def _basic(kind: str, holds: bool, reason: str, before: dict[str, Json], now: float) -> Json:
    status = "True" if holds else "False"
    known = before.get(kind)
    since = known["lastTransitionTime"] if known and known["status"] == status else format_time(now)
    condition: Json = {"type": kind, "status": status, "lastProbeTime": None, "lastTransitionTime": since}
    return condition if holds else {**condition, "reason": reason}


def _resize(kind: str, condition: ResizeCondition, profile: VersionProfile) -> Json:
    result: Json = {
        "type": kind,
        "status": "True",
        "lastProbeTime": format_time(condition.probed_at),
        "lastTransitionTime": format_time(condition.since),
    }
    if condition.reason:
        result["reason"] = condition.reason
    if condition.message:
        result["message"] = condition.message
    if profile.condition_generation:
        result["observedGeneration"] = condition.generation
    return result
