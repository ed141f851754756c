"""Events as the sandbox's components write them: a repeated one is counted up, not written anew."""

from __future__ import annotations

from typing import Any

from vpa_ippr.api.timestamps import format_time
from vpa_ippr.sandbox.agenda import Agenda
from vpa_ippr.sandbox.status import StatusError
from vpa_ippr.sandbox.store import Store

Json = dict[str, Any]


class EventRecorder:
    """Writes core/v1 events of one component."""

    def __init__(self, store: Store, agenda: Agenda, component: str, host: str = "") -> None:
        self._store = store
        self._agenda = agenda
        self._component = component
        self._host = host
        self._names: dict[tuple[str, str, str], str] = {}
        self._count = 0

    def record(self, obj: Json, kind: str, reason: str, message: str) -> None:
        """Say that ``reason`` happened to ``obj``; ``kind`` is ``Normal`` or ``Warning``."""
        metadata = obj["metadata"]
        key = (metadata["uid"], reason, message)
        namespace = metadata.get("namespace") or "default"
        moment = format_time(self._agenda.now())
        if key in self._names:
            try:
                self._store.update("events", namespace, self._names[key], lambda event: _counted(event, moment))
                return
            except StatusError:
                # The event was deleted; it is written anew.
                del self._names[key]
        self._count += 1
        name = f"{metadata['name']}.{self._component}-{self._count:08x}"
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": {
                "apiVersion": obj.get("apiVersion", "v1"),
                "kind": obj.get("kind", "Pod"),
                "namespace": metadata.get("namespace", ""),
                "name": metadata["name"],
                "uid": metadata["uid"],
                "resourceVersion": metadata.get("resourceVersion", ""),
            },
            "reason": reason,
            "message": message,
            "type": kind,
            "source": {"component": self._component, **({"host": self._host} if self._host else {})},
            "reportingComponent": self._component,
            "reportingInstance": self._host,
            "firstTimestamp": moment,
            "lastTimestamp": moment,
            "count": 1,
        }
        try:
            self._store.create("events", event)
        except StatusError as error:
            if error.code not in (403, 404):
                raise
            # The namespace is going away, and its events with it.
            return
        self._names[key] = name


def _counted(event: Json, moment: str) -> Json:
    event["count"] = event.get("count", 1) + 1
    event["lastTimestamp"] = moment
    return event
