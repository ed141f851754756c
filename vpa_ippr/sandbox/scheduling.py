"""The scheduler: binds pods to nodes by what they request and what others have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vpa_ippr.api.resources import parse_amounts
from vpa_ippr.api.timestamps import format_time
from vpa_ippr.sandbox.agenda import Agenda
from vpa_ippr.sandbox.mirror import Mirror
from vpa_ippr.sandbox.owners import is_active
from vpa_ippr.sandbox.podamounts import Totals
from vpa_ippr.sandbox.podfit import requests_for_fit
from vpa_ippr.sandbox.recorder import EventRecorder
from vpa_ippr.sandbox.status import StatusError
from vpa_ippr.sandbox.store import Store

Json = dict[str, Any]
SCHEDULER_NAME = "default-scheduler"
# Several changes at one moment make one pass.
PASS_SECONDS = 0.1


class Scheduler:
    """Looks at the pods that have no node, the most important first, whenever a pod or a node has changed."""

    def __init__(self, store: Store, agenda: Agenda, pods: Mirror, nodes: Mirror) -> None:
        self._store = store
        self._agenda = agenda
        self._pods = pods
        self._nodes = nodes
        self._recorder = EventRecorder(store, agenda, SCHEDULER_NAME)
        self._planned = False
        pods.on_change(lambda _event, _pod: self._plan())
        nodes.on_change(lambda _event, _node: self._plan())

    def _plan(self) -> None:
        if not self._planned and any(_is_waiting(pod) for pod in self._pods.objects.values()):
            self._planned = True
            self._agenda.after(PASS_SECONDS, self._pass)

    def _pass(self) -> None:
        self._planned = False
        waiting = sorted((pod for pod in self._pods.objects.values() if _is_waiting(pod)), key=_rank)
        rooms = self._rooms()
        for pod in waiting:
            wanted = requests_for_fit(pod)
            node, shortages = choose(pod, wanted, rooms, self._nodes.objects)
            if node is None:
                self._refuse(pod, shortages)
            elif self._bind(pod, node):
                rooms[node] = rooms[node].less(wanted)

    def _rooms(self) -> dict[str, Room]:
        rooms = {}
        for (_, name), node in sorted(self._nodes.objects.items()):
            allocatable = (node.get("status") or {}).get("allocatable") or {}
            amounts = parse_amounts(allocatable, f"node {name} status.allocatable")
            totals = Totals(amounts.cpu_millicores or 0, amounts.memory_bytes or 0)
            rooms[name] = Room(totals, totals, int(allocatable.get("pods", 0)))
        for pod in self._pods.objects.values():
            name = pod["spec"].get("nodeName")
            if name in rooms and (is_active(pod) or pod["metadata"].get("deletionTimestamp")):
                rooms[name] = rooms[name].less(requests_for_fit(pod))
        return rooms

    def _bind(self, pod: Json, node: str) -> bool:
        now = format_time(self._agenda.now())

        def mutate(stored: Json) -> Json:
            stored["spec"]["nodeName"] = node
            _set_condition(stored, {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": now})
            return stored

        metadata = pod["metadata"]
        try:
            self._store.update("pods", metadata["namespace"], metadata["name"], mutate, subresource="binding")
        except StatusError as error:
            if error.code != 404:
                raise
            return False
        self._recorder.record(pod, "Normal", "Scheduled", f"Successfully assigned {metadata['namespace']}/{metadata['name']} to {node}")
        return True

    def _refuse(self, pod: Json, shortages: Mapping[str, int]) -> None:
        total = sum(shortages.values())
        listed = ", ".join(f"{count} {shortage}" for shortage, count in sorted(shortages.items()))
        message = f"0/{total} nodes are available: {listed}." if total else "no nodes available to schedule pods"
        now = format_time(self._agenda.now())
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}

        def mutate(stored: Json) -> Json:
            _set_condition(stored, {**condition, "lastProbeTime": None, "lastTransitionTime": now})
            return stored

        known = [c for c in (pod.get("status") or {}).get("conditions") or [] if c["type"] == "PodScheduled"]
        if known and known[0].get("message") == message:
            return
        try:
            self._store.update("pods", pod["metadata"]["namespace"], pod["metadata"]["name"], mutate, subresource="status")
        except StatusError as error:
            if error.code != 404:
                raise
            return
        self._recorder.record(pod, "Warning", "FailedScheduling", message)


class Room:
    """What is left of one node."""

    def __init__(self, allocatable: Totals, free: Totals, pods: int) -> None:
        self.allocatable = allocatable
        self.free = free
        self.pods = pods

    def less(self, taken: Totals) -> Room:
        """The room after one more pod."""
        free = Totals(self.free.cpu_millicores - taken.cpu_millicores, self.free.memory_bytes - taken.memory_bytes)
        return Room(self.allocatable, free, self.pods - 1)

    def shortage(self, wanted: Totals) -> str:
        """What a pod lacks here; empty when it fits."""
        if self.pods < 1:
            return "Too many pods"
        if wanted.cpu_millicores and wanted.cpu_millicores > self.free.cpu_millicores:
            return "Insufficient cpu"
        if wanted.memory_bytes and wanted.memory_bytes > self.free.memory_bytes:
            return "Insufficient memory"
        return ""

    def used_share(self, wanted: Totals) -> float:
        """How full the fuller of CPU and memory would be."""
        shares = [1 - (free - more) / total for free, more, total in zip(self.free, wanted, self.allocatable, strict=True) if total]
        return max(shares, default=1.0)


def choose(
    pod: Json, wanted: Totals, rooms: Mapping[str, Room], nodes: Mapping[tuple[str, str], Json]
) -> tuple[str | None, dict[str, int]]:
    """The node that would be the least full, the first by name of equals; or None and how many nodes lack what."""
    selector = pod["spec"].get("nodeSelector") or {}
    shortages: dict[str, int] = {}
    fitting: list[tuple[float, str]] = []
    for name, room in rooms.items():
        node = nodes[("", name)]
        if node["spec"].get("unschedulable"):
            shortage = "node(s) were unschedulable"
        elif not selector.items() <= (node["metadata"].get("labels") or {}).items():
            shortage = "node(s) didn't match Pod's node affinity/selector"
        else:
            shortage = room.shortage(wanted)
        if shortage:
            shortages[shortage] = shortages.get(shortage, 0) + 1
        else:
            fitting.append((room.used_share(wanted), name))
    return (min(fitting)[1] if fitting else None), shortages


def _is_waiting(pod: Json) -> bool:
    ours = pod["spec"].get("schedulerName", SCHEDULER_NAME) == SCHEDULER_NAME
    return ours and not pod["spec"].get("nodeName") and is_active(pod)


def _rank(pod: Json) -> tuple[int, str, str, str]:
    metadata = pod["metadata"]
    return -int(pod["spec"].get("priority") or 0), metadata["creationTimestamp"], metadata["namespace"], metadata["name"]


def _set_condition(pod: Json, condition: Json) -> None:
    status = pod.setdefault("status", {})
    others = [c for c in status.get("conditions") or [] if c["type"] != condition["type"]]
    status["conditions"] = [*others, condition]
