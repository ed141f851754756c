"""Events, written so that repeats count up in one object instead of flooding the API server."""

from __future__ import annotations

import hashlib
import logging
from typing import Any

import msgspec

from vpa_ippr.api.clock import Clock
from vpa_ippr.api.cluster import EventType, ObjectRef
from vpa_ippr.api.errors import ClusterError
from vpa_ippr.api.timestamps import format_time
from vpa_ippr.cluster import paths
from vpa_ippr.cluster.rest import ApiError, Rest

logger = logging.getLogger(__name__)

_MAX_MESSAGE = 1024
_MAX_NAME = 200


class _Event(msgspec.Struct):
    count: int = 1


class EventRecorder:
    """Writes ``v1.Event``; the same reason and message about the same object are one event with a count."""

    def __init__(self, rest: Rest, clock: Clock, component: str) -> None:
        self._rest = rest
        self._clock = clock
        self._component = component

    def record(self, about: ObjectRef, event_type: EventType, reason: str, message: str) -> None:
        """Record one occurrence. An event that cannot be written is logged: it never stops the work that it tells of."""
        event = self._event(about, event_type, reason, message[:_MAX_MESSAGE])
        path = paths.collection("v1", about.namespace, "events")
        try:
            try:
                self._rest.create(path, event, _Event)
            except ApiError as error:
                if error.api_reason != "AlreadyExists":
                    raise
                self._count_up(f"{path}/{event['metadata']['name']}", event["lastTimestamp"])
        except ClusterError as error:
            logger.warning("event not recorded", extra={"object": f"{about.namespace}/{about.name}", "event": reason, "error": str(error)})

    def _count_up(self, path: str, moment: str) -> None:
        known = self._rest.get(path, _Event)
        self._rest.patch(path, {"count": known.count + 1, "lastTimestamp": moment}, _Event)

    def _event(self, about: ObjectRef, event_type: EventType, reason: str, message: str) -> dict[str, Any]:
        digest = hashlib.sha256(f"{about.uid}\0{self._component}\0{event_type}\0{reason}\0{message}".encode()).hexdigest()[:16]
        moment = format_time(self._clock.now())
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{about.name[:_MAX_NAME].rstrip('-.')}.{digest}", "namespace": about.namespace},
            "involvedObject": {
                "apiVersion": about.api_version,
                "kind": about.kind,
                "namespace": about.namespace,
                "name": about.name,
                "uid": about.uid,
            },
            "type": event_type,
            "reason": reason,
            "message": message,
            "source": {"component": self._component},
            "reportingComponent": self._component,
            "firstTimestamp": moment,
            "lastTimestamp": moment,
            "count": 1,
        }
