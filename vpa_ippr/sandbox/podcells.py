"""What ``kubectl get pods`` shows of a pod: readiness, restarts and the one word for its state (``printPod`` of the real server)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Json = dict[str, Any]


def pod_cells(pod: Json, since: Callable[[str | None], str]) -> list[Any]:
    """The cells of a pod; ``since`` says how long ago a time was."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    statuses = status.get("containerStatuses") or []
    sidecars = [c for c in spec.get("initContainers") or [] if c.get("restartPolicy") == "Always"]
    names = {c["name"] for c in sidecars}
    counted = [*statuses, *(s for s in status.get("initContainerStatuses") or [] if s["name"] in names)]
    ready = sum(bool(s.get("ready")) for s in counted)
    total = len(spec.get("containers") or []) + len(sidecars)
    gates = spec.get("readinessGates") or []
    return [
        pod["metadata"]["name"],
        f"{ready}/{total}",
        _state(pod),
        _restarts(counted, since),
        since(pod["metadata"].get("creationTimestamp")),
        status.get("podIP") or "<none>",
        spec.get("nodeName") or "<none>",
        status.get("nominatedNodeName") or "<none>",
        f"0/{len(gates)}" if gates else "<none>",
    ]


def _state(pod: Json) -> str:
    status = pod.get("status") or {}
    reason = status.get("reason") or status.get("phase", "Unknown")
    if pod["metadata"].get("deletionTimestamp"):
        return "Terminating"
    starting = _init_state(pod)
    if starting:
        return starting
    reasons = [found for s in status.get("containerStatuses") or [] if (found := _container_state(s))]
    if not reasons:
        return str(reason)
    running = any((s.get("state") or {}).get("running") and s.get("ready") for s in status["containerStatuses"])
    if reasons[0] == "Completed" and running:
        return "Running" if _is_ready(status) else "NotReady"
    return reasons[0]


def _init_state(pod: Json) -> str:
    """``Init:1/2`` and the like while init containers are not through."""
    containers = (pod.get("spec") or {}).get("initContainers") or []
    sidecars = {c["name"] for c in containers if c.get("restartPolicy") == "Always"}
    for index, entry in enumerate((pod.get("status") or {}).get("initContainerStatuses") or []):
        state = entry.get("state") or {}
        finished = (state.get("terminated") or {}).get("exitCode") == 0 if state.get("terminated") else False
        if finished or (entry["name"] in sidecars and state.get("running")):
            continue
        detail = _container_state(entry)
        return f"Init:{detail}" if detail and detail != "PodInitializing" else f"Init:{index}/{len(containers)}"
    return ""


def _container_state(entry: Json) -> str:
    state = entry.get("state") or {}
    if (state.get("waiting") or {}).get("reason"):
        return str(state["waiting"]["reason"])
    terminated = state.get("terminated")
    if not terminated:
        return ""
    if terminated.get("reason"):
        return str(terminated["reason"])
    return f"Signal:{terminated['signal']}" if terminated.get("signal") else f"ExitCode:{terminated.get('exitCode', 0)}"


def _is_ready(status: Json) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or [])


def _restarts(statuses: list[Json], since: Callable[[str | None], str]) -> str:
    count = sum(int(s.get("restartCount", 0)) for s in statuses)
    ended = [((s.get("lastState") or {}).get("terminated") or {}).get("finishedAt") for s in statuses]
    last = max((text for text in ended if text), default=None)
    return f"{count} ({since(last)} ago)" if count and last else str(count)
